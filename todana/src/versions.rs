//! Assigns versions (CAS IDs) from one counter for all records of a database. No version is 0.
//!
//! The upper 32 bits of a version are at least the number of times that the database had been
//! opened. So a version that was assigned before a crash and never stored is not assigned again.

use std::sync::atomic::{AtomicU64, Ordering};
use todana_core::UnixSeconds;

/// 2026-01-01 as Unix time in seconds. See [`openings_of_restored`].
const RESTORED_EPOCH: u64 = 1_767_225_600;
/// If the number of openings since a backup or a loss is unknown, this number is added to the last
/// known one, because no database is opened more often in that time.
pub(crate) const OPENINGS_MARGIN: u32 = 1 << 16;

/// Returns the number of openings from which a restored database continues. `known` is the number
/// in the backup.
///
/// The original database may have been opened since the backup, and so may other databases that
/// were restored from the same backup. They have assigned versions that are unknown here and must
/// not be assigned again. So the result is at least the number of seconds since `RESTORED_EPOCH`:
/// no database is opened more often than once a second.
pub(crate) fn openings_of_restored(known: u32, now: UnixSeconds) -> u32 {
    let since = u32::try_from(now.0.saturating_sub(RESTORED_EPOCH)).unwrap_or(u32::MAX);
    known.saturating_add(OPENINGS_MARGIN).max(since)
}

#[derive(Debug, Default)]
pub(crate) struct VersionCounter(AtomicU64);

impl VersionCounter {
    /// Returns a new version.
    pub(crate) fn fresh(&self) -> u64 {
        // Wraps after 2^64 versions; 0 means "none".
        (self.0.fetch_add(1, Ordering::Relaxed) + 1).max(1)
    }

    /// Records that this version was assigned before.
    pub(crate) fn note_assigned(&self, version: u64) {
        // The check comes first because it is rarely true (most records have no version), and a
        // load is cheaper than an atomic maximum for the threads that restore records.
        if version > self.highest() {
            self.0.fetch_max(version, Ordering::Relaxed);
        }
    }

    /// Returns the highest version assigned.
    pub(crate) fn highest(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Skips 2^32 versions, so that a version that was assigned and then lost with the end of the
    /// log is not assigned again. No crash loses more versions, and there is room for 2^32
    /// openings. `openings` is the number of openings of the database; it is needed if the log has
    /// lost all versions.
    pub(crate) fn skip_lost(&self, openings: u32) {
        let highest = self.0.load(Ordering::Relaxed);
        self.0.store(highest.wrapping_add(1 << 32).max(u64::from(openings) << 32), Ordering::Relaxed);
    }

    /// Returns true if the version `wanted` is older than the version `stored` of a record. A
    /// record without a version (0) was written after all versions that were assigned to it, so it
    /// is newer than any of them.
    pub(crate) fn is_older(&self, wanted: u64, stored: u64) -> bool {
        let highest = self.highest();
        wanted != 0 && if stored == 0 { wanted <= highest } else { wanted < stored }
    }

    /// Returns the version for a record that is written: the given version, or a new one if the
    /// reply will contain it, or 0.
    pub(crate) fn for_write(&self, given: Option<u64>, shown: bool) -> u64 {
        match given {
            Some(version) => version,
            None if shown => self.fresh(),
            None => 0,
        }
    }
}

/// Returns true if the condition "the version is `wanted`" holds. It never holds for a record
/// without a version (0).
pub(crate) fn equals(stored: u64, wanted: u64) -> bool {
    stored != 0 && stored == wanted
}
