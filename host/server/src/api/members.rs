//! `/v1/nodes` and `/v1/cluster`: who belongs to the cluster.

use std::time::Duration;

use axum::{
    Json,
    body::Bytes,
    extract::{Path, State},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tickhost_ledger::rows::{GapChoice, Node};
use tickhost_replica::backup::Manifest;

use super::{
    Problem,
    access::Who,
    routes::{Answer, body},
};
use crate::{audit, backup, cluster, host::Host, restore};

/// A node, as its leader knows it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NodeView {
    /// Its number.
    pub node: u64,
    /// `leader`, `voter`, `learner`; `absent` for one that was let in and is not in the group yet.
    pub role: String,
    /// Where its peers reach it.
    pub address: String,
    /// How far its state is.
    pub applied_index: Option<u64>,
    /// How many entries of the leader's log it does not have.
    pub lag: Option<u64>,
    /// Whether its executor has a session.
    pub has_session: bool,
    /// Milliseconds since it was heard of.
    pub heard_ms: Option<i64>,
    /// Milliseconds by which its clock is ahead of the leader's.
    pub clock_ahead_ms: Option<i64>,
    /// The version of its tz database.
    pub tz: String,
    /// Its own version.
    pub version: String,
    /// Runs at this moment.
    pub runs: u32,
    /// Runs at a time at the most.
    pub runs_max: u32,
    /// MiB of guest memory that are reserved.
    pub memory_mib: u64,
    /// MiB of guest memory at the most.
    pub memory_max_mib: u64,
    /// Components whose code it has ready.
    pub warm: Option<usize>,
    /// MiB free on its disk.
    pub disk_free_mib: Option<u64>,
    /// It gets no new runs.
    pub draining: bool,
    /// What an operator has to look at.
    pub alarms: Vec<String>,
}

pub(super) async fn nodes(State(host): State<Host>) -> Answer<Vec<NodeView>> {
    Ok(Json(node_views(&host)))
}

/// All nodes, as this one knows them.
pub(crate) fn node_views(host: &Host) -> Vec<NodeView> {
    let members: Vec<(u64, Node, (u32, u64))> = host
        .replica
        .read(|state| state.nodes().map(|(node, row)| (*node, row.clone(), state.reserved(*node))).collect());
    members.into_iter().map(|(node, row, reserved)| view(host, node, &row, reserved)).collect()
}

