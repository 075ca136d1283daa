//! What a disk promises survives, and never gets less: the term that was voted in, the leader below which nobody is
//! obeyed, and the count of sessions and runs.

use std::collections::BTreeMap;

use tickhost_executor::order::Floor;
use tickhost_ledger::codec;
use tickhost_replica::db::RUNS;

use super::Invariant;
use crate::simulation::Simulation;

#[derive(Default)]
pub(super) struct Promises {
    known: BTreeMap<u64, (u64, Floor, u64)>,
}

impl Invariant for Promises {
    fn name(&self) -> &'static str {
        "promises"
    }

    fn look(&mut self, simulation: &Simulation) -> Result<(), String> {
        for node in simulation.nodes.iter().filter(|node| !node.is_spoiled) {
            let disk = node.disk.lock();
            let floor = disk.synced.get(RUNS, b"\0floor").and_then(|bytes| codec::decode(bytes).ok());
            let sequence = disk.synced.get(RUNS, b"\0sequence").and_then(|bytes| codec::decode(bytes).ok());
            let now = (disk.synced.floor.term, floor.unwrap_or_default(), sequence.unwrap_or_default());
            drop(disk);
            let before = self.known.insert(node.id, now).unwrap_or_default();
            if now.0 < before.0 || now.1 < before.1 || now.2 < before.2 {
                return Err(format!("node {} promises {now:?}, and has promised {before:?}", node.id));
            }
        }
        Ok(())
    }
}
