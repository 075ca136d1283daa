//! Real clusters on loopback: founded and joined by the command line, killed and frozen, judged by the recorder.

use reqwest::Method;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rustix::process::Signal;
use serde_json::{Value, json};
use support::{
    cluster::{Cluster, Node, SOON},
    host::{binary, cli, cli_under, is_open, token, until, write_manifest},
    recorder::{Behaviour, Recorder},
};
use tempfile::TempDir;

use crate::{
    clock::{set, under},
    fixture::job,
};

/// A cluster, the recorder beside it, and a folder that goes with them.
struct Fixture {
    cluster: Cluster,
    recorder: Recorder,
    dir: TempDir,
}

impl Fixture {
    async fn start(voters: usize, executors: usize) -> Self {
        Self::start_with(voters, executors, "").await
    }

    /// With more in the settings of each node. `{api}` stands for the recorder.
    async fn start_with(voters: usize, executors: usize, more: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let recorder = Recorder::start(Behaviour::default()).await.unwrap();
        let more = more.replace("{api}", &recorder.url());
        let cluster = Cluster::start(dir.path(), voters, executors, &more).await;
        Self { cluster, recorder, dir }
    }

    /// Stores a manifest and waits until every node has the code.
    async fn apply(&self, manifest: &str) {
        let manifest = write_manifest(self.dir.path(), &manifest.replace("{api}", &self.recorder.url()));
        self.cluster.apply(&manifest);
        self.cluster.until_warm(1).await;
    }

    async fn ticks(&self, job: &str) -> Vec<(String, String, Option<String>)> {
        until("the ticks", SOON, async || {
            for node in self.cluster.nodes.iter().filter_map(|node| node.process.as_ref()) {
                if let Some(ticks) = node.ticks(job).await {
                    return Some(ticks);
                }
            }
            None
        })
        .await
    }

    /// Waits until so many ticks of a job have that verdict.
    async fn until_verdicts(&self, job: &str, verdict: &str, count: usize) {
        until(&format!("{count} ticks of {job} {verdict}"), 2 * SOON, async || {
            let ticks = self.ticks(job).await;
            (ticks.iter().filter(|(_, found, _)| found == verdict).count() >= count).then_some(())
        })
        .await;
    }

    /// A launch as any node tells it.
    async fn launch(&self, id: &str) -> Option<Value> {
        for node in self.cluster.nodes.iter().filter_map(|node| node.process.as_ref()) {
            if let Some(story) = node.launch(id).await {
                return Some(story);
            }
        }
        None
    }

    /// How often each job's tick arrived, by path and launch.
    fn arrivals(&self) -> BTreeMap<(String, String), usize> {
        let mut arrivals = BTreeMap::new();
        for request in self.recorder.received() {
            *arrivals.entry((request.path, request.body)).or_default() += 1;
        }
        arrivals
    }

    /// Pauses a job, waits until nothing of it is open, and returns every tick with its verdict.
    async fn finish(&self, job: &str) -> BTreeMap<String, String> {
        let paused = self.cluster.any().up().cli(&["pause", job, "--note", "the test is over"]);
        assert!(paused.status.success(), "{}", String::from_utf8_lossy(&paused.stderr));
        until("every launch has its verdict", SOON, async || {
            let ticks = self.ticks(job).await;
            ticks.iter().all(|(_, verdict, _)| !is_open(verdict)).then_some(())
        })
        .await;
        let gaps = self.cluster.any().up().cli(&["ticks", job, "--gaps"]);
        assert!(gaps.status.success(), "{}", String::from_utf8_lossy(&gaps.stderr));
        for node in self.cluster.nodes.iter().filter_map(|node| node.process.as_ref()) {
            assert_eq!(node.get("/v1/status").await.unwrap()["alarms"], json!([]));
        }
        self.ticks(job).await.into_iter().map(|(tick, verdict, _)| (tick, verdict)).collect()
    }
}

fn every_second(on_unknown: &str) -> String {
    job("* * * * * *", on_unknown, "overlap = \"allow\"", "do = \"effect\", count = 1, url = \"{api}/x\"")
}

fn seconds(ticks: &BTreeMap<String, String>) -> BTreeSet<i64> {
    ticks.keys().map(|tick| chrono::DateTime::parse_from_rfc3339(tick).unwrap().timestamp()).collect()
}

