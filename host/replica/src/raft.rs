//! The types that openraft is used with.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tickhost_ledger::{Entry, Reply};

openraft::declare_raft_types!(
    /// The types that openraft is used with.
    pub(crate) Types:
        D = Request,
        R = Response,
        NodeId = u64,
        Node = openraft::BasicNode,
        Term = u64,
        // One leader a term: a term names its leader, and a grant can rest on it.
        LeaderId = openraft::impls::leader_id_std::LeaderId<Self::Term, Self::NodeId>,
);

/// An entry of the log. Whoever appends, sends and applies it shares it.
#[derive(Debug, Clone)]
pub(crate) struct Request(pub(crate) Arc<Entry>);

impl Serialize for Request {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Request {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Entry::deserialize(deserializer).map(|entry| Self(Arc::new(entry)))
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} commands", self.0.commands.len())
    }
}

/// One reply for each command.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Response(pub(crate) Vec<Reply>);
