//! `tickhost explain`: an expression in plain English. Speaks to no host.

use std::str::FromStr;

use chrono::{DateTime, TimeDelta, Utc};
use clap::Args;
use serde_json::json;
use tickhost_schedule::{Expression, OddDay, Offsets, Schedule, lint};

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
    #[arg(long, value_parser = super::instant)]
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
        let until = after.checked_add_signed(AHEAD).unwrap_or(after);
        let odd = schedule.odd_days(after, until).into_iter().next();
        let next = schedule.preview(after, None, 3).ticks;
        let lints = lint(&schedule, std::slice::from_ref(&expression), after);
        let elsewhere = elsewhere(&expression, &schedule, after);
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
        say!("{sentence}");
        for (field, values) in &picks {
            let values: Vec<String> = values.iter().map(ToString::to_string).collect();
            say!("  picked    {field} {}", values.join(","));
        }
        let stars = if stars.is_empty() { "none".into() } else { stars.join(", ") };
        say!("  stars     {stars}");
        say!("  runs      {rule}");
        if let Some(rule) = expression.day_rule() {
            say!("  days      {rule}");
        }
        for (n, tick) in next.iter().enumerate() {
            say!(
                "  {}{}  {}  {}",
                if n == 0 { "next      " } else { "          " },
                utc(tick),
                local(tick),
                tick.local.format("%a")
            );
        }
        match &odd {
            Some(day) => {
                say!("  odd day   {}: {}; {}", day.date.format("%a %F"), day.change(), what(day, &schedule));
            }
            None => say!("  odd day   none within {} days: the clock does not change in {zone}", AHEAD.num_days()),
        }
        for lint in &lints {
            say!(
                "  warning   {}{}",
                lint.message,
                if lint.help.is_empty() { String::new() } else { format!("; {}", lint.help) }
            );
        }
        if let Some(elsewhere) = elsewhere {
            say!("  elsewhere {elsewhere}");
        }
        Ok(())
    }
}

fn times(n: usize) -> String {
    format!("{n} time{}", if n == 1 { "" } else { "s" })
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
        ([], now, usual) => format!("due {} instead of {usual}", times(now)),
        ([one], ..) => one.clone(),
        ([first, ..], now, usual) => format!("{first}; due {} instead of {usual}", times(now)),
    }
}

/// Expressions travel: the Rust crate `cron`, as Quartz, counts Sunday as 1 and wants both day fields to match. The
/// first tick on which the two readings part, wall time against wall time: what either does on odd days is another
/// matter.
fn elsewhere(expression: &Expression, schedule: &Schedule, after: DateTime<Utc>) -> Option<String> {
    let text = expression.to_string();
    if text.contains(['?', '@', '=']) || text.to_ascii_uppercase().contains('H') && !expression.picks().is_empty() {
        return None;
    }
    let text = if text.split_ascii_whitespace().count() == 5 { format!("0 {text}") } else { text };
    let other = cron::Schedule::from_str(&text).ok()?;
    let steady = schedule.clone().with_offsets(Offsets::new(0, []).into());
    let ours = steady.preview(after, None, COMPARED).ticks.into_iter().map(|tick| tick.at);
    let mut theirs = other.after(&after).take(COMPARED);
    let (ours, theirs) = ours.map(|ours| (ours, theirs.next())).find(|(ours, theirs)| Some(*ours) != *theirs)?;
    let theirs = theirs.map_or("never".to_owned(), |at| at.format("on %a %F %T").to_string());
    Some(format!(
        "the Rust crate `cron` (Sunday is 1, both day fields must match) is due {theirs} where this is due on {}",
        ours.format("%a %F %T")
    ))
}
