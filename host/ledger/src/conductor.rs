//! What the leader does next: a function of the state, of what executors answered, and of *now*.
//!
//! It advances each job from the tick that the job waits for, never from *now*: a late wake-up still names the
//! tick it was meant for.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use tickhost_schedule::{Next, ParseError, Schedule, Tick};

use crate::{
    State,
    clock::HeldBack,
    command::{Command, DecidedLaunch, DecidedSkip, Decision},
    effect::EffectResult,
    ids::{Digest, JobName, LaunchId, RunId, Stamp, TickAt},
    launch::{Outcome, SkipReason, Status},
    quota::Held,
    rows::{Attempt, Gap, GapChoice, Job, NextTick, Node, Origin, Usage},
    spec::{CatchUp, OnUnknown, Overlap},
};

/// A tick this late was missed, and the catch-up policy decides about it. Arbitrary: longer than a leader
/// takes to restart, shorter than anyone would call on time.
pub const MISSED_AFTER: TimeDelta = TimeDelta::seconds(5);

/// Jobs decided in one entry: ten thousand jobs due at midnight take a handful. An entry of this many
/// decisions is about half a megabyte.
const DECISIONS_MAX: usize = 2_000;

/// Missed ticks that are looked at one by one for those that are made up; what lies before is told in one range.
/// As many as may be made up, so that only a long row of closed days between them is cut short.
const LOOK_BACK_MAX: usize = 1_000;

/// Ticks that are on time and are decided in one round; the rest come in the next. A job that is due every second
/// has [`MISSED_AFTER`] of them at the most, unless they are placed later.
const FRESH_MAX: usize = 100;

/// What the leader knows of the executors beside the ledger.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// Those that were heard of in the last moments, with the components that they have compiled.
    pub present: BTreeMap<u64, Arc<BTreeSet<Digest>>>,
    /// This node. It gets runs where nobody else has room, so that a leader that dies takes few of them along.
    pub leader: u64,
}

/// What the leader plans with.
#[derive(Debug)]
pub struct Conductor {
    /// What it knows of the executors.
    pub facts: Arc<Facts>,
    /// Launches of missed ticks that are given out in one second over the whole cluster, so that a recovery is no
    /// stampede.
    pub catch_up_per_s: u32,
    /// The second in which missed ticks were given out last, and how many.
    caught_up: (i64, u32),
    /// Since when there was always something due, and when it was planned for last.
    behind: Option<(Stamp, Stamp)>,
    /// Parsed schedules, by job and revision. A cache: dropping it loses time, nothing else.
    schedules: BTreeMap<JobName, (u64, Schedule)>,
    /// Jobs whose revision cannot be scheduled: said once, and out of the others' way.
    faulted: BTreeMap<JobName, u64>,
    /// When the first of the launches may go on that a rate of their namespace holds.
    rate_ends: Option<Stamp>,
    /// A time in which the clock was not believed: what expired in it says so.
    pub held_back: Option<HeldBack>,
}

/// The schedule that a stored job names.
///
/// # Errors
/// An expression or a zone that this version does not take: it was stored by another one.
pub fn schedule_of(name: &JobName, job: &Job) -> Result<Schedule, ParseError> {
    Schedule::new(&job.spec.timing, Some(&name.to_string()), job.created_at.time())
}

/// The first tick after an instant, as it is stored with a job.
///
/// `last` is the last tick that was decided, with its wall time. Where the tz database has moved it since, a job that
/// runs by wall time does not run again at that wall time.
pub fn next_tick(schedule: &Schedule, after: DateTime<Utc>, last: Option<(TickAt, &str)>) -> Option<NextTick> {
    let wall = last.and_then(|(at, local)| {
        let decided = DateTime::parse_from_rfc3339(local).ok()?.naive_local();
        let is_moved = schedule.tick(at.time()).local.naive_local() != decided;
        (schedule.is_by_wall_time() && is_moved).then_some(decided)
    });
    let mut after = after;
    loop {
        match schedule.next(after) {
            Next::Tick(tick) if wall.is_some_and(|wall| tick.local.naive_local() <= wall) => after = tick.at,
            Next::Tick(tick) => return Some(named(tick)),
            Next::Never | Next::Horizon => return None,
        }
    }
}

