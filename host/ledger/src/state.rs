//! The state: its tables, reading them, loading them. How they change is in `apply`.

mod access;
mod apply;
mod contents;
mod effects;
mod history;
mod index;
mod jobs;
mod launches;
mod namespaces;
mod nodes;
mod restore;
mod rewind;

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
};

use uuid::Uuid;

use self::index::Index;
pub use self::{
    contents::Contents,
    nodes::{FIRST_NODE, check_table},
};
use crate::{
    access::{Access, Audited},
    codec::CodecError,
    command::{Output, Reply},
    effect::{Effect, EffectId},
    ids::{Digest, JobName, LaunchId, RunId, Stamp, TickAt},
    key::KeySource,
    launch::Policy,
    quota::Spent,
    rows::{
        Cluster, Component, Executor, Folded, Gap, Grave, Job, KvValue, Launch, Namespace, Node, Origin, Restored,
        SkippedRange, Token,
    },
    spec::Overlap,
    table::{RowChange, Table},
};

/// The first byte of a row's key: its table. Those that are read beside a state have names.
const CLUSTER: u8 = 1;
const COMPONENTS: u8 = 2;
const JOBS: u8 = 4;

/// What every node agrees on.
#[derive(Debug)]
pub struct State {
    cluster: Table<(), Cluster>,
    components: Table<Digest, Component>,
    nodes: Table<u64, Node>,
    tokens: Table<Digest, Token>,
    jobs: Table<JobName, Job>,
    graves: Table<JobName, Grave>,
    launches: Table<LaunchId, Launch>,
    ranges: Table<(JobName, TickAt), SkippedRange>,
    folded: Table<JobName, Folded>,
    effects: Table<EffectId, Effect>,
    kv: Table<(String, String), KvValue>,
    namespaces: Table<String, Namespace>,
    spent: Table<String, Spent>,
    access: Table<String, Access>,
    done: Table<access::AuditKey, Audited>,
    refused: Table<access::AuditKey, Audited>,
    hash: u128,
    index: Index,
}

/// What an entry led to.
#[derive(Debug)]
pub struct Applied {
    /// One for each command.
    pub replies: Vec<Reply>,
    /// What the leader has to do.
    pub outputs: Vec<Output>,
    /// To be written in one with the entry's index.
    pub rows: Vec<RowChange>,
}

/// An entry that must not be passed over: the process has to stop.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// A row that has no encoding.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// A row in a table that this version does not know.
    #[error("a row of table {0} is of a newer version")]
    UnknownTable(u8),
}

impl Default for State {
    fn default() -> Self {
        Self {
            cluster: Table::new(CLUSTER),
            components: Table::new(COMPONENTS),
            nodes: Table::new(3),
            jobs: Table::new(JOBS),
            graves: Table::new(5),
            launches: Table::new(6),
            ranges: Table::new(7),
            folded: Table::new(8),
            effects: Table::new(9),
            kv: Table::new(10),
            tokens: Table::new(11),
            namespaces: Table::new(12),
            spent: Table::new(13),
            access: Table::new(14),
            done: Table::new(15),
            refused: Table::new(16),
            hash: 0,
            index: Index::default(),
        }
    }
}

// Reading.
impl State {
    /// The cluster's identity; `None` before it is founded.
    pub fn cluster(&self) -> Option<&Cluster> {
        self.cluster.get(&())
    }

    /// A sum over all rows: equal on all nodes at equal index.
    pub fn hash(&self) -> u128 {
        self.hash
    }

    /// A job.
    pub fn job(&self, job: &JobName) -> Option<&Job> {
        self.jobs.get(job)
    }

    /// What is kept of a deleted job.
    pub fn grave(&self, job: &JobName) -> Option<&Grave> {
        self.graves.get(job)
    }

    /// How many jobs there are.
    pub fn job_count(&self) -> usize {
        self.jobs.len()
    }

    /// All jobs, by name.
    pub fn jobs(&self) -> impl DoubleEndedIterator<Item = (&JobName, &Job)> {
        self.jobs.iter()
    }

