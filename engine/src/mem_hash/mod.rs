//! Implements the compact hash in memory. It stores small records in about their own bytes, and
//! similar ones in fewer (see `encodings`).
//!
//! ```text
//! shard   = lock + directory + arena + huge records       by the top bits of the hash
//! directory[bucket] = handle of a block                    by the low bits; linear hashing
//! bucket  = groups of records of one form, in columns      see `group`
//! ```
//!
//! A decimal key is stored without the bits that its bucket and its shard imply (see `quotient`).
//!
//! Cost: a lookup reads one slot of the directory and two or three adjacent cache lines. A write
//! moves a bucket of about 200 bytes, and at most one other bucket (a split or merge) and some
//! pages of 8 KiB (compaction). The complete table is never rehashed. A record above 1 KiB has a
//! block of its own; a record above 64 KiB has a memory mapping.
//!
//! Eviction works on one bucket at a time: a clock hand visits the buckets in turn. From each
//! bucket, the expired records are removed first, then the records that the marks in the bucket
//! show as least used, or as least used for their size (see `eviction` and `credit`). The engine
//! knows the time only from `set_time` and uses it only for eviction; reads return expired records
//! like all others.

mod bits;
mod block_record;
mod bucket_block;
pub(crate) mod classes;
mod credit;
pub(crate) mod departures;
mod directory;
mod encodings;
mod eviction;
mod group;
mod image;
mod key;
mod layout;
mod queue;
mod quotient;
mod recoding;
mod row;
pub(crate) mod sample;
mod seed_history;
mod shard;
mod uses;

pub(crate) use sample::thinner;

use crate::arena::{LOAD_STEP_PARTS, LoadPressure, MemoryBudget, NoRoom};
use crate::huge::{
    self, DecompressedValue, HugeTable, HugeTables, LongValueCompression, TRIES, memory_full_error,
};
use bucket_block::SHARDS_MAX;
pub use bucket_block::{expect_bucket_format, read_bucket_block};
pub use classes::ClassBounds;
pub use departures::{Departure, DepartureCause, EvictionObserver};
use encodings::EncodedValue;
pub use eviction::EvictionGoal;
use key::{HashSeeds, Key};
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use recoding::Recoding;
use row::KeyBuffer;
use seed_history::SeedHistory;
use shard::{HashShard, PreparedValues, ShardCapacity, VisitFailure};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use todana_core::{
    BoundedEngine, EncodingStatus, Engine, EngineStatus, Error, ErrorKind, ImagedEngine, MemoryLimit, Record,
    RecordLoad, RecordSample, Result, ScanOrder, ScanPosition, SharedBytes, SweepableEngine, UnixSeconds,
    ValueBuffer, Visitor, WhenFull,
};

/// The options of a [`MemHash`].
#[derive(Clone, Debug)]
pub struct MemHashOptions {
    /// The hash seed. With `None` the seed is random, which protects against keys that were chosen
    /// to collide.
    pub seed: Option<u64>,
    /// The number of shards, rounded up to a power of two, at most 4096; `None` means 16. Each
    /// shard costs about 50 KiB of partly filled pages; more shards let more threads write at once.
    pub shards: Option<usize>,
    /// The memory limit.
    pub limit: MemoryLimit,
    /// Upper bounds of the size classes by which `status` counts records, ascending. The size of a
    /// record is key + value + 4 if it has flags.
    pub class_bounds: Vec<u32>,
    /// The maximum number of records, independent of the memory limit. It is meant for simulations
    /// and tests that compare eviction at equal counts. Each shard holds an equal part, so the
    /// maximum must be at least the number of shards. At the maximum, a new record evicts another
    /// by the same rule as when memory is scarce.
    pub capacity_records: Option<u64>,
    /// The maximum of the plain sizes of all records together (key, value, and 4 bytes for flags),
    /// for simulations like `capacity_records`. A new record evicts as many others as needed.
    pub capacity_bytes: Option<u64>,
    /// The purpose of evictions.
    pub evict_for: EvictionGoal,
    /// The observer, which is notified of each evicted record.
    pub observer: Option<Arc<dyn EvictionObserver>>,
    /// Trains dictionaries and key shapes, and stores records with them. Compresses long values
    /// that are not in use. [`Engine::maintain`] does this work.
    pub compresses: bool,
}

