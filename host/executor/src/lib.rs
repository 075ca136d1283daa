//! The part of a node that runs components: a durable table of runs, and running them.
//!
//! Before the first guest instruction of a run its row is on the disk. After a crash the table therefore knows of
//! every run whether it can have begun, and the answer "it never started" binds: a row is written first that
//! refuses the run for ever.
//!
//! It does not know who the leader is, nor what a schedule means.

mod executor;
mod journal;
mod lease;
pub mod order;
mod table;

pub use executor::{Executor, ExecutorError, Fetch};
pub use table::enter_epoch;
