//! When to look for connections that nobody uses, and which these are (`idle_timeout`).
//!
//! There is no timer a connection: each notes the second of its last activity, and its worker goes over all of them now
//! and then, at most once a second. A worker without connections is not woken at all.

use std::time::Duration;

/// A look is made so many times while a connection idles to its end ...
const LOOKS: u32 = 16;
/// ... but within these bounds.
const INTERVAL_MIN: Duration = Duration::from_secs(1);
const INTERVAL_MAX: Duration = Duration::from_secs(60);

/// Knows when to look. Times are since the start of the server.
#[derive(Debug)]
pub(crate) struct IdleWatch {
    timeout_s: u64,
    interval: Duration,
    next: Duration,
}

impl IdleWatch {
    /// `None` where connections may idle for ever, which is what 0 stands for.
    pub(crate) fn new(timeout_s: u32) -> Option<IdleWatch> {
        let timeout = Duration::from_secs(timeout_s.into());
        let interval = (timeout / LOOKS).clamp(INTERVAL_MIN, INTERVAL_MAX);
        (timeout_s > 0).then_some(IdleWatch { timeout_s: timeout_s.into(), interval, next: Duration::ZERO })
    }

    /// How long until the next look.
    pub(crate) fn wait(&self, now: Duration) -> Duration {
        self.next.saturating_sub(now)
    }

    /// Whether it is time to look; then the next time is an interval later.
    pub(crate) fn is_due(&mut self, now: Duration) -> bool {
        let is_due = now >= self.next;
        if is_due {
            self.next = now + self.interval;
        }
        is_due
    }

    /// Whether a connection that was last active in this second has idled too long. Never early: it may have been
    /// active at the end of that second.
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
    fn a_connection_is_over_behind_its_timeout_and_never_before() {
        let watch = IdleWatch::new(2).unwrap();
        // Active at 5.999, say.
        assert!(!watch.is_over(5, at_ms(7999)));
        assert!(watch.is_over(5, at_ms(8000)));
        assert!(!watch.is_over(5, at_ms(0)));
    }
}
