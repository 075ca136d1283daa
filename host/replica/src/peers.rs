//! Speaking to other nodes.

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use serde::{Serialize, de::DeserializeOwned};
use tickhost_ledger::codec;

use crate::identity::Identity;

/// What is sent to a node.
pub type Body = UnsyncBoxBody<Bytes, io::Error>;

/// A connection for what must not wait behind large things, and one for the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
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
    pub(crate) fn not_sent(node: u64, why: impl ToString) -> Self {
        Self::NotSent { node, why: why.to_string() }
    }

    pub(crate) fn no_answer(node: u64, why: impl ToString) -> Self {
        Self::NoAnswer { node, why: why.to_string() }
    }
}

/// The other nodes, as this one reaches them. Clones share what carries to them.
#[derive(Clone)]
pub struct Peers {
    inner: Arc<Inner>,
}

struct Inner {
    /// `None` on a host that has no peers.
    identity: Option<Arc<Identity>>,
    addresses: Mutex<BTreeMap<u64, String>>,
    transport: Arc<dyn Transport>,
}

/// Where a request goes.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a> {
    /// The node.
    pub node: u64,
    /// Where it is reached.
    pub address: &'a str,
    /// With what it shares a connection.
    pub lane: Lane,
}

/// Carries requests to nodes, and what they answer back.
pub trait Transport: Send + Sync + 'static {
    /// Sends a request. A connection has to be there within that time, then the head of the answer, and then the rest of
    /// it.
    ///
    /// # Errors
    /// Whether the request can have arrived.
    fn exchange<'a>(
        &'a self,
        to: Target<'a>,
        request: Request<Body>,
        within: Duration,
    ) -> BoxFuture<'a, Result<Response<Bytes>, CallError>>;
}

impl Peers {
    pub(crate) fn new(identity: Option<Arc<Identity>>, transport: Arc<dyn Transport>) -> Self {
        let addresses = Mutex::new(identity.as_ref().map_or_else(BTreeMap::new, |identity| identity.contacts()));
        Self { inner: Arc::new(Inner { identity, addresses, transport }) }
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
        let (status, bytes) = (response.status(), response.into_body());
        if status == StatusCode::OK {
            return Ok(bytes);
        }
        let why = format!("{path}: {status}: {}", String::from_utf8_lossy(&bytes));
        Err(CallError::Refused { node, why })
    }

    async fn exchange(
        &self,
        node: u64,
        lane: Lane,
        request: Request<Body>,
        within: Duration,
    ) -> Result<Response<Bytes>, CallError> {
        let address = self.address(node).ok_or_else(|| CallError::not_sent(node, "its address is not known"))?;
        self.inner.transport.exchange(Target { node, address: &address, lane }, request, within).await
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
        self.exchange(node, Lane::Calls, request, within).await
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

fn uri(path: &str) -> Result<Uri, http::Error> {
    // Who is meant has been proven by the certificate; HTTP wants a name all the same.
    Uri::builder().scheme("https").authority("node").path_and_query(path).build()
}

pub(crate) fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}
