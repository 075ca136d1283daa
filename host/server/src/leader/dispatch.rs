//! Acting on what was committed: sending runs to their executors, and stopping them.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tickhost_executor::order::{Dispatch, Obeyed, Order, What};
use tickhost_ledger::{
    Command, JobSpec, LaunchId, Output, RunId, State,
    launch::{Outcome, Status, Verdict},
    rows::Usage,
};
use tickhost_replica::{AppliedOutputs, CallError, fault};
use tickhost_sandbox::{AllowRule, RunRequest};
use tokio::sync::mpsc;

use super::{PAUSE, Reign, resolve};
use crate::{host::Host, metrics::Metrics};

/// An executor that is there takes a run on within milliseconds.
const ORDER_WITHIN: Duration = Duration::from_secs(3);

/// Acts on what applied entries ask of the leader. Outputs of earlier terms are left alone: what they left
/// open was settled by asking.
pub(crate) async fn act(host: Host, mut outputs: mpsc::UnboundedReceiver<AppliedOutputs>) {
    while let Some(AppliedOutputs { term, outputs }) = outputs.recv().await {
        if let Some(reign) = host.reign().filter(|reign| reign.term() == term) {
            let mut runs: BTreeMap<u64, Vec<RunId>> = BTreeMap::new();
            for output in outputs {
                match output {
                    Output::Dispatch(run) => {
                        let node = host.replica.read(|state| Some(state.launch(&run.launch)?.live()?.node));
                        runs.entry(node.unwrap_or_default()).or_default().push(run);
                    }
                    Output::Revoke { run, why } => {
                        tokio::spawn(revoke(host.clone(), reign.clone(), run, why));
                    }
                    Output::Closed(launch) => host.replica.read(|state| report(state, &host.metrics, &launch)),
                }
            }
            for (node, runs) in runs {
                tokio::spawn(dispatch(host.clone(), reign.clone(), node, runs));
            }
        }
        host.wake.notify_one();
    }
}

impl Host {
    /// Sends an order to an executor: this node's own, or another's.
    pub(super) async fn order(&self, reign: &Reign, node: u64, what: What) -> Result<Obeyed, CallError> {
        let not_sent = |why: String| CallError::NotSent { node, why };
        let (session, number) = reign.next_order(node).ok_or_else(|| not_sent("it has no session".into()))?;
        // What comes after this check is the executor's to refuse.
        if !self.replica.has_lease() {
            return Err(not_sent("the lease of this leader has run out".into()));
        }
        let order = Order { leader: reign.floor, session, number, what };
        if node == self.replica.node() {
            return Ok(self.obey(order).await);
        }
        let sent = self.replica.peers().ask(node, "/executor/order", &order, ORDER_WITHIN).await;
        if matches!(sent, Err(CallError::NotSent { .. })) {
            reign.is_unreachable(node);
        }
        sent
    }

    /// A table that cannot be read or written must not carry on.
    pub(crate) async fn obey(&self, order: Order) -> Obeyed {
        // The leader hears of it with this node's next question; until then it sends what it must ask for again.
        if let (What::Run(_), Some(why)) = (&order.what, self.tight()) {
            self.ask_now.notify_one();
            return Obeyed::Refused(why);
        }
        match self.executor.obey(order).await {
            Ok(obeyed) => obeyed,
            Err(error) => {
                tracing::error!(%error, "obey the leader: the process ends");
                fault::end_process();
            }
        }
    }
}

async fn dispatch(host: Host, reign: Arc<Reign>, node: u64, runs: Vec<RunId>) {
    let (dispatches, gone): (Vec<_>, Vec<_>) = host.replica.read(|state| {
        let with_request = runs.into_iter().map(|run| request(state, &run).ok_or(run));
        let (found, gone): (Vec<_>, Vec<_>) = with_request.partition(Result::is_ok);
        (found.into_iter().flatten().collect(), gone.into_iter().filter_map(Result::err).collect())
    });
    give_back(&host, &reign, gone, "the job was changed or deleted before the run was sent").await;
    let runs: Vec<RunId> = dispatches.iter().map(|d: &Dispatch| d.request.run.clone()).collect();
    if runs.is_empty() {
        return;
    }
    match host.order(&reign, node, What::Run(dispatches)).await {
        Ok(Obeyed::Done) => {}
        // It never left this node, and nobody else sends it.
        Err(CallError::NotSent { why, .. }) => {
            give_back(&host, &reign, runs, &format!("it was not sent to node {node}: {why}")).await;
        }
        Err(_) if fault::planted("no-answer-is-not-sent") => give_back(&host, &reign, runs, "it was not sent").await,
        Err(error @ (CallError::NoAnswer { .. } | CallError::Refused { .. })) => {
            tracing::warn!(%error, runs = runs.len(), "runs were sent, and nobody knows whether they arrived");
            resolve::resolve(&host, &reign, node, runs).await;
        }
        // No proof that it had not arrived before: only a "never" that is on the executor's disk binds.
        Ok(Obeyed::Refused(why)) => {
            tracing::warn!(node, why, runs = runs.len(), "an executor refuses runs");
            resolve::resolve(&host, &reign, node, runs).await;
        }
        Ok(Obeyed::Told(_)) => tracing::error!(node, "an executor told what it was not asked"),
    }
}

