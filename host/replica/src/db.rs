//! The database: one store with one write-ahead log, and the rules of what is synced when.
//!
//! Everything is written unsynced first and made durable by [`Db::sync`], which groups whoever waits. What the
//! caller may say or do only after the sync is in the callback. State is written unsynced, together with the
//! index it stands for: what a crash takes away is applied again from the log.
//!
//! A failed sync ends the process. The kernel may have dropped the pages and report success the next time, so
//! it is never retried.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::{Serialize, de::DeserializeOwned};
use tickhost_ledger::codec;
use tokio::sync::oneshot;

pub use crate::store::Waiting;
use crate::{
    rocks::RocksStore,
    store::{Batch, FloorRecord, Read, Row, Rows, Store},
};

/// What this version writes. A directory with another one is refused.
const FORMAT: u32 = 1;
const FORMAT_KEY: &[u8] = b"format";

/// Raft's log, by index.
pub(crate) const LOG: &str = "log";
/// Single values: format, vote, committed, last applied.
pub(crate) const META: &str = "meta";
/// The rows of the state, by generation and row key.
pub(crate) const STATE: &str = "state";
/// The executor's table of runs.
pub const RUNS: &str = "runs";
/// What runs wrote and logged.
pub const OUTPUTS: &str = "outputs";
pub(crate) const FAMILIES: [&str; 5] = [LOG, META, STATE, RUNS, OUTPUTS];

/// Why a data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// RocksDB cannot open it.
    #[error("open the database in `{dir}`: {source}; {}", what_to_do(source))]
    Rocks {
        /// The directory.
        dir: PathBuf,
        /// Why.
        source: rocksdb::Error,
    },
    /// The file system refuses.
    #[error("{what} `{path}`: {source}")]
    Io {
        /// What was done.
        what: &'static str,
        /// To what.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It was written by another version.
    #[error("`{dir}` has format {found}, this version reads format {FORMAT}; run the version that wrote it")]
    Format {
        /// The directory.
        dir: PathBuf,
        /// What it says.
        found: u32,
    },
    /// The log ends below what this node has promised: the disk lost writes, or the directory was copied back.
    #[error(
        "`{dir}` has lost part of its log: {found}, but {floor} had been synced; a node that forgot what it \
         promised must not vote. Restore a backup, or remove the directory and join as a new node"
    )]
    BelowFloor {
        /// The directory.
        dir: PathBuf,
        /// What is there.
        found: String,
        /// What had been synced.
        floor: String,
    },
    /// A row cannot be read.
    #[error("read `{dir}`: {why}")]
    Damaged {
        /// The directory.
        dir: PathBuf,
        /// Why.
        why: String,
    },
    /// Raft does not start.
    #[error("start raft on `{dir}`: {why}")]
    Raft {
        /// The directory.
        dir: PathBuf,
        /// Why.
        why: String,
    },
}

fn what_to_do(error: &rocksdb::Error) -> &'static str {
    match error.kind() {
        rocksdb::ErrorKind::Corruption => {
            "the disk holds something else than was written, and a node that forgot what it promised must not vote: \
             restore a backup, or remove the directory and join as a new node"
        }
        _ => "if another tickhost runs on this directory, stop it first",
    }
}

impl OpenError {
    /// An error of the file system.
    pub fn io(what: &'static str, path: &Path, source: std::io::Error) -> Self {
        Self::Io { what, path: path.to_owned(), source }
    }
}

/// The database of a node. Clones share it.
#[derive(Clone)]
pub struct Db {
    store: Arc<dyn Store>,
    dir: PathBuf,
}

impl Db {
    /// Opens or creates the database in a directory.
    ///
    /// # Errors
    /// A directory that is in use, damaged, of another format, or not writable.
    pub fn open(dir: &Path) -> Result<Self, OpenError> {
        Self::over(Arc::new(RocksStore::open(dir)?), dir)
    }

    /// The database in a store; snapshots lie as files in the directory.
    ///
    /// # Errors
    /// A store that is damaged or of another format.
    pub fn over(store: Arc<dyn Store>, dir: &Path) -> Result<Self, OpenError> {
        let db = Self { store, dir: dir.to_owned() };
        db.check_format()?;
        Ok(db)
    }

    fn check_format(&self) -> Result<(), OpenError> {
        let damaged = |e: io::Error| OpenError::Damaged { dir: self.dir.clone(), why: e.to_string() };
        match self.get::<u32>(META, FORMAT_KEY).map_err(damaged)? {
            Some(FORMAT) => Ok(()),
            Some(found) => Err(OpenError::Format { dir: self.dir.clone(), found }),
            None => self.put(META, FORMAT_KEY, &FORMAT).map_err(damaged),
        }
    }

