//! What no command of its own tells the audit log: what was begun outside of the ledger, and what was refused. Refusals
//! are counted where the same is asked again and again, and written some at a time, so that nobody fills the log by
//! asking.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tickhost_ledger::{
    Command, Stamp,
    access::{Audited, Became},
    command::IDENTITY,
};
use tokio::sync::Notify;

use crate::{cluster, host::Host};

/// Refusals that are kept one by one until they are written; more than these are counted as one.
const APART_MAX: usize = 100;
/// From one entry of the log to the next.
const EVERY: Duration = Duration::from_millis(500);
/// After a leader that did not answer.
const PAUSE: Duration = Duration::from_secs(2);
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Letters of a path or of a reason that are kept.
const TEXT_MAX: usize = 300;

/// Who asked for what, and why not.
type Refused = (String, String, String, String);

/// What was refused here and is not written yet.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    pending: Mutex<BTreeMap<Refused, (Stamp, u64)>>,
    some: Notify,
}

impl Refusals {
    /// One more.
    pub(crate) fn add(&self, at: Stamp, by: &str, what: &str, on: &str, why: &str) {
        let short = |text: &str| text.chars().take(TEXT_MAX).collect::<String>();
        let mut key = (short(by), short(what), short(on), short(why));
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        if pending.len() >= APART_MAX && !pending.contains_key(&key) {
            // No token has this name.
            let all = || "*".to_owned();
            key = (all(), all(), all(), "more was refused than is kept one by one".into());
        }
        let row = pending.entry(key).or_default();
        *row = (at, row.1 + 1);
        self.some.notify_one();
    }

    fn take(&self) -> Vec<Audited> {
        let pending = std::mem::take(&mut *self.pending.lock().unwrap_or_else(PoisonError::into_inner));
        let record =
            |((by, what, on, why), (at, times))| Audited { at, by, what, on, became: Became::Refused(why), times };
        let mut records: Vec<Audited> = pending.into_iter().map(record).collect();
        records.sort_by_key(|record| record.at);
        records
    }
}

/// Writes them for as long as the host runs.
pub(crate) async fn keep(host: Host) {
    loop {
        host.refusals.some.notified().await;
        // The next ones ride with this one.
        tokio::time::sleep(EVERY).await;
        let records = host.refusals.take();
        while let Err(error) = write(&host, &records).await {
            tracing::warn!(error, records = records.len(), "write what was refused to the audit log");
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Writes that somebody has begun something that the ledger does not do.
///
/// # Errors
/// A sentence for the one who asked: it must not be done unwritten.
pub(crate) async fn begun(host: &Host, by: String, what: &str, on: String) -> Result<(), String> {
    let record = Audited { at: host.clock.now(), by, what: what.into(), on, became: Became::Begun, times: 1 };
    write(host, &[record]).await.map_err(|error| format!("write it to the audit log first: {error}"))
}

/// Has the leader write them: twice, where its answer was lost.
async fn write(host: &Host, records: &[Audited]) -> Result<(), String> {
    // Not every node knows of them yet.
    if host.replica.read(|state| state.level()) < IDENTITY {
        return Ok(());
    }
    let leader = *host.replica.leader().borrow();
    match leader {
        None => Err("there is no leader".into()),
        Some(leader) if leader == host.replica.node() => put(host, records.to_vec()).await,
        Some(leader) => {
            let asked = host.replica.peers().ask(leader, "/leader/audit", &records, ANSWER_WITHIN);
            asked.await.map_err(|error| error.to_string())
        }
    }
}

/// Whether another node may say that: never that something was done.
pub(crate) fn may_be_told(records: &[Audited]) -> bool {
    records.iter().all(|record| matches!(record.became, Became::Refused(_) | Became::Begun))
}

/// Writes them, as the leader.
pub(crate) async fn put(host: &Host, records: Vec<Audited>) -> Result<(), String> {
    cluster::propose(host, Command::Audit { records }).await.map(|_| ()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_again_is_counted_and_a_flood_is_one_record() {
        let refusals = Refusals::default();
        for n in 0..3 {
            refusals.add(Stamp(n), "mallory@10.0.0.66", "PUT", "/v1/jobs/b/x", "no");
        }
        let records = refusals.take();
        assert_eq!(records.len(), 1);
        assert_eq!((records[0].at, records[0].times), (Stamp(2), 3));

        for n in 0..1_000 {
            refusals.add(Stamp(n), "mallory@10.0.0.66", "PUT", &format!("/v1/jobs/b/x{n}"), "no");
        }
        let long = "ä".repeat(100_000);
        refusals.add(Stamp(5), &long, &long, &long, &long);
        let records = refusals.take();
        assert_eq!(records.len(), APART_MAX + 1);
        assert_eq!(records.iter().map(|record| record.times).sum::<u64>(), 1_001);
        assert!(records.iter().all(|record| record.by.len() <= 2 * TEXT_MAX), "a long one is cut");
        assert!(refusals.take().is_empty());
    }
}
