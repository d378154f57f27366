//! Defines one shard: a directory of buckets, the arena that contains their blocks, and the huge
//! records.
//!
//! All functions run under the lock of the shard, so this is sequential code. Invariants: the block
//! of a bucket is referenced only by the bucket's slot in the directory, and a block that contains
//! one record is referenced only by the stub of the record. Each reference can be found from the
//! first key in the block, so any block may move at any time.

mod accounts;
mod image;
mod shape;
mod sweep;
mod write;

use super::classes::{ClassBounds, ClassCounters};
use super::departures::{DepartureCounters, EvictionObserver};
use super::directory::BucketDirectory;
use super::eviction::EvictionState;
use super::key::{HashSeeds, Key};
use super::record::{self, BucketEntry, EntryBody, KeyMatch, RecordReference, STUB_LEN, inline_record};
use super::sample::UseSample;
use super::uses::UseNotes;
use crate::arena::{Arena, BlockHandle, MemoryBudget, NoRoom};
use crate::huge::HugeTable;
use std::sync::Arc;
use todana_core::{Error, Expiry, Record};

pub(super) use image::{AdoptedRecord, CopyTarget};

/// The reason why a visit failed.
#[derive(Debug)]
pub(super) enum VisitFailure {
    NoRoom(NoRoom),
    Error(Error),
}

impl From<NoRoom> for VisitFailure {
    fn from(no_room: NoRoom) -> Self {
        VisitFailure::NoRoom(no_room)
    }
}

/// The location of the record of a key in its bucket. The type is small because a visit passes it
/// around several times; the parts of the record are decoded where they are needed.
#[derive(Clone, Copy)]
pub(super) enum RecordLocation {
    /// The complete record is in the bucket.
    Inline { at: usize },
    /// A stub is in the bucket.
    Indirect { at: usize, reference: RecordReference },
    /// There is no record. The records of the bucket end at this offset.
    Absent { end: usize },
}

pub(super) struct HashShard {
    pub(super) directory: BucketDirectory,
    pub(super) arena: Arena,
    pub(super) huge: HugeTable,
    pub(super) classes: ClassCounters,
    pub(super) seeds: HashSeeds,
    pub(super) budget: Arc<MemoryBudget>,
    /// The minimum number of buckets while more records are expected. It is at least 1.
    pub(super) buckets_min: usize,
    pub(super) records: u64,
    /// The maximum number of records (`MemHashOptions::capacity_records`).
    pub(super) records_max: u64,
    /// The number of bytes in buckets, without their tails.
    pub(super) bucket_bytes: usize,
    /// The number of bytes in blocks that contain one record.
    block_bytes: usize,
    pub(super) departures: DepartureCounters,
    pub(super) eviction: EvictionState,
    pub(super) uses: UseNotes,
    pub(super) observer: Option<Arc<dyn EvictionObserver>>,
    sample: UseSample,
    /// The Unix second in which the directory last grew.
    grew_at: u64,
    /// The number of blocks that compaction has moved, and the number of steps of compaction that
    /// have freed anything.
    blocks_moved: u64,
    pages_emptied: u64,
    /// The value of `Arena::moved` at the last maintenance. If the value is larger now, there were
    /// writes meanwhile.
    moved_when_last_maintained: u64,
    /// The largest number of bytes that one visit has moved.
    worst_moved: u64,
    scratch: Vec<u8>,
    scratch_two: Vec<u8>,
}

impl HashShard {
    pub(super) fn new(
        seeds: HashSeeds,
        budget: Arc<MemoryBudget>,
        bounds: Arc<ClassBounds>,
        records_max: u64,
        observer: Option<Arc<dyn EvictionObserver>>,
    ) -> HashShard {
        HashShard {
            directory: BucketDirectory::new(Arc::clone(&budget)),
            arena: Arena::new(Arc::clone(&budget)),
            huge: HugeTable::new(Arc::clone(&budget)),
            classes: ClassCounters::new(bounds),
            seeds,
            budget,
            buckets_min: 1,
            records: 0,
            records_max,
            bucket_bytes: 0,
            block_bytes: 0,
            departures: DepartureCounters::default(),
            eviction: EvictionState::new(),
            uses: UseNotes::new(),
            observer,
            sample: UseSample::default(),
            grew_at: 0,
            blocks_moved: 0,
            pages_emptied: 0,
            moved_when_last_maintained: 0,
            worst_moved: 0,
            scratch: Vec::new(),
            scratch_two: Vec::new(),
        }
    }

    /// Prepares an empty shard for records that arrive in the order of buckets. No bucket is split
    /// while they arrive, and a bucket stays in the cache from one record to the next.
    ///
    /// The slots of the directory, four bytes each, are allocated even if they exceed the memory
    /// limit. Without them, all records would be in one bucket at first.
    pub(super) fn expect(&mut self, buckets: usize) {
        if self.records == 0 {
            while self.directory.len() < buckets && self.directory.grow() {}
            self.buckets_min = self.directory.len();
        }
    }

