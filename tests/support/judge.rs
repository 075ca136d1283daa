//! Four jobs that run every second, and the judgement of what became of them: by a recorder outside, and by an
//! independent reading of the schedule. Two kinds of jobs: `skip`, which must never do anything twice, and `repeat`,
//! which must never miss a tick.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use crate::{
    guest,
    host::{HostProcess, is_open, millis, write_manifest},
    recorder::Recorder,
};

/// The jobs, and whether each is a `skip` job.
pub(crate) const JOBS: [(&str, bool); 4] =
    [("skip-a", true), ("skip-b", true), ("repeat-a", false), ("repeat-b", false)];

/// What is known of every tick, by job and tick.
pub(crate) type Ticks = BTreeMap<(String, String), Seen>;

/// What is known of one tick of a job.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    pub(crate) verdict: String,
    /// Milliseconds between which a kill can have cut a run of it off: from its first intent to the end of its last.
    from_ms: i64,
    to_ms: i64,
}

/// Writes the jobs' manifest.
pub(crate) fn manifest(dir: &Path, api: &str) -> std::path::PathBuf {
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
pub(crate) async fn look(host: &HostProcess, seen: &mut Ticks) {
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

/// What the judge found.
#[derive(Debug, Default)]
pub(crate) struct Judgement {
    /// Ticks by verdict.
    pub(crate) verdicts: BTreeMap<String, usize>,
    /// Requests that arrived.
    pub(crate) requests: usize,
    /// What must not be.
    pub(crate) faults: Vec<String>,
}

/// Judges. `moments_ms` are those at which something was done to a host: only a tick that was alive at one of them may
/// have another verdict than succeeded.
pub(crate) fn judge(recorder: &Recorder, seen: &Ticks, moments_ms: &[i64]) -> Judgement {
    let mut report = Judgement::default();
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
        check_coverage(&mut report, job, &ticks);
        for (tick, seen) in ticks {
            *report
                .verdicts
                .entry(format!("{} {}", if skip { "skip" } else { "repeat" }, seen.verdict))
                .or_default() += 1;
            let keys = arrived.get(&(job.to_owned(), tick.clone())).cloned().unwrap_or_default();
            if seen.verdict == "skipped(paused)" {
                // The test itself pauses the jobs at its end.
                if !keys.is_empty() {
                    report.faults.push(format!("{job}@{tick}: paused, and {} effects arrived", keys.len()));
                }
                continue;
            }
            let touched = moments_ms.iter().any(|moment| (seen.from_ms..=seen.to_ms).contains(moment));
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
                report.faults.push(format!(
                    "{job}@{tick}: {} and nothing was done to a host between its intent and its outcome",
                    seen.verdict
                ));
            }
            if seen.verdict == "failed" {
                report.faults.push(format!("{job}@{tick}: failed"));
            }
        }
    }
    report
}

/// Every second from the first tick to the last has a verdict: read from the clock, not from the host's schedule.
fn check_coverage(report: &mut Judgement, job: &str, ticks: &[(&String, &Seen)]) {
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
