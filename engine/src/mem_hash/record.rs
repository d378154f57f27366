//! Defines the layout of records in a bucket.
//!
//! ```text
//! bucket = record ... | tail (see `queue`), which begins with 0xF0, or 0xF8 and a byte >= 0xC0
//! stub   = 0xF8 | 0x40 or 0x80 | fingerprint (u32) | reference (u32)
//! ```
//!
//! The layout of a record is in `crate::record`. Keys of forms 0 to 7 are decimal text packed into
//! 1 to 8 bytes. If a record is too long for a bucket, the bucket contains a stub that refers to
//! the record.
//!
//! Invariant: equal keys have equal stored bytes, because every key that can be packed is packed.
//! Keys are therefore compared in their stored form.

use super::key::{KEY_LENS, KEY_VARIABLE, Key};
use crate::record::{
    self, HAS_EXPIRY, HAS_MORE, MORE_BLOCK, MORE_HUGE, PREFIX, fixed_lens, number_of, u32_at,
};
pub(crate) use crate::record::{RecordParts, RecordReference};
use std::ops::Range;
use todana_core::{Attributes, Expiry, decimal};

/// The byte that ends a bucket without marks.
pub(crate) const END: u8 = 0xF0;
/// The first byte of a tail with marks, which ends the records of a bucket. The next byte has both
/// bits of `TAIL_BITS`. In a record, that byte has at most one of these bits.
pub(crate) const TAIL: u8 = PREFIX | HAS_MORE;
pub(crate) const TAIL_BITS: u8 = MORE_BLOCK | MORE_HUGE;
/// The maximum length of a record in a bucket. Longer records have a block of their own.
pub(crate) const BUCKET_RECORD_MAX: usize = 1024;
/// The length of a stub.
pub(crate) const STUB_LEN: usize = 10;

/// The complete length of a record, indexed by its first byte; 0 if more bytes are needed.
const LENS: [u8; 256] = fixed_lens(&KEY_LENS);

/// Returns the complete length of a record from its first byte. Returns 0 if that byte is not
/// sufficient, because the record has attributes or a variable length, or because the bucket ends
/// there.
#[inline]
pub(crate) fn plain_len(header: u8) -> usize {
    usize::from(LENS[usize::from(header)])
}

/// The first byte of a record with an expiry of four bytes and no other attributes. This is the
/// most frequent kind of record with attributes. After it come the byte with the lengths, the
/// expiry and the key.
const EXPIRING: u8 = PREFIX | HAS_EXPIRY;
const EXPIRING_KEY_AT: usize = 1 + 1 + 4;

/// The decoded beginning of a record whose first byte is `EXPIRING`.
struct ExpiringHeader {
    /// The byte with the lengths.
    header: u8,
    key_form: u8,
    /// The complete length of the record.
    len: usize,
}

/// Decodes the beginning of the record at `at` if its first byte is `EXPIRING` and its lengths are
/// in one byte.
#[inline]
fn expiring(bytes: &[u8], at: usize) -> Option<ExpiringHeader> {
    if bytes[at] != EXPIRING {
        return None;
    }
    let header = bytes[at + 1];
    match plain_len(header) {
        0 => None,
        len => Some(ExpiringHeader { header, key_form: header >> 4, len: len + EXPIRING_KEY_AT - 1 }),
    }
}

/// Returns the complete length of the record at `at`, the form of its key and the range of the key.
/// Returns `None` if the first bytes of the record do not suffice for that.
#[inline]
pub(crate) fn simple_layout(bytes: &[u8], at: usize) -> Option<(usize, u8, Range<usize>)> {
    let (len, key_form, key_at) = match (plain_len(bytes[at]), expiring(bytes, at)) {
        (0, None) => return None,
        (0, Some(record)) => (record.len, record.key_form, at + EXPIRING_KEY_AT),
        (len, _) => (len, bytes[at] >> 4, at + 1),
    };
    Some((len, key_form, key_at..key_at + usize::from(KEY_LENS[usize::from(key_form)])))
}

/// An entry found in a bucket: a record or a stub. Ranges are relative to the bucket.
#[derive(Clone, Debug)]
pub(crate) struct BucketEntry {
    pub(crate) len: usize,
    pub(crate) body: EntryBody,
}

/// The contents of an entry.
#[derive(Clone, Debug)]
pub(crate) enum EntryBody {
    /// The complete record is in the bucket.
    Inline(RecordParts),
    /// A stub is in the bucket, and refers to the record.
    Stub { fingerprint: u32, reference: RecordReference },
}

