//! A node's part in the group: taking part, reading, and knowing whether it leads. Proposing is beside.

mod watched;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::Router;
use openraft::{
    BasicNode, ChangeMembers, Config, Raft, ReadPolicy, SnapshotPolicy,
    alias::LogIdOf,
    async_runtime::{Instant as _, WatchReceiver},
    errors::ClientWriteError,
};
use serde::{Deserialize, Serialize};
use tickhost_ledger::State;
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};

use crate::{
    clock::Clock,
    db::{Db, OpenError, Waiting},
    fault,
    identity::Identity,
    listen::{self, Listen, Routes},
    log::LogStore,
    machine::{AppliedOutputs, Machine},
    network::{self, Network},
    peers::{Peers, Transport},
    propose::{self, ProposeError, Proposer},
    raft::Types,
    tls::TlsTransport,
};

use self::watched::{Watched, leading_term};

pub(crate) type LedgerRaft = Raft<Types, Machine>;

/// What a node's part rests on.
#[derive(Clone)]
pub struct Setup {
    /// What it keeps.
    pub db: Db,
    /// The number in the cluster.
    pub node: u64,
    /// What it proves that with; `None` for a host that has no peers.
    pub identity: Option<Arc<Identity>>,
    /// What carries to the others.
    pub transport: Arc<dyn Transport>,
    /// Its clocks.
    pub clock: Clock,
}

impl Setup {
    /// As every host has it: a RocksDB in that directory, and TLS between nodes.
    ///
    /// # Errors
    /// A directory that cannot be used.
    pub fn on_disk(dir: &Path, node: u64, identity: Option<Arc<Identity>>, clock: Clock) -> Result<Self, OpenError> {
        let transport = Arc::new(TlsTransport::new(identity.clone()));
        Ok(Self { db: Db::open(dir)?, node, identity, transport, clock })
    }
}

/// How a leader knows that it still leads when something is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Freshness {
    /// By its lease.
    Lease,
    /// It asks a majority.
    Majority,
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
    /// The last committed index that this node knows of.
    pub committed_index: Option<u64>,
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
    proposer: Proposer,
    peers: Peers,
    watched: Watched,
    node: u64,
    incoming: Arc<PathBuf>,
    /// The last term in which this node has begun to hand leadership over.
    handed_over: Arc<AtomicU64>,
    awake: Arc<Awake>,
}

/// A leader hears from the others this often, and they from it.
const HEARTBEAT_MS: u64 = 80;
/// A follower that hears nothing for the longer of the two stands for election a random time between them later.
/// The longer is above what a sync takes on a busy disk; the shorter is waited for in every take-over, and
/// what keeps two from standing at once is the distance between them.
const ELECTION_MS: (u64, u64) = (150, 400);
/// How long nobody else can lead after a quorum has heard from the leader.
const LEASE: Duration = Duration::from_millis(ELECTION_MS.1);
/// Clocks of machines do not run equally fast.
const DRIFT: f64 = 0.01;
/// A transfer is an election without the waiting.
const TRANSFER_WITHIN: Duration = Duration::from_secs(2);

fn config() -> Config {
    Config {
        cluster_name: "tickhost".into(),
        heartbeat_interval: HEARTBEAT_MS,
        election_timeout_min: ELECTION_MS.0,
        election_timeout_max: ELECTION_MS.1,
        enable_pre_vote: Some(true),
        // A restarted leader starts a new term: what it left open is resolved, never taken for its own.
        enable_leader_restore: Some(false),
        quorum_loss_probe_interval: Some(1_000),
        removed_leader_step_down: openraft::StepDownPolicy::After(1_000),
        snapshot_policy: SnapshotPolicy::LogsSinceLast(10_000),
        max_in_snapshot_log_to_keep: 5_000,
        purge_batch_size: 1_000,
        ..Config::default()
    }
}

