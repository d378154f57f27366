//! What an engine offers: look at a record, visit it, walk over all of them.

use crate::{
    Attributes, CheckpointedEngine, DurableEngine, Error, ErrorKind, Expiry, OrderedEngine, Record, Result,
    SharedBytes, UnixSeconds,
};
use std::any::Any;
use std::ops::{AddAssign, ControlFlow};
use std::sync::Arc;

/// What a visitor wants done with the record it was shown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action<'a> {
    /// Leave everything as it is.
    Keep,
    /// Store this record in place of what was there.
    Put(Record<'a>),
    /// Keep the value, replace the attributes: what touch, a first shown version or a mark needs.
    /// On an absent record it does nothing.
    Retag(Attributes),
    /// Remove the record; nothing happens if there is none.
    Remove,
}

/// A pure step from the old record to an action; the only way anything is written.
///
/// An engine runs `visit` atomically on the record and then, if something changed, `applied`, still
/// under the same lock. It may run `visit` again (engines that retry), so a visitor overwrites its
/// outcome and never adds up.
pub trait Visitor {
    /// Decides from what is stored now.
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a>;

    /// Whether it puts or removes something whatever is there. Where a record is damaged, such a visitor is shown none, and what it
    /// does is done; the visit of any other fails with `Corrupt`.
    fn overwrites(&self) -> bool {
        false
    }

    /// Whether the bytes of the old value are nothing to it, only how many there are. An engine, which asks under the record's lock, then may show it a value that it has
    /// neither read from memory nor checked for damage: waiting for these costs more than all else of a write.
    fn ignores_value(&self) -> bool {
        false
    }

    /// Called once after a `Put`, `Retag` or `Remove` of an existing record is in, with what is stored
    /// now (`None` after a removal). Not called for `Keep`.
    fn applied(&mut self, now: Option<Record<'_>>) {
        let _ = now;
    }
}

/// A place in a scan, between two calls. Opaque to all but the engine that gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScanPosition {
    /// In an order of the engine's own.
    Number(u64),
    /// Behind this key, or at it.
    Key(Arc<[u8]>),
}

impl ScanPosition {
    /// The number; 0 for a place of an engine that goes by keys.
    pub fn number(&self) -> u64 {
        match self {
            ScanPosition::Number(number) => *number,
            ScanPosition::Key(_) => 0,
        }
    }
}

/// What decides over the order of an engine's scans. Whoever keeps records in that order can give them back to an engine of
/// the same kind much faster than in any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanOrder {
    /// The secret that its hashes go by.
    pub seed: u64,
    /// Into how many groups it has divided its records.
    pub groups: u64,
}

/// What an engine holds, for statistics. Reading it is cheap (no scan).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineStatus {
    /// Records held, expired ones that nobody has met yet included.
    pub records: u64,
    /// Bytes of the records as stored: headers, packed keys and values.
    pub live_bytes: u64,
    /// Bytes of memory held from the system for them, index and slack included.
    pub committed_bytes: u64,
    /// Records removed to make room, since the start.
    pub evictions: u64,
    /// Of those, the ones that carried an expiry.
    pub evictions_with_expiry: u64,
    /// Of those, the ones that made room for a write, rather than for housekeeping.
    pub evictions_by_writes: u64,
    /// Of those, the ones that had never been read. Exact as long as all records are in the engine's sample
    /// ([`RecordSample`]); else those in the sample are counted, and for each other one the share among them.
    pub evicted_unfetched: u64,
    /// Records that had expired when room was wanted, and went first.
    pub reclaimed: u64,
    /// Expired records, removed in whatever way, that had never been read; counted as `evicted_unfetched` is.
    pub expired_unfetched: u64,
    /// Records that were there when the engine was cleared. Kinds on disk do not count them.
    pub cleared: u64,
    /// Records that were passed over when their turn came to go, as they had been used: for the first time ...
    pub promotions: u64,
    /// ... or once more.
    pub second_chances: u64,
    /// How many records there are by their plain sizes: one count for each bound given at construction, and one for all above.
    pub classes: Vec<SizeClass>,
    /// The index by which records are found.
    pub index: IndexStatus,
    /// Uses that went unnoted since the start, because the record's lock was taken.
    pub uses_dropped: u64,
    /// Blocks moved since the start so that sparse memory could be given back.
    pub blocks_moved: u64,
    /// Steps of doing so, each of which has emptied a page or part of a larger region.
    pub pages_emptied: u64,
}

