//! The state machine: applies entries, writes the rows that changed together with the index they stand for,
//! builds and installs snapshots.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{self, BufReader, BufWriter, Read, Write},
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
};

use futures::{Stream, TryStreamExt};
use openraft::{
    BasicNode, EntryPayload, Membership, OptionalSend,
    alias::{LogIdOf, SnapshotMetaOf, SnapshotOf, StoredMembershipOf, VoteOf},
    storage::{EntryResponder, RaftLogStorage, RaftSnapshotBuilder, RaftStateMachine},
};
use serde::{Deserialize, Serialize};
use tickhost_ledger::{Output, State, codec};
use tokio::sync::mpsc;

use crate::{
    db::{Db, META, OpenError, STATE, Waiting},
    fault,
    log::LogStore,
    raft::{Response, Types},
    store::Batch,
};

const APPLIED: &[u8] = b"applied";
const SNAPSHOT: &[u8] = b"snapshot";
/// Bytes of a snapshot that are installed in one batch. Arbitrary: large enough to be fast, far below memory.
const INSTALL_BATCH_BYTES: usize = 4 << 20;

/// A snapshot's file. Its bytes: pairs of length-prefixed row key and row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SnapshotFile(pub(crate) PathBuf);

/// How far the rows on disk are.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct AppliedMark {
    last: Option<LogIdOf<Types>>,
    membership: StoredMembershipOf<Types>,
    /// Rows lie under this number; a snapshot is installed under the next one and takes over at once.
    generation: u64,
}

/// The last snapshot.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct SnapshotMark {
    meta: SnapshotMetaOf<Types>,
    file: PathBuf,
}

/// What the entries of a term ask the leader to do.
#[derive(Debug)]
pub struct AppliedOutputs {
    /// The term of the entry; only the leader of that very term acts.
    pub term: u64,
    /// In order.
    pub outputs: Vec<Output>,
}

/// The state machine of a node.
pub(crate) struct Machine {
    db: Db,
    state: Arc<RwLock<State>>,
    mark: AppliedMark,
    outputs: mpsc::UnboundedSender<AppliedOutputs>,
    /// Building and installing take turns: each removes the files of the other.
    snapshots: Arc<tokio::sync::Mutex<()>>,
}

impl Machine {
    pub(crate) fn open(db: Db, outputs: mpsc::UnboundedSender<AppliedOutputs>) -> Result<Self, OpenError> {
        let damaged = |why: String| OpenError::Damaged { dir: db.dir().to_owned(), why };
        let mark: AppliedMark = db.get(META, APPLIED).map_err(|e| damaged(e.to_string()))?.unwrap_or_default();
        let state = load_state(&db, mark.generation).map_err(|e| damaged(e.to_string()))?;
        Ok(Self { db, state: Arc::new(RwLock::new(state)), mark, outputs, snapshots: Arc::default() })
    }

    /// Makes an empty database that of a group of one whose log up to there is in a snapshot.
    pub(crate) async fn found_from(
        db: Db,
        node: u64,
        address: &str,
        (term, index): (u64, u64),
        rows: PathBuf,
    ) -> io::Result<()> {
        let (outputs, _) = mpsc::unbounded_channel();
        let mut machine = Self::open(db.clone(), outputs).map_err(io::Error::other)?;
        let last = LogIdOf::<Types>::new_term_index(term, index);
        let voters = vec![BTreeSet::from([node])];
        let membership = Membership::new(voters, BTreeMap::from([(node, BasicNode::new(address))]));
        let membership = membership.map_err(io::Error::other)?;
        let last_membership = StoredMembershipOf::<Types>::new(Some(last), membership);
        let meta = SnapshotMetaOf::<Types> { last_log_id: Some(last), last_membership };
        machine.install_snapshot(&meta, SnapshotFile(rows)).await?;
        let mut log = LogStore::open(db).map_err(io::Error::other)?;
        log.save_vote(&VoteOf::<Types>::new(term, node)).await?;
        log.purge(last).await
    }

    pub(crate) fn state(&self) -> Arc<RwLock<State>> {
        self.state.clone()
    }
}

fn load_state(db: &Db, generation: u64) -> io::Result<State> {
    let rows = db.scan(STATE, &generation.to_be_bytes())?;
    State::load(rows.iter().map(|(key, value)| (&key[8..], &value[..]))).map_err(io::Error::other)
}

