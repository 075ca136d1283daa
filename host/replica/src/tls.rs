//! HTTP/2 over mutual TLS, one connection a node and lane: how hosts speak to each other.

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{Extension, Router};
use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::{client::conn::http2, server};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::{
    identity::Identity,
    listen::{Caller, Listen},
    peers::{Body, CallError, Lane, Target, Transport},
};

/// A node that answers nothing for this long is gone. Short: the connection is made again as soon as it is back.
const ALIVE_EVERY: Duration = Duration::from_millis(500);
const ALIVE_WITHIN: Duration = Duration::from_millis(1_000);
/// A connection within one machine room takes a millisecond; twice that is a lost packet.
const CONNECT_WITHIN: Duration = Duration::from_millis(1_500);
/// Bytes on their way without an acknowledgement: more than an entry of thousands of commands.
const WINDOW_BYTES: u32 = 8 << 20;
/// Whoever does not finish the handshake within this is let go.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(5);

/// Connections to the other nodes.
pub(crate) struct TlsTransport {
    /// `None` on a host that has no peers.
    identity: Option<Arc<Identity>>,
    connections: Mutex<BTreeMap<(u64, Lane), Arc<Connection>>>,
}

/// One place for a connection: whoever comes first makes it, the others wait for it.
type Connection = tokio::sync::Mutex<Option<(String, http2::SendRequest<Body>)>>;

impl TlsTransport {
    pub(crate) fn new(identity: Option<Arc<Identity>>) -> Self {
        Self { identity, connections: Mutex::default() }
    }

    fn connection(&self, node: u64, lane: Lane) -> Arc<Connection> {
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        connections.entry((node, lane)).or_default().clone()
    }

    /// The sender of a live connection, made anew where there is none.
    async fn sender(&self, to: Target<'_>) -> Result<http2::SendRequest<Body>, CallError> {
        let Target { node, address, lane } = to;
        let connection = self.connection(node, lane);
        let mut connection = connection.lock().await;
        if let Some((to, sender)) = connection.as_ref()
            && !sender.is_closed()
            && to == address
        {
            return Ok(sender.clone());
        }
        let made = tokio::time::timeout(CONNECT_WITHIN, self.connect(node, address)).await;
        let sender = made
            .map_err(|_| CallError::not_sent(node, format!("no connection to {address} within {CONNECT_WITHIN:?}")))?
            .map_err(|e| CallError::not_sent(node, format!("connect to {address}: {e}")))?;
        *connection = Some((address.to_owned(), sender.clone()));
        Ok(sender)
    }

    async fn connect(&self, node: u64, address: &str) -> io::Result<http2::SendRequest<Body>> {
        let identity = self.identity.as_ref().ok_or_else(|| io::Error::other("this host has no certificate"))?;
        let name = identity.server_name(node).ok_or_else(|| io::Error::other("it has no name"))?;
        let tcp = TcpStream::connect(address).await?;
        tcp.set_nodelay(true)?;
        let tls = TlsConnector::from(identity.client()).connect(name, tcp).await?;
        handshake(TokioIo::new(tls)).await
    }
}

impl Transport for TlsTransport {
    fn exchange<'a>(
        &'a self,
        to: Target<'a>,
        request: Request<Body>,
        within: Duration,
    ) -> BoxFuture<'a, Result<Response<Bytes>, CallError>> {
        Box::pin(async move {
            let node = to.node;
            let path = request.uri().path().to_owned();
            // Whoever waits for somebody else's try to connect waits no longer either.
            let late = || CallError::not_sent(node, format!("no connection within {within:?}"));
            let mut sender = timeout(within, self.sender(to)).await.map_err(|_| late())??;
            let response = match timeout(within, sender.send_request(request)).await {
                Ok(Ok(response)) => response,
                Ok(Err(e)) => return Err(CallError::no_answer(node, describe(&e))),
                Err(_) => return Err(CallError::no_answer(node, format!("no answer to {path} within {within:?}"))),
            };
            let (parts, body) = response.into_parts();
            let bytes = timeout(within, body.collect())
                .await
                .map_err(|_| CallError::no_answer(node, format!("the answer to {path} stopped for {within:?}")))?
                .map_err(|e| CallError::no_answer(node, e))?
                .to_bytes();
            Ok(Response::from_parts(parts, bytes))
        })
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

/// The port for peers.
pub struct TlsListener {
    listener: TcpListener,
    identity: Arc<Identity>,
}

impl TlsListener {
    /// Answers there as this node.
    pub fn new(listener: TcpListener, identity: Arc<Identity>) -> Box<Self> {
        Box::new(Self { listener, identity })
    }
}

impl Listen for TlsListener {
    fn serve(self: Box<Self>, router: Router) -> BoxFuture<'static, io::Result<()>> {
        Box::pin(async move {
            // They end with the listener.
            let mut connections = JoinSet::new();
            loop {
                let accepted = tokio::select! {
                    accepted = self.listener.accept() => accepted,
                    Some(_) = connections.join_next() => continue,
                };
                let (tcp, from) = match accepted {
                    Ok(accepted) => accepted,
                    Err(error) => {
                        // Too many files, most likely: those that are served will end.
                        tracing::warn!(%error, "accept a peer");
                        tokio::time::sleep(Duration::from_millis(100)).await;
                        continue;
                    }
                };
                let (identity, router) = (self.identity.clone(), router.clone());
                connections.spawn(async move {
                    if let Err(error) = serve_one(tcp, &identity, router).await {
                        tracing::debug!(%from, %error, "a connection of a peer has ended");
                    }
                });
            }
        })
    }
}

async fn serve_one(tcp: TcpStream, identity: &Identity, router: Router) -> io::Result<()> {
    tcp.set_nodelay(true)?;
    let accepted = tokio::time::timeout(HANDSHAKE_WITHIN, TlsAcceptor::from(identity.server()).accept(tcp));
    let tls = accepted.await.map_err(io::Error::other)??;
    let certificates = tls.get_ref().1.peer_certificates();
    let caller = Caller(certificates.and_then(|chain| identity.node_of(chain.first()?)));
    let service = TowerToHyperService::new(router.layer(Extension(caller)));
    server::conn::http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(Duration::from_secs(5))
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(2 * WINDOW_BYTES)
        .max_concurrent_streams(10_000)
        .serve_connection(TokioIo::new(tls), service)
        .await
        .map_err(io::Error::other)
}