/// The first tick after an instant that is decided after it as well: one that is moved to a day before it is over.
pub fn first_tick(schedule: &Schedule, decided: TickAt, at: DateTime<Utc>) -> Option<NextTick> {
    let mut next = next_tick(schedule, decided.time().max(at), None)?;
    while next.decided_at().time() <= at {
        next = next_tick(schedule, next.at.time(), None)?;
    }
    Some(next)
}

/// Whether the ledger has stamps from a clock that was ahead of this time: ticks that are still to come may have been
/// used up by it.
pub fn is_ahead(state: &State, now: Stamp) -> bool {
    state.cluster().is_some_and(|cluster| cluster.time.0 - now.0 > MISSED_AFTER.num_milliseconds())
}

/// What no longer puts off the retries that a clock has put off which was ahead.
pub fn hasten(state: &State, now: Stamp) -> Vec<Command> {
    let is_put_off = |id: &&LaunchId| match state.launch(id).map(|launch| &launch.status) {
        Some(Status::AwaitingRetry { at, .. }) => *at > state.retry_at(id, now),
        _ => false,
    };
    state.all_open().filter(is_put_off).map(|id| Command::Hasten { launch: id.clone() }).collect()
}

/// What gives jobs back the ticks that a clock has used up which was ahead. Those that it launched stay launched.
pub fn rewind(state: &State, now: Stamp) -> Vec<Command> {
    let one = |(name, job): (&JobName, &Job)| {
        let cursor = state.decided_for_good(name, now);
        if job.cursor <= cursor {
            return None;
        }
        let next = match job.pause {
            Some(_) => None,
            None => first_tick(&schedule_of(name, job).ok()?, cursor, now.time()),
        };
        let awaited = job.next.as_ref().map(|next| next.at);
        Some(Command::Rewind { job: name.clone(), revision: job.revision, awaited, next })
    };
    state.jobs().filter_map(one).collect()
}

/// What another release of this program or of the tz database names otherwise: jobs with another next tick.
pub fn retime(state: &State) -> Vec<Command> {
    let one = |(name, job): (&JobName, &Job)| retime_one(name, job, &schedule_of(name, job).ok()?);
    state.jobs().filter_map(one).collect()
}

fn retime_one(name: &JobName, job: &Job, schedule: &Schedule) -> Option<Command> {
    let awaited = job.next.as_ref()?;
    let last = job.last_tick.zip(job.last_local.as_deref());
    let mut next = next_tick(schedule, job.cursor.time(), last);
    // What is decided ahead of its instant was left out by `first_tick`, where the job was not there yet.
    while let Some(early) = next.as_ref().filter(|next| next.decided_at().time() <= job.stored_at.time()) {
        next = next_tick(schedule, early.at.time(), last);
    }
    let (job, revision, at) = (name.clone(), job.revision, awaited.at);
    (next.as_ref() != Some(awaited)).then_some(Command::Retime { job, revision, awaited: at, next })
}

/// A tick as it is stored.
pub fn named(tick: Tick) -> NextTick {
    NextTick { at: tick.at.into(), local: local_text(&tick), due: tick.due.into() }
}

fn local_text(tick: &Tick) -> String {
    tick.local.to_rfc3339_opts(SecondsFormat::Secs, false)
}

/// Arbitrary: what was missed is spread over some time, and ten thousand jobs still take less than two minutes.
pub const CATCH_UP_PER_S: u32 = 100;

/// What a conductor wants to have proposed, and when to ask again.
#[derive(Debug, Default)]
pub struct Plan {
    /// To be proposed with the stamp `now`, in one entry.
    pub commands: Vec<Command>,
    /// Jobs that cannot be scheduled, and why: each revision is told once. The others go on.
    pub faults: Vec<(JobName, String)>,
}

impl Default for Conductor {
    fn default() -> Self {
        Self {
            facts: Arc::default(),
            catch_up_per_s: CATCH_UP_PER_S,
            caught_up: (0, 0),
            behind: None,
            schedules: BTreeMap::new(),
            faulted: BTreeMap::new(),
            rate_ends: None,
            held_back: None,
        }
    }
}

