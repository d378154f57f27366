//! Defines the parts of a stored record that do not depend on the engine: its header, its
//! attributes and its value.
//!
//! ```text
//! record = header | [key_len] | [value_len] | [flags] | [expiry] | [version] | [access] | key | value
//! ```
//!
//! The header of a record without attributes is one byte. The upper half of this byte is the form
//! of the key (0 to 14). Each engine defines the forms of keys; after form 14 a length follows. The
//! lower half is the form of the value (0 to 15). Values of forms 0 to 7 are decimal text packed
//! into 1 to 8 bytes. The other values are plain bytes of a few usual lengths, or of a length that
//! follows as a varint.
//!
//! A record with attributes has a prefix before that byte: 0xF0 plus a bit for each attribute. Bit
//! 0: flags (varint). Bit 1: expiry (u32 Unix seconds; after a sliding expiry its span follows as a
//! varint). Bit 2: version (varint). Bit 3: another byte of bits follows (see `MORE_*`).
//!
//! If a record is too long for a block that it would share, it has a block or a memory mapping of
//! its own and is represented by a stub, whose layout the engine defines. Numbers are
//! little-endian, varints are LEB128.

use std::ops::Range;
use todana_core::{Attributes, Expiry, LastAccess, StaleMarks, UnixSeconds, decimal};

/// The maximum lengths of a key and of a value.
pub(crate) const KEY_LEN_MAX: usize = 1 << 28;
pub(crate) const VALUE_LEN_MAX: usize = 1 << 30;
/// The maximum length of a record in a block. Longer records have a mapping of their own.
pub(crate) const BLOCK_RECORD_MAX: usize = 64 << 10;

/// The minimum first byte of a record with attributes.
pub(crate) const PREFIX: u8 = 0xF0;
const HAS_FLAGS: u8 = 1;
pub(crate) const HAS_EXPIRY: u8 = 2;
const HAS_VERSION: u8 = 4;
pub(crate) const HAS_MORE: u8 = 8;
const MORE_STALE: u8 = 0x01;
const MORE_TOKEN_OUT: u8 = 0x02;
const MORE_ACCESS: u8 = 0x04;
const MORE_FETCHED: u8 = 0x08;
/// The bit of an expiry that takes eight bytes because it lies beyond the year 2106.
const MORE_WIDE_EXPIRY: u8 = 0x10;
/// The bit of an expiry that is followed by its span.
const MORE_SLIDING: u8 = 0x20;
/// The bit of a stub whose record has a block of its own.
pub(crate) const MORE_BLOCK: u8 = 0x40;
/// The bit of a stub whose record has a mapping of its own.
pub(crate) const MORE_HUGE: u8 = 0x80;

/// The form of a key whose length follows the header.
pub(crate) const KEY_VARIABLE: u8 = 14;
/// The lengths of values, indexed by their forms (see the module).
const VALUE_LENS: [u8; 16] = [1, 2, 3, 4, 5, 6, 7, 8, 0, 1, 2, 4, 8, 16, 32, 0];
const VALUE_VARIABLE: u8 = 15;

/// Returns a table with the complete length of a record for each first byte; 0 if more bytes are
/// needed.
pub(crate) const fn fixed_lens(key_lens: &[u8; 15]) -> [u8; 256] {
    let mut lens = [0; 256];
    let mut header = 0;
    while header < 0xF0 {
        let (key, value) = (header >> 4, header & 15);
        if key != KEY_VARIABLE as usize && value != VALUE_VARIABLE as usize {
            lens[header] = 1 + key_lens[key] + VALUE_LENS[value];
        }
        header += 1;
    }
    lens
}

/// The location of a record that is stored outside of a shared block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordReference {
    /// The record has the block with this handle.
    Block(u32),
    /// The record has this index in the table of huge records.
    Huge(u32),
}

/// The parts of a complete record.
#[derive(Clone, Debug)]
pub(crate) struct RecordParts {
    pub(crate) prefix: u8,
    pub(crate) more: u8,
    pub(crate) attributes_at: usize,
    pub(crate) value_form: u8,
    pub(crate) key: Range<usize>,
    pub(crate) value: Range<usize>,
}

/// Returns the little-endian number in up to eight bytes.
#[inline]
pub(crate) fn number_of(stored: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..stored.len()].copy_from_slice(stored);
    u64::from_le_bytes(word)
}

#[inline]
pub(crate) fn varint(bytes: &[u8], at: &mut usize) -> u64 {
    let byte = bytes[*at];
    *at += 1;
    if byte < 0x80 {
        return u64::from(byte);
    }
    let mut value = u64::from(byte & 0x7F);
    let mut shift = 7;
    loop {
        let byte = bytes[*at];
        *at += 1;
        value |= u64::from(byte & 0x7F) << shift;
        if byte < 0x80 || shift >= 63 {
            return value;
        }
        shift += 7;
    }
}

