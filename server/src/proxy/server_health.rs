//! Notes failures of a server, and decides whether it is up.
//!
//! ```text
//! up    -> down   after `failures` failures without a success between them
//! down  -> probed one worker at a time; the pause before a probe doubles up to `retry_max`
//! probed -> up    when the server has answered
//! ```

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A server that is down three times within this time is left alone for the longest pause.
const FLAPPING_MS: u64 = 60_000;

/// The number of times that a server of this process was down or up again.
pub(super) static HEALTH_CHANGES: AtomicU64 = AtomicU64::new(0);

/// Settings that decide about failures.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HealthLimits {
    /// The number of failures after which the server is down.
    pub(crate) failures: u32,
    /// The pause before the first probe.
    pub(crate) retry: Duration,
    /// The longest pause.
    pub(crate) retry_max: Duration,
}

/// The health of a server.
#[derive(Debug)]
pub(crate) struct ServerHealth {
    limits: Mutex<HealthLimits>,
    started: Instant,
    failures: AtomicU32,
    /// The time of the next probe, in milliseconds since `started`; 0 while the server is up.
    probe_at_ms: AtomicU64,
    pause_ms: AtomicU64,
    /// The times of the last two failures of a server that was up, in milliseconds since `started`
    /// and at least 1, the last one first.
    downs_ms: [AtomicU64; 2],
    /// The time since which the server is up or down, in milliseconds since `started`.
    changed_ms: AtomicU64,
}

impl ServerHealth {
    pub(crate) fn new(limits: HealthLimits) -> ServerHealth {
        ServerHealth {
            limits: Mutex::new(limits),
            started: Instant::now(),
            failures: AtomicU32::new(0),
            probe_at_ms: AtomicU64::new(0),
            pause_ms: AtomicU64::new(0),
            downs_ms: [AtomicU64::new(0), AtomicU64::new(0)],
            changed_ms: AtomicU64::new(0),
        }
    }

    pub(crate) fn set_limits(&self, limits: HealthLimits) {
        *self.limits.lock().unwrap_or_else(PoisonError::into_inner) = limits;
    }

    #[inline]
    pub(crate) fn is_down(&self) -> bool {
        self.probe_at_ms.load(Ordering::Relaxed) != 0
    }

    /// Returns the time of the next probe, if the server is down.
    pub(crate) fn probe_at(&self) -> Option<Instant> {
        let at_ms = self.probe_at_ms.load(Ordering::Relaxed);
        (at_ms != 0).then(|| self.started + Duration::from_millis(at_ms))
    }

    /// Returns the time since which the server is up or down.
    pub(crate) fn changed_at(&self) -> Instant {
        self.started + Duration::from_millis(self.changed_ms.load(Ordering::Relaxed))
    }

    /// Returns true if the caller should probe the server now. No other caller gets this result
    /// before `probe_time` has passed.
    pub(crate) fn takes_probe(&self, now: Instant, probe_time: Duration) -> bool {
        let at_ms = self.probe_at_ms.load(Ordering::Relaxed);
        let now_ms = self.ms(now);
        at_ms != 0
            && at_ms <= now_ms
            && self
                .probe_at_ms
                .compare_exchange(
                    at_ms,
                    now_ms + probe_time.as_millis() as u64 + 1,
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                )
                .is_ok()
    }

    /// Notes an answer of the server. Returns true if the server was down.
    #[inline]
    pub(crate) fn note_success(&self) -> bool {
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
        if !self.is_down() {
            return false;
        }
        self.pause_ms.store(0, Ordering::Relaxed);
        let was_down = self.probe_at_ms.swap(0, Ordering::Relaxed) != 0;
        self.changed_ms.store(self.ms(Instant::now()), Ordering::Relaxed);
        HEALTH_CHANGES.fetch_add(u64::from(was_down), Ordering::Release);
        was_down
    }

