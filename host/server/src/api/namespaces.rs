//! `/v1/namespaces`: what namespaces may have, and what they have.

use std::collections::BTreeSet;

use axum::{
    Json,
    body::Bytes,
    extract::{Path, State},
    http::HeaderMap,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tickhost_ledger::{
    Command, Refusal, Reply,
    ids::check_name,
    quota::{EVERY_NAMESPACE, Held, Quota},
};

use super::{
    Problem,
    routes::{Answer, body, by},
};
use crate::{host::Host, jobs::check_rules};

/// A namespace: what it may have, and what it has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceView {
    /// Its name; `*` stands for all that have no quota of their own.
    pub namespace: String,
    /// The quota that it goes by, its own or that of `*`.
    pub quota: Option<Quota>,
    /// Whether it is its own.
    pub own: bool,
    /// What it has at this moment.
    pub held: Held,
    /// Attempts in this minute, where its quota asks.
    pub launches_this_minute: u64,
    /// Milliseconds of CPU time of runs that ended in this hour, where its quota asks.
    pub cpu_ms_this_hour: u64,
}

pub(super) async fn list(State(host): State<Host>) -> Json<Vec<NamespaceView>> {
    let now = host.clock.now();
    Json(host.replica.read(|state| {
        let with_quota = state.quotas().map(|(name, _)| name);
        let names: BTreeSet<&String> = with_quota.chain(state.all_held().map(|(name, _)| name)).collect();
        let view = |name: &String| {
            let spent = state.spent(name);
            NamespaceView {
                namespace: name.clone(),
                quota: state.quota(name).map(|row| row.quota.clone()),
                own: state.quotas().any(|(own, _)| own == name),
                held: state.held(name),
                launches_this_minute: if spent.minute == now.0.div_euclid(60_000) { spent.launches } else { 0 },
                cpu_ms_this_hour: if spent.hour == now.0.div_euclid(3_600_000) { spent.cpu_us / 1_000 } else { 0 },
            }
        };
        names.into_iter().map(view).collect()
    }))
}

pub(super) async fn put(
    State(host): State<Host>,
    Path(namespace): Path<String>,
    headers: HeaderMap,
    bytes: Bytes,
) -> Answer<Value> {
    let quota: Quota = body(&bytes)?;
    if let problems @ [_, ..] = quota.problems().as_slice() {
        return Err(Problem::invalid(problems.join("; ")));
    }
    check_rules("hosts", quota.hosts.iter().flatten())?;
    set(&host, namespace, Some(Box::new(quota)), by(&headers)).await
}

pub(super) async fn remove(
    State(host): State<Host>,
    Path(namespace): Path<String>,
    headers: HeaderMap,
) -> Answer<Value> {
    set(&host, namespace, None, by(&headers)).await
}

async fn set(host: &Host, namespace: String, quota: Option<Box<Quota>>, by: String) -> Answer<Value> {
    if namespace != EVERY_NAMESPACE {
        check_name("namespace", &namespace)?;
    }
    let done = if quota.is_some() { "stored" } else { "removed" };
    let command = Command::SetQuota { namespace: namespace.clone(), quota, by };
    let outcome = match host.propose_one(command).await? {
        Reply::Unchanged => "unchanged",
        _ => done,
    };
    Ok(Json(json!({ "namespace": namespace, "outcome": outcome })))
}

impl Host {
    /// Proposes one change as the leader of this moment.
    pub(super) async fn propose_one(&self, command: Command) -> Result<Reply, Problem> {
        match self.propose(self.clock.now(), vec![command]).await?.pop() {
            Some(Reply::Refused(refusal)) => Err(Refusal::into(refusal)),
            reply => Ok(reply.unwrap_or(Reply::Unchanged)),
        }
    }
}