impl Conductor {
    /// One that knows when the clock was not believed.
    pub fn new(held_back: Option<HeldBack>) -> Self {
        Self { held_back, ..Self::default() }
    }

    /// Whether one more missed tick may be given out now.
    fn may_catch_up(&mut self, now: Stamp) -> bool {
        let second = now.0.div_euclid(1_000);
        if self.caught_up.0 != second {
            self.caught_up = (second, 0);
        }
        self.caught_up.1 < self.catch_up_per_s
    }

    /// Gives a launch a place. A missed tick that finds none has used up nothing of the rate.
    fn give_place(
        &mut self,
        placement: &mut Placement<'_>,
        run: RunId,
        job: &Job,
        is_made_up: bool,
    ) -> Result<Command, Full> {
        let placed = placement.place(run, job)?;
        self.caught_up.1 += u32::from(is_made_up);
        Ok(placed)
    }

    /// Everything that is to be decided at `now`: ticks that are due, launches that can be given to an
    /// executor, launches past their start deadline.
    pub fn plan(&mut self, state: &State, now: Stamp) -> Plan {
        let mut plan = Plan::default();
        if state.hold().is_some() {
            return plan;
        }
        let due = state.due_fairly(now, DECISIONS_MAX, |name| self.is_faulted(state, name));
        let began = self.work_began(!due.is_empty(), now);
        // What was deleted is not kept for ever.
        if self.schedules.len() > state.job_count() {
            self.schedules.retain(|name, _| state.job(name).is_some());
            self.faulted.retain(|name, _| state.job(name).is_some());
        }
        let facts = self.facts.clone();
        let mut placement = Placement::new(state, &facts, now);
        self.place_waiting(state, now, &mut placement, &mut plan);
        for name in due {
            let Some(job) = state.job(&name) else { continue };
            match self.decide(&name, job, state.gap(), began, now) {
                // Another version of this program stored it: the tick that it waits for is none of the schedule's.
                Ok(None) => plan.commands.extend(self.retime(&name, job)),
                Ok(Some(decision)) => {
                    let first = decision.launches.first().map(|launch| LaunchId {
                        job: name.clone(),
                        tick: launch.tick.at,
                        rerun: None,
                    });
                    let is_due = decision.launches.first().is_some_and(|launch| launch.tick.due.0 * 1000 <= now.0);
                    let is_made_up = decision.launches.first().is_some_and(|launch| launch.caught_up);
                    plan.commands.push(Command::Decide(decision));
                    // One entry decides and intends, where nothing of the job is in the way and a place is free.
                    let is_clear = is_due && (job.spec.overlap == Overlap::Allow || state.open(&name).next().is_none());
                    let may_go = is_clear && (!is_made_up || self.may_catch_up(now));
                    if let Some(id) = first.filter(|_| may_go) {
                        let run = RunId { launch: id, attempt: 1 };
                        plan.commands.extend(self.give_place(&mut placement, run, job, is_made_up).ok());
                    }
                }
                Err(error) => {
                    self.faulted.insert(name.clone(), job.revision);
                    plan.faults.push((name, error.to_string()));
                }
            }
        }
        self.rate_ends = placement.rate_ends;
        plan
    }

    /// The namespace that has the least of the cluster goes first, each of its launches in its turn: ten thousand of one
    /// do not keep another's only one waiting.
    fn place_waiting(&mut self, state: &State, now: Stamp, placement: &mut Placement<'_>, plan: &mut Plan) {
        let expired = state.expired(now).take(DECISIONS_MAX);
        plan.commands.extend(
            expired.map(|(start_by, id)| Command::Expire { launch: id.clone(), clock: self.was_held_back(start_by) }),
        );
        let mut queues: BTreeMap<&str, _> = state.waiting(now).collect();
        let mut turns: BTreeSet<(u64, &str)> =
            queues.keys().map(|namespace| (placement.share(namespace), *namespace)).collect();
        while let Some((share, namespace)) = turns.pop_first() {
            if placement.is_full() || plan.commands.len() >= DECISIONS_MAX {
                return;
            }
            let Some(id) = queues.get_mut(namespace).and_then(Iterator::next) else { continue };
            let next = match self.place_one(state, now, id, placement) {
                Ok(command) => {
                    plan.commands.extend(command);
                    placement.share(namespace)
                }
                // Its quota holds the others as well.
                Err(Full::Quota) => continue,
                Err(Full::Cluster) => share,
            };
            turns.insert((next, namespace));
        }
    }

