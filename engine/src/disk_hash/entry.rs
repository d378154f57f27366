//! Encodes and decodes entries of the log (docs/format/disk-hash.md, section 2).

use crate::raw;
use todana_core::{Attributes, Expiry, LastAccess, StaleMarks, UnixSeconds};

pub(crate) const ALIGN: usize = 8;

pub(crate) const PUT: u8 = 0;
pub(crate) const REMOVE: u8 = 1;
pub(crate) const BATCH: u8 = 2;
pub(crate) const CLEAR: u8 = 3;
pub(crate) const SEGMENT_LIST: u8 = 4;
pub(crate) const DROPPED: u8 = 5;
pub(crate) const MARK: u8 = 6;

const KIND: u8 = 0x07;
const HAS_FLAGS: u8 = 0x08;
const HAS_EXPIRY: u8 = 0x10;
const SLIDES: u8 = 0x20;
const HAS_VERSION: u8 = 0x40;
const HAS_MORE: u8 = 0x80;
const MORE_STALE: u8 = 0x01;
const MORE_TOKEN_OUT: u8 = 0x02;
const MORE_ACCESS: u8 = 0x04;
const MORE_FETCHED: u8 = 0x08;
const MORE_COMPRESSED: u8 = 0x10;

/// The length of an entry can always be computed from this number of bytes at its beginning.
pub(crate) const HEAD_MAX: usize = 64;

/// How a value is compressed: the number of the dictionary (0 for none) and the length of the plain
/// value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ValueEncoding {
    pub(crate) dictionary: u8,
    pub(crate) plain_len: usize,
}

/// The decoded beginning of an entry. Offsets count from the beginning of the entry.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct EntryHead {
    pub(crate) kind: u8,
    pub(crate) attributes: Attributes,
    pub(crate) encoding: Option<ValueEncoding>,
    pub(crate) key_at: usize,
    pub(crate) key_len: usize,
    pub(crate) value_len: usize,
    /// The length of the entry with its padding.
    pub(crate) len: usize,
}

impl EntryHead {
    pub(crate) fn key<'b>(&self, entry: &'b [u8]) -> &'b [u8] {
        &entry[self.key_at..self.key_at + self.key_len]
    }

    pub(crate) fn value<'b>(&self, entry: &'b [u8]) -> &'b [u8] {
        let at = self.key_at + self.key_len;
        &entry[at..at + self.value_len]
    }

    /// Returns the number that follows the tag, in those kinds of entries that have one. The entry
    /// must have at least 16 bytes.
    pub(crate) fn number(entry: &[u8]) -> u64 {
        u64_at(entry, 8)
    }
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

#[inline]
pub(crate) fn padded(len: usize) -> usize {
    len.next_multiple_of(ALIGN)
}

#[inline]
fn put_varint(mut value: u64, into: &mut Vec<u8>) {
    while value >= 0x80 {
        into.push(value as u8 | 0x80);
        value >>= 7;
    }
    into.push(value as u8);
}

struct Cursor<'b> {
    bytes: &'b [u8],
    at: usize,
}

