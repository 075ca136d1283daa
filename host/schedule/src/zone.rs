//! Zones: names, and the table of a zone's offsets.

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock, Mutex, PoisonError},
};

use chrono::{DateTime, FixedOffset, Offset, TimeZone, Utc};
use chrono_tz::Tz;

use crate::ParseError;

/// Larger jumps are corrections of the calendar, not daylight saving (Samoa's missing day): what they leave out is
/// not made up, what they repeat is due again. The bound is cronie's.
const JUMP_SECONDS_MAX: i64 = 3 * 3_600;

const DAY: i64 = 86_400;
/// 1850: before any zone had a standard time.
const SCAN_FROM: i64 = -3_786_825_600;
/// The first instant of 2100, where the bundled rules end.
pub(crate) const HORIZON: i64 = 4_102_444_800;

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

/// A zone's offsets through time: what wall time is ahead of UTC, and the instants at which that changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offsets {
    /// Beginnings of stretches with one offset, in seconds since 1970, and the offset in seconds. The first begins
    /// before all time.
    stretches: Vec<(i64, i32)>,
}

/// A stretch of time with one offset, and how it joins its neighbours.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stretch {
    index: usize,
    /// First instant.
    pub(crate) begin: i64,
    /// First instant after it.
    pub(crate) end: i64,
    pub(crate) offset: i64,
    /// What wall time shows at `begin` by the offset before.
    pub(crate) wall_before: i64,
    /// What wall time shows at `end` by the offset after.
    pub(crate) wall_after: i64,
}

impl Stretch {
    pub(crate) fn wall_begin(&self) -> i64 {
        self.begin.saturating_add(self.offset)
    }

    pub(crate) fn wall_end(&self) -> i64 {
        self.end.saturating_add(self.offset)
    }

    /// Seconds of wall time that are left out just before it; 0 where none are, or where they are not made up.
    pub(crate) fn gap(&self) -> i64 {
        let jump = self.wall_begin().saturating_sub(self.wall_before);
        if (1..=JUMP_SECONDS_MAX).contains(&jump) { jump } else { 0 }
    }

    /// Seconds of wall time at its beginning that were shown before; 0 as in [`Stretch::gap`].
    pub(crate) fn repeats(&self) -> i64 {
        let jump = self.wall_before.saturating_sub(self.wall_begin());
        if (1..=JUMP_SECONDS_MAX).contains(&jump) { jump } else { 0 }
    }

    /// Seconds of wall time at its end that are shown again.
    pub(crate) fn repeated(&self) -> i64 {
        let jump = self.wall_end().saturating_sub(self.wall_after);
        if (1..=JUMP_SECONDS_MAX).contains(&jump) { jump } else { 0 }
    }
}

/// Built once for each zone: it takes milliseconds and is the same for ever.
static TABLES: LazyLock<Mutex<BTreeMap<&'static str, Arc<Offsets>>>> = LazyLock::new(Mutex::default);

impl Offsets {
    /// The offsets of a zone of the bundled tz database, up to the end of 2099.
    pub fn of(zone: Tz) -> Arc<Self> {
        let mut tables = TABLES.lock().unwrap_or_else(PoisonError::into_inner);
        tables.entry(zone.name()).or_insert_with(|| Arc::new(Self::scan(zone))).clone()
    }

    /// A table of one's own: the offset before all changes, and each change with the offset from there on, both in
    /// seconds, in the order of time. Changes that change nothing are left out.
    pub fn new(first: i32, changes: impl IntoIterator<Item = (DateTime<Utc>, i32)>) -> Self {
        let mut stretches = vec![(i64::MIN, first)];
        for (at, offset) in changes {
            if stretches.last().is_some_and(|(begin, before)| *begin < at.timestamp() && *before != offset) {
                stretches.push((at.timestamp(), offset));
            }
        }
        Self { stretches }
    }

    /// chrono-tz answers for one instant at a time. No zone has ever changed its offset twice within a day.
    fn scan(zone: Tz) -> Self {
        let mut stretches = vec![(i64::MIN, offset(zone, SCAN_FROM))];
        let (mut at, mut now) = (SCAN_FROM, offset(zone, SCAN_FROM));
        while at < HORIZON {
            let next = at + DAY;
            if offset(zone, next) != now {
                let (mut low, mut high) = (at, next);
                while high - low > 1 {
                    let middle = low + (high - low) / 2;
                    if offset(zone, middle) == now { low = middle } else { high = middle }
                }
                now = offset(zone, high);
                stretches.push((high, now));
            }
            at = next;
        }
        Self { stretches }
    }

    /// What wall time is ahead of UTC at an instant.
    pub fn at(&self, instant: DateTime<Utc>) -> FixedOffset {
        let seconds = self.stretch_at(instant.timestamp()).offset;
        // A zone's offset is less than a day.
        FixedOffset::east_opt(seconds as i32).unwrap_or(Utc.fix())
    }

    /// The instants at which the offset changes, in `(after, until]`, with the offsets before and after in seconds.
    pub fn changes(&self, after: DateTime<Utc>, until: DateTime<Utc>) -> Vec<(DateTime<Utc>, i32, i32)> {
        let inside = |pair: &[(i64, i32)]| {
            let (at, offset) = pair[1];
            let is_inside = after.timestamp() < at && at <= until.timestamp();
            is_inside.then(|| Some((DateTime::from_timestamp(at, 0)?, pair[0].1, offset))).flatten()
        };
        self.stretches.windows(2).filter_map(inside).collect()
    }

    pub(crate) fn stretch_at(&self, instant: i64) -> Stretch {
        self.stretch(self.stretches.partition_point(|(begin, _)| *begin <= instant).saturating_sub(1))
    }

    /// The stretch after that one.
    pub(crate) fn after(&self, stretch: &Stretch) -> Option<Stretch> {
        (stretch.index + 1 < self.stretches.len()).then(|| self.stretch(stretch.index + 1))
    }

    /// The first stretch from `from` on in which wall time goes beyond `wall`.
    pub(crate) fn reaching(&self, from: Stretch, wall: i64) -> Stretch {
        if wall < from.wall_end() {
            return from;
        }
        // Wall time is never more than a day from UTC, nor is a change.
        let near = self.stretch_at(wall.saturating_sub(2 * DAY));
        let mut stretch = if near.index > from.index { near } else { from };
        while wall >= stretch.wall_end() {
            match self.after(&stretch) {
                Some(next) => stretch = next,
                None => return stretch,
            }
        }
        stretch
    }

    /// The first instant that shows a wall time or, where it is left out, a later one.
    pub(crate) fn first_showing(&self, wall: i64) -> i64 {
        let stretch = self.reaching(self.stretch_at(wall.saturating_sub(2 * DAY)), wall);
        wall.saturating_sub(stretch.offset).max(stretch.begin)
    }

    fn stretch(&self, index: usize) -> Stretch {
        let (begin, offset) = self.stretches[index];
        let offset = i64::from(offset);
        let before = index.checked_sub(1).map_or(offset, |i| i64::from(self.stretches[i].1));
        let (end, after) = self.stretches.get(index + 1).map_or((i64::MAX, offset), |(end, o)| (*end, i64::from(*o)));
        let (wall_before, wall_after) = (begin.saturating_add(before), end.saturating_add(after));
        Stretch { index, begin, end, offset, wall_before, wall_after }
    }
}

fn offset(zone: Tz, at: i64) -> i32 {
    let at = DateTime::from_timestamp(at, 0).unwrap_or_default();
    zone.offset_from_utc_datetime(&at.naive_utc()).fix().local_minus_utc()
}
