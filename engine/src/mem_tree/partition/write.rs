//! Writes records: stores them in leaves and removes them from leaves.

use super::super::leaf::STORED_KEY_MAX;
use super::super::leaf::{
    LeafBuilder, LeafEntry, LeafEntryBody, LeafItem, LeafPosition, common_len, entry, put_record, put_stub,
    stored,
};
use super::super::separators::between;
use super::{LeafLocation, Partition, inline_record};
use crate::arena::{Arena, BlockHandle, BlockKind, MemoryNeed, NoRoom};
use crate::huge::{self, DecompressedValue, HugeRecord};
use crate::mem_hash::DepartureCause;
use crate::mem_tree::survey::VisitEffect;
use crate::record::{BLOCK_RECORD_MAX, KEY_LEN_MAX, RecordReference, VALUE_LEN_MAX};
use std::ops::Range;
use std::sync::Arc;
use todana_core::{Action, Attributes, Error, ErrorKind, Expiry, Record, SharedBytes, Visitor};

/// A leaf that is shorter than the maximum divided by this number is joined with a neighbour, if
/// the result is shorter than the maximum by at least as much.
const SPARSE_PART: usize = 4;

/// The reason why a visit failed.
#[derive(Debug)]
pub(in crate::mem_tree) enum VisitFailure {
    NoRoom(NoRoom),
    /// The visitor reads this value, so it must be decompressed, outside of the lock.
    Compressed(SharedBytes),
    Error(Error),
}

impl From<NoRoom> for VisitFailure {
    fn from(no_room: NoRoom) -> Self {
        VisitFailure::NoRoom(no_room)
    }
}

/// The change that an action of a visitor requires.
enum WritePlan {
    Nothing,
    Remove,
    /// The record to store is in the scratch buffer, without the first `omitted` bytes of its key.
    Put {
        plain: usize,
        need: MemoryNeed,
        omitted: usize,
    },
    /// The record to store is in the scratch buffer. It is too long for a leaf and gets a block of
    /// its own.
    PutInBlock {
        plain: usize,
        need: MemoryNeed,
    },
    /// A new huge record is stored.
    PutHuge(HugeRecord),
    /// A huge record gets new attributes and keeps its value.
    RetagHuge(u32, Attributes),
}

/// The effect that a plan will have on the statistics.
struct PredictedEffect {
    /// The hash of the record's key.
    hash: u64,
    effect: VisitEffect,
    /// The plain size of the record that is replaced or removed, if that record has expired.
    expired: Option<usize>,
}

impl Partition {
    /// Runs a visitor on a key of this segment. `decompressed` is the old value if an earlier
    /// attempt has failed because it was compressed.
    pub(in crate::mem_tree) fn visit(
        &mut self,
        slot: u32,
        key: &[u8],
        visitor: &mut dyn Visitor,
        decompressed: Option<&DecompressedValue>,
    ) -> Result<(), VisitFailure> {
        let at = self.open_at(slot, key)?;
        if !at.handle.is_none() {
            self.prefetch_leaf(at.handle);
        }
        let position = self.find(at.handle, key);
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        let plan = self.plan(key, at, &position, visitor, decompressed, &mut scratch);
        let outcome = plan.and_then(|plan| {
            let predicted = self.predict_effect(key, at, &position, &plan);
            self.apply_plan(plan, key, at, &position, visitor, decompressed, &scratch)?;
            self.count_visit(predicted);
            Ok(())
        });
        // One long record must not leave a long buffer allocated.
        if scratch.capacity() > 4 * self.limits.record_max {
            scratch = Vec::new();
        }
        self.scratch = scratch;
        self.close_excess(key);
        if outcome.is_ok() && self.arena.is_sparse() {
            self.compact(self.arena.effort());
        }
        outcome
    }

