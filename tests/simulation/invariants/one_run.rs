//! A launch has one run at a time, over all nodes; a job that allows no overlap, too.

use std::collections::BTreeSet;

use tickhost_ledger::RunId;

use super::{Invariant, stops};
use crate::{
    node::Node,
    simulation::{Simulation, may_overlap},
    world::Event,
};

#[derive(Default)]
pub(super) struct OneRun {
    live: BTreeSet<(RunId, u64)>,
}

impl Invariant for OneRun {
    fn name(&self) -> &'static str {
        "one run at a time"
    }

    fn note(&mut self, simulation: &Simulation, event: &Event) -> Result<(), String> {
        match event {
            Event::Began { node, run, .. } => {
                let is_same = |other: &RunId| match may_overlap(&run.launch.job) {
                    true => other.launch == run.launch,
                    false => other.launch.job == run.launch.job,
                };
                // A process that is stopped, and whose session is over, does nothing, and stops its runs within moments
                // when it goes on. What they do in between is refused.
                let stands_still = |other: &RunId, at: u64| {
                    let is_or_was_just_now = |node: &Node| {
                        node.is_frozen() || simulation.world.now_us() - node.thawed_at_us <= stops::WITHIN_US
                    };
                    simulation.node(at).is_some_and(is_or_was_just_now) && simulation.is_closed(other)
                };
                let beside = self.live.iter().find(|(other, at)| is_same(other) && !stands_still(other, *at)).cloned();
                self.live.insert((run.clone(), *node));
                match beside {
                    Some((other, at)) => Err(format!("{run} begins on node {node}, and {other} runs on node {at}")),
                    None => Ok(()),
                }
            }
            Event::Over { node, run, .. } => {
                self.live.remove(&(run.clone(), *node));
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
