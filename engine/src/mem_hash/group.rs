//! Defines the layout of the records in a bucket: groups of records of the same form, in columns.
//!
//! ```text
//! bucket = group ... | tail (see `queue`), which begins with 0xF0, 0xF8 or 0xF9
//! group  = [0xE0 | shape of the keys (u8) | dictionary of the values (u8)]
//!        | form of the keys (u8) | number of records (u8) | form of the values (u8)
//!        | [attributes: prefix, more and length (u8 each)]
//!        | [length of all keys (u16)] | [length of all values (u16)]       if these are variable
//!        | remainders in bits
//!        | [key lengths] | [value lengths] | [attributes] | [keys] | values
//! form of keys   = class of numbers, + 0x20 with attributes
//!                | 0x40 + length of text | 0x80 + length of text, with attributes
//!                | 0xC0 text with lengths of one byte, 0xC1 of two | 0xC2, 0xC3 with attributes
//!                | 0xD0 stubs
//! form of values = bits of numbers, 0 to 64 | 65 lengths of one byte | 66 of two | 67 + length
//! stubs  = 0xD0 | number of stubs (u8) | stub ...
//! stub   = fingerprint (u32) | 1 for a block, 2 for a mapping | reference (u32)
//! ```
//!
//! A key that is decimal text is a remainder (see `quotient`), which is complete only together with
//! the number of the bucket. All other keys are a remainder in place of their first three bytes,
//! and the other bytes. Many remainders are compared at once. A value that is decimal text is its
//! number (`todana_core::decimal`). Among values of variable length, a length of one byte
//! above `SHORT_VALUE_MAX`, or one of two bytes with the bit `LONG_NUMBER`, is that of a number.
//! Keys of a shape are stored as the remainder and the packed fields of the shape instead of the
//! other bytes, and values of a dictionary in its form (see `encodings`). Attributes are encoded as
//! in `crate::record`; those of a group have the same fields and the same length.
//!
//! Invariant: the records of a group are in the order in which they arrived. No order is kept
//! between groups, so the age of a record is its relative position in its group.

use super::bits::{self, column_len};
use super::encodings::{PlainBuffer, RecordEncodings};
use super::key::{Key, KeyForm, head_and_rest};
use super::quotient::{BucketAddress, CLASSES, HEAD_LEN, TEXT_CLASS};
use crate::dictionary::VALUE_LEN_MAX;
pub(crate) use crate::record::RecordReference;
use crate::record::{PREFIX, RecordParts, number_of, u32_at};
use std::ops::Range;
use todana_core::{Attributes, Expiry, decimal};

/// The byte that ends a bucket without marks.
pub(super) const END: u8 = 0xF0;
/// The first byte of a tail with marks of queues, which ends the records of a bucket.
pub(super) const QUEUE_TAIL: u8 = 0xF8;
/// The first byte of a tail with credits, which ends the records of a bucket.
pub(super) const CREDIT_TAIL: u8 = 0xF9;
/// The maximum length of key, value and attributes of a record in a bucket. Longer records have a
/// block of their own.
pub(super) const BUCKET_RECORD_MAX: usize = 1024;
/// The maximum number of records of a group.
pub(super) const GROUP_RECORDS_MAX: usize = 255;
/// The maximum length of all keys or all values of a group if they are variable.
pub(super) const GROUP_DATA_MAX: usize = u16::MAX as usize;
/// The maximum length of text whose length is part of the form of a group. Lengths of keys include
/// the bytes that a quotient replaces.
pub(super) const FIXED_KEY_MAX: usize = 63;
pub(super) const FIXED_VALUE_MAX: usize = (u8::MAX - VALUE_FIXED) as usize;
/// The maximum length that a length of one byte states. Larger numbers state a decimal number of 1
/// to 8 bytes.
pub(super) const SHORT_VALUE_MAX: usize = 240;
/// The bit of a length of two bytes that states a decimal number.
const LONG_NUMBER: u16 = 0x8000;

