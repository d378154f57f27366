//! The one pending flush: a point in time, replaced by any later flush.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use todana_core::{Engine, Expiry, Result, Ttl, UnixSeconds};

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
        let at = match super::expiry::resolve(at, now) {
            Expiry::Never => now.0,
            Expiry::At(at) => at.0,
        };
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
        if now.0 >= self.at.load(Ordering::Acquire) {
            // An engine that cannot clear now will be asked again by the next request.
            if engine.clear().is_ok() {
                self.at.store(NONE, Ordering::Release);
            }
        }
    }
}
