//! The ledger: what every node agrees on, and how the leader decides what comes next.
//!
//! Commands go in, row changes and [`Output`]s come out. The crate is pure: no clock, no randomness, no disk,
//! no hash-map order, and in [`State::apply`] no tz database either: ticks are computed by the conductor and
//! travel inside the commands, so that every node that applies the same entries has the same state.
//!
//! Start reading at [`launch`], the life of a launch as one total match; then [`State::apply`], then
//! [`conductor`], which turns the state and an instant into the next commands.

pub mod absence;
pub mod access;
pub mod clock;
pub mod codec;
pub mod command;
pub mod conductor;
pub mod effect;
pub mod ids;
pub mod key;
pub mod launch;
pub mod quota;
pub mod rows;
pub mod spec;
mod state;
mod table;

pub use command::{Command, Entry, Output, Refusal, Reply};
pub use ids::{Digest, Grant, JobName, LaunchId, RunId, Stamp, TickAt};
pub use spec::JobSpec;
pub use state::{Applied, ApplyError, Contents, FIRST_NODE, State, check_table};
pub use table::RowChange;