impl Replica {
    /// Takes part with what is in the database. Returns what applied entries ask the leader to do.
    ///
    /// # Errors
    /// A database that is damaged, or has lost what it had promised.
    pub async fn open(setup: Setup) -> Result<(Self, mpsc::UnboundedReceiver<AppliedOutputs>), OpenError> {
        let Setup { db, node, identity, transport, clock } = setup;
        let (dir, has_peers) = (db.dir().to_owned(), identity.is_some());
        let failed = |why: String| OpenError::Raft { dir: dir.clone(), why };
        let (outputs, outputs_receiver) = mpsc::unbounded_channel();
        let machine = Machine::open(db.clone(), outputs)?;
        let log = LogStore::open(db.clone())?;
        let state = machine.state();
        // A node that has peers stands for no election before it serves: its disk is looked at first.
        let config = Config { enable_elect: !has_peers, ..config() };
        let config = Arc::new(config.validate().map_err(|e| failed(e.to_string()))?);
        let peers = Peers::new(identity, transport);
        let network = Network { peers: peers.clone(), db: db.clone() };
        let raft = LedgerRaft::new(node, config, network, log, machine).await;
        let raft = raft.map_err(|e| failed(e.to_string()))?;
        let watched = Watched::follow(&raft, node, peers.clone());
        let leader = watched.leader.clone();
        let proposer = Proposer::start(raft.clone(), node, peers.clone(), leader, state.clone(), clock.clone());
        let incoming = Arc::new(dir.join("incoming"));
        // What an earlier process has received in part.
        let _ = std::fs::remove_dir_all(incoming.as_path());
        let (handed_over, awake) = (Arc::default(), Arc::new(Awake::new(clock)));
        let replica = Self { raft, db, state, proposer, peers, watched, node, incoming, handed_over, awake };
        if !has_peers && replica.is_alone().await? {
            replica.lead_alone().await?;
        }
        Ok((replica, outputs_receiver))
    }

    /// Whether this node is the only one that votes. Asked of Raft itself: what it publishes lags a moment behind.
    async fn is_alone(&self) -> Result<bool, OpenError> {
        let voters = self.raft.with_raft_state(|state| state.membership_state.effective().voter_ids().collect());
        let voters: BTreeSet<u64> = voters.await.map_err(|e| self.failed_to_open(e.to_string()))?;
        Ok(voters == BTreeSet::from([self.node]))
    }

    fn failed_to_open(&self, why: String) -> OpenError {
        OpenError::Raft { dir: self.db.dir().to_owned(), why }
    }

    /// Founds a group with this node as its only voter. Nothing where there is one.
    ///
    /// # Errors
    /// A directory that cannot be used.
    pub async fn found(&self, address: &str) -> Result<(), OpenError> {
        let failed = |why| self.failed_to_open(why);
        if self.raft.is_initialized().await.map_err(|e| failed(e.to_string()))? {
            return Ok(());
        }
        let members = BTreeMap::from([(self.node, BasicNode::new(address))]);
        self.raft.initialize(members).await.map_err(|e| failed(e.to_string()))?;
        self.lead_alone().await
    }

    /// Leads a group of one. Nobody else can hold a lease, so there is nothing to wait for.
    ///
    /// # Errors
    /// A group of more, and a node that has stopped.
    pub async fn lead_alone(&self) -> Result<(), OpenError> {
        let failed = |why| self.failed_to_open(why);
        self.raft.trigger().elect(false).await.map_err(|e| failed(e.to_string()))?;
        let node = self.node;
        self.raft
            .wait(Some(Duration::from_secs(10)))
            .metrics(|now| leading_term(now, node).is_some(), "lead the group of one")
            .await
            .map_err(|e| failed(e.to_string()))?;
        Ok(())
    }

    /// Takes part and answers peers until the process ends.
    ///
    /// # Errors
    /// A node that has stopped, a port that has closed.
    pub async fn serve(&self, listener: Box<dyn Listen>, mut routes: Routes) -> std::io::Result<()> {
        let is_alone = self.is_alone().await.map_err(std::io::Error::other)?;
        if is_alone {
            self.lead_alone().await.map_err(std::io::Error::other)?;
        } else if self.raft.is_initialized().await.map_err(std::io::Error::other)? {
            // What this node had granted before it was restarted, it has forgotten: it votes for nobody before that
            // is over.
            tokio::time::sleep(LEASE).await;
        }
        self.raft.runtime_config().elect(true);
        let (raft, db, incoming) = (self.raft.clone(), self.db.clone(), self.incoming.clone());
        let receiver = network::Receiver { raft, db, incoming };
        let raft = self.voters_only(network::routes(receiver));
        routes.members = routes.members.merge(raft).merge(propose::routes(self.clone()));
        let replica = self.clone();
        listener.serve(listen::router(routes, move |node| replica.is_member(node))).await
    }

