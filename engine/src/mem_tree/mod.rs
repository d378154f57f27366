//! Implements the ordered engine in memory. It stores records in the order of their keys, in little
//! more than their own bytes.
//!
//! ```text
//! router    = finds the segment of a key                      `router`
//! partition = lock + segments + arena + huge records          `partition`
//! segment   = some hundred neighbouring leaves                `segment`
//! leaf      = records in order, in one block of about 1 KiB   `leaf`
//! ```
//!
//! Neighbouring segments may lie in different partitions, so that threads that use neighbouring
//! keys rarely wait for each other. A visit takes one lookup in the router and one lock. A leaf is
//! as long as its records: blocks of many sizes save the space that other trees save by keeping
//! pages full.
//!
//! Cost: a lookup is two searches in small sorted arrays and two or three cache misses in the leaf.
//! A write moves a leaf of about 700 bytes, sometimes a second one (a split), and about once in ten
//! thousand new records half a segment.

mod closed;
mod leaf;
mod ordered;
mod partition;
mod router;
mod segment;
mod separators;
mod structure;
mod survey;
mod sweep;
mod uses;

use crate::arena::{LoadPressure, MemoryBudget, NoRoom};
use crate::huge::{
    self, DecompressedValue, HugeTable, HugeTables, LongValueCompression, TRIES, memory_full_error,
};
use crate::mem_hash::EvictionObserver;
use crate::mem_hash::classes::ClassBounds;
use closed::CodecPool;
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use partition::{LeafLimits, Partition, VisitFailure};
use router::{SegmentLocation, SegmentRouter};
use segment::{LEAVES_MAX, LeafSegment};
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use survey::TreeSample;
use todana_core::{
    BoundedEngine, Engine, EngineStatus, Error, ErrorKind, MemoryLimit, OrderedEngine, Record, RecordLoad,
    RecordSample, Result, ScanPosition, SweepableEngine, UnixSeconds, ValueBuffer, Visitor, WhenFull,
};
use uses::UseCounters;

/// The options of a [`MemTree`].
#[derive(Clone, Debug)]
pub struct MemTreeOptions {
    /// The number of partitions, at most 4096; `None` means 16. Each partition costs about 50 KiB
    /// of partly filled pages; more partitions let more threads write at once.
    pub partitions: Option<usize>,
    /// The memory limit.
    pub limit: MemoryLimit,
    /// Upper bounds of the size classes by which `status` counts records, ascending. The size of a
    /// record is key + value + 4 if it has flags.
    pub class_bounds: Vec<u32>,
    /// If set, leaves are compressed in this way.
    pub compression: Option<Compression>,
    /// The observer, which is notified of evicted records. The tree does not distinguish reads from
    /// other uses, so `is_read` is always false.
    pub observer: Option<Arc<dyn EvictionObserver>>,
    /// Compresses values above 64 KiB that are not in use. [`Engine::maintain`] does this work.
    pub compresses_long_values: bool,
}

/// The options for compression in a [`MemTree`].
///
/// With compression, leaves are about 8 KiB instead of 1 KiB. Leaves that are written to are not
/// compressed ("open"). A read of a compressed leaf decompresses it, which takes some microseconds,
/// and keeps a copy. Records above 2 KiB are not compressed, and neither are leaves with such
/// records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compression {
    /// The maximum size of the open leaves and copies together. At least 64 KiB per partition are
    /// used.
    pub open_bytes: usize,
}

impl Default for Compression {
    fn default() -> Self {
        Compression { open_bytes: 4 << 20 }
    }
}

impl Default for MemTreeOptions {
    fn default() -> Self {
        MemTreeOptions {
            partitions: None,
            limit: MemoryLimit { bytes: None, when_full: WhenFull::Evict },
            class_bounds: Vec::new(),
            compression: None,
            observer: None,
            compresses_long_values: true,
        }
    }
}

