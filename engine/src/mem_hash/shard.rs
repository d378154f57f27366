//! One shard: a directory of buckets, the arena that their blocks lie in, and the huge records.
//!
//! All that happens to a shard happens under its lock, so this is plain sequential code. Always true: a bucket's
//! block is named by its directory slot alone, a block of one record by its stub alone; each is found again from the
//! first key in the block, so any block may move at any time.

mod accounts;
mod sweep;

pub(super) use accounts::Cause;
use accounts::Happening;

use super::classes::{ClassBounds, Classes};
use super::directory::Directory;
use super::evict::{EvictionObserver, Evictor, records_in};
use super::key::{Key, Seeds};
use super::queue::{Mark, Tail, put_tail};
use super::record::{self, Body, Elsewhere, Entry, Found, STUB_LEN};
use super::sample::Sample;
use super::uses::Uses;
use crate::arena::{Arena, Budget, Effort, Handle, Kind, Need, NoRoom};
use crate::huge::{self, HugeRecord, HugeTable};
use crate::record::{BLOCK_RECORD_MAX, KEY_LEN_MAX, VALUE_LEN_MAX};
use std::sync::Arc;
use todana_core::{Action, Attributes, Error, ErrorKind, Expiry, Record, SharedBytes, Visitor};

/// A bucket is split when buckets hold more than this on average [measured: DESIGN, "Bucket size"] ...
const BUCKET_BYTES: usize = 168;
/// ... and more than this many records, so that long records share a bucket too.
const BUCKET_RECORDS: usize = 4;
/// Longer records get a block of their own.
const BUCKET_RECORD_MAX: usize = 1024;
/// Buckets that one step of housekeeping merges.
const MERGES_AT_ONCE: usize = 64;

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

/// Where a key's record is, within its bucket.
pub(super) enum Spot {
    /// Whole, in the bucket.
    Here(Entry),
    /// Its stub.
    Elsewhere { at: usize, elsewhere: Elsewhere },
    /// Nowhere; the bucket ends here.
    Nowhere { end: usize },
}

/// What a visitor's action comes to.
enum Plan {
    Nothing,
    Remove,
    /// The record is in the scratch buffer.
    Put {
        plain: usize,
        need: Need,
    },
    /// A new huge record.
    PutHuge(HugeRecord),
    /// The huge record keeps its value.
    RetagHuge(u32, Attributes),
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
    pub(super) evictions: u64,
    pub(super) evictions_with_expiry: u64,
    /// Records that had expired when their turn came.
    pub(super) reclaimed: u64,
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
            evictions: 0,
            evictions_with_expiry: 0,
            reclaimed: 0,
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
        self.classes.clear();
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
                Found::Here(entry) => return Spot::Here(entry),
                Found::No { end } => return Spot::Nowhere { end },
                Found::Perhaps(entry) => {
                    if let Body::Stub { elsewhere, .. } = entry.body
                        && self.is_key_of(elsewhere, key)
                    {
                        return Spot::Elsewhere { at: entry.at, elsewhere };
                    }
                    at = entry.at + entry.len;
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
            Spot::Here(entry) => {
                let bytes = self.arena.bytes(handle);
                let Body::Whole(parts) = &entry.body else { unreachable!("`find` tells stubs apart") };
                Some(Record::new(parts.value_text(bytes, digits), parts.attributes(bytes)))
            }
            Spot::Elsewhere { elsewhere, .. } => Some(self.record_elsewhere(*elsewhere, digits)),
        }
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

    // Writing.

