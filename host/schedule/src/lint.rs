//! What is allowed and seldom meant, about a schedule as a whole.

use chrono::{DateTime, TimeDelta, Utc};

use crate::{
    Dialect, Expression, Next, Schedule,
    expression::{Calendar, Kind, macro_fields},
    field::Values,
};

/// How far ahead odd days are looked for: each happens once in that time.
const AHEAD: TimeDelta = TimeDelta::days(400);

/// Ticks of that time that are looked at. Arbitrary: a year of days, or two weeks of hours.
const TICKS_MAX: usize = 400;

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
            lints.extend(herd(expression).filter(|_| !schedule.has_window()));
        }
    }
    let until = after.checked_add_signed(AHEAD).unwrap_or(after);
    let never = |message: &str, help: &str| Lint { kind: LintKind::Never, message: message.into(), help: help.into() };
    if schedule.next(after) == Next::Never {
        // What else may be said of it does not matter.
        let help = "a date that does not exist, years that are over, or `not_after` in the past";
        return vec![never("it is never due again", help)];
    }
    let ticks = schedule.preview(after, Some(until), TICKS_MAX).ticks;
    if !ticks.is_empty() && ticks.iter().all(|tick| tick.excluded) {
        lints.push(never("every tick of the next year falls on a closed day", "look at the calendars in `exclude`"));
    }
    lints.dedup();
    lints.extend(odd_days(schedule, expressions, (after, until)));
    lints
}

fn short_month(calendar: &Calendar) -> Option<Lint> {
    let day = &calendar.day_of_month;
    if day.last != 0 || day.nearest != 0 || calendar.either_day() {
        return None;
    }
    let length = |month: u32| match month {
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    let months: Vec<u32> = calendar.month.set.iter().collect();
    let short = |day: u32| months.iter().filter(|month| length(**month) < day).count();
    // A star names the days there are.
    let missing = day.set.iter().filter(|day| *day > 28).find(|day| short(*day) > 0).filter(|_| !day.star)?;
    let leap = if missing == 29 { ", in most years" } else { "" };
    Some(Lint {
        kind: LintKind::ShortMonth,
        message: format!(
            "day {missing} does not exist in {} of the {} months that are named{leap}: they are passed over",
            short(missing),
            months.len()
        ),
        help: "write `L` for the last day of the month".into(),
    })
}

fn herd(expression: &Expression) -> Option<Lint> {
    Some(Lint {
        kind: LintKind::Herd,
        message: "it is due at :00, when most jobs are".into(),
        help: format!("if the minute does not matter, write `{}`", expression.spread()?),
    })
}

fn odd_days(
    schedule: &Schedule,
    expressions: &[Expression],
    (after, until): (DateTime<Utc>, DateTime<Utc>),
) -> Vec<Lint> {
    let by_elapsed_time = expressions.iter().all(Expression::is_by_elapsed_time);
    let mut lints = Vec::new();
    for day in schedule.odd_days(after, until) {
        // By elapsed time an hour more or less is what was asked for, unless nothing is left of the day.
        if !day.matters(schedule) || by_elapsed_time && !day.ticks.is_empty() {
            continue;
        }
        let odd = day.ticks.iter().filter(|tick| schedule.is_moved(tick));
        let notes: Vec<String> = odd.filter_map(|tick| schedule.note(tick)).collect();
        let what = match (day.ticks.len(), notes.first()) {
            (0, _) => "it is not due at all".to_owned(),
            (_, Some(note)) => format!("it is due at {}, {note}", times(&day.ticks, schedule)),
            (n, None) => format!("it is due {n} time{} instead of {}", if n == 1 { "" } else { "s" }, day.usual),
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
    let odd = ticks.iter().filter(|tick| schedule.is_moved(tick));
    let times: Vec<String> = odd.map(|tick| tick.local.format("%H:%M").to_string()).take(3).collect();
    times.join(", ")
}

impl Expression {
    /// The same expression with its minute picked by the job's name, where it is due at minute 0 as most jobs are.
    pub fn spread(&self) -> Option<String> {
        let Kind::Calendar(calendar) = &self.kind else { return None };
        let only_zero = |values: &Values| values.set.len() == 1 && values.set.contains(0) && values.picked.is_empty();
        if !only_zero(&calendar.minute) || !only_zero(&calendar.second) {
            return None;
        }
        let text = self.to_string();
        let (zone, mut fields): (Vec<&str>, Vec<&str>) =
            text.split_ascii_whitespace().partition(|word| word.contains("TZ="));
        if let Some(plain) = fields.first().and_then(|word| macro_fields(word)) {
            let second = (self.dialect == Dialect::Quartz).then_some("0");
            fields = second.into_iter().chain(plain.split(' ')).collect();
            // Quartz takes one day field only.
            if self.dialect == Dialect::Quartz {
                let other = if calendar.day_of_week.star { 5 } else { 3 };
                fields[other] = "?";
            }
        }
        let minute = if fields.len() == 5 { 0 } else { 1 };
        // Quartz has another use for `?`.
        *fields.get_mut(minute)? = if self.dialect == Dialect::Quartz { "H" } else { "?" };
        Some([zone, fields].concat().join(" "))
    }
}
