//! A real cluster: several `tickhost serve` on loopback, founded and joined as an operator does it.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Output,
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    host::{HostOptions, HostProcess, binary, cli_under, free_address, token, until},
    network::Network,
};

/// Long enough for a busy machine.
pub const SOON: Duration = Duration::from_secs(60);

/// A node of the cluster and its process, while it runs.
pub struct Node {
    /// Its number.
    pub number: u64,
    /// Its process.
    pub process: Option<HostProcess>,
    /// Its data directory.
    pub data: PathBuf,
    /// Where its log goes.
    pub log: PathBuf,
    /// Where its peers reach it.
    pub peer: SocketAddr,
    config: PathBuf,
    api: SocketAddr,
    under: Vec<String>,
    /// Another build than the one beside this program.
    pub program: Option<PathBuf>,
}

/// Where a node is put.
#[derive(Clone, Default)]
pub struct Place {
    /// A room of a network; without one it is on loopback like everybody.
    pub room: Option<(Arc<Network>, usize)>,
    /// What it runs under.
    pub under: Vec<String>,
    /// Another build than the one beside this program.
    pub program: Option<PathBuf>,
}

/// The port for peers of a node that has a namespace to itself.
const PEER_PORT: u16 = 7_879;

/// Settings that let guests reach the recorder, which is on this machine.
pub const OPEN_EGRESS: &str = "[egress]\nallow = [\"127.0.0.0/8\", \"10.77.0.0/24\"]\n";

impl Node {
    /// Writes a node's settings.
    ///
    /// # Panics
    /// Where they cannot be written.
    pub fn prepare(dir: &Path, name: &str, more: &str) -> Self {
        Self::prepare_in(dir, name, more, Place::default())
    }

    fn prepare_in(dir: &Path, name: &str, more: &str, place: Place) -> Self {
        let data = dir.join(name);
        let api = free_address();
        let (peer, mut under) = match &place.room {
            None => (free_address(), Vec::new()),
            Some((network, number)) => {
                network.let_in(*number, api);
                (SocketAddr::from((Network::address(*number), PEER_PORT)), network.under(*number))
            }
        };
        under.extend(place.under);
        let config = dir.join(format!("{name}.toml"));
        let text = format!(
            "data = \"{}\"\nlisten = \"{api}\"\n{more}\n[peer]\nlisten = \"{peer}\"\n{OPEN_EGRESS}",
            data.display()
        );
        std::fs::write(&config, text).expect("write the settings");
        Self {
            number: 0,
            process: None,
            data,
            log: dir.join(format!("{name}.log")),
            peer,
            config,
            api,
            under,
            program: place.program,
        }
    }

    /// The settings' file.
    pub fn config(&self) -> &str {
        self.config.to_str().expect("a path in UTF-8")
    }

    /// Its API.
    pub fn url(&self) -> String {
        format!("http://{}", self.api)
    }

    /// Its process.
    ///
    /// # Panics
    /// While it is down.
    pub fn up(&self) -> &HostProcess {
        self.process.as_ref().unwrap_or_else(|| panic!("node {} is down", self.number))
    }

    /// Starts it. Returns before it is up.
    pub fn spawn(&mut self, kill_at: Option<&str>, under: &[String]) {
        let options = HostOptions {
            data: self.data.clone(),
            manifests: Vec::new(),
            log: self.log.clone(),
            kill_at: kill_at.map(ToOwned::to_owned),
            under: [&self.under, under].concat(),
            program: self.program.clone(),
        };
        self.process = Some(HostProcess::serve(&self.config, self.api, &options));
    }

    /// Runs a verb of the command line where it is.
    pub fn cli(&self, arguments: &[&str]) -> Output {
        let program = self.program.clone().unwrap_or_else(binary);
        cli_under(&self.under, &program, &self.url(), token(&self.data).as_deref(), arguments)
    }

    /// Starts it and waits until it answers.
    pub async fn start(&mut self) {
        self.spawn(None, &[]);
        if let Some(process) = &mut self.process {
            process.until_up(&self.log).await;
        }
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        self.process = None;
    }
}

/// A cluster.
pub struct Cluster {
    /// Its nodes, by number less one.
    pub nodes: Vec<Node>,
}

impl Cluster {
    /// Founds a cluster and lets the others join; returns once that many vote and all have sessions.
    ///
    /// # Panics
    /// Where any of it does not work.
    pub async fn start(dir: &Path, voters: usize, executors: usize, more: &str) -> Self {
        Self::start_in(dir, voters, executors, more, |_| Place::default()).await
    }

