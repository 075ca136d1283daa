//! A node's part in the group: proposing, reading, and knowing whether it leads.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use openraft::{
    Config, Raft, RaftMetrics, ServerState, SnapshotPolicy,
    alias::LogIdOf,
    async_runtime::WatchReceiver,
    errors::{ClientWriteError, Fatal},
    impls::ProgressResponder,
    raft::ClientWriteResult,
};
use tickhost_ledger::{Command, Entry, Reply, Stamp, State, command::Stamped};
use tokio::sync::{mpsc, oneshot, watch};

use crate::{
    db::{Db, OpenError},
    fault,
    log::LogStore,
    machine::{AppliedOutputs, Machine},
    network::NoPeers,
    raft::{Request, Types},
};

/// Commands in one entry: beyond it the rest rides in the next. About a megabyte.
const COMMANDS_MAX: usize = 4_096;
/// Proposals that wait: beyond it proposers wait, so that memory stays bounded.
const PROPOSALS_MAX: usize = 65_536;

type LedgerRaft = Raft<Types, Machine>;

/// A proposal that was not answered with replies.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// It was not appended; somebody else may lead.
    #[error("this node does not lead{}", match .leader { Some(id) => format!("; node {id} does"), None => "; there is no leader".into() })]
    NotLeader {
        /// Who leads, if anyone is known to.
        leader: Option<u64>,
    },
    /// Leadership ended before it was committed: it may yet be.
    #[error("leadership ended before the proposal was committed; it may or may not take effect")]
    Unknown,
    /// The node is stopping.
    #[error("the node has stopped: {0}")]
    Stopped(String),
}

/// How the node stands in its group.
#[derive(Debug, Clone)]
pub struct RaftStatus {
    /// This node.
    pub node: u64,
    /// `leader`, `follower`, `candidate`, `learner` or `shutdown`.
    pub role: String,
    /// The current term.
    pub term: u64,
    /// Who leads.
    pub leader: Option<u64>,
    /// The last log index.
    pub last_index: Option<u64>,
    /// The last applied index.
    pub applied_index: Option<u64>,
    /// The index of the last snapshot.
    pub snapshot_index: Option<u64>,
}

/// A node's part in the group. Clones share it.
#[derive(Clone)]
pub struct Replica {
    raft: LedgerRaft,
    db: Db,
    state: Arc<RwLock<State>>,
    proposals: mpsc::Sender<Proposal>,
    leading: watch::Receiver<Option<u64>>,
    node: u64,
}

struct Proposal {
    commands: Vec<Stamped>,
    replies: oneshot::Sender<Result<Vec<Reply>, ProposeError>>,
}

fn config() -> Config {
    Config {
        cluster_name: "tickhost".into(),
        // Well above the stalls of a sync on a busy disk, and a take-over still within about a second.
        heartbeat_interval: 150,
        election_timeout_min: 700,
        election_timeout_max: 1_000,
        enable_pre_vote: Some(true),
        // A restarted leader starts a new term: what it left open is resolved, never taken for its own.
        enable_leader_restore: Some(false),
        quorum_loss_probe_interval: Some(2_000),
        removed_leader_step_down: openraft::StepDownPolicy::After(1_000),
        snapshot_policy: SnapshotPolicy::LogsSinceLast(10_000),
        max_in_snapshot_log_to_keep: 5_000,
        purge_batch_size: 1_000,
        ..Config::default()
    }
}

