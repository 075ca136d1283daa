//! A clock that was ahead has used up ticks that are still to come, and put off what was to be tried again.

use super::{
    State,
    apply::{Answer, Context},
    jobs::{check_awaited, check_revision},
};
use crate::{
    command::{Refusal, Reply},
    ids::{JobName, LaunchId, Stamp, TickAt},
    launch::Status,
    rows::{Attempt, Job, NextTick, SkippedRange},
};

impl State {
    /// Up to where a job's ticks are decided for good, seen at that time: what came after was decided by a clock that was
    /// ahead. Launches that are no longer kept one by one would not be known again.
    pub fn decided_for_good(&self, name: &JobName, at: Stamp) -> TickAt {
        let now = TickAt(at.0.div_euclid(1_000));
        self.folded(name).and_then(|folded| folded.to).map_or(now, |folded| folded.max(now))
    }

    pub(super) fn rewind(
        &mut self,
        cx: &Context,
        name: &JobName,
        revision: u64,
        awaited: Option<TickAt>,
        next: Option<NextTick>,
    ) -> Answer {
        let job = self.jobs.get(name).ok_or_else(|| Refusal::NoJob(name.clone()))?;
        check_revision(name, job.revision, revision)?;
        check_awaited(name, job, awaited)?;
        let cursor = self.decided_for_good(name, cx.at);
        if job.cursor <= cursor {
            return Ok(Reply::Unchanged);
        }
        let job = Job { cursor, next, ..job.clone() };
        let beyond = |(from, range): (TickAt, &SkippedRange)| {
            (from > cursor || range.to.is_none_or(|to| to > cursor)).then(|| (from, range.clone()))
        };
        let ranges: Vec<(TickAt, SkippedRange)> = self.skipped(name).filter_map(beyond).collect();
        for (from, range) in ranges {
            let is_open = range.to.is_none();
            if from > cursor {
                self.ranges.remove(&(name.clone(), from));
                // A pause goes on, and covers what is open again.
                if is_open {
                    self.ranges.insert((name.clone(), TickAt(cursor.0 + 1)), range);
                }
            } else if !is_open {
                self.ranges.insert((name.clone(), from), SkippedRange { to: Some(cursor), ..range });
            }
        }
        self.set_job(name, job);
        Ok(Reply::Done)
    }

    /// When a launch that waits for its next attempt may begin, if its end had been stamped at that time.
    pub(crate) fn retry_at(&self, id: &LaunchId, at: Stamp) -> Stamp {
        let attempts = self.launch(id).map_or(&[][..], |launch| &launch.attempts);
        let started = attempts.iter().filter_map(Attempt::end_of_what_started).count();
        at.plus_ms(self.policy(id).retry.wait_ms(u32::try_from(started).unwrap_or(u32::MAX)))
    }

    pub(super) fn hasten(&mut self, cx: &Context, id: &LaunchId) -> Answer {
        let latest = self.retry_at(id, cx.at);
        let launch = self.launches.get_mut(id).ok_or_else(|| Refusal::NoLaunch(id.clone()))?;
        match &launch.status {
            Status::AwaitingRetry { at, otherwise } if *at > latest => {
                let status = Status::AwaitingRetry { at: latest, otherwise: *otherwise };
                self.index.leave(id, launch);
                launch.start_by = Stamp(launch.start_by.0 - (at.0 - latest.0));
                launch.status = status;
                self.index.enter(id, launch);
                Ok(Reply::Done)
            }
            _ => Ok(Reply::Unchanged),
        }
    }

    pub(super) fn rewound(&mut self, cx: &Context) -> Answer {
        let Some(cluster) = self.cluster.get_mut(&()) else { return Ok(Reply::Unchanged) };
        cluster.time = cx.at;
        self.forget_spent();
        Ok(Reply::Done)
    }
}
