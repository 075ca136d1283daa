//! Storing, pausing and deleting jobs.

use super::{
    State,
    apply::{Answer, Context},
};
use crate::{
    command::{Refusal, Reply},
    ids::{JobName, LaunchId, Stamp, TickAt},
    launch::SkipReason,
    quota::Checked,
    rows::{Grave, Job, NextTick, Pause, SkippedRange},
    spec::JobSpec,
};

impl State {
    #[allow(clippy::too_many_arguments, reason = "the command's fields, in its order")]
    pub(super) fn put_job(
        &mut self,
        cx: &Context,
        name: &JobName,
        spec: &JobSpec,
        from_revision: u64,
        next: Option<NextTick>,
        checked: Option<&Checked>,
        by: &str,
    ) -> Answer {
        let stored = self.jobs.get(name);
        // A namespace learns nothing of what others have stored.
        let is_named = stored.is_some_and(|job| job.spec.component == spec.component);
        let component = self.components.get(&spec.component).filter(|row| is_named || row.is_for(&name.namespace));
        if component.is_none() {
            return Err(Refusal::NoComponent(spec.component));
        }
        check_revision(name, stored.map_or(0, |job| job.revision), from_revision)?;
        if stored.is_some_and(|job| job.spec == *spec) {
            return Ok(Reply::Unchanged);
        }
        if let Some(job) = stored {
            check_decided(name, job, cx.at)?;
        }
        self.admit_job(name, spec, stored.is_none(), checked)?;
        let floor = TickAt(cx.at.0.div_euclid(1000));
        let grave = self.graves.get(name);
        let job = match stored {
            // An edit keeps what is decided; `@every` keeps its anchor while its text stays.
            Some(job) => Job {
                spec: spec.clone(),
                revision: job.revision + 1,
                created_at: if job.spec.timing.schedule == spec.timing.schedule { job.created_at } else { cx.at },
                stored_at: cx.at,
                by: by.to_owned(),
                cursor: job.cursor.max(floor),
                next: if job.pause.is_some() { None } else { next.filter(|_| !spec.is_over(job.launched)) },
                last_tick: job.last_tick,
                // Wall time is compared within one zone only.
                last_local: job.last_local.clone().filter(|_| job.spec.timing == spec.timing),
                launched: job.launched,
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
                last_local: None,
                launched: 0,
                pause: None,
            },
        };
        if stored.is_none() {
            self.index.hold(&name.namespace, |held| held.jobs += 1);
        }
        self.graves.remove(name);
        if job.pause.is_some() {
            // The ticks of the pause are named by the expression that was stored at the time.
            self.close_open_range(cx, name);
            let from = TickAt(job.cursor.max(floor).0 + 1);
            self.ranges.insert((name.clone(), from), skipped_range(&job, None, SkipReason::Paused));
        }
        self.set_job(name, job);
        Ok(Reply::Done)
    }

    pub(super) fn set_job(&mut self, name: &JobName, job: Job) {
        let was = self.jobs.get(name).and_then(|j| j.next.as_ref().map(NextTick::decided_at));
        self.index.await_tick(name, was, job.next.as_ref().map(NextTick::decided_at));
        self.jobs.insert(name.clone(), job);
    }

    pub(super) fn delete_job(&mut self, cx: &mut Context, name: &JobName, from_revision: u64) -> Answer {
        let job = self.jobs.get(name).ok_or_else(|| Refusal::NoJob(name.clone()))?;
        check_revision(name, job.revision, from_revision)?;
        check_decided(name, job, cx.at)?;
        let grave = Grave { cursor: job.cursor, revision: job.revision };
        if job.pause.is_some() {
            self.close_open_range(cx, name);
        }
        let job = self.jobs.get(name).cloned();
        let open: Vec<LaunchId> = self.open(name).cloned().collect();
        for id in open {
            self.stop_or_withdraw(cx, &id, SkipReason::Deleted, "the job was deleted");
        }
        self.index.await_tick(name, job.and_then(|j| j.next).map(|n| n.decided_at()), None);
        self.jobs.remove(name);
        self.index.hold(&name.namespace, |held| held.jobs -= 1);
        self.graves.insert(name.clone(), grave);
        Ok(Reply::Done)
    }

