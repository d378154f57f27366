//! One shard: a directory of buckets, the arena that their blocks lie in, and the huge records.
//!
//! All that happens to a shard happens under its lock, so this is plain sequential code. Always true: a bucket's
//! block is named by its directory slot alone, a block of one record by its stub alone; each is found again from the
//! first key in the block, so any block may move at any time.

mod accounts;
mod shape;
mod sweep;
mod write;

use super::classes::{ClassBounds, Classes};
use super::departures::{Departures, EvictionObserver};
use super::directory::Directory;
use super::evict::Evictor;
use super::key::{Key, Seeds};
use super::record::{self, Body, Elsewhere, Entry, Found, STUB_LEN, whole};
use super::sample::Sample;
use super::uses::Uses;
use crate::arena::{Arena, Budget, Handle, NoRoom};
use crate::huge::HugeTable;
use std::sync::Arc;
use todana_core::{Error, Expiry, Record};

/// Why a visit did not come to its end.
#[derive(Debug)]
pub(super) enum Trouble {
    NoRoom(NoRoom),
    Error(Error),
}

impl From<NoRoom> for Trouble {
    fn from(no_room: NoRoom) -> Self {
        Trouble::NoRoom(no_room)
    }
}

/// Where a key's record is, within its bucket. Few words, as each is handed on several times in a visit: what a record consists of is read from it
/// where that is wanted.
#[derive(Clone, Copy)]
pub(super) enum Spot {
    /// Whole, in the bucket.
    Here { at: usize },
    /// Its stub.
    Elsewhere { at: usize, elsewhere: Elsewhere },
    /// Nowhere; the bucket ends here.
    Nowhere { end: usize },
}

pub(super) struct Shard {
    pub(super) directory: Directory,
    pub(super) arena: Arena,
    pub(super) huge: HugeTable,
    pub(super) classes: Classes,
    pub(super) seeds: Seeds,
    pub(super) budget: Arc<Budget>,
    /// Buckets that are not merged, however few records there are: more are expected. At least 1.
    pub(super) buckets_min: usize,
    pub(super) records: u64,
    /// No more than so many (`MemHashOptions::capacity_records`).
    pub(super) records_max: u64,
    /// Bytes in buckets, without their end marks.
    pub(super) bucket_bytes: usize,
    /// Bytes in blocks of one record.
    block_bytes: usize,
    pub(super) departures: Departures,
    pub(super) evictor: Evictor,
    pub(super) uses: Uses,
    pub(super) observer: Option<Arc<dyn EvictionObserver>>,
    sample: Sample,
    /// When the directory last grew, Unix seconds.
    grew_at: u64,
    /// Blocks that compaction has moved, and steps of it that have emptied something.
    blocks_moved: u64,
    pages_emptied: u64,
    /// What the arena had moved when housekeeping was last done: more now means that somebody writes.
    moved_when_last_maintained: u64,
    /// The most bytes that one visit has moved.
    worst_moved: u64,
    scratch: Vec<u8>,
    scratch_two: Vec<u8>,
}

impl Shard {
    pub(super) fn new(
        seeds: Seeds,
        budget: Arc<Budget>,
        bounds: Arc<ClassBounds>,
        records_max: u64,
        observer: Option<Arc<dyn EvictionObserver>>,
    ) -> Shard {
        Shard {
            directory: Directory::new(Arc::clone(&budget)),
            arena: Arena::new(Arc::clone(&budget)),
            huge: HugeTable::new(Arc::clone(&budget)),
            classes: Classes::new(bounds),
            seeds,
            budget,
            buckets_min: 1,
            records: 0,
            records_max,
            bucket_bytes: 0,
            block_bytes: 0,
            departures: Departures::default(),
            evictor: Evictor::new(),
            uses: Uses::new(),
            observer,
            sample: Sample::default(),
            grew_at: 0,
            blocks_moved: 0,
            pages_emptied: 0,
            moved_when_last_maintained: 0,
            worst_moved: 0,
            scratch: Vec::new(),
            scratch_two: Vec::new(),
        }
    }

    /// Makes an empty shard ready for records that come bucket by bucket: none is split on the way, and what a bucket takes
    /// is in the cache from one record to the next.
    ///
    /// Whatever the memory limit: four bytes each for a while. Without them all records would be in one bucket at first.
    pub(super) fn expect(&mut self, buckets: usize) {
        if self.records == 0 {
            while self.directory.len() < buckets && self.directory.grow() {}
            self.buckets_min = self.directory.len();
        }
    }

