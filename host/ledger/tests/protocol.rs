//! The launch protocol over a network that loses, doubles and reorders, with leaders that are replaced while what they
//! sent is still on its way, and executors that crash before and after everything they do.
//!
//! The ledger and the conductor are the real ones. The executors here are written down once more, as small as they can
//! be, after `host/executor/src/order.rs`: what is tried is that the rules suffice. That each rule is needed is shown by
//! leaving it out ([`Bug`]).
//!
//! `TICKHOST_HISTORIES` and `TICKHOST_HISTORY_SEED` set how many histories are tried, and from where;
//! `cargo xtask histories N` is the long form.
#![allow(missing_docs, clippy::unwrap_used)]

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tickhost_ledger::{
    Command, Digest, Entry, Grant, JobName, JobSpec, LaunchId, Output, Refusal, Reply, RunId, Stamp, State, TickAt,
    command::{FORMAT, Stamped},
    conductor::{self, Answer, Conductor, Facts, Witness},
    launch::{Outcome, Status, Verdict},
    rows::Usage,
    spec::{CatchUp, Limits, OnUnknown, Overlap, Retry, RetryWhen},
};
use tickhost_schedule::{Definition, Schedule};
use uuid::Uuid;

const COMPONENT: Digest = Digest([7; 32]);
const NODES: [u64; 2] = [1, 2];
const BEGIN_MS: i64 = 1_000_000_000;
/// As in the executor.
const SESSION_MS: i64 = 14_500;
const LAPSED_MS: i64 = 15_300;

/// A rule that is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bug {
    /// "Never" is said without refusing the run from then on: no row, and orders from before are obeyed.
    NoTombstoneNorRefusal,
    /// Orders from before a question are obeyed once the row that was written then is pruned.
    PrunedTombstone,
    /// The tombstone is not on the disk before it is said, and orders name no session: either alone is made up for by
    /// the other.
    UnsyncedTombstoneNorSession,
    /// The floor is forgotten in a crash, and orders name no session: either alone is made up for by the other.
    NoFloorOnDiskNorSession,
    /// A dispatch is taken whatever session it names.
    NoSession,
    /// Guests go on when the session has lapsed, and the leader gives their ticks away.
    NoStopOnLapse,
    /// What was accepted under a session begins under the next one, though the first has lapsed.
    AcceptedOutlivesSession,
    /// The leader calls a session lapsed too early.
    LapseTooEarly,
    /// The run's row is written after the guest has begun.
    RowAfterStart,
    /// A restarted executor says "never" of what was running.
    RunningIsNever,
    /// A run that is known is taken on again, and so is an order from before a question.
    TakesKnownRunsNorRefuses,
    /// An order that arrives twice is obeyed twice.
    ObeysTwice,
    /// A refused dispatch is taken for a proof that the run never began.
    RefusalIsNever,
    /// A successor does not ask what was left open: it gives it out again.
    NoResolution,
}

const BUGS: [Bug; 14] = [
    Bug::NoTombstoneNorRefusal,
    Bug::PrunedTombstone,
    Bug::UnsyncedTombstoneNorSession,
    Bug::NoFloorOnDiskNorSession,
    Bug::NoSession,
    Bug::NoStopOnLapse,
    Bug::AcceptedOutlivesSession,
    Bug::LapseTooEarly,
    Bug::RowAfterStart,
    Bug::RunningIsNever,
    Bug::TakesKnownRunsNorRefuses,
    Bug::ObeysTwice,
    Bug::RefusalIsNever,
    Bug::NoResolution,
];

#[derive(Debug, Clone, PartialEq, Eq)]
enum Row {
    Accepted(Grant),
    Running(Grant),
    Finished(Grant, Outcome),
    Lost,
    Tombstone,
}