const KEY_ATTRIBUTES: u8 = 0x20;
const KEY_FIXED: u8 = 0x40;
const KEY_FIXED_ATTRIBUTES: u8 = 0x80;
const KEY_SHORT: u8 = 0xC0;
const KEY_LONG: u8 = 0xC1;
const KEY_VARIABLE_ATTRIBUTES: u8 = 2;
const KEY_STUBS: u8 = 0xD0;
/// The first byte of a group with encodings, and the number of bytes before its form of the keys.
const ENCODED: u8 = 0xE0;
const ENCODED_LEN: usize = 3;
const VALUE_SHORT: u8 = 65;
const VALUE_LONG: u8 = 66;
const VALUE_FIXED: u8 = 67;
const STUB_BLOCK: u8 = 1;
const STUB_HUGE: u8 = 2;
const STUB_LEN: usize = 4 + 1 + 4;

/// Returns true if a byte ends the records of a bucket.
#[inline]
pub(super) fn is_end(byte: u8) -> bool {
    byte >= END
}

/// The form of the keys of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyColumn {
    /// Remainders of this class.
    Number(u8),
    /// Text of this length.
    Fixed(u8),
    /// Text with lengths of one byte.
    Short,
    /// Text with lengths of two bytes.
    Long,
    Stubs,
}

/// The form of the values of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueColumn {
    /// Decimal numbers of this many bits.
    Number(u8),
    /// Text of this length.
    Fixed(u8),
    /// Numbers and text with lengths of one byte.
    Short,
    /// Numbers and text with lengths of two bytes.
    Long,
}

impl ValueColumn {
    /// Returns true if each value has a length of its own.
    pub(super) fn is_variable(self) -> bool {
        matches!(self, ValueColumn::Short | ValueColumn::Long)
    }
}

/// Returns bytes in place of a value of this length that was not unpacked.
pub(super) fn stand_in(len: usize) -> &'static [u8] {
    static STAND_IN: [u8; VALUE_LEN_MAX] = [b'0'; VALUE_LEN_MAX];
    &STAND_IN[..len]
}

/// A value as it is stored. The range of text is relative to the bytes from which it was decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BucketValue {
    Number(u64),
    /// Text, or its stored form if there is a dictionary.
    Text {
        at: u32,
        len: u32,
        dictionary: u8,
    },
}

impl BucketValue {
    /// Returns the value as text. `buffer` is the buffer into which it is unpacked.
    #[inline]
    pub(super) fn text<'a>(
        self,
        bytes: &'a [u8],
        encodings: &RecordEncodings,
        buffer: &'a mut PlainBuffer,
    ) -> &'a [u8] {
        match self {
            BucketValue::Number(number) => decimal::unpack(number, &mut buffer.digits),
            BucketValue::Text { at, len, dictionary } => {
                encodings.value(dictionary, &bytes[at as usize..][..len as usize], buffer)
            }
        }
    }

    /// Returns the length of the value as text.
    #[inline]
    pub(super) fn text_len(self, bytes: &[u8], encodings: &RecordEncodings) -> usize {
        match self {
            BucketValue::Number(number) => decimal::text_len(number),
            BucketValue::Text { len, dictionary: 0, .. } => len as usize,
            BucketValue::Text { at, len, dictionary } => {
                encodings.value_len(dictionary, &bytes[at as usize..][..len as usize])
            }
        }
    }

    /// Returns the number of the dictionary; 0 if there is none.
    #[inline]
    pub(super) fn dictionary(self) -> u8 {
        if let BucketValue::Text { dictionary, .. } = self { dictionary } else { 0 }
    }

    /// Returns bytes that have the length of the value, for callers that need only this length. A
    /// value is not unpacked, so the bytes may differ from the value.
    #[inline]
    pub(super) fn of_len<'a>(self, bytes: &'a [u8], encodings: &RecordEncodings) -> &'a [u8] {
        match self {
            BucketValue::Text { at, len, dictionary: 0 } => &bytes[at as usize..][..len as usize],
            _ => stand_in(self.text_len(bytes, encodings)),
        }
    }

    /// Returns the number of bytes that the value takes among values of variable length.
    #[inline]
    pub(super) fn data_len(self) -> usize {
        match self {
            BucketValue::Number(number) => decimal::byte_len(number),
            BucketValue::Text { len, .. } => len as usize,
        }
    }

    /// Returns the length of one byte for this value, if there is one.
    #[inline]
    pub(super) fn short_len(self) -> Option<u8> {
        match self {
            BucketValue::Number(number) => Some((SHORT_VALUE_MAX + decimal::byte_len(number)) as u8),
            BucketValue::Text { len, .. } => (len as usize <= SHORT_VALUE_MAX).then_some(len as u8),
        }
    }

    /// Returns the length of two bytes for this value.
    #[inline]
    pub(super) fn long_len(self) -> u16 {
        match self {
            BucketValue::Number(number) => LONG_NUMBER | decimal::byte_len(number) as u16,
            BucketValue::Text { len, .. } => len as u16,
        }
    }
}

