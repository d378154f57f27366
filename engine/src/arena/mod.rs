//! Provides an arena of movable blocks, and the budget of its memory.
//!
//! ```text
//! arena = chunks of 1 MiB = either pages of 8 KiB, each cut into blocks of one size (up to 1 KiB: `pages`)
//!                           or a heap of blocks of any size (above 1 KiB, up to about 64 KiB: `heap`)
//! ```
//!
//! A [`BlockHandle`] refers to a block in 32 bits. The owner of a block stores its handle in
//! exactly one place, so any code that finds this place can move the block. This prevents
//! fragmentation: sparse pages and heap chunks are evacuated into others and returned to the
//! system.
//!
//! Invariants: the size of a block follows from its length (`block_size`), so the length alone
//! shows whether a change fits in place. Handles count units of 8 bytes; 0 means none. The mapping
//! of a chunk is one page longer than the chunk, so that eight bytes are readable at any offset in
//! a block. Not here: the contents of blocks and their owners.

mod budget;
mod heap;
mod pages;

pub(crate) use budget::{LOAD_STEP_PARTS, LoadPressure, MemoryBudget, MemoryNeed};
pub(crate) use heap::BlockKind;

use crate::raw::{MemoryMapping, SYSTEM_PAGE};
use heap::BlockHeap;
use pages::PagedBlocks;
use std::ops::Range;
use std::sync::Arc;

/// A reference to a block: its offset in units of 8 bytes, counted over all chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockHandle(pub(crate) u32);

impl BlockHandle {
    /// The handle that refers to no block.
    pub(crate) const NONE: BlockHandle = BlockHandle(0);

    #[inline]
    pub(crate) fn is_none(self) -> bool {
        self.0 == 0
    }

    /// The numbers of low bits of a handle that differ within a page and within a chunk.
    pub(crate) const PAGE_SHIFT: u32 = pages::PAGE_SIZE.ilog2() - 3;
    pub(crate) const CHUNK_SHIFT: u32 = CHUNK_BITS as u32 - 3;

    #[inline]
    fn at(chunk: usize, offset: usize) -> BlockHandle {
        BlockHandle((chunk << (CHUNK_BITS - 3) | offset >> 3) as u32)
    }

    #[inline]
    fn chunk(self) -> usize {
        (self.0 >> (CHUNK_BITS - 3)) as usize
    }

    #[inline]
    fn offset(self) -> usize {
        (self.0 as usize) << 3 & (CHUNK_SIZE - 1)
    }
}

const CHUNK_BITS: usize = 20;
const CHUNK_SIZE: usize = 1 << CHUNK_BITS;
/// The maximum number of chunks. 2^32 handles of 8 bytes address 32 GiB per arena.
const CHUNKS_MAX: usize = 1 << (32 - (CHUNK_BITS - 3));

/// A function that is called with each moved block: its bytes, its kind, its old and its new
/// handle.
pub(crate) type MoveCallback<'a> = &'a mut dyn FnMut(&[u8], BlockKind, BlockHandle, BlockHandle);

/// The effort of compaction, which states how sparse a page or chunk must be to be evacuated. The
/// less slack remains, the more bytes must be moved for each byte gained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CompactionEffort {
    /// Evacuates only very sparse pages. This is the effort between two writes.
    Urgent,
    /// Evacuates sparse pages more readily, because memory is scarce and slack costs records.
    Pressed,
    /// Leaves a few percent of slack. This is the effort in the background.
    Thorough,
    /// Leaves hardly any slack. This is the effort while nothing else happens.
    Leisurely,
}

/// States that this number of bytes is not available, because the budget is spent or the system
/// refuses memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoRoom {
    pub(crate) bytes: usize,
}

/// All chunks of an arena: chunks of pages and chunks of the heap.
pub(crate) struct ChunkTable {
    chunks: Vec<Option<MemoryMapping>>,
    budget: Arc<MemoryBudget>,
}

impl ChunkTable {
    /// Adds a chunk and returns its number. The pages of the chunk are not committed yet; the
    /// caller commits each page that it writes to.
    fn add(&mut self) -> Result<usize, NoRoom> {
        let number = self.chunks.iter().rposition(Option::is_none).unwrap_or(self.chunks.len());
        if number >= CHUNKS_MAX {
            return Err(NoRoom { bytes: CHUNK_SIZE });
        }
        let mapping =
            MemoryMapping::new(CHUNK_SIZE + SYSTEM_PAGE).map_err(|_| NoRoom { bytes: CHUNK_SIZE })?;
        if number == self.chunks.len() {
            self.chunks.push(Some(mapping));
        } else {
            self.chunks[number] = Some(mapping);
        }
        Ok(number)
    }

