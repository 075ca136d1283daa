//! The odd days of the year, in words: what happens to a schedule where the clock changes.

use chrono::{DateTime, NaiveDate, NaiveDateTime, TimeDelta, Utc};

use crate::{Offsets, Schedule, Tick, schedule::Line, zone::Stretch};

/// A day on which the clock changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OddDay {
    /// The first instant with the new offset.
    pub at: DateTime<Utc>,
    /// The local day on which the clock changes.
    pub date: NaiveDate,
    /// What the clock shows at that instant by the offset before.
    pub from: NaiveDateTime,
    /// What it shows by the new one.
    pub to: NaiveDateTime,
    /// The schedule's ticks on that day.
    pub ticks: Vec<Tick>,
    /// Ticks that the day would have if the clock did not change.
    pub usual: usize,
}

/// Ticks of one day that are looked at: a job that runs every second has 86,400.
const DAY_TICKS_MAX: usize = 100_000;

impl OddDay {
    /// What the clock does, e.g. `the clock goes from 02:00 to 03:00`.
    pub fn change(&self) -> String {
        change(self.from, self.to)
    }

    /// Whether the schedule notices.
    pub fn matters(&self, schedule: &Schedule) -> bool {
        self.ticks.len() != self.usual || self.ticks.iter().any(|tick| schedule.is_moved(tick))
    }
}

impl Schedule {
    /// The days in `(after, until]` on which the clock changes, with the ticks of each.
    pub fn odd_days(&self, after: DateTime<Utc>, until: DateTime<Utc>) -> Vec<OddDay> {
        let day = |schedule: &Self, date: NaiveDate| {
            let begins = |date: NaiveDate| schedule.first_instant(date) - TimeDelta::seconds(1);
            let end = date.succ_opt().map(begins);
            schedule.preview(begins(date), end, DAY_TICKS_MAX).ticks
        };
        let changes = self.offsets().changes(after, until).into_iter();
        changes
            .map(|(at, before, now)| {
                let wall = |offset: i32| at.naive_utc() + TimeDelta::seconds(i64::from(offset));
                let (from, to) = (wall(before), wall(now));
                let date = (from.min(to)).date();
                let steady = self.clone().with_offsets(Offsets::new(before, []).into());
                let usual = day(&steady, date).len();
                OddDay { at, date, from, to, ticks: day(self, date), usual }
            })
            .collect()
    }

    /// What is odd about a tick, where something is.
    pub fn note(&self, tick: &Tick) -> Option<String> {
        if tick.excluded {
            return Some("closed: not launched".into());
        }
        let due = tick.due.with_timezone(tick.local.offset());
        let launched = (tick.due != tick.at).then(|| format!("launched at {}", due.format("%a %F %T")));
        let parts: Vec<String> = self.odd_note(tick).into_iter().chain(launched).collect();
        (!parts.is_empty()).then(|| parts.join("; "))
    }

    fn odd_note(&self, tick: &Tick) -> Option<String> {
        let stretch = self.offsets().stretch_at(tick.at.timestamp());
        let time = tick.local.format("%H:%M");
        match self.oddness(tick, &stretch)? {
            Oddness::LeftOut(wall) => {
                let changes = change(naive(stretch.wall_before), naive(stretch.wall_begin()));
                Some(format!("in place of {}, which this day leaves out: {changes}", wall.format("%H:%M")))
            }
            Oddness::Second => {
                let changes = change(naive(stretch.wall_before), naive(stretch.wall_begin()));
                Some(format!("the second {time} of this day: {changes}"))
            }
            Oddness::First => {
                let changes = change(naive(stretch.wall_end()), naive(stretch.wall_after));
                Some(format!("the first {time} of two: {changes}"))
            }
        }
    }

    /// Whether a tick stands for a wall time that does not exist, or for one of two.
    pub(crate) fn is_moved(&self, tick: &Tick) -> bool {
        self.oddness(tick, &self.offsets().stretch_at(tick.at.timestamp())).is_some()
    }

    fn oddness(&self, tick: &Tick, stretch: &Stretch) -> Option<Oddness> {
        let wall = tick.at.timestamp() + stretch.offset;
        let into = wall.saturating_sub(stretch.wall_begin());
        let fields = || {
            self.lines().iter().filter_map(|line| match line {
                Line::Wall { fields, .. } => Some(fields),
                Line::Every { .. } => None,
            })
        };
        if self.lines().iter().any(|line| matches!(line, Line::Every { .. })) {
            return None;
        }
        let is_named = fields().any(|fields| fields.first_from(wall) == Some(wall));
        if !is_named {
            let left_out =
                fields().filter_map(|fields| fields.first_from(stretch.wall_before.saturating_add(into))).min()?;
            return Some(Oddness::LeftOut(naive(left_out)));
        }
        if into < stretch.repeats() {
            return Some(Oddness::Second);
        }
        (wall >= stretch.wall_end().saturating_sub(stretch.repeated())).then_some(Oddness::First)
    }

    /// The first instant of a local day.
    fn first_instant(&self, date: NaiveDate) -> DateTime<Utc> {
        let wall = date.and_time(chrono::NaiveTime::MIN).and_utc().timestamp();
        DateTime::from_timestamp(self.offsets().first_showing(wall), 0).unwrap_or_default()
    }
}

enum Oddness {
    LeftOut(NaiveDateTime),
    First,
    Second,
}

fn naive(wall: i64) -> NaiveDateTime {
    DateTime::from_timestamp(wall, 0).unwrap_or_default().naive_utc()
}

fn change(from: NaiveDateTime, to: NaiveDateTime) -> String {
    let date = |wall: NaiveDateTime| if from.date() == to.date() { String::new() } else { format!("{} ", wall.date()) };
    format!("the clock goes from {}{} to {}{}", date(from), from.format("%H:%M"), date(to), to.format("%H:%M"))
}