/// A value whose alignment keeps the locks of neighbouring partitions in separate cache lines.
#[repr(align(128))]
struct PaddedPartition(RwLock<Partition>);

/// The ordered engine in memory.
///
/// ```
/// use std::ops::{Bound, ControlFlow};
/// use todana_core::{Action, Attributes, Engine, OrderedEngine, Record, Visitor};
/// use todana_engine::{MemTree, MemTreeOptions};
///
/// struct Set<'a>(&'a [u8]);
/// impl Visitor for Set<'_> {
///     fn visit<'a>(&'a mut self, _old: Option<Record<'a>>) -> Action<'a> {
///         Action::Put(Record::new(self.0, Attributes::default()))
///     }
/// }
///
/// let tree = MemTree::new(MemTreeOptions::default())?;
/// for (city, country) in [("kyoto", "jp"), ("kyiv", "ua"), ("oslo", "no")] {
///     tree.visit(city.as_bytes(), &mut Set(country.as_bytes()))?;
/// }
/// let mut found = Vec::new();
/// tree.ascend(Bound::Included(b"ky"), &mut |key, _| {
///     if !key.starts_with(b"ky") {
///         return ControlFlow::Break(());
///     }
///     found.push(key.to_vec());
///     ControlFlow::Continue(())
/// })?;
/// assert_eq!(found, [&b"kyiv"[..], b"kyoto"]);
/// # Ok::<(), todana_core::Error>(())
/// ```
pub struct MemTree {
    partitions: Box<[PaddedPartition]>,
    router: SegmentRouter,
    /// The lock for changes of the set of segments. It is taken before the locks of partitions,
    /// which are taken in the order of their numbers.
    structure: Mutex<()>,
    budget: Arc<MemoryBudget>,
    /// The next partition on which maintenance works.
    next_partition: AtomicUsize,
    /// True if a segment may have become short enough to be merged.
    may_merge: AtomicBool,
    uses: UseCounters,
    /// The key at which eviction continues. This lock is taken before that of any partition.
    hand: Mutex<Vec<u8>>,
    codecs: Arc<CodecPool>,
    sample: Arc<TreeSample>,
    long_values: LongValueCompression,
}

/// The minimum number of bytes that one eviction frees, so that not every write has to evict.
const EVICTION_STEP: usize = 8 << 10;
/// A segment with fewer leaves may be merged with a neighbour.
const LEAVES_SHORT: usize = LEAVES_MAX / 4;

impl MemTree {
    /// Creates an empty tree. Fails with `Invalid` if there are too many partitions.
    pub fn new(options: MemTreeOptions) -> Result<MemTree> {
        let has_classes = !options.class_bounds.is_empty();
        let bounds = Arc::new(ClassBounds::new(options.class_bounds));
        let count = options.partitions.unwrap_or(16).max(1);
        if count > 4096 {
            return Err(Error::new(ErrorKind::Invalid, "more than 4096 partitions"));
        }
        let budget = Arc::new(MemoryBudget::new(options.limit));
        let sample = Arc::new(TreeSample::new(Arc::clone(&budget), has_classes, options.observer));
        let limits = match options.compression {
            None => LeafLimits { leaf_max: 1 << 10, record_max: 512, open_max: None },
            Some(Compression { open_bytes }) => {
                let open_max = (open_bytes / count / 2).max(32 << 10);
                LeafLimits { leaf_max: 8 << 10, record_max: 2 << 10, open_max: Some(open_max) }
            }
        };
        let codecs = Arc::new(CodecPool::new(Arc::clone(&budget)));
        let partition = |_| {
            let (budget, bounds, codecs) = (Arc::clone(&budget), Arc::clone(&bounds), Arc::clone(&codecs));
            PaddedPartition(RwLock::new(Partition::new(budget, bounds, limits, codecs, Arc::clone(&sample))))
        };
        let partitions: Box<[PaddedPartition]> = (0..count).map(partition).collect();
        let slot = partitions[0].0.write().add_segment(LeafSegment::empty(Arc::from(&[][..]), None));
        Ok(MemTree {
            partitions,
            router: SegmentRouter::new(SegmentLocation { partition: 0, slot }),
            structure: Mutex::new(()),
            budget: Arc::clone(&budget),
            next_partition: AtomicUsize::new(0),
            may_merge: AtomicBool::new(false),
            uses: UseCounters::new(),
            hand: Mutex::new(Vec::new()),
            codecs,
            sample,
            long_values: LongValueCompression::new(options.compresses_long_values, budget),
        })
    }

