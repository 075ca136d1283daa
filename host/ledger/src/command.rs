//! What can be asked of the ledger, and what it answers.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    access::{Access, Audited},
    effect::{ByteBuf, EffectAnswer, EffectResult},
    ids::{Digest, Grant, JobName, LaunchId, RunId, Stamp, TickAt},
    launch::{Outcome, SkipReason},
    quota::{Checked, Quota},
    rows::{GapChoice, NextTick, Usage},
    spec::JobSpec,
};

/// The newest commands that this version knows. A command that is added raises it, and is proposed only once every
/// node of the cluster knows it: an older one would have to stop at it.
pub const FORMAT: u32 = 6;

/// The level that knows of quotas and of components that belong to namespaces.
pub const NAMESPACES: u32 = 5;

/// The level that knows of tokens and of the audit log.
pub const IDENTITY: u32 = 6;

/// One entry of the log: commands with the leader's stamp, applied in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// In order.
    pub commands: Vec<Stamped>,
}

/// A command and when the leader decided it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamped {
    /// The leader's clock.
    pub at: Stamp,
    /// What to do.
    pub command: Command,
}

/// What can be asked of the ledger. An unknown one is an error, never skipped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// The first command of a cluster's life.
    Found {
        /// The cluster's id.
        cluster: Uuid,
        /// What all keys are derived under.
        key_domain: Uuid,
        /// Where the first node's peers will reach it; empty for a host that has none.
        address: String,
    },
    /// Gives out a right to join.
    PutToken {
        /// Of the secret, which nobody but its holder knows.
        digest: Digest,
        /// Until when.
        expires_at: Stamp,
        /// Whether the node that uses it may vote.
        voter: bool,
        /// Who.
        by: String,
    },
    /// A node joins: it gets a number.
    Admit {
        /// Of its token's secret.
        token: Digest,
        /// Where its peers reach it.
        address: String,
        /// Whether it is to vote.
        voter: bool,
    },
    /// A node is reached elsewhere from now on.
    Move {
        /// The node.
        node: u64,
        /// Where.
        address: String,
    },
    /// A node gets no new runs, or gets them again.
    Drain {
        /// The node.
        node: u64,
        /// Which of the two.
        draining: bool,
        /// Who.
        by: String,
    },
    /// A node leaves for good.
    Remove {
        /// The node.
        node: u64,
        /// Who.
        by: String,
    },
    /// The first command after a restore: a new epoch begins, on hold.
    Restore {
        /// The cluster's new id.
        cluster: Uuid,
        /// The first node's number: none is given twice.
        node: u64,
        /// Where its peers will reach it.
        address: String,
        /// The backup's name.
        backup: String,
        /// The ledger's time in it.
        taken_at: Stamp,
    },
    /// A node from before the restore is gone for good: nothing that it ran can still act.
    Destroyed {
        /// The number that it had.
        node: u64,
        /// Who says so.
        by: String,
    },
    /// The hold after a restore ends.
    Release {
        /// What becomes of the ticks that nobody knows about.
        choice: GapChoice,
        /// Who.
        by: String,
    },
    /// An executor says who it is and gets a lease. The session before it ends; its runs go on.
    OpenSession {
        /// The node.
        node: u64,
        /// Its durable table.
        store: Uuid,
        /// Counts the sessions that were asked for with that table, and the runs that it has accepted.
        sequence: u64,
        /// The lease under which it takes dispatches.
        session: Uuid,
        /// Runs at a time.
        runs_max: u32,
        /// Bytes of guest memory at a time.
        memory_bytes_max: u64,
        /// The version of its tz database.
        tz: String,
        /// Its own version.
        version: String,
        /// The newest commands that it knows.
        format: u32,
    },
    /// A session has certainly lapsed: its executor has stopped every guest. What it ran is lost, and of what may not
    /// have begun nobody can say.
    Lapse {
        /// The node.
        node: u64,
        /// The session.
        session: Uuid,
        /// Where that is known from.
        evidence: String,
    },
    /// A component is stored and checked.
    PutComponent {
        /// Its digest.
        digest: Digest,
        /// Its size in bytes.
        size: u64,
        /// What it imports.
        imports: Vec<String>,
        /// The namespace whose jobs may name it; `None` for all of them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        namespace: Option<String>,
        /// Who.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        by: String,
    },
    /// A namespace needs a component no more.
    DropComponent {
        /// Its digest.
        digest: Digest,
        /// The namespace; `None` where it was stored for all of them.
        namespace: Option<String>,
        /// Who.
        by: String,
    },
    /// Every node knows commands up to that level: what the ledger does by itself may go by it from now on.
    Level {
        /// The level ([`FORMAT`]).
        format: u32,
    },
    /// Says what a namespace may have and use.
    SetQuota {
        /// The namespace, or [`crate::quota::EVERY_NAMESPACE`].
        namespace: String,
        /// All of it; `None` takes it away.
        quota: Option<Box<Quota>>,
        /// Who.
        by: String,
    },
    /// Gives out a right to use the API.
    PutAccess {
        /// The name of its token.
        name: String,
        /// The right.
        access: Box<Access>,
    },
    /// Takes one back.
    DropAccess {
        /// The name of its token.
        name: String,
        /// Who.
        by: String,
    },
    /// What was asked for and no other command tells of.
    Audit {
        /// In order.
        records: Vec<Audited>,
    },
    /// Creates or changes a job.
    PutJob {
        /// The job.
        job: JobName,
        /// What its owner says.
        spec: Box<JobSpec>,
        /// The revision this change was made from; 0 for a job that is not there.
        from_revision: u64,
        /// The first tick after the stamp.
        next: Option<NextTick>,
        /// What its namespace's quota needs to know of it, where it does.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        checked: Option<Checked>,
        /// Who.
        by: String,
    },
    /// Deletes a job; its history stays.
    DeleteJob {
        /// The job.
        job: JobName,
        /// The revision this was decided from.
        from_revision: u64,
        /// Who.
        by: String,
    },
    /// Pauses a job.
    Pause {
        /// The job.
        job: JobName,
        /// Why.
        note: String,
        /// Who.
        by: String,
    },
    /// Ends a pause. The ticks in between are not made up.
    Resume {
        /// The job.
        job: JobName,
        /// The revision that `next` was computed from.
        revision: u64,
        /// The first tick after the stamp.
        next: Option<NextTick>,
        /// Who.
        #[serde(default)]
        by: String,
    },
    /// Decides ticks of one job.
    Decide(Decision),
    /// Another release of the tz database names another next tick.
    Retime {
        /// The job.
        job: JobName,
        /// The revision that was read.
        revision: u64,
        /// The tick that the job waited for.
        awaited: TickAt,
        /// The one that it waits for now.
        next: Option<NextTick>,
    },
    /// A job's ticks were decided by a clock that was ahead: those that were not launched are open again.
    Rewind {
        /// The job.
        job: JobName,
        /// The revision that was read.
        revision: u64,
        /// The tick that the job waited for.
        awaited: Option<TickAt>,
        /// The one that it waits for now.
        next: Option<NextTick>,
    },
    /// A retry was put off by a clock that was ahead: it waits no longer than its policy says.
    Hasten {
        /// The launch.
        launch: LaunchId,
    },
    /// Every job is rewound: the ledger's time is that of the stamp.
    Rewound,
    /// Every job waits for the tick that these releases name.
    Named {
        /// The tz database's and this program's.
        by: String,
    },
    /// Launches by hand: a tick again, or none of the schedule's.
    Trigger {
        /// The launch, with the asker's id.
        launch: LaunchId,
        /// The instant in the job's zone.
        local: String,
        /// Whether effects carry the keys of the scheduled launch.
        same_key: bool,
        /// Who.
        by: String,
    },
    /// Gives a due launch to an executor.
    Intend {
        /// The run: its attempt is the next one.
        run: RunId,
        /// The node.
        node: u64,
        /// The session it is meant for.
        session: Uuid,
    },
    /// The executor began.
    Start {
        /// The run.
        run: RunId,
        /// Its right to act.
        grant: Grant,
        /// What the run table counted when it accepted the run.
        #[serde(default, skip_serializing_if = "is_zero")]
        sequence: u64,
    },
    /// A run is over, or is known to be lost.
    End {
        /// The run.
        run: RunId,
        /// Its right to act.
        grant: Grant,
        /// How it ended.
        outcome: Outcome,
        /// What it used.
        usage: Usage,
        /// Results of effects that were not reported yet.
        results: Vec<(Uuid, EffectResult)>,
    },
    /// A due launch is past its start deadline.
    Expire {
        /// The launch.
        launch: LaunchId,
        /// It was held back by the clock's guard.
        #[serde(default)]
        clock: bool,
    },
    /// The time of a launch has come that was placed later than its tick: the overlap rule applies now.
    Enter {
        /// The launch.
        launch: LaunchId,
    },
    /// A run is about to send something.
    IntendEffect {
        /// The run.
        run: RunId,
        /// Its right to act.
        grant: Grant,
        /// Counts the intents of the run: one that is proposed again, because nobody could say what became of it, is
        /// the same intent.
        call: u32,
        /// The idempotency key.
        key: Uuid,
        /// For a person.
        what: String,
        /// Of the whole payload.
        fingerprint: Digest,
        /// Results of effects that were not reported yet.
        results: Vec<(Uuid, EffectResult)>,
    },
    /// A run changes the key-value store: effect and record in one.
    WriteKv {
        /// The run.
        run: RunId,
        /// Its right to act.
        grant: Grant,
        /// The idempotency key.
        key: Uuid,
        /// The name in the namespace's store.
        name: String,
        /// The change.
        change: KvChange,
        /// Results of effects that were not reported yet.
        results: Vec<(Uuid, EffectResult)>,
    },
}