/// The runs never left this node, or were refused by the one they were for; no guest instruction ran.
///
/// Tried for as long as the term lasts: its sessions go on, so nobody else would ever ask what became of these.
async fn give_back(host: &Host, reign: &Arc<Reign>, runs: Vec<RunId>, evidence: &str) {
    while !runs.is_empty() && host.is_under(reign) {
        let ended = |state: &State, run: &RunId| {
            let launch = state.launch(&run.launch).filter(|launch| launch.attempt() == run.attempt)?;
            let (run, grant) = (run.clone(), launch.live()?.grant);
            let outcome = Outcome::NeverStarted { evidence: evidence.to_owned() };
            Some(Command::End { run, grant, outcome, usage: Usage::default(), results: Vec::new() })
        };
        let commands: Vec<Command> =
            host.replica.read(|state| runs.iter().filter_map(|run| ended(state, run)).collect());
        tracing::warn!(runs = commands.len(), evidence, "runs are given back");
        match host.replica.proposer().propose(Some(reign.term()), host.clock.now(), commands).await {
            Ok(_) => return,
            Err(error) => tracing::warn!(%error, "close runs that were not sent"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Tells an executor to stop a run, until it has ended. With every new session it is told again.
async fn revoke(host: Host, reign: Arc<Reign>, run: RunId, why: String) {
    loop {
        let node = host.replica.read(|state| {
            let launch = state.launch(&run.launch).filter(|launch| launch.attempt() == run.attempt)?;
            Some(launch.live()?.node)
        });
        let (Some(node), true) = (node, host.is_under(&reign)) else { return };
        match host.order(&reign, node, What::Stop(vec![(run.clone(), why.clone())])).await {
            Ok(Obeyed::Done) => return,
            Ok(other) => tracing::debug!(%run, ?other, "stop a run"),
            Err(error) => tracing::debug!(%run, %error, "stop a run"),
        }
        tokio::time::sleep(10 * PAUSE).await;
    }
}

/// All that an executor needs to know of a run.
fn request(state: &State, run: &RunId) -> Option<Dispatch> {
    let launch = state.launch(&run.launch)?;
    let attempt = launch.live().filter(|_| launch.attempt() == run.attempt)?;
    // What was reserved is what runs: an edit in between gives the run back.
    let spec = &state.job(&run.launch.job).filter(|job| job.revision == attempt.revision)?.spec;
    Some(Dispatch {
        grant: attempt.grant,
        request: RunRequest {
            run: run.clone(),
            component: spec.component,
            local: launch.local.clone(),
            previous: launch.previous,
            keys: state.key_source(&run.launch)?,
            limits: spec.limits,
            allow_http: destinations(state, &run.launch.job.namespace, spec),
            config: spec.config.clone(),
            args: spec.args.clone(),
            env: spec.env.clone(),
        },
    })
}

/// Where a run may send: what its job says, as far as its namespace's quota covers it at this moment. A quota that became
/// narrower holds for jobs that were stored before.
fn destinations(state: &State, namespace: &str, spec: &JobSpec) -> Vec<String> {
    let Some(hosts) = state.quota(namespace).and_then(|row| row.quota.hosts.as_ref()) else {
        return spec.allow_http.clone();
    };
    let strangers = AllowRule::not_covered(&spec.allow_http, hosts);
    spec.allow_http.iter().filter(|rule| !strangers.contains(rule)).cloned().collect()
}

fn report(state: &State, metrics: &Metrics, id: &LaunchId) {
    let Some(launch) = state.launch(id) else { return };
    let Status::Closed(verdict) = &launch.status else { return };
    metrics.closed(*verdict, launch);
    let outcome = launch.attempts.last().and_then(|a| a.ended.as_ref()).map(|e| &e.outcome);
    match verdict {
        Verdict::Succeeded | Verdict::Skipped(_) => tracing::info!(launch = %id, %verdict, "closed"),
        Verdict::Failed | Verdict::Lost | Verdict::Unknown => {
            tracing::warn!(launch = %id, %verdict, ?outcome, "closed");
        }
    }
}
