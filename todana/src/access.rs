//! Access times exist only while clients request them (meta flags h and l, `me`): a time on every
//! record would cost five bytes each, and hardly any client reads them.
//!
//! The first request for an access time turns tracking on for the complete database. Tracking ends
//! an hour after the last request. Earlier accesses are unknown and shown as "never accessed".

use std::sync::atomic::{AtomicU64, Ordering};
use todana_core::{LastAccess, UnixSeconds};

const KEPT_S: u64 = 3600;

/// Whether access times are tracked.
#[derive(Debug, Default)]
pub(crate) struct AccessTracking {
    /// The second at which tracking ends; 0 if it was never requested.
    on_until: AtomicU64,
}

impl AccessTracking {
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

    /// Returns the access time of a record that is stored now.
    pub(crate) fn on_write(&self, now: UnixSeconds) -> Option<LastAccess> {
        self.is_on(now).then_some(LastAccess { at: now, fetched: false })
    }

    /// Returns the access time of a record that is used now in another way than by a read; whether
    /// it was read before stays.
    pub(crate) fn on_use(&self, now: UnixSeconds, before: Option<LastAccess>) -> Option<LastAccess> {
        let fetched = before.is_some_and(|before| before.fetched);
        self.is_on(now).then_some(LastAccess { at: now, fetched })
    }

    /// Returns the access time of a record that is read now.
    pub(crate) fn on_read(&self, now: UnixSeconds) -> Option<LastAccess> {
        self.is_on(now).then_some(LastAccess { at: now, fetched: true })
    }
}
