//! Keeps the process within its memory limit, and counts the memory that connections keep.
//!
//! `-m` limits the anonymous memory of the process. An engine reports the memory that it holds. The
//! budget measures the rest (connections, memory that the allocator holds), and sets the limit of
//! the engines to the remaining part.

use crate::databases::{ServedDatabase, ServedDatabases};
use crate::process;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use todana_core::{MemoryLimit, WhenFull};

/// The maximum memory that all connections together may keep if there is no memory limit.
const HELD_MAX: u64 = 1 << 30;

/// The memory limit, the last measurement, and the bytes that connections keep.
pub(crate) struct MemoryBudget {
    limit_mib: AtomicU64,
    /// The highest limit in MiB that the shards of the engines can fill. The number of shards is
    /// fixed at the start.
    reach_mib: u64,
    when_full: WhenFull,
    /// The memory of the process outside of the engines, as last measured or estimated.
    outside_bytes: AtomicU64,
    /// The memory of the process outside of the engines, as last measured.
    measured_bytes: AtomicU64,
    /// True if the memory of the process cannot be measured.
    is_unmeasured: AtomicBool,
    /// The number of bytes that connections keep while they are not served.
    held_bytes: AtomicU64,
}

impl MemoryBudget {
    /// Creates the budget for a limit in MiB; 0 means no limit. The limit can later be raised up to
    /// `reach_mib`.
    pub(crate) fn new(limit_mib: u64, reach_mib: u64, when_full: WhenFull) -> MemoryBudget {
        MemoryBudget {
            limit_mib: AtomicU64::new(limit_mib),
            reach_mib: reach_mib.max(limit_mib),
            when_full,
            outside_bytes: AtomicU64::new(0),
            measured_bytes: AtomicU64::new(0),
            is_unmeasured: AtomicBool::new(false),
            held_bytes: AtomicU64::new(0),
        }
    }

    /// Returns the limit of the anonymous memory of the process in bytes. Returns `None` if there
    /// is no limit.
    pub(crate) fn limit_bytes(&self) -> Option<u64> {
        Some(self.limit_mib.load(Ordering::Relaxed)).filter(|&mib| mib != 0).map(|mib| mib << 20)
    }

    pub(crate) fn reach_mib(&self) -> u64 {
        self.reach_mib
    }

    /// Changes the limit, and sets the limits of the engines accordingly.
    pub(crate) fn set_limit_mib(&self, mebibytes: u64, databases: &ServedDatabases) {
        self.limit_mib.store(mebibytes, Ordering::Relaxed);
        self.apply(databases);
    }