impl Command {
    /// Whether it changes a job or decides a tick: what has to wait while the cluster is on hold.
    pub(crate) fn is_about_jobs(&self) -> bool {
        match self {
            Self::PutJob { .. }
            | Self::DeleteJob { .. }
            | Self::Pause { .. }
            | Self::Resume { .. }
            | Self::Decide(_)
            | Self::Retime { .. }
            | Self::Rewind { .. }
            | Self::Hasten { .. }
            | Self::Rewound
            | Self::Named { .. }
            | Self::Trigger { .. }
            | Self::Intend { .. }
            | Self::Enter { .. }
            | Self::Expire { .. } => true,
            Self::Found { .. }
            | Self::Restore { .. }
            | Self::Destroyed { .. }
            | Self::Release { .. }
            | Self::PutToken { .. }
            | Self::Admit { .. }
            | Self::Move { .. }
            | Self::Drain { .. }
            | Self::Remove { .. }
            | Self::OpenSession { .. }
            | Self::Lapse { .. }
            | Self::PutComponent { .. }
            | Self::DropComponent { .. }
            | Self::Level { .. }
            | Self::SetQuota { .. }
            | Self::PutAccess { .. }
            | Self::DropAccess { .. }
            | Self::Audit { .. }
            | Self::Start { .. }
            | Self::End { .. }
            | Self::IntendEffect { .. }
            | Self::WriteKv { .. } => false,
        }
    }

