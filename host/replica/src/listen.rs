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

/// What somebody who does not belong to the cluster may send in one request.
const LITTLE_BYTES_MAX: usize = 64 << 10;

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

/// What peers are served, by who may ask.
#[derive(Debug, Default)]
pub struct Routes {
    /// For nodes with a certificate that still belong to the cluster. They may send as much as they want.
    pub members: Router,
    /// For nodes with a certificate, also where they were removed.
    pub certified: Router,
    /// For everybody who reaches the port.
    pub public: Router,
}

pub(crate) fn router(routes: Routes, is_member: impl Fn(u64) -> bool + Clone + Send + Sync + 'static) -> Router {
    let members = only(routes.members, "does not belong to the cluster any more", is_member);
    // A certificate is all that it takes.
    let certified = only(routes.certified, "is unknown", |_| true);
    let limited = certified.merge(routes.public).layer(DefaultBodyLimit::max(LITTLE_BYTES_MAX));
    members.layer(DefaultBodyLimit::disable()).merge(limited)
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use axum::{
        body::{Body, Bytes},
        routing::post,
    };
    use tower_service::Service as _;

    use super::*;

    /// Nodes send each other components and entries of any size; whoever only reaches the port does not make this one
    /// hold much.
    #[tokio::test]
    async fn a_stranger_may_send_little_and_a_node_as_much_as_it_needs() {
        let take = |path: &str| Router::new().route(path, post(async |body: Bytes| body.len().to_string()));
        let routes = Routes { members: take("/member"), certified: take("/standing"), public: take("/join") };
        let router = router(routes, |node| node == 2);
        let send = async |path: &str, caller: Caller, bytes: usize| {
            let request = Request::post(path).extension(caller).body(Body::from(vec![0; bytes])).unwrap();
            router.clone().call(request).await.unwrap().status()
        };
        let (stranger, node, removed) = (Caller(None), Caller(Some(2)), Caller(Some(3)));
        assert_eq!(send("/join", stranger, LITTLE_BYTES_MAX).await, StatusCode::OK);
        assert_eq!(send("/join", stranger, LITTLE_BYTES_MAX + 1).await, StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(send("/member", node, 50 << 20).await, StatusCode::OK);
        assert_eq!(send("/member", stranger, 1).await, StatusCode::FORBIDDEN);
        assert_eq!(send("/member", removed, 1).await, StatusCode::FORBIDDEN);
        assert_eq!(send("/standing", removed, LITTLE_BYTES_MAX).await, StatusCode::OK);
        assert_eq!(send("/standing", removed, LITTLE_BYTES_MAX + 1).await, StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(send("/standing", stranger, 1).await, StatusCode::FORBIDDEN);
    }
}
