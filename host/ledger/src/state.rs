//! The state, and `apply`: the one way in which it changes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use uuid::Uuid;

use crate::{
    codec::CodecError,
    command::{Command, Decision, Entry, KvChange, Output, Refusal, Reply},
    effect::{ByteBuf, Effect, EffectAnswer, EffectId, EffectIntent, EffectResult, admit},
    ids::{Digest, Grant, JobName, LaunchId, RunId, Stamp, TickAt},
    key::KeySource,
    launch::{self, Event, Outcome, Policy, SkipReason, Status, Verdict},
    rows::{
        Attempt, Cluster, Component, Ended, Folded, Grave, Job, KvValue, Launch, Node, Origin, Pause, SkippedRange,
        Usage,
    },
    spec::{JobSpec, Overlap},
    table::{Changes, RowChange, Table},
};

/// Launches of one job that are kept one by one; older ones fold into counts.
const HISTORY_LAUNCHES: usize = 100;
/// Launches that did not succeed are kept this long even beyond that: people look for them after a holiday.
const HISTORY_TROUBLE_MS: u64 = 30 * 24 * 3600 * 1000;
/// How many of those at the most: a job that fails every second must not fill the disk.
const HISTORY_TROUBLE_MAX: usize = 1_000;

/// What every node agrees on.
#[derive(Debug)]
pub struct State {
    cluster: Table<(), Cluster>,
    components: Table<Digest, Component>,
    nodes: Table<u64, Node>,
    jobs: Table<JobName, Job>,
    graves: Table<JobName, Grave>,
    launches: Table<LaunchId, Launch>,
    ranges: Table<(JobName, TickAt), SkippedRange>,
    folded: Table<JobName, Folded>,
    effects: Table<EffectId, Effect>,
    kv: Table<(String, String), KvValue>,
    hash: u128,
    index: Index,
}

/// What is derived from the rows: rebuilt when they are loaded, never written.
#[derive(Debug, Default)]
struct Index {
    /// Jobs by the tick they wait for.
    due: BTreeSet<(TickAt, JobName)>,
    /// Launches that are not closed, by job.
    open: BTreeMap<JobName, BTreeSet<LaunchId>>,
    /// Open launches without a run, by when they were decided: first come, first served.
    waiting: BTreeSet<(Stamp, LaunchId)>,
    /// The same by when something is to be done about them, whether or not there is room: the end of the start
    /// deadline, or the time of the next attempt.
    timers: BTreeSet<(Stamp, LaunchId)>,
    /// Runs and bytes of memory in use, by node.
    reserved: BTreeMap<u64, (u32, u64)>,
    /// Launches kept, by job.
    kept: BTreeMap<JobName, usize>,
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

/// The first entry's command is made from this.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Genesis {
    /// The cluster's id.
    pub cluster: Uuid,
    /// What all keys are derived under.
    pub key_domain: Uuid,
}

