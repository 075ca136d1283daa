//! What is derived from the rows: rebuilt when they are loaded, never written.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    ids::{JobName, LaunchId, Stamp, TickAt},
    launch::Status,
    quota::Held,
    rows::{Attempt, Launch},
};

/// What is derived from the rows: rebuilt when they are loaded, never written.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// Jobs by when the tick that they wait for is decided.
    pub(super) due: BTreeSet<(TickAt, JobName)>,
    /// Launches that are not closed, by job.
    pub(super) open: BTreeMap<JobName, BTreeSet<LaunchId>>,
    /// Open launches without a run, by when they may begin: first come, first served within a namespace.
    pub(super) waiting: BTreeMap<String, BTreeSet<(Stamp, LaunchId)>>,
    /// The same by when they no longer may.
    pub(super) deadlines: BTreeSet<(Stamp, LaunchId)>,
    /// Runs and bytes of memory in use, by node.
    pub(super) reserved: BTreeMap<u64, (u32, u64)>,
    /// Launches kept, by job.
    pub(super) kept: BTreeMap<JobName, usize>,
    /// What each namespace has.
    pub(super) held: BTreeMap<String, Held>,
}

impl Index {
    pub(super) fn await_tick(&mut self, job: &JobName, was: Option<TickAt>, is: Option<TickAt>) {
        if let Some(at) = was {
            self.due.remove(&(at, job.clone()));
        }
        if let Some(at) = is {
            self.due.insert((at, job.clone()));
        }
    }

    pub(super) fn enter(&mut self, id: &LaunchId, launch: &Launch) {
        if !launch.status.is_open() {
            return;
        }
        self.open.entry(id.job.clone()).or_default().insert(id.clone());
        match launch.live() {
            Some(attempt) => {
                let (runs, bytes) = self.reserved.entry(attempt.node).or_default();
                *runs += 1;
                *bytes += attempt.memory_bytes;
                self.hold(&id.job.namespace, |held| held.reserve(attempt.memory_bytes, attempt.cpu_ms));
            }
            None => {
                let waiting = self.waiting.entry(id.job.namespace.clone()).or_default();
                waiting.insert((begins(launch), id.clone()));
                self.deadlines.insert((ends(launch), id.clone()));
            }
        }
    }

    pub(super) fn leave(&mut self, id: &LaunchId, launch: &Launch) {
        if let Some(open) = self.open.get_mut(&id.job) {
            open.remove(id);
            if open.is_empty() {
                self.open.remove(&id.job);
            }
        }
        if let Some(waiting) = self.waiting.get_mut(&id.job.namespace) {
            waiting.remove(&(begins(launch), id.clone()));
            if waiting.is_empty() {
                self.waiting.remove(&id.job.namespace);
            }
        }
        self.deadlines.remove(&(ends(launch), id.clone()));
        if let Some(attempt) = launch.live()
            && let Some((runs, bytes)) = self.reserved.get_mut(&attempt.node)
        {
            *runs = runs.saturating_sub(1);
            *bytes = bytes.saturating_sub(attempt.memory_bytes);
            self.hold(&id.job.namespace, |held| give_back(held, attempt));
        }
    }

    /// Changes what a namespace has.
    pub(super) fn hold(&mut self, namespace: &str, change: impl FnOnce(&mut Held)) {
        let held = self.held.entry(namespace.to_owned()).or_default();
        change(held);
        if *held == Held::default() {
            self.held.remove(namespace);
        }
    }
}

fn give_back(held: &mut Held, attempt: &Attempt) {
    held.runs -= 1;
    held.memory_bytes -= attempt.memory_bytes;
    held.cpu_ms -= attempt.cpu_ms;
}

/// When a launch that waits may begin.
fn begins(launch: &Launch) -> Stamp {
    match launch.status {
        Status::AwaitingRetry { at, .. } => at,
        _ => launch.start_after.max(launch.decided_at),
    }
}

/// When it no longer may: it may begin in the last millisecond of its deadline.
fn ends(launch: &Launch) -> Stamp {
    launch.start_by.plus_ms(1)
}
