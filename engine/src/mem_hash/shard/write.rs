//! Writes records: from the decision of a visitor to the bytes in the bucket.

use super::accounts::VisitEffect;
use super::{HashShard, RecordLocation, VisitFailure};
use crate::arena::{Arena, BlockHandle, BlockKind, MemoryNeed, NoRoom};
use crate::huge::{self, HugeRecord};
use crate::mem_hash::key::Key;
use crate::mem_hash::queue::BucketTail;
use crate::mem_hash::record::{self, BUCKET_RECORD_MAX, RecordReference, STUB_LEN, inline_record};
use crate::record::{BLOCK_RECORD_MAX, KEY_LEN_MAX, VALUE_LEN_MAX};
use std::sync::Arc;
use todana_core::{Action, Attributes, Error, ErrorKind, Record, SharedBytes, Visitor, decimal};

/// The change that an action of a visitor requires.
pub(super) enum WritePlan {
    Nothing,
    Remove,
    /// The record to store is in the scratch buffer.
    Put {
        plain: usize,
        need: MemoryNeed,
    },
    /// A new huge record is stored. It is boxed because it is large and rare.
    PutHuge(Box<HugeRecord>),
    /// A huge record gets new attributes and keeps its value.
    RetagHuge(u32, Box<Attributes>),
}

/// The text of a short value that is being stored. It is kept so that `Visitor::applied` can
/// receive it without unpacking.
#[derive(Default)]
pub(super) struct StoredValueText {
    short: [u8; decimal::DIGITS_MAX],
    len: usize,
}

impl StoredValueText {
    #[inline]
    fn note(&mut self, value: &[u8]) {
        self.len = value.len();
        if let Some(short) = self.short.get_mut(..value.len()) {
            short.copy_from_slice(value);
        }
    }

    /// Returns the value. A long value is at the end of `stored`.
    #[inline]
    fn value<'a>(&'a self, stored: &'a [u8]) -> &'a [u8] {
        self.short.get(..self.len).unwrap_or_else(|| &stored[stored.len() - self.len..])
    }
}

impl HashShard {
    /// Runs a visitor on the record of a key. `room_was_made` states that other records have
    /// already been evicted for this write.
    pub(in crate::mem_hash) fn visit(
        &mut self,
        key: &Key<'_>,
        visitor: &mut dyn Visitor,
        room_was_made: bool,
    ) -> Result<(), VisitFailure> {
        let moved_before = self.arena.moved();
        let bucket = self.directory.bucket_of(key.hash);
        let handle = self.directory.get(bucket);
        let location = self.find(handle, key);
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        let (mut is_use, mut stores) = (false, false);
        let mut effect = (VisitEffect::Nothing, None);
        let mut shown = StoredValueText::default();
        let outcome = match self.plan(key, handle, &location, visitor, &mut scratch, &mut shown) {
            Err(failure) => Err(failure),
            Ok(plan) => {
                let mut location = location;
                effect = self.predict_effect(key, handle, &location, &plan);
                if self.notes_uses() {
                    is_use = !matches!(
                        (&location, &plan),
                        (RecordLocation::Absent { .. }, _) | (_, WritePlan::Remove)
                    );
                    stores = matches!(
                        plan,
                        WritePlan::Put { need: MemoryNeed::Growth, .. } | WritePlan::PutHuge(_)
                    );
                    let is_newcomer =
                        !is_use && matches!(plan, WritePlan::Put { .. } | WritePlan::PutHuge(_));
                    if is_newcomer && !room_was_made && self.evict_for_newcomer() {
                        location = self.find(self.directory.get(bucket), key);
                    }
                }
                self.apply_plan(plan, key, bucket, &location, visitor, &mut scratch, &shown)
            }
        };
        if is_use && outcome.is_ok() {
            self.enter_use(key, stores);
        }
        // One long record must not leave a long buffer allocated.
        if scratch.capacity() > 2 * BUCKET_RECORD_MAX {
            scratch = Vec::new();
        }
        self.scratch = scratch;
        if outcome.is_ok() {
            self.count_visit(key, effect);
            self.rebalance();
        }
        self.worst_moved = self.worst_moved.max(self.arena.moved() - moved_before);
        outcome
    }

