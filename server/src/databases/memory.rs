//! The memory limit of the process, and what connections keep of it.
//!
//! `-m` bounds the anonymous memory of the process. The engine reports what it holds; the budget measures what the process holds
//! besides (connections, memory that the allocator keeps) and leaves the engine the rest.

use crate::databases::{Databases, Served};
use crate::process;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use todana_core::{MemoryLimit, WhenFull};

/// The most that connections keep together where there is no memory limit.
const HELD_MAX: u64 = 1 << 30;

/// The memory limit, the last measurement, and the bytes that connections keep.
pub(crate) struct MemoryBudget {
    limit_mib: AtomicU64,
    /// The highest limit that the engine's shards can fill; their number is fixed at the start.
    reach_mib: u64,
    when_full: WhenFull,
    /// Memory of the process besides the engine when last measured, or estimated.
    outside_bytes: AtomicU64,
    /// The same, but never an estimate.
    measured_bytes: AtomicU64,
    /// The memory of the process cannot be measured.
    is_unmeasured: AtomicBool,
    /// Kept by connections between their turns.
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
        // Wraps around where it shrinks.
        self.held_bytes.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Returns how much all connections together may keep besides long values, which are the engine's.
    pub(crate) fn held_max(&self) -> u64 {
        self.limit_bytes().map_or(HELD_MAX, |limit| limit / 4)
    }

    /// Returns how much a connection may keep that keeps `own` bytes now.
    pub(crate) fn held_room(&self, own: u64) -> usize {
        let others = self.held_bytes().saturating_sub(own);
        usize::try_from(self.held_max().saturating_sub(others)).unwrap_or(usize::MAX)
    }

    /// Measures the memory of the process besides the engine, and gives the engine the rest. `answers`: bytes of long answers,
    /// which are counted where nothing can be measured.
    pub(crate) fn measure(&self, databases: &Databases, answers: u64) {
        if self.limit_bytes().is_none() {
            return;
        }
        // Engines on disk, too: their memory is theirs besides the limit, and takes nothing from those in memory.
        let committed =
            || databases.iter().map(|served| served.database.engine().status().committed_bytes).sum();
        let before = committed();
        let last = self.measured_bytes.load(Ordering::Relaxed);
        // It cannot be read without a descriptor left, or without /proc.
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
            let bounded = |served: &'_ Served| served.database.engine().bounded().is_some();
            databases.iter().filter(move |served| bounded(served))
        };
        // Those in memory share alike.
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

/// What the process holds besides the engine: `resident_bytes`, less what the engine held when they were measured, which is
/// known from `before` and after that alone. Large values come and go while this thread is kept from running, so all that
/// is certain is a range; what was known `last` stays as far as it lies in there. (The least of the range let a busy process
/// outgrow its limit by all that it holds besides the engine.)
fn outside_bytes(last: u64, resident_bytes: u64, before: u64, after: u64) -> u64 {
    let least = resident_bytes.saturating_sub(before.max(after));
    let most = resident_bytes.saturating_sub(before.min(after));
    last.clamp(least, most)
}

/// What the process is taken to hold besides the engine where it cannot be measured: what was measured `last`, or the program itself, and at least
/// what is `counted` of connections and answers.
fn unmeasured_bytes(last: u64, counted: u64) -> u64 {
    const PROGRAM: u64 = 8 << 20;
    last.max(PROGRAM + counted)
}

/// What the engine may hold so that the process stays within `limit_bytes`.
pub(crate) fn engine_limit(limit_bytes: u64, outside_bytes: u64) -> u64 {
    // What the measurement cannot see yet: buffers that come and go between two ticks. A 128th of the limit, within 512 KiB and 16 MiB, as it
    // depends on clients more than on the limit; of a small limit no more than a 32nd, as the records need the room.
    let margin = (limit_bytes / 32).min(512 << 10).max(limit_bytes / 128).min(16 << 20);
    // Whatever the rest takes, a little is left to store in: refusing everything would help nobody.
    limit_bytes.saturating_sub(outside_bytes + margin).max(limit_bytes / 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_engine_takes_or_gives_back_meanwhile_is_not_counted_as_the_rests() {
        // Nothing came or went: it is known exactly, whatever it was before.
        assert_eq!([0, 6, 90].map(|last| outside_bytes(last, 106, 100, 100)), [6; 3]);
        // It may be anything from 0 to 20, and from 2 to 12.
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
