//! What the owner of a job says about when it is due.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::{ClosedDays, Dialect, OnClosedDay};

/// Everything that says when a job is due, as its owner wrote it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Definition {
    /// The expressions. A tick that two of them name is one tick.
    pub schedule: Vec<String>,
    /// How they are read.
    #[serde(default)]
    pub dialect: Dialect,
    /// The IANA name of the zone in which they are read.
    pub zone: String,
    /// What happens on the two odd days of the year.
    #[serde(default)]
    pub dst: Dst,
    /// No tick before this instant.
    #[serde(default)]
    pub not_before: Option<DateTime<Utc>>,
    /// No tick after this instant.
    #[serde(default)]
    pub not_after: Option<DateTime<Utc>>,
    /// Seconds after the tick within which the launch is placed, by the job's name; 0 places it at the tick.
    #[serde(default)]
    pub window_s: u32,
    /// Days that are closed.
    #[serde(default)]
    pub closed: ClosedDays,
    /// What happens to ticks on closed days.
    #[serde(default)]
    pub on_closed_day: OnClosedDay,
}

impl Definition {
    /// One expression in a zone, and nothing else.
    pub fn new(expression: &str, zone: &str) -> Self {
        Self {
            schedule: vec![expression.to_owned()],
            dialect: Dialect::Cron,
            zone: zone.to_owned(),
            dst: Dst::default(),
            not_before: None,
            not_after: None,
            window_s: 0,
            closed: ClosedDays::default(),
            on_closed_day: OnClosedDay::Skip,
        }
    }
}

/// What happens where wall time jumps. What is not said goes by cronie's rule: an expression whose minute or hour
/// field starts with `*` runs by elapsed time (a missing time is skipped, a repeated one is due both times); any
/// other runs once for each wall time (`gap = "after"`, `overlap = "first"`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dst {
    /// A wall time that does not exist.
    #[serde(default)]
    pub gap: Option<Gap>,
    /// A wall time that comes twice.
    #[serde(default)]
    pub overlap: Option<Overlap>,
}

/// What becomes of a wall time that does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Gap {
    /// The first instant after the gap.
    After,
    /// Nothing.
    Skip,
    /// As much later as the gap is long: 02:30 becomes 03:30.
    Shift,
}

/// What becomes of a wall time that comes twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Overlap {
    /// The first time.
    First,
    /// The second time.
    Second,
    /// Both times.
    Both,
}