    /// What is to be done about a launch that waits.
    fn place_one(
        &mut self,
        state: &State,
        now: Stamp,
        id: &LaunchId,
        placement: &mut Placement<'_>,
    ) -> Result<Option<Command>, Full> {
        let (Some(launch), Some(job)) = (state.launch(id), state.job(&id.job)) else { return Ok(None) };
        if launch.status == Status::Due && launch.is_placed_later() {
            return Ok(Some(Command::Enter { launch: id.clone() }));
        }
        if now > launch.start_by || !state.is_at_the_front(id, now) {
            return Ok(None);
        }
        let is_made_up = launch.origin == Origin::Schedule { caught_up: true } && launch.attempts.is_empty();
        if is_made_up && !self.may_catch_up(now) {
            return Ok(None);
        }
        let run = RunId { launch: id.clone(), attempt: launch.attempt() + 1 };
        self.give_place(placement, run, job, is_made_up).map(Some)
    }

    /// When the work began that is being done at `now`. A tick that is reached late because tens of thousands were due
    /// with it was not missed: nobody was away.
    fn work_began(&mut self, is_anything_due: bool, now: Stamp) -> Stamp {
        let within = |last: Stamp| (0..=MISSED_AFTER.num_milliseconds()).contains(&(now.0 - last.0));
        let began = self.behind.filter(|(_, last)| within(*last)).map_or(now, |(began, _)| began);
        self.behind = is_anything_due.then_some((began, now));
        began
    }

    fn was_held_back(&self, at: Stamp) -> bool {
        self.held_back.is_some_and(|held| held.covers(at))
    }

    fn is_faulted(&self, state: &State, name: &JobName) -> bool {
        self.faulted.get(name).is_some_and(|revision| state.job(name).is_some_and(|job| job.revision == *revision))
    }

    /// When [`Conductor::plan`] has something to do after `now`, if nothing else happens before.
    pub fn wake_at(&self, state: &State, now: Stamp) -> Option<Stamp> {
        if state.hold().is_some() {
            return None;
        }
        let next_tick = state.due().find(|(_, name)| !self.is_faulted(state, name)).map(|(at, _)| Stamp(at.0 * 1000));
        // Whether anything waits for it is not looked up: it is a second at the most.
        let rate = (self.caught_up == (now.0.div_euclid(1_000), self.catch_up_per_s))
            .then(|| Stamp((now.0.div_euclid(1_000) + 1) * 1_000));
        let rates = rate.into_iter().chain(self.rate_ends.filter(|at| *at > now));
        next_tick.into_iter().chain(state.next_timer(now)).chain(rates).min()
    }

    /// Decides every tick of a job up to `now`: what a change of the job needs in its own entry.
    ///
    /// # Errors
    /// A stored schedule that this version cannot read.
    pub fn decide_up_to(&mut self, state: &State, name: &JobName, now: Stamp) -> Result<Option<Decision>, ParseError> {
        match state.job(name).and_then(|job| Some((job, job.next.as_ref()?))) {
            Some((job, next)) if next.decided_at().0 * 1000 <= now.0 => self.decide(name, job, state.gap(), now, now),
            _ => Ok(None),
        }
    }

    fn retime(&mut self, name: &JobName, job: &Job) -> Option<Command> {
        let schedule = self.schedule(name, job).ok()?;
        retime_one(name, job, schedule)
    }

