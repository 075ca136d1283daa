//! What is kept of closed launches, and how the rest folds into counts.

use std::collections::BTreeSet;

use uuid::Uuid;

use super::{State, apply::Context, bounds};
use crate::{
    command::Output,
    effect::EffectId,
    ids::{JobName, LaunchId, Stamp, TickAt},
    launch::{Status, Verdict},
};

/// Launches of one job that are kept one by one; older ones fold into counts.
const HISTORY_LAUNCHES: usize = 100;
/// Launches that did not succeed are kept this long even beyond that: people look for them after a holiday.
const HISTORY_TROUBLE_MS: u64 = 30 * 24 * 3600 * 1000;
/// How many of those at the most: a job that fails every second must not fill the disk.
const HISTORY_TROUBLE_MAX: usize = 1_000;

impl State {
    /// Folds the oldest launches of jobs that have more than are kept.
    pub(super) fn prune(&mut self, cx: &Context) {
        let closed: BTreeSet<&JobName> = cx
            .outputs
            .iter()
            .filter_map(|output| if let Output::Closed(id) = output { Some(&id.job) } else { None })
            .collect();
        for job in closed {
            self.prune_job(job);
        }
    }

    pub(super) fn prune_job(&mut self, job: &JobName) {
        let kept = self.index.kept.get(job).copied().unwrap_or_default();
        // Open ones are nobody's history yet.
        let kept = kept.saturating_sub(self.open(job).count());
        let Some(surplus) = kept.checked_sub(HISTORY_LAUNCHES).filter(|n| *n > 0) else { return };
        let now = self.cluster().map_or(Stamp(0), |c| c.time);
        // By when they were decided, not by tick: a re-run of an old tick is new.
        let mut closed: Vec<(Stamp, LaunchId, Verdict)> = self
            .launches
            .range(bounds(job, TickAt(i64::MIN), TickAt(i64::MAX)))
            .filter_map(|(id, launch)| match launch.status {
                Status::Closed(verdict) => Some((launch.decided_at, id.clone(), verdict)),
                _ => None,
            })
            .collect();
        closed.sort();
        // The newest stay whatever they are; of the older ones those that went wrong stay for a while.
        closed.truncate(surplus.min(closed.len()));
        let mut trouble_over = kept.saturating_sub(HISTORY_TROUBLE_MAX);
        for (decided_at, id, verdict) in closed {
            let expired = decided_at.plus_ms(HISTORY_TROUBLE_MS) < now;
            if verdict != Verdict::Succeeded && !expired {
                if trouble_over == 0 {
                    continue;
                }
                trouble_over -= 1;
            }
            self.fold(&id, verdict);
        }
    }

    pub(super) fn fold(&mut self, id: &LaunchId, verdict: Verdict) {
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
                self.set_effect(EffectId { job: id.job.clone(), tick: id.tick, key }, None);
            }
        }
    }
}
