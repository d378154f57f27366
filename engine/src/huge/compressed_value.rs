//! A long value that is compressed in chunks.
//!
//! ```text
//! value = chunk...    frames of zstd, each of 64 KiB of the value; a chunk that does not become an
//!                     eighth shorter is stored as it is
//! ```
//!
//! Chunks are independent, so that a reader decompresses one at a time, when the socket accepts it.
//! Frames of the complete value would be shorter by some percent, but a slow reader would keep the
//! plain value, or the state of a decompressor with a large window.

use super::{BudgetShare, HugeValue, ValueMemory};
use crate::arena::MemoryBudget;
use crate::dictionary::{decode_chunk, encode_chunk};
use crate::raw::SYSTEM_PAGE;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use todana_core::{LongBytes, SharedBytes};

/// The length of a chunk.
pub(super) const CHUNK_LEN: usize = 64 << 10;
/// A value or a chunk is stored compressed if it becomes shorter by at least one of this number of
/// parts.
const CHUNK_GAIN_PARTS: usize = 8;
/// A value is compressed only if pieces of this length from its beginning, middle and end become
/// shorter together. Otherwise it is noise, or the client has compressed it.
const PROBE_LEN: usize = 4 << 10;
/// The level of zstd. Chunks of JSON-like text become 3.06 times shorter with level 1, 3.16 times
/// with this one, and 3.25 times with level 6 (2026-11-28), which takes about twice the time.
const LEVEL: i32 = 3;

/// A compressed value. Its fields are dropped in their order here, so that the memory counts until
/// it is freed.
pub(super) struct CompressedValue {
    memory: ValueMemory,
    /// The ends of the chunks in `memory`.
    ends: Vec<u32>,
    len: usize,
    share: BudgetShare,
    decompressions: AtomicU32,
}

impl CompressedValue {
    /// Returns the range of the value that a chunk contains.
    fn plain_range(&self, chunk: usize) -> Range<usize> {
        let start = chunk * CHUNK_LEN;
        start..self.len.min(start + CHUNK_LEN)
    }

    fn decode(&self, chunk: usize, out: &mut [u8]) {
        let start = chunk.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        let stored = &self.memory.bytes()[start..self.ends[chunk] as usize];
        if stored.len() == out.len() {
            out.copy_from_slice(stored);
        } else {
            assert!(decode_chunk(stored, out), "a chunk has been compressed by this process");
        }
    }
}

impl LongBytes for CompressedValue {
    fn len(&self) -> usize {
        self.len
    }

    fn plain(&self) -> Option<&[u8]> {
        None
    }

    fn stored_len(&self) -> usize {
        self.ends.last().map_or(0, |&end| end as usize)
    }

    fn copy_chunk(&self, at: usize, chunk: &mut Vec<u8>) {
        if at == 0 {
            self.decompressions.fetch_add(1, Ordering::Relaxed);
        }
        if at >= self.len {
            return chunk.clear();
        }
        let range = self.plain_range(at / CHUNK_LEN);
        chunk.resize(range.len(), 0);
        self.decode(at / CHUNK_LEN, chunk);
        chunk.drain(..at - range.start);
    }

    fn decompressed(&self) -> Option<SharedBytes> {
        self.decompressions.fetch_add(1, Ordering::Relaxed);
        let mut job = ChunkDecompression::new(self.len, &self.share.budget, &mut |budget, bytes| {
            // A read must not fail because memory is full. The copy lives as long as the read.
            budget.commit_anyway(bytes);
            true
        })?;
        while job.step(self) {}
        Some(job.into_shared())
    }

    fn take_decompressions(&self) -> u32 {
        self.decompressions.swap(0, Ordering::Relaxed)
    }
}

/// The compression of a value, chunk by chunk.
pub(super) struct ChunkCompression {
    value: CompressedValue,
    /// The bytes of memory that were committed beyond the limit.
    excess: usize,
    frame: Vec<u8>,
}

/// The state of a compression after a step.
pub(super) enum CompressionStep {
    Working,
    /// The value does not become short enough.
    Useless,
    /// There is no memory for the compressed value.
    NoRoom,
    Done,
}

