//! The machine's clocks, read here and nowhere else, and what they are worth.

use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use rustix::time::{ClockId, clock_gettime};
use tickhost_ledger::{
    Stamp,
    clock::{ClockGuard, HeldBack, Hold},
};

/// A machine has one wall clock, and a process one opinion of it.
static GUARD: LazyLock<Mutex<ClockGuard>> = LazyLock::new(Mutex::default);

fn guard() -> MutexGuard<'static, ClockGuard> {
    GUARD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How far stamps may be ahead of the time since boot, while others say what the time is.
static LIMIT: Mutex<Option<i64>> = Mutex::new(None);

/// Others say what the time is: no stamp lies beyond it, however fast this machine's clock is. `None`: nobody does.
pub fn limit(to: Option<Stamp>) {
    let offset_ms = to.map(|to| to.0 - since_boot_ms());
    *LIMIT.lock().unwrap_or_else(PoisonError::into_inner) = offset_ms;
}

/// The time for stamps: the wall clock's, or while that is not believed what it would show without its step.
pub fn now() -> Stamp {
    let (wall, boot_ms) = (wall(), since_boot_ms());
    let limit = LIMIT.lock().unwrap_or_else(PoisonError::into_inner).map(|offset_ms| Stamp(boot_ms + offset_ms));
    if let Some(limit) = limit {
        return wall.min(limit);
    }
    match guard().look(wall, boot_ms) {
        None => wall,
        Some(hold) => Stamp(wall.0 - hold.ahead_ms),
    }
}

/// The wall clock's time, if it is believed.
///
/// # Errors
/// By how much it stepped ahead, and how long that is held against it.
pub fn believed_now() -> Result<Stamp, Hold> {
    let wall = wall();
    guard().look(wall, since_boot_ms()).map_or(Ok(wall), Err)
}

/// The last time for which everything was held before the clock was believed.
pub fn held_back() -> Option<HeldBack> {
    guard().held_back()
}

/// The wall clock's time, believed or not.
pub fn wall() -> Stamp {
    chrono::Utc::now().into()
}

/// Milliseconds since the machine was booted, suspended time included. Nobody can set it.
pub fn since_boot_ms() -> i64 {
    let time = clock_gettime(ClockId::Boottime);
    time.tv_sec * 1_000 + time.tv_nsec / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_stamp_lies_beyond_what_others_say() {
        let told = Stamp(wall().0 - 3_600_000);
        limit(Some(told));
        let stamp = now();
        limit(None);
        assert!((told.0..told.0 + 60_000).contains(&stamp.0), "{stamp} after {told}");
        assert!(now().0 > told.0 + 3_000_000);
    }
}
