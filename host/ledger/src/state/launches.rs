//! From a decided tick to the end of a launch.

use uuid::Uuid;

use super::{
    State,
    apply::{Answer, Context},
    bounds,
    jobs::{check_awaited, check_revision, skipped_range},
};
use crate::{
    command::{Decision, Output, Refusal, Reply},
    effect::EffectResult,
    ids::{Grant, JobName, LaunchId, RunId, Stamp, TickAt},
    launch::{self, Event, Outcome, SkipReason, Status},
    quota::Held,
    rows::{Attempt, Ended, Job, Launch, NextTick, Origin, Usage},
    spec::Overlap,
};

impl State {
    pub(super) fn decide(&mut self, cx: &mut Context, decision: &Decision) -> Answer {
        let name = &decision.job;
        let job = self.jobs.get(name).ok_or_else(|| Refusal::NoJob(name.clone()))?;
        check_revision(name, job.revision, decision.revision)?;
        check_awaited(name, job, Some(decision.awaited))?;
        if let Some(next) = job.next.as_ref().filter(|next| next.decided_at().0 * 1000 > cx.at.0) {
            return Err(Refusal::Stale {
                what: format!("next tick of {name}"),
                found: format!("it is decided at {}", next.decided_at()),
                expected: format!("by {}", cx.at),
            });
        }
        let job = job.clone();
        for skip in &decision.skipped {
            self.skip(name, &job, (skip.from, skip.to), skip.previous, skip.reason);
        }
        let mut launched = job.launched;
        for decided in &decision.launches {
            let id = LaunchId { job: name.clone(), tick: decided.tick.at, rerun: None };
            if job.spec.is_over(launched) {
                break;
            }
            // Unique here, whatever the history keeps: a tick at or before the cursor is decided.
            if decided.tick.at <= job.cursor || self.launches.get(&id).is_some() {
                continue;
            }
            let due = Stamp(decided.tick.due.0 * 1000);
            // One that is placed later meets whatever is open then.
            if due <= cx.at && !self.make_room(cx, &job, &id, due, decided.caught_up) {
                let tick = decided.tick.at;
                self.skip(name, &job, (tick, tick), decided.previous, SkipReason::Overlap);
                continue;
            }
            let launch = Launch {
                status: Status::Due,
                origin: Origin::Schedule { caught_up: decided.caught_up },
                local: decided.tick.local.clone(),
                previous: decided.previous,
                revision: job.revision,
                decided_at: cx.at,
                start_after: due,
                start_by: due.plus_ms(u64::from(job.spec.start_deadline_s) * 1000),
                attempts: Vec::new(),
            };
            self.add_launch(id, launch);
            launched += 1;
        }
        let job = Job {
            cursor: job.cursor.max(decision.cursor),
            last_tick: Some(decision.last_tick),
            last_local: Some(decision.last_local.clone()),
            next: decision.next.clone().filter(|_| !job.spec.is_over(launched)),
            launched,
            ..job.clone()
        };
        self.set_job(name, job);
        Ok(Reply::Done)
    }

    pub(super) fn retime(&mut self, name: &JobName, revision: u64, awaited: TickAt, next: Option<NextTick>) -> Answer {
        let job = self.jobs.get(name).ok_or_else(|| Refusal::NoJob(name.clone()))?;
        check_revision(name, job.revision, revision)?;
        check_awaited(name, job, Some(awaited))?;
        let job = Job { next, ..job.clone() };
        self.set_job(name, job);
        Ok(Reply::Done)
    }

    /// Notes ticks that are not launched. A range that ends at the tick just before grows instead: a job that is skipped
    /// every second must not cost a row a second.
    fn skip(
        &mut self,
        name: &JobName,
        job: &Job,
        (from, to): (TickAt, TickAt),
        previous: Option<TickAt>,
        reason: SkipReason,
    ) {
        let before = (name.clone(), TickAt(i64::MIN))..(name.clone(), from);
        let last = self.ranges.range(before).next_back().map(|(key, range)| (key.clone(), range));
        let grows = last.filter(|(_, range)| {
            range.reason == reason && range.revision == job.revision && range.to.is_some() && range.to == previous
        });
        match grows.map(|(key, _)| key) {
            Some(key) => {
                if let Some(range) = self.ranges.get_mut(&key) {
                    range.to = Some(to);
                }
            }
            None => self.ranges.insert((name.clone(), from), skipped_range(job, Some(to), reason)),
        }
    }

