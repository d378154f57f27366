//! The counts of the engine and of the sweep at the last reset. Both count from the start of the
//! process, so a reset stores the counts so far, and they are subtracted later.

use crate::sweep::SweepCounters;
use std::sync::{Mutex, MutexGuard, PoisonError};
use todana_core::EngineStatus;

#[derive(Debug, Default)]
pub(crate) struct ResetBaseline {
    at_reset: Mutex<(EngineStatus, SweepCounters)>,
}

impl ResetBaseline {
    fn at_reset(&self) -> MutexGuard<'_, (EngineStatus, SweepCounters)> {
        self.at_reset.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn reset(&self, status: EngineStatus, sweeps: SweepCounters) {
        *self.at_reset() = (status, sweeps);
    }

    /// Returns the status with the counts since the last reset.
    pub(crate) fn status(&self, mut now: EngineStatus) -> EngineStatus {
        let before = &self.at_reset().0;
        let less = |now: &mut u64, before: u64| *now = now.saturating_sub(before);
        less(&mut now.evictions, before.evictions);
        less(&mut now.evictions_with_expiry, before.evictions_with_expiry);
        less(&mut now.evictions_by_writes, before.evictions_by_writes);
        less(&mut now.evicted_unfetched, before.evicted_unfetched);
        less(&mut now.reclaimed, before.reclaimed);
        less(&mut now.expired_unfetched, before.expired_unfetched);
        less(&mut now.cleared, before.cleared);
        less(&mut now.promotions, before.promotions);
        less(&mut now.second_chances, before.second_chances);
        less(&mut now.uses_dropped, before.uses_dropped);
        less(&mut now.blocks_moved, before.blocks_moved);
        less(&mut now.pages_emptied, before.pages_emptied);
        now
    }

    pub(crate) fn sweeps(&self, now: SweepCounters) -> SweepCounters {
        let before = self.at_reset().1;
        SweepCounters {
            is_running: now.is_running,
            rounds: now.rounds.saturating_sub(before.rounds),
            seen: now.seen.saturating_sub(before.seen),
            removed: now.removed.saturating_sub(before.removed),
        }
    }
}
