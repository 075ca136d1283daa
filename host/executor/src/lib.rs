//! The part of a node that runs components: a durable table of runs, and running them.
//!
//! Before the first guest instruction of a run its row is on the disk. After a crash the table therefore knows of
//! every run whether it can have begun, and the answer "it never started" binds: a row is written first that
//! refuses the run for ever.
//!
//! It does not know who the leader is, nor what a schedule means.

mod executor;
mod journal;
mod table;

pub use executor::{Dispatch, Executor, ExecutorError};

/// The clock, read here and passed on.
pub fn now() -> tickhost_ledger::Stamp {
    chrono::Utc::now().into()
}

/// Milliseconds since the machine was booted, suspended time included. Nobody can set it.
pub fn since_boot_ms() -> i64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    time.tv_sec * 1_000 + time.tv_nsec / 1_000_000
}
