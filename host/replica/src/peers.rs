//! Speaking to other nodes: HTTP/2 over mutual TLS, one connection a node and lane.

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper::{body::Incoming, client::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use serde::{Serialize, de::DeserializeOwned};
use tickhost_ledger::codec;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::identity::Identity;

/// A node that answers nothing for this long is gone. Short: the connection is made again as soon as it is back.
const ALIVE_EVERY: Duration = Duration::from_millis(500);
const ALIVE_WITHIN: Duration = Duration::from_millis(1_000);
/// A connection within one machine room takes a millisecond; twice that is a lost packet.
const CONNECT_WITHIN: Duration = Duration::from_millis(1_500);
/// Bytes on their way without an acknowledgement: more than an entry of thousands of commands.
const WINDOW_BYTES: u32 = 8 << 20;

/// What is sent to a node.
pub(crate) type Body = UnsyncBoxBody<Bytes, io::Error>;

/// A connection for what must not wait behind large things, and one for the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lane {
    /// Votes, heartbeats, entries.
    Raft,
    /// Everything else.
    Calls,
}

/// A call to another node that was not answered as hoped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// Provably nothing was sent.
    #[error("node {node} cannot be reached: {why}")]
    NotSent {
        /// The node.
        node: u64,
        /// Why.
        why: String,
    },
    /// It may have arrived.
    #[error("node {node} did not answer: {why}")]
    NoAnswer {
        /// The node.
        node: u64,
        /// Why.
        why: String,
    },
    /// The node refuses.
    #[error("node {node} refuses: {why}")]
    Refused {
        /// The node.
        node: u64,
        /// Why.
        why: String,
    },
}

impl CallError {
    fn not_sent(node: u64, why: impl ToString) -> Self {
        Self::NotSent { node, why: why.to_string() }
    }

    fn no_answer(node: u64, why: impl ToString) -> Self {
        Self::NoAnswer { node, why: why.to_string() }
    }
}

/// The other nodes, as this one reaches them. Clones share the connections.
#[derive(Clone)]
pub struct Peers {
    inner: Arc<Inner>,
}

struct Inner {
    /// `None` on a host that has no peers.
    identity: Option<Arc<Identity>>,
    addresses: Mutex<BTreeMap<u64, String>>,
    connections: Mutex<BTreeMap<(u64, Lane), Arc<Connection>>>,
}

/// One place for a connection: whoever comes first makes it, the others wait for it.
type Connection = tokio::sync::Mutex<Option<(String, http2::SendRequest<Body>)>>;

impl Peers {
    pub(crate) fn new(identity: Option<Arc<Identity>>) -> Self {
        let addresses = Mutex::new(identity.as_ref().map_or_else(BTreeMap::new, |identity| identity.contacts()));
        Self { inner: Arc::new(Inner { identity, addresses, connections: Mutex::default() }) }
    }

    /// This node's identity; `None` on a host that has no peers.
    pub fn identity(&self) -> Option<&Arc<Identity>> {
        self.inner.identity.as_ref()
    }

    /// Where nodes are reached from now on.
    pub(crate) fn set_address(&self, node: u64, address: &str) {
        self.inner.addresses.lock().unwrap_or_else(PoisonError::into_inner).insert(node, address.to_owned());
    }

    fn address(&self, node: u64) -> Option<String> {
        self.inner.addresses.lock().unwrap_or_else(PoisonError::into_inner).get(&node).cloned()
    }

    fn connection(&self, node: u64, lane: Lane) -> Arc<Connection> {
        let mut connections = self.inner.connections.lock().unwrap_or_else(PoisonError::into_inner);
        connections.entry((node, lane)).or_default().clone()
    }

    /// The sender of a live connection, made anew where there is none.
    async fn sender(&self, node: u64, lane: Lane) -> Result<http2::SendRequest<Body>, CallError> {
        let address = self.address(node).ok_or_else(|| CallError::not_sent(node, "its address is not known"))?;
        let connection = self.connection(node, lane);
        let mut connection = connection.lock().await;
        if let Some((to, sender)) = connection.as_ref()
            && !sender.is_closed()
            && *to == address
        {
            return Ok(sender.clone());
        }
        let made = tokio::time::timeout(CONNECT_WITHIN, self.connect(node, &address)).await;
        let sender = made
            .map_err(|_| CallError::not_sent(node, format!("no connection to {address} within {CONNECT_WITHIN:?}")))?
            .map_err(|e| CallError::not_sent(node, format!("connect to {address}: {e}")))?;
        *connection = Some((address, sender.clone()));
        Ok(sender)
    }

