//! The part of a job's table that says when it is due.

use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};
use tickhost_ledger::spec::bounds;
use tickhost_schedule::{
    ClosedDays, Definition, Dialect, Dst, Expression, Gap, OnClosedDay, Overlap, ParseError, Schedule,
};
use toml::{Spanned, de::DeValue};

use super::{Fields, Reader, calendar};

/// The fields of a job that belong here.
pub(super) const FIELDS: [&str; 10] = [
    "schedule",
    "time_zone",
    "dialect",
    "dst",
    "not_before",
    "not_after",
    "max_launches",
    "window",
    "exclude",
    "on_closed_day",
];

/// When a job is due.
pub(super) struct Timing {
    pub(super) definition: Definition,
    pub(super) calendars: Vec<String>,
    pub(super) max_launches: Option<u64>,
}

/// Reads them. `job` is its whole name, by which values are picked.
pub(super) fn read(f: &mut Fields<'_, '_, '_>, job: &str, dir: &Path, warnings: &mut Vec<String>) -> Option<Timing> {
    let zone = f.optional("time_zone", "UTC".to_owned(), |r, v| {
        let zone = r.string(v)?;
        r.checked(v, Schedule::parse("@daily", &zone, DateTime::UNIX_EPOCH).map(|_| zone))
    });
    let dialect = f.optional("dialect", Dialect::Cron, |r, v| {
        r.choice(v, &[("cron", Dialect::Cron), ("quartz", Dialect::Quartz)])
    });
    let reading = dialect.unwrap_or_default();
    let schedule = f.required("schedule", "write e.g. `schedule = \"0 2 * * *\"`", |r, v| {
        let Some(list) = v.get_ref().as_array() else {
            return expression(r, v, reading, job, warnings).map(|e| vec![e]);
        };
        if list.is_empty() || list.len() as u64 > *bounds::EXPRESSIONS.end() {
            let expected = format!("one to {} expressions", bounds::EXPRESSIONS.end());
            return r.wrong_type(v, &expected);
        }
        let read: Vec<_> = list.iter().map(|v| expression(r, v, reading, job, warnings)).collect();
        read.into_iter().collect()
    });
    let dst = f.optional("dst", Dst::default(), dst);
    let not_before = f.optional("not_before", None, |r, v| r.instant(v).map(Some));
    let not_after = f.optional("not_after", None, |r, v| r.instant(v).map(Some));
    let max_launches = f.optional("max_launches", None, |r, v| r.number(v, &bounds::LAUNCHES).map(Some));
    let window_ms = f.optional("window", 0, |r, v| r.duration_ms(v, &bounds::WINDOW_MS));
    let exclude = f.optional("exclude", Vec::new(), |r, v| exclude(r, v, dir));
    let on_closed_day = f.optional("on_closed_day", OnClosedDay::Skip, |r, v| {
        let all = [
            ("skip", OnClosedDay::Skip),
            ("next-open", OnClosedDay::NextOpen),
            ("previous-open", OnClosedDay::PreviousOpen),
        ];
        r.choice(v, &all)
    });
    let window_s = whole_seconds(f, "window", window_ms?)?;
    let exclude = exclude?;
    let mut closed = ClosedDays::default();
    exclude.iter().for_each(|(_, days)| closed.extend(days));
    let definition = Definition {
        schedule: schedule?,
        dialect: dialect?,
        zone: zone?,
        dst: dst?,
        not_before: not_before?,
        not_after: not_after?,
        window_s,
        closed,
        on_closed_day: on_closed_day?,
    };
    // What each part allows may not go together.
    let schedule = Schedule::new(&definition, Some(job), DateTime::UNIX_EPOCH);
    let gap_s = schedule.as_ref().ok().and_then(|schedule| schedule.shortest_gap_s(DateTime::UNIX_EPOCH));
    if let Some(gap_s) = gap_s.filter(|gap_s| i64::from(window_s) > *gap_s) {
        let message = format!("the window of {window_s} s is longer than the {gap_s} s between two ticks");
        f.problem("window", message, Some("make it shorter, or the schedule sparser".into()));
        return None;
    }
    if let Err(error) = schedule {
        let several = definition.schedule.len() > 1 && !error.span.is_empty();
        let which = if several { format!("`{}`: ", definition.schedule[error.expression]) } else { String::new() };
        f.problem("schedule", format!("{which}{}", error.message), Some(error.help));
        return None;
    }
    let calendars = exclude.into_iter().map(|(name, _)| name).collect();
    Some(Timing { definition, calendars, max_launches: max_launches? })
}

