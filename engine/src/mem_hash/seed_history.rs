//! Keeps the seeds of a hash, which change when the hash takes over the seed of an image.
//!
//! Operations read the seeds before they lock a shard, and must compare their generation with that
//! of the shard after that ([`super::shard::HashShard::is_outdated`]).
//!
//! Invariant: seeds are never removed, so a reader needs no lock. A hash changes its seed rarely,
//! and only up to [`CHANGES_MAX`] times.

use super::key::HashSeeds;
use std::sync::OnceLock;

/// The maximum number of changes. Each one makes reading the current seeds slower by about a
/// nanosecond.
const CHANGES_MAX: u32 = 32;

/// The seeds that a hash has had, the oldest first.
pub(super) struct SeedHistory {
    first: UsedSeed,
    shard_bits: u32,
}

/// A seed, and the one that replaced it.
pub(super) struct UsedSeed {
    pub(super) seed: u64,
    pub(super) seeds: HashSeeds,
    next: OnceLock<Box<UsedSeed>>,
}

impl SeedHistory {
    pub(super) fn new(seed: u64, shard_bits: u32) -> SeedHistory {
        let seeds = HashSeeds::new(seed, shard_bits);
        SeedHistory { first: UsedSeed { seed, seeds, next: OnceLock::new() }, shard_bits }
    }

    /// Returns the current seed.
    #[inline]
    pub(super) fn current(&self) -> &UsedSeed {
        let mut used = &self.first;
        while let Some(next) = used.next.get() {
            used = next;
        }
        used
    }

    /// Replaces the current seed. The caller excludes other changes. Returns the seeds, or `None`
    /// if there were too many changes.
    pub(super) fn change(&self, seed: u64) -> Option<HashSeeds> {
        let current = self.current();
        let generation = current.seeds.generation + 1;
        if generation > CHANGES_MAX {
            return None;
        }
        let mut seeds = HashSeeds::new(seed, self.shard_bits);
        seeds.generation = generation;
        let next = Box::new(UsedSeed { seed, seeds, next: OnceLock::new() });
        current.next.set(next).is_ok().then_some(seeds)
    }
}
