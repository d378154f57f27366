//! A rate limit for streams. It owns no clock: the caller passes the time.

use std::num::NonZeroU64;
use std::time::Duration;

/// A limit in bytes per second. Unused rate is not carried over.
pub(super) struct RateLimit {
    rate: NonZeroU64,
    /// The time at which all admitted bytes are within the rate.
    paid_at: Duration,
}

impl RateLimit {
    pub(super) fn new(rate: NonZeroU64) -> RateLimit {
        RateLimit { rate, paid_at: Duration::ZERO }
    }

    /// Admits `len` bytes and returns the time at which they may be sent. `now` is the time since a
    /// fixed moment.
    pub(super) fn admit(&mut self, len: usize, now: Duration) -> Duration {
        let at = self.paid_at.max(now);
        let nanoseconds = len as u128 * 1_000_000_000 / u128::from(self.rate.get());
        let cost = Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX));
        self.paid_at = at.saturating_add(cost);
        at
    }

    /// Returns the bytes to send at once, so that a slow stream is still steady.
    pub(super) fn portion(&self, len_max: usize) -> usize {
        const LEN_MIN: u64 = 512;
        usize::try_from((self.rate.get() / 8).max(LEN_MIN)).unwrap_or(len_max).min(len_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn pace(rate: u64) -> RateLimit {
        RateLimit::new(NonZeroU64::new(rate).unwrap())
    }

    #[test]
    fn no_second_has_more_than_its_bytes() {
        let mut pace = pace(1000);
        // Requests everything at once at first, and then at each admitted time.
        let (mut now, mut times) = (5 * SECOND, Vec::new());
        for _ in 0..100 {
            now = pace.admit(100, now);
            times.push(now);
        }
        assert_eq!(
            (times[0], times[1], times[99]),
            (5 * SECOND, Duration::from_millis(5100), Duration::from_millis(14_900))
        );
        for start in &times {
            let within = times.iter().filter(|at| (*start..*start + SECOND).contains(*at)).count();
            assert!(within <= 10, "{within} portions from {start:?} on");
        }
    }

    #[test]
    fn a_pause_is_not_made_up_for() {
        let mut pace = pace(1000);
        assert_eq!(pace.admit(1000, SECOND), SECOND);
        assert_eq!(pace.admit(1000, 60 * SECOND), 60 * SECOND);
        assert_eq!(pace.admit(1000, 60 * SECOND), 61 * SECOND);
    }

    #[test]
    fn neither_the_slowest_nor_the_fastest_is_beyond_reckoning() {
        let mut slowest = pace(1);
        assert_eq!(slowest.admit(usize::MAX, SECOND), SECOND);
        assert!(slowest.admit(1, SECOND) > SECOND);
        assert_eq!(slowest.portion(65_536), 512);
        let mut fastest = pace(u64::MAX);
        assert_eq!(fastest.admit(1 << 20, SECOND), SECOND);
        assert_eq!(fastest.admit(1 << 20, SECOND), SECOND);
        assert_eq!(fastest.portion(65_536), 65_536);
    }
}
