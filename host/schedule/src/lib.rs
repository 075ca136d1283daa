//! What a schedule is and which instants it names: cron expressions, `@every`, time zones and the two odd
//! days of the year.
//!
//! The crate is pure. It does not know what time it is, reads no file and asks no environment: a
//! [`Schedule`] and an instant go in, the next tick comes out. The same input gives the same answer on every
//! node and for ever, as long as the bundled tz database ([`TZ_VERSION`]) is the same.
//!
//! Start reading at [`Schedule`]; [`Expression`] is the dialect, `zone` maps wall time to instants.

mod error;
mod expression;
mod field;
mod schedule;
mod wall;
mod zone;

pub use error::ParseError;
pub use expression::Expression;
pub use field::Field;
pub use schedule::{Next, Preview, Schedule, Tick};

/// The version of the bundled tz database, e.g. `2025b`.
pub const TZ_VERSION: &str = chrono_tz::IANA_TZDB_VERSION;
