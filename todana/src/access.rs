//! Access times exist only while somebody asks for them (meta flags h and l, `me`): keeping them on every record
//! would cost five bytes each, which hardly anybody reads.
//!
//! The first request that asks turns tracking on for the whole database; an hour after the last one it goes off
//! again. What was accessed before is unknown, and shown as never accessed.

use std::sync::atomic::{AtomicU64, Ordering};
use todana_core::{LastAccess, UnixSeconds};

const KEPT_S: u64 = 3600;

/// When somebody last asked.
#[derive(Debug, Default)]
pub(crate) struct Tracking {
    /// Zero: never.
    on_until: AtomicU64,
}

impl Tracking {
    #[inline]
    pub(crate) fn is_on(&self, now: UnixSeconds) -> bool {
        now.0 < self.on_until.load(Ordering::Relaxed)
    }

    pub(crate) fn ask(&self, now: UnixSeconds) {
        let until = now.0 + KEPT_S;
        if self.on_until.load(Ordering::Relaxed) < until {
            self.on_until.fetch_max(until, Ordering::Relaxed);
        }
    }

    /// What a record stored now carries.
    pub(crate) fn on_write(&self, now: UnixSeconds) -> Option<LastAccess> {
        self.is_on(now).then_some(LastAccess { at: now, fetched: false })
    }

    /// What a record carries that something else than a read has come to: whether it was read stays.
    pub(crate) fn on_use(&self, now: UnixSeconds, before: Option<LastAccess>) -> Option<LastAccess> {
        let fetched = before.is_some_and(|before| before.fetched);
        self.is_on(now).then_some(LastAccess { at: now, fetched })
    }

    /// What a record read now carries.
    pub(crate) fn on_read(&self, now: UnixSeconds) -> Option<LastAccess> {
        self.is_on(now).then_some(LastAccess { at: now, fetched: true })
    }
}
