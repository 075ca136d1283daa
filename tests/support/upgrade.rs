//! A rolling upgrade from another build: nodes of both are one cluster for a while, led by either.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use crate::{
    cluster::{Cluster, Place},
    faults::{Report, Trial},
    judge::manifest,
    recorder::{Behaviour, Recorder},
};

/// How long each mixture is looked at.
const MIXED: Duration = Duration::from_secs(4);

/// A test to run.
pub struct UpgradeTest {
    /// The build that is upgraded.
    pub older: PathBuf,
}

impl UpgradeTest {
    /// Runs it in a folder.
    pub async fn run(&self, dir: &Path) -> Report {
        let began = Instant::now();
        let behaviour = Behaviour { charge_delay: Duration::from_millis(20), ..Behaviour::default() };
        let recorder = Recorder::start(behaviour).await.expect("start the recorder");
        let older = |_| Place { program: Some(self.older.clone()), ..Place::default() };
        let cluster = Cluster::start_in(dir, 3, 0, "", older).await;
        cluster.apply(&manifest(dir, &recorder.url()));
        cluster.until_warm(1).await;
        let mut trial = Trial::of(cluster);
        let mut report = Report::default();
        trial.rest(MIXED).await;
        for number in 1..=3 {
            trial.mark();
            trial.stop(number).await;
            trial.cluster.node(number).program = None;
            trial.cluster.node(number).start().await;
            trial.cluster.until_whole(3, 3).await;
            trial.mark();
            *report.hits.entry("node upgraded".into()).or_default() += 1;
            // Each kind leads once while both are there.
            for leads in 1..=3 {
                hand_over(&mut trial, leads, &mut report).await;
                trial.rest(MIXED).await;
            }
            trial.cluster.until_equal().await;
            let newer = trial.cluster.any().up().cli(&["cluster", "release", "--gap", "skip"]);
            let said = String::from_utf8_lossy(&newer.stderr).into_owned();
            if !(said.contains("upgrade every node first") || said.contains("not on hold")) {
                report.faults.push(format!("a command that an older node may not know: {said}"));
            }
            println!("node {number} is upgraded; `cluster release` says: {}", said.trim());
        }
        trial.finish(&recorder, &mut report).await;
        report.elapsed = began.elapsed();
        report
    }
}

async fn hand_over(trial: &mut Trial, to: u64, report: &mut Report) {
    if trial.cluster.leader().await == to {
        return;
    }
    trial.mark();
    let handed = trial.cluster.any().up().cli(&["cluster", "transfer", &to.to_string()]);
    trial.mark();
    if !handed.status.success() {
        report.faults.push(format!("hand over to node {to}: {}", String::from_utf8_lossy(&handed.stderr)));
    }
    *report.hits.entry("leadership handed over".into()).or_default() += 1;
}
