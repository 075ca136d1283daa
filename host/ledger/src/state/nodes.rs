//! Who belongs to the cluster, and the leases of its executors.

use uuid::Uuid;

use super::{
    State,
    apply::{Answer, Context},
};
use crate::{
    command::{Refusal, Reply},
    ids::{Digest, LaunchId, Stamp},
    launch::{Outcome, Status},
    rows::{Cluster, Executor, Node, Token, Usage},
};

/// The node that founds the cluster.
pub const FIRST_NODE: u64 = 1;

impl State {
    pub(super) fn found(&mut self, cx: &Context, cluster: Uuid, key_domain: Uuid, address: &str) -> Answer {
        if self.cluster().is_some() {
            return Err(Refusal::Founded);
        }
        let row = Cluster {
            id: cluster,
            epoch: 1,
            key_domain,
            time: cx.at,
            next_node: FIRST_NODE + 1,
            names: String::new(),
            level: 1,
            restored: None,
        };
        self.cluster.insert((), row);
        self.first_node(cx, FIRST_NODE, address, "the founding");
        Ok(Reply::Done)
    }

    pub(super) fn first_node(&mut self, cx: &Context, node: u64, address: &str, by: &str) {
        let row = Node {
            address: address.to_owned(),
            voter: true,
            draining: false,
            admitted_at: cx.at,
            by: by.to_owned(),
            executor: None,
        };
        self.nodes.insert(node, row);
    }

    pub(super) fn put_token(
        &mut self,
        cx: &Context,
        digest: Digest,
        expires_at: Stamp,
        voter: bool,
        by: &str,
    ) -> Answer {
        let expired: Vec<Digest> =
            self.tokens.iter().filter(|(_, token)| token.expires_at < cx.at).map(|(digest, _)| *digest).collect();
        for digest in expired {
            self.tokens.remove(&digest);
        }
        self.tokens.insert(digest, Token { expires_at, voter, by: by.to_owned(), node: None });
        Ok(Reply::Done)
    }

    pub(super) fn admit(&mut self, cx: &Context, digest: &Digest, address: &str, voter: bool) -> Answer {
        let unknown = || Refusal::Token("unknown, or was used before".into());
        let token = self.tokens.get(digest).ok_or_else(unknown)?.clone();
        if token.expires_at < cx.at {
            return Err(Refusal::Token(format!("expired: it was good until {}", token.expires_at)));
        }
        if voter && !token.voter {
            return Err(Refusal::Token("for a node that executes, not for one that votes".into()));
        }
        if let Some(node) = token.node {
            let is_again = self.nodes.get(&node).is_some_and(|row| row.address == address && row.voter == voter);
            return if is_again { Ok(Reply::Admitted(node)) } else { Err(unknown()) };
        }
        let cluster = self.cluster.get(&()).ok_or_else(unknown)?.clone();
        let node = cluster.next_node;
        self.cluster.insert((), Cluster { next_node: node + 1, ..cluster });
        let row = Node {
            address: address.to_owned(),
            voter,
            draining: false,
            admitted_at: cx.at,
            by: token.by.clone(),
            executor: None,
        };
        self.nodes.insert(node, row);
        self.tokens.insert(*digest, Token { node: Some(node), ..token });
        Ok(Reply::Admitted(node))
    }

    fn node_row(&self, node: u64) -> Result<&Node, Refusal> {
        self.nodes.get(&node).ok_or(Refusal::NoNode(node))
    }

    pub(super) fn move_node(&mut self, node: u64, address: &str) -> Answer {
        let row = self.node_row(node)?;
        if row.address == address {
            return Ok(Reply::Unchanged);
        }
        self.nodes.insert(node, Node { address: address.to_owned(), ..row.clone() });
        Ok(Reply::Done)
    }

    pub(super) fn drain_node(&mut self, node: u64, draining: bool) -> Answer {
        let row = self.node_row(node)?;
        if row.draining == draining {
            return Ok(Reply::Unchanged);
        }
        self.nodes.insert(node, Node { draining, ..row.clone() });
        Ok(Reply::Done)
    }

