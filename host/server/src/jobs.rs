//! Changes of jobs, as clients ask for them: each decides, in its own entry, every tick up to its stamp under the
//! old revision, and is made again where the ledger has moved on in between.

use std::collections::BTreeSet;

use chrono::SecondsFormat;
use serde::Serialize;
use tickhost_ledger::{
    Command, JobName, JobSpec, LaunchId, Refusal, Reply, Stamp, TickAt,
    conductor::{self, Conductor},
    launch::{SkipReason, Status},
    quota::Checked,
    rows::{Job, SkippedRange},
};
use tickhost_replica::ProposeError;
use tickhost_sandbox::AllowRule;
use tickhost_schedule::{self as schedule, ParseError, Schedule};
use uuid::Uuid;

use crate::host::Host;

/// A tick this many seconds old has been decided, or is missing.
const SETTLED_S: i64 = 5;
/// A change loses against ticks that are decided at the same moment; it is made again this often.
const TRIES: usize = 20;

/// Why a change was not made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChangeError {
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("the schedule is refused: {0}")]
    Schedule(#[from] ParseError),
    #[error("{0}")]
    Invalid(String),
    #[error("{0}")]
    Full(String),
    #[error("{0}")]
    Held(String),
    #[error(transparent)]
    Ledger(#[from] ProposeError),
}

/// What a stored definition did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Stored {
    pub(crate) job: String,
    pub(crate) outcome: &'static str,
    pub(crate) revision: u64,
}

impl Host {
    /// Makes a change from the job as it is now. `change` gives the commands behind the decisions.
    async fn change_job(
        &self,
        name: &JobName,
        change: impl Fn(Option<&Job>, Stamp) -> Result<Vec<Command>, ChangeError>,
    ) -> Result<Reply, ChangeError> {
        let mut tried = 0;
        loop {
            tried += 1;
            let at = self.believed_now().map_err(ChangeError::Held)?;
            let job = self.replica.read(|state| state.job(name).cloned());
            let mut commands = Vec::new();
            let mut conductor = Conductor::new(self.clock.held_back());
            let decision = self.replica.read(|state| conductor.decide_up_to(state, name, at))?;
            commands.extend(decision.map(Command::Decide));
            commands.extend(change(job.as_ref(), at)?);
            let mut replies = self.propose(at, commands).await?;
            match replies.pop() {
                Some(Reply::Refused(Refusal::Stale { .. })) if tried < TRIES => {}
                Some(Reply::Refused(refusal)) => return Err(refusal.into()),
                Some(reply) => return Ok(reply),
                None => return Err(ChangeError::Invalid("there was nothing to change".into())),
            }
        }
    }

    /// Creates a job, changes it, or finds that nothing has changed.
    pub(crate) async fn put_job(&self, name: &JobName, spec: &JobSpec, by: &str) -> Result<Stored, ChangeError> {
        self.check_room().map_err(ChangeError::Full)?;
        check_spec(spec, &self.settings)?;
        let existed = self.replica.read(|state| state.job(name).is_some());
        let reply = self
            .change_job(name, |job, at| {
                let anchor =
                    job.filter(|job| job.spec.timing.schedule == spec.timing.schedule).map_or(at, |j| j.created_at);
                let schedule = Schedule::new(&spec.timing, Some(&name.to_string()), anchor.time())?;
                let grave = self.replica.read(|state| state.grave(name).map(|grave| grave.cursor));
                // A tick that is moved to an earlier day is decided ahead of its instant.
                let decided = job.map(|job| job.cursor).or(grave);
                let decided = decided.unwrap_or(TickAt(i64::MIN));
                check_window(spec, &schedule, at)?;
                let checked = self.check_quota(name, spec, &schedule, at)?;
                Ok(vec![Command::PutJob {
                    job: name.clone(),
                    spec: Box::new(spec.clone()),
                    from_revision: job.map_or(0, |job| job.revision),
                    next: conductor::first_tick(&schedule, decided, at.time()),
                    checked,
                    by: by.to_owned(),
                }])
            })
            .await?;
        let outcome = match reply {
            Reply::Unchanged => "unchanged",
            _ if existed => "changed",
            _ => "created",
        };
        let revision = self.replica.read(|state| state.job(name).map_or(0, |job| job.revision));
        Ok(Stored { job: name.to_string(), outcome, revision })
    }