/// The attributes of a record as they are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StoredAttributes {
    /// The fields that exist, as in `crate::record`; 0 if there are none.
    pub(super) prefix: u8,
    pub(super) more: u8,
    pub(super) len: u8,
    /// The offset of the fields.
    pub(super) at: u32,
}

impl StoredAttributes {
    /// Returns true if both have the same fields and the same length.
    #[inline]
    pub(super) fn is_like(&self, other: &StoredAttributes) -> bool {
        (self.prefix, self.more, self.len) == (other.prefix, other.more, other.len)
    }

    fn parts(&self) -> RecordParts {
        RecordParts {
            prefix: self.prefix,
            more: self.more,
            attributes_at: self.at as usize,
            value_form: 0,
            key: 0..0,
            value: 0..0,
        }
    }

    #[inline]
    pub(super) fn read(&self, bytes: &[u8]) -> Attributes {
        if self.prefix == 0 { Attributes::default() } else { self.parts().attributes(bytes) }
    }

    #[inline]
    pub(super) fn expiry(&self, bytes: &[u8]) -> Expiry {
        if self.has_expiry() { self.parts().expiry(bytes) } else { Expiry::Never }
    }

    #[inline]
    pub(super) fn has_expiry(&self) -> bool {
        self.prefix & crate::record::HAS_EXPIRY != 0
    }

    /// Returns the number of bytes that statistics add to the lengths of the key and the value.
    #[inline]
    pub(super) fn flags_size(&self) -> usize {
        if self.prefix == 0 { 0 } else { self.parts().flags_size() }
    }
}

/// A group of records, decoded up to the places of its columns. All offsets are relative to the
/// bucket.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordGroup {
    pub(super) at: usize,
    /// The offset of the form of the keys.
    pub(super) head_at: usize,
    /// The shape of the keys and the dictionary of the values; 0 for none.
    pub(super) shape: u8,
    pub(super) dictionary: u8,
    pub(super) count: usize,
    pub(super) keys: KeyColumn,
    pub(super) values: ValueColumn,
    /// The attributes of the first record; those of the others follow.
    attributes: StoredAttributes,
    /// The number of bits of a remainder.
    pub(super) key_width: u32,
    pub(super) keys_at: usize,
    pub(super) key_lens_at: usize,
    pub(super) value_lens_at: usize,
    pub(super) key_text_at: usize,
    pub(super) values_at: usize,
    pub(super) end: usize,
}

/// Returns the number of bytes of a text after its head.
#[inline]
pub(super) fn rest_len(len: usize) -> usize {
    len.saturating_sub(HEAD_LEN)
}

#[inline]
fn u16_at(bytes: &[u8], at: usize) -> Option<usize> {
    bytes.get(at..at + 2).map(|len| usize::from(u16::from_le_bytes([len[0], len[1]])))
}