impl Replica {
    /// Opens the database in a directory and takes part as its only voter, founding the group if it is new.
    /// Returns what applied entries ask the leader to do.
    ///
    /// # Errors
    /// A directory that cannot be used, or that belongs to a node of a larger group.
    pub async fn open_single(
        dir: &Path,
        node: u64,
    ) -> Result<(Self, mpsc::UnboundedReceiver<AppliedOutputs>), OpenError> {
        let db = Db::open(dir)?;
        let failed = |why: String| OpenError::Raft { dir: dir.to_owned(), why };
        let (outputs, outputs_receiver) = mpsc::unbounded_channel();
        let machine = Machine::open(db.clone(), outputs)?;
        let log = LogStore::open(db.clone())?;
        let state = machine.state();
        let config = Arc::new(config().validate().map_err(|e| failed(e.to_string()))?);
        let raft = LedgerRaft::new(node, config, NoPeers, log, machine).await.map_err(|e| failed(e.to_string()))?;
        if !raft.is_initialized().await.map_err(|e| failed(e.to_string()))? {
            let members = BTreeMap::from([(node, openraft::BasicNode::default())]);
            raft.initialize(members).await.map_err(|e| failed(e.to_string()))?;
        }
        // Nobody else can hold a lease, so there is nothing to wait for.
        raft.trigger().elect(false).await.map_err(|e| failed(e.to_string()))?;
        raft.wait(Some(Duration::from_secs(10)))
            .metrics(|now| leading_term(now, node).is_some(), "lead the group of one")
            .await
            .map_err(|e| failed(e.to_string()))?;
        let (proposals, queue) = mpsc::channel(PROPOSALS_MAX);
        tokio::spawn(propose_all(raft.clone(), queue));
        let leading = watch_leading(&raft, node);
        let replica = Self { raft, db, state, proposals, leading, node };
        Ok((replica, outputs_receiver))
    }

    /// This node.
    pub fn node(&self) -> u64 {
        self.node
    }

    /// The database, for the executor's table beside the log.
    pub fn db(&self) -> &Db {
        &self.db
    }

    /// Proposes commands that apply together, in order, and returns their replies once committed and applied.
    ///
    /// # Errors
    /// Where this node does not lead, or stops.
    pub async fn propose(&self, at: Stamp, commands: Vec<Command>) -> Result<Vec<Reply>, ProposeError> {
        let commands = commands.into_iter().map(|command| Stamped { at, command }).collect();
        let (replies, answer) = oneshot::channel();
        let stopped = || ProposeError::Stopped("it takes no more proposals".into());
        self.proposals.send(Proposal { commands, replies }).await.map_err(|_| stopped())?;
        answer.await.map_err(|_| stopped())?
    }

    /// Proposes one command.
    ///
    /// # Errors
    /// As [`Replica::propose`].
    pub async fn propose_one(&self, at: Stamp, command: Command) -> Result<Reply, ProposeError> {
        let mut replies = self.propose(at, vec![command]).await?;
        replies.pop().ok_or_else(|| ProposeError::Stopped("an entry without a reply".into()))
    }

