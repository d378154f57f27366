//! A visit, from what the visitor decides to the bytes in the bucket.

use super::accounts::Happening;
use super::{Shard, Spot, Trouble};
use crate::arena::{Arena, Handle, Kind, Need, NoRoom};
use crate::huge::{self, HugeRecord};
use crate::mem_hash::key::Key;
use crate::mem_hash::queue::Tail;
use crate::mem_hash::record::{self, Elsewhere, STUB_LEN, whole};
use crate::record::{BLOCK_RECORD_MAX, KEY_LEN_MAX, VALUE_LEN_MAX};
use std::sync::Arc;
use todana_core::{Action, Attributes, Error, ErrorKind, Record, SharedBytes, Visitor, decimal};

/// Longer records get a block of their own.
const BUCKET_RECORD_MAX: usize = 1024;

/// What a visitor's action comes to.
pub(super) enum Plan {
    Nothing,
    Remove,
    /// The record is in the scratch buffer.
    Put {
        plain: usize,
        need: Need,
    },
    /// A new huge record. It is rare, and all others are handed on without its many words.
    PutHuge(Box<HugeRecord>),
    /// The huge record keeps its value.
    RetagHuge(u32, Box<Attributes>),
}

/// The text of a short value on its way into its bucket, so that it need not be unpacked again for who asks what has become of it.
#[derive(Default)]
pub(super) struct Shown {
    short: [u8; decimal::DIGITS_MAX],
    len: usize,
}

impl Shown {
    #[inline]
    fn note(&mut self, value: &[u8]) {
        self.len = value.len();
        if let Some(short) = self.short.get_mut(..value.len()) {
            short.copy_from_slice(value);
        }
    }

    /// The value, of which `stored` ends with the bytes if it is not short.
    #[inline]
    fn value<'a>(&'a self, stored: &'a [u8]) -> &'a [u8] {
        self.short.get(..self.len).unwrap_or_else(|| &stored[stored.len() - self.len..])
    }
}

impl Shard {
    /// Runs a visitor. `room_was_made`: other records have gone for this one already, so none goes now.
    pub(in crate::mem_hash) fn visit(
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
        let mut shown = Shown::default();
        let outcome = match self.plan(key, handle, &spot, visitor, &mut scratch, &mut shown) {
            Err(trouble) => Err(trouble),
            Ok(plan) => {
                let mut spot = spot;
                comes_to = self.foresee(key, handle, &spot, &plan);
                if self.notes_uses() {
                    is_use = !matches!((&spot, &plan), (Spot::Nowhere { .. }, _) | (_, Plan::Remove));
                    stores = matches!(plan, Plan::Put { need: Need::Growth, .. } | Plan::PutHuge(_));
                    let is_newcomer = !is_use && matches!(plan, Plan::Put { .. } | Plan::PutHuge(_));
                    if is_newcomer && !room_was_made && self.make_way() {
                        spot = self.find(self.directory.get(bucket), key);
                    }
                }
                self.carry_out(plan, key, bucket, &spot, visitor, &mut scratch, &shown)
            }
        };
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

    #[inline]
    fn plan(
        &self,
        key: &Key<'_>,
        handle: Handle,
        spot: &Spot,
        visitor: &mut dyn Visitor,
        scratch: &mut Vec<u8>,
        shown: &mut Shown,
    ) -> Result<Plan, Trouble> {
        let (mut digits, mut digits_again) = ([0; 20], [0; 20]);
        let old = if visitor.ignores_value() {
            self.record_of_len(handle, spot, &mut digits)
        } else {
            self.record(handle, spot, &mut digits)
        };
        let (record, need) = match visitor.visit(old) {
            Action::Keep => return Ok(Plan::Nothing),
            Action::Remove => return Ok(if old.is_some() { Plan::Remove } else { Plan::Nothing }),
            Action::Put(record) => (record, Need::Growth),
            // The value is the one that is there, whatever the visitor was shown.
            Action::Retag(attributes) => match self.record(handle, spot, &mut digits_again) {
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
            shown.note(record.value);
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
            return Ok(Plan::RetagHuge(index, Box::new(record.attributes)));
        }
        let value: SharedBytes = match record.shared {
            Some(shared) => Arc::clone(shared),
            None => huge::share(record.value, &self.budget)?,
        };
        let key_text = key.text.into();
        let record = HugeRecord { key: key_text, hash: key.hash, value, attributes: record.attributes };
        Ok(Plan::PutHuge(Box::new(record)))
    }

    #[inline]
    #[allow(clippy::too_many_arguments, reason = "what a visit has found out, none of which outlives it")]
    fn carry_out(
        &mut self,
        plan: Plan,
        key: &Key<'_>,
        bucket: usize,
        spot: &Spot,
        visitor: &mut dyn Visitor,
        scratch: &mut Vec<u8>,
        shown: &Shown,
    ) -> Result<(), Trouble> {
        match plan {
            Plan::Nothing => return Ok(()),
            Plan::Remove => {
                self.remove(key, bucket, spot)?;
                visitor.applied(None);
                return Ok(());
            }
            Plan::RetagHuge(index, attributes) => {
                self.classes.remove(self.huge.get(index).plain_size());
                self.huge.get_mut(index).attributes = *attributes;
                self.classes.add(self.huge.get(index).plain_size());
                visitor.applied(Some(self.huge.get(index).record()));
                return Ok(());
            }
            Plan::Put { plain, need } if scratch.len() <= BUCKET_RECORD_MAX => {
                self.put_in_bucket(bucket, spot, key, scratch, plain, need)?;
                // The scratch buffer holds what the bucket now holds.
                let attributes = if record::has_attributes(scratch[0]) {
                    record::whole(scratch, 0).attributes(scratch)
                } else {
                    Attributes::default()
                };
                visitor.applied(Some(Record::new(shown.value(scratch), attributes)));
            }
            Plan::Put { plain, need } => {
                let block = self.put_in_block(bucket, spot, key, scratch, plain, need)?;
                visitor.applied(Some(self.record_elsewhere(Elsewhere::Block(block.0), &mut [0; 20])));
            }
            Plan::PutHuge(record) => {
                let plain = record.plain_size();
                let index = self.huge.insert(*record);
                scratch.clear();
                record::put_stub(scratch, key.fingerprint(), Elsewhere::Huge(index));
                if let Err(no_room) = self.put_in_bucket(bucket, spot, key, scratch, plain, Need::Growth) {
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
        let old_plain = self.plain_size(handle, spot, key);
        let (at, old_len) = match spot {
            Spot::Here { at } => (*at, record::next(self.arena.bytes(handle), *at) - at),
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

    pub(in crate::mem_hash) fn free_elsewhere(&mut self, elsewhere: Elsewhere) {
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

    fn remove(&mut self, key: &Key<'_>, bucket: usize, spot: &Spot) -> Result<(), NoRoom> {
        let handle = self.directory.get(bucket);
        let plain = self.plain_size(handle, spot, key).expect("only what is there is removed");
        let (at, len) = match spot {
            Spot::Here { at } => (*at, record::next(self.arena.bytes(handle), *at) - at),
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
}
