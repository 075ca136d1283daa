//! A schedule: expressions in a zone, and the ticks they name.

use std::sync::Arc;

use chrono::{DateTime, FixedOffset, NaiveDate, TimeDelta, Utc};
use chrono_tz::Tz;

use crate::{
    ClosedDays, Definition, Dst, Expression, Gap, OnClosedDay, Overlap, ParseError,
    expression::Kind,
    fields::Fields,
    spread,
    zone::{self, HORIZON, Offsets, Stretch},
};

/// Expressions in a zone.
///
/// A tick is named by the schedule and never by a clock: [`Schedule::next`] is a function of its arguments alone.
#[derive(Debug, Clone)]
pub struct Schedule {
    lines: Lines,
    zone: Tz,
    offsets: Arc<Offsets>,
    extras: Option<Box<Extras>>,
}

/// One expression is the rule, and a million of them must be small.
#[derive(Debug, Clone)]
enum Lines {
    One(Line),
    Many(Box<[Line]>),
}

#[derive(Debug, Clone)]
pub(crate) enum Line {
    Wall { fields: Fields, gap: Gap, overlap: Overlap },
    Every { period: i64, anchor: i64 },
}

/// What few schedules have.
#[derive(Debug, Clone)]
struct Extras {
    not_before: i64,
    not_after: i64,
    /// Seconds from the tick to its launch.
    delay: i64,
    has_window: bool,
    closed: ClosedDays,
    on_closed: OnClosedDay,
}

/// An instant that a schedule names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tick {
    /// The nominal instant, in whole seconds: the tick's name.
    pub at: DateTime<Utc>,
    /// The same instant in the schedule's zone, with its offset.
    pub local: DateTime<FixedOffset>,
    /// When it is launched: inside its window, or on the open day that stands for a closed one.
    pub due: DateTime<Utc>,
    /// It falls on a closed day and is not launched.
    pub excluded: bool,
}

impl Tick {
    /// When it is decided: at its instant, or before, where its launch is.
    pub fn decided_at(&self) -> DateTime<Utc> {
        self.at.min(self.due)
    }
}

/// What comes after an instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The next tick.
    Tick(Tick),
    /// No tick, ever: an impossible date, years that are over, or the end of the schedule.
    Never,
    /// None until the end of 2099, where the bundled tz rules end; there may be later ones.
    Horizon,
}

/// Ticks in an interval, for people to look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preview {
    /// In order.
    pub ticks: Vec<Tick>,
    /// The schedule names no instant after the last of these, ever.
    pub never: bool,
    /// The tz rules end before the interval does.
    pub horizon_reached: bool,
}

/// The longest way from a tick back to its launch: [`OnClosedDay::PreviousOpen`] looks for an open day so far.
const LEAD_MAX: TimeDelta = TimeDelta::days(367);

impl Schedule {
    /// Reads one expression in a zone. A `TZ=` prefix in the expression wins over `zone`. `anchor` is the instant
    /// the job was stored; only `@every` counts from it.
    ///
    /// # Errors
    /// As [`Schedule::new`].
    pub fn parse(expression: &str, zone: &str, anchor: DateTime<Utc>) -> Result<Self, ParseError> {
        Self::new(&Definition::new(expression, zone), None, anchor)
    }

    /// Reads a definition. `name` is the job, `namespace/name`, by which values and places in windows are picked.
    ///
    /// # Errors
    /// What the dialect refuses, by expression, field and column; a zone that the tz database does not have; parts
    /// that do not go together.
    pub fn new(definition: &Definition, name: Option<&str>, anchor: DateTime<Utc>) -> Result<Self, ParseError> {
        let mut zone = zone::parse(&definition.zone)?;
        let mut lines = Vec::with_capacity(definition.schedule.len());
        for (index, text) in definition.schedule.iter().enumerate() {
            let at = |error: ParseError| ParseError { expression: index, ..error };
            let expression = Expression::parse(text, definition.dialect, name).map_err(at)?;
            match expression.zone() {
                Some(named) if definition.schedule.len() > 1 && named != zone => {
                    return Err(at(ParseError::new(
                        None,
                        0..text.len(),
                        format!(
                            "this expression is in {named} and the job in {zone}; the expressions of a job share one zone"
                        ),
                        "write `time_zone` for all of them, or two jobs",
                    )));
                }
                Some(named) => zone = named,
                None => {}
            }
            lines.push(Line::new(&expression, definition.dst, anchor));
        }
        let Some(first) = lines.first().cloned() else {
            return Err(ParseError::new(None, 0..0, "there is no expression", "write at least one"));
        };
        let extras = Extras::new(definition, name, &lines)?;
        let lines = if lines.len() == 1 { Lines::One(first) } else { Lines::Many(lines.into()) };
        Ok(Self { lines, zone, offsets: Offsets::of(zone), extras })
    }

