//! Where the time comes from: a whole-second clock.

use std::sync::atomic::{AtomicU64, Ordering};
use todana_core::UnixSeconds;

/// Where the time comes from.
pub trait Clock: Send + Sync {
    /// The current second.
    fn now(&self) -> UnixSeconds;
}

/// A clock that stands still until it is moved, for tests.
#[derive(Debug)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// A clock that reads this second.
    pub fn new(now: UnixSeconds) -> Self {
        ManualClock(AtomicU64::new(now.0))
    }

    /// Moves it on.
    pub fn advance(&self, seconds: u64) {
        self.0.fetch_add(seconds, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> UnixSeconds {
        UnixSeconds(self.0.load(Ordering::Relaxed))
    }
}

/// The machine's clock, read at each call (some 20 ns).
#[derive(Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> UnixSeconds {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        UnixSeconds(since.map_or(0, |since| since.as_secs()))
    }
}

/// The machine's clock as of the last `tick`, for a server that reads it once for many requests.
#[derive(Debug)]
pub struct CachedClock(AtomicU64);

impl CachedClock {
    /// A clock that has just ticked.
    pub fn new() -> Self {
        CachedClock(AtomicU64::new(SystemClock.now().0))
    }

    /// Reads the machine's clock.
    pub fn tick(&self) {
        let now = SystemClock.now().0;
        // Most ticks fall into the same second; a store would take the line from the other threads.
        if self.0.load(Ordering::Relaxed) != now {
            self.0.store(now, Ordering::Relaxed);
        }
    }
}

impl Default for CachedClock {
    fn default() -> Self {
        CachedClock::new()
    }
}

impl Clock for CachedClock {
    fn now(&self) -> UnixSeconds {
        UnixSeconds(self.0.load(Ordering::Relaxed))
    }
}
