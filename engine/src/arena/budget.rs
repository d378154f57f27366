//! Defines the memory budget that all shards of an engine share: the limit, and the amount in use.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use todana_core::{MemoryLimit, RecordLoad, UnixSeconds, WhenFull};

/// The purpose of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryNeed {
    /// Memory for new data. It is granted only within the limit.
    Growth,
    /// Memory to shrink, move or remove something. It is always granted, so that a removal never
    /// fails for lack of memory. Compaction frees the excess later.
    Upkeep,
}

/// The memory that is committed against a limit. Concurrent commits may exceed the limit by their
/// own amounts.
#[derive(Debug)]
pub(crate) struct MemoryBudget {
    /// The limit that applies. It is higher than the one that was set while it is raised.
    limit: AtomicU64,
    configured_limit: AtomicU64,
    committed: AtomicU64,
    /// The committed bytes of values that are still being received.
    unfinished: AtomicU64,
    /// The committed bytes of directories that were prepared for an image that is being loaded.
    prepared: AtomicU64,
    /// The committed bytes at the last check for a load.
    load_checked_at: AtomicU64,
    refuse: AtomicBool,
    /// True if memory has been scarce since the limit was set, so that records may be evicted.
    notes_uses: AtomicBool,
    /// The current time in Unix seconds.
    now: AtomicU64,
    /// The bits of a key's hash that must be zero if its record is in the sample for statistics.
    sample_mask: AtomicU32,
    /// The bits of a key's hash that must be zero if its reads are noted. While memory is scarce,
    /// the mask has no bits, so all reads are noted.
    attention_mask: AtomicU32,
}

/// The reason why the records of a load must be compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoadPressure {
    None,
    /// Not all records of a load will fit as they are.
    Expected,
    /// The limit would soon be reached.
    NearLimit,
}

/// The number of bytes that other threads may load while one compresses records.
const LOADED_MAX: u64 = 4 << 20;
/// The number of bytes after which a load is checked again. A check locks all shards.
const LOAD_CHECK: u64 = 64 << 10;
/// If not all records of a load will fit, this number of bytes is loaded before encodings are
/// trained: enough for samples, and little to recode.
const LOADED_FIRST: u64 = 16 << 20;
/// During a load, long values are compressed again, and memory is compacted again, when there are
/// this many more bytes: one of this number of parts of the limit.
pub(crate) const LOAD_STEP_PARTS: u64 = 128;

/// The memory that the directories for an image may take before any of its records have arrived.
const PREPARED_MIN: u64 = 64 << 20;

impl MemoryBudget {
    pub(crate) fn new(limit: MemoryLimit) -> MemoryBudget {
        let budget = MemoryBudget {
            limit: AtomicU64::new(0),
            configured_limit: AtomicU64::new(0),
            committed: AtomicU64::new(0),
            unfinished: AtomicU64::new(0),
            prepared: AtomicU64::new(0),
            load_checked_at: AtomicU64::new(0),
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
        let bytes = limit.bytes.unwrap_or(u64::MAX);
        self.limit.store(bytes, Ordering::Relaxed);
        self.configured_limit.store(bytes, Ordering::Relaxed);
        self.refuse.store(limit.when_full == WhenFull::Refuse, Ordering::Relaxed);
        if limit.bytes.is_none() || self.refuses() {
            self.notes_uses.store(false, Ordering::Relaxed);
        }
        // A concurrent reduction of the sample may have stored an old mask. `set_limit` is called
        // regularly and corrects it.
        self.update_attention_mask();
    }

    /// Raises the limit until another one is set.
    pub(crate) fn raise_limit(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Relaxed);
    }

    /// Returns true if reads of this key are noted, because records may be evicted or because the
    /// key is in the sample.
    #[inline]
    pub(crate) fn may_note_use(&self, hash: u64) -> bool {
        hash as u32 & self.attention_mask.load(Ordering::Relaxed) == 0
    }

    #[inline]
    pub(crate) fn sample_mask(&self) -> u32 {
        self.sample_mask.load(Ordering::Relaxed)
    }

    /// Halves the sample, unless another thread has changed the mask since this thread read it as
    /// `from`. Returns the current mask.
    pub(crate) fn thin_sample(&self, from: u32) -> u32 {
        let thinner = crate::mem_hash::thinner(from);
        let _ = self.sample_mask.compare_exchange(from, thinner, Ordering::Relaxed, Ordering::Relaxed);
        self.update_attention_mask();
        self.sample_mask()
    }

    /// Includes all records in the sample again.
    pub(crate) fn widen_sample(&self) {
        self.sample_mask.store(0, Ordering::Relaxed);
        self.update_attention_mask();
    }

    fn update_attention_mask(&self) {
        let mask = if self.notes_uses() { 0 } else { self.sample_mask() };
        self.attention_mask.store(mask, Ordering::Relaxed);
    }

    pub(crate) fn limit(&self) -> MemoryLimit {
        let limit = self.configured_limit.load(Ordering::Relaxed);
        MemoryLimit {
            bytes: (limit != u64::MAX).then_some(limit),
            when_full: if self.refuses() { WhenFull::Refuse } else { WhenFull::Evict },
        }
    }

    pub(crate) fn refuses(&self) -> bool {
        self.refuse.load(Ordering::Relaxed)
    }

    /// Commits `bytes` if they fit within the limit.
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