    /// The same schedule under another table of offsets: what a release of the tz database would change.
    pub fn with_offsets(self, offsets: Arc<Offsets>) -> Self {
        Self { offsets, ..self }
    }

    /// The zone in which wall time is read.
    pub fn zone(&self) -> Tz {
        self.zone
    }

    /// Its offsets.
    pub fn offsets(&self) -> &Offsets {
        &self.offsets
    }

    /// The first tick after `after`, by name; never `after` itself.
    pub fn next(&self, after: DateTime<Utc>) -> Next {
        let mut from = after.timestamp() + 1;
        let mut until = HORIZON;
        if let Some(extras) = &self.extras {
            from = from.max(extras.not_before);
            until = until.min(extras.not_after.saturating_add(1));
        }
        let lines = self.lines();
        match lines.iter().filter_map(|line| line.first_from(&self.offsets, from)).min() {
            Some(at) if at < until => Next::Tick(self.tick_at(at)),
            _ if until < HORIZON => Next::Never,
            Some(_) => Next::Horizon,
            None if lines.iter().any(Line::fires_for_ever) => Next::Horizon,
            None => Next::Never,
        }
    }

    /// The last tick in `(after, until]`, by name. The work does not depend on how many there are.
    pub fn last_named(&self, after: DateTime<Utc>, until: DateTime<Utc>) -> Option<Tick> {
        self.last(after, until, |tick| tick.at <= until)
    }

    /// The last tick after `after`, by name, whose launch is due at `until` or before.
    pub fn last_due(&self, after: DateTime<Utc>, until: DateTime<Utc>) -> Option<Tick> {
        let is_early = self.extras.as_ref().is_some_and(|extras| extras.on_closed == OnClosedDay::PreviousOpen);
        let lead = if is_early { LEAD_MAX } else { TimeDelta::zero() };
        self.last(after, until + lead, |tick| tick.due <= until)
    }

    /// The last tick in `(after, until]` for which `holds`, which holds up to some tick and for none after it.
    fn last(&self, after: DateTime<Utc>, until: DateTime<Utc>, holds: impl Fn(&Tick) -> bool) -> Option<Tick> {
        let next = |from| match self.next(from) {
            Next::Tick(tick) if holds(&tick) => Some(tick),
            _ => None,
        };
        let mut found = next(after)?;
        let mut high = until;
        while (high - found.at).num_seconds() > 1 {
            let middle = found.at + TimeDelta::seconds((high - found.at).num_seconds() / 2);
            match next(middle) {
                Some(later) => found = later,
                None => high = middle,
            }
        }
        Some(next(found.at).unwrap_or(found))
    }

    /// Up to `count` ticks in `(after, until]`, by name.
    pub fn preview(&self, after: DateTime<Utc>, until: Option<DateTime<Utc>>, count: usize) -> Preview {
        let mut preview = Preview { ticks: Vec::new(), never: false, horizon_reached: false };
        let mut from = after;
        while preview.ticks.len() < count {
            match self.next(from) {
                Next::Tick(tick) if until.is_some_and(|until| tick.at > until) => break,
                Next::Tick(tick) => {
                    from = tick.at;
                    preview.ticks.push(tick);
                }
                Next::Never => {
                    preview.never = true;
                    break;
                }
                Next::Horizon => {
                    preview.horizon_reached = until.is_none_or(|until| until.timestamp() >= HORIZON);
                    break;
                }
            }
        }
        if preview.ticks.len() == count && !preview.never {
            preview.never = self.next(from) == Next::Never;
        }
        preview
    }

    /// The shortest time between two of the next ticks, in seconds; `None` where there are no two.
    pub fn shortest_gap_s(&self, after: DateTime<Utc>) -> Option<i64> {
        // An hour of minutes, a day of hours and more.
        let ticks = self.preview(after, None, 61).ticks;
        ticks.windows(2).map(|pair| (pair[1].at - pair[0].at).num_seconds()).min()
    }

    /// The first time between two ticks that is shorter than `least_s`, in seconds, within a year from the first tick after
    /// that instant: by then every month and weekday has come round. Looks at every tick of it, half a million where there
    /// is one a minute.
    pub fn gap_below(&self, after: DateTime<Utc>, least_s: i64) -> Option<i64> {
        if least_s <= 1 {
            return None; // Ticks are whole seconds.
        }
        let Next::Tick(first) = self.next(after) else { return None };
        let until = first.at + TimeDelta::days(366);
        let mut last = first.at;
        while let Next::Tick(tick) = self.next(last)
            && tick.at <= until
        {
            let gap = (tick.at - last).num_seconds();
            if gap < least_s {
                return Some(gap);
            }
            last = tick.at;
        }
        None
    }

