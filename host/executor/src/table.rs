//! The durable table of runs, in a column family beside the log. It is in no snapshot and no backup: it speaks
//! for this disk and no other.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use serde::{Deserialize, Serialize};
use tickhost_ledger::{Grant, RunId, codec, effect::EffectResult, launch::Outcome, rows::Usage};
use tickhost_replica::{
    Db,
    db::{OUTPUTS, RUNS, Waiting},
    store::Batch,
};
use tickhost_sandbox::OutputText;
use uuid::Uuid;

use crate::order::Floor;

/// The rows of the table itself. Runs' names begin with a namespace, so they cannot be one of them.
const OWN: u8 = 0;
const STORE: &[u8] = b"\0store";
const SEQUENCE: &[u8] = b"\0sequence";
const FLOOR: &[u8] = b"\0floor";
const CLUSTER: &[u8] = b"\0cluster";

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
    sequence: Arc<Mutex<u64>>,
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
        let sequence = Arc::new(Mutex::new(db.get(RUNS, SEQUENCE)?.unwrap_or_default()));
        let table = Self { db, store, sequence };
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
        runs.map(|(_, value)| codec::decode(&value).map_err(io::Error::other)).collect()
    }

    fn lock_sequence(&self) -> MutexGuard<'_, u64> {
        self.sequence.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the sessions that were asked for and the runs that were accepted. The ledger remembers it: a table that goes
    /// back shows itself by it.
    pub(crate) fn sequence(&self) -> u64 {
        *self.lock_sequence()
    }

    /// The next number for a session that is asked for. On the disk before it is used.
    pub(crate) async fn next_sequence(&self) -> io::Result<u64> {
        let next = {
            let mut sequence = self.lock_sequence();
            self.db.put(RUNS, SEQUENCE, &(*sequence + 1))?;
            *sequence += 1;
            *sequence
        };
        self.sync_now().await;
        Ok(next)
    }

    /// Takes a run in, and counts it in the same write. Not synced.
    pub(crate) fn accept(&self, row: &RunRow) -> io::Result<u64> {
        let mut sequence = self.lock_sequence();
        let mut batch = Batch::default();
        batch.put(RUNS, SEQUENCE, codec::encode(&(*sequence + 1)).map_err(io::Error::other)?);
        batch.put(RUNS, row.run.to_string(), codec::encode(row).map_err(io::Error::other)?);
        self.db.write(batch)?;
        *sequence += 1;
        Ok(*sequence)
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

/// Lets the run table of a stopped node go over into an epoch that began with a restore. From then on nobody from before
/// is obeyed; what was run before is forgotten, since nobody asks for it any more. On the disk when this returns.
///
/// # Errors
/// A sentence: a table that cannot be written, or has obeyed somebody of that epoch or a later one.
pub async fn enter_epoch(db: &Db, cluster: Uuid, epoch: u64) -> Result<(), String> {
    let io = |e: io::Error| format!("the run table: {e}");
    let table = Table::open(db.clone()).map_err(io)?;
    let floor = table.floor().map_err(io)?;
    let entered: Option<Uuid> = db.get(RUNS, CLUSTER).map_err(io)?;
    if floor.epoch > epoch || floor.epoch == epoch && entered != Some(cluster) {
        return Err(format!(
            "the run table here has obeyed a leader of epoch {}, and cluster {cluster} is in epoch {epoch}: only a node \
             from before a restore can go over to what was restored",
            floor.epoch
        ));
    }
    for row in table.rows().map_err(io)? {
        table.forget(&row.run).map_err(io)?;
    }
    db.put(RUNS, CLUSTER, &cluster).map_err(io)?;
    table.raise_floor(floor.max(Floor { epoch, term: 0 })).await.map_err(io)
}