    /// What the quota of a job's namespace needs to know of it, where it does.
    fn check_quota(
        &self,
        name: &JobName,
        spec: &JobSpec,
        schedule: &Schedule,
        at: Stamp,
    ) -> Result<Option<Checked>, ChangeError> {
        let row = self.replica.read(|state| state.quota(&name.namespace).cloned());
        let Some(row) = row.filter(|row| row.quota.asks_for_a_check()) else { return Ok(None) };
        let strangers = match &row.quota.hosts {
            Some(hosts) => AllowRule::not_covered(&spec.allow_http, hosts),
            None => Vec::new(),
        };
        let least_s = row.quota.shortest_interval_s.and_then(|s| i64::try_from(s).ok());
        // A year of ticks may take seconds to look at, and the ticks of others go on beside it.
        let gap_s = tokio::task::block_in_place(|| least_s.and_then(|least_s| schedule.gap_below(at.time(), least_s)));
        let interval_s = gap_s.and_then(|s| u64::try_from(s).ok());
        Ok(Some(Checked { quota: row.revision, interval_s, strangers }))
    }

    pub(crate) async fn delete_job(&self, name: &JobName, by: &str) -> Result<(), ChangeError> {
        self.change_job(name, |job, _| {
            let from_revision = job.ok_or_else(|| Refusal::NoJob(name.clone()))?.revision;
            Ok(vec![Command::DeleteJob { job: name.clone(), from_revision, by: by.to_owned() }])
        })
        .await
        .map(|_| ())
    }

    pub(crate) async fn pause_job(&self, name: &JobName, note: &str, by: &str) -> Result<(), ChangeError> {
        self.change_job(name, |_, _| {
            let (note, by) = (note.to_owned(), by.to_owned());
            Ok(vec![Command::Pause { job: name.clone(), note, by }])
        })
        .await
        .map(|_| ())
    }

    pub(crate) async fn resume_job(&self, name: &JobName, by: &str) -> Result<(), ChangeError> {
        self.change_job(name, |job, at| {
            let job = job.ok_or_else(|| Refusal::NoJob(name.clone()))?;
            let next = conductor::first_tick(&conductor::schedule_of(name, job)?, job.cursor, at.time());
            Ok(vec![Command::Resume { job: name.clone(), revision: job.revision, next, by: by.to_owned() }])
        })
        .await
        .map(|_| ())
    }

    /// Launches by hand. Without a tick the launch is named by this instant; with one, the schedule names it and it
    /// lies between the job's creation and now.
    pub(crate) async fn trigger(
        &self,
        name: &JobName,
        tick: Option<TickAt>,
        same_key: bool,
        id: Uuid,
        by: &str,
    ) -> Result<LaunchId, ChangeError> {
        let at = self.believed_now().map_err(ChangeError::Held)?;
        let job = self.replica.read(|state| state.job(name).cloned());
        let job = job.ok_or_else(|| Refusal::NoJob(name.clone()))?;
        let schedule = conductor::schedule_of(name, &job)?;
        let instant = tick.unwrap_or(TickAt(at.0.div_euclid(1000)));
        if let Some(tick) = tick {
            if tick.time() > at.time() && tick > job.cursor {
                return Err(ChangeError::Invalid(format!("`{tick}` is still to come; it will be launched then")));
            }
            let launched = LaunchId { job: name.clone(), tick, rerun: None };
            let is_kept = self.replica.read(|state| state.launch(&launched).is_some());
            if !is_kept && tick.0 * 1000 < job.created_at.0 {
                return Err(ChangeError::Invalid(format!(
                    "`{tick}` lies before `{name}` was stored ({}); a schedule has no past before that",
                    job.created_at
                )));
            }
            if !is_kept && !schedule.names(tick.time()) {
                return Err(ChangeError::Invalid(format!(
                    "`{tick}` is no tick of `{name}` (`{}` in {}); `tickhost ticks {name}` lists them",
                    job.spec.timing.schedule.join("`, `"),
                    job.spec.timing.zone
                )));
            }
        }
        let launch = LaunchId { job: name.clone(), tick: instant, rerun: Some(id) };
        let local = schedule.tick(instant.time()).local.to_rfc3339_opts(SecondsFormat::Secs, false);
        let command = Command::Trigger { launch: launch.clone(), local, same_key, by: by.to_owned() };
        match self.propose(at, vec![command]).await?.pop() {
            Some(Reply::Refused(refusal)) => Err(refusal.into()),
            _ => Ok(launch),
        }
    }