    /// An instant as a tick of this schedule, whether or not the schedule names it.
    pub fn tick(&self, at: DateTime<Utc>) -> Tick {
        self.tick_at(at.timestamp())
    }

    /// Whether the schedule names this instant.
    pub fn names(&self, at: DateTime<Utc>) -> bool {
        matches!(self.next(at - TimeDelta::seconds(1)), Next::Tick(tick) if tick.at == at)
    }

    /// Whether every line runs by wall time, where an hour that comes twice is one. For the others a tz rule that
    /// changes moves nothing that counts.
    pub fn is_by_wall_time(&self) -> bool {
        self.lines().iter().all(|line| matches!(line, Line::Wall { overlap: Overlap::First | Overlap::Second, .. }))
    }

    /// The furthest that a launch is from its tick, to either side.
    pub(crate) fn moved_max(&self) -> TimeDelta {
        let Some(extras) = &self.extras else { return TimeDelta::zero() };
        let days = if extras.on_closed == OnClosedDay::Skip { TimeDelta::zero() } else { LEAD_MAX };
        days + TimeDelta::seconds(extras.delay)
    }

    /// Whether launches are spread over a window.
    pub(crate) fn has_window(&self) -> bool {
        self.extras.as_ref().is_some_and(|extras| extras.has_window)
    }

    pub(crate) fn lines(&self) -> &[Line] {
        match &self.lines {
            Lines::One(line) => std::slice::from_ref(line),
            Lines::Many(lines) => lines,
        }
    }

    fn tick_at(&self, at: i64) -> Tick {
        let instant = DateTime::from_timestamp(at, 0).unwrap_or_default();
        let local = instant.with_timezone(&self.offsets.at(instant));
        let mut tick = Tick { at: instant, local, due: instant, excluded: false };
        let Some(extras) = &self.extras else { return tick };
        let date = local.date_naive();
        if extras.closed.contains(date) {
            match extras.closed.open_day(date, extras.on_closed) {
                Some(open) => tick.due = self.same_time_on(open, &local),
                None => tick.excluded = true,
            }
        }
        tick.due += TimeDelta::seconds(extras.delay);
        tick
    }

    /// The same wall time on another day; where it does not exist the first instant after the gap, where it comes
    /// twice the first.
    fn same_time_on(&self, day: NaiveDate, local: &DateTime<FixedOffset>) -> DateTime<Utc> {
        let wall = day.and_time(local.time()).and_utc().timestamp();
        DateTime::from_timestamp(self.offsets.first_showing(wall), 0).unwrap_or_default()
    }
}

impl Line {
    fn new(expression: &Expression, dst: Dst, anchor: DateTime<Utc>) -> Self {
        match &expression.kind {
            Kind::Every(period) => {
                Self::Every { period: i64::try_from(period.as_secs()).unwrap_or(i64::MAX), anchor: anchor.timestamp() }
            }
            Kind::Calendar(calendar) => {
                let (gap, overlap) = match calendar.by_elapsed_time() {
                    true => (Gap::Skip, Overlap::Both),
                    false => (Gap::After, Overlap::First),
                };
                Self::Wall {
                    fields: Fields::new(calendar),
                    gap: dst.gap.unwrap_or(gap),
                    overlap: dst.overlap.unwrap_or(overlap),
                }
            }
        }
    }

    /// Whether there would be ticks beyond the horizon.
    fn fires_for_ever(&self) -> bool {
        match self {
            Self::Wall { fields, .. } => fields.fires_for_ever(),
            Self::Every { .. } => true,
        }
    }

    /// The first instant from `from` on.
    fn first_from(&self, offsets: &Offsets, from: i64) -> Option<i64> {
        match self {
            Self::Every { period, anchor } => {
                let periods = (from - anchor).div_euclid(*period) + i64::from((from - anchor).rem_euclid(*period) != 0);
                Some(anchor + periods.max(1) * period)
            }
            Self::Wall { fields, gap, overlap } => first_of_wall(fields, *gap, *overlap, offsets, from),
        }
    }
}

/// Goes from one stretch of constant offset to the next. In each, wall time is a plain line; what wall time leaves
/// out or shows twice is at the stretch's ends.
fn first_of_wall(fields: &Fields, gap: Gap, overlap: Overlap, offsets: &Offsets, from: i64) -> Option<i64> {
    let mut from = from;
    let mut stretch = offsets.stretch_at(from);
    loop {
        if let Some(at) = in_gap(fields, gap, &stretch, from) {
            // What the gap left out comes before what follows it, but for a shifted time.
            let later = in_stretch(fields, overlap, &stretch, from).ok();
            return Some(later.map_or(at, |later| later.min(at)));
        }
        match in_stretch(fields, overlap, &stretch, from) {
            Ok(at) => return Some(at),
            Err(Beyond::Never) => return None,
            Err(Beyond::Wall(wall)) => {
                // The stretch that shows this wall time, or the first one after the gap that leaves it out.
                stretch = offsets.reaching(offsets.after(&stretch)?, wall);
                from = stretch.begin;
            }
        }
    }
}

