//! One simulation: a cluster comes to be, works, meets faults, heals, and is judged.

use std::collections::BTreeMap;

use http::Method;
use serde_json::Value;
use tickhost_ledger::{
    Command, Digest, JobName, JobSpec, RunId, Stamp, State,
    spec::{CatchUp, Limits, OnUnknown, Overlap, Retry, RetryWhen},
};
use tickhost_schedule::Definition;

use crate::{
    client::{self, Client, Told},
    entropy::Random,
    guest::COMPONENT,
    invariants::{self, Invariant},
    network,
    node::{EPOCH_MS, Home, Node},
    plan::{Action, Plan},
    world::World,
};

/// For a step that comes about by itself, in milliseconds: many times what it takes.
const SOON_MS: u64 = 60_000;
/// After the last fault: sessions lapse, and what was missed is made up.
const SETTLE_MS: u64 = 35_000;
/// The same where a node is let go on the way.
const SETTLE_WITH_CHANGES_MS: u64 = 65_000;
/// From the last tick on: the longest run, and a session.
const END_MS: u64 = 45_000;
/// How often all nodes are looked at.
const LOOK_EVERY_MS: u64 = 10;

/// What a simulation is made of.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) seed: u64,
    pub(crate) nodes: u64,
    pub(crate) faults_ms: u64,
    pub(crate) planted: Vec<String>,
    /// The only kinds of faults; all of them where there are none.
    pub(crate) only: Vec<String>,
    /// Where the history goes.
    pub(crate) trace: Option<std::path::PathBuf>,
    /// What the nodes log goes to standard error.
    pub(crate) log: bool,
}

/// What did not hold.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) invariant: &'static str,
    pub(crate) what: String,
}

fn failure(invariant: &'static str) -> impl Fn(String) -> Failure {
    move |what| Failure { invariant, what }
}

/// How a simulation ended.
pub(crate) struct Ended {
    pub(crate) digest: Digest,
    pub(crate) lines: u64,
    /// Faults that happened, and messages that were lost by them.
    pub(crate) faults: u64,
    pub(crate) lost: u64,
    /// Planted bugs that the nodes came by.
    pub(crate) come_by: usize,
    pub(crate) failure: Option<Failure>,
    pub(crate) at_ms: u64,
}

/// A job: its schedule, what becomes of what is unknown, of what overlaps, and of what was missed.
fn spec(schedule: &str, on_unknown: OnUnknown, overlap: Overlap, catch_up: CatchUp) -> JobSpec {
    let repeat = Retry { attempts: 1_000, backoff_ms: 10, backoff_max_ms: 50, when: RetryWhen::Failed };
    JobSpec {
        component: Digest::of(COMPONENT),
        timing: Definition::new(schedule, "UTC"),
        calendars: vec![],
        max_launches: None,
        on_unknown,
        overlap,
        catch_up,
        start_deadline_s: 3_600,
        limits: Limits::default(),
        allow_http: vec![],
        config: BTreeMap::new(),
        args: Vec::new(),
        env: BTreeMap::new(),
        retry: if on_unknown == OnUnknown::Repeat { repeat } else { Retry::NEVER },
    }
}

/// The jobs that are there from beginning to end. Few enough ticks that the ledger keeps each launch.
pub(crate) fn jobs() -> Vec<(JobName, JobSpec)> {
    use OnUnknown::{Repeat, Skip};
    let config = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
    let retried = Retry { attempts: 3, backoff_ms: 100, backoff_max_ms: 500, when: RetryWhen::Asked };
    [
        ("skip-a", spec("*/2 * * * * *", Skip, Overlap::Allow, CatchUp::All(1_000))),
        ("skip-b", spec("*/3 * * * * *", Skip, Overlap::Skip, CatchUp::Latest)),
        (
            "skip-long",
            JobSpec { config: config("do", "long"), ..spec("*/4 * * * * *", Skip, Overlap::Replace, CatchUp::Latest) },
        ),
        (
            "skip-longest",
            JobSpec { config: config("do", "longest"), ..spec("*/5 * * * * *", Skip, Overlap::Allow, CatchUp::Latest) },
        ),
        (
            "retry",
            JobSpec {
                config: config("fails", "often"),
                retry: retried,
                start_deadline_s: 2,
                ..spec("*/3 * * * * *", Skip, Overlap::Skip, CatchUp::None)
            },
        ),
        ("repeat-a", spec("*/2 * * * * *", Repeat, Overlap::Allow, CatchUp::All(1_000))),
        ("repeat-b", spec("*/5 * * * * *", Repeat, Overlap::QueueOne, CatchUp::Latest)),
        ("repeat-c", spec("@every 7s", Repeat, Overlap::Allow, CatchUp::All(1_000))),
    ]
    .map(|(name, spec)| (JobName::new("job", name).expect("a name"), spec))
    .to_vec()
}