    /// What kind it is, for people.
    pub fn name(&self) -> String {
        let all = format!("{self:?}");
        all.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned()
    }

    /// Who asked for it, what it does, and to what, where somebody did: as the audit log has it. The words are part of
    /// rows, so that they stay what they are.
    pub fn asked(&self) -> Option<(&str, &'static str, String)> {
        let component = |digest: &Digest, namespace: &Option<String>| match namespace {
            Some(namespace) => format!("{digest} of namespace {namespace}"),
            None => digest.to_string(),
        };
        match self {
            Self::PutJob { job, by, .. } => Some((by, "put-job", job.to_string())),
            Self::DeleteJob { job, by, .. } => Some((by, "delete-job", job.to_string())),
            Self::Pause { job, by, .. } => Some((by, "pause", job.to_string())),
            Self::Resume { job, by, .. } => Some((by, "resume", job.to_string())),
            Self::Trigger { launch, by, .. } => Some((by, "trigger", launch.to_string())),
            Self::PutComponent { digest, namespace, by, .. } => {
                Some((by, "put-component", component(digest, namespace)))
            }
            Self::DropComponent { digest, namespace, by } => Some((by, "drop-component", component(digest, namespace))),
            Self::SetQuota { namespace, by, .. } => Some((by, "set-quota", format!("namespace {namespace}"))),
            Self::PutAccess { name, access } => Some((&access.by, "create-token", format!("token {name}"))),
            Self::DropAccess { name, by } => Some((by, "revoke-token", format!("token {name}"))),
            Self::PutToken { by, .. } => Some((by, "create-join-token", "the cluster".into())),
            Self::Drain { node, by, draining } => {
                Some((by, if *draining { "drain" } else { "undrain" }, format!("node {node}")))
            }
            Self::Remove { node, by } => Some((by, "remove", format!("node {node}"))),
            Self::Destroyed { node, by } => Some((by, "destroyed", format!("node {node}"))),
            Self::Release { by, .. } => Some((by, "release", "the cluster".into())),
            // Nobody did: nodes, their clocks, runs.
            Self::Found { .. }
            | Self::Admit { .. }
            | Self::Move { .. }
            | Self::Restore { .. }
            | Self::OpenSession { .. }
            | Self::Lapse { .. }
            | Self::Level { .. }
            | Self::Audit { .. }
            | Self::Decide(_)
            | Self::Retime { .. }
            | Self::Rewind { .. }
            | Self::Hasten { .. }
            | Self::Rewound
            | Self::Named { .. }
            | Self::Intend { .. }
            | Self::Start { .. }
            | Self::End { .. }
            | Self::Expire { .. }
            | Self::Enter { .. }
            | Self::IntendEffect { .. }
            | Self::WriteKv { .. } => None,
        }
    }

