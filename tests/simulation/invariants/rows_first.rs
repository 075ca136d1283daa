//! The row of a run is on its executor's disk before the first instruction, and before anybody is told that there will be
//! none.

use super::Invariant;
use crate::{simulation::Simulation, world::Event};

pub(super) struct RowsFirst;

impl Invariant for RowsFirst {
    fn name(&self) -> &'static str {
        "row before run"
    }

    fn note(&mut self, _simulation: &Simulation, event: &Event) -> Result<(), String> {
        match event {
            Event::Began { node, run, row_is_durable: false } => {
                Err(format!("{run} begins on node {node}, and its row would not survive"))
            }
            Event::Never { node, run, row_is_durable: false } => {
                Err(format!("node {node} says that {run} never began, and would have forgotten that"))
            }
            _ => Ok(()),
        }
    }
}