    fn plan(
        &self,
        key: &[u8],
        at: LeafLocation,
        position: &LeafPosition,
        visitor: &mut dyn Visitor,
        decompressed: Option<&DecompressedValue>,
        scratch: &mut Vec<u8>,
    ) -> Result<WritePlan, VisitFailure> {
        let mut digits = [0; 20];
        let mut old =
            position.found.as_ref().map(|entry| self.record(self.leaf(at.handle), entry, &mut digits));
        if let Some(record) = old.filter(|_| !visitor.ignores_value()) {
            position.found.iter().for_each(|entry| self.note_huge_use(entry));
            let shown = DecompressedValue::shown(record, visitor, decompressed);
            old = Some(shown.map_err(VisitFailure::Compressed)?);
        }
        let (record, need) = match visitor.visit(old) {
            Action::Keep => return Ok(WritePlan::Nothing),
            Action::Remove => return Ok(if old.is_some() { WritePlan::Remove } else { WritePlan::Nothing }),
            Action::Put(record) => (record, MemoryNeed::Growth),
            Action::Retag(attributes) => match old {
                None => return Ok(WritePlan::Nothing),
                // The visitor is shown the value once more, by `applied`.
                Some(old) if let Err(stored) = DecompressedValue::shown(old, visitor, decompressed) => {
                    return Err(VisitFailure::Compressed(stored));
                }
                // The write is upkeep, which no limit refuses: an existing record grows by a few
                // bytes at most, and a read must not fail because of it.
                Some(old) => (Record { attributes, ..old }, MemoryNeed::Upkeep),
            },
        };
        if key.len() > KEY_LEN_MAX || record.value.len() > VALUE_LEN_MAX {
            let what = if key.len() > KEY_LEN_MAX { "key" } else { "value" };
            return Err(VisitFailure::Error(Error::new(
                ErrorKind::Invalid,
                format!("{what} of {} bytes is too long", key.len().max(record.value.len())),
            )));
        }
        let plain = key.len() + record.value.len() + if record.attributes.flags != 0 { 4 } else { 0 };
        if plain <= BLOCK_RECORD_MAX {
            // The plain size is accurate enough: packing turns up to 20 digits into 9 bytes or
            // more.
            if key.len() <= STORED_KEY_MAX && plain <= self.limits.record_max {
                let omitted = match position.shares_prefix {
                    _ if at.handle.is_none() => 0,
                    true => self.leaf(at.handle).prefix().len(),
                    false => common_len(self.leaf(at.handle).prefix(), stored(key)),
                };
                put_record(scratch, &key[omitted..], record.value, &record.attributes);
                return Ok(WritePlan::Put { plain, need, omitted });
            }
            put_record(scratch, key, record.value, &record.attributes);
            return Ok(WritePlan::PutInBlock { plain, need });
        }
        let old_value = match position.found {
            Some(LeafEntry {
                body: LeafEntryBody::Stub { reference: RecordReference::Huge(index), .. },
                ..
            }) => Some((index, &self.huge.get(index).value)),
            _ => None,
        };
        if let (Some(shared), Some((index, old))) = (record.shared, old_value)
            && Arc::ptr_eq(shared, old)
        {
            return Ok(WritePlan::RetagHuge(index, record.attributes));
        }
        let value = huge::value_to_store(key.len(), &record, &self.budget)?;
        Ok(WritePlan::PutHuge(HugeRecord::new(key.into(), 0, value, record.attributes)))
    }

    /// Returns the effect that a plan will have, for statistics. Returns `None` if there is no
    /// sample.
    #[inline]
    fn predict_effect(
        &self,
        key: &[u8],
        at: LeafLocation,
        position: &LeafPosition,
        plan: &WritePlan,
    ) -> Option<PredictedEffect> {
        let hash = self.sample.hash(key)?;
        let effect = match plan {
            WritePlan::Nothing if position.found.is_none() => VisitEffect::Nothing,
            WritePlan::Nothing | WritePlan::RetagHuge(..) => VisitEffect::Used,
            WritePlan::Put { need: MemoryNeed::Upkeep, .. }
            | WritePlan::PutInBlock { need: MemoryNeed::Upkeep, .. } => VisitEffect::Used,
            WritePlan::Put { plain, .. } | WritePlan::PutInBlock { plain, .. } => {
                VisitEffect::Stored { plain: *plain }
            }
            WritePlan::PutHuge(record) => VisitEffect::Stored { plain: record.plain_size() },
            WritePlan::Remove => VisitEffect::Removed,
        };
        let ends = matches!(effect, VisitEffect::Stored { .. } | VisitEffect::Removed);
        let expired = position.found.as_ref().filter(|_| ends).and_then(|entry| {
            let leaf = self.leaf(at.handle);
            let expiry = self.expiry_of(leaf, entry);
            let is_over = expiry != Expiry::Never && !expiry.is_live(self.budget.now());
            is_over.then(|| self.plain_size(leaf, entry))
        });
        Some(PredictedEffect { hash, effect, expired })
    }

