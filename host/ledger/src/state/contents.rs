//! What rows hold, as far as a backup says it of itself: read one by one, without a state.

use super::{ApplyError, CLUSTER, COMPONENTS, JOBS};
use crate::{codec::decode, ids::Digest, rows::Cluster, table::row_hash};

/// The rows that were added so far.
#[derive(Debug, Default)]
pub struct Contents {
    /// The cluster's identity.
    pub cluster: Option<Cluster>,
    /// The components.
    pub components: Vec<Digest>,
    /// How many jobs.
    pub jobs: u64,
    /// The hash of a state of these rows ([`super::State::hash`]).
    pub hash: u128,
}

impl Contents {
    /// Adds a row.
    ///
    /// # Errors
    /// A row that is damaged.
    pub fn add(&mut self, key: &[u8], value: &[u8]) -> Result<(), ApplyError> {
        match key.first().copied() {
            Some(CLUSTER) => self.cluster = Some(decode(value)?),
            Some(COMPONENTS) => self.components.push(decode(&key[1..])?),
            Some(JOBS) => self.jobs += 1,
            _ => {}
        }
        self.hash = self.hash.wrapping_add(row_hash(key, value));
        Ok(())
    }
}
