//! The ordered engine in memory: records in the order of their keys, in little more than their own bytes.
//!
//! ```text
//! router    = which segment a key belongs to                 `router`
//! partition = lock + segments + arena + huge records         `partition`
//! segment   = some hundred neighbouring leaves               `segment`
//! leaf      = records in order, in one block of about 1 KiB  `leaf`
//! ```
//!
//! Neighbouring segments may lie in different partitions, so that threads at work on neighbouring keys rarely wait for
//! one another. A visit takes one look at the router and one lock. A leaf is as long as its records: what is gained by
//! keeping pages full elsewhere is had here from blocks of many sizes.
//!
//! Cost: a lookup is two searches in small sorted arrays and two or three cache misses in the leaf; a write moves a leaf of
//! some 700 bytes, at times a second one (a split), and once in some ten thousand new records half a segment.

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

use crate::arena::{Budget, NoRoom};
use crate::huge::{self, TRIES, full};
use crate::mem_hash::EvictionObserver;
use crate::mem_hash::classes::ClassBounds;
use closed::Codecs;
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use partition::{Partition, Shape, Trouble};
use router::{Location, Router};
use segment::{LEAVES_MAX, Segment};
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use survey::Sampled;
use todana_core::{
    BoundedEngine, Engine, EngineStatus, Error, ErrorKind, MemoryLimit, OrderedEngine, Record, RecordSample,
    Result, ScanPosition, SweepableEngine, UnixSeconds, ValueBuffer, Visitor, WhenFull,
};
use uses::Uses;

/// How a [`MemTree`] is made.
#[derive(Clone, Debug)]
pub struct MemTreeOptions {
    /// How many partitions, at most 4096; `None` takes 16. Each costs some 50 KiB of part-filled pages; more of them let more
    /// threads write at once.
    pub partitions: Option<usize>,
    /// The memory limit.
    pub limit: MemoryLimit,
    /// Upper bounds of the plain sizes (key + value + 4 if flags) by which `status` counts records, ascending.
    pub class_bounds: Vec<u32>,
    /// Whether leaves are compressed, and how.
    pub compression: Option<Compression>,
    /// Who is told of records that are evicted. The tree does not tell reads from other uses: `is_read` is always false.
    pub observer: Option<Arc<dyn EvictionObserver>>,
}

/// How a [`MemTree`] is compressed.
///
/// Its leaves are larger then, some 8 KiB. Those that are written to are open; a read of another one decompresses it, which
/// takes some microseconds, and keeps a copy. Records above 2 KiB, and the leaves with records above 2 KiB, are not compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compression {
    /// How many bytes of leaves may be open, copies included; at least 64 KiB a partition.
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
        }
    }
}

/// Keeps the locks of neighbouring partitions off each other's cache lines.
#[repr(align(128))]
struct Padded(RwLock<Partition>);

/// The ordered engine in memory.
///
/// ```
/// use std::ops::{Bound, ControlFlow};
/// use todana_core::{Action, Attributes, Engine, Ordered, Record, Visitor};
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
    partitions: Box<[Padded]>,
    router: Router,
    /// Whoever changes which segments there are holds this, and then the partitions' locks in their order.
    structure: Mutex<()>,
    budget: Arc<Budget>,
    /// The partition that housekeeping turns to next.
    next_partition: AtomicUsize,
    /// A segment has become short.
    may_unite: AtomicBool,
    uses: Uses,
    /// The key at which eviction goes on. Held before any partition's lock.
    hand: Mutex<Vec<u8>>,
    codecs: Arc<Codecs>,
    sampled: Arc<Sampled>,
}

/// Eviction frees at least so much at a time, so that it is not for every write.
const EVICTION_STEP: usize = 8 << 10;
/// A segment with fewer leaves may be united with a neighbour.
const LEAVES_SHORT: usize = LEAVES_MAX / 4;