    /// Counts a predicted effect.
    #[inline]
    fn count_visit(&mut self, predicted: Option<PredictedEffect>) {
        let Some(PredictedEffect { hash, effect, expired }) = predicted else { return };
        if let Some(plain) = expired {
            let (seen, now) = (self.sample.seen(hash), self.sample.now());
            let observer = self.sample.observer.as_deref();
            self.departures.count(observer, (plain, DepartureCause::Ended, true), seen, now);
        }
        self.sample.note(hash, effect);
    }

    #[allow(clippy::too_many_arguments, reason = "what a visit has found out, none of which outlives it")]
    fn apply_plan(
        &mut self,
        plan: WritePlan,
        key: &[u8],
        at: LeafLocation,
        position: &LeafPosition,
        visitor: &mut dyn Visitor,
        decompressed: Option<&DecompressedValue>,
        scratch: &[u8],
    ) -> Result<(), VisitFailure> {
        match plan {
            WritePlan::Nothing => {}
            WritePlan::Remove => {
                self.remove(at, position)?;
                visitor.applied(None);
            }
            WritePlan::RetagHuge(index, attributes) => {
                self.classes.remove(self.huge.get(index).plain_size());
                self.huge.get_mut(index).attributes = attributes;
                self.classes.add(self.huge.get(index).plain_size());
                let record = self.huge.get(index).record();
                let shown = DecompressedValue::shown(record, visitor, decompressed);
                visitor.applied(Some(shown.unwrap_or(record)));
            }
            WritePlan::Put { plain, need, omitted } => {
                self.put(at, position, key, scratch, omitted, plain, need)?;
                // The scratch buffer contains the record in its stored form.
                let parts = inline_record(scratch);
                let mut digits = [0; 20];
                let value = parts.value_text(scratch, &mut digits);
                visitor.applied(Some(Record::new(value, parts.attributes(scratch))));
            }
            WritePlan::PutInBlock { plain, need } => {
                let block = self.put_in_block(at, position, key, scratch, plain, need)?;
                visitor.applied(Some(self.referenced_record(RecordReference::Block(block.0), &mut [0; 20])));
            }
            WritePlan::PutHuge(record) => {
                let plain = record.plain_size();
                let index = self.huge.insert(record);
                if let Err(no_room) =
                    self.put_stub(at, position, key, RecordReference::Huge(index), plain, MemoryNeed::Growth)
                {
                    self.huge.remove(index);
                    return Err(no_room.into());
                }
                visitor.applied(Some(self.huge.get(index).record()));
            }
        }
        Ok(())
    }

    /// Stores a record in a block of its own and a stub in the leaf. Returns the block.
    fn put_in_block(
        &mut self,
        at: LeafLocation,
        position: &LeafPosition,
        key: &[u8],
        bytes: &[u8],
        plain: usize,
        need: MemoryNeed,
    ) -> Result<BlockHandle, NoRoom> {
        if let Some(LeafEntry {
            body: LeafEntryBody::Stub { reference: RecordReference::Block(old), .. },
            ..
        }) = &position.found
        {
            let old = BlockHandle(*old);
            let old_len = inline_record(self.arena.bytes(old)).value.end;
            if Arena::block_size(old_len, BlockKind::Record)
                == Arena::block_size(bytes.len(), BlockKind::Record)
            {
                let old_plain = self.plain_at(at, position).expect("it is there");
                self.arena.write(old, 0, bytes);
                self.block_bytes = self.block_bytes - old_len + bytes.len();
                self.classes.remove(old_plain);
                self.classes.add(plain);
                return Ok(old);
            }
        }
        let block = self.arena.alloc(bytes.len(), BlockKind::Record, need)?;
        self.arena.write(block, 0, bytes);
        self.block_bytes += bytes.len();
        let outcome = self.put_stub(at, position, key, RecordReference::Block(block.0), plain, need);
        if outcome.is_err() {
            self.free_referenced(RecordReference::Block(block.0));
        }
        outcome.map(|()| block)
    }

    fn put_stub(
        &mut self,
        at: LeafLocation,
        position: &LeafPosition,
        key: &[u8],
        reference: RecordReference,
        plain: usize,
        need: MemoryNeed,
    ) -> Result<(), NoRoom> {
        let omitted =
            if at.handle.is_none() { 0 } else { common_len(self.leaf(at.handle).prefix(), stored(key)) };
        let mut stub = Vec::new();
        put_stub(&mut stub, key, omitted, reference);
        self.put(at, position, key, &stub, omitted, plain, need)
    }

