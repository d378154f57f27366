//! Implements pages of 8 KiB, each of which is cut into blocks of one size.
//!
//! ```text
//! page = block | block | ...        free block = 0xF0 | .. | next free block of the page (u16 at offset 2)
//! ```
//!
//! A used block never begins with 0xF0 (the END byte of a bucket; used buckets contain at least one
//! record), so compaction distinguishes used from free blocks without a bitmap. For each size, the
//! pages with a free block are in eight lists (bins) by how full they are. An allocation takes a
//! block that was freed recently, whose cache lines are still loaded, or otherwise a block of the
//! fullest page. The sparsest pages therefore become empty by themselves, or are evacuated. The
//! metadata of a page is stored outside of the page and takes 16 bytes.

use super::heap::BlockKind;
use super::{BlockHandle, CHUNK_SIZE, ChunkTable, CompactionEffort, MemoryNeed, MoveCallback, NoRoom};

/// The maximum size of a block.
pub(super) const BLOCK_MAX: usize = 1024;

pub(super) const PAGE_SIZE: usize = 8192;
const PAGES_PER_CHUNK: usize = CHUNK_SIZE / PAGE_SIZE;
/// The number of empty pages that are kept before memory is returned.
const RESERVE_MAX: usize = 4;
const FREE_MARK: u8 = 0xF0;
const NO_BLOCK: u16 = u16::MAX;
const NO_PAGE: u32 = u32::MAX;
const BINS: usize = 8;
/// The number of pages that are remembered because a block on them was freed recently (measured:
/// remembering 1 gives half of the gain, 8 no more than 4).
const RECENT: usize = 4;

/// The number of sizes of blocks: 16, 24 ... 256 in steps of 8; above that, the sizes of which 31
/// to 8 blocks fill a page, so that little of the page is wasted.
const CLASSES: usize = 31 + 24;

const SIZES: [u16; CLASSES] = {
    let mut sizes = [0; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        sizes[class] =
            if class < 31 { 16 + class as u16 * 8 } else { (PAGE_SIZE / (62 - class)) as u16 & !7 };
        class += 1;
    }
    sizes
};

/// The class of a length. The index is the length in units of 8 bytes, rounded up.
const CLASS_OF: [u8; BLOCK_MAX / 8 + 1] = {
    let mut classes = [0; BLOCK_MAX / 8 + 1];
    let (mut eighths, mut class) = (0, 0);
    while eighths <= BLOCK_MAX / 8 {
        while (SIZES[class] as usize) < eighths * 8 {
            class += 1;
        }
        classes[eighths] = class as u8;
        eighths += 1;
    }
    classes
};

#[inline]
fn class_of(len: usize) -> usize {
    usize::from(CLASS_OF[len.div_ceil(8)])
}

#[inline]
const fn class_size(class: usize) -> usize {
    SIZES[class] as usize
}

/// The number of blocks in a page, by class.
const CAPACITY: [u16; CLASSES] = {
    let mut capacity = [0; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        capacity[class] = (PAGE_SIZE / class_size(class)) as u16;
        class += 1;
    }
    capacity
};

/// Returns the size of a block for `len` bytes.
#[inline]
pub(super) fn block_size(len: usize) -> usize {
    class_size(class_of(len))
}

#[derive(Clone, Copy)]
struct ArenaPage {
    prev: u32,
    next: u32,
    /// The first free block among the blocks that were used before.
    free: u16,
    used: u16,
    /// The index of the first block that has never been used since the page got its class. The
    /// blocks after it have never been used either.
    fresh: u16,
    class: u8,
    bin: u8,
}

#[derive(Clone, Copy)]
struct BlockClass {
    /// The first page of each bin.
    bins: [u32; BINS],
    /// The pages on which blocks were freed most recently, latest first.
    recent: [u32; RECENT],
    pages: u32,
    used: u32,
}

impl BlockClass {
    /// Takes the page of a recently freed block, if there is one.
    #[inline]
    fn take_recent(&mut self) -> Option<u32> {
        let page = self.recent[0];
        self.recent.copy_within(1.., 0);
        self.recent[RECENT - 1] = NO_PAGE;
        (page != NO_PAGE).then_some(page)
    }

    #[inline]
    fn put_recent(&mut self, page: u32) {
        self.recent.copy_within(..RECENT - 1, 1);
        self.recent[0] = page;
    }

