//! The same work has the same key for ever, and no other work has it.

use std::collections::BTreeMap;

use tickhost_ledger::LaunchId;
use uuid::Uuid;

use super::Invariant;
use crate::{simulation::Simulation, world::Event};

#[derive(Default)]
pub(super) struct Keys {
    keys: BTreeMap<(LaunchId, String), Uuid>,
    works: BTreeMap<Uuid, (LaunchId, String)>,
}

impl Invariant for Keys {
    fn name(&self) -> &'static str {
        "keys"
    }

    fn note(&mut self, _simulation: &Simulation, event: &Event) -> Result<(), String> {
        let Event::Effect { run, label, key, .. } = event else { return Ok(()) };
        let work = (run.launch.clone(), label.clone());
        let known = *self.keys.entry(work.clone()).or_insert(*key);
        if known != *key {
            return Err(format!("{label} of {run} has the key {key}, and had {known}"));
        }
        match self.works.entry(*key).or_insert(work.clone()) {
            other if *other != work => Err(format!("{label} of {run} has the key of {other:?}")),
            _ => Ok(()),
        }
    }
}
