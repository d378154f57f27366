//! Defines a counter without locked instructions.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter that one thread writes and any thread reads.
#[derive(Debug, Default)]
pub(crate) struct WorkerCounter(AtomicU64);

impl WorkerCounter {
    /// Adds `by` to the counter. `by` may be a negative difference, because the sum wraps around.
    #[inline]
    pub(crate) fn add(&self, by: u64) {
        self.0.store(self.get().wrapping_add(by), Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