    /// Runs a visitor. `room_was_made`: other records have gone for this one already, so none goes now.
    pub(super) fn visit(
        &mut self,
        key: &Key<'_>,
        visitor: &mut dyn Visitor,
        room_was_made: bool,
    ) -> Result<(), Trouble> {
        let moved_before = self.arena.moved();
        let bucket = self.directory.bucket_of(key.hash);
        let handle = self.directory.get(bucket);
        let spot = self.find(handle, key);
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        let (mut is_use, mut stores) = (false, false);
        let mut comes_to = (Happening::Nothing, None);
        let outcome = self.plan(key, handle, &spot, visitor, &mut scratch).and_then(|plan| {
            let mut spot = spot;
            comes_to = self.foresee(handle, &spot, &plan);
            if self.notes_uses() {
                is_use = !matches!((&spot, &plan), (Spot::Nowhere { .. }, _) | (_, Plan::Remove));
                stores = matches!(plan, Plan::Put { need: Need::Growth, .. } | Plan::PutHuge(_));
                let is_newcomer = !is_use && matches!(plan, Plan::Put { .. } | Plan::PutHuge(_));
                if is_newcomer && !room_was_made && self.make_way() {
                    spot = self.find(self.directory.get(bucket), key);
                }
            }
            self.carry_out(plan, key, bucket, spot, visitor, &mut scratch)
        });
        if is_use && outcome.is_ok() {
            self.enter_use(key, stores);
        }
        // One long record must not leave a long buffer behind.
        if scratch.capacity() > 2 * BUCKET_RECORD_MAX {
            scratch = Vec::new();
        }
        self.scratch = scratch;
        if outcome.is_ok() {
            self.count_visit(key, comes_to);
            self.keep_in_shape();
        }
        self.worst_moved = self.worst_moved.max(self.arena.moved() - moved_before);
        outcome
    }

    fn plan(
        &self,
        key: &Key<'_>,
        handle: Handle,
        spot: &Spot,
        visitor: &mut dyn Visitor,
        scratch: &mut Vec<u8>,
    ) -> Result<Plan, Trouble> {
        let mut digits = [0; 20];
        let old = self.record(handle, spot, &mut digits);
        let (record, need) = match visitor.visit(old) {
            Action::Keep => return Ok(Plan::Nothing),
            Action::Remove => return Ok(if old.is_some() { Plan::Remove } else { Plan::Nothing }),
            Action::Put(record) => (record, Need::Growth),
            Action::Retag(attributes) => match old {
                None => return Ok(Plan::Nothing),
                // Some bytes at most, for a record that is there: no limit may turn a read into a failure.
                Some(old) => (Record { attributes, ..old }, Need::Upkeep),
            },
        };
        if key.text.len() > KEY_LEN_MAX || record.value.len() > VALUE_LEN_MAX {
            let what = if key.text.len() > KEY_LEN_MAX { "key" } else { "value" };
            return Err(Trouble::Error(Error::new(
                ErrorKind::Invalid,
                format!("{what} of {} bytes is too long", key.text.len().max(record.value.len())),
            )));
        }
        let plain = key.text.len() + record.value.len() + if record.attributes.flags != 0 { 4 } else { 0 };
        if plain <= BLOCK_RECORD_MAX {
            record::put_record(scratch, key, record.value, &record.attributes);
            return Ok(Plan::Put { plain, need });
        }
        let old_value = match spot {
            Spot::Elsewhere { elsewhere: Elsewhere::Huge(index), .. } => {
                Some((*index, &self.huge.get(*index).value))
            }
            _ => None,
        };
        if let (Some(shared), Some((index, old))) = (record.shared, old_value)
            && Arc::ptr_eq(shared, old)
        {
            return Ok(Plan::RetagHuge(index, record.attributes));
        }
        let value: SharedBytes = match record.shared {
            Some(shared) => Arc::clone(shared),
            None => huge::share(record.value, &self.budget)?,
        };
        let key_text = key.text.into();
        Ok(Plan::PutHuge(HugeRecord { key: key_text, hash: key.hash, value, attributes: record.attributes }))
    }

