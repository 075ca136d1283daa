//! All nodes hold the same state, and on each disk lies what its node holds in memory.

use tickhost_ledger::State;

use super::Invariant;
use crate::simulation::Simulation;

pub(super) struct SameState;

impl Invariant for SameState {
    fn name(&self) -> &'static str {
        "the same state everywhere"
    }

    fn at_end(&mut self, simulation: &Simulation) -> Result<(), String> {
        let mut first: Option<(u64, u128)> = None;
        for node in simulation.members() {
            let hash = node.with_host(|host| host.replica.read(State::hash));
            let hash = hash.ok_or_else(|| format!("node {} is not up", node.id))?;
            let (other, expected) = *first.get_or_insert((node.id, hash));
            if hash != expected {
                return Err(format!("node {} holds {hash:032x}, node {other} {expected:032x}", node.id));
            }
            let disk = node.disk.lock();
            let rows: Vec<(&[u8], &[u8])> = disk.live.family("state").collect();
            let generation = rows.last().map_or(&[][..], |(key, _)| &key[..8]);
            let rows = rows.iter().filter(|(key, _)| key.starts_with(generation)).map(|(key, row)| (&key[8..], *row));
            let read = State::load(rows).map_err(|e| format!("the rows of node {}: {e}", node.id))?;
            if read.hash() != hash {
                let found = read.hash();
                return Err(format!("on the disk of node {} lies {found:032x}, it holds {hash:032x}", node.id));
            }
        }
        Ok(())
    }
}
