//! From the tick to the first guest instruction, on a host with nothing else to do.

use std::time::Duration;

use support::{
    guest,
    host::{HostOptions, HostProcess, until, write_manifest},
};

use crate::percentile;

const TICKS: usize = 60;

pub(crate) async fn run() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let manifest = write_manifest(
        dir.path(),
        &format!(
            "namespace = \"bench\"\n[job.idle]\ncomponent = \"{}\"\nschedule = \"* * * * * *\"\non_unknown = \"skip\"\n\
             config = {{ do = \"clock\" }}\n",
            guest("tests/guests/test-guest.wasm").display()
        ),
    );
    let options = HostOptions {
        data: dir.path().join("data"),
        manifests: vec![manifest],
        log: dir.path().join("log"),
        kill_at: None,
        under: Vec::new(),
        ..HostOptions::default()
    };
    let host = HostProcess::start(&options).await;
    let ticks = until("enough ticks", Duration::from_secs(120), async || {
        let ticks = host.ticks("bench/idle").await?;
        (ticks.iter().filter(|(_, verdict, _)| verdict == "succeeded").count() >= TICKS).then_some(ticks)
    })
    .await;
    let mut late_us = Vec::new();
    for (tick, _, launch) in ticks {
        let Some(story) = host.launch(&launch.unwrap_or_default()).await else { continue };
        let message = story["attempts"][0]["ended"]["outcome"]["succeeded"]["message"].as_str();
        let Some(at) = message.and_then(|m| m.parse::<i64>().ok()) else { continue };
        let due = chrono::DateTime::parse_from_rfc3339(&tick).expect("a tick").timestamp_micros();
        late_us.push(at - due);
    }
    late_us.sort_unstable();
    println!("\ntick to first guest instruction, idle host, {} ticks:", late_us.len());
    println!(
        "  p50 {} µs, p99 {} µs, worst {} µs",
        percentile(&late_us, 0.5),
        percentile(&late_us, 0.99),
        late_us.last().copied().unwrap_or_default()
    );
}