    /// Reads the state as applied here. On the only voter that is all there is.
    pub fn read<R>(&self, read: impl FnOnce(&State) -> R) -> R {
        read(&self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The term in which this node leads, while it does.
    pub fn leading(&self) -> watch::Receiver<Option<u64>> {
        self.leading.clone()
    }

    /// How the node stands in its group.
    pub fn status(&self) -> RaftStatus {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let index = |id: &Option<LogIdOf<Types>>| id.map(|id| id.index);
        RaftStatus {
            node: self.node,
            role: format!("{:?}", metrics.state).to_lowercase(),
            term: metrics.current_term,
            leader: metrics.current_leader,
            last_index: metrics.last_log_index,
            applied_index: index(&metrics.last_applied),
            snapshot_index: index(&metrics.snapshot),
        }
    }

    /// Returns when the node cannot go on, with the reason.
    pub async fn failed(&self) -> String {
        let mut metrics = self.raft.metrics();
        loop {
            if let Err(fatal) = &metrics.borrow_watched().running_state {
                return fatal.to_string();
            }
            if metrics.changed().await.is_err() {
                return "raft has ended".into();
            }
        }
    }

    /// Builds a snapshot and lets the log be purged behind it.
    ///
    /// # Errors
    /// Where the node has stopped.
    pub async fn snapshot(&self) -> Result<(), ProposeError> {
        self.raft.trigger().snapshot().await.map_err(|e| ProposeError::Stopped(e.to_string()))
    }

    /// Stops taking part, with everything on disk.
    pub async fn shutdown(&self) {
        if let Err(error) = self.raft.shutdown().await {
            tracing::warn!(%error, "stop raft");
        }
        self.db.sync(1).await;
    }
}

/// The term in which the node leads, once the first entry of that very term is applied: from then on it has
/// seen all that earlier terms have left.
fn leading_term(now: &RaftMetrics<Types>, node: u64) -> Option<u64> {
    let leads = now.state == ServerState::Leader && now.current_leader == Some(node);
    let applied = now.last_applied.map(|id| id.leader_id.term);
    (leads && now.running_state.is_ok() && applied == Some(now.current_term)).then_some(now.current_term)
}

fn watch_leading(raft: &LedgerRaft, node: u64) -> watch::Receiver<Option<u64>> {
    let (sender, receiver) = watch::channel(None);
    let mut metrics = raft.metrics();
    let publish = move |sender: &watch::Sender<Option<u64>>, term| {
        sender.send_if_modified(|was| std::mem::replace(was, term) != term)
    };
    tokio::spawn(async move {
        loop {
            let term = leading_term(&metrics.borrow_watched(), node);
            publish(&sender, term);
            if metrics.changed().await.is_err() || sender.is_closed() {
                publish(&sender, None);
                return;
            }
        }
    });
    receiver
}

/// Puts whatever waits into one entry, one entry at a time: while one is being synced the next one fills.
async fn propose_all(raft: LedgerRaft, mut queue: mpsc::Receiver<Proposal>) {
    let mut waiting = Vec::new();
    while queue.recv_many(&mut waiting, COMMANDS_MAX).await > 0 {
        let mut rest = std::mem::take(&mut waiting);
        while !rest.is_empty() {
            let batch = take_batch(&mut rest);
            propose_batch(&raft, batch).await;
        }
    }
}

fn take_batch(waiting: &mut Vec<Proposal>) -> Vec<Proposal> {
    let mut commands = 0;
    let fits = waiting
        .iter()
        .take_while(|proposal| {
            commands += proposal.commands.len();
            commands <= COMMANDS_MAX
        })
        .count();
    waiting.drain(..fits.max(1)).collect()
}

async fn propose_batch(raft: &LedgerRaft, batch: Vec<Proposal>) {
    let mut waiting = Vec::with_capacity(batch.len());
    let mut commands = Vec::new();
    for proposal in batch {
        waiting.push((proposal.commands.len(), proposal.replies));
        commands.extend(proposal.commands);
    }
    let intends = commands.iter().any(|c| matches!(c.command, Command::Intend { .. }));
    if intends {
        fault::point("intent-proposed");
    }
    let outcome = write(raft, Entry { commands }).await;
    if intends {
        fault::point("intent-committed");
    }
    match outcome {
        Ok(replies) => {
            let mut replies = replies.into_iter();
            for (count, sender) in waiting {
                let _ = sender.send(Ok(replies.by_ref().take(count).collect()));
            }
        }
        Err(error) => {
            for (_, sender) in waiting {
                let _ = sender.send(Err(error.clone()));
            }
        }
    }
}

/// Writes on condition that the leader of this moment still leads when it is appended.
async fn write(raft: &LedgerRaft, entry: Entry) -> Result<Vec<Reply>, ProposeError> {
    let stopped = |fatal: Fatal<Types>| ProposeError::Stopped(fatal.to_string());
    let term = match raft.as_leader() {
        Ok(leader) => leader.term(),
        Err(forward) => return Err(ProposeError::NotLeader { leader: forward.leader_id }),
    };
    let (responder, answer) = ProgressResponder::<Types, ClientWriteResult<Types>>::complete_only();
    raft.write(Request(entry)).responder(responder).with_leader(term).await.map_err(stopped)?;
    match answer.await {
        Ok(Ok(response)) => Ok(response.data.0),
        Ok(Err(ClientWriteError::LogEntryDiscarded(_))) => Err(ProposeError::Unknown),
        Ok(Err(ClientWriteError::ForwardToLeader(forward))) => {
            Err(ProposeError::NotLeader { leader: forward.leader_id })
        }
        Ok(Err(other)) => Err(ProposeError::Stopped(other.to_string())),
        Err(_) => Err(ProposeError::Unknown),
    }
}

#[cfg(test)]
mod tests;
