//! Movable blocks of memory, and the budget they come out of.
//!
//! ```text
//! arena = chunks of 1 MiB = either pages of 8 KiB, each cut into blocks of one size (up to 1 KiB: `pages`)
//!                           or a heap of blocks of any size (above 1 KiB, up to 64 KiB or so: `heap`)
//! ```
//!
//! A [`Handle`] names a block in 32 bits. Whoever owns a block keeps its handle in exactly one place, so a block
//! can be moved by anybody who can find that place; that is what keeps memory from calcifying: sparse pages and
//! heap chunks are emptied into others and given back to the system.
//!
//! Always true: a block is exactly as large as its length asks for (`block_size`), so the length alone tells whether
//! a change fits in place. Handles are in units of 8 bytes; 0 names nothing. A chunk's mapping is a page longer than
//! the chunk, so that eight bytes can be read at any place in a block.
//! Not here: what is in a block, and who owns it.

mod budget;
mod heap;
mod pages;

pub(crate) use budget::{Budget, Need};
pub(crate) use heap::Kind;

use crate::raw::{Mapping, SYSTEM_PAGE};
use heap::Heap;
use pages::Pages;
use std::ops::Range;
use std::sync::Arc;

/// Names a block: its offset in units of 8 bytes through all chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle(pub(crate) u32);

impl Handle {
    /// No block.
    pub(crate) const NONE: Handle = Handle(0);

    #[inline]
    pub(crate) fn is_none(self) -> bool {
        self.0 == 0
    }

    #[inline]
    fn at(chunk: usize, offset: usize) -> Handle {
        Handle((chunk << (CHUNK_BITS - 3) | offset >> 3) as u32)
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
/// 2^32 handles of 8 bytes: 32 GiB an arena.
const CHUNKS_MAX: usize = 1 << (32 - (CHUNK_BITS - 3));

/// Told of each block that moves: its bytes, its kind, its old and its new handle.
pub(crate) type Owner<'a> = &'a mut dyn FnMut(&[u8], Kind, Handle, Handle);

/// How sparse a page or chunk must be to be emptied: the less slack there is, the more has to move for each byte won.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// Only what is clearly sparse, between two writes.
    Urgent,
    /// Memory is scarce: slack costs records.
    Pressed,
    /// Down to a few per cent of slack, in the background.
    Thorough,
    /// Down to the last page: nothing else is going on.
    Leisurely,
}

/// There is no room for so many more bytes: the budget is spent, or the system gives no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoRoom {
    pub(crate) bytes: usize,
}

/// The chunks, whatever is in them.
pub(crate) struct Chunks {
    chunks: Vec<Option<Mapping>>,
    budget: Arc<Budget>,
}

impl Chunks {
    /// A new chunk and its number. Its pages are not committed yet: that is for whoever writes to them.
    fn add(&mut self) -> Result<usize, NoRoom> {
        let number = self.chunks.iter().rposition(Option::is_none).unwrap_or(self.chunks.len());
        if number >= CHUNKS_MAX {
            return Err(NoRoom { bytes: CHUNK_SIZE });
        }
        let mapping = Mapping::new(CHUNK_SIZE + SYSTEM_PAGE).map_err(|_| NoRoom { bytes: CHUNK_SIZE })?;
        if number == self.chunks.len() {
            self.chunks.push(Some(mapping));
        } else {
            self.chunks[number] = Some(mapping);
        }
        Ok(number)
    }

    /// How much is to be done between two writes.
    #[inline]
    fn effort(&self) -> Effort {
        if self.budget.notes_uses() { Effort::Pressed } else { Effort::Urgent }
    }

    fn remove(&mut self, number: usize) {
        self.chunks[number] = None;
    }

    #[inline]
    fn chunk(&self, number: usize) -> &Mapping {
        self.chunks[number].as_ref().expect("handles name chunks that are mapped")
    }

    #[inline]
    fn chunk_mut(&mut self, number: usize) -> &mut Mapping {
        self.chunks[number].as_mut().expect("handles name chunks that are mapped")
    }

    /// From the block's first byte to the end of the mapping.
    #[inline]
    fn bytes(&self, handle: Handle) -> &[u8] {
        &self.chunk(handle.chunk()).bytes()[handle.offset()..]
    }

    #[inline]
    fn bytes_mut(&mut self, handle: Handle) -> &mut [u8] {
        &mut self.chunk_mut(handle.chunk()).bytes_mut()[handle.offset()..]
    }

