//! Copies the buckets of a shard to an image, and adopts the buckets of one.

use super::{HashShard, low_hash};
use crate::arena::{BlockHandle, BlockKind, MemoryNeed};
use crate::mem_hash::bucket_block::{self, BlockBucket, hash_of, last_place, place_of};
use crate::mem_hash::queue::{BucketTail, put_tail};
use crate::mem_hash::record::{self, BucketEntry, END, EntryBody, RecordReference};
use todana_core::{Expiry, Record};

/// The maximum number of buckets that are copied under one lock: about 300 records, which takes a
/// few microseconds.
const BUCKETS_COPIED: usize = 64;
/// The number of bytes after which no other bucket is copied under the same lock.
const BYTES_COPIED: usize = 16 << 10;

/// A bucket that is about to be copied.
#[derive(Clone, Copy)]
struct CopiedBucket {
    place: u64,
    last: u64,
    handle: BlockHandle,
    /// True if the place is not the first one of the bucket, because buckets were merged since the
    /// last copy.
    is_partial: bool,
}

/// A record that is adopted with its bucket.
#[derive(Clone, Copy)]
pub(in crate::mem_hash) struct AdoptedRecord {
    /// The low bits of the hash of its key.
    pub(in crate::mem_hash) hash: u32,
    pub(in crate::mem_hash) plain_size: u32,
}

/// The parameters of a copy that do not change.
pub(in crate::mem_hash) struct CopyTarget<'t> {
    pub(in crate::mem_hash) shard_bits: u32,
    pub(in crate::mem_hash) is_dead: &'t dyn Fn(Expiry) -> bool,
    pub(in crate::mem_hash) image: &'t mut Vec<u8>,
    /// Receives the records that do not lie in buckets.
    pub(in crate::mem_hash) see: &'t mut dyn FnMut(&[u8], Record<'_>),
}

impl HashShard {
    /// Appends a run of buckets from `place` on. Returns the number of records in it, and the
    /// position after it; `None` after the last bucket of all shards.
    pub(in crate::mem_hash) fn copy_run(
        &self,
        place: u64,
        target: &mut CopyTarget<'_>,
    ) -> (u32, Option<u64>) {
        let shape = self.directory.shape();
        let run = bucket_block::begin_run(target.image, place, shape);
        let (mut buckets, mut records, mut shown) = (0, 0, 0);
        let mut next = Some(place);
        for bucket in self.next_buckets(place, target.shard_bits) {
            records += self.copy_bucket(&bucket, target, &mut shown);
            buckets += 1;
            next = bucket.last.checked_add(1);
            if target.image.len() - run + shown >= BYTES_COPIED {
                break;
            }
        }
        bucket_block::end_run(target.image, run, buckets);
        (records, next)
    }

    /// Returns the next buckets of the shard, which are being prefetched.
    fn next_buckets(&self, place: u64, shard_bits: u32) -> impl Iterator<Item = CopiedBucket> + use<> {
        let none = CopiedBucket { place: 0, last: 0, handle: BlockHandle::NONE, is_partial: false };
        let (mut buckets, mut len) = ([none; BUCKETS_COPIED], 0);
        let (shard, mut next) = (hash_of(place, shard_bits).0, Some(place));
        while let Some(place) =
            next.filter(|&next| len < BUCKETS_COPIED && hash_of(next, shard_bits).0 == shard)
        {
            let (_, hash) = hash_of(place, shard_bits);
            let bucket = self.directory.bucket_of(hash);
            let last = last_place(place, shard_bits, self.directory.bits_of(bucket));
            let is_partial = hash != bucket as u64;
            buckets[len] = CopiedBucket { place, last, handle: self.directory.get(bucket), is_partial };
            self.prefetch_bucket(bucket);
            len += 1;
            next = last.checked_add(1);
        }
        buckets.into_iter().take(len)
    }

    /// Appends a bucket. Returns the number of its records in the image, and adds the length of the
    /// others to `shown`.
    fn copy_bucket(&self, bucket: &CopiedBucket, target: &mut CopyTarget<'_>, shown: &mut usize) -> u32 {
        let CopiedBucket { handle, is_partial, .. } = *bucket;
        if handle.is_none() {
            target.image.push(END);
            return 0;
        }
        let bytes = self.arena.bytes(handle);
        match record::all_inline(bytes, target.is_dead) {
            Some((end, records)) if !is_partial => {
                target.image.extend_from_slice(&bytes[..end + BucketTail::len_at(bytes, end)]);
                records
            }
            _ => self.copy_part(bucket, target, shown),
        }
    }

