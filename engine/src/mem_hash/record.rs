//! How records lie in a bucket.
//!
//! ```text
//! bucket = record ... | tail (see `queue`), which begins with 0xF0, or with 0xF8 and a byte with both upper bits
//! record = header | [key_len] | [value_len] | [flags] | [expiry] | [version] | [access] | key | value
//! stub   = 0xF8 | 0x40 or 0x80 | fingerprint (u32) | reference (u32)
//! ```
//!
//! The header is one byte for a record without attributes: upper half the form of the key (0 to 14), lower half the
//! form of the value (0 to 15). Forms 0 to 7 are decimal text packed into 1 to 8 bytes; the others are plain bytes of
//! a few usual lengths, or of a length that follows as a varint. A record with attributes has a prefix before that byte:
//! 0xF0 plus bit 0 flags (varint), bit 1 expiry (u32 Unix seconds; a sliding one is followed by
//! its span, a varint), bit 2 version (varint), bit 3: another byte of
//! bits follows (see `MORE_*`). A record too long for a bucket lies in a block of its own or on its own memory
//! mapping, and leaves a stub. Numbers are little-endian, varints LEB128.
//!
//! Always true: equal keys have equal stored bytes (whatever can be packed is), so keys are compared as stored.

use super::key::{KEY_LENS, KEY_VARIABLE, Key};
use std::ops::Range;
use todana_core::{Access, Attributes, Expiry, Marks, UnixSeconds, decimal};

/// Ends a bucket.
pub(crate) const END: u8 = 0xF0;
/// Ends a bucket and begins what it remembers of its records: this byte, and one with both of these bits, of which no
/// record has more than one.
pub(crate) const TAIL: u8 = PREFIX | HAS_MORE;
pub(crate) const TAIL_BITS: u8 = MORE_BLOCK | MORE_HUGE;
const PREFIX: u8 = 0xF0;
const HAS_FLAGS: u8 = 1;
const HAS_EXPIRY: u8 = 2;
const HAS_VERSION: u8 = 4;
const HAS_MORE: u8 = 8;
const MORE_STALE: u8 = 0x01;
const MORE_TOKEN_OUT: u8 = 0x02;
const MORE_ACCESS: u8 = 0x04;
const MORE_FETCHED: u8 = 0x08;
/// The expiry takes eight bytes: it lies beyond the year 2106.
const MORE_WIDE_EXPIRY: u8 = 0x10;
/// The expiry is followed by its span.
const MORE_SLIDING: u8 = 0x20;
const MORE_BLOCK: u8 = 0x40;
const MORE_HUGE: u8 = 0x80;

/// The length of a stub.
pub(crate) const STUB_LEN: usize = 10;

/// Lengths by form of the value; see the module.
const VALUE_LENS: [u8; 16] = [1, 2, 3, 4, 5, 6, 7, 8, 0, 1, 2, 4, 8, 16, 32, 0];
const VALUE_VARIABLE: u8 = 15;

/// The whole length of a record by its first byte, where that says all; else 0.
const LENS: [u8; 256] = {
    let mut lens = [0; 256];
    let mut header = 0;
    while header < 0xF0 {
        let (key, value) = (header >> 4, header & 15);
        if key != KEY_VARIABLE as usize && value != VALUE_VARIABLE as usize {
            lens[header] = 1 + KEY_LENS[key] + VALUE_LENS[value];
        }
        header += 1;
    }
    lens
};

/// The whole length of a record by its first byte, or 0 where that does not say it: it has attributes, or its key or value
/// has a length of its own, or the bucket ends here.
#[inline]
pub(crate) fn plain_len(header: u8) -> usize {
    usize::from(LENS[usize::from(header)])
}

/// Where a record lies that is not in its bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Elsewhere {
    /// In a block of its own: its handle.
    Block(u32),
    /// In the table of huge records: its index.
    Huge(u32),
}

/// A record found in a bucket: where its parts are, relative to the bucket.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) at: usize,
    pub(crate) len: usize,
    pub(crate) body: Body,
}

/// What an entry holds.
#[derive(Clone, Debug)]
pub(crate) enum Body {
    /// All of it.
    Whole(Parts),
    /// A stub.
    Stub { fingerprint: u32, elsewhere: Elsewhere },
}

