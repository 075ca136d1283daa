//! Any node answers: changes go to the leader, reads are served where they arrive once that node holds all that was
//! committed before. The answer says which.

use std::time::Duration;

use axum::{
    body::{Body, Bytes, to_bytes},
    extract::{Request, State},
    http::{HeaderName, HeaderValue, Method},
    middleware::Next,
    response::{IntoResponse, Response},
};
use tickhost_replica::{CallError, ProposeError};
use tokio::time::Instant;

use super::{Problem, access::vouch, problem::NOT_TAKEN, routes::COMPONENT_BYTES_MAX};
use crate::host::Host;

/// Set on a request that another node has passed on: it is not passed on again.
pub(super) const FORWARDED: HeaderName = HeaderName::from_static("tickhost-forwarded-by");
/// Which node answered, and how it could.
const SERVED: HeaderName = HeaderName::from_static("tickhost-served");
/// An election takes less.
const LEADER_WITHIN: Duration = Duration::from_secs(3);
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(20);
/// The leader stores a component on a majority within this.
const ANSWER_WITHIN: Duration = Duration::from_secs(120);

/// What a request is answered from.
enum Place {
    /// This node as it is: it is about the node itself.
    Here,
    /// Any node that holds all that was committed before.
    Anywhere,
    /// The leader.
    Leader,
}

fn place(request: &Request) -> Place {
    match (request.method(), request.uri().path()) {
        (_, "/v1/status" | "/v1/certificate/renew" | "/metrics" | "/v1/whoami") => Place::Here,
        (_, "/v1/nodes") => Place::Leader,
        (&Method::GET, _) => Place::Anywhere,
        _ => Place::Leader,
    }
}

pub(super) async fn to_the_leader(State(host): State<Host>, request: Request, next: Next) -> Response {
    let node = host.replica.node();
    let place = place(&request);
    if let Place::Here = place {
        return served(next.run(request).await, format!("node {node}"));
    }
    if let Place::Anywhere = place {
        return match caught_up(&host).await {
            Ok(()) => served(next.run(request).await, format!("node {node}, lease read")),
            Err(error) => Problem::from(error).into_response(),
        };
    }
    let (mut parts, body) = request.into_parts();
    let body = match to_bytes(body, COMPONENT_BYTES_MAX).await {
        Ok(body) => body,
        Err(error) => return Problem::invalid(format!("read the body: {error}")).into_response(),
    };
    let is_passed_on = parts.headers.contains_key(FORWARDED);
    parts.headers.insert(FORWARDED, HeaderValue::from(node));
    let until = Instant::now() + LEADER_WITHIN;
    loop {
        let request = Request::from_parts(parts.clone(), body.clone());
        let response = match wait_for_leader(&host).await {
            Some(leader) if leader == node => {
                // Who does not know yet that somebody else leads would refuse by what was true before.
                match host.replica.catch_up().await {
                    Ok(()) => {
                        let response = next.clone().run(request.map(Body::from)).await;
                        served(response, format!("node {node}, leader"))
                    }
                    Err(error) => Problem::from(error).into_response(),
                }
            }
            Some(leader) if !is_passed_on => pass_on(&host, leader, request).await,
            leader => Problem::from(ProposeError::NotLeader { leader }).into_response(),
        };
        // It lost its leadership in between and did nothing: whoever leads next is asked.
        if is_passed_on || !response.headers().contains_key(NOT_TAKEN) || Instant::now() >= until {
            return response;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// An election in between is waited for.
async fn caught_up(host: &Host) -> Result<(), ProposeError> {
    match host.replica.catch_up().await {
        Ok(()) => Ok(()),
        Err(_) => {
            wait_for_leader(host).await;
            host.replica.catch_up().await
        }
    }
}

/// Who leads; this node only once it can act as one.
async fn wait_for_leader(host: &Host) -> Option<u64> {
    let node = host.replica.node();
    let mut leader = host.replica.leader();
    let mut reign = host.reign.subscribe();
    let known = tokio::time::timeout(LEADER_WITHIN, async {
        loop {
            let now = *leader.borrow_and_update();
            match now {
                Some(now) if now != node || reign.borrow_and_update().is_some() => return Some(now),
                _ => {}
            }
            tokio::select! {
                changed = leader.changed() => changed.ok()?,
                changed = reign.changed() => changed.ok()?,
            }
        }
    });
    known.await.ok().flatten()
}

async fn pass_on(host: &Host, leader: u64, request: Request<Bytes>) -> Response {
    let (mut parts, body) = request.into_parts();
    vouch(host, &mut parts);
    let request = Request::from_parts(parts, body);
    match host.replica.peers().forward(leader, request, ANSWER_WITHIN).await {
        Ok(response) => response.map(Body::from).into_response(),
        Err(CallError::NotSent { .. }) => {
            Problem::from(ProposeError::NotLeader { leader: Some(leader) }).into_response()
        }
        Err(error) => Problem::unreachable(error).into_response(),
    }
}

fn served(mut response: Response, by: String) -> Response {
    if let Ok(by) = HeaderValue::from_str(&by) {
        response.headers_mut().insert(SERVED, by);
    }
    response
}
