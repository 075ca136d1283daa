//! The disk of a simulated node: rows in memory of which a failing power supply takes away what was not synced.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    ops::Bound,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tickhost_ledger::Digest;
use tickhost_replica::{
    db::RUNS,
    fault,
    store::{Batch, Change, FloorRecord, Read, Row, Rows, Store, Synced, Waiting},
};

use crate::{entropy::Random, world::World};

type Families = BTreeMap<&'static str, BTreeMap<Box<[u8]>, Box<[u8]>>>;

/// Bytes that are free on a disk that is not full.
const ROOMY: u64 = 100 << 30;

/// What is written where.
#[derive(Debug, Clone, Default)]
pub(crate) struct Image {
    rows: Families,
    pub(crate) floor: FloorRecord,
    /// The components that are kept.
    pub(crate) components: std::collections::BTreeSet<Digest>,
}

impl Image {
    fn apply(&mut self, batch: &Batch) {
        for change in &batch.changes {
            match change {
                Change::Put(family, key, value) => {
                    self.rows.entry(family).or_default().insert(key.as_slice().into(), value.as_slice().into());
                }
                Change::Delete(family, key) => {
                    self.rows.entry(family).or_default().remove(key.as_slice());
                }
                Change::DeleteRange(family, from, to) => {
                    self.rows.entry(family).or_default().retain(|key, _| **key < **from || **key >= **to);
                }
            }
        }
    }

    pub(crate) fn get(&self, family: &str, key: &[u8]) -> Option<&[u8]> {
        self.rows.get(family)?.get(key).map(|value| &**value)
    }

    /// The rows of a family.
    pub(crate) fn family(&self, family: &str) -> impl DoubleEndedIterator<Item = (&[u8], &[u8])> {
        self.rows.get(family).into_iter().flatten().map(|(key, value)| (&**key, &**value))
    }
}

/// A disk, whatever process uses it.
#[derive(Debug)]
pub(crate) struct Disk {
    /// What a process reads.
    pub(crate) live: Image,
    /// What survives.
    pub(crate) synced: Image,
    /// What was written and not synced, oldest first.
    tail: VecDeque<Batch>,
    random: Random,
    /// Milliseconds that a sync takes beside the usual.
    pub(crate) slow_ms: u64,
    /// The next sync fails.
    pub(crate) fails: bool,
    pub(crate) free: u64,
    /// It says that it has synced, and has not.
    lies: bool,
    syncs: u64,
}

/// Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct SharedDisk(Arc<Mutex<Disk>>);

impl SharedDisk {
    pub(crate) fn new(random: Random, lies: bool) -> Self {
        Self(Arc::new(Mutex::new(Disk {
            live: Image::default(),
            synced: Image::default(),
            tail: VecDeque::new(),
            random,
            slow_ms: 0,
            fails: false,
            free: ROOMY,
            lies,
            syncs: 0,
        })))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Disk {
    /// The power fails: an end of what was not synced is gone. Returns how many batches that are.
    pub(crate) fn lose_power(&mut self) -> usize {
        let kept = usize::try_from(self.random.below(self.tail.len() as u64 + 1)).unwrap_or_default();
        let lost = self.tail.len() - kept;
        for batch in self.tail.drain(..kept) {
            self.synced.apply(&batch);
        }
        self.tail.clear();
        if self.random.chance(50) {
            self.synced.floor = self.live.floor;
        }
        self.live = self.synced.clone();
        lost
    }

    /// Another disk, or this one as it was once.
    pub(crate) fn replace(&mut self, image: Image) {
        self.live = image.clone();
        self.synced = image;
        self.tail.clear();
    }

    pub(crate) fn set_full(&mut self, is_full: bool) {
        self.free = if is_full { 0 } else { ROOMY };
    }

    /// The row of a run as it survives.
    pub(crate) fn durable_run(&self, run: &str) -> Option<&[u8]> {
        self.synced.get(RUNS, run.as_bytes())
    }

    fn sync_up_to(&mut self, batches: usize) {
        self.syncs += 1;
        if self.lies {
            return;
        }
        for batch in self.tail.drain(..batches.min(self.tail.len())) {
            self.synced.apply(&batch);
        }
    }
}

/// A disk as one process has it open.
#[derive(Clone)]
pub(crate) struct SimStore {
    pub(crate) disk: SharedDisk,
    pub(crate) world: World,
    pub(crate) node: u64,
    pub(crate) boot: u64,
    waiting: Arc<Mutex<SyncQueue>>,
}

#[derive(Default)]
struct SyncQueue {
    callbacks: Vec<Synced>,
    is_syncing: bool,
}

impl SimStore {
    pub(crate) fn new(disk: SharedDisk, world: World, node: u64, boot: u64) -> Self {
        Self { disk, world, node, boot, waiting: Arc::default() }
    }

    fn queue(&self) -> MutexGuard<'_, SyncQueue> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_alive(&self) -> bool {
        self.world.is_alive(self.node, self.boot)
    }

    /// As long as somebody waits.
    async fn sync_all(self) {
        loop {
            let callbacks = {
                let mut queue = self.queue();
                queue.is_syncing = !queue.callbacks.is_empty();
                if !queue.is_syncing {
                    return;
                }
                std::mem::take(&mut queue.callbacks)
            };
            let (batches, takes_ms, fails) = {
                let mut disk = self.disk.lock();
                let usual_ms = if disk.random.chance(2) { 20 } else { disk.random.below(3) };
                (disk.tail.len(), usual_ms + disk.slow_ms, disk.fails)
            };
            tokio::time::sleep(Duration::from_millis(takes_ms)).await;
            if !self.is_alive() {
                return;
            }
            if fails {
                self.disk.lock().fails = false;
                fault::end_process();
            }
            self.disk.lock().sync_up_to(batches);
            callbacks.into_iter().for_each(|then| then());
        }
    }
}

impl Read for SimStore {
    fn get(&self, family: &'static str, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        Ok(self.disk.lock().live.get(family, key).map(<[u8]>::to_vec))
    }