    fn plain_at(&self, at: LeafLocation, position: &LeafPosition) -> Option<usize> {
        position.found.as_ref().map(|entry| self.plain_size(self.leaf(at.handle), entry))
    }

    /// Stores the bytes of a complete record or a stub in a leaf, in place of the old record. The
    /// bytes lack the first `omitted` bytes of the key.
    #[allow(clippy::too_many_arguments, reason = "they are what a put is")]
    fn put(
        &mut self,
        at: LeafLocation,
        position: &LeafPosition,
        key: &[u8],
        bytes: &[u8],
        omitted: usize,
        plain: usize,
        need: MemoryNeed,
    ) -> Result<(), NoRoom> {
        let old_plain = self.plain_at(at, position);
        let mut new = std::mem::take(&mut self.new);
        let outcome = self.put_bytes(at, position, key, bytes, omitted, need, &mut new);
        self.new = new;
        outcome?;
        if let Some(LeafEntry { body: LeafEntryBody::Stub { reference, .. }, .. }) = &position.found {
            self.free_referenced(*reference);
        }
        match old_plain {
            Some(old) => self.classes.remove(old),
            None => self.records += 1,
        }
        self.classes.add(plain);
        Ok(())
    }

    #[allow(clippy::too_many_arguments, reason = "they are what a put is")]
    fn put_bytes(
        &mut self,
        at: LeafLocation,
        position: &LeafPosition,
        key: &[u8],
        bytes: &[u8],
        omitted: usize,
        need: MemoryNeed,
        new: &mut LeafBuilder,
    ) -> Result<(), NoRoom> {
        if position.shares_prefix {
            let old_len = position.found.as_ref().map_or(0, |entry| entry.len);
            if old_len == bytes.len() {
                self.arena.write(at.handle, position.at, bytes);
                return Ok(());
            }
            let leaf = self.leaf(at.handle);
            let len = leaf.len();
            if len + bytes.len() - old_len <= self.limits.leaf_max
                && leaf.adjust(position, old_len, bytes, &mut new.header)
            {
                return self.splice(at, position.at..position.at + old_len, bytes, &new.header, need);
            }
            leaf.splice(position, old_len, bytes, new);
            let is_long = new.image.len() > self.limits.leaf_max;
            if !is_long || new.fits(leaf.places().count() + usize::from(old_len == 0), self.limits.leaf_max) {
                return self.store(at, &new.image, need);
            }
        }
        self.rebuild(
            at,
            position,
            LeafItem { bytes, entry: entry(bytes, 0), prefix: &key[..omitted] },
            need,
            new,
        )
    }

    /// Replaces a range of the records of a leaf, and the header of the leaf.
    #[inline]
    fn splice(
        &mut self,
        at: LeafLocation,
        range: Range<usize>,
        insert: &[u8],
        header: &[u8],
        need: MemoryNeed,
    ) -> Result<(), NoRoom> {
        let len = self.leaf(at.handle).len();
        let removed = range.len();
        let new = self.arena.splice(at.handle, len, range, insert, BlockKind::Bucket, need)?;
        self.arena.write(new, 0, header);
        self.leaf_bytes = self.leaf_bytes + insert.len() - removed;
        if new != at.handle {
            self.segment_mut(at.slot).leaves[at.leaf] = new;
        }
        Ok(())
    }

    /// Replaces the contents of a leaf. Creates the leaf if it does not exist.
    fn store(&mut self, at: LeafLocation, image: &[u8], need: MemoryNeed) -> Result<(), NoRoom> {
        let old_len = if at.handle.is_none() { 0 } else { self.leaf(at.handle).len() };
        self.leaf_bytes = self.leaf_bytes + image.len() - old_len;
        if old_len != 0
            && Arena::block_size(old_len, BlockKind::Bucket)
                == Arena::block_size(image.len(), BlockKind::Bucket)
        {
            self.arena.write(at.handle, 0, image);
            return Ok(());
        }
        let need = if image.len() > old_len { need } else { MemoryNeed::Upkeep };
        let new = match self.arena.alloc(image.len(), BlockKind::Bucket, need) {
            Ok(new) => new,
            Err(no_room) => {
                self.leaf_bytes = self.leaf_bytes + old_len - image.len();
                return Err(no_room);
            }
        };
        self.arena.write(new, 0, image);
        if old_len != 0 {
            self.arena.free(at.handle, old_len, BlockKind::Bucket);
        }
        self.segment_mut(at.slot).leaves[at.leaf] = new;
        Ok(())
    }

