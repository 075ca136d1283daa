//! The lease under which an executor takes runs, by its own clock since boot.

use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
};

use uuid::Uuid;

use crate::order::SESSION_MS;

/// Stopping guests takes this long at the most: a tick of the epoch, and what the host does for them is cancelled.
const STOP_MS: i64 = 500;

/// The lease, as far as this executor knows.
#[derive(Debug, Default)]
pub(crate) struct Lease(Mutex<Option<Held>>);

#[derive(Debug)]
struct Held {
    session: Uuid,
    until_ms: i64,
    /// The numbers of the orders that were taken, from the lowest that may still arrive on.
    taken: BTreeSet<u64>,
    lowest: u64,
}

/// Orders on their way at a time, by far. What is that far behind the newest is refused, though it may never have
/// arrived: its leader asks what became of it.
const UNDER_WAY_MAX: usize = 4_096;

impl Lease {
    fn held(&self) -> std::sync::MutexGuard<'_, Option<Held>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The leader answered a question that was asked at that moment. False where what was held until now had lapsed:
    /// its runs must not go on.
    pub(crate) fn extend(&self, session: Uuid, asked_ms: i64, now_ms: i64) -> bool {
        let mut held = self.held();
        let unbroken = held.as_ref().is_none_or(|held| now_ms < held.until_ms);
        let until_ms = asked_ms + SESSION_MS - STOP_MS;
        match held.as_mut().filter(|held| held.session == session) {
            // Answers may overtake each other: a lease never gets shorter.
            Some(held) => held.until_ms = held.until_ms.max(until_ms),
            None => *held = Some(Held { session, until_ms, taken: BTreeSet::new(), lowest: 0 }),
        }
        unbroken
    }

    /// Whether an order of that session with that number is to be obeyed: the session holds, and it is the first time.
    pub(crate) fn take(&self, session: Uuid, number: u64, now_ms: i64) -> bool {
        let mut held = self.held();
        let Some(held) = held.as_mut().filter(|held| held.session == session && now_ms < held.until_ms) else {
            return false;
        };
        if number < held.lowest || !held.taken.insert(number) {
            return false;
        }
        if held.taken.len() > UNDER_WAY_MAX
            && let Some(oldest) = held.taken.pop_first()
        {
            held.lowest = oldest + 1;
        }
        true
    }

    /// Orders from before that one are refused from now on: what became of their runs was told, or is asked for.
    pub(crate) fn refuse_before(&self, session: Uuid, number: u64) {
        if let Some(held) = self.held().as_mut().filter(|held| held.session == session) {
            held.lowest = held.lowest.max(number);
            held.taken = held.taken.split_off(&held.lowest);
        }
    }

    /// The session, while it holds.
    pub(crate) fn session(&self, now_ms: i64) -> Option<Uuid> {
        self.held().as_ref().filter(|held| now_ms < held.until_ms).map(|held| held.session)
    }

    /// When it lapses if nothing happens.
    pub(crate) fn until_ms(&self) -> Option<i64> {
        self.held().as_ref().map(|held| held.until_ms)
    }

    /// Forgets a lease that has lapsed. True where there was one.
    pub(crate) fn end(&self, now_ms: i64) -> bool {
        let mut held = self.held();
        let is_over = held.as_ref().is_some_and(|held| now_ms >= held.until_ms);
        if is_over {
            *held = None;
        }
        is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Uuid = Uuid::from_u128(1);
    const B: Uuid = Uuid::from_u128(2);

    #[test]
    fn a_lease_holds_from_the_question_and_lapses_by_itself() {
        let lease = Lease::default();
        assert_eq!(lease.session(0), None);
        assert!(lease.extend(A, 1_000, 4_000), "nothing was held before");
        let until = 1_000 + SESSION_MS - STOP_MS;
        assert_eq!(lease.session(until - 1), Some(A));
        assert_eq!(lease.session(until), None);
        assert!(!lease.end(until - 1));
        assert!(lease.end(until));
        assert!(!lease.end(until), "once");
    }

    #[test]
    fn a_new_session_takes_runs_over_only_while_the_old_one_held() {
        let lease = Lease::default();
        lease.extend(A, 0, 10);
        assert!(lease.extend(B, 5_000, 5_010));
        assert_eq!(lease.session(5_020), Some(B));
        assert!(!lease.extend(A, 40_000, 40_010), "the runs of the one before were to be stopped");
    }

    #[test]
    fn an_answer_that_comes_late_does_not_shorten_the_lease() {
        let lease = Lease::default();
        lease.extend(A, 3_000, 3_010);
        let until = lease.until_ms();
        lease.extend(A, 1_000, 3_020);
        assert_eq!(lease.until_ms(), until);
    }

    #[test]
    fn an_order_is_taken_once_and_only_while_its_session_holds() {
        let lease = Lease::default();
        assert!(!lease.take(A, 1, 0));
        lease.extend(A, 0, 0);
        assert!(lease.take(A, 2, 1) && lease.take(A, 1, 1), "they may overtake each other");
        assert!(!lease.take(A, 1, 1) && !lease.take(A, 2, 1));
        assert!(!lease.take(B, 3, 1) && !lease.take(A, 3, SESSION_MS));
        for number in 10..10 + 2 * UNDER_WAY_MAX as u64 {
            assert!(lease.take(A, number, 1));
        }
        assert!(!lease.take(A, 3, 1), "so far behind that nobody knows");
        lease.extend(B, 1, 1);
        assert!(lease.take(B, 1, 1), "another session counts anew");
        lease.refuse_before(B, 5);
        lease.refuse_before(A, 9);
        assert!(!lease.take(B, 4, 1), "whoever asked at 5 was told that it never came");
        assert!(lease.take(B, 6, 1) && lease.take(B, 5, 1));
    }
}
