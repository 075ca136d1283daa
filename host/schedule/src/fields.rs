//! Walking wall time: the fields of an expression as bits, and the first wall time that they name.
//!
//! Wall time has no zone here. It is counted in seconds as if it were UTC.

use chrono::{Datelike, NaiveDate};

use crate::{
    Field,
    expression::Calendar,
    set::{Set, base},
};

const DAY: i64 = 86_400;
/// Wall time is walked up to here.
const YEAR_MAX: i32 = 2099;

/// The fields of a calendar expression, small: there may be a million of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fields {
    second: u64,
    minute: u64,
    hour: u32,
    month: u16,
    /// Bit n: day n. Bit 0 is not used.
    day: u32,
    /// Bit n: n days before the last.
    last: u32,
    /// Bit n: the weekday nearest to day n; bit 0: the last weekday of the month.
    nearest: u32,
    /// Bit n: weekday n, Sunday is 0.
    weekday: u8,
    /// Bit n: the last weekday n of the month.
    last_weekday: u8,
    /// Bit 7(k − 1) + n: the k-th weekday n.
    nth_weekday: u64,
    /// Either day field is enough; else both must match.
    either: bool,
    /// No day matches, in any year.
    never: bool,
    /// The years do not end by what is written.
    is_open_ended: bool,
    /// Absent where every year matches.
    years: Option<Box<Set>>,
}

impl Fields {
    pub(crate) fn new(calendar: &Calendar) -> Self {
        let (dom, dow) = (&calendar.day_of_month, &calendar.day_of_week);
        let years = (!calendar.year.is_full(Field::Year)).then(|| Box::new(calendar.year.set));
        let mut fields = Self {
            second: calendar.second.set.low(),
            minute: calendar.minute.set.low(),
            hour: calendar.hour.set.low() as u32,
            month: calendar.month.set.low() as u16,
            day: dom.set.low() as u32,
            last: dom.last,
            nearest: dom.nearest,
            weekday: dow.set.low() as u8,
            last_weekday: dow.last as u8,
            nth_weekday: dow.nth,
            either: calendar.either_day(),
            never: false,
            is_open_ended: calendar.year.open,
            years,
        };
        // The calendar repeats every 28 years between 1901 and 2099. What has no day in 28 years has none.
        // With years of its own, what has no day in all of them.
        let from = if fields.years.is_none() { 2072 } else { 1970 };
        fields.never = fields.first_day(from, 1, 1).is_none();
        fields
    }

    /// Whether years do not end it, nor dates that do not exist.
    pub(crate) fn fires_for_ever(&self) -> bool {
        self.is_open_ended && !self.never
    }

    /// The first wall time from `from` on.
    pub(crate) fn first_from(&self, from: i64) -> Option<i64> {
        if self.never {
            return None;
        }
        let (days, seconds) = (from.div_euclid(DAY), from.rem_euclid(DAY) as u32);
        let date = date_of(days)?;
        let first = self.first_day(date.year(), date.month(), date.day())?;
        if first == days
            && let Some(time) = self.time_from(seconds)
        {
            return Some(days * DAY + i64::from(time));
        }
        let first = if first == days {
            let next = date.succ_opt()?;
            self.first_day(next.year(), next.month(), next.day())?
        } else {
            first
        };
        Some(first * DAY + i64::from(self.time_from(0)?))
    }

    /// The number of times of one day.
    pub(crate) fn times_a_day(&self) -> u32 {
        self.second.count_ones() * self.minute.count_ones() * self.hour.count_ones()
    }

    /// The first second of the day from `from` on that the time fields name.
    fn time_from(&self, from: u32) -> Option<u32> {
        let (hour, minute, second) = (from / 3_600, from / 60 % 60, from % 60);
        let first_second = self.second.trailing_zeros();
        if self.hour & 1 << hour != 0 {
            if self.minute & 1 << minute != 0
                && let Some(second) = bit_from(self.second, second)
            {
                return Some(hour * 3_600 + minute * 60 + second);
            }
            if let Some(minute) = bit_from(self.minute, minute + 1) {
                return Some(hour * 3_600 + minute * 60 + first_second);
            }
        }
        let hour = bit_from(u64::from(self.hour), hour + 1)?;
        Some(hour * 3_600 + self.minute.trailing_zeros() * 60 + first_second)
    }

