//! Rows in order, with a hash over all of them that is kept up to date from the changes.

use std::collections::{BTreeMap, BTreeSet, btree_map::Range};
use std::ops::RangeBounds;

use serde::{Serialize, de::DeserializeOwned};

use crate::{
    codec::{CodecError, decode, encode},
    ids::Digest,
};

/// A change of one row, as it is written to disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowChange {
    /// Which table, and the encoded key behind it.
    pub key: Vec<u8>,
    /// The encoded row; `None` where it is gone.
    pub value: Option<Vec<u8>>,
}

/// One table of the state.
#[derive(Debug)]
pub(crate) struct Table<K, V> {
    /// The first byte of each key on disk.
    tag: u8,
    rows: BTreeMap<K, Row<V>>,
    /// Keys touched since the last [`Table::drain`].
    dirty: BTreeSet<K>,
    /// Keys removed since then, with the hash of what is on disk.
    removed: BTreeMap<K, u128>,
}

#[derive(Debug)]
struct Row<V> {
    value: V,
    /// Of the encoded row as it was last drained; 0 for one that never was.
    hash: u128,
}

impl<K: Ord + Clone + Serialize + DeserializeOwned, V: Serialize + DeserializeOwned> Table<K, V> {
    pub(crate) fn new(tag: u8) -> Self {
        Self { tag, rows: BTreeMap::new(), dirty: BTreeSet::new(), removed: BTreeMap::new() }
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.rows.get(key).map(|row| &row.value)
    }

    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let row = self.rows.get_mut(key)?;
        self.dirty.insert(key.clone());
        Some(&mut row.value)
    }

    pub(crate) fn insert(&mut self, key: K, value: V) {
        self.dirty.insert(key.clone());
        match self.rows.get_mut(&key) {
            Some(row) => row.value = value,
            None => {
                let hash = self.removed.remove(&key).unwrap_or_default();
                self.rows.insert(key, Row { value, hash });
            }
        }
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        let row = self.rows.remove(key)?;
        self.dirty.remove(key);
        if row.hash != 0 {
            self.removed.insert(key.clone(), row.hash);
        }
        Some(row.value)
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (&K, &V)> {
        self.rows.iter().map(|(key, row)| (key, &row.value))
    }

    pub(crate) fn range<R: RangeBounds<K>>(&self, range: R) -> impl DoubleEndedIterator<Item = (&K, &V)> {
        let rows: Range<'_, K, Row<V>> = self.rows.range(range);
        rows.map(|(key, row)| (key, &row.value))
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Hands out the changes since the last time.
    pub(crate) fn drain(&mut self, changes: &mut Changes) -> Result<(), CodecError> {
        for (key, hash) in std::mem::take(&mut self.removed) {
            changes.hash = changes.hash.wrapping_sub(hash);
            changes.rows.push(RowChange { key: self.encode_key(&key)?, value: None });
        }
        for key in std::mem::take(&mut self.dirty) {
            let encoded_key = self.encode_key(&key)?;
            let Some(row) = self.rows.get_mut(&key) else { continue };
            let value = encode(&row.value)?;
            let hash = row_hash(&encoded_key, &value);
            changes.hash = changes.hash.wrapping_sub(row.hash).wrapping_add(hash);
            row.hash = hash;
            changes.rows.push(RowChange { key: encoded_key, value: Some(value) });
        }
        Ok(())
    }

    /// Takes in a row from disk. Returns its part of the state's hash.
    pub(crate) fn load(&mut self, key: &[u8], value: &[u8]) -> Result<u128, CodecError> {
        let hash = row_hash(key, value);
        self.rows.insert(decode(&key[1..])?, Row { value: decode(value)?, hash });
        Ok(hash)
    }

    fn encode_key(&self, key: &K) -> Result<Vec<u8>, CodecError> {
        let mut bytes = vec![self.tag];
        bytes.extend(encode(key)?);
        Ok(bytes)
    }
}

/// The changes of one entry.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    pub(crate) rows: Vec<RowChange>,
    /// The state's hash: the sum of the rows' hashes.
    pub(crate) hash: u128,
}

/// A row's part of the hash.
pub(crate) fn row_hash(key: &[u8], value: &[u8]) -> u128 {
    let mut bytes = Vec::with_capacity(8 + key.len() + value.len());
    bytes.extend_from_slice(&(key.len() as u64).to_be_bytes());
    bytes.extend_from_slice(key);
    bytes.extend_from_slice(value);
    let digest = Digest::of(&bytes).0;
    u128::from_be_bytes(std::array::from_fn(|i| digest[i]))
}
