//! Detection of idle connections (`idle_timeout`).
//!
//! There is no timer for each connection: each notes the second of its last activity, and its
//! worker checks all of them at intervals of at least a second. A worker without connections is not
//! woken.

use std::time::Duration;

/// The number of checks within one timeout, as long as their interval is within the bounds below.
const CHECKS: u32 = 16;
/// Bounds of the interval between two checks.
const INTERVAL_MIN: Duration = Duration::from_secs(1);
const INTERVAL_MAX: Duration = Duration::from_secs(60);

/// The time of the next check. Times are since the start of the server.
#[derive(Debug)]
pub(crate) struct IdleTimer {
    timeout_s: u64,
    interval: Duration,
    next: Duration,
}

impl IdleTimer {
    /// Creates a timer. Returns `None` if the timeout is 0, which means that connections may be
    /// idle for any time.
    pub(crate) fn new(timeout_s: u32) -> Option<IdleTimer> {
        let timeout = Duration::from_secs(timeout_s.into());
        let interval = (timeout / CHECKS).clamp(INTERVAL_MIN, INTERVAL_MAX);
        (timeout_s > 0).then_some(IdleTimer { timeout_s: timeout_s.into(), interval, next: Duration::ZERO })
    }

    /// Returns the time until the next check.
    pub(crate) fn wait(&self, now: Duration) -> Duration {
        self.next.saturating_sub(now)
    }

    /// Returns true if it is time to check the connections, and then sets the time of the next
    /// check.
    pub(crate) fn is_due(&mut self, now: Duration) -> bool {
        let is_due = now >= self.next;
        if is_due {
            self.next = now + self.interval;
        }
        is_due
    }

    /// Returns true if a connection that was last active in this second has been idle for too long.
    /// The result is never true too early: the activity may have been at the end of that second.
    pub(crate) fn is_timed_out(&self, active_s: u64, now: Duration) -> bool {
        now.as_secs().saturating_sub(active_s) > self.timeout_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn zero_disables_the_timeout() {
        assert!(IdleTimer::new(0).is_none());
    }

    #[test]
    fn checks_are_an_interval_apart() {
        let mut watch = IdleTimer::new(10).unwrap();
        assert!(watch.is_due(at_ms(500)));
        assert_eq!(watch.wait(at_ms(500)), at_ms(1000));
        assert!(!watch.is_due(at_ms(1499)));
        assert_eq!(watch.wait(at_ms(1499)), at_ms(1));
        assert!(watch.is_due(at_ms(1500)));
        assert_eq!(watch.wait(at_ms(9000)), Duration::ZERO);
        for (timeout_s, interval_s) in [(1, 1), (16, 1), (320, 20), (100_000, 60)] {
            assert_eq!(IdleTimer::new(timeout_s).unwrap().interval.as_secs(), interval_s);
        }
    }

    #[test]
    fn connection_is_idle_only_after_its_timeout() {
        let watch = IdleTimer::new(2).unwrap();
        // The last activity may have been at 5.999 seconds.
        assert!(!watch.is_timed_out(5, at_ms(7999)));
        assert!(watch.is_timed_out(5, at_ms(8000)));
        assert!(!watch.is_timed_out(5, at_ms(0)));
    }
}
