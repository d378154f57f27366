//! Encodes and decodes blocks of records. In a tree with blocks, each LMDB value is a block: the
//! records from its fence, which is the LMDB key, up to the next fence (docs/format/disk-tree.md,
//! section 2).
//!
//! ```text
//! block  = checksum (4) | 0 | records
//!        | checksum (4) | varint length of the records, at least 1 | records, compressed by zstd
//! record = varint shared | varint length of the rest | rest of the key
//!        | varint length of the stored record | stored record
//! ```
//!
//! `shared` is the number of bytes that the key has in common with the key before it. Small records
//! take less than half of the space that they need as LMDB entries of their own, because keys are
//! shortened, a block has one checksum, and zstd finds what the records have in common.

use super::record::{decode_varint, encode_varint};
use crate::raw::crc32c;
use std::cell::Cell;
use std::ops::Range;
use todana_core::{Error, ErrorKind, Result};
use zstd::zstd_safe::{DCtx, DParameter, FrameFormat};

/// A block grows to this number of bytes before compression. With half of it, the files of a table
/// are 7 % larger, and equality queries take as long (2026-11-23, benches/tables.rs, 1 M rows).
const PLAIN_LEN: usize = 6144;
/// Longer blocks are not compressed. They consist of one long record, or of records whose keys
/// begin alike.
const COMPRESSED_LEN_MAX: usize = 64 << 10;
/// Shorter blocks are not compressed.
const COMPRESSED_LEN_MIN: usize = 64;
/// LMDB stores longer values in pages of their own, of which each wastes the rest.
const STORED_LEN_MAX: usize = 2000;
/// A block with fewer bytes before compression is joined with the next one when it is written.
const JOINED_LEN: usize = PLAIN_LEN / 4;

/// The maximum length of a fence. LMDB's keys have at most 511 bytes.
pub(super) const FENCE_LEN_MAX: usize = 510;
const CHECKSUM_LEN: usize = 4;
const LEVEL: i32 = 1;

fn damaged() -> Error {
    Error::new(ErrorKind::Corrupt, "a block of records is damaged")
}

/// Returns the LMDB key by which the block of a record is searched for.
pub(super) fn search_key(key: &[u8]) -> &[u8] {
    &key[..key.len().min(FENCE_LEN_MAX)]
}

thread_local! {
    static DECOMPRESSOR: Cell<Option<DCtx<'static>>> = const { Cell::new(None) };
}

/// Returns true if the records of a block are compressed.
pub(super) fn is_compressed(value: &[u8]) -> bool {
    value.get(CHECKSUM_LEN) != Some(&0)
}

/// Returns the records of a block: a part of `value`, or the contents of `buffer`. Fails with
/// `Corrupt` if the checksum differs.
pub(super) fn open<'b>(fence: &[u8], value: &'b [u8], buffer: &'b mut Vec<u8>) -> Result<&'b [u8]> {
    let (expected, mut rest) = value.split_first_chunk::<CHECKSUM_LEN>().ok_or_else(damaged)?;
    if crc32c(crc32c(0, fence), rest) != u32::from_le_bytes(*expected) {
        return Err(damaged());
    }
    let plain_len = decode_varint(&mut rest).and_then(|len| usize::try_from(len).ok()).ok_or_else(damaged)?;
    if plain_len == 0 {
        return Ok(rest);
    }
    if plain_len > COMPRESSED_LEN_MAX {
        return Err(damaged());
    }
    buffer.clear();
    buffer.reserve(plain_len);
    // A thread that is ending has no decompressor any more, so it gets a new one.
    let mut context = match DECOMPRESSOR.try_with(Cell::take) {
        Ok(Some(context)) => context,
        _ => new_decompressor()?,
    };
    let outcome = context.decompress(buffer, rest);
    let _ = DECOMPRESSOR.try_with(|kept| kept.set(Some(context)));
    match outcome {
        Ok(len) if len == plain_len => Ok(buffer),
        _ => Err(damaged()),
    }
}

fn new_decompressor() -> Result<DCtx<'static>> {
    let no_memory = || Error::new(ErrorKind::Full, "no memory to decompress records");
    let mut context = DCtx::try_create().ok_or_else(no_memory)?;
    context.set_parameter(DParameter::Format(FrameFormat::Magicless)).map_err(|_| no_memory())?;
    Ok(context)
}

/// A walk over the records of a block, in the order of their keys.
pub(super) struct BlockRecords<'b> {
    rest: &'b [u8],
    /// The key of the record that was returned last.
    key: Vec<u8>,
}