    /// Lets only nodes that vote ask what is behind those routes.
    pub fn voters_only(&self, routes: Router) -> Router {
        let replica = self.clone();
        listen::only(routes, "does not vote, and only nodes that do may ask this", move |node| replica.is_voter(node))
    }

    /// Whether a node belongs to the cluster, as far as this one knows.
    fn is_member(&self, node: u64) -> bool {
        self.read(|state| state.node(node).is_some() || is_newer(state, node)) || self.knows(node)
    }

    /// Whether a node votes, or is to, as far as this one knows.
    pub(crate) fn is_voter(&self, node: u64) -> bool {
        let is_to_vote = |state: &State| state.node(node).is_some_and(|row| row.voter) || is_newer(state, node);
        let voters = self.voters();
        voters.contains(&node) || voters.is_empty() || self.read(is_to_vote)
    }

    /// Whether this node has a log: one that has only just joined, or was wiped, has none.
    ///
    /// # Errors
    /// Where it has stopped.
    pub async fn has_log(&self) -> Result<bool, ProposeError> {
        self.raft.is_initialized().await.map_err(|e| ProposeError::Stopped(e.to_string()))
    }

    fn knows(&self, node: u64) -> bool {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let membership = metrics.membership_config.membership();
        // Before its first entry it is told by whoever it has joined; that one has shown the cluster's certificate.
        membership.get_node(&node).is_some() || membership.nodes().next().is_none()
    }

    /// This node.
    pub fn node(&self) -> u64 {
        self.node
    }

    /// The database, for the executor's table beside the log.
    pub fn db(&self) -> &Db {
        &self.db
    }

    /// Where files lie that are good for the moment: what a process leaves there, the next one removes.
    pub(crate) fn incoming(&self) -> &Path {
        &self.incoming
    }

    /// The other nodes.
    pub fn peers(&self) -> &Peers {
        &self.peers
    }

    /// Proposing.
    pub fn proposer(&self) -> &Proposer {
        &self.proposer
    }

