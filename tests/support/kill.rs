//! Kills a host again and again, and judges by what an outsider saw.
//!
//! Two kinds of jobs run every second: `skip` jobs, which must never do anything twice, and `repeat` jobs, which must
//! never miss a tick. The judge is the recorder, and an independent reading of the schedule: every second.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::Path,
    time::{Duration, Instant},
};

use crate::{
    guest,
    host::{HostOptions, HostProcess, is_open, millis, until, write_manifest},
    recorder::{Behaviour, Recorder},
};
use tickhost_replica::fault::POINTS;

const JOBS: [(&str, bool); 4] = [("skip-a", true), ("skip-b", true), ("repeat-a", false), ("repeat-b", false)];
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

/// What is known of one tick of a job.
#[derive(Debug, Clone, Default)]
struct Seen {
    verdict: String,
    /// Milliseconds between which a kill can have cut a run of it off: from its first intent to the end of its last.
    from_ms: i64,
    to_ms: i64,
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
        };
        let mut random = Random(self.seed);
        let mut kills_ms = Vec::new();
        let mut seen: BTreeMap<(String, String), Seen> = BTreeMap::new();
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
        judge(&mut report, &recorder, &seen, &kills_ms, self.kills);
        report.elapsed = began.elapsed();
        report
    }
}

fn manifest(dir: &Path, api: &str) -> std::path::PathBuf {
    let mut text = "namespace = \"kill\"\n".to_owned();
    for (job, skip) in JOBS {
        let policy = if skip {
            "on_unknown = \"skip\""
        } else {
            "on_unknown = \"repeat\"\nretry = { attempts = 1000, backoff = \"10ms\", backoff_max = \"50ms\" }"
        };
        text.push_str(&format!(
            "\n[job.{job}]\ncomponent = \"{component}\"\nschedule = \"* * * * * *\"\n{policy}\noverlap = \"allow\"\n\
             catch_up = \"all\"\nallow = [\"{api}\"]\n\
             config = {{ do = \"effect\", url = \"{api}/charges/{job}\", count = 2 }}\n",
            component = guest("tests/guests/test-guest.wasm").display(),
        ));
    }
    write_manifest(dir, &text)
}

/// Reads the verdicts while they are kept one by one.
async fn look(host: &HostProcess, seen: &mut BTreeMap<(String, String), Seen>) {
    for (job, _) in JOBS {
        let name = format!("kill/{job}");
        for (tick, verdict, launch) in host.ticks(&name).await.unwrap_or_default() {
            let entry = seen.entry((job.to_owned(), tick)).or_default();
            if entry.verdict == verdict && !is_open(&verdict) {
                continue;
            }
            let Some(launch) = launch else {
                entry.verdict = verdict;
                continue;
            };
            // The host may die between the two questions; then the next one is asked.
            let Some(story) = host.launch(&launch).await else { continue };
            let attempts = story["attempts"].as_array().cloned().unwrap_or_default();
            entry.from_ms = attempts.first().and_then(|a| millis(&a["intended_at"])).unwrap_or_default();
            entry.to_ms = attempts.last().and_then(|a| millis(&a["ended"]["at"])).unwrap_or(i64::MAX);
            entry.verdict = story["verdict"].as_str().unwrap_or_default().to_owned();
        }
    }
}

fn judge(
    report: &mut Report,
    recorder: &Recorder,
    seen: &BTreeMap<(String, String), Seen>,
    kills_ms: &[i64],
    kills: usize,
) {
    let received = recorder.received();
    report.requests = received.len();
    // How often each key arrived, by job and tick: the guest sends the launch's name along.
    let mut arrived: BTreeMap<(String, String), BTreeMap<String, usize>> = BTreeMap::new();
    for request in &received {
        let job = request.path.trim_start_matches("/charges/").to_owned();
        let tick = request.body.split('@').nth(1).unwrap_or_default().split('"').next().unwrap_or_default();
        let keys = arrived.entry((job, tick.to_owned())).or_default();
        *keys.entry(request.key.clone()).or_default() += 1;
        if request.key.is_empty() {
            report.faults.push(format!("a request without a key: {request:?}"));
        }
    }
    for (job, skip) in JOBS {
        let ticks: Vec<(&String, &Seen)> =
            seen.iter().filter(|((j, _), _)| j == job).map(|((_, t), s)| (t, s)).collect();
        check_coverage(report, job, &ticks);
        for (tick, seen) in ticks {
            *report
                .verdicts
                .entry(format!("{} {}", if skip { "skip" } else { "repeat" }, seen.verdict))
                .or_default() += 1;
            let keys = arrived.get(&(job.to_owned(), tick.clone())).cloned().unwrap_or_default();
            let touched = kills_ms.iter().any(|kill| (seen.from_ms..=seen.to_ms).contains(kill));
            // Attempts of one tick use the same two keys, whatever happens between them.
            if keys.len() > 2 {
                report.faults.push(format!("{job}@{tick}: {} keys for two effects", keys.len()));
            }
            if skip && keys.values().any(|count| *count > 1) {
                report.faults.push(format!("{job}@{tick}: done twice: {keys:?}"));
            }
            if !skip && keys.len() != 2 && !seen.verdict.starts_with("skipped(") {
                report.faults.push(format!("{job}@{tick} ({}): {} of 2 effects arrived", seen.verdict, keys.len()));
            }
            if !touched && seen.verdict != "succeeded" {
                report
                    .faults
                    .push(format!("{job}@{tick}: {} and no kill between its intent and its outcome", seen.verdict));
            }
            if seen.verdict == "failed" {
                report.faults.push(format!("{job}@{tick}: failed"));
            }
        }
    }
    if kills >= 100 {
        for point in POINTS {
            let hits = report.hits.get(point).copied().unwrap_or_default();
            if hits < 10 {
                report.faults.push(format!("the point `{point}` was hit {hits} times, expected at least 10"));
            }
        }
    }
}

/// Every second from the first tick to the last has a verdict: read from the clock, not from the host's schedule.
fn check_coverage(report: &mut Report, job: &str, ticks: &[(&String, &Seen)]) {
    let seconds: BTreeSet<i64> = ticks
        .iter()
        .filter_map(|(tick, _)| chrono::DateTime::parse_from_rfc3339(tick).ok())
        .map(|tick| tick.timestamp())
        .collect();
    let (Some(first), Some(last)) = (seconds.first(), seconds.last()) else {
        report.faults.push(format!("{job}: no tick at all"));
        return;
    };
    let missing: Vec<i64> = (*first..=*last).filter(|second| !seconds.contains(second)).collect();
    if !missing.is_empty() {
        report.faults.push(format!("{job}: {} ticks without a verdict, the first at {}", missing.len(), missing[0]));
    }
}

/// Numbers that are the same for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        // Constants of Knuth's MMIX generator; the high bits are the good ones.
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}