/// Does the same as `varint` for bytes that may end within the number. Returns `None` then.
fn checked_varint(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let ends = |byte: &u8| *byte < 0x80;
    let unread = bytes.get(*at..)?;
    // A number has at most ten bytes; `varint` ignores the continuation bit of the tenth.
    let len = unread.iter().take(9).position(ends).unwrap_or(9) + 1;
    if len > unread.len() {
        return None;
    }
    Some(varint(bytes, at))
}

pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[inline]
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

impl RecordParts {
    /// Decodes the record whose bytes from `next` on follow its header. `prefix` and `more` are the
    /// bytes before the header.
    #[inline]
    pub(crate) fn read(
        bytes: &[u8],
        prefix: u8,
        more: u8,
        header: u8,
        mut next: usize,
        key_lens: &[u8; 15],
    ) -> RecordParts {
        let (key_form, value_form) = (header >> 4, header & 15);
        let key_len = match key_form {
            KEY_VARIABLE => varint(bytes, &mut next) as usize,
            form => usize::from(key_lens[usize::from(form)]),
        };
        let value_len = match value_form {
            VALUE_VARIABLE => varint(bytes, &mut next) as usize,
            form => usize::from(VALUE_LENS[usize::from(form)]),
        };
        let attributes_at = next;
        if prefix != 0 {
            if prefix & HAS_FLAGS != 0 {
                varint(bytes, &mut next);
            }
            if prefix & HAS_EXPIRY != 0 {
                next += if more & MORE_WIDE_EXPIRY != 0 { 8 } else { 4 };
                if more & MORE_SLIDING != 0 {
                    varint(bytes, &mut next);
                }
            }
            if prefix & HAS_VERSION != 0 {
                varint(bytes, &mut next);
            }
            if more & MORE_ACCESS != 0 {
                next += 4;
            }
        }
        let key = next..next + key_len;
        let value = key.end..key.end + value_len;
        RecordParts { prefix, more, attributes_at, value_form, key, value }
    }

    /// Returns the length of the attributes with which `bytes` begin. Returns `None` if a field is
    /// not complete.
    pub(crate) fn attributes_len(bytes: &[u8], prefix: u8, more: u8) -> Option<usize> {
        let mut next = 0;
        if prefix & HAS_FLAGS != 0 {
            checked_varint(bytes, &mut next)?;
        }
        if prefix & HAS_EXPIRY != 0 {
            next += if more & MORE_WIDE_EXPIRY != 0 { 8 } else { 4 };
            if more & MORE_SLIDING != 0 {
                checked_varint(bytes, &mut next)?;
            }
        }
        if prefix & HAS_VERSION != 0 {
            checked_varint(bytes, &mut next)?;
        }
        if more & MORE_ACCESS != 0 {
            next += 4;
        }
        (next <= bytes.len()).then_some(next)
    }

    pub(crate) fn attributes(&self, bytes: &[u8]) -> Attributes {
        let mut attributes = Attributes::default();
        if self.prefix == 0 {
            return attributes;
        }
        let mut at = self.attributes_at;
        if self.prefix & HAS_FLAGS != 0 {
            attributes.flags = varint(bytes, &mut at) as u32;
        }
        if self.prefix & HAS_EXPIRY != 0 {
            attributes.expiry = self.expiry_at(bytes, &mut at);
        }
        if self.prefix & HAS_VERSION != 0 {
            attributes.version = varint(bytes, &mut at);
        }
        attributes.marks =
            StaleMarks { stale: self.more & MORE_STALE != 0, token_sent: self.more & MORE_TOKEN_OUT != 0 };
        // Only an access can be a fetch, so the bit without an access marks a list of values.
        attributes.has_value_list = self.more & (MORE_ACCESS | MORE_FETCHED) == MORE_FETCHED;
        if self.more & MORE_ACCESS != 0 {
            attributes.access = Some(LastAccess {
                at: UnixSeconds(u64::from(u32_at(bytes, at))),
                fetched: self.more & MORE_FETCHED != 0,
            });
        }
        attributes
    }

    /// Returns only the expiry of the record.
    #[inline]
    pub(crate) fn expiry(&self, bytes: &[u8]) -> Expiry {
        if self.prefix & HAS_EXPIRY == 0 {
            return Expiry::Never;
        }
        let mut at = self.attributes_at;
        if self.prefix & HAS_FLAGS != 0 {
            varint(bytes, &mut at);
        }
        self.expiry_at(bytes, &mut at)
    }

    /// Decodes the expiry at `at`.
    #[inline]
    fn expiry_at(&self, bytes: &[u8], at: &mut usize) -> Expiry {
        let mut seconds = u64::from(u32_at(bytes, *at));
        *at += 4;
        if self.more & MORE_WIDE_EXPIRY != 0 {
            seconds |= u64::from(u32_at(bytes, *at)) << 32;
            *at += 4;
        }
        let second = UnixSeconds(seconds);
        if self.more & MORE_SLIDING != 0 {
            return Expiry::Sliding { at: second, span_s: varint(bytes, at) as u32 };
        }
        Expiry::At(second)
    }