impl RecordGroup {
    /// Decodes the group at `at`. Returns `None` at the end of the bucket, and if the bytes are not
    /// a group. The columns of a group lie within `bytes`; their contents are not checked.
    #[inline]
    pub(super) fn read(bytes: &[u8], at: usize, address: &BucketAddress) -> Option<RecordGroup> {
        let mut head: &[u8; 3] = bytes.get(at..)?.first_chunk()?;
        let (mut head_at, mut shape, mut dictionary) = (at, 0, 0);
        if head[0] == ENCODED {
            (head_at, shape, dictionary) = (at + ENCODED_LEN, head[1], head[2]);
            head = bytes.get(head_at..)?.first_chunk()?;
        }
        let (form, count) = (head[0], usize::from(head[1]));
        let (keys, has_attributes) = match form {
            0x00..=0x3F => (KeyColumn::Number(form & 0x1F), form & KEY_ATTRIBUTES != 0),
            KEY_FIXED..=0x7F => (KeyColumn::Fixed(form & 0x3F), false),
            KEY_FIXED_ATTRIBUTES..=0xBF => (KeyColumn::Fixed(form & 0x3F), true),
            KEY_SHORT..=0xC3 => (
                if form & 1 == 0 { KeyColumn::Short } else { KeyColumn::Long },
                form & KEY_VARIABLE_ATTRIBUTES != 0,
            ),
            KEY_STUBS => return Self::read_stubs(bytes, at, count),
            _ => return None,
        };
        let values = match head[2] {
            width @ 0..=64 => ValueColumn::Number(width),
            VALUE_SHORT => ValueColumn::Short,
            VALUE_LONG => ValueColumn::Long,
            form => ValueColumn::Fixed(form - VALUE_FIXED),
        };
        let mut next = head_at + 3;
        let mut attributes = StoredAttributes::default();
        if has_attributes {
            let fields: &[u8; 3] = bytes.get(next..)?.first_chunk()?;
            attributes = StoredAttributes { prefix: fields[0], more: fields[1], len: fields[2], at: 0 };
            next += 3;
        }
        let mut key_width = 0;
        let mut group = RecordGroup {
            at,
            head_at,
            shape,
            dictionary,
            count,
            keys,
            values,
            attributes,
            key_width,
            keys_at: 0,
            key_lens_at: 0,
            value_lens_at: 0,
            key_text_at: 0,
            values_at: 0,
            end: 0,
        };
        let mut key_text_len = 0;
        let is_variable = matches!(keys, KeyColumn::Short | KeyColumn::Long);
        if is_variable {
            key_text_len = u16_at(bytes, next)?;
            next += 2;
        }
        let mut values_len = 0;
        if values.is_variable() {
            values_len = u16_at(bytes, next)?;
            next += 2;
        }
        group.keys_at = next;
        match keys {
            KeyColumn::Number(class) => {
                if usize::from(class) >= CLASSES {
                    return None;
                }
                key_width = address.remainder_bits(class);
            }
            KeyColumn::Fixed(len) => {
                key_text_len = count * rest_len(usize::from(len));
                key_width = address.remainder_bits(TEXT_CLASS);
            }
            _ => key_width = address.remainder_bits(TEXT_CLASS),
        }
        next += column_len(count, key_width);
        group.key_width = key_width;
        group.key_lens_at = next;
        if is_variable {
            next += if keys == KeyColumn::Short { count } else { 2 * count };
        }
        group.value_lens_at = next;
        match values {
            ValueColumn::Number(width) => values_len = column_len(count, u32::from(width)),
            ValueColumn::Fixed(len) => values_len = count * usize::from(len),
            ValueColumn::Short => next += count,
            ValueColumn::Long => next += 2 * count,
        }
        group.attributes.at = next as u32;
        next += count * usize::from(attributes.len);
        group.key_text_at = next;
        next += key_text_len;
        group.values_at = next;
        group.end = next + values_len;
        (count > 0 && group.end <= bytes.len()).then_some(group)
    }

    fn read_stubs(bytes: &[u8], at: usize, count: usize) -> Option<RecordGroup> {
        let end = at + 2 + count * STUB_LEN;
        (count > 0 && end <= bytes.len()).then_some(RecordGroup {
            at,
            head_at: at,
            shape: 0,
            dictionary: 0,
            count,
            keys: KeyColumn::Stubs,
            values: ValueColumn::Fixed(0),
            attributes: StoredAttributes::default(),
            key_width: 0,
            keys_at: at + 2,
            key_lens_at: end,
            value_lens_at: end,
            key_text_at: end,
            values_at: end,
            end,
        })
    }

    /// Returns true if the keys have a shape or the values a dictionary.
    #[inline]
    pub(super) fn is_encoded(&self) -> bool {
        (self.shape, self.dictionary) != (0, 0)
    }

    /// Returns the attributes of a record.
    #[inline]
    pub(super) fn attributes(&self, index: usize) -> StoredAttributes {
        let at = self.attributes.at + (index * usize::from(self.attributes.len)) as u32;
        StoredAttributes { at, ..self.attributes }
    }

    /// Returns the remainder of a key.
    #[inline]
    pub(super) fn remainder(&self, bytes: &[u8], index: usize) -> u64 {
        bits::get(bytes, self.keys_at, index, self.key_width)
    }

