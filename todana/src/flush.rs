//! The one pending flush: a point in time, replaced by any later flush.

use crate::update_log::LogChange;
use parking_lot::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicU64, Ordering};
use todana_core::{Engine, Result, Ttl, UnixSeconds};

const NONE: u64 = u64::MAX;

#[derive(Debug)]
pub(crate) struct Flush {
    at: AtomicU64,
    /// What the last one that was asked for was to happen at; `NONE` if there was none.
    last: AtomicU64,
    /// Held while everything is removed: whoever finds the flush due waits for it.
    clearing: Mutex<()>,
}

/// See [`Flush::stillness`].
pub(crate) struct Stillness<'f> {
    flush: &'f Flush,
    _clearing: MutexGuard<'f, ()>,
}

impl Stillness<'_> {
    pub(crate) fn planned(&self) -> Option<UnixSeconds> {
        Some(self.flush.at.load(Ordering::Acquire)).filter(|&at| at != NONE).map(UnixSeconds)
    }
}

/// When a flush that is asked for is due.
fn due(at: Ttl, now: UnixSeconds) -> UnixSeconds {
    super::expiry::resolve(at, now).at().unwrap_or(now)
}

/// Whether it would have to be planned.
pub(crate) fn is_ahead(at: Ttl, now: UnixSeconds) -> bool {
    due(at, now) > now
}

impl Flush {
    pub(crate) fn new() -> Flush {
        Flush { at: AtomicU64::new(NONE), last: AtomicU64::new(NONE), clearing: Mutex::new(()) }
    }

    /// Flushes now or plans to.
    ///
    /// `log` is told of it, and may be told twice of the same clear; under no lock but that it stands in order with changes of
    /// records.
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
            // A clear that is carried out meanwhile tells that nothing is planned; this must come behind it.
            let _clearing = self.clearing.lock();
            self.at.store(at.0, Ordering::Release);
            log(LogChange::PlanClear { at: Some(at) });
            return Ok(());
        }
        let _clearing = self.clearing.lock();
        self.at.store(NONE, Ordering::Release);
        engine.clear(&mut || log(LogChange::Clear))
    }

    /// What a log tells.
    pub(crate) fn restore(&self, at: Option<UnixSeconds>) {
        self.at.store(at.map_or(NONE, |at| at.0), Ordering::Release);
    }

    /// Nothing is cleared, planned or called off until this is dropped.
    pub(crate) fn stillness(&self) -> Stillness<'_> {
        Stillness { flush: self, _clearing: self.clearing.lock() }
    }

    /// What is planned, while neither that nor what the log was told of it changes.
    pub(crate) fn hold_still<T>(&self, see: impl FnOnce(Option<UnixSeconds>) -> T) -> T {
        see(self.stillness().planned())
    }

    /// When everything was last flushed, or is going to be.
    pub(crate) fn last(&self) -> Option<UnixSeconds> {
        Some(self.last.load(Ordering::Relaxed)).filter(|&last| last != NONE).map(UnixSeconds)
    }

    #[inline]
    pub(crate) fn is_due(&self, now: UnixSeconds) -> bool {
        now.0 >= self.at.load(Ordering::Acquire)
    }

    /// Carries out a flush whose time has come, before anything else is answered.
    #[inline]
    pub(crate) fn carry_out_if_due(
        &self,
        now: UnixSeconds,
        engine: &dyn Engine,
        log: &dyn Fn(LogChange<'_>),
    ) {
        if self.is_due(now) {
            self.carry_out(now, engine, log);
        }
    }

    #[cold]
    fn carry_out(&self, now: UnixSeconds, engine: &dyn Engine, log: &dyn Fn(LogChange<'_>)) {
        let _clearing = self.clearing.lock();
        let due = self.at.load(Ordering::Acquire);
        // An engine that cannot clear now will be asked again by the next request.
        if now.0 >= due {
            // As soon as everything is gone: nobody else shall wait until the memory is given back.
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
    struct Clears(AtomicU64);

    impl Engine for Clears {
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
    fn each_planned_flush_is_carried_out_once_and_told_in_order() {
        let (flush, engine, told) = (Flush::new(), Clears::default(), Mutex::new(Vec::new()));
        let log = |change: LogChange<'_>| told.lock().push(format!("{change:?}"));
        let at = UnixSeconds;
        flush.plan(Ttl::At(1_000), at(999), &engine, &log).unwrap();
        assert_eq!(flush.hold_still(|planned| planned), Some(at(1_000)));
        let clears_at = |now| {
            flush.carry_out_if_due(UnixSeconds(now), &engine, &log);
            engine.0.load(Ordering::Relaxed)
        };
        assert_eq!([clears_at(999), clears_at(1_000), clears_at(1_000)], [0, 1, 1]);
        flush.plan(Ttl::Seconds(60), at(1_000), &engine, &log).unwrap();
        assert_eq!([clears_at(1_059), clears_at(1_060), clears_at(1_061)], [1, 2, 2]);
        // One that is carried out at once calls off what was planned.
        flush.plan(Ttl::Seconds(60), at(1_061), &engine, &log).unwrap();
        flush.plan(Ttl::Expired, at(1_062), &engine, &log).unwrap();
        assert_eq!([clears_at(1_062), clears_at(2_000)], [3, 3]);
        let plan = |at| format!("{:?}", LogChange::PlanClear { at: Some(UnixSeconds(at)) });
        let clear = || format!("{:?}", LogChange::Clear);
        assert_eq!(*told.lock(), [plan(1_000), clear(), plan(1_060), clear(), plan(1_121), clear()]);
    }
}