/// Every second from the first to the last: read from the clock, not from the host's schedule.
fn missing(ticks: &BTreeMap<String, String>) -> Vec<i64> {
    let seen = seconds(ticks);
    let (first, last) = (*seen.first().unwrap(), *seen.last().unwrap());
    // Paused ticks have no launch; what counts lies before.
    (first..=last).filter(|second| !seen.contains(second)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn any_node_answers_and_says_how() {
    let fixture = Fixture::start(3, 1).await;
    let cluster = &fixture.cluster;
    let leader = cluster.leader().await;
    let nodes = cluster.nodes_as_seen().await.unwrap();
    let roles: BTreeMap<u64, &str> = nodes.iter().map(|(n, node)| (*n, node["role"].as_str().unwrap())).collect();
    assert_eq!(roles.values().filter(|role| **role == "voter").count(), 2, "{roles:?}");
    assert_eq!(roles[&leader], "leader");
    assert_eq!(roles[&4], "learner");
    for node in nodes.values() {
        assert!(node["clock_ahead_ms"].as_i64().unwrap().abs() < 500, "one machine, one clock: {node}");
        assert_eq!(node["alarms"], json!([]), "{node}");
    }
    fixture.apply(&every_second("skip")).await;
    let other = cluster.nodes.iter().find(|node| node.number != leader).unwrap();
    let served = |response: &reqwest::Response| response.headers()["tickhost-served"].to_str().unwrap().to_owned();
    let read = other.up().request(Method::GET, "/v1/jobs/t/job").send().await.unwrap();
    assert_eq!(served(&read), format!("node {}, lease read", other.number));
    let job: Value = read.json().await.unwrap();
    let same = other.up().request(Method::PUT, "/v1/jobs/t/job").json(&job["spec"]).send().await.unwrap();
    assert_eq!(served(&same), format!("node {leader}, leader"));
    assert_eq!(same.json::<Value>().await.unwrap()["outcome"], "unchanged");
    let here = other.up().request(Method::GET, "/v1/status").send().await.unwrap();
    assert_eq!(served(&here), format!("node {}", other.number));

    // What a run wrote is found from every node, wherever it ran; and runs go to others than the leader.
    let before = fixture.ticks("t/job").await.len();
    fixture.until_verdicts("t/job", "succeeded", before + 3).await;
    let ticks = fixture.ticks("t/job").await;
    let (_, _, launch) = ticks.into_iter().rev().find(|(_, verdict, _)| verdict == "succeeded").unwrap();
    let launch = launch.unwrap();
    let story = fixture.launch(&launch).await.unwrap();
    assert_ne!(story["attempts"][0]["node"], json!(leader), "{story}");
    for node in &cluster.nodes {
        let logs = node.up().cli(&["logs", &launch]);
        assert!(logs.status.success(), "{}", String::from_utf8_lossy(&logs.stderr));
    }
    let leads = cluster.nodes.iter().find(|node| node.number == leader).unwrap();
    let response = leads.up().request(Method::GET, "/metrics").send().await.unwrap();
    assert!(response.headers()["content-type"].to_str().unwrap().starts_with("application/openmetrics-text"));
    let metrics = response.text().await.unwrap();
    let number = |line: &str| -> f64 {
        let found = metrics.lines().find_map(|each| each.strip_prefix(line)?.trim().parse().ok());
        found.unwrap_or_else(|| panic!("no `{line}` in {metrics}"))
    };
    assert!(number("tickhost_launches_closed_total{verdict=\"succeeded\"}") >= 3.0);
    assert!(number(&format!("tickhost_node_clock_ahead_seconds{{node=\"{}\"}}", other.number)).abs() < 0.5);
    assert_eq!((number("tickhost_leads"), number("tickhost_held")), (1.0, 0.0));
    assert!(number("tickhost_launch_lateness_seconds_count") >= 3.0);

    let listed = other.up().cli(&["nodes"]);
    let text = String::from_utf8_lossy(&listed.stdout);
    assert!(text.contains("learner") && text.contains("MiB free"), "{text}");
    fixture.finish("t/job").await;
    cluster.until_equal().await;
}

/// The leader is killed three times. Every tick is launched, none is doubled.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_leader_loses_no_tick_and_doubles_none() {
    let mut fixture = Fixture::start(3, 0).await;
    fixture.apply(&every_second("skip")).await;
    for round in 1..=3 {
        fixture.until_verdicts("t/job", "succeeded", 4 * round).await;
        let leader = fixture.cluster.leader().await;
        fixture.cluster.node(leader).kill();
        fixture.until_verdicts("t/job", "succeeded", 4 * round + 3).await;
        fixture.cluster.node(leader).start().await;
        fixture.cluster.until_whole(3, 3).await;
    }
    let ticks = fixture.finish("t/job").await;
    assert_eq!(missing(&ticks), Vec::<i64>::new());
    let odd: Vec<_> =
        ticks.iter().filter(|(_, verdict)| !["succeeded", "skipped(paused)"].contains(&verdict.as_str())).collect();
    assert!(odd.is_empty(), "runs go to others than the leader, so its death takes none along: {odd:?}");
    assert!(fixture.arrivals().values().all(|count| *count == 1), "{:?}", fixture.arrivals());
    fixture.cluster.until_equal().await;
}

/// Every node is restarted in turn, as an upgrade does: ticks go on, and no run stays open for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_restart_loses_no_tick() {
    let mut fixture = Fixture::start(3, 0).await;
    fixture.apply(&every_second("skip")).await;
    fixture.until_verdicts("t/job", "succeeded", 2).await;
    for number in 1..=3 {
        let node = fixture.cluster.node(number);
        node.up().terminate();
        until("it stops in good order", SOON, async || node.process.as_mut()?.has_stopped().then_some(())).await;
        node.start().await;
        fixture.cluster.until_whole(3, 3).await;
    }
    let ticks = fixture.finish("t/job").await;
    assert_eq!(missing(&ticks), Vec::<i64>::new());
    let odd: Vec<_> =
        ticks.iter().filter(|(_, verdict)| !["succeeded", "skipped(paused)"].contains(&verdict.as_str())).collect();
    assert!(odd.is_empty(), "{odd:?}");
    assert!(fixture.arrivals().values().all(|count| *count == 1));
}

