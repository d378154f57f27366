//! Detection of idle connections (`idle_timeout`).
//!
//! There is no timer for each connection: each notes the second of its last activity, and its
//! worker checks all of them at intervals of at least a second. A worker without connections is not
//! woken.

use std::time::Duration;

/// The number of checks within the timeout ...
const LOOKS: u32 = 16;
/// ... if the interval stays within these bounds.
const INTERVAL_MIN: Duration = Duration::from_secs(1);
const INTERVAL_MAX: Duration = Duration::from_secs(60);

/// The time of the next check. Times are since the start of the server.
#[derive(Debug)]
pub(crate) struct IdleWatch {
    timeout_s: u64,
    interval: Duration,
    next: Duration,
}

impl IdleWatch {
    /// Returns `None` for 0, with which connections may idle for any time.
    pub(crate) fn new(timeout_s: u32) -> Option<IdleWatch> {
        let timeout = Duration::from_secs(timeout_s.into());
        let interval = (timeout / LOOKS).clamp(INTERVAL_MIN, INTERVAL_MAX);
        (timeout_s > 0).then_some(IdleWatch { timeout_s: timeout_s.into(), interval, next: Duration::ZERO })
    }

    /// Returns the time until the next check.
    pub(crate) fn wait(&self, now: Duration) -> Duration {
        self.next.saturating_sub(now)
    }

    /// Returns true if it is time to check, and sets the next time.
    pub(crate) fn is_due(&mut self, now: Duration) -> bool {
        let is_due = now >= self.next;
        if is_due {
            self.next = now + self.interval;
        }
        is_due
    }

    /// Returns true if a connection that was last active in this second has been idle for too long.
    /// Never early: the activity may have been at the end of that second.
    pub(crate) fn is_over(&self, active_s: u64, now: Duration) -> bool {
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
    fn zero_is_for_ever() {
        assert!(IdleWatch::new(0).is_none());
    }

    #[test]
    fn looks_are_an_interval_apart() {
        let mut watch = IdleWatch::new(10).unwrap();
        assert!(watch.is_due(at_ms(500)));
        assert_eq!(watch.wait(at_ms(500)), at_ms(1000));
        assert!(!watch.is_due(at_ms(1499)));
        assert_eq!(watch.wait(at_ms(1499)), at_ms(1));
        assert!(watch.is_due(at_ms(1500)));
        assert_eq!(watch.wait(at_ms(9000)), Duration::ZERO);
        for (timeout_s, interval_s) in [(1, 1), (16, 1), (320, 20), (100_000, 60)] {
            assert_eq!(IdleWatch::new(timeout_s).unwrap().interval.as_secs(), interval_s);
        }
    }

    #[test]
    fn connection_is_idle_only_after_its_timeout() {
        let watch = IdleWatch::new(2).unwrap();
        // The activity may have been at 5.999.
        assert!(!watch.is_over(5, at_ms(7999)));
        assert!(watch.is_over(5, at_ms(8000)));
        assert!(!watch.is_over(5, at_ms(0)));
    }
}
