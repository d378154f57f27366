//! How records lie in a bucket.
//!
//! ```text
//! bucket = record ... | tail (see `queue`), which begins with 0xF0, or with 0xF8 and a byte with both upper bits
//! stub   = 0xF8 | 0x40 or 0x80 | fingerprint (u32) | reference (u32)
//! ```
//!
//! `crate::record` says what is in a record. Keys of forms 0 to 7 are decimal text packed into 1 to 8 bytes. A record too long
//! for a bucket leaves a stub.
//!
//! Always true: equal keys have equal stored bytes (whatever can be packed is), so keys are compared as stored.

use super::key::{KEY_LENS, Key};
use crate::record::{
    self, HAS_EXPIRY, HAS_MORE, MORE_BLOCK, MORE_HUGE, PREFIX, number_of, u32_at, whole_lens,
};
pub(crate) use crate::record::{Elsewhere, Parts};
use std::ops::Range;
use todana_core::{Attributes, decimal};

/// Ends a bucket.
pub(crate) const END: u8 = 0xF0;
/// Ends a bucket and begins what it remembers of its records: this byte, and one with both of these bits, of which no
/// record has more than one.
pub(crate) const TAIL: u8 = PREFIX | HAS_MORE;
pub(crate) const TAIL_BITS: u8 = MORE_BLOCK | MORE_HUGE;
/// The length of a stub.
pub(crate) const STUB_LEN: usize = 10;

/// The whole length of a record by its first byte, where that says all; else 0.
const LENS: [u8; 256] = whole_lens(&KEY_LENS);

/// The whole length of a record by its first byte, or 0 where that does not say it: it has attributes, or its key or value
/// has a length of its own, or the bucket ends here.
#[inline]
pub(crate) fn plain_len(header: u8) -> usize {
    usize::from(LENS[usize::from(header)])
}

/// A record with an expiry of four bytes and no other attributes, as most of those with attributes are: it begins with `EXPIRING`, then comes
/// the byte that says its lengths, the expiry, the key.
const EXPIRING: u8 = PREFIX | HAS_EXPIRY;
const EXPIRING_KEY_AT: usize = 1 + 1 + 4;

/// What the first bytes of such a record say.
struct Expiring {
    /// The byte of its lengths.
    header: u8,
    key_form: u8,
    /// The whole length.
    len: usize,
}

/// The record at `at`, if it is such a one and its lengths are in one byte.
#[inline]
fn expiring(bytes: &[u8], at: usize) -> Option<Expiring> {
    if bytes[at] != EXPIRING {
        return None;
    }
    let header = bytes[at + 1];
    match plain_len(header) {
        0 => None,
        len => Some(Expiring { header, key_form: header >> 4, len: len + EXPIRING_KEY_AT - 1 }),
    }
}

/// The whole length, the form of the key and where it begins, of the record at `at`, where its first bytes say all that.
#[inline]
pub(crate) fn at_a_glance(bytes: &[u8], at: usize) -> Option<(usize, u8, Range<usize>)> {
    let (len, key_form, key_at) = match (plain_len(bytes[at]), expiring(bytes, at)) {
        (0, None) => return None,
        (0, Some(record)) => (record.len, record.key_form, at + EXPIRING_KEY_AT),
        (len, _) => (len, bytes[at] >> 4, at + 1),
    };
    Some((len, key_form, key_at..key_at + usize::from(KEY_LENS[usize::from(key_form)])))
}

/// A record found in a bucket: where its parts are, relative to the bucket.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
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
                    len: STUB_LEN,
                    body: Body::Stub { fingerprint: u32_at(bytes, next), elsewhere },
                });
            }
        }
        header = bytes[next];
        next += 1;
    }
    let parts = Parts::read(bytes, prefix, more, header, next, &KEY_LENS);
    let len = parts.value.end - at;
    Some(Entry { len, body: Body::Whole(parts) })
}

/// Whether the record that begins so has attributes.
#[inline]
pub(crate) fn has_attributes(header: u8) -> bool {
    header >= PREFIX
}

/// The whole record at `at`: what `find` has found, and what blocks of one record hold.
#[inline]
pub(crate) fn whole(bytes: &[u8], at: usize) -> Parts {
    let header = bytes[at];
    if header < PREFIX {
        return Parts::read(bytes, 0, 0, header, at + 1, &KEY_LENS);
    }
    if header == EXPIRING {
        return Parts::read(bytes, header, 0, bytes[at + 1], at + 2, &KEY_LENS);
    }
    match entry(bytes, at).map(|entry| entry.body) {
        Some(Body::Whole(parts)) => parts,
        _ => unreachable!("a whole record is here"),
    }
}

