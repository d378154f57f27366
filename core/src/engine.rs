//! The [`Engine`] trait: read a record, visit it, scan all records.

use crate::{
    Attributes, CheckpointedEngine, DurableEngine, Error, ErrorKind, Expiry, OrderedEngine, Record, Result,
    SharedBytes, UnixSeconds,
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
    /// Keep the value and replace the attributes, as for a touch, a first version or a mark. Does
    /// nothing if the record is absent.
    Retag(Attributes),
    /// Remove the record; does nothing if it is absent.
    Remove,
}

/// A pure step from the old record to an action. Every write passes through a visitor.
///
/// An engine runs `visit` atomically on the record. If something changed, it then runs `applied`
/// under the same lock. An engine that retries may run `visit` again, so a visitor overwrites its
/// outcome and never accumulates.
pub trait Visitor {
    /// Decides on the action from the stored record.
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a>;

    /// Returns true if the visitor stores or removes a record regardless of the old one. If the old
    /// record is damaged, such a visitor is shown no record and its action is applied; any other
    /// visit fails with `Corrupt`.
    fn overwrites(&self) -> bool {
        false
    }

    /// Returns true if the visitor needs only the length of the old value. An engine asks under the
    /// record's lock. It may then show a value that it has neither read from memory nor checked for
    /// damage, because that read is the most expensive part of a write.
    fn ignores_value(&self) -> bool {
        false
    }

    /// Called once after a `Put`, `Retag` or `Remove` of an existing record has been applied, with
    /// the record now stored (`None` after a removal). Not called for `Keep`.
    fn applied(&mut self, now: Option<Record<'_>>) {
        let _ = now;
    }
}

/// A position in a scan, between two calls. Only the engine that returned it can interpret it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScanPosition {
    /// A number in the engine's own order.
    Number(u64),
    /// At or after this key.
    Key(Arc<[u8]>),
}

impl ScanPosition {
    /// Returns the number; 0 for a position of an engine that scans by key.
    pub fn number(&self) -> u64 {
        match self {
            ScanPosition::Number(number) => *number,
            ScanPosition::Key(_) => 0,
        }
    }
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

/// The contents of an engine, for statistics. Reading it is cheap (no scan).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineStatus {
    /// Stored records, including expired ones that have not been removed yet.
    pub records: u64,
    /// Bytes of the records as stored: headers, packed keys and values.
    pub live_bytes: u64,
    /// Bytes of memory reserved from the system for the records, including the index and unused
    /// space.
    pub committed_bytes: u64,
    /// Records evicted since the start.
    pub evictions: u64,
    /// The part of `evictions` that had an expiry.
    pub evictions_with_expiry: u64,
    /// The part of `evictions` that made room for a write rather than for maintenance.
    pub evictions_by_writes: u64,
    /// The part of `evictions` that had never been read. Exact while all records are in the
    /// engine's sample ([`RecordSample`]). Otherwise sampled records are counted, and each other
    /// record adds the share found in the sample.
    pub evicted_unfetched: u64,
    /// Expired records that were removed first when room was needed.
    pub reclaimed: u64,
    /// Expired records, removed in any way, that had never been read. Counted like
    /// `evicted_unfetched`.
    pub expired_unfetched: u64,
    /// Records that existed when the engine was cleared. Engines on disk do not count them.
    pub cleared: u64,
    /// Eviction candidates that were kept because they had been used for the first time.
    pub promotions: u64,
    /// Eviction candidates that were kept because they had been used again.
    pub second_chances: u64,
    /// The number of records by plain size: one class for each bound given at construction, and one
    /// for all larger sizes.
    pub classes: Vec<SizeClass>,
    /// The index that finds the records.
    pub index: IndexStatus,
    /// Uses that were not recorded since the start because the record's lock was taken.
    pub uses_dropped: u64,
    /// Blocks moved since the start to release sparse memory.
    pub blocks_moved: u64,
    /// Steps of that work, each of which emptied a page or part of a larger region.
    pub pages_emptied: u64,
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

/// The records of one size class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SizeClass {
    /// The number of records.
    pub records: u64,
    /// The sum of their plain sizes: key + value + 4 if they carry flags.
    pub plain_bytes: u64,
}

