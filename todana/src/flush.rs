//! The one pending flush: a point in time, replaced by any later flush.

use crate::update_log::LogChange;
use parking_lot::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicU64, Ordering};
use todana_core::{Engine, Result, Ttl, UnixSeconds};

const NONE: u64 = u64::MAX;

#[derive(Debug)]
pub(crate) struct PendingFlush {
    at: AtomicU64,
    /// The time of the last requested flush; `NONE` if there was none.
    last: AtomicU64,
    /// Locked while all records are removed: requests that find the flush due wait for it.
    clear_lock: Mutex<()>,
}

/// Returned by [`PendingFlush::block_changes`].
pub(crate) struct FlushGuard<'f> {
    flush: &'f PendingFlush,
    _clearing: MutexGuard<'f, ()>,
}

impl FlushGuard<'_> {
    pub(crate) fn planned(&self) -> Option<UnixSeconds> {
        Some(self.flush.at.load(Ordering::Acquire)).filter(|&at| at != NONE).map(UnixSeconds)
    }
}

/// Returns when a requested flush is due.
fn due(at: Ttl, now: UnixSeconds) -> UnixSeconds {
    super::expiry::resolve(at, now).at().unwrap_or(now)
}

/// Returns true if the flush would have to be planned.
pub(crate) fn is_in_future(at: Ttl, now: UnixSeconds) -> bool {
    due(at, now) > now
}

impl PendingFlush {
    pub(crate) fn new() -> PendingFlush {
        PendingFlush { at: AtomicU64::new(NONE), last: AtomicU64::new(NONE), clear_lock: Mutex::new(()) }
    }

    /// Flushes now or plans to.
    ///
    /// Calls `log` with the change, possibly twice for the same clear. The call is ordered with
    /// changes of records, but under no other lock.
    pub(crate) fn plan(
        &self,
        at: Ttl,
        now: UnixSeconds,
        engine: &dyn Engine,
        log: &dyn Fn(LogChange<'_>),
    ) -> Result<()> {
        let at = due(at, now);
        self.last.store(at.0.max(now.0), Ordering::Relaxed);
        if at > now {
            // A clear that runs at this time logs that nothing is planned; this entry must follow
            // it.
            let _clearing = self.clear_lock.lock();
            self.at.store(at.0, Ordering::Release);
            log(LogChange::PlanClear { at: Some(at) });
            return Ok(());
        }
        let _clearing = self.clear_lock.lock();
        self.at.store(NONE, Ordering::Release);
        engine.clear(&mut || log(LogChange::Clear))
    }

    /// Restores what a log states.
    pub(crate) fn restore(&self, at: Option<UnixSeconds>) {
        self.at.store(at.map_or(NONE, |at| at.0), Ordering::Release);
    }

    /// Prevents clears, and changes of the planned flush, until the result is dropped.
    pub(crate) fn block_changes(&self) -> FlushGuard<'_> {
        FlushGuard { flush: self, _clearing: self.clear_lock.lock() }
    }

    /// Calls `see` with the planned flush, while neither that nor its entry in the log can change.
    pub(crate) fn with_planned<T>(&self, see: impl FnOnce(Option<UnixSeconds>) -> T) -> T {
        see(self.block_changes().planned())
    }

    /// Returns when all records were last flushed, or will be.
    pub(crate) fn last(&self) -> Option<UnixSeconds> {
        Some(self.last.load(Ordering::Relaxed)).filter(|&last| last != NONE).map(UnixSeconds)
    }

    #[inline]
    pub(crate) fn is_due(&self, now: UnixSeconds) -> bool {
        now.0 >= self.at.load(Ordering::Acquire)
    }

    /// Executes a flush that is due, before any request is processed.
    #[inline]
    pub(crate) fn execute_if_due(&self, now: UnixSeconds, engine: &dyn Engine, log: &dyn Fn(LogChange<'_>)) {
        if self.is_due(now) {
            self.execute(now, engine, log);
        }
    }

    #[cold]
    fn execute(&self, now: UnixSeconds, engine: &dyn Engine, log: &dyn Fn(LogChange<'_>)) {
        let _clearing = self.clear_lock.lock();
        let due = self.at.load(Ordering::Acquire);
        // If the engine cannot clear now, the next request tries again.
        if now.0 >= due {
            // As soon as all records are removed, so that no other thread waits until the memory is
            // freed.
            let _ = engine.clear(&mut || {
                self.at.store(NONE, Ordering::Release);
                log(LogChange::Clear);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::ControlFlow;
    use todana_core::{EngineStatus, Record, ScanPosition, Visitor};

    /// An engine that can only be cleared.
    #[derive(Default)]
    struct ClearOnlyEngine(AtomicU64);

    impl Engine for ClearOnlyEngine {
        fn view(&self, _: &[u8], _: &mut dyn FnMut(Record<'_>)) -> Result<bool> {
            Ok(false)
        }

        fn visit(&self, _: &[u8], _: &mut dyn Visitor) -> Result<()> {
            Ok(())
        }

        fn wait_for_visits(&self) {}

        fn scan(
            &self,
            _: Option<ScanPosition>,
            _: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
        ) -> Result<Option<ScanPosition>> {
            Ok(None)
        }

        fn clear(&self, cleared: &mut dyn FnMut()) -> Result<()> {
            self.0.fetch_add(1, Ordering::Relaxed);
            cleared();
            Ok(())
        }

        fn status(&self) -> EngineStatus {
            EngineStatus::default()
        }
    }

    #[test]
    fn planned_flush_runs_once_and_is_logged() {
        let (flush, engine, told) = (PendingFlush::new(), ClearOnlyEngine::default(), Mutex::new(Vec::new()));
        let log = |change: LogChange<'_>| told.lock().push(format!("{change:?}"));
        let at = UnixSeconds;
        flush.plan(Ttl::At(1_000), at(999), &engine, &log).unwrap();
        assert_eq!(flush.with_planned(|planned| planned), Some(at(1_000)));
        let clears_at = |now| {
            flush.execute_if_due(UnixSeconds(now), &engine, &log);
            engine.0.load(Ordering::Relaxed)
        };
        assert_eq!([clears_at(999), clears_at(1_000), clears_at(1_000)], [0, 1, 1]);
        flush.plan(Ttl::Seconds(60), at(1_000), &engine, &log).unwrap();
        assert_eq!([clears_at(1_059), clears_at(1_060), clears_at(1_061)], [1, 2, 2]);
        // A flush executed immediately cancels a planned one.
        flush.plan(Ttl::Seconds(60), at(1_061), &engine, &log).unwrap();
        flush.plan(Ttl::Expired, at(1_062), &engine, &log).unwrap();
        assert_eq!([clears_at(1_062), clears_at(2_000)], [3, 3]);
        let plan = |at| format!("{:?}", LogChange::PlanClear { at: Some(UnixSeconds(at)) });
        let clear = || format!("{:?}", LogChange::Clear);
        assert_eq!(*told.lock(), [plan(1_000), clear(), plan(1_060), clear(), plan(1_121), clear()]);
    }
}