    /// Removes all records; returns what they took, to be dropped behind the lock.
    pub(super) fn clear(&mut self) -> (Directory, Arena, HugeTable) {
        let directory = std::mem::replace(&mut self.directory, Directory::new(Arc::clone(&self.budget)));
        let arena = std::mem::replace(&mut self.arena, Arena::new(Arc::clone(&self.budget)));
        self.buckets_min = 1;
        self.departures.count_cleared(self.observer.as_deref(), &self.classes.clear());
        (self.records, self.bucket_bytes, self.block_bytes) = (0, 0, 0);
        self.evictor = Evictor::new();
        self.uses = Uses::new();
        self.sample.clear();
        (directory, arena, self.huge.take())
    }

    pub(super) fn records(&self) -> u64 {
        self.records
    }

    pub(super) fn worst_moved(&self) -> u64 {
        self.worst_moved
    }

    // Looking.

    #[inline]
    pub(super) fn find(&self, handle: Handle, key: &Key<'_>) -> Spot {
        if handle.is_none() {
            return Spot::Nowhere { end: 0 };
        }
        // The walk below goes from record to record; ask for all its cache lines at once.
        self.arena.prefetch(handle);
        let bytes = self.arena.bytes(handle);
        let mut at = 0;
        loop {
            match record::find(bytes, at, key) {
                Found::Here { at } => return Spot::Here { at },
                Found::No { end } => return Spot::Nowhere { end },
                Found::Perhaps { at: stub, elsewhere } => {
                    if self.is_key_of(elsewhere, key) {
                        return Spot::Elsewhere { at: stub, elsewhere };
                    }
                    at = stub + STUB_LEN;
                }
            }
        }
    }

    fn is_key_of(&self, elsewhere: Elsewhere, key: &Key<'_>) -> bool {
        match elsewhere {
            Elsewhere::Block(handle) => {
                let bytes = self.arena.bytes(Handle(handle));
                let parts = whole(bytes, 0);
                parts.key_form == key.form
                    && parts.key.len() == key.stored_len
                    && key.is_at(bytes, parts.key.start)
            }
            Elsewhere::Huge(index) => *self.huge.get(index).key == *key.text,
        }
    }

    #[inline]
    fn record<'a>(&'a self, handle: Handle, spot: &Spot, digits: &'a mut [u8; 20]) -> Option<Record<'a>> {
        match spot {
            Spot::Nowhere { .. } => None,
            Spot::Here { at } => {
                let bytes = self.arena.bytes(handle);
                let parts = whole(bytes, *at);
                Some(Record::new(parts.value_text(bytes, digits), parts.attributes(bytes)))
            }
            Spot::Elsewhere { elsewhere, .. } => Some(self.record_elsewhere(*elsewhere, digits)),
        }
    }