/// The parts of a whole record.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    prefix: u8,
    more: u8,
    attributes_at: usize,
    pub(crate) key_form: u8,
    value_form: u8,
    pub(crate) key: Range<usize>,
    pub(crate) value: Range<usize>,
}

#[inline]
fn varint(bytes: &[u8], at: &mut usize) -> u64 {
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

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[inline]
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// The record at `at`, or `None` at the end of the bucket.
#[inline]
pub(crate) fn entry(bytes: &[u8], at: usize) -> Option<Entry> {
    let mut next = at + 1;
    let mut header = bytes[at];
    let (mut prefix, mut more) = (0, 0);
    if header >= PREFIX {
        if header == END {
            return None;
        }
        prefix = header;
        if prefix & HAS_MORE != 0 {
            more = bytes[next];
            next += 1;
            if more & TAIL_BITS == TAIL_BITS {
                return None;
            }
            if more & (MORE_BLOCK | MORE_HUGE) != 0 {
                let reference = u32_at(bytes, next + 4);
                let elsewhere = if more & MORE_BLOCK != 0 {
                    Elsewhere::Block(reference)
                } else {
                    Elsewhere::Huge(reference)
                };
                return Some(Entry {
                    at,
                    len: STUB_LEN,
                    body: Body::Stub { fingerprint: u32_at(bytes, next), elsewhere },
                });
            }
        }
        header = bytes[next];
        next += 1;
    }
    let (key_form, value_form) = (header >> 4, header & 15);
    let key_len = match key_form {
        KEY_VARIABLE => varint(bytes, &mut next) as usize,
        form => usize::from(KEY_LENS[usize::from(form)]),
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
    let len = value.end - at;
    Some(Entry {
        at,
        len,
        body: Body::Whole(Parts { prefix, more, attributes_at, key_form, value_form, key, value }),
    })
}

impl Parts {
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
            Marks { stale: self.more & MORE_STALE != 0, token_out: self.more & MORE_TOKEN_OUT != 0 };
        if self.more & MORE_ACCESS != 0 {
            attributes.access = Some(Access {
                at: UnixSeconds(u64::from(u32_at(bytes, at))),
                fetched: self.more & MORE_FETCHED != 0,
            });
        }
        attributes
    }

    /// The expiry alone.
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

    /// Reads the expiry that begins at `at`.
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

    pub(crate) fn has_expiry(&self) -> bool {
        self.prefix & HAS_EXPIRY != 0
    }

    /// The exact text of the value; `digits` lends the room to unpack it.
    #[inline]
    pub(crate) fn value_text<'a>(&self, bytes: &'a [u8], digits: &'a mut [u8; 20]) -> &'a [u8] {
        let stored = &bytes[self.value.clone()];
        if self.value_form < 8 { decimal::unpack(super::key::number_of(stored), digits) } else { stored }
    }

    /// The exact text of the key.
    pub(crate) fn key_text<'a>(&self, bytes: &'a [u8], digits: &'a mut [u8; 20]) -> &'a [u8] {
        let stored = &bytes[self.key.clone()];
        if self.key_form < 8 { decimal::unpack(super::key::number_of(stored), digits) } else { stored }
    }

    /// key + value + 4 if there are flags, as text: what statistics by size go by.
    #[inline]
    pub(crate) fn plain_size(&self, bytes: &[u8]) -> usize {
        let text_len = |packed: bool, range: &Range<usize>| {
            if packed { decimal::text_len(super::key::number_of(&bytes[range.clone()])) } else { range.len() }
        };
        text_len(self.key_form < 8, &self.key)
            + text_len(self.value_form < 8, &self.value)
            + if self.prefix & HAS_FLAGS != 0 { 4 } else { 0 }
    }
}

/// The outcome of looking for a key in a bucket.
pub(crate) enum Found {
    /// The record is whole in the bucket.
    Here(Entry),
    /// A stub with the key's fingerprint: the caller compares the key and, if it differs, goes on behind it.
    Perhaps(Entry),
    /// There is none; the bucket ends here.
    No { end: usize },
}

/// Looks for a key from `at` on.
#[inline]
pub(crate) fn find(bytes: &[u8], mut at: usize, key: &Key<'_>) -> Found {
    loop {
        let header = bytes[at];
        let len = usize::from(LENS[usize::from(header)]);
        if len != 0 {
            if header >> 4 == key.form && key.is_at(bytes, at + 1) {
                let entry = entry(bytes, at).expect("a whole record is here");
                return Found::Here(entry);
            }
            at += len;
            continue;
        }
        let Some(entry) = entry(bytes, at) else { return Found::No { end: at } };
        match &entry.body {
            Body::Whole(parts) => {
                if parts.key_form == key.form
                    && parts.key.len() == key.stored_len
                    && key.is_at(bytes, parts.key.start)
                {
                    return Found::Here(entry);
                }
            }
            Body::Stub { fingerprint, .. } => {
                if *fingerprint == key.fingerprint() {
                    return Found::Perhaps(entry);
                }
            }
        }
        at += entry.len;
    }
}

/// Where the record behind the one at `at` begins.
#[inline]
pub(crate) fn next(bytes: &[u8], at: usize) -> usize {
    match usize::from(LENS[usize::from(bytes[at])]) {
        0 => at + entry(bytes, at).map_or(0, |entry| entry.len),
        len => at + len,
    }
}

/// Where the bucket's records end, from the record at `at` on.
#[inline]
pub(crate) fn end(bytes: &[u8], mut at: usize) -> usize {
    loop {
        let header = bytes[at];
        let len = usize::from(LENS[usize::from(header)]);
        if len != 0 {
            at += len;
        } else {
            match entry(bytes, at) {
                Some(entry) => at += entry.len,
                None => return at,
            }
        }
    }
}

/// Writes a stub.
pub(crate) fn put_stub(out: &mut Vec<u8>, fingerprint: u32, elsewhere: Elsewhere) {
    let (more, reference) = match elsewhere {
        Elsewhere::Block(handle) => (MORE_BLOCK, handle),
        Elsewhere::Huge(index) => (MORE_HUGE, index),
    };
    out.extend_from_slice(&[PREFIX | HAS_MORE, more]);
    out.extend_from_slice(&fingerprint.to_le_bytes());
    out.extend_from_slice(&reference.to_le_bytes());
}

/// Writes a whole record.
#[inline]
pub(crate) fn put_record(out: &mut Vec<u8>, key: &Key<'_>, value: &[u8], attributes: &Attributes) {
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
    out.push(key.form << 4 | value_form);
    if key.form == KEY_VARIABLE {
        put_varint(out, key.text.len() as u64);
    }
    if value_form == VALUE_VARIABLE {
        put_varint(out, value.len() as u64);
    }
    if prefix != 0 {
        put_attributes(out, prefix, more, attributes);
    }
    key.put_stored(out);
    match packed {
        Some(number) => out.extend_from_slice(&number.to_le_bytes()[..decimal::byte_len(number)]),
        None => out.extend_from_slice(value),
    }
}

fn prefix_of(attributes: &Attributes) -> (u8, u8) {
    let bit = |present: bool, bit: u8| if present { bit } else { 0 };
    let wide = attributes.expiry.at().is_some_and(|at| at.0 > u64::from(u32::MAX));
    let more = bit(attributes.marks.stale, MORE_STALE)
        | bit(attributes.marks.token_out, MORE_TOKEN_OUT)
        | bit(attributes.access.is_some(), MORE_ACCESS)
        | bit(attributes.access.is_some_and(|access| access.fetched), MORE_FETCHED)
        | bit(wide, MORE_WIDE_EXPIRY)
        | bit(attributes.expiry.span_s().is_some(), MORE_SLIDING);
    let prefix = bit(attributes.flags != 0, HAS_FLAGS)
        | bit(attributes.expiry != Expiry::Never, HAS_EXPIRY)
        | bit(attributes.version != 0, HAS_VERSION)
        | bit(more != 0, HAS_MORE);
    (prefix, more)
}

fn put_attributes(out: &mut Vec<u8>, prefix: u8, more: u8, attributes: &Attributes) {
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
    if let Some(access) = attributes.access {
        // Good until 2106; a whole-second clock before 1970 does not occur.
        out.extend_from_slice(&(access.at.0.min(u64::from(u32::MAX)) as u32).to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::super::key::Seeds;
    use super::*;
    use proptest::prelude::*;

    fn attributes() -> impl Strategy<Value = Attributes> {
        let expiry = prop_oneof![
            Just(Expiry::Never),
            any::<u32>().prop_map(|s| Expiry::At(UnixSeconds(s.into()))),
            any::<u64>().prop_map(|s| Expiry::At(UnixSeconds(s))),
            any::<(u32, u32)>().prop_map(|(s, span_s)| Expiry::Sliding { at: UnixSeconds(s.into()), span_s }),
            any::<(u64, u32)>().prop_map(|(s, span_s)| Expiry::Sliding { at: UnixSeconds(s), span_s }),
        ];
        let access = proptest::option::of((any::<u32>(), any::<bool>()))
            .prop_map(|a| a.map(|(at, fetched)| Access { at: UnixSeconds(at.into()), fetched }));
        (
            prop_oneof![Just(0), any::<u32>()],
            expiry,
            prop_oneof![Just(0), any::<u64>()],
            any::<(bool, bool)>(),
            access,
        )
            .prop_map(|(flags, expiry, version, (stale, token_out), access)| Attributes {
                flags,
                expiry,
                version,
                marks: Marks { stale, token_out },
                access,
            })
    }

    fn text() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            "[0-9]{0,24}".prop_map(String::into_bytes),
            proptest::collection::vec(any::<u8>(), 0..40),
            proptest::collection::vec(any::<u8>(), 200..300),
        ]
    }

    proptest! {
        #[test]
        fn every_record_comes_back_from_among_others(
            records in proptest::collection::vec((text(), text(), attributes()), 1..12),
        ) {
            let seeds = Seeds::new(1);
            let mut bucket = Vec::new();
            for (key, value, attributes) in &records {
                put_record(&mut bucket, &Key::new(key, &seeds), value, attributes);
            }
            let len = bucket.len();
            bucket.push(END);
            bucket.resize(len + 64, 0xAA);
            prop_assert_eq!(end(&bucket, 0), len);
            for (key, ..) in &records {
                let first = records.iter().find(|(other, ..)| other == key).unwrap();
                let Found::Here(entry) = find(&bucket, 0, &Key::new(key, &seeds)) else { panic!("not found") };
                let Body::Whole(parts) = &entry.body else { panic!("not whole") };
                prop_assert_eq!(parts.value_text(&bucket, &mut [0; 20]).to_vec(), first.1.clone());
                prop_assert_eq!(parts.key_text(&bucket, &mut [0; 20]).to_vec(), key.clone());
                prop_assert_eq!(parts.attributes(&bucket), first.2);
                prop_assert_eq!(parts.expiry(&bucket), first.2.expiry);
                let plain = key.len() + first.1.len() + if first.2.flags != 0 { 4 } else { 0 };
                prop_assert_eq!(parts.plain_size(&bucket), plain);
            }
            let absent = Key::new(b"not a key that text() can make: it is fifty bytes!", &seeds);
            let is_absent = matches!(find(&bucket, 0, &absent), Found::No { end } if end == len);
            prop_assert!(is_absent);
        }
    }

    #[test]
    fn a_small_decimal_record_costs_its_packed_bytes_and_one() {
        let mut out = Vec::new();
        put_record(&mut out, &Key::new(b"00000042", &Seeds::new(1)), b"12345678", &Attributes::default());
        assert_eq!(out.len(), 1 + 3 + 4 + usize::from(decimal::pack(b"00000042").unwrap() >= 1 << 24));
    }

    #[test]
    fn a_stub_comes_back() {
        let mut bucket = Vec::new();
        put_stub(&mut bucket, 0xDEAD_BEEF, Elsewhere::Huge(7));
        put_stub(&mut bucket, 3, Elsewhere::Block(9));
        bucket.push(END);
        let first = entry(&bucket, 0).unwrap();
        assert_eq!(first.len, STUB_LEN);
        assert!(matches!(first.body, Body::Stub { fingerprint: 0xDEAD_BEEF, elsewhere: Elsewhere::Huge(7) }));
        let second = entry(&bucket, STUB_LEN).unwrap();
        assert!(matches!(second.body, Body::Stub { fingerprint: 3, elsewhere: Elsewhere::Block(9) }));
        assert!(entry(&bucket, 2 * STUB_LEN).is_none());
    }
}
