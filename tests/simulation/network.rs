//! The network between simulated nodes: requests and answers that take time, and links that lose what is sent over them.
//!
//! What TLS gives is kept: nothing is doubled, nothing comes from somebody else, and whether a request can have been sent
//! at all is known. A link is cut in one direction at a time, so an answer can be lost of what was carried out.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    time::Duration,
};

use axum::{Router, body::Body};
use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response};
use tickhost_executor::order::{Obeyed, Order, What};
use tickhost_ledger::{Digest, codec};
use tickhost_replica::{CallError, Caller, Lane, Listen, Target, Transport};
use tokio::{runtime::Handle, sync::oneshot};
use tower_service::Service;

use crate::{
    entropy::Random,
    world::{Event, Shared, World},
};

/// After this long without a sign of life a connection is given up, and an attempt to make one.
const SILENCE_US: u64 = 1_500_000;

type Answer = oneshot::Sender<Result<Response<Bytes>, CallError>>;

/// From, to, and with what it shares a connection.
type Way = (u64, u64, Lane);

/// Where a node answers.
struct Port {
    boot: u64,
    router: Router,
    runtime: Handle,
}

enum Arrival {
    Request { way: Way, boot: u64, request: Request<Bytes>, answer: Answer },
    Answer { response: Result<Response<Bytes>, CallError>, answer: Answer },
}

#[derive(Debug, Clone, Copy)]
struct Connection {
    from_boot: u64,
    to_boot: u64,
    /// It has lost something: from then on it is known to be dead.
    dead_at_us: Option<u64>,
}

/// The network.
pub(crate) struct Network {
    random: Random,
    /// Directions in which everything is lost.
    pub(crate) cut: BTreeSet<(u64, u64)>,
    /// Milliseconds that everything takes longer from and to a node.
    pub(crate) slow_ms: BTreeMap<u64, u64>,
    ports: BTreeMap<u64, Port>,
    connections: BTreeMap<Way, Connection>,
    under_way: BTreeMap<(u64, u64), Arrival>,
    sent: u64,
    pub(crate) lost: u64,
}

impl Network {
    pub(crate) fn new(random: Random) -> Self {
        Self {
            random,
            cut: BTreeSet::new(),
            slow_ms: BTreeMap::new(),
            ports: BTreeMap::new(),
            connections: BTreeMap::new(),
            under_way: BTreeMap::new(),
            sent: 0,
            lost: 0,
        }
    }

    /// Cuts a node off from others: what it sends is lost, what is sent to it, or both.
    pub(crate) fn cut_off(&mut self, node: u64, others: &[u64], out: bool, inward: bool) {
        for other in others.iter().copied().filter(|other| *other != node) {
            if out {
                self.cut.insert((node, other));
            }
            if inward {
                self.cut.insert((other, node));
            }
        }
    }

    /// How long a message takes, in microseconds.
    fn delay_us(&mut self, from: u64, to: u64) -> u64 {
        let slow_ms = self.slow_ms.get(&from).unwrap_or(&0) + self.slow_ms.get(&to).unwrap_or(&0);
        let usual_us =
            if self.random.chance(1) { self.random.between(5_000, 60_000) } else { self.random.between(100, 2_000) };
        usual_us + if slow_ms > 0 { self.random.below(slow_ms * 1_000) } else { 0 }
    }

    fn later(&mut self, at_us: u64, arrival: Arrival) {
        self.sent += 1;
        self.under_way.insert((at_us, self.sent), arrival);
    }
}

impl Shared {
    fn send(&mut self, (from, boot): (u64, u64), to: u64, lane: Lane, request: Request<Bytes>, answer: Answer) {
        if !self.is_alive(from, boot) {
            return;
        }
        let (now_us, path) = (self.now_us, request.uri().path().to_owned());
        let digest = Digest::of(request.body()).hex();
        self.line(&format!("{from} -> {to} {path} {} {}", request.body().len(), &digest[..16]));
        let network = &mut self.network;
        let to_boot = network.ports.get(&to).map(|port| port.boot);
        let connection = network.connections.get(&(from, to, lane)).copied();
        let is_cut = network.cut.contains(&(from, to));
        let lives = connection.filter(|c| {
            c.from_boot == boot && Some(c.to_boot) == to_boot && c.dead_at_us.is_none_or(|dead_at| dead_at > now_us)
        });
        let mut delay_us = network.delay_us(from, to);
        if lives.is_none() {
            let cannot = if is_cut || network.cut.contains(&(to, from)) {
                Some((SILENCE_US, "no answer to a connection"))
            } else if to_boot.is_none() {
                Some((delay_us, "connection refused"))
            } else {
                None
            };
            if let Some((after_us, why)) = cannot {
                let response = Err(CallError::NotSent { node: to, why: why.into() });
                return network.later(now_us + after_us, Arrival::Answer { response, answer });
            }
            // The handshake goes back and forth.
            delay_us *= 3;
            let made = Connection { from_boot: boot, to_boot: to_boot.unwrap_or_default(), dead_at_us: None };
            network.connections.insert((from, to, lane), made);
        }
        if is_cut {
            return network.lose((from, to, lane), now_us, answer);
        }
        let boot = to_boot.unwrap_or_default();
        network.later(now_us + delay_us, Arrival::Request { way: (from, to, lane), boot, request, answer });
    }

    fn answer(&mut self, (from, to, lane): Way, boot: u64, response: Response<Bytes>, answer: Answer) {
        if !self.is_alive(to, boot) {
            return;
        }
        let (now_us, status) = (self.now_us, response.status().as_u16());
        let digest = Digest::of(response.body()).hex();
        self.line(&format!("{to} => {from} {status} {} {}", response.body().len(), &digest[..16]));
        if self.network.cut.contains(&(to, from)) {
            return self.network.lose((from, to, lane), now_us, answer);
        }
        let delay_us = self.network.delay_us(to, from);
        self.network.later(now_us + delay_us, Arrival::Answer { response: Ok(response), answer });
    }
}