    /// The overlap rule for a launch that is due. False where the newcomer is skipped.
    fn make_room(&mut self, cx: &mut Context, job: &Job, id: &LaunchId, due: Stamp, caught_up: bool) -> bool {
        // What was moved to the same instant waits for each other, as ticks that are made up do: every one of them
        // was asked for.
        let is_before = |other: &&LaunchId| {
            *other != id && self.launches.get(*other).is_some_and(|launch| launch.start_after < due)
        };
        let open: Vec<LaunchId> = self.open(&id.job).filter(is_before).cloned().collect();
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
    pub(super) fn stop_or_withdraw(&mut self, cx: &mut Context, id: &LaunchId, reason: SkipReason, why: &str) {
        let Some(launch) = self.launches.get(id) else { return };
        if launch.status.is_live() {
            let run = RunId { launch: id.clone(), attempt: launch.attempt() };
            cx.outputs.push(Output::Revoke { run, why: why.to_owned() });
            // Row of the state, not memory of a leader: the next one says it again.
            if let Some(attempt) = self.launches.get_mut(id).and_then(|launch| launch.attempts.last_mut()) {
                attempt.revoked.get_or_insert_with(|| why.to_owned());
            }
        } else {
            self.advance(cx, id, &Event::Withdrawn(reason));
        }
    }

    pub(super) fn add_launch(&mut self, id: LaunchId, launch: Launch) {
        *self.index.kept.entry(id.job.clone()).or_default() += 1;
        self.index.enter(&id, &launch);
        self.launches.insert(id, launch);
    }

    /// Moves a launch along its life. Callers have checked that the event fits; a pair that does not is left
    /// alone and said, and the launch keeps its status.
    pub(super) fn advance(&mut self, cx: &mut Context, id: &LaunchId, event: &Event) {
        let policy = self.policy(id);
        let Some(launch) = self.launches.get_mut(id) else { return };
        self.index.leave(id, launch);
        match launch::next(&launch.status, event, &policy) {
            Ok(status) => launch.status = status,
            // An invariant of this crate: it must not carry on wrong.
            Err(illegal) => unreachable!("launch {id}: {illegal}"),
        }
        if let (Status::AwaitingRetry { at, .. }, Some(job)) = (&launch.status, self.jobs.get(&id.job)) {
            launch.start_by = at.plus_ms(u64::from(job.spec.start_deadline_s) * 1000);
        }
        if launch.status.is_open() {
            self.index.enter(id, launch);
        } else {
            cx.outputs.push(Output::Closed(id.clone()));
        }
    }

    pub(super) fn trigger(&mut self, cx: &Context, id: &LaunchId, local: &str, same_key: bool, by: &str) -> Answer {
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
        if job.next.as_ref().is_some_and(|next| next.at <= id.tick) {
            return not_now("the schedule is about to decide that tick; ask again in a moment");
        }
        // The journal lives as long as a launch that used its keys; a re-run under keys of its own did not.
        let has_journal = |(id, launch): (&LaunchId, &Launch)| {
            id.rerun.is_none() || matches!(launch.origin, Origin::Manual { same_key: true, .. })
        };
        if same_key && !of_tick().any(has_journal) {
            return not_now("no launch under its keys is kept, so what it did is not known; use new keys");
        }
        // Whoever asks is there to be told of a rate that is used up; what the schedule names waits.
        let block = self.block(&id.job.namespace, &job.spec.limits, cx.at, &Held::default());
        if let Some(block) = block.filter(|block| block.until.is_some()) {
            return not_now(&format!("the quota of namespace `{}` holds it: {block}", id.job.namespace));
        }
        let launch = Launch {
            status: Status::Due,
            origin: Origin::Manual { by: by.to_owned(), same_key },
            local: local.to_owned(),
            previous: self.previous_of(id, job),
            revision: job.revision,
            decided_at: cx.at,
            start_after: cx.at,
            start_by: cx.at.plus_ms(u64::from(job.spec.start_deadline_s) * 1000),
            attempts: Vec::new(),
        };
        self.add_launch(id.clone(), launch);
        Ok(Reply::Done)
    }

    /// The tick before, for a re-run: as its scheduled launch had it, else the last one decided before it.
    pub(super) fn previous_of(&self, id: &LaunchId, job: &Job) -> Option<TickAt> {
        let scheduled = LaunchId { rerun: None, ..id.clone() };
        match self.launches.get(&scheduled) {
            Some(launch) => launch.previous,
            None => job.last_tick.filter(|last| *last < id.tick),
        }
    }

    pub(super) fn intend(&mut self, cx: &mut Context, run: &RunId, node: u64, session: Uuid) -> Answer {
        let id = &run.launch;
        let launch = self.launches.get(id).ok_or_else(|| Refusal::NoLaunch(id.clone()))?;
        let not_now = |why: String| Err(Refusal::NotNow { launch: id.clone(), why });
        let Some(job) = self.jobs.get(&id.job) else { return Err(Refusal::NoJob(id.job.clone())) };
        match launch.status {
            Status::Due if !launch.is_placed_later() && cx.at <= launch.start_by => {}
            Status::AwaitingRetry { at, .. } if (at..=launch.start_by).contains(&cx.at) => {}
            _ => return not_now(format!("it is {:?}", launch.status)),
        }
        if run.attempt != launch.attempt() + 1 {
            return not_now(format!("its next attempt is {}", launch.attempt() + 1));
        }
        if !self.is_at_the_front(id, cx.at) {
            return not_now("an earlier launch of the job is open".into());
        }
        let member = self.nodes.get(&node).filter(|member| !member.draining);
        let executor = member.and_then(|member| member.executor.as_ref()).filter(|e| e.session == Some(session));
        let Some(executor) = executor else {
            return not_now(format!("node {node} has no session {session}, or is drained"));
        };
        let memory_bytes = job.spec.limits.memory_bytes;
        let (runs, bytes) = self.reserved(node);
        if runs >= executor.runs_max || bytes + memory_bytes > executor.memory_bytes_max {
            return not_now(format!("node {node} has no capacity left"));
        }
        let namespace = id.job.namespace.clone();
        let limits = job.spec.limits;
        if let Some(block) = self.block(&namespace, &limits, cx.at, &Held::default()) {
            return not_now(format!("the quota of namespace `{namespace}` holds it: {block}"));
        }
        let revision = job.revision;
        let store = executor.store;
        let cpu_ms = self.spend_launch(&namespace, &limits, cx.at);
        let grant = Grant { epoch: self.cluster().map_or(0, |c| c.epoch), index: cx.index };
        let attempt = Attempt {
            grant,
            node,
            store,
            session,
            revision,
            memory_bytes,
            cpu_ms,
            intended_at: cx.at,
            started_at: None,
            revoked: None,
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
    pub(super) fn current(&self, run: &RunId, grant: Grant) -> Result<&Launch, Refusal> {
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

    pub(super) fn start(&mut self, cx: &mut Context, run: &RunId, grant: Grant, sequence: u64) -> Answer {
        let launch = self.current(run, grant)?;
        if launch.status == Status::Running {
            return Ok(Reply::Unchanged);
        }
        if let Some(attempt) = launch.live() {
            let (node, store) = (attempt.node, attempt.store);
            self.table_counted(node, store, sequence);
        }
        if let Some(attempt) = self.launches.get_mut(&run.launch).and_then(|l| l.attempts.last_mut()) {
            attempt.started_at = Some(cx.at);
        }
        self.advance(cx, &run.launch, &Event::Started);
        Ok(Reply::Done)
    }

    pub(super) fn end(
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
        self.close_attempt(cx, &run.launch, outcome, usage);
        Ok(Reply::Done)
    }

    /// Ends the live attempt of a launch.
    pub(super) fn close_attempt(&mut self, cx: &mut Context, id: &LaunchId, outcome: &Outcome, usage: Usage) {
        if let Some(attempt) = self.launches.get(id).and_then(|launch| launch.live()).cloned() {
            self.spend_cpu(&id.job.namespace, &attempt, outcome, usage, cx.at);
        }
        let event = self.ended(id, outcome, cx.at);
        self.advance(cx, id, &event);
        let open = self.launches.get(id).filter(|launch| launch.status.is_open());
        let is_revoked = open.and_then(|launch| launch.attempts.last()).is_some_and(|last| last.revoked.is_some());
        if open.is_some() && self.jobs.get(&id.job).is_none() {
            self.advance(cx, id, &Event::Withdrawn(SkipReason::Deleted));
        } else if is_revoked {
            // It was to give way to a newer one, whether or not it had begun.
            self.advance(cx, id, &Event::Withdrawn(SkipReason::Overlap));
        }
        if let Some(attempt) = self.launches.get_mut(id).and_then(|l| l.attempts.last_mut()) {
            attempt.ended = Some(Ended { at: cx.at, outcome: outcome.clone(), usage });
        }
    }

    /// The end of a run, seen with the attempts before it: those that never started count for nothing.
    fn ended(&self, id: &LaunchId, outcome: &Outcome, at: Stamp) -> Event {
        let attempts = self.launches.get(id).map_or(&[][..], |launch| &launch.attempts);
        let earlier: Vec<&Outcome> = attempts.iter().filter_map(Attempt::end_of_what_started).collect();
        Event::Ended {
            outcome: outcome.clone(),
            started: u32::try_from(earlier.len()).unwrap_or(u32::MAX).saturating_add(1),
            earlier: earlier.last().map(|outcome| launch::verdict(outcome)),
            at,
        }
    }

    /// A launch that was placed later than its tick meets the pause, and the launches that are open by now.
    pub(super) fn enter(&mut self, cx: &mut Context, id: &LaunchId) -> Answer {
        let launch = self.launches.get(id).ok_or_else(|| Refusal::NoLaunch(id.clone()))?;
        let job = self.jobs.get(&id.job).ok_or_else(|| Refusal::NoJob(id.job.clone()))?.clone();
        if launch.status != Status::Due || !launch.is_placed_later() || cx.at < launch.start_after {
            let why = format!("it is {:?} and begins after {}", launch.status, launch.start_after);
            return Err(Refusal::NotNow { launch: id.clone(), why });
        }
        let due = launch.start_after;
        if job.pause.is_some() {
            self.advance(cx, id, &Event::Withdrawn(SkipReason::Paused));
        } else if !self.make_room(cx, &job, id, due, false) {
            self.advance(cx, id, &Event::Withdrawn(SkipReason::Overlap));
        } else if let Some(launch) = self.launches.get_mut(id) {
            self.index.leave(id, launch);
            launch.decided_at = cx.at;
            self.index.enter(id, launch);
        }
        Ok(Reply::Done)
    }

    pub(super) fn expire(&mut self, cx: &mut Context, id: &LaunchId, clock: bool) -> Answer {
        let launch = self.launches.get(id).ok_or_else(|| Refusal::NoLaunch(id.clone()))?;
        let waits = launch.status.is_open() && !launch.status.is_live();
        if !waits || cx.at <= launch.start_by {
            let why = format!("it is {:?} and may start until {}", launch.status, launch.start_by);
            return Err(Refusal::NotNow { launch: id.clone(), why });
        }
        let limits = self.jobs.get(&id.job).map(|job| job.spec.limits);
        let is_blocked =
            limits.is_some_and(|limits| self.block(&id.job.namespace, &limits, cx.at, &Held::default()).is_some());
        let reason = match (clock, is_blocked) {
            (true, _) => SkipReason::Clock,
            (false, true) => SkipReason::Quota,
            (false, false) => SkipReason::StartDeadline,
        };
        self.advance(cx, id, &Event::Withdrawn(reason));
        Ok(Reply::Done)
    }
}