    /// Returns the length of a key that is text.
    #[inline]
    pub(super) fn key_len(&self, bytes: &[u8], index: usize) -> usize {
        match self.keys {
            KeyColumn::Fixed(len) => usize::from(len),
            KeyColumn::Short => usize::from(bytes[self.key_lens_at + index]),
            _ => u16_at(bytes, self.key_lens_at + 2 * index).unwrap_or(0),
        }
    }

    /// Returns the range of the bytes of a text after its head.
    #[inline]
    fn key_rest(&self, bytes: &[u8], index: usize) -> Range<usize> {
        let before = match self.keys {
            KeyColumn::Fixed(len) => index * rest_len(usize::from(len)),
            _ => (0..index).map(|index| rest_len(self.key_len(bytes, index))).sum(),
        };
        let at = self.key_text_at + before;
        at..at + rest_len(self.key_len(bytes, index))
    }

    /// Returns the length of a value of variable length, and true if it is a number.
    #[inline]
    fn variable_len(&self, bytes: &[u8], index: usize) -> (usize, bool) {
        if self.values == ValueColumn::Short {
            let len = usize::from(bytes[self.value_lens_at + index]);
            let is_number = len > SHORT_VALUE_MAX;
            return (if is_number { len - SHORT_VALUE_MAX } else { len }, is_number);
        }
        let len = u16_at(bytes, self.value_lens_at + 2 * index).unwrap_or(0);
        (len & usize::from(!LONG_NUMBER), len & usize::from(LONG_NUMBER) != 0)
    }

    /// Returns a value of variable length that begins at `at`.
    #[inline]
    fn variable_value(&self, bytes: &[u8], index: usize, at: usize) -> BucketValue {
        match self.variable_len(bytes, index) {
            (len, false) => BucketValue::Text { at: at as u32, len: len as u32, dictionary: self.dictionary },
            (len, true) => BucketValue::Number(number_of(&bytes[at..at + len])),
        }
    }

    /// Returns a value.
    #[inline]
    pub(super) fn value(&self, bytes: &[u8], index: usize) -> BucketValue {
        match self.values {
            ValueColumn::Number(width) => {
                BucketValue::Number(bits::get(bytes, self.values_at, index, u32::from(width)))
            }
            ValueColumn::Fixed(len) => {
                let at = self.values_at + index * usize::from(len);
                BucketValue::Text { at: at as u32, len: u32::from(len), dictionary: self.dictionary }
            }
            _ => {
                let before: usize = (0..index).map(|index| self.variable_len(bytes, index).0).sum();
                self.variable_value(bytes, index, self.values_at + before)
            }
        }
    }

    /// Returns a stub.
    #[inline]
    pub(super) fn stub(&self, bytes: &[u8], index: usize) -> (u32, RecordReference) {
        let at = self.keys_at + index * STUB_LEN;
        let reference = u32_at(bytes, at + 5);
        let reference = match bytes[at + 4] {
            STUB_BLOCK => RecordReference::Block(reference),
            _ => RecordReference::Huge(reference),
        };
        (u32_at(bytes, at), reference)
    }

    /// Returns the offset of the reference of a stub.
    pub(super) fn stub_reference_at(&self, index: usize) -> usize {
        self.keys_at + index * STUB_LEN + 5
    }

    /// Searches the group for a key.
    #[inline]
    fn find(
        &self,
        bytes: &[u8],
        key: &Key<'_>,
        address: &BucketAddress,
        encodings: &RecordEncodings,
    ) -> Option<usize> {
        match (self.keys, key.form) {
            (KeyColumn::Number(class), KeyForm::Number { class: wanted, quotient }) if class == wanted => {
                let wanted = address.remainder(quotient);
                bits::find(bytes, self.keys_at, self.count, self.key_width, wanted, |_| true)
            }
            (KeyColumn::Fixed(_) | KeyColumn::Short | KeyColumn::Long, KeyForm::Text { quotient })
                if self.shape != 0 =>
            {
                let wanted = address.remainder(quotient);
                bits::find(bytes, self.keys_at, self.count, self.key_width, wanted, |index| {
                    encodings.is_key(self.shape, &bytes[self.key_rest(bytes, index)], key.text)
                })
            }
            (KeyColumn::Fixed(len), KeyForm::Text { quotient }) if usize::from(len) == key.text.len() => {
                let (_, rest) = head_and_rest(key.text);
                let wanted = address.remainder(quotient);
                bits::find(bytes, self.keys_at, self.count, self.key_width, wanted, |index| {
                    bytes[self.key_text_at + index * rest.len()..][..rest.len()] == *rest
                })
            }
            (KeyColumn::Short | KeyColumn::Long, KeyForm::Text { quotient }) => {
                let (_, rest) = head_and_rest(key.text);
                let wanted = address.remainder(quotient);
                bits::find(bytes, self.keys_at, self.count, self.key_width, wanted, |index| {
                    self.key_len(bytes, index) == key.text.len()
                        && bytes[self.key_rest(bytes, index)] == *rest
                })
            }
            _ => None,
        }
    }