/// Decodes the entry at `at`. Returns `None` at the end of the bucket.
#[inline]
pub(crate) fn entry(bytes: &[u8], at: usize) -> Option<BucketEntry> {
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
                let reference = if more & MORE_BLOCK != 0 {
                    RecordReference::Block(reference)
                } else {
                    RecordReference::Huge(reference)
                };
                return Some(BucketEntry {
                    len: STUB_LEN,
                    body: EntryBody::Stub { fingerprint: u32_at(bytes, next), reference },
                });
            }
        }
        header = bytes[next];
        next += 1;
    }
    let parts = RecordParts::read(bytes, prefix, more, header, next, &KEY_LENS);
    let len = parts.value.end - at;
    Some(BucketEntry { len, body: EntryBody::Inline(parts) })
}

/// Decodes the record at `at` of bytes that may not be those of a bucket. Returns `Some(None)` if a
/// tail begins there. Returns `None` if neither a tail begins there nor a record that a bucket can
/// contain and that other functions of this module can read.
#[inline]
pub(crate) fn checked(bytes: &[u8], at: usize) -> Option<Option<RecordParts>> {
    let mut header = *bytes.get(at)?;
    let (mut prefix, mut more, mut next) = (0, 0, at + 1);
    if header >= PREFIX {
        if header == END {
            return Some(None);
        }
        prefix = header;
        if prefix & HAS_MORE != 0 {
            more = *bytes.get(next)?;
            next += 1;
            match more & TAIL_BITS {
                0 => {}
                TAIL_BITS if prefix == TAIL => return Some(None),
                // Stubs refer to other parts of a shard.
                _ => return None,
            }
        }
        header = *bytes.get(next)?;
        next += 1;
        if header >= PREFIX {
            return None;
        }
    }
    let parts = RecordParts::checked(bytes, prefix, more, header, next, &KEY_LENS)?;
    let fits = parts.value.end <= bytes.len() && parts.value.end - at <= BUCKET_RECORD_MAX;
    (fits && parts.is_canonical(bytes)).then_some(Some(parts))
}

/// Returns true if a record with this first byte has attributes.
#[inline]
pub(crate) fn has_attributes(header: u8) -> bool {
    header >= PREFIX
}

/// Decodes the complete record at `at`. The record is in a bucket, where `find` found it, or in a
/// block of its own.
#[inline]
pub(crate) fn inline_record(bytes: &[u8], at: usize) -> RecordParts {
    let header = bytes[at];
    if header < PREFIX {
        return RecordParts::read(bytes, 0, 0, header, at + 1, &KEY_LENS);
    }
    if header == EXPIRING {
        return RecordParts::read(bytes, header, 0, bytes[at + 1], at + 2, &KEY_LENS);
    }
    match entry(bytes, at).map(|entry| entry.body) {
        Some(EntryBody::Inline(parts)) => parts,
        _ => unreachable!("a whole record is here"),
    }
}

impl RecordParts {
    /// Returns true if the key is stored as [`Key`] stores its text, and a packed value is the
    /// number of a text.
    fn is_canonical(&self, bytes: &[u8]) -> bool {
        let stored = &bytes[self.key.clone()];
        let is_key = if self.key_form < 8 {
            let number = number_of(stored);
            number <= decimal::NUMBER_MAX && decimal::byte_len(number) == stored.len()
        } else {
            decimal::pack(stored).is_none()
                && (self.key_form != KEY_VARIABLE
                    || KEY_LENS[8..14].iter().all(|&len| usize::from(len) != stored.len()))
        };
        is_key && (self.value_form != 7 || number_of(&bytes[self.value.clone()]) <= decimal::NUMBER_MAX)
    }

    /// Returns the key as text.
    pub(crate) fn key_text<'a>(&self, bytes: &'a [u8], digits: &'a mut [u8; 20]) -> &'a [u8] {
        let stored = &bytes[self.key.clone()];
        if self.key_form < 8 { decimal::unpack(number_of(stored), digits) } else { stored }
    }

    /// Returns the size of the record for statistics: the unpacked lengths of the key and the
    /// value, + 4 if there are flags.
    #[inline]
    pub(crate) fn plain_size(&self, bytes: &[u8]) -> usize {
        let key_len = if self.key_form < 8 {
            decimal::text_len(number_of(&bytes[self.key.clone()]))
        } else {
            self.key.len()
        };
        key_len + self.value_text_len(bytes) + self.flags_size()
    }

