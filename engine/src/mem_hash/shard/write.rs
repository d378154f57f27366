//! Writes records: from the decision of a visitor to the bytes in the bucket.

use super::accounts::VisitEffect;
use super::{HashShard, InlineRecord, PreparedValues, RecordLocation, VisitFailure};
use crate::arena::{Arena, BlockHandle, BlockKind, MemoryNeed, NoRoom};
use crate::huge::{self, DecompressedValue, HugeRecord};
use crate::mem_hash::bits::{ColumnPatch, width_of};
use crate::mem_hash::block_record::{self, block_record, put_block_record};
use crate::mem_hash::encodings::{PlainBuffer, WrittenBytes};
use crate::mem_hash::group::{
    BUCKET_RECORD_MAX, BucketValue, RecordGroup, RecordPlace, RecordReference, ValueColumn,
};
use crate::mem_hash::key::Key;
use crate::mem_hash::row::{BucketRow, RowKey};
use crate::record::{BLOCK_RECORD_MAX, KEY_LEN_MAX, VALUE_LEN_MAX};
use std::sync::Arc;
use todana_core::{Action, Attributes, Error, ErrorKind, Record, Visitor, decimal};

/// The change that an action of a visitor requires.
pub(super) enum WritePlan {
    Nothing,
    Remove,
    /// The record to store fits into a bucket. Its text is in the scratch buffer.
    Put {
        row: BucketRow,
        plain: usize,
        need: MemoryNeed,
    },
    /// The record to store needs a block of its own, of this length. It is in the scratch buffer.
    PutBlock {
        len: usize,
        plain: usize,
        need: MemoryNeed,
    },
    /// A new huge record is stored. It is boxed because it is large and rare.
    PutHuge(Box<HugeRecord>),
    /// A huge record gets new attributes and keeps its value.
    RetagHuge(u32, Box<Attributes>),
}

