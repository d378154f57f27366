//! The memory limit of the process, and the memory that connections keep.
//!
//! `-m` limits the anonymous memory of the process. An engine reports the memory that it holds. The
//! budget measures the rest (connections, memory kept by the allocator) and gives the engines what
//! remains of the limit.

use crate::databases::{Databases, ServedDatabase};
use crate::process;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use todana_core::{MemoryLimit, WhenFull};

/// Maximum memory that all connections keep together if there is no memory limit.
const HELD_MAX: u64 = 1 << 30;

/// The memory limit, the last measurement, and the bytes that connections keep.
pub(crate) struct MemoryBudget {
    limit_mib: AtomicU64,
    /// The highest limit that the engines' shards can fill; their number is fixed at the start.
    reach_mib: u64,
    when_full: WhenFull,
    /// Memory of the process outside the engines, as last measured or estimated.
    outside_bytes: AtomicU64,
    /// Memory of the process outside the engines, as last measured.
    measured_bytes: AtomicU64,
    /// True if the memory of the process cannot be measured.
    is_unmeasured: AtomicBool,
    /// Bytes that connections keep between their turns.
    held_bytes: AtomicU64,
}

impl MemoryBudget {
    /// Creates the budget of a limit in MiB, 0 for none, that can be raised to `reach_mib` later.
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

    /// Returns the limit of the process's anonymous memory in bytes, `None` for none.
    pub(crate) fn limit_bytes(&self) -> Option<u64> {
        Some(self.limit_mib.load(Ordering::Relaxed)).filter(|&mib| mib != 0).map(|mib| mib << 20)
    }

    pub(crate) fn reach_mib(&self) -> u64 {
        self.reach_mib
    }

    /// Changes the limit, and that of the engines.
    pub(crate) fn set_limit_mib(&self, mebibytes: u64, databases: &Databases) {
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
        // The sum wraps around if the value shrinks.
        self.held_bytes.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Returns the bytes that all connections together may keep, without long values, which count
    /// as the engine's.
    pub(crate) fn held_max(&self) -> u64 {
        self.limit_bytes().map_or(HELD_MAX, |limit| limit / 4)
    }

    /// Returns the bytes that a connection may keep if it keeps `own` bytes now.
    pub(crate) fn held_room(&self, own: u64) -> usize {
        let others = self.held_bytes().saturating_sub(own);
        usize::try_from(self.held_max().saturating_sub(others)).unwrap_or(usize::MAX)
    }

    /// Measures the memory of the process outside the engines, and gives the engines the rest of
    /// the limit. `answers` is the size of long replies, which are counted if nothing can be
    /// measured.
    pub(crate) fn measure(&self, databases: &Databases, answers: u64) {
        if self.limit_bytes().is_none() {
            return;
        }
        // Includes engines on disk: their memory is not part of the limit and must not reduce the
        // share of engines in memory.
        let committed =
            || databases.iter().map(|served| served.database.engine().status().committed_bytes).sum();
        let before = committed();
        let last = self.measured_bytes.load(Ordering::Relaxed);
        // The measurement fails if no descriptor is free or /proc is missing.
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

    /// Warns once that the memory of the process cannot be measured.
    fn warn_unmeasured(&self) {
        if !self.is_unmeasured.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "memory limit: /proc/self cannot be read; the limit is kept by what the databases count, and the \
                 rest of the process is estimated"
            );
        }
    }

    /// Sets the limits of the engines.
    fn apply(&self, databases: &Databases) {
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

/// Returns the memory of the process outside the engines: `resident_bytes` minus the memory that
/// the engines held at that moment, of which only the values `before` and `after` are known. Large
/// values come and go while this thread is not running, so the result is only known to be in a
/// range. It is the value of that range nearest to `last`. (The lower end of the range let a busy
/// process exceed its limit by all its memory outside the engines.)
fn outside_bytes(last: u64, resident_bytes: u64, before: u64, after: u64) -> u64 {
    let least = resident_bytes.saturating_sub(before.max(after));
    let most = resident_bytes.saturating_sub(before.min(after));
    last.clamp(least, most)
}

/// Returns an estimate of the memory outside the engines if it cannot be measured: the `last`
/// measurement, or the size of the program, and at least the bytes `counted` of connections and
/// replies.
fn unmeasured_bytes(last: u64, counted: u64) -> u64 {
    const PROGRAM: u64 = 8 << 20;
    last.max(PROGRAM + counted)
}

/// Returns the memory that the engines may hold so that the process stays within `limit_bytes`.
pub(crate) fn engine_limit(limit_bytes: u64, outside_bytes: u64) -> u64 {
    // A margin for memory that the measurement misses: buffers that come and go between two ticks.
    // It is a 128th of the limit, at least 512 KiB and at most 16 MiB, because it depends more on
    // clients than on the limit. For a small limit it is at most a 32nd, because the records need
    // the room.
    let margin = (limit_bytes / 32).min(512 << 10).max(limit_bytes / 128).min(16 << 20);
    // The engines always get a 16th, because a server that refuses every write is of no use.
    limit_bytes.saturating_sub(outside_bytes + margin).max(limit_bytes / 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_engine_takes_or_gives_back_meanwhile_is_not_counted_as_the_rests() {
        // The engine's memory did not change, so the result is exact, whatever it was before.
        assert_eq!([0, 6, 90].map(|last| outside_bytes(last, 106, 100, 100)), [6; 3]);
        // The result is between 0 and 20 in the first case, and between 2 and 12 in the second.
        assert_eq!([0, 6, 20, 21].map(|last| outside_bytes(last, 100, 80, 110)), [0, 6, 20, 20]);
        assert_eq!([0, 6, 20].map(|last| outside_bytes(last, 102, 100, 90)), [2, 6, 12]);
        assert_eq!(outside_bytes(5, 10, 20, 30), 0);
    }

    #[test]
    fn unmeasured_process_is_taken_to_hold_what_is_known() {
        assert_eq!(unmeasured_bytes(0, 0), 8 << 20);
        assert_eq!(unmeasured_bytes(0, 10 << 20), 18 << 20);
        assert_eq!(unmeasured_bytes(20 << 20, 1 << 20), 20 << 20);
    }

    #[test]
    fn the_engine_gets_what_the_rest_leaves() {
        assert_eq!(engine_limit(64 << 20, 4 << 20), (60 << 20) - (512 << 10));
        assert_eq!(engine_limit(8 << 20, 4 << 20), (4 << 20) - (256 << 10));
        assert_eq!(engine_limit(8 << 20, 9 << 20), 512 << 10);
        assert_eq!(engine_limit(1 << 40, 0), (1 << 40) - (16 << 20));
    }
}
