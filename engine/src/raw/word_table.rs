//! Tables of words in memory of huge pages.
//!
//! An index is read at random. With pages of 4 KiB the processor first has to look for the address of nearly every word that it reads; with
//! huge pages it knows the addresses of all of a large index. The system gives huge pages only to large ranges, and an index is thousands of tables of
//! some kilobytes; so the tables of all databases of the process share chunks of 32 MiB, each table in the shortest hole that is long enough.
//! Short tables are in the ordinary heap: a small index shall not take 2 MiB.
//!
//! Always true: a table's words are in no other table and in no hole, and its chunk is never unmapped.

use super::Mapping;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;

const HUGE_PAGE: usize = 2 << 20;
const CHUNK_LEN: usize = 32 << 20;
/// Tables begin at a cache line.
const LINE: usize = 64;
/// Shorter tables, in bytes, are in the heap: 4096 of these, as a database has, are 4 MiB.
const SHARED_MIN: usize = 1 << 10;
/// Longer ones as well.
const SHARED_MAX: usize = CHUNK_LEN / 8;
/// The number of no chunk: the table is in the heap.
const HEAP: u32 = u32::MAX;
/// So many huge pages that no table needs are given back, and no fewer, as the next table would take them again.
const SPARE_MAX: usize = 2;

/// A chunk: from its first whole huge page on.
struct Chunk {
    memory: Mapping,
    start: usize,
    /// What no table has: begin and length in bytes, with others between any two.
    holes: BTreeMap<usize, usize>,
    /// The same, length and begin.
    by_len: BTreeSet<(usize, usize)>,
    /// The huge pages that the system has given.
    is_there: [bool; CHUNK_LEN / HUGE_PAGE],
}

impl Chunk {
    fn new() -> Option<Chunk> {
        // Longer, so that it can begin at a huge page; of the rest no byte is touched.
        let mut memory = Mapping::new(CHUNK_LEN + HUGE_PAGE).ok()?;
        memory.use_huge_pages();
        let start = memory.bytes().as_ptr().addr().wrapping_neg() % HUGE_PAGE;
        Some(Chunk {
            memory,
            start,
            holes: BTreeMap::from([(0, CHUNK_LEN)]),
            by_len: BTreeSet::from([(CHUNK_LEN, 0)]),
            is_there: [false; CHUNK_LEN / HUGE_PAGE],
        })
    }

    fn open(&mut self, at: usize, len: usize) {
        self.holes.insert(at, len);
        self.by_len.insert((len, at));
    }

    fn close(&mut self, at: usize) -> Option<usize> {
        let len = self.holes.remove(&at)?;
        self.by_len.remove(&(len, at));
        Some(len)
    }

    /// Takes so many bytes from the shortest hole that has them; returns where they begin.
    fn take(&mut self, len: usize) -> Option<usize> {
        let (hole, at) = *self.by_len.range((len, 0)..).next()?;
        self.close(at);
        if hole > len {
            self.open(at + len, hole - len);
        }
        self.is_there[at / HUGE_PAGE..(at + len).div_ceil(HUGE_PAGE)].fill(true);
        Some(at)
    }

    /// Gives them back; returns the huge pages that are spare by that.
    fn give(&mut self, at: usize, len: usize) -> Range<usize> {
        let (mut begin, mut end) = (at, at + len);
        if let Some((&before, &hole)) = self.holes.range(..at).next_back()
            && before + hole == at
        {
            self.close(before);
            begin = before;
        }
        if let Some(hole) = self.close(end) {
            end += hole;
        }
        self.open(begin, end - begin);
        let (first, last) = (begin.div_ceil(HUGE_PAGE), end / HUGE_PAGE);
        let spare = first..last.max(first);
        if self.is_there[spare.clone()].iter().filter(|is_there| **is_there).count() < SPARE_MAX {
            return 0..0;
        }
        spare
    }
}

struct Memory {
    chunks: Vec<Chunk>,
    /// Bytes of all tables in them.
    used: usize,
}

static MEMORY: Mutex<Memory> = Mutex::new(Memory { chunks: Vec::new(), used: 0 });

/// Bytes of the tables that share chunks, and of the memory that these take.
fn shared_bytes() -> (u64, u64) {
    let memory = MEMORY.lock();
    let pages = memory.chunks.iter().flat_map(|chunk| chunk.is_there).filter(|is_there| *is_there).count();
    (memory.used as u64, (pages * HUGE_PAGE) as u64)
}

/// Of what is free between all tables, in bytes, the share of whoever has so many bytes of these.
pub(crate) fn free_beside(bytes: u64) -> u64 {
    let (used, taken) = shared_bytes();
    share(bytes, used, taken)
}

fn share(bytes: u64, used: u64, taken: u64) -> u64 {
    // Two numbers of gigabytes: their product needs more than 64 bits.
    let share =
        u128::from(bytes.min(used)) * u128::from(taken.saturating_sub(used)) / u128::from(used.max(1));
    share as u64
}