    async fn connect(&self, node: u64, address: &str) -> io::Result<http2::SendRequest<Body>> {
        let identity = self.identity().ok_or_else(|| io::Error::other("this host has no certificate"))?;
        let name = identity.server_name(node).ok_or_else(|| io::Error::other("it has no name"))?;
        let tcp = TcpStream::connect(address).await?;
        tcp.set_nodelay(true)?;
        let tls = TlsConnector::from(identity.client()).connect(name, tcp).await?;
        handshake(TokioIo::new(tls)).await
    }

    /// Calls a node with bytes and returns what it answers.
    ///
    /// # Errors
    /// Whether the call can have arrived.
    pub async fn call(&self, node: u64, path: &str, body: Vec<u8>, within: Duration) -> Result<Bytes, CallError> {
        self.send(node, Lane::Calls, path, full(body), within).await
    }

    pub(crate) async fn send(
        &self,
        node: u64,
        lane: Lane,
        path: &str,
        body: Body,
        within: Duration,
    ) -> Result<Bytes, CallError> {
        let request = Request::builder()
            .method(Method::POST)
            .uri(uri(path).map_err(|e| CallError::not_sent(node, e))?)
            .body(body)
            .map_err(|e| CallError::not_sent(node, e))?;
        let response = self.exchange(node, lane, request, within).await?;
        let status = response.status();
        let bytes = tokio::time::timeout(within, response.into_body().collect())
            .await
            .map_err(|_| CallError::no_answer(node, format!("the answer to {path} stopped for {within:?}")))?
            .map_err(|e| CallError::no_answer(node, e))?
            .to_bytes();
        if status == StatusCode::OK {
            return Ok(bytes);
        }
        let why = format!("{path}: {status}: {}", String::from_utf8_lossy(&bytes));
        Err(CallError::Refused { node, why })
    }

    /// Sends a request as it is and returns the response as it comes.
    pub(crate) async fn exchange(
        &self,
        node: u64,
        lane: Lane,
        request: Request<Body>,
        within: Duration,
    ) -> Result<Response<Incoming>, CallError> {
        let path = request.uri().path().to_owned();
        let mut sender = self.sender(node, lane).await?;
        match tokio::time::timeout(within, sender.send_request(request)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(e)) => Err(CallError::no_answer(node, describe(&e))),
            Err(_) => Err(CallError::no_answer(node, format!("no answer to {path} within {within:?}"))),
        }
    }

    /// Passes an HTTP request of a client on to a node, and its response back.
    ///
    /// # Errors
    /// As [`Peers::call`].
    pub async fn forward(
        &self,
        node: u64,
        request: Request<Bytes>,
        within: Duration,
    ) -> Result<Response<Bytes>, CallError> {
        let (mut parts, body) = request.into_parts();
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        parts.uri = uri(&format!("/api{path}")).map_err(|e| CallError::not_sent(node, e))?;
        parts.version = http::Version::HTTP_2;
        parts.headers.remove(http::header::HOST);
        parts.headers.remove(http::header::CONNECTION);
        let request = Request::from_parts(parts, full(body));
        let response = self.exchange(node, Lane::Calls, request, within).await?;
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.map_err(|e| CallError::no_answer(node, e))?.to_bytes();
        Ok(Response::from_parts(parts, bytes))
    }

    /// Calls a node with a value and returns the value that it answers.
    ///
    /// # Errors
    /// As [`Peers::call`].
    pub async fn ask<Q: Serialize + Sync, A: DeserializeOwned>(
        &self,
        node: u64,
        path: &str,
        question: &Q,
        within: Duration,
    ) -> Result<A, CallError> {
        let body = codec::encode(question).map_err(|e| CallError::not_sent(node, e))?;
        let bytes = self.call(node, path, body, within).await?;
        codec::decode(&bytes).map_err(|e| CallError::no_answer(node, e))
    }
}

/// An error with what it rests on: hyper's own text leaves that out.
fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

fn uri(path: &str) -> Result<Uri, http::Error> {
    // Who is meant has been proven by the certificate; HTTP wants a name all the same.
    Uri::builder().scheme("https").authority("node").path_and_query(path).build()
}

pub(crate) fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// Begins to speak HTTP/2 over a connection. It is closed when the other side falls silent.
pub(crate) async fn handshake<T>(io: T) -> io::Result<http2::SendRequest<Body>>
where
    T: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let (sender, connection) = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(ALIVE_EVERY)
        .keep_alive_timeout(ALIVE_WITHIN)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(2 * WINDOW_BYTES)
        .handshake(io)
        .await
        .map_err(io::Error::other)?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to a peer has ended");
        }
    });
    Ok(sender)
}