    fn rows(&self, family: &'static str, from: &[u8]) -> io::Result<Rows<'_>> {
        // Row by row: a log is long, and its reader mostly wants its end.
        let mut from = Bound::Included(Box::<[u8]>::from(from));
        Ok(Box::new(std::iter::from_fn(move || {
            let disk = self.disk.lock();
            let rows = disk.live.rows.get(family)?;
            let start = std::mem::replace(&mut from, Bound::Unbounded);
            let (key, value) = rows.range((start, Bound::Unbounded)).next()?;
            from = Bound::Excluded(key.clone());
            Some(Ok((key.clone(), value.clone())))
        })))
    }

    fn last(&self, family: &'static str) -> io::Result<Option<Row>> {
        let disk = self.disk.lock();
        Ok(disk.live.rows.get(family).and_then(BTreeMap::last_key_value).map(|(k, v)| (k.clone(), v.clone())))
    }
}

/// The rows as they were.
struct View(Image);

impl Read for View {
    fn get(&self, family: &'static str, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        Ok(self.0.get(family, key).map(<[u8]>::to_vec))
    }

    fn rows(&self, family: &'static str, from: &[u8]) -> io::Result<Rows<'_>> {
        let from = Bound::Included(Box::<[u8]>::from(from));
        let rows = self.0.rows.get(family).into_iter();
        Ok(Box::new(
            rows.flat_map(move |rows| rows.range((from.clone(), Bound::Unbounded)))
                .map(|(k, v)| Ok((k.clone(), v.clone()))),
        ))
    }

    fn last(&self, family: &'static str) -> io::Result<Option<Row>> {
        Ok(self.0.rows.get(family).and_then(BTreeMap::last_key_value).map(|(k, v)| (k.clone(), v.clone())))
    }
}

impl Store for SimStore {
    fn write(&self, batch: Batch) -> io::Result<()> {
        // What a process does after its end does not happen.
        if self.is_alive() {
            let mut disk = self.disk.lock();
            disk.live.apply(&batch);
            disk.tail.push_back(batch);
        }
        Ok(())
    }

    fn view(&self) -> Box<dyn Read + '_> {
        Box::new(View(self.disk.lock().live.clone()))
    }

    fn sync_then(&self, _who: Waiting, then: Synced) {
        let mut queue = self.queue();
        queue.callbacks.push(then);
        if !std::mem::replace(&mut queue.is_syncing, true) {
            tokio::spawn(self.clone().sync_all());
        }
    }

    fn sync_count(&self) -> u64 {
        self.disk.lock().syncs
    }

    fn floor(&self) -> FloorRecord {
        self.disk.lock().live.floor
    }

    fn change_floor(&self, change: &mut dyn FnMut(&mut FloorRecord), durable: bool) {
        if self.is_alive() {
            let mut disk = self.disk.lock();
            change(&mut disk.live.floor);
            if durable {
                disk.synced.floor = disk.live.floor;
            }
        }
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(self.disk.lock().free)
    }

    fn waits(&self) -> bool {
        false
    }
}
