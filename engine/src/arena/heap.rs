//! Implements a heap for blocks that are too large for pages. It uses two-level segregated fit
//! (Masmano et al., 2004) within chunks of 1 MiB.
//!
//! ```text
//! block = size and state (u32) | size of the block before it in the chunk (u32) | payload
//! free block's payload = next free block of its list (u32) | previous one (u32)
//! ```
//!
//! Sizes are multiples of 16 and include the 8 bytes of the header. Neighbouring free blocks are
//! always merged, and the blocks cover every chunk without gaps. If a chunk is mostly free, its
//! blocks are moved to other chunks, a few at a time, and the chunk is returned to the system.
//! Memory is counted by system page. A page counts once a block lies on it, until it is inside a
//! large free block and is discarded.

use super::{BlockHandle, CHUNK_SIZE, ChunkTable, CompactionEffort, MemoryNeed, MoveCallback, NoRoom};
use crate::raw::SYSTEM_PAGE;

/// The kind of a block's contents, which determines how its reference is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockKind {
    /// A bucket with its records, or a leaf.
    Bucket,
    /// One record that is too long for a bucket or a leaf.
    Record,
}

const HEADER: usize = 8;
const GRANULE: usize = 16;
const BLOCK_MIN: usize = 32;
const FREE: u32 = 1;
const RECORD: u32 = 2;
const STATE: u32 = FREE | RECORD;
/// The number of lists for each power of two.
const SUBLISTS: usize = 16;
const LISTS: usize = (CHUNK_SIZE.ilog2() as usize - 4) * SUBLISTS;
const PAGES: usize = CHUNK_SIZE / SYSTEM_PAGE;
/// Free blocks that contain at least this number of system pages return them at once.
const DISCARD_PAGES_MIN: usize = 8;
/// The maximum number of bytes that one step of compaction moves, unless a single block is larger.
const STEP_BYTES: usize = 32 << 10;

/// Returns the size of a block for `len` bytes, including the header.
#[inline]
pub(super) fn block_size(len: usize) -> usize {
    ((len + HEADER).next_multiple_of(GRANULE)).max(BLOCK_MIN)
}

/// Returns the list for free blocks of this size. Lists are divided by power of two, and each power
/// into sixteenths.
#[inline]
fn list_of(size: usize) -> usize {
    let power = size.ilog2() as usize;
    let sixteenth = (size >> (power - 4)) & (SUBLISTS - 1);
    ((power - 5) * SUBLISTS + sixteenth).min(LISTS - 1)
}

/// Returns the first list in which all blocks have at least this size.
#[inline]
fn list_for(size: usize) -> usize {
    let power = size.ilog2() as usize;
    list_of((size + (1 << (power - 4)) - 1).min(CHUNK_SIZE))
}

/// The state of a chunk of the heap.
struct HeapChunk {
    /// The number of bytes in used blocks, including headers.
    used: usize,
    /// One bit for each system page that may hold memory.
    resident: [u64; PAGES / 64],
}

/// The chunk that is being evacuated, and the offset that the evacuation has reached.
#[derive(Clone, Copy)]
struct EvacuatedChunk {
    chunk: usize,
    offset: usize,
}

/// All heap chunks of an arena.
pub(super) struct BlockHeap {
    /// The states of the chunks, by chunk number; `None` for chunks of pages and for unused
    /// numbers.
    tables: Vec<Option<HeapChunk>>,
    /// The first free block of each list.
    lists: Box<[u32; LISTS]>,
    /// One bit for each list that is not empty.
    occupied: [u64; LISTS.div_ceil(64)],
    /// The number of bytes in used blocks.
    used: usize,
    committed: usize,
    evacuated: Option<EvacuatedChunk>,
    chunk_count: usize,
    /// The value of `used` when an evacuation last gained nothing. Another evacuation is useless
    /// until the value changes.
    stuck_at: Option<usize>,
}

impl BlockHeap {
    pub(super) fn new() -> BlockHeap {
        BlockHeap {
            tables: Vec::new(),
            lists: Box::new([0; LISTS]),
            occupied: [0; LISTS.div_ceil(64)],
            used: 0,
            committed: 0,
            evacuated: None,
            chunk_count: 0,
            stuck_at: None,
        }
    }

    pub(super) fn committed(&self) -> usize {
        self.committed
    }

    // The functions below read and write block headers. A `BlockHandle` in this module refers to a
    // payload; a block is given by its chunk and the offset of its header.

    fn word(chunks: &ChunkTable, chunk: usize, at: usize) -> u32 {
        let bytes = &chunks.chunk(chunk).bytes()[at..at + 4];
        u32::from_le_bytes(bytes.try_into().expect("four bytes"))
    }