fn view(host: &Host, node: u64, row: &Node, (runs, memory): (u32, u64)) -> NodeView {
    let status = host.replica.status();
    let is_here = node == host.replica.node();
    let role = match () {
        () if status.leader == Some(node) => "leader",
        () if host.replica.voters().contains(&node) => "voter",
        () if host.replica.learners().contains(&node) => "learner",
        () => "absent",
    };
    let reign = host.reign();
    let heard = reign.as_ref().and_then(|reign| reign.heard(node));
    let matched = if is_here { status.last_index } else { host.replica.matched().get(&node).copied() };
    let executor = row.executor.as_ref();
    let clock_ahead_ms = if is_here { Some(0) } else { reign.as_ref().and_then(|reign| reign.ahead_ms(node)) };
    let mut alarms: Vec<String> =
        heard.iter().flat_map(|(_, said, _)| [said.full.clone(), said.tight.clone()]).flatten().collect();
    if let Some(ahead) = clock_ahead_ms.filter(|ahead| ahead.abs() > tickhost_ledger::clock::AHEAD_MS_MAX) {
        alarms.push(format!("its clock is {ahead} ms from the leader's"));
    }
    if executor.is_some_and(|executor| executor.tz != tickhost_schedule::TZ_VERSION) {
        alarms.push(format!("its tz database is not the leader's, {}", tickhost_schedule::TZ_VERSION));
    }
    let has_session = executor.is_some_and(|executor| executor.session.is_some());
    if !has_session {
        alarms.push("its executor has no session: it is away, or was not started yet".into());
    }
    NodeView {
        node,
        role: role.into(),
        address: row.address.clone(),
        applied_index: if is_here {
            status.applied_index
        } else {
            heard.as_ref().map(|(_, said, _)| said.applied_index)
        },
        lag: matched.zip(status.last_index).map(|(matched, last)| last.saturating_sub(matched)),
        has_session,
        heard_ms: heard.as_ref().map(|(ms, _, _)| *ms),
        clock_ahead_ms,
        tz: executor.map_or_else(String::new, |executor| executor.tz.clone()),
        version: executor.map_or_else(String::new, |executor| executor.version.clone()),
        runs,
        runs_max: executor.map_or(0, |executor| executor.runs_max),
        memory_mib: memory >> 20,
        memory_max_mib: executor.map_or(0, |executor| executor.memory_bytes_max >> 20),
        warm: heard.as_ref().map(|(_, _, warm)| *warm),
        disk_free_mib: heard.as_ref().map(|(_, said, _)| said.disk_free >> 20),
        draining: row.draining,
        alarms,
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenBody {
    /// Seconds for which it is good.
    within_s: u64,
    /// Whether the node that uses it may vote.
    voter: bool,
}

pub(super) async fn token(State(host): State<Host>, who: Who, bytes: Bytes) -> Answer<Value> {
    let TokenBody { within_s, voter } = body(&bytes)?;
    let token = cluster::make_token(&host, Duration::from_secs(within_s), voter, &who.by()).await?;
    Ok(Json(json!({ "token": token.to_string() })))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TransferBody {
    /// To whom; absent for the one whose log goes furthest.
    to: Option<u64>,
}

pub(super) async fn transfer(State(host): State<Host>, who: Who, bytes: Bytes) -> Answer<Value> {
    let TransferBody { to } = body(&bytes)?;
    let on = to.map_or("whoever is furthest".into(), |node| format!("node {node}"));
    audit::begun(&host, who.by(), "transfer", on).await.map_err(Problem::unreachable)?;
    let leader = host.replica.hand_over(to).await.map_err(Problem::conflict)?;
    Ok(Json(json!({ "leader": leader })))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DrainBody {
    draining: bool,
}

pub(super) async fn drain(State(host): State<Host>, Path(node): Path<u64>, who: Who, bytes: Bytes) -> Answer<Value> {
    let DrainBody { draining } = body(&bytes)?;
    cluster::drain(&host, node, draining, &who.by()).await?;
    Ok(Json(json!({ "node": node, "draining": draining })))
}

pub(super) async fn remove(State(host): State<Host>, Path(node): Path<u64>, who: Who) -> Answer<Value> {
    cluster::remove(&host, node, &who.by()).await?;
    Ok(Json(json!({ "node": node, "outcome": "removed" })))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DestroyedBody {
    /// The number that it had before the restore.
    node: u64,
}

pub(super) async fn destroyed(State(host): State<Host>, who: Who, bytes: Bytes) -> Answer<Value> {
    let DestroyedBody { node } = body(&bytes)?;
    restore::destroyed(&host, node, &who.by()).await?;
    Ok(Json(json!({ "node": node, "outcome": "destroyed" })))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReleaseBody {
    /// What becomes of the ticks that nobody knows about.
    gap: GapChoice,
}

pub(super) async fn release(State(host): State<Host>, who: Who, bytes: Bytes) -> Answer<Value> {
    let ReleaseBody { gap } = body(&bytes)?;
    restore::release(&host, gap, &who.by()).await?;
    Ok(Json(json!({ "outcome": "released" })))
}

pub(super) async fn take_backup(State(host): State<Host>, who: Who) -> Answer<Manifest> {
    audit::begun(&host, who.by(), "take-backup", "the cluster".into()).await.map_err(Problem::unreachable)?;
    Ok(Json(backup::take(&host).await?))
}

pub(super) async fn renew(State(host): State<Host>, who: Who) -> Answer<Value> {
    let on = format!("the certificate of node {}", host.replica.node());
    audit::begun(&host, who.by(), "renew", on).await.map_err(Problem::unreachable)?;
    cluster::renew(&host).await.map_err(Problem::conflict)?;
    Ok(Json(json!({ "node": host.replica.node(), "outcome": "renewed" })))
}
