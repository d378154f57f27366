//! Defines the blocks of an image: buckets as they lie in the arena (docs/format/checkpoint.md,
//! section 2.3).
//!
//! ```text
//! block  = run ...
//! run    = place (u64) | buckets of the directory (u32) | buckets of the run (u32) | bucket ...
//! bucket = group ... | tail (see `group` and `queue`); a bucket without records is 0xF0
//! ```
//!
//! The place is the position of the first bucket in the order of a scan. It and the size of the
//! directory determine the number of each bucket of the run, without which its keys cannot be read.
//! Records that do not lie in buckets are
//! not in a block.
//!
//! Invariant: whatever the bytes are, the decoder neither panics nor reads beyond them, and each
//! bucket that it returns is one that a hash with the seed of the image could contain.

use super::directory::DirectoryShape;
use super::encodings::RecordContext;
use super::group::{RecordGroup, is_end};
use super::key::HashSeeds;
use super::queue::checked_tail_len;
use super::quotient::BucketAddress;
use super::row::{self, BucketRow, KeyBuffer};
use crate::record::u32_at;
use todana_core::{Error, ErrorKind, ImageForm, Record, Result};

/// The number of this layout of buckets and blocks. It must change with the layout of records in
/// buckets. Format 1 was never released.
pub(crate) const BUCKET_FORMAT: u32 = 2;
/// The maximum number of shards.
pub(crate) const SHARDS_MAX: usize = 4096;
const RUN_LEN: usize = 8 + 4 + 4;

/// Returns the position of a hash in the order of a scan: its shard, then its bits reversed. In
/// this order a bucket is one range for any size of the directory.
#[inline]
pub(super) fn place_of(hash: u64, shard_bits: u32) -> u64 {
    let shard = shard_of(hash, shard_bits);
    // There are two shifts, because a shift by 64 is not defined.
    shard << 1 << (63 - shard_bits) | hash.reverse_bits() >> shard_bits
}

#[inline]
pub(super) fn shard_of(hash: u64, shard_bits: u32) -> u64 {
    hash >> 1 >> (63 - shard_bits)
}

/// Returns the shard of a position, and the low bits of the hashes there.
#[inline]
pub(super) fn hash_of(place: u64, shard_bits: u32) -> (usize, u64) {
    ((place >> 1 >> (63 - shard_bits)) as usize, (place << shard_bits).reverse_bits())
}

/// Returns the last position of the bucket at `place` whose hashes have this number of bits in
/// common.
#[inline]
pub(super) fn last_place(place: u64, shard_bits: u32, bits: u32) -> u64 {
    place | u64::MAX.checked_shr(shard_bits + bits).unwrap_or(0)
}

/// Begins a run, whose number of buckets is set by [`end_run`]. Returns the offset of the run.
pub(super) fn begin_run(image: &mut Vec<u8>, place: u64, shape: DirectoryShape) -> usize {
    let at = image.len();
    image.extend_from_slice(&place.to_le_bytes());
    image.extend_from_slice(&(shape.len() as u32).to_le_bytes());
    image.extend_from_slice(&[0; 4]);
    at
}

/// Ends the run at an offset.
pub(super) fn end_run(image: &mut [u8], at: usize, buckets: u32) {
    image[at + RUN_LEN - 4..at + RUN_LEN].copy_from_slice(&buckets.to_le_bytes());
}

/// A bucket of a block.
#[derive(Clone, Debug)]
pub(super) struct BlockBucket {
    pub(super) shard: usize,
    /// The number of the bucket, which is also what its hashes have in common.
    pub(super) bucket: usize,
    pub(super) bits: u32,
    /// The size of the directory that contained the bucket.
    pub(super) shape: DirectoryShape,
    /// The offset of the bucket in the block, the offset at which its records end, and the end of
    /// its tail.
    pub(super) start: usize,
    pub(super) records_end: usize,
    pub(super) end: usize,
}

/// A record of a bucket of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct CheckedRow {
    pub(super) row: BucketRow,
    /// The low bits of the hash of its key.
    pub(super) hash: u32,
    /// The size of the record for statistics.
    pub(super) plain_size: u32,
}

/// The part of a run that has not been read.
struct UnreadRun {
    place: u64,
    shape: DirectoryShape,
    buckets: u32,
}

/// Reads the buckets of a block one after another.
pub(super) struct BucketBlock<'b> {
    bytes: &'b [u8],
    at: usize,
    shard_bits: u32,
    seeds: HashSeeds,
    run: Option<UnreadRun>,
    /// The records of the group that is being read.
    group_rows: Vec<BucketRow>,
}

impl<'b> BucketBlock<'b> {
    /// Begins to read a block of an image of this form. Fails with `Corrupt` if the form is
    /// unknown.
    pub(super) fn new(form: &ImageForm, bytes: &'b [u8]) -> Result<BucketBlock<'b>> {
        expect_bucket_format(form.bucket_format)?;
        let shards = form.shards;
        if !shards.is_power_of_two() || shards as usize > SHARDS_MAX {
            return Err(Error::new(ErrorKind::Corrupt, format!("image with {shards} shards")));
        }
        let shard_bits = shards.trailing_zeros();
        let seeds = HashSeeds::new(form.order.seed, shard_bits);
        Ok(BucketBlock { bytes, at: 0, shard_bits, seeds, run: None, group_rows: Vec::new() })
    }

    pub(super) fn bytes(&self) -> &'b [u8] {
        self.bytes
    }