    /// Reads the state as applied here.
    pub fn read<R>(&self, read: impl FnOnce(&State) -> R) -> R {
        read(&self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until the state here holds all that was committed when this was called: what is read then is no older.
    ///
    /// # Errors
    /// Where nobody leads, or the leader cannot be reached.
    pub async fn catch_up(&self) -> Result<(), ProposeError> {
        self.catch_up_with(Freshness::Lease).await
    }

    /// The same, resting on no clock: a majority says that the leader still leads.
    ///
    /// # Errors
    /// As [`Replica::catch_up`].
    pub async fn catch_up_for_certain(&self) -> Result<(), ProposeError> {
        self.catch_up_with(Freshness::Majority).await
    }

    async fn catch_up_with(&self, freshness: Freshness) -> Result<(), ProposeError> {
        if fault::planted("read-without-asking") {
            return Ok(());
        }
        let leader = *self.watched.leader.borrow();
        let index = match leader {
            Some(leader) if leader != self.node => self.proposer.read_index(leader, freshness).await?,
            _ => self.read_index(freshness).await?,
        };
        let index = Some(index);
        let waited = self.raft.wait(Some(Duration::from_secs(5))).applied_index_at_least(index, "catch up").await;
        waited.map(|_| ()).map_err(|e| ProposeError::Refused(format!("this node lags behind: {e}")))
    }

    /// Confirms with a majority that this node leads at a moment after the call.
    ///
    /// # Errors
    /// Where it does not.
    pub async fn confirm(&self) -> Result<(), ProposeError> {
        self.read_index(Freshness::Majority).await.map(|_| ())
    }

    pub(crate) async fn read_index(&self, freshness: Freshness) -> Result<u64, ProposeError> {
        let policy = match freshness {
            Freshness::Lease if self.heard_ago().is_some() => ReadPolicy::LeaseRead,
            Freshness::Lease | Freshness::Majority => ReadPolicy::ReadIndex,
        };
        let linearizer = self.raft.get_read_linearizer(policy).await;
        let linearizer = linearizer.map_err(|_| ProposeError::NotLeader { leader: *self.watched.leader.borrow() })?;
        Ok(linearizer.read_log_id().index())
    }

    /// The term in which this node leads, while it does: from the moment on at which the first entry of that very
    /// term is applied.
    pub fn leading(&self) -> watch::Receiver<Option<u64>> {
        self.watched.leading.clone()
    }

    /// Who leads, as far as this node knows.
    pub fn leader(&self) -> watch::Receiver<Option<u64>> {
        self.watched.leader.clone()
    }

    /// Whether nobody else can lead at this moment: a majority has heard from this node within the lease.
    pub fn has_lease(&self) -> bool {
        self.heard_ago().is_some_and(|ago| ago < LEASE.mul_f64(1.0 - 2.0 * DRIFT))
    }

    /// How long ago a majority has heard from this node as from its leader, where a lease can follow from it. Whom a leader
    /// hands over to waits for none, and the old one may be told late; a machine that was asleep has not counted that time.
    fn heard_ago(&self) -> Option<Duration> {
        let leader = self.raft.as_leader().ok()?;
        if leader.term() <= self.handed_over.load(Ordering::Relaxed) && !fault::planted("keep-the-lease") {
            return None;
        }
        if self.voters() == BTreeSet::from([self.node]) {
            return Some(Duration::ZERO);
        }
        let ago = leader.last_quorum_acked()?.elapsed();
        (self.awake.is_for(ago) || fault::planted("sleep-with-a-lease")).then_some(ago)
    }

    /// The nodes that vote.
    pub fn voters(&self) -> BTreeSet<u64> {
        self.raft.voter_ids().collect()
    }

    /// The nodes that the log goes to without their voting.
    pub fn learners(&self) -> BTreeSet<u64> {
        self.raft.learner_ids().collect()
    }

    /// The address under which the group reaches a node.
    pub fn address(&self, node: u64) -> Option<String> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        metrics.membership_config.membership().get_node(&node).map(|node| node.addr.clone())
    }

    /// Lets a node follow the log from now on, or be reached elsewhere.
    ///
    /// # Errors
    /// Where this node does not lead.
    pub async fn add_learner(&self, node: u64, address: &str) -> Result<(), ProposeError> {
        let known = self.address(node);
        if known.as_deref() == Some(address) {
            return Ok(());
        }
        let nodes = BTreeMap::from([(node, BasicNode::new(address))]);
        let change = if known.is_some() { ChangeMembers::SetNodes(nodes) } else { ChangeMembers::AddNodes(nodes) };
        self.change(change).await
    }

    /// Lets a node vote that follows the log.
    ///
    /// # Errors
    /// Where this node does not lead, or the other one lags too far behind.
    pub async fn add_voter(&self, node: u64) -> Result<(), ProposeError> {
        self.change(ChangeMembers::AddVoterIds(BTreeSet::from([node]))).await
    }

    /// Takes a node out of the group.
    ///
    /// # Errors
    /// Where this node does not lead.
    pub async fn remove(&self, node: u64) -> Result<(), ProposeError> {
        if self.voters().contains(&node) {
            self.change(ChangeMembers::RemoveVoters(BTreeSet::from([node]))).await?;
        }
        self.change(ChangeMembers::RemoveNodes(BTreeSet::from([node]))).await
    }

    async fn change(&self, change: ChangeMembers<u64, BasicNode>) -> Result<(), ProposeError> {
        let changed = self.raft.change_membership(change, true).await;
        changed.map(|_| ()).map_err(|error| match error.api_error() {
            Some(ClientWriteError::ForwardToLeader(to)) => ProposeError::NotLeader { leader: to.leader_id },
            Some(other) => ProposeError::Refused(other.to_string()),
            None => ProposeError::Stopped(error.to_string()),
        })
    }

    /// The index up to which the log of each other node is known to be the same. Known to the leader only.
    pub fn matched(&self) -> BTreeMap<u64, u64> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let replication = metrics.replication.iter().flatten();
        replication.map(|(node, matched)| (*node, matched.as_ref().map_or(0, |id| id.index))).collect()
    }

