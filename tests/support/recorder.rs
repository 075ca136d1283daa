//! A small HTTP API that records what it receives. It believes nobody: what a host did is read from here.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::{
    Router,
    body::Bytes,
    extract::{Path, State},
    http::{HeaderMap, Method, StatusCode, Uri},
    response::IntoResponse,
    routing::{any, get},
};
use tokio::net::TcpListener;

/// A request that changes something, as it arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// The method.
    pub method: String,
    /// The path and query.
    pub path: String,
    /// The idempotency key, without its quotes; empty where there was none.
    pub key: String,
    /// The body.
    pub body: String,
    /// When it arrived, in milliseconds since 1970.
    pub at_ms: i64,
}

/// How the recorder behaves.
#[derive(Debug, Clone, Default)]
pub struct Behaviour {
    /// Every charge takes this long, so that there is a middle to kill in.
    pub charge_delay: Duration,
    /// What `GET /health` answers; 200 where absent.
    pub health: Option<u16>,
    /// So many requests to `/busy` are answered 503.
    pub busy: usize,
    /// Customers of `GET /customers`.
    pub customers: usize,
    /// A file that is served as `GET /data/…`, by name.
    pub files: BTreeMap<String, Vec<u8>>,
}

#[derive(Debug, Default)]
struct Inner {
    behaviour: Behaviour,
    received: Vec<Received>,
}

/// A running recorder. Clones share it.
#[derive(Clone)]
pub struct Recorder {
    inner: Arc<Mutex<Inner>>,
    address: SocketAddr,
}

impl Recorder {
    /// Starts on a free port of the loopback interface.
    ///
    /// # Errors
    /// Where there is none.
    pub async fn start(behaviour: Behaviour) -> std::io::Result<Self> {
        Self::start_on(0, behaviour).await
    }

    /// Starts on that port of the loopback interface.
    ///
    /// # Errors
    /// Where it is taken.
    pub async fn start_on(port: u16, behaviour: Behaviour) -> std::io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
        let address = listener.local_addr()?;
        let inner = Arc::new(Mutex::new(Inner { behaviour, ..Inner::default() }));
        let recorder = Self { inner, address };
        let router = Router::new()
            .route("/customers", get(customers))
            .route("/health", get(health))
            .route("/data/{name}", get(data))
            .fallback(any(record))
            .with_state(recorder.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Ok(recorder)
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `http://127.0.0.1:PORT`
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Everything received so far that changes something.
    pub fn received(&self) -> Vec<Received> {
        self.inner().received.clone()
    }

    /// Changes how it behaves from now on.
    pub fn behave(&self, change: impl FnOnce(&mut Behaviour)) {
        change(&mut self.inner().behaviour);
    }
}

/// The public data set of the example report, from the npm package `vega-datasets`.
///
/// # Panics
/// Where it is not there: `cargo xtask guests` installs it.
pub fn data_files() -> BTreeMap<String, Vec<u8>> {
    let path = crate::root().join("plugins/javascript/node_modules/vega-datasets/data/seattle-weather.csv");
    let csv = std::fs::read(&path).unwrap_or_else(|e| panic!("read `{}`: {e}", path.display()));
    BTreeMap::from([("seattle-weather.csv".to_owned(), csv)])
}

async fn customers(State(recorder): State<Recorder>) -> impl IntoResponse {
    let count = recorder.inner().behaviour.customers;
    let all: Vec<_> = (1..=count)
        .map(|n| serde_json::json!({ "id": format!("customer-{n}"), "amount_cents": 1_000 + 100 * n }))
        .collect();
    axum::Json(all)
}

async fn health(State(recorder): State<Recorder>) -> StatusCode {
    let status = recorder.inner().behaviour.health.unwrap_or(200);
    StatusCode::from_u16(status).unwrap_or(StatusCode::OK)
}

async fn data(State(recorder): State<Recorder>, Path(name): Path<String>) -> Result<Vec<u8>, StatusCode> {
    recorder.inner().behaviour.files.get(&name).cloned().ok_or(StatusCode::NOT_FOUND)
}

async fn record(
    State(recorder): State<Recorder>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> StatusCode {
    let key = headers.get("idempotency-key").and_then(|v| v.to_str().ok()).unwrap_or_default();
    let key = key.trim_matches('"').to_owned();
    let path = uri.to_string();
    let (delay, is_busy) = {
        let mut inner = recorder.inner();
        let delay = if path.starts_with("/charges") { inner.behaviour.charge_delay } else { Duration::ZERO };
        let is_busy = path.starts_with("/busy") && inner.behaviour.busy > 0;
        inner.behaviour.busy -= usize::from(is_busy);
        // Written down on arrival: what arrives counts, whether or not the asker lives to hear the answer.
        let body = String::from_utf8_lossy(&body).into_owned();
        let at_ms = chrono::Utc::now().timestamp_millis();
        inner.received.push(Received { method: method.to_string(), path, key, body, at_ms });
        (delay, is_busy)
    };
    tokio::time::sleep(delay).await;
    if is_busy { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::CREATED }
}