/// Whether a job must do nothing twice.
pub(crate) fn is_skip(job: &JobName) -> bool {
    job.namespace == "client" || job.name.starts_with("skip")
}

/// Whether runs of several of its launches may live at a time.
pub(crate) fn may_overlap(job: &JobName) -> bool {
    job.namespace == "client" || matches!(job.name.as_str(), "skip-a" | "skip-longest" | "repeat-a" | "repeat-c")
}

/// Whether each of its launches is repeated until it has succeeded.
pub(crate) fn must_succeed(job: &JobName) -> bool {
    job.name.starts_with("repeat")
}

pub(crate) struct Simulation {
    pub(crate) world: World,
    pub(crate) nodes: Vec<Node>,
    /// When the last fault was over.
    pub(crate) healed_at_us: Option<u64>,
    home: Home,
    options: Options,
    random: Random,
    clients: Vec<Client>,
    may_write: bool,
    removed: Vec<u64>,
    /// Nodes that are to be let in.
    joining: Vec<u64>,
    faults: u64,
    invariants: Vec<Box<dyn Invariant>>,
}

impl Simulation {
    /// Simulates, and says how it went.
    pub(crate) fn run(world: World, options: Options) -> Ended {
        let mut simulation = Self {
            world: world.clone(),
            nodes: Vec::new(),
            healed_at_us: None,
            home: Home::new(),
            random: Random::of(options.seed, "simulation"),
            clients: ["a", "b"].map(|name| Client::new(options.seed, name, client_job())).into(),
            options,
            may_write: false,
            removed: Vec::new(),
            joining: Vec::new(),
            faults: 0,
            invariants: invariants::all(),
        };
        let failure = simulation.live().err();
        simulation.nodes.iter_mut().for_each(|node| node.stop("the end", false));
        let (digest, lines) = world.close();
        let shared = world.lock();
        Ended {
            digest,
            lines,
            faults: simulation.faults + shared.died_at_points,
            lost: shared.network.lost,
            come_by: shared.come_by.len(),
            failure,
            at_ms: shared.now_us / 1_000,
        }
    }

    fn live(&mut self) -> Result<(), Failure> {
        self.come_to_be()?;
        let (seed, nodes, faults_ms) = (self.options.seed, self.options.nodes, self.options.faults_ms);
        let only: Vec<&str> = self.options.only.iter().map(String::as_str).collect();
        let plan = Plan::of(seed, nodes, faults_ms, &only);
        let has_changes = plan.actions.values().any(|action| matches!(action, Action::Spoil { .. }));
        let settle_ms = if has_changes { SETTLE_WITH_CHANGES_MS } else { SETTLE_MS };
        self.may_write = true;
        let mut actions = plan.actions.into_iter().peekable();
        for ms in 0..faults_ms + settle_ms {
            if ms == faults_ms {
                self.heal();
            }
            while let Some((_, action)) = actions.next_if(|((at_ms, _), _)| *at_ms <= ms) {
                // What is still to be undone of a fault is undone already.
                if ms < faults_ms || matches!(action, Action::Spoil { .. } | Action::Remove { .. }) {
                    self.act(action);
                }
            }
            self.tick()?;
        }
        self.may_write = false;
        self.until("no client changes anything", |simulation| !simulation.clients.iter().any(Client::is_writing))?;
        let all = self.with_state(|state| state.jobs().map(|(name, _)| name.clone()).collect::<Vec<_>>());
        for name in all.map_err(failure("heals"))? {
            let path = format!("/v1/jobs/{}/{}/pause", name.namespace, name.name);
            self.ask(Method::POST, &path, client::pause())?;
        }
        for _ in 0..END_MS {
            self.tick()?;
        }
        self.judge()
    }

