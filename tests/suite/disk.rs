//! Disks of a cluster's nodes that are full or broken.

use reqwest::Method;
use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::json;
use support::{
    cluster::{Cluster, Node, Place, SOON},
    host::{until, write_manifest},
    recorder::{Behaviour, Recorder},
    syncs::Syncs,
};

use crate::fixture::{SmallDisk, job};

async fn start(dir: &Path, executors: usize, place: impl Fn(usize) -> Place) -> (Cluster, Recorder) {
    let cluster = Cluster::start_in(dir, 3, executors, "", place).await;
    let recorder = Recorder::start(Behaviour::default()).await.unwrap();
    let manifest = job("* * * * * *", "skip", "overlap = \"allow\"", "do = \"effect\", count = 1, url = \"{api}/x\"");
    cluster.apply(&write_manifest(dir, &manifest.replace("{api}", &recorder.url())));
    cluster.until_warm(1).await;
    until_succeeded(&cluster, 2).await;
    (cluster, recorder)
}

async fn verdicts(cluster: &Cluster) -> Vec<String> {
    let any = || cluster.nodes.iter().filter_map(|node| node.process.as_ref());
    until("the ticks", SOON, async || {
        for node in any() {
            if let Some(ticks) = node.ticks("t/job").await {
                return Some(ticks.into_iter().map(|(_, verdict, _)| verdict).collect());
            }
        }
        None
    })
    .await
}

async fn until_succeeded(cluster: &Cluster, more: usize) {
    let count = async || verdicts(cluster).await.iter().filter(|verdict| *verdict == "succeeded").count();
    let before = count().await;
    until("ticks succeed", SOON, async || (count().await >= before + more).then_some(())).await;
}

/// The log is on every node that votes: one that has no room for it would hold up the others.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_on_one_of_three_nodes_holds_launches_and_loses_none() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(&dir.path().join("node-3")) else { return };
    let (cluster, _recorder) = start(dir.path(), 0, |_| Place::default()).await;
    disk.fill();
    let leader = cluster.leader().await;
    let status = async || cluster.nodes[usize::try_from(leader).unwrap() - 1].up().get("/v1/status").await;
    until("the leader says whose disk is full", SOON, async || {
        let held = status().await?["held"].as_str()?.to_owned();
        (held.contains("disk is full") && held.contains("node-3")).then_some(())
    })
    .await;
    let alarms = cluster.nodes_as_seen().await.unwrap()[&3]["alarms"].to_string();
    assert!(alarms.contains("disk is full"), "{alarms}");
    // Ticks are decided and wait.
    until("a tick waits", SOON, async || {
        verdicts(&cluster).await.iter().filter(|verdict| *verdict == "due").nth(2).map(|_| ())
    })
    .await;
    let refused = cluster.any().up().cli(&["pause", "t/job", "--note", "works all the same"]);
    assert!(refused.status.success(), "what frees nothing and needs little is taken");
    assert!(cluster.any().up().cli(&["resume", "t/job"]).status.success());
    disk.make_room();
    until("nothing is held", SOON, async || status().await?["held"].is_null().then_some(())).await;
    until_succeeded(&cluster, 4).await;
    assert!(cluster.any().up().cli(&["pause", "t/job", "--note", "done"]).status.success());
    until("every tick has its verdict", SOON, async || {
        let verdicts = verdicts(&cluster).await;
        verdicts.iter().all(|verdict| verdict == "succeeded" || verdict == "skipped(paused)").then_some(())
    })
    .await;
    cluster.until_equal().await;
}

/// The newest ticks that succeeded, and on which nodes.
async fn ran_on(cluster: &Cluster, newest: usize) -> Option<Vec<u64>> {
    let any = cluster.any().up();
    let ticks = any.ticks("t/job").await?.into_iter().rev().filter(|(_, verdict, _)| verdict == "succeeded");
    let mut nodes = Vec::new();
    for launch in ticks.filter_map(|(_, _, launch)| launch).take(newest) {
        nodes.push(any.launch(&launch).await?["attempts"].as_array()?.last()?["node"].as_u64()?);
    }
    Some(nodes)
}

/// A node that only runs things holds up nobody: the others run what it cannot.
#[tokio::test(flavor = "multi_thread")]
async fn an_executor_whose_disk_is_full_gets_no_runs() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(&dir.path().join("node-4")) else { return };
    let (cluster, _recorder) = start(dir.path(), 1, |_| Place::default()).await;
    until("the executor runs something", SOON, async || ran_on(&cluster, 9).await?.contains(&4).then_some(())).await;
    disk.fill();
    until("the leader knows that its disk is full", SOON, async || {
        cluster.nodes_as_seen().await?[&4]["alarms"].to_string().contains("disk is full").then_some(())
    })
    .await;
    until_succeeded(&cluster, 6).await;
    // The first of them may have been sent before.
    assert!(!ran_on(&cluster, 4).await.unwrap().contains(&4));
    assert!(cluster.get("/v1/status").await.unwrap()["held"].is_null());
    disk.make_room();
    until("it runs something again", SOON, async || ran_on(&cluster, 3).await?.contains(&4).then_some(())).await;
}

