//! The rows of the state.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use tickhost_schedule::Definition;
use uuid::Uuid;

use crate::{
    effect::ByteBuf,
    ids::{Grant, LaunchId, Stamp, TickAt},
    launch::{Outcome, SkipReason, Status},
    quota::Quota,
    spec::JobSpec,
};

/// The cluster's identity. One row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cluster {
    /// Random, given at bootstrap, and anew with every restore: two restores of one backup are two clusters.
    pub id: Uuid,
    /// The life of the cluster between restores.
    pub epoch: u64,
    /// What all keys are derived under; it outlives restores.
    pub key_domain: Uuid,
    /// The highest stamp seen. It serves order and retention, nothing else.
    pub time: Stamp,
    /// The number of the next node: none is given twice.
    pub next_node: u64,
    /// Which releases of the tz database and of this program have named the ticks that jobs wait for.
    pub names: String,
    /// What the ledger does by itself goes by commands up to this level: every node knows them.
    #[serde(default = "first_level", skip_serializing_if = "is_first_level")]
    pub level: u32,
    /// The last restore, where there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restored: Option<Restored>,
}

fn first_level() -> u32 {
    1
}

fn is_first_level(level: &u32) -> bool {
    *level == first_level()
}

/// A restore from a backup. What happened after the backup was taken, the ledger does not know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restored {
    /// The backup's name.
    pub backup: String,
    /// The ledger's time in it.
    pub taken_at: Stamp,
    /// When it was restored.
    pub at: Stamp,
    /// Nodes of the backup that may still obey a leader from before, by the number that they had: neither have they
    /// taken part in this epoch, nor has anybody said that they are gone.
    pub at_large: BTreeMap<u64, AtLarge>,
    /// What was chosen for the ticks that nobody knows about. The cluster is on hold before that.
    pub gap: Option<Gap>,
}

/// A node of the time before a restore.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AtLarge {
    /// Its executor's durable table.
    pub store: Uuid,
    /// Where its peers reached it.
    pub address: String,
}

/// The ticks between a backup and the end of the hold after it was restored: each may have been launched, and nobody
/// knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// Its end.
    pub until: Stamp,
    /// What becomes of them.
    pub choice: GapChoice,
    /// Who chose.
    pub by: String,
}

/// What becomes of the ticks of a gap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GapChoice {
    /// Their verdict is `unknown`.
    Skip,
    /// Jobs whose owners declared `on_unknown = "repeat"` launch them again, under the keys that they had, as their
    /// policy for missed ticks says. Those of the other jobs are `unknown`.
    Repeat,
}

/// A component that may run. Its bytes lie beside the database, under their digest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Component {
    /// Size in bytes.
    pub size: u64,
    /// What it imports, with versions.
    pub imports: Vec<String>,
    /// Since when it is here.
    pub stored_at: Stamp,
    /// The namespaces whose jobs may name it; `None` for all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespaces: Option<BTreeSet<String>>,
}

impl Component {
    /// Whether jobs of that namespace may name it.
    pub fn is_for(&self, namespace: &str) -> bool {
        self.namespaces.as_ref().is_none_or(|namespaces| namespaces.contains(namespace))
    }
}

/// What an operator lets a namespace have and use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespace {
    /// All of it.
    pub quota: Quota,
    /// The index of the entry that stored it.
    pub revision: u64,
    /// When.
    pub stored_at: Stamp,
    /// Who stored it.
    pub by: String,
}

/// A job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// What its owner said.
    pub spec: JobSpec,
    /// Counts the changes of `spec`, over deletions too.
    pub revision: u64,
    /// The stamp of the first revision since it was (re-)created: a schedule has no past before it, and
    /// `@every` counts from it.
    pub created_at: Stamp,
    /// The stamp of this revision.
    pub stored_at: Stamp,
    /// Who stored it.
    pub by: String,
    /// Every tick up to here is decided.
    pub cursor: TickAt,
    /// The tick it waits for; `None` while paused and where there is none.
    pub next: Option<NextTick>,
    /// The last tick that was decided: where the next one's period begins.
    pub last_tick: Option<TickAt>,
    /// The same in the job's zone, RFC 3339: a tz rule that changes must not bring its wall time again.
    #[serde(default)]
    pub last_local: Option<String>,
    /// Launches by the schedule since it was (re-)created.
    #[serde(default)]
    pub launched: u64,
    /// Present while paused.
    pub pause: Option<Pause>,
}

