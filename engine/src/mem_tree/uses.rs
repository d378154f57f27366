//! Counts uses of records while memory is scarce.
//!
//! There is a table of two-bit counters. The hash of a key selects its counter, so a few keys share
//! each counter. A read or write increments the counter of its key. When eviction considers a
//! record, it decrements the counter. Nothing is stored with the records, and reads write to no
//! memory that a lock protects. The method resembles a clock with counters (Corbató's, generalised)
//! and the sketch of TinyLFU (Einziger et al., 2017), in which the hand of the clock ages the
//! counts.

use crate::arena::MemoryBudget;
use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

/// There is one counter for this number of bytes of the memory limit. All counters together take a
/// quarter of the last 64th of the limit. They are allocated when memory use reaches that last
/// 64th.
const BYTES_PER_COUNTER: u64 = 64;
const MOST: u8 = 3;

#[derive(Debug)]
pub(super) struct UseCounters {
    /// The counters, four per byte. They are allocated when memory first becomes scarce.
    counters: OnceLock<Box<[AtomicU8]>>,
    secrets: rapidhash::v3::RapidSecrets,
}

impl UseCounters {
    pub(super) fn new() -> UseCounters {
        let seed = RandomState::new().hash_one(std::process::id());
        UseCounters { counters: OnceLock::new(), secrets: rapidhash::v3::RapidSecrets::seed(seed) }
    }

    /// Returns the index of the byte that contains a key's counter, and the position of its bits in
    /// the byte.
    #[inline]
    fn counter(&self, counters: &[AtomicU8], key: &[u8]) -> (usize, u32) {
        let hash = rapidhash::v3::rapidhash_v3_seeded(key, &self.secrets);
        let index = (u128::from(hash) * (4 * counters.len() as u128)) >> 64;
        (index as usize / 4, index as u32 % 4 * 2)
    }

    /// Counts a use of a key.
    #[inline]
    pub(super) fn note(&self, key: &[u8], budget: &MemoryBudget) {
        let counters = self.counters.get_or_init(|| {
            let limit = budget.limit().bytes.unwrap_or(0);
            let bytes = (limit / BYTES_PER_COUNTER / 4).clamp(1 << 10, 1 << 30) as usize;
            budget.commit_anyway(bytes);
            (0..bytes).map(|_| AtomicU8::new(0)).collect()
        });
        let (at, shift) = self.counter(counters, key);
        // If two threads count at the same time, one use may be lost, which is harmless.
        let byte = counters[at].load(Ordering::Relaxed);
        if byte >> shift & MOST < MOST {
            counters[at].store(byte + (1 << shift), Ordering::Relaxed);
        }
    }

    /// Returns the number of uses of a key since eviction last considered it, up to the maximum of
    /// a counter. Decrements the counter.
    pub(super) fn passed(&self, key: &[u8]) -> u8 {
        let Some(counters) = self.counters.get() else { return 0 };
        let (at, shift) = self.counter(counters, key);
        let byte = counters[at].load(Ordering::Relaxed);
        let count = byte >> shift & MOST;
        if count > 0 {
            counters[at].store(byte - (1 << shift), Ordering::Relaxed);
        }
        count
    }

    /// Returns the memory that the counters use. The caller releases it from the budget.
    pub(super) fn bytes(&self) -> usize {
        self.counters.get().map_or(0, |counters| counters.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use todana_core::{MemoryLimit, WhenFull};

    #[test]
    fn uses_are_counted_up_to_three() {
        let limit = MemoryLimit { bytes: Some(64 << 20), when_full: WhenFull::Evict };
        let (budget, uses) = (MemoryBudget::new(limit), UseCounters::new());
        assert_eq!(uses.passed(b"key"), 0);
        (0..5).for_each(|_| uses.note(b"key", &budget));
        assert_eq!([0; 5].map(|_| uses.passed(b"key")), [3, 2, 1, 0, 0]);
        assert_eq!(uses.bytes() as u64, budget.committed());
    }

    #[test]
    fn counters_in_one_byte_are_independent() {
        let limit = MemoryLimit { bytes: Some(1), when_full: WhenFull::Evict };
        let (budget, uses) = (MemoryBudget::new(limit), UseCounters::new());
        // 2000 keys share 4096 counters. A key sees the uses of all keys that have the same
        // counter, and no others.
        let keys: Vec<String> = (0..2000).map(|n| format!("key:{n}")).collect();
        keys.iter().for_each(|key| uses.note(key.as_bytes(), &budget));
        let counted: u64 = keys.iter().map(|key| u64::from(uses.passed(key.as_bytes()))).sum();
        assert!((2200..=2800).contains(&counted), "{counted}");
        assert!(keys.iter().all(|key| uses.passed(key.as_bytes()) == 0));
    }
}
