//! Access times, which are stored only while clients request them (meta flags h and l, `me`). A
//! time in every record would cost five bytes each, and hardly any client reads access times.
//!
//! The first request for an access time turns tracking on for all records of the database. Tracking
//! ends an hour after the last such request. Accesses before tracking began are unknown, and such a
//! record is shown as never accessed.

use std::sync::atomic::{AtomicU64, Ordering};
use todana_core::{LastAccess, UnixSeconds};

const TRACKING_S: u64 = 3600;

/// The state of access tracking in one database.
#[derive(Debug, Default)]
pub(crate) struct AccessTracking {
    /// The second at which tracking ends; 0 if no client has requested access times.
    on_until: AtomicU64,
}

impl AccessTracking {
    #[inline]
    pub(crate) fn is_on(&self, now: UnixSeconds) -> bool {
        now.0 < self.on_until.load(Ordering::Relaxed)
    }

    pub(crate) fn request(&self, now: UnixSeconds) {
        let until = now.0 + TRACKING_S;
        if self.on_until.load(Ordering::Relaxed) < until {
            self.on_until.fetch_max(until, Ordering::Relaxed);
        }
    }

    /// Returns the access time of a record that is stored now.
    pub(crate) fn on_write(&self, now: UnixSeconds) -> Option<LastAccess> {
        self.is_on(now).then_some(LastAccess { at: now, fetched: false })
    }

    /// Returns the access time of a record that is used now by a command other than a read. The
    /// record counts as read only if it was read before.
    pub(crate) fn on_use(&self, now: UnixSeconds, before: Option<LastAccess>) -> Option<LastAccess> {
        let fetched = before.is_some_and(|before| before.fetched);
        self.is_on(now).then_some(LastAccess { at: now, fetched })
    }

    /// Returns the access time of a record that is read now.
    pub(crate) fn on_read(&self, now: UnixSeconds) -> Option<LastAccess> {
        self.is_on(now).then_some(LastAccess { at: now, fetched: true })
    }
}