    /// Returns the seeds of the image.
    pub(super) fn seeds(&self) -> &HashSeeds {
        &self.seeds
    }

    /// Returns true if the next bucket does not belong to the same run.
    pub(super) fn is_run_over(&self) -> bool {
        self.run.as_ref().is_none_or(|run| run.buckets == 0)
    }

    /// Returns the next bucket, and appends its records to `rows`. Returns `None` at
    /// the end of the block. Fails with `Corrupt` if the next bytes are not a bucket.
    #[inline]
    pub(super) fn next_bucket(&mut self, rows: &mut Vec<CheckedRow>) -> Result<Option<BlockBucket>> {
        while self.is_run_over() {
            if self.at == self.bytes.len() {
                return Ok(None);
            }
            self.run = Some(self.read_run().ok_or_else(|| self.damaged("not a run of buckets"))?);
        }
        match self.read_bucket(rows) {
            Some(bucket) => Ok(Some(bucket)),
            None => Err(self.damaged("malformed bucket, or a record in a wrong one")),
        }
    }

    #[inline]
    fn read_bucket(&mut self, rows: &mut Vec<CheckedRow>) -> Option<BlockBucket> {
        let run = self.run.as_mut()?;
        let (shard, hash) = hash_of(run.place, self.shard_bits);
        let bucket = run.shape.bucket_of(hash);
        let bits = run.shape.bits_of(bucket);
        let address =
            BucketAddress { shard: shard as u32, shard_bits: self.shard_bits, bucket: bucket as u32, bits };
        let (start, first) = (self.at, rows.len());
        while !is_end(*self.bytes.get(self.at)?) {
            let group = RecordGroup::read(self.bytes, self.at, &address)?;
            if !group.is_intact(self.bytes) {
                return None;
            }
            self.group_rows.clear();
            row::put_rows(self.bytes, &group, &address, 0, &mut self.group_rows);
            for row in &self.group_rows {
                let (plain_size, hash) = row.checked(self.bytes, &self.seeds)?;
                let is_there = shard_of(hash, self.shard_bits) == shard as u64
                    && hash & ((1 << bits) - 1) == bucket as u64;
                if !is_there {
                    return None;
                }
                rows.push(CheckedRow { row: *row, hash: hash as u32, plain_size: plain_size as u32 });
            }
            self.at = group.end;
        }
        let records = rows.len() - first;
        let records_end = self.at;
        self.at += checked_tail_len(&self.bytes[records_end..], records)?;
        run.buckets -= 1;
        let last = last_place(run.place, self.shard_bits, bits);
        // A run lies within one shard.
        let next = last.checked_add(1).filter(|&next| hash_of(next, self.shard_bits).0 == shard);
        match next {
            Some(next) => run.place = next,
            None if run.buckets > 0 => return None,
            None => {}
        }
        Some(BlockBucket { shard, bucket, bits, shape: run.shape, start, records_end, end: self.at })
    }

    fn read_run(&mut self) -> Option<UnreadRun> {
        let head: &[u8; RUN_LEN] = self.bytes[self.at..].first_chunk()?;
        let place = u64::from(u32_at(head, 0)) | u64::from(u32_at(head, 4)) << 32;
        let (shape, buckets) = (DirectoryShape::with_len(u32_at(head, 8) as usize)?, u32_at(head, 12));
        self.at += RUN_LEN;
        Some(UnreadRun { place, shape, buckets })
    }

    fn damaged(&self, what: &str) -> Error {
        Error::new(ErrorKind::Corrupt, format!("{what} at offset {} of the block", self.at))
    }
}

/// Passes the records of a block of an image to `see`, for any engine. Returns the number of
/// records. Fails with `Corrupt` if the block is not one of an image of this form, after the
/// records before the damage were passed. Otherwise fails with the error of `see`.
pub fn read_bucket_block(
    form: &ImageForm,
    block: &[u8],
    see: &mut dyn FnMut(&[u8], Record<'_>) -> Result<()>,
) -> Result<u64> {
    let mut block = BucketBlock::new(form, block)?;
    let (mut found, mut records, mut buffer) = (Vec::new(), 0, KeyBuffer::default());
    loop {
        found.clear();
        let bucket = block.next_bucket(&mut found)?;
        for CheckedRow { row, .. } in &found {
            row.see(block.bytes(), RecordContext::plain(block.seeds()), &mut buffer, see)?;
            records += 1;
        }
        if bucket.is_none() {
            return Ok(records);
        }
    }
}

/// Fails with `Corrupt` if this program does not know a layout of buckets.
pub fn expect_bucket_format(bucket_format: u32) -> Result<()> {
    if bucket_format == BUCKET_FORMAT {
        return Ok(());
    }
    let message =
        format!("image of bucket format {bucket_format}; this program knows format {BUCKET_FORMAT}");
    Err(Error::new(ErrorKind::Corrupt, message))
}
