//! Many jobs due in the same second on one host, every commit synced.

use std::{
    process::{Command, Stdio},
    time::Duration,
};

use support::{
    guest,
    host::{HostOptions, HostProcess, until, write_manifest},
    recorder::{Behaviour, Recorder},
};

use crate::percentile;

/// Jobs are stored before they are due; a machine of two cores stores about a thousand a second.
const STORED_AHEAD_S: i64 = 10;

pub(crate) async fn run() {
    for jobs in [1_000, 10_000] {
        burst(jobs, false, false).await;
    }
    for effect in [false, true] {
        burst(10_000, effect, true).await;
    }
}

async fn burst(jobs: usize, effect: bool, traced: bool) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let recorder = Recorder::start(Behaviour::default()).await.expect("start the recorder");
    let first = write_manifest(
        dir.path(),
        &format!(
            "namespace = \"bench\"\n[job.first]\ncomponent = \"{}\"\nschedule = \"0 0 29 2 *\"\non_unknown = \"skip\"\n\
             allow = [\"{}\"]\nlimits = {{ memory = \"4MiB\" }}\nconfig = {{ {} }}\n",
            guest("tests/guests/test-guest.wasm").display(),
            recorder.url(),
            if effect {
                format!("do = \"effect\", count = 1, url = \"{}/x\"", recorder.url())
            } else {
                "do = \"clock\"".into()
            },
        ),
    );
    let options = HostOptions {
        data: dir.path().join("data"),
        manifests: vec![first],
        log: dir.path().join("log"),
        kill_at: None,
    };
    let host = HostProcess::start(&options).await;
    let spec = until("the first job", Duration::from_secs(60), async || {
        Some(host.get("/v1/jobs/bench/first").await?["spec"].clone())
    })
    .await;
    let due = chrono::Utc::now() + chrono::TimeDelta::seconds(STORED_AHEAD_S + jobs as i64 / 400);
    store(&host, &spec, due, jobs).await;
    assert!(chrono::Utc::now() < due, "the jobs are stored too late");

    let strace = traced.then(|| trace(&host)).flatten();
    if traced && strace.is_none() {
        println!("\nsyncs per launch: not measured, since strace is not installed (apt-get install strace)");
        return;
    }
    let all = until("all launches", Duration::from_secs(300), async || {
        let jobs_now = host.get("/v1/jobs").await?;
        let lasts = jobs_now.as_array()?;
        let done = lasts.iter().filter(|job| job["last"][1].as_str() == Some("succeeded")).count();
        (done >= jobs).then(|| lasts.clone())
    })
    .await;
    if let Some((mut strace, file)) = strace {
        // SIGINT makes strace detach and write its counts.
        let pid = rustix::process::Pid::from_raw(strace.id() as i32).expect("a process");
        rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("stop strace");
        strace.wait().expect("wait for strace");
        let counts = std::fs::read_to_string(&file).expect("read strace's counts");
        let calls: u64 = counts
            .lines()
            .filter(|line| line.ends_with(" fsync") || line.ends_with(" fdatasync"))
            .filter_map(|line| line.split_whitespace().nth(3)?.parse::<u64>().ok())
            .sum();
        println!(
            "\n{jobs} jobs in one second, {}: {calls} fsync and fdatasync calls, {:.4} per launch (under strace)",
            if effect { "one effect each" } else { "no effects" },
            calls as f64 / jobs as f64
        );
        return;
    }
    report(&host, &all, jobs, due).await;
}

async fn store(host: &HostProcess, spec: &serde_json::Value, due: chrono::DateTime<chrono::Utc>, jobs: usize) {
    let mut spec = spec.clone();
    spec["schedule"] = due.format("%S %M %H %d %m * %Y").to_string().into();
    spec["overlap"] = "allow".into();
    let http = reqwest::Client::builder().no_proxy().build().expect("an HTTP client");
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

/// Counts the host's syncs from now on.
fn trace(host: &HostProcess) -> Option<(std::process::Child, std::path::PathBuf)> {
    let file = std::env::temp_dir().join(format!("tickhost-strace-{}", host.pid()));
    let strace = Command::new("strace")
        .args(["-f", "-c", "-e", "trace=fsync,fdatasync", "-p", &host.pid().to_string(), "-o"])
        .arg(&file)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    strace.ok().map(|child| (child, file))
}

async fn report(host: &HostProcess, all: &[serde_json::Value], jobs: usize, due: chrono::DateTime<chrono::Utc>) {
    let mut late_us = Vec::new();
    let mut last_end_ms = 0;
    for job in all {
        let Some(launch) = job["last"][0].as_str() else { continue };
        let Some(story) = host.launch(launch).await else { continue };
        let ended = &story["attempts"][0]["ended"];
        let Some(at) = ended["outcome"]["succeeded"]["message"].as_str().and_then(|m| m.parse::<i64>().ok()) else {
            continue;
        };
        late_us.push(at - due.timestamp() * 1_000_000);
        last_end_ms = last_end_ms.max(ended["at"].as_i64().unwrap_or_default() - due.timestamp() * 1_000);
    }
    late_us.sort_unstable();
    println!("\n{jobs} jobs in one second, no effects:");
    println!(
        "  tick to first guest instruction: p50 {} ms, p99 {} ms, last {} ms",
        percentile(&late_us, 0.5) / 1_000,
        percentile(&late_us, 0.99) / 1_000,
        late_us.last().copied().unwrap_or_default() / 1_000
    );
    println!(
        "  all {} ended and recorded after {last_end_ms} ms: {} launches per second",
        late_us.len(),
        late_us.len() as i64 * 1_000 / last_end_ms.max(1)
    );
}
