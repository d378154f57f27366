//! A heap of blocks of any size above what pages take: two-level segregated fit (Masmano et al., 2004) inside chunks
//! of 1 MiB.
//!
//! ```text
//! block = size and state (u32) | size of the block before it in the chunk (u32) | payload
//! free block's payload = next free block of its list (u32) | previous one (u32)
//! ```
//!
//! Sizes are multiples of 16 and count the 8 bytes of header. Neighbouring free blocks are always merged; every chunk
//! is covered by its blocks without gaps. A chunk that is mostly free is emptied into the others, a few blocks at a
//! time, and given back whole. Memory is counted by system page: a page counts from the first block on it until it
//! is discarded from inside a large free block.

use super::{CHUNK_SIZE, Chunks, Effort, Handle, Need, NoRoom, Owner};
use crate::raw::SYSTEM_PAGE;

/// What is in a block: its owner is found accordingly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A bucket's records.
    Bucket,
    /// One record that is too long for a bucket.
    Record,
}

const HEADER: usize = 8;
const GRANULE: usize = 16;
const BLOCK_MIN: usize = 32;
const FREE: u32 = 1;
const RECORD: u32 = 2;
const STATE: u32 = FREE | RECORD;
/// Sublists for each power of two.
const SUBLISTS: usize = 16;
const LISTS: usize = (CHUNK_SIZE.ilog2() as usize - 4) * SUBLISTS;
const PAGES: usize = CHUNK_SIZE / SYSTEM_PAGE;
/// Free blocks with at least so many whole system pages inside give them back at once.
const DISCARD_PAGES_MIN: usize = 8;
/// What one compaction step moves at most, unless a single block is larger.
const STEP_BYTES: usize = 32 << 10;

/// The size of the block that `len` bytes get, header included.
#[inline]
pub(super) fn block_size(len: usize) -> usize {
    ((len + HEADER).next_multiple_of(GRANULE)).max(BLOCK_MIN)
}

/// The list for free blocks of this size: by power of two, then by sixteenths of it.
#[inline]
fn list_of(size: usize) -> usize {
    let power = size.ilog2() as usize;
    let sixteenth = (size >> (power - 4)) & (SUBLISTS - 1);
    ((power - 5) * SUBLISTS + sixteenth).min(LISTS - 1)
}

/// The first list all of whose blocks are at least this large.
#[inline]
fn list_for(size: usize) -> usize {
    let power = size.ilog2() as usize;
    list_of((size + (1 << (power - 4)) - 1).min(CHUNK_SIZE))
}

/// What is known of a chunk that is a heap.
struct Table {
    /// Bytes in blocks in use, headers included.
    used: usize,
    /// One bit a system page that may hold memory.
    resident: [u64; PAGES / 64],
}

/// The chunk that is being emptied, and how far.
#[derive(Clone, Copy)]
struct Victim {
    chunk: usize,
    offset: usize,
}

/// All heap chunks of an arena.
pub(super) struct Heap {
    /// By chunk number; `None` for chunks that are cut into pages, and for gaps.
    tables: Vec<Option<Table>>,
    /// The first free block of each list.
    lists: Box<[u32; LISTS]>,
    /// One bit a list that is not empty.
    occupied: [u64; LISTS.div_ceil(64)],
    /// Bytes in blocks in use.
    used: usize,
    committed: usize,
    victim: Option<Victim>,
    chunk_count: usize,
    /// What was in use when an evacuation last won nothing; until that changes, another would not either.
    stuck_at: Option<usize>,
}

impl Heap {
    pub(super) fn new() -> Heap {
        Heap {
            tables: Vec::new(),
            lists: Box::new([0; LISTS]),
            occupied: [0; LISTS.div_ceil(64)],
            used: 0,
            committed: 0,
            victim: None,
            chunk_count: 0,
            stuck_at: None,
        }
    }

    pub(super) fn committed(&self) -> usize {
        self.committed
    }

    // Block headers. `Handle`s in this module name payloads; blocks are (chunk, offset of the header).

    fn word(chunks: &Chunks, chunk: usize, at: usize) -> u32 {
        let bytes = &chunks.chunk(chunk).bytes()[at..at + 4];
        u32::from_le_bytes(bytes.try_into().expect("four bytes"))
    }

    fn set_word(chunks: &mut Chunks, chunk: usize, at: usize, word: u32) {
        chunks.chunk_mut(chunk).bytes_mut()[at..at + 4].copy_from_slice(&word.to_le_bytes());
    }

