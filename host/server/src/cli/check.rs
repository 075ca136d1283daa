//! `tickhost check`: what is allowed in a manifest and seldom meant. Speaks to no host.

use std::{collections::BTreeMap, path::PathBuf};

use chrono::{DateTime, TimeDelta, Utc};
use clap::Args;
use serde_json::json;
use tickhost_ledger::{
    JobName, JobSpec,
    spec::{CatchUp, OnUnknown, Overlap},
};
use tickhost_schedule::{Expression, Schedule, lint};

use super::{CliError, Format, apply, print_json};

#[derive(Debug, Args)]
pub(super) struct Check {
    /// Manifests, or folders with a `tickhost.toml`.
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// As of this instant (RFC 3339); now where absent.
    #[arg(long, value_parser = super::instant)]
    after: Option<DateTime<Utc>>,
    /// Exit with 1 where anything is found.
    #[arg(long)]
    strict: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Found {
    job: String,
    kind: String,
    message: String,
    help: String,
}

impl Check {
    pub(super) fn run(self, format: Format) -> Result<(), CliError> {
        let after = self.after.unwrap_or_else(Utc::now);
        let mut jobs = Vec::new();
        for path in &self.paths {
            jobs.extend(apply::read(path)?.1.jobs);
        }
        let mut found = Vec::new();
        let mut schedules = Vec::new();
        for (name, draft) in &jobs {
            let (expressions, schedule) = read(name, &draft.spec, after)?;
            let lints = lint(&schedule, &expressions, after).into_iter();
            found.extend(lints.map(|lint| Found {
                job: name.to_string(),
                kind: lint.kind.to_string(),
                message: lint.message,
                help: lint.help,
            }));
            found.extend(policies(name, &draft.spec, &schedule, after));
            schedules.push((name, schedule));
        }
        found.extend(crowds(&schedules, after));
        let number = found.len();
        if format == Format::Json {
            let row = |f: &Found| json!({ "job": f.job, "kind": f.kind, "message": f.message, "help": f.help });
            print_json(&json!({ "jobs": jobs.len(), "found": found.iter().map(row).collect::<Vec<_>>() }))?;
        } else {
            for f in &found {
                say!("{}: {} [{}]", f.job, f.message, f.kind);
                if !f.help.is_empty() {
                    say!("    {}", f.help);
                }
            }
            let plural = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
            say!("{}, {}", plural(jobs.len(), "job"), plural(number, "remark"));
        }
        match self.strict && number > 0 {
            true => Err(CliError::failed(format!("{number} remarks; without --strict they do not fail"))),
            false => Ok(()),
        }
    }
}

/// A job's expressions and its schedule, if it were stored now.
pub(super) fn read(
    name: &JobName,
    spec: &JobSpec,
    anchor: DateTime<Utc>,
) -> Result<(Vec<Expression>, Schedule), CliError> {
    let job = name.to_string();
    let refuse = |e| CliError::refused(format!("job `{job}`: {e}"));
    let expression = |text: &String| Expression::parse(text, spec.timing.dialect, Some(&job));
    let expressions = spec.timing.schedule.iter().map(expression).collect::<Result<_, _>>().map_err(refuse)?;
    let schedule = Schedule::new(&spec.timing, Some(&job), anchor).map_err(refuse)?;
    Ok((expressions, schedule))
}

/// Policies that surprise together.
fn policies(name: &JobName, spec: &JobSpec, schedule: &Schedule, after: DateTime<Utc>) -> Vec<Found> {
    let mut found = Vec::new();
    let mut add = |message: String, help: &str| {
        found.push(Found { job: name.to_string(), kind: "policy".into(), message, help: help.into() });
    };
    let period_s = schedule.shortest_gap_s(after).map_or(i64::MAX, |gap| gap.max(1));
    let deadline_s = i64::from(spec.start_deadline_s);
    if spec.on_unknown == OnUnknown::Repeat && spec.catch_up == CatchUp::None {
        add(
            "`on_unknown = \"repeat\"` promises at least once, and `catch_up = \"none\"` drops what an outage missed"
                .into(),
            "write `catch_up = \"latest\"` or `{ all = N }`, if every tick counts",
        );
    }
    if let CatchUp::All(most) = spec.catch_up {
        if spec.on_unknown == OnUnknown::Skip {
            add(
                format!("after an outage up to {most} missed ticks are launched late, and none of them is repeated"),
                "write `catch_up = \"latest\"` if the newest stands for all, or `\"none\"` if late is wrong",
            );
        }
        if spec.overlap == Overlap::Allow && most > 1 {
            add(
                format!("after an outage up to {most} missed ticks are launched at once (`overlap = \"allow\"`)"),
                "write `overlap = \"skip\"`: ticks that are made up then wait for each other",
            );
        }
        let fit = deadline_s / period_s + 1;
        if fit < i64::from(most) {
            add(
                format!(
                    "`catch_up` makes up {most} ticks, but only {fit} of them lie within the start deadline of {deadline_s} s"
                ),
                "raise `start_deadline`, or make up fewer",
            );
        }
    }
    found
}

/// Jobs of these files that are due in the very same minute, three and more.
fn crowds(schedules: &[(&JobName, Schedule)], after: DateTime<Utc>) -> Vec<Found> {
    const CROWD: usize = 3;
    let mut minutes: BTreeMap<i64, Vec<String>> = BTreeMap::new();
    for (name, schedule) in schedules {
        let until = after.checked_add_signed(TimeDelta::days(1));
        let day = schedule.preview(after, until, 24).ticks;
        // What is due more often than hourly meets everybody.
        if day.len() < 24 {
            for tick in day.into_iter().filter(|tick| !tick.excluded) {
                let of_minute = minutes.entry(tick.due.timestamp() / 60).or_default();
                if of_minute.last() != Some(&name.to_string()) {
                    of_minute.push(name.to_string());
                }
            }
        }
    }
    let Some((minute, jobs)) = minutes.into_iter().max_by_key(|(minute, jobs)| (jobs.len(), -minute)) else {
        return vec![];
    };
    if jobs.len() < CROWD {
        return Vec::new();
    }
    let at = DateTime::from_timestamp(minute * 60, 0).unwrap_or_default();
    vec![Found {
        job: jobs.join(", "),
        kind: "herd".into(),
        message: format!("{} jobs are due together at {}", jobs.len(), at.format("%F %R UTC")),
        help: "`?` for the minute spreads them by their names; `tickhost forecast --spread` shows how".into(),
    }]
}
