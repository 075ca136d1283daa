//! Zones: names, and the stretches of time in which a zone's offset does not change.

use chrono::{DateTime, Duration, FixedOffset, NaiveDateTime, Offset, TimeZone, Utc};
use chrono_tz::Tz;

use crate::ParseError;

/// Shorter than the shortest stretch between two changes of offset that matters: a walk that looks every
/// seven days sees each of them (Morocco's pause for Ramadan, the shortest that recurs, is about 30 days).
const LOOK: Duration = Duration::days(7);

/// Larger jumps are corrections of the calendar, not daylight saving (Samoa's missing day): what they leave
/// out is not made up, what they repeat is due again. The bound is cronie's.
const JUMP_MAX: Duration = Duration::hours(3);

/// The zone of that IANA name, in any case.
///
/// # Errors
/// A name that the bundled tz database does not have. There is no fall-back to UTC or the machine's zone.
pub(crate) fn parse(name: &str) -> Result<Tz, ParseError> {
    Tz::from_str_insensitive(name).map_err(|_| {
        ParseError::new(
            None,
            0..0,
            format!("`{name}` is no zone of the tz database {}", crate::TZ_VERSION),
            "write an IANA name, e.g. `Europe/Paris`, or `UTC`",
        )
    })
}

pub(crate) fn offset(zone: Tz, at: DateTime<Utc>) -> FixedOffset {
    zone.offset_from_utc_datetime(&at.naive_utc()).fix()
}

/// Wall time in `zone` at `at`.
pub(crate) fn wall(zone: Tz, at: DateTime<Utc>) -> NaiveDateTime {
    at.naive_utc() + offset(zone, at)
}

/// A stretch of time with one offset.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stretch {
    /// What wall time is ahead of UTC throughout.
    pub(crate) offset: FixedOffset,
    /// Where it begins, if that is near enough to `at` to matter: (instant, wall time by the offset before).
    pub(crate) begin: Option<(DateTime<Utc>, NaiveDateTime)>,
}

impl Stretch {
    /// The stretch that `at` lies in.
    pub(crate) fn at(zone: Tz, at: DateTime<Utc>) -> Self {
        let offset_now = offset(zone, at);
        let before = at - LOOK;
        let begin = (offset(zone, before) != offset_now).then(|| {
            let change = first_change(zone, before, at);
            let was = offset(zone, change - Duration::seconds(1));
            (change, change.naive_utc() + was)
        });
        Self { offset: offset_now, begin }
    }

    /// Where a job that goes by wall time takes up the walk: wall times below this were served before the
    /// change (a repeated hour), or are served now, at its first instant (a missing hour).
    pub(crate) fn resume(&self) -> Option<(DateTime<Utc>, NaiveDateTime)> {
        let (change, wall_before) = self.begin?;
        let wall_now = change.naive_utc() + self.offset;
        let jump = (wall_now - wall_before).abs();
        Some((change, if jump > JUMP_MAX { wall_now } else { wall_before }))
    }

    /// The instant of a wall time, taking this stretch's offset for granted.
    pub(crate) fn instant(&self, wall: NaiveDateTime) -> DateTime<Utc> {
        (wall - self.offset).and_utc()
    }
}

/// The first instant in `(from, until]` at which the offset is another than just before, if there is one.
pub(crate) fn next_change(zone: Tz, from: DateTime<Utc>, until: DateTime<Utc>) -> Option<DateTime<Utc>> {
    let now = offset(zone, from);
    let mut low = from;
    while low < until {
        let high = (low + LOOK).min(until);
        if offset(zone, high) != now {
            return Some(first_change(zone, low, high));
        }
        low = high;
    }
    None
}

/// Bisects to the second in which the offset stops being what it is at `low`.
fn first_change(zone: Tz, mut low: DateTime<Utc>, mut high: DateTime<Utc>) -> DateTime<Utc> {
    let was = offset(zone, low);
    while (high - low).num_seconds() > 1 {
        let middle = low + Duration::seconds((high - low).num_seconds() / 2);
        if offset(zone, middle) == was { low = middle } else { high = middle }
    }
    high
}