/// Ticks and launches are named in seconds.
pub(super) fn whole_seconds(f: &mut Fields<'_, '_, '_>, name: &str, ms: u64) -> Option<u32> {
    if !ms.is_multiple_of(1_000) {
        f.problem(name, format!("`{name}` is {ms} ms, expected whole seconds"), None);
        return None;
    }
    u32::try_from(ms / 1_000).ok()
}

fn expression(
    r: &mut Reader<'_>,
    value: &Spanned<DeValue<'_>>,
    dialect: Dialect,
    job: &str,
    warnings: &mut Vec<String>,
) -> Option<String> {
    let text = r.string(value)?;
    match Expression::parse(&text, dialect, Some(job)) {
        Ok(expression) => {
            warnings.extend(expression.warnings().iter().cloned());
            Some(text)
        }
        Err(error) => {
            refuse(r, value, &text, error);
            None
        }
    }
}

/// The caret stands under what is wrong, one quote behind the beginning of the value.
fn refuse(r: &mut Reader<'_>, value: &Spanned<DeValue<'_>>, text: &str, error: ParseError) {
    let whole = value.span();
    let start = whole.start + 1;
    // With escapes, or in three quotes, the columns of the text are not those of the file.
    let is_plain = r.text.get(start..whole.end.saturating_sub(1)) == Some(text);
    let message = format!("`{text}`: {}", error.message);
    let place = error.field.map_or(message.clone(), |field| format!("{field} field of {message}"));
    let caret = start + error.span.start..start + error.span.end.max(error.span.start + 1);
    let span = if is_plain { caret } else { whole };
    r.problem(span, place, Some(error.help));
}

fn dst(r: &mut Reader<'_>, value: &Spanned<DeValue<'_>>) -> Option<Dst> {
    let table = r.table(value, "dst")?;
    let mut f = Fields::new(r, "dst", table, value.span(), &["gap", "overlap"]);
    let gap = f.optional("gap", None, |r, v| {
        let all = [("after", Some(Gap::After)), ("skip", Some(Gap::Skip)), ("shift", Some(Gap::Shift))];
        r.choice(v, &all)
    });
    let overlap = f.optional("overlap", None, |r, v| {
        let all = [("first", Some(Overlap::First)), ("second", Some(Overlap::Second)), ("both", Some(Overlap::Both))];
        r.choice(v, &all)
    });
    Some(Dst { gap: gap?, overlap: overlap? })
}

/// Calendars by their names: `calendars/NAME.toml` beside the manifest.
fn exclude(r: &mut Reader<'_>, value: &Spanned<DeValue<'_>>, dir: &Path) -> Option<Vec<(String, ClosedDays)>> {
    let Some(names) = value.get_ref().as_array() else {
        return r.wrong_type(value, "a list of calendars, e.g. [\"holidays/fr\"]");
    };
    let mut calendars = Vec::new();
    for name in names.iter() {
        let text = r.string(name)?;
        let is_plain = |part: &str| !part.is_empty() && !part.starts_with('.') && !part.contains('\\');
        if !text.split('/').all(is_plain) {
            return r.wrong_type(name, "the name of a calendar, e.g. \"holidays/fr\" for `calendars/holidays/fr.toml`");
        }
        let path: PathBuf = dir.join("calendars").join(format!("{text}.toml"));
        match calendar::read(&path) {
            Ok(days) => calendars.push((text, days)),
            Err(message) => {
                let help = "a calendar is a file with `days`, `every_year` and `weekdays`; see the README".to_owned();
                r.problem(name.span(), format!("calendar `{text}`: {message}"), Some(help));
                return None;
            }
        }
    }
    Some(calendars)
}

impl Reader<'_> {
    /// An instant with its offset, as a date and time of TOML or as text.
    fn instant(&mut self, value: &Spanned<DeValue<'_>>) -> Option<DateTime<Utc>> {
        let text = match value.get_ref() {
            DeValue::Datetime(instant) => instant.to_string(),
            DeValue::String(text) => text.to_string(),
            _ => String::new(),
        };
        match DateTime::parse_from_rfc3339(&text) {
            Ok(instant) => Some(instant.to_utc()),
            Err(_) => self.wrong_type(value, "an instant with its offset, e.g. 2026-09-17T02:00:00Z"),
        }
    }
}