    /// Returns the effort for compaction between two writes.
    #[inline]
    fn effort(&self) -> CompactionEffort {
        if self.budget.notes_uses() { CompactionEffort::Pressed } else { CompactionEffort::Urgent }
    }

    fn remove(&mut self, number: usize) {
        self.chunks[number] = None;
    }

    #[inline]
    fn chunk(&self, number: usize) -> &MemoryMapping {
        self.chunks[number].as_ref().expect("handles name chunks that are mapped")
    }

    #[inline]
    fn chunk_mut(&mut self, number: usize) -> &mut MemoryMapping {
        self.chunks[number].as_mut().expect("handles name chunks that are mapped")
    }

    /// Returns the bytes from the beginning of the block to the end of the mapping.
    #[inline]
    fn bytes(&self, handle: BlockHandle) -> &[u8] {
        &self.chunk(handle.chunk()).bytes()[handle.offset()..]
    }

    #[inline]
    fn bytes_mut(&mut self, handle: BlockHandle) -> &mut [u8] {
        &mut self.chunk_mut(handle.chunk()).bytes_mut()[handle.offset()..]
    }

    /// Copies bytes from one block to another.
    fn copy(&mut self, from: BlockHandle, from_at: usize, to: BlockHandle, to_at: usize, len: usize) {
        let (source, target) = (from.offset() + from_at, to.offset() + to_at);
        if from.chunk() == to.chunk() {
            self.chunk_mut(from.chunk()).bytes_mut().copy_within(source..source + len, target);
            return;
        }
        let [from, to] = self
            .chunks
            .get_disjoint_mut([from.chunk(), to.chunk()])
            .expect("two different chunks that exist");
        let (from, to) = (from.as_ref().expect("mapped"), to.as_mut().expect("mapped"));
        to.bytes_mut()[target..target + len].copy_from_slice(&from.bytes()[source..source + len]);
    }
}

/// An arena of movable blocks (see the module).
pub(crate) struct Arena {
    chunks: ChunkTable,
    pages: PagedBlocks,
    heap: BlockHeap,
    /// The maximum number of pages that one step of compaction evacuates.
    evacuations_max: usize,
    /// The number of bytes that were copied or written into blocks since the start.
    moved: u64,
}

impl Arena {
    pub(crate) fn new(budget: Arc<MemoryBudget>) -> Arena {
        Arena::with_evacuations(1, budget)
    }

    /// Creates an arena in which a step of compaction evacuates up to this number of pages, for
    /// owners that find the references to many moved blocks at about the cost of one.
    pub(crate) fn with_evacuations(evacuations_max: usize, budget: Arc<MemoryBudget>) -> Arena {
        Arena {
            chunks: ChunkTable { chunks: Vec::new(), budget },
            pages: PagedBlocks::new(),
            heap: BlockHeap::new(),
            evacuations_max,
            moved: 0,
        }
    }

    /// Returns the number of bytes that were copied or written into blocks since the start.
    pub(crate) fn moved(&self) -> u64 {
        self.moved
    }

    /// Returns the bytes from the beginning of the block to well beyond its end. The contents of a
    /// block imply its length.
    #[inline]
    pub(crate) fn bytes(&self, handle: BlockHandle) -> &[u8] {
        self.chunks.bytes(handle)
    }

    #[inline]
    pub(crate) fn prefetch(&self, handle: BlockHandle) {
        self.prefetch_lines(handle, 3);
    }

    /// Prefetches this number of cache lines of a block.
    #[inline]
    pub(crate) fn prefetch_lines(&self, handle: BlockHandle, lines: usize) {
        self.chunks.chunk(handle.chunk()).prefetch(handle.offset(), lines);
    }

    /// Allocates a block for `len` bytes. Its contents are undefined.
    pub(crate) fn alloc(
        &mut self,
        len: usize,
        kind: BlockKind,
        need: MemoryNeed,
    ) -> Result<BlockHandle, NoRoom> {
        if kind == BlockKind::Bucket && len <= pages::BLOCK_MAX {
            self.pages.alloc(&mut self.chunks, len, need)
        } else {
            self.heap.alloc(&mut self.chunks, len, kind, need)
        }
    }