    /// The same for who asks only how long the value is: nothing is unpacked.
    #[inline]
    fn record_of_len<'a>(
        &'a self,
        handle: Handle,
        spot: &Spot,
        digits: &'a mut [u8; 20],
    ) -> Option<Record<'a>> {
        let Spot::Here { at } = spot else { return self.record(handle, spot, digits) };
        let bytes = self.arena.bytes(handle);
        let parts = whole(bytes, *at);
        Some(Record::new(parts.value_of_len(bytes), parts.attributes(bytes)))
    }

    fn record_elsewhere<'a>(&'a self, elsewhere: Elsewhere, digits: &'a mut [u8; 20]) -> Record<'a> {
        match elsewhere {
            Elsewhere::Block(handle) => {
                let bytes = self.arena.bytes(Handle(handle));
                let parts = whole(bytes, 0);
                Record::new(parts.value_text(bytes, digits), parts.attributes(bytes))
            }
            Elsewhere::Huge(index) => self.huge.get(index).record(),
        }
    }

    #[inline]
    pub(super) fn view<T>(&self, key: &Key<'_>, see: impl FnOnce(Record<'_>) -> T) -> Option<T> {
        let handle = self.directory.get(self.directory.bucket_of(key.hash));
        let spot = self.find(handle, key);
        let mut digits = [0; 20];
        self.record(handle, &spot, &mut digits).map(see)
    }

    /// As `view`, and notes the use; tells too whether it is time to `settle`.
    #[inline]
    pub(super) fn view_noting<T>(
        &self,
        key: &Key<'_>,
        see: impl FnOnce(Record<'_>) -> T,
    ) -> (Option<T>, bool) {
        let bucket = self.directory.bucket_of(key.hash);
        let handle = self.directory.get(bucket);
        let spot = self.find(handle, key);
        let mut digits = [0; 20];
        let record = self.record(handle, &spot, &mut digits);
        if let Some(record) = &record {
            self.sample_read(key.hash as u32, record.attributes.expiry);
        }
        let seen = record.map(see);
        let of = if self.notes_uses() { self.use_at(bucket, &spot) } else { None };
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

    /// Lists the records of the bucket that this hash leads to, each as its hash and its offset; returns the bucket's
    /// block and how many low bits of the hash all of them share.
    pub(super) fn list_bucket(&self, hash: u64, list: &mut Vec<(u64, usize)>) -> (Handle, u32) {
        let bucket = self.directory.bucket_of(hash);
        let handle = self.directory.get(bucket);
        if !handle.is_none() {
            let bytes = self.arena.bytes(handle);
            let mut at = 0;
            while let Some(entry) = record::entry(bytes, at) {
                let hash = match &entry.body {
                    Body::Whole(parts) => self.seeds.of_stored(parts.key_form, &bytes[parts.key.clone()]),
                    Body::Stub { elsewhere: Elsewhere::Huge(index), .. } => self.huge.get(*index).hash,
                    Body::Stub { elsewhere: Elsewhere::Block(block), .. } => {
                        let bytes = self.arena.bytes(Handle(*block));
                        let parts = whole(bytes, 0);
                        self.seeds.of_stored(parts.key_form, &bytes[parts.key])
                    }
                };
                list.push((hash, at));
                at += entry.len;
            }
        }
        (handle, self.directory.bits_of(bucket))
    }

    /// Shows the record at an offset that `list_bucket` gave, the lock held throughout.
    pub(super) fn view_at<T>(
        &self,
        handle: Handle,
        at: usize,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> T,
    ) -> T {
        let (mut key_digits, mut digits) = ([0; 20], [0; 20]);
        let bucket = self.arena.bytes(handle);
        let entry = record::entry(bucket, at).expect("listed under the same lock");
        let (bytes, parts) = match entry.body {
            Body::Whole(parts) => (bucket, parts),
            Body::Stub { elsewhere: Elsewhere::Block(block), .. } => {
                let bytes = self.arena.bytes(Handle(block));
                (bytes, whole(bytes, 0))
            }
            Body::Stub { elsewhere: Elsewhere::Huge(index), .. } => {
                let huge = self.huge.get(index);
                return see(&huge.key, huge.record());
            }
        };
        let record = Record::new(parts.value_text(bytes, &mut digits), parts.attributes(bytes));
        see(parts.key_text(bytes, &mut key_digits), record)
    }

    /// key + value + 4 if there are flags, of what is at the spot, where this key leads to.
    #[inline]
    fn plain_size(&self, handle: Handle, spot: &Spot, key: &Key<'_>) -> Option<usize> {
        match spot {
            Spot::Nowhere { .. } => None,
            Spot::Here { at } => {
                let bytes = self.arena.bytes(handle);
                let parts = whole(bytes, *at);
                Some(key.text.len() + parts.value_text_len(bytes) + parts.flags_size())
            }
            Spot::Elsewhere { elsewhere, .. } => Some(self.plain_size_elsewhere(*elsewhere)),
        }
    }

    fn plain_size_elsewhere(&self, elsewhere: Elsewhere) -> usize {
        match elsewhere {
            Elsewhere::Block(handle) => {
                let bytes = self.arena.bytes(Handle(handle));
                whole(bytes, 0).plain_size(bytes)
            }
            Elsewhere::Huge(index) => self.huge.get(index).plain_size(),
        }
    }

    /// The plain size of a record, and whether it has an expiry.
    pub(super) fn nature_of(&self, handle: Handle, entry: &Entry) -> (usize, bool) {
        match &entry.body {
            Body::Whole(parts) => (parts.plain_size(self.arena.bytes(handle)), parts.has_expiry()),
            Body::Stub { elsewhere, .. } => {
                let expiry = self.record_elsewhere(*elsewhere, &mut [0; 20]).attributes.expiry;
                (self.plain_size_elsewhere(*elsewhere), expiry != Expiry::Never)
            }
        }
    }
}

/// The low 32 bits, at least, of the hash of an entry's key.
#[inline]
pub(super) fn low_hash(seeds: &Seeds, bytes: &[u8], entry: &Entry) -> u64 {
    match &entry.body {
        Body::Whole(parts) => seeds.of_stored(parts.key_form, &bytes[parts.key.clone()]),
        Body::Stub { fingerprint, .. } => u64::from(*fingerprint),
    }
}
