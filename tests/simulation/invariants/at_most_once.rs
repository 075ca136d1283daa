//! A launch of a job that says `skip` begins once, and each of its effects happens once.

use std::collections::BTreeMap;

use tickhost_ledger::LaunchId;

use super::Invariant;
use crate::{
    simulation::{Simulation, is_skip},
    world::Event,
};

#[derive(Default)]
pub(super) struct AtMostOnce {
    began: BTreeMap<LaunchId, String>,
    done: BTreeMap<(LaunchId, String), String>,
}

impl Invariant for AtMostOnce {
    fn name(&self) -> &'static str {
        "at most once"
    }

    fn note(&mut self, _simulation: &Simulation, event: &Event) -> Result<(), String> {
        match event {
            Event::Began { node, run, .. } if is_skip(&run.launch.job) => {
                let who = format!("{run} on node {node}");
                match self.began.insert(run.launch.clone(), who.clone()) {
                    Some(before) => Err(format!("{who} begins, and {before} has begun")),
                    None => Ok(()),
                }
            }
            Event::Effect { node, run, label, .. } if is_skip(&run.launch.job) => {
                let who = format!("{run} on node {node}");
                match self.done.insert((run.launch.clone(), label.clone()), who.clone()) {
                    Some(before) => Err(format!("{label} of {who} happens, and it has happened in {before}")),
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }
}
