//! Allocates tables of words in huge pages.
//!
//! An index is read at random. With pages of 4 KiB nearly every read misses the TLB; with huge
//! pages the TLB covers a large index. The system gives huge pages only to large ranges, but an
//! index consists of thousands of tables of a few kilobytes. Therefore the tables of all databases
//! of the process share chunks of 32 MiB. A table is allocated from the shortest hole that is long
//! enough; a hole is a free range of a chunk. Short tables are in the ordinary heap, so that a
//! small index does not take 2 MiB.
//!
//! Invariant: the words of a table are in no other table and in no hole, and its chunk is never
//! unmapped.

use super::MemoryMapping;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;

const HUGE_PAGE: usize = 2 << 20;
const CHUNK_LEN: usize = 32 << 20;
/// The length of a cache line. Tables begin at a multiple of it.
const LINE: usize = 64;
/// Tables of fewer bytes are in the heap. A database has 4096 tables, so tables of this length take
/// 4 MiB.
const SHARED_MIN: usize = 1 << 10;
/// Longer tables are in the heap too.
const SHARED_MAX: usize = CHUNK_LEN / 8;
/// The chunk number that stands for a table in the heap.
const HEAP: u32 = u32::MAX;
/// When this number of huge pages is unused, they are returned to the system. Fewer are kept,
/// because the next table would need them again.
const SPARE_MAX: usize = 2;

/// A chunk, which begins at the first huge page of its mapping.
struct WordChunk {
    memory: MemoryMapping,
    start: usize,
    /// The free ranges: the offset and the length of each. No two ranges touch.
    holes: BTreeMap<usize, usize>,
    /// The same ranges, ordered by length and offset.
    by_len: BTreeSet<(usize, usize)>,
    /// True for each huge page that holds memory of the system.
    is_resident: [bool; CHUNK_LEN / HUGE_PAGE],
}

impl WordChunk {
    fn new() -> Option<WordChunk> {
        // The mapping is longer than needed, so that the chunk can begin at a huge page. The
        // remainder is never touched.
        let mut memory = MemoryMapping::new(CHUNK_LEN + HUGE_PAGE).ok()?;
        memory.use_huge_pages();
        let start = memory.bytes().as_ptr().addr().wrapping_neg() % HUGE_PAGE;
        Some(WordChunk {
            memory,
            start,
            holes: BTreeMap::from([(0, CHUNK_LEN)]),
            by_len: BTreeSet::from([(CHUNK_LEN, 0)]),
            is_resident: [false; CHUNK_LEN / HUGE_PAGE],
        })
    }

    fn add_hole(&mut self, at: usize, len: usize) {
        self.holes.insert(at, len);
        self.by_len.insert((len, at));
    }

    fn remove_hole(&mut self, at: usize) -> Option<usize> {
        let len = self.holes.remove(&at)?;
        self.by_len.remove(&(len, at));
        Some(len)
    }

    /// Takes `len` bytes from the shortest hole that is long enough. Returns the offset of these
    /// bytes.
    fn take(&mut self, len: usize) -> Option<usize> {
        let (hole, at) = *self.by_len.range((len, 0)..).next()?;
        self.remove_hole(at);
        if hole > len {
            self.add_hole(at + len, hole - len);
        }
        self.is_resident[at / HUGE_PAGE..(at + len).div_ceil(HUGE_PAGE)].fill(true);
        Some(at)
    }

    /// Frees a range. Returns the huge pages that became unused and should be returned to the
    /// system.
    fn release(&mut self, at: usize, len: usize) -> Range<usize> {
        let (mut begin, mut end) = (at, at + len);
        if let Some((&before, &hole)) = self.holes.range(..at).next_back()
            && before + hole == at
        {
            self.remove_hole(before);
            begin = before;
        }
        if let Some(hole) = self.remove_hole(end) {
            end += hole;
        }
        self.add_hole(begin, end - begin);
        let (first, last) = (begin.div_ceil(HUGE_PAGE), end / HUGE_PAGE);
        let spare = first..last.max(first);
        if self.is_resident[spare.clone()].iter().filter(|is_resident| **is_resident).count() < SPARE_MAX {
            return 0..0;
        }
        spare
    }
}