impl Cursor<'_> {
    #[inline]
    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    #[inline]
    fn varint(&mut self) -> Option<u64> {
        let byte = self.byte()?;
        if byte < 0x80 {
            return Some(u64::from(byte));
        }
        let mut value = u64::from(byte & 0x7f);
        for shift in (7..70).step_by(7) {
            let byte = self.byte()?;
            if shift == 63 && byte > 1 {
                return None;
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn len(&mut self) -> Option<usize> {
        // No key or value is longer. This limit also keeps sums of the two lengths from
        // overflowing.
        self.varint().filter(|&len| len <= u64::from(u32::MAX)).map(|len| len as usize)
    }
}

/// Appends the beginning of an entry up to its key, with a CRC of 0.
#[inline]
pub(crate) fn put_head(
    into: &mut Vec<u8>,
    key_len: usize,
    value_len: usize,
    attributes: &Attributes,
    encoding: Option<ValueEncoding>,
) {
    if *attributes == Attributes::default() && encoding.is_none() {
        if key_len < 0x80 && value_len < 0x80 {
            into.extend_from_slice(&[0, 0, 0, 0, PUT, key_len as u8, value_len as u8]);
        } else {
            into.extend_from_slice(&[0, 0, 0, 0, PUT]);
            put_varint(key_len as u64, into);
            put_varint(value_len as u64, into);
        }
        return;
    }
    let start = into.len();
    into.extend_from_slice(&[0, 0, 0, 0, PUT]);
    put_varint(key_len as u64, into);
    put_varint(value_len as u64, into);
    let Attributes { flags, expiry, version, marks, access, has_value_list } = *attributes;
    let access = access.filter(|_| !has_value_list);
    let mut more = 0;
    for (is_set, bit) in [
        (marks.stale, MORE_STALE),
        (marks.token_sent, MORE_TOKEN_OUT),
        (access.is_some(), MORE_ACCESS),
        (access.is_some_and(|access| access.fetched) || has_value_list, MORE_FETCHED),
        (encoding.is_some(), MORE_COMPRESSED),
    ] {
        more |= if is_set { bit } else { 0 };
    }
    let mut tag = PUT;
    if more != 0 {
        tag |= HAS_MORE;
        into.push(more);
    }
    if flags != 0 {
        tag |= HAS_FLAGS;
        put_varint(flags.into(), into);
    }
    match expiry {
        Expiry::Never => {}
        Expiry::At(at) => {
            tag |= HAS_EXPIRY;
            put_varint(at.0, into);
        }
        Expiry::Sliding { at, span_s } => {
            tag |= HAS_EXPIRY | SLIDES;
            put_varint(at.0, into);
            put_varint(span_s.into(), into);
        }
    }
    if version != 0 {
        tag |= HAS_VERSION;
        put_varint(version, into);
    }
    if let Some(access) = access {
        put_varint(access.at.0, into);
    }
    if let Some(ValueEncoding { dictionary, plain_len }) = encoding {
        into.push(dictionary);
        put_varint(plain_len as u64, into);
    }
    into[start + 4] = tag;
}

/// Appends a remove entry without its CRC.
pub(crate) fn put_remove(into: &mut Vec<u8>, key: &[u8]) {
    into.extend_from_slice(&[0, 0, 0, 0, REMOVE]);
    put_varint(key.len() as u64, into);
    into.extend_from_slice(key);
}

/// Appends an entry that is neither a put nor a remove, without its CRC. `rest` follows the first
/// eight bytes.
pub(crate) fn put_other(into: &mut Vec<u8>, kind: u8, rest: &[u8]) {
    into.extend_from_slice(&[0, 0, 0, 0, kind, 0, 0, 0]);
    into.extend_from_slice(rest);
}

/// Pads the complete entry that begins at `start` and sets its CRC. `seed` is the initial value of
/// the CRC, which depends on the segment and the offset.
#[inline]
pub(crate) fn seal(into: &mut Vec<u8>, start: usize, seed: u32) {
    let len = padded(into.len() - start);
    // The padding has fewer than eight bytes.
    into.resize(start + len, 0);
    let crc = raw::crc32c(seed, &into[start + 4..]);
    into[start..start + 4].copy_from_slice(&crc.to_le_bytes());
}

/// Returns true if the CRC of a complete entry is correct.
#[inline]
pub(crate) fn is_intact(entry: &[u8], seed: u32) -> bool {
    raw::crc32c(seed, &entry[4..]) == u32_at(entry, 0)
}

/// Decodes the entry at the beginning of `bytes`. Returns `None` if the entry is incomplete or its
/// CRC is wrong.
#[inline]
pub(crate) fn decode(bytes: &[u8], seed: u32) -> Option<(EntryHead, &[u8])> {
    let head = parse(bytes)?;
    let entry = bytes.get(..head.len)?;
    is_intact(entry, seed).then_some((head, entry))
}

/// Decodes the beginning of an entry from its first [`HEAD_MAX`] bytes, or from all bytes if there
/// are fewer. Returns `None` if the bytes are not the beginning of an entry. The remainder of the
/// entry may be missing, and the CRC is not checked.
#[inline]
pub(crate) fn parse(bytes: &[u8]) -> Option<EntryHead> {
    let tag = *bytes.get(4)?;
    let mut cursor = Cursor { bytes, at: 5 };
    let mut head = EntryHead {
        kind: tag & KIND,
        attributes: Attributes::default(),
        encoding: None,
        key_at: 0,
        key_len: 0,
        value_len: 0,
        len: 0,
    };
    if tag == PUT {
        head.key_len = cursor.len()?;
        head.value_len = cursor.len()?;
    } else {
        match head.kind {
            PUT => parse_attributes(tag, &mut cursor, &mut head)?,
            _ if tag & !KIND != 0 => return None,
            REMOVE => head.key_len = cursor.len()?,
            BATCH | DROPPED => head.len = 16,
            CLEAR => head.len = 8,
            SEGMENT_LIST => head.len = 16 + 16 * u32_at(bytes.get(8..12)?, 0) as usize,
            MARK => head.len = 24,
            _ => return None,
        }
        if head.len != 0 {
            return Some(head);
        }
    }
    head.key_at = cursor.at;
    head.len = padded(head.key_at + head.key_len + head.value_len);
    Some(head)
}

fn parse_attributes(tag: u8, cursor: &mut Cursor<'_>, head: &mut EntryHead) -> Option<()> {
    head.key_len = cursor.len()?;
    head.value_len = cursor.len()?;
    let more = if tag & HAS_MORE != 0 { cursor.byte()? } else { 0 };
    let attributes = &mut head.attributes;
    if tag & HAS_FLAGS != 0 {
        attributes.flags = u32::try_from(cursor.varint()?).ok()?;
    }
    if tag & HAS_EXPIRY != 0 {
        let at = UnixSeconds(cursor.varint()?);
        attributes.expiry = if tag & SLIDES != 0 {
            Expiry::Sliding { at, span_s: u32::try_from(cursor.varint()?).ok()? }
        } else {
            Expiry::At(at)
        };
    }
    if tag & HAS_VERSION != 0 {
        attributes.version = cursor.varint()?;
    }
    attributes.marks = StaleMarks { stale: more & MORE_STALE != 0, token_sent: more & MORE_TOKEN_OUT != 0 };
    if more & MORE_ACCESS != 0 {
        let at = UnixSeconds(cursor.varint()?);
        attributes.access = Some(LastAccess { at, fetched: more & MORE_FETCHED != 0 });
    } else {
        // Only an access can be a fetch, so the bit without an access marks a list of values.
        attributes.has_value_list = more & MORE_FETCHED != 0;
    }
    if more & MORE_COMPRESSED != 0 {
        let dictionary = cursor.byte()?;
        head.encoding = Some(ValueEncoding { dictionary, plain_len: cursor.len()? });
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simple_entry_costs_seven_bytes_and_padding() {
        let mut bytes = Vec::new();
        put_head(&mut bytes, 8, 8, &Attributes::default(), None);
        bytes.extend_from_slice(b"kkkkkkkkvvvvvvvv");
        seal(&mut bytes, 0, 77);
        assert_eq!(&bytes[4..], b"\x00\x08\x08kkkkkkkkvvvvvvvv\0");
        let head = parse(&bytes).unwrap();
        assert_eq!(
            (head.key(&bytes), head.value(&bytes), head.len),
            (&b"kkkkkkkk"[..], &b"vvvvvvvv"[..], 24)
        );
        assert!(is_intact(&bytes, 77) && !is_intact(&bytes, 78));
    }

    #[test]
    fn attributes_come_back_as_they_were() {
        let expiries = [
            Expiry::Never,
            Expiry::At(UnixSeconds(u64::MAX)),
            Expiry::Sliding { at: UnixSeconds(300), span_s: u32::MAX },
        ];
        for expiry in expiries {
            for bits in 0..64u32 {
                let is = |bit: u32| bits >> bit & 1 == 1;
                let attributes = Attributes {
                    flags: if is(0) { u32::MAX } else { 0 },
                    expiry,
                    version: if is(1) { u64::MAX } else { 0 },
                    marks: StaleMarks { stale: is(2), token_sent: is(3) },
                    access: is(4).then_some(LastAccess { at: UnixSeconds(u64::MAX), fetched: is(1) }),
                    has_value_list: !is(4) && is(3),
                };
                let encoding = is(5).then_some(ValueEncoding { dictionary: 9, plain_len: 1 << 30 });
                let mut bytes = Vec::new();
                put_head(&mut bytes, 3, 1000, &attributes, encoding);
                assert!(bytes.len() <= HEAD_MAX);
                bytes.extend_from_slice(b"key");
                bytes.resize(bytes.len() + 1000, b'v');
                seal(&mut bytes, 0, 1);
                let head = parse(&bytes[..bytes.len().min(HEAD_MAX)]).unwrap();
                assert_eq!((head.attributes, head.encoding, head.len), (attributes, encoding, bytes.len()));
                assert_eq!((head.key(&bytes), head.value(&bytes)), (&b"key"[..], &[b'v'; 1000][..]));
            }
        }
    }

    #[test]
    fn any_bytes_are_an_entry_or_not_one() {
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..20_000 {
            let mut bytes: Vec<u8> = (0..random.usize(..100)).map(|_| random.u8(..)).collect();
            if let Some(tag) = bytes.get_mut(4) {
                *tag = random.u8(..);
            }
            if let Some(head) = parse(&bytes) {
                assert!(head.len >= 8 && head.len % 8 == 0);
            }
        }
    }
}
