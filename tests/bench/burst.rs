//! Many jobs due in the same second on one host, every commit synced.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use support::{
    cluster::Cluster,
    guest,
    host::{HostOptions, HostProcess, millis, until, write_manifest},
    recorder::{Behaviour, Recorder},
    syncs::Syncs,
};

use crate::percentile;

/// Jobs are stored before they are due; a machine of two cores stores about a thousand a second.
const STORED_AHEAD_S: i64 = 10;

pub(crate) async fn run() {
    for (jobs, effect) in [(1_000, false), (10_000, false), (10_000, true)] {
        burst(jobs, effect).await;
    }
}

/// The same on three nodes of this machine, each commit synced on a majority.
pub(crate) async fn run_on_three(sizes: &[usize]) {
    for jobs in sizes {
        burst_on_three(*jobs).await;
    }
}

async fn burst_on_three(jobs: usize) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut cluster = Cluster::start(dir.path(), 3, 0, "").await;
    cluster.apply(&first_job(dir.path(), "http://127.0.0.1:1", false));
    cluster.until_warm(1).await;
    let spec = cluster.get("/v1/jobs/bench/first").await.expect("the first job")["spec"].clone();
    let due = due(jobs);
    let leader = cluster.leader().await;
    store(cluster.node(leader).up(), &spec, due, jobs).await;
    assert!(chrono::Utc::now() < due, "the jobs are stored too late");
    let before = syncs(&cluster).await;
    let leader = cluster.leader().await;
    until_done(cluster.node(leader).up(), jobs).await;
    let syncs = syncs(&cluster).await - before;
    let host = cluster.node(leader).up();
    let all = host.get("/v1/jobs").await.expect("the jobs");
    println!("\nthree nodes:");
    report(host, all.as_array().expect("a list"), jobs, false, due, syncs).await;
}

/// Syncs of the write-ahead logs of all nodes, as they count them.
async fn syncs(cluster: &Cluster) -> u64 {
    let mut sum = 0;
    for node in &cluster.nodes {
        sum += node.up().get("/v1/status").await.expect("its status")["syncs"].as_u64().expect("a number");
    }
    sum
}

/// A job that does not come round meanwhile, whose definition the others get.
fn first_job(dir: &Path, url: &str, effect: bool) -> PathBuf {
    let config =
        if effect { format!("do = \"effect\", count = 1, url = \"{url}/x\"") } else { "do = \"clock\"".into() };
    let text = format!(
        "namespace = \"bench\"\n[job.first]\ncomponent = \"{}\"\nschedule = \"0 0 29 2 *\"\non_unknown = \"skip\"\n\
         allow = [\"{url}\"]\nlimits = {{ memory = \"4MiB\" }}\nconfig = {{ {config} }}\n",
        guest("tests/guests/test-guest.wasm").display(),
    );
    write_manifest(dir, &text)
}

/// Late enough for all of them to be stored before.
fn due(jobs: usize) -> chrono::DateTime<chrono::Utc> {
    chrono::Utc::now() + chrono::TimeDelta::seconds(STORED_AHEAD_S + jobs as i64 / 400)
}

/// A small question, so that the asking does not weigh on what is measured.
async fn until_done(host: &HostProcess, jobs: usize) {
    until("all launches", Duration::from_secs(300), async || {
        let status = host.get("/v1/status").await?;
        let launches = status["rows"].as_array()?.iter().find(|row| row[0] == "launches")?[1].as_u64()?;
        (launches >= jobs as u64 && status["open"] == 0).then_some(())
    })
    .await;
}