/// An executor that is gone for good: its run is lost within its lease, and under `repeat` done again elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn a_vanished_executor_closes_its_run_within_the_lease() {
    let mut fixture = Fixture::start(3, 0).await;
    for (on_unknown, verdict) in [("skip", "lost"), ("repeat", "running")] {
        let more = "retry = { attempts = 2, backoff = \"10ms\", backoff_max = \"10ms\" }";
        let more = if on_unknown == "skip" { "" } else { more };
        fixture.apply(&job("0 0 29 2 *", on_unknown, more, "do = \"sleepy\", ms = \"50000\"")).await;
        let triggered = fixture.cluster.any().up().cli(&["trigger", "t/job", "--format", "json"]);
        assert!(triggered.status.success(), "{}", String::from_utf8_lossy(&triggered.stderr));
        let launch: Value = serde_json::from_slice(&triggered.stdout).unwrap();
        let launch = launch["launch"].as_str().unwrap().to_owned();
        let node = until("it runs", SOON, async || {
            let story = fixture.launch(&launch).await?;
            (story["verdict"] == "running").then(|| story["attempts"][0]["node"].as_u64())?
        })
        .await;
        fixture.cluster.node(node).kill();
        let killed = Instant::now();
        let story = until("the run is closed", SOON, async || {
            let story = fixture.launch(&launch).await?;
            let is_over = !story["attempts"][0]["ended"].is_null() && story["verdict"] == verdict;
            is_over.then_some(story)
        })
        .await;
        assert!(killed.elapsed() > Duration::from_secs(10), "not before the session has certainly lapsed");
        assert!(killed.elapsed() < Duration::from_secs(25), "within its lease: {:?}", killed.elapsed());
        let evidence = story["attempts"][0]["ended"]["outcome"]["lost"]["evidence"].as_str().unwrap();
        assert!(evidence.contains(&format!("node {node}")), "{evidence}");
        if on_unknown == "repeat" {
            assert_ne!(story["attempts"][1]["node"], json!(node));
        }
        fixture.cluster.node(node).start().await;
        fixture.cluster.until_whole(3, 3).await;
        let deleted = fixture.cluster.any().up().cli(&["delete", "t/job"]);
        assert!(deleted.status.success());
    }
}