    /// Checks the contents of a group whose bytes may be any. Returns false if other functions of
    /// this module could not read it. Keys that are numbers are not checked.
    pub(super) fn is_intact(&self, bytes: &[u8]) -> bool {
        // Encodings mean nothing elsewhere.
        if self.is_encoded() {
            return false;
        }
        let attributes = self.attributes(0);
        if attributes.prefix != 0 || attributes.len != 0 {
            let is_known = attributes.prefix > PREFIX && attributes.more & 0xC0 == 0;
            let is_complete = |index| {
                let StoredAttributes { at, len, .. } = self.attributes(index);
                let fields = &bytes[at as usize..][..usize::from(len)];
                RecordParts::attributes_len(fields, attributes.prefix, attributes.more) == Some(fields.len())
            };
            if !is_known || !(0..self.count).all(is_complete) {
                return false;
            }
        }
        let keys: usize = match self.keys {
            // The references of stubs mean nothing elsewhere.
            KeyColumn::Stubs => return false,
            KeyColumn::Number(_) => 0,
            _ => (0..self.count).map(|index| rest_len(self.key_len(bytes, index))).sum(),
        };
        if keys != self.values_at - self.key_text_at {
            return false;
        }
        let is_number = |value| match value {
            BucketValue::Number(number) => number <= decimal::NUMBER_MAX,
            BucketValue::Text { .. } => true,
        };
        if !self.values.is_variable() {
            return (0..self.count).all(|index| is_number(self.value(bytes, index)));
        }
        let mut at = self.values_at;
        for index in 0..self.count {
            let (len, packed) = self.variable_len(bytes, index);
            if packed && !(1..=8).contains(&len) || len > self.end - at {
                return false;
            }
            if !is_number(self.variable_value(bytes, index, at)) {
                return false;
            }
            at += len;
        }
        at == self.end
    }

    /// Calls `see` with each record of the group: its index, the bytes of its key after the head,
    /// the length of the key, and its value.
    #[inline]
    pub(super) fn for_each(
        &self,
        bytes: &[u8],
        mut see: impl FnMut(usize, (Range<usize>, usize), BucketValue),
    ) {
        let (mut key_at, mut value_at) = (self.key_text_at, self.values_at);
        for index in 0..self.count {
            let key_len = match self.keys {
                KeyColumn::Number(_) | KeyColumn::Stubs => 0,
                _ => self.key_len(bytes, index),
            };
            let key_end = key_at + rest_len(key_len);
            let value = if self.values.is_variable() {
                let value = self.variable_value(bytes, index, value_at);
                value_at += self.variable_len(bytes, index).0;
                value
            } else {
                self.value(bytes, index)
            };
            see(index, (key_at..key_end, key_len), value);
            key_at = key_end;
        }
    }
}

