//! Fresh versions (CAS ids): one counter for the whole database, never 0.

use std::sync::atomic::{AtomicU64, Ordering};
use todana_core::UnixSeconds;

/// 2026-01-01, Unix time: databases that are restored go on from how many seconds have passed since.
const RESTORED_EPOCH: u64 = 1_767_225_600;
/// So often a database may have been opened behind a backup of it whatever the clock tells.
const OPENINGS_UNKNOWN: u32 = 1 << 16;

/// From which count of openings a database goes on that is restored. `known`: what the backup tells. The database that it was made of has
/// been opened since, and so have others that were restored from the same backup; all of them have shown versions that nothing here
/// tells of, and none is to be made again. So time goes in: nobody opens a database once a second for as long as it is there.
pub(crate) fn openings_of_restored(known: u32, now: UnixSeconds) -> u32 {
    let since = u32::try_from(now.0.saturating_sub(RESTORED_EPOCH)).unwrap_or(u32::MAX);
    known.saturating_add(OPENINGS_UNKNOWN).max(since)
}

#[derive(Debug, Default)]
pub(crate) struct Versions(AtomicU64);

impl Versions {
    pub(crate) fn fresh(&self) -> u64 {
        // It wraps after 2^64 of them; 0 would mean "none".
        (self.0.fetch_add(1, Ordering::Relaxed) + 1).max(1)
    }

    /// This one was made before.
    pub(crate) fn have_been_made_to(&self, version: u64) {
        // Hardly ever true: most records have none, and a load is shared among the threads that bring them back.
        if version > self.made() {
            self.0.fetch_max(version, Ordering::Relaxed);
        }
    }

    /// The highest that was made.
    pub(crate) fn made(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Versions that were shown may have been lost with the end of a log; none of them is made again. Nobody shows four
    /// billion of them within what may be lost, and there is room for four billion openings. `openings`: how often the database
    /// has been opened, for a log that has lost all of them tells nothing of where to go on.
    pub(crate) fn begin_anew(&self, openings: u32) {
        let made = self.0.load(Ordering::Relaxed);
        self.0.store(made.wrapping_add(1 << 32).max(u64::from(openings) << 32), Ordering::Relaxed);
    }

    /// Whether `wanted` is older than the version of a record. One that has none was written after every version that
    /// was shown for it, so it is newer than any that was ever made.
    pub(crate) fn is_older(&self, wanted: u64, stored: u64) -> bool {
        let made = self.made();
        wanted != 0 && if stored == 0 { wanted <= made } else { wanted < stored }
    }

    /// The version of a record that is written: the one given, a fresh one if it will be shown, else none.
    pub(crate) fn for_write(&self, given: Option<u64>, shown: bool) -> u64 {
        match given {
            Some(version) => version,
            None if shown => self.fresh(),
            None => 0,
        }
    }
}

/// A condition on the version holds only for one that was shown, so a record without never fits.
pub(crate) fn equals(stored: u64, wanted: u64) -> bool {
    stored != 0 && stored == wanted
}