impl Default for State {
    fn default() -> Self {
        Self {
            cluster: Table::new(1),
            components: Table::new(2),
            nodes: Table::new(3),
            jobs: Table::new(4),
            graves: Table::new(5),
            launches: Table::new(6),
            ranges: Table::new(7),
            folded: Table::new(8),
            effects: Table::new(9),
            kv: Table::new(10),
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

    /// All jobs, by name.
    pub fn jobs(&self) -> impl DoubleEndedIterator<Item = (&JobName, &Job)> {
        self.jobs.iter()
    }

    /// A component.
    pub fn component(&self, digest: &Digest) -> Option<&Component> {
        self.components.get(digest)
    }

    /// A node.
    pub fn node(&self, node: u64) -> Option<&Node> {
        self.nodes.get(&node)
    }

    /// All nodes.
    pub fn nodes(&self) -> impl Iterator<Item = (&u64, &Node)> {
        self.nodes.iter()
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
        self.launches.range(bounds(job, from, to))
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

    /// Open launches without a run, first come first.
    pub fn waiting(&self) -> impl Iterator<Item = &LaunchId> {
        self.index.waiting.iter().map(|(_, id)| id)
    }

    /// Launches that wait and are past their start deadline at that instant.
    pub fn expired(&self, now: Stamp) -> impl Iterator<Item = &LaunchId> {
        let past = self.index.timers.iter().take_while(move |(at, _)| *at <= now).map(|(_, id)| id);
        past.filter(|id| self.launches.get(id).is_some_and(|launch| launch.status == Status::Due))
    }

    /// The first instant after that one at which a waiting launch needs something.
    pub fn next_timer(&self, after: Stamp) -> Option<Stamp> {
        let first = after.plus_ms(1);
        let least = LaunchId {
            job: JobName { namespace: String::new(), name: String::new() },
            tick: TickAt(i64::MIN),
            rerun: None,
        };
        self.index.timers.range((first, least)..).next().map(|(at, _)| *at)
    }

    /// Jobs by the tick they wait for.
    pub fn due(&self) -> impl Iterator<Item = (TickAt, &JobName)> {
        self.index.due.iter().map(|(at, job)| (*at, job))
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
    pub fn is_at_the_front(&self, id: &LaunchId) -> bool {
        let allow = self.jobs.get(&id.job).is_some_and(|job| job.spec.overlap == Overlap::Allow);
        let is_live = |other: &LaunchId| self.launches.get(other).is_some_and(|l| l.status.is_live());
        allow || self.open(&id.job).next() == Some(id) && !self.open(&id.job).any(is_live)
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
            1 => self.cluster.load(key, value),
            2 => self.components.load(key, value),
            3 => self.nodes.load(key, value),
            4 => self.jobs.load(key, value),
            5 => self.graves.load(key, value),
            6 => self.launches.load(key, value),
            7 => self.ranges.load(key, value),
            8 => self.folded.load(key, value),
            9 => self.effects.load(key, value),
            10 => self.kv.load(key, value),
            tag => return Err(ApplyError::UnknownTable(tag)),
        }?;
        self.hash = self.hash.wrapping_add(hash);
        Ok(())
    }

    fn rebuild_index(&mut self) {
        let mut index = Index::default();
        for (name, job) in self.jobs.iter() {
            index.await_tick(name, None, job.next.as_ref().map(|n| n.at));
        }
        for (id, launch) in self.launches.iter() {
            *index.kept.entry(id.job.clone()).or_default() += 1;
            index.enter(id, launch);
        }
        self.index = index;
    }
}

impl Index {
    fn await_tick(&mut self, job: &JobName, was: Option<TickAt>, is: Option<TickAt>) {
        if let Some(at) = was {
            self.due.remove(&(at, job.clone()));
        }
        if let Some(at) = is {
            self.due.insert((at, job.clone()));
        }
    }

    fn enter(&mut self, id: &LaunchId, launch: &Launch) {
        if !launch.status.is_open() {
            return;
        }
        self.open.entry(id.job.clone()).or_default().insert(id.clone());
        match launch.live() {
            Some(attempt) => {
                let (runs, bytes) = self.reserved.entry(attempt.node).or_default();
                *runs += 1;
                *bytes += attempt.memory_bytes;
            }
            None => {
                self.waiting.insert((launch.decided_at, id.clone()));
                self.timers.insert((timer(launch), id.clone()));
            }
        }
    }

    fn leave(&mut self, id: &LaunchId, launch: &Launch) {
        if let Some(open) = self.open.get_mut(&id.job) {
            open.remove(id);
            if open.is_empty() {
                self.open.remove(&id.job);
            }
        }
        self.waiting.remove(&(launch.decided_at, id.clone()));
        self.timers.remove(&(timer(launch), id.clone()));
        if let Some(attempt) = launch.live()
            && let Some((runs, bytes)) = self.reserved.get_mut(&attempt.node)
        {
            *runs = runs.saturating_sub(1);
            *bytes = bytes.saturating_sub(attempt.memory_bytes);
        }
    }
}

/// When something is to be done about a launch that waits.
fn timer(launch: &Launch) -> Stamp {
    match launch.status {
        Status::AwaitingRetry { at, .. } => at,
        // It may begin in the last millisecond of its deadline.
        _ => launch.start_by.plus_ms(1),
    }
}

/// What the commands of one entry share.
struct Context {
    at: Stamp,
    index: u64,
    outputs: Vec<Output>,
    changes: Changes,
}

type Answer = Result<Reply, Refusal>;

// Changing.
impl State {
    /// Applies the entry at that index of the log. A refused command changes nothing; the others of its
    /// entry still apply.
    ///
    /// # Errors
    /// Only where going on would let nodes differ; the process must stop.
    pub fn apply(&mut self, index: u64, entry: &Entry) -> Result<Applied, ApplyError> {
        let changes = Changes { rows: Vec::new(), hash: self.hash };
        let mut cx = Context { at: Stamp(0), index, outputs: Vec::new(), changes };
        let mut replies = Vec::with_capacity(entry.commands.len());
        for stamped in &entry.commands {
            cx.at = stamped.at;
            let reply = self.dispatch(&mut cx, &stamped.command).unwrap_or_else(Reply::Refused);
            replies.push(reply);
            if let Some(cluster) = self.cluster.get(&()).filter(|c| c.time < stamped.at) {
                let cluster = Cluster { time: stamped.at, ..cluster.clone() };
                self.cluster.insert((), cluster);
            }
        }
        self.prune(&cx);
        self.cluster.drain(&mut cx.changes)?;
        self.components.drain(&mut cx.changes)?;
        self.nodes.drain(&mut cx.changes)?;
        self.jobs.drain(&mut cx.changes)?;
        self.graves.drain(&mut cx.changes)?;
        self.launches.drain(&mut cx.changes)?;
        self.ranges.drain(&mut cx.changes)?;
        self.folded.drain(&mut cx.changes)?;
        self.effects.drain(&mut cx.changes)?;
        self.kv.drain(&mut cx.changes)?;
        self.hash = cx.changes.hash;
        Ok(Applied { replies, outputs: cx.outputs, rows: cx.changes.rows })
    }

    fn dispatch(&mut self, cx: &mut Context, command: &Command) -> Answer {
        match command {
            Command::Found { cluster, key_domain } => self.found(cx, *cluster, *key_domain),
            Command::RegisterNode { node, store, session, runs_max, memory_bytes_max, tz, version } => {
                let row = Node {
                    store: *store,
                    session: *session,
                    runs_max: *runs_max,
                    memory_bytes_max: *memory_bytes_max,
                    tz: tz.clone(),
                    version: version.clone(),
                    registered_at: cx.at,
                };
                self.nodes.insert(*node, row);
                Ok(Reply::Done)
            }
            Command::PutComponent { digest, size, imports } => {
                if self.components.get(digest).is_some() {
                    return Ok(Reply::Unchanged);
                }
                let row = Component { size: *size, imports: imports.clone(), stored_at: cx.at };
                self.components.insert(*digest, row);
                Ok(Reply::Done)
            }
            Command::PutJob { job, spec, from_revision, next, by } => {
                self.put_job(cx, job, spec, *from_revision, next.clone(), by)
            }
            Command::DeleteJob { job, from_revision, .. } => self.delete_job(cx, job, *from_revision),
            Command::Pause { job, note, by } => self.pause(cx, job, note, by),
            Command::Resume { job, revision, next } => self.resume(cx, job, *revision, next.clone()),
            Command::Decide(decision) => self.decide(cx, decision),
            Command::Trigger { launch, local, same_key, by } => self.trigger(cx, launch, local, *same_key, by),
            Command::Intend { run, node, session } => self.intend(cx, run, *node, *session),
            Command::Start { run, grant } => self.start(cx, run, *grant),
            Command::End { run, grant, outcome, usage, results } => self.end(cx, run, *grant, outcome, *usage, results),
            Command::Expire { launch } => self.expire(cx, launch),
            Command::IntendEffect { run, grant, key, what, fingerprint, results } => {
                self.intend_effect(cx, run, *grant, *key, what, *fingerprint, results)
            }
            Command::WriteKv { run, grant, key, name, change, results } => {
                self.write_kv(cx, run, *grant, *key, name, change, results)
            }
        }
    }

    fn found(&mut self, cx: &Context, cluster: Uuid, key_domain: Uuid) -> Answer {
        if self.cluster().is_some() {
            return Err(Refusal::Founded);
        }
        self.cluster.insert((), Cluster { id: cluster, epoch: 1, key_domain, time: cx.at });
        Ok(Reply::Done)
    }

    fn put_job(
        &mut self,
        cx: &Context,
        name: &JobName,
        spec: &JobSpec,
        from_revision: u64,
        next: Option<crate::rows::NextTick>,
        by: &str,
    ) -> Answer {
        if self.components.get(&spec.component).is_none() {
            return Err(Refusal::NoComponent(spec.component));
        }
        let stored = self.jobs.get(name);
        check_revision(name, stored.map_or(0, |job| job.revision), from_revision)?;
        if stored.is_some_and(|job| job.spec == *spec) {
            return Ok(Reply::Unchanged);
        }
        let floor = TickAt(cx.at.0.div_euclid(1000));
        let grave = self.graves.get(name);
        let job = match stored {
            // An edit keeps what is decided; `@every` keeps its anchor while its text stays.
            Some(job) => Job {
                spec: spec.clone(),
                revision: job.revision + 1,
                created_at: if job.spec.schedule == spec.schedule { job.created_at } else { cx.at },
                stored_at: cx.at,
                by: by.to_owned(),
                cursor: job.cursor.max(floor),
                next: if job.pause.is_some() { None } else { next },
                last_tick: job.last_tick,
                pause: job.pause.clone(),
            },
            None => Job {
                spec: spec.clone(),
                revision: grave.as_ref().map_or(0, |g| g.revision) + 1,
                created_at: cx.at,
                stored_at: cx.at,
                by: by.to_owned(),
                cursor: grave.map_or(floor, |g| g.cursor.max(floor)),
                next,
                last_tick: None,
                pause: None,
            },
        };
        self.graves.remove(name);
        self.set_job(name, job);
        Ok(Reply::Done)
    }

    fn set_job(&mut self, name: &JobName, job: Job) {
        let was = self.jobs.get(name).and_then(|j| j.next.as_ref().map(|n| n.at));
        self.index.await_tick(name, was, job.next.as_ref().map(|n| n.at));
        self.jobs.insert(name.clone(), job);
    }

    fn delete_job(&mut self, cx: &mut Context, name: &JobName, from_revision: u64) -> Answer {
        let job = self.jobs.get(name).ok_or_else(|| Refusal::NoJob(name.clone()))?;
        check_revision(name, job.revision, from_revision)?;
        let grave = Grave { cursor: job.cursor, revision: job.revision };
        if job.pause.is_some() {
            self.close_open_range(cx, name);
        }
        let job = self.jobs.get(name).cloned();
        let open: Vec<LaunchId> = self.open(name).cloned().collect();
        for id in open {
            self.stop_or_withdraw(cx, &id, SkipReason::Deleted, "the job was deleted");
        }
        self.index.await_tick(name, job.and_then(|j| j.next).map(|n| n.at), None);
        self.jobs.remove(name);
        self.graves.insert(name.clone(), grave);
        Ok(Reply::Done)
    }

    fn pause(&mut self, cx: &Context, name: &JobName, note: &str, by: &str) -> Answer {
        let job = self.jobs.get(name).ok_or_else(|| Refusal::NoJob(name.clone()))?;
        if job.pause.is_some() {
            return Err(Refusal::Pause { job: name.clone(), found: "paused already".into() });
        }
        let pause = Pause { since: cx.at, note: note.to_owned(), by: by.to_owned() };
        // The tick of this very second is decided: it came before the pause.
        let from = TickAt(cx.at.0.div_euclid(1000) + 1);
        let range = skipped_range(job, None, SkipReason::Paused);
        let job = Job { pause: Some(pause), next: None, ..job.clone() };
        self.ranges.insert((name.clone(), from), range);
        self.set_job(name, job);
        Ok(Reply::Done)
    }

    fn resume(
        &mut self,
        cx: &mut Context,
        name: &JobName,
        revision: u64,
        next: Option<crate::rows::NextTick>,
    ) -> Answer {
        let job = self.jobs.get(name).ok_or_else(|| Refusal::NoJob(name.clone()))?;
        check_revision(name, job.revision, revision)?;
        if job.pause.is_none() {
            return Err(Refusal::Pause { job: name.clone(), found: "not paused".into() });
        }
        let cursor = job.cursor.max(TickAt(cx.at.0.div_euclid(1000)));
        let job = Job { pause: None, next, cursor, ..job.clone() };
        self.close_open_range(cx, name);
        self.set_job(name, job);
        Ok(Reply::Done)
    }

    fn close_open_range(&mut self, cx: &Context, name: &JobName) {
        let to = TickAt(cx.at.0.div_euclid(1000));
        let open: Vec<TickAt> =
            self.skipped(name).filter(|(_, range)| range.to.is_none()).map(|(from, _)| from).collect();
        for from in open {
            if let Some(range) = self.ranges.get_mut(&(name.clone(), from)) {
                range.to = Some(to);
            }
        }
    }

    fn decide(&mut self, cx: &mut Context, decision: &Decision) -> Answer {
        let name = &decision.job;
        let job = self.jobs.get(name).ok_or_else(|| Refusal::NoJob(name.clone()))?;
        check_revision(name, job.revision, decision.revision)?;
        if job.next.as_ref().map(|n| n.at) != Some(decision.awaited) {
            return Err(Refusal::Stale {
                what: format!("next tick of {name}"),
                found: job.next.as_ref().map_or("none".into(), |n| n.at.to_string()),
                expected: decision.awaited.to_string(),
            });
        }
        let job = job.clone();
        if let Some(skip) = &decision.skipped {
            let range = skipped_range(&job, Some(skip.to), skip.reason);
            self.ranges.insert((name.clone(), skip.from), range);
        }
        for decided in &decision.launches {
            let id = LaunchId { job: name.clone(), tick: decided.tick.at, rerun: None };
            // Unique here, whatever the history keeps: a tick at or before the cursor is decided.
            if decided.tick.at <= job.cursor || self.launches.get(&id).is_some() {
                continue;
            }
            if !self.make_room(cx, &job, &id, decided.caught_up) {
                let range = skipped_range(&job, Some(decided.tick.at), SkipReason::Overlap);
                self.ranges.insert((name.clone(), decided.tick.at), range);
                continue;
            }
            let deadline = Stamp(decided.tick.at.0 * 1000).plus_ms(u64::from(job.spec.start_deadline_s) * 1000);
            let launch = Launch {
                status: Status::Due,
                origin: Origin::Schedule { caught_up: decided.caught_up },
                local: decided.tick.local.clone(),
                previous: decided.previous,
                revision: job.revision,
                decided_at: cx.at,
                start_by: deadline,
                attempts: Vec::new(),
            };
            self.add_launch(id, launch);
        }
        let job = Job {
            cursor: job.cursor.max(decision.cursor),
            last_tick: Some(decision.last_tick),
            next: decision.next.clone(),
            ..job
        };
        self.set_job(name, job);
        Ok(Reply::Done)
    }

    /// The overlap rule for a new tick. False where the newcomer is skipped.
    fn make_room(&mut self, cx: &mut Context, job: &Job, id: &LaunchId, caught_up: bool) -> bool {
        let open: Vec<LaunchId> = self.open(&id.job).cloned().collect();
        // Ticks that are made up wait for each other: every one of them was asked for.
        if open.is_empty() || caught_up {
            return true;
        }
        match job.spec.overlap {
            Overlap::Allow => true,
            Overlap::Skip => false,
            Overlap::QueueOne => open.len() < 2,
            Overlap::Replace => {
                for older in &open {
                    self.stop_or_withdraw(cx, older, SkipReason::Overlap, &format!("replaced by {id}"));
                }
                true
            }
        }
    }

    /// Stops a launch's live run, or withdraws a launch that has none.
    fn stop_or_withdraw(&mut self, cx: &mut Context, id: &LaunchId, reason: SkipReason, why: &str) {
        let Some(launch) = self.launches.get(id) else { return };
        if launch.status.is_live() {
            let run = RunId { launch: id.clone(), attempt: launch.attempt() };
            cx.outputs.push(Output::Revoke { run, why: why.to_owned() });
        } else {
            self.advance(cx, id, &Event::Withdrawn(reason));
        }
    }

    fn add_launch(&mut self, id: LaunchId, launch: Launch) {
        *self.index.kept.entry(id.job.clone()).or_default() += 1;
        self.index.enter(&id, &launch);
        self.launches.insert(id, launch);
    }

    /// Moves a launch along its life. Callers have checked that the event fits; a pair that does not is left
    /// alone and said, and the launch keeps its status.
    fn advance(&mut self, cx: &mut Context, id: &LaunchId, event: &Event) {
        let policy = self.policy(id);
        let Some(launch) = self.launches.get_mut(id) else { return };
        self.index.leave(id, launch);
        match launch::next(&launch.status, event, &policy) {
            Ok(status) => launch.status = status,
            // An invariant of this crate: it must not carry on wrong.
            Err(illegal) => unreachable!("launch {id}: {illegal}"),
        }
        if launch.status.is_open() {
            self.index.enter(id, launch);
        } else {
            cx.outputs.push(Output::Closed(id.clone()));
        }
    }

    fn trigger(&mut self, cx: &Context, id: &LaunchId, local: &str, same_key: bool, by: &str) -> Answer {
        let job = self.jobs.get(&id.job).ok_or_else(|| Refusal::NoJob(id.job.clone()))?;
        let not_now = |why: &str| Err(Refusal::NotNow { launch: id.clone(), why: why.to_owned() });
        if id.rerun.is_none() {
            return not_now("a re-run needs an id of its own; the bare name belongs to the schedule");
        }
        if self.launches.get(id).is_some() {
            return Ok(Reply::Unchanged);
        }
        let of_tick = || self.launches.range(bounds(&id.job, id.tick, id.tick));
        if let Some((open, _)) = of_tick().find(|(_, launch)| launch.status.is_open()) {
            return not_now(&format!("`{open}` is still open; wait for its verdict"));
        }
        if same_key && of_tick().next().is_none() {
            return not_now("no launch of this tick is kept, so its effects are not known; use new keys");
        }
        let launch = Launch {
            status: Status::Due,
            origin: Origin::Manual { by: by.to_owned(), same_key },
            local: local.to_owned(),
            previous: self.previous_of(id, job),
            revision: job.revision,
            decided_at: cx.at,
            start_by: cx.at.plus_ms(u64::from(job.spec.start_deadline_s) * 1000),
            attempts: Vec::new(),
        };
        self.add_launch(id.clone(), launch);
        Ok(Reply::Done)
    }

    /// The tick before, for a re-run: as its scheduled launch had it, else the last one decided before it.
    fn previous_of(&self, id: &LaunchId, job: &Job) -> Option<TickAt> {
        let scheduled = LaunchId { rerun: None, ..id.clone() };
        match self.launches.get(&scheduled) {
            Some(launch) => launch.previous,
            None => job.last_tick.filter(|last| *last < id.tick),
        }
    }

    fn intend(&mut self, cx: &mut Context, run: &RunId, node: u64, session: Uuid) -> Answer {
        let id = &run.launch;
        let launch = self.launches.get(id).ok_or_else(|| Refusal::NoLaunch(id.clone()))?;
        let not_now = |why: String| Err(Refusal::NotNow { launch: id.clone(), why });
        let Some(job) = self.jobs.get(&id.job) else { return Err(Refusal::NoJob(id.job.clone())) };
        match launch.status {
            Status::Due => {}
            Status::AwaitingRetry { at, .. } if at <= cx.at => {}
            _ => return not_now(format!("it is {:?}", launch.status)),
        }
        if run.attempt != launch.attempt() + 1 {
            return not_now(format!("its next attempt is {}", launch.attempt() + 1));
        }
        if !self.is_at_the_front(id) {
            return not_now("an earlier launch of the job is open".into());
        }
        let Some(executor) = self.nodes.get(&node).filter(|n| n.session == session) else {
            return not_now(format!("node {node} has no session {session}"));
        };
        let memory_bytes = job.spec.limits.memory_bytes;
        let (runs, bytes) = self.reserved(node);
        if runs >= executor.runs_max || bytes + memory_bytes > executor.memory_bytes_max {
            return not_now(format!("node {node} has no capacity left"));
        }
        let grant = Grant { epoch: self.cluster().map_or(0, |c| c.epoch), index: cx.index };
        let attempt = Attempt {
            grant,
            node,
            store: executor.store,
            session,
            revision: job.revision,
            memory_bytes,
            intended_at: cx.at,
            started_at: None,
            ended: None,
        };
        if let Some(launch) = self.launches.get_mut(id) {
            launch.attempts.push(attempt);
        }
        self.advance(cx, id, &Event::Intended);
        cx.outputs.push(Output::Dispatch(run.clone()));
        Ok(Reply::Intended(grant))
    }

    /// The attempt, if it is the current one and may act.
    fn current(&self, run: &RunId, grant: Grant) -> Result<&Launch, Refusal> {
        let launch = self.launches.get(&run.launch).ok_or_else(|| Refusal::NoLaunch(run.launch.clone()))?;
        let fenced = |why: String| Refusal::Fenced { run: run.clone(), why };
        match launch.live() {
            Some(_) if launch.attempt() != run.attempt => {
                Err(fenced(format!("attempt {} has taken its place", launch.attempt())))
            }
            Some(attempt) if attempt.grant != grant => Err(fenced(format!(
                "its grant is {}.{}, this is {}.{}",
                attempt.grant.epoch, attempt.grant.index, grant.epoch, grant.index
            ))),
            Some(_) => Ok(launch),
            None => Err(fenced(format!("its launch is {:?}", launch.status))),
        }
    }

    fn start(&mut self, cx: &mut Context, run: &RunId, grant: Grant) -> Answer {
        let launch = self.current(run, grant)?;
        if launch.status == Status::Running {
            return Ok(Reply::Unchanged);
        }
        if let Some(attempt) = self.launches.get_mut(&run.launch).and_then(|l| l.attempts.last_mut()) {
            attempt.started_at = Some(cx.at);
        }
        self.advance(cx, &run.launch, &Event::Started);
        Ok(Reply::Done)
    }

    fn end(
        &mut self,
        cx: &mut Context,
        run: &RunId,
        grant: Grant,
        outcome: &Outcome,
        usage: Usage,
        results: &[(Uuid, EffectResult)],
    ) -> Answer {
        self.current(run, grant)?;
        self.record(run, results);
        let event = Event::Ended { outcome: outcome.clone(), attempt: run.attempt, at: cx.at };
        self.advance(cx, &run.launch, &event);
        if let Some(attempt) = self.launches.get_mut(&run.launch).and_then(|l| l.attempts.last_mut()) {
            attempt.ended = Some(Ended { at: cx.at, outcome: outcome.clone(), usage });
        }
        Ok(Reply::Done)
    }

    fn expire(&mut self, cx: &mut Context, id: &LaunchId) -> Answer {
        let launch = self.launches.get(id).ok_or_else(|| Refusal::NoLaunch(id.clone()))?;
        if launch.status != Status::Due || cx.at <= launch.start_by {
            let why = format!("it is {:?} and may start until {}", launch.status, launch.start_by);
            return Err(Refusal::NotNow { launch: id.clone(), why });
        }
        self.advance(cx, id, &Event::Withdrawn(SkipReason::StartDeadline));
        Ok(Reply::Done)
    }

    fn record(&mut self, run: &RunId, results: &[(Uuid, EffectResult)]) {
        for (key, result) in results {
            let id = EffectId { job: run.launch.job.clone(), tick: run.launch.tick, key: *key };
            if let Some(effect) = self.effects.get_mut(&id) {
                effect.result = Some(result.clone());
            }
        }
    }

    #[allow(clippy::too_many_arguments, reason = "the command's fields, in its order")]
    fn intend_effect(
        &mut self,
        cx: &Context,
        run: &RunId,
        grant: Grant,
        key: Uuid,
        what: &str,
        fingerprint: Digest,
        results: &[(Uuid, EffectResult)],
    ) -> Answer {
        let resend = self.is_ordered_resend(self.current(run, grant)?);
        self.record(run, results);
        let on_unknown = self.policy(&run.launch).on_unknown;
        let id = EffectId { job: run.launch.job.clone(), tick: run.launch.tick, key };
        let answer = admit(self.effects.get(&id), &fingerprint, on_unknown, resend);
        if answer == EffectAnswer::Go {
            self.note_intent(cx, run, id, what, fingerprint, None);
        }
        Ok(Reply::Effect(answer))
    }

    /// A re-run under the same keys is the operator's order to finish what is in doubt.
    fn is_ordered_resend(&self, launch: &Launch) -> bool {
        matches!(launch.origin, Origin::Manual { same_key: true, .. })
    }

    fn note_intent(
        &mut self,
        cx: &Context,
        run: &RunId,
        id: EffectId,
        what: &str,
        fingerprint: Digest,
        result: Option<EffectResult>,
    ) {
        let mut effect = self.effects.get(&id).cloned().unwrap_or(Effect {
            what: what.to_owned(),
            fingerprint,
            intended: Vec::new(),
            result: None,
        });
        effect.intended.push(EffectIntent { rerun: run.launch.rerun, attempt: run.attempt, at: cx.at });
        effect.result = result;
        self.effects.insert(id, effect);
    }

    #[allow(clippy::too_many_arguments, reason = "the command's fields, in its order")]
    fn write_kv(
        &mut self,
        cx: &Context,
        run: &RunId,
        grant: Grant,
        key: Uuid,
        name: &str,
        change: &KvChange,
        results: &[(Uuid, EffectResult)],
    ) -> Answer {
        self.current(run, grant)?;
        self.record(run, results);
        let (verb, payload) = match change {
            KvChange::Set(bytes) => ("set", bytes.0.clone()),
            KvChange::Delete => ("delete", Vec::new()),
            KvChange::Increment(by) => ("increment", by.to_be_bytes().to_vec()),
        };
        let what = format!("kv {verb} {name}");
        let fingerprint = Digest::of(&[what.as_bytes(), &[0], &payload].concat());
        let id = EffectId { job: run.launch.job.clone(), tick: run.launch.tick, key };
        match admit(self.effects.get(&id), &fingerprint, self.policy(&run.launch).on_unknown, true) {
            EffectAnswer::Go => {}
            other => return Ok(Reply::Effect(other)),
        }
        let row = (run.launch.job.namespace.clone(), name.to_owned());
        let value = |bytes| KvValue { bytes: ByteBuf(bytes), by: run.launch.clone(), at: cx.at };
        let sum = match change {
            KvChange::Set(bytes) => {
                self.kv.insert(row, value(bytes.0.clone()));
                None
            }
            KvChange::Delete => {
                self.kv.remove(&row);
                None
            }
            KvChange::Increment(by) => {
                let sum = add(name, self.kv.get(&row), *by)?;
                self.kv.insert(row, value(sum.to_string().into_bytes()));
                Some(sum)
            }
        };
        let result = EffectResult::Kv { value: sum };
        self.note_intent(cx, run, id, &what, fingerprint, Some(result.clone()));
        Ok(Reply::Effect(EffectAnswer::Replay(result)))
    }

    /// Folds the oldest launches of jobs that have more than are kept.
    fn prune(&mut self, cx: &Context) {
        let closed: BTreeSet<&JobName> = cx
            .outputs
            .iter()
            .filter_map(|output| if let Output::Closed(id) = output { Some(&id.job) } else { None })
            .collect();
        for job in closed {
            self.prune_job(job);
        }
    }

    fn prune_job(&mut self, job: &JobName) {
        let kept = self.index.kept.get(job).copied().unwrap_or_default();
        let Some(surplus) = kept.checked_sub(HISTORY_LAUNCHES).filter(|n| *n > 0) else { return };
        let now = self.cluster().map_or(Stamp(0), |c| c.time);
        let too_many = kept > HISTORY_TROUBLE_MAX;
        let old: Vec<(LaunchId, Verdict)> = self
            .launches
            .range(bounds(job, TickAt(i64::MIN), TickAt(i64::MAX)))
            .filter_map(|(id, launch)| {
                let Status::Closed(verdict) = launch.status else { return None };
                let expired = launch.decided_at.plus_ms(HISTORY_TROUBLE_MS) < now;
                (verdict == Verdict::Succeeded || expired || too_many).then(|| (id.clone(), verdict))
            })
            .take(surplus)
            .collect();
        for (id, verdict) in old {
            self.fold(&id, verdict);
        }
    }

    fn fold(&mut self, id: &LaunchId, verdict: Verdict) {
        self.launches.remove(id);
        if let Some(kept) = self.index.kept.get_mut(&id.job) {
            *kept -= 1;
        }
        let mut folded = self.folded.get(&id.job).cloned().unwrap_or_default();
        folded.to = folded.to.max(Some(id.tick));
        match verdict {
            Verdict::Succeeded => folded.succeeded += 1,
            _ => folded.other += 1,
        }
        self.folded.insert(id.job.clone(), folded);
        // The journal lives as long as the tick can be re-run under the same keys.
        if self.launches.range(bounds(&id.job, id.tick, id.tick)).next().is_none() {
            let keys: Vec<Uuid> = self.effects(&id.job, id.tick).map(|(key, _)| key).collect();
            for key in keys {
                self.effects.remove(&EffectId { job: id.job.clone(), tick: id.tick, key });
            }
        }
    }
}

fn check_revision(job: &JobName, found: u64, expected: u64) -> Result<(), Refusal> {
    if found == expected {
        return Ok(());
    }
    Err(Refusal::Stale {
        what: format!("job {job}"),
        found: format!("revision {found}"),
        expected: format!("revision {expected}"),
    })
}

fn skipped_range(job: &Job, to: Option<TickAt>, reason: SkipReason) -> SkippedRange {
    SkippedRange {
        to,
        reason,
        revision: job.revision,
        schedule: job.spec.schedule.clone(),
        zone: job.spec.zone.clone(),
        anchor: job.created_at,
    }
}

fn add(name: &str, value: Option<&KvValue>, by: i64) -> Result<i64, Refusal> {
    let Some(value) = value else { return Ok(by) };
    let text = String::from_utf8_lossy(&value.bytes.0);
    let sum = text.parse::<i64>().ok().and_then(|n| n.checked_add(by));
    sum.ok_or_else(|| {
        let mut found = text.chars().take(40).collect::<String>();
        if found.len() < text.len() {
            found.push('…');
        }
        Refusal::NotANumber { name: name.to_owned(), found: format!("`{found}`") }
    })
}
