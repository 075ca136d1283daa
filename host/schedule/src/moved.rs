//! What a release of the tz database changes: the ticks that move.

use std::{collections::BTreeMap, sync::Arc};

use chrono::{DateTime, NaiveDateTime, Utc};

use crate::{Offsets, Schedule, Tick};

/// A tick that another table of offsets places elsewhere. It is the same tick where both sides have the same wall
/// time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moved {
    /// The wall time.
    pub wall: NaiveDateTime,
    /// Where it is by the schedule's own table; absent where that has no such wall time.
    pub was: Option<Tick>,
    /// Where the other table places it.
    pub is: Option<Tick>,
}

/// Every tick in `(after, until]` that `other` places elsewhere, by wall time. At most `count` ticks are looked at.
pub fn moved(
    schedule: &Schedule,
    other: Arc<Offsets>,
    after: DateTime<Utc>,
    until: DateTime<Utc>,
    count: usize,
) -> Vec<Moved> {
    let by_wall = |schedule: &Schedule| {
        let mut ticks: BTreeMap<NaiveDateTime, Vec<Tick>> = BTreeMap::new();
        for tick in schedule.preview(after, Some(until), count).ticks {
            ticks.entry(tick.local.naive_local()).or_default().push(tick);
        }
        ticks
    };
    let (was, mut is) = (by_wall(schedule), by_wall(&schedule.clone().with_offsets(other)));
    let mut moved = Vec::new();
    let mut pair = |wall, was: Vec<Tick>, is: Vec<Tick>| {
        for n in 0..was.len().max(is.len()) {
            let (was, is) = (was.get(n).copied(), is.get(n).copied());
            if was.map(|tick| tick.at) != is.map(|tick| tick.at) {
                moved.push(Moved { wall, was, is });
            }
        }
    };
    for (wall, was) in was {
        pair(wall, was, is.remove(&wall).unwrap_or_default());
    }
    for (wall, is) in is {
        pair(wall, Vec::new(), is);
    }
    moved.sort_by_key(|moved| moved.wall);
    moved
}
