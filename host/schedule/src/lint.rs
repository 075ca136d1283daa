//! What is allowed and seldom meant, about a schedule as a whole.

use chrono::{DateTime, TimeDelta, Utc};

use crate::{
    Expression, Field, Next, Schedule,
    expression::{Calendar, Kind},
    field::Values,
};

/// How far ahead odd days are looked for: each happens once in that time.
const AHEAD: TimeDelta = TimeDelta::days(400);

/// One thing that may not be meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lint {
    /// Its kind, the same for ever.
    pub kind: LintKind,
    /// What is so.
    pub message: String,
    /// What to write if it is not meant; empty where there is nothing to write.
    pub help: String,
}

/// The kinds of lints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LintKind {
    /// An uneven or too large step.
    Step,
    /// A wall time that is left out or shown twice.
    OddDay,
    /// Days that short months do not have.
    ShortMonth,
    /// Due at the full hour, as most of everybody's jobs.
    Herd,
    /// It is never due.
    Never,
}

impl std::fmt::Display for LintKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Step => "step",
            Self::OddDay => "odd-day",
            Self::ShortMonth => "short-month",
            Self::Herd => "herd",
            Self::Never => "never",
        })
    }
}

/// Everything about a schedule, from `after` on, that may not be meant.
pub fn lint(schedule: &Schedule, expressions: &[Expression], after: DateTime<Utc>) -> Vec<Lint> {
    let mut lints = Vec::new();
    for expression in expressions {
        let add = |message: &String| Lint { kind: LintKind::Step, message: message.clone(), help: String::new() };
        lints.extend(expression.warnings().iter().map(add));
        if let Kind::Calendar(calendar) = &expression.kind {
            lints.extend(short_month(calendar));
            lints.extend(herd(expression, calendar));
        }
    }
    if schedule.next(after) == Next::Never {
        let message = "it is never due again".into();
        let help = "a date that does not exist, years that are over, or `not_after` in the past".into();
        lints.push(Lint { kind: LintKind::Never, message, help });
    }
    lints.extend(odd_days(schedule, expressions, after));
    lints
}

fn short_month(calendar: &Calendar) -> Option<Lint> {
    let day = &calendar.day_of_month;
    let first = day.set.first_from(0)?;
    let others_match = day.last != 0 || day.nearest != 0 || calendar.either_day();
    if first < 29 || others_match {
        return None;
    }
    let days =
        if first == 29 { "29 February is missing in three years of four" } else { "months without it are passed over" };
    Some(Lint {
        kind: LintKind::ShortMonth,
        message: format!("day {first} of the month does not exist in every month: {days}"),
        help: "write `L` for the last day of the month".into(),
    })
}

fn herd(expression: &Expression, calendar: &Calendar) -> Option<Lint> {
    let only_zero = |values: &Values| values.set.len() == 1 && values.set.contains(0) && values.picked.is_empty();
    if !only_zero(&calendar.minute) || !only_zero(&calendar.second) {
        return None;
    }
    Some(Lint {
        kind: LintKind::Herd,
        message: "it is due at :00, when most jobs are".into(),
        help: format!("if the minute does not matter, write `{}`", expression.spread()?),
    })
}

fn odd_days(schedule: &Schedule, expressions: &[Expression], after: DateTime<Utc>) -> Vec<Lint> {
    let by_elapsed_time = expressions.iter().all(Expression::is_by_elapsed_time);
    let mut lints = Vec::new();
    for day in schedule.odd_days(after, after + AHEAD) {
        // By elapsed time an hour more or less is what was asked for, unless nothing is left of the day.
        if !day.matters(schedule) || by_elapsed_time && !day.ticks.is_empty() {
            continue;
        }
        let notes: Vec<String> = day.ticks.iter().filter_map(|tick| schedule.note(tick)).collect();
        let what = match (day.ticks.len(), notes.first()) {
            (0, _) => "it is not due at all".to_owned(),
            (_, Some(note)) => format!("it is due at {}, {note}", times(&day.ticks, schedule)),
            (n, None) => format!("it is due {n} times instead of {}", day.usual),
        };
        let clock = if notes.is_empty() { format!(" ({})", day.change()) } else { String::new() };
        lints.push(Lint {
            kind: LintKind::OddDay,
            message: format!("on {} {what}{clock}", day.date.format("%a %F")),
            help: "choose a time outside of that hour, or say what is meant with `dst = { gap = …, overlap = … }`"
                .into(),
        });
    }
    lints
}

/// The wall times of the ticks that are odd.
fn times(ticks: &[crate::Tick], schedule: &Schedule) -> String {
    let odd = ticks.iter().filter(|tick| schedule.note(tick).is_some());
    let times: Vec<String> = odd.map(|tick| tick.local.format("%H:%M").to_string()).take(3).collect();
    times.join(", ")
}

impl Expression {
    /// The same expression with its minute picked by the job's name; `None` where it has no minute of its own.
    pub fn spread(&self) -> Option<String> {
        let Kind::Calendar(calendar) = &self.kind else { return None };
        let text = self.to_string();
        let (prefix, body) = match text.split_once(' ') {
            Some((zone, rest)) if zone.contains("TZ=") => (format!("{zone} "), rest.to_owned()),
            _ => (String::new(), text),
        };
        let hour = if calendar.hour.is_full(Field::Hour) { "*".to_owned() } else { numbers(&calendar.hour) };
        let body = match body.as_str() {
            "@hourly" => "0 * * * *".into(),
            text if text.starts_with('@') => {
                let day = if calendar.day_of_month.star { "*" } else { "1" };
                let month = if calendar.month.star { "*" } else { "1" };
                let weekday = if calendar.day_of_week.star { "*" } else { "0" };
                format!("0 {hour} {day} {month} {weekday}")
            }
            _ => body,
        };
        let mut fields: Vec<&str> = body.split_ascii_whitespace().collect();
        let minute = if fields.len() == 5 { 0 } else { 1 };
        *fields.get_mut(minute)? = "?";
        Some(format!("{prefix}{}", fields.join(" ")))
    }
}

fn numbers(values: &Values) -> String {
    values.set.iter().map(|value| value.to_string()).collect::<Vec<_>>().join(",")
}