impl ChunkCompression {
    /// Begins to compress a value. Returns `None` if its bytes are noise.
    pub(super) fn new(plain: &[u8], budget: &Arc<MemoryBudget>) -> Option<ChunkCompression> {
        let last = plain.len() - PROBE_LEN.min(plain.len());
        let mut frame = Vec::new();
        let probed: usize = [0, last / 2, last]
            .iter()
            .map(|&at| {
                let piece = &plain[at..plain.len().min(at + PROBE_LEN)];
                if encode_chunk(piece, LEVEL, &mut frame) {
                    frame.len().min(piece.len())
                } else {
                    piece.len()
                }
            })
            .sum();
        (probed <= 3 * (PROBE_LEN - PROBE_LEN / CHUNK_GAIN_PARTS)).then(|| ChunkCompression {
            value: CompressedValue {
                // Memory is committed as it is filled. The remainder takes only addresses.
                memory: ValueMemory::zeroed(plain.len()),
                ends: Vec::with_capacity(plain.len().div_ceil(CHUNK_LEN)),
                len: plain.len(),
                share: BudgetShare { bytes: 0, budget: Arc::clone(budget) },
                decompressions: AtomicU32::new(0),
            },
            excess: 0,
            frame,
        })
    }

    /// Compresses the next chunk.
    pub(super) fn step(&mut self, plain: &[u8]) -> CompressionStep {
        let value = &mut self.value;
        let piece = &plain[value.plain_range(value.ends.len())];
        // A frame is shorter than its chunk, by which `decode` recognises it.
        let gain_min = (piece.len() / CHUNK_GAIN_PARTS).max(1);
        let gains = encode_chunk(piece, LEVEL, &mut self.frame) && self.frame.len() + gain_min <= piece.len();
        let stored = if gains { &self.frame[..] } else { piece };
        let (start, end) = (value.stored_len(), value.stored_len() + stored.len());
        if end > value.len - value.len / CHUNK_GAIN_PARTS {
            return CompressionStep::Useless;
        }
        let bytes = end.next_multiple_of(SYSTEM_PAGE) + value.ends.capacity() * size_of::<u32>();
        let more = bytes - value.share.bytes;
        // This memory is for shrinking a value, so a part of it may exceed the limit for a short
        // time. Otherwise nothing could be compressed when memory is full.
        let budget = &value.share.budget;
        if !budget.commit(more) {
            self.excess += more;
            if self.excess as u64 > budget.limit().bytes.map_or(u64::MAX, |limit| limit / EXCESS_PARTS) {
                return CompressionStep::NoRoom;
            }
            budget.commit_anyway(more);
        }
        value.share.bytes = bytes;
        value.memory.bytes_mut()[start..end].copy_from_slice(stored);
        value.ends.push(end as u32);
        if value.ends.len() * CHUNK_LEN < value.len {
            CompressionStep::Working
        } else {
            CompressionStep::Done
        }
    }

    pub(super) fn into_shared(self) -> SharedBytes {
        Arc::new(self.value)
    }
}

/// A compression may exceed the memory limit by one of this number of parts.
const EXCESS_PARTS: u64 = 64;

/// The decompression of a complete value, chunk by chunk.
pub(super) struct ChunkDecompression {
    value: HugeValue,
    filled: usize,
    chunk: Vec<u8>,
}

impl ChunkDecompression {
    /// Begins to decompress a value of `len` bytes. Returns `None` if `commit` finds no room.
    pub(super) fn new(
        len: usize,
        budget: &Arc<MemoryBudget>,
        commit: &mut dyn FnMut(&MemoryBudget, usize) -> bool,
    ) -> Option<ChunkDecompression> {
        let bytes = len.next_multiple_of(SYSTEM_PAGE);
        commit(budget, bytes).then(|| {
            let share = BudgetShare { bytes, budget: Arc::clone(budget) };
            let memory = ValueMemory::zeroed(len);
            ChunkDecompression { value: HugeValue { memory, len, share }, filled: 0, chunk: Vec::new() }
        })
    }

    /// Decompresses the next chunk. Returns false after the last one.
    pub(super) fn step(&mut self, compressed: &dyn LongBytes) -> bool {
        compressed.copy_chunk(self.filled, &mut self.chunk);
        let end = self.filled + self.chunk.len();
        self.value.memory.bytes_mut()[self.filled..end].copy_from_slice(&self.chunk);
        self.filled = end;
        self.filled < self.value.len
    }

    pub(super) fn into_shared(self) -> SharedBytes {
        Arc::new(self.value)
    }
}