    #[inline]
    fn plan(
        &self,
        key: &Key<'_>,
        handle: BlockHandle,
        location: &RecordLocation,
        visitor: &mut dyn Visitor,
        scratch: &mut Vec<u8>,
        shown: &mut StoredValueText,
    ) -> Result<WritePlan, VisitFailure> {
        let (mut digits, mut digits_again) = ([0; 20], [0; 20]);
        let old = if visitor.ignores_value() {
            self.record_of_len(handle, location, &mut digits)
        } else {
            self.record(handle, location, &mut digits)
        };
        let (record, need) = match visitor.visit(old) {
            Action::Keep => return Ok(WritePlan::Nothing),
            Action::Remove => return Ok(if old.is_some() { WritePlan::Remove } else { WritePlan::Nothing }),
            Action::Put(record) => (record, MemoryNeed::Growth),
            // The stored value is read here, because the visitor may have seen a placeholder.
            Action::Retag(attributes) => match self.record(handle, location, &mut digits_again) {
                None => return Ok(WritePlan::Nothing),
                // The write is upkeep, which no limit refuses: an existing record grows by a few
                // bytes at most, and a read must not fail because of it.
                Some(old) => (Record { attributes, ..old }, MemoryNeed::Upkeep),
            },
        };
        if key.text.len() > KEY_LEN_MAX || record.value.len() > VALUE_LEN_MAX {
            let what = if key.text.len() > KEY_LEN_MAX { "key" } else { "value" };
            return Err(VisitFailure::Error(Error::new(
                ErrorKind::Invalid,
                format!("{what} of {} bytes is too long", key.text.len().max(record.value.len())),
            )));
        }
        let plain = key.text.len() + record.value.len() + if record.attributes.flags != 0 { 4 } else { 0 };
        if plain <= BLOCK_RECORD_MAX {
            record::put_record(scratch, key, record.value, &record.attributes);
            shown.note(record.value);
            return Ok(WritePlan::Put { plain, need });
        }
        let old_value = match location {
            RecordLocation::Indirect { reference: RecordReference::Huge(index), .. } => {
                Some((*index, &self.huge.get(*index).value))
            }
            _ => None,
        };
        if let (Some(shared), Some((index, old))) = (record.shared, old_value)
            && Arc::ptr_eq(shared, old)
        {
            return Ok(WritePlan::RetagHuge(index, Box::new(record.attributes)));
        }
        let value: SharedBytes = match record.shared {
            Some(shared) => Arc::clone(shared),
            None => huge::share(record.value, &self.budget)?,
        };
        let key_text = key.text.into();
        let record = HugeRecord { key: key_text, hash: key.hash, value, attributes: record.attributes };
        Ok(WritePlan::PutHuge(Box::new(record)))
    }

    #[inline]
    #[allow(clippy::too_many_arguments, reason = "what a visit has found out, none of which outlives it")]
    fn apply_plan(
        &mut self,
        plan: WritePlan,
        key: &Key<'_>,
        bucket: usize,
        location: &RecordLocation,
        visitor: &mut dyn Visitor,
        scratch: &mut Vec<u8>,
        shown: &StoredValueText,
    ) -> Result<(), VisitFailure> {
        match plan {
            WritePlan::Nothing => return Ok(()),
            WritePlan::Remove => {
                self.remove(key, bucket, location)?;
                visitor.applied(None);
                return Ok(());
            }
            WritePlan::RetagHuge(index, attributes) => {
                self.classes.remove(self.huge.get(index).plain_size());
                self.huge.get_mut(index).attributes = *attributes;
                self.classes.add(self.huge.get(index).plain_size());
                visitor.applied(Some(self.huge.get(index).record()));
                return Ok(());
            }
            WritePlan::Put { plain, need } if scratch.len() <= BUCKET_RECORD_MAX => {
                self.put_in_bucket(bucket, location, key, scratch, plain, need)?;
                // The scratch buffer contains the record in its stored form.
                let attributes = if record::has_attributes(scratch[0]) {
                    record::inline_record(scratch, 0).attributes(scratch)
                } else {
                    Attributes::default()
                };
                visitor.applied(Some(Record::new(shown.value(scratch), attributes)));
            }
            WritePlan::Put { plain, need } => {
                let block = self.put_in_block(bucket, location, key, scratch, plain, need)?;
                visitor.applied(Some(self.referenced_record(RecordReference::Block(block.0), &mut [0; 20])));
            }
            WritePlan::PutHuge(record) => {
                let plain = record.plain_size();
                let index = self.huge.insert(*record);
                scratch.clear();
                record::put_stub(scratch, key.fingerprint(), RecordReference::Huge(index));
                if let Err(no_room) =
                    self.put_in_bucket(bucket, location, key, scratch, plain, MemoryNeed::Growth)
                {
                    self.huge.remove(index);
                    return Err(no_room.into());
                }
                visitor.applied(Some(self.huge.get(index).record()));
            }
        }
        Ok(())
    }

    /// Stores the bytes of a complete record or a stub in the bucket, in place of the old record.
    fn put_in_bucket(
        &mut self,
        bucket: usize,
        location: &RecordLocation,
        key: &Key<'_>,
        bytes: &mut Vec<u8>,
        plain: usize,
        need: MemoryNeed,
    ) -> Result<(), NoRoom> {
        let handle = self.directory.get(bucket);
        let old_plain = self.plain_size(handle, location, key);
        let (at, old_len) = match location {
            RecordLocation::Inline { at } => (*at, record::next(self.arena.bytes(handle), *at) - at),
            RecordLocation::Indirect { at, .. } => (*at, STUB_LEN),
            RecordLocation::Absent { end } => (*end, 0),
        };
        if old_len == 0 && (self.notes_uses() || self.has_marks(handle, at)) {
            self.put_newcomer(bucket, key, bytes)?;
        } else {
            self.splice(bucket, at, old_len, bytes, need)?;
        }
        if let RecordLocation::Indirect { reference, .. } = location {
            self.free_referenced(*reference);
        }
        match old_plain {
            Some(old) => self.classes.remove(old),
            None => self.records += 1,
        }
        self.classes.add(plain);
        Ok(())
    }

