//! The load that schedules make: launches by the minute.

use chrono::{DateTime, TimeDelta, Utc};

use crate::{Next, Schedule};

/// Launches that are due, by the minute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forecast {
    from: DateTime<Utc>,
    minutes: Vec<u64>,
}

impl Forecast {
    /// Nothing yet, for so many minutes from an instant on.
    pub fn new(from: DateTime<Utc>, minutes: usize) -> Self {
        Self { from, minutes: vec![0; minutes] }
    }

    /// Adds what one schedule launches.
    pub fn add(&mut self, schedule: &Schedule) {
        let until = self.at(self.minutes.len());
        let moved = schedule.moved_max();
        let last = until.checked_add_signed(moved).unwrap_or(until);
        let Some(mut after) = self.from.checked_sub_signed(moved + TimeDelta::seconds(1)) else { return };
        while let Next::Tick(tick) = schedule.next(after) {
            if tick.at >= last {
                return;
            }
            after = tick.at;
            if !tick.excluded && (self.from..until).contains(&tick.due) {
                let minute = (tick.due - self.from).num_minutes();
                self.minutes[usize::try_from(minute).unwrap_or_default()] += 1;
            }
        }
    }

    fn at(&self, minute: usize) -> DateTime<Utc> {
        let later = i64::try_from(minute).ok().and_then(TimeDelta::try_minutes);
        later.and_then(|later| self.from.checked_add_signed(later)).unwrap_or(self.from)
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
        let busy = self.minutes.iter().enumerate().filter(|(_, n)| **n > 0);
        let mut all: Vec<(DateTime<Utc>, u64)> = busy.map(|(minute, n)| (self.at(minute), *n)).collect();
        all.sort_by_key(|(at, launches)| (std::cmp::Reverse(*launches), *at));
        all.truncate(count);
        all
    }
}
