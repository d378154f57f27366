//! The slots of consecutive numbers.
//!
//! ```text
//! bytes = slot 0 (width) | slot 1 (width) | ... | slot 2047 (width) | a bit for each slot
//! ```
//!
//! If the bit of a slot is set, the value fills the slot. Otherwise the last byte of the slot is
//! the length of the value plus 1, and 0 if there is no record. So a record costs the width and a
//! bit. Attributes other than the default are in a table of their own.

use std::collections::HashMap;
use todana_core::{Attributes, Record};

/// The number of slots of a segment.
pub(super) const SLOTS: usize = 2048;
/// The largest width: a length plus 1 must fit into a byte. Above this, a slot wastes too much
/// memory if values are shorter.
pub(super) const WIDTH_MAX: usize = 64;

/// The records of [`SLOTS`] consecutive numbers.
#[derive(Default)]
pub(super) struct Segment {
    /// Empty if no record exists.
    bytes: Box<[u8]>,
    /// The attributes of the records that have any.
    pub(super) attributes: Option<Box<AttributeTable>>,
    pub(super) records: u16,
}

/// The attributes of the records of a segment that have any, by slot.
#[derive(Default)]
pub(super) struct AttributeTable {
    pub(super) by_slot: HashMap<u16, Attributes>,
}

/// The bytes that the slots of a segment take.
pub(super) const fn segment_bytes(width: usize) -> usize {
    SLOTS * width + SLOTS / 8
}

/// The bytes that an entry in the table of attributes takes, about.
pub(super) const ATTRIBUTES_BYTES: usize = 2 * size_of::<(u16, Attributes)>();

impl Segment {
    /// Returns the value in a slot.
    #[inline]
    pub(super) fn value(&self, slot: usize, width: usize) -> Option<&[u8]> {
        if self.bytes.is_empty() {
            return None;
        }
        let value = &self.bytes[slot * width..][..width];
        if self.bytes[SLOTS * width + slot / 8] & 1 << (slot % 8) != 0 {
            return Some(value);
        }
        match value[width - 1] {
            0 => None,
            len_plus_1 => Some(&value[..usize::from(len_plus_1) - 1]),
        }
    }

    #[inline]
    pub(super) fn attributes(&self, slot: usize) -> Attributes {
        let found = self.attributes.as_ref().and_then(|table| table.by_slot.get(&(slot as u16)));
        found.copied().unwrap_or_default()
    }

    /// Returns the record in a slot.
    #[inline]
    pub(super) fn record(&self, slot: usize, width: usize) -> Option<Record<'_>> {
        let value = self.value(slot, width)?;
        Some(Record::new(value, self.attributes(slot)))
    }

    /// Stores a value, which is at most as long as the width.
    #[inline]
    pub(super) fn put(&mut self, slot: usize, width: usize, value: &[u8]) {
        if self.bytes.is_empty() {
            self.bytes = vec![0; segment_bytes(width)].into();
        }
        let (slots, full) = self.bytes.split_at_mut(SLOTS * width);
        let (target, bit) = (&mut slots[slot * width..][..width], 1 << (slot % 8));
        target[..value.len()].copy_from_slice(value);
        if value.len() == width {
            full[slot / 8] |= bit;
        } else {
            full[slot / 8] &= !bit;
            target[width - 1] = value.len() as u8 + 1;
        }
    }

    /// Replaces the attributes of a record.
    #[inline]
    pub(super) fn set_attributes(&mut self, slot: usize, attributes: Attributes) {
        if attributes != Attributes::default() {
            self.attributes.get_or_insert_default().by_slot.insert(slot as u16, attributes);
        } else if let Some(table) = &mut self.attributes {
            table.by_slot.remove(&(slot as u16));
            if table.by_slot.is_empty() {
                self.attributes = None;
            }
        }
    }

    /// Removes the value of a record. Its attributes and its count are left to the caller.
    pub(super) fn remove(&mut self, slot: usize, width: usize) {
        self.bytes[SLOTS * width + slot / 8] &= !(1 << (slot % 8));
        self.bytes[(slot + 1) * width - 1] = 0;
    }

    /// Releases the memory of a segment without records.
    pub(super) fn release(&mut self) {
        *self = Segment::default();
    }

    pub(super) fn is_allocated(&self) -> bool {
        !self.bytes.is_empty()
    }
}
