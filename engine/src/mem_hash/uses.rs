//! Keeps the uses of records that readers have noted under the shared lock. The next change of the
//! shard enters them into the marks of the buckets.
//!
//! Invariant: nothing in the shard moves while the lock is shared, and writers enter the noted uses
//! before anything else. A note may therefore refer to an offset in a bucket, and entering it needs
//! no search for the key.
//!
//! Tried before: entering each use at once under an exclusive lock. A get then took 1.4 times as
//! long when memory was scarce, with two threads 1.65 times.

use super::credit::SizeOctaves;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The maximum number of notes. A read that finds no space for its note causes the notes to be
/// entered.
const MOST: usize = 32;

const END_BITS: u32 = 18;
const INDEX_BITS: u32 = 8;
const KIND_BITS: u32 = 6;

/// A use of the record with the number `index` in a bucket whose records end at `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotedUse {
    pub(super) bucket: usize,
    pub(super) end: usize,
    pub(super) index: usize,
    pub(super) kind: UseKind,
}

/// The effect of a use on the mark of its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UseKind {
    /// The use counts in a queue.
    Counted,
    /// The use does not count, but the value was read.
    Read,
    /// The use renews the credit of a record of this size.
    OfSize(SizeOctaves),
}

impl UseKind {
    /// Sizes have more octaves than these two values, so the values cannot collide.
    const COUNTED: u8 = 0;
    const READ: u8 = 1;

    fn packed(self) -> u64 {
        u64::from(match self {
            UseKind::Counted => Self::COUNTED,
            UseKind::Read => Self::READ,
            UseKind::OfSize(SizeOctaves(octaves)) => octaves,
        })
    }

    fn unpacked(bits: u8) -> UseKind {
        match bits {
            Self::COUNTED => UseKind::Counted,
            Self::READ => UseKind::Read,
            octaves => UseKind::OfSize(SizeOctaves(octaves)),
        }
    }
}

impl NotedUse {
    /// Returns the use packed into one number. Returns `None` if a field is too large, which never
    /// happens for a bucket with marks.
    fn packed(self) -> Option<u64> {
        let fits = self.bucket >> 32 == 0 && self.end >> END_BITS == 0 && self.index >> INDEX_BITS == 0;
        let place = (self.bucket as u64) << END_BITS | self.end as u64;
        fits.then(|| (place << INDEX_BITS | self.index as u64) << KIND_BITS | self.kind.packed())
    }

    fn unpacked(packed: u64) -> NotedUse {
        let bits = |from: u32, count: u32| (packed >> from & ((1 << count) - 1)) as usize;
        NotedUse {
            bucket: bits(KIND_BITS + INDEX_BITS + END_BITS, 32),
            end: bits(KIND_BITS + INDEX_BITS, END_BITS),
            index: bits(KIND_BITS, INDEX_BITS),
            kind: UseKind::unpacked(bits(0, KIND_BITS) as u8),
        }
    }
}

/// The notes of one shard.
#[derive(Debug)]
pub(super) struct UseNotes {
    len: AtomicUsize,
    notes: [AtomicU64; MOST],
}

impl UseNotes {
    pub(super) fn new() -> UseNotes {
        UseNotes { len: AtomicUsize::new(0), notes: [const { AtomicU64::new(0) }; MOST] }
    }

    /// Notes a use. Returns false if there is no space for the note, so that the notes must be
    /// entered.
    ///
    /// If two threads note a use at the same time, one may overwrite the note of the other. Losing
    /// a use is harmless, and unordered stores are almost free. Every note below `len` was written
    /// after the last `take`, because a thread stores its note before the length that covers it.
    #[inline]
    pub(super) fn note(&self, of: NotedUse) -> bool {
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

    /// Takes the last note. The notes were made under shared locks. These locks have been released,
    /// which orders the stores of the notes before this.
    pub(super) fn take(&mut self) -> Option<NotedUse> {
        let len = self.len.get_mut();
        *len = len.checked_sub(1)?;
        Some(NotedUse::unpacked(*self.notes[*len].get_mut()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_taken_until_full() {
        let mut uses = UseNotes::new();
        assert!(uses.is_empty());
        let kind = |n: usize| match n {
            0 => UseKind::Counted,
            1 => UseKind::Read,
            n => UseKind::OfSize(SizeOctaves(65 - n as u8)),
        };
        let of = |n: usize| NotedUse {
            bucket: (1 << 32) - 1 - n,
            end: (1 << 18) - 1 - n,
            index: 255 - n,
            kind: kind(n),
        };
        assert!((0..MOST).all(|n| uses.note(of(n))));
        assert!(!uses.note(of(MOST)));
        assert!(!uses.is_empty());
        let taken: Vec<NotedUse> = std::iter::from_fn(|| uses.take()).collect();
        assert_eq!(taken, (0..MOST).rev().map(of).collect::<Vec<_>>());
        assert!(uses.is_empty());
    }

    #[test]
    fn unrepresentable_use_is_not_noted() {
        let mut uses = UseNotes::new();
        let zero = NotedUse { bucket: 0, end: 0, index: 0, kind: UseKind::Counted };
        for of in [
            NotedUse { bucket: 1 << 32, ..zero },
            NotedUse { end: 1 << 18, ..zero },
            NotedUse { index: 256, ..zero },
        ] {
            assert!(uses.note(of));
        }
        assert_eq!(uses.take(), None);
    }
}