    /// Hands leadership to another voter: to that one, or to the one whose log goes furthest. Returns who leads then.
    ///
    /// # Errors
    /// Where this node does not lead, there is nobody to hand it to, or nobody has taken it over in time.
    pub async fn hand_over(&self, to: Option<u64>) -> Result<u64, ProposeError> {
        let Ok(term) = self.raft.as_leader().map(|leader| leader.term()) else {
            return Err(ProposeError::NotLeader { leader: *self.watched.leader.borrow() });
        };
        let voters = self.voters();
        let matched = self.matched();
        // What is not known to be replicated counts as nothing: a leader that has only just begun knows of nobody.
        let reach = |node: &u64| matched.get(node).copied().unwrap_or_default();
        let furthest = || voters.iter().copied().filter(|node| *node != self.node).max_by_key(reach);
        let to = to.or_else(furthest).filter(|to| *to != self.node && voters.contains(to));
        let to = to.ok_or_else(|| ProposeError::Refused("there is no such other node that votes".into()))?;
        self.handed_over.fetch_max(term, Ordering::Relaxed);
        self.raft.trigger().transfer_leader(to).await.map_err(|e| ProposeError::Stopped(e.to_string()))?;
        let mut leader = self.watched.leader.clone();
        let node = self.node;
        let taken = tokio::time::timeout(TRANSFER_WITHIN, leader.wait_for(|now| now.is_some_and(|now| now != node)));
        match taken.await {
            Ok(Ok(now)) => Ok(now.unwrap_or(to)),
            _ => Err(ProposeError::Refused(format!("node {to} has not taken over within {TRANSFER_WITHIN:?}"))),
        }
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
            committed_index: index(&metrics.local_committed),
            applied_index: index(&metrics.last_applied),
            snapshot_index: index(&metrics.snapshot),
        }
    }

    /// Returns when the node cannot go on, with the reason.
    pub async fn failed(&self) -> String {
        let mut failure = self.watched.failure.clone();
        let failed = failure.wait_for(Option::is_some).await;
        failed.ok().and_then(|why| why.clone()).unwrap_or_else(|| "raft has ended".into())
    }

    /// Builds a snapshot and lets the log be purged behind it.
    ///
    /// # Errors
    /// Where the node has stopped.
    pub async fn snapshot(&self) -> Result<(), ProposeError> {
        self.raft.trigger().snapshot().await.map_err(|e| ProposeError::Stopped(e.to_string()))
    }

    /// Stops taking part, with everything on disk. A leader hands over first.
    pub async fn shutdown(&self) {
        if self.raft.is_leader()
            && self.voters().len() > 1
            && let Err(error) = self.hand_over(None).await
        {
            tracing::warn!(%error, "hand leadership over");
        }
        if let Err(error) = self.raft.shutdown().await {
            tracing::warn!(%error, "stop raft");
        }
        self.db.sync(Waiting::Somebody).await;
    }
}

/// Since when the machine has not been asleep, as far as can be told: while it is, the clock that leases go by stands still
/// and the one since boot does not.
struct Awake {
    clock: Clock,
    began: Instant,
    /// By how much the one clock was ahead of the other when they were last looked at, in milliseconds, and since when.
    seen: Mutex<(i64, Instant)>,
}

/// Both are read one after the other, and in whole milliseconds.
const APART_MS: i64 = 20;

impl Awake {
    fn new(clock: Clock) -> Self {
        let began = Instant::now();
        let seen = Mutex::new((clock.since_boot_ms(), began));
        Self { clock, began, seen }
    }

    /// Whether the machine has certainly been awake for that long.
    fn is_for(&self, time: Duration) -> bool {
        let ran_ms = i64::try_from(self.began.elapsed().as_millis()).unwrap_or(i64::MAX);
        let ahead_ms = self.clock.since_boot_ms() - ran_ms;
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if ahead_ms - seen.0 > APART_MS {
            *seen = (ahead_ms, Instant::now());
        }
        seen.1.elapsed() >= time
    }
}

/// Whether that node was let in after all that this state knows of: a node that lags must not refuse who leads by now.
/// No number is given twice, and the certificate says that it was given.
fn is_newer(state: &State, node: u64) -> bool {
    state.cluster().is_none_or(|cluster| node >= cluster.next_node)
}

#[cfg(test)]
mod group;
#[cfg(test)]
mod tests;