impl Default for MemHashOptions {
    fn default() -> Self {
        MemHashOptions {
            seed: None,
            shards: None,
            limit: MemoryLimit { bytes: None, when_full: WhenFull::Evict },
            class_bounds: Vec::new(),
            capacity_records: None,
            capacity_bytes: None,
            evict_for: EvictionGoal::default(),
            observer: None,
            compresses: true,
        }
    }
}

/// A value whose alignment keeps the locks of neighbouring shards in separate cache lines.
#[repr(align(128))]
struct PaddedShard(RwLock<HashShard>);

/// The compact hash in memory.
///
/// ```
/// use todana_core::{Action, Attributes, Engine, Record, Visitor};
/// use todana_engine::{MemHash, MemHashOptions};
///
/// struct Set<'a>(&'a [u8]);
/// impl Visitor for Set<'_> {
///     fn visit<'a>(&'a mut self, _old: Option<Record<'a>>) -> Action<'a> {
///         Action::Put(Record::new(self.0, Attributes::default()))
///     }
/// }
///
/// let hash = MemHash::new(MemHashOptions::default())?;
/// hash.visit(b"hello", &mut Set(b"world"))?;
/// let mut found = Vec::new();
/// assert!(hash.view(b"hello", &mut |record| found.extend_from_slice(record.value))?);
/// assert_eq!(found, b"world");
/// # Ok::<(), todana_core::Error>(())
/// ```
pub struct MemHash {
    shards: Box<[PaddedShard]>,
    shard_bits: u32,
    seeds: SeedHistory,
    budget: Arc<MemoryBudget>,
    /// True if there is a capacity in records or in bytes.
    has_capacity: bool,
    /// The next shard on which maintenance or eviction works.
    next_shard: AtomicUsize,
    /// The number of uses that could not be noted.
    uses_dropped: AtomicU64,
    /// The memory that was committed after the last compaction for a load.
    load_compacted_to: AtomicU64,
    recoding: Recoding,
    long_values: LongValueCompression,
}

/// The minimum number of bytes that one eviction frees, so that not every write has to evict.
const EVICTION_STEP: usize = 8 << 10;

