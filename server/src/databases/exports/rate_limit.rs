//! Limits the rate of a stream. It owns no clock: the caller passes the time.

use std::num::NonZeroU64;
use std::time::Duration;

/// A limit in bytes per second. A rate that is not used at one time is not available later.
pub(super) struct RateLimit {
    rate: NonZeroU64,
    /// The time from which on all bytes admitted so far are within the rate.
    paid_at: Duration,
}

impl RateLimit {
    pub(super) fn new(rate: NonZeroU64) -> RateLimit {
        RateLimit { rate, paid_at: Duration::ZERO }
    }

    /// Admits `len` bytes and returns the time at which they may be sent. All times are counted
    /// from the same moment.
    pub(super) fn admit(&mut self, len: usize, now: Duration) -> Duration {
        let at = self.paid_at.max(now);
        let nanoseconds = len as u128 * 1_000_000_000 / u128::from(self.rate.get());
        let cost = Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX));
        self.paid_at = at.saturating_add(cost);
        at
    }

    /// Returns the number of bytes to send at once. It is small for a slow stream, so that the
    /// stream is steady.
    pub(super) fn portion(&self, len_max: usize) -> usize {
        const LEN_MIN: u64 = 512;
        usize::try_from((self.rate.get() / 8).max(LEN_MIN)).unwrap_or(len_max).min(len_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn rate_limit(rate: u64) -> RateLimit {
        RateLimit::new(NonZeroU64::new(rate).unwrap())
    }

    #[test]
    fn rate_holds_in_each_second() {
        let mut rate_limit = rate_limit(1000);
        // The first request comes at once, and each further request at the time that the one before
        // was given.
        let (mut now, mut times) = (5 * SECOND, Vec::new());
        for _ in 0..100 {
            now = rate_limit.admit(100, now);
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
    fn unused_rate_is_not_carried_over() {
        let mut rate_limit = rate_limit(1000);
        assert_eq!(rate_limit.admit(1000, SECOND), SECOND);
        assert_eq!(rate_limit.admit(1000, 60 * SECOND), 60 * SECOND);
        assert_eq!(rate_limit.admit(1000, 60 * SECOND), 61 * SECOND);
    }

    #[test]
    fn extreme_rates_are_computed_without_overflow() {
        let mut slowest = rate_limit(1);
        assert_eq!(slowest.admit(usize::MAX, SECOND), SECOND);
        assert!(slowest.admit(1, SECOND) > SECOND);
        assert_eq!(slowest.portion(65_536), 512);
        let mut fastest = rate_limit(u64::MAX);
        assert_eq!(fastest.admit(1 << 20, SECOND), SECOND);
        assert_eq!(fastest.admit(1 << 20, SECOND), SECOND);
        assert_eq!(fastest.portion(65_536), 65_536);
    }
}
