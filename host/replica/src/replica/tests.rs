#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

use openraft::{
    StorageError,
    alias::SnapshotMetaOf,
    entry::RaftEntry,
    storage::{RaftLogReader, RaftSnapshotBuilder, RaftStateMachine},
    testing::log::{StoreBuilder, Suite},
};
use tempfile::TempDir;
use tickhost_ledger::{Command, Digest, Refusal, Reply, Stamp};
use uuid::Uuid;

use super::*;

struct Builder;

impl StoreBuilder<Types, LogStore, Machine, TempDir> for Builder {
    async fn build(&self) -> Result<(TempDir, LogStore, Machine), StorageError<Types>> {
        let dir = TempDir::new().unwrap();
        let db = Db::open(dir.path()).unwrap();
        let machine = Machine::open(db.clone(), mpsc::unbounded_channel().0).unwrap();
        Ok((dir, LogStore::open(db).unwrap(), machine))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn openrafts_own_storage_suite_passes() {
    Suite::test_all(Builder).await.unwrap();
}

fn setup(dir: &Path) -> Setup {
    Setup::on_disk(dir, 1, None, Clock::default()).unwrap()
}

async fn open(dir: &Path) -> (Replica, mpsc::UnboundedReceiver<AppliedOutputs>) {
    let (replica, outputs) = Replica::open(setup(dir)).await.unwrap();
    replica.found("").await.unwrap();
    (replica, outputs)
}

pub(super) fn component(n: u8) -> Command {
    component_of(n, 100)
}

/// One that takes about that many bytes of the log.
fn component_of(n: u8, bytes: usize) -> Command {
    let (digest, imports) = (Digest([n; 32]), vec!["x".repeat(bytes)]);
    Command::PutComponent { digest, size: 1, imports, namespace: None, by: String::new() }
}

async fn found(replica: &Replica) {
    let command = Command::Found { cluster: Uuid::new_v4(), key_domain: Uuid::new_v4(), address: String::new() };
    assert_eq!(replica.proposer().propose_one(None, Stamp(1), command).await, Ok(Reply::Done));
}

/// Found by simulation: a node that joins has the first entries of the log, and so the founder as the only voter, before
/// any of them is committed; it must not refuse whoever leads by then.
#[test]
fn a_state_that_knows_nothing_yet_refuses_nobody() {
    assert!(is_newer(&State::default(), 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_is_there_after_a_restart_with_the_same_hash() {
    let dir = TempDir::new().unwrap();
    let mut hash = 0;
    for round in 0..4 {
        let (replica, _outputs) = open(dir.path()).await;
        assert_eq!(replica.read(State::hash), hash);
        if round == 0 {
            found(&replica).await;
        }
        for n in 0..20 {
            assert_eq!(
                replica.proposer().propose_one(None, Stamp(2), component(round * 20 + n)).await,
                Ok(Reply::Done)
            );
        }
        if round == 1 {
            let applied = replica.status().applied_index;
            replica.snapshot().await.unwrap();
            let mut metrics = replica.raft.metrics();
            while metrics.borrow_watched().snapshot.map(|id| id.index) < applied {
                metrics.changed().await.unwrap();
            }
        }
        hash = replica.read(State::hash);
        close(replica, dir.path()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn proposals_made_at_once_share_an_entry_and_get_their_own_replies() {
    let dir = TempDir::new().unwrap();
    let (replica, _outputs) = open(dir.path()).await;
    found(&replica).await;
    let before = replica.status().last_index.unwrap();
    let proposals = (0..200_u8).map(|n| {
        let replica = replica.clone();
        // Every proposal twice: the second time there is nothing to do.
        async move { replica.proposer().propose(None, Stamp(3), vec![component(n), component(n)]).await }
    });
    for replies in futures::future::join_all(proposals).await {
        assert_eq!(replies, Ok(vec![Reply::Done, Reply::Unchanged]));
    }
    let entries = replica.status().last_index.unwrap() - before;
    assert!(entries < 100, "200 proposals took {entries} entries");
    let again = Command::Found { cluster: Uuid::new_v4(), key_domain: Uuid::new_v4(), address: String::new() };
    assert_eq!(replica.proposer().propose_one(None, Stamp(4), again).await, Ok(Reply::Refused(Refusal::Founded)));
    replica.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_below_its_floor_is_refused() {
    let dir = TempDir::new().unwrap();
    let copy: PathBuf = dir.path().join("copy");
    let node = dir.path().join("node");
    let (replica, _outputs) = open(&node).await;
    found(&replica).await;
    close(replica, &node).await;
    copy_dir(&node.join("db"), &copy);
    let (replica, _outputs) = open(&node).await;
    replica.proposer().propose_one(None, Stamp(3), component(1)).await.unwrap();
    close(replica, &node).await;
    std::fs::remove_dir_all(node.join("db")).unwrap();
    copy_dir(&copy, &node.join("db"));
    let refused = Replica::open(setup(&node)).await.map(|_| ()).unwrap_err().to_string();
    assert!(refused.contains("has lost part of its log"), "{refused}");
}

/// A crash tears the log's tail at any byte: what was acknowledged before is there, and the node goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_torn_tail_loses_nothing_that_was_acknowledged() {
    let dir = TempDir::new().unwrap();
    let node = dir.path().join("node");
    let (replica, _outputs) = open(&node).await;
    found(&replica).await;
    for n in 0..10 {
        replica.proposer().propose_one(None, Stamp(3), component(n)).await.unwrap();
    }
    let hash = replica.read(State::hash);
    let acknowledged = dir.path().join("acknowledged");
    copy_node(&node, &acknowledged);
    let (wal, from) = newest_wal(&acknowledged);
    replica.proposer().propose_one(None, Stamp(3), component(99)).await.unwrap();
    let with_the_last = replica.read(State::hash);
    let whole = std::fs::read(node.join("db").join(&wal)).unwrap();
    close(replica, &node).await;
    assert!(whole.len() > from, "the last proposal is in `{wal}`");

    let step = (whole.len() - from).div_ceil(20);
    for cut in (from..whole.len()).step_by(step) {
        let torn = dir.path().join("torn");
        copy_node(&acknowledged, &torn);
        std::fs::write(torn.join("db").join(&wal), &whole[..cut]).unwrap();
        let (replica, _outputs) = open(&torn).await;
        // The last one is there whole or not at all.
        let found = replica.read(State::hash);
        assert!([hash, with_the_last].contains(&found), "cut at {cut} of {from}..{}", whole.len());
        let expected = if found == hash { Reply::Done } else { Reply::Unchanged };
        assert_eq!(replica.proposer().propose_one(None, Stamp(4), component(99)).await, Ok(expected));
        close(replica, &torn).await;
        std::fs::remove_dir_all(torn).unwrap();
    }
}

/// The disk gives back something else than was synced: wherever that is in what was acknowledged last, the node says
/// so and takes no part. Only bytes that say nothing may differ.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_tail_is_refused() {
    let dir = TempDir::new().unwrap();
    let node = dir.path().join("node");
    let (replica, _outputs) = open(&node).await;
    found(&replica).await;
    let (wal, from) = newest_wal(&node);
    replica.proposer().propose_one(None, Stamp(3), component(1)).await.unwrap();
    let acknowledged = replica.read(State::hash);
    // What is there at the moment of a kill, the floor included.
    let killed = dir.path().join("killed");
    copy_node(&node, &killed);
    close(replica, &node).await;
    let whole = std::fs::read(killed.join("db").join(&wal)).unwrap();

    let (mut by_rocks, mut by_floor) = (0, 0);
    for at in (from..whole.len()).step_by((whole.len() - from).div_ceil(40)) {
        let damaged = dir.path().join("damaged");
        copy_node(&killed, &damaged);
        let mut bytes = whole.clone();
        bytes[at] ^= 0x55;
        std::fs::write(damaged.join("db").join(&wal), bytes).unwrap();
        let opened = match Setup::on_disk(&damaged, 1, None, Clock::default()) {
            Ok(setup) => Replica::open(setup).await,
            Err(error) => Err(error),
        };
        match opened {
            Err(OpenError::Rocks { .. }) => by_rocks += 1,
            Err(OpenError::BelowFloor { .. }) => by_floor += 1,
            Err(error) => panic!("damaged at {at} of {from}..{}: {error}", whole.len()),
            Ok((replica, _outputs)) => {
                let found = replica.read(State::hash);
                assert_eq!(found, acknowledged, "damaged at {at} of {from}..{}, and nobody noticed", whole.len());
                close(replica, &damaged).await;
            }
        }
        std::fs::remove_dir_all(damaged).unwrap();
    }
    assert!(by_rocks > 10, "{by_rocks} refused by RocksDB, {by_floor} by the floor");
}

/// A node that lags is sent what it can have on its disk in time, and at least one entry however large it is.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_sent_at_once_is_bounded_in_bytes() {
    let dir = TempDir::new().unwrap();
    let (replica, _outputs) = open(dir.path()).await;
    found(&replica).await;
    let large = |n: u8| component_of(n, 900_000);
    let first = replica.status().last_index.unwrap() + 1;
    for n in 0..8 {
        replica.proposer().propose_one(None, Stamp(3), large(n)).await.unwrap();
    }
    let larger = component_of(9, 5_000_000);
    replica.proposer().propose_one(None, Stamp(3), larger).await.unwrap();
    let mut log = LogStore::open(replica.db().clone()).unwrap();
    let mut sent = async |from| {
        let entries = log.limited_get_log_entries(from, first + 9).await.unwrap();
        assert!(entries.first().is_none_or(|entry| entry.index() == from));
        entries.len()
    };
    assert_eq!(sent(first).await, 3, "no more once two MiB are reached");
    assert_eq!(sent(first + 7).await, 2);
    assert_eq!(sent(first + 8).await, 1, "the largest goes alone");
    assert_eq!(sent(first + 9).await, 0);
    replica.shutdown().await;
}

/// Each removes the files of the other that it does not need any more.
#[tokio::test(flavor = "multi_thread")]
async fn snapshots_are_built_and_installed_in_turn() {
    let dir = TempDir::new().unwrap();
    let db = Db::open(dir.path()).unwrap();
    let mut machine = Machine::open(db.clone(), mpsc::unbounded_channel().0).unwrap();
    let mut builder = machine.get_snapshot_builder().await;
    let built = tokio::spawn(async move {
        for _ in 0..50 {
            builder.build_snapshot().await.unwrap();
        }
    });
    let incoming = dir.path().join("incoming");
    std::fs::create_dir_all(&incoming).unwrap();
    for n in 0..50 {
        let received = incoming.join(n.to_string());
        let (last_log_id, last_membership) = crate::machine::write_rows(&db, &received).unwrap();
        let meta = SnapshotMetaOf::<Types> { last_log_id, last_membership };
        machine.install_snapshot(&meta, crate::machine::SnapshotFile(received)).await.unwrap();
    }
    built.await.unwrap();
    let kept = machine.get_current_snapshot().await.unwrap().expect("a snapshot").snapshot.0;
    let files: Vec<PathBuf> =
        std::fs::read_dir(dir.path().join("snapshots")).unwrap().map(|file| file.unwrap().path()).collect();
    assert_eq!(files, [kept]);
}

/// A clock since boot that goes on while the machine sleeps, as far as a test says.
#[derive(Default)]
struct Slept(std::sync::atomic::AtomicI64);

impl crate::clock::Clocks for Slept {
    fn wall(&self) -> Stamp {
        Stamp(1)
    }

    fn since_boot_ms(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Found by simulation: a leader that had slept for a second held its lease for as long as it had left before.
#[tokio::test(start_paused = true)]
async fn a_lease_from_before_the_sleep_of_the_machine_is_none() {
    let clocks = Arc::new(Slept::default());
    let awake = Awake::new(Clock::of(clocks.clone()));
    let pass = async |awake_ms: u64, asleep_ms: u64| {
        tokio::time::advance(Duration::from_millis(awake_ms)).await;
        clocks.0.fetch_add(i64::try_from(awake_ms + asleep_ms).unwrap(), Ordering::Relaxed);
    };
    pass(400, 0).await;
    assert!(awake.is_for(Duration::from_millis(400)));
    pass(100, 1_000).await;
    assert!(!awake.is_for(Duration::from_millis(100)), "some of it was before the sleep");
    pass(200, 0).await;
    assert!(awake.is_for(Duration::from_millis(200)) && !awake.is_for(Duration::from_millis(201)));
}

/// The newest write-ahead log of a node that has one, and its length.
fn newest_wal(node: &Path) -> (String, usize) {
    let files = std::fs::read_dir(node.join("db")).unwrap().flatten();
    let names = files.map(|file| file.file_name().into_string().unwrap()).filter(|name| name.ends_with(".log"));
    let newest = names.max().unwrap();
    let length = std::fs::metadata(node.join("db").join(&newest)).unwrap().len();
    (newest, usize::try_from(length).unwrap())
}

/// A node's files with its database and floor.
fn copy_node(from: &Path, to: &Path) {
    copy_dir(from, to);
    copy_dir(&from.join("db"), &to.join("db"));
}

fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for file in std::fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        if file.path().is_file() {
            std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
        }
    }
}

/// The last handles are dropped by tasks that end a moment after the shutdown.
async fn close(replica: Replica, dir: &Path) {
    replica.shutdown().await;
    drop(replica);
    let began = std::time::Instant::now();
    while let Err(error) = Db::open(dir) {
        assert!(began.elapsed() < Duration::from_secs(10), "{error}");
        tokio::task::yield_now().await;
    }
}