    /// A component.
    pub fn component(&self, digest: &Digest) -> Option<&Component> {
        self.components.get(digest)
    }

    /// The components.
    pub fn components(&self) -> impl Iterator<Item = &Digest> {
        self.components.iter().map(|(digest, _)| digest)
    }

    /// A node.
    pub fn node(&self, node: u64) -> Option<&Node> {
        self.nodes.get(&node)
    }

    /// Whether that is a token somebody may use.
    pub fn has_token(&self, digest: &Digest) -> bool {
        self.tokens.get(digest).is_some()
    }

    /// All nodes.
    pub fn nodes(&self) -> impl Iterator<Item = (&u64, &Node)> {
        self.nodes.iter()
    }

    /// The restore that the cluster is on hold after; `None` where nothing is held.
    pub fn hold(&self) -> Option<&Restored> {
        self.cluster()?.restored.as_ref().filter(|restored| restored.gap.is_none())
    }

    /// The ticks that nobody knows about since the last restore, once it was said what becomes of them.
    pub fn gap(&self) -> Option<&Gap> {
        self.cluster()?.restored.as_ref()?.gap.as_ref()
    }

    /// The session of a node's executor.
    pub fn session(&self, node: u64) -> Option<Uuid> {
        self.node(node)?.executor.as_ref()?.session
    }

    /// Nodes whose release knows only commands below that level, as far as they have said.
    pub fn below(&self, format: u32) -> impl Iterator<Item = (u64, &Executor)> {
        let executors = self.nodes().filter_map(|(node, row)| Some((*node, row.executor.as_ref()?)));
        executors.filter(move |(_, executor)| executor.format < format)
    }

    /// Runs that are to be stopped and have not ended.
    pub fn revoked(&self) -> impl Iterator<Item = (RunId, &str)> {
        self.all_open().filter_map(|id| {
            let launch = self.launches.get(id)?;
            let why = launch.live()?.revoked.as_deref()?;
            Some((RunId { launch: id.clone(), attempt: launch.attempt() }, why))
        })
    }

    /// Runs and bytes of guest memory reserved on a node.
    pub fn reserved(&self, node: u64) -> (u32, u64) {
        self.index.reserved.get(&node).copied().unwrap_or_default()
    }

    /// A launch.
    pub fn launch(&self, id: &LaunchId) -> Option<&Launch> {
        self.launches.get(id)
    }

    /// The launches of a job with ticks in `from..=to`, oldest first.
    pub fn launches(
        &self,
        job: &JobName,
        from: TickAt,
        to: TickAt,
    ) -> impl DoubleEndedIterator<Item = (&LaunchId, &Launch)> {
        // An interval that runs backwards holds nothing; the map would panic on it.
        self.launches.range(bounds(job, from.min(to), to)).filter(move |(id, _)| id.tick >= from)
    }

    /// The skipped ranges of a job, oldest first.
    pub fn skipped(&self, job: &JobName) -> impl DoubleEndedIterator<Item = (TickAt, &SkippedRange)> {
        let from = (job.clone(), TickAt(i64::MIN));
        let to = (job.clone(), TickAt(i64::MAX));
        self.ranges.range(from..=to).map(|((_, from), range)| (*from, range))
    }

    /// What became of a job's launches that are no longer kept one by one.
    pub fn folded(&self, job: &JobName) -> Option<&Folded> {
        self.folded.get(job)
    }

    /// The open launches of a job.
    pub fn open(&self, job: &JobName) -> impl Iterator<Item = &LaunchId> {
        self.index.open.get(job).into_iter().flatten()
    }

    /// All open launches.
    pub fn all_open(&self) -> impl Iterator<Item = &LaunchId> {
        self.index.open.values().flatten()
    }

