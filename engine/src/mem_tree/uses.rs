//! Which records are used, as far as it matters when memory is scarce.
//!
//! A table of counters of two bits, found by the hash of a key and shared by the few keys that meet in one: a read or a write
//! raises its counter, and eviction, when it comes by, lowers it. So nothing is kept with the records, and a read writes to
//! nothing that a lock guards. It is as a clock with counters (Corbató's, generalised), and as TinyLFU's sketch (Einziger et
//! al., 2017) that the hand of the clock ages.

use crate::arena::Budget;
use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

/// A counter for so many bytes of the limit: all together a quarter of the last 64th, in which they are made.
const BYTES_PER_COUNTER: u64 = 64;
const MOST: u8 = 3;

#[derive(Debug)]
pub(super) struct Uses {
    /// Four counters a byte; made when memory first becomes scarce.
    counters: OnceLock<Box<[AtomicU8]>>,
    secrets: rapidhash::v3::RapidSecrets,
}

impl Uses {
    pub(super) fn new() -> Uses {
        let seed = RandomState::new().hash_one(std::process::id());
        Uses { counters: OnceLock::new(), secrets: rapidhash::v3::RapidSecrets::seed(seed) }
    }

    /// The byte of a key's counter, and which bits.
    #[inline]
    fn counter(&self, counters: &[AtomicU8], key: &[u8]) -> (usize, u32) {
        let hash = rapidhash::v3::rapidhash_v3_seeded(key, &self.secrets);
        let index = (u128::from(hash) * (4 * counters.len() as u128)) >> 64;
        (index as usize / 4, index as u32 % 4 * 2)
    }

    /// Notes a use.
    #[inline]
    pub(super) fn note(&self, key: &[u8], budget: &Budget) {
        let counters = self.counters.get_or_init(|| {
            let limit = budget.limit().bytes.unwrap_or(0);
            let bytes = (limit / BYTES_PER_COUNTER / 4).clamp(1 << 10, 1 << 30) as usize;
            budget.commit_anyway(bytes);
            (0..bytes).map(|_| AtomicU8::new(0)).collect()
        });
        let (at, shift) = self.counter(counters, key);
        // Two threads at once may lose the use of one: it does no harm.
        let byte = counters[at].load(Ordering::Relaxed);
        if byte >> shift & MOST < MOST {
            counters[at].store(byte + (1 << shift), Ordering::Relaxed);
        }
    }

    /// How often a record has been used since its turn came last, as far as it is counted; it is its turn now.
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

    /// Bytes of memory, which whoever drops it has the budget know.
    pub(super) fn bytes(&self) -> usize {
        self.counters.get().map_or(0, |counters| counters.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use todana_core::{MemoryLimit, WhenFull};

    #[test]
    fn uses_are_counted_to_three_and_forgotten_one_by_one() {
        let limit = MemoryLimit { bytes: Some(64 << 20), when_full: WhenFull::Evict };
        let (budget, uses) = (Budget::new(limit), Uses::new());
        assert_eq!(uses.passed(b"key"), 0);
        (0..5).for_each(|_| uses.note(b"key", &budget));
        assert_eq!([0; 5].map(|_| uses.passed(b"key")), [3, 2, 1, 0, 0]);
        assert_eq!(uses.bytes() as u64, budget.committed());
    }

    #[test]
    fn neighbours_in_a_byte_do_not_disturb_each_other() {
        let limit = MemoryLimit { bytes: Some(1), when_full: WhenFull::Evict };
        let (budget, uses) = (Budget::new(limit), Uses::new());
        // 2000 keys in 4096 counters; those that share one see each other's uses, and nobody else's.
        let keys: Vec<String> = (0..2000).map(|n| format!("key:{n}")).collect();
        keys.iter().for_each(|key| uses.note(key.as_bytes(), &budget));
        let counted: u64 = keys.iter().map(|key| u64::from(uses.passed(key.as_bytes()))).sum();
        assert!((2200..=2800).contains(&counted), "{counted}");
        assert!(keys.iter().all(|key| uses.passed(key.as_bytes()) == 0));
    }
}