    fn set_word(chunks: &mut ChunkTable, chunk: usize, at: usize, word: u32) {
        chunks.chunk_mut(chunk).bytes_mut()[at..at + 4].copy_from_slice(&word.to_le_bytes());
    }

    fn size_at(chunks: &ChunkTable, chunk: usize, at: usize) -> (usize, u32) {
        let word = Self::word(chunks, chunk, at);
        ((word & !STATE) as usize, word & STATE)
    }

    fn set_block(chunks: &mut ChunkTable, chunk: usize, at: usize, size: usize, state: u32) {
        Self::set_word(chunks, chunk, at, size as u32 | state);
        if at + size < CHUNK_SIZE {
            Self::set_word(chunks, chunk, at + size + 4, size as u32);
        }
    }

    fn is_evacuated(&self, chunk: usize) -> bool {
        self.evacuated.is_some_and(|evacuated| evacuated.chunk == chunk)
    }

    // The functions below manage the free lists. Free blocks of the chunk that is being evacuated
    // are in no list.

    fn insert(&mut self, chunks: &mut ChunkTable, chunk: usize, at: usize, size: usize) {
        Self::set_block(chunks, chunk, at, size, FREE);
        if self.is_evacuated(chunk) {
            return;
        }
        let list = list_of(size);
        let this = BlockHandle::at(chunk, at + HEADER);
        let next = std::mem::replace(&mut self.lists[list], this.0);
        self.occupied[list / 64] |= 1 << (list % 64);
        Self::set_word(chunks, chunk, at + HEADER, next);
        Self::set_word(chunks, chunk, at + HEADER + 4, 0);
        if next != 0 {
            let next = BlockHandle(next);
            Self::set_word(chunks, next.chunk(), next.offset() + 4, this.0);
        }
    }

    fn remove(&mut self, chunks: &mut ChunkTable, chunk: usize, at: usize, size: usize) {
        if self.is_evacuated(chunk) {
            return;
        }
        let next = BlockHandle(Self::word(chunks, chunk, at + HEADER));
        let prev = BlockHandle(Self::word(chunks, chunk, at + HEADER + 4));
        if !next.is_none() {
            Self::set_word(chunks, next.chunk(), next.offset() + 4, prev.0);
        }
        if !prev.is_none() {
            Self::set_word(chunks, prev.chunk(), prev.offset(), next.0);
            return;
        }
        let list = list_of(size);
        self.lists[list] = next.0;
        if next.is_none() {
            self.occupied[list / 64] &= !(1 << (list % 64));
        }
    }

    /// Removes a free block of at least this size from its list and returns it.
    fn find(&mut self, chunks: &mut ChunkTable, size: usize) -> Option<(usize, usize, usize)> {
        let first = list_for(size);
        let mut word = self.occupied[first / 64] & (u64::MAX << (first % 64));
        let mut index = first / 64;
        while word == 0 {
            index += 1;
            word = *self.occupied.get(index)?;
        }
        let list = index * 64 + word.trailing_zeros() as usize;
        let handle = BlockHandle(self.lists[list]);
        let (chunk, at) = (handle.chunk(), handle.offset() - HEADER);
        let (found, _) = Self::size_at(chunks, chunk, at);
        // Only the last list may contain blocks that are too small, because blocks of a complete
        // chunk are in it too.
        if found < size {
            return None;
        }
        self.remove(chunks, chunk, at, found);
        Some((chunk, at, found))
    }

    /// Returns the system pages that a block touches.
    fn pages_of(at: usize, size: usize) -> std::ops::Range<usize> {
        at / SYSTEM_PAGE..(at + size).div_ceil(SYSTEM_PAGE)
    }

    /// Marks the pages of a range as resident. Returns false if the budget does not allow it.
    fn commit(
        &mut self,
        chunks: &ChunkTable,
        chunk: usize,
        at: usize,
        size: usize,
        need: MemoryNeed,
    ) -> bool {
        let table = self.tables[chunk].as_mut().expect("a heap chunk");
        let is_new = |page: &usize| table.resident[page / 64] & 1 << (page % 64) == 0;
        let bytes = Self::pages_of(at, size).filter(is_new).count() * SYSTEM_PAGE;
        if bytes > 0 {
            if !chunks.budget.commit_for(need, bytes) {
                return false;
            }
            for page in Self::pages_of(at, size) {
                table.resident[page / 64] |= 1 << (page % 64);
            }
            self.committed += bytes;
        }
        true
    }