/// The index of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexStatus {
    /// Buckets of the hash.
    pub buckets: u64,
    /// Bytes of memory that say where each one is.
    pub bytes: u64,
    /// It has grown within the last second or two.
    pub is_growing: bool,
}

/// The records of one size class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SizeClass {
    /// How many.
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

/// A sample of an engine's records, chosen by the hash of their keys. It has some thousand records at most, and all that there
/// are as long as there are no more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordSample {
    /// In no order.
    pub records: Vec<SampledRecord>,
}

/// A record of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampledRecord {
    /// Key + value + 4 if it carries flags.
    pub plain_size: u64,
    /// Seconds since its last use.
    pub idle_s: u64,
    /// It has earned a longer stay by being used.
    pub is_kept: bool,
}

/// A store of records by key. All methods may be called from many threads at once.
pub trait Engine: Send + Sync {
    /// Shows the record of `key`, if there is one; returns whether there was. `see` runs under a lock:
    /// it must be brief and must not call the engine again.
    fn view(&self, key: &[u8], see: &mut dyn FnMut(Record<'_>)) -> Result<bool>;

    /// As `view`, but not counted as a use of the record when it comes to which one makes room.
    fn peek(&self, key: &[u8], see: &mut dyn FnMut(Record<'_>)) -> Result<bool> {
        self.view(key, see)
    }

    /// Runs the visitor on the record of `key`, atomically. Fails with `Full` when the memory limit leaves no
    /// room (the old record then stays), with `Invalid` when key or value are longer than any engine takes.
    fn visit(&self, key: &[u8], visitor: &mut dyn Visitor) -> Result<()>;

    /// Returns once every visit that had begun before is over. Waits for as long as the longest of them takes.
    fn wait_for_visits(&self);

    /// Shows every record from `from` (the start: `None`) on, until `see` breaks or all are done; returns
    /// where to go on, `None` at the end. A record that is there throughout is shown at least once, whatever is
    /// written meanwhile; locks are held only over small groups of records.
    fn scan(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>>;

    /// The same, but records that are damaged are passed over, where `scan` fails with `Corrupt`.
    fn scan_skipping_damaged(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        self.scan(from, see)
    }

    /// Removes all records and gives their memory back. `cleared` is called once, when there are none and before anything can
    /// be written again; it must be brief and must not call the engine.
    fn clear(&self, cleared: &mut dyn FnMut()) -> Result<()>;

    /// What it holds now.
    fn status(&self) -> EngineStatus;

    /// What it estimates of its records. It looks at some thousand of them: for statistics, not for every tick.
    fn sample_records(&self) -> RecordSample {
        RecordSample::default()
    }

    /// The order of its scans, if it keeps to one.
    fn scan_order(&self) -> Option<ScanOrder> {
        None
    }

    /// Makes an empty engine ready for records that come in this order, until `settle` is called. Whoever brings them to an
    /// engine of that very seed must call it.
    fn begin_ordered_load(&self, order: ScanOrder) {
        let _ = order;
    }

    /// The records that were expected have come, or will not.
    fn end_ordered_load(&self) {}

    /// Says that `key` will be asked for within the next microsecond or so.
    fn prefetch(&self, key: &[u8]) {
        let _ = key;
    }

    /// Does a bounded piece of housekeeping (moving blocks out of sparse pages, returning memory); true when there
    /// is more to do at once. Meant for a background thread; each call moves at most some 64 KiB.
    fn maintain(&self) -> bool {
        false
    }

    /// Memory for a long value of exactly `len` bytes, to be filled piece by piece and then stored without a copy. It
    /// takes memory only as it is filled. Fails with `Full` when it could not be held, or not without eviction where that
    /// is not allowed; with `Invalid` when it is longer than any, or the engine has no such memory.
    fn buffer(&self, len: usize) -> Result<Box<dyn ValueBuffer>> {
        let _ = len;
        Err(Error::new(ErrorKind::Invalid, "this engine has no buffers"))
    }

    /// The next piece of a buffer to write to: at least one byte, unless it is full, and at most `len`. Other records go
    /// if there is no room. What is asked for piece by piece is taken to come from afar, and bounded so that what stalls
    /// does not push out what is stored; whoever has the value asks for all of it. Fails with `Full` when that does not
    /// help, with `Busy` when other values on their way in hold all that such may (in both cases the buffer keeps what it
    /// has), with `Invalid` for the buffer of another engine.
    fn room<'b>(&self, buffer: &'b mut dyn ValueBuffer, len: usize) -> Result<&'b mut [u8]> {
        let _ = (buffer, len);
        Err(Error::new(ErrorKind::Invalid, "a buffer of another engine"))
    }

    /// The power to live within a memory limit.
    fn bounded(&self) -> Option<&dyn BoundedEngine> {
        None
    }

    /// The power to go from one key to the next.
    fn ordered(&self) -> Option<&dyn OrderedEngine> {
        None
    }

    /// The power to be the checkpoint of an update log.
    fn checkpointed(&self) -> Option<&dyn CheckpointedEngine> {
        None
    }

    /// The power to keep records in files.
    fn durable(&self) -> Option<&dyn DurableEngine> {
        None
    }

    /// The power to find records by their expiry in a cheap pass.
    fn sweepable(&self) -> Option<&dyn SweepableEngine> {
        None
    }
}

/// Memory of an engine's for one long value that is not whole yet. It counts as the engine's, by what has been filled,
/// and is given back when it is dropped.
pub trait ValueBuffer: Any + Send {
    /// The length of the whole value.
    fn len(&self) -> usize;

    /// True for a value of no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How much of it has been filled.
    fn filled(&self) -> usize;

    /// Says that so many bytes of what [`Engine::room`] has last given have been written; the rest of that is given back.
    fn advance(&mut self, len: usize);

    /// The value, to be stored; bytes that have not been filled are zero.
    fn into_shared(self: Box<Self>) -> SharedBytes;
}

/// What to do with a write that does not fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// Remove other records.
    #[default]
    Evict,
    /// Refuse the write with `Full` (memcached's `-M`).
    Refuse,
}

/// A memory limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryLimit {
    /// Bytes that the engine may hold, `None` for no limit.
    pub bytes: Option<u64>,
    /// What happens at the limit.
    pub when_full: WhenFull,
}

