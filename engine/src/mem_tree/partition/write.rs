//! How records come into their leaves and out of them.

use super::super::leaf::STORED_KEY_MAX;
use super::super::leaf::{Body, Entry, Item, NewLeaf, Spot, common_len, entry, put_record, put_stub, stored};
use super::super::separators::between;
use super::{At, Partition, whole};
use crate::arena::{Arena, Handle, Kind, Need, NoRoom};
use crate::huge::{self, HugeRecord};
use crate::mem_hash::Cause;
use crate::mem_tree::survey::Happening;
use crate::record::{BLOCK_RECORD_MAX, Elsewhere, KEY_LEN_MAX, VALUE_LEN_MAX};
use std::ops::Range;
use std::sync::Arc;
use todana_core::{Action, Attributes, Error, ErrorKind, Expiry, Record, SharedBytes, Visitor};

/// A leaf that has become shorter than one such part of the longest joins a neighbour, if both together leave one free.
const SPARSE_PART: usize = 4;

/// Why a visit did not come to its end.
#[derive(Debug)]
pub(in crate::mem_tree) enum Trouble {
    NoRoom(NoRoom),
    Error(Error),
}

impl From<NoRoom> for Trouble {
    fn from(no_room: NoRoom) -> Self {
        Trouble::NoRoom(no_room)
    }
}

/// What a visitor's action comes to.
enum Plan {
    Nothing,
    Remove,
    /// The record is in the scratch buffer, without the first `omitted` bytes of its key.
    Put {
        plain: usize,
        need: Need,
        omitted: usize,
    },
    /// The record is in the scratch buffer, and too long for a leaf.
    PutInBlock {
        plain: usize,
        need: Need,
    },
    /// A new huge record.
    PutHuge(HugeRecord),
    /// The huge record keeps its value.
    RetagHuge(u32, Attributes),
}

/// What a visit comes to.
struct Foreseen {
    /// Of its key.
    hash: u64,
    happening: Happening,
    /// The plain size of the record that it ends, if that has expired.
    expired: Option<usize>,
}

impl Partition {
    /// Runs a visitor on a key of this segment.
    pub(in crate::mem_tree) fn visit(
        &mut self,
        slot: u32,
        key: &[u8],
        visitor: &mut dyn Visitor,
    ) -> Result<(), Trouble> {
        let at = self.open_at(slot, key)?;
        if !at.handle.is_none() {
            self.prefetch_leaf(at.handle);
        }
        let spot = self.seek(at.handle, key);
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        let outcome = self.plan(key, at, &spot, visitor, &mut scratch).and_then(|plan| {
            let foreseen = self.foresee(key, at, &spot, &plan);
            self.carry_out(plan, key, at, &spot, visitor, &scratch)?;
            self.count_visit(foreseen);
            Ok(())
        });
        // One long record must not leave a long buffer behind.
        if scratch.capacity() > 4 * self.shape.record_max {
            scratch = Vec::new();
        }
        self.scratch = scratch;
        self.close_some(key);
        if outcome.is_ok() && self.arena.is_sparse() {
            self.compact(self.arena.effort());
        }
        outcome
    }