    fn size_at(chunks: &Chunks, chunk: usize, at: usize) -> (usize, u32) {
        let word = Self::word(chunks, chunk, at);
        ((word & !STATE) as usize, word & STATE)
    }

    fn set_block(chunks: &mut Chunks, chunk: usize, at: usize, size: usize, state: u32) {
        Self::set_word(chunks, chunk, at, size as u32 | state);
        if at + size < CHUNK_SIZE {
            Self::set_word(chunks, chunk, at + size + 4, size as u32);
        }
    }

    fn is_victim(&self, chunk: usize) -> bool {
        self.victim.is_some_and(|victim| victim.chunk == chunk)
    }

    // Free lists. Free blocks of the chunk that is being emptied stand in none.

    fn insert(&mut self, chunks: &mut Chunks, chunk: usize, at: usize, size: usize) {
        Self::set_block(chunks, chunk, at, size, FREE);
        if self.is_victim(chunk) {
            return;
        }
        let list = list_of(size);
        let this = Handle::at(chunk, at + HEADER);
        let next = std::mem::replace(&mut self.lists[list], this.0);
        self.occupied[list / 64] |= 1 << (list % 64);
        Self::set_word(chunks, chunk, at + HEADER, next);
        Self::set_word(chunks, chunk, at + HEADER + 4, 0);
        if next != 0 {
            let next = Handle(next);
            Self::set_word(chunks, next.chunk(), next.offset() + 4, this.0);
        }
    }

