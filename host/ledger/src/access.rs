//! Who may ask for what, and what is recorded of what was asked.

use serde::{Deserialize, Serialize};

use crate::ids::{Digest, Stamp};

/// What somebody may do. Each may do what the one before may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Look at jobs, launches and what they wrote.
    Viewer,
    /// Store components and jobs, pause them, launch them by hand.
    Deployer,
    /// Everything: quotas, tokens, nodes, backups.
    Operator,
}

impl Role {
    /// As people write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Deployer => "deployer",
            Self::Operator => "operator",
        }
    }
}

/// A right to use the API. Who holds the secret has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Access {
    /// Of the secret, which nobody but its holder knows. It is random and as long as the digest, so that one pass of
    /// hashing is enough.
    pub digest: Digest,
    /// What its holder may do.
    pub role: Role,
    /// In which namespace; `None` in all of them.
    pub namespace: Option<String>,
    /// Until when.
    pub expires_at: Stamp,
    /// Since when.
    pub stored_at: Stamp,
    /// Who gave it out, and from where.
    pub by: String,
}

/// Something that somebody asked for, and what became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Audited {
    /// When: of what is counted together, the last time.
    pub at: Stamp,
    /// Who, and from where: `alice@10.0.0.7`.
    pub by: String,
    /// What, e.g. `put-job`; the method, where it was refused.
    pub what: String,
    /// To what it was to be done: a job, a node, the path where it was refused.
    pub on: String,
    /// What became of it.
    pub became: Became,
    /// How often: what was refused over and over within a moment is counted.
    pub times: u64,
}

/// What became of what was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Became {
    /// It was done.
    Done,
    /// It was so already.
    Unchanged,
    /// It was begun; whether it was done is not the ledger's to say.
    Begun,
    /// It was refused, for that reason.
    Refused(String),
}