    /// Compresses all long values that no one reads or writes meanwhile, and decompresses those
    /// that were read twice since the last round. [`Engine::maintain`] does the same with long
    /// rests.
    pub fn compress_long_values(&self) {
        self.long_values.run(self);
    }

    /// Locks the partition that `find` returns for reading. Also returns the segment that `find`
    /// returns.
    #[inline]
    fn read(
        &self,
        find: impl Fn(&SegmentRouter) -> (SegmentLocation, u64),
    ) -> (RwLockReadGuard<'_, Partition>, u32) {
        loop {
            let (location, epoch) = find(&self.router);
            let partition = self.partitions[location.partition as usize].0.read();
            if partition.changed_epoch <= epoch {
                return (partition, location.slot);
            }
        }
    }

    #[inline]
    fn write(
        &self,
        find: impl Fn(&SegmentRouter) -> (SegmentLocation, u64),
    ) -> (RwLockWriteGuard<'_, Partition>, u32) {
        loop {
            let (location, epoch) = find(&self.router);
            let partition = self.partitions[location.partition as usize].0.write();
            if partition.changed_epoch <= epoch {
                return (partition, location.slot);
            }
        }
    }

    /// Does what [`Engine::view`] does, with a callback that is not `dyn`.
    #[inline]
    fn view_record<T>(&self, key: &[u8], see: impl FnOnce(Record<'_>) -> T) -> Option<T> {
        let (partition, slot) = self.read(|router| router.find(key));
        partition.view(slot, key, see)
    }

    /// Compacts all partitions until `bytes` more fit into the memory limit. Returns false if they
    /// still do not fit.
    fn pack_partitions(&self, bytes: usize) -> bool {
        for partition in &self.partitions {
            let mut partition = partition.0.write();
            while !self.budget.fits(bytes as u64) && partition.pack() {}
        }
        if !self.budget.fits(bytes as u64) {
            self.codecs.forget();
        }
        self.budget.fits(bytes as u64)
    }

    /// Changes the partition of a key under its lock. Drops removed huge values after releasing the
    /// lock.
    #[inline]
    fn change<T>(&self, key: &[u8], change: impl FnOnce(&mut Partition, u32) -> T) -> T {
        let (mut partition, slot) = self.write(|router| router.find(key));
        let outcome = change(&mut partition, slot);
        let removed = partition.huge.take_removed();
        let leaves = partition.segment(slot).leaves.len();
        drop(partition);
        drop(removed);
        if leaves > LEAVES_MAX {
            self.divide_segment(key);
        } else if leaves < LEAVES_SHORT && !self.may_merge.load(Ordering::Relaxed) {
            self.may_merge.store(true, Ordering::Relaxed);
        }
        outcome
    }

    /// Notes a use of a key if memory is scarce.
    #[inline]
    fn note(&self, key: &[u8]) {
        if self.budget.notes_uses() {
            self.uses.note(key, &self.budget);
        }
    }

    /// Returns the amount of memory that eviction keeps free. It is needed because leaves are
    /// copied into smaller blocks before the old blocks are freed.
    #[inline]
    fn reserve(&self) -> u64 {
        match self.budget.limit().bytes {
            Some(limit) => (limit / 128).clamp(16 << 10, 512 << 10),
            None => 0,
        }
    }

    /// Evicts records other than `spare` until `bytes` more fit into the memory limit. Returns
    /// false if they still do not fit.
    fn make_room(&self, bytes: usize, spare: &[u8]) -> bool {
        while !self.budget.fits(bytes as u64) {
            if self.evict(EVICTION_STEP, Some(spare)) == 0 {
                return self.pack_partitions(bytes);
            }
        }
        true
    }

    /// Evicts records other than `spare` until the reserve is free again. After a number of
    /// attempts, it is enough that the memory limit holds.
    #[cold]
    fn restore_reserve(&self, spare: &[u8]) {
        for step in 0..256 {
            let wanted = if step < TRIES { self.reserve() } else { 0 };
            if self.budget.fits(wanted) || self.evict(EVICTION_STEP, Some(spare)) == 0 {
                return;
            }
            if step >= TRIES {
                self.pack_partitions(0);
            }
        }
    }

    /// Frees memory for a record that needs `bytes` more, if the limit permits eviction and
    /// eviction can suffice. The record of the key `spare` is not evicted.
    fn try_make_room(&self, bytes: usize, attempt: usize, spare: &[u8]) -> bool {
        if self.budget.refuses() {
            return self.pack_partitions(bytes);
        }
        bytes as u64 <= self.budget.record_max() && self.make_room(bytes + attempt * EVICTION_STEP, spare)
    }
}

impl Drop for MemTree {
    fn drop(&mut self) {
        self.budget.release(self.uses.bytes());
    }
}

impl Engine for MemTree {
    #[inline]
    fn view(&self, key: &[u8], see: &mut dyn FnMut(Record<'_>)) -> Result<bool> {
        huge::view_plain(see, |see| self.view_shared(key, true, see))
    }

    fn peek(&self, key: &[u8], see: &mut dyn FnMut(Record<'_>)) -> Result<bool> {
        huge::view_plain(see, |see| self.view_shared(key, false, see))
    }

    #[inline]
    fn view_shared(&self, key: &[u8], counts: bool, see: &mut dyn FnMut(Record<'_>)) -> Result<bool> {
        if !counts {
            return Ok(self.view_record(key, see).is_some());
        }
        self.note(key);
        let seen = self.view_record(key, |record| {
            self.sample.read(key, record.attributes.expiry);
            see(record);
        });
        Ok(seen.is_some())
    }

    fn visit(&self, key: &[u8], visitor: &mut dyn Visitor) -> Result<()> {
        self.note(key);
        let mut attempt = 0;
        let mut decompressed = None;
        while attempt < TRIES {
            let outcome = self
                .change(key, |partition, slot| partition.visit(slot, key, visitor, decompressed.as_ref()));
            match outcome {
                Ok(()) => {
                    // The index, and leaves that shrink, have taken memory regardless of the limit,
                    // so restore the reserve.
                    if !self.budget.refuses() && !self.budget.fits(self.reserve()) {
                        self.restore_reserve(key);
                    }
                    return Ok(());
                }
                Err(VisitFailure::Error(error)) => return Err(error),
                Err(VisitFailure::NoRoom(NoRoom { bytes })) => {
                    if !self.try_make_room(bytes, attempt, key) {
                        break;
                    }
                    attempt += 1;
                }
                Err(VisitFailure::Compressed(value)) => decompressed = Some(DecompressedValue::new(value)),
            }
        }
        Err(memory_full_error())
    }

    fn wait_for_visits(&self) {
        self.partitions.iter().for_each(|partition| drop(partition.0.write()));
    }

    fn scan(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        self.scan_shared(from, &mut huge::see_plain(see))
    }

    fn scan_shared(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        let from = match &from {
            Some(ScanPosition::Key(key)) => Bound::Excluded(&key[..]),
            _ => Bound::Unbounded,
        };
        let mut last = None;
        self.ascend_shared(from, &mut |key, record| {
            let flow = see(key, record);
            if flow.is_break() {
                last = Some(ScanPosition::Key(Arc::from(key)));
            }
            flow
        });
        Ok(last)
    }

    fn clear(&self, cleared: &mut dyn FnMut()) -> Result<()> {
        let removed = self.empty(cleared);
        drop(removed);
        self.codecs.forget();
        Ok(())
    }

    fn sample_records(&self) -> RecordSample {
        self.sample.survey()
    }

    fn status(&self) -> EngineStatus {
        let mut status = EngineStatus { committed_bytes: self.budget.committed(), ..EngineStatus::default() };
        for partition in &self.partitions {
            partition.0.read().add_to(&mut status);
        }
        status
    }

    #[inline]
    fn prefetch(&self, key: &[u8]) {
        let (location, epoch) = self.router.find(key);
        // If the partition is locked for writing, the writer loads the cache lines anyway.
        if let Some(partition) = self.partitions[location.partition as usize].0.try_read()
            && partition.changed_epoch <= epoch
        {
            partition.prefetch(location.slot, key);
        }
    }

    fn maintain(&self) -> bool {
        if self.sample.is_thinned() && self.partitions.iter().all(|partition| partition.0.read().records == 0)
        {
            self.sample.clear();
        }
        if !self.budget.fits(0) && !self.budget.refuses() {
            return self.evict(EVICTION_STEP, None) > 0;
        }
        self.long_values.step(self);
        if self.merge_segments() {
            return true;
        }
        for _ in 0..self.partitions.len() {
            let next = self.next_partition.load(Ordering::Relaxed) % self.partitions.len();
            if self.partitions[next].0.write().maintain() {
                return true;
            }
            self.next_partition.fetch_add(1, Ordering::Relaxed);
        }
        false
    }

    fn buffer(&self, len: usize) -> Result<Box<dyn ValueBuffer>> {
        huge::open(&self.budget, len, &|bytes| self.pack_partitions(bytes))
    }

    fn room<'b>(&self, buffer: &'b mut dyn ValueBuffer, len: usize) -> Result<&'b mut [u8]> {
        huge::room(&self.budget, buffer, len, &|bytes, attempt| self.try_make_room(bytes, attempt, &[]))
    }

    fn bounded(&self) -> Option<&dyn BoundedEngine> {
        Some(self)
    }

    fn ordered(&self) -> Option<&dyn OrderedEngine> {
        Some(self)
    }

    fn sweepable(&self) -> Option<&dyn SweepableEngine> {
        Some(self)
    }
}

impl HugeTables for MemTree {
    fn table_count(&self) -> usize {
        self.partitions.len()
    }

