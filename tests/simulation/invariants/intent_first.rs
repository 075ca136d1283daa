//! Whatever ran had been committed to that very node before: at the end everybody knows of it.

use std::collections::BTreeSet;

use tickhost_ledger::RunId;

use super::Invariant;
use crate::{simulation::Simulation, world::Event};

#[derive(Default)]
pub(super) struct IntentFirst {
    began: BTreeSet<(RunId, u64)>,
}

impl Invariant for IntentFirst {
    fn name(&self) -> &'static str {
        "intent first"
    }

    fn note(&mut self, _simulation: &Simulation, event: &Event) -> Result<(), String> {
        if let Event::Began { node, run, .. } = event {
            self.began.insert((run.clone(), *node));
        }
        Ok(())
    }

    fn at_end(&mut self, simulation: &Simulation) -> Result<(), String> {
        let unknown = simulation.with_state(|state| {
            let is_known = |run: &RunId, node: u64| {
                let attempt = state.launch(&run.launch)?.attempts.get(run.attempt.checked_sub(1)? as usize)?;
                Some(attempt.node == node)
            };
            self.began.iter().find(|(run, node)| is_known(run, *node) != Some(true)).cloned()
        })?;
        match unknown {
            Some((run, node)) => Err(format!("{run} began on node {node}, and the ledger does not know of that")),
            None => Ok(()),
        }
    }
}