impl Network {
    /// A message is lost, and with it the connection, once its silence is noticed.
    fn lose(&mut self, (from, to, lane): Way, now_us: u64, answer: Answer) {
        self.lost += 1;
        let dead_at_us = match self.connections.get_mut(&(from, to, lane)) {
            Some(connection) => *connection.dead_at_us.get_or_insert(now_us + SILENCE_US),
            None => now_us + SILENCE_US,
        };
        let response = Err(CallError::NoAnswer { node: to, why: "the connection has died".into() });
        self.later(dead_at_us.max(now_us), Arrival::Answer { response, answer });
    }
}

/// Delivers what arrives up to now.
pub(crate) fn deliver(world: &World) {
    loop {
        let arrival = {
            let mut shared = world.lock();
            let now_us = shared.now_us;
            match shared.network.under_way.first_entry().filter(|first| first.key().0 <= now_us) {
                Some(first) => first.remove(),
                None => return,
            }
        };
        match arrival {
            Arrival::Answer { response, answer } => {
                let _ = answer.send(response);
            }
            Arrival::Request { way, boot, request, answer } => arrive(world, way, boot, request, answer),
        }
    }
}

fn arrive(world: &World, (from, to, lane): Way, boot: u64, request: Request<Bytes>, answer: Answer) {
    let (router, runtime) = {
        let shared = world.lock();
        match shared.network.ports.get(&to).filter(|port| port.boot == boot) {
            Some(port) => (port.router.clone(), port.runtime.clone()),
            None => {
                let gone = CallError::NoAnswer { node: to, why: "the connection was reset".into() };
                let _ = answer.send(Err(gone));
                return;
            }
        }
    };
    let world = world.clone();
    runtime.spawn(async move {
        let asked = (request.uri().path() == "/executor/order").then(|| request.body().clone());
        let mut request = request.map(Body::from);
        request.extensions_mut().insert(Caller(Some(from)));
        let response = ask(router, request).await;
        if let Some(order) = asked
            && world.is_alive(to, boot)
        {
            overhear(&world, to, &order, response.body());
        }
        world.lock().answer((from, to, lane), boot, response, answer);
    });
}

/// Notes what an executor says of runs that never began.
fn overhear(world: &World, node: u64, order: &[u8], answer: &[u8]) {
    let (Ok(order), Ok(Obeyed::Told(told))) = (codec::decode::<Order>(order), codec::decode(answer)) else { return };
    let What::Tell(runs) = order.what else { return };
    for (run, _) in
        runs.into_iter().zip(told).filter(|(_, answer)| *answer == tickhost_ledger::conductor::Answer::Never)
    {
        let disk = world.lock().disks.get(&node).cloned();
        let row_is_durable = disk.is_some_and(|disk| disk.lock().durable_run(&run.to_string()).is_some());
        world.note(Event::Never { node, run, row_is_durable });
    }
}

/// Has a router answer.
pub(crate) async fn ask(mut router: Router, request: Request<Body>) -> Response<Bytes> {
    let Ok(response) = router.call(request).await;
    let (parts, body) = response.into_parts();
    let bytes = axum::body::to_bytes(body, usize::MAX).await.unwrap_or_default();
    Response::from_parts(parts, bytes)
}

/// What carries from one node's process to the others.
pub(crate) struct SimTransport {
    pub(crate) world: World,
    pub(crate) node: u64,
    pub(crate) boot: u64,
}

impl Transport for SimTransport {
    fn exchange<'a>(
        &'a self,
        to: Target<'a>,
        request: Request<tickhost_replica::Body>,
        within: Duration,
    ) -> BoxFuture<'a, Result<Response<Bytes>, CallError>> {
        Box::pin(async move {
            let (mut parts, body) = request.into_parts();
            // What a router here has noted of it goes over no wire.
            parts.extensions.clear();
            let body = axum::body::to_bytes(Body::new(body), usize::MAX).await;
            let body = body.map_err(|e| CallError::NotSent { node: to.node, why: e.to_string() })?;
            let (answer, answered) = oneshot::channel();
            let request = Request::from_parts(parts, body);
            self.world.lock().send((self.node, self.boot), to.node, to.lane, request, answer);
            match tokio::time::timeout(within, answered).await {
                Ok(Ok(response)) => response,
                Ok(Err(_)) => Err(CallError::NoAnswer { node: to.node, why: "the connection was reset".into() }),
                Err(_) => Err(CallError::NoAnswer { node: to.node, why: format!("no answer within {within:?}") }),
            }
        })
    }
}

/// The port of one node's process.
pub(crate) struct SimListen {
    pub(crate) world: World,
    pub(crate) node: u64,
    pub(crate) boot: u64,
}

/// Closes it.
struct Open(SimListen);

impl Drop for Open {
    fn drop(&mut self) {
        let mut shared = self.0.world.lock();
        if shared.network.ports.get(&self.0.node).is_some_and(|port| port.boot == self.0.boot) {
            // Dropped later: a handle of a runtime must not go while the world is held.
            let port = shared.network.ports.remove(&self.0.node);
            drop(shared);
            drop(port);
        }
    }
}

impl Listen for SimListen {
    fn serve(self: Box<Self>, router: Router) -> BoxFuture<'static, io::Result<()>> {
        Box::pin(async move {
            let port = Port { boot: self.boot, router, runtime: Handle::current() };
            let before = self.world.lock().network.ports.insert(self.node, port);
            drop(before);
            let _open = Open(*self);
            std::future::pending().await
        })
    }
}