    /// Rebuilds a leaf with an additional record. The result is one leaf or several.
    fn rebuild(
        &mut self,
        at: LeafLocation,
        position: &LeafPosition,
        item: LeafItem<'_>,
        need: MemoryNeed,
        new: &mut LeafBuilder,
    ) -> Result<(), NoRoom> {
        let (mut items, mut place) = (Vec::new(), 0);
        if !at.handle.is_none() {
            let leaf = self.leaf(at.handle);
            for entry in leaf.entries() {
                place += usize::from(entry.at < position.at);
                if entry.at != position.at || position.found.is_none() {
                    items.push(LeafItem { bytes: leaf.bytes(), entry, prefix: leaf.prefix() });
                }
            }
        }
        items.insert(place, item);
        let (mut ranges, mut images) = (Vec::new(), Vec::new());
        let leaf_max = self.limits.leaf_max;
        divide_items(&items, 0..items.len(), Some(place), leaf_max, new, &mut ranges, &mut images);
        let between: Vec<Vec<u8>> = ranges[1..]
            .iter()
            .map(|range: &Range<usize>| self.between(&items[range.start - 1], &items[range.start]))
            .collect();
        drop(items);
        self.replace(at.slot, at.leaf..at.leaf + 1, &images, &between, need)
    }

    /// Returns the shortest key that separates two records.
    fn between(&self, left: &LeafItem<'_>, right: &LeafItem<'_>) -> Vec<u8> {
        let key = |item: &LeafItem<'_>| match &item.entry.body {
            LeafEntryBody::Stub { reference, is_cut: true } => self.referenced_key(*reference).to_vec(),
            _ => item.key(),
        };
        between(&key(left), &key(right)).to_vec()
    }

    /// Replaces some leaves by new leaves. `between` holds the keys that separate the new leaves.
    pub(super) fn replace(
        &mut self,
        slot: u32,
        leaves: Range<usize>,
        images: &[Vec<u8>],
        between: &[Vec<u8>],
        need: MemoryNeed,
    ) -> Result<(), NoRoom> {
        let mut handles: Vec<BlockHandle> = Vec::with_capacity(images.len());
        for image in images {
            match self.arena.alloc(image.len(), BlockKind::Bucket, need) {
                Ok(handle) => {
                    self.arena.write(handle, 0, image);
                    handles.push(handle);
                }
                Err(no_room) => {
                    for (handle, image) in handles.iter().zip(images) {
                        self.arena.free(*handle, image.len(), BlockKind::Bucket);
                    }
                    return Err(no_room);
                }
            }
        }
        self.leaf_bytes += images.iter().map(Vec::len).sum::<usize>();
        let before = self.segment(slot).bytes();
        for _ in leaves.start + 1..leaves.end {
            self.free_leaf(slot, leaves.start + 1);
            self.segment_mut(slot).remove(leaves.start + 1);
        }
        self.free_leaf(slot, leaves.start);
        self.segment_mut(slot).replace(leaves.start, &handles, between);
        let now = self.segment(slot).bytes();
        self.update_index_bytes(before, now);
        Ok(())
    }

    /// Frees the block of a leaf.
    fn free_leaf(&mut self, slot: u32, leaf: usize) {
        let handle = self.segment(slot).leaves[leaf];
        if !handle.is_none() {
            let len = self.block_len(handle);
            self.uncount_closed(handle);
            self.leaf_bytes -= len;
            self.arena.free(handle, len, BlockKind::Bucket);
        }
    }

    pub(super) fn free_referenced(&mut self, reference: RecordReference) {
        match reference {
            RecordReference::Block(handle) => {
                let len = inline_record(self.arena.bytes(BlockHandle(handle))).value.end;
                self.block_bytes -= len;
                self.arena.free(BlockHandle(handle), len, BlockKind::Record);
            }
            RecordReference::Huge(index) => self.huge.remove(index),
        }
    }

    fn remove(&mut self, at: LeafLocation, position: &LeafPosition) -> Result<(), NoRoom> {
        let plain = self.plain_at(at, position).expect("only existing records are removed");
        let found = position.found.as_ref().expect("only existing records are removed");
        let leaf = self.leaf(at.handle);
        if found.len == leaf.len() - leaf.records_at() {
            self.remove_leaf(at.slot, at.leaf);
        } else {
            let mut new = std::mem::take(&mut self.new);
            let leaf = self.leaf(at.handle);
            let outcome = if leaf.adjust(position, found.len, &[], &mut new.header) {
                self.splice(at, position.at..position.at + found.len, &[], &new.header, MemoryNeed::Upkeep)
            } else {
                leaf.splice(position, found.len, &[], &mut new);
                self.store(at, &new.image, MemoryNeed::Upkeep)
            };
            self.new = new;
            outcome?;
            self.join_if_sparse(at.slot, at.leaf);
        }
        if let LeafEntryBody::Stub { reference, .. } = found.body {
            self.free_referenced(reference);
        }
        self.classes.remove(plain);
        self.records -= 1;
        Ok(())
    }

    /// Removes a leaf with all of its records.
    pub(super) fn remove_leaf(&mut self, slot: u32, leaf: usize) {
        let before = self.segment(slot).bytes();
        self.free_leaf(slot, leaf);
        self.segment_mut(slot).remove(leaf);
        let now = self.segment(slot).bytes();
        self.update_index_bytes(before, now);
    }

    pub(super) fn join_if_sparse(&mut self, slot: u32, leaf: usize) {
        if self.leaf(self.segment(slot).leaves[leaf]).len() < self.limits.leaf_max / SPARSE_PART {
            self.join(slot, leaf);
        }
    }

    /// Merges a leaf with a neighbour if the result is short enough.
    fn join(&mut self, slot: u32, leaf: usize) {
        let leaves = &self.segment(slot).leaves;
        let joined_max = self.limits.leaf_max - self.limits.leaf_max / SPARSE_PART;
        // Closed leaves are not joined.
        let len = |leaf: usize| {
            if self.is_closed(leaves[leaf]) { usize::MAX / 2 } else { self.leaf(leaves[leaf]).len() }
        };
        let behind = leaf + 1 < leaves.len() && len(leaf) + len(leaf + 1) <= joined_max;
        let before = leaf > 0 && len(leaf - 1) + len(leaf) <= joined_max;
        let first = match (behind, before) {
            (true, _) => leaf,
            (false, true) => leaf - 1,
            (false, false) => return,
        };
        let items: Vec<LeafItem<'_>> = [leaves[first], leaves[first + 1]]
            .into_iter()
            .flat_map(|handle| {
                let leaf = self.leaf(handle);
                let (bytes, prefix) = (leaf.bytes(), leaf.prefix());
                leaf.entries().map(move |entry| LeafItem { bytes, entry, prefix })
            })
            .collect();
        let mut new = LeafBuilder::default();
        new.build(&items);
        // The common prefix of both leaves may be shorter, which can make the result too long.
        if new.fits(items.len(), self.limits.leaf_max) {
            drop(items);
            // If the system refuses a block, the two leaves stay separate.
            let _ = self.replace(slot, first..first + 2, &[new.image], &[], MemoryNeed::Upkeep);
        }
    }
}