    /// Bytes of what guests have written or received in it: what makes a command large.
    pub fn payload_bytes(&self) -> usize {
        let body = |result: &EffectResult| match result {
            EffectResult::Http(answer) => answer.body.as_ref().map_or(0, |body| body.0.len()),
            _ => 0,
        };
        let of_results: usize = self.results().iter().map(|(_, result)| body(result)).sum();
        match self {
            Self::WriteKv { change: KvChange::Set(value), .. } => value.0.len() + of_results,
            _ => of_results,
        }
    }

    /// Results of effects that ride with it.
    pub fn results(&self) -> &[(Uuid, EffectResult)] {
        match self {
            Self::WriteKv { results, .. } | Self::End { results, .. } | Self::IntendEffect { results, .. } => results,
            _ => &[],
        }
    }

    /// The lowest [`FORMAT`] that knows it.
    pub fn format(&self) -> u32 {
        match self {
            Self::Restore { .. }
            | Self::Destroyed { .. }
            | Self::Release { .. }
            | Self::Rewind { .. }
            | Self::Rewound => 2,
            Self::Hasten { .. } => 3,
            Self::DropComponent { .. }
            | Self::Level { .. }
            | Self::SetQuota { .. }
            | Self::PutComponent { namespace: Some(_), .. }
            | Self::PutJob { checked: Some(_), .. } => NAMESPACES,
            Self::PutAccess { .. } | Self::DropAccess { .. } | Self::Audit { .. } => IDENTITY,
            // An older node would pass over what it does not know, and its state would be another one.
            Self::PutJob { spec, .. } if spec.has_later() => 4,
            Self::End { usage, .. } if usage.has_later() => Usage::FORMAT,
            _ => 1,
        }
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A change of the key-value store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KvChange {
    /// Sets a value.
    Set(ByteBuf),
    /// Removes it.
    Delete,
    /// Adds to a whole number.
    Increment(i64),
}

/// What the conductor decided about ticks of one job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// The job.
    pub job: JobName,
    /// The revision that was read; another one is refused and decided anew.
    pub revision: u64,
    /// The tick that the job waited for; likewise.
    pub awaited: TickAt,
    /// Ticks that are not launched, oldest first.
    pub skipped: Vec<DecidedSkip>,
    /// Ticks that are launched, oldest first.
    pub launches: Vec<DecidedLaunch>,
    /// Every tick up to here is decided with this.
    pub cursor: TickAt,
    /// The last tick that is decided with this.
    pub last_tick: TickAt,
    /// The same in the job's zone, RFC 3339.
    pub last_local: String,
    /// The first tick after the cursor.
    pub next: Option<NextTick>,
}

/// Ticks that are not launched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecidedSkip {
    /// The first.
    pub from: TickAt,
    /// The last second that is covered.
    pub to: TickAt,
    /// Why.
    pub reason: SkipReason,
    /// The tick before the first by the schedule.
    pub previous: Option<TickAt>,
}

/// A tick that is launched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecidedLaunch {
    /// The tick.
    pub tick: NextTick,
    /// The tick before it by the schedule.
    pub previous: Option<TickAt>,
    /// It was missed and is made up.
    pub caught_up: bool,
}

/// What a command led to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// Done.
    Done,
    /// Nothing to do: it is so already.
    Unchanged,
    /// The node has this number from now on.
    Admitted(u64),
    /// The run is intended, with this grant.
    Intended(Grant),
    /// What the run may do with its effect.
    Effect(EffectAnswer),
    /// Not done.
    Refused(Refusal),
}

