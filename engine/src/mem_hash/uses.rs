//! Uses that reads have noted under the shared lock, and that wait for the next change to their shard.
//!
//! Always true: while the lock is shared nothing in the shard moves, and whoever has it alone enters what has been noted
//! before anything else. So a note may name a place inside a bucket, and entering it looks for no key.
//!
//! Tried before: to enter each use at once, under a second, exclusive lock; a get where memory is scarce took 1.4 times
//! as long as one where it is not, with two threads 1.65 times.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Notes that wait at most. A read that finds no place for its own sees to it that they are entered.
const MOST: usize = 32;

const END_BITS: u32 = 24;
const INDEX_BITS: u32 = 8;

/// A use of the record with the number `index` of a bucket whose records end at `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Use {
    pub(super) bucket: usize,
    pub(super) end: usize,
    pub(super) index: usize,
}

impl Use {
    /// Nothing if one of the three is too large, as the end and the index of no bucket with a tail are.
    fn packed(self) -> Option<u64> {
        let fits = self.bucket >> 32 == 0 && self.end >> END_BITS == 0 && self.index >> INDEX_BITS == 0;
        let place = (self.bucket as u64) << (END_BITS + INDEX_BITS) | (self.end as u64) << INDEX_BITS;
        fits.then_some(place | self.index as u64)
    }

    fn unpacked(packed: u64) -> Use {
        let bits = |from: u32, count: u32| (packed >> from & ((1 << count) - 1)) as usize;
        Use {
            bucket: bits(END_BITS + INDEX_BITS, 32),
            end: bits(INDEX_BITS, END_BITS),
            index: bits(0, INDEX_BITS),
        }
    }
}

/// The notes of one shard.
#[derive(Debug)]
pub(super) struct Uses {
    len: AtomicUsize,
    notes: [AtomicU64; MOST],
}

impl Uses {
    pub(super) fn new() -> Uses {
        Uses { len: AtomicUsize::new(0), notes: [const { AtomicU64::new(0) }; MOST] }
    }

    /// Notes a use; false if it is time to enter what has been noted.
    ///
    /// Of two threads at it at once one may overwrite the note of the other: a use that goes unnoted does no harm, and
    /// stores that wait for nobody cost next to nothing. Whatever the order, all below `len` has been noted since the
    /// last `take`: a thread stores its note before the length that covers it.
    #[inline]
    pub(super) fn note(&self, of: Use) -> bool {
        let len = self.len.load(Ordering::Relaxed);
        let Some(note) = self.notes.get(len) else { return false };
        if let Some(packed) = of.packed() {
            note.store(packed, Ordering::Relaxed);
            self.len.store(len + 1, Ordering::Relaxed);
        }
        true
    }

    #[inline]
    pub(super) fn is_empty(&mut self) -> bool {
        *self.len.get_mut() == 0
    }

    /// The last note, which is forgotten. The shared locks under which notes were made have been released, which orders
    /// their stores before this.
    pub(super) fn take(&mut self) -> Option<Use> {
        let len = self.len.get_mut();
        *len = len.checked_sub(1)?;
        Some(Use::unpacked(*self.notes[*len].get_mut()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_is_taken_until_there_is_no_place_for_more() {
        let mut uses = Uses::new();
        assert!(uses.is_empty());
        let of = |n: usize| Use { bucket: (1 << 32) - 1 - n, end: (1 << 24) - 1 - n, index: 255 - n };
        assert!((0..MOST).all(|n| uses.note(of(n))));
        assert!(!uses.note(of(MOST)));
        assert!(!uses.is_empty());
        let taken: Vec<Use> = std::iter::from_fn(|| uses.take()).collect();
        assert_eq!(taken, (0..MOST).rev().map(of).collect::<Vec<_>>());
        assert!(uses.is_empty());
    }

    #[test]
    fn what_cannot_be_noted_is_passed_over() {
        let mut uses = Uses::new();
        let zero = Use { bucket: 0, end: 0, index: 0 };
        for of in [Use { bucket: 1 << 32, ..zero }, Use { end: 1 << 24, ..zero }, Use { index: 256, ..zero }]
        {
            assert!(uses.note(of));
        }
        assert_eq!(uses.take(), None);
    }
}
