//! Asking executors by name what became of runs: at take-over, and when an answer was lost on its way.

use std::{collections::BTreeSet, sync::Arc};

use tickhost_executor::order::{Obeyed, What};
use tickhost_ledger::{
    Command, RunId,
    conductor::{self, Answer, Witness},
};

use super::{PAUSE, Reign};
use crate::host::Host;

/// Runs in one question.
const ASKED_AT_ONCE: usize = 1_000;

/// Asks until every run is answered for, or the session is over: then the lapse says what there is to say.
pub(super) async fn resolve(host: &Host, reign: &Arc<Reign>, node: u64, runs: Vec<RunId>) {
    let Some(session) = reign.session(node) else { return };
    for runs in runs.chunks(ASKED_AT_ONCE) {
        loop {
            if reign.session(node) != Some(session) || !host.is_under(reign) {
                return;
            }
            match ask(host, reign, node, runs).await {
                Ok(()) => break,
                Err(error) => tracing::debug!(node, error, "ask what became of runs"),
            }
            tokio::time::sleep(10 * PAUSE).await;
        }
    }
}

async fn ask(host: &Host, reign: &Reign, node: u64, runs: &[RunId]) -> Result<(), String> {
    let answers = match host.order(reign, node, What::Tell(runs.to_vec())).await {
        Ok(Obeyed::Told(answers)) if answers.len() == runs.len() => answers,
        Ok(other) => return Err(format!("{other:?}")),
        Err(error) => return Err(error.to_string()),
    };
    let revoked: BTreeSet<RunId> = host.replica.read(|state| state.revoked().map(|(run, _)| run).collect());
    let mut commands: Vec<Command> = Vec::new();
    let mut stop = Vec::new();
    for (run, answer) in runs.iter().zip(answers) {
        tracing::info!(%run, ?answer, node, "what became of a run");
        if answer == Answer::Running && revoked.contains(run) {
            stop.push((run.clone(), "its leader had ordered it before".to_owned()));
        }
        commands.extend(host.replica.read(|state| {
            // The node has one table for life, and its session was opened with that one.
            let store = state.node(node)?.executor.as_ref()?.store;
            conductor::resolve(state, run, Witness { node, store }, answer)
        }));
    }
    if !stop.is_empty() {
        host.order(reign, node, What::Stop(stop)).await.map_err(|e| e.to_string())?;
    }
    if !commands.is_empty() {
        let proposed = host.replica.proposer().propose(Some(reign.term()), host.clock.now(), commands).await;
        proposed.map_err(|e| e.to_string())?;
    }
    Ok(())
}