    /// Forgets the group that this node belonged to: log, vote and state. Synced.
    ///
    /// # Errors
    /// The store's.
    pub async fn forget_group(&self) -> io::Result<()> {
        self.raise_floor(|floor| *floor = FloorRecord::default(), true);
        let mut batch = Batch::default();
        for family in [LOG, META, STATE] {
            for row in self.rows(family, b"")? {
                let (key, _) = row?;
                if *key != *FORMAT_KEY {
                    batch.delete(family, key);
                }
            }
        }
        self.write(batch)?;
        self.sync(Waiting::Somebody).await;
        Ok(())
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Bytes that are free for it.
    ///
    /// # Errors
    /// The device's.
    pub fn free_bytes(&self) -> io::Result<u64> {
        self.store.free_bytes()
    }

    /// Reads a value.
    ///
    /// # Errors
    /// The store's, and values that cannot be decoded.
    pub fn get<T: DeserializeOwned>(&self, family: &'static str, key: &[u8]) -> io::Result<Option<T>> {
        match self.store.get(family, key)? {
            Some(bytes) => codec::decode(&bytes).map(Some).map_err(io::Error::other),
            None => Ok(None),
        }
    }

    /// Writes a value, unsynced.
    ///
    /// # Errors
    /// The store's.
    pub fn put<T: Serialize>(&self, family: &'static str, key: &[u8], value: &T) -> io::Result<()> {
        let mut batch = Batch::default();
        batch.put(family, key, codec::encode(value).map_err(io::Error::other)?);
        self.write(batch)
    }

    /// Removes a value, unsynced.
    ///
    /// # Errors
    /// The store's.
    pub fn delete(&self, family: &'static str, key: &[u8]) -> io::Result<()> {
        let mut batch = Batch::default();
        batch.delete(family, key);
        self.write(batch)
    }

    /// Writes a batch in one, unsynced.
    ///
    /// # Errors
    /// The store's.
    pub fn write(&self, batch: Batch) -> io::Result<()> {
        self.store.write(batch)
    }

    /// The rows of a family from a key on.
    ///
    /// # Errors
    /// The store's.
    pub(crate) fn rows(&self, family: &'static str, from: &[u8]) -> io::Result<Rows<'_>> {
        self.store.rows(family, from)
    }

    pub(crate) fn last(&self, family: &'static str) -> io::Result<Option<Row>> {
        self.store.last(family)
    }

    /// What is there now, whatever is written meanwhile.
    pub(crate) fn view(&self) -> Box<dyn Read + '_> {
        self.store.view()
    }

    /// Every row of a family whose key begins with `prefix`.
    ///
    /// # Errors
    /// The store's.
    pub fn scan(&self, family: &'static str, prefix: &[u8]) -> io::Result<Vec<Row>> {
        let rows = self.rows(family, prefix)?;
        rows.take_while(|row| row.as_ref().map_or(true, |(key, _)| key.starts_with(prefix))).collect()
    }

    /// Every key of a family, without its values.
    ///
    /// # Errors
    /// The store's.
    pub fn keys(&self, family: &'static str) -> io::Result<Vec<Box<[u8]>>> {
        self.rows(family, b"")?.map(|row| row.map(|(key, _)| key)).collect()
    }

    /// Runs `then` once everything written so far is on the disk.
    pub fn sync_then(&self, who: Waiting, then: impl FnOnce() + Send + 'static) {
        self.store.sync_then(who, Box::new(then));
    }

    /// Returns once everything written so far is on the disk.
    pub async fn sync(&self, who: Waiting) {
        let (done, synced) = oneshot::channel();
        self.sync_then(who, move || {
            let _ = done.send(());
        });
        // The store lives as long as this handle and ends the process rather than drop a request.
        let _ = synced.await;
    }

    /// How often the write-ahead log was synced since the start.
    pub fn sync_count(&self) -> u64 {
        self.store.sync_count()
    }

    /// Does what may wait for a device away from the threads that serve.
    ///
    /// # Errors
    /// The work's.
    pub(crate) async fn off_thread<R: Send + 'static>(
        &self,
        work: impl FnOnce() -> io::Result<R> + Send + 'static,
    ) -> io::Result<R> {
        if !self.store.waits() {
            return work();
        }
        tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
    }

    /// Notes what a log must not fall below. Synced at once where `durable`.
    pub(crate) fn raise_floor(&self, mut change: impl FnMut(&mut FloorRecord), durable: bool) {
        self.store.change_floor(&mut change, durable);
    }

    pub(crate) fn floor(&self) -> FloorRecord {
        self.store.floor()
    }
}
