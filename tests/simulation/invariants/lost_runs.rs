//! A run whose executor is gone is closed within its lease, wherever somebody leads a majority; nothing runs for ever.

use super::Invariant;
use crate::{node::Node, simulation::Simulation};

/// The session and what clocks may differ by, an election, and a commit on slow disks.
const WITHIN_US: u64 = 22_000_000;

#[derive(Default)]
pub(super) struct LostRuns {
    /// Who leads with a majority behind it, and since when.
    leader: Option<(u64, u64)>,
}

impl Invariant for LostRuns {
    fn name(&self) -> &'static str {
        "nothing runs for ever"
    }

    fn look(&mut self, simulation: &Simulation) -> Result<(), String> {
        let now_us = simulation.world.now_us();
        let has_majority = |node: &&Node| node.with_host(|host| host.replica.has_lease()).unwrap_or_default();
        let leads = simulation.leader().filter(|node| !node.is_frozen()).filter(has_majority).map(|node| node.id);
        if self.leader.map(|(node, _)| node) != leads {
            self.leader = leads.map(|node| (node, now_us));
        }
        let Some((leader, since_us)) = self.leader else { return Ok(()) };
        let Some(host) = simulation.node(leader).and_then(Node::host) else { return Ok(()) };
        let is_gone = |id: u64| {
            let down_since_us = simulation.node(id).and_then(|node| node.down_since_us)?;
            Some(now_us - down_since_us.max(since_us) > WITHIN_US)
        };
        let found = host.replica.read(|state| {
            state.all_open().find_map(|id| {
                let attempt = state.launch(id)?.live()?;
                (is_gone(attempt.node) == Some(true)).then(|| format!("{id} is with node {}", attempt.node))
            })
        });
        match found {
            Some(found) => Err(format!("{found}, which is gone for {} s", WITHIN_US / 1_000_000)),
            None => Ok(()),
        }
    }
}
