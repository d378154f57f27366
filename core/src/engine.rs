//! Defines the [`Engine`] trait, through which records are read, scanned, and changed by visitors.

use crate::{
    Attributes, CheckpointedEngine, DurableEngine, Error, ErrorKind, Expiry, ImagedEngine, IndexedEngine,
    NumberedEngine, OrderedEngine, Record, Result, SharedBytes, UnixSeconds,
};
use std::any::Any;
use std::ops::{AddAssign, ControlFlow};
use std::sync::Arc;

/// The change that a visitor requests after it was shown a record.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action<'a> {
    /// Leave the record as it is.
    Keep,
    /// Store this record in place of the old one.
    Put(Record<'a>),
    /// Keep the value and replace the attributes. A touch, a first version and a mark use this.
    /// Does nothing if the record is absent.
    Retag(Attributes),
    /// Remove the record; does nothing if it is absent.
    Remove,
}

/// A pure step from the old record to an action. Every write passes through a visitor.
///
/// An engine runs `visit` atomically on the record. If something changed, it then runs `applied`
/// under the same lock. An engine that retries may run `visit` again, so a visitor must overwrite
/// its outcome and must not accumulate.
pub trait Visitor {
    /// Decides on the action from the stored record.
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a>;

    /// Returns true if the visitor stores or removes a record regardless of the old record. If the
    /// old record is damaged, such a visitor is shown no record and its action is applied. Any
    /// other visit to a damaged record fails with `Corrupt`.
    fn overwrites(&self) -> bool {
        false
    }

    /// Returns true if the visitor needs only the length of the old value. An engine asks under the
    /// record's lock. It may then show a value that it has neither read from memory nor checked for
    /// damage, because that read is the most expensive part of a write.
    fn ignores_value(&self) -> bool {
        false
    }

    /// Returns true if the visitor reads the bytes of a long value only through [`Record::shared`],
    /// in `visit` and in `applied`. An engine need not decompress such a value then. It shows a
    /// value of the same length in its place.
    fn reads_shared(&self) -> bool {
        false
    }

    /// Returns true if the visitor does the same whether there is a record or not. An engine need
    /// not look for the record then, and may call `visit` and `applied` as if there were none.
    fn ignores_record(&self) -> bool {
        false
    }

    /// Returns true if the visitor is shown a list of values as it is stored. Other visitors are
    /// shown the first value. Engines ignore this.
    fn sees_value_list(&self) -> bool {
        false
    }

    /// Called once after a `Put`, `Retag` or `Remove` of an existing record has been applied. `now`
    /// is the record that is then stored, or `None` after a removal. Not called for `Keep`.
    fn applied(&mut self, now: Option<Record<'_>>) {
        let _ = now;
    }
}

/// The position at which a scan continues after a pause. Only the engine that returned the position
/// can interpret it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScanPosition {
    /// A number in the engine's own order.
    Number(u64),
    /// Two numbers in the engine's own order ([`Engine::read_all`]).
    Pair(u64, u64),
    /// The first key at or after this key.
    Key(Arc<[u8]>),
}

impl ScanPosition {
    /// Returns the number, or 0 for any other position.
    pub fn number(&self) -> u64 {
        match self {
            ScanPosition::Number(number) => *number,
            ScanPosition::Pair(..) | ScanPosition::Key(_) => 0,
        }
    }
}

/// The state of a read from the disk that a request waits for ([`Engine::await_read`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordRead {
    /// The request can be executed now. It may still wait for the disk.
    Ready,
    /// The read has this number among those of the thread.
    Started(u64),
    /// The read can only start later, when others are complete.
    Delayed,
}

/// The parameters that determine the order of an engine's scans. An engine of the same kind loads
/// records much faster if they come in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanOrder {
    /// The secret seed of the engine's hash.
    pub seed: u64,
    /// The number of groups into which the engine divides its records.
    pub groups: u64,
}