    pub(super) fn alloc(
        &mut self,
        chunks: &mut ChunkTable,
        len: usize,
        kind: BlockKind,
        need: MemoryNeed,
    ) -> Result<BlockHandle, NoRoom> {
        let size = block_size(len);
        if size > CHUNK_SIZE / 2 {
            return Err(NoRoom { bytes: usize::MAX });
        }
        let (chunk, at, found) = match self.find(chunks, size) {
            Some(block) => block,
            None => self.open_chunk(chunks)?,
        };
        let rest = found - size;
        let split = rest >= BLOCK_MIN;
        // The header and links of the remaining free block are written too.
        let written = if split { size + BLOCK_MIN } else { found };
        if !self.commit(chunks, chunk, at, written, need) {
            self.insert(chunks, chunk, at, found);
            // The number counts complete pages, because the block may begin and end within further
            // ones.
            return Err(NoRoom { bytes: size.next_multiple_of(SYSTEM_PAGE) + 2 * SYSTEM_PAGE });
        }
        let size = if split { size } else { found };
        if split {
            self.insert(chunks, chunk, at + size, rest);
        }
        Self::set_block(chunks, chunk, at, size, if kind == BlockKind::Record { RECORD } else { 0 });
        self.used += size;
        self.tables[chunk].as_mut().expect("a heap chunk").used += size;
        Ok(BlockHandle::at(chunk, at + HEADER))
    }

    pub(super) fn free(&mut self, chunks: &mut ChunkTable, handle: BlockHandle) {
        let (chunk, mut at) = (handle.chunk(), handle.offset() - HEADER);
        let (mut size, state) = Self::size_at(chunks, chunk, at);
        debug_assert_eq!(state & FREE, 0, "freed twice");
        self.used -= size;
        let table = self.tables[chunk].as_mut().expect("a heap chunk");
        table.used -= size;
        let empty = table.used == 0;
        if at + size < CHUNK_SIZE {
            let (next_size, next_state) = Self::size_at(chunks, chunk, at + size);
            if next_state & FREE != 0 {
                self.remove(chunks, chunk, at + size, next_size);
                size += next_size;
            }
        }
        if at > 0 {
            let before = Self::word(chunks, chunk, at + 4) as usize;
            if Self::size_at(chunks, chunk, at - before).1 & FREE != 0 {
                self.remove(chunks, chunk, at - before, before);
                at -= before;
                size += before;
            }
        }
        // The offset of an evacuation must not lie inside a merged block.
        if let Some(evacuated) = &mut self.evacuated
            && evacuated.chunk == chunk
            && (at..at + size).contains(&evacuated.offset)
        {
            evacuated.offset = at;
        }
        // The last remaining chunk is kept, so that a single record that is stored and removed
        // repeatedly does not map and unmap a chunk each time.
        if empty && self.chunk_count > 1 {
            self.close_chunk(chunks, chunk);
            return;
        }
        self.discard_inside(chunks, chunk, at, size);
        self.insert(chunks, chunk, at, size);
    }

    /// If there are many system pages inside a free block, returns them to the system.
    fn discard_inside(&mut self, chunks: &mut ChunkTable, chunk: usize, at: usize, size: usize) {
        let inside = (at + BLOCK_MIN).div_ceil(SYSTEM_PAGE)..(at + size) / SYSTEM_PAGE;
        if inside.len() < DISCARD_PAGES_MIN {
            return;
        }
        let table = self.tables[chunk].as_mut().expect("a heap chunk");
        let resident = |page: &usize| table.resident[page / 64] & 1 << (page % 64) != 0;
        let count = inside.clone().filter(resident).count();
        if count == 0 {
            return;
        }
        for page in inside.clone() {
            table.resident[page / 64] &= !(1 << (page % 64));
        }
        chunks.chunk_mut(chunk).discard(inside.start * SYSTEM_PAGE..inside.end * SYSTEM_PAGE);
        chunks.budget.release(count * SYSTEM_PAGE);
        self.committed -= count * SYSTEM_PAGE;
    }

    /// Adds a chunk. Returns it as one free block that is in no list.
    fn open_chunk(&mut self, chunks: &mut ChunkTable) -> Result<(usize, usize, usize), NoRoom> {
        let chunk = chunks.add()?;
        if self.tables.len() <= chunk {
            self.tables.resize_with(chunk + 1, || None);
        }
        self.tables[chunk] = Some(HeapChunk { used: 0, resident: [0; PAGES / 64] });
        self.chunk_count += 1;
        // Handle 0 means that there is no block. Offset 0 is never used, because the first payload
        // of a heap has offset 8.
        self.commit(chunks, chunk, 0, SYSTEM_PAGE, MemoryNeed::Upkeep);
        Self::set_block(chunks, chunk, 0, CHUNK_SIZE, FREE);
        Self::set_word(chunks, chunk, 4, 0);
        Ok((chunk, 0, CHUNK_SIZE))
    }