async fn burst(jobs: usize, effect: bool) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let recorder = Recorder::start(Behaviour::default()).await.expect("start the recorder");
    let first = first_job(dir.path(), &recorder.url(), effect);
    let counter = Syncs::new(dir.path());
    let options = HostOptions {
        data: dir.path().join("data"),
        manifests: vec![first],
        log: dir.path().join("log"),
        kill_at: None,
        under: counter.under(),
        ..HostOptions::default()
    };
    let host = HostProcess::start(&options).await;
    let spec = until("the first job", Duration::from_secs(60), async || {
        Some(host.get("/v1/jobs/bench/first").await?["spec"].clone())
    })
    .await;
    let due = due(jobs);
    store(&host, &spec, due, jobs).await;
    assert!(chrono::Utc::now() < due, "the jobs are stored too late");

    let syncs_before = counter.count();
    until_done(&host, jobs).await;
    let syncs = counter.count() - syncs_before;
    let all = host.get("/v1/jobs").await.expect("the jobs");
    let all = all.as_array().expect("a list");
    let done = all.iter().filter(|job| job["last"][1].as_str() == Some("succeeded")).count();
    assert_eq!(done, jobs, "not every launch succeeded");
    report(&host, all, jobs, effect, due, syncs).await;
}

async fn store(host: &HostProcess, spec: &serde_json::Value, due: chrono::DateTime<chrono::Utc>, jobs: usize) {
    let mut spec = spec.clone();
    spec["timing"]["schedule"][0] = due.format("%S %M %H %d %m * %Y").to_string().into();
    spec["overlap"] = "allow".into();
    let http = host.client();
    let mut waiting = tokio::task::JoinSet::new();
    for n in 0..jobs {
        if waiting.len() >= 256 {
            waiting.join_next().await;
        }
        let request = http.put(format!("{}/v1/jobs/bench/job-{n}", host.url())).json(&spec);
        waiting.spawn(async move {
            let stored = request.send().await.expect("store a job");
            assert!(stored.status().is_success(), "{:?}", stored.text().await);
        });
    }
    while waiting.join_next().await.is_some() {}
}

async fn report(
    host: &HostProcess,
    all: &[serde_json::Value],
    jobs: usize,
    effect: bool,
    due: chrono::DateTime<chrono::Utc>,
    syncs: u64,
) {
    let mut late_us = Vec::new();
    // What the ledger stamped on the way of each launch.
    let mut stages =
        [("decided", Vec::new()), ("intended", Vec::new()), ("start committed", Vec::new()), ("ended", Vec::new())];
    for job in all {
        let Some(launch) = job["last"][0].as_str() else { continue };
        let Some(story) = host.launch(launch).await else { continue };
        let ended = &story["attempts"][0]["ended"];
        // The guest with an effect says what it was answered, the other one what time it is.
        if !effect
            && let Some(at) = ended["outcome"]["succeeded"]["message"].as_str().and_then(|m| m.parse::<i64>().ok())
        {
            late_us.push(at - due.timestamp() * 1_000_000);
        }
        let attempt = &story["attempts"][0];
        let stamps = [&story["decided_at"], &attempt["intended_at"], &attempt["started_at"], &ended["at"]];
        for ((_, late_ms), stamp) in stages.iter_mut().zip(stamps) {
            late_ms.extend(millis(stamp).map(|at| at - due.timestamp() * 1_000));
        }
    }
    late_us.sort_unstable();
    println!("\n{jobs} jobs in one second, {}:", if effect { "one effect each" } else { "no effects" });
    println!("  {syncs} syncs, {:.4} per launch", syncs as f64 / jobs as f64);
    if !late_us.is_empty() {
        println!(
            "  tick to first guest instruction: p50 {} ms, p99 {} ms, last {} ms",
            percentile(&late_us, 0.5) / 1_000,
            percentile(&late_us, 0.99) / 1_000,
            late_us.last().copied().unwrap_or_default() / 1_000
        );
    }
    for (stage, late_ms) in &mut stages {
        late_ms.sort_unstable();
        println!("  tick to {stage}: p50 {} ms, last {} ms", percentile(late_ms, 0.5), percentile(late_ms, 1.0));
    }
    let [.., (_, ended_ms)] = &stages;
    let last_end_ms = percentile(ended_ms, 1.0);
    println!(
        "  all {jobs} ended and recorded after {last_end_ms} ms: {} launches per second",
        jobs as i64 * 1_000 / last_end_ms.max(1)
    );
}
