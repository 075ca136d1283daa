//! Once all faults are over, somebody leads within seconds, everybody has a session, nothing stays open, no alarm is
//! raised, and whoever was removed has been told.

use super::Invariant;
use crate::simulation::Simulation;

/// An election, and more than one where links have only just been mended.
const LEADER_US: u64 = 10_000_000;

#[derive(Default)]
pub(super) struct Heals {
    has_led: bool,
}

impl Invariant for Heals {
    fn name(&self) -> &'static str {
        "heals"
    }

    fn look(&mut self, simulation: &Simulation) -> Result<(), String> {
        let Some(healed_at_us) = simulation.healed_at_us else { return Ok(()) };
        let leads = |node: &crate::node::Node| node.with_host(|host| host.replica.leading().borrow().is_some());
        self.has_led |= simulation.members().any(|node| leads(node) == Some(true));
        match !self.has_led && simulation.world.now_us() > healed_at_us + LEADER_US {
            true => Err(format!("nobody leads {} s after the last fault", LEADER_US / 1_000_000)),
            false => Ok(()),
        }
    }

    fn at_end(&mut self, simulation: &Simulation) -> Result<(), String> {
        for node in simulation.members() {
            let session = node.with_host(|host| host.executor.session());
            if session.flatten().is_none() {
                let why = node.refused.clone().unwrap_or_default();
                return Err(format!("node {} takes no part: {why}", node.id));
            }
        }
        for node in simulation.let_go() {
            let is_gone = simulation.with_state(|state| state.node(node.id).is_none())?;
            if is_gone && !node.refused.as_ref().is_some_and(|why| why.contains("was removed")) {
                return Err(format!("node {} was removed, and goes on: {:?}", node.id, node.refused));
            }
        }
        let open = simulation.with_state(|state| {
            let id = state.all_open().next()?;
            let launch = state.launch(id)?;
            Some((id.to_string(), launch.status.clone(), launch.attempts.last().map(|last| (last.node, last.session))))
        })?;
        match open {
            Some((launch, status, last)) => Err(format!("{launch} stays {status:?}, last on {last:?}")),
            None => Ok(()),
        }
    }
}