    /// Stores a record in a block of its own and a stub in the bucket. Returns the block.
    fn put_in_block(
        &mut self,
        bucket: usize,
        location: &RecordLocation,
        key: &Key<'_>,
        bytes: &mut Vec<u8>,
        plain: usize,
        need: MemoryNeed,
    ) -> Result<BlockHandle, NoRoom> {
        if let RecordLocation::Indirect { reference: RecordReference::Block(old), .. } = *location {
            let old_bytes = self.arena.bytes(BlockHandle(old));
            let old_parts = inline_record(old_bytes, 0);
            let (old_len, old_plain) = (old_parts.value.end, old_parts.plain_size(old_bytes));
            if Arena::block_size(old_len, BlockKind::Record)
                == Arena::block_size(bytes.len(), BlockKind::Record)
            {
                self.arena.write(BlockHandle(old), 0, bytes);
                self.block_bytes = self.block_bytes - old_len + bytes.len();
                self.classes.remove(old_plain);
                self.classes.add(plain);
                return Ok(BlockHandle(old));
            }
        }
        let len = bytes.len();
        let block = self.arena.alloc(len, BlockKind::Record, need)?;
        self.arena.write(block, 0, bytes);
        self.block_bytes += len;
        bytes.clear();
        record::put_stub(bytes, key.fingerprint(), RecordReference::Block(block.0));
        let outcome = self.put_in_bucket(bucket, location, key, bytes, plain, need);
        if outcome.is_err() {
            self.free_referenced(RecordReference::Block(block.0));
        }
        outcome.map(|()| block)
    }

    pub(in crate::mem_hash) fn free_referenced(&mut self, reference: RecordReference) {
        match reference {
            RecordReference::Block(handle) => {
                let len = inline_record(self.arena.bytes(BlockHandle(handle)), 0).value.end;
                self.block_bytes -= len;
                self.arena.free(BlockHandle(handle), len, BlockKind::Record);
            }
            RecordReference::Huge(index) => self.huge.remove(index),
        }
    }

    /// Returns true if a bucket whose records end at `end` has marks.
    #[inline]
    fn has_marks(&self, handle: BlockHandle, end: usize) -> bool {
        !handle.is_none() && self.arena.bytes(handle)[end] != record::END
    }

    /// Replaces `remove` bytes at the offset `at` of the bucket by `insert`. If the bucket has
    /// marks, the number of its records must not change.
    fn splice(
        &mut self,
        bucket: usize,
        at: usize,
        remove: usize,
        insert: &mut Vec<u8>,
        need: MemoryNeed,
    ) -> Result<(), NoRoom> {
        let handle = self.directory.get(bucket);
        let inserted = insert.len();
        let new = if handle.is_none() {
            insert.push(record::END);
            let new = self.arena.splice(handle, 0, 0..0, insert, BlockKind::Bucket, need);
            insert.pop();
            new?
        } else if remove == inserted {
            self.arena.write(handle, at, insert);
            handle
        } else {
            // The tail moves with the records. If the bucket has no records any more, it is freed
            // with its tail.
            let bytes = self.arena.bytes(handle);
            let end = record::end(bytes, at + remove);
            let len = end + BucketTail::len_at(bytes, end);
            let range = if end - remove + inserted == 0 { 0..len } else { at..at + remove };
            self.arena.splice(handle, len, range, insert, BlockKind::Bucket, need)?
        };
        if new != handle {
            self.directory.set(bucket, new);
        }
        self.bucket_bytes = self.bucket_bytes + inserted - remove;
        Ok(())
    }

    fn remove(&mut self, key: &Key<'_>, bucket: usize, location: &RecordLocation) -> Result<(), NoRoom> {
        let handle = self.directory.get(bucket);
        let plain = self.plain_size(handle, location, key).expect("only existing records are removed");
        let (at, len) = match location {
            RecordLocation::Inline { at } => (*at, record::next(self.arena.bytes(handle), *at) - at),
            RecordLocation::Indirect { at, .. } => (*at, STUB_LEN),
            RecordLocation::Absent { .. } => unreachable!("only existing records are removed"),
        };
        let end = record::end(self.arena.bytes(handle), at);
        if self.has_marks(handle, end) {
            self.remove_marked(bucket, at)?;
        } else {
            self.splice(bucket, at, len, &mut Vec::new(), MemoryNeed::Upkeep)?;
        }
        if let RecordLocation::Indirect { reference, .. } = location {
            self.free_referenced(*reference);
        }
        self.classes.remove(plain);
        self.records -= 1;
        Ok(())
    }
}
