//! Every node looks by itself for what did not happen, and raises it: a leader that has stopped deciding does not say
//! so.

use std::{
    collections::BTreeSet,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tickhost_ledger::{Stamp, absence::absences, clock::AHEAD_MS_MAX};

use crate::{host::Host, restore};

const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Alarms that are kept: with more than these somebody is looking already.
const ALARMS_MAX: usize = 100;
/// A median that was told longer ago than this is none.
const TOLD_MS: i64 = 10_000;

/// What is absent, and the namespace that it is about.
type Alarm = (String, Option<String>);

/// The time of the group, as this node was told it last, and what it has raised.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// The median of the voters' clocks less this machine's time since boot, and when it was told.
    median: Mutex<Option<(i64, i64)>>,
    /// Each with the namespace that it is about, where it is about one.
    alarms: Mutex<Vec<Alarm>>,
    /// The last look has shown something, and nothing was absent.
    is_all_well: AtomicBool,
}

impl Watch {
    /// The leader has told the median of the voters' clocks, at that moment in milliseconds since boot.
    pub(crate) fn told(&self, median: Stamp, now_ms: i64) {
        *self.median.lock().unwrap_or_else(PoisonError::into_inner) = Some((median.0 - now_ms, now_ms));
    }

    fn now(&self, now_ms: i64) -> Option<Stamp> {
        let told = *self.median.lock().unwrap_or_else(PoisonError::into_inner);
        told.filter(|(_, at_ms)| now_ms - at_ms <= TOLD_MS).map(|(offset_ms, _)| Stamp(offset_ms + now_ms))
    }

    /// What is absent at this moment, as far as it is about what is asked for: a namespace, or none.
    pub(crate) fn alarms(&self, is_asked: impl Fn(Option<&str>) -> bool) -> Vec<String> {
        let alarms = self.alarms.lock().unwrap_or_else(PoisonError::into_inner);
        alarms.iter().filter(|(_, about)| is_asked(about.as_deref())).map(|(alarm, _)| alarm.clone()).collect()
    }

    /// Whether this node sees at this moment that nothing is absent; no where it sees nothing.
    pub(crate) fn is_all_well(&self) -> bool {
        self.is_all_well.load(Ordering::Relaxed)
    }
}

/// Whose clock is too far from the leader's, as the leader sees it.
fn clocks(host: &Host) -> Vec<String> {
    let Some(reign) = host.reign() else { return Vec::new() };
    let others: Vec<u64> = host.replica.read(|state| state.nodes().map(|(node, _)| *node).collect());
    let far = others.into_iter().filter(|node| *node != host.replica.node());
    let far = far.filter_map(|node| Some((node, reign.ahead_ms(node)?)).filter(|(_, ms)| ms.abs() > AHEAD_MS_MAX));
    // Without the figure, which changes with every look: it is one alarm.
    far.map(|(node, ms)| {
        format!("node {node}: its clock is {} the leader's", if ms > 0 { "ahead of" } else { "behind" })
    })
    .collect()
}

/// Looks for as long as the host runs. An alarm is raised once, and taken back when what was absent has come.
pub(crate) async fn watch(host: Host) {
    let mut raised: BTreeSet<Alarm> = BTreeSet::new();
    let mut is_blind = false;
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        // Of what was committed before, everything: a node that lags must not raise what has long been done.
        let seen = host.replica.catch_up().await;
        let (Ok(()), Some(now)) = (&seen, host.watch.now(host.clock.since_boot_ms())) else {
            host.watch.is_all_well.store(false, Ordering::Relaxed);
            if !std::mem::replace(&mut is_blind, true) {
                let why = seen.err().map_or("no leader has told the time".into(), |error| error.to_string());
                tracing::warn!(why, "this node cannot see whether ticks are decided");
            }
            continue;
        };
        is_blind = false;
        let absent = host.replica.read(|state| absences(state, now, ALARMS_MAX));
        let of_jobs = absent.into_iter().map(|absence| (absence.to_string(), Some(absence.job.namespace)));
        let of_all = restore::hold(&host).into_iter().chain(clocks(&host)).map(|alarm| (alarm, None));
        let absent: BTreeSet<Alarm> = of_jobs.chain(of_all).collect();
        for (alarm, _) in absent.difference(&raised) {
            tracing::error!(alarm, "something did not happen");
        }
        for (alarm, _) in raised.difference(&absent) {
            tracing::info!(alarm, "it has happened after all");
        }
        host.watch.is_all_well.store(absent.is_empty(), Ordering::Relaxed);
        *host.watch.alarms.lock().unwrap_or_else(PoisonError::into_inner) = absent.iter().cloned().collect();
        raised = absent;
    }
}
