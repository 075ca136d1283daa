//! `tickhost explain`: an expression in plain English. Speaks to no host.

use std::str::FromStr;

use chrono::{DateTime, TimeDelta, Utc};
use clap::Args;
use serde_json::json;
use tickhost_schedule::{OddDay, Schedule, lint};

use super::{
    CliError, Format,
    next::{Reading, local, utc},
    print_json,
};

/// Each odd day comes within a year; a few days more for those that move.
const AHEAD: TimeDelta = TimeDelta::days(400);
/// Ticks that are compared with another reading.
const COMPARED: usize = 50;

#[derive(Debug, Args)]
pub(super) struct Explain {
    #[command(flatten)]
    reading: Reading,
    /// As of this instant (RFC 3339); now where absent.
    #[arg(long)]
    after: Option<DateTime<Utc>>,
}

impl Explain {
    pub(super) fn run(self, format: Format) -> Result<(), CliError> {
        let after = self.after.unwrap_or_else(Utc::now);
        let (expression, schedule) = self.reading.read(after)?;
        let zone = schedule.zone().name();
        let sentence = format!("{}, {zone} time.", expression.sentence());
        let stars: Vec<String> = expression.stars().iter().map(ToString::to_string).collect();
        let picks: Vec<(String, Vec<u32>)> =
            expression.picks().into_iter().map(|(field, values)| (field.to_string(), values)).collect();
        let rule = match expression.is_by_elapsed_time() {
            true => "by elapsed time: a missing hour has no ticks, a repeated one has them twice",
            false => {
                "by wall time: a missing time is due at the first instant after the gap, a repeated one the first time"
            }
        };
        let odd = schedule.odd_days(after, after + AHEAD).into_iter().next();
        let next = schedule.preview(after, None, 3).ticks;
        let lints = lint(&schedule, std::slice::from_ref(&expression), after);
        let elsewhere = elsewhere(&self.reading.expression, &schedule, after);
        if format == Format::Json {
            return print_json(&json!({
                "sentence": sentence,
                "zone": zone,
                "stars": stars,
                "picked": picks.iter().map(|(field, values)| (field.clone(), json!(values))).collect::<serde_json::Map<_, _>>(),
                "rule": rule,
                "day_rule": expression.day_rule(),
                "next": next.iter().map(utc).collect::<Vec<_>>(),
                "odd_day": odd.as_ref().map(|day| json!({
                    "date": day.date, "change": day.change(), "what": what(day, &schedule),
                })),
                "warnings": lints.iter().map(|lint| json!({
                    "kind": lint.kind.to_string(), "message": lint.message, "help": lint.help,
                })).collect::<Vec<_>>(),
                "elsewhere": elsewhere,
            }));
        }
        println!("{sentence}");
        for (field, values) in &picks {
            let values: Vec<String> = values.iter().map(ToString::to_string).collect();
            println!("  picked    {field} {}", values.join(","));
        }
        let stars = if stars.is_empty() { "none".into() } else { stars.join(", ") };
        println!("  stars     {stars}");
        println!("  runs      {rule}");
        if let Some(rule) = expression.day_rule() {
            println!("  days      {rule}");
        }
        for (n, tick) in next.iter().enumerate() {
            println!(
                "  {}{}  {}  {}",
                if n == 0 { "next      " } else { "          " },
                utc(tick),
                local(tick),
                tick.local.format("%a")
            );
        }
        match &odd {
            Some(day) => {
                println!("  odd day   {}: {}; {}", day.date.format("%a %F"), day.change(), what(day, &schedule));
            }
            None => println!("  odd day   none within {} days: the clock does not change in {zone}", AHEAD.num_days()),
        }
        for lint in &lints {
            println!(
                "  warning   {}{}",
                lint.message,
                if lint.help.is_empty() { String::new() } else { format!("; {}", lint.help) }
            );
        }
        if let Some(elsewhere) = elsewhere {
            println!("  elsewhere {elsewhere}");
        }
        Ok(())
    }
}

/// What a schedule does on an odd day.
fn what(day: &OddDay, schedule: &Schedule) -> String {
    let notes: Vec<String> = day
        .ticks
        .iter()
        .filter_map(|tick| Some(format!("due at {}, {}", tick.local.format("%H:%M"), schedule.note(tick)?)))
        .collect();
    match (notes.as_slice(), day.ticks.len(), day.usual) {
        ([], 0, 0) => "not due on that day".into(),
        ([], now, usual) if now == usual => "nothing is different".into(),
        ([], now, usual) => format!("due {now} times instead of {usual}"),
        ([one], ..) => one.clone(),
        ([first, ..], now, usual) => format!("{first}; due {now} times instead of {usual}"),
    }
}

/// Expressions travel: the Rust crate `cron`, as Quartz, counts Sunday as 1 and wants both day fields to match. The
/// first tick on which the two readings part.
fn elsewhere(text: &str, schedule: &Schedule, after: DateTime<Utc>) -> Option<String> {
    let text = if text.split_ascii_whitespace().count() == 5 { format!("0 {text}") } else { text.to_owned() };
    let other = cron::Schedule::from_str(&text).ok()?;
    let ours = schedule.preview(after, None, COMPARED).ticks;
    // Wall time against wall time: what either does on odd days is another matter.
    let from = ours.first()?.local.naive_local() - TimeDelta::seconds(1);
    let theirs = other.after(&from.and_utc()).take(COMPARED).map(|at| at.naive_utc());
    let parted = ours.iter().map(|tick| tick.local.naive_local()).zip(theirs).find(|(ours, theirs)| ours != theirs)?;
    let clock_jumps = ours.iter().any(|tick| tick.local.naive_local() == parted.0 && schedule.note(tick).is_some());
    (!clock_jumps).then(|| {
        format!(
            "the Rust crate `cron` counts Sunday as 1 and joins both day fields: where this is due on {}, that is due on {}",
            parted.0.format("%a %F %T"),
            parted.1.format("%a %F %T")
        )
    })
}
