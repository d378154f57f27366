//! Counts at the last reset of the statistics, of counters that are never reset themselves.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Counts by the names of their statistics.
#[derive(Debug, Default)]
pub(crate) struct Baseline {
    counts: Mutex<HashMap<String, u64>>,
}

impl Baseline {
    fn counts(&self) -> MutexGuard<'_, HashMap<String, u64>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the count of a statistic at the last reset, 0 before the first.
    pub(crate) fn get(&self, name: &str) -> u64 {
        self.counts().get(name).copied().unwrap_or(0)
    }

    /// Replaces all counts.
    pub(crate) fn set(&self, counts: HashMap<String, u64>) {
        *self.counts() = counts;
    }
}
