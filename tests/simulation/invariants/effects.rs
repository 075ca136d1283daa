//! Nothing is done by a run that the ledger has closed.

use std::collections::BTreeSet;

use tickhost_ledger::RunId;

use super::Invariant;
use crate::{simulation::Simulation, world::Event};

#[derive(Default)]
pub(super) struct Effects {
    live: BTreeSet<RunId>,
    closed: BTreeSet<RunId>,
}

impl Invariant for Effects {
    fn name(&self) -> &'static str {
        "no effect after the end"
    }

    fn note(&mut self, _simulation: &Simulation, event: &Event) -> Result<(), String> {
        match event {
            Event::Began { run, .. } => {
                self.live.insert(run.clone());
            }
            Event::Over { run, .. } => {
                self.live.remove(run);
            }
            Event::Effect { node, run, label, .. } if self.closed.contains(run) => {
                return Err(format!("{run} does {label} on node {node}, and the ledger has closed it"));
            }
            _ => {}
        }
        Ok(())
    }

    fn look(&mut self, simulation: &Simulation) -> Result<(), String> {
        self.closed.extend(self.live.extract_if(.., |run| simulation.is_closed(run)));
        Ok(())
    }
}
