//! Answering other nodes: whoever asks has said by certificate who it is, or may only use a token.

use std::{fmt, io};

use axum::{
    Router,
    extract::{DefaultBodyLimit, Request},
    http::StatusCode,
    middleware::{Next, from_fn},
    response::{IntoResponse, Response},
};
use futures::future::BoxFuture;

/// What somebody without a certificate may send in one request.
const PUBLIC_BYTES_MAX: usize = 64 << 10;

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

/// Where requests of other nodes arrive. Each carries its [`Caller`] as an extension.
pub trait Listen: Send + 'static {
    /// Has them answered, until it cannot go on or this is dropped.
    fn serve(self: Box<Self>, router: Router) -> BoxFuture<'static, io::Result<()>>;
}

/// What peers are served. `members` is for nodes with a certificate that still belong to the cluster; `public` for
/// everybody who reaches the port.
pub(crate) fn router(
    members: Router,
    public: Router,
    is_member: impl Fn(u64) -> bool + Clone + Send + Sync + 'static,
) -> Router {
    let members = only(members, "does not belong to the cluster any more", is_member);
    let public = public.layer(DefaultBodyLimit::max(PUBLIC_BYTES_MAX));
    members.layer(DefaultBodyLimit::disable()).merge(public)
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

/// An answer to a peer that is an error.
pub(crate) fn refuse(why: impl ToString) -> Response {
    (StatusCode::UNPROCESSABLE_ENTITY, why.to_string()).into_response()
}
