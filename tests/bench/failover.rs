//! A leader is killed again and again at a random moment, on three nodes that launch a hundred jobs a second.

use std::{collections::BTreeMap, time::Duration};

use support::{
    cluster::{Cluster, SOON},
    guest,
    host::{until, write_manifest},
    recorder::{Behaviour, Received, Recorder},
};

use crate::percentile;

const JOBS: usize = 100;
const KILLS: usize = 30;
/// Between two kills: everybody is back, and some seconds of launches lie between.
const REST: Duration = Duration::from_millis(2_500);

pub(crate) async fn run() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let recorder = Recorder::start(Behaviour::default()).await.expect("start the recorder");
    let mut cluster = Cluster::start(dir.path(), 3, 0, "").await;
    let mut text = "namespace = \"bench\"\n".to_owned();
    for n in 0..JOBS {
        text.push_str(&format!(
            "[job.j{n}]\ncomponent = \"{}\"\nschedule = \"* * * * * *\"\non_unknown = \"skip\"\noverlap = \"allow\"\n\
             allow = [\"{url}\"]\nconfig = {{ do = \"effect\", count = 1, url = \"{url}/j{n}\" }}\n",
            guest("tests/guests/test-guest.wasm").display(),
            url = recorder.url(),
        ));
    }
    cluster.apply(&write_manifest(dir.path(), &text));
    cluster.until_warm(1).await;
    let before = recorder.received().len();
    until("launches", SOON, async || (recorder.received().len() >= before + 3 * JOBS).then_some(())).await;

    let first_second = chrono::Utc::now().timestamp() + 1;
    let mut kills_ms = Vec::new();
    for n in 0..KILLS {
        let leader = cluster.leader().await;
        // Spread over the second by the golden ratio: random enough, and no phase is left out.
        let phase = Duration::from_millis((n as u64 * 618) % 1_000);
        tokio::time::sleep(phase).await;
        cluster.node(leader).kill();
        kills_ms.push(chrono::Utc::now().timestamp_millis());
        tokio::time::sleep(REST).await;
        cluster.node(leader).start().await;
        cluster.until_whole(3, 3).await;
    }
    tokio::time::sleep(REST).await;
    let last_second = chrono::Utc::now().timestamp() - 2;
    report(&recorder.received(), &kills_ms, first_second..=last_second);
}

fn report(received: &[Received], kills_ms: &[i64], seconds: std::ops::RangeInclusive<i64>) {
    // By job and tick, when it arrived.
    let mut arrived: BTreeMap<(String, i64), Vec<i64>> = BTreeMap::new();
    for request in received {
        let tick = request.body.split('@').nth(1).unwrap_or_default().split('"').next().unwrap_or_default();
        let Ok(tick) = chrono::DateTime::parse_from_rfc3339(tick) else { continue };
        arrived.entry((request.path.clone(), tick.timestamp())).or_default().push(request.at_ms);
    }
    let mut lost = 0;
    let mut doubled = 0;
    let mut late_ms = Vec::new();
    for n in 0..JOBS {
        for second in seconds.clone() {
            match arrived.get(&(format!("/j{n}"), second)) {
                None => lost += 1,
                Some(times) => {
                    doubled += usize::from(times.len() > 1);
                    late_ms.push(times[0] - second * 1_000);
                }
            }
        }
    }
    late_ms.sort_unstable();
    let mut gaps_ms: Vec<i64> = kills_ms
        .iter()
        .filter_map(|kill| {
            // What a tick before the kill had begun may still arrive after it.
            let began_after = |request: &&Received| request.at_ms > *kill;
            let tick_after = arrived.iter().filter(|((_, second), _)| second * 1_000 > *kill);
            let first_tick = tick_after.flat_map(|(_, times)| times).filter(|at| **at > *kill).min().copied()?;
            let any = received.iter().find(began_after).map_or(first_tick, |request| request.at_ms);
            Some(first_tick.max(any) - kill)
        })
        .collect();
    gaps_ms.sort_unstable();
    println!("\nfailover, three nodes, {JOBS} jobs every second, {} kills of the leader:", kills_ms.len());
    println!(
        "  from the kill to the first launch of a tick after it: median {} ms, worst {} ms",
        percentile(&gaps_ms, 0.5),
        gaps_ms.last().copied().unwrap_or_default()
    );
    println!(
        "  {} ticks: lateness p50 {} ms, p99 {} ms, worst {} ms; {lost} lost, {doubled} doubled",
        JOBS * seconds.count(),
        percentile(&late_ms, 0.5),
        percentile(&late_ms, 0.99),
        late_ms.last().copied().unwrap_or_default()
    );
}