    /// Returns the value as text. `digits` is the buffer into which a packed value is unpacked.
    #[inline]
    pub(crate) fn value_text<'a>(&self, bytes: &'a [u8], digits: &'a mut [u8; 20]) -> &'a [u8] {
        let stored = &bytes[self.value.clone()];
        if self.value_form < 8 { decimal::unpack(number_of(stored), digits) } else { stored }
    }

    /// Returns the length of the value as text.
    #[inline]
    pub(crate) fn value_text_len(&self, bytes: &[u8]) -> usize {
        if self.value_form < 8 {
            decimal::text_len(number_of(&bytes[self.value.clone()]))
        } else {
            self.value.len()
        }
    }

    /// Appends the length of the value if it is variable.
    #[inline]
    pub(crate) fn put_value_len(&self, out: &mut Vec<u8>) {
        if self.value_form == VALUE_VARIABLE {
            put_varint(out, self.value.len() as u64);
        }
    }

    /// Returns the number of bytes that statistics add to the lengths of the key and the value.
    #[inline]
    pub(crate) fn flags_size(&self) -> usize {
        if self.prefix & HAS_FLAGS != 0 { 4 } else { 0 }
    }
}

/// Appends a complete record whose key has this form and length. `put_key` appends the key.
#[inline]
pub(crate) fn put_record(
    out: &mut Vec<u8>,
    key_form: u8,
    key_len: usize,
    put_key: impl FnOnce(&mut Vec<u8>),
    value: &[u8],
    attributes: &Attributes,
) {
    let packed = decimal::pack(value);
    let value_form = match packed {
        Some(number) => decimal::byte_len(number) as u8 - 1,
        None => match value.len() {
            0 => 8,
            1 => 9,
            2 => 10,
            4 => 11,
            8 => 12,
            16 => 13,
            32 => 14,
            _ => VALUE_VARIABLE,
        },
    };
    let (prefix, more) = prefix_of(attributes);
    if prefix != 0 {
        out.push(PREFIX | prefix);
        if prefix & HAS_MORE != 0 {
            out.push(more);
        }
    }
    out.push(key_form << 4 | value_form);
    if key_form == KEY_VARIABLE {
        put_varint(out, key_len as u64);
    }
    if value_form == VALUE_VARIABLE {
        put_varint(out, value.len() as u64);
    }
    if prefix != 0 {
        put_fields(out, prefix, more, attributes);
    }
    put_key(out);
    match packed {
        Some(number) => out.extend_from_slice(&number.to_le_bytes()[..decimal::byte_len(number)]),
        None => out.extend_from_slice(value),
    }
}

fn prefix_of(attributes: &Attributes) -> (u8, u8) {
    let bit = |present: bool, bit: u8| if present { bit } else { 0 };
    let wide = attributes.expiry.at().is_some_and(|at| at.0 > u64::from(u32::MAX));
    let more = bit(attributes.marks.stale, MORE_STALE)
        | bit(attributes.marks.token_sent, MORE_TOKEN_OUT)
        | bit(attributes.access.is_some() && !attributes.has_value_list, MORE_ACCESS)
        | bit(attributes.access.is_some_and(|access| access.fetched), MORE_FETCHED)
        | bit(attributes.has_value_list, MORE_FETCHED)
        | bit(wide, MORE_WIDE_EXPIRY)
        | bit(attributes.expiry.span_s().is_some(), MORE_SLIDING);
    let prefix = bit(attributes.flags != 0, HAS_FLAGS)
        | bit(attributes.expiry != Expiry::Never, HAS_EXPIRY)
        | bit(attributes.version != 0, HAS_VERSION)
        | bit(more != 0, HAS_MORE);
    (prefix, more)
}

/// Appends only the attributes of a record, as `RecordParts` reads them. Returns the prefix and the
/// byte of further bits; both are 0 if there are no attributes.
#[inline]
pub(crate) fn put_attributes(out: &mut Vec<u8>, attributes: &Attributes) -> (u8, u8) {
    let (prefix, more) = prefix_of(attributes);
    if prefix == 0 {
        return (0, 0);
    }
    put_fields(out, prefix, more, attributes);
    (PREFIX | prefix, more)
}

fn put_fields(out: &mut Vec<u8>, prefix: u8, more: u8, attributes: &Attributes) {
    if prefix & HAS_FLAGS != 0 {
        put_varint(out, u64::from(attributes.flags));
    }
    if let Some(at) = attributes.expiry.at() {
        let len = if more & MORE_WIDE_EXPIRY != 0 { 8 } else { 4 };
        out.extend_from_slice(&at.0.to_le_bytes()[..len]);
    }
    if let Some(span_s) = attributes.expiry.span_s() {
        put_varint(out, u64::from(span_s));
    }
    if prefix & HAS_VERSION != 0 {
        put_varint(out, attributes.version);
    }
    if let Some(access) = attributes.access.filter(|_| !attributes.has_value_list) {
        // The number is correct until 2106; times before 1970 do not occur.
        out.extend_from_slice(&(access.at.0.min(u64::from(u32::MAX)) as u32).to_le_bytes());
    }
}
