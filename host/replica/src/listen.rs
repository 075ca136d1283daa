//! Answering other nodes: whoever connects says by certificate who it is, or may only use a token.

use std::{fmt, io, sync::Arc, time::Duration};

use axum::{
    Extension, Router,
    extract::{DefaultBodyLimit, Request},
    http::StatusCode,
    middleware::{Next, from_fn},
    response::{IntoResponse, Response},
};
use hyper::server::conn::http2;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;

use crate::identity::Identity;

/// Whoever does not finish the handshake within this is let go.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(5);
/// What somebody without a certificate may send in one request.
const PUBLIC_BYTES_MAX: usize = 64 << 10;
/// As on the side that connects.
const WINDOW_BYTES: u32 = 8 << 20;

/// The node at the other end; `None` for somebody without a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller(pub Option<u64>);

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(node) => write!(f, "node {node}"),
            None => f.write_str("somebody without a certificate"),
        }
    }
}

/// Serves peers. `members` is for nodes with a certificate that still belong to the cluster; `public` for everybody
/// who reaches the port.
pub(crate) async fn serve(
    listener: TcpListener,
    identity: Arc<Identity>,
    members: Router,
    public: Router,
    is_member: impl Fn(u64) -> bool + Clone + Send + Sync + 'static,
) -> io::Result<()> {
    let members = only(members, "does not belong to the cluster any more", is_member);
    let public = public.layer(DefaultBodyLimit::max(PUBLIC_BYTES_MAX));
    let router = members.layer(DefaultBodyLimit::disable()).merge(public);
    // They end with the listener.
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
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
        let (identity, router) = (identity.clone(), router.clone());
        connections.spawn(async move {
            if let Err(error) = serve_one(tcp, &identity, router).await {
                tracing::debug!(%from, %error, "a connection of a peer has ended");
            }
        });
    }
}

/// Lets only those nodes ask what is behind these routes; `wrong` says what is the matter with the others.
pub(crate) fn only(
    routes: Router,
    wrong: &'static str,
    may: impl Fn(u64) -> bool + Clone + Send + Sync + 'static,
) -> Router {
    routes.layer(from_fn(move |request: Request, next: Next| {
        let caller = request.extensions().get::<Caller>().copied().unwrap_or(Caller(None));
        let refusal = match caller {
            Caller(None) => Some("this is for nodes of the cluster, and you have no certificate of it".to_owned()),
            Caller(Some(node)) if !may(node) => Some(format!("node {node} {wrong}")),
            Caller(Some(_)) => None,
        };
        async move {
            match refusal {
                Some(why) => (StatusCode::FORBIDDEN, why).into_response(),
                None => next.run(request).await,
            }
        }
    }))
}

async fn serve_one(tcp: TcpStream, identity: &Identity, router: Router) -> io::Result<()> {
    tcp.set_nodelay(true)?;
    let accepted = tokio::time::timeout(HANDSHAKE_WITHIN, TlsAcceptor::from(identity.server()).accept(tcp));
    let tls = accepted.await.map_err(io::Error::other)??;
    let certificates = tls.get_ref().1.peer_certificates();
    let caller = Caller(certificates.and_then(|chain| identity.node_of(chain.first()?)));
    let service = TowerToHyperService::new(router.layer(Extension(caller)));
    http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(Duration::from_secs(5))
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(2 * WINDOW_BYTES)
        .max_concurrent_streams(10_000)
        .serve_connection(TokioIo::new(tls), service)
        .await
        .map_err(io::Error::other)
}

/// An answer to a peer that is an error.
pub(crate) fn refuse(why: impl ToString) -> Response {
    (StatusCode::UNPROCESSABLE_ENTITY, why.to_string()).into_response()
}
