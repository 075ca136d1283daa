//! Clients: they change a job through any node's API, one change after the other, and read it back. What was
//! acknowledged must never be gone, and nobody may read what is older.

use http::{Method, Request};
use serde_json::{Value, json};
use tickhost_ledger::JobSpec;
use tokio::sync::oneshot;

use crate::{entropy::Random, network, node::Node, world::World};

/// Before a change that nobody answered is certainly over: longer than any fault holds a request up.
const SETTLED_US: u64 = 30_000_000;

/// What a client is told.
pub(crate) type Told = oneshot::Receiver<(u16, Value)>;

/// Sends a request to a node's API.
pub(crate) fn request(world: &World, node: &Node, method: Method, path: &str, body: Vec<u8>) -> Option<Told> {
    let host = node.host()?;
    let what = format!("{method} {path} of node {}", node.id);
    world.line(&format!("a client asks {what}"));
    let (tell, told) = oneshot::channel();
    let request = Request::builder().method(method).uri(path).body(body.into());
    let (world, request) = (world.clone(), request.expect("a request"));
    node.spawn(async move {
        let response = network::ask(tickhost::api::router(host), request).await;
        let status = response.status().as_u16();
        let said = if status < 400 { "".into() } else { String::from_utf8_lossy(response.body()) };
        world.line(&format!("a client is told {status} to {what} {said}"));
        let _ = tell.send((status, serde_json::from_slice(response.body()).unwrap_or_default()));
    });
    Some(told)
}

enum Asked {
    Write,
    /// And how many changes were acknowledged before.
    Read(usize),
}

/// One job that is written and read.
pub(crate) struct Client {
    path: String,
    random: Random,
    spec: JobSpec,
    /// What the job is after each change: the number that its configuration has, or gone. First: it never was.
    states: Vec<Option<u64>>,
    /// How many of them were acknowledged, or are certainly over.
    known: usize,
    pending: Option<(Asked, Told)>,
    next_at_us: u64,
    /// What was wrong.
    pub(crate) fault: Option<String>,
}

impl Client {
    pub(crate) fn new(seed: u64, name: &str, spec: JobSpec) -> Self {
        Self {
            path: format!("/v1/jobs/client/{name}"),
            random: Random::of(seed, name),
            spec,
            states: vec![None],
            known: 0,
            pending: None,
            next_at_us: 0,
            fault: None,
        }
    }

    /// The spec with that number.
    fn body(&self, n: u64) -> Vec<u8> {
        let mut spec = self.spec.clone();
        spec.config.insert("n".into(), n.to_string());
        serde_json::to_vec(&spec).expect("a job as JSON")
    }

    /// Whether the job may be found like that by somebody who asked when so many changes were known.
    fn check(&mut self, found: Option<u64>, known: usize) {
        if !self.states[known..].contains(&found) {
            let expected = &self.states[known..];
            self.fault = Some(format!("{} is {found:?}, expected one of {expected:?}", self.path));
        }
    }

    /// Takes an answer, and asks again.
    pub(crate) fn act(&mut self, world: &World, nodes: &[Node], may_write: bool) {
        let now_us = world.now_us();
        if let Some((asked, told)) = &mut self.pending {
            let answer = match told.try_recv() {
                Err(oneshot::error::TryRecvError::Empty) => return,
                Err(oneshot::error::TryRecvError::Closed) => None,
                Ok((status, body)) => Some((status, body)),
            };
            let asked = std::mem::replace(asked, Asked::Write);
            self.pending = None;
            self.next_at_us = now_us + 1_000 * self.random.between(50, 1_500);
            match (asked, answer) {
                (Asked::Write, Some((200..=299, _))) => self.known = self.states.len() - 1,
                // The only change that may have been there before: the job is gone.
                (Asked::Write, Some((404, _))) if self.states.last() == Some(&None) => {
                    self.known = self.states.len() - 1;
                }
                (Asked::Write, _) => self.next_at_us = now_us + SETTLED_US,
                (Asked::Read(known), Some((status @ (200 | 404), body))) => {
                    let n = body["spec"]["config"]["n"].as_str().and_then(|n| n.parse().ok());
                    self.check(if status == 200 { n } else { None }, known);
                }
                (Asked::Read(_), _) => {}
            }
        }
        if now_us < self.next_at_us {
            return;
        }
        let node = self.random.pick(nodes);
        let told = if may_write && self.random.chance(60) {
            let n = self.states.len() as u64;
            let is_gone = self.random.chance(20);
            let (method, body) = if is_gone { (Method::DELETE, vec![]) } else { (Method::PUT, self.body(n)) };
            let told = request(world, node, method, &self.path, body);
            if told.is_some() {
                self.states.push((!is_gone).then_some(n));
            }
            told.map(|told| (Asked::Write, told))
        } else {
            let told = request(world, node, Method::GET, &self.path, vec![]);
            told.map(|told| (Asked::Read(self.known), told))
        };
        self.pending = told;
    }

    /// Whether a change is under way that may still be made.
    pub(crate) fn is_writing(&self) -> bool {
        matches!(self.pending, Some((Asked::Write, _)))
    }

    /// What there is at the end.
    pub(crate) fn judge(&mut self, state: &tickhost_ledger::State) {
        let name = self.path.rsplit_once('/').map_or("", |(_, name)| name);
        let job = state.job(&tickhost_ledger::JobName::new("client", name).expect("a name"));
        let found = job.and_then(|job| job.spec.config.get("n")).and_then(|n| n.parse().ok());
        self.check(found, self.known);
    }
}

/// What a request to stop all jobs says.
pub(crate) fn pause() -> Vec<u8> {
    serde_json::to_vec(&json!({ "note": "the end" })).unwrap_or_default()
}
