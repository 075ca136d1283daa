//! A run of which the ledger says that it never started has not, and never will.

use std::collections::{BTreeMap, BTreeSet};

use tickhost_ledger::{RunId, launch::Outcome};

use super::Invariant;
use crate::{simulation::Simulation, world::Event};

#[derive(Default)]
pub(super) struct NeverBinds {
    began: BTreeMap<RunId, u64>,
    never: BTreeSet<RunId>,
}

impl Invariant for NeverBinds {
    fn name(&self) -> &'static str {
        "never binds"
    }

    fn note(&mut self, _simulation: &Simulation, event: &Event) -> Result<(), String> {
        match event {
            Event::Began { node, run, .. } => {
                self.began.insert(run.clone(), *node);
                match self.never.contains(run) {
                    true => Err(format!("{run} begins on node {node}, which has said that it never will")),
                    false => Ok(()),
                }
            }
            Event::Never { run, .. } => {
                self.never.insert(run.clone());
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn at_end(&mut self, simulation: &Simulation) -> Result<(), String> {
        let wrong = simulation.with_state(|state| {
            let jobs: BTreeSet<_> = self.began.keys().map(|run| &run.launch).collect();
            jobs.into_iter().find_map(|id| {
                let launch = state.launch(id)?;
                launch.attempts.iter().zip(1..).find_map(|(attempt, number)| {
                    let outcome = &attempt.ended.as_ref()?.outcome;
                    let Outcome::NeverStarted { evidence } = outcome else { return None };
                    let run = RunId { launch: id.clone(), attempt: number };
                    let node = self.began.get(&run)?;
                    Some(format!("{run} began on node {node}, and the ledger says that it never started: {evidence}"))
                })
            })
        })?;
        wrong.map_or(Ok(()), Err)
    }
}