/// Returns the first three bytes of a group.
pub(super) fn group_head(
    keys: KeyColumn,
    count: usize,
    values: ValueColumn,
    has_attributes: bool,
) -> [u8; 3] {
    let keys = match (keys, has_attributes) {
        (KeyColumn::Number(class), false) => class,
        (KeyColumn::Number(class), true) => class | KEY_ATTRIBUTES,
        (KeyColumn::Fixed(len), false) => KEY_FIXED | len,
        (KeyColumn::Fixed(len), true) => KEY_FIXED_ATTRIBUTES | len,
        (KeyColumn::Short, false) => KEY_SHORT,
        (KeyColumn::Long, false) => KEY_LONG,
        (KeyColumn::Short, true) => KEY_SHORT | KEY_VARIABLE_ATTRIBUTES,
        (KeyColumn::Long, true) => KEY_LONG | KEY_VARIABLE_ATTRIBUTES,
        (KeyColumn::Stubs, _) => KEY_STUBS,
    };
    let values = match values {
        ValueColumn::Number(width) => width,
        ValueColumn::Short => VALUE_SHORT,
        ValueColumn::Long => VALUE_LONG,
        ValueColumn::Fixed(len) => VALUE_FIXED + len,
    };
    [keys, count as u8, values]
}

/// Appends the bytes before the head of a group with encodings.
#[inline]
pub(super) fn put_encodings(shape: u8, dictionary: u8, out: &mut Vec<u8>) {
    if (shape, dictionary) != (0, 0) {
        out.extend_from_slice(&[ENCODED, shape, dictionary]);
    }
}

/// Appends a stub.
pub(super) fn put_stub(out: &mut Vec<u8>, fingerprint: u32, reference: RecordReference) {
    let (kind, reference) = match reference {
        RecordReference::Block(handle) => (STUB_BLOCK, handle),
        RecordReference::Huge(index) => (STUB_HUGE, index),
    };
    out.extend_from_slice(&fingerprint.to_le_bytes());
    out.push(kind);
    out.extend_from_slice(&reference.to_le_bytes());
}

/// The place of a record in a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordPlace {
    /// The offset of the group.
    pub(super) group_at: u32,
    /// The index of the record in the group.
    pub(super) index: u32,
}

/// The result of searching a bucket for a key.
pub(super) enum KeyMatch {
    /// The complete record is in the bucket.
    Found(RecordGroup, usize),
    /// A stub with the fingerprint of the key is in the bucket. The caller compares the key of its
    /// record. If that differs, the caller continues the search with the next candidate.
    Candidate(RecordPlace, RecordReference),
    Absent,
}

/// Searches a bucket for a key. `skip` is the number of candidates that the caller has rejected.
#[inline]
pub(super) fn find(
    bytes: &[u8],
    key: &Key<'_>,
    address: &BucketAddress,
    encodings: &RecordEncodings,
    mut skip: usize,
) -> KeyMatch {
    let mut at = 0;
    while let Some(group) = RecordGroup::read(bytes, at, address) {
        if let Some(index) = group.find(bytes, key, address, encodings) {
            return KeyMatch::Found(group, index);
        }
        if group.keys == KeyColumn::Stubs {
            for index in 0..group.count {
                let (fingerprint, reference) = group.stub(bytes, index);
                if fingerprint == key.fingerprint() {
                    if skip == 0 {
                        let place = RecordPlace { group_at: at as u32, index: index as u32 };
                        return KeyMatch::Candidate(place, reference);
                    }
                    skip -= 1;
                }
            }
        }
        at = group.end;
    }
    KeyMatch::Absent
}

/// Returns the offset at which the records of a bucket end, and their number.
#[inline]
pub(super) fn measure(bytes: &[u8], address: &BucketAddress) -> (usize, usize) {
    let (mut at, mut records) = (0, 0);
    while let Some(group) = RecordGroup::read(bytes, at, address) {
        at = group.end;
        records += group.count;
    }
    (at, records)
}

/// The index of a record in its bucket, and the indexes of its group.
pub(super) struct BucketIndex {
    /// The number of records before this one.
    pub(super) index: usize,
    /// The indexes of all records of the same group.
    pub(super) group: Range<usize>,
    /// The offset at which the records of the bucket end.
    pub(super) end: usize,
    /// The number of records of the bucket.
    pub(super) records: usize,
}

/// Returns the index of the record at a place.
#[inline]
pub(super) fn index_of(bytes: &[u8], address: &BucketAddress, place: RecordPlace) -> BucketIndex {
    let (mut end, mut records, mut of_place) = (0, 0, 0..0);
    while let Some(group) = RecordGroup::read(bytes, end, address) {
        if end == place.group_at as usize {
            of_place = records..records + group.count;
        }
        end = group.end;
        records += group.count;
    }
    BucketIndex { index: of_place.start + place.index as usize, group: of_place, end, records }
}