    /// Returns bytes that have the length of the value, for callers that need only this length. A
    /// packed value is not unpacked, so the bytes may differ from the value.
    #[inline]
    pub(crate) fn value_of_len<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        const STAND_IN: [u8; decimal::DIGITS_MAX] = [b'0'; decimal::DIGITS_MAX];
        if self.value_form < 8 { &STAND_IN[..self.value_text_len(bytes)] } else { &bytes[self.value.clone()] }
    }
}

/// The result of searching a bucket for a key.
pub(crate) enum KeyMatch {
    /// The complete record begins at this offset of the bucket.
    Found { at: usize },
    /// A stub with the fingerprint of the key begins at this offset. The caller compares the key of
    /// its record. If that differs, the caller continues the search after the stub.
    Candidate { at: usize, reference: RecordReference },
    /// The bucket does not contain the key and ends at this offset.
    Absent { end: usize },
}

/// Searches a bucket for a key from `at` on.
#[inline]
pub(crate) fn find(bytes: &[u8], mut at: usize, key: &Key<'_>) -> KeyMatch {
    loop {
        let header = bytes[at];
        let len = usize::from(LENS[usize::from(header)]);
        if len != 0 {
            let may_be = header >> 4 == key.form;
            // Records of a bucket often have equal lengths. As long as this is so, the processor
            // can read the next record without waiting for the length of this one.
            while bytes[at] == header {
                if may_be && key.is_at(bytes, at + 1) {
                    return KeyMatch::Found { at };
                }
                at += len;
            }
            continue;
        }
        if let Some(first) = expiring(bytes, at) {
            let may_be = first.key_form == key.form;
            while bytes[at] == header && bytes[at + 1] == first.header {
                if may_be && key.is_at(bytes, at + EXPIRING_KEY_AT) {
                    return KeyMatch::Found { at };
                }
                at += first.len;
            }
            continue;
        }
        let Some(entry) = entry(bytes, at) else { return KeyMatch::Absent { end: at } };
        match &entry.body {
            EntryBody::Inline(parts) => {
                if parts.key_form == key.form
                    && parts.key.len() == key.stored_len
                    && key.is_at(bytes, parts.key.start)
                {
                    return KeyMatch::Found { at };
                }
            }
            EntryBody::Stub { fingerprint, reference } => {
                if *fingerprint == key.fingerprint() {
                    return KeyMatch::Candidate { at, reference: *reference };
                }
            }
        }
        at += entry.len;
    }
}

/// Returns the offset of the record that follows the record at `at`.
#[inline]
pub(crate) fn next(bytes: &[u8], at: usize) -> usize {
    match simple_layout(bytes, at) {
        None => at + entry(bytes, at).map_or(0, |entry| entry.len),
        Some((len, ..)) => at + len,
    }
}

/// Returns the offset at which the records of the bucket end. `at` is the offset of any record.
#[inline]
pub(crate) fn end(bytes: &[u8], mut at: usize) -> usize {
    loop {
        let header = bytes[at];
        let len = usize::from(LENS[usize::from(header)]);
        if len != 0 {
            at += len;
        } else if let Some(record) = expiring(bytes, at) {
            at += record.len;
        } else {
            match entry(bytes, at) {
                Some(entry) => at += entry.len,
                None => return at,
            }
        }
    }
}

/// Returns the offset at which the records of a bucket end, and their number. Returns `None` if the
/// bucket has stubs, or records for which `is_dead` returns true.
#[inline]
pub(crate) fn all_inline(bytes: &[u8], is_dead: &dyn Fn(Expiry) -> bool) -> Option<(usize, u32)> {
    let (mut at, mut records) = (0, 0);
    loop {
        let len = plain_len(bytes[at]);
        if len != 0 {
            at += len;
        } else {
            let Some(BucketEntry { len, body }) = entry(bytes, at) else { return Some((at, records)) };
            let EntryBody::Inline(parts) = body else { return None };
            if parts.has_expiry() && is_dead(parts.expiry(bytes)) {
                return None;
            }
            at += len;
        }
        records += 1;
    }
}

/// Appends a stub.
pub(crate) fn put_stub(out: &mut Vec<u8>, fingerprint: u32, reference: RecordReference) {
    let (more, reference) = match reference {
        RecordReference::Block(handle) => (MORE_BLOCK, handle),
        RecordReference::Huge(index) => (MORE_HUGE, index),
    };
    out.extend_from_slice(&[PREFIX | HAS_MORE, more]);
    out.extend_from_slice(&fingerprint.to_le_bytes());
    out.extend_from_slice(&reference.to_le_bytes());
}

