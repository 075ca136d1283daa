//! Idempotency keys: what makes a repeated effect recognisable as the same work.
//!
//! A key is a name-based UUID (version 5) over the cluster's key domain, the job, the tick, a nonce (only of a
//! re-run that asked for new keys) and the path of labels. Attempt, node, term, revision and component digest
//! are no part of it: a hot-fixed retry keeps its keys. Golden vectors in `tests/data/keys.json` pin the form;
//! it must never change.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::ids::{JobName, TickAt};

/// Where the keys of one launch come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeySource {
    /// The cluster's key domain; it outlives restores.
    pub domain: Uuid,
    /// The job.
    pub job: JobName,
    /// The tick.
    pub tick: TickAt,
    /// The re-run's id, if it asked for new keys.
    pub nonce: Option<Uuid>,
}

impl KeySource {
    /// The key at the end of a path of labels, e.g. `["charge", "customer-1"]`.
    pub fn key(&self, path: &[String]) -> Uuid {
        let mut name = Vec::new();
        // Each part is preceded by its length: no two different lists of parts give the same bytes.
        let mut push = |part: &[u8]| {
            name.extend_from_slice(&(part.len() as u64).to_be_bytes());
            name.extend_from_slice(part);
        };
        push(b"tickhost key 1");
        push(self.job.namespace.as_bytes());
        push(self.job.name.as_bytes());
        push(&self.tick.0.to_be_bytes());
        push(self.nonce.as_ref().map_or(&[], |nonce| nonce.as_bytes()));
        for label in path {
            push(label.as_bytes());
        }
        Uuid::new_v5(&self.domain, &name)
    }
}
