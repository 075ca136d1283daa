//! `/v1/whoami`, `/v1/tokens`, `/v1/audit`: who may ask, and what they have asked for.

use axum::{
    Json,
    body::Bytes,
    extract::{Path, Query, State},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tickhost_ledger::{
    Command,
    access::{Access, Audited, Became, Role},
    ids::check_name,
};

use super::{
    Problem,
    access::Who,
    routes::{Answer, body},
};
use crate::{
    cluster,
    host::Host,
    token::{AccessToken, is_reserved},
};

/// Records in one answer.
const AUDIT_MAX: usize = 10_000;
/// Seconds for which a token may be good: somebody has to look at it once in a while.
const WITHIN_S_MAX: u64 = 2 * 366 * 24 * 3_600;

/// Who asks.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct WhoView {
    /// Who, and from where, as the audit log has it.
    pub by: String,
    /// What they may do.
    pub role: Role,
    /// In which namespace; all of them where absent.
    pub namespace: Option<String>,
    /// Until when, RFC 3339.
    pub expires_at: Option<String>,
}

pub(super) async fn whoami(who: Who) -> Json<WhoView> {
    let by = who.by();
    Json(WhoView { by, role: who.role, namespace: who.namespace, expires_at: who.expires_at })
}

/// A token, without its secret.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AccessView {
    /// Its name.
    pub token: String,
    /// What its holder may do.
    pub role: Role,
    /// In which namespace; all of them where absent.
    pub namespace: Option<String>,
    /// Until when, RFC 3339.
    pub expires_at: String,
    /// Whether that is over.
    pub expired: bool,
    /// Since when, RFC 3339.
    pub stored_at: String,
    /// Who gave it out, and from where.
    pub by: String,
}

pub(super) async fn list(State(host): State<Host>) -> Json<Vec<AccessView>> {
    let now = host.clock.now();
    let view = |(name, access): (&String, &Access)| AccessView {
        token: name.clone(),
        role: access.role,
        namespace: access.namespace.clone(),
        expires_at: access.expires_at.to_string(),
        expired: access.expires_at <= now,
        stored_at: access.stored_at.to_string(),
        by: access.by.clone(),
    };
    Json(host.replica.read(|state| state.accesses().map(view).collect()))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenBody {
    role: Role,
    /// Absent for all of them.
    namespace: Option<String>,
    /// Seconds for which it is good.
    within_s: u64,
}

pub(super) async fn create(
    State(host): State<Host>,
    Path(name): Path<String>,
    who: Who,
    bytes: Bytes,
) -> Answer<Value> {
    let TokenBody { role, namespace, within_s } = body(&bytes)?;
    check_name("token", &name)?;
    if let Some(namespace) = &namespace {
        check_name("namespace", namespace)?;
    }
    if is_reserved(&name) {
        return Err(Problem::invalid(format!(
            "`{name}` is how the audit log names somebody else; choose another name, e.g. `ci-billing`"
        )));
    }
    if !(1..=WITHIN_S_MAX).contains(&within_s) {
        return Err(Problem::invalid(format!(
            "`within_s` is {within_s}, expected 1 to {WITHIN_S_MAX} seconds (two years)"
        )));
    }
    let token = AccessToken::new(&name);
    let stored_at = host.clock.now();
    let expires_at = stored_at.plus_ms(within_s * 1_000);
    let access = Access { digest: token.digest(), role, namespace, expires_at, stored_at, by: who.by() };
    cluster::propose(&host, Command::PutAccess { name: name.clone(), access: Box::new(access) }).await?;
    Ok(Json(json!({ "token": name, "secret": token.to_string(), "expires_at": expires_at.to_string() })))
}

pub(super) async fn revoke(State(host): State<Host>, Path(name): Path<String>, who: Who) -> Answer<Value> {
    cluster::propose(&host, Command::DropAccess { name: name.clone(), by: who.by() }).await?;
    Ok(Json(json!({ "token": name, "outcome": "revoked" })))
}

/// Something that somebody asked for.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AuditView {
    /// When, RFC 3339.
    pub at: String,
    /// Who, and from where.
    pub by: String,
    /// What.
    pub what: String,
    /// To what it was to be done.
    pub on: String,
    /// What became of it.
    pub became: Became,
    /// How often.
    pub times: u64,
}

impl From<&Audited> for AuditView {
    fn from(row: &Audited) -> Self {
        Self {
            at: row.at.to_string(),
            by: row.by.clone(),
            what: row.what.clone(),
            on: row.on.clone(),
            became: row.became.clone(),
            times: row.times,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AuditQuery {
    /// Those of whoever has that name.
    by: Option<String>,
    /// Only what was refused.
    #[serde(default)]
    refused: bool,
    count: Option<usize>,
}

/// The newest first.
pub(super) async fn audit(State(host): State<Host>, Query(query): Query<AuditQuery>) -> Json<Vec<AuditView>> {
    let is_by =
        |row: &Audited| query.by.as_ref().is_none_or(|by| row.by.rsplit_once('@').is_some_and(|(who, _)| who == by));
    let is_asked = |row: &&Audited| is_by(row) && (!query.refused || matches!(row.became, Became::Refused(_)));
    let count = query.count.unwrap_or(100).min(AUDIT_MAX);
    Json(host.replica.read(|state| state.audit().filter(is_asked).take(count).map(AuditView::from).collect()))
}