enum Beyond {
    Never,
    /// Wall time goes on from here in a later stretch.
    Wall(i64),
}

/// The first instant from `from` on whose wall time matches, within a stretch.
fn in_stretch(fields: &Fields, overlap: Overlap, stretch: &Stretch, from: i64) -> Result<i64, Beyond> {
    let mut wall = from.saturating_add(stretch.offset);
    if overlap == Overlap::First {
        wall = wall.max(stretch.wall_begin().saturating_add(stretch.repeats()));
    }
    let end = match overlap {
        Overlap::Second => stretch.wall_end() - stretch.repeated(),
        Overlap::First | Overlap::Both => stretch.wall_end(),
    };
    match fields.first_from(wall) {
        Some(wall) if wall < end => Ok(wall - stretch.offset),
        // The next stretch shows some wall times again: it is not to be passed over.
        _ if stretch.wall_after < stretch.wall_end() => Err(Beyond::Wall(stretch.wall_after)),
        Some(wall) => Err(Beyond::Wall(wall)),
        None => Err(Beyond::Never),
    }
}

/// What a stretch makes up of the gap before it, from `from` on.
fn in_gap(fields: &Fields, gap: Gap, stretch: &Stretch, from: i64) -> Option<i64> {
    let length = stretch.gap();
    if length == 0 || from >= stretch.begin.saturating_add(length) {
        return None;
    }
    let left_out = stretch.wall_before..stretch.wall_before + length;
    match gap {
        Gap::Skip => None,
        Gap::After if from > stretch.begin => None,
        Gap::After => fields.first_from(left_out.start).filter(|wall| *wall < left_out.end).map(|_| stretch.begin),
        Gap::Shift => {
            let wall = fields.first_from(left_out.start + (from - stretch.begin).max(0))?;
            (wall < left_out.end).then(|| stretch.begin + (wall - left_out.start))
        }
    }
}

impl Extras {
    fn new(definition: &Definition, name: Option<&str>, lines: &[Line]) -> Result<Option<Box<Self>>, ParseError> {
        let refuse = |message: &str, help: &str| Err(ParseError::new(None, 0..0, message, help));
        if let (Some(from), Some(to)) = (definition.not_before, definition.not_after)
            && from > to
        {
            return refuse("`not_after` lies before `not_before`", "swap them, or drop one");
        }
        let moves = definition.on_closed_day != OnClosedDay::Skip;
        if moves && definition.closed.is_empty() {
            return refuse(
                "`on_closed_day` moves ticks from closed days, and no calendar closes any",
                "add `exclude = [\"…\"]`, or days to the calendar",
            );
        }
        let times: u32 =
            lines.iter().map(|line| if let Line::Wall { fields, .. } = line { fields.times_a_day() } else { 2 }).sum();
        if moves && times > 1 {
            return refuse(
                "`on_closed_day` moves ticks to other days, which takes one expression with one time a day; this schedule has more than one time a day",
                "write one expression with one time, or `on_closed_day = \"skip\"`",
            );
        }
        if moves && definition.dst.overlap == Some(Overlap::Both) {
            return refuse(
                "`on_closed_day` moves ticks, and `overlap = \"both\"` makes two of one time",
                "write `overlap = \"first\"` or `\"second\"`, or `on_closed_day = \"skip\"`",
            );
        }
        if let Some(wrong) = definition.closed.fault() {
            return refuse(&wrong, "write ranges in order, days that exist, and weekdays from 0 to 6");
        }
        let delay = match (definition.window_s, name) {
            (0, _) => 0,
            (window, Some(name)) => i64::from(spread::pick(name, "window", window)),
            (_, None) => {
                return refuse(
                    "the place in a `window` is picked by the job's name, and none is given",
                    "give it, e.g. `--name billing/nightly`",
                );
            }
        };
        let extras = Self {
            not_before: definition.not_before.map_or(i64::MIN, ceil),
            not_after: definition.not_after.map_or(i64::MAX, |at| at.timestamp()),
            delay,
            has_window: definition.window_s > 0,
            closed: definition.closed.clone(),
            on_closed: definition.on_closed_day,
        };
        let plain = definition.not_before.is_none() && definition.not_after.is_none() && definition.window_s == 0;
        Ok((!plain || !extras.closed.is_empty()).then(|| Box::new(extras)))
    }
}

/// The first whole second at or after an instant.
fn ceil(at: DateTime<Utc>) -> i64 {
    at.timestamp() + i64::from(at.timestamp_subsec_nanos() > 0)
}