    /// A job's ticks in an interval with what became of each, oldest first, at most `count`.
    pub(crate) fn ticks(&self, name: &JobName, from: TickAt, to: TickAt, count: usize) -> Vec<TickView> {
        let (mut views, ranges, held) = self.replica.read(|state| {
            let launched = state.launches(name, from, to).map(|(id, launch)| TickView {
                tick: id.tick.to_string(),
                local: launch.local.clone(),
                verdict: verdict(&launch.status),
                launch: Some(id.to_string()),
                attempts: launch.attempt(),
            });
            let within =
                |(start, range): &(TickAt, &SkippedRange)| *start <= to && range.to.is_none_or(|end| end >= from);
            let ranges: Vec<(TickAt, SkippedRange)> =
                state.skipped(name).filter(within).map(|(start, range)| (start, range.clone())).collect();
            // On hold nothing is decided about what comes after the backup.
            let held = state.hold().and_then(|_| state.job(name)).and_then(|job| {
                let from = job.next.as_ref()?.at;
                let (timing, anchor) = (job.spec.timing.clone(), job.created_at);
                Some((
                    from,
                    SkippedRange { to: None, reason: SkipReason::Restored, revision: job.revision, timing, anchor },
                ))
            });
            (launched.collect::<Vec<_>>(), ranges, held)
        });
        // Enumerated here and not under the state's lock: a pause of a year has many ticks.
        for (start, range) in ranges.into_iter().chain(held) {
            let schedule = Schedule::new(&range.timing, Some(&name.to_string()), range.anchor.time());
            let Ok(schedule) = schedule else { continue };
            let after = start.max(from).time() - chrono::TimeDelta::seconds(1);
            let mut until = range.to.unwrap_or_else(|| TickAt(self.clock.now().0.div_euclid(1000))).min(to).time();
            // The newest first, since those are asked for.
            for _ in 0..count {
                let Some(tick) = schedule.last_named(after, until) else { break };
                until = tick.at - chrono::TimeDelta::seconds(1);
                let reason = if tick.excluded { SkipReason::Excluded } else { range.reason };
                views.push(TickView {
                    tick: TickAt::from(tick.at).to_string(),
                    local: tick.local.to_rfc3339_opts(SecondsFormat::Secs, false),
                    verdict: reason.verdict().to_string(),
                    launch: None,
                    attempts: 0,
                });
            }
        }
        views.sort_by(|a, b| (&a.tick, &a.launch).cmp(&(&b.tick, &b.launch)));
        let surplus = views.len().saturating_sub(count);
        views.drain(..surplus);
        views
    }
}

