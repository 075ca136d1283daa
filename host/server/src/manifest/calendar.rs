//! A calendar's file: the days that are closed.
//!
//! ```toml
//! days = ["2026-05-29", "2026-12-24..2026-12-31"]
//! every_year = ["01-01", "12-25"]
//! weekdays = ["SAT", "SUN"]
//! ```

use std::path::Path;

use chrono::NaiveDate;
use serde::Deserialize;
use tickhost_schedule::{ClosedDays, weekday_number};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    days: Vec<Day>,
    #[serde(default)]
    every_year: Vec<String>,
    #[serde(default)]
    weekdays: Vec<String>,
}

/// TOML has dates of its own; a range is a text.
#[derive(Deserialize)]
#[serde(untagged)]
enum Day {
    Text(String),
    Date(toml::value::Datetime),
}

/// Reads a calendar.
///
/// # Errors
/// A sentence that names the file and what is wrong in it.
pub(super) fn read(path: &Path) -> Result<ClosedDays, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("read `{}`: {e}", path.display()))?;
    parse(&text).map_err(|e| format!("`{}`: {e}", path.display()))
}

fn parse(text: &str) -> Result<ClosedDays, String> {
    let file: File = toml::from_str(text).map_err(|e| {
        let line = e.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
        format!("line {line}: {}", e.message())
    })?;
    let mut closed = ClosedDays::default();
    for day in file.days {
        let text = match day {
            Day::Text(text) => text,
            Day::Date(date) => date.to_string(),
        };
        closed.ranges.push(range(&text)?);
    }
    closed.ranges.sort_unstable();
    for day in file.every_year {
        closed.every_year.push(month_and_day(&day)?);
    }
    for name in file.weekdays {
        let number = weekday_number(&name).ok_or_else(|| format!("`{name}` is no weekday; write e.g. `SAT`"))?;
        closed.weekdays.push(number);
    }
    Ok(closed)
}

fn range(text: &str) -> Result<(NaiveDate, NaiveDate), String> {
    let date = |text: &str| {
        let date = text.trim().parse::<NaiveDate>();
        date.map_err(|_| format!("`{text}` is no date; write `2026-12-24`, or `2026-12-24..2026-12-31` for a range"))
    };
    let (first, last) = text.split_once("..").unwrap_or((text, text));
    let (first, last) = (date(first)?, date(last)?);
    if first > last {
        return Err(format!("`{text}` ends before it begins"));
    }
    Ok((first, last))
}

fn month_and_day(text: &str) -> Result<(u32, u32), String> {
    let parts = text.split_once('-').and_then(|(month, day)| Some((month.parse().ok()?, day.parse().ok()?)));
    // 2024 has a 29 February.
    parts
        .filter(|(month, day)| NaiveDate::from_ymd_opt(2024, *month, *day).is_some())
        .ok_or_else(|| format!("`{text}` is no day of every year; write month and day, e.g. `12-25`"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_calendar_reads_dates_ranges_years_and_weekdays() {
        let text = "days = [2026-05-29, \"2026-12-24..2026-12-26\"]\nevery_year = [\"01-01\"]\nweekdays = [\"sun\"]\n";
        let closed = parse(text).unwrap();
        let is_closed = |date: &str| closed.contains(date.parse().unwrap());
        for date in ["2026-05-29", "2026-12-24", "2026-12-26", "2031-01-01", "2026-09-20"] {
            assert!(is_closed(date), "{date}");
        }
        for date in ["2026-05-28", "2026-12-23", "2026-12-28", "2027-05-31", "2026-09-19"] {
            assert!(!is_closed(date), "{date}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, needle) in [
            ("days = [\"2026-13-01\"]", "`2026-13-01` is no date"),
            ("days = [\"2026-02-02..2026-02-01\"]", "ends before it begins"),
            ("every_year = [\"02-30\"]", "is no day of every year"),
            ("weekdays = [\"Caturday\"]", "`Caturday` is no weekday"),
            ("\nholidays = []", "line 2: unknown field `holidays`"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(needle), "{error}");
        }
    }
}