/// A tick as the conductor computed it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NextTick {
    /// The nominal instant.
    pub at: TickAt,
    /// The same in the job's zone, RFC 3339.
    pub local: String,
    /// When its launch may begin.
    pub due: TickAt,
}

impl NextTick {
    /// When it is decided: at its instant, or before, where its launch is.
    pub fn decided_at(&self) -> TickAt {
        self.at.min(self.due)
    }
}

/// A pause.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    /// Since when.
    pub since: Stamp,
    /// Why, in the words of whoever did it.
    pub note: String,
    /// Who did it.
    pub by: String,
}

/// What is kept of a deleted job: a re-creation starts after it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grave {
    /// Every tick up to here is decided.
    pub cursor: TickAt,
    /// The last revision.
    pub revision: u64,
}

/// A launch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// Where it stands.
    pub status: Status,
    /// Why it exists.
    pub origin: Origin,
    /// The tick in the job's zone, RFC 3339.
    pub local: String,
    /// The tick before by the schedule.
    pub previous: Option<TickAt>,
    /// The job's revision when it was decided.
    pub revision: u64,
    /// When it was decided; once its time has come, that, where it was placed later.
    pub decided_at: Stamp,
    /// No attempt begins before this.
    #[serde(default)]
    pub start_after: Stamp,
    /// The attempt that it waits for begins no later.
    pub start_by: Stamp,
    /// Its attempts, oldest first.
    pub attempts: Vec<Attempt>,
}

impl Launch {
    /// The number of the latest attempt; 0 before the first.
    pub fn attempt(&self) -> u32 {
        u32::try_from(self.attempts.len()).unwrap_or(u32::MAX)
    }

    /// Whether its time has yet to come: in its window, or on another day that is open.
    pub fn is_placed_later(&self) -> bool {
        self.start_after > self.decided_at
    }

    /// The attempt that may be alive.
    pub fn live(&self) -> Option<&Attempt> {
        if self.status.is_live() { self.attempts.last() } else { None }
    }
}

/// Why a launch exists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// The schedule named its tick.
    Schedule {
        /// It was missed and is made up; such ticks wait for each other, oldest first.
        caught_up: bool,
    },
    /// Somebody asked for it.
    Manual {
        /// Who.
        by: String,
        /// Whether its effects carry the keys of the tick's scheduled launch.
        same_key: bool,
    },
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Schedule { caught_up: false } => f.write_str("the schedule"),
            Self::Schedule { caught_up: true } => f.write_str("the schedule; it was missed and is made up"),
            Self::Manual { by, same_key: true } => write!(f, "triggered by {by}, with the keys of its tick"),
            Self::Manual { by, same_key: false } => write!(f, "triggered by {by}, with keys of its own"),
        }
    }
}

/// One attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// Its right to act.
    pub grant: Grant,
    /// The node.
    pub node: u64,
    /// The executor's durable table.
    pub store: Uuid,
    /// The session it was meant for.
    pub session: Uuid,
    /// The revision it runs.
    pub revision: u64,
    /// Bytes of memory reserved for it.
    pub memory_bytes: u64,
    /// Milliseconds of CPU time that are reserved for it, where its namespace has a quota of that.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cpu_ms: u64,
    /// When its intent was committed.
    pub intended_at: Stamp,
    /// When its start was committed.
    pub started_at: Option<Stamp>,
    /// Why it is to be stopped, if it is: told again by every new leader until it has ended.
    #[serde(default)]
    pub revoked: Option<String>,
    /// Its end.
    pub ended: Option<Ended>,
}

