//! Nothing begins earlier than half a second before its tick, by the median of the voters' clocks.

use super::Invariant;
use crate::{simulation::Simulation, world::Event};

/// What the clock guard allows, and what a report of a clock may be wrong by.
const EARLY_MS: i64 = 500 + 200;
/// The last two medians: a clock that is set right in the same moment is not held against anybody.
#[derive(Default)]
pub(super) struct NeverEarly {
    latest_ms: Option<i64>,
}

impl Invariant for NeverEarly {
    fn name(&self) -> &'static str {
        "never early"
    }

    fn note(&mut self, simulation: &Simulation, event: &Event) -> Result<(), String> {
        let Event::Began { node, run, .. } = event else { return Ok(()) };
        if run.launch.rerun.is_some() {
            return Ok(());
        }
        let median_ms = simulation.median_ms().max(self.latest_ms.unwrap_or(i64::MIN));
        let early_ms = run.launch.tick.0 * 1_000 - median_ms;
        match early_ms > EARLY_MS {
            true => Err(format!("{run} begins on node {node} {early_ms} ms before its tick")),
            false => Ok(()),
        }
    }

    fn look(&mut self, simulation: &Simulation) -> Result<(), String> {
        // Where the median goes back, what was decided by the one before was right.
        self.latest_ms = Some(simulation.median_ms().max(self.latest_ms.unwrap_or(i64::MIN)));
        Ok(())
    }
}
