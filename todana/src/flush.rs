//! The planned flush: the removal of all records at a point in time. Any later flush replaces the
//! plan.

use crate::update_log::LogChange;
use parking_lot::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicU64, Ordering};
use todana_core::{Engine, Result, Ttl, UnixSeconds};

const NONE: u64 = u64::MAX;

#[derive(Debug)]
pub(crate) struct PendingFlush {
    at: AtomicU64,
    /// The time of the flush that was requested last; `NONE` if there was none.
    last: AtomicU64,
    /// Locked while all records are removed. Requests that find the flush due wait for this lock.
    clear_lock: Mutex<()>,
}

/// Prevents clears and changes of the planned flush until it is dropped. Returned by
/// [`PendingFlush::block_changes`].
pub(crate) struct FlushGuard<'f> {
    flush: &'f PendingFlush,
    _clearing: MutexGuard<'f, ()>,
}

impl FlushGuard<'_> {
    pub(crate) fn planned(&self) -> Option<UnixSeconds> {
        Some(self.flush.at.load(Ordering::Acquire)).filter(|&at| at != NONE).map(UnixSeconds)
    }
}

/// Returns the time at which a requested flush is due.
fn due(at: Ttl, now: UnixSeconds) -> UnixSeconds {
    super::expiry::resolve(at, now).at().unwrap_or(now)
}

/// Returns true if a requested flush is not due yet, so that it is planned.
pub(crate) fn is_in_future(at: Ttl, now: UnixSeconds) -> bool {
    due(at, now) > now
}

impl PendingFlush {
    pub(crate) fn new() -> PendingFlush {
        PendingFlush { at: AtomicU64::new(NONE), last: AtomicU64::new(NONE), clear_lock: Mutex::new(()) }
    }

    /// Flushes now, or plans a flush for later.
    ///
    /// Calls `log` with the change, perhaps twice for the same clear. The calls are in the same
    /// order as the changes of records. No lock of the engine is held during them.
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
            // If another thread executes a clear at this time, it logs that no clear is planned.
            // The entry of this plan must follow that entry.
            let _clearing = self.clear_lock.lock();
            self.at.store(at.0, Ordering::Release);
            log(LogChange::PlanClear { at: Some(at) });
            return Ok(());
        }
        let _clearing = self.clear_lock.lock();
        self.at.store(NONE, Ordering::Release);
        engine.clear(&mut || log(LogChange::Clear))
    }

    /// Sets the plan that a log or a checkpoint contains.
    pub(crate) fn restore(&self, at: Option<UnixSeconds>) {
        self.at.store(at.map_or(NONE, |at| at.0), Ordering::Release);
    }

    /// Sets the plan that the log of a master contains. Calls `log` before another plan can be
    /// logged.
    pub(crate) fn adopt(&self, at: Option<UnixSeconds>, log: impl FnOnce()) {
        let _clearing = self.clear_lock.lock();
        self.restore(at);
        log();
    }

    /// Prevents clears, and changes of the planned flush, until the result is dropped.
    pub(crate) fn block_changes(&self) -> FlushGuard<'_> {
        FlushGuard { flush: self, _clearing: self.clear_lock.lock() }
    }

    /// Calls `see` with the time of the planned flush. During the call, the plan and its entry in
    /// the log cannot change.
    pub(crate) fn with_planned<T>(&self, see: impl FnOnce(Option<UnixSeconds>) -> T) -> T {
        see(self.block_changes().planned())
    }

    /// Returns the time of the last flush, or of a flush that is planned.
    pub(crate) fn last(&self) -> Option<UnixSeconds> {
        Some(self.last.load(Ordering::Relaxed)).filter(|&last| last != NONE).map(UnixSeconds)
    }

    #[inline]
    pub(crate) fn is_due(&self, now: UnixSeconds) -> bool {
        now.0 >= self.at.load(Ordering::Acquire)
    }

    /// Executes a flush that is due. Called before each request.
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
        // If the engine cannot remove the records now, the next request tries again.
        if now.0 >= due {
            // The engine calls this when all records are removed and before it frees their memory,
            // so that other threads do not wait for that.
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

    /// An engine for tests, of which only `clear` is used.
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
        // A flush that is executed at once cancels a planned one.
        flush.plan(Ttl::Seconds(60), at(1_061), &engine, &log).unwrap();
        flush.plan(Ttl::Expired, at(1_062), &engine, &log).unwrap();
        assert_eq!([clears_at(1_062), clears_at(2_000)], [3, 3]);
        let plan = |at| format!("{:?}", LogChange::PlanClear { at: Some(UnixSeconds(at)) });
        let clear = || format!("{:?}", LogChange::Clear);
        assert_eq!(*told.lock(), [plan(1_000), clear(), plan(1_060), clear(), plan(1_121), clear()]);
    }
}