impl AddAssign for SizeClass {
    fn add_assign(&mut self, other: SizeClass) {
        self.records += other.records;
        self.plain_bytes += other.plain_bytes;
    }
}

/// A sample of an engine's records, chosen by the hash of their keys. It contains at most some
/// thousand records, and all records if there are no more than that.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordSample {
    /// The records, in no particular order.
    pub records: Vec<SampledRecord>,
}

/// A record of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampledRecord {
    /// Key + value + 4 if it carries flags.
    pub plain_size: u64,
    /// Seconds since its last use.
    pub idle_s: u64,
    /// True if its use protects it from the next eviction.
    pub is_kept: bool,
}

/// A store of records by key. All methods may be called from many threads at once.
pub trait Engine: Send + Sync {
    /// Shows the record of `key` if it exists; returns true if it does. `see` runs under a lock: it
    /// must be brief and must not call the engine.
    fn view(&self, key: &[u8], see: &mut dyn FnMut(Record<'_>)) -> Result<bool>;

    /// Does the same as `view`, but does not count as a use of the record for eviction.
    fn peek(&self, key: &[u8], see: &mut dyn FnMut(Record<'_>)) -> Result<bool> {
        self.view(key, see)
    }

    /// Runs the visitor atomically on the record of `key`. Fails with `Full` if the memory limit
    /// leaves no room (the old record then stays), and with `Invalid` if the key or value is longer
    /// than any engine supports.
    fn visit(&self, key: &[u8], visitor: &mut dyn Visitor) -> Result<()>;

    /// Returns when every visit that began before the call has ended.
    fn wait_for_visits(&self);

    /// Shows every record from position `from` (`None`: the start), until `see` breaks or no record
    /// is left. Returns the position at which to continue, `None` at the end. A record that exists
    /// during the entire scan is shown at least once, whatever is written meanwhile. Locks are held
    /// only over small groups of records.
    fn scan(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>>;

    /// Does the same as `scan`, but skips damaged records, where `scan` fails with `Corrupt`.
    fn scan_skipping_damaged(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        self.scan(from, see)
    }

    /// Removes all records and releases their memory. `cleared` is called once, when no record is
    /// left and before any can be written again. It must be brief and must not call the engine.
    fn clear(&self, cleared: &mut dyn FnMut()) -> Result<()>;

    /// Returns the current contents in numbers.
    fn status(&self) -> EngineStatus;

    /// Returns a sample of the records. It reads some thousand records, so it suits statistics but
    /// not a periodic task.
    fn sample_records(&self) -> RecordSample {
        RecordSample::default()
    }

    /// Returns the order of the engine's scans, if that order is fixed.
    fn scan_order(&self) -> Option<ScanOrder> {
        None
    }

    /// Prepares an empty engine for records that come in this order, until `end_ordered_load` is
    /// called. A caller that loads records into an engine of the same seed must call it.
    fn begin_ordered_load(&self, order: ScanOrder) {
        let _ = order;
    }

    /// Ends the load that `begin_ordered_load` began.
    fn end_ordered_load(&self) {}

    /// Announces that `key` will be requested within about a microsecond.
    fn prefetch(&self, key: &[u8]) {
        let _ = key;
    }

    /// Does a bounded step of maintenance (moving blocks out of sparse pages, returning memory).
    /// Returns true if more work is waiting. Meant for a background thread; each call moves about
    /// 64 KiB at most.
    fn maintain(&self) -> bool {
        false
    }

    /// Creates a buffer for a long value of exactly `len` bytes, which is filled piece by piece and
    /// then stored without a copy. It takes memory only as it is filled. Fails with `Full` if the
    /// value could not be stored, or could not be stored without a forbidden eviction. Fails with
    /// `Invalid` if the value is longer than the engine supports, or if the engine has no such
    /// buffers.
    fn buffer(&self, len: usize) -> Result<Box<dyn ValueBuffer>> {
        let _ = len;
        Err(Error::new(ErrorKind::Invalid, "this engine has no buffers"))
    }

    /// Returns the next piece of a buffer to write to: at least one byte, unless the buffer is
    /// full, and at most `len`. Other records are evicted if there is no room.
    ///
    /// Memory requested piece by piece is assumed to wait for a network. It is bounded, so that
    /// stalled uploads do not evict stored records. A caller that already has the complete value
    /// requests all of it at once. Fails with `Full` if eviction does not help, with `Busy` if
    /// other incoming values hold all memory of this bound (in both cases the buffer keeps its
    /// bytes), and with `Invalid` for the buffer of another engine.
    fn room<'b>(&self, buffer: &'b mut dyn ValueBuffer, len: usize) -> Result<&'b mut [u8]> {
        let _ = (buffer, len);
        Err(Error::new(ErrorKind::Invalid, "a buffer of another engine"))
    }

    /// Returns the interface for memory limits, if the engine supports them.
    fn bounded(&self) -> Option<&dyn BoundedEngine> {
        None
    }

    /// Returns the interface for ordered scans, if the engine supports them.
    fn ordered(&self) -> Option<&dyn OrderedEngine> {
        None
    }

    /// Returns the interface for checkpoints of an update log, if the engine supports them.
    fn checkpointed(&self) -> Option<&dyn CheckpointedEngine> {
        None
    }

    /// Returns the interface for files, if the engine keeps its records in files.
    fn durable(&self) -> Option<&dyn DurableEngine> {
        None
    }

    /// Returns the interface for finding records by expiry in a cheap pass, if the engine supports
    /// it.
    fn sweepable(&self) -> Option<&dyn SweepableEngine> {
        None
    }
}

/// Memory of an engine for one long value that is still incomplete. The filled part counts toward
/// the engine's memory and is released on drop.
pub trait ValueBuffer: Any + Send {
    /// Returns the length of the complete value.
    fn len(&self) -> usize;

    /// Returns true if the value has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of bytes filled.
    fn filled(&self) -> usize;

    /// Marks `len` bytes of the piece last returned by [`Engine::room`] as written; the rest of
    /// that piece is released.
    fn advance(&mut self, len: usize);

    /// Returns the value for storing; unfilled bytes are zero.
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

/// An engine that can observe a memory limit.
pub trait BoundedEngine {
    /// Sets the limit. If it is lowered, `maintain` shrinks the engine below it step by step.
    fn set_limit(&self, limit: MemoryLimit);

    /// Returns the current limit.
    fn limit(&self) -> MemoryLimit;

    /// Returns true near the limit, where memory for one record must come from another.
    fn is_near_limit(&self) -> bool;

    /// Sets the current time, so that expired records are evicted first. Must be called about once
    /// a second.
    fn set_time(&self, now: UnixSeconds);
}

/// An engine that can pass over all records at about ten nanoseconds each to find expired ones.
///
/// This is weaker than [`Engine::scan`]: a record may be visited twice or, if the engine grows or
/// shrinks meanwhile, not at all. Repeated passes find every expired record eventually.
pub trait SweepableEngine: Send + Sync {
    /// Continues from `from` (`None`: the start) over about `records_max` records. Shows the expiry
    /// of each record that has one, and removes the records for which `is_over` returns true. For
    /// many records stored together it may first show one expiry that is no later than any of
    /// theirs, and skip them all if `is_over` returns false. `is_over` may be called twice for one
    /// record. Locks are held for some tens of records at a time, and `is_over` runs under them.
    /// `aim` determines how removals are counted.
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
    /// To make room for a write that found none: counted as [`EngineStatus::reclaimed`], like an
    /// eviction.
    Room,
}

/// The result of one step of a sweep.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SweepProgress {
    /// The position at which to continue; `None` after the last record.
    pub next: Option<ScanPosition>,
    /// Records visited.
    pub seen: u64,
    /// Records removed.
    pub removed: u64,
}
