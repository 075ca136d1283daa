//! The store of every host: one RocksDB, synced by a thread that groups whoever waits, and the floor in a file of its
//! own.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use rocksdb::{
    BoundColumnFamily, ColumnFamilyDescriptor, DBRecoveryMode, DBWithThreadMode, Direction, IteratorMode,
    MultiThreaded, Options, SnapshotWithThreadMode, WriteBatch,
};

use crate::{
    db::{FAMILIES, OpenError},
    fault,
    store::{Batch, Change, FloorRecord, Read, Row, Rows, Store, Synced, Waiting},
};

/// While more launches than this wait for a sync within [`BUSY_PACE`], syncs keep that distance: one for many
/// launches instead of one each. Below it nobody waits.
const BUSY_LAUNCHES: f64 = 32.0;
/// How far apart syncs are in a burst, counted from start to start: this much at most is added to the lateness of
/// each launch, twice.
const BUSY_PACE: Duration = Duration::from_millis(40);

type Rocks = DBWithThreadMode<MultiThreaded>;

/// A RocksDB and its floor.
pub(crate) struct RocksStore {
    rocks: Arc<Rocks>,
    sync: SyncThread,
    dir: PathBuf,
}

impl RocksStore {
    /// Opens or creates the database in a directory.
    pub(crate) fn open(dir: &Path) -> Result<Self, OpenError> {
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
        let sync = SyncThread::start(rocks.clone(), floor)?;
        Ok(Self { rocks, sync, dir: dir.to_owned() })
    }
}

fn family<'a>(rocks: &'a Rocks, name: &str) -> io::Result<Arc<BoundColumnFamily<'a>>> {
    rocks.cf_handle(name).ok_or_else(|| io::Error::other(format!("no column family `{name}`")))
}

fn row(row: Result<Row, rocksdb::Error>) -> io::Result<Row> {
    row.map_err(io::Error::other)
}

impl Read for RocksStore {
    fn get(&self, name: &'static str, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        self.rocks.get_cf(&family(&self.rocks, name)?, key).map_err(io::Error::other)
    }

    fn rows(&self, name: &'static str, from: &[u8]) -> io::Result<Rows<'_>> {
        let mode = IteratorMode::From(from, Direction::Forward);
        Ok(Box::new(self.rocks.iterator_cf(&family(&self.rocks, name)?, mode).map(row)))
    }

    fn last(&self, name: &'static str) -> io::Result<Option<Row>> {
        self.rocks.iterator_cf(&family(&self.rocks, name)?, IteratorMode::End).next().map(row).transpose()
    }
}

struct View<'a> {
    rocks: &'a Rocks,
    view: SnapshotWithThreadMode<'a, Rocks>,
}

impl Read for View<'_> {
    fn get(&self, name: &'static str, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        self.view.get_cf(&family(self.rocks, name)?, key).map_err(io::Error::other)
    }

    fn rows(&self, name: &'static str, from: &[u8]) -> io::Result<Rows<'_>> {
        let mode = IteratorMode::From(from, Direction::Forward);
        Ok(Box::new(self.view.iterator_cf(&family(self.rocks, name)?, mode).map(row)))
    }

    fn last(&self, name: &'static str) -> io::Result<Option<Row>> {
        self.view.iterator_cf(&family(self.rocks, name)?, IteratorMode::End).next().map(row).transpose()
    }
}

impl Store for RocksStore {
    fn write(&self, batch: Batch) -> io::Result<()> {
        let mut written = WriteBatch::default();
        for change in batch.changes {
            match change {
                Change::Put(name, key, value) => written.put_cf(&family(&self.rocks, name)?, key, value),
                Change::Delete(name, key) => written.delete_cf(&family(&self.rocks, name)?, key),
                Change::DeleteRange(name, from, to) => {
                    written.delete_range_cf(&family(&self.rocks, name)?, from, to);
                }
            }
        }
        self.rocks.write(written).map_err(io::Error::other)
    }

    fn view(&self) -> Box<dyn Read + '_> {
        Box::new(View { rocks: &self.rocks, view: self.rocks.snapshot() })
    }

    fn sync_then(&self, who: Waiting, then: Synced) {
        self.sync.syncer.request(who, then);
    }

    fn sync_count(&self) -> u64 {
        self.sync.syncer.syncs.load(Ordering::Relaxed)
    }

    fn floor(&self) -> FloorRecord {
        self.sync.syncer.floor.read()
    }

    fn change_floor(&self, change: &mut dyn FnMut(&mut FloorRecord), durable: bool) {
        self.sync.syncer.floor.update(change, durable);
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let stat = rustix::fs::statvfs(&self.dir)?;
        Ok(stat.f_bavail * stat.f_frsize)
    }

    fn waits(&self) -> bool {
        true
    }
}

struct Syncer {
    syncs: AtomicU64,
    queue: Mutex<Queue>,
    wake: Condvar,
    floor: Floor,
}

#[derive(Default)]
struct Queue {
    waiting: Vec<Synced>,
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

    fn request(&self, who: Waiting, then: Synced) {
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
            fault::end_process();
        }
        self.syncs.fetch_add(1, Ordering::Relaxed);
        waiting.into_iter().for_each(|then| then());
        true
    }
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

    fn update(&self, change: &mut dyn FnMut(&mut FloorRecord), durable: bool) {
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
            fault::end_process();
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

fn write_slot(file: &File, count: u64, record: FloorRecord) -> io::Result<()> {
    file.write_all_at(&slot_bytes(count, record), (count % 2) * SLOT_BYTES)
}

fn read_slot(file: &File, slot: u64) -> Option<(u64, FloorRecord)> {
    let mut bytes = [0; 56];
    file.read_exact_at(&mut bytes, slot * SLOT_BYTES).ok()?;
    let number = |at: usize| u64::from_be_bytes(std::array::from_fn(|i| bytes[at + i]));
    let (count, record) = (number(0), FloorRecord { term: number(8), last_index: number(16) });
    (bytes == slot_bytes(count, record)).then_some((count, record))
}
