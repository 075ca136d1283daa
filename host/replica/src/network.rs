//! What Raft says to other nodes, and how this one answers.

use std::{
    fs::File,
    future::Future,
    io::{self, Read, Write},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use axum::{
    Router,
    body::Bytes,
    extract::{Request, State},
    response::{IntoResponse, Response},
    routing::post,
};
use bytes::Buf;
use futures::{StreamExt, TryStreamExt};
use http_body_util::{BodyExt, StreamBody};
use openraft::{
    BasicNode, OptionalSend,
    alias::{SnapshotMetaOf, SnapshotOf, VoteOf},
    errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable},
    network::{RPCOption, RaftNetworkFactory, RaftNetworkV2},
    raft::{
        AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest, TransferLeaderResponse,
        VoteRequest, VoteResponse,
    },
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tickhost_ledger::codec;

use crate::{
    db::Db,
    listen::refuse,
    machine::SnapshotFile,
    peers::{CallError, Lane, Peers},
    raft::Types,
    replica::LedgerRaft,
};

/// A follower answers once the entries are on its disk: as long as a busy disk may take.
const APPEND_WITHIN: Duration = Duration::from_secs(2);
/// An election that takes longer is lost.
const VOTE_WITHIN: Duration = Duration::from_millis(500);
/// A snapshot of a gigabyte over a slow line, and its installation.
const SNAPSHOT_WITHIN: Duration = Duration::from_secs(600);
/// Bytes of a snapshot in one piece.
const PIECE_BYTES: usize = 256 << 10;

pub(crate) struct Network {
    pub(crate) peers: Peers,
    pub(crate) db: Db,
}

pub(crate) struct Link {
    peers: Peers,
    db: Db,
    target: u64,
}

impl RaftNetworkFactory<Types> for Network {
    type Network = Link;

    async fn new_client(&mut self, target: u64, node: &BasicNode) -> Link {
        self.peers.set_address(target, &node.addr);
        Link { peers: self.peers.clone(), db: self.db.clone(), target }
    }
}

impl Link {
    async fn ask<Q: Serialize, A: DeserializeOwned>(
        &self,
        path: &str,
        question: &Q,
        within: Duration,
    ) -> Result<A, RPCError<Types>> {
        let body = codec::encode(question).map_err(|e| NetworkError::from_string(e.to_string()))?;
        let sent = self.peers.send(self.target, Lane::Raft, path, crate::peers::full(body), within);
        let bytes = sent.await.map_err(unreachable_or_not)?;
        codec::decode(&bytes).map_err(|e| NetworkError::from_string(e.to_string()).into())
    }
}

/// Raft waits a while before it tries a node again that could not be reached.
fn unreachable_or_not(error: CallError) -> RPCError<Types> {
    match error {
        CallError::NotSent { .. } => Unreachable::from_string(error.to_string()).into(),
        CallError::NoAnswer { .. } | CallError::Refused { .. } => NetworkError::from_string(error.to_string()).into(),
    }
}

/// What goes before the bytes of a snapshot.
#[derive(Serialize, Deserialize)]
struct SnapshotHead {
    vote: VoteOf<Types>,
    meta: SnapshotMetaOf<Types>,
    bytes: u64,
}

impl RaftNetworkV2<Types> for Link {
    type SnapshotData = SnapshotFile;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<Types>,
        _option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RPCError<Types>> {
        self.ask("/raft/append", &rpc, APPEND_WITHIN).await
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<Types>,
        _option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        self.ask("/raft/vote", &rpc, VOTE_WITHIN).await
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<Types>,
        _option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        self.ask("/raft/pre-vote", &rpc, VOTE_WITHIN).await
    }

    async fn full_snapshot(
        &mut self,
        vote: VoteOf<Types>,
        snapshot: SnapshotOf<Types, SnapshotFile>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        let sent = async {
            let network = |e: String| NetworkError::from_string(e);
            // Opened before anything is sent: the file may be replaced by a newer one meanwhile.
            let file = File::open(&snapshot.snapshot.0).map_err(|e| network(e.to_string()))?;
            let bytes = file.metadata().map_err(|e| network(e.to_string()))?.len();
            let head = codec::encode(&SnapshotHead { vote, meta: snapshot.meta, bytes });
            let head = head.map_err(|e| network(e.to_string()))?;
            let mut first = u32::try_from(head.len()).map_err(|e| network(e.to_string()))?.to_be_bytes().to_vec();
            first.extend(head);
            let pieces = futures::stream::try_unfold((file, self.db.clone()), |(mut file, db)| async move {
                let read = db.off_thread(move || {
                    let mut piece = vec![0; PIECE_BYTES];
                    let read = file.read(&mut piece)?;
                    piece.truncate(read);
                    Ok((piece, file))
                });
                let (piece, file) = read.await?;
                Ok::<_, io::Error>((!piece.is_empty()).then(|| (Bytes::from(piece), (file, db))))
            });
            let whole = futures::stream::once(async { Ok(Bytes::from(first)) }).chain(pieces);
            let body = StreamBody::new(whole.map_ok(hyper::body::Frame::data)).boxed_unsync();
            // Not among the heartbeats: it is large.
            let answer = self.peers.send(self.target, Lane::Calls, "/raft/snapshot", body, SNAPSHOT_WITHIN);
            let answer = answer.await.map_err(|e| network(e.to_string()))?;
            codec::decode(&answer).map_err(|e| network(e.to_string()))
        };
        tokio::select! {
            closed = cancel => Err(closed.into()),
            sent = sent => sent.map_err(StreamingError::from),
        }
    }

    async fn transfer_leader(
        &mut self,
        req: TransferLeaderRequest<Types>,
        _option: RPCOption,
    ) -> Result<TransferLeaderResponse<Types>, RPCError<Types>> {
        self.ask("/raft/transfer", &req, VOTE_WITHIN).await
    }
}

/// What the routes need.
#[derive(Clone)]
pub(crate) struct Receiver {
    pub(crate) raft: LedgerRaft,
    pub(crate) db: Db,
    /// Where snapshots arrive.
    pub(crate) incoming: Arc<PathBuf>,
}

pub(crate) fn routes(receiver: Receiver) -> Router {
    Router::new()
        .route("/raft/append", post(append))
        .route("/raft/vote", post(vote))
        .route("/raft/pre-vote", post(pre_vote))
        .route("/raft/transfer", post(transfer))
        .route("/raft/snapshot", post(snapshot))
        .with_state(receiver)
}

/// Decodes a question, has it answered, and encodes that.
pub(crate) async fn answer<Q: DeserializeOwned, A: Serialize, E: ToString>(
    body: &[u8],
    reply: impl AsyncFnOnce(Q) -> Result<A, E>,
) -> Response {
    let question = match codec::decode(body) {
        Ok(question) => question,
        Err(error) => return refuse(error),
    };
    match reply(question).await {
        Ok(answer) => codec::encode(&answer).map_or_else(refuse, IntoResponse::into_response),
        Err(error) => refuse(error.to_string()),
    }
}

async fn append(State(receiver): State<Receiver>, body: Bytes) -> Response {
    answer(&body, async |rpc| receiver.raft.append_entries(rpc).await).await
}

async fn vote(State(receiver): State<Receiver>, body: Bytes) -> Response {
    answer(&body, async |rpc| receiver.raft.vote(rpc).await).await
}

async fn pre_vote(State(receiver): State<Receiver>, body: Bytes) -> Response {
    answer(&body, async |rpc| receiver.raft.pre_vote(rpc).await).await
}

async fn transfer(State(receiver): State<Receiver>, body: Bytes) -> Response {
    answer(&body, async |rpc| receiver.raft.handle_transfer_leader(rpc).await).await
}

async fn snapshot(State(receiver): State<Receiver>, request: Request) -> Response {
    match receive(&receiver, request).await {
        Ok(response) => codec::encode(&response).map_or_else(refuse, IntoResponse::into_response),
        Err(error) => refuse(error),
    }
}

async fn receive(receiver: &Receiver, request: Request) -> io::Result<SnapshotResponse<Types>> {
    let mut body = request.into_body().into_data_stream();
    let mut waiting = bytes::BytesMut::new();
    while waiting.len() < 4 || waiting.len() < 4 + head_bytes(&waiting) {
        let piece = body.try_next().await.map_err(io::Error::other)?;
        waiting.extend_from_slice(&piece.ok_or_else(|| io::Error::other("a snapshot without a head"))?);
    }
    let length = head_bytes(&waiting);
    let head: SnapshotHead = codec::decode(&waiting[4..4 + length]).map_err(io::Error::other)?;
    waiting.advance(4 + length);
    let path = receiver.incoming.join(format!("{}.snapshot", uuid::Uuid::new_v4().simple()));
    let stored = store(&receiver.db, &path, waiting.freeze(), body, head.bytes).await;
    if let Err(error) = stored {
        let _ = std::fs::remove_file(&path);
        return Err(error);
    }
    let snapshot = SnapshotOf::<Types, SnapshotFile> { meta: head.meta, snapshot: SnapshotFile(path) };
    receiver.raft.install_full_snapshot(head.vote, snapshot).await.map_err(io::Error::other)
}

fn head_bytes(waiting: &[u8]) -> usize {
    u32::from_be_bytes(std::array::from_fn(|i| waiting[i])) as usize
}

async fn store(
    db: &Db,
    path: &Path,
    first: Bytes,
    body: impl futures::Stream<Item = Result<Bytes, axum::Error>> + Unpin,
    expected: u64,
) -> io::Result<()> {
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir)?;
    }
    let mut pieces = futures::stream::once(async { Ok(first) }).boxed().chain(body);
    let (mut file, mut written) = (File::create(path)?, 0);
    while let Some(piece) = pieces.try_next().await.map_err(io::Error::other)? {
        written += piece.len() as u64;
        file = db.off_thread(move || file.write_all(&piece).map(|()| file)).await?;
    }
    if written != expected {
        return Err(io::Error::other(format!("a snapshot of {expected} bytes ended after {written}")));
    }
    db.off_thread(move || file.sync_all()).await
}