impl Attempt {
    /// How it ended, if it had started: one that never did counts for nothing.
    pub(crate) fn end_of_what_started(&self) -> Option<&Outcome> {
        let outcome = &self.ended.as_ref()?.outcome;
        (!matches!(outcome, Outcome::NeverStarted { .. })).then_some(outcome)
    }
}

/// The end of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// When it was committed.
    pub at: Stamp,
    /// How it ended.
    pub outcome: Outcome,
    /// What it used.
    pub usage: Usage,
}

/// What a run used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// The most linear memory it held, in bytes.
    pub memory_bytes: u64,
    /// CPU time in microseconds.
    pub cpu_us: u64,
    /// Wall time in microseconds.
    pub wall_us: u64,
    /// Bytes of output and log records, kept or not.
    pub log_bytes: u64,
    /// HTTP requests.
    pub http_calls: u64,
    /// Bytes of the largest response body.
    pub response_bytes: u64,
    /// Bytes of the largest request body.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub request_bytes: u64,
    /// Elements of tables.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub table_elements: u64,
    /// Keys made.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub keys: u64,
    /// Effects.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub effects: u64,
    /// Bytes written to the key-value store.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub kv_bytes: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Usage {
    /// The [`crate::command::FORMAT`] that knows all of it.
    pub const FORMAT: u32 = 4;

    /// What nodes know of it that are older than that.
    pub fn of_format_1(self) -> Self {
        Self { request_bytes: 0, table_elements: 0, keys: 0, effects: 0, kv_bytes: 0, ..self }
    }

    pub(crate) fn has_later(&self) -> bool {
        *self != self.of_format_1()
    }
}

/// Ticks with one verdict that were never launched: enumerated when asked for, never walked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedRange {
    /// The last second it covers; `None` while it is open (a pause).
    pub to: Option<TickAt>,
    /// Why.
    pub reason: SkipReason,
    /// The job's revision then.
    pub revision: u64,
    /// What named the ticks then, for the one who enumerates.
    pub timing: Definition,
    /// Where `@every` counts from.
    pub anchor: Stamp,
}

/// Launches that are no longer kept one by one.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Folded {
    /// The last tick among them.
    pub to: Option<TickAt>,
    /// How many succeeded.
    pub succeeded: u64,
    /// How many did not.
    pub other: u64,
}

/// A member of the cluster. The first one is there from the founding; the others came with a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Where its peers reach it, `host:port`; empty for a host that has no peers.
    pub address: String,
    /// Whether it votes, or is to. The others execute.
    pub voter: bool,
    /// It gets no new runs.
    pub draining: bool,
    /// Since when.
    pub admitted_at: Stamp,
    /// Who let it in.
    pub by: String,
    /// What its executor said of itself; `None` until it has for the first time.
    pub executor: Option<Executor>,
}

/// The executor of a node, as it last said who it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Executor {
    /// Its durable table. A node keeps it for life: with another one it would not know what it ran.
    pub store: Uuid,
    /// Counts the sessions that were asked for with that table and the runs that it has accepted, as far as the ledger
    /// was told: one that goes back is a copy, or a disk that did.
    pub sequence: u64,
    /// The lease under which it takes dispatches; `None` once it has lapsed.
    pub session: Option<Uuid>,
    /// Runs at a time.
    pub runs_max: u32,
    /// Bytes of guest memory at a time.
    pub memory_bytes_max: u64,
    /// The version of its tz database.
    pub tz: String,
    /// Its own version.
    pub version: String,
    /// The newest commands that it knows ([`crate::command::FORMAT`]).
    pub format: u32,
    /// Since when it has this session.
    pub opened_at: Stamp,
}

/// A right to join that somebody may use once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    /// Until when.
    pub expires_at: Stamp,
    /// Whether the node that uses it may vote.
    pub voter: bool,
    /// Who gave it out.
    pub by: String,
    /// The node that has used it: it may ask again, where the answer was lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<u64>,
}

/// A value of the key-value store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvValue {
    /// The bytes.
    pub bytes: ByteBuf,
    /// The launch that wrote it.
    pub by: LaunchId,
    /// When.
    pub at: Stamp,
}
