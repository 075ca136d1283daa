//! What the API shows of the ledger's rows.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tickhost_ledger::{
    JobName, JobSpec, LaunchId, State,
    effect::EffectResult,
    rows::{Attempt, Job, Launch, Origin, Pause, Usage},
};

use super::headroom::{Headroom, headroom};
use crate::jobs::verdict;

/// A job.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct JobView {
    /// `namespace/name`.
    pub job: String,
    /// Counts its changes.
    pub revision: u64,
    /// The next tick.
    pub next: Option<String>,
    /// The same in the job's zone.
    pub next_local: Option<String>,
    /// When it is launched: inside its window, or on another day that is open.
    pub next_due: Option<String>,
    /// Since when there is the job: `@every` counts from it.
    pub created_at: chrono::DateTime<chrono::Utc>,
    /// Present while paused.
    pub pause: Option<Pause>,
    /// The newest launch and what became of it.
    pub last: Option<(String, String)>,
    /// Who stored it, and when.
    pub stored_by: String,
    /// RFC 3339.
    pub stored_at: String,
    /// What its owner says.
    pub spec: JobSpec,
    /// Its limits as the manifest calls them, those that nobody declared included.
    #[serde(default)]
    pub limits: BTreeMap<String, u64>,
}

impl JobView {
    pub(crate) fn new(state: &State, name: &JobName, job: &Job) -> Self {
        let all = (tickhost_ledger::TickAt(i64::MIN), tickhost_ledger::TickAt(i64::MAX));
        let last = state.launches(name, all.0, all.1).next_back();
        Self {
            job: name.to_string(),
            revision: job.revision,
            next: job.next.as_ref().map(|n| n.at.to_string()),
            next_local: job.next.as_ref().map(|n| n.local.clone()),
            next_due: job.next.as_ref().map(|n| n.due.to_string()),
            created_at: job.created_at.time(),
            pause: job.pause.clone(),
            last: last.map(|(id, launch)| (id.to_string(), verdict(&launch.status))),
            stored_by: job.by.clone(),
            stored_at: job.stored_at.to_string(),
            spec: job.spec.clone(),
            limits: headroom(&Usage::default(), &job.spec.limits).into_iter().map(|h| (h.limit, h.declared)).collect(),
        }
    }
}

/// A launch with its whole story.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LaunchView {
    /// Its name.
    pub launch: String,
    /// The verdict, or where it stands.
    pub verdict: String,
    /// The tick in the job's zone.
    pub local: String,
    /// The tick before.
    pub previous: Option<String>,
    /// Why it exists.
    pub origin: Origin,
    /// When it was decided.
    pub decided_at: String,
    /// Its attempts, oldest first.
    pub attempts: Vec<Attempt>,
    /// What its last attempt used of what was declared, once that has ended; nothing where the job has changed since.
    #[serde(default)]
    pub limits: Vec<Headroom>,
    /// The effects of its tick, those of re-runs under the same keys included.
    pub effects: Vec<EffectView>,
}

/// An effect.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EffectView {
    /// The idempotency key.
    pub key: String,
    /// What it is.
    pub what: String,
    /// How often its intent was committed.
    pub intents: usize,
    /// `200`, `no answer: …`, `in doubt`.
    pub result: String,
}

impl LaunchView {
    pub(crate) fn new(state: &State, id: &LaunchId, launch: &Launch) -> Self {
        let effects = state.effects(&id.job, id.tick).map(|(key, effect)| EffectView {
            key: key.to_string(),
            what: effect.what.clone(),
            intents: effect.intended.len(),
            result: match &effect.result {
                None => "in doubt".into(),
                Some(EffectResult::Http(answer)) => answer.status.to_string(),
                Some(EffectResult::NoAnswer { message, .. }) => format!("no answer: {message}"),
                Some(EffectResult::NotSent { message }) => format!("not sent: {message}"),
                Some(EffectResult::Kv { value: Some(value) }) => format!("done: {value}"),
                Some(EffectResult::Kv { value: None }) => "done".into(),
            },
        });
        let last = launch.attempts.last().and_then(|attempt| Some((attempt.revision, &attempt.ended.as_ref()?.usage)));
        let limits = last.and_then(|(revision, usage)| {
            let job = state.job(&id.job).filter(|job| job.revision == revision)?;
            Some(headroom(usage, &job.spec.limits))
        });
        Self {
            launch: id.to_string(),
            verdict: verdict(&launch.status),
            local: launch.local.clone(),
            previous: launch.previous.map(|p| p.to_string()),
            origin: launch.origin.clone(),
            decided_at: launch.decided_at.to_string(),
            attempts: launch.attempts.clone(),
            limits: limits.unwrap_or_default(),
            effects: effects.collect(),
        }
    }
}

/// A host and its group.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StatusView {
    /// This version.
    pub version: String,
    /// The version of the tz database.
    pub tz: String,
    /// The cluster's id.
    pub cluster: Option<String>,
    /// This node.
    pub node: u64,
    /// `leader`, `follower`, …
    pub role: String,
    /// The term.
    pub term: u64,
    /// Who leads.
    pub leader: Option<u64>,
    /// The last log index.
    pub last_index: Option<u64>,
    /// The last committed index that it knows of.
    pub committed_index: Option<u64>,
    /// The last applied index.
    pub applied_index: Option<u64>,
    /// The index of the last snapshot.
    pub snapshot_index: Option<u64>,
    /// Equal on all nodes at equal index.
    pub state_hash: String,
    /// Runs at this moment.
    pub runs: usize,
    /// Runs at a time at the most.
    pub runs_max: u32,
    /// Syncs of the write-ahead log since the start.
    pub syncs: u64,
    /// Launches without a verdict.
    pub open: usize,
    /// The session of its executor with the leader.
    pub session: Option<String>,
    /// Whether nobody else can lead at this moment.
    pub has_lease: bool,
    /// What did not happen, as this node sees it.
    pub alarms: Vec<String>,
    /// Why launches and changes are held, if they are.
    pub held: Option<String>,
    /// The newest backup, as far as this node knows: the leader takes them.
    pub backup: Option<String>,
    /// Why the last one was not taken.
    pub backup_failed: Option<String>,
    /// Rows, by kind.
    pub rows: Vec<(String, usize)>,
}
