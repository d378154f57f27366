//! Defines one shard: a directory of buckets, the arena that contains their blocks, and the huge
//! records.
//!
//! All functions run under the lock of the shard, so this is sequential code. Invariants: the block
//! of a bucket is referenced only by the bucket's slot in the directory, and a block that contains
//! one record is referenced only by the stub of the record. The records of a bucket can be read
//! only together with its address, because they do not contain the bits of their hashes that select
//! it.

mod accounts;
mod image;
mod recode;
mod shape;
mod sweep;
mod write;

use super::block_record::{self, block_record};
use super::classes::{ClassBounds, ClassCounters};
use super::credit::SizeOctaves;
use super::departures::{DepartureCounters, EvictionObserver};
use super::directory::BucketDirectory;
use super::encodings::{EncodedValue, PlainBuffer, RecordContext, RecordEncodings, WrittenBytes};
use super::eviction::{EvictionGoal, EvictionState};
use super::group::{self, BucketValue, KeyMatch, RecordPlace, RecordReference, StoredAttributes};
use super::key::{HashSeeds, Key};
use super::quotient::BucketAddress;
use super::row::{self, BucketRow, KeyBuffer, RowKey};
use super::sample::UseSample;
use super::uses::UseNotes;
use crate::arena::{Arena, BlockHandle, MemoryBudget, NoRoom};
use crate::huge::{DecompressedValue, HugeTable};
use std::sync::Arc;
use todana_core::{Error, Expiry, Record, SharedBytes};

pub(super) use image::CopyTarget;

/// The maximum number of pages that one step of compaction evacuates. Their blocks are found by one
/// pass over the directory.
const PAGES_EVACUATED: usize = 4;

/// The reason why a visit failed.
pub(super) enum VisitFailure {
    NoRoom(NoRoom),
    /// The visitor reads this value, so it must be decompressed, outside of the lock.
    Compressed(SharedBytes),
    /// This value should be encoded with these encodings, outside of the lock.
    Unencoded(Box<[u8]>, Arc<RecordEncodings>),
    Error(Error),
}

/// Values for a visit that were computed outside of the lock, after earlier attempts have failed.
#[derive(Default)]
pub(super) struct PreparedValues {
    /// The old value, which was compressed.
    pub(super) decompressed: Option<DecompressedValue>,
    /// The new value.
    pub(super) encoded: Option<EncodedValue>,
    /// Encodes the new value under the lock if it is not prepared.
    pub(super) encodes_here: bool,
}

impl From<NoRoom> for VisitFailure {
    fn from(no_room: NoRoom) -> Self {
        VisitFailure::NoRoom(no_room)
    }
}

/// The location of the record of a key in its bucket.
#[derive(Clone, Copy)]
pub(super) enum RecordLocation {
    /// The complete record is in the bucket.
    Inline(InlineRecord),
    /// A stub is in the bucket.
    Indirect { place: RecordPlace, reference: RecordReference },
    /// There is no record.
    Absent,
}

/// The limits of a shard besides memory (`MemHashOptions::capacity_records`, `capacity_bytes`).
#[derive(Clone, Copy)]
pub(super) struct ShardCapacity {
    pub(super) records: Option<u64>,
    pub(super) bytes: Option<u64>,
}

impl ShardCapacity {
    pub(super) fn is_limited(&self) -> bool {
        self.records.or(self.bytes).is_some()
    }
}

/// A record in a bucket. The offsets are relative to the bucket.
#[derive(Clone, Copy)]
pub(super) struct InlineRecord {
    pub(super) place: RecordPlace,
    pub(super) value: BucketValue,
    pub(super) attributes: StoredAttributes,
}

impl RecordLocation {
    /// Returns the place in the bucket, if there is a record.
    pub(super) fn place(&self) -> Option<RecordPlace> {
        match *self {
            RecordLocation::Inline(InlineRecord { place, .. }) | RecordLocation::Indirect { place, .. } => {
                Some(place)
            }
            RecordLocation::Absent => None,
        }
    }
}

pub(super) struct HashShard {
    /// The number of the shard, and the number of bits that all such numbers have.
    index: u32,
    shard_bits: u32,
    pub(super) directory: BucketDirectory,
    pub(super) arena: Arena,
    pub(super) huge: HugeTable,
    pub(super) classes: ClassCounters,
    pub(super) seeds: HashSeeds,
    /// The encodings of the records.
    pub(super) encodings: Arc<RecordEncodings>,
    pub(super) written: WrittenBytes,
    pub(super) budget: Arc<MemoryBudget>,
    /// The minimum number of buckets while more records are expected. It is at least 1.
    pub(super) buckets_min: usize,
    pub(super) records: u64,
    pub(super) capacity: ShardCapacity,
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
    /// The attributes and the text of a record that is being stored.
    scratch: Vec<u8>,
    /// The new contents of one bucket, and of another one.
    pub(super) content: Vec<u8>,
    content_two: Vec<u8>,
    /// The records of a bucket that is being rearranged.
    pub(super) rows: Vec<BucketRow>,
}