    /// Removes all records. Returns the memory that held them, so that the caller can drop it after
    /// releasing the lock.
    pub(super) fn clear(&mut self) -> (BucketDirectory, Arena, HugeTable) {
        let directory =
            std::mem::replace(&mut self.directory, BucketDirectory::new(Arc::clone(&self.budget)));
        let arena = std::mem::replace(&mut self.arena, Arena::new(Arc::clone(&self.budget)));
        self.buckets_min = 1;
        self.departures.count_cleared(self.observer.as_deref(), &self.classes.clear());
        (self.records, self.bucket_bytes, self.block_bytes) = (0, 0, 0);
        self.eviction = EvictionState::new();
        self.uses = UseNotes::new();
        self.sample.clear();
        (directory, arena, self.huge.take())
    }

    pub(super) fn records(&self) -> u64 {
        self.records
    }

    /// Returns true if the seeds have changed since the key was hashed. The caller must then hash
    /// it again.
    #[inline]
    pub(super) fn is_outdated(&self, key: &Key<'_>) -> bool {
        key.generation != self.seeds.generation
    }

    pub(super) fn worst_moved(&self) -> u64 {
        self.worst_moved
    }

    #[inline]
    pub(super) fn find(&self, handle: BlockHandle, key: &Key<'_>) -> RecordLocation {
        if handle.is_none() {
            return RecordLocation::Absent { end: 0 };
        }
        // The search goes from record to record, so prefetch all cache lines of the bucket at once.
        self.arena.prefetch(handle);
        let bytes = self.arena.bytes(handle);
        let mut at = 0;
        loop {
            match record::find(bytes, at, key) {
                KeyMatch::Found { at } => return RecordLocation::Inline { at },
                KeyMatch::Absent { end } => return RecordLocation::Absent { end },
                KeyMatch::Candidate { at: stub, reference } => {
                    if self.is_key_of(reference, key) {
                        return RecordLocation::Indirect { at: stub, reference };
                    }
                    at = stub + STUB_LEN;
                }
            }
        }
    }

    fn is_key_of(&self, reference: RecordReference, key: &Key<'_>) -> bool {
        match reference {
            RecordReference::Block(handle) => {
                let bytes = self.arena.bytes(BlockHandle(handle));
                let parts = inline_record(bytes, 0);
                parts.key_form == key.form
                    && parts.key.len() == key.stored_len
                    && key.is_at(bytes, parts.key.start)
            }
            RecordReference::Huge(index) => *self.huge.get(index).key == *key.text,
        }
    }