impl Host {
    /// Ticks of the job's present revision that the schedule names and that nothing is known of, oldest first, at most
    /// `count`. What is decided only now is no gap yet.
    ///
    /// Read from the schedule alone, not from what the ledger waits for: it is the check of that.
    pub(crate) fn gaps(
        &self,
        name: &JobName,
        from: TickAt,
        to: TickAt,
        count: usize,
    ) -> Result<Vec<String>, ChangeError> {
        let job = self.replica.read(|state| state.job(name).cloned());
        let job = job.ok_or_else(|| Refusal::NoJob(name.clone()))?;
        let schedule = conductor::schedule_of(name, &job)?;
        let (covered, folded) = self.replica.read(|state| {
            let launched: BTreeSet<TickAt> = state.launches(name, from, to).map(|(id, _)| id.tick).collect();
            let skipped: Vec<(TickAt, Option<TickAt>)> =
                state.skipped(name).map(|(start, range)| (start, range.to)).collect();
            ((launched, skipped), state.folded(name).and_then(|folded| folded.to))
        });
        let (launched, skipped) = covered;
        let is_covered = |tick: TickAt| {
            launched.contains(&tick)
                || skipped.iter().any(|(start, end)| *start <= tick && end.is_none_or(|end| tick <= end))
        };
        let stored = TickAt(job.stored_at.0.div_euclid(1_000));
        let after = from.max(folded.unwrap_or(from)).max(stored).time();
        let until = to.min(TickAt(self.clock.now().0.div_euclid(1_000) - SETTLED_S));
        let mut gaps = Vec::new();
        let mut last = after;
        while let schedule::Next::Tick(tick) = schedule.next(last) {
            let at = TickAt::from(tick.at);
            let is_over = job.spec.max_launches.is_some_and(|most| job.launched >= most) && at > job.cursor;
            if at > until || is_over || gaps.len() >= count {
                break;
            }
            if !is_covered(at) {
                gaps.push(at.to_string());
            }
            last = tick.at;
        }
        Ok(gaps)
    }
}

/// A tick and what became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct TickView {
    pub(crate) tick: String,
    pub(crate) local: String,
    pub(crate) verdict: String,
    pub(crate) launch: Option<String>,
    pub(crate) attempts: u32,
}

/// The verdict, or where an open launch stands.
pub(crate) fn verdict(status: &Status) -> String {
    match status {
        Status::Due => "due".into(),
        Status::Intended => "intended".into(),
        Status::Running => "running".into(),
        Status::AwaitingRetry { at, .. } => format!("retry at {at}"),
        Status::Closed(verdict) => verdict.to_string(),
    }
}

/// Within its window a launch is placed once and for all: a longer window than the time between two ticks would pile
/// them up.
fn check_window(spec: &JobSpec, schedule: &Schedule, at: Stamp) -> Result<(), ChangeError> {
    match schedule.shortest_gap_s(at.time()) {
        Some(gap_s) if i64::from(spec.timing.window_s) > gap_s => Err(ChangeError::Invalid(format!(
            "the window of {} s is longer than the {gap_s} s between two ticks; make it shorter, or the schedule sparser",
            spec.timing.window_s
        ))),
        _ => Ok(()),
    }
}

/// Whether these are destinations.
pub(crate) fn check_rules<'a>(field: &str, rules: impl IntoIterator<Item = &'a String>) -> Result<(), ChangeError> {
    for rule in rules {
        rule.parse::<AllowRule>().map_err(|e| ChangeError::Invalid(format!("`{field}`: {e}")))?;
    }
    Ok(())
}

/// What can be said without the ledger. The manifest's reader says it earlier and with its line; this is for
/// clients that speak to the API.
fn check_spec(spec: &JobSpec, settings: &crate::host::Settings) -> Result<(), ChangeError> {
    check_rules("allow", &spec.allow_http)?;
    let most = settings.memory_max_mib << 20;
    if spec.limits.memory_bytes > most {
        return Err(ChangeError::Invalid(format!(
            "`limits.memory` is {} bytes; this host has {most} for all runs (`memory_max_mib`)",
            spec.limits.memory_bytes
        )));
    }
    match spec.out_of_bounds().as_slice() {
        [] => Ok(()),
        wrong => Err(ChangeError::Invalid(wrong.join("; "))),
    }
}