    /// Returns an unused chunk to the system. Its free blocks must have been removed from their
    /// lists.
    fn close_chunk(&mut self, chunks: &mut ChunkTable, chunk: usize) {
        let table = self.tables[chunk].take().expect("a heap chunk");
        let resident = table.resident.iter().map(|word| word.count_ones() as usize).sum::<usize>();
        self.committed -= resident * SYSTEM_PAGE;
        chunks.budget.release(resident * SYSTEM_PAGE);
        chunks.remove(chunk);
        self.chunk_count -= 1;
        if self.is_evacuated(chunk) {
            self.evacuated = None;
        }
    }

    /// Returns true if much more memory is committed than is used.
    #[inline]
    pub(super) fn is_sparse(&self) -> bool {
        self.committed > self.used + self.used / 4 + CHUNK_SIZE && !self.is_stuck()
    }

    fn is_stuck(&self) -> bool {
        self.stuck_at.is_some_and(|used| used.abs_diff(self.used) < CHUNK_SIZE / 8)
    }

    /// Evacuates part of a sparse chunk. Returns true if it has moved anything.
    pub(super) fn compact(
        &mut self,
        chunks: &mut ChunkTable,
        effort: CompactionEffort,
        moved: &mut u64,
        moved_block: MoveCallback<'_>,
    ) -> bool {
        let wanted = if effort != CompactionEffort::Urgent {
            self.committed > self.used + self.used / 16 + CHUNK_SIZE / 4 && !self.is_stuck()
        } else {
            self.is_sparse()
        };
        if self.evacuated.is_none() {
            if !wanted {
                return false;
            }
            if !self.choose_evacuated(chunks) {
                self.stuck_at = Some(self.used);
                return false;
            }
            self.stuck_at = None;
        }
        let mut step = 0;
        while let Some(EvacuatedChunk { chunk, offset }) = self.evacuated {
            if step >= STEP_BYTES {
                break;
            }
            if offset >= CHUNK_SIZE {
                // Blocks that could not be moved stay. The free blocks are put back into the lists.
                self.end_evacuation(chunks);
                break;
            }
            let (size, state) = Self::size_at(chunks, chunk, offset);
            if state & FREE != 0 {
                self.evacuated = Some(EvacuatedChunk { chunk, offset: offset + size });
                continue;
            }
            let kind = if state & RECORD != 0 { BlockKind::Record } else { BlockKind::Bucket };
            let from = BlockHandle::at(chunk, offset + HEADER);
            // Blocks are moved only into existing holes, because a new chunk would gain nothing.
            let Some((to_chunk, at, found)) = self.find(chunks, size) else {
                self.end_evacuation(chunks);
                break;
            };
            self.insert(chunks, to_chunk, at, found);
            let Ok(to) = self.alloc(chunks, size - HEADER, kind, MemoryNeed::Upkeep) else {
                self.end_evacuation(chunks);
                break;
            };
            chunks.copy(from, 0, to, 0, size - HEADER);
            *moved += size as u64;
            step += size;
            moved_block(chunks.bytes(to), kind, from, to);
            self.free(chunks, from);
        }
        if step == 0 {
            self.stuck_at = Some(self.used);
        }
        step > 0
    }

    /// Selects the chunk with the fewest used bytes for evacuation, if the other chunks have space
    /// for them. Returns true if a chunk was selected.
    fn choose_evacuated(&mut self, chunks: &mut ChunkTable) -> bool {
        let mut heaps = 0;
        let mut least = None;
        for (chunk, table) in self.tables.iter().enumerate() {
            let Some(table) = table else { continue };
            heaps += 1;
            if least.is_none_or(|(_, used)| table.used < used) {
                least = Some((chunk, table.used));
            }
        }
        let Some((chunk, used)) = least else { return false };
        let elsewhere = (heaps - 1) * CHUNK_SIZE - (self.used - used);
        if elsewhere < used + used / 2 || used > CHUNK_SIZE / 8 * 7 {
            return false;
        }
        let mut at = 0;
        while at < CHUNK_SIZE {
            let (size, state) = Self::size_at(chunks, chunk, at);
            if state & FREE != 0 {
                self.remove(chunks, chunk, at, size);
            }
            at += size;
        }
        self.evacuated = Some(EvacuatedChunk { chunk, offset: 0 });
        true
    }

    /// Ends an evacuation and returns the free blocks of its chunk to the lists.
    fn end_evacuation(&mut self, chunks: &mut ChunkTable) {
        let Some(EvacuatedChunk { chunk, .. }) = self.evacuated.take() else { return };
        let mut at = 0;
        while at < CHUNK_SIZE {
            let (size, state) = Self::size_at(chunks, chunk, at);
            if state & FREE != 0 {
                self.insert(chunks, chunk, at, size);
            }
            at += size;
        }
    }
}