    #[inline]
    fn record<'a>(
        &'a self,
        handle: BlockHandle,
        location: &RecordLocation,
        digits: &'a mut [u8; 20],
    ) -> Option<Record<'a>> {
        match location {
            RecordLocation::Absent { .. } => None,
            RecordLocation::Inline { at } => {
                let bytes = self.arena.bytes(handle);
                let parts = inline_record(bytes, *at);
                Some(Record::new(parts.value_text(bytes, digits), parts.attributes(bytes)))
            }
            RecordLocation::Indirect { reference, .. } => Some(self.referenced_record(*reference, digits)),
        }
    }

    /// Returns the record for a visitor that needs only the length of the value. The value is not
    /// unpacked.
    #[inline]
    fn record_of_len<'a>(
        &'a self,
        handle: BlockHandle,
        location: &RecordLocation,
        digits: &'a mut [u8; 20],
    ) -> Option<Record<'a>> {
        let RecordLocation::Inline { at } = location else { return self.record(handle, location, digits) };
        let bytes = self.arena.bytes(handle);
        let parts = inline_record(bytes, *at);
        Some(Record::new(parts.value_of_len(bytes), parts.attributes(bytes)))
    }

    fn referenced_record<'a>(&'a self, reference: RecordReference, digits: &'a mut [u8; 20]) -> Record<'a> {
        match reference {
            RecordReference::Block(handle) => {
                let bytes = self.arena.bytes(BlockHandle(handle));
                let parts = inline_record(bytes, 0);
                Record::new(parts.value_text(bytes, digits), parts.attributes(bytes))
            }
            RecordReference::Huge(index) => self.huge.get(index).record(),
        }
    }

    #[inline]
    pub(super) fn view<T>(&self, key: &Key<'_>, see: impl FnOnce(Record<'_>) -> T) -> Option<T> {
        let handle = self.directory.get(self.directory.bucket_of(key.hash));
        let location = self.find(handle, key);
        let mut digits = [0; 20];
        self.record(handle, &location, &mut digits).map(see)
    }

    /// Does what `view` does and notes the use. The second result is true if the noted uses must be
    /// entered.
    #[inline]
    pub(super) fn view_and_note_use<T>(
        &self,
        key: &Key<'_>,
        see: impl FnOnce(Record<'_>) -> T,
    ) -> (Option<T>, bool) {
        let bucket = self.directory.bucket_of(key.hash);
        let handle = self.directory.get(bucket);
        let location = self.find(handle, key);
        let mut digits = [0; 20];
        let record = self.record(handle, &location, &mut digits);
        if let Some(record) = &record {
            self.sample_read(key.hash as u32, record.attributes.expiry);
        }
        let seen = record.map(see);
        let of = if self.notes_uses() { self.use_at(bucket, &location) } else { None };
        let is_full = of.is_some_and(|of| !self.uses.note(of));
        (seen, is_full)
    }

    #[inline]
    pub(super) fn prefetch(&self, key: &Key<'_>) {
        self.prefetch_bucket(self.directory.bucket_of(key.hash));
    }

    #[inline]
    pub(super) fn prefetch_bucket(&self, bucket: usize) {
        let handle = self.directory.get(bucket);
        if !handle.is_none() {
            self.arena.prefetch(handle);
        }
    }

    /// Lists the records of the bucket of this hash, with the hash and the offset of each. Returns
    /// the block of the bucket and the number of low bits that the hashes of all its records have
    /// in common.
    pub(super) fn list_bucket(&self, hash: u64, list: &mut Vec<(u64, usize)>) -> (BlockHandle, u32) {
        let bucket = self.directory.bucket_of(hash);
        let handle = self.directory.get(bucket);
        if !handle.is_none() {
            let bytes = self.arena.bytes(handle);
            let mut at = 0;
            while let Some(entry) = record::entry(bytes, at) {
                let hash = self.complete_hash(bytes, &entry);
                list.push((hash, at));
                at += entry.len;
            }
        }
        (handle, self.directory.bits_of(bucket))
    }

    /// Calls `see` with the record at an offset that `list_bucket` returned under the same lock.
    pub(super) fn view_at<T>(
        &self,
        handle: BlockHandle,
        at: usize,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> T,
    ) -> T {
        let (mut key_digits, mut digits) = ([0; 20], [0; 20]);
        let bucket = self.arena.bytes(handle);
        let entry = record::entry(bucket, at).expect("listed under the same lock");
        let (bytes, parts) = match entry.body {
            EntryBody::Inline(parts) => (bucket, parts),
            EntryBody::Stub { reference: RecordReference::Block(block), .. } => {
                let bytes = self.arena.bytes(BlockHandle(block));
                (bytes, inline_record(bytes, 0))
            }
            EntryBody::Stub { reference: RecordReference::Huge(index), .. } => {
                let huge = self.huge.get(index);
                return see(&huge.key, huge.record());
            }
        };
        let record = Record::new(parts.value_text(bytes, &mut digits), parts.attributes(bytes));
        see(parts.key_text(bytes, &mut key_digits), record)
    }

    /// Returns the plain size of the record at this location: key + value + 4 if there are flags.
    #[inline]
    fn plain_size(&self, handle: BlockHandle, location: &RecordLocation, key: &Key<'_>) -> Option<usize> {
        match location {
            RecordLocation::Absent { .. } => None,
            RecordLocation::Inline { at } => {
                let bytes = self.arena.bytes(handle);
                let parts = inline_record(bytes, *at);
                Some(key.text.len() + parts.value_text_len(bytes) + parts.flags_size())
            }
            RecordLocation::Indirect { reference, .. } => Some(self.referenced_plain_size(*reference)),
        }
    }

    fn referenced_plain_size(&self, reference: RecordReference) -> usize {
        match reference {
            RecordReference::Block(handle) => {
                let bytes = self.arena.bytes(BlockHandle(handle));
                inline_record(bytes, 0).plain_size(bytes)
            }
            RecordReference::Huge(index) => self.huge.get(index).plain_size(),
        }
    }

    /// Returns the plain size of a record, and true if it has an expiry.
    pub(super) fn size_and_expiry(&self, handle: BlockHandle, entry: &BucketEntry) -> (usize, bool) {
        match &entry.body {
            EntryBody::Inline(parts) => (parts.plain_size(self.arena.bytes(handle)), parts.has_expiry()),
            EntryBody::Stub { reference, .. } => {
                let expiry = self.referenced_record(*reference, &mut [0; 20]).attributes.expiry;
                (self.referenced_plain_size(*reference), expiry != Expiry::Never)
            }
        }
    }
}

/// Returns at least the low 32 bits of the hash of an entry's key.
#[inline]
pub(super) fn low_hash(seeds: &HashSeeds, bytes: &[u8], entry: &BucketEntry) -> u64 {
    match &entry.body {
        EntryBody::Inline(parts) => seeds.of_stored(parts.key_form, &bytes[parts.key.clone()]),
        EntryBody::Stub { fingerprint, .. } => u64::from(*fingerprint),
    }
}
