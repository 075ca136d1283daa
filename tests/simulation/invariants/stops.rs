//! A guest whose run the ledger has closed takes no step any more: it was stopped before.

use std::collections::BTreeMap;

use tickhost_ledger::RunId;

use super::Invariant;
use crate::{simulation::Simulation, world::Event};

/// Stopping takes half a second at the most, and a process that was frozen looks at its session within a fifth of one.
pub(super) const WITHIN_US: u64 = 700_000;

#[derive(Default)]
pub(super) struct Stops {
    live: BTreeMap<RunId, u64>,
    closed_at_us: BTreeMap<RunId, u64>,
}

impl Invariant for Stops {
    fn name(&self) -> &'static str {
        "stopped when closed"
    }

    fn note(&mut self, simulation: &Simulation, event: &Event) -> Result<(), String> {
        match event {
            Event::Began { node, run, .. } => {
                self.live.insert(run.clone(), *node);
                if simulation.is_closed(run) {
                    return Err(format!("{run} begins on node {node}, and the ledger has closed it"));
                }
            }
            Event::Over { run, .. } => {
                self.live.remove(run);
            }
            Event::Step { node, run } => {
                let Some(closed_at_us) = self.closed_at_us.get(run) else { return Ok(()) };
                let thawed_at_us = simulation.node(*node).map_or(0, |node| node.thawed_at_us);
                let late_us = simulation.world.now_us() - (*closed_at_us).max(thawed_at_us);
                if late_us > WITHIN_US {
                    return Err(format!("{run} runs on node {node}, {late_us} µs after the ledger has closed it"));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn look(&mut self, simulation: &Simulation) -> Result<(), String> {
        for run in self.live.keys().filter(|run| simulation.is_closed(run)) {
            self.closed_at_us.entry(run.clone()).or_insert_with(|| simulation.world.now_us());
        }
        Ok(())
    }
}
