//! The database: one RocksDB with one write-ahead log, and the rules of what is synced when.
//!
//! Everything is written unsynced first and made durable by [`Db::sync`], which groups whoever waits. What the
//! caller may say or do only after the sync is in the callback. State is written unsynced, together with the
//! index it stands for: what a crash takes away is applied again from the log.
//!
//! A failed sync ends the process. The kernel may have dropped the pages and report success the next time, so
//! it is never retried.

use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use rocksdb::{
    BoundColumnFamily, ColumnFamilyDescriptor, DBRecoveryMode, DBWithThreadMode, MultiThreaded, Options, WriteBatch,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tickhost_ledger::codec;
use tokio::sync::oneshot;

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
const FAMILIES: [&str; 5] = [LOG, META, STATE, RUNS, OUTPUTS];

/// While more launches than this wait for a sync within [`BUSY_PACE`], syncs keep that distance: one for many
/// launches instead of one each. Below it nobody waits.
const BUSY_LAUNCHES: f64 = 32.0;
/// How far apart syncs are in a burst, counted from start to start: this much at most is added to the lateness of
/// each launch, twice.
const BUSY_PACE: Duration = Duration::from_millis(40);

type Rocks = DBWithThreadMode<MultiThreaded>;
type Callback = Box<dyn FnOnce() + Send>;
/// A key and its value.
pub type Row = (Box<[u8]>, Box<[u8]>);

/// Why a data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// RocksDB cannot open it.
    #[error("open the database in `{dir}`: {source}; if another tickhost runs on this directory, stop it first")]
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

impl OpenError {
    /// An error of the file system.
    pub fn io(what: &'static str, path: &Path, source: std::io::Error) -> Self {
        Self::Io { what, path: path.to_owned(), source }
    }
}

/// The database of a node. Clones share it.
#[derive(Clone)]
pub struct Db {
    rocks: Arc<Rocks>,
    sync: Arc<SyncThread>,
    dir: PathBuf,
}

impl Db {
    /// Opens or creates the database in a directory.
    ///
    /// # Errors
    /// A directory that is in use, damaged, of another format, or not writable.
    pub fn open(dir: &Path) -> Result<Self, OpenError> {
        std::fs::create_dir_all(dir).map_err(|e| OpenError::io("create", dir, e))?;
        let mut options = Options::default();
        options.create_if_missing(true);
        options.create_missing_column_families(true);
        // A tail torn by a crash was never acknowledged; the floor below tells a lost one from it.
        options.set_wal_recovery_mode(DBRecoveryMode::TolerateCorruptedTailRecords);
        options.set_max_total_wal_size(256 << 20);
        options.set_keep_log_file_num(4);
        let families = FAMILIES.map(|name| ColumnFamilyDescriptor::new(name, Options::default()));
        let rocks = Rocks::open_cf_descriptors(&options, dir.join("db"), families)
            .map_err(|source| OpenError::Rocks { dir: dir.to_owned(), source })?;
        let rocks = Arc::new(rocks);
        let floor = Floor::open(&dir.join("floor"))?;
        let sync = Arc::new(SyncThread::start(rocks.clone(), floor)?);
        let db = Self { rocks, sync, dir: dir.to_owned() };
        db.check_format()?;
        Ok(db)
    }

    fn check_format(&self) -> Result<(), OpenError> {
        let damaged = |e: std::io::Error| OpenError::Damaged { dir: self.dir.clone(), why: e.to_string() };
        match self.get::<u32>(META, FORMAT_KEY).map_err(damaged)? {
            Some(FORMAT) => Ok(()),
            Some(found) => Err(OpenError::Format { dir: self.dir.clone(), found }),
            None => self.put(META, FORMAT_KEY, &FORMAT).map_err(damaged),
        }
    }

    /// Forgets the group that this node belonged to: log, vote and state. Synced.
    ///
    /// # Errors
    /// RocksDB's.
    pub async fn forget_group(&self) -> std::io::Result<()> {
        self.raise_floor(|floor| *floor = FloorRecord::default(), true);
        let mut batch = WriteBatch::default();
        for family in [LOG, META, STATE] {
            let family = self.family(family)?;
            for row in self.rocks.iterator_cf(&family, rocksdb::IteratorMode::Start) {
                let (key, _) = row.map_err(std::io::Error::other)?;
                if *key != *FORMAT_KEY {
                    batch.delete_cf(&family, key);
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

    pub(crate) fn rocks(&self) -> &Rocks {
        &self.rocks
    }

    /// A column family, for a batch.
    ///
    /// # Errors
    /// A name that is none of this module's.
    pub fn family(&self, name: &str) -> std::io::Result<Arc<BoundColumnFamily<'_>>> {
        self.rocks.cf_handle(name).ok_or_else(|| std::io::Error::other(format!("no column family `{name}`")))
    }

    /// Reads a value.
    ///
    /// # Errors
    /// RocksDB's, and values that cannot be decoded.
    pub fn get<T: DeserializeOwned>(&self, family: &str, key: &[u8]) -> std::io::Result<Option<T>> {
        match self.get_bytes(family, key)? {
            Some(bytes) => codec::decode(&bytes).map(Some).map_err(std::io::Error::other),
            None => Ok(None),
        }
    }

    /// Reads a value's bytes.
    ///
    /// # Errors
    /// RocksDB's.
    pub fn get_bytes(&self, family: &str, key: &[u8]) -> std::io::Result<Option<Vec<u8>>> {
        self.rocks.get_cf(&self.family(family)?, key).map_err(std::io::Error::other)
    }

    /// Writes a value, unsynced.
    ///
    /// # Errors
    /// RocksDB's.
    pub fn put<T: Serialize>(&self, family: &str, key: &[u8], value: &T) -> std::io::Result<()> {
        let bytes = codec::encode(value).map_err(std::io::Error::other)?;
        self.rocks.put_cf(&self.family(family)?, key, bytes).map_err(std::io::Error::other)
    }

    /// Writes encoded values in one, unsynced.
    ///
    /// # Errors
    /// RocksDB's.
    pub fn put_together(&self, family: &str, values: &[(&[u8], Vec<u8>)]) -> std::io::Result<()> {
        let family = self.family(family)?;
        let mut batch = WriteBatch::default();
        values.iter().for_each(|(key, value)| batch.put_cf(&family, key, value));
        self.write(batch)
    }

    /// Removes a value, unsynced.
    ///
    /// # Errors
    /// RocksDB's.
    pub fn delete(&self, family: &str, key: &[u8]) -> std::io::Result<()> {
        self.rocks.delete_cf(&self.family(family)?, key).map_err(std::io::Error::other)
    }

    /// Writes a batch in one, unsynced.
    ///
    /// # Errors
    /// RocksDB's.
    pub fn write(&self, batch: WriteBatch) -> std::io::Result<()> {
        self.rocks.write(batch).map_err(std::io::Error::other)
    }

    /// Every row of a family whose key begins with `prefix`.
    ///
    /// # Errors
    /// RocksDB's.
    pub fn scan(&self, family: &str, prefix: &[u8]) -> std::io::Result<Vec<Row>> {
        let mode = rocksdb::IteratorMode::From(prefix, rocksdb::Direction::Forward);
        self.rocks
            .iterator_cf(&self.family(family)?, mode)
            .take_while(|row| row.as_ref().map_or(true, |(key, _)| key.starts_with(prefix)))
            .map(|row| row.map_err(std::io::Error::other))
            .collect()
    }

    /// Every key of a family, without its values.
    ///
    /// # Errors
    /// RocksDB's.
    pub fn keys(&self, family: &str) -> std::io::Result<Vec<Box<[u8]>>> {
        let rows = self.rocks.iterator_cf(&self.family(family)?, rocksdb::IteratorMode::Start);
        rows.map(|row| row.map(|(key, _)| key).map_err(std::io::Error::other)).collect()
    }

    /// Runs `then` once everything written so far is on the disk.
    pub fn sync_then(&self, who: Waiting, then: impl FnOnce() + Send + 'static) {
        self.sync.syncer.request(who, Box::new(then));
    }

    /// Returns once everything written so far is on the disk.
    pub async fn sync(&self, who: Waiting) {
        let (done, synced) = oneshot::channel();
        self.sync_then(who, move || {
            let _ = done.send(());
        });
        // The syncer lives as long as this handle and ends the process rather than drop a request.
        let _ = synced.await;
    }

    /// How often the write-ahead log was synced since the start.
    pub fn sync_count(&self) -> u64 {
        self.sync.syncer.syncs.load(Ordering::Relaxed)
    }

    /// Notes what a log must not fall below. Synced at once where `durable`.
    pub(crate) fn raise_floor(&self, change: impl FnOnce(&mut FloorRecord), durable: bool) {
        self.sync.syncer.floor.update(change, durable);
    }

    pub(crate) fn floor(&self) -> FloorRecord {
        self.sync.syncer.floor.read()
    }
}

/// Who waits for a sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// That many launches. In a burst they wait for each other, so that they share syncs.
    Launches(usize),
    /// Somebody who must not wait: a vote, a client.
    Somebody,
}

struct Syncer {
    syncs: AtomicU64,
    queue: Mutex<Queue>,
    wake: Condvar,
    floor: Floor,
}

#[derive(Default)]
struct Queue {
    waiting: Vec<Callback>,
    launches: usize,
    hurry: bool,
    closed: bool,
}

/// The thread that syncs. It ends with the last handle of the database, so that the directory is free then.
struct SyncThread {
    syncer: Arc<Syncer>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl SyncThread {
    fn start(rocks: Arc<Rocks>, floor: Floor) -> Result<Self, OpenError> {
        let syncer =
            Arc::new(Syncer { syncs: AtomicU64::new(0), queue: Mutex::default(), wake: Condvar::new(), floor });
        let dir = rocks.path().to_owned();
        let worker = syncer.clone();
        let thread = std::thread::Builder::new()
            .name("tickhost-sync".into())
            .spawn(move || {
                let mut pace = Pace { last: Instant::now(), load: 0.0 };
                while worker.round(&rocks, &mut pace) {}
            })
            .map_err(|e| OpenError::io("start the sync thread for", &dir, e))?;
        Ok(Self { syncer, thread: Some(thread) })
    }
}

impl Drop for SyncThread {
    fn drop(&mut self) {
        self.syncer.lock().closed = true;
        self.syncer.wake.notify_one();
        // A callback may hold the last handle: a thread cannot wait for itself.
        if let Some(thread) = self.thread.take().filter(|t| t.thread().id() != std::thread::current().id()) {
            let _ = thread.join();
        }
    }
}

/// How busy the last moments were.
struct Pace {
    /// The start of the last sync.
    last: Instant,
    /// What waited for the last syncs; half of it is forgotten in each [`BUSY_PACE`].
    load: f64,
}

impl Pace {
    /// How long the next sync is put off.
    fn rest(&self) -> Duration {
        if self.load < BUSY_LAUNCHES { Duration::ZERO } else { BUSY_PACE.saturating_sub(self.last.elapsed()) }
    }

    fn count(&mut self, launches: usize) {
        let passed = self.last.elapsed().as_secs_f64() / BUSY_PACE.as_secs_f64();
        self.load = self.load * 0.5_f64.powf(passed) + launches as f64;
        self.last = Instant::now();
    }
}

impl Syncer {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn request(&self, who: Waiting, then: Callback) {
        let mut queue = self.lock();
        queue.waiting.push(then);
        match who {
            Waiting::Launches(launches) => queue.launches += launches,
            Waiting::Somebody => queue.hurry = true,
        }
        self.wake.notify_one();
    }

    /// One sync for everybody who waits. False once the database is closed and nobody waits any more.
    fn round(&self, rocks: &Rocks, pace: &mut Pace) -> bool {
        let idle = |queue: &mut Queue| queue.waiting.is_empty() && !queue.closed;
        let queue = self.wake.wait_while(self.lock(), idle).unwrap_or_else(PoisonError::into_inner);
        if queue.waiting.is_empty() {
            return false;
        }
        let can_wait = |queue: &mut Queue| !queue.hurry && !queue.closed;
        let paced = self.wake.wait_timeout_while(queue, pace.rest(), can_wait);
        let (waiting, launches) = {
            let (mut queue, _) = paced.unwrap_or_else(PoisonError::into_inner);
            queue.hurry = false;
            (std::mem::take(&mut queue.waiting), std::mem::take(&mut queue.launches))
        };
        pace.count(launches);
        if let Err(error) = rocks.flush_wal(true) {
            tracing::error!(%error, "sync the write-ahead log: the process ends, since a failed sync must not be retried");
            std::process::abort();
        }
        self.syncs.fetch_add(1, Ordering::Relaxed);
        waiting.into_iter().for_each(|then| then());
        true
    }
}

/// What this node has promised, in a file of its own: a log that opens below it has lost synced writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct FloorRecord {
    /// The term of the last vote.
    pub(crate) term: u64,
    /// The last log index that was reported as durable; 0 also where there is none.
    pub(crate) last_index: u64,
}

/// Two slots written in turn, each with a checksum: a torn write leaves the other one.
struct Floor {
    file: File,
    state: Mutex<(u64, FloorRecord)>,
}

const SLOT_BYTES: u64 = 512;

impl Floor {
    fn open(path: &Path) -> Result<Self, OpenError> {
        let io = |e| OpenError::io("open", path, e);
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path).map_err(io)?;
        let newest = [0, 1].into_iter().filter_map(|slot| read_slot(&file, slot)).max_by_key(|(n, _)| *n);
        Ok(Self { file, state: Mutex::new(newest.unwrap_or_default()) })
    }

    fn read(&self) -> FloorRecord {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).1
    }

    fn update(&self, change: impl FnOnce(&mut FloorRecord), durable: bool) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut record = state.1;
        change(&mut record);
        if record == state.1 {
            return;
        }
        *state = (state.0 + 1, record);
        let written =
            write_slot(&self.file, state.0, record).and_then(|()| if durable { self.file.sync_data() } else { Ok(()) });
        if let Err(error) = written {
            tracing::error!(%error, "write the floor: the process ends");
            std::process::abort();
        }
    }
}

fn slot_bytes(count: u64, record: FloorRecord) -> [u8; 56] {
    let mut bytes = [0; 56];
    bytes[..8].copy_from_slice(&count.to_be_bytes());
    bytes[8..16].copy_from_slice(&record.term.to_be_bytes());
    bytes[16..24].copy_from_slice(&record.last_index.to_be_bytes());
    let digest = tickhost_ledger::Digest::of(&bytes[..24]).0;
    bytes[24..].copy_from_slice(&digest);
    bytes
}

fn write_slot(file: &File, count: u64, record: FloorRecord) -> std::io::Result<()> {
    file.write_all_at(&slot_bytes(count, record), (count % 2) * SLOT_BYTES)
}

fn read_slot(file: &File, slot: u64) -> Option<(u64, FloorRecord)> {
    let mut bytes = [0; 56];
    file.read_exact_at(&mut bytes, slot * SLOT_BYTES).ok()?;
    let number = |at: usize| u64::from_be_bytes(std::array::from_fn(|i| bytes[at + i]));
    let (count, record) = (number(0), FloorRecord { term: number(8), last_index: number(16) });
    (bytes == slot_bytes(count, record)).then_some((count, record))
}