    /// Open launches without a run that may begin at that instant, by namespace, in each first come first.
    pub fn waiting(&self, now: Stamp) -> impl Iterator<Item = (&str, impl Iterator<Item = &LaunchId>)> {
        self.index.waiting.iter().map(move |(namespace, waiting)| {
            (namespace.as_str(), waiting.iter().take_while(move |(at, _)| *at <= now).map(|(_, id)| id))
        })
    }

    /// Launches that wait and are past their start deadline at that instant, and when that was.
    pub fn expired(&self, now: Stamp) -> impl Iterator<Item = (Stamp, &LaunchId)> {
        self.index.deadlines.iter().take_while(move |(at, _)| *at <= now).map(|(at, id)| (*at, id))
    }

    /// The first instant after that one at which a waiting launch needs something.
    pub fn next_timer(&self, after: Stamp) -> Option<Stamp> {
        let first = after.plus_ms(1);
        let least = LaunchId {
            job: JobName { namespace: String::new(), name: String::new() },
            tick: TickAt(i64::MIN),
            rerun: None,
        };
        let later =
            |timers: &BTreeSet<(Stamp, LaunchId)>| timers.range((first, least.clone())..).next().map(|(at, _)| *at);
        self.index.waiting.values().chain([&self.index.deadlines]).filter_map(later).min()
    }

    /// Jobs by when the tick that they wait for is decided.
    pub fn due(&self) -> impl Iterator<Item = (TickAt, &JobName)> {
        self.index.due.iter().map(|(at, job)| (*at, job))
    }

    /// Up to `count` jobs that wait for a tick which is decided by that instant: the first of each namespace, then the
    /// second of each, and so on, so that none of them waits behind all of another's.
    pub fn due_fairly(&self, now: Stamp, count: usize, skip: impl Fn(&JobName) -> bool) -> Vec<JobName> {
        let now = TickAt(now.0.div_euclid(1_000));
        let due = || self.index.due.iter().take_while(|(at, _)| *at <= now).filter(|(_, job)| !skip(job));
        let first: Vec<&JobName> = due().map(|(_, job)| job).take(count + 1).collect();
        if first.len() <= count {
            return first.into_iter().cloned().collect();
        }
        let mut by_namespace: BTreeMap<&str, Vec<&JobName>> = BTreeMap::new();
        for (_, job) in due() {
            let jobs = by_namespace.entry(&job.namespace).or_default();
            if jobs.len() < count {
                jobs.push(job);
            }
        }
        let longest = by_namespace.values().map(Vec::len).max().unwrap_or_default();
        let turns = (0..longest).flat_map(|turn| by_namespace.values().filter_map(move |jobs| jobs.get(turn)));
        turns.take(count).map(|job| (*job).clone()).collect()
    }

    /// The effects of a tick under any nonce, by key.
    pub fn effects(&self, job: &JobName, tick: TickAt) -> impl Iterator<Item = (Uuid, &Effect)> {
        let id = |key| EffectId { job: job.clone(), tick, key };
        self.effects.range(id(Uuid::nil())..=id(Uuid::max())).map(|(id, effect)| (id.key, effect))
    }

    /// A value of the key-value store.
    pub fn kv(&self, namespace: &str, name: &str) -> Option<&KvValue> {
        self.kv.get(&(namespace.to_owned(), name.to_owned()))
    }

    /// Up to `count` names of a namespace's store that begin with `prefix` and come after `after`.
    pub fn kv_names(&self, namespace: &str, prefix: &str, after: Option<&str>, count: usize) -> Vec<String> {
        let start = match after.filter(|after| *after >= prefix) {
            Some(after) => Bound::Excluded((namespace.to_owned(), after.to_owned())),
            None => Bound::Included((namespace.to_owned(), prefix.to_owned())),
        };
        self.kv
            .range((start, Bound::Unbounded))
            .take_while(|((ns, name), _)| ns == namespace && name.starts_with(prefix))
            .map(|((_, name), _)| name.clone())
            .take(count)
            .collect()
    }