struct SharedChunks {
    chunks: Vec<WordChunk>,
    /// The total size of all tables in the chunks, in bytes.
    used: usize,
}

static MEMORY: Mutex<SharedChunks> = Mutex::new(SharedChunks { chunks: Vec::new(), used: 0 });

/// Returns the total size of all tables in chunks, and the memory that the chunks hold.
fn shared_bytes() -> (u64, u64) {
    let memory = MEMORY.lock();
    let pages =
        memory.chunks.iter().flat_map(|chunk| chunk.is_resident).filter(|is_resident| *is_resident).count();
    (memory.used as u64, (pages * HUGE_PAGE) as u64)
}

/// Returns the part of the free space in chunks that is attributed to an index whose tables have
/// `bytes` bytes.
pub(crate) fn share_of_free_bytes(bytes: u64) -> u64 {
    let (used, taken) = shared_bytes();
    share(bytes, used, taken)
}

fn share(bytes: u64, used: u64, taken: u64) -> u64 {
    // The product of two numbers of gigabytes needs more than 64 bits.
    let share =
        u128::from(bytes.min(used)) * u128::from(taken.saturating_sub(used)) / u128::from(used.max(1));
    share as u64
}

/// A table of words, initially zero.
pub(crate) struct WordTable {
    ptr: NonNull<u64>,
    len: usize,
    /// The number of the chunk that contains the table.
    chunk: u32,
}

// SAFETY: the words belong to this value alone, like those of a `Box<[u64]>`; nothing in it is tied
// to a thread.
unsafe impl Send for WordTable {}
// SAFETY: the words can only be read through `&WordTable`.
unsafe impl Sync for WordTable {}

impl WordTable {
    /// Creates a table of at least `len` words.
    pub(crate) fn zeroed(len: usize) -> WordTable {
        let bytes = (len * 8).next_multiple_of(LINE);
        let shared = if (SHARED_MIN..=SHARED_MAX).contains(&bytes) { WordTable::shared(bytes) } else { None };
        shared.unwrap_or_else(|| WordTable::own(vec![0; bytes / 8].into()))
    }

    fn own(words: Box<[u64]>) -> WordTable {
        let len = words.len();
        let ptr = NonNull::from(Box::leak(words)).cast();
        WordTable { ptr, len, chunk: HEAP }
    }

    /// Creates a table in a chunk. Returns `None` if the system has no memory for another chunk.
    fn shared(bytes: usize) -> Option<WordTable> {
        let mut memory = MEMORY.lock();
        let taken = memory.chunks.iter_mut().enumerate().find_map(|(n, chunk)| Some((n, chunk.take(bytes)?)));
        let (chunk, at) = match taken {
            Some(taken) => taken,
            None => {
                let mut chunk = WordChunk::new()?;
                let at = chunk.take(bytes)?;
                memory.chunks.push(chunk);
                (memory.chunks.len() - 1, at)
            }
        };
        memory.used += bytes;
        let from = &memory.chunks[chunk];
        let ptr = from.memory.at(from.start + at..from.start + at + bytes).cast::<u64>();
        drop(memory);
        let mut table = WordTable { ptr, len: bytes / 8, chunk: chunk as u32 };
        // The range may contain the words of an earlier table.
        table.fill(0);
        Some(table)
    }
}

impl Default for WordTable {
    /// Returns a table without words.
    fn default() -> WordTable {
        WordTable::own(Box::default())
    }
}

impl Deref for WordTable {
    type Target = [u64];