    fn decide(
        &mut self,
        name: &JobName,
        job: &Job,
        gap: Option<&Gap>,
        began: Stamp,
        now: Stamp,
    ) -> Result<Option<Decision>, ParseError> {
        let schedule = self.schedule(name, job)?;
        let awaited = job.next.as_ref().map_or(job.cursor, |next| next.at);
        if let Some(gap) = gap.filter(|gap| awaited.0 * 1000 <= gap.until.0) {
            let until = gap.until.min(now).time();
            let decision = decide(name, job, schedule, awaited, (until, until));
            return Ok(decision.map(|decision| in_gap(decision, gap, job)));
        }
        let Some(mut decision) = decide(name, job, schedule, awaited, (began.time(), now.time())) else {
            return Ok(None);
        };
        if let Some(missed) = decision.skipped.first_mut()
            && missed.reason != SkipReason::Excluded
            && self.was_held_back(Stamp(missed.to.0 * 1000))
        {
            missed.reason = SkipReason::Clock;
        }
        Ok(Some(decision))
    }

    fn schedule(&mut self, name: &JobName, job: &Job) -> Result<&Schedule, ParseError> {
        let cached = self.schedules.get(name).is_some_and(|(revision, _)| *revision == job.revision);
        if !cached {
            self.schedules.insert(name.clone(), (job.revision, schedule_of(name, job)?));
        }
        Ok(&self.schedules[name].1)
    }
}

/// One job's ticks from the awaited one up to now; `None` where the schedule names none of them. `began` is when the
/// leader began to work at what is due: what is late only since then was not missed.
fn decide(
    name: &JobName,
    job: &Job,
    schedule: &Schedule,
    awaited: TickAt,
    (began, now): (DateTime<Utc>, DateTime<Utc>),
) -> Option<Decision> {
    let before_awaited = awaited.time() - TimeDelta::seconds(1);
    let missed_until = began - MISSED_AFTER;
    let start_floor = now - TimeDelta::seconds(i64::from(job.spec.start_deadline_s));

    let missed = schedule.last_due(before_awaited, missed_until);
    let fresh: Vec<Tick> = after(schedule, missed.map_or(before_awaited, |tick| tick.at))
        .take_while(|tick| tick.decided_at() <= now)
        .take(FRESH_MAX)
        .collect();

    // Of the missed ticks, those that the policy launches: the last ones, within the start deadline.
    let wanted = match job.spec.catch_up {
        CatchUp::None => 0,
        CatchUp::Latest => u32::from(fresh.iter().all(|tick| tick.excluded)),
        CatchUp::All(bound) => bound,
    } as usize;
    let mut made_up: Vec<Tick> = Vec::new();
    let mut last = missed;
    let mut left = wanted;
    while let Some(tick) = last.filter(|tick| left > 0 && tick.due >= start_floor && made_up.len() < LOOK_BACK_MAX) {
        made_up.push(tick);
        left -= usize::from(!tick.excluded);
        last = schedule.last_named(before_awaited, tick.at - TimeDelta::seconds(1));
    }
    made_up.reverse();
    // The policy would have made up more, and what is left is not in time any more: the deadline is the reason.
    let is_late = last.is_some_and(|tick| tick.due < start_floor);
    let reason = if left > 0 && is_late { SkipReason::StartDeadline } else { SkipReason::CatchUp };
    let range = |from, to: &Tick, reason, previous| DecidedSkip { from, to: to.at.into(), reason, previous };
    let mut skipped: Vec<DecidedSkip> = last.iter().map(|last| range(awaited, last, reason, job.last_tick)).collect();

    let mut launches = Vec::new();
    let mut previous = last.map(|tick| TickAt::from(tick.at)).or(job.last_tick);
    let late = made_up.len();
    let decided = made_up.iter().chain(&fresh);
    for (i, tick) in decided.clone().enumerate() {
        let at = TickAt::from(tick.at);
        if tick.excluded {
            skipped.push(range(at, tick, SkipReason::Excluded, previous));
        } else {
            launches.push(DecidedLaunch { previous, caught_up: i < late, tick: named(*tick) });
        }
        previous = Some(at);
    }
    // The cursor stops at the last tick looked at: with more than fit, the rest come in the next round.
    let newest = decided.last().copied().or(last)?;
    let (cursor, last_local) = (TickAt::from(newest.at), local_text(&newest));
    let next = next_tick(schedule, newest.at, Some((cursor, &last_local)));
    Some(Decision {
        job: name.clone(),
        revision: job.revision,
        awaited,
        skipped,
        launches,
        cursor,
        last_tick: cursor,
        last_local,
        next,
    })
}

