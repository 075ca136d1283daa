//! A launch has one run at a time, over all nodes; a job that allows no overlap, too.

use std::collections::BTreeSet;

use tickhost_ledger::RunId;

use super::Invariant;
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
                // A process that is stopped, and whose session is over, does nothing; what it does when it goes on is
                // looked at by others.
                let stands_still = |other: &RunId, at: u64| {
                    simulation.node(at).is_some_and(Node::is_frozen) && simulation.is_closed(other)
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