    /// The first day from that date on, in days since 1970.
    fn first_day(&self, mut year: i32, mut month: u32, mut day: u32) -> Option<i64> {
        while year <= YEAR_MAX {
            if let Some(years) = &self.years {
                let first = i64::from(base(Field::Year));
                let next = years.first_from(u32::try_from(i64::from(year) - first).unwrap_or(0))?;
                let next = i32::try_from(i64::from(next) + first).ok()?;
                if next != year {
                    (year, month, day) = (next, 1, 1);
                }
            }
            while let Some(next) = bit_from(u64::from(self.month), month) {
                if next != month {
                    (month, day) = (next, 1);
                }
                let first = NaiveDate::from_ymd_opt(year, month, 1)?;
                let matching = self.days_of(first) & (!0 << day);
                if matching != 0 {
                    let epoch_day = i64::from(first.num_days_from_ce()) - EPOCH_DAY;
                    return Some(epoch_day + i64::from(matching.trailing_zeros()) - 1);
                }
                (month, day) = (month + 1, 1);
            }
            (year, month, day) = (year + 1, 1, 1);
        }
        None
    }

    /// The days of a month that match: bit n is day n.
    fn days_of(&self, first: NaiveDate) -> u32 {
        let length = u32::from(first.num_days_in_month());
        let in_month = (!0_u32 >> (31 - length)) & !1;
        let starts_on = first.weekday().num_days_from_sunday();
        let weekday = |day: u32| (starts_on + day - 1) % 7;

        let mut by_day = self.day;
        for back in bits(u64::from(self.last)).take_while(|back| *back < length) {
            by_day |= 1 << (length - back);
        }
        for near in bits(u64::from(self.nearest)) {
            // Never into another month, as everywhere: the 1st on a Saturday is met by Monday the 3rd.
            let target = if near == 0 { length } else { near };
            by_day |= match weekday(target) {
                _ if target > length => 0,
                6 if target == 1 => 1 << 3,
                6 => 1 << (target - 1),
                0 if near == 0 || target == length => 1 << (target - 2),
                0 => 1 << (target + 1),
                _ => 1 << target,
            };
        }
        let first_of = |weekday: u32| 1 + (7 + weekday - starts_on) % 7;
        let mut by_weekday = 0_u32;
        for weekday in bits(u64::from(self.weekday)) {
            by_weekday |= EVERY_SEVENTH << first_of(weekday);
        }
        for weekday in bits(u64::from(self.last_weekday)) {
            let first = first_of(weekday);
            by_weekday |= 1 << (first + (length - first) / 7 * 7);
        }
        for nth in bits(self.nth_weekday) {
            let day = first_of(nth % 7) + nth / 7 * 7;
            by_weekday |= if day <= length { 1 << day } else { 0 };
        }
        in_month & if self.either { by_day | by_weekday } else { by_day & by_weekday }
    }
}

/// Days from the first year's first day to 1970.
const EPOCH_DAY: i64 = 719_163;
/// Bits 0, 7, 14, 21 and 28.
const EVERY_SEVENTH: u32 = 0x1020_4081;

fn date_of(days: i64) -> Option<NaiveDate> {
    NaiveDate::from_num_days_from_ce_opt(i32::try_from(days + EPOCH_DAY).ok()?)
}

fn bit_from(bits: u64, from: u32) -> Option<u32> {
    let rest = bits.checked_shr(from).unwrap_or(0);
    (rest != 0).then(|| from + rest.trailing_zeros())
}

fn bits(mut word: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros())?;
        word &= word - 1;
        Some(bit)
    })
}
