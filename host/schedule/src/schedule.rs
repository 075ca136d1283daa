//! A schedule: an expression in a zone, and the ticks it names.

use std::time::Duration;

use chrono::{DateTime, FixedOffset, NaiveDate, NaiveTime, SubsecRound, TimeDelta, Utc};
use chrono_tz::Tz;

use crate::{
    Expression, ParseError,
    expression::Kind,
    wall::Walk,
    zone::{self, Stretch},
};

/// An expression in a zone.
///
/// A tick is named by the schedule and never by a clock: [`Schedule::next`] is a function of its arguments
/// alone.
#[derive(Debug, Clone)]
pub struct Schedule {
    expression: Expression,
    zone: Tz,
    rule: Rule,
}

#[derive(Debug, Clone)]
enum Rule {
    /// Every wall time that matches, each time the clock shows it.
    Elapsed(Walk),
    /// Once for each wall time: a missing one at the first instant after the gap, a repeated one the first
    /// time.
    Wall(Walk),
    Every {
        period: Duration,
        anchor: DateTime<Utc>,
    },
}

/// An instant that a schedule names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tick {
    /// The nominal instant, in whole seconds.
    pub at: DateTime<Utc>,
    /// The same instant in the schedule's zone, with its offset.
    pub local: DateTime<FixedOffset>,
}

/// What comes after an instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The next tick.
    Tick(Tick),
    /// No tick, ever: an impossible date, or years that are over.
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

/// The first instant of 2100.
fn horizon() -> DateTime<Utc> {
    let date = NaiveDate::from_ymd_opt(2100, 1, 1).unwrap_or(NaiveDate::MAX);
    date.and_time(NaiveTime::MIN).and_utc()
}

/// The Gregorian calendar and its weekdays repeat every 28 years within 1901–2099: what does not fire in the
/// last 28 of them never fires.
const CALENDAR_CYCLE: TimeDelta = TimeDelta::days(28 * 365 + 7);

impl Schedule {
    /// Reads an expression and a zone's name. A `TZ=` prefix in the expression wins over `zone`. `anchor` is
    /// the instant the job was stored; only `@every` counts from it.
    ///
    /// # Errors
    /// What the dialect refuses, by field and column; a zone that the tz database does not have.
    pub fn parse(expression: &str, zone: &str, anchor: DateTime<Utc>) -> Result<Self, ParseError> {
        let expression: Expression = expression.parse()?;
        let zone = zone::parse(zone)?;
        Self::new(expression, zone, anchor)
    }

    /// As [`Schedule::parse`], of parts that are read already.
    ///
    /// # Errors
    /// Only where the calendar engine refuses what the dialect took, which is a fault of this crate.
    pub fn new(expression: Expression, zone: Tz, anchor: DateTime<Utc>) -> Result<Self, ParseError> {
        let zone = expression.zone().unwrap_or(zone);
        let rule = match &expression.kind {
            Kind::Every(period) => Rule::Every { period: *period, anchor },
            Kind::Calendar(calendar) if calendar.by_elapsed_time() => Rule::Elapsed(Walk::new(calendar)?),
            Kind::Calendar(calendar) => Rule::Wall(Walk::new(calendar)?),
        };
        Ok(Self { expression, zone, rule })
    }

    /// The expression as it was written.
    pub fn expression(&self) -> &Expression {
        &self.expression
    }

    /// The zone in which wall time is read.
    pub fn zone(&self) -> Tz {
        self.zone
    }

    /// The first tick after `after`; never `after` itself.
    pub fn next(&self, after: DateTime<Utc>) -> Next {
        // Ticks are whole seconds.
        let after = after.trunc_subsecs(0);
        let found = match &self.rule {
            Rule::Elapsed(walk) => self.next_elapsed(walk, after),
            Rule::Wall(walk) => self.next_wall(walk, after),
            Rule::Every { period, anchor } => return self.next_every(*period, *anchor, after),
        };
        match found {
            Some(at) if at < horizon() => Next::Tick(self.tick(at)),
            _ if self.fires_in_a_full_cycle() => Next::Horizon,
            _ => Next::Never,
        }
    }

