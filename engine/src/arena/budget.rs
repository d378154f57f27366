//! What all shards of an engine may hold together, and what they hold.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use todana_core::{MemoryLimit, UnixSeconds, WhenFull};

/// Why memory is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// For new data: only within the limit.
    Growth,
    /// To shrink, move or remove something: always, so that a delete never fails for want of memory. What it
    /// overshoots comes back by compaction.
    Upkeep,
}

/// Bytes committed against a limit. Threads may overshoot it by what they commit in the same moment.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: AtomicU64,
    committed: AtomicU64,
    /// Of the committed bytes, those of values that are still being received.
    unfinished: AtomicU64,
    refuse: AtomicBool,
    /// Memory has been scarce since the limit was set, and records may have to go.
    notes_uses: AtomicBool,
    /// Unix seconds.
    now: AtomicU64,
    /// The bits of a key's hash that are zero if its record is in the sample for statistics.
    sample_mask: AtomicU32,
    /// The same for those whose reads are to be noted: all of them where memory is scarce.
    attention_mask: AtomicU32,
}

impl Budget {
    pub(crate) fn new(limit: MemoryLimit) -> Budget {
        let budget = Budget {
            limit: AtomicU64::new(0),
            committed: AtomicU64::new(0),
            unfinished: AtomicU64::new(0),
            refuse: AtomicBool::new(false),
            notes_uses: AtomicBool::new(false),
            now: AtomicU64::new(0),
            sample_mask: AtomicU32::new(0),
            attention_mask: AtomicU32::new(0),
        };
        budget.set_limit(limit);
        budget
    }

    pub(crate) fn set_limit(&self, limit: MemoryLimit) {
        self.limit.store(limit.bytes.unwrap_or(u64::MAX), Ordering::Relaxed);
        self.refuse.store(limit.when_full == WhenFull::Refuse, Ordering::Relaxed);
        if limit.bytes.is_none() || self.refuses() {
            self.notes_uses.store(false, Ordering::Relaxed);
        }
        // Whoever thins the sample while memory becomes tight may have stored the mask of before; this is called again and
        // again.
        self.attend();
    }

    /// Whether a read of this key may be worth a note: there are records that may have to go, or it is in the sample.
    #[inline]
    pub(crate) fn may_note_use(&self, hash: u64) -> bool {
        hash as u32 & self.attention_mask.load(Ordering::Relaxed) == 0
    }

    #[inline]
    pub(crate) fn sample_mask(&self) -> u32 {
        self.sample_mask.load(Ordering::Relaxed)
    }

    /// Halves the sample, unless that has been done since it had this mask; returns the mask it has then.
    pub(crate) fn thin_sample(&self, from: u32) -> u32 {
        let thinner = crate::mem_hash::thinner(from);
        let _ = self.sample_mask.compare_exchange(from, thinner, Ordering::Relaxed, Ordering::Relaxed);
        self.attend();
        self.sample_mask()
    }

    /// All records are in the sample again.
    pub(crate) fn widen_sample(&self) {
        self.sample_mask.store(0, Ordering::Relaxed);
        self.attend();
    }

    fn attend(&self) {
        let mask = if self.notes_uses() { 0 } else { self.sample_mask() };
        self.attention_mask.store(mask, Ordering::Relaxed);
    }

    pub(crate) fn limit(&self) -> MemoryLimit {
        let limit = self.limit.load(Ordering::Relaxed);
        MemoryLimit {
            bytes: (limit != u64::MAX).then_some(limit),
            when_full: if self.refuses() { WhenFull::Refuse } else { WhenFull::Evict },
        }
    }

    pub(crate) fn refuses(&self) -> bool {
        self.refuse.load(Ordering::Relaxed)
    }

    /// Takes `bytes` if the limit leaves them.
    #[inline]
    pub(crate) fn commit(&self, bytes: usize) -> bool {
        let fits = self.fits(bytes as u64);
        if fits {
            self.committed.fetch_add(bytes as u64, Ordering::Relaxed);
        }
        if self.is_tight() && !self.refuses() && !self.notes_uses() {
            self.notes_uses.store(true, Ordering::Relaxed);
            self.attention_mask.store(0, Ordering::Relaxed);
        }
        fits
    }

    /// Whether it is worth while to note which records are used, as some will have to go.
    #[inline]
    pub(crate) fn notes_uses(&self) -> bool {
        self.notes_uses.load(Ordering::Relaxed)
    }

    pub(crate) fn set_time(&self, now: UnixSeconds) {
        self.now.store(now.0, Ordering::Relaxed);
    }

    pub(crate) fn now(&self) -> UnixSeconds {
        UnixSeconds(self.now.load(Ordering::Relaxed))
    }

    /// Takes `bytes` as the need allows.
    #[inline]
    pub(crate) fn commit_for(&self, need: Need, bytes: usize) -> bool {
        match need {
            Need::Growth => self.commit(bytes),
            Need::Upkeep => {
                self.commit_anyway(bytes);
                true
            }
        }
    }

    /// Takes `bytes` whatever the limit: the little that keeps the structure itself going.
    pub(crate) fn commit_anyway(&self, bytes: usize) {
        self.committed.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn release(&self, bytes: usize) {
        self.committed.fetch_sub(bytes as u64, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn committed(&self) -> u64 {
        self.committed.load(Ordering::Relaxed)
    }

    /// The most that one record may take. What is left is for the index, and little enough that half of a process's limit
    /// fits wherever it can fit at all.
    pub(crate) fn record_max(&self) -> u64 {
        let limit = self.limit.load(Ordering::Relaxed);
        limit - (limit / 8).min(256 << 10)
    }

    /// Whether an unfinished value that is to have `len` bytes, and has `own`, may take `more`. Together they may hold half of
    /// the limit, and an eighth more for the short ones; one, beside others that hold no more than a quarter, as much as a
    /// record may have. So values that stall leave half to what is stored, and yet the largest can come in, and the short ones
    /// come in beside long ones that stall. Records go for them as for others: had they been sent to their end, they would
    /// have pushed out as much.
    ///
    /// They are counted by what has come, as an announcement costs its sender nothing. So of too many at once some are
    /// refused halfway, and what they held lets the others go on. Which are short is told by what is announced: a long one that
    /// has just begun would take the room of the short ones, and be refused all the same once it had grown.
    pub(crate) fn may_receive(&self, len: u64, own: u64, more: u64) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        let (half, is_short) = (limit / 2, len <= limit / 64);
        let others = self.unfinished.load(Ordering::Relaxed).saturating_sub(own);
        let all = others.saturating_add(own).saturating_add(more);
        all <= half
            || (is_short && all <= half + limit / 8)
            || (others <= limit / 4 && all <= self.record_max())
    }

    /// Notes that unfinished values have come to hold `before` less and `now` more.
    pub(crate) fn received(&self, before: usize, now: usize) {
        // Wraps around where it shrinks.
        self.unfinished.fetch_add((now as u64).wrapping_sub(before as u64), Ordering::Relaxed);
    }

    /// True if `bytes` more would stay within the limit.
    #[inline]
    pub(crate) fn fits(&self, bytes: u64) -> bool {
        self.committed().saturating_add(bytes) <= self.limit.load(Ordering::Relaxed)
    }

    /// True within the last 64th below the limit: time to replace rather than to grow.
    #[inline]
    pub(crate) fn is_tight(&self) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        limit != u64::MAX && self.committed() > limit - limit / 64
    }
}