/// Why a command was not done. Nothing has changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "kebab-case")]
pub enum Refusal {
    /// The cluster has been founded before, or has not.
    #[error("this cluster is founded already")]
    Founded,
    /// The cluster was restored and is on hold.
    #[error(
        "the cluster was restored from backup `{0}` and is on hold: nothing is launched or changed before \
         `tickhost cluster release`; `tickhost status` says what it waits for"
    )]
    OnHold(String),
    /// The cluster is not on hold.
    #[error("the cluster is not on hold after a restore")]
    NotOnHold,
    /// Nodes from before a restore may still run something.
    #[error(
        "node {} from before the restore may still run jobs: let each take part again (`tickhost cluster rejoin`), or \
         say that it is gone (`tickhost cluster destroyed NODE`)",
        .0.iter().map(|(node, address)| format!("{node} ({address})")).collect::<Vec<_>>().join(", ")
    )]
    AtLarge(Vec<(u64, String)>),
    /// A node that is not waited for after a restore.
    #[error(
        "node {node} is none of those from before the restore that are waited for ({}); give the number that a node had \
         then",
        .awaited.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
    )]
    NotAtLarge {
        /// The number that was given.
        node: u64,
        /// Those that are waited for.
        awaited: Vec<u64>,
    },
    /// No such node.
    #[error("there is no node {0} in this cluster; `tickhost nodes` lists them")]
    NoNode(u64),
    /// A token that is unknown, used or expired.
    #[error("the token is {0}; make another one with `tickhost cluster token`")]
    Token(String),
    /// A node's executor is not the one that the cluster knows.
    #[error("node {node}: {why}")]
    Executor {
        /// The node.
        node: u64,
        /// What is wrong, and what to do.
        why: String,
    },
    /// No such job.
    #[error("there is no job `{0}`")]
    NoJob(JobName),
    /// No such component.
    #[error("there is no component `{0}`; store it first")]
    NoComponent(Digest),
    /// A component that is still needed.
    #[error("component `{digest}` is named by job `{job}`; change or delete that first")]
    InUse {
        /// The component.
        digest: Digest,
        /// A job that names it.
        job: JobName,
    },
    /// More than a namespace may have, or than the cluster has.
    #[error(
        "{what} is refused: {}; `tickhost namespace list` shows what there is, and an operator may change it",
        .violations.join("; ")
    )]
    OverQuota {
        /// What.
        what: String,
        /// All that is in the way, in a sentence each.
        violations: Vec<String>,
    },
    /// No such token.
    #[error("there is no token `{0}`; `tickhost token list` shows them")]
    NoAccess(String),
    /// A token of that name that is still good.
    #[error("there is a token `{0}` already; choose another name, or revoke it first")]
    AccessExists(String),
    /// What was asked for means nothing.
    #[error("{0}")]
    Meaningless(String),
    /// No such launch.
    #[error("there is no launch `{0}`")]
    NoLaunch(LaunchId),
    /// The command was made from a state that has changed since.
    #[error("`{what}` changed in the meantime: {found}, expected {expected}; read it again")]
    Stale {
        /// What changed.
        what: String,
        /// How it is.
        found: String,
        /// How it was thought to be.
        expected: String,
    },
    /// The launch cannot do that now.
    #[error("launch `{launch}`: {why}")]
    NotNow {
        /// The launch.
        launch: LaunchId,
        /// Why.
        why: String,
    },
    /// The run has no right to act any more.
    #[error("run `{run}` no longer has the right to act: {why}")]
    Fenced {
        /// The run.
        run: RunId,
        /// Why.
        why: String,
    },
    /// The job is paused, or is not.
    #[error("job `{job}` is {found}")]
    Pause {
        /// The job.
        job: JobName,
        /// How it is.
        found: String,
    },
    /// A value is not what the change needs.
    #[error("`{name}` holds {found}; expected a whole number that stays within 64 bits")]
    NotANumber {
        /// The name.
        name: String,
        /// What it holds.
        found: String,
    },
}

/// What the leader has to do about an entry. Every node computes them; only the leader acts on them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Send this run to its executor.
    Dispatch(RunId),
    /// Stop this run.
    Revoke {
        /// The run.
        run: RunId,
        /// Why.
        why: String,
    },
    /// A launch is closed.
    Closed(LaunchId),
}
