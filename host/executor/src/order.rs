//! What a leader may ask of an executor, and the two numbers that fence.
//!
//! No check on the leader's side survives a pause between check and act: a leader that was frozen may send, minutes
//! later, what was right when it looked. So the executor looks too. The **floor** is the highest leader it has
//! obeyed; whatever comes from below is refused, also after a restart. The **session** is the lease under which it
//! takes runs; a dispatch names it.

use serde::{Deserialize, Serialize};
use tickhost_ledger::{Grant, RunId, conductor::Answer};
use tickhost_sandbox::RunRequest;
use uuid::Uuid;

/// How long a session holds after it was asked for, by the executor's own clock since boot. Several take-overs long,
/// or elections would stop runs.
pub const SESSION_MS: i64 = 15_000;
/// Clocks of machines run at speeds that differ by less than this; the leader waits for that much longer.
const DRIFT_PERCENT: i64 = 1;
/// After this long a session has certainly lapsed, by any clock.
pub const LAPSED_MS: i64 = SESSION_MS + SESSION_MS * 2 * DRIFT_PERCENT / 100;
/// An executor asks this often.
pub const ASK_EVERY_MS: u64 = 1_000;

/// A leader: the cluster's epoch, then the term.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Floor {
    /// The life of the cluster between restores.
    pub epoch: u64,
    /// The term in which it leads.
    pub term: u64,
}

/// A run to carry out, with all it needs: the executor looks nothing up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dispatch {
    /// Its right to act.
    pub grant: Grant,
    /// What to run.
    pub request: RunRequest,
}

/// What a leader sends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// Who sends it.
    pub leader: Floor,
    /// The session it is meant for.
    pub session: Uuid,
    /// Its number in that session: an order that arrives twice is obeyed once.
    pub number: u64,
    /// What is to be done.
    pub what: What,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum What {
    /// Take these runs on.
    Run(Vec<Dispatch>),
    /// Say what became of these. A "never" binds: it is on the disk before it is said.
    Tell(Vec<RunId>),
    /// Stop these, with the reason of each.
    Stop(Vec<(RunId, String)>),
}

/// What an executor answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Obeyed {
    /// It is done, or under way.
    Done,
    /// What became of each, in order.
    Told(Vec<Answer>),
    /// Nothing was done: the order comes from below the floor, or is for another session.
    Refused(String),
}