    /// Notes a failure. `is_final` is true if no connection to the server stands, and `is_probe` if
    /// a probe has failed. Returns true if the server is down now and was up before.
    pub(crate) fn note_failure(&self, now: Instant, is_final: bool, is_probe: bool) -> bool {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        // The lock is kept to the end: of workers that note the same moment, only one may find that
        // the server is down. Otherwise, one failure would count as several.
        let limits = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        let was_down = self.is_down();
        if !was_down && !is_final && failures < limits.failures {
            return false;
        }
        // Each worker notes the loss of its connection, but only a probe that fails prolongs the
        // pause.
        if was_down && !is_probe {
            return false;
        }
        let before = self.pause_ms.load(Ordering::Relaxed);
        let (first, last) = (limits.retry.as_millis() as u64, limits.retry_max.as_millis() as u64);
        let is_flapping = !was_down && self.note_down(now);
        let pause = match before {
            _ if is_flapping => last,
            0 => first,
            before => before.saturating_mul(2).min(last),
        };
        self.pause_ms.store(pause, Ordering::Relaxed);
        // Workers and proxies must not probe at the same moment, so the pause varies by 20 %.
        let least = if is_flapping { 100 } else { 80 };
        let varied = pause.saturating_mul(least + u64::from(now.elapsed().subsec_micros() % 41)) / 100;
        self.probe_at_ms.store(self.ms(now) + varied.max(1), Ordering::Relaxed);
        HEALTH_CHANGES.fetch_add(u64::from(!was_down), Ordering::Release);
        if !was_down {
            self.changed_ms.store(self.ms(now), Ordering::Relaxed);
        }
        !was_down
    }

    /// Notes that the server is down. Returns true if this is the third time within a minute.
    fn note_down(&self, now: Instant) -> bool {
        let now_ms = self.ms(now).max(1);
        let last = self.downs_ms[0].swap(now_ms, Ordering::Relaxed);
        let before = self.downs_ms[1].swap(last, Ordering::Relaxed);
        before != 0 && now_ms - before.min(now_ms) < FLAPPING_MS
    }

    fn ms(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.started).as_millis() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_in_a_row_end_with_a_probe() {
        let second = Duration::from_secs(1);
        let limits = HealthLimits { failures: 3, retry: second, retry_max: second * 3 };
        let health = ServerHealth::new(limits);
        let start = health.started;
        let noted = [(); 4].map(|()| health.note_failure(start, false, false));
        assert_eq!(noted, [false, false, true, false]);
        assert!(health.is_down() && !health.takes_probe(start, second));
        let later = start + second * 3;
        assert_eq!([(); 2].map(|()| health.takes_probe(later, second)), [true, false]);
        assert!(health.note_success() && !health.is_down());
        assert!(!health.note_failure(start, false, false));
        assert!(!health.note_success());
        // Without a connection, one failure is enough. The pauses double up to their maximum.
        assert!(health.note_failure(start, true, false));
        let pauses = [(); 4].map(|()| {
            health.note_failure(start, true, false);
            health.note_failure(start, true, true);
            health.pause_ms.load(Ordering::Relaxed)
        });
        assert_eq!(pauses, [2000, 3000, 3000, 3000]);
    }

    #[test]
    fn one_worker_notes_that_the_server_is_down() {
        let second = Duration::from_secs(1);
        let limits = HealthLimits { failures: 1, retry: second, retry_max: second * 10 };
        for _ in 0..200 {
            let (health, start) = (ServerHealth::new(limits), std::sync::Barrier::new(4));
            let note = || {
                start.wait();
                u32::from(health.note_failure(health.started, true, false))
            };
            let noted: u32 = std::thread::scope(|scope| {
                let workers = [(); 4].map(|()| scope.spawn(note));
                workers.into_iter().map(|worker| worker.join().unwrap()).sum()
            });
            assert_eq!((noted, health.pause_ms.load(Ordering::Relaxed)), (1, 1000));
        }
    }

    #[test]
    fn third_failure_in_a_minute_takes_longest_pause() {
        let second = Duration::from_secs(1);
        let limits = HealthLimits { failures: 1, retry: second, retry_max: second * 10 };
        let health = ServerHealth::new(limits);
        let pauses = [1, 30, 59, 120].map(|at| {
            assert!(health.note_failure(health.started + second * at, false, false));
            let pause = health.pause_ms.load(Ordering::Relaxed);
            assert!(health.note_success());
            pause
        });
        assert_eq!(pauses, [1000, 1000, 10_000, 1000]);
    }
}