fn row_key(generation: u64, key: &[u8]) -> Vec<u8> {
    [&generation.to_be_bytes(), key].concat()
}

impl RaftStateMachine<Types> for Machine {
    type SnapshotData = SnapshotFile;
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> Result<(Option<LogIdOf<Types>>, StoredMembershipOf<Types>), io::Error> {
        Ok((self.mark.last, self.mark.membership.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> Result<(), io::Error>
    where
        S: Stream<Item = Result<EntryResponder<Types>, io::Error>> + Unpin + OptionalSend,
    {
        let mut batch = Batch::default();
        let mut answers = Vec::new();
        let mut outputs = Vec::new();
        while let Some((entry, responder)) = entries.try_next().await? {
            let (index, term) = (entry.log_id.index, entry.log_id.leader_id.term);
            let mut response = Response::default();
            match entry.payload {
                EntryPayload::Blank => {}
                EntryPayload::Normal(request) => {
                    let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
                    let applied = state.apply(index, &request.0).map_err(io::Error::other)?;
                    drop(state);
                    for row in applied.rows {
                        let key = row_key(self.mark.generation, &row.key);
                        match row.value {
                            Some(value) => batch.put(STATE, key, value),
                            None => batch.delete(STATE, key),
                        }
                    }
                    response = Response(applied.replies);
                    outputs.push(AppliedOutputs { term, outputs: applied.outputs });
                }
                EntryPayload::Membership(membership) => {
                    self.mark.membership = StoredMembershipOf::<Types>::new(Some(entry.log_id), membership);
                }
            }
            self.mark.last = Some(entry.log_id);
            answers.extend(responder.map(|responder| (responder, response)));
        }
        if fault::planted("mark-before-rows") {
            self.db.put(META, APPLIED, &self.mark)?;
        }
        batch.put(META, APPLIED, codec::encode(&self.mark).map_err(io::Error::other)?);
        self.db.write(batch)?;
        // Outputs first: whoever awaits the answer may rely on the leader having been told.
        for output in outputs {
            let _ = self.outputs.send(output);
        }
        for (responder, response) in answers {
            responder.send(response);
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        Builder { db: self.db.clone(), snapshots: self.snapshots.clone() }
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMetaOf<Types>,
        snapshot: SnapshotFile,
    ) -> Result<(), io::Error> {
        let snapshots = self.snapshots.clone();
        let _in_turn = snapshots.lock().await;
        let old = self.mark.generation;
        let generation = old + 1;
        let mut batch = Batch::default();
        // What an installation that was cut off has left under this number.
        batch.delete_range(STATE, generation, u64::MAX);
        read_rows(&snapshot.0, |key, value| {
            batch.put(STATE, row_key(generation, key), value);
            if batch.bytes() > INSTALL_BATCH_BYTES {
                self.db.write(std::mem::take(&mut batch))?;
            }
            Ok(())
        })?;
        let mark = AppliedMark { last: meta.last_log_id, membership: meta.last_membership.clone(), generation };
        let snapshot = SnapshotMark { meta: meta.clone(), file: keep(&self.db, meta, &snapshot.0)? };
        batch.put(META, APPLIED, codec::encode(&mark).map_err(io::Error::other)?);
        batch.put(META, SNAPSHOT, codec::encode(&snapshot).map_err(io::Error::other)?);
        self.db.write(batch)?;
        self.db.sync(Waiting::Somebody).await;
        let state = load_state(&self.db, generation)?;
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = state;
        self.mark = mark;
        remove_other_snapshots(&snapshot)?;
        let mut cleanup = Batch::default();
        cleanup.delete_range(STATE, 0, generation);
        self.db.write(cleanup)
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<SnapshotOf<Types, SnapshotFile>>, io::Error> {
        let mark: Option<SnapshotMark> = self.db.get(META, SNAPSHOT)?;
        Ok(mark
            .filter(|mark| mark.file.exists())
            .map(|mark| SnapshotOf::<Types, SnapshotFile> { meta: mark.meta, snapshot: SnapshotFile(mark.file) }))
    }
}

/// Builds a snapshot from a consistent view of the database while entries go on being applied.
pub(crate) struct Builder {
    db: Db,
    snapshots: Arc<tokio::sync::Mutex<()>>,
}

impl RaftSnapshotBuilder<Types> for Builder {
    type SnapshotData = SnapshotFile;

    async fn build_snapshot(&mut self) -> Result<SnapshotOf<Types, SnapshotFile>, io::Error> {
        let _in_turn = self.snapshots.lock().await;
        let db = self.db.clone();
        let mark = self.db.off_thread(move || write_snapshot(&db)).await?;
        // What the snapshot stands for is on disk before anyone is told of it.
        self.db.put(META, SNAPSHOT, &mark)?;
        self.db.sync(Waiting::Somebody).await;
        remove_other_snapshots(&mark)?;
        Ok(SnapshotOf::<Types, SnapshotFile> { meta: mark.meta, snapshot: SnapshotFile(mark.file) })
    }
}

fn write_snapshot(db: &Db) -> io::Result<SnapshotMark> {
    // Its final name says how far it goes, and that is known once it is written.
    let part = snapshot_path(db, None)?;
    let (last_log_id, last_membership) = write_rows(db, &part)?;
    let meta = SnapshotMetaOf::<Types> { last_log_id, last_membership };
    let file = keep(db, &meta, &part)?;
    Ok(SnapshotMark { meta, file })
}

/// Writes the rows of one moment into a file, synced. Returns what they stand for.
pub(crate) fn write_rows(db: &Db, file: &Path) -> io::Result<(Option<LogIdOf<Types>>, StoredMembershipOf<Types>)> {
    let view = db.view();
    let applied: AppliedMark = match view.get(META, APPLIED)? {
        Some(bytes) => codec::decode(&bytes).map_err(io::Error::other)?,
        None => AppliedMark::default(),
    };
    let mut writer = BufWriter::new(File::create(file)?);
    let prefix = applied.generation.to_be_bytes();
    for row in view.rows(STATE, &prefix)? {
        let (key, value) = row?;
        let Some(key) = key.strip_prefix(&prefix) else { break };
        for part in [key, &value] {
            writer.write_all(&(part.len() as u64).to_be_bytes())?;
            writer.write_all(part)?;
        }
    }
    writer.into_inner().map_err(|e| e.into_error())?.sync_all()?;
    Ok((applied.last, applied.membership))
}

/// Reads the rows of a file, one by one.
pub(crate) fn read_rows(file: &Path, mut each: impl FnMut(&[u8], &[u8]) -> io::Result<()>) -> io::Result<()> {
    let mut reader = BufReader::new(File::open(file)?);
    while let Some(key) = read_part(&mut reader)? {
        let value = read_part(&mut reader)?.ok_or_else(|| io::Error::other("the rows end after a key"))?;
        each(&key, &value)?;
    }
    Ok(())
}

/// A new name among the snapshots.
fn snapshot_path(db: &Db, last: Option<LogIdOf<Types>>) -> io::Result<PathBuf> {
    let dir = db.dir().join("snapshots");
    std::fs::create_dir_all(&dir)?;
    let index = last.map_or(0, |id| id.index);
    Ok(dir.join(format!("{index:020}-{}.snapshot", uuid::Uuid::new_v4().simple())))
}

/// Takes a snapshot that was received among the node's own.
fn keep(db: &Db, meta: &SnapshotMetaOf<Types>, received: &Path) -> io::Result<PathBuf> {
    let path = snapshot_path(db, meta.last_log_id)?;
    std::fs::rename(received, &path)?;
    // The log is purged for it: its name has to be on the disk as well as its bytes.
    path.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())?;
    Ok(path)
}

fn read_part(reader: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 8];
    match reader.read_exact(&mut length) {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(e) => return Err(e),
    }
    let mut bytes = Vec::new();
    let expected = u64::from_be_bytes(length);
    reader.take(expected).read_to_end(&mut bytes)?;
    if bytes.len() as u64 != expected {
        return Err(io::Error::other(format!("snapshot is cut off: {} of {expected} bytes", bytes.len())));
    }
    Ok(Some(bytes))
}

fn remove_other_snapshots(mark: &SnapshotMark) -> io::Result<()> {
    let Some(dir) = mark.file.parent() else { return Ok(()) };
    for file in std::fs::read_dir(dir)? {
        let path = file?.path();
        if path != mark.file {
            std::fs::remove_file(path)?;
        }
    }
    Ok(())
}