/// Words, zero at first.
pub(crate) struct WordTable {
    ptr: NonNull<u64>,
    len: usize,
    /// The number of its chunk.
    chunk: u32,
}

// SAFETY: the words belong to this value alone, like those of a `Box<[u64]>`; nothing in it is tied to a thread.
unsafe impl Send for WordTable {}
// SAFETY: through `&WordTable` the words can only be read.
unsafe impl Sync for WordTable {}

impl WordTable {
    /// A table of at least so many words.
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

    /// `None` if the system has no memory for another chunk.
    fn shared(bytes: usize) -> Option<WordTable> {
        let mut memory = MEMORY.lock();
        let taken = memory.chunks.iter_mut().enumerate().find_map(|(n, chunk)| Some((n, chunk.take(bytes)?)));
        let (chunk, at) = match taken {
            Some(taken) => taken,
            None => {
                let mut chunk = Chunk::new()?;
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
        // There may be those of another one.
        table.fill(0);
        Some(table)
    }
}

impl Default for WordTable {
    /// No words.
    fn default() -> WordTable {
        WordTable::own(Box::default())
    }
}

impl Deref for WordTable {
    type Target = [u64];

    #[inline]
    fn deref(&self) -> &[u64] {
        // SAFETY: `ptr` points at `len` words, aligned and initialised (by the heap, or zeroed by the system or another table's
        // words), that belong to this value alone until it is dropped; `&self` keeps writers out.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for WordTable {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u64] {
        // SAFETY: as in `deref`; `&mut self` keeps everybody else out.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl Drop for WordTable {
    fn drop(&mut self) {
        if self.chunk == HEAP {
            let words = std::ptr::slice_from_raw_parts_mut(self.ptr.as_ptr(), self.len);
            // SAFETY: pointer and length are those of the box that `own` leaked, given back once.
            drop(unsafe { Box::from_raw(words) });
            return;
        }
        let mut memory = MEMORY.lock();
        memory.used -= self.len * 8;
        let chunk = &mut memory.chunks[self.chunk as usize];
        let start = chunk.memory.at(chunk.start..chunk.start + CHUNK_LEN);
        let spare = chunk.give(self.ptr.addr().get() - start.addr().get(), self.len * 8);
        if spare.is_empty() {
            return;
        }
        // SAFETY: these pages lie in a hole of the chunk, so that there is no slice of any byte in them; they then read as zeros, which
        // are valid words. The lock keeps them from becoming a table's meanwhile.
        let outcome = unsafe {
            let at = start.as_ptr().add(spare.start * HUGE_PAGE).cast();
            libc::madvise(at, spare.len() * HUGE_PAGE, libc::MADV_DONTNEED)
        };
        // Locked memory cannot be given back.
        chunk.is_there[spare].fill(outcome != 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_keep_what_is_written_to_them_whatever_comes_and_goes() {
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
    fn what_is_given_back_is_one_hole_again_and_its_huge_pages_go() {
        let mut chunk = Chunk::new().unwrap();
        let places: Vec<usize> = (0..CHUNK_LEN / 65_536).map(|_| chunk.take(65_536).unwrap()).collect();
        assert!(places.iter().enumerate().all(|(n, at)| *at == n * 65_536) && chunk.take(64).is_none());
        let mut pages = 0;
        for at in places.iter().step_by(2).chain(places.iter().skip(1).step_by(2)) {
            let spare = chunk.give(*at, 65_536);
            pages += chunk.is_there[spare.clone()].iter().filter(|is_there| **is_there).count();
            chunk.is_there[spare].fill(false);
        }
        assert_eq!(chunk.holes.into_iter().collect::<Vec<_>>(), [(0, CHUNK_LEN)]);
        assert!(pages > CHUNK_LEN / HUGE_PAGE - SPARE_MAX);
    }

    #[test]
    fn a_large_index_has_its_share_of_what_is_free_as_a_small_one_has() {
        const GIB: u64 = 1 << 30;
        assert_eq!(share(80 * GIB, 80 * GIB, 90 * GIB), 10 * GIB);
        assert_eq!(share(20 * GIB, 80 * GIB, 90 * GIB), 10 * GIB / 4);
        assert_eq!(share(90 * GIB, 80 * GIB, 90 * GIB), 10 * GIB, "some of it is in the heap");
        assert_eq!((share(1 << 10, 0, 0), share(0, 0, 2 << 20)), (0, 0));
    }

    #[test]
    fn a_table_of_no_words_and_one_of_many_are_in_the_heap() {
        assert!(WordTable::default().is_empty() && WordTable::zeroed(0).is_empty());
        assert_eq!(WordTable::zeroed(SHARED_MAX / 8 + 1).chunk, HEAP);
        assert_eq!(WordTable::zeroed(SHARED_MIN / 8 - 8).chunk, HEAP);
        assert_ne!(WordTable::zeroed(SHARED_MIN / 8 - 7).chunk, HEAP);
    }
}