/// A leader that is frozen past its lease and thawed: it thinks that it leads, and nobody obeys it.
#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_leader_does_nothing_when_it_thaws() {
    let mut fixture = Fixture::start(3, 0).await;
    fixture.apply(&every_second("skip")).await;
    for _ in 0..3 {
        let before = fixture.recorder.received().len();
        let leader = fixture.cluster.leader().await;
        fixture.cluster.node(leader).up().signal(Signal::STOP);
        let others: Vec<&Node> = fixture.cluster.nodes.iter().filter(|node| node.number != leader).collect();
        until("another leads", SOON, async || {
            let status = others[0].up().get("/v1/status").await?;
            status["leader"].as_u64().filter(|now| *now != leader)
        })
        .await;
        until("launches go on", SOON, async || (fixture.recorder.received().len() >= before + 4).then_some(())).await;
        fixture.cluster.node(leader).up().signal(Signal::CONT);
        fixture.cluster.until_whole(3, 3).await;
    }
    let ticks = fixture.finish("t/job").await;
    assert_eq!(missing(&ticks), Vec::<i64>::new());
    assert!(fixture.arrivals().values().all(|count| *count == 1), "{:?}", fixture.arrivals());
    fixture.cluster.until_equal().await;
}

/// The leader's clock is set an hour ahead, and then an hour back: ticks go on at their time.
#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_is_set_on_one_node_neither_bursts_nor_goes_silent() {
    let mut fixture = Fixture::start(3, 0).await;
    fixture.apply(&every_second("skip")).await;
    let clock = fixture.dir.path().join("clock");
    set(&clock, "+0");
    let node = fixture.cluster.node(2);
    node.up().terminate();
    until("it stops in good order", SOON, async || node.process.as_mut()?.has_stopped().then_some(())).await;
    node.spawn(None, &under(&clock));
    fixture.cluster.until_whole(3, 3).await;
    until("node 2 leads", SOON, async || {
        fixture.cluster.any().up().cli(&["cluster", "transfer", "2"]);
        (fixture.cluster.leader().await == 2).then_some(())
    })
    .await;
    for ahead in ["+3600", "+0", "-3600", "+0"] {
        set(&clock, ahead);
        let before = fixture.recorder.received().len();
        until(&format!("launches with {ahead}"), SOON, async || {
            (fixture.recorder.received().len() >= before + 5).then_some(())
        })
        .await;
        if ahead == "+3600" {
            let nodes = fixture.cluster.nodes_as_seen().await.unwrap();
            let alarms: Vec<&Value> = nodes.values().flat_map(|node| node["alarms"].as_array().unwrap()).collect();
            assert!(alarms.iter().any(|alarm| alarm.as_str().unwrap().contains("its clock is")), "{alarms:?}");
            until("the leader raises it", SOON, async || {
                let status = fixture.cluster.node(2).up().get("/v1/status").await?;
                status["alarms"].to_string().contains("node 1: its clock is behind the leader's").then_some(())
            })
            .await;
        }
    }
    assert_ne!(fixture.cluster.leader().await, 2, "one whose clock was behind has handed over");
    for request in fixture.recorder.received() {
        let tick = request.body.split('@').nth(1).unwrap().split('"').next().unwrap();
        let tick = chrono::DateTime::parse_from_rfc3339(tick).unwrap().timestamp_millis();
        assert!(request.at_ms >= tick - 600, "{request:?} is early");
        assert!(request.at_ms <= tick + 10_000, "{request:?} is late");
    }
    let ticks = fixture.finish("t/job").await;
    assert_eq!(missing(&ticks), Vec::<i64>::new());
    assert!(fixture.arrivals().values().all(|count| *count == 1), "{:?}", fixture.arrivals());
}