/// Divides records into leaves. `place` is the index of the new record.
fn divide_items(
    items: &[LeafItem<'_>],
    range: Range<usize>,
    place: Option<usize>,
    leaf_max: usize,
    new: &mut LeafBuilder,
    ranges: &mut Vec<Range<usize>>,
    images: &mut Vec<Vec<u8>>,
) {
    new.build(&items[range.clone()]);
    if new.fits(range.len(), leaf_max) {
        images.push(new.image.clone());
        ranges.push(range);
        return;
    }
    let middle = match place {
        // If keys arrive in ascending or descending order, the leaves that they leave are full.
        Some(place) if place + 1 == range.end => place,
        Some(place) if place == range.start => place + 1,
        _ => {
            let len = |item: &LeafItem<'_>| item.entry.len;
            let half = items[range.clone()].iter().map(len).sum::<usize>() / 2;
            let mut sum = 0;
            let middle = items[range.clone()].iter().position(|item| {
                sum += len(item);
                sum > half
            });
            (range.start + middle.unwrap_or(range.len() / 2)).clamp(range.start + 1, range.end - 1)
        }
    };
    divide_items(items, range.start..middle, None, leaf_max, new, ranges, images);
    divide_items(items, middle..range.end, None, leaf_max, new, ranges, images);
}