    #[inline]
    fn deref(&self) -> &[u64] {
        // SAFETY: `ptr` points at `len` aligned words. The heap, the system or an earlier table has
        // initialised them. They belong to this value alone until it is dropped, and `&self`
        // excludes writers.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for WordTable {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u64] {
        // SAFETY: as in `deref`; `&mut self` excludes all other references.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl Drop for WordTable {
    fn drop(&mut self) {
        if self.chunk == HEAP {
            let words = std::ptr::slice_from_raw_parts_mut(self.ptr.as_ptr(), self.len);
            // SAFETY: the pointer and the length are those of the box that `own` leaked. The box is
            // freed exactly once.
            drop(unsafe { Box::from_raw(words) });
            return;
        }
        let mut memory = MEMORY.lock();
        memory.used -= self.len * 8;
        let chunk = &mut memory.chunks[self.chunk as usize];
        let start = chunk.memory.at(chunk.start..chunk.start + CHUNK_LEN);
        let spare = chunk.release(self.ptr.addr().get() - start.addr().get(), self.len * 8);
        if spare.is_empty() {
            return;
        }
        // SAFETY: these pages lie in a hole of the chunk, so there is no slice of any byte in them.
        // They then read as zeros, which are valid words. The lock keeps them from becoming part of
        // a table meanwhile.
        let outcome = unsafe {
            let at = start.as_ptr().add(spare.start * HUGE_PAGE).cast();
            libc::madvise(at, spare.len() * HUGE_PAGE, libc::MADV_DONTNEED)
        };
        // Locked memory cannot be returned, so it stays resident.
        chunk.is_resident[spare].fill(outcome != 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_keep_their_words() {
        let mut random = fastrand::Rng::with_seed(11);
        let mut tables: Vec<(WordTable, u64)> = Vec::new();
        for step in 0..20_000u64 {
            if tables.is_empty() || random.u8(..) < if step < 10_000 { 150 } else { 100 } {
                let len_max = if random.u8(..) < 5 { 200_000 } else { 2000 };
                let len = random.usize(1..len_max);
                let mut table = WordTable::zeroed(len);
                assert!(table.len() >= len && table.len() < len + 8);
                assert!(table.iter().all(|&word| word == 0));
                table.fill(step);
                tables.push((table, step));
            } else {
                let (table, word) = tables.swap_remove(random.usize(..tables.len()));
                assert!(table.iter().all(|&other| other == word));
            }
        }
        let (used, taken) = shared_bytes();
        let shared = tables.iter().filter(|(table, _)| table.chunk != HEAP);
        assert!(used >= shared.map(|(table, _)| table.len() as u64 * 8).sum() && taken >= used);
        tables.into_iter().for_each(|(table, word)| assert!(table.iter().all(|&other| other == word)));
    }

    #[test]
    fn released_ranges_merge_and_free_huge_pages() {
        let mut chunk = WordChunk::new().unwrap();
        let places: Vec<usize> = (0..CHUNK_LEN / 65_536).map(|_| chunk.take(65_536).unwrap()).collect();
        assert!(places.iter().enumerate().all(|(n, at)| *at == n * 65_536) && chunk.take(64).is_none());
        let mut pages = 0;
        for at in places.iter().step_by(2).chain(places.iter().skip(1).step_by(2)) {
            let spare = chunk.release(*at, 65_536);
            pages += chunk.is_resident[spare.clone()].iter().filter(|is_resident| **is_resident).count();
            chunk.is_resident[spare].fill(false);
        }
        assert_eq!(chunk.holes.into_iter().collect::<Vec<_>>(), [(0, CHUNK_LEN)]);
        assert!(pages > CHUNK_LEN / HUGE_PAGE - SPARE_MAX);
    }

    #[test]
    fn free_space_is_shared_in_proportion_to_tables() {
        const GIB: u64 = 1 << 30;
        assert_eq!(share(80 * GIB, 80 * GIB, 90 * GIB), 10 * GIB);
        assert_eq!(share(20 * GIB, 80 * GIB, 90 * GIB), 10 * GIB / 4);
        assert_eq!(share(90 * GIB, 80 * GIB, 90 * GIB), 10 * GIB, "some of it is in the heap");
        assert_eq!((share(1 << 10, 0, 0), share(0, 0, 2 << 20)), (0, 0));
    }

    #[test]
    fn empty_and_long_tables_are_in_the_heap() {
        assert!(WordTable::default().is_empty() && WordTable::zeroed(0).is_empty());
        assert_eq!(WordTable::zeroed(SHARED_MAX / 8 + 1).chunk, HEAP);
        assert_eq!(WordTable::zeroed(SHARED_MIN / 8 - 8).chunk, HEAP);
        assert_ne!(WordTable::zeroed(SHARED_MIN / 8 - 7).chunk, HEAP);
    }
}