    fn plan(
        &self,
        key: &[u8],
        at: At,
        spot: &Spot,
        visitor: &mut dyn Visitor,
        scratch: &mut Vec<u8>,
    ) -> Result<Plan, Trouble> {
        let mut digits = [0; 20];
        let old = spot.found.as_ref().map(|entry| self.record(self.leaf(at.handle), entry, &mut digits));
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
        if key.len() > KEY_LEN_MAX || record.value.len() > VALUE_LEN_MAX {
            let what = if key.len() > KEY_LEN_MAX { "key" } else { "value" };
            return Err(Trouble::Error(Error::new(
                ErrorKind::Invalid,
                format!("{what} of {} bytes is too long", key.len().max(record.value.len())),
            )));
        }
        let plain = key.len() + record.value.len() + if record.attributes.flags != 0 { 4 } else { 0 };
        if plain <= BLOCK_RECORD_MAX {
            // 20 digits at most are packed, into 9 bytes at least.
            if key.len() <= STORED_KEY_MAX && plain <= self.shape.record_max {
                let omitted = match spot.shares_prefix {
                    _ if at.handle.is_none() => 0,
                    true => self.leaf(at.handle).prefix().len(),
                    false => common_len(self.leaf(at.handle).prefix(), stored(key)),
                };
                put_record(scratch, &key[omitted..], record.value, &record.attributes);
                return Ok(Plan::Put { plain, need, omitted });
            }
            put_record(scratch, key, record.value, &record.attributes);
            return Ok(Plan::PutInBlock { plain, need });
        }
        let old_value = match spot.found {
            Some(Entry { body: Body::Stub { elsewhere: Elsewhere::Huge(index), .. }, .. }) => {
                Some((index, &self.huge.get(index).value))
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
        Ok(Plan::PutHuge(HugeRecord { key: key.into(), hash: 0, value, attributes: record.attributes }))
    }

    /// What a plan will have come to, for statistics; `None` where nobody asks for them.
    #[inline]
    fn foresee(&self, key: &[u8], at: At, spot: &Spot, plan: &Plan) -> Option<Foreseen> {
        let hash = self.sampled.hash(key)?;
        let happening = match plan {
            Plan::Nothing if spot.found.is_none() => Happening::Nothing,
            Plan::Nothing | Plan::RetagHuge(..) => Happening::Used,
            Plan::Put { need: Need::Upkeep, .. } | Plan::PutInBlock { need: Need::Upkeep, .. } => {
                Happening::Used
            }
            Plan::Put { plain, .. } | Plan::PutInBlock { plain, .. } => Happening::Stored { plain: *plain },
            Plan::PutHuge(record) => Happening::Stored { plain: record.plain_size() },
            Plan::Remove => Happening::Removed,
        };
        let ends = matches!(happening, Happening::Stored { .. } | Happening::Removed);
        let expired = spot.found.as_ref().filter(|_| ends).and_then(|entry| {
            let leaf = self.leaf(at.handle);
            let expiry = self.expiry_of(leaf, entry);
            let is_over = expiry != Expiry::Never && !expiry.is_live(self.budget.now());
            is_over.then(|| self.plain_size(leaf, entry))
        });
        Some(Foreseen { hash, happening, expired })
    }

    /// Counts what was foreseen.
    #[inline]
    fn count_visit(&mut self, foreseen: Option<Foreseen>) {
        let Some(Foreseen { hash, happening, expired }) = foreseen else { return };
        if let Some(plain) = expired {
            let (seen, now) = (self.sampled.seen(hash), self.sampled.now());
            let observer = self.sampled.observer.as_deref();
            self.departures.count(observer, (plain, Cause::Ended, true), seen, now);
        }
        self.sampled.note(hash, happening);
    }

    fn carry_out(
        &mut self,
        plan: Plan,
        key: &[u8],
        at: At,
        spot: &Spot,
        visitor: &mut dyn Visitor,
        scratch: &[u8],
    ) -> Result<(), Trouble> {
        match plan {
            Plan::Nothing => {}
            Plan::Remove => {
                self.remove(at, spot)?;
                visitor.applied(None);
            }
            Plan::RetagHuge(index, attributes) => {
                self.classes.remove(self.huge.get(index).plain_size());
                self.huge.get_mut(index).attributes = attributes;
                self.classes.add(self.huge.get(index).plain_size());
                visitor.applied(Some(self.huge.get(index).record()));
            }
            Plan::Put { plain, need, omitted } => {
                self.put(at, spot, key, scratch, omitted, plain, need)?;
                // The scratch buffer holds what the leaf now holds.
                let parts = whole(scratch);
                let mut digits = [0; 20];
                let value = parts.value_text(scratch, &mut digits);
                visitor.applied(Some(Record::new(value, parts.attributes(scratch))));
            }
            Plan::PutInBlock { plain, need } => {
                let block = self.put_in_block(at, spot, key, scratch, plain, need)?;
                visitor.applied(Some(self.record_elsewhere(Elsewhere::Block(block.0), &mut [0; 20])));
            }
            Plan::PutHuge(record) => {
                let plain = record.plain_size();
                let index = self.huge.insert(record);
                if let Err(no_room) =
                    self.put_stub(at, spot, key, Elsewhere::Huge(index), plain, Need::Growth)
                {
                    self.huge.remove(index);
                    return Err(no_room.into());
                }
                visitor.applied(Some(self.huge.get(index).record()));
            }
        }
        Ok(())
    }

    /// Puts the record into a block of its own, and its stub into the leaf; returns the block.
    fn put_in_block(
        &mut self,
        at: At,
        spot: &Spot,
        key: &[u8],
        bytes: &[u8],
        plain: usize,
        need: Need,
    ) -> Result<Handle, NoRoom> {
        if let Some(Entry { body: Body::Stub { elsewhere: Elsewhere::Block(old), .. }, .. }) = &spot.found {
            let old = Handle(*old);
            let old_len = whole(self.arena.bytes(old)).value.end;
            if Arena::block_size(old_len, Kind::Record) == Arena::block_size(bytes.len(), Kind::Record) {
                let old_plain = self.plain_at(at, spot).expect("it is there");
                self.arena.write(old, 0, bytes);
                self.block_bytes = self.block_bytes - old_len + bytes.len();
                self.classes.remove(old_plain);
                self.classes.add(plain);
                return Ok(old);
            }
        }
        let block = self.arena.alloc(bytes.len(), Kind::Record, need)?;
        self.arena.write(block, 0, bytes);
        self.block_bytes += bytes.len();
        let outcome = self.put_stub(at, spot, key, Elsewhere::Block(block.0), plain, need);
        if outcome.is_err() {
            self.free_elsewhere(Elsewhere::Block(block.0));
        }
        outcome.map(|()| block)
    }

    fn put_stub(
        &mut self,
        at: At,
        spot: &Spot,
        key: &[u8],
        elsewhere: Elsewhere,
        plain: usize,
        need: Need,
    ) -> Result<(), NoRoom> {
        let omitted =
            if at.handle.is_none() { 0 } else { common_len(self.leaf(at.handle).prefix(), stored(key)) };
        let mut stub = Vec::new();
        put_stub(&mut stub, key, omitted, elsewhere);
        self.put(at, spot, key, &stub, omitted, plain, need)
    }

    fn plain_at(&self, at: At, spot: &Spot) -> Option<usize> {
        spot.found.as_ref().map(|entry| self.plain_size(self.leaf(at.handle), entry))
    }

    /// Puts these bytes (a whole record or a stub, without the first `omitted` bytes of the key) in place of what is at the
    /// spot.
    #[allow(clippy::too_many_arguments, reason = "they are what a put is")]
    fn put(
        &mut self,
        at: At,
        spot: &Spot,
        key: &[u8],
        bytes: &[u8],
        omitted: usize,
        plain: usize,
        need: Need,
    ) -> Result<(), NoRoom> {
        let old_plain = self.plain_at(at, spot);
        let mut new = std::mem::take(&mut self.new);
        let outcome = self.put_bytes(at, spot, key, bytes, omitted, need, &mut new);
        self.new = new;
        outcome?;
        if let Some(Entry { body: Body::Stub { elsewhere, .. }, .. }) = &spot.found {
            self.free_elsewhere(*elsewhere);
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
        at: At,
        spot: &Spot,
        key: &[u8],
        bytes: &[u8],
        omitted: usize,
        need: Need,
        new: &mut NewLeaf,
    ) -> Result<(), NoRoom> {
        if spot.shares_prefix {
            let old_len = spot.found.as_ref().map_or(0, |entry| entry.len);
            if old_len == bytes.len() {
                self.arena.write(at.handle, spot.at, bytes);
                return Ok(());
            }
            let leaf = self.leaf(at.handle);
            let len = leaf.len();
            if len + bytes.len() - old_len <= self.shape.leaf_max
                && leaf.adjust(spot, old_len, bytes, &mut new.header)
            {
                return self.splice(at, spot.at..spot.at + old_len, bytes, &new.header, need);
            }
            leaf.splice(spot, old_len, bytes, new);
            let is_long = new.image.len() > self.shape.leaf_max;
            if !is_long || new.fits(leaf.places().count() + usize::from(old_len == 0), self.shape.leaf_max) {
                return self.store(at, &new.image, need);
            }
        }
        self.rebuild(at, spot, Item { bytes, entry: entry(bytes, 0), prefix: &key[..omitted] }, need, new)
    }

    /// Replaces a range of a leaf, and its header.
    #[inline]
    fn splice(
        &mut self,
        at: At,
        range: Range<usize>,
        insert: &[u8],
        header: &[u8],
        need: Need,
    ) -> Result<(), NoRoom> {
        let len = self.leaf(at.handle).len();
        let removed = range.len();
        let new = self.arena.splice(at.handle, len, range, insert, Kind::Bucket, need)?;
        self.arena.write(new, 0, header);
        self.leaf_bytes = self.leaf_bytes + insert.len() - removed;
        if new != at.handle {
            self.segment_mut(at.slot).leaves[at.leaf] = new;
        }
        Ok(())
    }

    /// Puts these bytes in the place of a leaf, or makes one of them.
    fn store(&mut self, at: At, image: &[u8], need: Need) -> Result<(), NoRoom> {
        let old_len = if at.handle.is_none() { 0 } else { self.leaf(at.handle).len() };
        self.leaf_bytes = self.leaf_bytes + image.len() - old_len;
        if old_len != 0
            && Arena::block_size(old_len, Kind::Bucket) == Arena::block_size(image.len(), Kind::Bucket)
        {
            self.arena.write(at.handle, 0, image);
            return Ok(());
        }
        let need = if image.len() > old_len { need } else { Need::Upkeep };
        let new = match self.arena.alloc(image.len(), Kind::Bucket, need) {
            Ok(new) => new,
            Err(no_room) => {
                self.leaf_bytes = self.leaf_bytes + old_len - image.len();
                return Err(no_room);
            }
        };
        self.arena.write(new, 0, image);
        if old_len != 0 {
            self.arena.free(at.handle, old_len, Kind::Bucket);
        }
        self.segment_mut(at.slot).leaves[at.leaf] = new;
        Ok(())
    }

    /// Writes a leaf anew with a record put in, as one leaf or several.
    fn rebuild(
        &mut self,
        at: At,
        spot: &Spot,
        item: Item<'_>,
        need: Need,
        new: &mut NewLeaf,
    ) -> Result<(), NoRoom> {
        let (mut items, mut place) = (Vec::new(), 0);
        if !at.handle.is_none() {
            let leaf = self.leaf(at.handle);
            for entry in leaf.entries() {
                place += usize::from(entry.at < spot.at);
                if entry.at != spot.at || spot.found.is_none() {
                    items.push(Item { bytes: leaf.bytes(), entry, prefix: leaf.prefix() });
                }
            }
        }
        items.insert(place, item);
        let (mut ranges, mut images) = (Vec::new(), Vec::new());
        let leaf_max = self.shape.leaf_max;
        divide(&items, 0..items.len(), Some(place), leaf_max, new, &mut ranges, &mut images);
        let between: Vec<Vec<u8>> = ranges[1..]
            .iter()
            .map(|range: &Range<usize>| self.between(&items[range.start - 1], &items[range.start]))
            .collect();
        drop(items);
        self.replace(at.slot, at.leaf..at.leaf + 1, &images, &between, need)
    }

    /// The shortest key between those of two items.
    fn between(&self, left: &Item<'_>, right: &Item<'_>) -> Vec<u8> {
        let key = |item: &Item<'_>| match &item.entry.body {
            Body::Stub { elsewhere, is_cut: true } => self.key_elsewhere(*elsewhere).to_vec(),
            _ => item.key(),
        };
        between(&key(left), &key(right)).to_vec()
    }

    /// Puts new leaves in the place of some; `between` divides the new ones.
    pub(super) fn replace(
        &mut self,
        slot: u32,
        leaves: Range<usize>,
        images: &[Vec<u8>],
        between: &[Vec<u8>],
        need: Need,
    ) -> Result<(), NoRoom> {
        let mut handles: Vec<Handle> = Vec::with_capacity(images.len());
        for image in images {
            match self.arena.alloc(image.len(), Kind::Bucket, need) {
                Ok(handle) => {
                    self.arena.write(handle, 0, image);
                    handles.push(handle);
                }
                Err(no_room) => {
                    for (handle, image) in handles.iter().zip(images) {
                        self.arena.free(*handle, image.len(), Kind::Bucket);
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
        self.weigh_index(before, now);
        Ok(())
    }

    /// Gives a leaf's block back.
    fn free_leaf(&mut self, slot: u32, leaf: usize) {
        let handle = self.segment(slot).leaves[leaf];
        if !handle.is_none() {
            let len = self.block_len(handle);
            self.forget_closed(handle);
            self.leaf_bytes -= len;
            self.arena.free(handle, len, Kind::Bucket);
        }
    }

    pub(super) fn free_elsewhere(&mut self, elsewhere: Elsewhere) {
        match elsewhere {
            Elsewhere::Block(handle) => {
                let len = whole(self.arena.bytes(Handle(handle))).value.end;
                self.block_bytes -= len;
                self.arena.free(Handle(handle), len, Kind::Record);
            }
            Elsewhere::Huge(index) => self.huge.remove(index),
        }
    }

    fn remove(&mut self, at: At, spot: &Spot) -> Result<(), NoRoom> {
        let plain = self.plain_at(at, spot).expect("only what is there is removed");
        let found = spot.found.as_ref().expect("only what is there is removed");
        let leaf = self.leaf(at.handle);
        if found.len == leaf.len() - leaf.records_at() {
            self.remove_leaf(at.slot, at.leaf);
        } else {
            let mut new = std::mem::take(&mut self.new);
            let leaf = self.leaf(at.handle);
            let outcome = if leaf.adjust(spot, found.len, &[], &mut new.header) {
                self.splice(at, spot.at..spot.at + found.len, &[], &new.header, Need::Upkeep)
            } else {
                leaf.splice(spot, found.len, &[], &mut new);
                self.store(at, &new.image, Need::Upkeep)
            };
            self.new = new;
            outcome?;
            self.join_if_sparse(at.slot, at.leaf);
        }
        if let Body::Stub { elsewhere, .. } = found.body {
            self.free_elsewhere(elsewhere);
        }
        self.classes.remove(plain);
        self.records -= 1;
        Ok(())
    }

    /// Takes a leaf out with all that is in it.
    pub(super) fn remove_leaf(&mut self, slot: u32, leaf: usize) {
        let before = self.segment(slot).bytes();
        self.free_leaf(slot, leaf);
        self.segment_mut(slot).remove(leaf);
        let now = self.segment(slot).bytes();
        self.weigh_index(before, now);
    }

    pub(super) fn join_if_sparse(&mut self, slot: u32, leaf: usize) {
        if self.leaf(self.segment(slot).leaves[leaf]).len() < self.shape.leaf_max / SPARSE_PART {
            self.join(slot, leaf);
        }
    }

    /// Makes one leaf of this one and a neighbour, if that is short enough.
    fn join(&mut self, slot: u32, leaf: usize) {
        let leaves = &self.segment(slot).leaves;
        let joined_max = self.shape.leaf_max - self.shape.leaf_max / SPARSE_PART;
        // One that is closed stays so.
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
        let items: Vec<Item<'_>> = [leaves[first], leaves[first + 1]]
            .into_iter()
            .flat_map(|handle| {
                let leaf = self.leaf(handle);
                let (bytes, prefix) = (leaf.bytes(), leaf.prefix());
                leaf.entries().map(move |entry| Item { bytes, entry, prefix })
            })
            .collect();
        let mut new = NewLeaf::default();
        new.build(&items);
        // The shorter prefix may make it too long after all.
        if new.fits(items.len(), self.shape.leaf_max) {
            drop(items);
            // The system may refuse a block; then they stay apart.
            let _ = self.replace(slot, first..first + 2, &[new.image], &[], Need::Upkeep);
        }
    }
}

/// Divides items into leaves; `place`: the one that is new.
fn divide(
    items: &[Item<'_>],
    range: Range<usize>,
    place: Option<usize>,
    leaf_max: usize,
    new: &mut NewLeaf,
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
        // What comes in order, upwards or downwards, leaves full leaves behind.
        Some(place) if place + 1 == range.end => place,
        Some(place) if place == range.start => place + 1,
        _ => {
            let len = |item: &Item<'_>| item.entry.len;
            let half = items[range.clone()].iter().map(len).sum::<usize>() / 2;
            let mut sum = 0;
            let middle = items[range.clone()].iter().position(|item| {
                sum += len(item);
                sum > half
            });
            (range.start + middle.unwrap_or(range.len() / 2)).clamp(range.start + 1, range.end - 1)
        }
    };
    divide(items, range.start..middle, None, leaf_max, new, ranges, images);
    divide(items, middle..range.end, None, leaf_max, new, ranges, images);
}