/// An executor: what is on its disk, and what is not.
#[derive(Debug, Default)]
struct Executor {
    rows: BTreeMap<RunId, Row>,
    /// Written, not synced: gone with a crash.
    unsynced: BTreeSet<RunId>,
    floor: u64,
    sequence: u64,
    lease: Option<(Uuid, i64)>,
    /// Guests that are alive.
    live: BTreeSet<RunId>,
    /// Orders of this session that were taken.
    taken: BTreeSet<u64>,
    /// Orders from before are refused: somebody was told that they never came.
    lowest: u64,
}

#[derive(Debug, Clone)]
struct Order {
    term: u64,
    node: u64,
    session: Uuid,
    number: u64,
    run: RunId,
    grant: Grant,
}

/// A leader's memory.
#[derive(Debug)]
struct Reign {
    term: u64,
    began: i64,
    /// Sessions, and when they were asked for last.
    seats: BTreeMap<u64, (Uuid, i64)>,
    /// Runs to ask for, by node.
    ask: BTreeMap<u64, BTreeSet<RunId>>,
}

struct World {
    state: State,
    index: u64,
    now: i64,
    conductor: Conductor,
    reign: Reign,
    executors: BTreeMap<u64, Executor>,
    network: Vec<Order>,
    /// How often a guest of each launch has begun.
    starts: BTreeMap<LaunchId, u32>,
    /// A launch of which two guests were alive at once.
    at_once: Option<LaunchId>,
    sessions: u128,
    orders: u64,
    spec: JobSpec,
    bug: Option<Bug>,
    random: u64,
}

fn name() -> JobName {
    JobName::new("p", "job").unwrap()
}

impl World {
    fn new(seed: u64, bug: Option<Bug>) -> Self {
        let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let skip = next(&mut random).is_multiple_of(2);
        let overlap = [Overlap::Skip, Overlap::Allow, Overlap::Replace][below(&mut random, 3)];
        let spec = JobSpec {
            component: COMPONENT,
            timing: Definition::new("*/7 * * * * *", "UTC"),
            calendars: vec![],
            max_launches: None,
            on_unknown: if skip { OnUnknown::Skip } else { OnUnknown::Repeat },
            overlap,
            catch_up: CatchUp::All(2),
            start_deadline_s: 60,
            limits: Limits::default(),
            allow_http: vec![],
            config: BTreeMap::new(),
            args: Vec::new(),
            env: BTreeMap::new(),
            retry: Retry {
                attempts: if skip { 1 } else { 3 },
                backoff_ms: 100,
                backoff_max_ms: 1_000,
                when: if skip { RetryWhen::Asked } else { RetryWhen::Failed },
            },
        };
        let mut world = Self {
            state: State::default(),
            index: 0,
            now: BEGIN_MS,
            conductor: Conductor::default(),
            reign: Reign { term: 1, began: BEGIN_MS, seats: BTreeMap::new(), ask: BTreeMap::new() },
            executors: NODES.iter().map(|node| (*node, Executor::default())).collect(),
            network: Vec::new(),
            starts: BTreeMap::new(),
            at_once: None,
            sessions: 0,
            orders: 0,
            spec: spec.clone(),
            bug,
            random,
        };
        let (cluster, key_domain) = (Uuid::from_u128(1), Uuid::from_u128(2));
        world.commit(vec![Command::Found { cluster, key_domain, address: String::new() }]);
        let token = Digest([1; 32]);
        let expires_at = Stamp(BEGIN_MS + 1);
        world.commit(vec![Command::PutToken { digest: token, expires_at, voter: true, by: String::new() }]);
        world.commit(vec![Command::Admit { token, address: String::new(), voter: true }]);
        world.commit(vec![Command::PutComponent {
            digest: COMPONENT,
            size: 1,
            imports: vec![],
            namespace: None,
            by: String::new(),
        }]);
        let schedule = Schedule::new(&spec.timing, Some("p/job"), Stamp(BEGIN_MS).time()).unwrap();
        let next = conductor::next_tick(&schedule, Stamp(BEGIN_MS).time(), None);
        let put = Command::PutJob {
            job: name(),
            spec: Box::new(spec),
            from_revision: 0,
            next,
            checked: None,
            by: String::new(),
        };
        assert_eq!(world.commit(vec![put]), [Reply::Done]);
        for node in NODES {
            world.ask_for_session(node);
        }
        world
    }

