//! What a schedule is and which instants it names: cron expressions, `@every`, time zones and the two odd
//! days of the year.
//!
//! The crate is pure. It does not know what time it is, reads no file and asks no environment: a
//! [`Schedule`] and an instant go in, the next tick comes out. The same input gives the same answer on every
//! node and for ever, as long as the bundled tz database ([`TZ_VERSION`]) is the same.
//!
//! Start reading at [`Schedule`]; [`Expression`] is the dialect, `zone` maps wall time to instants.

mod calendar;
mod error;
mod explain;
mod expression;
mod field;
mod fields;
mod forecast;
mod foreign;
mod lint;
mod moved;
mod odd;
mod schedule;
mod set;
mod spread;
mod zone;

pub use calendar::{ClosedDays, OnClosedDay, weekday_number};
pub use error::ParseError;
pub use expression::{Dialect, Expression};
pub use field::Field;
pub use forecast::Forecast;
pub use lint::{Lint, LintKind, lint};
pub use moved::{Moved, moved};
pub use odd::OddDay;
pub use schedule::{Definition, Dst, Gap, Next, Overlap, Preview, Schedule, Tick};
pub use zone::Offsets;

/// The version of the bundled tz database, e.g. `2025b`.
pub const TZ_VERSION: &str = chrono_tz::IANA_TZDB_VERSION;