/// The contents of an engine in numbers, for statistics. An engine returns its status without a
/// scan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineStatus {
    /// Stored records, including expired ones that have not been removed yet.
    pub records: u64,
    /// Bytes of the records as stored: headers, packed keys and values.
    pub live_bytes: u64,
    /// Bytes of memory reserved from the system for the records, for the index, and for space that
    /// is not used yet.
    pub committed_bytes: u64,
    /// Records evicted since the start.
    pub evictions: u64,
    /// The part of `evictions` whose records had an expiry.
    pub evictions_with_expiry: u64,
    /// The part of `evictions` that made room for a write and not for maintenance.
    pub evictions_by_writes: u64,
    /// The part of `evictions` whose records had never been read. The number is exact while the
    /// engine's sample ([`RecordSample`]) contains all records. Otherwise each evicted record of
    /// the sample is counted exactly, and each other evicted record adds the share of unread
    /// records in the sample.
    pub evicted_unfetched: u64,
    /// Expired records that were removed first, before any eviction, when room was needed.
    pub reclaimed: u64,
    /// Expired records that had never been read when they were removed, for any reason. Counted
    /// like `evicted_unfetched`.
    pub expired_unfetched: u64,
    /// Records that existed when the engine was cleared. Engines on disk do not count them.
    pub cleared: u64,
    /// Eviction candidates that were kept because they had been used for the first time.
    pub promotions: u64,
    /// Eviction candidates that were kept because they had been used again.
    pub second_chances: u64,
    /// The number of records by plain size ([`SizeClass`]). There is one class for each bound given
    /// at construction, and one class for all larger records.
    pub classes: Vec<SizeClass>,
    /// The index that finds the records.
    pub index: IndexStatus,
    /// Uses of records that were not noted since the start, because the lock of the record was
    /// held.
    pub uses_dropped: u64,
    /// Blocks that were moved since the start so that sparsely used memory could be released.
    pub blocks_moved: u64,
    /// Steps of moving blocks since the start. Each step emptied a page or a part of a larger
    /// region.
    pub pages_emptied: u64,
    /// The dictionaries and key shapes with which records are stored.
    pub encoding: EncodingStatus,
}

impl EngineStatus {
    /// Returns the bytes of the records if none of them were encoded. Engines on disk do not count
    /// these, so the bytes as stored are returned for them.
    pub fn plain_bytes(&self) -> u64 {
        let of_classes = self.classes.iter().map(|class| class.plain_bytes).sum::<u64>();
        let EncodingStatus { compressed_plain_bytes, compressed_stored_bytes, .. } = self.encoding;
        of_classes.max(self.live_bytes + compressed_plain_bytes.saturating_sub(compressed_stored_bytes))
    }
}

/// The dictionaries and key shapes with which an engine stores records. The effect shows in the
/// difference between [`EngineStatus::live_bytes`] and the plain sizes of the classes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EncodingStatus {
    /// Key shapes.
    pub key_shapes: u64,
    /// Dictionaries, including those that only older records need.
    pub dictionaries: u64,
    /// Bytes of memory that the dictionaries take.
    pub dictionary_bytes: u64,
    /// Long values that are compressed in chunks.
    pub compressed_values: u64,
    /// Bytes of these values before compression.
    pub compressed_plain_bytes: u64,
    /// Bytes of these values as they are stored.
    pub compressed_stored_bytes: u64,
}

/// The state of an engine's index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexStatus {
    /// Buckets of the hash.
    pub buckets: u64,
    /// Bytes of memory that the index uses.
    pub bytes: u64,
    /// True if the index has grown within the last second or two.
    pub is_growing: bool,
}

/// The records of one size class. The plain size of a record is the length of key and value, plus 4
/// if the record has flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SizeClass {
    /// The number of records.
    pub records: u64,
    /// The sum of the plain sizes of these records.
    pub plain_bytes: u64,
}

impl AddAssign for SizeClass {
    fn add_assign(&mut self, other: SizeClass) {
        self.records += other.records;
        self.plain_bytes += other.plain_bytes;
    }
}

