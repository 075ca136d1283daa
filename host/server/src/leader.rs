//! What the leader does: ask the conductor what is next, propose it, and act on what was committed.

use std::{sync::atomic::Ordering, time::Duration};

use tickhost_executor::{Dispatch, clock, now};
use tickhost_ledger::{
    Command, Output, Reply, RunId, State,
    conductor::Conductor,
    launch::{Outcome, Status, Verdict},
    rows::Usage,
};
use tickhost_replica::AppliedOutputs;
use tickhost_sandbox::RunRequest;
use tokio::sync::mpsc;

use crate::host::Host;

/// The longest sleep: a wall clock that is set is noticed within it.
const NAP_MAX: Duration = Duration::from_millis(500);
/// After a plan that the ledger refused as a whole, so that a fault does not spin.
const PAUSE_AFTER_REFUSAL: Duration = Duration::from_millis(50);
/// How often what the ledger has settled is forgotten. Arbitrary.
const PRUNE_EVERY: Duration = Duration::from_secs(600);

/// Plans and proposes, for as long as the host runs.
pub(crate) async fn conduct(host: Host) {
    let mut conductor = Conductor::default();
    let leading = host.replica.leading();
    loop {
        // Asked for before the state is read: what changes in between wakes at once.
        let woken = host.wake.notified();
        let at = match host.believed_now() {
            Ok(at) => at,
            Err(why) => {
                tracing::warn!(why, "hold everything");
                tokio::time::sleep(NAP_MAX).await;
                continue;
            }
        };
        if leading.borrow().is_some() {
            conductor.held_back = clock::held_back();
            let mut plan = host.replica.read(|state| conductor.plan(state, at));
            for (job, why) in &plan.faults {
                tracing::error!(%job, why, "a stored job cannot be scheduled; the others go on");
            }
            if let Some(why) = hold(&host) {
                let before = plan.commands.len();
                plan.commands.retain(|command| !matches!(command, Command::Intend { .. }));
                if plan.commands.len() < before {
                    tracing::warn!(why, "hold launches");
                }
            }
            if !plan.commands.is_empty() {
                match host.replica.propose(at, plan.commands).await {
                    Ok(replies) if replies.iter().all(|r| matches!(r, Reply::Refused(_))) => {
                        tracing::debug!(?replies, "a plan was out of date");
                        tokio::time::sleep(PAUSE_AFTER_REFUSAL).await;
                    }
                    Ok(_) => {}
                    Err(error) => {
                        tracing::warn!(%error, "propose a plan");
                        tokio::time::sleep(PAUSE_AFTER_REFUSAL).await;
                    }
                }
                continue;
            }
        }
        let wake_at = host.replica.read(|state| conductor.wake_at(state, now()));
        let until_next =
            wake_at.map_or(NAP_MAX, |at| Duration::from_millis(u64::try_from(at.0 - now().0).unwrap_or(0).max(1)));
        tokio::select! {
            () = woken => {}
            () = tokio::time::sleep(until_next.min(NAP_MAX)) => {}
        }
    }
}

/// Why no run is given out at the moment. Ticks are decided all the same.
fn hold(host: &Host) -> Option<String> {
    if host.draining.load(Ordering::Relaxed) {
        return Some("the host is stopping".into());
    }
    host.check_space(0).err()
}

/// Acts on what applied entries ask of the leader. Outputs of earlier terms are left alone: what they left
/// open was settled by asking.
pub(crate) async fn act(host: Host, mut outputs: mpsc::UnboundedReceiver<AppliedOutputs>) {
    let leading = host.replica.leading();
    while let Some(AppliedOutputs { term, outputs }) = outputs.recv().await {
        let leads = *leading.borrow() == Some(term);
        for output in outputs.into_iter().filter(|_| leads) {
            match output {
                Output::Dispatch(run) => dispatch(&host, run),
                Output::Revoke { run, why } => host.executor.stop(&run, why),
                Output::Closed(launch) => host.replica.read(|state| report(state, &launch)),
            }
        }
        host.wake.notify_one();
    }
}

fn dispatch(host: &Host, run: RunId) {
    match host.replica.read(|state| request(state, &run)) {
        Some(dispatch) => {
            if let Err(error) = host.executor.dispatch(dispatch) {
                tracing::error!(%run, %error, "dispatch a run: the process ends");
                std::process::abort();
            }
        }
        // The job was deleted or changed in the very entry, or right after.
        None => {
            let host = host.clone();
            tokio::spawn(async move { give_back(&host, run).await });
        }
    }
}

async fn give_back(host: &Host, run: RunId) {
    let grant = host.replica.read(|state| Some(state.launch(&run.launch)?.live()?.grant));
    let Some(grant) = grant else { return };
    let evidence = "the job was changed or deleted before the run was sent to its executor".into();
    let outcome = Outcome::NeverStarted { evidence };
    let command = Command::End { run, grant, outcome, usage: Usage::default(), results: Vec::new() };
    if let Err(error) = host.replica.propose_one(now(), command).await {
        tracing::warn!(%error, "close a run that was not dispatched");
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
            allow_http: spec.allow_http.clone(),
            config: spec.config.clone(),
        },
    })
}

fn report(state: &State, id: &tickhost_ledger::LaunchId) {
    let Some(launch) = state.launch(id) else { return };
    let Status::Closed(verdict) = &launch.status else { return };
    let outcome = launch.attempts.last().and_then(|a| a.ended.as_ref()).map(|e| &e.outcome);
    match verdict {
        Verdict::Succeeded | Verdict::Skipped(_) => tracing::info!(launch = %id, %verdict, "closed"),
        Verdict::Failed | Verdict::Lost | Verdict::Unknown => {
            tracing::warn!(launch = %id, %verdict, ?outcome, "closed");
        }
    }
}

/// Forgets what the ledger has settled: rows of the run table, outputs of launches that are no longer kept.
pub(crate) async fn prune(host: Host) {
    let mut every = tokio::time::interval(PRUNE_EVERY);
    loop {
        every.tick().await;
        let host = host.clone();
        let pruned = tokio::task::spawn_blocking(move || {
            let is_live = |run: &RunId| {
                host.replica.read(|state| {
                    state.launch(&run.launch).is_some_and(|l| l.live().is_some() && l.attempt() == run.attempt)
                })
            };
            let is_kept = |run: &str| {
                let launch = run.rsplit_once('#').and_then(|(launch, _)| launch.parse().ok());
                launch.is_some_and(|id| host.replica.read(|state| state.launch(&id).is_some()))
            };
            host.executor.prune(is_live, is_kept)
        });
        match pruned.await {
            Ok(Ok((runs, outputs))) => tracing::debug!(runs, outputs, "forget what is settled"),
            Ok(Err(error)) => tracing::warn!(%error, "forget what is settled"),
            Err(error) => tracing::warn!(%error, "forget what is settled"),
        }
    }
}
