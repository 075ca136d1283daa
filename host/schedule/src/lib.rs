#![doc = include_str!("../README.md")]
//!
//! # Start reading
//!
//! [`Schedule`] is where ticks come from; `fields` walks wall time, `zone` maps it to instants, `expression` and `field`
//! read the text.

mod calendar;
mod definition;
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
pub use definition::{Definition, Dst, Gap, Overlap};
pub use error::ParseError;
pub use expression::{Dialect, Expression};
pub use field::Field;
pub use forecast::Forecast;
pub use lint::{Lint, LintKind, lint};
pub use moved::{Moved, moved};
pub use odd::OddDay;
pub use schedule::{Next, Preview, Schedule, Tick};
pub use zone::Offsets;

/// The version of the bundled tz database, e.g. `2025b`.
pub const TZ_VERSION: &str = chrono_tz::IANA_TZDB_VERSION;