    /// The last tick in `(after, until]`. The work does not depend on how many there are.
    pub fn last_in(&self, after: DateTime<Utc>, until: DateTime<Utc>) -> Option<Tick> {
        let next = |from| match self.next(from) {
            Next::Tick(tick) if tick.at <= until => Some(tick),
            _ => None,
        };
        let until = until.trunc_subsecs(0);
        // `next(x) <= until` holds up to the last tick and fails from there on.
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

    /// Up to `count` ticks in `(after, until]`.
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
                    preview.horizon_reached = until.is_none_or(|until| until >= horizon());
                    break;
                }
            }
        }
        preview
    }

    /// An instant as a tick of this schedule's zone, whether or not the schedule names it.
    pub fn tick(&self, at: DateTime<Utc>) -> Tick {
        Tick { at, local: at.with_timezone(&zone::offset(self.zone, at)) }
    }

    /// Whether the schedule names this instant.
    pub fn names(&self, at: DateTime<Utc>) -> bool {
        matches!(self.next(at - TimeDelta::seconds(1)), Next::Tick(tick) if tick.at == at)
    }

    fn next_elapsed(&self, walk: &Walk, after: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let mut from = after;
        loop {
            let stretch = Stretch::at(self.zone, from);
            let candidate = stretch.instant(walk.next(zone::wall(self.zone, from))?);
            match zone::next_change(self.zone, from, candidate.min(horizon())) {
                None => return Some(candidate),
                // The clock changes first. One second before the change is as far as this offset reaches.
                Some(change) => {
                    let first_wall = zone::wall(self.zone, change);
                    if walk.next(first_wall - TimeDelta::seconds(1)) == Some(first_wall) {
                        return Some(change);
                    }
                    from = change;
                }
            }
        }
    }

    fn next_wall(&self, walk: &Walk, after: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let mut from = after;
        // Whether `from` is the first instant of its stretch and may itself be the tick.
        let mut inclusive = false;
        loop {
            let stretch = Stretch::at(self.zone, from);
            let mut wall = zone::wall(self.zone, from);
            if inclusive {
                wall -= TimeDelta::seconds(1);
            }
            if let Some((change, resume)) = stretch.resume() {
                let resume = resume - TimeDelta::seconds(1);
                // Inside a repeated hour the walk goes on where the first pass ended; at the change itself
                // it goes back to what the gap left out.
                wall = if inclusive && change == from { resume } else { wall.max(resume) };
            }
            let next = walk.next(wall)?;
            let floor = if inclusive { from } else { from + TimeDelta::seconds(1) };
            let candidate = stretch.instant(next).max(floor);
            match zone::next_change(self.zone, from, candidate.min(horizon())) {
                None => return Some(candidate),
                Some(change) => {
                    from = change;
                    inclusive = true;
                }
            }
        }
    }

    fn next_every(&self, period: Duration, anchor: DateTime<Utc>, after: DateTime<Utc>) -> Next {
        let period = i64::try_from(period.as_secs()).unwrap_or(i64::MAX);
        let elapsed = (after - anchor).num_seconds().max(0);
        let at = anchor + TimeDelta::seconds((elapsed / period + 1) * period);
        if at < horizon() { Next::Tick(self.tick(at)) } else { Next::Horizon }
    }

    /// Whether the fields can match at all, in years that are not over.
    fn fires_in_a_full_cycle(&self) -> bool {
        match &self.rule {
            Rule::Elapsed(walk) | Rule::Wall(walk) => walk.next((horizon() - CALENDAR_CYCLE).naive_utc()).is_some(),
            Rule::Every { .. } => true,
        }
    }
}