/// Two of three nodes are gone: nothing is stored, nothing launched, and the error says why. Whoever waits for the heartbeat
/// of the cluster hears nothing, until it is well again.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_majority_nothing_is_accepted() {
    let mut fixture = Fixture::start_with(3, 0, "[heartbeat]\nto = \"{api}/alive\"\nevery_s = 1").await;
    let recorder = fixture.recorder.clone();
    let beats = || recorder.received().iter().filter(|request| request.path == "/alive").count();
    let beats_again = async || {
        let before = beats();
        until("a heartbeat", SOON, async || (beats() > before).then_some(())).await;
    };
    beats_again().await;
    let leader = fixture.cluster.leader().await;
    let rest: Vec<u64> = (1..=3).filter(|node| *node != leader).collect();
    for node in &rest {
        fixture.cluster.node(*node).kill();
    }
    let log = fixture.cluster.node(leader).log.clone();
    let is_blind =
        async || std::fs::read_to_string(&log).unwrap().contains("cannot see whether ticks are decided").then_some(());
    until("the node that is left sees nothing", SOON, is_blind).await;
    let (heard, since) = (beats(), Instant::now());
    let manifest = write_manifest(fixture.dir.path(), &every_second("skip").replace("{api}", &fixture.recorder.url()));
    let refused = fixture.cluster.node(leader).cli(&["apply", manifest.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(3), "{}", String::from_utf8_lossy(&refused.stderr));
    until("the time of three heartbeats", SOON, async || (since.elapsed() > Duration::from_secs(3)).then_some(()))
        .await;
    assert_eq!(beats(), heard, "a cluster that does nothing says that all is well");
    for node in &rest {
        fixture.cluster.node(*node).start().await;
    }
    fixture.cluster.until_whole(3, 3).await;
    fixture.cluster.apply(&manifest);
    beats_again().await;
}

/// What must not take part again: a damaged log, a wiped disk under its old number, and a copy of a directory.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_is_not_what_it_was_is_refused() {
    let mut fixture = Fixture::start(3, 0).await;
    let follower = (1..=3).find(|node| futures_block(fixture.cluster.leader()) != *node).unwrap();
    let node = fixture.cluster.node(follower);
    node.up().terminate();
    until("it stops", SOON, async || node.process.as_mut()?.has_stopped().then_some(())).await;
    let copy = node.data.with_extension("copy");
    copy_all(&node.data, &copy);
    // It goes on for a while: the copy is old now.
    node.start().await;
    fixture.cluster.until_whole(3, 3).await;
    let node = fixture.cluster.node(follower);
    node.kill();
    let wal = newest_wal(&node.data.join("db"));
    let whole = std::fs::read(&wal).unwrap();
    let mut damaged = whole.clone();
    // Not the last record: that may be one that nobody waited for.
    damaged[whole.len() / 2] ^= 0x55;
    std::fs::write(&wal, damaged).unwrap();
    refused(node, "the disk holds something else than was written").await;
    std::fs::write(&wal, whole).unwrap();
    node.start().await;
    fixture.cluster.until_whole(3, 3).await;
    let node = fixture.cluster.node(follower);
    node.kill();
    std::fs::remove_dir_all(&node.data).unwrap();
    std::fs::rename(&copy, &node.data).unwrap();
    refused(node, "is a copy, or an older state").await;
    std::fs::remove_dir_all(node.data.join("db")).unwrap();
    std::fs::remove_file(node.data.join("floor")).unwrap();
    refused(node, "its disk was wiped").await;
    // Taken out, its number is gone for good; the disk may come back as a new node.
    let removed = fixture.cluster.any().up().cli(&["cluster", "remove", &follower.to_string()]);
    assert!(removed.status.success(), "{}", String::from_utf8_lossy(&removed.stderr));
    assert!(!fixture.cluster.nodes_as_seen().await.unwrap().contains_key(&follower));
    fixture.cluster.join(fixture.dir.path(), "new", false, "").await;
    assert_eq!(fixture.cluster.nodes.last().unwrap().number, 4);
    fixture.cluster.until_whole(3, 3).await;
}

/// Nobody sends a node that was removed anything any more: it asks, ends, and says why, also where it was off then.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_was_removed_says_so_and_ends() {
    let mut fixture = Fixture::start(3, 1).await;
    let leader = fixture.cluster.leader().await;
    let voter = (1..=3).find(|node| *node != leader).unwrap();
    let (at_leader, token) = (fixture.cluster.node(leader).url(), token(&fixture.cluster.node(leader).data));
    let remove = |number: u64| {
        let removed =
            cli_under(&[], &binary(), &at_leader, token.as_deref(), &["cluster", "remove", &number.to_string()]);
        assert!(removed.status.success(), "{}", String::from_utf8_lossy(&removed.stderr));
    };
    remove(voter);
    ends(fixture.cluster.node(voter), "was removed from the cluster").await;
    refused(fixture.cluster.node(voter), "was removed from the cluster").await;
    fixture.cluster.node(4).kill();
    remove(4);
    refused(fixture.cluster.node(4), "was removed from the cluster").await;
}

