//! The one pending flush: a point in time, replaced by any later flush.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use todana_core::{Engine, Result, Ttl, UnixSeconds};

const NONE: u64 = u64::MAX;

#[derive(Debug)]
pub(crate) struct Flush {
    at: AtomicU64,
    /// Held while everything is removed: whoever finds the flush due waits for it.
    clearing: Mutex<()>,
}

impl Flush {
    pub(crate) fn new() -> Flush {
        Flush { at: AtomicU64::new(NONE), clearing: Mutex::new(()) }
    }

    /// Flushes now or plans to.
    pub(crate) fn plan(&self, at: Ttl, now: UnixSeconds, engine: &dyn Engine) -> Result<()> {
        let at = super::expiry::resolve(at, now).at().unwrap_or(now).0;
        if at > now.0 {
            self.at.store(at, Ordering::Release);
            return Ok(());
        }
        self.at.store(NONE, Ordering::Release);
        engine.clear()
    }

    /// Carries out a flush whose time has come, before anything else is answered.
    #[inline]
    pub(crate) fn carry_out_if_due(&self, now: UnixSeconds, engine: &dyn Engine) {
        if now.0 >= self.at.load(Ordering::Acquire) {
            self.carry_out(now, engine);
        }
    }

    #[cold]
    fn carry_out(&self, now: UnixSeconds, engine: &dyn Engine) {
        let _clearing = self.clearing.lock();
        let due = self.at.load(Ordering::Acquire);
        // An engine that cannot clear now will be asked again by the next request.
        if now.0 >= due && engine.clear().is_ok() {
            // A flush that was planned meanwhile stays planned.
            let _ = self.at.compare_exchange(due, NONE, Ordering::AcqRel, Ordering::Acquire);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::ControlFlow;
    use todana_core::{Place, Record, Status, Visitor};

    /// An engine that can only be cleared, during which somebody else plans a flush.
    struct PlansMeanwhile<'a> {
        flush: &'a Flush,
        at: Ttl,
        now: UnixSeconds,
        clears: AtomicU64,
    }

    impl Engine for PlansMeanwhile<'_> {
        fn view(&self, _: &[u8], _: &mut dyn FnMut(Record<'_>)) -> Result<bool> {
            Ok(false)
        }

        fn visit(&self, _: &[u8], _: &mut dyn Visitor) -> Result<()> {
            Ok(())
        }

        fn scan(
            &self,
            _: Option<Place>,
            _: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
        ) -> Result<Option<Place>> {
            Ok(None)
        }

        fn clear(&self) -> Result<()> {
            if self.clears.fetch_add(1, Ordering::Relaxed) == 0 {
                self.flush.plan(self.at, self.now, self)?;
            }
            Ok(())
        }

        fn status(&self) -> Status {
            Status::default()
        }
    }

    #[test]
    fn a_flush_planned_while_another_is_carried_out_comes_too() {
        let flush = Flush::new();
        let (now, later) = (UnixSeconds(1_000), UnixSeconds(1_060));
        let clears = AtomicU64::new(0);
        let engine = PlansMeanwhile { flush: &flush, at: Ttl::Seconds(60), now, clears };
        flush.plan(Ttl::At(now.0), UnixSeconds(now.0 - 1), &engine).unwrap();
        let clears_at = |now| {
            flush.carry_out_if_due(now, &engine);
            engine.clears.load(Ordering::Relaxed)
        };
        assert_eq!([clears_at(now), clears_at(now), clears_at(UnixSeconds(later.0 - 1))], [1, 1, 1]);
        assert_eq!([clears_at(later), clears_at(later)], [2, 2]);
    }
}