/// A decision about ticks that may have been launched, and nobody knows. What its owner lets repeat is launched, where
/// that was chosen; the rest is left as it is.
fn in_gap(decision: Decision, gap: &Gap, job: &Job) -> Decision {
    let repeats = gap.choice == GapChoice::Repeat && job.spec.on_unknown == OnUnknown::Repeat;
    // What was placed later than the gap, nobody can have begun.
    let stays = |launch: &DecidedLaunch| repeats || launch.tick.due.0 * 1000 > gap.until.0;
    let (mut launches, left): (Vec<_>, Vec<_>) = decision.launches.into_iter().partition(stays);
    // None of them is skipped because another one is open: that would say that it was not launched before.
    launches.iter_mut().for_each(|launch| launch.caught_up |= launch.tick.due.0 * 1000 <= gap.until.0);
    let known = decision.skipped.into_iter().map(|skip| match skip.reason {
        SkipReason::Excluded => skip,
        _ => DecidedSkip { reason: SkipReason::Restored, ..skip },
    });
    let left = left.into_iter().map(|launch| {
        let (at, previous) = (launch.tick.at, launch.previous);
        DecidedSkip { from: at, to: at, reason: SkipReason::Restored, previous }
    });
    let mut skipped: Vec<DecidedSkip> = known.chain(left).collect();
    skipped.sort_by_key(|skip| skip.from);
    Decision { skipped, launches, ..decision }
}

/// The ticks after an instant, by name.
fn after(schedule: &Schedule, from: DateTime<Utc>) -> impl Iterator<Item = Tick> + '_ {
    let next = move |from| match schedule.next(from) {
        Next::Tick(tick) => Some(tick),
        Next::Never | Next::Horizon => None,
    };
    std::iter::successors(next(from), move |tick| next(tick.at))
}

/// Free places, as they are while a plan is made.
struct Placement<'a> {
    state: &'a State,
    now: Stamp,
    nodes: Vec<Place<'a>>,
    /// All places there are: runs, and bytes of memory.
    total: (u64, u64),
    /// What the plan gives out, by namespace.
    taken: BTreeMap<String, Held>,
    /// When the first of the rates ends that hold a launch.
    rate_ends: Option<Stamp>,
}

/// Why a launch gets no place.
enum Full {
    /// No executor has the room.
    Cluster,
    /// Its namespace has used up what its quota allows.
    Quota,
}

struct Place<'a> {
    node: u64,
    warm: &'a BTreeSet<Digest>,
    is_leader: bool,
    session: uuid::Uuid,
    runs: u32,
    memory_bytes: u64,
}

impl<'a> Placement<'a> {
    fn new(state: &'a State, facts: &'a Facts, now: Stamp) -> Self {
        let place = |(id, node): (&u64, &Node)| {
            let executor = node.executor.as_ref().filter(|_| !node.draining)?;
            let (runs, bytes) = state.reserved(*id);
            Some(Place {
                node: *id,
                warm: facts.present.get(id)?,
                is_leader: *id == facts.leader,
                session: executor.session?,
                runs: executor.runs_max.saturating_sub(runs),
                memory_bytes: executor.memory_bytes_max.saturating_sub(bytes),
            })
        };
        let nodes = state.nodes().filter_map(place).collect();
        let executors = state.nodes().filter_map(|(_, node)| node.executor.as_ref());
        let total = executors.fold((0, 0), |(runs, bytes), executor| {
            (runs + u64::from(executor.runs_max), bytes + executor.memory_bytes_max)
        });
        Self { state, now, nodes, total, taken: BTreeMap::new(), rate_ends: None }
    }

    /// What a namespace has of the cluster in millionths: of its runs or of its memory, whichever is more.
    fn share(&self, namespace: &str) -> u64 {
        let (held, taken) = (self.state.held(namespace), self.taken.get(namespace).copied().unwrap_or_default());
        let of = |part: u64, whole: u64| part.saturating_mul(1_000_000).checked_div(whole).unwrap_or_default();
        of(held.runs + taken.runs, self.total.0)
            .max(of((held.memory_bytes + taken.memory_bytes) >> 10, self.total.1 >> 10))
    }

