//! What nodes ask each other, beside Raft's own.

use axum::{
    Extension, Router,
    body::Bytes,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::post,
};
use serde::{Serialize, de::DeserializeOwned};
use tickhost_executor::order::Order;
use tickhost_ledger::{Digest, RunId, access::Audited, codec};
use tickhost_replica::{Caller, Routes};

use crate::{
    audit,
    cluster::{self, Arrival, JoinRequest, RenewRequest},
    host::Host,
    leader::{Ask, Granted},
};

/// What peers may ask, by who they are.
pub(crate) fn routes(host: &Host) -> Routes {
    Routes {
        members: members(host.clone()).nest("/api", crate::api::router(host.clone())),
        certified: Router::new().route("/standing", post(standing)).with_state(host.clone()),
        public: Router::new().route("/join", post(join)).with_state(host.clone()),
    }
}

fn members(host: Host) -> Router {
    let orders = Router::new().route("/executor/order", post(order)).with_state(host.clone());
    let orders = host.replica.voters_only(orders);
    Router::new()
        .route("/leader/ask", post(ask))
        .route("/leader/arrive", post(arrive))
        .route("/leader/authority", post(authority))
        .route("/leader/renew", post(renew))
        .route("/leader/audit", post(put_audit))
        .route("/executor/output", post(output))
        .route("/components/keep", post(keep_component))
        .route("/components/get", post(get_component))
        .with_state(host)
        .merge(orders)
}

fn refuse(why: impl ToString) -> Response {
    (StatusCode::UNPROCESSABLE_ENTITY, why.to_string()).into_response()
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Box<Response>> {
    codec::decode(body).map_err(|error| Box::new(refuse(error)))
}

fn say<T: Serialize>(value: &T) -> Response {
    codec::encode(value).map_or_else(refuse, IntoResponse::into_response)
}

async fn ask(State(host): State<Host>, Extension(caller): Extension<Caller>, body: Bytes) -> Response {
    match read::<Ask>(&body) {
        Ok(ask) if caller == Caller(Some(ask.node)) => say(&host.grant(ask).await),
        Ok(ask) => say(&Granted::Refused(format!("this certificate is not node {}'s", ask.node))),
        Err(refused) => *refused,
    }
}

async fn standing(State(host): State<Host>, Extension(caller): Extension<Caller>, body: Bytes) -> Response {
    match read::<u64>(&body) {
        Ok(node) if caller != Caller(Some(node)) => refuse("a node asks for itself"),
        Ok(node) => say(&cluster::standing_of(&host, node).await),
        Err(refused) => *refused,
    }
}

async fn order(State(host): State<Host>, body: Bytes) -> Response {
    match read::<Order>(&body) {
        Ok(order) => say(&host.obey(order).await),
        Err(refused) => *refused,
    }
}

async fn put_audit(State(host): State<Host>, body: Bytes) -> Response {
    match read::<Vec<Audited>>(&body) {
        Ok(records) if !audit::may_be_told(&records) => refuse("what was done is recorded by what did it"),
        Ok(records) => audit::put(&host, records).await.map_or_else(refuse, |()| say(&())),
        Err(refused) => *refused,
    }
}

async fn output(State(host): State<Host>, body: Bytes) -> Response {
    match read::<RunId>(&body) {
        Ok(run) => host.executor.output(&run).map_or_else(refuse, |output| say(&output)),
        Err(refused) => *refused,
    }
}

async fn keep_component(State(host): State<Host>, body: Bytes) -> Response {
    let digest = match host.sandbox.keep(body).await {
        Ok(digest) => digest,
        Err(error) => return refuse(error),
    };
    match host.sandbox.prepare(digest).await {
        Ok(()) => digest.to_string().into_response(),
        Err(error) => refuse(error),
    }
}

async fn get_component(State(host): State<Host>, body: Bytes) -> Response {
    let digest = std::str::from_utf8(&body).ok().and_then(|text| text.parse::<Digest>().ok());
    let Some(digest) = digest else { return refuse("expected a digest") };
    match host.sandbox.component_bytes(digest).await {
        Ok(bytes) => bytes.into_response(),
        Err(error) => refuse(error),
    }
}

async fn join(State(host): State<Host>, body: Bytes) -> Response {
    match read::<JoinRequest>(&body) {
        Ok(request) => cluster::let_in(&host, request).await.map_or_else(refuse, |given| say(&given)),
        Err(refused) => *refused,
    }
}

async fn arrive(State(host): State<Host>, Extension(caller): Extension<Caller>, body: Bytes) -> Response {
    match read::<Arrival>(&body) {
        Ok(arrival) if !arrival.may_come_from(&host, caller) => refuse("a node says itself where it is"),
        Ok(arrival) => cluster::arrived(&host, arrival).await.map_or_else(refuse, |()| say(&())),
        Err(refused) => *refused,
    }
}

async fn authority(State(host): State<Host>, Extension(caller): Extension<Caller>) -> Response {
    let Caller(Some(node)) = caller else { return refuse("you have no certificate") };
    cluster::authority_for(&host, node).map_or_else(refuse, |key| say(&key))
}

async fn renew(State(host): State<Host>, Extension(caller): Extension<Caller>, body: Bytes) -> Response {
    match (read::<RenewRequest>(&body), caller) {
        (Ok(request), Caller(Some(node))) => {
            cluster::renew_for(&host, node, &request).map_or_else(refuse, |given| say(&given))
        }
        (Ok(_), Caller(None)) => refuse("you have no certificate"),
        (Err(refused), _) => *refused,
    }
}
