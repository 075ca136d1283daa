//! In a term one node leads at the most, and at a moment one node holds the lease.

use std::collections::BTreeMap;

use super::Invariant;
use crate::{node::Node, simulation::Simulation};

#[derive(Default)]
pub(super) struct OneLeader {
    leaders: BTreeMap<u64, u64>,
}

impl Invariant for OneLeader {
    fn name(&self) -> &'static str {
        "one leader a term"
    }

    fn look(&mut self, simulation: &Simulation) -> Result<(), String> {
        for node in &simulation.nodes {
            let Some(term) = node.with_host(|host| *host.replica.leading().borrow()).flatten() else { continue };
            let leader = *self.leaders.entry(term).or_insert(node.id);
            if leader != node.id {
                return Err(format!("node {} leads in term {term}, as node {leader} did", node.id));
            }
        }
        // What a stopped process would say is of the time before.
        let awake = simulation.nodes.iter().filter(|node| !node.is_frozen());
        let holds = |node: &&Node| node.with_host(|host| host.replica.has_lease()).unwrap_or_default();
        let holders: Vec<u64> = awake.filter(holds).map(|node| node.id).collect();
        if holders.len() > 1 {
            return Err(format!("nodes {holders:?} hold the lease at the same time"));
        }
        Ok(())
    }
}
