//! What did not happen. Every node looks for it by itself: a leader that has stopped deciding does not say so.

use std::fmt;

use crate::{
    State,
    ids::{JobName, LaunchId, Stamp, TickAt},
};

/// A tick is decided within milliseconds; an election and a busy disk take a second or two.
const GRACE_MS: i64 = 5_000;
/// After its session has lapsed a run is closed.
const LEASE_MS: u64 = 20_000;

/// Something that should have happened by now.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Absence {
    /// The job.
    pub job: JobName,
    /// The tick.
    pub tick: TickAt,
    /// What is missing.
    pub what: Missing,
}

/// What is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Missing {
    /// The tick is past, and nobody has decided what becomes of it.
    Decision,
    /// It was to have an end by now, and has none.
    Verdict,
}

/// The alarm's name: receivers tell by it that they know it already.
impl fmt::Display for Absence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.what {
            Missing::Decision => "no decision",
            Missing::Verdict => "no verdict",
        };
        write!(f, "{}@{}: {what}", self.job, self.tick)
    }
}

/// What is absent at that time, by the median of the voters' clocks, from a state that holds all that was committed
/// before. At most `count`.
pub fn absences(state: &State, now: Stamp, count: usize) -> Vec<Absence> {
    if state.hold().is_some() {
        // Nothing is decided before it ends, and that is said as a whole.
        return Vec::new();
    }
    let late = Stamp(now.0 - GRACE_MS);
    let undecided = state.due().take_while(|(at, _)| at.0 * 1_000 <= late.0).map(|(tick, job)| Absence {
        job: job.clone(),
        tick,
        what: Missing::Decision,
    });
    let without_verdict = state.all_open().filter(|id| must_be_over(state, id, late)).map(|id| Absence {
        job: id.job.clone(),
        tick: id.tick,
        what: Missing::Verdict,
    });
    undecided.chain(without_verdict).take(count).collect()
}

fn must_be_over(state: &State, id: &LaunchId, late: Stamp) -> bool {
    let Some(launch) = state.launch(id) else { return false };
    match (launch.live(), state.job(&id.job)) {
        (Some(attempt), Some(job)) => attempt.intended_at.plus_ms(job.spec.limits.wall_ms + LEASE_MS) < late,
        // Of a deleted job: it is being stopped.
        (Some(attempt), None) => attempt.intended_at.plus_ms(LEASE_MS) < late && attempt.revoked.is_some(),
        (None, _) => launch.start_by < late,
    }
}