/// A node without a log has to be told that it is new, by one whose own state is up to date: it may have been wiped since.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_lags_vouches_for_nobody() {
    let mut fixture = Fixture::start(3, 0).await;
    let leader = fixture.cluster.leader().await;
    let lagging = (1..=3).find(|node| leader != *node).unwrap();
    let mut node = Node::prepare(fixture.dir.path(), "late", "");
    fixture.cluster.admit(&mut node, true);
    fixture.cluster.until_equal().await;
    // From here on it knows the node as one that has never begun.
    fixture.cluster.node(lagging).kill();
    node.start().await;
    let has_session = async || node.up().get("/v1/status").await.filter(|status| !status["session"].is_null());
    until("it has a session", SOON, has_session).await;
    node.kill();
    for number in 1..=3 {
        fixture.cluster.node(number).kill();
    }
    fixture.cluster.node(lagging).start().await;
    std::fs::remove_dir_all(node.data.join("db")).unwrap();
    std::fs::remove_file(node.data.join("floor")).unwrap();
    node.spawn(None, &[]);
    until("it waits", SOON, async || {
        let log = std::fs::read_to_string(&node.log).unwrap();
        log.contains("waits for one that knows whether it is new").then_some(())
    })
    .await;
    for number in (1..=3).filter(|node| *node != lagging) {
        fixture.cluster.node(number).start().await;
    }
    ends(&mut node, "its disk was wiped").await;
}

async fn refused(node: &mut Node, why: &str) {
    node.spawn(None, &[]);
    ends(node, why).await;
}

/// The node gives up by itself.
async fn ends(node: &mut Node, why: &str) {
    let began = Instant::now();
    let status = loop {
        if let Some(status) = node.process.as_mut().unwrap().ended() {
            break status;
        }
        let log = std::fs::read_to_string(&node.log).unwrap();
        assert!(began.elapsed() < SOON / 2, "the node does not give up, though {why}: {log}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert!(!status.success());
    let log = std::fs::read_to_string(&node.log).unwrap();
    assert!(log.lines().rev().take(30).any(|line| line.contains(why)), "{why}: {log}");
    node.process = None;
}

fn newest_wal(db: &Path) -> PathBuf {
    let files = std::fs::read_dir(db).unwrap().map(|file| file.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|extension| extension == "log")).max().unwrap()
}

fn futures_block<T>(future: impl Future<Output = T>) -> T {
    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(future))
}

fn copy_all(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for file in std::fs::read_dir(from).unwrap().flatten() {
        let target = to.join(file.file_name());
        if file.path().is_dir() {
            copy_all(&file.path(), &target);
        } else {
            std::fs::copy(file.path(), target).unwrap();
        }
    }
}

