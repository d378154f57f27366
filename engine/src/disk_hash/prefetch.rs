//! Prefetches records, and adds reads of those that are not in memory.

use super::DiskHash;
use super::cold_reads::{self, READS_MAX};
use super::page::{IndexSlot, class_bound, tag_of};
use super::segment::{PREFETCHED_MAX, Segment, SegmentTable};
use super::shard::{IndexShard, page_of, shard_of};
use std::sync::Arc;
use todana_core::RecordRead;

impl DiskHash {
    /// Prefetches the slots of all keys, and then their entries. If the files exceed the memory,
    /// announces reads of the entries that are not in memory.
    pub(super) fn prefetch_records(&self, keys: &[&[u8]]) {
        for keys in keys.chunks(READS_MAX) {
            let mut hashes = [0; READS_MAX];
            for (hash, key) in hashes.iter_mut().zip(keys) {
                *hash = self.hash(key);
                self.shards[shard_of(*hash)].0.read().prefetch(*hash);
            }
            for &hash in &hashes[..keys.len()] {
                prefetch_entry(&self.read_shard(shard_of(hash)), hash, PREFETCHED_MAX);
            }
        }
    }

    /// Adds the reads that a request for a key waits for.
    pub(super) fn await_entry(&self, key: &[u8], may_start: bool) -> RecordRead {
        let hash = self.hash(key);
        let shard = self.read_shard(shard_of(hash));
        let mut state = RecordRead::Ready;
        for slot in slots_of(&shard, hash) {
            let Some((segment, offset, len)) = cold_place(&shard.table, slot) else { continue };
            match cold_reads::await_read(segment, offset, len, may_start) {
                RecordRead::Ready => {}
                RecordRead::Delayed => return RecordRead::Delayed,
                // Few keys share the bits that select a slot, so the last read is enough.
                started @ RecordRead::Started(_) => state = started,
            }
        }
        state
    }
}

/// Returns the slots that a hash may belong to.
fn slots_of(shard: &IndexShard, hash: u64) -> impl Iterator<Item = IndexSlot> {
    let (page, tag) = (&shard.pages[page_of(hash)], tag_of(hash));
    let indices = std::iter::successors(page.first(tag), move |index| page.next(tag, index + 1));
    indices.map(|index| page.get(index))
}

/// Returns the segment, the offset and the maximum length of an entry if the files exceed the
/// memory.
fn cold_place(table: &SegmentTable, slot: IndexSlot) -> Option<(&Arc<Segment>, u64, usize)> {
    let at = slot.location();
    let segment = table.get(at.slot).filter(|_| table.exceeds_memory)?;
    Some((segment, u64::from(at.unit) * 8, class_bound(slot.class()).unwrap_or(usize::MAX)))
}

/// Prefetches the entries that a hash may belong to, at most `len_max` bytes of each. Announces
/// reads of those that are not in memory.
pub(super) fn prefetch_entry(shard: &IndexShard, hash: u64, len_max: usize) {
    slots_of(shard, hash).for_each(|slot| prefetch_slot(&shard.table, slot, len_max));
}

/// Does the same for the entry of a slot.
pub(super) fn prefetch_slot(table: &SegmentTable, slot: IndexSlot, len_max: usize) {
    if let Some((segment, offset, len)) = cold_place(table, slot) {
        cold_reads::announce(segment, offset, len);
    } else if let at = slot.location()
        && let Some(segment) = table.get(at.slot)
    {
        segment.prefetch(u64::from(at.unit) * 8, slot.class(), len_max);
    }
}