/// A sync that fails is not tried again: the kernel may have dropped what it was about.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_cannot_sync_ends_and_another_leads() {
    let dir = tempfile::tempdir().unwrap();
    let syncs: Vec<Syncs> = (1..=3).map(|n| Syncs::new(&dir.path().join(format!("syncs-{n}")))).collect();
    let place = |n: usize| Place { under: syncs[n - 1].under(), ..Place::default() };
    let (mut cluster, recorder) = start(dir.path(), 0, place).await;
    let leader = cluster.leader().await;
    let number = usize::try_from(leader).unwrap();
    syncs[number - 1].fail(true);
    let ended = {
        let node: &mut Node = cluster.node(leader);
        let ended = until("the process ends", SOON, async || node.process.as_mut()?.ended()).await;
        node.kill();
        ended
    };
    assert!(!ended.success(), "{ended}");
    let log = std::fs::read_to_string(&cluster.node(leader).log).unwrap();
    assert!(log.contains("must not be retried"), "{log}");
    // What the two others say of the one that is gone does not count.
    until("another leads", SOON, async || (cluster.leader().await != leader).then_some(())).await;
    until_succeeded(&cluster, 3).await;
    syncs[number - 1].fail(false);
    syncs[number - 1].slow(Duration::from_millis(300));
    cluster.node(leader).start().await;
    cluster.until_whole(3, 3).await;
    until_succeeded(&cluster, 3).await;
    syncs[number - 1].slow(Duration::ZERO);
    cluster.until_equal().await;
    let mut bodies: Vec<String> = recorder.received().into_iter().map(|request| request.body).collect();
    let all = bodies.len();
    bodies.sort();
    bodies.dedup();
    assert_eq!(bodies.len(), all, "nothing arrived twice");
    let gaps = cluster.any().up().cli(&["ticks", "t/job", "--gaps", "--format", "json"]);
    assert!(gaps.status.success(), "{}", String::from_utf8_lossy(&gaps.stderr));
    assert_eq!(cluster.nodes[0].up().get("/v1/status").await.unwrap()["alarms"], json!([]));
}

/// The bytes of the only component on a node.
fn component(node: &Node) -> Option<PathBuf> {
    let mut files = std::fs::read_dir(node.data.join("components")).unwrap().map(|file| file.unwrap().path());
    files.find(|path| path.extension().is_some_and(|extension| extension == "wasm"))
}

fn remove_code(node: &Node) {
    std::fs::remove_dir_all(node.data.join("code")).unwrap();
}

/// Neither is a fault of the job: no run of it fails for that.
#[tokio::test(flavor = "multi_thread")]
async fn a_component_that_is_damaged_or_gone_is_had_from_another_node() {
    let dir = tempfile::tempdir().unwrap();
    let (mut cluster, _recorder) = start(dir.path(), 0, |_| Place::default()).await;
    cluster.until_warm(1).await;
    let at = cluster.any().up();
    let mut spec = at.get("/v1/jobs/t/job").await.unwrap()["spec"].clone();
    // Longer than a run looks for its component.
    spec["start_deadline_s"] = json!(15);
    let stored = at.request(Method::PUT, "/v1/jobs/t/job").json(&spec).send().await.unwrap();
    assert!(stored.status().is_success(), "{stored:?}");
    // This one can run it all the same; the others could not have it from here.
    std::fs::remove_file(component(&cluster.nodes[2]).unwrap()).unwrap();
    until("the bytes are there again", SOON, async || component(&cluster.nodes[2]).map(|_| ())).await;
    cluster.nodes[1].kill();
    std::fs::write(component(&cluster.nodes[1]).unwrap(), b"something else").unwrap();
    remove_code(&cluster.nodes[1]);
    cluster.nodes[1].start().await;
    cluster.until_whole(3, 3).await;
    cluster.until_warm(1).await;
    until_succeeded(&cluster, 3).await;
    let kept = std::fs::read_dir(cluster.nodes[1].data.join("components")).unwrap();
    let mut kinds: Vec<String> =
        kept.map(|file| file.unwrap().path().extension().unwrap().display().to_string()).collect();
    kinds.sort();
    assert_eq!(kinds, ["damaged", "wasm"]);

    // Nobody has it: its ticks wait until it is stored again, or for as long as they may.
    cluster.nodes.iter_mut().for_each(Node::kill);
    for node in &cluster.nodes {
        std::fs::remove_file(component(node).unwrap()).unwrap();
        remove_code(node);
    }
    for node in &mut cluster.nodes {
        node.start().await;
    }
    cluster.until_whole(3, 3).await;
    let evidence = until("a run is given back, since its component is nowhere", SOON, async || {
        let any = cluster.any().up();
        for launch in any.ticks("t/job").await?.into_iter().filter_map(|(_, _, launch)| launch) {
            let story = any.launch(&launch).await.map(|story| story.to_string()).unwrap_or_default();
            if story.contains("cannot be had") {
                return Some(story);
            }
        }
        None
    })
    .await;
    assert!(evidence.contains("never-started"), "{evidence}");
    assert!(!verdicts(&cluster).await.iter().any(|verdict| verdict == "failed"));
    until("a tick has waited long enough", SOON, async || {
        verdicts(&cluster).await.iter().any(|verdict| verdict == "skipped(start-deadline)").then_some(())
    })
    .await;
    let stored = std::fs::read(crate::fixture::test_guest()).unwrap();
    let any = cluster.any().up();
    let answer = any.request(Method::POST, "/v1/components").body(stored).send().await.unwrap();
    assert!(answer.status().is_success(), "{answer:?}");
    until_succeeded(&cluster, 3).await;
    assert!(cluster.any().up().cli(&["pause", "t/job", "--note", "done"]).status.success());
    until("every tick has its verdict", SOON, async || {
        let verdicts = verdicts(&cluster).await;
        assert!(!verdicts.iter().any(|verdict| verdict == "failed"), "{verdicts:?}");
        verdicts.iter().all(|verdict| verdict == "succeeded" || verdict.starts_with("skipped")).then_some(())
    })
    .await;
}