impl HashShard {
    pub(super) fn new(
        (index, shard_bits): (u32, u32),
        seeds: HashSeeds,
        budget: Arc<MemoryBudget>,
        bounds: Arc<ClassBounds>,
        capacity: ShardCapacity,
        goal: EvictionGoal,
        observer: Option<Arc<dyn EvictionObserver>>,
    ) -> HashShard {
        HashShard {
            index,
            shard_bits,
            directory: BucketDirectory::new(Arc::clone(&budget)),
            arena: Arena::with_evacuations(PAGES_EVACUATED, Arc::clone(&budget)),
            huge: HugeTable::new(Arc::clone(&budget)),
            classes: ClassCounters::new(bounds),
            seeds,
            encodings: Arc::new(RecordEncodings::new()),
            written: WrittenBytes::default(),
            budget,
            buckets_min: 1,
            records: 0,
            capacity,
            bucket_bytes: 0,
            block_bytes: 0,
            departures: DepartureCounters::default(),
            eviction: EvictionState::new(goal),
            uses: UseNotes::new(),
            observer,
            sample: UseSample::default(),
            grew_at: 0,
            blocks_moved: 0,
            pages_emptied: 0,
            moved_when_last_maintained: 0,
            worst_moved: 0,
            scratch: Vec::new(),
            content: Vec::new(),
            content_two: Vec::new(),
            rows: Vec::new(),
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
        let arena = std::mem::replace(
            &mut self.arena,
            Arena::with_evacuations(PAGES_EVACUATED, Arc::clone(&self.budget)),
        );
        self.buckets_min = 1;
        self.departures.count_cleared(self.observer.as_deref(), &self.classes.clear());
        (self.records, self.bucket_bytes, self.block_bytes) = (0, 0, 0);
        self.eviction = EvictionState::new(self.eviction.goal);
        self.uses = UseNotes::new();
        self.sample.clear();
        (directory, arena, self.huge.take())
    }

    pub(super) fn records(&self) -> u64 {
        self.records
    }

    /// Returns true if the shard has no capacity for another record of this plain size.
    pub(super) fn is_full_for(&self, plain: usize) -> bool {
        self.capacity.records.is_some_and(|max| self.records >= max)
            || self.capacity.bytes.is_some_and(|max| self.classes.plain_bytes() + plain as u64 > max)
    }

    /// Returns the bytes of all records as they are stored.
    pub(super) fn stored_bytes(&self) -> u64 {
        (self.bucket_bytes + self.block_bytes + self.huge.bytes()) as u64
    }

    /// Returns the bytes of the records that can have a dictionary or a shape, as they are stored.
    pub(super) fn encodable_bytes(&self) -> u64 {
        (self.bucket_bytes + self.block_bytes) as u64
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
    pub(super) fn context(&self) -> RecordContext<'_> {
        RecordContext { seeds: &self.seeds, encodings: &self.encodings }
    }

    /// Returns the address of a bucket.
    #[inline]
    pub(super) fn address(&self, bucket: usize) -> BucketAddress {
        BucketAddress {
            shard: self.index,
            shard_bits: self.shard_bits,
            bucket: bucket as u32,
            bits: self.directory.bits_of(bucket),
        }
    }

    #[inline]
    pub(super) fn find(&self, bucket: usize, key: &Key<'_>) -> RecordLocation {
        let handle = self.directory.get(bucket);
        if handle.is_none() {
            return RecordLocation::Absent;
        }
        // Prefetch all cache lines of the bucket at once.
        self.arena.prefetch(handle);
        let bytes = self.arena.bytes(handle);
        let address = self.address(bucket);
        let mut rejected = 0;
        loop {
            match group::find(bytes, key, &address, &self.encodings, rejected) {
                KeyMatch::Found(group, index) => {
                    return RecordLocation::Inline(InlineRecord {
                        place: RecordPlace { group_at: group.at as u32, index: index as u32 },
                        value: group.value(bytes, index),
                        attributes: group.attributes(index),
                    });
                }
                KeyMatch::Absent => return RecordLocation::Absent,
                KeyMatch::Candidate(place, reference) => {
                    if self.is_key_of(reference, key) {
                        return RecordLocation::Indirect { place, reference };
                    }
                    rejected += 1;
                }
            }
        }
    }

    fn is_key_of(&self, reference: RecordReference, key: &Key<'_>) -> bool {
        match reference {
            RecordReference::Block(handle) => {
                let bytes = self.arena.bytes(BlockHandle(handle));
                bytes[block_record(bytes).key] == *key.text
            }
            RecordReference::Huge(index) => *self.huge.get(index).key == *key.text,
        }
    }

    #[inline]
    fn record<'a>(
        &'a self,
        bucket: usize,
        location: &RecordLocation,
        buffer: &'a mut PlainBuffer,
    ) -> Option<Record<'a>> {
        match location {
            RecordLocation::Absent => None,
            RecordLocation::Inline(InlineRecord { value, attributes, .. }) => {
                let bytes = self.arena.bytes(self.directory.get(bucket));
                Some(Record::new(value.text(bytes, &self.encodings, buffer), attributes.read(bytes)))
            }
            RecordLocation::Indirect { reference, .. } => Some(self.referenced_record(*reference, buffer)),
        }
    }

    /// Returns the record for a visitor that needs only the length of the value. The value is not
    /// unpacked.
    #[inline]
    fn record_of_len<'a>(
        &'a self,
        bucket: usize,
        location: &RecordLocation,
        buffer: &'a mut PlainBuffer,
    ) -> Option<Record<'a>> {
        match location {
            RecordLocation::Inline(InlineRecord { value, attributes, .. }) => {
                let bytes = self.arena.bytes(self.directory.get(bucket));
                Some(Record::new(value.of_len(bytes, &self.encodings), attributes.read(bytes)))
            }
            RecordLocation::Indirect { reference: RecordReference::Block(handle), .. } => {
                let bytes = self.arena.bytes(BlockHandle(*handle));
                let parts = block_record(bytes);
                let len = block_record::value_len(bytes, &parts, &self.encodings);
                Some(Record::new(group::stand_in(len), parts.attributes(bytes)))
            }
            _ => self.record(bucket, location, buffer),
        }
    }

    fn referenced_record<'a>(
        &'a self,
        reference: RecordReference,
        buffer: &'a mut PlainBuffer,
    ) -> Record<'a> {
        match reference {
            RecordReference::Block(handle) => {
                let bytes = self.arena.bytes(BlockHandle(handle));
                let parts = block_record(bytes);
                let value = block_record::value_text(bytes, &parts, &self.encodings, buffer);
                Record::new(value, parts.attributes(bytes))
            }
            RecordReference::Huge(index) => self.huge.get(index).record(),
        }
    }

    #[inline]
    pub(super) fn view<T>(&self, key: &Key<'_>, see: impl FnOnce(Record<'_>) -> T) -> Option<T> {
        let bucket = self.directory.bucket_of(key.hash);
        let location = self.find(bucket, key);
        self.note_huge_use(&location);
        let mut buffer = PlainBuffer::default();
        self.record(bucket, &location, &mut buffer).map(see)
    }

    /// Notes the use of a value for its compression.
    #[inline]
    fn note_huge_use(&self, location: &RecordLocation) {
        if let RecordLocation::Indirect { reference: RecordReference::Huge(index), .. } = location {
            self.huge.get(*index).note_use();
        }
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
        let location = self.find(bucket, key);
        self.note_huge_use(&location);
        let mut buffer = PlainBuffer::default();
        let record = self.record(bucket, &location, &mut buffer);
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

    /// Appends the records of the bucket of this hash to `rows`. Returns the bytes of the bucket,
    /// and the number of low bits that the hashes of all its records have in common.
    pub(super) fn list_bucket(&self, hash: u64, rows: &mut Vec<BucketRow>) -> (&[u8], u32) {
        let bucket = self.directory.bucket_of(hash);
        (self.take_apart(bucket, rows), self.directory.bits_of(bucket))
    }

    /// Returns the bytes of a bucket, which are none if it is empty.
    pub(super) fn bytes_of(&self, bucket: usize) -> &[u8] {
        let handle = self.directory.get(bucket);
        if handle.is_none() { &[] } else { self.arena.bytes(handle) }
    }

    /// Appends the records of a bucket to `rows`, with their marks. Returns the bytes of the
    /// bucket.
    fn take_apart(&self, bucket: usize, rows: &mut Vec<BucketRow>) -> &[u8] {
        let bytes = self.bytes_of(bucket);
        if !bytes.is_empty() {
            row::take_apart(bytes, &self.address(bucket), 0, rows);
        }
        bytes
    }

    /// Calls `see` with the record of a row of this bucket. `buffer` is memory for its key.
    pub(super) fn view_row<T>(
        &self,
        bytes: &[u8],
        row: &BucketRow,
        buffer: &mut KeyBuffer,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> T,
    ) -> T {
        match row.key {
            RowKey::Stub { reference: RecordReference::Block(block), .. } => {
                let bytes = self.arena.bytes(BlockHandle(block));
                let mut value = PlainBuffer::default();
                let record = self.referenced_record(RecordReference::Block(block), &mut value);
                see(&bytes[block_record(bytes).key], record)
            }
            RowKey::Stub { reference: RecordReference::Huge(index), .. } => {
                let huge = self.huge.get(index);
                see(&huge.key, huge.record())
            }
            _ => row.see(bytes, self.context(), buffer, see),
        }
    }

    /// Returns the plain size of the record at this location: key + value + 4 if there are flags.
    #[inline]
    fn plain_size(&self, bucket: usize, location: &RecordLocation, key: &Key<'_>) -> Option<usize> {
        match location {
            RecordLocation::Absent => None,
            RecordLocation::Inline(InlineRecord { value, attributes, .. }) => {
                let bytes = self.bytes_of(bucket);
                Some(key.text.len() + value.text_len(bytes, &self.encodings) + attributes.flags_size())
            }
            RecordLocation::Indirect { reference, .. } => Some(self.referenced_plain_size(*reference)),
        }
    }

    fn referenced_plain_size(&self, reference: RecordReference) -> usize {
        match reference {
            RecordReference::Block(handle) => {
                let bytes = self.arena.bytes(BlockHandle(handle));
                block_record::plain_size(bytes, &block_record(bytes), &self.encodings)
            }
            RecordReference::Huge(index) => self.huge.get(index).plain_size(),
        }
    }

    /// Returns the plain size of a record.
    pub(super) fn size_of(&self, bytes: &[u8], row: &BucketRow) -> usize {
        match row.key {
            RowKey::Stub { reference, .. } => self.referenced_plain_size(reference),
            _ => row.plain_size(bytes, self.context()),
        }
    }

    /// Returns the size of a record by which it gets credit: that of the stored value, so that a
    /// read need not unpack it.
    pub(super) fn stored_size(&self, row: &BucketRow) -> SizeOctaves {
        SizeOctaves::of(match row.key {
            RowKey::Stub { reference, .. } => self.referenced_stored_size(reference),
            _ => row.value.data_len(),
        })
    }

    fn referenced_stored_size(&self, reference: RecordReference) -> usize {
        match reference {
            RecordReference::Block(handle) => block_record(self.arena.bytes(BlockHandle(handle))).value.end,
            RecordReference::Huge(index) => self.huge.get(index).stored_size(),
        }
    }

    /// Returns the same for the record at this location.
    pub(super) fn size_at(&self, location: &RecordLocation) -> Option<SizeOctaves> {
        match location {
            RecordLocation::Absent => None,
            RecordLocation::Inline(InlineRecord { value, .. }) => Some(SizeOctaves::of(value.data_len())),
            RecordLocation::Indirect { reference, .. } => {
                Some(SizeOctaves::of(self.referenced_stored_size(*reference)))
            }
        }
    }

    /// Returns the expiry of a record.
    pub(super) fn expiry_of(&self, bytes: &[u8], row: &BucketRow) -> Expiry {
        match row.key {
            RowKey::Stub { reference, .. } => self.referenced_expiry(reference),
            _ => row.expiry(bytes),
        }
    }

    fn referenced_expiry(&self, reference: RecordReference) -> Expiry {
        match reference {
            RecordReference::Block(handle) => {
                let bytes = self.arena.bytes(BlockHandle(handle));
                block_record(bytes).expiry(bytes)
            }
            RecordReference::Huge(index) => self.huge.get(index).attributes.expiry,
        }
    }

    /// Returns all bits of the hash of a record's key.
    pub(super) fn complete_hash(&self, bytes: &[u8], row: &BucketRow) -> u64 {
        match row.key {
            RowKey::Stub { reference: RecordReference::Huge(index), .. } => self.huge.get(index).hash,
            RowKey::Stub { reference: RecordReference::Block(block), .. } => {
                let bytes = self.arena.bytes(BlockHandle(block));
                Key::new(&bytes[block_record(bytes).key], &self.seeds).hash
            }
            _ => row.low_hash(bytes, self.context()),
        }
    }
}
