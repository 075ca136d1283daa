//! Raft's log and vote in RocksDB.

use std::{
    fmt::Debug,
    io,
    ops::{Bound, RangeBounds},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use openraft::{
    EntryPayload, OptionalSend,
    alias::{EntryOf, LogIdOf, PayloadOf, VoteOf},
    entry::RaftEntry,
    storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage},
};
use tickhost_ledger::{Command, codec, command::Stamped};

use crate::{
    db::{Db, LOG, META, OpenError, Waiting},
    fault,
    raft::Types,
    store::Batch,
    tail::Tail,
};

/// Bytes of entries that are sent to a node at once, about: it has to have them on its disk within the time of an append.
const APPEND_BYTES_MAX: usize = 2 << 20;
const VOTE: &[u8] = b"vote";
const COMMITTED: &[u8] = b"committed";
const PURGED: &[u8] = b"purged";

/// The log of a node.
#[derive(Clone)]
pub(crate) struct LogStore {
    db: Db,
    tail: Arc<Mutex<Tail>>,
}

impl LogStore {
    /// # Errors
    /// A log or a vote below what the node had promised: it must not take part.
    pub(crate) fn open(db: Db) -> Result<Self, OpenError> {
        let store = Self { db, tail: Arc::default() };
        let floor = store.db.floor();
        let damaged = |e: io::Error| OpenError::Damaged { dir: store.db.dir().to_owned(), why: e.to_string() };
        let last = store.last().map_err(damaged)?.map_or(0, |id| id.index);
        let vote: Option<VoteOf<Types>> = store.db.get(META, VOTE).map_err(damaged)?;
        let term = vote.map_or(0, |v| v.leader_id.term);
        if last < floor.last_index || term < floor.term {
            return Err(OpenError::BelowFloor {
                dir: store.db.dir().to_owned(),
                found: format!("its log ends at {last} in term {term}"),
                floor: format!("index {} in term {}", floor.last_index, floor.term),
            });
        }
        Ok(store)
    }

    fn tail(&self) -> MutexGuard<'_, Tail> {
        self.tail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn last(&self) -> io::Result<Option<LogIdOf<Types>>> {
        match self.db.last(LOG)? {
            Some((_, value)) => {
                let entry: EntryOf<Types> = codec::decode(&value).map_err(io::Error::other)?;
                Ok(Some(entry.log_id()))
            }
            None => self.purged(),
        }
    }

    /// The entries in a range: at least one, and no more once they have that many bytes.
    fn entries(&self, range: &impl RangeBounds<u64>, bytes_max: usize) -> io::Result<Vec<EntryOf<Types>>> {
        let start = match range.start_bound() {
            Bound::Included(index) => *index,
            Bound::Excluded(index) => index + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(index) => index + 1,
            Bound::Excluded(index) => *index,
            Bound::Unbounded => u64::MAX,
        };
        if let Some(entries) = self.tail().entries(start..end, bytes_max) {
            return Ok(entries);
        }
        let (mut entries, mut bytes) = (Vec::new(), 0);
        for row in self.db.rows(LOG, &start.to_be_bytes())? {
            let (_, value) = row?;
            let entry: EntryOf<Types> = codec::decode(&value).map_err(io::Error::other)?;
            if entry.index() >= end || bytes >= bytes_max {
                break;
            }
            bytes += value.len();
            entries.push(entry);
        }
        Ok(entries)
    }

    fn purged(&self) -> io::Result<Option<LogIdOf<Types>>> {
        self.db.get(META, PURGED)
    }

    fn delete(&self, from: u64, to: u64) -> io::Result<()> {
        let mut batch = Batch::default();
        batch.delete_range(LOG, from, to);
        self.db.write(batch)
    }
}

/// How many launches an entry is about; `None` where somebody else waits for it too.
fn launches(payload: &PayloadOf<Types>) -> Option<usize> {
    let EntryPayload::Normal(request) = payload else { return None };
    let is_of_a_launch = |stamped: &Stamped| {
        matches!(
            stamped.command,
            Command::Decide(_)
                | Command::Intend { .. }
                | Command::Start { .. }
                | Command::End { .. }
                | Command::Enter { .. }
                | Command::Expire { .. }
                | Command::IntendEffect { .. }
                | Command::WriteKv { .. }
        )
    };
    request.0.commands.iter().all(is_of_a_launch).then_some(request.0.commands.len())
}

