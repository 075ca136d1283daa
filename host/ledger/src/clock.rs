//! Whether the wall clock is to be believed.
//!
//! A tick that is decided stays decided, so a clock that leaps ahead by mistake would use up the ticks of hours
//! to come. Nobody but the operator knows which clock is right; the host waits for a minute, in which the clock
//! can be set back, and goes on from there.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

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

/// How far before the median of the voters' clocks a tick may be decided. Clocks that a time service keeps are ten
/// times closer; beyond it something is wrong.
pub const AHEAD_MS_MAX: i64 = 500;
/// A clock that was not heard of for this long is not known.
const HEARD_MS: i64 = 10_000;

/// The wall clocks of a group, as its leader hears of them.
///
/// A message says what its sender's clock showed; it took some time to arrive, so that clock shows at least this much
/// more by now. Of several messages the one that was fastest says most. Nothing here makes a clock appear ahead of
/// what it is, so no tick is decided early because of a slow message.
#[derive(Debug, Default)]
pub struct VoterClocks {
    heard: BTreeMap<u64, VecDeque<Heard>>,
}

#[derive(Debug, Clone, Copy)]
struct Heard {
    at_ms: i64,
    /// The clock less the listener's time since boot.
    offset_ms: i64,
}

/// Too few of the voters' clocks are known to tell which of them is right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the clocks of {known} of {voters} nodes that vote are known, and a majority is needed to tell the time; nothing is \
     decided until more of them are heard"
)]
pub struct ClocksUnknown {
    /// How many are known.
    pub known: usize,
    /// Of how many.
    pub voters: usize,
}

impl VoterClocks {
    /// A node's clock showed that, in a message that arrived at that moment by the listener's time since boot.
    pub fn note(&mut self, node: u64, wall: Stamp, boot_ms: i64) {
        let heard = self.heard.entry(node).or_default();
        heard.push_back(Heard { at_ms: boot_ms, offset_ms: wall.0 - boot_ms });
        while heard.front().is_some_and(|first| first.at_ms < boot_ms - HEARD_MS) {
            heard.pop_front();
        }
    }

    /// What a node's clock shows, at the least.
    fn shows(&self, node: u64, boot_ms: i64) -> Option<i64> {
        let heard = self.heard.get(&node)?.iter().filter(|heard| heard.at_ms >= boot_ms - HEARD_MS);
        heard.map(|heard| heard.offset_ms).max().map(|offset| boot_ms + offset)
    }

    /// How far a node's clock is ahead of the listener's, in milliseconds; less than nothing where it is behind.
    pub fn ahead_ms(&self, node: u64, own: Stamp, boot_ms: i64) -> Option<i64> {
        self.shows(node, boot_ms).map(|shows| shows - own.0)
    }

    /// The time by which this node may decide: its own clock's, and not more than [`AHEAD_MS_MAX`] before the median
    /// of the voters'.
    ///
    /// # Errors
    /// Where less than a majority is known.
    pub fn now(&self, me: u64, voters: &BTreeSet<u64>, own: Stamp, boot_ms: i64) -> Result<Stamp, ClocksUnknown> {
        let median = self.median(me, voters, own, boot_ms)?;
        Ok(Stamp(own.0.min(median.0 + AHEAD_MS_MAX)))
    }

    /// The median of the voters' clocks.
    ///
    /// # Errors
    /// Where less than a majority is known.
    pub fn median(&self, me: u64, voters: &BTreeSet<u64>, own: Stamp, boot_ms: i64) -> Result<Stamp, ClocksUnknown> {
        let shown = self.shown(me, voters, own, boot_ms)?;
        // Of two in the middle the one behind: late is better than early.
        Ok(shown[(shown.len() - 1) / 2])
    }

    /// The time that the clocks of a majority of all voters have not passed, whatever those show that are not known. What
    /// is later was written by a clock that was ahead; of one that is behind it says nothing.
    ///
    /// # Errors
    /// Where less than a majority is known.
    pub fn at_most(&self, me: u64, voters: &BTreeSet<u64>, own: Stamp, boot_ms: i64) -> Result<Stamp, ClocksUnknown> {
        Ok(self.shown(me, voters, own, boot_ms)?[voters.len() / 2])
    }