impl MemTree {
    /// An empty tree. Fails with `Invalid` for too many partitions.
    pub fn new(options: MemTreeOptions) -> Result<MemTree> {
        let has_classes = !options.class_bounds.is_empty();
        let bounds = Arc::new(ClassBounds::new(options.class_bounds));
        let count = options.partitions.unwrap_or(16).max(1);
        if count > 4096 {
            return Err(Error::new(ErrorKind::Invalid, "more than 4096 partitions"));
        }
        let budget = Arc::new(Budget::new(options.limit));
        let sampled = Arc::new(Sampled::new(Arc::clone(&budget), has_classes, options.observer));
        let shape = match options.compression {
            None => Shape { leaf_max: 1 << 10, record_max: 512, open_max: None },
            Some(Compression { open_bytes }) => {
                let open_max = (open_bytes / count / 2).max(32 << 10);
                Shape { leaf_max: 8 << 10, record_max: 2 << 10, open_max: Some(open_max) }
            }
        };
        let codecs = Arc::new(Codecs::new(Arc::clone(&budget)));
        let partition = |_| {
            let (budget, bounds, codecs) = (Arc::clone(&budget), Arc::clone(&bounds), Arc::clone(&codecs));
            Padded(RwLock::new(Partition::new(budget, bounds, shape, codecs, Arc::clone(&sampled))))
        };
        let partitions: Box<[Padded]> = (0..count).map(partition).collect();
        let slot = partitions[0].0.write().add_segment(Segment::empty(Arc::from(&[][..]), None));
        Ok(MemTree {
            partitions,
            router: Router::new(Location { partition: 0, slot }),
            structure: Mutex::new(()),
            budget: Arc::clone(&budget),
            next_partition: AtomicUsize::new(0),
            may_unite: AtomicBool::new(false),
            uses: Uses::new(),
            hand: Mutex::new(Vec::new()),
            codecs,
            sampled,
        })
    }

    /// The partition that `find` leads to, and the segment in it.
    #[inline]
    fn read(&self, find: impl Fn(&Router) -> (Location, u64)) -> (RwLockReadGuard<'_, Partition>, u32) {
        loop {
            let (location, epoch) = find(&self.router);
            let partition = self.partitions[location.partition as usize].0.read();
            if partition.changed <= epoch {
                return (partition, location.slot);
            }
        }
    }

    #[inline]
    fn write(&self, find: impl Fn(&Router) -> (Location, u64)) -> (RwLockWriteGuard<'_, Partition>, u32) {
        loop {
            let (location, epoch) = find(&self.router);
            let partition = self.partitions[location.partition as usize].0.write();
            if partition.changed <= epoch {
                return (partition, location.slot);
            }
        }
    }

