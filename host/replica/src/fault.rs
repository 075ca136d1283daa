//! Points at which a test can have the process killed.
//!
//! `TICKHOST_KILL_AT=intent-committed:3` makes the process send itself SIGKILL the third time it comes by that
//! point: as `kill -9`, at a moment that no outside killer can hit at will. Without the variable a point costs
//! one read.

use std::sync::{
    OnceLock,
    atomic::{AtomicU32, Ordering},
};

/// The points, in the order in which a launch comes by them.
pub const POINTS: [&str; 10] = [
    "intent-proposed",
    "intent-committed",
    "run-accepted-unsynced",
    "run-accepted",
    "start-committed",
    "effect-proposed",
    "effect-committed",
    "effect-sent",
    "run-finished",
    "end-committed",
];

static ARMED: OnceLock<Option<(String, AtomicU32)>> = OnceLock::new();

/// Kills the process if this point is armed and its count is reached.
pub fn point(name: &str) {
    let armed = ARMED.get_or_init(|| {
        let value = std::env::var("TICKHOST_KILL_AT").ok()?;
        let (point, count) = value.split_once(':').unwrap_or((&value, "1"));
        if !POINTS.contains(&point) {
            tracing::error!(point, known = ?POINTS, "TICKHOST_KILL_AT names no point; nothing will be killed");
            return None;
        }
        Some((point.to_owned(), AtomicU32::new(count.parse().unwrap_or(1))))
    });
    if let Some((point, left)) = armed
        && point == name
        && left.fetch_sub(1, Ordering::SeqCst) == 1
    {
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
}
