//! Resizes a shard: splits and merges buckets as the number of records changes, and compacts sparse
//! memory so that it can be returned.

use super::HashShard;
use crate::arena::{Arena, BlockHandle, BlockKind, CompactionEffort, MemoryNeed, NoRoom};
use crate::huge::HugeTable;
use crate::mem_hash::block_record::block_record;
use crate::mem_hash::directory::BucketDirectory;
use crate::mem_hash::eviction::{len_of, put_end};
use crate::mem_hash::group::{KeyColumn, RecordGroup, RecordReference};
use crate::mem_hash::key::Key;
use crate::mem_hash::layout;
use crate::mem_hash::queue::Marking;
use crate::mem_hash::quotient::BucketAddress;
use crate::mem_hash::row;

/// A bucket is split when buckets hold more than this number of bytes on average, and more than
/// `BUCKET_RECORDS` records. Both limits were measured (docs/engines.md).
const BUCKET_BYTES: usize = 208;
/// The second condition for a split, because of which long records share buckets too.
const BUCKET_RECORDS: usize = 4;
/// The number of buckets that one step of maintenance merges at most.
const MERGES_AT_ONCE: usize = 64;

impl HashShard {
    /// Does at most one step of growth or shrinkage and one step of compaction, so that no
    /// operation is delayed much.
    pub(super) fn rebalance(&mut self) {
        let buckets = self.directory.len();
        let (bytes, records) = (self.bucket_bytes, self.records as usize);
        if bytes > buckets * BUCKET_BYTES && records > buckets * BUCKET_RECORDS {
            // If there is no memory for two smaller blocks, the bucket stays as it is.
            let _ = self.split();
        } else if buckets > self.buckets_min
            && (bytes < buckets * BUCKET_BYTES / 5 * 2 || records < buckets * BUCKET_RECORDS / 5 * 2)
        {
            let _ = self.merge();
        }
        if self.arena.is_sparse() {
            self.compact(self.arena.effort());
        }
    }

    fn split(&mut self) -> Result<(), NoRoom> {
        let (from, bit, to) = self.directory.next_split();
        let old = self.address(from);
        let bits = old.bits + 1;
        let (low_address, high_address) =
            (BucketAddress { bits, ..old }, BucketAddress { bits, bucket: to as u32, ..old });
        let (mut low, mut high) = (std::mem::take(&mut self.content), std::mem::take(&mut self.content_two));
        low.clear();
        high.clear();
        let marking = self.collect_rows(from);
        row::sort_by_age(&mut self.rows);
        let mut rows = std::mem::take(&mut self.rows);
        let bytes = self.bytes_of(from);
        let (old_end, old_len) = len_of(bytes, &old);
        // The rows of the lower half move to the front, in their order.
        let context = self.context();
        let (mut kept, mut moved) = (0, Vec::with_capacity(rows.len() / 2 + 8));
        for number in 0..rows.len() {
            let row = rows[number];
            if row.low_hash(bytes, context) & bit == 0 {
                rows[kept] = row;
                kept += 1;
            } else {
                moved.push(row);
            }
        }
        rows.truncate(kept);
        let sources = [bytes, &[], &[]];
        layout::put_bucket(&mut rows, sources, &low_address, &mut low);
        layout::put_bucket(&mut moved, sources, &high_address, &mut high);
        let new_end = low.len() + high.len();
        // The keys of the ghosts may return to either half.
        put_end(&mut low, marking, &rows);
        put_end(&mut high, marking, &moved);
        let outcome = self.place_halves((from, to), old_len, &low, &high);
        if outcome.is_ok() {
            self.bucket_bytes = self.bucket_bytes + new_end - old_end;
        }
        (self.rows, self.content, self.content_two) = (rows, low, high);
        outcome
    }

    fn place_halves(
        &mut self,
        (from, to): (usize, usize),
        old_len: usize,
        low: &[u8],
        high: &[u8],
    ) -> Result<(), NoRoom> {
        let handle = self.directory.get(from);
        let size = |len| Arena::block_size(len, BlockKind::Bucket);
        let mut blocks = [BlockHandle::NONE; 2];
        // One of the halves stays in the block if it has the right size.
        let stays = [low, high].iter().position(|half| !half.is_empty() && size(half.len()) == size(old_len));
        for (number, half) in [low, high].into_iter().enumerate() {
            if half.is_empty() {
                continue;
            }
            if stays == Some(number) {
                blocks[number] = handle;
                continue;
            }
            match self.arena.alloc(half.len(), BlockKind::Bucket, MemoryNeed::Growth) {
                Ok(block) => blocks[number] = block,
                Err(no_room) => {
                    if number == 1 && stays != Some(0) && !low.is_empty() {
                        self.arena.free(blocks[0], low.len(), BlockKind::Bucket);
                    }
                    return Err(no_room);
                }
            }
        }
        if !self.directory.grow() {
            return Ok(());
        }
        for (block, half) in blocks.into_iter().zip([low, high]) {
            if !half.is_empty() {
                self.arena.write(block, 0, half);
            }
        }
        if stays.is_none() && !handle.is_none() {
            self.arena.free(handle, old_len, BlockKind::Bucket);
        }
        self.grew_at = self.budget.now().0;
        self.directory.set(from, blocks[0]);
        self.directory.set(to, blocks[1]);
        // The bucket that will be split next is known in advance, so prefetch it.
        self.prefetch_bucket(self.directory.next_split().0);
        Ok(())
    }