    fn is_full(&self) -> bool {
        self.nodes.iter().all(|place| place.runs == 0 || place.memory_bytes == 0)
    }

    /// The node that has the memory: one with the component's code before one without, another than the leader's
    /// before that, and then the one with the most free places.
    fn place(&mut self, run: RunId, job: &Job) -> Result<Command, Full> {
        let namespace = run.launch.job.namespace.as_str();
        let taken = self.taken.get(namespace).copied().unwrap_or_default();
        if let Some(block) = self.state.block(namespace, &job.spec.limits, self.now, &taken) {
            self.rate_ends = self.rate_ends.into_iter().chain(block.until).min();
            return Err(Full::Quota);
        }
        let memory = job.spec.limits.memory_bytes;
        let fits = |place: &&mut Place<'_>| place.runs > 0 && place.memory_bytes >= memory;
        let rank = |place: &&mut Place<'_>| (place.warm.contains(&job.spec.component), !place.is_leader, place.runs);
        let place = self.nodes.iter_mut().filter(fits).max_by_key(rank).ok_or(Full::Cluster)?;
        place.runs -= 1;
        place.memory_bytes -= memory;
        self.taken
            .entry(namespace.to_owned())
            .or_default()
            .reserve(job.spec.limits.memory_bytes, job.spec.limits.cpu_ms);
        Ok(Command::Intend { run, node: place.node, session: place.session })
    }
}

/// What an executor says about a run that it was asked for by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// It is running.
    Running,
    /// It is over.
    Finished {
        /// How it ended.
        outcome: Outcome,
        /// What it used.
        usage: Usage,
        /// Results of effects that the ledger may not have.
        results: Vec<(uuid::Uuid, EffectResult)>,
    },
    /// No guest instruction ran and none ever will: the executor has synced that it refuses the run.
    Never,
    /// It was running when the executor's process ended.
    Lost,
}

/// The executor that answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Witness {
    /// The node.
    pub node: u64,
    /// Its durable table.
    pub store: uuid::Uuid,
}

/// Runs that were given to a node in an earlier session and of which the ledger does not know the end.
pub fn unresolved(state: &State, node: u64) -> Vec<RunId> {
    let session = state.session(node);
    let earlier = |id: &LaunchId| {
        let launch = state.launch(id)?;
        let attempt = launch.live()?;
        (attempt.node == node && Some(attempt.session) != session)
            .then(|| RunId { launch: id.clone(), attempt: launch.attempt() })
    };
    state.all_open().filter_map(earlier).collect()
}

/// What follows from an executor's answer about a run.
///
/// A binding "no" counts only from the very store that the intent named: another one never saw the run.
pub fn resolve(state: &State, run: &RunId, witness: Witness, answer: Answer) -> Option<Command> {
    let attempt: &Attempt = state.launch(&run.launch)?.live()?;
    let end_with = |outcome, usage, results| {
        let grant = attempt.grant;
        Some(Command::End { run: run.clone(), grant, outcome, usage, results })
    };
    let end = |outcome, usage| end_with(outcome, usage, Vec::new());
    let Witness { node, store } = witness;
    if attempt.store != store {
        let evidence = format!(
            "the run was given to store {} of node {}, which is gone; node {node} now has store {store}",
            attempt.store, attempt.node
        );
        return end(Outcome::Unanswered { evidence }, Usage::default());
    }
    match answer {
        Answer::Running if attempt.started_at.is_none() => {
            Some(Command::Start { run: run.clone(), grant: attempt.grant, sequence: 0 })
        }
        Answer::Running => None,
        Answer::Finished { outcome, usage, results } => end_with(outcome, usage, results),
        Answer::Never => {
            let evidence = format!("store {store} of node {node} never started it and refuses it from now on");
            end(Outcome::NeverStarted { evidence }, Usage::default())
        }
        Answer::Lost => {
            let evidence = format!(
                "store {store} of node {node} recorded its start; the process ended before its outcome was recorded"
            );
            end(Outcome::Lost { evidence }, Usage::default())
        }
    }
}
