//! Blocks of segments in memory of our own, so that a read of what is hot needs no system call.
//!
//! A frame holds a block and the beginning of the next one, so that short entries that begin in a block are whole in its frame.
//! A segment notes in which frame each of its blocks was last; the frame's tag tells whether it still is. Frames are taken
//! in turn, those that were used since the last round left out; when all are taken, one miss in some brings its block in, so
//! that what is read once does not push out what is read often.

use super::segment::{BLOCK_LEN, Segment};
use parking_lot::RwLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// So much of the next block is in a frame, too: entries up to this length can be served from here.
const OVERLAP: u64 = 512;
const FRAME_LEN: usize = (BLOCK_LEN + OVERLAP) as usize;
/// Once all frames are taken, one miss in so many takes one.
const ADMISSION: u64 = 8;
/// Frames looked at for one to take.
const TRIES: usize = 8;

#[derive(Default)]
struct Frame {
    /// Segment and block; 0 for none.
    tag: u64,
    used: AtomicBool,
    bytes: Vec<u8>,
}

pub(crate) struct Cache {
    frames: Box<[RwLock<Frame>]>,
    taken: AtomicUsize,
    hand: AtomicUsize,
    misses: AtomicU64,
}

#[inline]
fn tag(segment: &Segment, block: u64) -> u64 {
    segment.number << 24 | block
}

impl Cache {
    pub(crate) fn new(bytes: u64) -> Cache {
        let count = (bytes / FRAME_LEN as u64).min(u64::from(u32::MAX - 1)) as usize;
        Cache {
            frames: (0..count).map(|_| RwLock::default()).collect(),
            taken: AtomicUsize::new(0),
            hand: AtomicUsize::new(0),
            misses: AtomicU64::new(0),
        }
    }

    /// Bytes of memory held.
    pub(crate) fn bytes(&self) -> u64 {
        (self.taken.load(Ordering::Relaxed).min(self.frames.len()) * FRAME_LEN
            + self.frames.len() * size_of::<RwLock<Frame>>()) as u64
    }

    /// Shows what the cache has from an offset on; `None` if it has not.
    #[inline]
    pub(crate) fn see<T>(&self, segment: &Segment, offset: u64, see: impl FnOnce(&[u8]) -> T) -> Option<T> {
        let block = offset / BLOCK_LEN;
        let index = segment.blocks.get(block as usize)?.load(Ordering::Relaxed);
        let frame = self.frames.get((index as usize).wrapping_sub(1))?.read();
        if frame.tag != tag(segment, block) {
            return None;
        }
        if !frame.used.load(Ordering::Relaxed) {
            frame.used.store(true, Ordering::Relaxed);
        }
        Some(see(frame.bytes.get((offset % BLOCK_LEN) as usize..)?))
    }

    /// Brings in the block of an entry of at most `len` bytes that was not there, if it may be worth it; true if it is there
    /// now.
    pub(crate) fn admit(&self, segment: &Segment, offset: u64, len: usize) -> bool {
        if len as u64 > OVERLAP || self.frames.is_empty() {
            return false;
        }
        let block = offset / BLOCK_LEN;
        let Some(note) = segment.blocks.get(block as usize) else { return false };
        let start = block * BLOCK_LEN;
        // Blocks that still grow are left alone.
        if !segment.sealed.load(Ordering::Relaxed)
            && segment.flushed.load(Ordering::Acquire) < start + FRAME_LEN as u64
        {
            return false;
        }
        let Some(index) = self.victim() else { return false };
        let Some(mut frame) = self.frames[index].try_write() else { return false };
        frame.tag = 0;
        frame.bytes.resize(FRAME_LEN, 0);
        match segment.file.read_at(start, &mut frame.bytes) {
            Ok(read) => frame.bytes.truncate(read),
            // Whoever reads the entry itself will say so.
            Err(_) => return false,
        }
        frame.tag = tag(segment, block);
        *frame.used.get_mut() = true;
        drop(frame);
        note.store(index as u32 + 1, Ordering::Relaxed);
        true
    }

    fn victim(&self) -> Option<usize> {
        if self.taken.load(Ordering::Relaxed) < self.frames.len() {
            let index = self.taken.fetch_add(1, Ordering::Relaxed);
            if index < self.frames.len() {
                return Some(index);
            }
        }
        if !self.misses.fetch_add(1, Ordering::Relaxed).is_multiple_of(ADMISSION) {
            return None;
        }
        for _ in 0..TRIES {
            let index = self.hand.fetch_add(1, Ordering::Relaxed) % self.frames.len();
            let frame = self.frames[index].try_read()?;
            if !frame.used.swap(false, Ordering::Relaxed) {
                return Some(index);
            }
        }
        None
    }
}