    fn merge(&mut self) -> Result<(), NoRoom> {
        let Some((last, into)) = self.directory.next_merge() else { return Ok(()) };
        let (last_address, into_address) = (self.address(last), self.address(into));
        let merged = BucketAddress { bits: into_address.bits - 1, ..into_address };
        let (moving, staying) = (self.directory.get(last), self.directory.get(into));
        let mut rows = std::mem::take(&mut self.rows);
        let mut content = std::mem::take(&mut self.content);
        rows.clear();
        content.clear();
        let (bytes, other) = (self.bytes_of(into), self.bytes_of(last));
        let ((end, len), (other_end, other_len)) =
            (len_of(bytes, &into_address), len_of(other, &last_address));
        let mut markings = [Marking::None; 2];
        for (source, bytes, address) in [(0, bytes, &into_address), (1, other, &last_address)] {
            if !bytes.is_empty() {
                let (_, tail) = row::take_apart(bytes, address, source as u8, &mut rows);
                markings[source] = tail.marking;
            }
        }
        let marking = if markings[0] == Marking::None { markings[1] } else { markings[0] };
        if let Some(form) = marking.form() {
            for row in &mut rows {
                row.mark = self.converted_mark(row, markings[usize::from(row.source)], form);
            }
        }
        row::sort_by_age(&mut rows);
        layout::put_bucket(&mut rows, [bytes, other, &[]], &merged, &mut content);
        let new_end = content.len();
        put_end(&mut content, marking, &rows);
        let placed = if content.is_empty() {
            Ok(BlockHandle::NONE)
        } else {
            self.replace(staying, len, &content, MemoryNeed::Upkeep)
        };
        (self.rows, self.content) = (rows, content);
        self.directory.set(into, placed?);
        if !moving.is_none() {
            self.arena.free(moving, other_len, BlockKind::Bucket);
        }
        self.bucket_bytes = self.bucket_bytes + new_end - end - other_end;
        self.directory.set(last, BlockHandle::NONE);
        self.directory.shrink();
        Ok(())
    }

    /// Does one step of compaction. Returns true if the step has freed anything.
    pub(in crate::mem_hash) fn compact(&mut self, effort: CompactionEffort) -> bool {
        let HashShard { arena, directory, seeds, .. } = self;
        // Neither the keys of a bucket nor its block show which bucket it is. The slots of moved
        // buckets are found by one pass over the directory. Stubs lie in the arena themselves, so
        // their references are corrected after that.
        let (mut moved_records, mut moved_buckets) = (Vec::new(), Vec::new());
        let done = arena.compact(effort, &mut |bytes, kind, from, to| match kind {
            BlockKind::Bucket => moved_buckets.push((from, to)),
            BlockKind::Record => {
                let hash = Key::new(&bytes[block_record(bytes).key], seeds).hash;
                moved_records.push((hash, from, to));
            }
        });
        self.blocks_moved += (moved_buckets.len() + moved_records.len()) as u64;
        self.pages_emptied += u64::from(done);
        directory.replace(moved_buckets);
        for (hash, from, to) in moved_records {
            self.redirect_stub(self.directory.bucket_of(hash), from, to);
        }
        done
    }

    /// Makes the stub of a record refer to the block into which the record has moved.
    pub(super) fn redirect_stub(&mut self, bucket: usize, from: BlockHandle, to: BlockHandle) {
        let (bytes, address) = (self.bytes_of(bucket), self.address(bucket));
        let mut at = 0;
        let mut reference_at = None;
        while let Some(group) = RecordGroup::read(bytes, at, &address) {
            at = group.end;
            if group.keys == KeyColumn::Stubs {
                let is_it = |index: &usize| group.stub(bytes, *index).1 == RecordReference::Block(from.0);
                reference_at =
                    reference_at.or((0..group.count).find(is_it).map(|index| group.stub_reference_at(index)));
            }
        }
        if let Some(at) = reference_at {
            self.arena.write(self.directory.get(bucket), at, &to.0.to_le_bytes());
        }
    }

    /// Clears the shard if it has no records, so that its buckets need not be merged one by one.
    /// Returns the memory that held records, so that the caller can drop it after releasing the
    /// lock.
    pub(in crate::mem_hash) fn clear_if_empty(&mut self) -> Option<(BucketDirectory, Arena, HugeTable)> {
        let is_empty = self.records == 0 && self.directory.len() > self.buckets_min;
        is_empty.then(|| self.clear())
    }

    /// Does one thorough step of maintenance. Returns true if there may be more to do.
    pub(in crate::mem_hash) fn maintain(&mut self) -> bool {
        // Writes merge buckets only when these are much too sparse, so that a fluctuating size
        // costs nothing. Maintenance merges the other sparse buckets.
        let mut merged = false;
        for _ in 0..MERGES_AT_ONCE {
            let buckets = self.directory.len();
            let is_loose = self.bucket_bytes < buckets * BUCKET_BYTES / 8 * 7
                || (self.records as usize) < buckets * BUCKET_RECORDS / 8 * 7;
            if buckets <= self.buckets_min || !is_loose || self.merge().is_err() {
                break;
            }
            merged = true;
        }
        // Memory that is being written to keeps some slack; idle memory is compacted completely.
        let writes = self.arena.moved();
        let effort = if writes == self.moved_when_last_maintained {
            CompactionEffort::Leisurely
        } else {
            CompactionEffort::Thorough
        };
        let done = self.compact(effort) || self.arena.trim() || merged;
        self.moved_when_last_maintained = self.arena.moved();
        done
    }
}
