//! Counters of uses, kept while memory is scarce.
//!
//! A table of two-bit counters, addressed by the hash of a key and shared by the few keys with the
//! same counter. A read or write increments its counter; eviction decrements it when it considers
//! the record. Nothing is stored with the records, and reads write to no memory that a lock
//! protects. This resembles a clock with counters (Corbató's, generalised) and TinyLFU's sketch
//! (Einziger et al., 2017), aged by the hand of the clock.

use crate::arena::MemoryBudget;
use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

/// The bytes of the memory limit per counter. All counters together take a quarter of the last 64th
/// of the limit, at which they are allocated.
const BYTES_PER_COUNTER: u64 = 64;
const MOST: u8 = 3;

#[derive(Debug)]
pub(super) struct UseCounters {
    /// Four counters per byte; allocated when memory first becomes scarce.
    counters: OnceLock<Box<[AtomicU8]>>,
    secrets: rapidhash::v3::RapidSecrets,
}

impl UseCounters {
    pub(super) fn new() -> UseCounters {
        let seed = RandomState::new().hash_one(std::process::id());
        UseCounters { counters: OnceLock::new(), secrets: rapidhash::v3::RapidSecrets::seed(seed) }
    }

    /// Returns the index of the byte with a key's counter, and its bits.
    #[inline]
    fn counter(&self, counters: &[AtomicU8], key: &[u8]) -> (usize, u32) {
        let hash = rapidhash::v3::rapidhash_v3_seeded(key, &self.secrets);
        let index = (u128::from(hash) * (4 * counters.len() as u128)) >> 64;
        (index as usize / 4, index as u32 % 4 * 2)
    }

    /// Counts a use.
    #[inline]
    pub(super) fn note(&self, key: &[u8], budget: &MemoryBudget) {
        let counters = self.counters.get_or_init(|| {
            let limit = budget.limit().bytes.unwrap_or(0);
            let bytes = (limit / BYTES_PER_COUNTER / 4).clamp(1 << 10, 1 << 30) as usize;
            budget.commit_anyway(bytes);
            (0..bytes).map(|_| AtomicU8::new(0)).collect()
        });
        let (at, shift) = self.counter(counters, key);
        // Two concurrent threads may lose a use, which is harmless.
        let byte = counters[at].load(Ordering::Relaxed);
        if byte >> shift & MOST < MOST {
            counters[at].store(byte + (1 << shift), Ordering::Relaxed);
        }
    }

    /// Returns the number of uses since eviction last considered the record, up to the maximum, and
    /// decrements it.
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

    /// Returns the memory used. The caller releases it from the budget.
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
        // 2000 keys share 4096 counters. Keys with the same counter see each other's uses and no
        // others.
        let keys: Vec<String> = (0..2000).map(|n| format!("key:{n}")).collect();
        keys.iter().for_each(|key| uses.note(key.as_bytes(), &budget));
        let counted: u64 = keys.iter().map(|key| u64::from(uses.passed(key.as_bytes()))).sum();
        assert!((2200..=2800).contains(&counted), "{counted}");
        assert!(keys.iter().all(|key| uses.passed(key.as_bytes()) == 0));
    }
}