impl MemHash {
    /// Creates an empty hash. Fails with `Invalid` if there are too many shards, or if the capacity
    /// is below one record per shard.
    pub fn new(options: MemHashOptions) -> Result<MemHash> {
        let bounds = Arc::new(ClassBounds::new(options.class_bounds));
        let count = options.shards.unwrap_or(16).clamp(1, SHARDS_MAX + 1).next_power_of_two();
        if count > SHARDS_MAX {
            return Err(Error::new(ErrorKind::Invalid, format!("more than {SHARDS_MAX} shards")));
        }
        let capacity = options.capacity_records.unwrap_or(u64::MAX);
        if capacity < count as u64 {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("a capacity below {count} records, one a shard"),
            ));
        }
        let history = SeedHistory::new(options.seed.unwrap_or_else(random_seed), count.trailing_zeros());
        let seeds = history.current().seeds;
        let budget = Arc::new(MemoryBudget::new(options.limit));
        let shard = |index: usize| {
            let records = capacity / count as u64 + u64::from((index as u64) < capacity % count as u64);
            let capacity = ShardCapacity {
                records: options.capacity_records.map(|_| records),
                bytes: options.capacity_bytes.map(|bytes| bytes / count as u64),
            };
            let (budget, bounds) = (Arc::clone(&budget), Arc::clone(&bounds));
            PaddedShard(RwLock::new(HashShard::new(
                (index as u32, count.trailing_zeros()),
                seeds,
                budget,
                bounds,
                capacity,
                options.evict_for,
                options.observer.clone(),
            )))
        };
        Ok(MemHash {
            shards: (0..count).map(shard).collect(),
            shard_bits: count.trailing_zeros(),
            seeds: history,
            budget: Arc::clone(&budget),
            has_capacity: options.capacity_records.or(options.capacity_bytes).is_some(),
            next_shard: AtomicUsize::new(0),
            uses_dropped: AtomicU64::new(0),
            load_compacted_to: AtomicU64::new(0),
            recoding: Recoding::new(options.compresses),
            long_values: LongValueCompression::new(options.compresses, budget),
        })
    }

    /// Compresses all long values that no one reads or writes meanwhile, and decompresses those
    /// that were read twice since the last round. [`Engine::maintain`] does the same with long
    /// rests.
    pub fn compress_long_values(&self) {
        self.long_values.run(self);
    }

    /// Returns the largest number of bytes that a single write has moved. Tests and benchmarks
    /// check that this number is bounded.
    pub fn worst_moved_bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.0.read().worst_moved()).max().unwrap_or(0)
    }

    /// Does what [`Engine::view`] does for the exclusive owner of the hash: without a lock, and
    /// inlined into the caller, so that the processor overlaps the memory accesses of consecutive
    /// reads.
    #[inline]
    pub fn view_mut<T>(&mut self, key: &[u8], see: impl FnOnce(Record<'_>) -> T) -> Option<T> {
        let key = Key::new(key, self.seeds());
        let index = self.index_of(key.hash);
        let attends = self.may_note_use(&key);
        let shard = self.shards[index].0.get_mut();
        let see = |record: Record<'_>| record.with_plain_value(see);
        if !attends {
            return shard.view(&key, see);
        }
        let (seen, is_full) = shard.view_and_note_use(&key, see);
        if is_full {
            shard.enter_noted_uses();
        }
        seen
    }

    /// Does what [`Engine::visit`] does for the exclusive owner of the hash: without a lock. The
    /// errors are the same.
    #[inline]
    pub fn visit_mut(&mut self, key: &[u8], visitor: &mut dyn Visitor) -> Result<()> {
        let key = Key::new(key, self.seeds());
        let index = self.index_of(key.hash);
        let shard = self.shards[index].0.get_mut();
        shard.enter_noted_uses();
        let prepared = PreparedValues { encodes_here: true, ..PreparedValues::default() };
        let outcome = shard.visit(&key, visitor, false, &prepared);
        drop(shard.huge.take_removed());
        match outcome {
            Ok(()) => Ok(()),
            Err(VisitFailure::Error(error)) => Err(error),
            // Freeing memory is rare and needs all shards. No other thread holds their locks.
            Err(_) => self.visit(key.text, visitor),
        }
    }

    #[inline]
    fn seeds(&self) -> &HashSeeds {
        &self.seeds.current().seeds
    }

    /// Hashes a key and locks its shard for reading.
    #[inline]
    fn read_shard<'k>(&self, text: &'k [u8]) -> (Key<'k>, RwLockReadGuard<'_, HashShard>) {
        loop {
            let key = Key::new(text, self.seeds());
            let shard = self.shard_of(key.hash).read();
            if !shard.is_outdated(&key) {
                return (key, shard);
            }
        }
    }

    /// Returns true if reads of this key must be noted for statistics or eviction.
    #[inline]
    fn may_note_use(&self, key: &Key<'_>) -> bool {
        self.budget.may_note_use(key.hash) || self.has_capacity
    }

    #[inline]
    fn index_of(&self, hash: u64) -> usize {
        bucket_block::shard_of(hash, self.shard_bits) as usize
    }

    #[inline]
    fn shard_of(&self, hash: u64) -> &RwLock<HashShard> {
        &self.shards[self.index_of(hash)].0
    }

    /// Compacts all shards until `bytes` more fit into the memory limit. Returns false if they
    /// still do not fit.
    fn pack_shards(&self, bytes: usize) -> bool {
        for shard in &self.shards {
            let mut shard = MemHash::lock_exclusive(&shard.0);
            while !self.budget.fits(bytes as u64) && shard.pack() {}
        }
        self.budget.fits(bytes as u64)
    }

    /// Locks a shard for writing and enters the uses that readers have noted.
    #[inline]
    fn lock_exclusive(shard: &RwLock<HashShard>) -> RwLockWriteGuard<'_, HashShard> {
        let mut shard = shard.write();
        shard.enter_noted_uses();
        shard
    }

    /// Changes a shard under its lock. Drops removed huge values after releasing the lock.
    #[inline]
    fn change<T>(shard: &RwLock<HashShard>, change: impl FnOnce(&mut HashShard) -> T) -> T {
        let mut shard = MemHash::lock_exclusive(shard);
        let outcome = change(&mut shard);
        let gone = shard.huge.take_removed();
        drop(shard);
        drop(gone);
        outcome
    }

    /// Evicts from all shards in turn until `bytes` more fit into the memory limit. Returns false
    /// if they still do not fit.
    fn make_room(&self, bytes: usize) -> bool {
        let mut idle_rounds = 0;
        while !self.budget.fits(bytes as u64) {
            let shard = self.next_shard.fetch_add(1, Ordering::Relaxed) % self.shards.len();
            if MemHash::change(&self.shards[shard].0, |shard| shard.evict(EVICTION_STEP)) == 0 {
                idle_rounds += 1;
                if idle_rounds > 2 * self.shards.len() {
                    return self.budget.fits(bytes as u64);
                }
            } else {
                idle_rounds = 0;
            }
        }
        true
    }

    /// Frees memory for a record that needs `bytes` more, if the limit permits eviction and
    /// eviction can suffice.
    fn try_make_room(&self, bytes: usize, attempt: usize) -> bool {
        if self.budget.refuses() {
            return self.pack_shards(bytes);
        }
        bytes as u64 <= self.budget.record_max() && self.make_room(bytes + attempt * EVICTION_STEP)
    }

    /// Does a step of evicting, compacting and returning memory. Returns true if more work is
    /// waiting.
    fn maintain_memory(&self) -> bool {
        if !self.budget.fits(0) && !self.budget.refuses() {
            let shard = self.next_shard.fetch_add(1, Ordering::Relaxed) % self.shards.len();
            let freed =
                MemHash::change(&self.shards[shard].0, |shard| shard.evict_in_background(EVICTION_STEP));
            return freed > 0 || self.shards.iter().any(|shard| shard.0.read().records() > 0);
        }
        // If the hash has become empty, all records are sampled again, instead of for example one
        // in a thousand.
        if self.budget.sample_mask() != 0 && self.shards.iter().all(|shard| shard.0.read().records() == 0) {
            self.budget.widen_sample();
        }
        for _ in 0..self.shards.len() {
            let shard = self.next_shard.load(Ordering::Relaxed) % self.shards.len();
            let mut locked = MemHash::lock_exclusive(&self.shards[shard].0);
            let emptied = locked.clear_if_empty();
            let has_more = emptied.is_some() || locked.maintain();
            drop(locked);
            if has_more {
                return true;
            }
            self.next_shard.fetch_add(1, Ordering::Relaxed);
        }
        false
    }

    /// Shows the records of one bucket from the position `place` on, in order. Returns the position
    /// after the bucket or after the last record shown. The second result is `Break` if `see` has
    /// ended the scan.
    fn scan_bucket(
        &self,
        place: u64,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> (Option<u64>, ControlFlow<()>) {
        let shard_bits = self.shard_bits;
        let (shard, hash) = bucket_block::hash_of(place, shard_bits);
        let guard = self.shards[shard].0.read();
        let mut rows = Vec::new();
        let (bytes, bits) = guard.list_bucket(hash, &mut rows);
        let place_of = |row| bucket_block::place_of(guard.complete_hash(bytes, row), shard_bits);
        let mut list: Vec<(u64, usize)> =
            rows.iter().enumerate().map(|(index, row)| (place_of(row), index)).collect();
        list.retain(|&(other, _)| other >= place);
        list.sort_unstable();
        let mut buffer = KeyBuffer::default();
        for (index, &(shown, row)) in list.iter().enumerate() {
            // Records with the same position are shown without interruption, because a scan could
            // not resume between them.
            let is_last_of_place = list.get(index + 1).is_none_or(|&(next, _)| next != shown);
            if guard.view_row(bytes, &rows[row], &mut buffer, see).is_break() && is_last_of_place {
                return (shown.checked_add(1), ControlFlow::Break(()));
            }
        }
        let last = bucket_block::last_place(place, shard_bits, bits);
        (last.checked_add(1), ControlFlow::Continue(()))
    }
}

