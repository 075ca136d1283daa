//! The durable table of runs, in a column family beside the log. It is in no snapshot and no backup: it speaks
//! for this disk and no other.

use std::io;

use serde::{Deserialize, Serialize};
use tickhost_ledger::{Grant, RunId, effect::EffectResult, launch::Outcome, rows::Usage};
use tickhost_replica::{
    Db,
    db::{OUTPUTS, RUNS, Waiting},
};
use tickhost_sandbox::OutputText;
use uuid::Uuid;

use crate::order::Floor;

/// The rows of the table itself. Runs' names begin with a namespace, so they cannot be one of them.
const OWN: u8 = 0;
const STORE: &[u8] = b"\0store";
const SEQUENCE: &[u8] = b"\0sequence";
const FLOOR: &[u8] = b"\0floor";

/// A run as the executor knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RunRow {
    /// The run.
    pub(crate) run: RunId,
    /// Its right to act; absent on a tombstone for a run that never arrived.
    pub(crate) grant: Option<Grant>,
    /// Where it stands.
    pub(crate) status: RunStatus,
}

/// Where a run stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum RunStatus {
    /// It is here; no guest instruction has run.
    Accepted,
    /// The first guest instruction may have run.
    Running,
    /// It is over, and the ledger may not know yet.
    Finished {
        /// How it ended.
        outcome: Outcome,
        /// What it used.
        usage: Usage,
        /// Results of effects that ride with the report.
        results: Vec<(Uuid, EffectResult)>,
    },
    /// It was running when the process ended.
    Lost,
    /// It never started and never will.
    Tombstone,
}

#[derive(Clone)]
pub(crate) struct Table {
    db: Db,
    pub(crate) store: Uuid,
}

impl Table {
    /// Opens the table, and settles what an earlier process left: what was only accepted never started, what was
    /// running is lost. Not synced yet.
    pub(crate) fn open(db: Db) -> io::Result<Self> {
        let store = match db.get(RUNS, STORE)? {
            Some(store) => store,
            None => {
                let store = Uuid::new_v4();
                db.put(RUNS, STORE, &store)?;
                store
            }
        };
        let table = Self { db, store };
        for row in table.rows()? {
            let status = match row.status {
                RunStatus::Accepted => RunStatus::Tombstone,
                RunStatus::Running => RunStatus::Lost,
                RunStatus::Finished { .. } | RunStatus::Lost | RunStatus::Tombstone => continue,
            };
            table.put(&RunRow { status, ..row })?;
        }
        Ok(table)
    }

    pub(crate) fn rows(&self) -> io::Result<Vec<RunRow>> {
        let rows = self.db.scan(RUNS, b"")?;
        let runs = rows.into_iter().filter(|(key, _)| key.first() != Some(&OWN));
        runs.map(|(_, value)| tickhost_ledger::codec::decode(&value).map_err(io::Error::other)).collect()
    }

    pub(crate) fn sequence(&self) -> io::Result<u64> {
        Ok(self.db.get(RUNS, SEQUENCE)?.unwrap_or_default())
    }

    /// The next number for a session that is asked for. On the disk before it is used.
    pub(crate) async fn next_sequence(&self) -> io::Result<u64> {
        let next = self.sequence()? + 1;
        self.db.put(RUNS, SEQUENCE, &next)?;
        self.sync_now().await;
        Ok(next)
    }

    /// The leader below which nobody is obeyed.
    pub(crate) fn floor(&self) -> io::Result<Floor> {
        Ok(self.db.get(RUNS, FLOOR)?.unwrap_or_default())
    }

    /// Raises it. On the disk before anything is answered.
    pub(crate) async fn raise_floor(&self, floor: Floor) -> io::Result<()> {
        self.db.put(RUNS, FLOOR, &floor)?;
        self.sync_now().await;
        Ok(())
    }

    pub(crate) fn get(&self, run: &RunId) -> io::Result<Option<RunRow>> {
        self.db.get(RUNS, run.to_string().as_bytes())
    }

    /// Written, not synced.
    pub(crate) fn put(&self, row: &RunRow) -> io::Result<()> {
        self.db.put(RUNS, row.run.to_string().as_bytes(), row)
    }

    /// Forgets a run whose end the ledger has: it never gives the same attempt out again.
    pub(crate) fn forget(&self, run: &RunId) -> io::Result<()> {
        self.db.delete(RUNS, run.to_string().as_bytes())
    }

    /// For a launch among others.
    pub(crate) async fn sync(&self) {
        self.db.sync(Waiting::Launches(1)).await;
    }

    /// For a leader that waits.
    pub(crate) async fn sync_now(&self) {
        self.db.sync(Waiting::Somebody).await;
    }

    pub(crate) fn put_output(&self, run: &RunId, output: &OutputText) -> io::Result<()> {
        self.db.put(OUTPUTS, run.to_string().as_bytes(), output)
    }

    pub(crate) fn output(&self, run: &RunId) -> io::Result<Option<OutputText>> {
        self.db.get(OUTPUTS, run.to_string().as_bytes())
    }

    /// The runs that have an output.
    pub(crate) fn outputs(&self) -> io::Result<Vec<String>> {
        let keys = self.db.keys(OUTPUTS)?;
        keys.into_iter().map(|key| String::from_utf8(key.into()).map_err(io::Error::other)).collect()
    }

    pub(crate) fn forget_output(&self, run: &str) -> io::Result<()> {
        self.db.delete(OUTPUTS, run.as_bytes())
    }
}
