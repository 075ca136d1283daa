//! A node whose disk was wiped or set back takes no part any more: it neither leads nor runs anything.

use std::collections::BTreeSet;

use super::Invariant;
use crate::{simulation::Simulation, world::Event};

#[derive(Default)]
pub(super) struct Spoiled {
    /// Those that were started with such a disk.
    nodes: BTreeSet<u64>,
}

impl Invariant for Spoiled {
    fn name(&self) -> &'static str {
        "wrong disks stay out"
    }

    fn note(&mut self, simulation: &Simulation, event: &Event) -> Result<(), String> {
        match event {
            Event::Up { node } if simulation.node(*node).is_some_and(|node| node.is_spoiled) => {
                self.nodes.insert(*node);
                Ok(())
            }
            Event::Began { node, run, .. } if self.nodes.contains(node) => {
                Err(format!("{run} begins on node {node}, whose disk is not what it was"))
            }
            _ => Ok(()),
        }
    }

    fn look(&mut self, simulation: &Simulation) -> Result<(), String> {
        for node in self.nodes.iter().filter_map(|node| simulation.node(*node)) {
            let leads = node.with_host(|host| host.replica.leading().borrow().is_some()).unwrap_or_default();
            if leads {
                return Err(format!("node {} leads, and its disk is not what it was", node.id));
            }
        }
        Ok(())
    }

    fn at_end(&mut self, simulation: &Simulation) -> Result<(), String> {
        for node in self.nodes.iter().filter_map(|node| simulation.node(*node)) {
            if node.is_up() || node.refused.is_none() {
                return Err(format!("node {} was not refused, and its disk is not what it was", node.id));
            }
        }
        Ok(())
    }
}
