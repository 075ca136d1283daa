//! A clock that was ahead has used up ticks that are still to come.

use super::{
    State,
    apply::{Answer, Context},
    jobs::{check_awaited, check_revision},
};
use crate::{
    command::{Refusal, Reply},
    ids::{JobName, Stamp, TickAt},
    rows::{Job, NextTick, SkippedRange},
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

    pub(super) fn rewound(&mut self, cx: &Context) -> Answer {
        let Some(cluster) = self.cluster.get_mut(&()) else { return Ok(Reply::Unchanged) };
        cluster.time = cx.at;
        Ok(Reply::Done)
    }
}
