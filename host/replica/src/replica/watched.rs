//! What is followed of Raft's metrics. They change with every step of every entry; whoever waits for one of these is woken
//! only when it changes.

use openraft::{RaftMetrics, ServerState, async_runtime::WatchReceiver as _};
use tokio::sync::watch;

use super::LedgerRaft;
use crate::{peers::Peers, raft::Types};

/// Who leads, and whether this node goes on.
#[derive(Clone)]
pub(super) struct Watched {
    /// The term in which this node leads.
    pub(super) leading: watch::Receiver<Option<u64>>,
    /// Who leads, as far as this node knows.
    pub(super) leader: watch::Receiver<Option<u64>>,
    /// Why this node cannot go on.
    pub(super) failure: watch::Receiver<Option<String>>,
}

impl Watched {
    /// Follows the metrics for as long as Raft runs, and where everybody is reached.
    pub(super) fn follow(raft: &LedgerRaft, node: u64, peers: Peers) -> Self {
        let (leading, leading_receiver) = watch::channel(None);
        let (leader, leader_receiver) = watch::channel(None);
        let (failure, failure_receiver) = watch::channel(None);
        let mut metrics = raft.metrics();
        tokio::spawn(async move {
            let mut membership = None;
            loop {
                let (term, who, why) = {
                    let now = metrics.borrow_watched();
                    if membership.as_ref() != Some(now.membership_config.log_id()) {
                        membership = Some(*now.membership_config.log_id());
                        for (node, at) in now.membership_config.membership().nodes() {
                            peers.set_address(*node, &at.addr);
                        }
                    }
                    (
                        leading_term(&now, node),
                        now.current_leader,
                        now.running_state.as_ref().err().map(ToString::to_string),
                    )
                };
                publish(&leading, term);
                publish(&leader, who);
                publish(&failure, why);
                if metrics.changed().await.is_err() || leading.is_closed() && leader.is_closed() {
                    publish(&leading, None);
                    publish(&leader, None);
                    return;
                }
            }
        });
        Self { leading: leading_receiver, leader: leader_receiver, failure: failure_receiver }
    }
}

fn publish<T: PartialEq>(to: &watch::Sender<T>, value: T) {
    to.send_if_modified(|was| {
        let is_new = *was != value;
        *was = value;
        is_new
    });
}

/// The term in which the node leads, once the first entry of that very term is applied: from then on it has
/// seen all that earlier terms have left.
pub(super) fn leading_term(now: &RaftMetrics<Types>, node: u64) -> Option<u64> {
    let leads = now.state == ServerState::Leader && now.current_leader == Some(node);
    let applied = now.last_applied.map(|id| id.leader_id.term);
    (leads && now.running_state.is_ok() && applied == Some(now.current_term)).then_some(now.current_term)
}
