//! Disks of a cluster's nodes that are full or broken.

use std::time::Duration;

use serde_json::json;
use support::{
    cluster::{Cluster, Node, Place, SOON},
    host::{until, write_manifest},
    recorder::{Behaviour, Recorder},
    syncs::Syncs,
};

use crate::fixture::{SmallDisk, job};

async fn start(dir: &std::path::Path, place: impl Fn(usize) -> Place) -> (Cluster, Recorder) {
    let cluster = Cluster::start_in(dir, 3, 0, "", place).await;
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
    let (cluster, _recorder) = start(dir.path(), |_| Place::default()).await;
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

/// A sync that fails is not tried again: the kernel may have dropped what it was about.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_cannot_sync_ends_and_another_leads() {
    let dir = tempfile::tempdir().unwrap();
    let syncs: Vec<Syncs> = (1..=3).map(|n| Syncs::new(&dir.path().join(format!("syncs-{n}")))).collect();
    let place = |n: usize| Place { under: syncs[n - 1].under(), ..Place::default() };
    let (mut cluster, recorder) = start(dir.path(), place).await;
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