    /// A cluster of that many nodes with its jobs.
    fn come_to_be(&mut self) -> Result<(), Failure> {
        let failed = failure("comes to be");
        for id in 1..=self.options.nodes {
            let others: Vec<u64> = (1..id).collect();
            self.nodes.push(Node::new(&self.home, &self.world, self.options.seed, id, &others));
        }
        self.world.lock().stepping = 1;
        self.nodes[0].found(&self.home).map_err(&failed)?;
        self.nodes[0].start();
        let leads = |node: &Node| node.with_host(|host| host.replica.leading().borrow().is_some()) == Some(true);
        self.until("the first node leads", |simulation| leads(&simulation.nodes[0]))?;
        self.joining = (2..=self.options.nodes).collect();
        self.until("all nodes vote and have sessions", |simulation| {
            simulation.nodes.iter().all(|node| {
                let all = simulation.nodes.len();
                node.with_host(|host| host.replica.voters().len() == all && host.executor.session().is_some())
                    .unwrap_or_default()
            })
        })?;
        self.ask(Method::POST, "/v1/components", COMPONENT.to_vec())?;
        for (name, spec) in jobs() {
            let path = format!("/v1/jobs/{}/{}", name.namespace, name.name);
            self.ask(Method::PUT, &path, serde_json::to_vec(&spec).expect("a job as JSON"))?;
        }
        Ok(())
    }

    /// Starts the nodes that have been let in, and has the next one let in.
    fn let_in(&mut self) {
        let Some(id) = self.joining.first().copied() else { return };
        if self.with_state(|state| state.node(id).is_some()).unwrap_or_default() {
            self.joining.remove(0);
            self.node_mut(id).into_iter().for_each(Node::start);
            return;
        }
        let now_us = self.world.now_us();
        if !now_us.is_multiple_of(500_000) {
            return;
        }
        // Another token each time: one that was used is used up.
        let token = Digest::of(format!("token {id} {now_us}").as_bytes());
        let Some(node) = self.leader() else { return };
        let Some(host) = node.host() else { return };
        node.spawn(async move {
            let (now, address) = (host.clock.now(), format!("node-{id}:1"));
            let put =
                Command::PutToken { digest: token, expires_at: now.plus_ms(600_000), voter: true, by: "sim".into() };
            let _ = host.replica.proposer().propose_one(None, now, put).await;
            let admit = Command::Admit { token, address, voter: true };
            // Numbers are given in order; whoever got this one twice would have two.
            if host.replica.read(|state| state.cluster().is_some_and(|cluster| cluster.next_node == id)) {
                let _ = host.replica.proposer().propose_one(None, now, admit).await;
            }
        });
    }

    /// A millisecond passes.
    fn tick(&mut self) -> Result<(), Failure> {
        self.world.lock().now_us += 1_000;
        let mut clients = std::mem::take(&mut self.clients);
        for client in &mut clients {
            client.act(&self.world, &self.nodes, self.may_write);
        }
        let wrong = clients.iter_mut().find_map(|client| client.fault.take());
        self.clients = clients;
        network::deliver(&self.world);
        self.let_in();
        self.nodes.iter_mut().for_each(Node::step);
        let mut invariants = std::mem::take(&mut self.invariants);
        let looked = self.look(&mut invariants);
        self.invariants = invariants;
        looked?;
        if let Some(panic) = crate::take_panic() {
            return Err(failure("nobody panics")(panic));
        }
        wrong.map_or(Ok(()), |wrong| Err(failure("changes last")(wrong)))
    }

    fn look(&self, invariants: &mut [Box<dyn Invariant>]) -> Result<(), Failure> {
        for event in self.world.take_events() {
            for invariant in invariants.iter_mut() {
                invariant.note(self, &event).map_err(failure(invariant.name()))?;
            }
        }
        if (self.world.now_us() / 1_000).is_multiple_of(LOOK_EVERY_MS) {
            for invariant in invariants.iter_mut() {
                invariant.look(self).map_err(failure(invariant.name()))?;
            }
        }
        Ok(())
    }

