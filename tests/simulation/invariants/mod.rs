//! What must hold in every simulation, one file each.

mod at_most_once;
mod coverage;
mod effects;
mod heals;
mod intent_first;
mod keys;
mod lost_runs;
mod never_binds;
mod never_early;
mod one_leader;
mod one_run;
mod promises;
mod rows_first;
mod same_state;
mod spoiled;
mod stops;

use crate::{simulation::Simulation, world::Event};

/// One of them. An error is a sentence about what was found.
pub(crate) trait Invariant {
    /// What reports call it.
    fn name(&self) -> &'static str;

    /// Something has happened.
    fn note(&mut self, _simulation: &Simulation, _event: &Event) -> Result<(), String> {
        Ok(())
    }

    /// A look at all nodes, every ten milliseconds.
    fn look(&mut self, _simulation: &Simulation) -> Result<(), String> {
        Ok(())
    }

    /// All faults are over, everybody has had time, and nothing runs any more.
    fn at_end(&mut self, _simulation: &Simulation) -> Result<(), String> {
        Ok(())
    }
}

/// All of them.
pub(crate) fn all() -> Vec<Box<dyn Invariant>> {
    vec![
        Box::<at_most_once::AtMostOnce>::default(),
        Box::new(coverage::Coverage),
        Box::<effects::Effects>::default(),
        Box::<heals::Heals>::default(),
        Box::<intent_first::IntentFirst>::default(),
        Box::<keys::Keys>::default(),
        Box::<lost_runs::LostRuns>::default(),
        Box::<never_binds::NeverBinds>::default(),
        Box::<never_early::NeverEarly>::default(),
        Box::<one_leader::OneLeader>::default(),
        Box::<one_run::OneRun>::default(),
        Box::<promises::Promises>::default(),
        Box::new(rows_first::RowsFirst),
        Box::new(same_state::SameState),
        Box::<spoiled::Spoiled>::default(),
        Box::<stops::Stops>::default(),
    ]
}