impl RaftLogReader<Types> for LogStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<EntryOf<Types>>, io::Error> {
        self.entries(&range, usize::MAX)
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Result<Vec<EntryOf<Types>>, io::Error> {
        self.entries(&(start..end), APPEND_BYTES_MAX)
    }

    async fn read_vote(&mut self) -> Result<Option<VoteOf<Types>>, io::Error> {
        self.db.get(META, VOTE)
    }
}

impl RaftLogStorage<Types> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, io::Error> {
        Ok(LogState { last_purged_log_id: self.purged()?, last_log_id: self.last()? })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &VoteOf<Types>) -> Result<(), io::Error> {
        if fault::planted("forget-the-vote") {
            return Ok(());
        }
        self.db.put(META, VOTE, vote)?;
        self.db.sync(Waiting::Somebody).await;
        let term = vote.leader_id.term;
        self.db.raise_floor(|floor| floor.term = term, true);
        Ok(())
    }

    async fn save_committed(&mut self, committed: Option<LogIdOf<Types>>) -> Result<(), io::Error> {
        // Unsynced: it only saves time at the next start.
        self.db.put(META, COMMITTED, &committed)
    }

    async fn read_committed(&mut self) -> Result<Option<LogIdOf<Types>>, io::Error> {
        Ok(self.db.get::<Option<LogIdOf<Types>>>(META, COMMITTED)?.flatten())
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Types>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = EntryOf<Types>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut batch = Batch::default();
        let (mut who, mut last) = (Waiting::Launches(0), 0);
        let mut appended = Vec::new();
        for entry in entries {
            who = match (who, launches(&entry.payload)) {
                (Waiting::Launches(before), Some(launches)) => Waiting::Launches(before + launches),
                _ => Waiting::Somebody,
            };
            last = entry.index();
            let bytes = codec::encode(&entry).map_err(io::Error::other)?;
            appended.push((entry, bytes.len()));
            batch.put(LOG, last.to_be_bytes(), bytes);
        }
        self.db.write(batch)?;
        let mut tail = self.tail();
        appended.into_iter().for_each(|(entry, bytes)| tail.push(entry, bytes));
        drop(tail);
        if fault::planted("acknowledge-unsynced") {
            callback.io_completed(Ok(()));
            return Ok(());
        }
        let db = self.db.clone();
        self.db.sync_then(who, move || {
            // Not synced: a floor that lags behind only notices less.
            db.raise_floor(|floor| floor.last_index = floor.last_index.max(last), false);
            callback.io_completed(Ok(()));
        });
        Ok(())
    }

    async fn truncate_after(&mut self, last: Option<LogIdOf<Types>>) -> Result<(), io::Error> {
        let keep = last.map_or(0, |id| id.index);
        // What waits for a sync would raise the floor again afterwards.
        self.db.sync(Waiting::Somebody).await;
        // First the promise is taken back: in between, a crash leaves a log above its floor.
        self.db.raise_floor(|floor| floor.last_index = floor.last_index.min(keep), true);
        let from = last.map_or(0, |id| id.index + 1);
        self.tail().cut(from);
        self.delete(from, u64::MAX)?;
        self.db.sync(Waiting::Somebody).await;
        Ok(())
    }

    async fn purge(&mut self, log_id: LogIdOf<Types>) -> Result<(), io::Error> {
        // The state that stands for these entries is on disk before they go.
        self.db.sync(Waiting::Somebody).await;
        self.tail().purge(log_id.index);
        let mut batch = Batch::default();
        batch.put(META, PURGED, codec::encode(&Some(log_id)).map_err(io::Error::other)?);
        batch.delete_range(LOG, 0, log_id.index + 1);
        self.db.write(batch)?;
        self.db.sync(Waiting::Somebody).await;
        Ok(())
    }
}