    fn carry_out(
        &mut self,
        plan: Plan,
        key: &Key<'_>,
        bucket: usize,
        spot: Spot,
        visitor: &mut dyn Visitor,
        scratch: &mut Vec<u8>,
    ) -> Result<(), Trouble> {
        match plan {
            Plan::Nothing => return Ok(()),
            Plan::Remove => {
                self.remove(bucket, &spot)?;
                visitor.applied(None);
                return Ok(());
            }
            Plan::RetagHuge(index, attributes) => {
                self.classes.remove(self.huge.get(index).plain_size());
                self.huge.get_mut(index).attributes = attributes;
                self.classes.add(self.huge.get(index).plain_size());
                visitor.applied(Some(self.huge.get(index).record()));
                return Ok(());
            }
            Plan::Put { plain, need } if scratch.len() <= BUCKET_RECORD_MAX => {
                self.put_in_bucket(bucket, &spot, key, scratch, plain, need)?;
                // The scratch buffer holds what the bucket now holds.
                let entry = record::entry(scratch, 0).expect("a record was put");
                let Body::Whole(parts) = entry.body else { unreachable!("short records are whole") };
                let mut digits = [0; 20];
                let value = parts.value_text(scratch, &mut digits);
                visitor.applied(Some(Record::new(value, parts.attributes(scratch))));
            }
            Plan::Put { plain, need } => {
                let block = self.put_in_block(bucket, &spot, key, scratch, plain, need)?;
                visitor.applied(Some(self.record_elsewhere(Elsewhere::Block(block.0), &mut [0; 20])));
            }
            Plan::PutHuge(record) => {
                let plain = record.plain_size();
                let index = self.huge.insert(record);
                scratch.clear();
                record::put_stub(scratch, key.fingerprint(), Elsewhere::Huge(index));
                if let Err(no_room) = self.put_in_bucket(bucket, &spot, key, scratch, plain, Need::Growth) {
                    self.huge.remove(index);
                    return Err(no_room.into());
                }
                visitor.applied(Some(self.huge.get(index).record()));
            }
        }
        Ok(())
    }

    /// Puts these bytes (a whole record or a stub) into the bucket in place of what is at the spot.
    fn put_in_bucket(
        &mut self,
        bucket: usize,
        spot: &Spot,
        key: &Key<'_>,
        bytes: &mut Vec<u8>,
        plain: usize,
        need: Need,
    ) -> Result<(), NoRoom> {
        let handle = self.directory.get(bucket);
        let old_plain = self.plain_size(handle, spot);
        let (at, old_len) = match spot {
            Spot::Here(entry) => (entry.at, entry.len),
            Spot::Elsewhere { at, .. } => (*at, STUB_LEN),
            Spot::Nowhere { end } => (*end, 0),
        };
        if old_len == 0 && (self.notes_uses() || self.remembers(handle, at)) {
            self.put_newcomer(bucket, key, bytes)?;
        } else {
            self.splice(bucket, at, old_len, bytes, need)?;
        }
        if let Spot::Elsewhere { elsewhere, .. } = spot {
            self.free_elsewhere(*elsewhere);
        }
        match old_plain {
            Some(old) => self.classes.remove(old),
            None => self.records += 1,
        }
        self.classes.add(plain);
        Ok(())
    }

    /// Puts the record into a block of its own, and its stub into the bucket; returns the block.
    fn put_in_block(
        &mut self,
        bucket: usize,
        spot: &Spot,
        key: &Key<'_>,
        bytes: &mut Vec<u8>,
        plain: usize,
        need: Need,
    ) -> Result<Handle, NoRoom> {
        if let Spot::Elsewhere { elsewhere: Elsewhere::Block(old), .. } = *spot {
            let old_bytes = self.arena.bytes(Handle(old));
            let old_parts = whole(old_bytes, 0);
            let (old_len, old_plain) = (old_parts.value.end, old_parts.plain_size(old_bytes));
            if Arena::block_size(old_len, Kind::Record) == Arena::block_size(bytes.len(), Kind::Record) {
                self.arena.write(Handle(old), 0, bytes);
                self.block_bytes = self.block_bytes - old_len + bytes.len();
                self.classes.remove(old_plain);
                self.classes.add(plain);
                return Ok(Handle(old));
            }
        }
        let len = bytes.len();
        let block = self.arena.alloc(len, Kind::Record, need)?;
        self.arena.write(block, 0, bytes);
        self.block_bytes += len;
        bytes.clear();
        record::put_stub(bytes, key.fingerprint(), Elsewhere::Block(block.0));
        let outcome = self.put_in_bucket(bucket, spot, key, bytes, plain, need);
        if outcome.is_err() {
            self.free_elsewhere(Elsewhere::Block(block.0));
        }
        outcome.map(|()| block)
    }