    /// Where the keys of a launch come from; `None` for a launch or a cluster that is not there.
    pub fn key_source(&self, id: &LaunchId) -> Option<KeySource> {
        let nonce = match &self.launches.get(id)?.origin {
            Origin::Manual { same_key: false, .. } => id.rerun,
            Origin::Manual { same_key: true, .. } | Origin::Schedule { .. } => None,
        };
        let domain = self.cluster()?.key_domain;
        Some(KeySource { domain, job: id.job.clone(), tick: id.tick, nonce })
    }

    /// Whether a launch may be given to an executor as far as its job is concerned: unless the job allows
    /// overlap, only the oldest of its open launches may, and none beside a live run.
    pub fn is_at_the_front(&self, id: &LaunchId, now: Stamp) -> bool {
        let allow = self.jobs.get(&id.job).is_some_and(|job| job.spec.overlap == Overlap::Allow);
        let is_live = |other: &LaunchId| self.launches.get(other).is_some_and(|l| l.status.is_live());
        let may_begin = |other: &&LaunchId| self.launches.get(other).is_some_and(|l| l.start_after <= now);
        allow || self.open(&id.job).find(may_begin) == Some(id) && !self.open(&id.job).any(is_live)
    }

    /// Sizes, for status pages.
    pub fn counts(&self) -> [(&'static str, usize); 5] {
        [
            ("jobs", self.jobs.len()),
            ("launches", self.launches.len()),
            ("effects", self.effects.len()),
            ("kv", self.kv.len()),
            ("components", self.components.len()),
        ]
    }

    fn policy(&self, launch: &LaunchId) -> Policy {
        match self.jobs.get(&launch.job) {
            Some(job) => Policy { on_unknown: job.spec.on_unknown, retry: job.spec.retry },
            // A deleted job's runs end and are not repeated.
            None => Policy { on_unknown: crate::spec::OnUnknown::Skip, retry: crate::spec::Retry::NEVER },
        }
    }
}

fn bounds(job: &JobName, from: TickAt, to: TickAt) -> std::ops::RangeInclusive<LaunchId> {
    let id = |tick, rerun| LaunchId { job: job.clone(), tick, rerun };
    id(from, None)..=id(to, Some(Uuid::max()))
}

// Loading.
impl State {
    /// The state of these rows.
    ///
    /// # Errors
    /// A row that is damaged, or of a newer version.
    pub fn load<'a>(rows: impl IntoIterator<Item = (&'a [u8], &'a [u8])>) -> Result<Self, ApplyError> {
        let mut state = Self::default();
        for (key, value) in rows {
            state.load_row(key, value)?;
        }
        state.rebuild_index();
        Ok(state)
    }

    fn load_row(&mut self, key: &[u8], value: &[u8]) -> Result<(), ApplyError> {
        let hash = match key.first().copied().unwrap_or_default() {
            CLUSTER => self.cluster.load(key, value),
            COMPONENTS => self.components.load(key, value),
            3 => self.nodes.load(key, value),
            JOBS => self.jobs.load(key, value),
            5 => self.graves.load(key, value),
            6 => self.launches.load(key, value),
            7 => self.ranges.load(key, value),
            8 => self.folded.load(key, value),
            9 => self.effects.load(key, value),
            10 => self.kv.load(key, value),
            11 => self.tokens.load(key, value),
            12 => self.namespaces.load(key, value),
            13 => self.spent.load(key, value),
            14 => self.access.load(key, value),
            15 => self.done.load(key, value),
            16 => self.refused.load(key, value),
            tag => return Err(ApplyError::UnknownTable(tag)),
        }?;
        self.hash = self.hash.wrapping_add(hash);
        Ok(())
    }

    fn rebuild_index(&mut self) {
        let mut index = Index::default();
        for (name, job) in self.jobs.iter() {
            index.await_tick(name, None, job.next.as_ref().map(|n| n.decided_at()));
        }
        for (id, launch) in self.launches.iter() {
            *index.kept.entry(id.job.clone()).or_default() += 1;
            index.enter(id, launch);
        }
        self.index = index;
        self.rebuild_held();
    }
}
