//! Storing jobs over HTTP on three nodes, each commit synced on a majority.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use support::{cluster::Cluster, guest, host::write_manifest};

use crate::percentile;

const FOR: Duration = Duration::from_secs(5);

pub(crate) async fn run() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut cluster = Cluster::start(dir.path(), 3, 0, "").await;
    cluster.apply(&write_manifest(
        dir.path(),
        &format!(
            "namespace = \"bench\"\n[job.first]\ncomponent = \"{}\"\nschedule = \"0 0 29 2 *\"\non_unknown = \"skip\"\n",
            guest("tests/guests/test-guest.wasm").display()
        ),
    ));
    cluster.until_warm(1).await;
    let leader = cluster.leader().await;
    let url = cluster.node(leader).url();
    let spec = cluster.get("/v1/jobs/bench/first").await.expect("the first job")["spec"].clone();
    println!("\nwrites, three nodes: PUT of a job, {} bytes of JSON, to the leader", spec.to_string().len());
    for connections in [1, 16, 64, 256] {
        let stored = Arc::new(AtomicU64::new(0));
        let until = Instant::now() + FOR;
        let writers = (0..connections).map(|n| {
            let (url, mut spec, stored) = (url.clone(), spec.clone(), stored.clone());
            // A client of its own has a connection of its own.
            let http = cluster.node(leader).up().client();
            tokio::spawn(async move {
                let mut took_us = Vec::new();
                while Instant::now() < until {
                    // Another definition each time: the same one would be no write.
                    let count = stored.fetch_add(1, Ordering::Relaxed);
                    spec["start_deadline_s"] = (60 + count % 3_000).into();
                    let began = Instant::now();
                    let put = http.put(format!("{url}/v1/jobs/bench/w{connections}-{n}")).json(&spec).send().await;
                    let put = put.expect("store a job");
                    assert!(put.status().is_success(), "{:?}", put.text().await);
                    took_us.push(i64::try_from(began.elapsed().as_micros()).unwrap_or(i64::MAX));
                }
                took_us
            })
        });
        let writers: Vec<_> = writers.collect();
        let mut took_us = Vec::new();
        for writer in writers {
            took_us.extend(writer.await.expect("a writer"));
        }
        took_us.sort_unstable();
        println!(
            "  {connections:3} connections: {:5} a second; p50 {} µs, p99 {} µs",
            took_us.len() as u64 / FOR.as_secs(),
            percentile(&took_us, 0.5),
            percentile(&took_us, 0.99),
        );
    }
    cluster.until_equal().await;
}
