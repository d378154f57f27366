//! New versions (CAS IDs): one counter for the complete database, never 0.

use std::sync::atomic::{AtomicU64, Ordering};
use todana_core::UnixSeconds;

/// 2026-01-01 as Unix time: a restored database continues from the number of seconds since then.
const RESTORED_EPOCH: u64 = 1_767_225_600;
/// The number of openings that a database may have had after its backup, whatever the clock states.
const OPENINGS_UNKNOWN: u32 = 1 << 16;

/// Returns the number of openings from which a restored database continues. `known` is the number
/// in the backup. The original database has been opened since, and so may others that were restored
/// from the same backup. All of them have given out versions that are unknown here, and none may be
/// assigned again. The result therefore depends on the time: nobody opens a database once a second
/// during its whole existence.
pub(crate) fn openings_of_restored(known: u32, now: UnixSeconds) -> u32 {
    let since = u32::try_from(now.0.saturating_sub(RESTORED_EPOCH)).unwrap_or(u32::MAX);
    known.saturating_add(OPENINGS_UNKNOWN).max(since)
}

#[derive(Debug, Default)]
pub(crate) struct VersionCounter(AtomicU64);

impl VersionCounter {
    pub(crate) fn fresh(&self) -> u64 {
        // Wraps after 2^64 versions; 0 means "none".
        (self.0.fetch_add(1, Ordering::Relaxed) + 1).max(1)
    }

    /// Records that this version was assigned before.
    pub(crate) fn note_assigned(&self, version: u64) {
        // Rarely true, because most records have no version, and a load is cheap for the threads
        // that load records.
        if version > self.highest() {
            self.0.fetch_max(version, Ordering::Relaxed);
        }
    }

    /// Returns the highest version assigned.
    pub(crate) fn highest(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Skips versions that may have been given out and then lost with the end of a log, so that
    /// none is assigned again. Four billion versions are more than can be lost at once, and there
    /// is room for four billion openings. `openings` is the number of openings of the database, for
    /// a log that has lost all versions.
    pub(crate) fn skip_lost(&self, openings: u32) {
        let highest = self.0.load(Ordering::Relaxed);
        self.0.store(highest.wrapping_add(1 << 32).max(u64::from(openings) << 32), Ordering::Relaxed);
    }

    /// Returns true if `wanted` is older than the version of a record. A record without a version
    /// was written after all versions given out for it, so it is newer than any assigned version.
    pub(crate) fn is_older(&self, wanted: u64, stored: u64) -> bool {
        let highest = self.highest();
        wanted != 0 && if stored == 0 { wanted <= highest } else { wanted < stored }
    }

    /// Returns the version for a record that is written: the given one, a new one if it will be
    /// shown, or none.
    pub(crate) fn for_write(&self, given: Option<u64>, shown: bool) -> u64 {
        match given {
            Some(version) => version,
            None if shown => self.fresh(),
            None => 0,
        }
    }
}

/// A condition on the version can hold only for a version that was given out, so it never holds for
/// a record without one.
pub(crate) fn equals(stored: u64, wanted: u64) -> bool {
    stored != 0 && stored == wanted
}