    pub(super) fn remove_node(&mut self, node: u64) -> Answer {
        let row = self.node_row(node)?;
        let refuse = |why: String| Err(Refusal::Executor { node, why });
        if let Some(session) = row.executor.as_ref().and_then(|executor| executor.session) {
            return refuse(format!("its session {session} has not lapsed; stop the node and wait for that"));
        }
        let (runs, _) = self.reserved(node);
        if runs > 0 {
            return refuse(format!("{runs} runs on it have no end yet"));
        }
        self.nodes.remove(&node);
        Ok(Reply::Done)
    }

    pub(super) fn open_session(&mut self, node: u64, executor: Executor) -> Answer {
        let row = self.node_row(node)?;
        let (level, knows) = (self.level(), executor.format);
        if knows < level {
            let why = format!(
                "version {} knows the ledger's commands up to level {knows}, and this cluster uses level {level}; give the \
                 node a newer version",
                executor.version
            );
            return Err(Refusal::Executor { node, why });
        }
        if let Some(known) = &row.executor {
            check_table(node, known, executor.store, executor.sequence.saturating_sub(1))?;
        }
        let store = executor.store;
        self.nodes.insert(node, Node { executor: Some(executor), ..row.clone() });
        self.takes_part(store);
        Ok(Reply::Done)
    }

    /// The run table of a node has told how far it counts.
    pub(super) fn table_counted(&mut self, node: u64, store: Uuid, sequence: u64) {
        let known = self.nodes.get(&node).and_then(|row| row.executor.as_ref());
        if known.is_some_and(|known| known.store == store && known.sequence < sequence)
            && let Some(executor) = self.nodes.get_mut(&node).and_then(|row| row.executor.as_mut())
        {
            executor.sequence = sequence;
        }
    }

    pub(super) fn lapse(&mut self, cx: &mut Context, node: u64, session: Uuid, evidence: &str) -> Answer {
        let row = self.node_row(node)?;
        let executor = row.executor.as_ref().filter(|executor| executor.session == Some(session));
        let Some(executor) = executor else {
            let found = row.executor.as_ref().and_then(|executor| executor.session);
            return Err(Refusal::Stale {
                what: format!("session of node {node}"),
                found: found.map_or("none".into(), |id| id.to_string()),
                expected: session.to_string(),
            });
        };
        let executor = Executor { session: None, ..executor.clone() };
        self.nodes.insert(node, Node { executor: Some(executor), ..row.clone() });
        let is_here = |id: &&LaunchId| {
            self.launches.get(id).and_then(|launch| launch.live()).is_some_and(|attempt| attempt.node == node)
        };
        let runs: Vec<LaunchId> = self.all_open().filter(is_here).cloned().collect();
        for id in runs {
            let started = self.launches.get(&id).is_some_and(|launch| launch.status == Status::Running);
            let evidence = evidence.to_owned();
            let outcome = if started { Outcome::Lost { evidence } } else { Outcome::Unanswered { evidence } };
            self.close_attempt(cx, &id, &outcome, Usage::default());
        }
        Ok(Reply::Done)
    }
}

/// Whether a node's run table can be the one that the cluster knows. `remembered` is how far it counts sessions and runs.
///
/// # Errors
/// Another table, or one that has forgotten something.
pub fn check_table(node: u64, known: &Executor, store: Uuid, remembered: u64) -> Result<(), Refusal> {
    let refuse = |why: String| Err(Refusal::Executor { node, why });
    if known.store != store {
        return refuse(format!(
            "it has run table {}, and this is table {store}: its disk was wiped or exchanged, and what it ran is not known \
             there; remove the node and let the disk join as a new one",
            known.store
        ));
    }
    if known.sequence > remembered {
        return refuse(format!(
            "its run table counts {remembered} sessions and runs, and the cluster has seen {}: the directory is a copy, or \
             an older state of its disk; remove the node and let the disk join as a new one",
            known.sequence
        ));
    }
    Ok(())
}