/// A sample of an engine's records, chosen by the hash of their keys. The sample contains up to a
/// few thousand records. If the engine has fewer records, it contains all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordSample {
    /// The records, in no particular order.
    pub records: Vec<SampledRecord>,
}

/// A record of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampledRecord {
    /// The length of key and value, plus 4 if the record has flags.
    pub plain_size: u64,
    /// Seconds since the last use of the record.
    pub idle_s: u64,
    /// True if the record was used, so that the next eviction keeps it.
    pub is_kept: bool,
}

/// A store of records by key. Many threads may call all methods at the same time.
pub trait Engine: Send + Sync {
    /// Shows the record of `key` to `see` if the record exists, and returns true if it does. `see`
    /// runs under a lock: it must be brief and must not call the engine.
    fn view(&self, key: &[u8], see: &mut dyn FnMut(Record<'_>)) -> Result<bool>;

    /// Does the same as `view`, but does not count as a use of the record for eviction.
    fn peek(&self, key: &[u8], see: &mut dyn FnMut(Record<'_>)) -> Result<bool> {
        self.view(key, see)
    }

    /// Does the same as `view`, or as `peek` if `counts` is false, for a reader that reads the
    /// bytes of a long value only through [`Record::shared`]. An engine need not decompress such a
    /// value then. It shows a value of the same length in its place.
    ///
    /// `view` and `peek` decompress such a value after releasing the lock, and then call `see`.
    fn view_shared(&self, key: &[u8], counts: bool, see: &mut dyn FnMut(Record<'_>)) -> Result<bool> {
        if counts { self.view(key, see) } else { self.peek(key, see) }
    }

    /// Runs the visitor atomically on the record of `key`. Fails with `Full` if the memory limit
    /// leaves no room; the old record then stays. Fails with `Invalid` if the key or value is
    /// longer than any engine supports.
    fn visit(&self, key: &[u8], visitor: &mut dyn Visitor) -> Result<()>;

    /// Returns when every visit that began before the call has ended.
    fn wait_for_visits(&self);

    /// Shows every record from position `from` (`None`: the start), until `see` breaks or the last
    /// record was shown. Returns the position at which to continue, or `None` at the end. A record
    /// that exists during the entire scan is shown at least once, even if others write meanwhile.
    /// Locks are held only over small groups of records.
    fn scan(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>>;

    /// Does the same as `scan`, for a reader that reads the bytes of a long value only through
    /// [`Record::shared`] (see `view_shared`).
    fn scan_shared(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        self.scan(from, see)
    }

    /// Does the same as `scan`, but skips damaged records. `scan` fails with `Corrupt` at a damaged
    /// record.
    fn scan_skipping_damaged(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        self.scan(from, see)
    }

    /// Does the same as `scan`, but in the order in which all records are read fastest. A record
    /// that is changed or moved meanwhile may be shown again, as it is then, so this suits callers
    /// that read all records and do not change them. The positions are not those of `scan`. The
    /// method may return a position even if `see` has not ended the read, so that callers get a
    /// pause.
    fn read_all(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        self.scan(from, see)
    }

    /// Removes all records and releases their memory. `cleared` is called once, after all records
    /// were removed and before any record can be written again. It must be brief and must not call
    /// the engine.
    fn clear(&self, cleared: &mut dyn FnMut()) -> Result<()>;

    /// Returns the current contents in numbers.
    fn status(&self) -> EngineStatus;

    /// Returns a sample of the records. The call reads a few thousand records, so it suits
    /// statistics but not a task that runs often.
    fn sample_records(&self) -> RecordSample {
        RecordSample::default()
    }

    /// Returns the order of the engine's scans, if that order is fixed.
    fn scan_order(&self) -> Option<ScanOrder> {
        None
    }

    /// Prepares an empty engine for records that come in this order, until `end_ordered_load` is
    /// called. A caller that loads records in the order of an engine with the same seed must call
    /// this method.
    fn begin_ordered_load(&self, order: ScanOrder) {
        let _ = order;
    }

    /// Ends the load that `begin_ordered_load` began.
    fn end_ordered_load(&self) {}

    /// Announces a request for `key` within about a microsecond, so that the engine can prefetch
    /// the memory that the request will read.
    fn prefetch(&self, key: &[u8]) {
        let _ = key;
    }

    /// Announces requests for the records of `keys`, so that the engine can fetch all of them
    /// together: it prefetches the memory that the requests will read, and adds reads of records
    /// that are only on disk to those of this thread. The first request that needs one of them
    /// starts all of them and waits.
    fn prefetch_all(&self, keys: &[&[u8]]) {
        keys.iter().for_each(|key| self.prefetch(key));
    }

    /// Announces a request for the record of `key` that waits until the record has been read from
    /// the disk, while the thread has other work. Adds the read to those of this thread, unless
    /// `may_start` is false.
    fn await_read(&self, key: &[u8], may_start: bool) -> RecordRead {
        let _ = (key, may_start);
        RecordRead::Ready
    }

    /// Returns true if many records are only on disk, so that each request is worth announcing.
    fn has_cold_records(&self) -> bool {
        false
    }

    /// Does a bounded step of maintenance: moves up to about 64 KiB of blocks out of sparse pages
    /// and returns memory to the system. Returns true if more work is waiting. A background thread
    /// should call this method.
    fn maintain(&self) -> bool {
        false
    }

    /// Trains encodings and stores all records with them, if that is due. `maintain` does the same
    /// with long rests. Does nothing in an engine that stores records as they are.
    fn recode(&self) {}

    /// Creates a buffer for a long value of exactly `len` bytes, which is filled piece by piece and
    /// then stored without a copy. The buffer takes memory only as it is filled. Fails with `Full`
    /// if such a value would not fit, or would fit only after an eviction that the limit forbids.
    /// Fails with `Invalid` if the value is longer than the engine supports, or if the engine has
    /// no such buffers.
    fn buffer(&self, len: usize) -> Result<Box<dyn ValueBuffer>> {
        let _ = len;
        Err(Error::new(ErrorKind::Invalid, "this engine has no buffers"))
    }

    /// Returns the next piece of a buffer to write to: at least one byte, unless the buffer is
    /// full, and at most `len`. Evicts other records if there is no room.
    ///
    /// A caller that requests memory piece by piece is assumed to wait for a network. Such memory
    /// is bounded, so that stalled uploads do not evict stored records. A caller that already has
    /// the complete value must request all of it at once.
    ///
    /// Fails with `Full` if eviction does not help, and with `Busy` if other incoming values hold
    /// all memory of this bound. In both cases the buffer keeps its bytes. Fails with `Invalid` for
    /// the buffer of another engine.
    fn room<'b>(&self, buffer: &'b mut dyn ValueBuffer, len: usize) -> Result<&'b mut [u8]> {
        let _ = (buffer, len);
        Err(Error::new(ErrorKind::Invalid, "a buffer of another engine"))
    }

    /// Returns the interface for memory limits, if the engine supports limits.
    fn bounded(&self) -> Option<&dyn BoundedEngine> {
        None
    }

    /// Returns the interface for scans in the order of the keys, if the engine supports such scans.
    fn ordered(&self) -> Option<&dyn OrderedEngine> {
        None
    }

    /// Returns the interface for checkpoints of an update log, if the engine has checkpoints.
    fn checkpointed(&self) -> Option<&dyn CheckpointedEngine> {
        None
    }

    /// Returns the interface for indexes on columns, if the records are rows of columns.
    fn indexed(&self) -> Option<&dyn IndexedEngine> {
        None
    }

    /// Returns the interface for keys that are numbers, if all keys are.
    fn numbered(&self) -> Option<&dyn NumberedEngine> {
        None
    }

    /// Returns the interface for files, if the engine keeps its records in files.
    fn durable(&self) -> Option<&dyn DurableEngine> {
        None
    }

    /// Returns the interface for copying the engine's buckets as they are, if the engine has it.
    fn imaged(&self) -> Option<&dyn ImagedEngine> {
        None
    }

    /// Returns the interface for finding expired records at little cost, if the engine supports it.
    fn sweepable(&self) -> Option<&dyn SweepableEngine> {
        None
    }
}

/// The memory in which an engine collects one long value. The filled part counts toward the
/// engine's memory and is released on drop.
pub trait ValueBuffer: Any + Send {
    /// Returns the length of the complete value.
    fn len(&self) -> usize;

    /// Returns true if the value has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of bytes filled.
    fn filled(&self) -> usize;

    /// Marks the first `len` bytes of the piece last returned by [`Engine::room`] as written, and
    /// releases the other bytes of that piece.
    fn advance(&mut self, len: usize);

    /// Returns the value for storing. Bytes that were not filled are zero.
    fn into_shared(self: Box<Self>) -> SharedBytes;
}

/// The treatment of a write that does not fit into memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// Evict other records.
    #[default]
    Evict,
    /// Refuse the write with `Full` (memcached's `-M`).
    Refuse,
}

/// A memory limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryLimit {
    /// The bytes that the engine may hold; `None` for no limit.
    pub bytes: Option<u64>,
    /// The treatment of writes at the limit.
    pub when_full: WhenFull,
}

/// Describes the records that are about to be loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordLoad {
    /// The plain size of all records of the load, as far as it is known.
    pub all_bytes: u64,
    /// The plain size of the part that comes next, and of those that other threads load meanwhile,
    /// unless they have less than 256 KiB each.
    pub next_bytes: u64,
}