    /// Appends the records of a bucket that belong to the image, and shows those that do not lie in
    /// the bucket.
    #[cold]
    fn copy_part(&self, bucket: &CopiedBucket, target: &mut CopyTarget<'_>, shown: &mut usize) -> u32 {
        let CopiedBucket { place, handle, is_partial, .. } = *bucket;
        let bytes = self.arena.bytes(handle);
        let tail = BucketTail::read(bytes, record::end(bytes, 0));
        let (mut at, mut index, mut marks) = (0, 0, Vec::new());
        while let Some(entry) = record::entry(bytes, at) {
            // A record before the place was copied before the buckets were merged.
            let is_due =
                !is_partial || place_of(self.complete_hash(bytes, &entry), target.shard_bits) >= place;
            if is_due && !(target.is_dead)(self.expiry_of(bytes, &entry)) {
                match &entry.body {
                    EntryBody::Inline(_) => {
                        target.image.extend_from_slice(&bytes[at..at + entry.len]);
                        marks.push(tail.mark(index));
                    }
                    EntryBody::Stub { .. } => {
                        *shown += self.size_and_expiry(handle, &entry).0;
                        self.view_at(handle, at, target.see);
                    }
                }
            }
            at += entry.len;
            index += 1;
        }
        let records = marks.len() as u32;
        match tail {
            BucketTail::Queue { ghosts, .. } if records > 0 => {
                put_tail(target.image, ghosts, marks.into_iter());
            }
            _ => target.image.push(END),
        }
        records
    }

    /// Returns all bits of the hash of an entry's key.
    pub(super) fn complete_hash(&self, bytes: &[u8], entry: &BucketEntry) -> u64 {
        match &entry.body {
            EntryBody::Stub { reference: RecordReference::Huge(index), .. } => self.huge.get(*index).hash,
            EntryBody::Stub { reference: RecordReference::Block(block), .. } => {
                let bytes = self.arena.bytes(BlockHandle(*block));
                let parts = record::inline_record(bytes, 0);
                self.seeds.of_stored(parts.key_form, &bytes[parts.key])
            }
            EntryBody::Inline(_) => low_hash(&self.seeds, bytes, entry),
        }
    }

    /// Gives an empty shard other seeds. Returns the memory of the old contents, so that the caller
    /// can drop it after releasing the lock.
    pub(in crate::mem_hash) fn reseed(
        &mut self,
        seeds: crate::mem_hash::key::HashSeeds,
    ) -> impl Sized + use<> {
        let gone = self.clear();
        self.seeds = seeds;
        gone
    }

    /// Prepares an empty shard for the buckets of an image, which was taken from a directory with
    /// `buckets` buckets. No bucket is merged until `buckets_min` is reset. Does nothing if that
    /// many buckets need too much memory: the image may be a forged one. Its records are then added
    /// one by one.
    pub(in crate::mem_hash) fn expect_image(&mut self, buckets: usize) {
        let more = buckets.saturating_sub(self.directory.len());
        if self.records == 0 && more > 0 && self.budget.prepare((more * size_of::<u32>()) as u64) {
            self.expect(buckets);
        }
    }

    /// Adds a bucket of an image as it is. Its records must have been checked. Returns false if it
    /// does not fit: if the directory has another bucket in its place, if there are other records,
    /// or if there is no memory.
    pub(in crate::mem_hash) fn adopt_bucket(
        &mut self,
        bucket: &BlockBucket,
        content: &[u8],
        records: &[AdoptedRecord],
    ) -> bool {
        if records.is_empty() {
            return true;
        }
        let number = self.directory.bucket_of(bucket.bucket as u64);
        let is_free = number == bucket.bucket
            && self.directory.bits_of(number) == bucket.bits
            && self.directory.get(number).is_none()
            && self.records_max == u64::MAX;
        if !is_free {
            return false;
        }
        let Ok(block) = self.arena.alloc(content.len(), BlockKind::Bucket, MemoryNeed::Growth) else {
            return false;
        };
        self.arena.write(block, 0, content);
        self.directory.set(number, block);
        self.bucket_bytes += bucket.records_end - bucket.start;
        self.records += records.len() as u64;
        for record in records {
            self.classes.add(record.plain_size as usize);
            self.sample_stored(record.hash, record.plain_size as usize);
        }
        true
    }
}
