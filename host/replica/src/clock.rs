//! A machine's clocks, read here and nowhere else, and what they are worth.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::time::{ClockId, clock_gettime};
use tickhost_ledger::{
    Stamp,
    clock::{ClockGuard, HeldBack, Hold},
};

/// The clocks of a machine.
pub trait Clocks: Send + Sync + 'static {
    /// The wall clock's time.
    fn wall(&self) -> Stamp;
    /// Milliseconds since the machine was booted, suspended time included. Nobody can set it.
    fn since_boot_ms(&self) -> i64;
}

/// The clocks of this machine.
struct Machine;

impl Clocks for Machine {
    fn wall(&self) -> Stamp {
        chrono::Utc::now().into()
    }

    fn since_boot_ms(&self) -> i64 {
        let time = clock_gettime(ClockId::Boottime);
        time.tv_sec * 1_000 + time.tv_nsec / 1_000_000
    }
}

/// Clocks, and what a host holds of them. Clones share that.
#[derive(Clone)]
pub struct Clock {
    clocks: Arc<dyn Clocks>,
    guard: Arc<Mutex<ClockGuard>>,
    /// How far stamps may be ahead of the time since boot, while others say what the time is.
    limit: Arc<Mutex<Option<i64>>>,
}

impl Default for Clock {
    /// This machine's.
    fn default() -> Self {
        Self::of(Arc::new(Machine))
    }
}

impl Clock {
    /// Clocks of which nothing is known yet.
    pub fn of(clocks: Arc<dyn Clocks>) -> Self {
        Self { clocks, guard: Arc::default(), limit: Arc::default() }
    }

    fn guard(&self) -> MutexGuard<'_, ClockGuard> {
        self.guard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Others say what the time is: no stamp lies beyond it, however fast this machine's clock is. `None`: nobody does.
    pub fn limit(&self, to: Option<Stamp>) {
        let offset_ms = to.map(|to| to.0 - self.since_boot_ms());
        *self.limit.lock().unwrap_or_else(PoisonError::into_inner) = offset_ms;
    }

    /// The time for stamps: the wall clock's, or while that is not believed what it would show without its step.
    pub fn now(&self) -> Stamp {
        let (wall, boot_ms) = (self.wall(), self.since_boot_ms());
        let limit = *self.limit.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(offset_ms) = limit {
            return wall.min(Stamp(boot_ms + offset_ms));
        }
        match self.guard().look(wall, boot_ms) {
            None => wall,
            Some(hold) => Stamp(wall.0 - hold.ahead_ms),
        }
    }

    /// The wall clock's time, if it is believed.
    ///
    /// # Errors
    /// By how much it stepped ahead, and how long that is held against it.
    pub fn believed_now(&self) -> Result<Stamp, Hold> {
        let wall = self.wall();
        self.guard().look(wall, self.since_boot_ms()).map_or(Ok(wall), Err)
    }

    /// The last time for which everything was held before the clock was believed.
    pub fn held_back(&self) -> Option<HeldBack> {
        self.guard().held_back()
    }

    /// The wall clock's time, believed or not.
    pub fn wall(&self) -> Stamp {
        self.clocks.wall()
    }

    /// Milliseconds since the machine was booted, suspended time included. Nobody can set it.
    pub fn since_boot_ms(&self) -> i64 {
        self.clocks.since_boot_ms()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_stamp_lies_beyond_what_others_say() {
        let clock = Clock::default();
        let told = Stamp(clock.wall().0 - 3_600_000);
        clock.limit(Some(told));
        let stamp = clock.now();
        clock.limit(None);
        assert!((told.0..told.0 + 60_000).contains(&stamp.0), "{stamp} after {told}");
        assert!(clock.now().0 > told.0 + 3_000_000);
    }
}