    /// Returns true if uses of records are noted because some will be evicted.
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

    /// Commits `bytes`. For [`MemoryNeed::Growth`], fails if they do not fit within the limit.
    #[inline]
    pub(crate) fn commit_for(&self, need: MemoryNeed, bytes: usize) -> bool {
        match need {
            MemoryNeed::Growth => self.commit(bytes),
            MemoryNeed::Upkeep => {
                self.commit_anyway(bytes);
                true
            }
        }
    }

    /// Commits `bytes` regardless of the limit: for small structures that the engine needs, and for
    /// values in use that become plain.
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

    /// Returns the maximum size of one record. The remainder of the limit is for the index. It is
    /// small enough that a record of half the limit of a process still fits.
    pub(crate) fn record_max(&self) -> u64 {
        let limit = self.limit.load(Ordering::Relaxed);
        limit - (limit / 8).min(256 << 10)
    }

    /// Returns true if an unfinished value may commit `more` bytes. An unfinished value is one that
    /// is still being received; `len` is its announced length, and `own` is the number of bytes
    /// that it has committed. All unfinished values together may use half of the limit, and short
    /// ones an additional eighth. A single value may use as much as a record may, if the others use
    /// at most a quarter. Stalled values therefore leave half of the memory to stored records, the
    /// largest value can still be received, and short values can be received beside stalled long
    /// ones. Other records are evicted for unfinished values, as they would be for complete ones.
    ///
    /// Only received bytes count, because announcing a length costs the sender nothing. If there
    /// are too many values, some are refused halfway, and their memory lets the others continue. A
    /// value counts as short by its announced length. Otherwise a long value that has just begun
    /// would use the space of short ones and still be refused later.
    pub(crate) fn may_receive(&self, len: u64, own: u64, more: u64) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        let (half, is_short) = (limit / 2, len <= limit / 64);
        let others = self.unfinished.load(Ordering::Relaxed).saturating_sub(own);
        let all = others.saturating_add(own).saturating_add(more);
        all <= half
            || (is_short && all <= half + limit / 8)
            || (others <= limit / 4 && all <= self.record_max())
    }

    /// Notes that the committed bytes of unfinished values have changed from `before` to `now`.
    pub(crate) fn received(&self, before: usize, now: usize) {
        // The addition wraps around if the amount has decreased.
        self.unfinished.fetch_add((now as u64).wrapping_sub(before as u64), Ordering::Relaxed);
    }

    /// Returns true if a directory for an image may take `bytes` more, and counts them. A few bytes
    /// of a forged image can ask for a directory of any size, so directories must be small compared
    /// with the records that have arrived. Those of a true image take about a tenth of its records.
    pub(crate) fn prepare(&self, bytes: u64) -> bool {
        let prepared = self.prepared.load(Ordering::Relaxed);
        let records = self.committed().saturating_sub(prepared);
        let is_small = prepared.saturating_add(bytes) <= PREPARED_MIN.saturating_add(records / 2);
        let may_prepare = is_small && self.fits(bytes);
        if may_prepare {
            self.prepared.fetch_add(bytes, Ordering::Relaxed);
        }
        may_prepare
    }

    /// Ends the load of an image.
    pub(crate) fn end_preparation(&self) {
        self.prepared.store(0, Ordering::Relaxed);
    }

    /// Returns true if `bytes` more fit within the limit.
    #[inline]
    pub(crate) fn fits(&self, bytes: u64) -> bool {
        self.committed().saturating_add(bytes) <= self.limit.load(Ordering::Relaxed)
    }

    /// Returns how much the records of a load need to be compressed before the next part. Returns
    /// `None` if little has changed since the last check.
    pub(crate) fn pressure_of_part(&self, load: RecordLoad) -> LoadPressure {
        let (committed, checked_at) = (self.committed(), self.load_checked_at.load(Ordering::Relaxed));
        if committed.abs_diff(checked_at) < LOAD_CHECK && load.next_bytes < LOAD_CHECK {
            return LoadPressure::None;
        }
        self.load_checked_at.store(committed, Ordering::Relaxed);
        self.load_pressure(load)
    }

    /// Returns how much the records of a load need to be compressed.
    pub(crate) fn load_pressure(&self, load: RecordLoad) -> LoadPressure {
        let limit = self.configured_limit.load(Ordering::Relaxed);
        let committed = self.committed();
        // The last 64th is that of `is_tight`.
        let reserve = limit / 64 + limit / LOAD_STEP_PARTS + LOADED_MAX.min(limit / 4);
        if limit == u64::MAX {
            LoadPressure::None
        } else if committed.saturating_add(load.next_bytes) > limit - reserve {
            LoadPressure::NearLimit
        } else if load.all_bytes > limit && committed > LOADED_FIRST.min(limit / 4) {
            LoadPressure::Expected
        } else {
            LoadPressure::None
        }
    }

    /// Returns true if memory is scarce: if less than the last 64th of the limit is free. New
    /// records then replace others.
    #[inline]
    pub(crate) fn is_tight(&self) -> bool {
        self.scarce_bytes() > 0
    }

    /// Returns the number of bytes that would have to be freed so that memory is no longer scarce.
    #[inline]
    pub(crate) fn scarce_bytes(&self) -> u64 {
        let limit = self.limit.load(Ordering::Relaxed);
        self.committed().saturating_sub(limit - limit / 64)
    }
}
