//! The types that openraft is used with.

use std::fmt;

use serde::{Deserialize, Serialize};
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

/// An entry of the log.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Request(pub(crate) Entry);

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} commands", self.0.commands.len())
    }
}

/// One reply for each command.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Response(pub(crate) Vec<Reply>);