    /// Removes a page from the remembered ones, because it leaves the class or is being evacuated
    /// and must supply no more blocks.
    fn remove_recent(&mut self, page: u32) {
        self.recent.iter_mut().filter(|recent| **recent == page).for_each(|recent| *recent = NO_PAGE);
    }

    fn free_blocks(&self, class: usize) -> usize {
        self.pages as usize * usize::from(CAPACITY[class]) - self.used as usize
    }

    /// Returns true if an evacuation is worthwhile. It is only if the other pages have more free
    /// blocks than one page holds.
    fn is_sparse(&self, class: usize, effort: CompactionEffort) -> bool {
        self.is_sparser(class, effort, self.free_blocks(class))
    }

    /// Returns true if an evacuation is worthwhile with this number of free blocks.
    fn is_sparser(&self, class: usize, effort: CompactionEffort, free: usize) -> bool {
        let capacity = usize::from(CAPACITY[class]);
        let (spare_pages, share) = match effort {
            CompactionEffort::Urgent => (2, 6),
            CompactionEffort::Pressed => (1, 16),
            CompactionEffort::Thorough => (1, 32),
            CompactionEffort::Leisurely => (1, 256),
        };
        free > self.used as usize / share + capacity * spare_pages
    }
}

/// All pages of an arena.
pub(super) struct PagedBlocks {
    /// The pages of each chunk, by chunk number; empty for chunks of the heap.
    tables: Vec<Vec<ArenaPage>>,
    classes: [BlockClass; CLASSES],
    /// Empty pages that still hold memory, the newest last.
    reserve: Vec<u32>,
    /// Empty pages whose memory was returned.
    discarded: Vec<u32>,
    /// The chunk that is being cut into pages, and the number of pages it has supplied.
    cutting: Option<(usize, usize)>,
    committed: usize,
    /// A class whose pages the last change has left sparse, if there is one.
    sparse: Option<u8>,
    /// The class at which the search for sparse classes continues.
    next_class: usize,
}

impl PagedBlocks {
    pub(super) fn new() -> PagedBlocks {
        PagedBlocks {
            tables: Vec::new(),
            classes: [BlockClass { bins: [NO_PAGE; BINS], recent: [NO_PAGE; RECENT], pages: 0, used: 0 };
                CLASSES],
            reserve: Vec::new(),
            discarded: Vec::new(),
            cutting: None,
            committed: 0,
            sparse: None,
            next_class: 0,
        }
    }

    pub(super) fn committed(&self) -> usize {
        self.committed
    }

    #[inline]
    fn page(&self, number: u32) -> &ArenaPage {
        &self.tables[number as usize / PAGES_PER_CHUNK][number as usize % PAGES_PER_CHUNK]
    }

    #[inline]
    fn page_mut(&mut self, number: u32) -> &mut ArenaPage {
        &mut self.tables[number as usize / PAGES_PER_CHUNK][number as usize % PAGES_PER_CHUNK]
    }

    #[inline]
    fn handle(page: u32, block: u16, class: usize) -> BlockHandle {
        let (chunk, page) = (page as usize / PAGES_PER_CHUNK, page as usize % PAGES_PER_CHUNK);
        BlockHandle::at(chunk, page * PAGE_SIZE + usize::from(block) * class_size(class))
    }

    #[inline]
    fn page_of(handle: BlockHandle) -> u32 {
        (handle.chunk() * PAGES_PER_CHUNK + handle.offset() / PAGE_SIZE) as u32
    }

    #[inline]
    fn bin_of(used: u16, class: usize) -> usize {
        usize::from(used) * BINS / usize::from(CAPACITY[class])
    }

    fn unlink(&mut self, number: u32) {
        let ArenaPage { prev, next, class, bin, .. } = *self.page(number);
        if prev == NO_PAGE {
            self.classes[usize::from(class)].bins[usize::from(bin)] = next;
        } else {
            self.page_mut(prev).next = next;
        }
        if next != NO_PAGE {
            self.page_mut(next).prev = prev;
        }
    }

    fn link(&mut self, number: u32, bin: usize) {
        let class = usize::from(self.page(number).class);
        let next = std::mem::replace(&mut self.classes[class].bins[bin], number);
        if next != NO_PAGE {
            self.page_mut(next).prev = number;
        }
        let page = self.page_mut(number);
        (page.prev, page.next, page.bin) = (NO_PAGE, next, bin as u8);
    }

