//! What rows hold, as far as a backup says it of itself: read one by one, without a state.

use super::{ApplyError, CLUSTER, COMPONENTS, JOBS, NODES};
use crate::{
    codec::decode,
    ids::Digest,
    rows::{Cluster, Component, Node},
    table::row_hash,
};

/// The rows that were added so far.
#[derive(Debug, Default)]
pub struct Contents {
    /// The cluster's identity.
    pub cluster: Option<Cluster>,
    /// The components.
    pub components: Vec<(Digest, Component)>,
    /// The nodes, by number.
    pub nodes: Vec<(u64, Node)>,
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
            Some(COMPONENTS) => self.components.push((decode(&key[1..])?, decode(value)?)),
            Some(NODES) => self.nodes.push((decode(&key[1..])?, decode(value)?)),
            Some(JOBS) => self.jobs += 1,
            _ => {}
        }
        self.hash = self.hash.wrapping_add(row_hash(key, value));
        Ok(())
    }
}
