//! The routes.

use std::time::Duration;

use axum::{
    Json, Router,
    body::Bytes,
    extract::{DefaultBodyLimit, Path, Query, State},
    http::{HeaderName, header::CONTENT_TYPE},
    middleware::{from_fn_with_state, map_response},
    routing::{delete, get, post, put},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tickhost_ledger::{
    Command, Digest, JobName, JobSpec, LaunchId, RunId, State as Ledger, TickAt, command::NAMESPACES, ids::check_name,
    rows::Component,
};
use tickhost_sandbox::{ComponentReport, OutputText};
use uuid::Uuid;

use super::{
    JobView, LaunchView, Problem, StatusView,
    access::{Who, authorize, identify},
    forward::to_the_leader,
    members, namespaces,
    problem::every_error_is_a_problem,
    tokens,
};
use crate::{cluster, components, host::Host, jobs::verdict};

/// Bytes of a component. JavaScript and Python components are 12 to 20 MB.
pub(super) const COMPONENT_BYTES_MAX: usize = 128 << 20;
/// An output is 16 MiB at the most.
const OUTPUT_WITHIN: Duration = Duration::from_secs(10);
/// Ticks in one answer.
const TICKS_MAX: usize = 10_000;

pub(super) type Answer<T> = Result<Json<T>, Problem>;

/// What clients ask, also where another node passes it on.
pub fn router(host: Host) -> Router {
    Router::new()
        .route("/v1/status", get(status))
        .route("/v1/components", post(put_component).layer(DefaultBodyLimit::max(COMPONENT_BYTES_MAX)))
        .route("/v1/components/{digest}", get(get_component).delete(drop_component))
        .route("/v1/namespaces", get(namespaces::list))
        .route("/v1/namespaces/{namespace}", put(namespaces::put).delete(namespaces::remove))
        .route("/v1/jobs", get(list_jobs))
        .route("/v1/jobs/{namespace}/{name}", get(get_job).put(put_job).delete(delete_job))
        .route("/v1/jobs/{namespace}/{name}/pause", post(pause))
        .route("/v1/jobs/{namespace}/{name}/resume", post(resume))
        .route("/v1/jobs/{namespace}/{name}/trigger", post(trigger))
        .route("/v1/jobs/{namespace}/{name}/ticks", get(ticks))
        .route("/v1/jobs/{namespace}/{name}/gaps", get(gaps))
        .route("/v1/launch", get(launch))
        .route("/v1/logs", get(logs))
        .route("/v1/nodes", get(members::nodes))
        .route("/v1/nodes/{node}", delete(members::remove))
        .route("/v1/nodes/{node}/drain", post(members::drain))
        .route("/v1/cluster/token", post(members::token))
        .route("/v1/cluster/transfer", post(members::transfer))
        .route("/v1/cluster/destroyed", post(members::destroyed))
        .route("/v1/cluster/release", post(members::release))
        .route("/v1/certificate/renew", post(members::renew))
        .route("/v1/backups", post(members::take_backup))
        .route("/v1/whoami", get(tokens::whoami))
        .route("/v1/tokens", get(tokens::list))
        .route("/v1/tokens/{name}", put(tokens::create).delete(tokens::revoke))
        .route("/v1/audit", get(tokens::audit))
        .route("/metrics", get(metrics))
        .route_layer(from_fn_with_state(host.clone(), authorize))
        .method_not_allowed_fallback(|| async { Problem::not_allowed() })
        .fallback(|| async { Problem::not_found("there is no such path; see `/v1/status`") })
        .layer(from_fn_with_state(host.clone(), to_the_leader))
        .layer(map_response(every_error_is_a_problem))
        .layer(from_fn_with_state(host.clone(), identify))
        .with_state(host)
}

pub(super) fn body<T: for<'a> Deserialize<'a>>(bytes: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(bytes).map_err(|e| Problem::invalid(format!("the body is not what is expected: {e}")))
}

async fn status(State(host): State<Host>, who: Who) -> Json<StatusView> {
    let raft = host.replica.status();
    let (backup, backup_failed) = host.backups.told();
    Json(host.replica.read(|state| StatusView {
        version: env!("CARGO_PKG_VERSION").into(),
        tz: tickhost_schedule::TZ_VERSION.into(),
        cluster: state.cluster().map(|c| c.id.to_string()),
        node: raft.node,
        role: raft.role,
        term: raft.term,
        leader: raft.leader,
        last_index: raft.last_index,
        committed_index: raft.committed_index,
        applied_index: raft.applied_index,
        snapshot_index: raft.snapshot_index,
        state_hash: format!("{:032x}", state.hash()),
        runs: host.executor.live_count(),
        runs_max: host.settings.runs_max,
        syncs: host.replica.db().sync_count(),
        open: state.all_open().count(),
        session: host.executor.session().map(|id| id.to_string()),
        has_lease: host.replica.has_lease(),
        alarms:
            host.watch.alarms(|namespace| namespace.map_or(who.namespace.is_none(), |namespace| who.sees(namespace))),
        held: host.believed_now().and_then(|_| host.check_room()).err(),
        // Where they lie is the operators'.
        backup: backup.filter(|_| who.namespace.is_none()),
        backup_failed: backup_failed.filter(|_| who.namespace.is_none()),
        rows: state.counts().map(|(name, count)| (name.to_owned(), count)).to_vec(),
    }))
}

async fn metrics(State(host): State<Host>) -> Result<([(HeaderName, &'static str); 1], String), Problem> {
    let text = host.metrics.text(&host).map_err(Problem::fault)?;
    Ok(([(CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text))
}

/// For which namespace a component is stored; absent for all of them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ForNamespace {
    pub(super) namespace: Option<String>,
}

async fn put_component(
    State(host): State<Host>,
    Query(ForNamespace { namespace }): Query<ForNamespace>,
    who: Who,
    bytes: Bytes,
) -> Answer<ComponentReport> {
    if let Some(namespace) = &namespace {
        check_name("namespace", namespace)?;
    }
    host.check_space(bytes.len() as u64).map_err(Problem::full)?;
    let digest = Digest::of(&bytes);
    // Nodes that are older know no owners: until the last of them is gone, a component is everybody's.
    let namespace = namespace.filter(|_| host.replica.read(|state| state.level()) >= NAMESPACES);
    // Compiled ahead: a tick must not wait for it.
    let report = host.sandbox.admit(bytes.clone()).await?;
    let (size, imports) = (report.size, report.imports.clone());
    let command = Command::PutComponent { digest, size, imports, namespace, by: who.by() };
    // Here and elsewhere at the same time.
    let (ready, spread) = tokio::join!(host.sandbox.prepare(digest), components::spread(&host, digest, &bytes));
    ready?;
    spread.map_err(Problem::unreachable)?;
    cluster::propose(&host, command).await?;
    host.ask_now.notify_one();
    Ok(Json(report))
}

async fn drop_component(
    State(host): State<Host>,
    Path(digest): Path<String>,
    Query(ForNamespace { namespace }): Query<ForNamespace>,
    who: Who,
) -> Answer<Value> {
    let digest: Digest = digest.parse()?;
    cluster::propose(&host, Command::DropComponent { digest, namespace, by: who.by() }).await?;
    Ok(Json(json!({ "digest": digest, "outcome": "removed" })))
}

async fn get_component(
    State(host): State<Host>,
    Path(digest): Path<String>,
    Query(ForNamespace { namespace }): Query<ForNamespace>,
) -> Answer<Value> {
    let digest: Digest = digest.parse()?;
    let is_for = |row: &Component| namespace.as_ref().is_none_or(|namespace| row.is_for(namespace));
    let row = host.replica.read(|state| state.component(&digest).filter(|row| is_for(row)).cloned());
    let row = row.ok_or_else(|| Problem::not_found(format!("there is no component `{digest}`")))?;
    Ok(Json(
        json!({ "digest": digest, "size": row.size, "imports": row.imports, "stored_at": row.stored_at.to_string() }),
    ))
}

async fn list_jobs(State(host): State<Host>, who: Who) -> Json<Vec<JobView>> {
    Json(host.replica.read(|state| {
        let seen = state.jobs().filter(|(name, _)| who.sees(&name.namespace));
        seen.map(|(name, job)| JobView::new(state, name, job)).collect()
    }))
}

async fn get_job(State(host): State<Host>, Path((namespace, name)): Path<(String, String)>) -> Answer<JobView> {
    let name = JobName::new(&namespace, &name)?;
    let view = host.replica.read(|state| state.job(&name).map(|job| JobView::new(state, &name, job)));
    view.map(Json).ok_or_else(|| Problem::not_found(format!("there is no job `{name}`")))
}

async fn put_job(
    State(host): State<Host>,
    Path((namespace, name)): Path<(String, String)>,
    who: Who,
    bytes: Bytes,
) -> Answer<Value> {
    let name = JobName::new(&namespace, &name)?;
    let spec: JobSpec = body(&bytes)?;
    // Of another's component nothing is told, not even how much it needs.
    let is_its_own = |state: &Ledger| state.component(&spec.component).is_some_and(|row| row.is_for(&namespace));
    if host.replica.read(is_its_own) && host.sandbox.has_component(&spec.component) {
        host.sandbox.check_memory(spec.component, spec.limits.memory_bytes).await?;
    }
    let stored = host.put_job(&name, &spec, &who.by()).await?;
    Ok(Json(json!(stored)))
}

async fn delete_job(
    State(host): State<Host>,
    Path((namespace, name)): Path<(String, String)>,
    who: Who,
) -> Answer<Value> {
    let name = JobName::new(&namespace, &name)?;
    host.delete_job(&name, &who.by()).await?;
    Ok(Json(json!({ "job": name.to_string(), "outcome": "deleted" })))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PauseBody {
    note: String,
}

async fn pause(
    State(host): State<Host>,
    Path((namespace, name)): Path<(String, String)>,
    who: Who,
    bytes: Bytes,
) -> Answer<Value> {
    let name = JobName::new(&namespace, &name)?;
    let PauseBody { note } = body(&bytes)?;
    host.pause_job(&name, &note, &who.by()).await?;
    Ok(Json(json!({ "job": name.to_string(), "outcome": "paused" })))
}

async fn resume(State(host): State<Host>, Path((namespace, name)): Path<(String, String)>, who: Who) -> Answer<Value> {
    let name = JobName::new(&namespace, &name)?;
    host.resume_job(&name, &who.by()).await?;
    Ok(Json(json!({ "job": name.to_string(), "outcome": "resumed" })))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TriggerBody {
    /// RFC 3339; absent for a launch outside of the schedule.
    tick: Option<String>,
    /// Whether effects carry the keys of the tick's scheduled launch.
    same_key: bool,
    /// Chosen by the asker: the same id again is the same request.
    id: Uuid,
}

async fn trigger(
    State(host): State<Host>,
    Path((namespace, name)): Path<(String, String)>,
    who: Who,
    bytes: Bytes,
) -> Answer<Value> {
    let name = JobName::new(&namespace, &name)?;
    let TriggerBody { tick, same_key, id } = body(&bytes)?;
    let tick = tick.map(|tick| tick.parse::<TickAt>()).transpose()?;
    let launch = host.trigger(&name, tick, same_key, id, &who.by()).await?;
    Ok(Json(json!({ "launch": launch.to_string() })))
}

#[derive(Deserialize)]
struct TicksQuery {
    from: Option<String>,
    to: Option<String>,
    count: Option<usize>,
}

async fn ticks(
    State(host): State<Host>,
    Path((namespace, name)): Path<(String, String)>,
    Query(query): Query<TicksQuery>,
) -> Answer<Value> {
    let name = JobName::new(&namespace, &name)?;
    let (from, to) = interval(&host, &name, &query)?;
    let ticks = host.ticks(&name, from, to, query.count.unwrap_or(100).min(TICKS_MAX));
    let folded = host.replica.read(|state| state.folded(&name).cloned());
    Ok(Json(json!({ "job": name.to_string(), "ticks": ticks, "folded": folded })))
}

/// Ticks that the schedule names and that have no verdict, though their time is over.
async fn gaps(
    State(host): State<Host>,
    Path((namespace, name)): Path<(String, String)>,
    Query(query): Query<TicksQuery>,
) -> Answer<Value> {
    let name = JobName::new(&namespace, &name)?;
    let (from, to) = interval(&host, &name, &query)?;
    let gaps = host.gaps(&name, from, to, query.count.unwrap_or(TICKS_MAX).min(TICKS_MAX))?;
    Ok(Json(json!({ "job": name.to_string(), "gaps": gaps })))
}

/// What is asked for, of a job that there is or was.
fn interval(host: &Host, name: &JobName, query: &TicksQuery) -> Result<(TickAt, TickAt), Problem> {
    let instant = |text: &Option<String>, default: i64| match text {
        Some(text) => text.parse::<TickAt>(),
        None => Ok(TickAt(default)),
    };
    let is_known = host.replica.read(|state| state.job(name).is_some() || state.grave(name).is_some());
    if !is_known {
        return Err(Problem::not_found(format!("there is no job `{name}` and never was; `tickhost jobs` lists them")));
    }
    let from = instant(&query.from, 0)?;
    let to = instant(&query.to, host.clock.now().0.div_euclid(1_000))?;
    if from > to {
        return Err(Problem::invalid(format!(
            "`from` is {from}, later than `to`, which is {to}; nothing lies between"
        )));
    }
    Ok((from, to))
}

#[derive(Deserialize)]
pub(super) struct LaunchQuery {
    pub(super) id: String,
}

async fn launch(State(host): State<Host>, Query(query): Query<LaunchQuery>) -> Answer<LaunchView> {
    let id: LaunchId = query.id.parse()?;
    let view = host.replica.read(|state| state.launch(&id).map(|launch| LaunchView::new(state, &id, launch)));
    view.map(Json).ok_or_else(|| Problem::not_found(format!("there is no launch `{id}`")))
}

/// What a run has written, and whether there may be more.
#[derive(Serialize)]
struct LogsView {
    run: String,
    verdict: String,
    /// The run may still write.
    live: bool,
    output: OutputText,
}

#[derive(Deserialize)]
pub(super) struct LogsQuery {
    pub(super) launch: String,
    /// The attempt; the latest where absent.
    attempt: Option<u32>,
    /// Lines from this number on.
    from: Option<u64>,
}

async fn logs(State(host): State<Host>, Query(query): Query<LogsQuery>) -> Answer<LogsView> {
    let id: LaunchId = query.launch.parse()?;
    let found = host.replica.read(|state| {
        let launch = state.launch(&id)?;
        let attempt = query.attempt.unwrap_or(launch.attempt());
        let node = (attempt as usize).checked_sub(1).and_then(|i| launch.attempts.get(i)).map(|attempt| attempt.node);
        Some((launch.attempt(), node, launch.status.is_open(), verdict(&launch.status)))
    });
    let Some((latest, node, open, verdict)) = found else {
        return Err(Problem::not_found(format!("there is no launch `{id}`")));
    };
    let attempt = query.attempt.unwrap_or(latest);
    if attempt > latest {
        return Err(Problem::not_found(format!(
            "launch `{id}` has {latest} attempts, so there is no attempt {attempt}"
        )));
    }
    let run = RunId { launch: id, attempt };
    let mut output = output(&host, node, &run).await?.unwrap_or_default();
    let live = open && attempt == latest;
    let end = if live { output.ended } else { u64::MAX };
    output.lines.retain(|line| (query.from.unwrap_or(0)..end).contains(&line.number));
    Ok(Json(LogsView { run: run.to_string(), verdict, live, output }))
}

/// What a run wrote lies on the node that ran it.
async fn output(host: &Host, node: Option<u64>, run: &RunId) -> Result<Option<OutputText>, Problem> {
    match node {
        Some(node) if node != host.replica.node() => {
            let asked = host.replica.peers().ask(node, "/executor/output", run, OUTPUT_WITHIN).await;
            asked.map_err(|e| Problem::unreachable(format!("what `{run}` wrote is on node {node}: {e}")))
        }
        _ => Ok(host.executor.output(run)?),
    }
}