    pub(super) fn pause(&mut self, cx: &Context, name: &JobName, note: &str, by: &str) -> Answer {
        let job = self.jobs.get(name).ok_or_else(|| Refusal::NoJob(name.clone()))?;
        if job.pause.is_some() {
            return Err(Refusal::Pause { job: name.clone(), found: "paused already".into() });
        }
        check_decided(name, job, cx.at)?;
        let pause = Pause { since: cx.at, note: note.to_owned(), by: by.to_owned() };
        // The tick of this very second is decided: it came before the pause. So did those that are decided ahead.
        let from = TickAt(job.cursor.max(TickAt(cx.at.0.div_euclid(1000))).0 + 1);
        let range = skipped_range(job, None, SkipReason::Paused);
        let job = Job { pause: Some(pause), next: None, ..job.clone() };
        self.ranges.insert((name.clone(), from), range);
        self.set_job(name, job);
        Ok(Reply::Done)
    }

    pub(super) fn resume(&mut self, cx: &mut Context, name: &JobName, revision: u64, next: Option<NextTick>) -> Answer {
        let job = self.jobs.get(name).ok_or_else(|| Refusal::NoJob(name.clone()))?;
        check_revision(name, job.revision, revision)?;
        if job.pause.is_none() {
            return Err(Refusal::Pause { job: name.clone(), found: "not paused".into() });
        }
        let cursor = job.cursor.max(TickAt(cx.at.0.div_euclid(1000)));
        let next = next.filter(|_| !job.spec.is_over(job.launched));
        let job = Job { pause: None, next, cursor, ..job.clone() };
        self.close_open_range(cx, name);
        self.set_job(name, job);
        Ok(Reply::Done)
    }

    pub(super) fn close_open_range(&mut self, cx: &Context, name: &JobName) {
        let to = TickAt(cx.at.0.div_euclid(1000));
        let open: Vec<TickAt> =
            self.skipped(name).filter(|(_, range)| range.to.is_none()).map(|(from, _)| from).collect();
        for from in open {
            if let Some(range) = self.ranges.get_mut(&(name.clone(), from)) {
                range.to = Some(to);
            }
        }
    }
}

impl State {
    pub(super) fn named(&mut self, by: &str) -> Answer {
        let Some(cluster) = self.cluster.get_mut(&()) else { return Ok(Reply::Unchanged) };
        by.clone_into(&mut cluster.names);
        Ok(Reply::Done)
    }
}

pub(super) fn check_revision(job: &JobName, found: u64, expected: u64) -> Result<(), Refusal> {
    if found == expected {
        return Ok(());
    }
    Err(Refusal::Stale {
        what: format!("job {job}"),
        found: format!("revision {found}"),
        expected: format!("revision {expected}"),
    })
}

/// A decision is about the tick that the job waits for.
pub(super) fn check_awaited(name: &JobName, job: &Job, awaited: Option<TickAt>) -> Result<(), Refusal> {
    let found = job.next.as_ref().map(|next| next.at);
    if found == awaited {
        return Ok(());
    }
    Err(Refusal::Stale {
        what: format!("next tick of {name}"),
        found: found.map_or("none".into(), |at| at.to_string()),
        expected: awaited.map_or("none".into(), |at| at.to_string()),
    })
}

/// A change must not swallow a tick: what is due at its stamp is decided before it, under the old revision.
fn check_decided(name: &JobName, job: &Job, at: Stamp) -> Result<(), Refusal> {
    match &job.next {
        Some(next) if next.decided_at().0 * 1000 <= at.0 => Err(Refusal::Stale {
            what: format!("job {name}"),
            found: format!("its tick {} is not decided", next.at),
            expected: "every tick up to now decided".into(),
        }),
        _ => Ok(()),
    }
}

pub(super) fn skipped_range(job: &Job, to: Option<TickAt>, reason: SkipReason) -> SkippedRange {
    SkippedRange { to, reason, revision: job.revision, timing: job.spec.timing.clone(), anchor: job.created_at }
}
