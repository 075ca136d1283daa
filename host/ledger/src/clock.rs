//! Whether the wall clock is to be believed.
//!
//! A tick that is decided stays decided, so a clock that leaps ahead by mistake would use up the ticks of hours
//! to come. Nobody but the operator knows which clock is right; the host waits for a minute, in which the clock
//! can be set back, and goes on from there.

use crate::ids::Stamp;

/// A step ahead that is no step: clocks are slewed by less, and a process may be stopped between its two readings.
const STEP_MS_MAX: i64 = 2_000;
/// How long a step ahead is held against the clock. Arbitrary: long enough for a time service to correct itself.
const HOLD_MS: i64 = 60_000;

/// Compares the wall clock with the time since boot, which nobody can set.
#[derive(Debug, Default)]
pub struct ClockGuard {
    /// Wall time less time since boot, as it is believed.
    offset_ms: Option<i64>,
    hold: Option<Hold>,
    held_back: Option<HeldBack>,
}

/// The wall clock has stepped ahead and is not believed yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hold {
    /// Milliseconds by which it stepped ahead.
    pub ahead_ms: i64,
    /// Milliseconds until it is believed.
    pub left_ms: i64,
    from: Stamp,
    began_ms: i64,
}

/// An interval of wall time, believed since, in which nothing was launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldBack {
    from: Stamp,
    to: Stamp,
}

impl HeldBack {
    /// Whether that instant lies in it.
    pub fn covers(&self, at: Stamp) -> bool {
        (self.from..=self.to).contains(&at)
    }
}

impl ClockGuard {
    /// Takes a reading of both clocks, in milliseconds. While it answers with a hold, nothing is to be decided and
    /// nothing launched.
    pub fn look(&mut self, wall: Stamp, boot_ms: i64) -> Option<Hold> {
        let offset = wall.0 - boot_ms;
        let ahead_ms = offset - *self.offset_ms.get_or_insert(offset);
        let hold = self.hold.get_or_insert(Hold { ahead_ms, left_ms: HOLD_MS, from: wall, began_ms: boot_ms });
        hold.ahead_ms = ahead_ms;
        hold.left_ms = hold.began_ms + HOLD_MS - boot_ms;
        if ahead_ms > STEP_MS_MAX && hold.left_ms > 0 {
            return Some(*hold);
        }
        if ahead_ms > STEP_MS_MAX {
            self.held_back = Some(HeldBack { from: hold.from, to: wall });
        }
        self.offset_ms = Some(offset);
        self.hold = None;
        None
    }

    /// The last time for which launches were held back before the clock was believed.
    pub fn held_back(&self) -> Option<HeldBack> {
        self.held_back
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WALL: i64 = 1_790_000_000_000;
    const YEAR_MS: i64 = 365 * 86_400_000;

    fn guard() -> ClockGuard {
        let mut guard = ClockGuard::default();
        assert_eq!(guard.look(Stamp(WALL), 1_000), None);
        guard
    }

    #[test]
    fn a_clock_that_is_slewed_or_set_back_is_believed() {
        let mut guard = guard();
        for (wall, boot) in [(500, 1_490), (3_000, 2_000), (-3_600_000, 2_500), (-3_599_000, 3_500)] {
            assert_eq!(guard.look(Stamp(WALL + wall), boot), None, "{wall}");
        }
    }

    #[test]
    fn a_step_ahead_holds_until_the_clock_is_set_back() {
        let mut guard = guard();
        let hold = guard.look(Stamp(WALL + YEAR_MS), 1_500);
        assert_eq!(hold.map(|hold| (hold.ahead_ms, hold.left_ms)), Some((YEAR_MS - 500, 60_000)));
        assert!(guard.look(Stamp(WALL + YEAR_MS + 30_000), 31_500).is_some());
        assert_eq!(guard.look(Stamp(WALL + 31_000), 32_000), None);
        assert_eq!(guard.held_back(), None, "the clock was wrong: there is nothing that was held back");
    }

    #[test]
    fn a_step_ahead_that_stays_is_believed_after_a_minute() {
        let mut guard = guard();
        let ahead = WALL + YEAR_MS;
        assert!(guard.look(Stamp(ahead), 1_500).is_some());
        assert!(guard.look(Stamp(ahead + 59_999), 61_499).is_some());
        assert_eq!(guard.look(Stamp(ahead + 60_000), 61_500), None);
        let held_back = guard.held_back().expect("an interval");
        assert!(held_back.covers(Stamp(ahead)) && held_back.covers(Stamp(ahead + 60_000)));
        assert!(!held_back.covers(Stamp(ahead - 1)) && !held_back.covers(Stamp(ahead + 60_001)));
        assert_eq!(guard.look(Stamp(ahead + 61_000), 62_500), None, "it is believed from then on");
    }
}