impl Engine for MemHash {
    #[inline]
    fn view(&self, key: &[u8], see: &mut dyn FnMut(Record<'_>)) -> Result<bool> {
        huge::view_plain(see, |see| self.view_shared(key, true, see))
    }

    fn peek(&self, key: &[u8], see: &mut dyn FnMut(Record<'_>)) -> Result<bool> {
        huge::view_plain(see, |see| self.view_shared(key, false, see))
    }

    #[inline]
    fn view_shared(&self, key: &[u8], counts: bool, see: &mut dyn FnMut(Record<'_>)) -> Result<bool> {
        let (key, shard) = self.read_shard(key);
        if !counts || !self.may_note_use(&key) {
            return Ok(shard.view(&key, see).is_some());
        }
        let (seen, is_full) = shard.view_and_note_use(&key, see);
        drop(shard);
        if is_full {
            match self.shard_of(key.hash).try_write() {
                Some(mut shard) => shard.enter_noted_uses(),
                // The thread that holds the lock enters the noted uses. The use by this read is
                // lost.
                None => drop(self.uses_dropped.fetch_add(1, Ordering::Relaxed)),
            }
        }
        Ok(seen.is_some())
    }

    fn visit(&self, key: &[u8], visitor: &mut dyn Visitor) -> Result<()> {
        let mut attempt = 0;
        let mut prepared = PreparedValues::default();
        while attempt < TRIES {
            let key = Key::new(key, self.seeds());
            let visited = MemHash::change(self.shard_of(key.hash), |shard| {
                (!shard.is_outdated(&key)).then(|| shard.visit(&key, visitor, attempt > 0, &prepared))
            });
            let NoRoom { bytes } = match visited {
                // The key is hashed again.
                None => continue,
                Some(Ok(())) => return Ok(()),
                Some(Err(VisitFailure::Error(error))) => return Err(error),
                Some(Err(VisitFailure::NoRoom(no_room))) => no_room,
                Some(Err(VisitFailure::Compressed(value))) => {
                    prepared.decompressed = Some(DecompressedValue::new(value));
                    continue;
                }
                Some(Err(VisitFailure::Unencoded(value, encodings))) => {
                    prepared.encoded = Some(EncodedValue::new(value, encodings));
                    continue;
                }
            };
            if !self.try_make_room(bytes, attempt) {
                break;
            }
            attempt += 1;
        }
        Err(memory_full_error())
    }

    fn wait_for_visits(&self) {
        self.shards.iter().for_each(|shard| drop(shard.0.write()));
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
        let mut place = from.map_or(0, |place| place.number());
        loop {
            let (next, flow) = self.scan_bucket(place, see);
            match next {
                None => return Ok(None),
                Some(next) if flow.is_break() => return Ok(Some(ScanPosition::Number(next))),
                Some(next) => place = next,
            }
        }
    }

    fn clear(&self, cleared: &mut dyn FnMut()) -> Result<()> {
        // All shards are locked at once, so that no write reaches one shard before the others are
        // cleared. No other lock is taken while these are held.
        let mut shards: Vec<_> = self.shards.iter().map(|shard| MemHash::lock_exclusive(&shard.0)).collect();
        let gone: Vec<_> = shards.iter_mut().map(|shard| shard.clear()).collect();
        self.budget.widen_sample();
        self.load_compacted_to.store(0, Ordering::Relaxed);
        cleared();
        drop(shards);
        drop(gone);
        Ok(())
    }

    fn status(&self) -> EngineStatus {
        let mut status = EngineStatus { committed_bytes: self.budget.committed(), ..EngineStatus::default() };
        for shard in &self.shards {
            shard.0.read().add_to(&mut status);
        }
        status.uses_dropped = self.uses_dropped.load(Ordering::Relaxed);
        let EncodingStatus { key_shapes, dictionaries, dictionary_bytes, .. } = self.recoding.status();
        status.encoding = EncodingStatus { key_shapes, dictionaries, dictionary_bytes, ..status.encoding };
        status
    }

    fn sample_records(&self) -> RecordSample {
        let mut survey = RecordSample::default();
        for shard in &self.shards {
            shard.0.read().survey(&mut survey);
        }
        survey
    }

    fn scan_order(&self) -> Option<ScanOrder> {
        let groups = self.shards.iter().map(|shard| shard.0.read().directory.len() as u64).sum();
        Some(ScanOrder { seed: self.seeds.current().seed, groups })
    }

    fn begin_ordered_load(&self, order: ScanOrder) {
        // Records that are ordered by another seed arrive in random order here, which needs no
        // preparation.
        if order.seed == self.seeds.current().seed {
            let buckets = usize::try_from(order.groups / self.shards.len() as u64).unwrap_or(usize::MAX);
            self.shards.iter().for_each(|shard| shard.0.write().expect(buckets));
        }
    }

    fn end_ordered_load(&self) {
        self.shards.iter().for_each(|shard| shard.0.write().buckets_min = 1);
        self.budget.end_preparation();
    }

    #[inline]
    fn prefetch(&self, key: &[u8]) {
        let key = Key::new(key, self.seeds());
        // If the shard is locked for writing, the writer loads the cache lines anyway.
        if let Some(shard) = self.shard_of(key.hash).try_read() {
            shard.prefetch(&key);
        }
    }

    fn maintain(&self) -> bool {
        let has_more = self.maintain_memory();
        if self.recode_step(true) {
            return true;
        }
        // Both kinds of compression together take no more of the processor than one.
        if !self.recoding.is_at_work() {
            self.long_values.step(self);
        }
        has_more
    }

    fn recode(&self) {
        self.recode_at_once(LoadPressure::None);
    }

    fn buffer(&self, len: usize) -> Result<Box<dyn ValueBuffer>> {
        huge::open(&self.budget, len, &|bytes| self.pack_shards(bytes))
    }

    fn room<'b>(&self, buffer: &'b mut dyn ValueBuffer, len: usize) -> Result<&'b mut [u8]> {
        huge::room(&self.budget, buffer, len, &|bytes, attempt| self.try_make_room(bytes, attempt))
    }

    fn bounded(&self) -> Option<&dyn BoundedEngine> {
        Some(self)
    }

    fn sweepable(&self) -> Option<&dyn SweepableEngine> {
        Some(self)
    }

    fn imaged(&self) -> Option<&dyn ImagedEngine> {
        Some(self)
    }
}

impl HugeTables for MemHash {
    fn table_count(&self) -> usize {
        self.shards.len()
    }