/// Appends a complete record.
#[inline]
pub(crate) fn put_record(out: &mut Vec<u8>, key: &Key<'_>, value: &[u8], attributes: &Attributes) {
    let put_key = |out: &mut Vec<u8>| key.put_stored(out);
    record::put_record(out, key.form, key.text.len(), put_key, value, attributes);
}

#[cfg(test)]
mod tests {
    use super::super::key::HashSeeds;
    use super::*;
    use proptest::prelude::*;
    use todana_core::{LastAccess, StaleMarks, UnixSeconds};

    fn attributes() -> impl Strategy<Value = Attributes> {
        let expiry = prop_oneof![
            Just(Expiry::Never),
            any::<u32>().prop_map(|s| Expiry::At(UnixSeconds(s.into()))),
            any::<u64>().prop_map(|s| Expiry::At(UnixSeconds(s))),
            any::<(u32, u32)>().prop_map(|(s, span_s)| Expiry::Sliding { at: UnixSeconds(s.into()), span_s }),
            any::<(u64, u32)>().prop_map(|(s, span_s)| Expiry::Sliding { at: UnixSeconds(s), span_s }),
        ];
        let access = proptest::option::of((any::<u32>(), any::<bool>()))
            .prop_map(|a| a.map(|(at, fetched)| LastAccess { at: UnixSeconds(at.into()), fetched }));
        (
            prop_oneof![Just(0), any::<u32>()],
            expiry,
            prop_oneof![Just(0), any::<u64>()],
            any::<(bool, bool)>(),
            access,
        )
            .prop_map(|(flags, expiry, version, (stale, token_sent), access)| Attributes {
                flags,
                expiry,
                version,
                marks: StaleMarks { stale, token_sent },
                access,
                has_value_list: false,
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
            let seeds = HashSeeds::new(1);
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
                let KeyMatch::Found { at } = find(&bucket, 0, &Key::new(key, &seeds)) else { panic!("not found") };
                let parts = inline_record(&bucket, at);
                prop_assert_eq!(parts.value_text(&bucket, &mut [0; 20]).to_vec(), first.1.clone());
                prop_assert_eq!(parts.key_text(&bucket, &mut [0; 20]).to_vec(), key.clone());
                prop_assert_eq!(parts.attributes(&bucket), first.2);
                prop_assert_eq!(parts.expiry(&bucket), first.2.expiry);
                let plain = key.len() + first.1.len() + if first.2.flags != 0 { 4 } else { 0 };
                prop_assert_eq!(parts.plain_size(&bucket), plain);
                if let Some((len, key_form, key_at)) = simple_layout(&bucket, at) {
                    prop_assert_eq!((at + len, key_form, key_at), (parts.value.end, parts.key_form, parts.key.clone()));
                }
                prop_assert_eq!(next(&bucket, at), parts.value.end);
                prop_assert_eq!(parts.value_of_len(&bucket).len(), first.1.len());
            }
            let absent = Key::new(b"not a key that text() can make: it is fifty bytes!", &seeds);
            let is_absent = matches!(find(&bucket, 0, &absent), KeyMatch::Absent { end } if end == len);
            prop_assert!(is_absent);
        }
    }

    #[test]
    fn small_decimal_record_costs_one_extra_byte() {
        let mut out = Vec::new();
        put_record(&mut out, &Key::new(b"00000042", &HashSeeds::new(1)), b"12345678", &Attributes::default());
        assert_eq!(out.len(), 1 + 3 + 4 + usize::from(decimal::pack(b"00000042").unwrap() >= 1 << 24));
    }

    #[test]
    fn a_stub_comes_back() {
        let mut bucket = Vec::new();
        put_stub(&mut bucket, 0xDEAD_BEEF, RecordReference::Huge(7));
        put_stub(&mut bucket, 3, RecordReference::Block(9));
        bucket.push(END);
        let first = entry(&bucket, 0).unwrap();
        assert_eq!(first.len, STUB_LEN);
        assert!(matches!(
            first.body,
            EntryBody::Stub { fingerprint: 0xDEAD_BEEF, reference: RecordReference::Huge(7) }
        ));
        let second = entry(&bucket, STUB_LEN).unwrap();
        assert!(matches!(
            second.body,
            EntryBody::Stub { fingerprint: 3, reference: RecordReference::Block(9) }
        ));
        assert!(entry(&bucket, 2 * STUB_LEN).is_none());
    }
}