    fn remove(&mut self, chunks: &mut Chunks, chunk: usize, at: usize, size: usize) {
        if self.is_victim(chunk) {
            return;
        }
        let next = Handle(Self::word(chunks, chunk, at + HEADER));
        let prev = Handle(Self::word(chunks, chunk, at + HEADER + 4));
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

    /// A free block of at least this size, off its list.
    fn find(&mut self, chunks: &mut Chunks, size: usize) -> Option<(usize, usize, usize)> {
        let first = list_for(size);
        let mut word = self.occupied[first / 64] & (u64::MAX << (first % 64));
        let mut index = first / 64;
        while word == 0 {
            index += 1;
            word = *self.occupied.get(index)?;
        }
        let list = index * 64 + word.trailing_zeros() as usize;
        let handle = Handle(self.lists[list]);
        let (chunk, at) = (handle.chunk(), handle.offset() - HEADER);
        let (found, _) = Self::size_at(chunks, chunk, at);
        // Only the last list may hold blocks that are too small: whole chunks end there.
        if found < size {
            return None;
        }
        self.remove(chunks, chunk, at, found);
        Some((chunk, at, found))
    }

    /// The system pages that a block of this place and size touches.
    fn pages_of(at: usize, size: usize) -> std::ops::Range<usize> {
        at / SYSTEM_PAGE..(at + size).div_ceil(SYSTEM_PAGE)
    }

    /// Counts the pages of a range as resident; false if the budget does not allow it.
    fn commit(&mut self, chunks: &Chunks, chunk: usize, at: usize, size: usize, need: Need) -> bool {
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
        chunks: &mut Chunks,
        len: usize,
        kind: Kind,
        need: Need,
    ) -> Result<Handle, NoRoom> {
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
        // The header and links of the rest are written too.
        let written = if split { size + BLOCK_MIN } else { found };
        if !self.commit(chunks, chunk, at, written, need) {
            self.insert(chunks, chunk, at, found);
            // Whole pages count, and the block may begin and end inside others.
            return Err(NoRoom { bytes: size.next_multiple_of(SYSTEM_PAGE) + 2 * SYSTEM_PAGE });
        }
        let size = if split { size } else { found };
        if split {
            self.insert(chunks, chunk, at + size, rest);
        }
        Self::set_block(chunks, chunk, at, size, if kind == Kind::Record { RECORD } else { 0 });
        self.used += size;
        self.tables[chunk].as_mut().expect("a heap chunk").used += size;
        Ok(Handle::at(chunk, at + HEADER))
    }

    pub(super) fn free(&mut self, chunks: &mut Chunks, handle: Handle) {
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
        // The walk of an evacuation must not stand inside a merged block.
        if let Some(victim) = &mut self.victim
            && victim.chunk == chunk
            && (at..at + size).contains(&victim.offset)
        {
            victim.offset = at;
        }
        // The only chunk stays, so that a lone record that comes and goes does not map and unmap one each time.
        if empty && self.chunk_count > 1 {
            self.close_chunk(chunks, chunk);
            return;
        }
        self.discard_inside(chunks, chunk, at, size);
        self.insert(chunks, chunk, at, size);
    }

    /// Gives back the whole system pages inside a free block, if they are many.
    fn discard_inside(&mut self, chunks: &mut Chunks, chunk: usize, at: usize, size: usize) {
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

    /// A new chunk as one free block that stands in no list.
    fn open_chunk(&mut self, chunks: &mut Chunks) -> Result<(usize, usize, usize), NoRoom> {
        let chunk = chunks.add()?;
        if self.tables.len() <= chunk {
            self.tables.resize_with(chunk + 1, || None);
        }
        self.tables[chunk] = Some(Table { used: 0, resident: [0; PAGES / 64] });
        self.chunk_count += 1;
        // Handle 0 means "none"; a heap's first payload starts at 8, so offset 0 is never named.
        self.commit(chunks, chunk, 0, SYSTEM_PAGE, Need::Upkeep);
        Self::set_block(chunks, chunk, 0, CHUNK_SIZE, FREE);
        Self::set_word(chunks, chunk, 4, 0);
        Ok((chunk, 0, CHUNK_SIZE))
    }

    /// Gives back a chunk without a block in use; its free blocks are off their lists.
    fn close_chunk(&mut self, chunks: &mut Chunks, chunk: usize) {
        let table = self.tables[chunk].take().expect("a heap chunk");
        let resident = table.resident.iter().map(|word| word.count_ones() as usize).sum::<usize>();
        self.committed -= resident * SYSTEM_PAGE;
        chunks.budget.release(resident * SYSTEM_PAGE);
        chunks.remove(chunk);
        self.chunk_count -= 1;
        if self.is_victim(chunk) {
            self.victim = None;
        }
    }

    /// True when much more memory is held than used.
    #[inline]
    pub(super) fn is_sparse(&self) -> bool {
        self.committed > self.used + self.used / 4 + CHUNK_SIZE && !self.is_stuck()
    }

    fn is_stuck(&self) -> bool {
        self.stuck_at.is_some_and(|used| used.abs_diff(self.used) < CHUNK_SIZE / 8)
    }

    /// Empties a part of a sparse chunk. Returns whether anything was done.
    pub(super) fn compact(
        &mut self,
        chunks: &mut Chunks,
        effort: Effort,
        moved: &mut u64,
        owner: Owner<'_>,
    ) -> bool {
        let wanted = if effort != Effort::Urgent {
            self.committed > self.used + self.used / 16 + CHUNK_SIZE / 4 && !self.is_stuck()
        } else {
            self.is_sparse()
        };
        if self.victim.is_none() {
            if !wanted {
                return false;
            }
            if !self.choose_victim(chunks) {
                self.stuck_at = Some(self.used);
                return false;
            }
            self.stuck_at = None;
        }
        let mut step = 0;
        while let Some(Victim { chunk, offset }) = self.victim {
            if step >= STEP_BYTES {
                break;
            }
            if offset >= CHUNK_SIZE {
                // Blocks that could not be moved stay; what is free goes back on the lists.
                self.spare_victim(chunks);
                break;
            }
            let (size, state) = Self::size_at(chunks, chunk, offset);
            if state & FREE != 0 {
                self.victim = Some(Victim { chunk, offset: offset + size });
                continue;
            }
            let kind = if state & RECORD != 0 { Kind::Record } else { Kind::Bucket };
            let from = Handle::at(chunk, offset + HEADER);
            // Only into holes: a new chunk would win nothing.
            let Some((to_chunk, at, found)) = self.find(chunks, size) else {
                self.spare_victim(chunks);
                break;
            };
            self.insert(chunks, to_chunk, at, found);
            let Ok(to) = self.alloc(chunks, size - HEADER, kind, Need::Upkeep) else {
                self.spare_victim(chunks);
                break;
            };
            chunks.copy(from, 0, to, 0, size - HEADER);
            *moved += size as u64;
            step += size;
            owner(chunks.bytes(to), kind, from, to);
            self.free(chunks, from);
        }
        if step == 0 {
            self.stuck_at = Some(self.used);
        }
        step > 0
    }

    /// The chunk with the least in use becomes the victim, if the others have room for it.
    fn choose_victim(&mut self, chunks: &mut Chunks) -> bool {
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
        self.victim = Some(Victim { chunk, offset: 0 });
        true
    }

    /// Puts the free blocks of the victim back on the lists and leaves it be.
    fn spare_victim(&mut self, chunks: &mut Chunks) {
        let Some(Victim { chunk, .. }) = self.victim.take() else { return };
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
