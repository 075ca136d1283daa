//! Kills a host again and again, and judges by what an outsider saw.
//!
//! Two kinds of jobs run every second: `skip` jobs, which must never do anything twice, and `repeat` jobs, which must
//! never miss a tick. The judge is the recorder, and an independent reading of the schedule: every second.

use std::{
    collections::BTreeMap,
    fmt,
    path::Path,
    time::{Duration, Instant},
};

use crate::{
    host::{HostOptions, HostProcess, is_open, until},
    judge::{JOBS, Ticks, judge, look, manifest},
    recorder::{Behaviour, Recorder},
};
use tickhost_replica::fault::POINTS;

/// A random kill comes within this long after the start.
const RANDOM_WITHIN_MS: u64 = 3_000;
const POINT_WITHIN: Duration = Duration::from_secs(30);
const SETTLED_WITHIN: Duration = Duration::from_secs(60);

/// A test to run.
pub struct KillTest {
    /// How often the host is killed.
    pub kills: usize,
    /// Decides the moments of the random kills.
    pub seed: u64,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Report {
    kills: usize,
    /// How often each point was hit.
    hits: BTreeMap<String, usize>,
    /// Ticks by verdict.
    verdicts: BTreeMap<String, usize>,
    requests: usize,
    elapsed: Duration,
    /// What must not be: empty in a test that passes.
    pub faults: Vec<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} kills in {} s, {} requests recorded", self.kills, self.elapsed.as_secs(), self.requests)?;
        writeln!(f, "hits: {:?}", self.hits)?;
        writeln!(f, "verdicts: {:?}", self.verdicts)?;
        for fault in &self.faults {
            writeln!(f, "FAULT: {fault}")?;
        }
        write!(f, "{} faults", self.faults.len())
    }
}

impl KillTest {
    /// Runs it in a folder.
    pub async fn run(&self, dir: &Path) -> Report {
        let began = Instant::now();
        let behaviour = Behaviour { charge_delay: Duration::from_millis(20), ..Behaviour::default() };
        let recorder = Recorder::start(behaviour).await.expect("start the recorder");
        let mut report = Report { kills: self.kills, ..Report::default() };
        let mut options = HostOptions {
            data: dir.join("data"),
            manifests: vec![manifest(dir, &recorder.url())],
            log: dir.join("host.log"),
            kill_at: None,
            under: Vec::new(),
            ..HostOptions::default()
        };
        let mut random = Random(self.seed);
        let mut kills_ms = Vec::new();
        let mut seen = Ticks::new();
        for n in 0..self.kills {
            // Nine in ten at a named point, each in turn; the tenth at random.
            let point = (n % 10 != 9).then(|| POINTS[(n - n / 10) % POINTS.len()]);
            options.kill_at = point.map(|point| format!("{point}:{}", 1 + random.below(3)));
            // Not waited for: a point may be hit while it settles what the last kill left.
            let mut host = HostProcess::spawn(&options);
            match point {
                Some(point) => {
                    let looked = until(point, POINT_WITHIN, async || {
                        look(&host, &mut seen).await;
                        Some(host.has_killed_itself()).filter(|ended| *ended)
                    });
                    looked.await;
                }
                None => {
                    let moment = Duration::from_millis(random.below(RANDOM_WITHIN_MS));
                    let until_then = Instant::now();
                    while until_then.elapsed() < moment {
                        look(&host, &mut seen).await;
                    }
                    host.kill();
                }
            }
            kills_ms.push(chrono::Utc::now().timestamp_millis());
            *report.hits.entry(point.unwrap_or("random").to_owned()).or_default() += 1;
        }
        options.kill_at = None;
        let host = HostProcess::start(&options).await;
        for (job, _) in JOBS {
            assert!(host.cli(&["pause", &format!("kill/{job}"), "--note", "the test is over"]).status.success());
        }
        until("every launch has its verdict", SETTLED_WITHIN, async || {
            look(&host, &mut seen).await;
            seen.values().all(|s| !s.verdict.is_empty() && !is_open(&s.verdict)).then_some(())
        })
        .await;
        let judgement = judge(&recorder, &seen, &kills_ms);
        report.verdicts = judgement.verdicts;
        report.requests = judgement.requests;
        report.faults = judgement.faults;
        if self.kills >= 100 {
            for point in POINTS {
                let hits = report.hits.get(point).copied().unwrap_or_default();
                if hits < 10 {
                    report.faults.push(format!("the point `{point}` was hit {hits} times, expected at least 10"));
                }
            }
        }
        report.elapsed = began.elapsed();
        report
    }
}

/// Numbers that are the same for the same seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        // Constants of Knuth's MMIX generator; the high bits are the good ones.
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}