    /// The same, with a place for each.
    ///
    /// # Panics
    /// Where any of it does not work.
    pub async fn start_in(
        dir: &Path,
        voters: usize,
        executors: usize,
        more: &str,
        place: impl Fn(usize) -> Place,
    ) -> Self {
        let mut first = Node::prepare_in(dir, "node-1", more, place(1));
        let output = first.cli(&["cluster", "init", "--config", first.config()]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        first.number = 1;
        first.start().await;
        let mut cluster = Self { nodes: vec![first] };
        for n in 2..=voters + executors {
            let node = Node::prepare_in(dir, &format!("node-{n}"), more, place(n));
            cluster.let_join(node, n > voters).await;
        }
        cluster.until_whole(voters, voters + executors).await;
        cluster
    }

    /// Lets one more node join, and starts it.
    ///
    /// # Panics
    /// Where it does not work.
    pub async fn join(&mut self, dir: &Path, name: &str, executor: bool, more: &str) {
        self.let_join(Node::prepare(dir, name, more), executor).await;
    }

    async fn let_join(&mut self, mut node: Node, executor: bool) {
        self.admit(&mut node, executor);
        node.start().await;
        self.nodes.push(node);
    }

    /// Lets one more node in, and does not start it.
    ///
    /// # Panics
    /// Where it does not work.
    pub fn admit(&self, node: &mut Node, executor: bool) {
        let mut arguments = vec!["cluster", "token"];
        arguments.extend(executor.then_some("--executor"));
        let token = self.any().up().cli(&arguments);
        assert!(token.status.success(), "{}", String::from_utf8_lossy(&token.stderr));
        let token = String::from_utf8(token.stdout).expect("a token");
        let peer = self.any().peer.to_string();
        let mut arguments =
            vec!["cluster", "join", "--config", node.config(), "--peer", &peer, "--token", token.trim()];
        arguments.extend(["--format", "json"]);
        arguments.extend(executor.then_some("--executor"));
        let joined = node.cli(&arguments);
        assert!(joined.status.success(), "{}", String::from_utf8_lossy(&joined.stderr));
        let joined: Value = serde_json::from_slice(&joined.stdout).expect("an answer");
        node.number = joined["node"].as_u64().expect("a number");
    }

    /// A node that runs.
    ///
    /// # Panics
    /// Where none does.
    pub fn any(&self) -> &Node {
        self.nodes.iter().find(|node| node.process.is_some()).expect("a node that runs")
    }

    /// A node by its number.
    ///
    /// # Panics
    /// Where there is none.
    pub fn node(&mut self, number: u64) -> &mut Node {
        self.nodes.iter_mut().find(|node| node.number == number).unwrap_or_else(|| panic!("there is no node {number}"))
    }

    /// Waits until so many vote, and so many have sessions and follow.
    pub async fn until_whole(&self, voters: usize, all: usize) {
        let began = Instant::now();
        while !self.is_whole(voters, all).await {
            if began.elapsed() > SOON {
                let tails = self.nodes.iter().map(|node| {
                    let log = std::fs::read_to_string(&node.log).unwrap_or_default();
                    let tail: Vec<&str> = log.lines().rev().take(8).collect();
                    format!("node {}: {tail:#?}", node.number)
                });
                let seen = self.nodes_as_seen().await;
                panic!("the cluster is not whole: {seen:?}\n{}", tails.collect::<Vec<_>>().join("\n"));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn is_whole(&self, voters: usize, all: usize) -> bool {
        // What the leader still knows of a process before this one does not count.
        for node in self.nodes.iter().filter_map(|node| node.process.as_ref()) {
            let status = node.get("/v1/status").await.unwrap_or_default();
            if status["session"].is_null() {
                return false;
            }
        }
        let nodes = self.nodes_as_seen().await.unwrap_or_default();
        let votes = |node: &&Value| ["leader", "voter"].contains(&node["role"].as_str().unwrap_or_default());
        let is_well = |node: &&Value| node["has_session"] == json!(true) && !node["heard_ms"].is_null();
        nodes.values().filter(votes).count() == voters && nodes.values().filter(is_well).count() == all
    }

    /// What the leader says of every node, by number.
    pub async fn nodes_as_seen(&self) -> Option<BTreeMap<u64, Value>> {
        let nodes = self.get("/v1/nodes").await?;
        nodes.as_array()?.iter().map(|node| Some((node["node"].as_u64()?, node.clone()))).collect()
    }

    /// Asks the API of whichever node answers.
    pub async fn get(&self, path: &str) -> Option<Value> {
        for node in self.nodes.iter().filter_map(|node| node.process.as_ref()) {
            if let Some(answer) = node.get(path).await {
                return Some(answer);
            }
        }
        None
    }

    /// Who leads, as the nodes agree that are not asked to be left out.
    pub async fn leader(&self) -> u64 {
        until("there is a leader", SOON, async || {
            let mut seen = Vec::new();
            for node in self.nodes.iter().filter_map(|node| node.process.as_ref()) {
                let status = node.get("/v1/status").await?;
                seen.push(status["leader"].as_u64()?);
            }
            let first = *seen.first()?;
            seen.iter().all(|leader| *leader == first).then_some(first)
        })
        .await
    }

    /// Stores a manifest through a node.
    ///
    /// # Panics
    /// Where that is refused.
    pub fn apply(&self, manifest: &Path) {
        let path = manifest.to_str().expect("a path in UTF-8");
        let output = self.any().up().cli(&["apply", path]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Waits until every node has the code of every component.
    pub async fn until_warm(&self, components: u64) {
        until("every node has the code", 4 * SOON, async || {
            let nodes = self.nodes_as_seen().await?;
            nodes.values().all(|node| node["warm"].as_u64() >= Some(components)).then_some(())
        })
        .await;
    }

    /// Waits until all nodes that run have applied the same and have the same state.
    pub async fn until_equal(&self) {
        let began = Instant::now();
        loop {
            let mut seen = Vec::new();
            for node in self.nodes.iter().filter_map(|node| node.process.as_ref()) {
                let status = node.get("/v1/status").await.unwrap_or_default();
                seen.push((status["applied_index"].clone(), status["state_hash"].clone()));
            }
            for (i, (index, hash)) in seen.iter().enumerate() {
                for (other_index, other_hash) in &seen[..i] {
                    assert!(index != other_index || hash == other_hash, "equal index, other hash: {seen:?}");
                }
            }
            if seen.iter().all(|one| one == &seen[0]) {
                return;
            }
            assert!(began.elapsed() < SOON, "the nodes do not come to agree: {seen:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
