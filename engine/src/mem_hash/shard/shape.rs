//! Resizes a shard: splits and merges buckets as the number of records changes, and compacts sparse
//! memory so that it can be returned.

use super::{HashShard, low_hash};
use crate::arena::{Arena, BlockHandle, BlockKind, CompactionEffort, MemoryNeed, NoRoom};
use crate::mem_hash::eviction::records_in;
use crate::mem_hash::queue::{BucketTail, UseMark, put_tail};
use crate::mem_hash::record::{self, EntryBody, RecordReference, STUB_LEN};

/// A bucket is split when buckets hold more than this number of bytes on average, and more than
/// `BUCKET_RECORDS` records. Both limits were measured (docs/engines.md).
const BUCKET_BYTES: usize = 168;
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
        let handle = self.directory.get(from);
        let (mut low, mut high) = (std::mem::take(&mut self.scratch), std::mem::take(&mut self.scratch_two));
        low.clear();
        high.clear();
        let mut old_len = 0;
        if !handle.is_none() {
            let bytes = self.arena.bytes(handle);
            let end = record::end(bytes, 0);
            let tail = BucketTail::read(bytes, end);
            old_len = end + BucketTail::len_at(bytes, end);
            let (mut low_marks, mut high_marks) = (Vec::new(), Vec::new());
            let (mut at, mut index) = (0, 0);
            while at < end {
                let (len, hash) = match record::simple_layout(bytes, at) {
                    Some((len, key_form, key)) => (len, self.seeds.of_stored(key_form, &bytes[key])),
                    None => {
                        let entry = record::entry(bytes, at).expect("the records end after it");
                        (entry.len, low_hash(&self.seeds, bytes, &entry))
                    }
                };
                let (half, marks) =
                    if hash & bit == 0 { (&mut low, &mut low_marks) } else { (&mut high, &mut high_marks) };
                half.extend_from_slice(&bytes[at..at + len]);
                if !matches!(tail, BucketTail::Plain) {
                    marks.push(tail.mark(index));
                }
                at += len;
                index += 1;
            }
            for (half, marks) in [(&mut low, low_marks), (&mut high, high_marks)] {
                match tail {
                    _ if half.is_empty() => {}
                    BucketTail::Plain => half.push(record::END),
                    // The keys of the ghosts may return to either half.
                    BucketTail::Queue { ghosts, .. } => put_tail(half, ghosts, marks.into_iter()),
                }
            }
        }
        let outcome = self.place_halves(from, to, handle, old_len, &low, &high);
        (self.scratch, self.scratch_two) = (low, high);
        outcome
    }

    fn place_halves(
        &mut self,
        from: usize,
        to: usize,
        handle: BlockHandle,
        old_len: usize,
        low: &[u8],
        high: &[u8],
    ) -> Result<(), NoRoom> {
        let (low_handle, high_handle) = if high.is_empty() {
            (handle, BlockHandle::NONE)
        } else if low.is_empty() {
            (BlockHandle::NONE, handle)
        } else {
            let high_handle = self.arena.alloc(high.len(), BlockKind::Bucket, MemoryNeed::Growth)?;
            let same_size = Arena::block_size(low.len(), BlockKind::Bucket)
                == Arena::block_size(old_len, BlockKind::Bucket);
            let low_handle = if same_size {
                handle
            } else {
                match self.arena.alloc(low.len(), BlockKind::Bucket, MemoryNeed::Growth) {
                    Ok(block) => block,
                    Err(no_room) => {
                        self.arena.free(high_handle, high.len(), BlockKind::Bucket);
                        return Err(no_room);
                    }
                }
            };
            self.arena.write(high_handle, 0, high);
            self.arena.write(low_handle, 0, low);
            if !same_size {
                self.arena.free(handle, old_len, BlockKind::Bucket);
            }
            (low_handle, high_handle)
        };
        if self.directory.grow() {
            self.grew_at = self.budget.now().0;
            self.directory.set(from, low_handle);
            self.directory.set(to, high_handle);
            // The bucket that will be split next is known in advance, so prefetch it.
            self.prefetch_bucket(self.directory.next_split().0);
        }
        Ok(())
    }

    fn merge(&mut self) -> Result<(), NoRoom> {
        let Some((last, into)) = self.directory.next_merge() else { return Ok(()) };
        let (moving, staying) = (self.directory.get(last), self.directory.get(into));
        if staying.is_none() {
            self.directory.set(into, moving);
        } else if !moving.is_none() {
            let (bytes, staying_bytes) = (self.arena.bytes(moving), self.arena.bytes(staying));
            let (end, at) = (record::end(bytes, 0), record::end(staying_bytes, 0));
            let (tail, staying_tail) = (BucketTail::read(bytes, end), BucketTail::read(staying_bytes, at));
            let len = end + BucketTail::len_at(bytes, end);
            let staying_len = at + BucketTail::len_at(staying_bytes, at);
            let mut content = std::mem::take(&mut self.scratch_two);
            content.clear();
            let outcome = if matches!((tail, staying_tail), (BucketTail::Plain, BucketTail::Plain)) {
                content.extend_from_slice(&bytes[..end]);
                self.arena.splice(
                    staying,
                    staying_len,
                    at..at,
                    &content,
                    BlockKind::Bucket,
                    MemoryNeed::Upkeep,
                )
            } else {
                content.extend_from_slice(&staying_bytes[..at]);
                content.extend_from_slice(&bytes[..end]);
                let marks_of = |bytes, tail: BucketTail<'_>| -> Vec<UseMark> {
                    (0..records_in(bytes)).map(|index| tail.mark(index)).collect()
                };
                let mut marks = marks_of(staying_bytes, staying_tail);
                marks.extend(marks_of(bytes, tail));
                put_tail(&mut content, staying_tail.ghosts(), marks.into_iter());
                self.replace(staying, staying_len, &content, MemoryNeed::Upkeep)
            };
            self.scratch_two = content;
            self.directory.set(into, outcome?);
            self.arena.free(moving, len, BlockKind::Bucket);
        }
        self.directory.set(last, BlockHandle::NONE);
        self.directory.shrink();
        Ok(())
    }

    /// Does one step of compaction. Returns true if the step has freed anything.
    pub(in crate::mem_hash) fn compact(&mut self, effort: CompactionEffort) -> bool {
        let HashShard { arena, directory, seeds, .. } = self;
        // Stubs lie in the arena themselves, so their references are corrected after the step. The
        // references are not read before that.
        let mut moved_records = Vec::new();
        let mut blocks_moved = 0;
        let done = arena.compact(effort, &mut |bytes, kind, from, to| {
            let entry = record::entry(bytes, 0).expect("a block in use holds a record");
            let hash = low_hash(seeds, bytes, &entry);
            blocks_moved += 1;
            match kind {
                BlockKind::Bucket => {
                    let bucket = directory.bucket_of(hash);
                    debug_assert_eq!(directory.get(bucket), from);
                    directory.set(bucket, to);
                }
                BlockKind::Record => moved_records.push((hash, from, to)),
            }
        });
        for (hash, from, to) in moved_records {
            let handle = directory.get(directory.bucket_of(hash));
            let bytes = arena.bytes(handle);
            let mut at = 0;
            while let Some(entry) = record::entry(bytes, at) {
                if matches!(entry.body, EntryBody::Stub { reference: RecordReference::Block(block), .. } if block == from.0)
                {
                    arena.write(handle, at + STUB_LEN - 4, &to.0.to_le_bytes());
                    break;
                }
                at += entry.len;
            }
        }
        self.blocks_moved += blocks_moved;
        self.pages_emptied += u64::from(done);
        done
    }

    /// Does one thorough step of maintenance. Returns true if there may be more to do.
    pub(in crate::mem_hash) fn maintain(&mut self) -> bool {
        let buckets = self.directory.len();
        if buckets > self.buckets_min && self.records == 0 {
            // Without records, the buckets need not be merged one by one.
            drop(self.clear());
            return true;
        }
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
