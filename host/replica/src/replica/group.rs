//! Several nodes over real connections on loopback.
#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;

use openraft::async_runtime::WatchReceiver as _;
use tempfile::TempDir;
use tickhost_ledger::{Command, Digest, Refusal, Reply, Stamp};
use tokio::{net::TcpListener, task::JoinHandle};
use uuid::Uuid;

use super::{tests::component, *};
use crate::{
    identity::{Authority, Request},
    peers::CallError,
    tls::TlsListener,
};

const SOON: Duration = Duration::from_secs(20);

struct Member {
    replica: Replica,
    outputs: mpsc::UnboundedReceiver<AppliedOutputs>,
    server: JoinHandle<()>,
    address: SocketAddr,
    dir: TempDir,
}

impl Member {
    async fn start(authority: &Authority, node: u64) -> Self {
        let dir = TempDir::new().unwrap();
        let request = Request::new().unwrap();
        let given = authority.sign(node, &request.pem).unwrap();
        Identity::store(dir.path(), &request, &given).unwrap();
        Self::start_in(dir, None).await
    }

    async fn start_in(dir: TempDir, address: Option<SocketAddr>) -> Self {
        let identity = Arc::new(Identity::open(dir.path()).unwrap().unwrap());
        let (node, own) = (identity.node, Some(identity.clone()));
        let setup = Setup::on_disk(dir.path(), node, own, Clock::default()).unwrap();
        let (replica, outputs) = Replica::open(setup).await.unwrap();
        let listener = TcpListener::bind(address.unwrap_or(([127, 0, 0, 1], 0).into())).await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = replica.clone();
        let server = tokio::spawn(async move {
            let listener = TlsListener::new(listener, identity);
            serving.serve(listener, Routes::default()).await.unwrap();
        });
        Self { replica, outputs, server, address, dir }
    }

    async fn stop(self) -> TempDir {
        self.server.abort();
        let _ = self.server.await;
        self.replica.raft.shutdown().await.unwrap();
        drop(self.replica);
        let began = tokio::time::Instant::now();
        while let Err(error) = Db::open(self.dir.path()) {
            assert!(began.elapsed() < SOON, "{error}");
            tokio::task::yield_now().await;
        }
        self.dir
    }

    async fn leader(&self) -> u64 {
        let mut leader = self.replica.leader();
        let found = tokio::time::timeout(SOON, leader.wait_for(Option::is_some)).await.unwrap().unwrap();
        found.unwrap()
    }

    async fn applied(&self, index: u64) {
        self.replica.raft.wait(Some(SOON)).applied_index_at_least(Some(index), "follow").await.unwrap();
    }
}

/// Lets a node in, as far as the ledger goes.
async fn admit(leader: &Member, voter: bool) -> Reply {
    let token = Digest([200; 32]);
    let put = Command::PutToken { digest: token, expires_at: Stamp(2), voter, by: "someone".into() };
    let propose = async |command| leader.replica.proposer().propose_one(None, Stamp(1), command).await.unwrap();
    assert_eq!(propose(put).await, Reply::Done);
    propose(Command::Admit { token, address: String::new(), voter }).await
}

/// Has whoever leads commit it.
async fn commit(members: &[Member], command: Command) {
    let began = tokio::time::Instant::now();
    for member in members.iter().cycle() {
        if member.replica.proposer().propose_one(None, Stamp(1), command.clone()).await == Ok(Reply::Done) {
            return;
        }
        assert!(began.elapsed() < SOON, "nobody leads");
        tokio::task::yield_now().await;
    }
}

/// What a node may say that does not lead: about its own runs.
fn start() -> Command {
    let job = tickhost_ledger::JobName::new("t", "job").unwrap();
    let launch = tickhost_ledger::LaunchId { job, tick: tickhost_ledger::TickAt(1), rerun: None };
    let grant = tickhost_ledger::Grant { epoch: 1, index: 1 };
    Command::Start { run: tickhost_ledger::RunId { launch, attempt: 1 }, grant, sequence: 1 }
}