impl<'b> BlockRecords<'b> {
    pub(super) fn new(records: &'b [u8]) -> BlockRecords<'b> {
        BlockRecords { rest: records, key: Vec::new() }
    }

    /// Returns the key of the record that was returned last.
    pub(super) fn key(&self) -> &[u8] {
        &self.key
    }

    /// Returns the next record as it is stored.
    #[inline]
    pub(super) fn next(&mut self) -> Result<Option<&'b [u8]>> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let shared = take_len(&mut self.rest).filter(|&shared| shared <= self.key.len());
        self.key.truncate(shared.ok_or_else(damaged)?);
        self.key.extend_from_slice(take(&mut self.rest).ok_or_else(damaged)?);
        take(&mut self.rest).map(Some).ok_or_else(damaged)
    }

    /// Returns the record of a key as it is stored.
    pub(super) fn find(mut self, key: &[u8]) -> Result<Option<&'b [u8]>> {
        while let Some(stored) = self.next()? {
            match self.key().cmp(key) {
                std::cmp::Ordering::Less => {}
                std::cmp::Ordering::Equal => return Ok(Some(stored)),
                std::cmp::Ordering::Greater => return Ok(None),
            }
        }
        Ok(None)
    }
}

#[inline]
fn take_len(bytes: &mut &[u8]) -> Option<usize> {
    // Most lengths have one byte.
    match bytes.split_first() {
        Some((&byte, rest)) if byte < 0x80 => {
            *bytes = rest;
            Some(byte.into())
        }
        _ => decode_varint(bytes)?.try_into().ok(),
    }
}

#[inline]
fn take<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = take_len(bytes)?;
    let (taken, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(taken)
}