/// A certificate is exchanged while the cluster runs; leadership moves on command; a drained node gets no runs.
#[tokio::test(flavor = "multi_thread")]
async fn an_operator_moves_things_while_they_run() {
    let fixture = Fixture::start(3, 1).await;
    fixture.apply(&every_second("skip")).await;
    let any = fixture.cluster.any();
    let run = |arguments: &[&str]| {
        let output = any.cli(&[arguments, &["--format", "json"]].concat());
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    for node in &fixture.cluster.nodes {
        let certificate = || std::fs::read(node.data.join("pki/node.pem")).unwrap();
        let before = certificate();
        let output = node.up().cli(&["cluster", "renew"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_ne!(certificate(), before);
        // The authority's key is with those that vote, and with nobody else.
        assert_eq!(node.data.join("pki/authority.key").exists(), node.number != 4);
    }
    run(&["cluster", "drain", "4"]);
    let to = if fixture.cluster.leader().await == 2 { 3 } else { 2 };
    assert_eq!(run(&["cluster", "transfer", &to.to_string()]), json!({ "leader": to }));
    assert_eq!(fixture.cluster.leader().await, to);
    fixture.until_verdicts("t/job", "succeeded", 5).await;
    let since = chrono::Utc::now().to_rfc3339_opts(chrono::SecondsFormat::Secs, true);
    fixture.until_verdicts("t/job", "succeeded", 8).await;
    for (tick, _, launch) in fixture.ticks("t/job").await {
        let Some(launch) = launch.filter(|_| tick > since) else { continue };
        let story = fixture.launch(&launch).await.unwrap();
        assert!(story["attempts"].as_array().unwrap().iter().all(|attempt| attempt["node"] != 4), "{story}");
    }
    let ticks = fixture.finish("t/job").await;
    assert_eq!(missing(&ticks), Vec::<i64>::new());
}

/// The settings and the directory have to speak of the same thing.
#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_fit_together_is_said_before_anything_is_touched() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::prepare(dir.path(), "node", "");
    let refused = |arguments: &[&str], why: &str| {
        let output = cli("", arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(why), "{arguments:?}: {said}");
    };
    refused(&["serve", "--config", node.config()], "belongs to no cluster yet");
    refused(&["cluster", "join", "--config", node.config(), "--peer", "127.0.0.1:1", "--token", "x"], "no token");
    let none = format!("tickhost-join-1-{}", "0".repeat(128));
    refused(&["cluster", "join", "--config", node.config(), "--peer", "127.0.0.1:1", "--token", &none], "connect to");
    let founded = cli("", &["cluster", "init", "--config", node.config()]);
    assert!(founded.status.success(), "{}", String::from_utf8_lossy(&founded.stderr));
    refused(&["cluster", "init", "--config", node.config()], "holds a host's data already");
    let alone = dir.path().join("alone.toml");
    std::fs::write(&alone, format!("data = \"{}\"\n", node.data.display())).unwrap();
    let alone = alone.to_str().unwrap();
    refused(&["serve", "--config", alone], "no `[peer]`");
    refused(&["cluster", "init", "--config", alone], "no `[peer]`");
}

/// Two runs declare 120 MiB of the 64 that there are. The second begins once the first has let go of what it really uses,
/// and a run that needs more than there is left is told whose limit it met.
#[tokio::test]
async fn a_node_that_lets_runs_declare_more_than_it_has_watches_what_they_use() {
    let f = Fixture::start_with(1, 0, "memory_max_mib = 64\nmemory_overcommit = 4.0\nruns_max = 10").await;
    let limits = "overlap = \"allow\"\nlimits = { memory = \"60MiB\" }";
    let holding = job("0 0 29 2 *", "skip", limits, "do = \"hold\", bytes = 59000000, ms = 3000");
    let small = holding.replace("[job.job]", "[job.small]").replace("59000000", "1000").replace("3000", "1");
    let jobs = format!("{holding}{}", small.split_once('\n').unwrap().1);
    f.apply(&jobs).await;
    let trigger = |job: &str| {
        let output = f.cluster.any().up().cli(&["trigger", job, "--format", "json"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let launch: Value = serde_json::from_slice(&output.stdout).unwrap();
        launch["launch"].as_str().unwrap().to_owned()
    };
    let closed = async |launch: &str| {
        until(launch, SOON, async || {
            f.launch(launch).await.filter(|story| !is_open(story["verdict"].as_str().unwrap()))
        })
        .await
    };
    let first = trigger("t/job");
    // As soon as the node says that it is tight, it is the guard that a launch waits for.
    until("the first run holds its memory", SOON, async || {
        let text = f.cluster.any().up().request(Method::GET, "/metrics").send().await.ok()?;
        let text = text.text().await.ok()?;
        let used = text.lines().find_map(|line| line.strip_prefix("tickhost_guest_memory_bytes "))?;
        (used.parse::<f64>().ok()? > 58e6).then_some(())
    })
    .await;
    let second = trigger("t/small");
    let (first, second) = (closed(&first).await, closed(&second).await);
    assert_eq!((&first["verdict"], &second["verdict"]), (&json!("succeeded"), &json!("succeeded")), "{second}");
    let began = second["attempts"].as_array().unwrap().last().unwrap();
    let at = |value: &Value| support::host::millis(value).unwrap();
    assert!(at(&began["started_at"]) >= at(&first["attempts"][0]["ended"]["at"]), "{second}");
}