    pub(super) fn alloc(
        &mut self,
        chunks: &mut ChunkTable,
        len: usize,
        need: MemoryNeed,
    ) -> Result<BlockHandle, NoRoom> {
        let class = class_of(len);
        let recent = match chunks.effort() {
            // Recently freed blocks may lie on any page, but while memory is scarce it is better to
            // fill pages.
            CompactionEffort::Pressed => None,
            _ => self.classes[class].take_recent().filter(|&page| self.page(page).free != NO_BLOCK),
        };
        let number = match recent {
            Some(number) => number,
            None => match self.classes[class].bins.iter().rev().find(|&&page| page != NO_PAGE) {
                Some(&number) => number,
                None => self.open_page(chunks, class, need)?,
            },
        };
        let page = self.page_mut(number);
        let block = if page.free == NO_BLOCK {
            page.fresh += 1;
            page.fresh - 1
        } else {
            page.free
        };
        page.used += 1;
        let (used, free, bin) = (page.used, page.free, usize::from(page.bin));
        let handle = Self::handle(number, block, class);
        if free != NO_BLOCK {
            let bytes = chunks.bytes(handle);
            debug_assert_eq!(bytes[0], FREE_MARK);
            self.page_mut(number).free = u16::from_le_bytes([bytes[2], bytes[3]]);
        }
        self.classes[class].used += 1;
        if used == CAPACITY[class] {
            self.unlink(number);
        } else {
            let new_bin = Self::bin_of(used, class);
            if new_bin != bin {
                self.unlink(number);
                self.link(number, new_bin);
            }
        }
        Ok(handle)
    }

    pub(super) fn free(&mut self, chunks: &mut ChunkTable, handle: BlockHandle) {
        let number = Self::page_of(handle);
        let page = self.page_mut(number);
        let class = usize::from(page.class);
        let block = (handle.offset() % PAGE_SIZE / class_size(class)) as u16;
        let next = std::mem::replace(&mut page.free, block);
        page.used -= 1;
        let (used, bin) = (page.used, usize::from(page.bin));
        let bytes = chunks.bytes_mut(handle);
        bytes[0] = FREE_MARK;
        bytes[2..4].copy_from_slice(&next.to_le_bytes());
        self.classes[class].used -= 1;
        if used + 1 == CAPACITY[class] {
            if used == 0 {
                self.close_page(chunks, number);
                return;
            }
            self.link(number, Self::bin_of(used, class));
        } else if used == 0 {
            self.unlink(number);
            self.close_page(chunks, number);
            return;
        } else {
            let new_bin = Self::bin_of(used, class);
            if new_bin != bin {
                self.unlink(number);
                self.link(number, new_bin);
            }
        }
        self.classes[class].put_recent(number);
        if self.classes[class].is_sparse(class, chunks.effort()) {
            self.sparse = Some(class as u8);
        }
    }

    /// Returns an empty page that has been added to the lists of its class.
    fn open_page(&mut self, chunks: &mut ChunkTable, class: usize, need: MemoryNeed) -> Result<u32, NoRoom> {
        let number = match self.reserve.pop() {
            Some(number) => number,
            None => {
                if !chunks.budget.commit_for(need, PAGE_SIZE) {
                    return Err(NoRoom { bytes: PAGE_SIZE });
                }
                let number = match self.discarded.pop() {
                    Some(number) => Ok(number),
                    None => self.cut_page(chunks),
                };
                match number {
                    Ok(number) => {
                        self.committed += PAGE_SIZE;
                        number
                    }
                    Err(no_room) => {
                        chunks.budget.release(PAGE_SIZE);
                        return Err(no_room);
                    }
                }
            }
        };
        *self.page_mut(number) = ArenaPage {
            prev: NO_PAGE,
            next: NO_PAGE,
            free: NO_BLOCK,
            used: 0,
            fresh: 0,
            class: class as u8,
            bin: 0,
        };
        self.classes[class].pages += 1;
        self.link(number, 0);
        Ok(number)
    }

