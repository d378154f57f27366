//! Copies the buckets of a shard to an image, and adopts the buckets of one.

use super::HashShard;
use crate::arena::{BlockKind, MemoryNeed};
use crate::mem_hash::bucket_block::{self, BlockBucket, CheckedRow, hash_of, last_place, place_of};
use crate::mem_hash::encodings::{PLAIN_ENCODINGS, RecordContext};
use crate::mem_hash::eviction::put_end;
use crate::mem_hash::group::{END, KeyColumn, RecordGroup};
use crate::mem_hash::key::HashSeeds;
use crate::mem_hash::layout;
use crate::mem_hash::queue::{BucketTail, Marking, put_tail};
use crate::mem_hash::row::{self, BucketRow, KeyBuffer, RowKey};
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
    bucket: usize,
    /// True if the place is not the first one of the bucket, because buckets were merged since the
    /// last copy.
    is_partial: bool,
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
        let none = CopiedBucket { place: 0, last: 0, bucket: 0, is_partial: false };
        let (mut buckets, mut len) = ([none; BUCKETS_COPIED], 0);
        let (shard, mut next) = (hash_of(place, shard_bits).0, Some(place));
        while let Some(place) =
            next.filter(|&next| len < BUCKETS_COPIED && hash_of(next, shard_bits).0 == shard)
        {
            let (_, hash) = hash_of(place, shard_bits);
            let bucket = self.directory.bucket_of(hash);
            let last = last_place(place, shard_bits, self.directory.bits_of(bucket));
            let is_partial = hash != bucket as u64;
            buckets[len] = CopiedBucket { place, last, bucket, is_partial };
            self.prefetch_bucket(bucket);
            len += 1;
            next = last.checked_add(1);
        }
        buckets.into_iter().take(len)
    }

    /// Appends a bucket. Returns the number of its records in the image, and adds the length of the
    /// others to `shown`.
    fn copy_bucket(&self, copied: &CopiedBucket, target: &mut CopyTarget<'_>, shown: &mut usize) -> u32 {
        let bytes = self.bytes_of(copied.bucket);
        if bytes.is_empty() {
            target.image.push(END);
            return 0;
        }
        let address = self.address(copied.bucket);
        let (mut at, mut records) = (0, 0);
        let (mut has_dead, mut is_encoded) = (false, false);
        while let Some(group) = RecordGroup::read(bytes, at, &address) {
            at = group.end;
            records += group.count as u32;
            is_encoded |= group.is_encoded();
            if group.keys == KeyColumn::Stubs {
                let mut expiries =
                    (0..group.count).map(|index| self.referenced_expiry(group.stub(bytes, index).1));
                has_dead |= expiries.any(target.is_dead);
            } else if group.attributes(0).has_expiry() {
                has_dead |=
                    (0..group.count).any(|index| (target.is_dead)(group.attributes(index).expiry(bytes)));
            }
        }
        if has_dead || is_encoded || copied.is_partial {
            return self.copy_part(copied, target, shown);
        }
        let tail = BucketTail::read(bytes, at);
        // Stubs are always the last groups, so the others are copied as they are.
        let (end, inline) = self.copy_groups(copied.bucket, target, shown);
        match tail.marking {
            _ if end == at => {
                target.image.extend_from_slice(&bytes[end..end + BucketTail::len_at(bytes, end)]);
                return records;
            }
            _ if inline == 0 => target.image.push(END),
            marking => put_tail(target.image, marking, (0..inline).map(|index| tail.mark(index))),
        }
        inline as u32
    }

    /// Appends the groups of a bucket as they are, and shows the records that do not lie in the
    /// bucket. Returns the offset at which the appended groups end, and the number of their
    /// records.
    fn copy_groups(&self, bucket: usize, target: &mut CopyTarget<'_>, shown: &mut usize) -> (usize, usize) {
        let (bytes, address) = (self.bytes_of(bucket), self.address(bucket));
        let (mut at, mut end, mut records) = (0, 0, 0);
        let mut stubs = Vec::new();
        while let Some(group) = RecordGroup::read(bytes, at, &address) {
            at = group.end;
            if group.keys == KeyColumn::Stubs {
                row::put_rows(bytes, &group, &address, 0, &mut stubs);
            } else {
                debug_assert!(stubs.is_empty(), "no record is added after stubs");
                (end, records) = (at, records + group.count);
            }
        }
        target.image.extend_from_slice(&bytes[..end]);
        for stub in stubs {
            *shown += self.size_of(bytes, &stub);
            self.view_row(bytes, &stub, &mut KeyBuffer::default(), target.see);
        }
        (end, records)
    }

    /// Appends the records of a bucket that belong to the image, and shows those that do not lie in
    /// the bucket.
    #[cold]
    fn copy_part(&self, copied: &CopiedBucket, target: &mut CopyTarget<'_>, shown: &mut usize) -> u32 {
        let CopiedBucket { place, bucket, is_partial, .. } = *copied;
        let (bytes, address) = (self.bytes_of(bucket), self.address(bucket));
        let mut rows = Vec::new();
        let (_, tail) = row::take_apart(bytes, &address, 0, &mut rows);
        row::sort_by_age(&mut rows);
        // A record before the place was copied before the buckets were merged.
        rows.retain(|row| {
            let is_due = !is_partial || place_of(self.complete_hash(bytes, row), target.shard_bits) >= place;
            is_due && !(target.is_dead)(self.expiry_of(bytes, row))
        });
        // As they are, some records would not fit into a bucket.
        let context = self.context();
        let is_long = |row: &BucketRow| row.value.dictionary() != 0 && !row.fits_plain(bytes, context);
        rows.retain(|row| {
            let is_stub = matches!(row.key, RowKey::Stub { .. }) || is_long(row);
            if is_stub {
                *shown += self.size_of(bytes, row);
                self.view_row(bytes, row, &mut KeyBuffer::default(), target.see);
            }
            !is_stub
        });
        // An image contains records as they are, because other encodings will read them.
        let mut plain = Vec::new();
        rows.iter_mut().for_each(|row| *row = row.recoded(bytes, context, &PLAIN_ENCODINGS, &mut plain));
        layout::put_bucket(&mut rows, [bytes, &[], &plain], &address, target.image);
        let marking = if rows.is_empty() { Marking::None } else { tail.marking };
        put_tail(target.image, marking, rows.iter().map(|row| row.mark));
        rows.len() as u32
    }

    /// Gives an empty shard other seeds. Returns the memory of the old contents, so that the caller
    /// can drop it after releasing the lock.
    pub(in crate::mem_hash) fn reseed(&mut self, seeds: HashSeeds) -> impl Sized + use<> {
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

    /// Adds a bucket of an image: as it is, or in the form of the encodings if there are any. Its
    /// records must have been checked. Returns false if it does not fit: if the directory has
    /// another bucket in its place, if there are other records, or if there is no memory.
    pub(in crate::mem_hash) fn adopt_bucket(
        &mut self,
        bucket: &BlockBucket,
        content: &[u8],
        records: &[CheckedRow],
    ) -> bool {
        if records.is_empty() {
            return true;
        }
        let number = self.directory.bucket_of(bucket.bucket as u64);
        let is_free = number == bucket.bucket
            && self.directory.bits_of(number) == bucket.bits
            && self.directory.get(number).is_none()
            && !self.capacity.is_limited();
        if !is_free {
            return false;
        }
        let mut encoded = std::mem::take(&mut self.content);
        let records_len = bucket.records_end - bucket.start;
        let encoded_len = self.encode_bucket(number, content, &mut encoded);
        let stored = if encoded_len.is_some() { &encoded } else { content };
        let block = self.arena.alloc(stored.len(), BlockKind::Bucket, MemoryNeed::Growth);
        if let Ok(block) = block {
            self.arena.write(block, 0, stored);
            self.directory.set(number, block);
        }
        self.content = encoded;
        if block.is_err() {
            return false;
        }
        self.bucket_bytes += encoded_len.unwrap_or(records_len);
        self.records += records.len() as u64;
        for record in records {
            self.classes.add(record.plain_size as usize);
            self.sample_stored(record.hash, record.plain_size as usize);
        }
        true
    }

    /// Gives the records of a plain bucket the form of the encodings. The bucket replaces `out`.
    /// Returns the length of its records; `None` if there are no encodings.
    fn encode_bucket(&mut self, number: usize, content: &[u8], out: &mut Vec<u8>) -> Option<usize> {
        let encodings = &*self.encodings;
        if encodings.is_current(0) && encodings.shapes().is_empty() {
            return None;
        }
        out.clear();
        let (address, plain) = (self.address(number), RecordContext::plain(&self.seeds));
        let (mut rows, mut new) = (std::mem::take(&mut self.rows), std::mem::take(&mut self.scratch));
        rows.clear();
        new.clear();
        let (_, tail) = row::take_apart(content, &address, 0, &mut rows);
        row::sort_by_age(&mut rows);
        rows.iter_mut().for_each(|row| *row = row.recoded(content, plain, encodings, &mut new));
        layout::put_bucket(&mut rows, [content, &[], &new], &address, out);
        let len = out.len();
        put_end(out, tail.marking, &rows);
        (self.rows, self.scratch) = (rows, new);
        Some(len)
    }
}
