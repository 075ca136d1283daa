//! `/v1/namespaces`: what namespaces may have, and what they have.

use std::collections::BTreeSet;

use axum::{
    Json,
    body::Bytes,
    extract::{Path, State},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tickhost_ledger::{
    Command, Reply,
    ids::check_name,
    quota::{EVERY_NAMESPACE, Held, Quota},
};

use super::{
    access::Who,
    routes::{Answer, body},
};
use crate::{cluster, host::Host, jobs::check_rules};

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

pub(super) async fn list(State(host): State<Host>, who: Who) -> Json<Vec<NamespaceView>> {
    let now = host.clock.now();
    Json(host.replica.read(|state| {
        let own: BTreeSet<&String> = state.quotas().map(|(name, _)| name).collect();
        let names: BTreeSet<&String> = own.iter().copied().chain(state.all_held().map(|(name, _)| name)).collect();
        let view = |name: &String| {
            let spent = state.spent(name).at(now);
            NamespaceView {
                namespace: name.clone(),
                quota: state.quota(name).map(|row| row.quota.clone()),
                own: own.contains(name),
                held: state.held(name),
                launches_this_minute: spent.launches,
                cpu_ms_this_hour: spent.cpu_us / 1_000,
            }
        };
        names.into_iter().filter(|name| who.sees(name)).map(view).collect()
    }))
}

pub(super) async fn put(
    State(host): State<Host>,
    Path(namespace): Path<String>,
    who: Who,
    bytes: Bytes,
) -> Answer<Value> {
    let quota: Quota = body(&bytes)?;
    check_rules("hosts", quota.hosts.iter().flatten())?;
    set(&host, namespace, Some(Box::new(quota)), who.by()).await
}

pub(super) async fn remove(State(host): State<Host>, Path(namespace): Path<String>, who: Who) -> Answer<Value> {
    set(&host, namespace, None, who.by()).await
}

async fn set(host: &Host, namespace: String, quota: Option<Box<Quota>>, by: String) -> Answer<Value> {
    if namespace != EVERY_NAMESPACE {
        check_name("namespace", &namespace)?;
    }
    let done = if quota.is_some() { "stored" } else { "removed" };
    let command = Command::SetQuota { namespace: namespace.clone(), quota, by };
    let outcome = match cluster::propose(host, command).await? {
        Reply::Unchanged => "unchanged",
        _ => done,
    };
    Ok(Json(json!({ "namespace": namespace, "outcome": outcome })))
}