    fn judge(&mut self) -> Result<(), Failure> {
        let mut invariants = std::mem::take(&mut self.invariants);
        for invariant in &mut invariants {
            invariant.at_end(self).map_err(failure(invariant.name()))?;
        }
        let mut clients = std::mem::take(&mut self.clients);
        let judged = self.with_state(|state| clients.iter_mut().for_each(|client| client.judge(state)));
        judged.map_err(failure("changes last"))?;
        clients.into_iter().find_map(|client| client.fault).map_or(Ok(()), |wrong| Err(failure("changes last")(wrong)))
    }

    fn until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) -> Result<(), Failure> {
        for _ in 0..SOON_MS {
            self.tick()?;
            if is_so(self) {
                return Ok(());
            }
        }
        Err(failure("comes to be")(format!("{what}: not within {SOON_MS} ms")))
    }

    /// Asks whoever is up until it is done.
    fn ask(&mut self, method: Method, path: &str, body: Vec<u8>) -> Result<Value, Failure> {
        let mut last = (0, Value::Null);
        for _ in 0..100 {
            let mut random = self.random.clone();
            let nodes: Vec<&Node> = self.members().filter(|node| node.is_up()).collect();
            let node = (!nodes.is_empty()).then(|| *random.pick(&nodes));
            let told = node.and_then(|node| client::request(&self.world, node, method.clone(), path, body.clone()));
            self.random = random;
            if let Some(told) = told {
                last = self.hear(told)?;
                if (200..300).contains(&last.0) {
                    return Ok(last.1);
                }
            }
            for _ in 0..200 {
                self.tick()?;
            }
        }
        Err(failure("comes to be")(format!("{method} {path}: {last:?}")))
    }

    fn hear(&mut self, mut told: Told) -> Result<(u16, Value), Failure> {
        for _ in 0..SOON_MS {
            self.tick()?;
            match told.try_recv() {
                Ok(answer) => return Ok(answer),
                Err(tokio::sync::oneshot::error::TryRecvError::Empty) => {}
                Err(_) => break,
            }
        }
        Ok((0, Value::Null))
    }

    /// The nodes that belong to the cluster and whose disks are their own.
    pub(crate) fn members(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| !node.is_spoiled && !self.removed.contains(&node.id))
    }

    /// The nodes that were to be removed, where nothing else is the matter with them.
    pub(crate) fn let_go(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| !node.is_spoiled && self.removed.contains(&node.id))
    }

    pub(crate) fn node(&self, id: u64) -> Option<&Node> {
        self.nodes.iter().find(|node| node.id == id)
    }

    fn node_mut(&mut self, id: u64) -> Option<&mut Node> {
        self.nodes.iter_mut().find(|node| node.id == id && !node.is_spoiled)
    }

    pub(crate) fn leader(&self) -> Option<&Node> {
        let leads = |node: &&Node| node.with_host(|host| host.replica.leading().borrow().is_some()) == Some(true);
        self.nodes.iter().find(leads)
    }

    /// Reads the state of a node that is up: the leader's where there is one.
    pub(crate) fn with_state<R>(&self, read: impl FnOnce(&State) -> R) -> Result<R, String> {
        let node = self.leader().or_else(|| self.members().find(|node| node.host().is_some()));
        let host = node.and_then(Node::host).ok_or("no node is up")?;
        Ok(host.replica.read(read))
    }

    /// Whether any node's state says that a run is over.
    pub(crate) fn is_closed(&self, run: &RunId) -> bool {
        let is_closed = |state: &State| {
            let Some(launch) = state.launch(&run.launch) else { return false };
            let attempt = (run.attempt as usize).checked_sub(1).and_then(|at| launch.attempts.get(at));
            attempt.is_some_and(|attempt| attempt.ended.is_some())
        };
        self.nodes.iter().any(|node| node.with_host(|host| host.replica.read(is_closed)) == Some(true))
    }

    /// The median of what the clocks of the nodes that vote show, in milliseconds since 1970.
    pub(crate) fn median_ms(&self) -> i64 {
        let mut walls: Vec<Stamp> = self.members().map(|node| node.wall()).collect();
        walls.sort_unstable();
        walls.get(walls.len() / 2).map_or(EPOCH_MS, |wall| wall.0)
    }

    fn act(&mut self, action: Action) {
        let now_us = self.world.now_us();
        let others: Vec<u64> = self.nodes.iter().map(|node| node.id).collect();
        let mut has_happened = action.is_fault();
        self.world.line(&format!("fault: {action:?}"));
        match action {
            Action::Kill { node, down_ms } => has_happened = self.down(node, "killed", down_ms, false),
            Action::PowerOff { node, down_ms } => has_happened = self.down(node, "without power", down_ms, true),
            Action::PowerOffAll { down_ms } => {
                for node in others {
                    self.down(node, "without power", down_ms, true);
                }
            }
            Action::KillAt { node, point, count } => {
                self.world.lock().deaths.insert(node, (point, count));
            }
            Action::Cut { node, out, inward } => self.world.lock().network.cut_off(node, &others, out, inward),
            Action::Mend => self.world.lock().network.cut.clear(),
            Action::SlowLink { node, ms } => {
                self.world.lock().network.slow_ms.insert(node, ms);
            }
            Action::Freeze { node, ms, timers_go_on } => match self.node_mut(node) {
                Some(node) if node.is_up() => node.freeze(now_us + ms * 1_000, timers_go_on),
                _ => has_happened = false,
            },
            Action::Clock { node, wrong_ms } => {
                self.node_mut(node).into_iter().for_each(|node| node.set_clock(wrong_ms));
            }
            Action::SlowDisk { node, ms } => {
                self.node_mut(node).into_iter().for_each(|node| node.disk.lock().slow_ms = ms);
            }
            Action::SyncFails { node } => {
                self.node_mut(node).into_iter().for_each(|node| node.disk.lock().fails = true);
            }
            Action::Full { node, is_full } => {
                self.node_mut(node).into_iter().for_each(|node| node.disk.lock().set_full(is_full));
            }
            Action::Transfer => {
                let body = br#"{"to":null}"#.to_vec();
                let told = self
                    .leader()
                    .and_then(|node| client::request(&self.world, node, Method::POST, "/v1/cluster/transfer", body));
                has_happened = told.is_some();
            }
            Action::Join => {
                let id = self.nodes.len() as u64 + 1;
                self.nodes.push(Node::new(&self.home, &self.world, self.options.seed, id, &others));
                self.joining.push(id);
            }
            Action::KeepDisk { node } => self.node_mut(node).into_iter().for_each(Node::keep_disk),
            Action::Spoil { node, to_nothing } => {
                if let Some(node) = self.node_mut(node) {
                    node.stop("its disk is exchanged", false);
                    node.set_back(to_nothing);
                    node.is_spoiled = true;
                    node.start_at_us = Some(now_us + 1_000_000);
                }
            }
            Action::Remove { node } => {
                self.removed.push(node);
                let path = format!("/v1/nodes/{node}");
                let told = self.leader().and_then(|at| client::request(&self.world, at, Method::DELETE, &path, vec![]));
                has_happened = told.is_some();
            }
        }
        self.faults += u64::from(has_happened);
    }

    fn down(&mut self, node: u64, why: &str, down_ms: u64, loses_power: bool) -> bool {
        let now_us = self.world.now_us();
        match self.node_mut(node) {
            Some(node) if node.is_up() => {
                node.stop(why, loses_power);
                node.start_at_us = Some(now_us + down_ms * 1_000);
                true
            }
            _ => false,
        }
    }

    /// Everything works from now on.
    fn heal(&mut self) {
        let now_us = self.world.now_us();
        self.world.line("all is well from now on");
        self.healed_at_us = Some(now_us);
        {
            let mut shared = self.world.lock();
            shared.network.cut.clear();
            shared.network.slow_ms.clear();
            shared.deaths.clear();
        }
        for node in self.nodes.iter_mut().filter(|node| !node.is_spoiled) {
            node.set_clock(0);
            node.thaw();
            let mut disk = node.disk.lock();
            (disk.slow_ms, disk.fails) = (0, false);
            disk.set_full(false);
            drop(disk);
            if !node.is_up() && !self.joining.contains(&node.id) {
                node.start_at_us = Some(now_us);
            }
        }
    }
}

fn client_job() -> JobSpec {
    spec("@every 3s", OnUnknown::Skip, Overlap::Allow, CatchUp::Latest)
}
