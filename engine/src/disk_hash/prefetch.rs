//! Prefetches the records of several keys together.

use super::DiskHash;
use super::cold_reads::{self, READS_MAX};
use super::page::{IndexSlot, class_bound, tag_of};
use super::segment::{PREFETCHED_MAX, SegmentTable};
use super::shard::{IndexShard, page_of, shard_of};

impl DiskHash {
    /// Prefetches the slots of all keys, and then their entries. If the files exceed the memory,
    /// adds reads of the entries that are not in memory, and returns true if there are such reads.
    pub(super) fn prefetch_records(&self, keys: &[&[u8]]) -> bool {
        let mut is_reading = false;
        for keys in keys.chunks(READS_MAX) {
            let mut hashes = [0; READS_MAX];
            for (hash, key) in hashes.iter_mut().zip(keys) {
                *hash = self.hash(key);
                self.shards[shard_of(*hash)].0.read().prefetch(*hash);
            }
            for &hash in &hashes[..keys.len()] {
                is_reading |= prefetch_entry(&self.read_shard(shard_of(hash)), hash, PREFETCHED_MAX);
            }
        }
        is_reading
    }
}

/// Prefetches the entries that a hash may belong to, at most `len_max` bytes of each. Adds reads of
/// those that are not in memory, and returns true if there are such reads.
pub(super) fn prefetch_entry(shard: &IndexShard, hash: u64, len_max: usize) -> bool {
    let (page, tag) = (&shard.pages[page_of(hash)], tag_of(hash));
    let (mut next, mut is_reading) = (page.first(tag), false);
    while let Some(index) = next {
        is_reading |= prefetch_slot(&shard.table, page.get(index), len_max);
        next = page.next(tag, index + 1);
    }
    is_reading
}

/// Does the same for the entry of a slot.
pub(super) fn prefetch_slot(table: &SegmentTable, slot: IndexSlot, len_max: usize) -> bool {
    let at = slot.location();
    let offset = u64::from(at.unit) * 8;
    let Some(segment) = table.get(at.slot) else { return false };
    if table.exceeds_memory {
        return cold_reads::want(segment, offset, class_bound(slot.class()).unwrap_or(usize::MAX));
    }
    segment.prefetch(offset, slot.class(), len_max);
    false
}