    /// What the clocks of the voters show that are known, in order: of more than half of them.
    fn shown(&self, me: u64, voters: &BTreeSet<u64>, own: Stamp, boot_ms: i64) -> Result<Vec<Stamp>, ClocksUnknown> {
        let shows = |node: &u64| if *node == me { Some(own) } else { self.shows(*node, boot_ms).map(Stamp) };
        let mut shown: Vec<Stamp> = voters.iter().filter_map(shows).collect();
        if 2 * shown.len() <= voters.len() {
            return Err(ClocksUnknown { known: shown.len(), voters: voters.len() });
        }
        shown.sort_unstable();
        Ok(shown)
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

    const VOTERS: [u64; 3] = [1, 2, 3];

    /// Node 1 leads and hears of the others with their clocks that far ahead, a millisecond on the way.
    fn heard(two_ms: i64, three_ms: i64) -> VoterClocks {
        let mut clocks = VoterClocks::default();
        clocks.note(2, Stamp(WALL + two_ms - 1), 1_000);
        clocks.note(3, Stamp(WALL + three_ms - 1), 1_000);
        clocks
    }

    fn now(clocks: &VoterClocks, own_ms: i64) -> Result<i64, ClocksUnknown> {
        clocks.now(1, &BTreeSet::from(VOTERS), Stamp(WALL + own_ms), 1_000).map(|stamp| stamp.0 - WALL)
    }

    #[test]
    fn nothing_is_decided_before_the_median_of_the_voters_beyond_the_bound() {
        assert_eq!(now(&heard(3, -5), 0), Ok(0), "all agree");
        assert_eq!(now(&heard(0, 0), 3_600_000), Ok(AHEAD_MS_MAX - 1), "the leader's clock has stepped ahead");
        assert_eq!(now(&heard(0, 3_600_000), 3_600_000), Ok(3_600_000), "a majority says so");
        assert_eq!(now(&heard(3_600_000, 3_600_000), 0), Ok(0), "never in the future of the leader's own clock");
        assert_eq!(now(&heard(0, -3_600_000), 300), Ok(300), "one that is behind stops nobody");
    }

    #[test]
    fn without_a_majority_of_clocks_nothing_is_decided() {
        let mut clocks = VoterClocks::default();
        assert_eq!(now(&clocks, 0), Err(ClocksUnknown { known: 1, voters: 3 }));
        clocks.note(2, Stamp(WALL), 1_000 - HEARD_MS - 1);
        assert_eq!(now(&clocks, 0), Err(ClocksUnknown { known: 1, voters: 3 }), "too long ago");
        clocks.note(2, Stamp(WALL), 1_000);
        assert_eq!(now(&clocks, 0), Ok(0));
    }

    /// Found by simulation: of three clocks two were known, one of them a quarter of an hour behind.
    #[test]
    fn only_a_majority_of_all_clocks_can_say_that_it_is_earlier() {
        let mut clocks = VoterClocks::default();
        let at_most = |clocks: &VoterClocks, own_ms: i64| {
            clocks.at_most(1, &BTreeSet::from(VOTERS), Stamp(WALL + own_ms), 1_000).map(|stamp| stamp.0 - WALL)
        };
        assert!(at_most(&clocks, 0).is_err());
        clocks.note(2, Stamp(WALL - 900_000), 1_000);
        assert_eq!(at_most(&clocks, 0), Ok(0), "the third one may agree with this one");
        assert_eq!(at_most(&clocks, -900_000), Ok(-900_000), "two of three");
        clocks.note(3, Stamp(WALL), 1_000);
        assert_eq!(at_most(&clocks, -900_000), Ok(-900_000));
        assert_eq!(at_most(&clocks, 0), Ok(0));
        assert_eq!(at_most(&clocks, 3_600_000), Ok(0));
    }

    #[test]
    fn the_fastest_message_says_most() {
        let mut clocks = heard(0, 0);
        clocks.note(2, Stamp(WALL - 4_000), 1_000);
        assert_eq!(clocks.ahead_ms(2, Stamp(WALL), 1_000), Some(-1), "the last one took four seconds");
    }

    /// The leader's own clock is set while it listens: what it has heard does not move with it.
    #[test]
    fn a_step_of_the_leaders_clock_is_seen_at_once() {
        let clocks = heard(0, 0);
        assert_eq!(now(&clocks, 86_400_000), Ok(AHEAD_MS_MAX - 1));
        assert_eq!(now(&clocks, -86_400_000), Ok(-86_400_000));
    }
}