    pub(crate) fn outside_bytes(&self) -> u64 {
        self.outside_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn held_bytes(&self) -> u64 {
        self.held_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn held_changed(&self, before: u64, now: u64) {
        // The sum wraps around if the value has decreased.
        self.held_bytes.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Returns the number of bytes that all connections together may keep. Long values do not count
    /// here, because they count as memory of the engines.
    pub(crate) fn held_max(&self) -> u64 {
        self.limit_bytes().map_or(HELD_MAX, |limit| limit / 4)
    }

    /// Returns the number of bytes that a connection may keep if it keeps `own` bytes now.
    pub(crate) fn held_room(&self, own: u64) -> usize {
        let others = self.held_bytes().saturating_sub(own);
        usize::try_from(self.held_max().saturating_sub(others)).unwrap_or(usize::MAX)
    }

    /// Measures the memory of the process outside of the engines, and sets the limits of the
    /// engines to the remaining part of the limit. `answers` is the memory of long replies; it is
    /// used only if nothing can be measured.
    pub(crate) fn measure(&self, databases: &ServedDatabases, answers: u64) {
        if self.limit_bytes().is_none() {
            return;
        }
        // The sum includes engines on disk. Their memory is not part of the limit, and must not
        // reduce the share of the engines in memory.
        let committed =
            || databases.iter().map(|served| served.database.engine().status().committed_bytes).sum();
        let before = committed();
        let last = self.measured_bytes.load(Ordering::Relaxed);
        // The measurement fails if no descriptor is free, or if /proc is missing.
        let outside = if let Some(anonymous) = process::anonymous_bytes() {
            self.is_unmeasured.store(false, Ordering::Relaxed);
            let outside = outside_bytes(last, anonymous, before, committed());
            self.measured_bytes.store(outside, Ordering::Relaxed);
            outside
        } else {
            self.warn_unmeasured();
            unmeasured_bytes(last, self.held_bytes() + answers)
        };
        self.outside_bytes.store(outside, Ordering::Relaxed);
        self.apply(databases);
    }

    /// Logs once that the memory of the process cannot be measured.
    fn warn_unmeasured(&self) {
        if !self.is_unmeasured.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "memory limit: /proc/self cannot be read, so memory outside the databases is only estimated"
            );
        }
    }

    /// Sets the limits of the engines.
    fn apply(&self, databases: &ServedDatabases) {
        let bounded = || {
            let bounded = |served: &'_ ServedDatabase| served.database.engine().bounded().is_some();
            databases.iter().filter(move |served| bounded(served))
        };
        // Engines in memory share the limit equally.
        let count = bounded().count().max(1) as u64;
        let share = self.limit_bytes().map(|limit| engine_limit(limit, self.outside_bytes()) / count);
        for served in bounded() {
            let bytes = share.into_iter().chain(served.name.tuning.bytes_max).min();
            if let Some(bounded) = served.database.engine().bounded() {
                bounded.set_limit(MemoryLimit { bytes, when_full: self.when_full });
            }
        }
    }
}

/// Returns the memory of the process outside of the engines. This is `resident_bytes` minus the
/// memory that the engines held at that moment, which is not known exactly: `before` and `after`
/// were read before and after the measurement, and large values may come and go in between. The
/// result is therefore only known to be in a range. The function returns the value of that range
/// that is nearest to `last`. (With the lower end of the range, a busy process exceeded its limit
/// by all its memory outside of the engines.)
fn outside_bytes(last: u64, resident_bytes: u64, before: u64, after: u64) -> u64 {
    let least = resident_bytes.saturating_sub(before.max(after));
    let most = resident_bytes.saturating_sub(before.min(after));
    last.clamp(least, most)
}

/// Returns an estimate of the memory outside of the engines, for a process whose memory cannot be
/// measured. It is the `last` measurement, but at least the size of the program plus the bytes
/// `counted` of connections and replies.
fn unmeasured_bytes(last: u64, counted: u64) -> u64 {
    const PROGRAM: u64 = 8 << 20;
    last.max(PROGRAM + counted)
}

/// Returns the memory that the engines may hold so that the process stays within `limit_bytes`.
pub(crate) fn engine_limit(limit_bytes: u64, outside_bytes: u64) -> u64 {
    // The margin is for memory that the measurement misses: buffers that come and go between two
    // ticks. It is a 128th of the limit, at least 512 KiB and at most 16 MiB, because it depends
    // more on the clients than on the limit. If the limit is small, the margin is at most a 32nd of
    // it, because the records need the memory.
    let margin = (limit_bytes / 32).min(512 << 10).max(limit_bytes / 128).min(16 << 20);
    // The engines always get a 16th, because a server that refuses every write is of no use.
    limit_bytes.saturating_sub(outside_bytes + margin).max(limit_bytes / 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engine_changes_during_measurement_are_not_outside_bytes() {
        // The engine's memory did not change, so the result is exact, and the last measurement does
        // not matter.
        assert_eq!([0, 6, 90].map(|last| outside_bytes(last, 106, 100, 100)), [6; 3]);
        // The result is between 0 and 20 in the first case, and between 2 and 12 in the second.
        assert_eq!([0, 6, 20, 21].map(|last| outside_bytes(last, 100, 80, 110)), [0, 6, 20, 20]);
        assert_eq!([0, 6, 20].map(|last| outside_bytes(last, 102, 100, 90)), [2, 6, 12]);
        assert_eq!(outside_bytes(5, 10, 20, 30), 0);
    }

    #[test]
    fn unmeasured_process_counts_its_known_bytes() {
        assert_eq!(unmeasured_bytes(0, 0), 8 << 20);
        assert_eq!(unmeasured_bytes(0, 10 << 20), 18 << 20);
        assert_eq!(unmeasured_bytes(20 << 20, 1 << 20), 20 << 20);
    }

    #[test]
    fn engine_gets_the_remaining_memory() {
        assert_eq!(engine_limit(64 << 20, 4 << 20), (60 << 20) - (512 << 10));
        assert_eq!(engine_limit(8 << 20, 4 << 20), (4 << 20) - (256 << 10));
        assert_eq!(engine_limit(8 << 20, 9 << 20), 512 << 10);
        assert_eq!(engine_limit(1 << 40, 0), (1 << 40) - (16 << 20));
    }
}
