//! `tickhost forecast`: the load over time, of stored jobs or of manifests, now and after a proposed spread.

use std::path::PathBuf;

use chrono::{DateTime, DurationRound, SecondsFormat, TimeDelta, Utc};
use clap::Args;
use serde_json::{Value, json};
use tickhost_ledger::{JobName, JobSpec};
use tickhost_schedule::{Expression, Forecast as Load, Schedule};

use super::{CliError, Format, apply, check, print_json};
use crate::{api::JobView, client::Client};

/// Shades from nothing to the fullest minute.
const SHADES: [char; 5] = ['·', '░', '▒', '▓', '█'];
/// The longest time that is shown. Arbitrary: a row an hour.
const MINUTES_MAX: i64 = 14 * 24 * 60;

#[derive(Debug, Args)]
pub(super) struct Forecast {
    /// Manifests, or folders with one; the host's stored jobs where none is given.
    paths: Vec<PathBuf>,
    /// From the hour of this instant on (RFC 3339); the next full hour where absent. A manifest's `@every` counts from
    /// now.
    #[arg(long, value_parser = super::instant)]
    from: Option<DateTime<Utc>>,
    /// For this long, e.g. `24h`, `7d`.
    #[arg(long = "for", default_value = "24h", value_parser = minutes)]
    minutes: i64,
    /// Show beside it what `?` in place of minute 0 would make of it.
    #[arg(long)]
    spread: bool,
}

/// A job whose load is looked at.
struct Job {
    name: JobName,
    spec: JobSpec,
    anchor: DateTime<Utc>,
}

impl Forecast {
    pub(super) async fn run(
        self,
        client: impl Fn() -> Result<Client, CliError>,
        format: Format,
    ) -> Result<(), CliError> {
        let now = Utc::now();
        // Rows are hours.
        let hour = |at: DateTime<Utc>| at.duration_trunc(TimeDelta::hours(1)).unwrap_or(at);
        let from = self.from.map_or_else(|| hour(now) + TimeDelta::hours(1), hour);
        let jobs = if self.paths.is_empty() { stored(&client()?).await? } else { drafted(&self.paths, now)? };
        let mut before = Load::new(from, usize::try_from(self.minutes).unwrap_or_default());
        let mut after = before.clone();
        let mut proposals = Vec::new();
        for job in &jobs {
            let (expressions, schedule) = check::read(&job.name, &job.spec, job.anchor)?;
            before.add(&schedule);
            let spread = if self.spread { spread(job, &expressions)? } else { None };
            match spread {
                Some((spread, proposal)) => {
                    after.add(&spread);
                    proposals.push(proposal);
                }
                None => after.add(&schedule),
            }
        }
        if format == Format::Json {
            let mut answer = json!({ "jobs": jobs.len(), "from": text(from), "before": view(&before) });
            if self.spread {
                answer["after"] = view(&after);
                answer["proposals"] = json!(
                    proposals
                        .iter()
                        .map(|(job, was, is)| json!({ "job": job, "was": was, "is": is }))
                        .collect::<Vec<_>>()
                );
            }
            return print_json(&answer);
        }
        let peak = before.busiest(1).first().map_or(0, |(_, n)| *n);
        print(
            &format!("{}, {} from {}", plural(jobs.len() as u64, "job"), plural(before.total(), "launch"), text(from)),
            &before,
            peak,
        );
        if self.spread {
            say!("");
            print(&format!("with {} of them spread", proposals.len()), &after, peak);
            for (job, was, is) in &proposals {
                say!("  {job}: `{was}` -> `{is}`");
            }
        }
        Ok(())
    }
}

async fn stored(client: &Client) -> Result<Vec<Job>, CliError> {
    let jobs: Vec<JobView> = client.get("/v1/jobs", &[]).await?;
    let active = jobs.into_iter().filter(|job| job.pause.is_none());
    active
        .map(|job| {
            let name = job.job.parse().map_err(|e: tickhost_ledger::ids::NameError| CliError::failed(e.to_string()))?;
            Ok(Job { name, spec: job.spec, anchor: job.created_at })
        })
        .collect()
}

fn drafted(paths: &[PathBuf], now: DateTime<Utc>) -> Result<Vec<Job>, CliError> {
    let mut jobs = Vec::new();
    for path in paths {
        let drafts = apply::read(path)?.1.jobs.into_iter();
        jobs.extend(drafts.map(|(name, draft)| Job { name, spec: draft.spec, anchor: now }));
    }
    Ok(jobs)
}

type Proposal = (String, String, String);

/// A job at minute 0 with its minute picked by its name.
fn spread(job: &Job, expressions: &[Expression]) -> Result<Option<(Schedule, Proposal)>, CliError> {
    let mut spec = job.spec.clone();
    for (text, expression) in spec.timing.schedule.iter_mut().zip(expressions) {
        if let Some(spread) = expression.spread() {
            *text = spread;
        }
    }
    let (was, is) = (&job.spec.timing.schedule, &spec.timing.schedule);
    // What has a window is spread already.
    if was == is || spec.timing.window_s > 0 {
        return Ok(None);
    }
    let proposal = (job.name.to_string(), was.join(" | "), is.join(" | "));
    Ok(Some((check::read(&job.name, &spec, job.anchor)?.1, proposal)))
}

fn plural(n: u64, what: &str) -> String {
    let ending = match (n, what.ends_with("ch")) {
        (1, _) => "",
        (_, true) => "es",
        (_, false) => "s",
    };
    format!("{n} {what}{ending}")
}

fn text(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::Secs, true)
}

fn view(load: &Load) -> Value {
    let busiest = load.busiest(10).into_iter().map(|(at, launches)| json!({ "at": text(at), "launches": launches }));
    json!({
        "total": load.total(),
        "peak": load.busiest(1).first().map_or(0, |(_, n)| *n),
        "busiest": busiest.collect::<Vec<_>>(),
        "minutes": load.minutes(),
    })
}

/// A row for each hour, a column for each minute.
fn print(title: &str, load: &Load, peak: u64) {
    say!("{title}");
    say!("{:17} {:<30}{:<30}", "UTC", ":00", ":30");
    for (hour, minutes) in load.minutes().chunks(60).enumerate() {
        let at = load.from() + TimeDelta::hours(i64::try_from(hour).unwrap_or_default());
        let cells: String = minutes.iter().map(|launches| shade(*launches, peak)).collect();
        let total: u64 = minutes.iter().sum();
        say!("{:17} {cells:<60} {total}", at.format("%a %F %R").to_string().split_at(4).1);
    }
    for (at, launches) in load.busiest(3) {
        say!("  {launches} in the minute from {}", text(at));
    }
}

fn shade(launches: u64, peak: u64) -> char {
    let steps = SHADES.len() as u64 - 1;
    let step = if launches == 0 { 0 } else { 1 + (launches.min(peak) * (steps - 1)) / peak.max(1) };
    SHADES[usize::try_from(step.min(steps)).unwrap_or_default()]
}

/// A duration of whole minutes.
fn minutes(text: &str) -> Result<i64, String> {
    let expected = "write a number with m, h or d, from 1m to 14d, e.g. `24h`";
    let (number, unit) = text.split_at(text.bytes().take_while(u8::is_ascii_digit).count());
    let factor = match unit {
        "m" => 1,
        "h" => 60,
        "d" => 24 * 60,
        _ => return Err(expected.into()),
    };
    let minutes = number.parse::<i64>().ok().and_then(|n| n.checked_mul(factor));
    minutes.filter(|n| (1..=MINUTES_MAX).contains(n)).ok_or_else(|| expected.into())
}