impl Parts {
    /// The exact text of the key.
    pub(crate) fn key_text<'a>(&self, bytes: &'a [u8], digits: &'a mut [u8; 20]) -> &'a [u8] {
        let stored = &bytes[self.key.clone()];
        if self.key_form < 8 { decimal::unpack(number_of(stored), digits) } else { stored }
    }

    /// key + value + 4 if there are flags, as text: what statistics by size go by.
    #[inline]
    pub(crate) fn plain_size(&self, bytes: &[u8]) -> usize {
        let key_len = if self.key_form < 8 {
            decimal::text_len(number_of(&bytes[self.key.clone()]))
        } else {
            self.key.len()
        };
        key_len + self.value_text_len(bytes) + self.flags_size()
    }

    /// The value, for who asks for its length alone: where it would have to be unpacked other bytes stand in.
    #[inline]
    pub(crate) fn value_of_len<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        const STAND_IN: [u8; decimal::DIGITS_MAX] = [b'0'; decimal::DIGITS_MAX];
        if self.value_form < 8 { &STAND_IN[..self.value_text_len(bytes)] } else { &bytes[self.value.clone()] }
    }
}

/// The outcome of looking for a key in a bucket.
pub(crate) enum Found {
    /// The record is whole in the bucket, and begins here.
    Here { at: usize },
    /// A stub with the key's fingerprint: the caller compares the key and, if it differs, goes on behind it.
    Perhaps { at: usize, elsewhere: Elsewhere },
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
            let may_be = header >> 4 == key.form;
            // Records of a bucket are often of one length. As long as they are, the processor need not wait for what one says to look at the
            // next.
            while bytes[at] == header {
                if may_be && key.is_at(bytes, at + 1) {
                    return Found::Here { at };
                }
                at += len;
            }
            continue;
        }
        if let Some(first) = expiring(bytes, at) {
            let may_be = first.key_form == key.form;
            while bytes[at] == header && bytes[at + 1] == first.header {
                if may_be && key.is_at(bytes, at + EXPIRING_KEY_AT) {
                    return Found::Here { at };
                }
                at += first.len;
            }
            continue;
        }
        let Some(entry) = entry(bytes, at) else { return Found::No { end: at } };
        match &entry.body {
            Body::Whole(parts) => {
                if parts.key_form == key.form
                    && parts.key.len() == key.stored_len
                    && key.is_at(bytes, parts.key.start)
                {
                    return Found::Here { at };
                }
            }
            Body::Stub { fingerprint, elsewhere } => {
                if *fingerprint == key.fingerprint() {
                    return Found::Perhaps { at, elsewhere: *elsewhere };
                }
            }
        }
        at += entry.len;
    }
}

/// Where the record behind the one at `at` begins.
#[inline]
pub(crate) fn next(bytes: &[u8], at: usize) -> usize {
    match at_a_glance(bytes, at) {
        None => at + entry(bytes, at).map_or(0, |entry| entry.len),
        Some((len, ..)) => at + len,
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
    let put_key = |out: &mut Vec<u8>| key.put_stored(out);
    record::put_record(out, key.form, key.text.len(), put_key, value, attributes);
}

#[cfg(test)]
mod tests {
    use super::super::key::Seeds;
    use super::*;
    use proptest::prelude::*;
    use todana_core::{Expiry, LastAccess, StaleMarks, UnixSeconds};

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
                let Found::Here { at } = find(&bucket, 0, &Key::new(key, &seeds)) else { panic!("not found") };
                let parts = whole(&bucket, at);
                prop_assert_eq!(parts.value_text(&bucket, &mut [0; 20]).to_vec(), first.1.clone());
                prop_assert_eq!(parts.key_text(&bucket, &mut [0; 20]).to_vec(), key.clone());
                prop_assert_eq!(parts.attributes(&bucket), first.2);
                prop_assert_eq!(parts.expiry(&bucket), first.2.expiry);
                let plain = key.len() + first.1.len() + if first.2.flags != 0 { 4 } else { 0 };
                prop_assert_eq!(parts.plain_size(&bucket), plain);
                if let Some((len, key_form, key_at)) = at_a_glance(&bucket, at) {
                    prop_assert_eq!((at + len, key_form, key_at), (parts.value.end, parts.key_form, parts.key.clone()));
                }
                prop_assert_eq!(next(&bucket, at), parts.value.end);
                prop_assert_eq!(parts.value_of_len(&bucket).len(), first.1.len());
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