/// An engine that can obey a memory limit.
pub trait BoundedEngine {
    /// Sets the limit. If the new limit is lower, `maintain` shrinks the engine step by step.
    fn set_limit(&self, limit: MemoryLimit);

    /// Returns the limit that was set, even while it is raised.
    fn limit(&self) -> MemoryLimit;

    /// Raises the limit to this number of bytes, until `set_limit` is called.
    fn raise_limit(&self, bytes: u64);

    /// Stores the records in fewer bytes, if the engine can do so and they would not fit into the
    /// limit otherwise. Does at once what `maintain` does with long rests. Returns soon if there is
    /// nothing to do. A caller that loads many records, on several threads perhaps, must call this
    /// method before each part of them, so that no record is evicted or refused that has fitted
    /// before.
    fn compress_for_load(&self, load: RecordLoad);

    /// Returns true if memory use is near the limit, so that the memory for a new record must come
    /// from another record.
    fn is_near_limit(&self) -> bool;

    /// Sets the current time, so that expired records are evicted first. Must be called about once
    /// a second.
    fn set_time(&self, now: UnixSeconds);
}

/// An engine that can find expired records by a pass over all records, at a cost of about ten
/// nanoseconds per record.
///
/// This is weaker than [`Engine::scan`]: a record may be visited twice or, if the engine grows or
/// shrinks meanwhile, not at all. Repeated passes find every expired record eventually.
pub trait SweepableEngine: Send + Sync {
    /// Continues a pass at `from` (`None`: the start) over about `records_max` records. Calls
    /// `is_over` with the expiry of each record that has an expiry, and removes the record if the
    /// result is true.
    /// For records that are stored together, the pass may first call `is_over` once with a time
    /// that is not later than any of their expiries. It skips all of them if the result is false.
    /// `is_over` may be called twice for one record. It runs under locks, which are held for some
    /// tens of records at a time. `aim` determines how removals are counted.
    fn sweep(
        &self,
        from: Option<ScanPosition>,
        records_max: usize,
        aim: SweepAim,
        is_over: &mut dyn FnMut(Expiry) -> bool,
    ) -> Result<SweepProgress>;
}

/// The purpose of a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SweepAim {
    /// To remove records that no client can see any more.
    Tidiness,
    /// To make room for a write. The removals are counted as [`EngineStatus::reclaimed`], like
    /// those of an eviction.
    Room,
}

/// The result of one step of a sweep.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SweepProgress {
    /// The position at which to continue, or `None` after the last record.
    pub next: Option<ScanPosition>,
    /// Records visited.
    pub seen: u64,
    /// Records removed.
    pub removed: u64,
}
