//! The load that schedules make: launches by the minute.

use chrono::{DateTime, TimeDelta, Utc};

use crate::{Next, Schedule};

/// Launches that are due, by the minute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forecast {
    from: DateTime<Utc>,
    minutes: Vec<u64>,
}

/// A launch may be placed a day behind its tick, or moved by calendars over a long weekend and more.
const MOVED_MAX: TimeDelta = TimeDelta::days(40);

impl Forecast {
    /// Nothing yet, for so many minutes from an instant on.
    pub fn new(from: DateTime<Utc>, minutes: usize) -> Self {
        Self { from, minutes: vec![0; minutes] }
    }

    /// Adds what one schedule launches.
    pub fn add(&mut self, schedule: &Schedule) {
        let until = self.from + TimeDelta::minutes(i64::try_from(self.minutes.len()).unwrap_or(i64::MAX));
        let moved = if schedule.is_plain() { TimeDelta::zero() } else { MOVED_MAX };
        let mut after = self.from - moved - TimeDelta::seconds(1);
        while let Next::Tick(tick) = schedule.next(after) {
            if tick.at >= until + moved {
                return;
            }
            after = tick.at;
            if !tick.excluded && (self.from..until).contains(&tick.due) {
                let minute = (tick.due - self.from).num_minutes();
                self.minutes[usize::try_from(minute).unwrap_or_default()] += 1;
            }
        }
    }

    /// The beginning.
    pub fn from(&self) -> DateTime<Utc> {
        self.from
    }

    /// Launches in each minute.
    pub fn minutes(&self) -> &[u64] {
        &self.minutes
    }

    /// Launches in all.
    pub fn total(&self) -> u64 {
        self.minutes.iter().sum()
    }

    /// The fullest minutes with what is launched in each, the fullest first.
    pub fn busiest(&self, count: usize) -> Vec<(DateTime<Utc>, u64)> {
        let at = |minute: usize| self.from + TimeDelta::minutes(i64::try_from(minute).unwrap_or(i64::MAX));
        let mut all: Vec<(DateTime<Utc>, u64)> =
            self.minutes.iter().enumerate().filter(|(_, n)| **n > 0).map(|(minute, n)| (at(minute), *n)).collect();
        all.sort_by_key(|(at, launches)| (std::cmp::Reverse(*launches), *at));
        all.truncate(count);
        all
    }
}
