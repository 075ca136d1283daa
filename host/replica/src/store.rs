//! What a node keeps, as far as the rest of it depends on how: rows in families behind one write-ahead log, and a
//! floor beside it. A RocksDB (`rocks`) is what every host has; the simulation of whole nodes
//! brings a disk of its own, whose power can fail.

use std::io;

use serde::{Deserialize, Serialize};

/// A key and its value.
pub type Row = (Box<[u8]>, Box<[u8]>);
/// Rows in the order of their keys.
pub type Rows<'a> = Box<dyn Iterator<Item = io::Result<Row>> + 'a>;
/// What is done once everything written before is on the disk.
pub type Synced = Box<dyn FnOnce() + Send>;

/// What can be read: the store as it is, or a view of it.
pub trait Read {
    /// A value.
    ///
    /// # Errors
    /// The device's.
    fn get(&self, family: &'static str, key: &[u8]) -> io::Result<Option<Vec<u8>>>;

    /// The rows of a family from a key on.
    ///
    /// # Errors
    /// The device's.
    fn rows(&self, family: &'static str, from: &[u8]) -> io::Result<Rows<'_>>;

    /// The last row of a family.
    ///
    /// # Errors
    /// The device's.
    fn last(&self, family: &'static str) -> io::Result<Option<Row>>;
}

/// The store of a node. What was written first survives first: a crash takes away an end of what was not synced.
pub trait Store: Read + Send + Sync + 'static {
    /// Writes a batch, all of it or nothing. Unsynced.
    ///
    /// # Errors
    /// The device's.
    fn write(&self, batch: Batch) -> io::Result<()>;

    /// What is there now, whatever is written meanwhile.
    fn view(&self) -> Box<dyn Read + '_>;

    /// Runs `then` once everything written so far is on the disk. A sync that fails ends the process: the kernel may have
    /// dropped the pages and report success the next time.
    fn sync_then(&self, who: Waiting, then: Synced);

    /// How often the write-ahead log was synced since the start.
    fn sync_count(&self) -> u64;

    /// What this node has promised.
    fn floor(&self) -> FloorRecord;

    /// Changes what this node has promised. On the disk before this returns where `durable`.
    fn change_floor(&self, change: &mut dyn FnMut(&mut FloorRecord), durable: bool);

    /// Bytes that are free on the device.
    ///
    /// # Errors
    /// The device's.
    fn free_bytes(&self) -> io::Result<u64>;

    /// Whether its reads and writes may have to wait for a device; then what is large is done on a thread of its own.
    fn waits(&self) -> bool;
}

/// Who waits for a sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// That many launches. In a burst they wait for each other, so that they share syncs.
    Launches(usize),
    /// Somebody who must not wait: a vote, a client.
    Somebody,
}

/// What this node has promised, outside the log: a log that opens below it has lost synced writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct FloorRecord {
    /// The term of the last vote.
    pub term: u64,
    /// The last log index that was reported as durable; 0 also where there is none.
    pub last_index: u64,
}

/// Changes that are written in one.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    /// In order.
    pub changes: Vec<Change>,
    bytes: usize,
}

/// One of them.
#[derive(Debug, Clone)]
pub enum Change {
    /// Sets a value.
    Put(&'static str, Vec<u8>, Vec<u8>),
    /// Removes one.
    Delete(&'static str, Vec<u8>),
    /// Removes the keys from one up to, and without, another.
    DeleteRange(&'static str, Vec<u8>, Vec<u8>),
}

impl Batch {
    /// Sets a value.
    pub fn put(&mut self, family: &'static str, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) {
        let (key, value) = (key.into(), value.into());
        self.bytes += key.len() + value.len();
        self.changes.push(Change::Put(family, key, value));
    }

    /// Removes a value.
    pub fn delete(&mut self, family: &'static str, key: impl Into<Vec<u8>>) {
        self.changes.push(Change::Delete(family, key.into()));
    }

    /// Removes the keys from one up to, and without, another.
    pub fn delete_range(&mut self, family: &'static str, from: u64, to: u64) {
        self.changes.push(Change::DeleteRange(family, from.to_be_bytes().into(), to.to_be_bytes().into()));
    }

    /// Bytes of the keys and values that are set.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}