/// An engine that can live within a memory limit.
pub trait BoundedEngine {
    /// Sets the limit; when it is lowered, `maintain` brings the engine below it step by step.
    fn set_limit(&self, limit: MemoryLimit);

    /// The limit in force.
    fn limit(&self) -> MemoryLimit;

    /// True near the limit, where what one record takes another one loses.
    fn is_near_limit(&self) -> bool;

    /// Tells the time, so that what has expired goes first when room is wanted. To be told about once a second.
    fn set_time(&self, now: UnixSeconds);
}

/// An engine that can pass over all records at some ten nanoseconds each, for the sake of those with an expiry.
///
/// Weaker than [`Engine::scan`]: a record may be met twice or, if the engine grows or shrinks meanwhile, not at all. Whoever
/// passes again and again misses none for long.
pub trait SweepableEngine: Send + Sync {
    /// Goes on from `from` (the start: `None`) over at most some `records_max` records: shows the expiry of each that has
    /// one (or of many that lie together one that is no later than any of theirs, if `is_over` does not want even that), and removes those for which `is_over` says so. It may be asked twice about one record. Locks are held for some
    /// tens of records at a time; `is_over` runs under them. `aim`: by which it counts them.
    fn sweep(
        &self,
        from: Option<ScanPosition>,
        records_max: usize,
        aim: SweepAim,
        is_over: &mut dyn FnMut(Expiry) -> bool,
    ) -> Result<SweepProgress>;
}

/// What a sweep is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SweepAim {
    /// To have nothing about that nobody will be shown.
    Tidiness,
    /// Room for a write that has found none: counted as [`EngineStatus::reclaimed`], as by an eviction.
    Room,
}

/// What one step of a sweep has come to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SweepProgress {
    /// Where to go on; `None` when all records have been passed.
    pub next: Option<ScanPosition>,
    /// Records passed.
    pub seen: u64,
    /// Of those, removed.
    pub removed: u64,
}
