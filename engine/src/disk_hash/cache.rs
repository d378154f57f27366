//! Caches blocks of segments, so that reads of frequently used data need no system call.
//!
//! ```text
//! group = lock + 240 frames, in one huge page of the system
//! frame = a block of 8 KiB and the beginning of the next one, which completes short entries
//! ```
//!
//! A segment records in which frame each of its blocks was last cached. The tag of that frame shows
//! whether the block is still there. Frames are reused in turn; a frame that was used since the
//! last turn is skipped. When all frames are in use, only a fraction of the misses loads a block,
//! so that data that is read once does not displace data that is read often.
//!
//! The frames are in huge pages because reads are random: with small pages, most reads would touch
//! an address that is not in the TLB. Measured on a virtual machine (EPYC, 2026-11): without huge
//! pages, reading two million small records takes a third longer.

use super::segment::{BLOCK_LEN, Segment};
use crate::raw::MemoryMapping;
use parking_lot::RwLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// The number of bytes of the next block that a frame contains. Entries up to this length can be
/// served from the cache.
const OVERLAP: u64 = 512;
const FRAME_LEN: usize = (BLOCK_LEN + OVERLAP) as usize;
const HUGE_PAGE: usize = 2 << 20;
/// The number of frames in a group.
const FRAMES: usize = HUGE_PAGE / FRAME_LEN;
/// When all frames are in use, one of this number of misses loads its block.
const ADMISSION: u64 = 32;
/// The number of frames that are tried before a search for a reusable frame gives up.
const TRIES: usize = 8;

struct FrameGroup {
    /// The memory of the frames, which is allocated when the first frame is used.
    memory: Option<MemoryMapping>,
    /// The offset of the huge page in `memory`.
    start: usize,
    /// The segment and the block in each frame; 0 for none.
    tags: [u64; FRAMES],
    lens: [u16; FRAMES],
    used: [AtomicBool; FRAMES],
}

impl FrameGroup {
    fn new() -> FrameGroup {
        let used = std::array::from_fn(|_| AtomicBool::new(false));
        FrameGroup { memory: None, start: 0, tags: [0; FRAMES], lens: [0; FRAMES], used }
    }

    #[inline]
    fn frame(&self, frame: usize) -> Option<&[u8]> {
        let start = self.start + frame * FRAME_LEN;
        Some(&self.memory.as_ref()?.bytes()[start..start + usize::from(self.lens[frame])])
    }

    fn frame_mut(&mut self, frame: usize) -> Option<&mut [u8]> {
        if self.memory.is_none() {
            // The mapping has twice the length of a huge page, so that it contains a complete one.
            // The remainder is never touched.
            let mut memory = MemoryMapping::new(2 * HUGE_PAGE).ok()?;
            memory.use_huge_pages();
            self.start = memory.bytes().as_ptr().addr().wrapping_neg() % HUGE_PAGE;
            self.memory = Some(memory);
        }
        let start = self.start + frame * FRAME_LEN;
        Some(&mut self.memory.as_mut()?.bytes_mut()[start..start + FRAME_LEN])
    }
}

/// The cache of all blocks of one database.
pub(crate) struct BlockCache {
    groups: Box<[RwLock<FrameGroup>]>,
    taken: AtomicUsize,
    hand: AtomicUsize,
    misses: AtomicU64,
}

#[inline]
fn tag(segment: &Segment, block: u64) -> u64 {
    segment.number << 24 | block
}

impl BlockCache {
    pub(crate) fn new(bytes: u64) -> BlockCache {
        let count = bytes.div_ceil(HUGE_PAGE as u64).min(1 << 23) as usize;
        BlockCache {
            groups: (0..count).map(|_| RwLock::new(FrameGroup::new())).collect(),
            taken: AtomicUsize::new(0),
            hand: AtomicUsize::new(0),
            misses: AtomicU64::new(0),
        }
    }

    fn frames(&self) -> usize {
        self.groups.len() * FRAMES
    }

    /// Returns the memory that the cache uses.
    pub(crate) fn bytes(&self) -> u64 {
        let taken = self.taken.load(Ordering::Relaxed).min(self.frames()).div_ceil(FRAMES);
        (taken * HUGE_PAGE + self.groups.len() * size_of::<RwLock<FrameGroup>>()) as u64
    }

    /// Calls `see` with the cached bytes from an offset on. Returns `None` if these bytes are not
    /// cached.
    #[inline]
    pub(crate) fn view<T>(&self, segment: &Segment, offset: u64, see: impl FnOnce(&[u8]) -> T) -> Option<T> {
        let block = offset / BLOCK_LEN;
        let index = (segment.blocks.get(block as usize)?.load(Ordering::Relaxed) as usize).checked_sub(1)?;
        let frame = index % FRAMES;
        let group = self.groups.get(index / FRAMES)?.read();
        if group.tags[frame] != tag(segment, block) {
            return None;
        }
        if !group.used[frame].load(Ordering::Relaxed) {
            group.used[frame].store(true, Ordering::Relaxed);
        }
        Some(see(group.frame(frame)?.get((offset % BLOCK_LEN) as usize..)?))
    }

    /// Loads the block of an entry of at most `len` bytes after a miss, if the block should be
    /// cached. Returns true if the block is cached now.
    #[cold]
    pub(crate) fn admit(&self, segment: &Segment, offset: u64, len: usize) -> bool {
        if len as u64 > OVERLAP || self.groups.is_empty() {
            return false;
        }
        let block = offset / BLOCK_LEN;
        let Some(note) = segment.blocks.get(block as usize) else { return false };
        let start = block * BLOCK_LEN;
        // Blocks of a segment that still grows are not cached.
        if !segment.is_sealed.load(Ordering::Relaxed)
            && segment.flushed.load(Ordering::Acquire) < start + FRAME_LEN as u64
        {
            return false;
        }
        let Some(index) = self.victim() else { return false };
        let (group, frame) = (&self.groups[index / FRAMES], index % FRAMES);
        let Some(mut group) = group.try_write() else { return false };
        group.tags[frame] = 0;
        let Some(bytes) = group.frame_mut(frame) else { return false };
        // The caller will read the entry itself and report the error.
        let Ok(read) = segment.file.read_at(start, bytes) else { return false };
        group.lens[frame] = read as u16;
        group.tags[frame] = tag(segment, block);
        *group.used[frame].get_mut() = true;
        drop(group);
        note.store(index as u32 + 1, Ordering::Relaxed);
        true
    }

    fn victim(&self) -> Option<usize> {
        let frames = self.frames();
        if self.taken.load(Ordering::Relaxed) < frames {
            let index = self.taken.fetch_add(1, Ordering::Relaxed);
            if index < frames {
                return Some(index);
            }
        }
        if !self.misses.fetch_add(1, Ordering::Relaxed).is_multiple_of(ADMISSION) {
            return None;
        }
        for _ in 0..TRIES {
            let index = self.hand.fetch_add(1, Ordering::Relaxed) % frames;
            let group = self.groups[index / FRAMES].try_read()?;
            if !group.used[index % FRAMES].swap(false, Ordering::Relaxed) {
                return Some(index);
            }
        }
        None
    }
}