fn shared_len(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

/// Receives the fence and the value of each block that is complete.
pub(super) type PutBlock<'p, E> = dyn FnMut(&[u8], &[u8]) -> std::result::Result<(), E> + 'p;

/// Collects records in order, and divides them into blocks.
pub(super) struct BlockBuilder {
    compressor: Option<zstd::bulk::Compressor<'static>>,
    /// The keys and the stored records that are in no block yet.
    bytes: Vec<u8>,
    records: Vec<PendingRecord>,
    /// The number of records that cannot be divided into blocks, because their keys begin alike.
    undivided: usize,
    /// The fence of the next block; empty if it is derived from the first record.
    fence: Vec<u8>,
    plain: Vec<u8>,
    stored: Vec<u8>,
}

struct PendingRecord {
    start: usize,
    key_end: usize,
    end: usize,
}

impl BlockBuilder {
    pub(super) fn new() -> BlockBuilder {
        let mut compressor = zstd::bulk::Compressor::new(LEVEL).ok();
        if let Some(new) = &mut compressor {
            // The length is stored in the block, and no other program reads these frames.
            let is_set = new
                .include_contentsize(false)
                .and_then(|()| new.include_checksum(false))
                .and_then(|()| new.include_magicbytes(false));
            if is_set.is_err() {
                compressor = None;
            }
        }
        BlockBuilder {
            compressor,
            bytes: Vec::new(),
            records: Vec::new(),
            undivided: 0,
            fence: Vec::new(),
            plain: Vec::new(),
            stored: Vec::new(),
        }
    }

    /// Begins a series of blocks. The first one has this fence; if that is empty, it is derived
    /// from the first record.
    pub(super) fn begin(&mut self, fence: &[u8]) {
        self.fence.clear();
        self.fence.extend_from_slice(fence);
    }

    /// Returns true if the last block would be small.
    pub(super) fn is_small(&self) -> bool {
        self.bytes.len() < JOINED_LEN
    }

    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Adds a record, whose key must follow those before it.
    pub(super) fn push<E>(
        &mut self,
        key: &[u8],
        stored: [&[u8]; 2],
        put: &mut PutBlock<'_, E>,
    ) -> std::result::Result<(), E> {
        if self.fence.is_empty() {
            // LMDB's keys are not empty. A key of no bytes belongs to the first block anyway.
            self.fence.extend_from_slice(key.get(..1).unwrap_or(&[0]));
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(key);
        let key_end = self.bytes.len();
        stored.iter().for_each(|part| self.bytes.extend_from_slice(part));
        self.records.push(PendingRecord { start, key_end, end: self.bytes.len() });
        // The last two blocks are divided evenly at the end.
        while self.bytes.len() >= 2 * PLAIN_LEN {
            let end = self.records.partition_point(|record| record.end <= PLAIN_LEN);
            let mut ends = end.max(1).max(self.undivided)..self.records.len();
            let Some(end) = ends.find(|&at| self.fence_before(at).is_some()) else {
                self.undivided = self.records.len();
                break;
            };
            self.put_first(end, put)?;
        }
        Ok(())
    }

    /// Completes the blocks.
    pub(super) fn finish<E>(&mut self, put: &mut PutBlock<'_, E>) -> std::result::Result<(), E> {
        if self.bytes.len() > PLAIN_LEN
            && let Some(middle) = self.middle(0..self.records.len())
        {
            self.put_first(middle, put)?;
        }
        if !self.records.is_empty() {
            self.put_first(self.records.len(), put)?;
        }
        Ok(())
    }

    fn key(&self, at: usize) -> &[u8] {
        &self.bytes[self.records[at].start..self.records[at].key_end]
    }

    /// Returns the fence of a block that begins with this record: the part of its key by which it
    /// differs from the key before it. Returns `None` if that part is too long for LMDB, or if it
    /// could be the fence of the first block.
    fn fence_before(&self, at: usize) -> Option<&[u8]> {
        let (last, key) = (self.key(at - 1), self.key(at));
        let len = shared_len(last, key) + 1;
        (len <= FENCE_LEN_MAX && !last.is_empty()).then(|| &key[..len])
    }

    /// Returns the record at which a range of records can be divided, near its middle.
    fn middle(&self, range: Range<usize>) -> Option<usize> {
        let (first, last) = (self.records.get(range.start)?, self.records.get(range.end.checked_sub(1)?)?);
        let half = first.start.midpoint(last.end);
        let middle = self.records.partition_point(|record| record.end <= half);
        let middle = middle.clamp(range.start + 1, range.end);
        let can_divide = |&at: &usize| self.fence_before(at).is_some();
        let after = (middle..range.end).find(can_divide);
        after.or_else(|| (range.start + 1..middle).rev().find(can_divide))
    }

    /// Writes the first records as a block, or as several blocks if one would be too long.
    fn put_first<E>(&mut self, end: usize, put: &mut PutBlock<'_, E>) -> std::result::Result<(), E> {
        let (mut start, mut ends) = (0, vec![end]);
        let mut fence = std::mem::take(&mut self.fence);
        while let Some(&end) = ends.last() {
            self.encode(&fence, start..end);
            if self.stored.len() > STORED_LEN_MAX
                && let Some(middle) = self.middle(start..end)
            {
                ends.push(middle);
                continue;
            }
            put(&fence, &self.stored)?;
            ends.pop();
            start = end;
            fence.clear();
            if start < self.records.len() {
                fence.extend_from_slice(self.fence_before(start).expect("blocks end at fences"));
            }
        }
        self.fence = fence;
        self.undivided = 0;
        let bytes = self.records[end - 1].end;
        self.bytes.drain(..bytes);
        self.records.drain(..end);
        for record in &mut self.records {
            record.start -= bytes;
            record.key_end -= bytes;
            record.end -= bytes;
        }
        Ok(())
    }

    /// Encodes records as a block, into `stored`.
    fn encode(&mut self, fence: &[u8], range: Range<usize>) {
        self.plain.clear();
        let mut last: &[u8] = &[];
        for record in &self.records[range] {
            let key = &self.bytes[record.start..record.key_end];
            let shared = shared_len(last, key);
            encode_varint(shared as u64, &mut self.plain);
            encode_varint((key.len() - shared) as u64, &mut self.plain);
            self.plain.extend_from_slice(&key[shared..]);
            encode_varint((record.end - record.key_end) as u64, &mut self.plain);
            self.plain.extend_from_slice(&self.bytes[record.key_end..record.end]);
            last = key;
        }
        self.stored.clear();
        self.stored.extend_from_slice(&[0; CHECKSUM_LEN]);
        let compressor = self
            .compressor
            .as_mut()
            .filter(|_| (COMPRESSED_LEN_MIN..=COMPRESSED_LEN_MAX).contains(&self.plain.len()));
        let compressed = compressor.and_then(|compressor| compressor.compress(&self.plain).ok());
        match compressed.filter(|compressed| compressed.len() < self.plain.len()) {
            Some(compressed) => {
                encode_varint(self.plain.len() as u64, &mut self.stored);
                self.stored.extend_from_slice(&compressed);
            }
            None => {
                self.stored.push(0);
                self.stored.extend_from_slice(&self.plain);
            }
        }
        let checksum = crc32c(crc32c(0, fence), &self.stored[CHECKSUM_LEN..]);
        self.stored[..CHECKSUM_LEN].copy_from_slice(&checksum.to_le_bytes());
    }
}