    fn view_table(&self, table: usize, see: &mut dyn FnMut(&HugeTable)) {
        see(&self.shards[table].0.read().huge);
    }

    fn change_table(&self, table: usize, change: &mut dyn FnMut(&mut HugeTable)) {
        MemHash::change(&self.shards[table].0, |shard| change(&mut shard.huge));
    }
}

impl BoundedEngine for MemHash {
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
        let pressure = self.budget.pressure_of_part(load);
        if pressure == LoadPressure::None {
            return;
        }
        self.recode_at_once(pressure);
        // Once records are evicted, a load has already lost some. This one follows a master.
        if !self.budget.notes_uses() {
            self.long_values.compress_for_load(self);
        }
        let is_near_limit = || self.budget.load_pressure(load) == LoadPressure::NearLimit;
        // Once records are evicted, sparse memory is compacted together with that. Compaction reads
        // directories, so it is not repeated for each part.
        let step = self.budget.limit().bytes.map_or(0, |limit| limit / LOAD_STEP_PARTS);
        let due_at = self.load_compacted_to.load(Ordering::Relaxed).saturating_add(step);
        if is_near_limit() && self.budget.committed() > due_at && !self.budget.notes_uses() {
            for shard in &self.shards {
                while is_near_limit() && MemHash::lock_exclusive(&shard.0).compact_sparse() {}
            }
            self.load_compacted_to.store(self.budget.committed(), Ordering::Relaxed);
        }
    }

    fn is_near_limit(&self) -> bool {
        self.budget.is_tight()
    }

    fn set_time(&self, now: UnixSeconds) {
        self.budget.set_time(now);
    }
}

/// Returns a random number from the keys of the standard library's hasher, which come from the
/// system's random source.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}

const _: fn() = || {
    fn is_shareable<T: Send + Sync>() {}
    is_shareable::<MemHash>();
    is_shareable::<SharedBytes>();
};