    /// [`Engine::view`] without `dyn`, for whoever knows the engine.
    #[inline]
    fn look<T>(&self, key: &[u8], see: impl FnOnce(Record<'_>) -> T) -> Option<T> {
        let (partition, slot) = self.read(|router| router.find(key));
        partition.view(slot, key, see)
    }

    /// Packs what all partitions hold until `bytes` more would fit. False if that cannot be.
    fn close_ranks(&self, bytes: usize) -> bool {
        for partition in &self.partitions {
            let mut partition = partition.0.write();
            while !self.budget.fits(bytes as u64) && partition.pack() {}
        }
        if !self.budget.fits(bytes as u64) {
            self.codecs.forget();
        }
        self.budget.fits(bytes as u64)
    }

    /// Changes the partition of a key under its lock, and drops the long values that this has removed behind it.
    #[inline]
    fn change<T>(&self, key: &[u8], change: impl FnOnce(&mut Partition, u32) -> T) -> T {
        let (mut partition, slot) = self.write(|router| router.find(key));
        let outcome = change(&mut partition, slot);
        let gone = partition.huge.take_gone();
        let leaves = partition.segment(slot).leaves.len();
        drop(partition);
        drop(gone);
        if leaves > LEAVES_MAX {
            self.divide(key);
        } else if leaves < LEAVES_SHORT && !self.may_unite.load(Ordering::Relaxed) {
            self.may_unite.store(true, Ordering::Relaxed);
        }
        outcome
    }

    /// Notes a use where memory is scarce.
    #[inline]
    fn note(&self, key: &[u8]) {
        if self.budget.notes_uses() {
            self.uses.note(key, &self.budget);
        }
    }

    /// What eviction keeps free, as leaves shrink into new blocks before the old ones are given back.
    #[inline]
    fn reserve(&self) -> u64 {
        match self.budget.limit().bytes {
            Some(limit) => (limit / 128).clamp(16 << 10, 512 << 10),
            None => 0,
        }
    }

    /// Evicts all but `spare` until `bytes` more would fit. False if that cannot be.
    fn make_room(&self, bytes: usize, spare: &[u8]) -> bool {
        while !self.budget.fits(bytes as u64) {
            if self.evict(EVICTION_STEP, Some(spare)) == 0 {
                return self.close_ranks(bytes);
            }
        }
        true
    }

    /// Evicts all but `spare` until the reserve is there again, within reason, and at least until the limit holds.
    #[cold]
    fn pay_back(&self, spare: &[u8]) {
        for step in 0..256 {
            let wanted = if step < TRIES { self.reserve() } else { 0 };
            if self.budget.fits(wanted) || self.evict(EVICTION_STEP, Some(spare)) == 0 {
                return;
            }
            if step >= TRIES {
                self.close_ranks(0);
            }
        }
    }

    /// Makes room for a record that needs `bytes` more, as far as that is allowed and of use; `spare` does not go.
    fn makes_room(&self, bytes: usize, attempt: usize, spare: &[u8]) -> bool {
        if self.budget.refuses() {
            return self.close_ranks(bytes);
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
        self.note(key);
        let seen = self.look(key, |record| {
            self.sampled.read(key, record.attributes.expiry);
            see(record);
        });
        Ok(seen.is_some())
    }

    fn peek(&self, key: &[u8], see: &mut dyn FnMut(Record<'_>)) -> Result<bool> {
        Ok(self.look(key, see).is_some())
    }

    fn visit(&self, key: &[u8], visitor: &mut dyn Visitor) -> Result<()> {
        self.note(key);
        for attempt in 0..TRIES {
            let outcome = self.change(key, |partition, slot| partition.visit(slot, key, visitor));
            match outcome {
                Ok(()) => {
                    // What keeps the index going, and what leaves shrink into, is taken whatever the limit.
                    if !self.budget.refuses() && !self.budget.fits(self.reserve()) {
                        self.pay_back(key);
                    }
                    return Ok(());
                }
                Err(Trouble::Error(error)) => return Err(error),
                Err(Trouble::NoRoom(NoRoom { bytes })) => {
                    if !self.makes_room(bytes, attempt, key) {
                        break;
                    }
                }
            }
        }
        Err(full())
    }

    fn wait_for_visits(&self) {
        self.partitions.iter().for_each(|partition| drop(partition.0.write()));
    }

    fn scan(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        let from = match &from {
            Some(ScanPosition::Key(key)) => Bound::Excluded(&key[..]),
            _ => Bound::Unbounded,
        };
        let mut last = None;
        self.ascend(from, &mut |key, record| {
            let flow = see(key, record);
            if flow.is_break() {
                last = Some(ScanPosition::Key(Arc::from(key)));
            }
            flow
        })?;
        Ok(last)
    }

    fn clear(&self, cleared: &mut dyn FnMut()) -> Result<()> {
        let gone = self.empty(cleared);
        drop(gone);
        self.codecs.forget();
        Ok(())
    }

    fn sample_records(&self) -> RecordSample {
        self.sampled.survey()
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
        // Whoever writes there brings the lines in anyway.
        if let Some(partition) = self.partitions[location.partition as usize].0.try_read()
            && partition.changed <= epoch
        {
            partition.prefetch(location.slot, key);
        }
    }

    fn maintain(&self) -> bool {
        if self.sampled.is_thinned()
            && self.partitions.iter().all(|partition| partition.0.read().records == 0)
        {
            self.sampled.clear();
        }
        if !self.budget.fits(0) && !self.budget.refuses() {
            return self.evict(EVICTION_STEP, None) > 0;
        }
        if self.unite() {
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
        huge::open(&self.budget, len, &|bytes| self.close_ranks(bytes))
    }

    fn room<'b>(&self, buffer: &'b mut dyn ValueBuffer, len: usize) -> Result<&'b mut [u8]> {
        huge::room(&self.budget, buffer, len, &|bytes, attempt| self.makes_room(bytes, attempt, &[]))
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

impl BoundedEngine for MemTree {
    fn set_limit(&self, limit: MemoryLimit) {
        self.budget.set_limit(limit);
    }

    fn limit(&self) -> MemoryLimit {
        self.budget.limit()
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