    fn below(&mut self, bound: usize) -> usize {
        below(&mut self.random, bound)
    }

    fn is(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// A majority has it; the leader acts on what comes of it.
    fn commit(&mut self, commands: Vec<Command>) -> Vec<Reply> {
        self.index += 1;
        let at = Stamp(self.now);
        let entry = Entry { commands: commands.into_iter().map(|command| Stamped { at, command }).collect() };
        let applied = self.state.apply(self.index, &entry).unwrap();
        for output in applied.outputs {
            match output {
                Output::Dispatch(run) => self.send(run),
                Output::Revoke { run, .. } => {
                    // A revoke may be lost; it is told again with the next session.
                    if self.below(2) == 0 {
                        self.stop(&run);
                    }
                }
                Output::Closed(_) => {}
            }
        }
        applied.replies
    }

    fn stop(&mut self, run: &RunId) {
        for executor in self.executors.values_mut() {
            if executor.live.remove(run)
                && let Some(Row::Running(grant)) = executor.rows.get(run).cloned()
            {
                let outcome = Outcome::Revoked { message: String::new() };
                executor.rows.insert(run.clone(), Row::Finished(grant, outcome));
            }
        }
    }

    fn send(&mut self, run: RunId) {
        let Some(attempt) = self.state.launch(&run.launch).and_then(|launch| launch.live()).cloned() else { return };
        let Some((session, _)) = self.reign.seats.get(&attempt.node).copied() else { return };
        self.orders += 1;
        let (term, node, number) = (self.reign.term, attempt.node, self.orders);
        let order = Order { term, node, session, number, run, grant: attempt.grant };
        self.network.push(order);
    }

    fn plan(&mut self) {
        let present = self.reign.seats.keys().map(|node| (*node, Arc::new(BTreeSet::from([COMPONENT])))).collect();
        self.conductor.facts = Arc::new(Facts { present, leader: 1 });
        let plan = self.conductor.plan(&self.state, Stamp(self.now));
        if !plan.commands.is_empty() {
            self.commit(plan.commands);
        }
    }

    /// The executor looks at its lease, as it does before and after everything.
    fn look_at_lease(&mut self, node: u64) {
        let (keeps, keeps_accepted) = (self.is(Bug::NoStopOnLapse), self.is(Bug::AcceptedOutlivesSession));
        let now = self.now;
        let executor = self.executors.get_mut(&node).unwrap();
        if executor.lease.is_some_and(|(_, until)| now >= until) && !keeps {
            executor.lease = None;
            for run in std::mem::take(&mut executor.live) {
                if let Some(Row::Running(grant)) = executor.rows.get(&run).cloned() {
                    executor.rows.insert(run, Row::Finished(grant, Outcome::Lost { evidence: String::new() }));
                }
            }
            for row in executor.rows.values_mut().filter(|_| !keeps_accepted) {
                if let Row::Accepted(grant) = *row {
                    *row = Row::Finished(grant, Outcome::NeverStarted { evidence: String::new() });
                }
            }
        }
    }

    /// An order arrives. What comes of it may not be heard of.
    fn deliver(&mut self, order: Order, heard: bool) {
        self.look_at_lease(order.node);
        let (no_session, again) = (
            [Bug::NoSession, Bug::NoFloorOnDiskNorSession, Bug::UnsyncedTombstoneNorSession]
                .map(|bug| self.is(bug))
                .contains(&true),
            self.is(Bug::TakesKnownRunsNorRefuses),
        );
        let (now, twice) = (self.now, self.is(Bug::ObeysTwice));
        let executor = self.executors.get_mut(&order.node).unwrap();
        let below = order.term < executor.floor;
        executor.floor = executor.floor.max(order.term);
        let session = executor.lease.filter(|(_, until)| now < *until).map(|(session, _)| session);
        let is_first = (executor.taken.insert(order.number) || twice) && order.number >= executor.lowest;
        let refused = below || session != Some(order.session) && !no_session || !is_first;
        if !refused && (again || !executor.rows.contains_key(&order.run)) {
            executor.rows.insert(order.run.clone(), Row::Accepted(order.grant));
        }
        let believes = self.is(Bug::RefusalIsNever);
        // What was refused is asked for: another copy may have arrived before.
        match (heard, refused) {
            _ if order.term != self.reign.term => {}
            (true, false) => {}
            (true, true) if believes => {
                let outcome = Outcome::NeverStarted { evidence: String::new() };
                self.end(&order.run, order.grant, outcome);
            }
            _ => {
                self.reign.ask.entry(order.node).or_default().insert(order.run);
            }
        }
    }

    fn end(&mut self, run: &RunId, grant: Grant, outcome: Outcome) -> Reply {
        let (run, usage, results) = (run.clone(), Usage::default(), vec![]);
        self.commit(vec![Command::End { run, grant, outcome, usage, results }]).remove(0)
    }

    /// A run that was accepted begins: the row first, then the guest.
    fn begin(&mut self, node: u64, crash: Option<bool>) {
        self.look_at_lease(node);
        let late = self.is(Bug::RowAfterStart);
        let has_lease = self.executors[&node].lease.is_some() || self.is(Bug::NoStopOnLapse);
        let executor = self.executors.get_mut(&node).unwrap();
        let accepted = executor.rows.iter().find_map(|(run, row)| match row {
            Row::Accepted(grant) => Some((run.clone(), *grant)),
            _ => None,
        });
        let Some((run, grant)) = accepted else { return };
        if !has_lease {
            let outcome = Outcome::NeverStarted { evidence: String::new() };
            executor.rows.insert(run, Row::Finished(grant, outcome));
            return;
        }
        if !late {
            executor.rows.insert(run.clone(), Row::Running(grant));
        }
        if crash == Some(false) {
            return self.crash(node);
        }
        // A frozen executor stops its guests before it does anything else; those do not count.
        let (now, keeps) = (self.now, self.is(Bug::NoStopOnLapse));
        let has_one = |executor: &Executor| {
            let is_held = keeps || executor.lease.is_some_and(|(_, until)| now < until);
            is_held && executor.live.iter().any(|other| other.launch == run.launch)
        };
        if self.executors.values().any(has_one) {
            self.at_once = Some(run.launch.clone());
        }
        *self.starts.entry(run.launch.clone()).or_default() += 1;
        let executor = self.executors.get_mut(&node).unwrap();
        executor.live.insert(run.clone());
        if crash == Some(true) {
            return self.crash(node);
        }
        let executor = self.executors.get_mut(&node).unwrap();
        executor.rows.insert(run.clone(), Row::Running(grant));
        if self.below(3) > 0 {
            let started = self.commit(vec![Command::Start { run: run.clone(), grant, sequence: 0 }]);
            if matches!(started[0], Reply::Refused(_)) {
                self.stop(&run);
            }
        }
    }

    fn finish(&mut self, node: u64, crash: bool) {
        self.look_at_lease(node);
        let executor = self.executors.get_mut(&node).unwrap();
        let Some(run) = executor.live.pop_first() else { return };
        let Some(Row::Running(grant)) = executor.rows.get(&run).cloned() else { return };
        let outcome = match below(&mut self.random, 4) {
            0 => Outcome::Trapped { message: String::new() },
            _ => Outcome::Succeeded { message: None },
        };
        executor.rows.insert(run, Row::Finished(grant, outcome));
        if crash {
            self.crash(node);
        }
    }

    /// Reports of ends are made until somebody takes them.
    fn report(&mut self, node: u64) {
        let finished: Vec<(RunId, Grant, Outcome)> = self.executors[&node]
            .rows
            .iter()
            .filter_map(|(run, row)| match row {
                Row::Finished(grant, outcome) => Some((run.clone(), *grant, outcome.clone())),
                _ => None,
            })
            .collect();
        for (run, grant, outcome) in finished {
            self.end(&run, grant, outcome);
            self.executors.get_mut(&node).unwrap().rows.remove(&run);
        }
    }

    fn crash(&mut self, node: u64) {
        let (never, no_floor) = (self.is(Bug::RunningIsNever), self.is(Bug::NoFloorOnDiskNorSession));
        let executor = self.executors.get_mut(&node).unwrap();
        executor.live.clear();
        executor.lease = None;
        executor.lowest = 0;
        if no_floor {
            executor.floor = 0;
        }
        for run in std::mem::take(&mut executor.unsynced) {
            executor.rows.remove(&run);
        }
        for row in executor.rows.values_mut() {
            match row {
                Row::Accepted(_) => *row = Row::Tombstone,
                Row::Running(_) => *row = if never { Row::Tombstone } else { Row::Lost },
                Row::Finished(..) | Row::Lost | Row::Tombstone => {}
            }
        }
    }

    fn elect(&mut self) {
        let term = self.reign.term + 1;
        self.reign = Reign { term, began: self.now, seats: BTreeMap::new(), ask: BTreeMap::new() };
        let mut conductor = Conductor::default();
        std::mem::swap(&mut self.conductor, &mut conductor);
        if self.is(Bug::NoResolution) {
            // As if what was intended had never been sent.
            let intended: Vec<(RunId, Grant)> = self.live_runs();
            for (run, grant) in intended {
                self.end(&run, grant, Outcome::NeverStarted { evidence: String::new() });
            }
        }
    }

    fn live_runs(&self) -> Vec<(RunId, Grant)> {
        let live = |id: &LaunchId| {
            let launch = self.state.launch(id)?;
            let grant = launch.live()?.grant;
            Some((RunId { launch: id.clone(), attempt: launch.attempt() }, grant))
        };
        self.state.all_open().filter_map(live).collect()
    }

    fn ask_for_session(&mut self, node: u64) {
        self.look_at_lease(node);
        let known = self.reign.seats.get(&node).copied();
        let executor = self.executors.get_mut(&node).unwrap();
        let held = executor.lease.map(|(session, _)| session);
        if let Some((session, _)) = known.filter(|(session, _)| held == Some(*session)) {
            executor.lease = Some((session, self.now + SESSION_MS));
            self.reign.seats.insert(node, (session, self.now));
            return;
        }
        executor.sequence += 1;
        let sequence = executor.sequence;
        self.sessions += 1;
        let session = Uuid::from_u128(self.sessions);
        let opened = self.commit(vec![Command::OpenSession {
            node,
            store: Uuid::from_u128(u128::from(node)),
            sequence,
            session,
            runs_max: 4,
            memory_bytes_max: 1 << 40,
            tz: "2026a".into(),
            version: "0.1.0".into(),
            format: FORMAT,
        }]);
        assert_eq!(opened, [Reply::Done]);
        self.reign.seats.insert(node, (session, self.now));
        let executor = self.executors.get_mut(&node).unwrap();
        executor.floor = executor.floor.max(self.reign.term);
        executor.taken.clear();
        executor.lowest = 0;
        executor.lease = Some((session, self.now + SESSION_MS));
        let open = conductor::unresolved(&self.state, node);
        self.reign.ask.entry(node).or_default().extend(open);
    }

    /// Asks for every run that is to be asked for.
    fn resolve(&mut self, node: u64) {
        if !self.reign.seats.contains_key(&node) {
            return;
        }
        self.look_at_lease(node);
        let no_tombstone = self.is(Bug::NoTombstoneNorRefusal);
        let unsynced = self.is(Bug::UnsyncedTombstoneNorSession);
        let refuses = ![Bug::NoTombstoneNorRefusal, Bug::PrunedTombstone, Bug::TakesKnownRunsNorRefuses]
            .map(|bug| self.is(bug))
            .contains(&true);
        self.orders += 1;
        if refuses {
            self.executors.get_mut(&node).unwrap().lowest = self.orders;
        }
        for run in self.reign.ask.remove(&node).unwrap_or_default() {
            let executor = self.executors.get_mut(&node).unwrap();
            executor.floor = executor.floor.max(self.reign.term);
            let answer = match executor.rows.get(&run) {
                _ if executor.live.contains(&run) => Answer::Running,
                Some(Row::Finished(_, outcome)) => {
                    Answer::Finished { outcome: outcome.clone(), usage: Usage::default(), results: vec![] }
                }
                Some(Row::Running(_) | Row::Lost) => Answer::Lost,
                // It is about to begin.
                Some(Row::Accepted(_)) => Answer::Running,
                Some(Row::Tombstone) => Answer::Never,
                None => {
                    if !no_tombstone {
                        executor.rows.insert(run.clone(), Row::Tombstone);
                    }
                    if unsynced {
                        executor.unsynced.insert(run.clone());
                    }
                    Answer::Never
                }
            };
            let witness = Witness { node, store: Uuid::from_u128(u128::from(node)) };
            if let Some(command) = conductor::resolve(&self.state, &run, witness, answer) {
                self.commit(vec![command]);
            }
        }
    }

    /// Forgets what the ledger has settled.
    fn prune(&mut self, node: u64) {
        let alive: BTreeSet<RunId> = self.live_runs().into_iter().map(|(run, _)| run).collect();
        let executor = self.executors.get_mut(&node).unwrap();
        let here = executor.live.clone();
        executor
            .rows
            .retain(|run, row| alive.contains(run) || here.contains(run) || !matches!(row, Row::Tombstone | Row::Lost));
    }

    fn lapse(&mut self) {
        let patience = if self.is(Bug::LapseTooEarly) { LAPSED_MS / 3 } else { LAPSED_MS };
        for node in NODES {
            let Some(session) = self.state.session(node) else { continue };
            let heard = self.reign.seats.get(&node).map_or(self.reign.began, |(_, heard)| *heard);
            if self.now - heard > patience {
                self.reign.seats.remove(&node);
                self.reign.ask.remove(&node);
                let lapsed = self.commit(vec![Command::Lapse { node, session, evidence: String::new() }]);
                assert!(matches!(lapsed[0], Reply::Done | Reply::Refused(Refusal::Stale { .. })));
            }
        }
    }

    fn step(&mut self) {
        let node = NODES[self.below(2)];
        match self.below(24) {
            0..=3 => self.now += self.below(4_000) as i64,
            // A long silence, now and then.
            4 if self.below(4) == 0 => self.now += 16_000,
            4..=7 => self.plan(),
            8..=11 if !self.network.is_empty() => {
                let i = self.below(self.network.len());
                let order = self.network[i].clone();
                match self.below(6) {
                    // Lost: nobody knows.
                    0 => {
                        self.network.remove(i);
                        if order.term == self.reign.term {
                            self.reign.ask.entry(order.node).or_default().insert(order.run);
                        }
                    }
                    // It will arrive once more.
                    1 => self.deliver(order, true),
                    2 => {
                        self.network.remove(i);
                        self.deliver(order, false);
                    }
                    // It stays on its way for a long time; its leader gives up.
                    3 if order.term == self.reign.term => {
                        self.reign.ask.entry(order.node).or_default().insert(order.run);
                    }
                    _ => {
                        self.network.remove(i);
                        self.deliver(order, true);
                    }
                }
            }
            12..=13 => {
                let crash = [None, None, None, Some(true), Some(false)][self.below(5)];
                self.begin(node, crash);
            }
            14..=15 => {
                let crash = self.below(6) == 0;
                self.finish(node, crash);
            }
            16..=17 => self.report(node),
            18 if self.below(3) == 0 => self.crash(node),
            19 if self.below(2) == 0 => self.elect(),
            20..=21 => self.ask_for_session(node),
            22 => self.resolve(node),
            23 if self.below(2) == 0 => self.prune(node),
            23 => self.lapse(),
            _ => {}
        }
    }

    /// Nothing is lost any more: everything comes to its end.
    fn heal(&mut self) {
        for _ in 0..60 {
            self.now += 500;
            for node in NODES {
                self.ask_for_session(node);
                self.resolve(node);
                while let Some(order) = self.network.pop() {
                    self.deliver(order, true);
                }
                self.begin(node, None);
                self.finish(node, false);
                self.report(node);
                let revoked: Vec<RunId> = self.state.revoked().map(|(run, _)| run).collect();
                revoked.iter().for_each(|run| self.stop(run));
                self.report(node);
            }
            self.lapse();
            self.plan();
        }
    }

    /// What must hold, or a sentence.
    fn check(&self) -> Result<(), String> {
        if let Some(launch) = &self.at_once {
            return Err(format!("two guests of {launch} were alive at once"));
        }
        if self.spec.on_unknown == OnUnknown::Skip
            && let Some((launch, starts)) = self.starts.iter().find(|(_, starts)| **starts > 1)
        {
            return Err(format!("a guest of the skip launch {launch} began {starts} times"));
        }
        for (id, launch) in self.state.launches(&name(), TickAt(0), TickAt(i64::MAX)) {
            let started = self.starts.get(id).copied().unwrap_or_default();
            if launch.status == Status::Closed(Verdict::Succeeded) && started == 0 {
                return Err(format!("{id} succeeded, and no guest of it ever began"));
            }
            if matches!(launch.status, Status::Closed(Verdict::Skipped(_))) && started > 0 {
                return Err(format!("{id} was skipped, and a guest of it began"));
            }
        }
        Ok(())
    }

    /// After healing: every tick has one verdict, and what is old is closed.
    fn check_end(&self) -> Result<(), String> {
        self.check()?;
        let last = self.state.job(&name()).unwrap().cursor;
        for second in (BEGIN_MS / 1_000 + 1..=last.0).filter(|second| second % 60 % 7 == 0) {
            let tick = TickAt(second);
            let launched = self.state.launch(&LaunchId { job: name(), tick, rerun: None });
            let skipped =
                self.state.skipped(&name()).filter(|(from, range)| *from <= tick && range.to >= Some(tick)).count();
            if usize::from(launched.is_some()) + skipped != 1 {
                return Err(format!("{tick} has {skipped} ranges and {launched:?}"));
            }
            if launched.is_some_and(|launch| launch.status.is_open()) && second * 1_000 < self.now - 20_000 {
                return Err(format!("{tick} is still open: {launched:?}"));
            }
        }
        if self.now / 1_000 - last.0 > 14 {
            return Err(format!("nothing was decided since {last}"));
        }
        Ok(())
    }
}

fn next(random: &mut u64) -> u64 {
    // Marsaglia's xorshift: fast, and the same for the same seed.
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    *random
}

fn below(random: &mut u64, bound: usize) -> usize {
    usize::try_from((next(random) >> 11) % bound.max(1) as u64).unwrap_or_default()
}

fn history(seed: u64, bug: Option<Bug>) -> Result<(), String> {
    let mut world = World::new(seed, bug);
    for _ in 0..40 + seed % 40 {
        world.step();
        world.check()?;
    }
    world.heal();
    world.check_end()
}

#[test]
fn whatever_happens_no_skip_job_begins_twice_and_every_tick_has_a_verdict() {
    let number = |name: &str, default: u64| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let (count, first) = (number("TICKHOST_HISTORIES", 10_000), number("TICKHOST_HISTORY_SEED", 1));
    for seed in first..first + count {
        if let Err(why) = history(seed, None) {
            panic!("{why}; repeat it with TICKHOST_HISTORIES=1 TICKHOST_HISTORY_SEED={seed}");
        }
    }
    println!("{count} histories from seed {first}");
}

#[test]
fn each_rule_is_needed() {
    let mut uncaught = Vec::new();
    for bug in BUGS {
        let caught = (1..=60_000).find_map(|seed| Some((seed, history(seed, Some(bug)).err()?)));
        match caught {
            Some((seed, why)) => println!("{bug:?}: caught by seed {seed}: {why}"),
            None => uncaught.push(bug),
        }
    }
    assert!(uncaught.is_empty(), "{uncaught:?}");
}