/// The text of a value that is being stored. It is kept so that `Visitor::applied` can receive it
/// without unpacking.
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
        prepared: &PreparedValues,
    ) -> Result<(), VisitFailure> {
        let moved_before = self.arena.moved();
        let bucket = self.directory.bucket_of(key.hash);
        let location = self.find(bucket, key);
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        let (mut is_use, mut stores) = (false, false);
        let mut effect = (VisitEffect::Nothing, None);
        let mut shown = StoredValueText::default();
        let outcome = match self.plan(key, bucket, &location, visitor, prepared, &mut scratch, &mut shown) {
            Err(failure) => Err(failure),
            Ok(plan) => {
                let mut location = location;
                effect = self.predict_effect(key, bucket, &location, &plan);
                if self.notes_uses() {
                    is_use =
                        !matches!((&location, &plan), (RecordLocation::Absent, _) | (_, WritePlan::Remove));
                    stores = matches!(
                        plan,
                        WritePlan::Put { need: MemoryNeed::Growth, .. }
                            | WritePlan::PutBlock { need: MemoryNeed::Growth, .. }
                            | WritePlan::PutHuge(_)
                    );
                    let plain = match &plan {
                        WritePlan::Put { plain, .. } | WritePlan::PutBlock { plain, .. } => Some(*plain),
                        WritePlan::PutHuge(record) => Some(record.plain_size()),
                        _ => None,
                    };
                    if let Some(plain) = plain.filter(|_| !is_use && !room_was_made)
                        && self.evict_for_newcomer(plain)
                    {
                        location = self.find(bucket, key);
                    }
                }
                self.apply_plan(plan, key, bucket, &location, visitor, prepared, &scratch, &shown)
            }
        };
        if is_use && outcome.is_ok() {
            self.enter_use(key, stores);
        }
        self.return_scratch(scratch);
        if outcome.is_ok() {
            self.count_visit(key, effect);
            self.rebalance();
        }
        self.worst_moved = self.worst_moved.max(self.arena.moved() - moved_before);
        outcome
    }

    /// Keeps a scratch buffer for the next write, unless it is long.
    #[inline]
    pub(super) fn return_scratch(&mut self, scratch: Vec<u8>) {
        self.scratch = if scratch.capacity() > 2 * BUCKET_RECORD_MAX { Vec::new() } else { scratch };
    }

    #[inline]
    #[allow(clippy::too_many_arguments, reason = "as in `apply_plan`")]
    fn plan(
        &self,
        key: &Key<'_>,
        bucket: usize,
        location: &RecordLocation,
        visitor: &mut dyn Visitor,
        prepared: &PreparedValues,
        scratch: &mut Vec<u8>,
        shown: &mut StoredValueText,
    ) -> Result<WritePlan, VisitFailure> {
        let decompressed = prepared.decompressed.as_ref();
        let (mut buffer, mut buffer_again) = (PlainBuffer::default(), PlainBuffer::default());
        let ignores_value = visitor.ignores_value();
        let old = if ignores_value {
            self.record_of_len(bucket, location, &mut buffer)
        } else {
            self.note_huge_use(location);
            match self.record(bucket, location, &mut buffer) {
                None => None,
                Some(record) => Some(
                    DecompressedValue::shown(record, visitor, decompressed)
                        .map_err(VisitFailure::Compressed)?,
                ),
            }
        };
        let (record, need) = match visitor.visit(old) {
            Action::Keep => return Ok(WritePlan::Nothing),
            Action::Remove => return Ok(if old.is_some() { WritePlan::Remove } else { WritePlan::Nothing }),
            Action::Put(record) => (record, MemoryNeed::Growth),
            Action::Retag(attributes) => {
                let old = match old {
                    Some(old) if !ignores_value && old.shared.is_none() => Some(old),
                    // The visitor may have seen a placeholder.
                    _ => self.record(bucket, location, &mut buffer_again),
                };
                let Some(old) = old else { return Ok(WritePlan::Nothing) };
                // The visitor is shown the value once more, by `applied`.
                if let Err(stored) = DecompressedValue::shown(old, visitor, decompressed) {
                    return Err(VisitFailure::Compressed(stored));
                }
                let record = Record { attributes, ..old };
                if let Some(plan) = self.plan_retag(key, bucket, location, record, scratch) {
                    shown.note(record.value);
                    return Ok(plan);
                }
                (record, MemoryNeed::Upkeep)
            }
        };
        if key.text.len() > KEY_LEN_MAX || record.value.len() > VALUE_LEN_MAX {
            let what = if key.text.len() > KEY_LEN_MAX { "key" } else { "value" };
            return Err(VisitFailure::Error(Error::new(
                ErrorKind::Invalid,
                format!("{what} of {} bytes is too long", key.text.len().max(record.value.len())),
            )));
        }
        let plain = plain_size(key, &record);
        if BucketRow::fits(key.text.len(), record.value.len(), &record.attributes) {
            let row = BucketRow::new(key, record.value, &record.attributes, &self.encodings, scratch);
            if row.value.dictionary() != 0 {
                // For `StoredValueText`.
                scratch.extend_from_slice(record.value);
            }
            shown.note(record.value);
            return Ok(WritePlan::Put { row, plain, need });
        }
        if plain <= BLOCK_RECORD_MAX {
            let mut buffer = PlainBuffer::default();
            let form = prepared.encoded.as_ref().and_then(|of| of.form_of(record.value, &self.encodings));
            let encodes_here = prepared.encodes_here || prepared.encoded.is_some();
            if form.is_none() && !encodes_here && self.encodings.is_slow_for(record.value) {
                return Err(VisitFailure::Unencoded(record.value.into(), Arc::clone(&self.encodings)));
            }
            let stored = form.unwrap_or_else(|| self.encodings.stored_value(record.value, None, &mut buffer));
            let row = BucketRow::new_short(key, stored, &record.attributes, &self.encodings, scratch);
            if row.is_none() {
                put_block_record(scratch, key, stored, &record.attributes);
            }
            let len = scratch.len();
            if stored.1 != 0 {
                // As above.
                scratch.extend_from_slice(record.value);
            }
            shown.note(record.value);
            return Ok(match row {
                Some(row) => WritePlan::Put { row, plain, need },
                None => WritePlan::PutBlock { len, plain, need },
            });
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
        let value = huge::value_to_store(key.text.len(), &record, &self.budget)?;
        let record = HugeRecord::new(key.text.into(), key.hash, value, record.attributes);
        Ok(WritePlan::PutHuge(Box::new(record)))
    }

    /// Plans other attributes for the record at this location, whose value keeps its stored form.
    /// The write is upkeep, which no limit refuses: the record grows by a few bytes at most, and a
    /// read must not fail because of it. Returns `None` for a huge record.
    fn plan_retag(
        &self,
        key: &Key<'_>,
        bucket: usize,
        location: &RecordLocation,
        record: Record<'_>,
        scratch: &mut Vec<u8>,
    ) -> Option<WritePlan> {
        let (plain, need) = (plain_size(key, &record), MemoryNeed::Upkeep);
        let mut digits = [0; 20];
        let stored = match *location {
            _ if plain > BLOCK_RECORD_MAX => return None,
            RecordLocation::Inline(InlineRecord { value, .. }) => match value {
                BucketValue::Number(_) => (record.value, 0),
                BucketValue::Text { at, len, dictionary } => {
                    (&self.bytes_of(bucket)[at as usize..][..len as usize], dictionary)
                }
            },
            RecordLocation::Indirect { reference: RecordReference::Block(block), .. } => {
                let bytes = self.arena.bytes(BlockHandle(block));
                (block_record(bytes).value_text(bytes, &mut digits), block_record::dictionary_of(bytes))
            }
            _ => return None,
        };
        let encodings = &self.encodings;
        let row = if BucketRow::fits(key.text.len(), record.value.len(), &record.attributes) {
            Some(BucketRow::with_stored_value(key, stored, &record.attributes, encodings, scratch))
        } else {
            BucketRow::new_short(key, stored, &record.attributes, encodings, scratch)
        };
        if row.is_none() {
            put_block_record(scratch, key, stored, &record.attributes);
        }
        let len = scratch.len();
        if stored.1 != 0 {
            // For `StoredValueText`.
            scratch.extend_from_slice(record.value);
        }
        Some(match row {
            Some(row) => WritePlan::Put { row, plain, need },
            None => WritePlan::PutBlock { len, plain, need },
        })
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
        prepared: &PreparedValues,
        scratch: &[u8],
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
                let record = self.huge.get(index).record();
                let shown = DecompressedValue::shown(record, visitor, prepared.decompressed.as_ref());
                visitor.applied(Some(shown.unwrap_or(record)));
                return Ok(());
            }
            WritePlan::Put { row, plain, need } => {
                self.put_in_bucket(bucket, location, key, row, scratch, plain, need)?;
                self.count_written(need, plain, row.stored_len());
                // The scratch buffer contains the attributes as they are stored.
                let attributes = row.attributes.read(scratch);
                visitor.applied(Some(Record::new(shown.value(scratch), attributes)));
            }
            WritePlan::PutBlock { len, plain, need } => {
                let block = &scratch[..len];
                self.put_in_block(bucket, location, key, block, plain, need)?;
                self.count_written(need, plain, len);
                let attributes = block_record(block).attributes(block);
                visitor.applied(Some(Record::new(shown.value(scratch), attributes)));
            }
            WritePlan::PutHuge(record) => {
                let plain = record.plain_size();
                let index = self.huge.insert(*record);
                let stub = BucketRow::new_stub(key.fingerprint(), RecordReference::Huge(index));
                if let Err(no_room) =
                    self.put_in_bucket(bucket, location, key, stub, &[], plain, MemoryNeed::Growth)
                {
                    self.huge.remove(index);
                    return Err(no_room.into());
                }
                visitor.applied(Some(self.huge.get(index).record()));
            }
        }
        Ok(())
    }

    /// Counts a written value, unless it has kept the form that it had.
    #[inline]
    fn count_written(&mut self, need: MemoryNeed, plain: usize, stored: usize) {
        if need == MemoryNeed::Growth {
            self.written += WrittenBytes { plain: plain as u64, stored: stored as u64 };
        }
    }

    /// Stores a record or a stub in the bucket, in place of the old record. The row refers to
    /// `new`.
    #[inline]
    #[allow(clippy::too_many_arguments, reason = "as in `apply_plan`")]
    fn put_in_bucket(
        &mut self,
        bucket: usize,
        location: &RecordLocation,
        key: &Key<'_>,
        row: BucketRow,
        new: &[u8],
        plain: usize,
        need: MemoryNeed,
    ) -> Result<(), NoRoom> {
        let old_plain = self.plain_size(bucket, location, key);
        match location {
            RecordLocation::Absent => self.insert(bucket, key, row, new, need)?,
            RecordLocation::Inline(old) => {
                if !self.overwrite(bucket, old, &row, new) {
                    self.replace_row(bucket, old.place, Some(row), new, need)?;
                }
            }
            RecordLocation::Indirect { place, reference } => {
                self.replace_row(bucket, *place, Some(row), new, need)?;
                self.free_referenced(*reference);
            }
        }
        match old_plain {
            Some(old) => self.classes.remove(old),
            None => self.records += 1,
        }
        self.classes.add(plain);
        Ok(())
    }

    /// Overwrites a record by one that takes the same space in the columns. Returns false if the
    /// new one does not.
    #[inline]
    fn overwrite(&mut self, bucket: usize, old: &InlineRecord, row: &BucketRow, new: &[u8]) -> bool {
        let is_encoded_alike = old.value.dictionary() == row.value.dictionary();
        if matches!(row.key, RowKey::Stub { .. })
            || !is_encoded_alike
            || !old.attributes.is_like(&row.attributes)
        {
            return false;
        }
        let handle = self.directory.get(bucket);
        match (old.value, row.value) {
            (BucketValue::Text { at, len, .. }, BucketValue::Text { at: from, len: new_len, .. })
                if len == new_len =>
            {
                self.arena.write(handle, at as usize, &new[from as usize..][..len as usize]);
            }
            (BucketValue::Number(old_number), BucketValue::Number(number)) if old_number == number => {}
            (BucketValue::Number(_), BucketValue::Number(number)) => {
                let bytes = self.arena.bytes(handle);
                let address = self.address(bucket);
                let RecordPlace { group_at, index } = old.place;
                match RecordGroup::read(bytes, group_at as usize, &address) {
                    Some(RecordGroup { values: ValueColumn::Number(width), values_at, .. })
                        if width_of(number) <= u32::from(width) =>
                    {
                        let patch =
                            ColumnPatch::new(bytes, values_at, index as usize, u32::from(width), number);
                        self.arena.write(handle, patch.at, patch.bytes());
                    }
                    _ => return false,
                }
            }
            _ => return false,
        }
        let len = usize::from(row.attributes.len);
        if len > 0 {
            let fields = &new[row.attributes.at as usize..][..len];
            self.arena.write(handle, old.attributes.at as usize, fields);
        }
        true
    }

    /// Stores a record in a block of its own and a stub in the bucket.
    fn put_in_block(
        &mut self,
        bucket: usize,
        location: &RecordLocation,
        key: &Key<'_>,
        bytes: &[u8],
        plain: usize,
        need: MemoryNeed,
    ) -> Result<(), NoRoom> {
        if let RecordLocation::Indirect { reference: RecordReference::Block(old), .. } = *location {
            let old_bytes = self.arena.bytes(BlockHandle(old));
            let old_parts = block_record(old_bytes);
            let old_plain = block_record::plain_size(old_bytes, &old_parts, &self.encodings);
            let old_len = old_parts.value.end;
            if Arena::block_size(old_len, BlockKind::Record)
                == Arena::block_size(bytes.len(), BlockKind::Record)
            {
                self.arena.write(BlockHandle(old), 0, bytes);
                self.block_bytes = self.block_bytes - old_len + bytes.len();
                self.classes.remove(old_plain);
                self.classes.add(plain);
                return Ok(());
            }
        }
        let block = self.store_block(bytes, need)?;
        let stub = BucketRow::new_stub(key.fingerprint(), RecordReference::Block(block.0));
        let outcome = self.put_in_bucket(bucket, location, key, stub, &[], plain, need);
        if outcome.is_err() {
            self.free_referenced(RecordReference::Block(block.0));
        }
        outcome
    }

    /// Stores a record in a new block.
    pub(super) fn store_block(&mut self, record: &[u8], need: MemoryNeed) -> Result<BlockHandle, NoRoom> {
        let block = self.arena.alloc(record.len(), BlockKind::Record, need)?;
        self.arena.write(block, 0, record);
        self.block_bytes += record.len();
        Ok(block)
    }

    pub(in crate::mem_hash) fn free_referenced(&mut self, reference: RecordReference) {
        match reference {
            RecordReference::Block(handle) => {
                let len = block_record(self.arena.bytes(BlockHandle(handle))).value.end;
                self.block_bytes -= len;
                self.arena.free(BlockHandle(handle), len, BlockKind::Record);
            }
            RecordReference::Huge(index) => self.huge.remove(index),
        }
    }

    fn remove(&mut self, key: &Key<'_>, bucket: usize, location: &RecordLocation) -> Result<(), NoRoom> {
        let (Some(place), Some(plain)) = (location.place(), self.plain_size(bucket, location, key)) else {
            unreachable!("only existing records are removed")
        };
        self.replace_row(bucket, place, None, &[], MemoryNeed::Upkeep)?;
        if let RecordLocation::Indirect { reference, .. } = location {
            self.free_referenced(*reference);
        }
        self.classes.remove(plain);
        self.records -= 1;
        Ok(())
    }
}

/// Returns the size of a record for statistics: the lengths of the key and the value, + 4 if there
/// are flags.
#[inline]
fn plain_size(key: &Key<'_>, record: &Record<'_>) -> usize {
    key.text.len() + record.value.len() + if record.attributes.flags != 0 { 4 } else { 0 }
}
