//! The demo: the example jobs on one real host, which is killed in the middle of a charge run.
//!
//! The statement at the end is read from the recorder, not from the host.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

mod live;

use live::Live;
use support::{
    guest,
    host::{HostOptions, HostProcess, is_open, until, write_manifest},
    recorder::{Behaviour, Received, Recorder, data_files},
};

const CUSTOMERS: usize = 8;
/// One charge takes this long, so a charge run has a middle.
const CHARGE_DELAY: Duration = Duration::from_millis(300);
/// Three jobs in three languages are compiled first: JavaScript and Python take ten seconds each and more.
const COMPILED_WITHIN: Duration = Duration::from_secs(300);
const STEP_WITHIN: Duration = Duration::from_secs(60);

#[tokio::main]
async fn main() -> ExitCode {
    let dir = tempfile::tempdir().expect("a temporary folder");
    if demo(dir.path()).await { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn say(text: &str) {
    println!("\n== {text}");
}

async fn demo(dir: &Path) -> bool {
    let recorder = Recorder::start(Behaviour {
        charge_delay: CHARGE_DELAY,
        customers: CUSTOMERS,
        files: data_files(),
        ..Behaviour::default()
    })
    .await
    .expect("start the recorder");
    say(&format!("a local API records what it receives: {}", recorder.url()));

    let options = HostOptions {
        data: dir.join("data"),
        manifests: vec![manifest(dir, &recorder.url())],
        log: dir.join("host.log"),
        kill_at: None,
        under: Vec::new(),
        ..HostOptions::default()
    };
    let mut host = HostProcess::start(&options).await;
    say("a host is up; the jobs are stored and compiled (JavaScript and Python take a while, once)");
    wait_for_jobs(&host, &options.log).await;

    say("launches as they happen, until a charge run is in its middle");
    let mut live = Live::new();
    let charging = until("a charge run in its middle", STEP_WITHIN, async || {
        show_launches(&host, &mut live).await;
        let charges = charges(&recorder.received());
        // A run that has sent some of its charges and not all of them.
        let begun = charges.values().find(|of_period| (3..CUSTOMERS - 2).contains(&of_period.len()));
        let open = open_charge(&host).await?;
        begun.map(|_| open)
    })
    .await;
    live.leave();
    say(&format!("kill -9 of the host (process {}) in the middle of {charging}", host.pid()));
    host.kill();
    let before = recorder.received().len();

    say("the host starts again on the same data");
    let host = HostProcess::start(&options).await;
    let verdict = until("a verdict of the run that was cut off", STEP_WITHIN, async || {
        verdict_of(&host, &charging).await.filter(|v| v == "lost" || v == "unknown")
    })
    .await;
    println!("{charging}: {verdict}");
    print!("{}", text(&host.cli(&["show", &charging]).stdout));
    let (job, tick) = charging.split_once('@').expect("a launch has a tick");

    say(&format!("the operator finishes the tick: tickhost trigger {job} --tick {tick} --same-key"));
    let triggered = until("the re-run is accepted", STEP_WITHIN, async || {
        let done = host.cli(&["trigger", job, "--tick", tick, "--same-key"]);
        done.status.success().then(|| text(&done.stdout).trim().to_owned())
    })
    .await;
    until("the re-run succeeds", STEP_WITHIN, async || {
        show_launches(&host, &mut live).await;
        verdict_of(&host, &triggered).await.filter(|v| v == "succeeded")
    })
    .await;
    live.leave();
    println!("{triggered}: succeeded ({} requests after the kill)", recorder.received().len() - before);

    say("the health of the target changes: the probe alerts once, and once more when it is back");
    recorder.behave(|b| b.health = Some(503));
    let alerts = |n: usize| {
        let recorder = recorder.clone();
        async move || (recorder.received().iter().filter(|r| r.path.starts_with("/alerts")).count() >= n).then_some(())
    };
    until("the alert", STEP_WITHIN, alerts(1)).await;
    recorder.behave(|b| b.health = None);
    until("the notice that it is back", STEP_WITHIN, alerts(2)).await;
    until("two reports", STEP_WITHIN, async || {
        let reports = recorder.received().iter().filter(|r| r.path.starts_with("/reports/")).count();
        (reports >= 2).then_some(())
    })
    .await;
    // The first run may be the one that was cut off; the statement is about another one as well.
    until("a second charge run", STEP_WITHIN, async || {
        show_launches(&host, &mut live).await;
        (charges(&recorder.received()).len() >= 2).then_some(())
    })
    .await;
    let ran: BTreeSet<String> = ["charge", "report", "probe"].map(|job| format!("demo/{job}")).into();
    for job in &ran {
        assert!(host.cli(&["pause", job, "--note", "the demo is over"]).status.success(), "pause {job}");
    }
    until("every launch has its verdict", STEP_WITHIN, async || all_closed(&host, &ran).await.then_some(())).await;
    summary(&host, &recorder, &ran).await
}

/// The example components with schedules of a few seconds, pointed at the recorder.
fn manifest(dir: &Path, api: &str) -> PathBuf {
    let path = |name: &str| guest(name).display().to_string();
    let text = format!(
        r#"namespace = "demo"

[job.charge]
component = "{charge}"
schedule = "*/15 * * * * *"
on_unknown = "skip"
allow = ["{api}"]
config = {{ api = "{api}" }}

[job.report]
component = "{report}"
schedule = "*/10 * * * * *"
on_unknown = "repeat"
allow = ["{api}"]
limits = {{ memory = "128MiB" }}
config = {{ api = "{api}", data_url = "{api}/data/seattle-weather.csv" }}

[job.probe]
component = "{probe}"
schedule = "*/3 * * * * *"
on_unknown = "repeat"
allow = ["{api}"]
limits = {{ memory = "128MiB" }}
config = {{ target = "{api}/health", webhook = "{api}/alerts" }}
"#,
        charge = path("examples/charge/charge.wasm"),
        report = path("examples/report/report.wasm"),
        probe = path("examples/probe/probe.wasm"),
    );
    write_manifest(dir, &text)
}

/// Shows that something is happening while components are compiled.
async fn wait_for_jobs(host: &HostProcess, log: &Path) {
    let began = Instant::now();
    let mut seen = 0;
    until("the jobs are stored", COMPILED_WITHIN, async || {
        let stored = host.get("/v1/jobs").await?.as_array()?.len();
        if stored > seen {
            seen = stored;
            println!("{stored} of 3 jobs stored after {} s", began.elapsed().as_secs());
        }
        let refused = std::fs::read_to_string(log).unwrap_or_default().contains("ERROR");
        assert!(!refused, "the host refuses a job; its log is {}", log.display());
        (stored == 3).then_some(())
    })
    .await;
}

async fn show_launches(host: &HostProcess, live: &mut Live) {
    let mut launches = Vec::new();
    for job in ["demo/charge", "demo/report", "demo/probe"] {
        for (tick, verdict, launch) in host.ticks(job).await.unwrap_or_default() {
            launches.push((tick.clone(), launch.unwrap_or_else(|| format!("{job}@{tick}")), verdict));
        }
    }
    launches.sort();
    live.show(launches.into_iter().map(|(_, name, verdict)| (name, verdict)));
}

async fn open_charge(host: &HostProcess) -> Option<String> {
    let ticks = host.ticks("demo/charge").await?;
    ticks.into_iter().find(|(_, verdict, _)| verdict == "running")?.2
}

async fn verdict_of(host: &HostProcess, launch: &str) -> Option<String> {
    Some(host.launch(launch).await?["verdict"].as_str()?.to_owned())
}

async fn all_closed(host: &HostProcess, jobs: &BTreeSet<String>) -> bool {
    for job in jobs {
        let Some(ticks) = host.ticks(job).await else { return false };
        if ticks.iter().any(|(_, verdict, _)| is_open(verdict)) {
            return false;
        }
    }
    true
}

/// Charges by period: customer and key.
fn charges(received: &[Received]) -> BTreeMap<String, Vec<(String, String)>> {
    let mut periods: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    for request in received.iter().filter(|r| r.path == "/charges") {
        let body: serde_json::Value = serde_json::from_str(&request.body).unwrap_or_default();
        let text = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
        periods.entry(text("period")).or_default().push((text("customer"), request.key.clone()));
    }
    periods
}

/// The table, and the statement that the demo exists for.
async fn summary(host: &HostProcess, recorder: &Recorder, jobs: &BTreeSet<String>) -> bool {
    let received = recorder.received();
    say("every tick, its verdict, and its effects with their keys as the recorder received them");
    println!("{:<40} {:<10} {:<8} {:<36} EFFECT", "LAUNCH", "VERDICT", "ARRIVED", "KEY");
    for job in jobs {
        for (tick, verdict, launch) in host.ticks(job).await.unwrap_or_default() {
            let name = launch.unwrap_or_else(|| format!("{job}@{tick}"));
            // A re-run's id is long, and its beginning tells it apart.
            let shown: String = name.chars().take(40).collect();
            println!("{shown:<40} {verdict:<10}");
            let story = host.launch(&name).await.unwrap_or_default();
            for effect in story["effects"].as_array().into_iter().flatten() {
                let text = |name: &str| effect[name].as_str().unwrap_or_default().to_owned();
                let (key, what) = (text("key"), text("what"));
                let arrived = received.iter().filter(|r| r.key == key).count();
                // What the host keeps for itself reaches no recorder.
                let arrived = if what.starts_with("kv ") { "-".into() } else { format!("{arrived}x") };
                println!("{:<40} {:<10} {arrived:<8} {key:<36} {what}", "", "");
            }
        }
    }
    say("what the recorder says");
    let without_key = received.iter().filter(|r| r.key.is_empty()).count();
    println!("{} requests that change something, {without_key} of them without a key", received.len());
    let periods = charges(&received);
    // The run that was cut off and at least one other: without them the statement would say nothing.
    let mut fair = without_key == 0 && periods.len() >= 2;
    for (period, sent) in &periods {
        let keys: BTreeSet<&str> = sent.iter().map(|(_, key)| key.as_str()).collect();
        let customers: BTreeSet<&str> = sent.iter().map(|(customer, _)| customer.as_str()).collect();
        // One key for each customer, however often it arrived: a receiver that knows the key charges once.
        let once = keys.len() == CUSTOMERS && customers.len() == CUSTOMERS;
        println!(
            "period {period}: {} customers, {} keys, {} arrived again under the same key{}",
            customers.len(),
            keys.len(),
            sent.len() - keys.len(),
            if once { "" } else { "  <-- WRONG" }
        );
        fair &= once;
    }
    let statement =
        if fair { "each customer was charged exactly once" } else { "NOT every customer was charged exactly once" };
    println!("\n{statement} in each of the {} periods, read from the recorder", periods.len());
    fair
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