    /// Copies between two blocks.
    fn copy(&mut self, from: Handle, from_at: usize, to: Handle, to_at: usize, len: usize) {
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

/// Movable blocks; see the module.
pub(crate) struct Arena {
    chunks: Chunks,
    pages: Pages,
    heap: Heap,
    /// Bytes copied or written into blocks since the start.
    moved: u64,
}

impl Arena {
    pub(crate) fn new(budget: Arc<Budget>) -> Arena {
        Arena {
            chunks: Chunks { chunks: Vec::new(), budget },
            pages: Pages::new(),
            heap: Heap::new(),
            moved: 0,
        }
    }

    /// Bytes moved since the start.
    pub(crate) fn moved(&self) -> u64 {
        self.moved
    }

    /// From the block's first byte to well beyond its end: a block tells its own length.
    #[inline]
    pub(crate) fn bytes(&self, handle: Handle) -> &[u8] {
        self.chunks.bytes(handle)
    }

    #[inline]
    pub(crate) fn prefetch(&self, handle: Handle) {
        self.prefetch_lines(handle, 3);
    }

    /// The same for so many cache lines.
    #[inline]
    pub(crate) fn prefetch_lines(&self, handle: Handle, lines: usize) {
        self.chunks.chunk(handle.chunk()).prefetch(handle.offset(), lines);
    }

    /// A new block for `len` bytes; its bytes are whatever was there before.
    pub(crate) fn alloc(&mut self, len: usize, kind: Kind, need: Need) -> Result<Handle, NoRoom> {
        if kind == Kind::Bucket && len <= pages::BLOCK_MAX {
            self.pages.alloc(&mut self.chunks, len, need)
        } else {
            self.heap.alloc(&mut self.chunks, len, kind, need)
        }
    }

    /// Gives a block back; `len` and `kind` are those it was made for.
    pub(crate) fn free(&mut self, handle: Handle, len: usize, kind: Kind) {
        if kind == Kind::Bucket && len <= pages::BLOCK_MAX {
            self.pages.free(&mut self.chunks, handle);
        } else {
            self.heap.free(&mut self.chunks, handle);
        }
    }

    /// The size of a block for `len` bytes: equal sizes mean that a change fits in place.
    #[inline]
    pub(crate) fn block_size(len: usize, kind: Kind) -> usize {
        if kind == Kind::Bucket && len <= pages::BLOCK_MAX {
            pages::block_size(len)
        } else {
            heap::block_size(len)
        }
    }

    /// Overwrites part of a block.
    #[inline]
    pub(crate) fn write(&mut self, handle: Handle, at: usize, bytes: &[u8]) {
        self.chunks.bytes_mut(handle)[at..at + bytes.len()].copy_from_slice(bytes);
        self.moved += bytes.len() as u64;
    }

    /// Replaces a range of a block of `len` bytes by `insert`, moving it if its size changes.
    /// Returns the handle it has afterwards; a block of no bytes has none. `growth` is why it may grow.
    pub(crate) fn splice(
        &mut self,
        handle: Handle,
        len: usize,
        remove: Range<usize>,
        insert: &[u8],
        kind: Kind,
        growth: Need,
    ) -> Result<Handle, NoRoom> {
        let (at, remove) = (remove.start, remove.len());
        let new_len = len - remove + insert.len();
        let tail = at + remove..len;
        let need = if new_len > len { growth } else { Need::Upkeep };
        if handle.is_none() {
            let new = self.alloc(new_len, kind, need)?;
            self.write(new, 0, insert);
            return Ok(new);
        }
        if new_len == 0 {
            self.free(handle, len, kind);
            return Ok(Handle::NONE);
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

    /// Moves blocks out of one sparse page or part of a sparse heap chunk, if any is sparse enough; at most some
    /// 64 KiB. `owner` is shown each block that moves (its bytes, its kind, its old and its new handle) and must
    /// change the one place that names it. Returns whether something was done.
    ///
    pub(crate) fn compact(&mut self, effort: Effort, owner: Owner<'_>) -> bool {
        let moved_before = self.moved;
        let pages = self.pages.compact(&mut self.chunks, effort, &mut self.moved, owner);
        // Bounded work: a heap step may move 64 KiB by itself.
        let heap =
            self.moved == moved_before && self.heap.compact(&mut self.chunks, effort, &mut self.moved, owner);
        pages || heap
    }

    /// How much is to be done between two writes.
    #[inline]
    pub(crate) fn effort(&self) -> Effort {
        self.chunks.effort()
    }

    /// True when some page or chunk is clearly sparse: cheap enough to ask after every write.
    #[inline]
    pub(crate) fn is_sparse(&self) -> bool {
        self.pages.is_sparse() || self.heap.is_sparse()
    }

    /// Gives back the memory of pages kept in reserve; true if there were any.
    pub(crate) fn trim(&mut self) -> bool {
        self.pages.trim(&mut self.chunks)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // Before the system has it back, which takes a while for all of it: nobody shall be refused for what is leaving.
        self.chunks.budget.release(self.pages.committed() + self.heap.committed());
    }
}
