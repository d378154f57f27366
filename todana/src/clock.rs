//! Sources of time: clocks that count seconds and only go forward.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use todana_core::UnixSeconds;

/// A source of time.
pub trait Clock: Send + Sync {
    /// Returns the current second.
    fn now(&self) -> UnixSeconds;
}

/// A clock for tests that stands still until it is advanced.
#[derive(Debug)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// Creates a clock that stands at this second.
    pub fn new(now: UnixSeconds) -> Self {
        ManualClock(AtomicU64::new(now.0))
    }

    /// Moves the clock forward.
    pub fn advance(&self, seconds: u64) {
        self.0.fetch_add(seconds, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> UnixSeconds {
        UnixSeconds(self.0.load(Ordering::Relaxed))
    }
}

/// A clock that is a number of seconds ahead of another clock.
pub(crate) struct ClockAhead {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) seconds: u64,
}

impl Clock for ClockAhead {
    fn now(&self) -> UnixSeconds {
        UnixSeconds(self.clock.now().0.saturating_add(self.seconds))
    }
}

/// The machine's clock, read at each call (about 20 ns). The first reading in a process determines
/// the time of day. From then on the clock runs evenly, so a later adjustment of the machine's
/// clock changes no time to live.
#[derive(Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> UnixSeconds {
        static START: OnceLock<(Duration, Instant)> = OnceLock::new();
        let (time_of_day, start) = START.get_or_init(|| {
            let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            (since.unwrap_or_default(), Instant::now())
        });
        UnixSeconds((*time_of_day + start.elapsed()).as_secs())
    }
}

/// The machine's clock as of the last `tick`, for a server that reads it once for many requests.
/// Tests can pause and advance it.
#[derive(Debug)]
pub struct CachedClock {
    seconds: AtomicU64,
    /// How many seconds this clock is ahead of the machine's clock. Changed only under the lock,
    /// but read without it.
    ahead: AtomicI64,
    paused: Mutex<bool>,
}

impl CachedClock {
    /// Creates a clock that has just ticked.
    pub fn new() -> Self {
        CachedClock {
            seconds: AtomicU64::new(SystemClock.now().0),
            ahead: AtomicI64::new(0),
            paused: Mutex::new(false),
        }
    }

    /// Reads the machine's clock.
    pub fn tick(&self) {
        let now = self.machine();
        // Most ticks fall into the same second. Storing it again would take the cache line from the
        // other threads.
        if self.seconds.load(Ordering::Relaxed) != now {
            self.turn();
        }
    }

    /// Stops the clock until it is resumed.
    pub fn pause(&self) {
        *self.lock() = true;
    }

    /// Resumes the clock from the second at which it was paused.
    pub fn resume(&self) {
        let mut paused = self.lock();
        let shown = self.seconds.load(Ordering::Relaxed);
        self.ahead
            .store(shown.cast_signed().wrapping_sub(SystemClock.now().0.cast_signed()), Ordering::Relaxed);
        *paused = false;
    }

    /// Moves the clock forward, whether it is paused or not.
    pub fn advance(&self, seconds: u32) {
        let _paused = self.lock();
        self.ahead.fetch_add(seconds.into(), Ordering::Relaxed);
        self.seconds.fetch_add(seconds.into(), Ordering::Relaxed);
    }

    /// Moves the clock to a new second, unless it is paused.
    #[cold]
    fn turn(&self) {
        let paused = self.lock();
        // The second is computed again, because another thread may have advanced the clock while it
        // held the lock.
        if !*paused {
            self.seconds.store(self.machine(), Ordering::Relaxed);
        }
    }

    fn machine(&self) -> u64 {
        SystemClock.now().0.saturating_add_signed(self.ahead.load(Ordering::Relaxed))
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.paused.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for CachedClock {
    fn default() -> Self {
        CachedClock::new()
    }
}

impl Clock for CachedClock {
    fn now(&self) -> UnixSeconds {
        UnixSeconds(self.seconds.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paused_clock_moves_only_by_advance() {
        let clock = CachedClock::new();
        clock.pause();
        let start = clock.now().0;
        clock.tick();
        assert_eq!(clock.now().0, start);
        clock.advance(1000);
        clock.tick();
        assert_eq!(clock.now().0, start + 1000);
        clock.resume();
        clock.tick();
        // The real clock may have advanced in between, but not by much.
        assert!((start + 1000..start + 1100).contains(&clock.now().0));
    }

    #[test]
    fn running_clock_keeps_its_advance() {
        let clock = CachedClock::new();
        let start = clock.now().0;
        clock.advance(500);
        clock.advance(500);
        clock.tick();
        assert!((start + 1000..start + 1100).contains(&clock.now().0));
    }

    #[test]
    fn running_clock_shows_the_time_of_day() {
        let clock = CachedClock::new();
        clock.tick();
        let shown = clock.now().0;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        assert!(now.abs_diff(shown) < 100, "{now} {shown}");
    }
}