/// Three voters and a learner, all with state.
async fn group(dir: &TempDir) -> (Vec<Member>, Authority) {
    let cluster = Uuid::from_u128(5);
    let authority = Authority::create(dir.path(), cluster).unwrap();
    let mut members = Vec::new();
    for node in 1..=4 {
        members.push(Member::start(&authority, node).await);
    }
    let first = &members[0].replica;
    first.found(&members[0].address.to_string()).await.unwrap();
    let found = Command::Found { cluster, key_domain: Uuid::from_u128(6), address: members[0].address.to_string() };
    assert_eq!(first.proposer().propose_one(None, Stamp(1), found).await, Ok(Reply::Done));
    for node in 2..=4 {
        assert_eq!(admit(&members[0], node <= 3).await, Reply::Admitted(node));
    }
    for member in &members[1..] {
        first.add_learner(member.replica.node(), &member.address.to_string()).await.unwrap();
    }
    for node in [2, 3] {
        let began = tokio::time::Instant::now();
        while let Err(error) = first.add_voter(node).await {
            assert!(began.elapsed() < SOON, "{error}");
            tokio::task::yield_now().await;
        }
    }
    (members, authority)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_agrees_and_another_leads_when_the_leader_is_gone() {
    let dir = TempDir::new().unwrap();
    let (mut members, _) = group(&dir).await;
    assert_eq!(members[0].replica.voters(), BTreeSet::from([1, 2, 3]));
    assert_eq!(members[0].replica.learners(), BTreeSet::from([4]));
    // Whoever has something to say may say it to any node.
    for (n, member) in (0_u8..).zip(&members) {
        assert_eq!(member.leader().await, 1);
        commit(&members, component(n)).await;
        let said = member.replica.proposer().report(start(), SOON).await;
        assert!(matches!(said, Ok(Reply::Refused(Refusal::NoLaunch(_)))), "{said:?}");
        member.replica.catch_up().await.unwrap();
        assert!(member.replica.read(|state| state.component(&Digest([n; 32])).is_some()), "read what was written");
    }
    let index = members[0].replica.status().last_index.unwrap();
    for member in &members {
        member.applied(index).await;
    }
    let hashes: BTreeSet<u128> = members.iter().map(|member| member.replica.read(State::hash)).collect();
    assert_eq!(hashes.len(), 1, "equal index, equal hash");
    assert!(members[0].replica.has_lease() && !members[1].replica.has_lease());
    members[0].replica.confirm().await.unwrap();
    assert!(members[1].replica.confirm().await.is_err());

    // Found by simulation: whoever is handed over to leads before the old leader's lease is over.
    members[0].replica.handed_over.store(members[0].replica.status().term, Ordering::Relaxed);
    assert!(!members[0].replica.has_lease());
    members[0].replica.catch_up().await.unwrap();
    let taken = members[0].replica.hand_over(Some(3)).await;
    assert_eq!(taken, Ok(3));
    commit(&members, component(10)).await;

    let leader = members.remove(2);
    let gone = leader.stop().await;
    commit(&members, component(11)).await;
    let now = members[0].leader().await;
    assert!([1, 2].contains(&now), "{now}");
    // It comes back where it was, and follows.
    let back = Member::start_in(gone, Some(leader_address(&members, 3))).await;
    let index = members[0].replica.status().applied_index.unwrap();
    back.applied(index).await;
    assert_eq!(back.leader().await, now);
    drop(back.outputs);
}

fn leader_address(members: &[Member], node: u64) -> SocketAddr {
    members[0].replica.address(node).unwrap().parse().unwrap()
}

/// A node that was away while the log was cut off gets a snapshot; so does one that is new.
#[tokio::test(flavor = "multi_thread")]
async fn who_lags_behind_the_log_gets_a_snapshot() {
    let dir = TempDir::new().unwrap();
    let (mut members, authority) = group(&dir).await;
    let address = members[3].address;
    let away = members.remove(3).stop().await;
    for n in 0..50 {
        members[0].replica.proposer().propose_one(None, Stamp(2), component(n)).await.unwrap();
    }
    let leader = &members[0].replica;
    leader.snapshot().await.unwrap();
    let index = leader.status().applied_index.unwrap();
    let mut metrics = leader.raft.metrics();
    while metrics.borrow_watched().snapshot.map(|id| id.index) < Some(index) {
        metrics.changed().await.unwrap();
    }
    leader.raft.trigger().purge_log(index).await.unwrap();
    while metrics.borrow_watched().purged.map(|id| id.index) < Some(index) {
        metrics.changed().await.unwrap();
    }
    let back = Member::start_in(away, Some(address)).await;
    let new = Member::start(&authority, 5).await;
    leader.add_learner(5, &new.address.to_string()).await.unwrap();
    for member in [&back, &new] {
        member.applied(index).await;
        assert!(member.replica.read(|state| state.component(&Digest([49; 32])).is_some()));
        let received = std::fs::read_dir(member.dir.path().join("snapshots")).unwrap().count();
        assert_eq!(received, 1, "it is kept as the node's own");
        assert_eq!(std::fs::read_dir(member.dir.path().join("incoming")).unwrap().count(), 0);
    }
    let last = leader.status().applied_index.unwrap();
    for member in [&back, &new] {
        member.applied(last).await;
        assert_eq!(member.replica.read(State::hash), leader.read(State::hash));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_a_certificate_of_the_cluster_gets_nothing() {
    let dir = TempDir::new().unwrap();
    let (members, authority) = group(&dir).await;
    let within = Duration::from_secs(5);
    // Another cluster of the same shape: its own authority.
    let elsewhere = TempDir::new().unwrap();
    let another = Authority::create(elsewhere.path(), Uuid::from_u128(99)).unwrap();
    let stranger = Member::start(&another, 2).await;
    stranger.replica.peers().set_address(1, &members[0].address.to_string());
    let refused = stranger.replica.peers().call(1, "/ledger/read-index", vec![], within).await;
    assert!(matches!(refused, Err(CallError::NotSent { .. })), "{refused:?}");
    // Somebody without any, who knows the authority's fingerprint.
    let identity = members[0].replica.peers().identity().unwrap();
    let fingerprint = crate::identity::fingerprint(&identity.authority().unwrap()).unwrap();
    let token = crate::join::JoinToken::new(fingerprint);
    let address = members[0].address.to_string();
    for path in ["/ledger/report", "/ledger/read-index", "/raft/vote", "/raft/snapshot"] {
        let asked = crate::join::ask_with_token::<(), ()>(&address, &token, path, &()).await;
        assert!(asked.as_ref().is_err_and(|why| why.contains("no certificate")), "{path}: {asked:?}");
    }
    let wrong = crate::join::JoinToken::new(Digest([3; 32]));
    let asked = crate::join::ask_with_token::<(), ()>(&address, &wrong, "/join", &()).await;
    assert!(asked.as_ref().is_err_and(|why| why.contains("no node of the cluster")), "{asked:?}");
    // A certificate of the cluster, of a node that was let go.
    assert_eq!(admit(&members[0], true).await, Reply::Admitted(5));
    let gone = Member::start(&authority, 5).await;
    gone.replica.peers().set_address(1, &address);
    let ask = async || gone.replica.peers().call(1, "/raft/vote", vec![], within).await;
    let garbled = ask().await;
    assert!(matches!(&garbled, Err(CallError::Refused { why, .. }) if !why.contains("node 5")), "{garbled:?}");
    commit(&members, Command::Remove { node: 5, by: "someone".into() }).await;
    let refused = ask().await;
    assert!(matches!(&refused, Err(CallError::Refused { why, .. }) if why.contains("does not belong")), "{refused:?}");
}

/// Its disk is looked at first, with the help of the others: before that it neither leads nor stands for election.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_peers_leads_nothing_before_it_serves() {
    let dir = TempDir::new().unwrap();
    let authority = Authority::create(dir.path(), Uuid::from_u128(5)).unwrap();
    let first = Member::start(&authority, 1).await;
    first.replica.found(&first.address.to_string()).await.unwrap();
    let (term, address, dir) = (first.replica.status().term, first.address, first.stop().await);
    let identity = Arc::new(Identity::open(dir.path()).unwrap().unwrap());
    let setup = Setup::on_disk(dir.path(), 1, Some(identity.clone()), Clock::default()).unwrap();
    let (replica, _outputs) = Replica::open(setup).await.unwrap();
    let is_idle = async |replica: &Replica| {
        let elects = replica.raft.with_raft_state(|state| state.vote_ref().leader_id.term).await.unwrap();
        (elects, *replica.leading().borrow())
    };
    assert_eq!(is_idle(&replica).await, (term, None), "though nobody else could win");
    let listener = TlsListener::new(TcpListener::bind(address).await.unwrap(), identity);
    let serving = replica.clone();
    let server = tokio::spawn(async move { serving.serve(listener, Routes::default()).await });
    let mut leading = replica.leading();
    let led = tokio::time::timeout(SOON, leading.wait_for(Option::is_some)).await.unwrap().map(|term| *term);
    assert!(led.unwrap() > Some(term));
    server.abort();
}

/// A certificate says who somebody is, and not that he may do everything.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_does_not_vote_orders_nothing() {
    let dir = TempDir::new().unwrap();
    let (members, _) = group(&dir).await;
    let executor = &members[3].replica;
    assert_eq!(members[3].leader().await, 1);
    for path in ["/raft/vote", "/raft/pre-vote", "/raft/append", "/raft/transfer", "/raft/snapshot"] {
        let refused = executor.peers().call(2, path, vec![], SOON).await;
        assert!(
            matches!(&refused, Err(CallError::Refused { why, .. }) if why.contains("does not vote")),
            "{refused:?}"
        );
    }
    let remove = || Command::Remove { node: 2, by: "node 4".into() };
    let token = Command::PutToken { digest: Digest([9; 32]), expires_at: Stamp(9), voter: true, by: "node 4".into() };
    let admit = Command::Admit { token: Digest([200; 32]), address: String::new(), voter: true };
    for command in [remove(), token, admit] {
        let refused = executor.proposer().report(command, Duration::ZERO).await;
        assert!(matches!(&refused, Err(ProposeError::Refused(why)) if why.contains("its own runs")), "{refused:?}");
    }
    // A voter lets others in, and no more than that.
    let refused = members[1].replica.proposer().report(remove(), Duration::ZERO).await;
    assert!(matches!(refused, Err(ProposeError::Refused(_))), "{refused:?}");
}

/// A node that takes connections and says nothing, as a frozen one does.
#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_a_connection_waits_no_longer_than_it_said() {
    let dir = TempDir::new().unwrap();
    let authority = Authority::create(dir.path(), Uuid::from_u128(5)).unwrap();
    let member = Member::start(&authority, 1).await;
    let silent = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let peers = member.replica.peers();
    peers.set_address(9, &silent.local_addr().unwrap().to_string());
    let calls = (0..20).map(|_| peers.call(9, "/raft/vote", vec![], Duration::from_millis(100)));
    // One after the other they would take half a minute.
    let answers = tokio::time::timeout(Duration::from_secs(5), futures::future::join_all(calls)).await.unwrap();
    for answer in answers {
        assert!(matches!(&answer, Err(CallError::NotSent { why, .. }) if why.contains("100ms")), "{answer:?}");
    }
}