    /// Frees a block. `len` and `kind` must be those of its allocation.
    pub(crate) fn free(&mut self, handle: BlockHandle, len: usize, kind: BlockKind) {
        if kind == BlockKind::Bucket && len <= pages::BLOCK_MAX {
            self.pages.free(&mut self.chunks, handle);
        } else {
            self.heap.free(&mut self.chunks, handle);
        }
    }

    /// Returns the size of a block for `len` bytes. A change fits in place if this size stays
    /// equal.
    #[inline]
    pub(crate) fn block_size(len: usize, kind: BlockKind) -> usize {
        if kind == BlockKind::Bucket && len <= pages::BLOCK_MAX {
            pages::block_size(len)
        } else {
            heap::block_size(len)
        }
    }

    /// Overwrites part of a block.
    #[inline]
    pub(crate) fn write(&mut self, handle: BlockHandle, at: usize, bytes: &[u8]) {
        self.chunks.bytes_mut(handle)[at..at + bytes.len()].copy_from_slice(bytes);
        self.moved += bytes.len() as u64;
    }

    /// Replaces a range of a block of `len` bytes by `insert`. If the size of the block changes,
    /// moves it. Returns the new handle of the block; a block without bytes has the handle `NONE`.
    /// `growth` is the purpose of the memory if the block grows.
    pub(crate) fn splice(
        &mut self,
        handle: BlockHandle,
        len: usize,
        remove: Range<usize>,
        insert: &[u8],
        kind: BlockKind,
        growth: MemoryNeed,
    ) -> Result<BlockHandle, NoRoom> {
        let (at, remove) = (remove.start, remove.len());
        let new_len = len - remove + insert.len();
        let tail = at + remove..len;
        let need = if new_len > len { growth } else { MemoryNeed::Upkeep };
        if handle.is_none() {
            let new = self.alloc(new_len, kind, need)?;
            self.write(new, 0, insert);
            return Ok(new);
        }
        if new_len == 0 {
            self.free(handle, len, kind);
            return Ok(BlockHandle::NONE);
        }
        if Self::block_size(len, kind) == Self::block_size(new_len, kind) {
            let bytes = self.chunks.bytes_mut(handle);
            if remove != insert.len() {
                self.moved += tail.len() as u64;
                bytes.copy_within(tail, at + insert.len());
            }
            self.write(handle, at, insert);
            return Ok(handle);
        }
        let new = self.alloc(new_len, kind, need)?;
        self.moved += (len - remove) as u64;
        self.chunks.copy(handle, 0, new, 0, at);
        self.chunks.copy(handle, tail.start, new, at + insert.len(), tail.len());
        self.write(new, at, insert);
        self.free(handle, len, kind);
        Ok(new)
    }

    /// Evacuates some sparse pages of one block size or part of a sparse heap chunk, at most about
    /// 64 KiB, if any is sparse enough. No block is moved twice. `moved_block` is called with each
    /// moved block (its bytes, its kind, its old and its new handle) and must change the one place
    /// that stores its handle. Returns true if anything was moved.
    pub(crate) fn compact(&mut self, effort: CompactionEffort, moved_block: MoveCallback<'_>) -> bool {
        let moved_before = self.moved;
        let steps = (effort, self.evacuations_max);
        let pages = self.pages.compact(&mut self.chunks, steps, &mut self.moved, moved_block);
        // The work of one step is bounded, and a step of the heap may move 64 KiB by itself.
        let heap = self.moved == moved_before
            && self.heap.compact(&mut self.chunks, effort, &mut self.moved, moved_block);
        pages || heap
    }

    /// Returns the effort for compaction between two writes.
    #[inline]
    pub(crate) fn effort(&self) -> CompactionEffort {
        self.chunks.effort()
    }

    /// Returns true if some page or chunk is very sparse. The function is cheap enough to be called
    /// after every write.
    #[inline]
    pub(crate) fn is_sparse(&self) -> bool {
        self.pages.is_sparse() || self.heap.is_sparse()
    }

    /// Frees the spare pages, which are empty but still hold memory. Returns true if there were
    /// any.
    pub(crate) fn trim(&mut self) -> bool {
        self.pages.trim(&mut self.chunks)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // The budget is released before the memory is unmapped, which takes time. No write should
        // be refused because of memory that is being freed.
        self.chunks.budget.release(self.pages.committed() + self.heap.committed());
    }
}