    fn view_table(&self, table: usize, see: &mut dyn FnMut(&HugeTable)) {
        see(&self.partitions[table].0.read().huge);
    }

    fn change_table(&self, table: usize, change: &mut dyn FnMut(&mut HugeTable)) {
        let mut partition = self.partitions[table].0.write();
        change(&mut partition.huge);
        let removed = partition.huge.take_removed();
        drop(partition);
        drop(removed);
    }
}

impl BoundedEngine for MemTree {
    fn set_limit(&self, limit: MemoryLimit) {
        self.budget.set_limit(limit);
    }

    fn limit(&self) -> MemoryLimit {
        self.budget.limit()
    }

    fn raise_limit(&self, bytes: u64) {
        self.budget.raise_limit(bytes);
    }

    fn compress_for_load(&self, load: RecordLoad) {
        // Once records are evicted, as in `MemHash`.
        if !self.budget.notes_uses() && self.budget.pressure_of_part(load) != LoadPressure::None {
            self.long_values.compress_for_load(self);
        }
    }

    fn is_near_limit(&self) -> bool {
        self.budget.is_tight()
    }

    fn set_time(&self, now: UnixSeconds) {
        self.budget.set_time(now);
    }
}

const _: fn() = || {
    fn is_shareable<T: Send + Sync>() {}
    is_shareable::<MemTree>();
};
