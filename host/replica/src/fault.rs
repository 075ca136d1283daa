//! Points at which a test can have the process killed, the end of a process that must not go on, and bugs that a test
//! plants to see them found.
//!
//! `TICKHOST_KILL_AT=intent-committed:3` makes the process send itself SIGKILL the third time it comes by that
//! point: as `kill -9`, at a moment that no outside killer can hit at will. Without the variable a point costs
//! one read.
//!
//! Where many nodes share a process, in the simulation, a [`Hook`] stands in for all of this.

use std::{
    cell::RefCell,
    rc::Rc,
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
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

/// What stands in for a process of its own.
pub trait Hook {
    /// The node comes by a point.
    fn point(&self, name: &'static str);
    /// The node's process would end here. Does not return.
    fn end(&self) -> !;
    /// Whether the node has that bug.
    fn planted(&self, bug: &'static str) -> bool;
}

thread_local! {
    static HOOK: RefCell<Option<Rc<dyn Hook>>> = const { RefCell::new(None) };
}

/// From now on the nodes of this thread end by that hook.
pub fn install(hook: Rc<dyn Hook>) {
    HOOK.set(Some(hook));
}

fn hook() -> Option<Rc<dyn Hook>> {
    // A thread that is ending has none any more.
    HOOK.try_with(|hook| hook.borrow().clone()).ok().flatten()
}

/// Ends the process at once: what it would do next would be wrong.
pub fn end_process() -> ! {
    if let Some(hook) = hook() {
        hook.end();
    }
    std::process::abort()
}

/// Whether a test has planted that bug here. Never in a release build.
pub fn planted(bug: &'static str) -> bool {
    cfg!(debug_assertions) && hook().is_some_and(|hook| hook.planted(bug))
}

static ARMED: OnceLock<Option<(String, AtomicU32)>> = OnceLock::new();

/// Kills the process if this point is armed and its count is reached.
pub fn point(name: &'static str) {
    if let Some(hook) = hook() {
        return hook.point(name);
    }
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