    /// Cuts a new page from a chunk and returns its number.
    fn cut_page(&mut self, chunks: &mut ChunkTable) -> Result<u32, NoRoom> {
        let (chunk, given) = match self.cutting {
            Some(cutting) => cutting,
            None => {
                let chunk = chunks.add()?;
                if self.tables.len() <= chunk {
                    self.tables.resize_with(chunk + 1, Vec::new);
                }
                // Handle 0 means that there is no block, so the first page of chunk 0 stays unused
                // and costs no memory.
                (chunk, usize::from(chunk == 0))
            }
        };
        let empty =
            ArenaPage { prev: NO_PAGE, next: NO_PAGE, free: NO_BLOCK, used: 0, fresh: 0, class: 0, bin: 0 };
        let table = &mut self.tables[chunk];
        if table.is_empty() {
            table.reserve_exact(PAGES_PER_CHUNK);
        }
        table.resize(given + 1, empty);
        self.cutting = (given + 1 < PAGES_PER_CHUNK).then_some((chunk, given + 1));
        Ok((chunk * PAGES_PER_CHUNK + given) as u32)
    }

    /// Removes an empty page from its class. The page must be in no list.
    fn close_page(&mut self, chunks: &mut ChunkTable, number: u32) {
        let class = usize::from(self.page(number).class);
        self.classes[class].remove_recent(number);
        self.classes[class].pages -= 1;
        if self.reserve.len() < RESERVE_MAX {
            self.reserve.push(number);
        } else {
            self.discard(chunks, number);
        }
    }

    fn discard(&mut self, chunks: &mut ChunkTable, number: u32) {
        let (chunk, page) = (number as usize / PAGES_PER_CHUNK, number as usize % PAGES_PER_CHUNK);
        chunks.chunk_mut(chunk).discard(page * PAGE_SIZE..(page + 1) * PAGE_SIZE);
        chunks.budget.release(PAGE_SIZE);
        self.committed -= PAGE_SIZE;
        self.discarded.push(number);
    }

    pub(super) fn trim(&mut self, chunks: &mut ChunkTable) -> bool {
        let any = !self.reserve.is_empty();
        while let Some(number) = self.reserve.pop() {
            self.discard(chunks, number);
        }
        any
    }

    #[inline]
    pub(super) fn is_sparse(&self) -> bool {
        self.sparse.is_some()
    }

    /// Evacuates the sparsest pages of a sparse class, up to `pages_max`. Returns true if there was
    /// one.
    pub(super) fn compact(
        &mut self,
        chunks: &mut ChunkTable,
        (effort, pages_max): (CompactionEffort, usize),
        moved: &mut u64,
        moved_block: MoveCallback<'_>,
    ) -> bool {
        let hinted = self.sparse.take().map(usize::from);
        let mut candidates = hinted.into_iter().chain((0..CLASSES).map(|i| (self.next_class + i) % CLASSES));
        let Some(class) = candidates.find(|&class| self.classes[class].is_sparse(class, effort)) else {
            return false;
        };
        self.next_class = class;
        // All pages are removed from their lists first, so that their blocks do not move to one of
        // them. The other pages have space, because `is_sparse` requires that they have more free
        // blocks than one page holds.
        let capacity = usize::from(CAPACITY[class]);
        let mut free = self.classes[class].free_blocks(class);
        let mut evacuated = Vec::new();
        while evacuated.len() < pages_max && self.classes[class].is_sparser(class, effort, free) {
            let Some(&number) = self.classes[class].bins.iter().find(|&&page| page != NO_PAGE) else { break };
            self.unlink(number);
            self.classes[class].remove_recent(number);
            evacuated.push(number);
            free -= capacity;
        }
        for &number in &evacuated {
            let fresh = self.page(number).fresh;
            for block in 0..fresh {
                let from = Self::handle(number, block, class);
                if chunks.bytes(from)[0] == FREE_MARK {
                    continue;
                }
                let size = class_size(class);
                let to = self
                    .alloc(chunks, size, MemoryNeed::Upkeep)
                    .expect("the class has free blocks on other pages");
                chunks.copy(from, 0, to, 0, size);
                *moved += size as u64;
                // `alloc` has counted the moved block a second time.
                self.classes[class].used -= 1;
                moved_block(chunks.bytes(to), BlockKind::Bucket, from, to);
            }
            self.page_mut(number).used = 0;
            self.close_page(chunks, number);
        }
        !evacuated.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_gets_the_smallest_block() {
        for len in 1..=BLOCK_MAX {
            let class = class_of(len);
            assert!(class_size(class) >= len, "{len}");
            assert!(class == 0 || class_size(class - 1) < len, "{len}");
        }
        assert_eq!(class_of(BLOCK_MAX), CLASSES - 1);
    }
}
