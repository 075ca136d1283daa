//! Calendars: days on which a job does not run, or runs on another day instead.

use chrono::{Datelike, NaiveDate, Weekday};
use serde::{Deserialize, Serialize};

/// Days that are closed: holidays, freeze periods, weekends.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ClosedDays {
    /// First and last day of each range, both closed.
    pub ranges: Vec<(NaiveDate, NaiveDate)>,
    /// Month and day, closed in every year.
    pub every_year: Vec<(u32, u32)>,
    /// Weekdays that are closed, 0 for Sunday to 6.
    pub weekdays: Vec<u8>,
}

/// What happens to a tick that falls on a closed day. The tick keeps its name in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnClosedDay {
    /// It is not launched: `skipped(excluded)`.
    #[default]
    Skip,
    /// It is launched at the same wall time of the next day that is open.
    NextOpen,
    /// It is launched at the same wall time of the last day before that is open.
    PreviousOpen,
}

/// How far an open day is looked for. Beyond it a tick is not moved but left out.
const LOOK_DAYS: u32 = 366;

impl ClosedDays {
    /// Whether nothing is closed.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty() && self.every_year.is_empty() && self.weekdays.is_empty()
    }

    /// How many entries there are, of all kinds.
    pub fn entries(&self) -> u64 {
        (self.ranges.len() + self.every_year.len() + self.weekdays.len()) as u64
    }

    /// What closes nothing though it is written, in a sentence.
    pub(crate) fn fault(&self) -> Option<String> {
        let range = self.ranges.iter().find(|(first, last)| first > last);
        let range = range.map(|(first, last)| format!("the closed days `{first}..{last}` end before they begin"));
        let exists = |month: u32, day: u32| NaiveDate::from_ymd_opt(2024, month, day).is_some();
        let yearly = self.every_year.iter().find(|(month, day)| !exists(*month, *day));
        let yearly = yearly.map(|(month, day)| format!("the closed day `{month:02}-{day:02}` is no day of any year"));
        let weekday = self.weekdays.iter().find(|day| **day > 6).map(|day| format!("`{day}` is no weekday"));
        range.or(yearly).or(weekday)
    }

    /// Whether a day is closed.
    pub fn contains(&self, day: NaiveDate) -> bool {
        self.ranges.iter().any(|(first, last)| (first..=last).contains(&&day))
            || self.every_year.contains(&(day.month(), day.day()))
            || self.weekdays.contains(&(day.weekday().num_days_from_sunday() as u8))
    }

    /// Closes the days of another calendar as well.
    pub fn extend(&mut self, other: &Self) {
        self.ranges.extend(&other.ranges);
        self.ranges.sort_unstable();
        self.ranges.dedup();
        self.every_year.extend(&other.every_year);
        self.every_year.sort_unstable();
        self.every_year.dedup();
        self.weekdays.extend(&other.weekdays);
        self.weekdays.sort_unstable();
        self.weekdays.dedup();
    }

    /// The open day that stands for a closed one.
    pub(crate) fn open_day(&self, day: NaiveDate, on_closed: OnClosedDay) -> Option<NaiveDate> {
        let step = match on_closed {
            OnClosedDay::Skip => return None,
            OnClosedDay::NextOpen => NaiveDate::succ_opt,
            OnClosedDay::PreviousOpen => NaiveDate::pred_opt,
        };
        let mut days = std::iter::successors(step(&day), step).take(LOOK_DAYS as usize);
        days.find(|day| !self.contains(*day))
    }
}

/// A weekday by its English name or the first three letters of it, 0 for Sunday.
pub fn weekday_number(name: &str) -> Option<u8> {
    name.parse::<Weekday>().ok().map(|day| day.num_days_from_sunday() as u8)
}