    /// key + value + 4 if there are flags, of what is at the spot.
    #[inline]
    fn plain_size(&self, handle: Handle, spot: &Spot) -> Option<usize> {
        match spot {
            Spot::Nowhere { .. } => None,
            Spot::Here(entry) => match &entry.body {
                Body::Whole(parts) => Some(parts.plain_size(self.arena.bytes(handle))),
                Body::Stub { .. } => unreachable!("`find` tells stubs apart"),
            },
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

    pub(super) fn free_elsewhere(&mut self, elsewhere: Elsewhere) {
        match elsewhere {
            Elsewhere::Block(handle) => {
                let len = whole(self.arena.bytes(Handle(handle)), 0).value.end;
                self.block_bytes -= len;
                self.arena.free(Handle(handle), len, Kind::Record);
            }
            Elsewhere::Huge(index) => self.huge.remove(index),
        }
    }

    /// Whether a bucket whose records end at `end` remembers how they were used.
    #[inline]
    fn remembers(&self, handle: Handle, end: usize) -> bool {
        !handle.is_none() && self.arena.bytes(handle)[end] != record::END
    }

    /// Replaces `remove` bytes at `at` of the bucket by `insert`. Where the bucket remembers uses, the number of its
    /// records stays.
    fn splice(
        &mut self,
        bucket: usize,
        at: usize,
        remove: usize,
        insert: &mut Vec<u8>,
        need: Need,
    ) -> Result<(), NoRoom> {
        let handle = self.directory.get(bucket);
        let inserted = insert.len();
        let new = if handle.is_none() {
            insert.push(record::END);
            let new = self.arena.splice(handle, 0, 0..0, insert, Kind::Bucket, need);
            insert.pop();
            new?
        } else if remove == inserted {
            self.arena.write(handle, at, insert);
            handle
        } else {
            // The tail goes along; a bucket of nothing else goes with it.
            let bytes = self.arena.bytes(handle);
            let end = record::end(bytes, at + remove);
            let len = end + Tail::len_at(bytes, end);
            let range = if end - remove + inserted == 0 { 0..len } else { at..at + remove };
            self.arena.splice(handle, len, range, insert, Kind::Bucket, need)?
        };
        if new != handle {
            self.directory.set(bucket, new);
        }
        self.bucket_bytes = self.bucket_bytes + inserted - remove;
        Ok(())
    }

    fn remove(&mut self, bucket: usize, spot: &Spot) -> Result<(), NoRoom> {
        let handle = self.directory.get(bucket);
        let plain = self.plain_size(handle, spot).expect("only what is there is removed");
        let (at, len) = match spot {
            Spot::Here(entry) => (entry.at, entry.len),
            Spot::Elsewhere { at, .. } => (*at, STUB_LEN),
            Spot::Nowhere { .. } => unreachable!("only what is there is removed"),
        };
        let end = record::end(self.arena.bytes(handle), at);
        if self.remembers(handle, end) {
            self.remove_marked(bucket, at)?;
        } else {
            self.splice(bucket, at, len, &mut Vec::new(), Need::Upkeep)?;
        }
        if let Spot::Elsewhere { elsewhere, .. } = spot {
            self.free_elsewhere(*elsewhere);
        }
        self.classes.remove(plain);
        self.records -= 1;
        Ok(())
    }

    // Keeping in shape.

    /// At most one step of growth or shrinkage and one of compaction: no operation pays for many others.
    fn keep_in_shape(&mut self) {
        let buckets = self.directory.len();
        let (bytes, records) = (self.bucket_bytes, self.records as usize);
        if bytes > buckets * BUCKET_BYTES && records > buckets * BUCKET_RECORDS {
            // Without room for two smaller blocks the bucket stays as it is.
            let _ = self.split();
        } else if buckets > self.buckets_min
            && (bytes < buckets * BUCKET_BYTES / 5 * 2 || records < buckets * BUCKET_RECORDS / 5 * 2)
        {
            let _ = self.merge();
        }
        if self.arena.is_sparse() {
            self.compact(self.arena.effort());
        }
    }

    fn split(&mut self) -> Result<(), NoRoom> {
        let (from, bit, to) = self.directory.next_split();
        let handle = self.directory.get(from);
        let (mut low, mut high) = (std::mem::take(&mut self.scratch), std::mem::take(&mut self.scratch_two));
        low.clear();
        high.clear();
        let mut old_len = 0;
        if !handle.is_none() {
            let bytes = self.arena.bytes(handle);
            let end = record::end(bytes, 0);
            let tail = Tail::read(bytes, end);
            old_len = end + Tail::len_at(bytes, end);
            let (mut low_marks, mut high_marks) = (Vec::new(), Vec::new());
            let (mut at, mut index) = (0, 0);
            while let Some(entry) = record::entry(bytes, at) {
                let is_low = low_hash(&self.seeds, bytes, &entry) & bit == 0;
                let (half, marks) =
                    if is_low { (&mut low, &mut low_marks) } else { (&mut high, &mut high_marks) };
                half.extend_from_slice(&bytes[at..at + entry.len]);
                if !matches!(tail, Tail::Plain) {
                    marks.push(tail.mark(index));
                }
                at += entry.len;
                index += 1;
            }
            for (half, marks) in [(&mut low, low_marks), (&mut high, high_marks)] {
                match tail {
                    _ if half.is_empty() => {}
                    Tail::Plain => half.push(record::END),
                    // The ghosts may return to either half.
                    Tail::Queue { ghosts, .. } => put_tail(half, ghosts, marks.into_iter()),
                }
            }
        }
        let outcome = self.place_halves(from, to, handle, old_len, &low, &high);
        (self.scratch, self.scratch_two) = (low, high);
        outcome
    }

    fn place_halves(
        &mut self,
        from: usize,
        to: usize,
        handle: Handle,
        old_len: usize,
        low: &[u8],
        high: &[u8],
    ) -> Result<(), NoRoom> {
        let (low_handle, high_handle) = if high.is_empty() {
            (handle, Handle::NONE)
        } else if low.is_empty() {
            (Handle::NONE, handle)
        } else {
            let high_handle = self.arena.alloc(high.len(), Kind::Bucket, Need::Growth)?;
            let same_size =
                Arena::block_size(low.len(), Kind::Bucket) == Arena::block_size(old_len, Kind::Bucket);
            let low_handle = if same_size {
                handle
            } else {
                match self.arena.alloc(low.len(), Kind::Bucket, Need::Growth) {
                    Ok(block) => block,
                    Err(no_room) => {
                        self.arena.free(high_handle, high.len(), Kind::Bucket);
                        return Err(no_room);
                    }
                }
            };
            self.arena.write(high_handle, 0, high);
            self.arena.write(low_handle, 0, low);
            if !same_size {
                self.arena.free(handle, old_len, Kind::Bucket);
            }
            (low_handle, high_handle)
        };
        if self.directory.grow() {
            self.grew_at = self.budget.now().0;
            self.directory.set(from, low_handle);
            self.directory.set(to, high_handle);
            // The next bucket to be split is known long before.
            self.prefetch_bucket(self.directory.next_split().0);
        }
        Ok(())
    }

    fn merge(&mut self) -> Result<(), NoRoom> {
        let Some((last, into)) = self.directory.next_merge() else { return Ok(()) };
        let (moving, staying) = (self.directory.get(last), self.directory.get(into));
        if staying.is_none() {
            self.directory.set(into, moving);
        } else if !moving.is_none() {
            let (bytes, staying_bytes) = (self.arena.bytes(moving), self.arena.bytes(staying));
            let (end, at) = (record::end(bytes, 0), record::end(staying_bytes, 0));
            let (tail, staying_tail) = (Tail::read(bytes, end), Tail::read(staying_bytes, at));
            let len = end + Tail::len_at(bytes, end);
            let staying_len = at + Tail::len_at(staying_bytes, at);
            let mut content = std::mem::take(&mut self.scratch_two);
            content.clear();
            let outcome = if matches!((tail, staying_tail), (Tail::Plain, Tail::Plain)) {
                content.extend_from_slice(&bytes[..end]);
                self.arena.splice(staying, staying_len, at..at, &content, Kind::Bucket, Need::Upkeep)
            } else {
                content.extend_from_slice(&staying_bytes[..at]);
                content.extend_from_slice(&bytes[..end]);
                let marks_of = |bytes, tail: Tail<'_>| -> Vec<Mark> {
                    (0..records_in(bytes)).map(|index| tail.mark(index)).collect()
                };
                let mut marks = marks_of(staying_bytes, staying_tail);
                marks.extend(marks_of(bytes, tail));
                put_tail(&mut content, staying_tail.ghosts(), marks.into_iter());
                self.replace(staying, staying_len, &content, Need::Upkeep)
            };
            self.scratch_two = content;
            self.directory.set(into, outcome?);
            self.arena.free(moving, len, Kind::Bucket);
        }
        self.directory.set(last, Handle::NONE);
        self.directory.shrink();
        Ok(())
    }

    /// One step of compaction; true if something was won.
    pub(super) fn compact(&mut self, effort: Effort) -> bool {
        let Shard { arena, directory, seeds, .. } = self;
        // Stubs lie in the arena themselves, so they are mended after the step. Until then nobody looks.
        let mut moved_records = Vec::new();
        let mut blocks_moved = 0;
        let done = arena.compact(effort, &mut |bytes, kind, from, to| {
            let entry = record::entry(bytes, 0).expect("a block in use holds a record");
            let hash = low_hash(seeds, bytes, &entry);
            blocks_moved += 1;
            match kind {
                Kind::Bucket => {
                    let bucket = directory.bucket_of(hash);
                    debug_assert_eq!(directory.get(bucket), from);
                    directory.set(bucket, to);
                }
                Kind::Record => moved_records.push((hash, from, to)),
            }
        });
        for (hash, from, to) in moved_records {
            let handle = directory.get(directory.bucket_of(hash));
            let bytes = arena.bytes(handle);
            let mut at = 0;
            while let Some(entry) = record::entry(bytes, at) {
                if matches!(entry.body, Body::Stub { elsewhere: Elsewhere::Block(block), .. } if block == from.0)
                {
                    arena.write(handle, at + STUB_LEN - 4, &to.0.to_le_bytes());
                    break;
                }
                at += entry.len;
            }
        }
        self.blocks_moved += blocks_moved;
        self.pages_emptied += u64::from(done);
        done
    }

    /// Background housekeeping: one thorough step; true if there may be more to do.
    pub(super) fn maintain(&mut self) -> bool {
        let buckets = self.directory.len();
        if buckets > self.buckets_min && self.records == 0 {
            // Nothing to merge one by one.
            drop(self.clear());
            return true;
        }
        // Writes merge only when it is urgent, so that a size that swings costs nothing; what has settled is merged here.
        let mut merged = false;
        for _ in 0..MERGES_AT_ONCE {
            let buckets = self.directory.len();
            let is_loose = self.bucket_bytes < buckets * BUCKET_BYTES / 8 * 7
                || (self.records as usize) < buckets * BUCKET_RECORDS / 8 * 7;
            if buckets <= self.buckets_min || !is_loose || self.merge().is_err() {
                break;
            }
            merged = true;
        }
        // What is written to is best left with some slack; what rests is packed to the last page.
        let writes = self.arena.moved();
        let effort =
            if writes == self.moved_when_last_maintained { Effort::Leisurely } else { Effort::Thorough };
        let done = self.compact(effort) || self.arena.trim() || merged;
        self.moved_when_last_maintained = self.arena.moved();
        done
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

/// The whole record at `at`: what blocks of one record hold.
pub(super) fn whole(bytes: &[u8], at: usize) -> record::Parts {
    match record::entry(bytes, at).map(|entry| entry.body) {
        Some(Body::Whole(parts)) => parts,
        _ => unreachable!("a block of one record holds a whole record"),
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
