//! Encodes and decodes stored records. A stored record is a tag, the attributes that are present,
//! and the value (docs/format/disk-tree.md, section 3).

use todana_core::{Attributes, Expiry, LastAccess, Record, StaleMarks, UnixSeconds};

const FLAGS: u8 = 1;
const EXPIRY: u8 = 2;
const SLIDING: u8 = 4;
const VERSION: u8 = 8;
const STALE: u8 = 16;
const TOKEN_OUT: u8 = 32;
const ACCESS: u8 = 64;
const FETCHED: u8 = 128;

/// Appends a record up to its value, which comes last.
pub(super) fn encode_header(attributes: &Attributes, out: &mut Vec<u8>) {
    let Attributes { flags, expiry, version, marks, access, has_value_list } = *attributes;
    let access = access.filter(|_| !has_value_list);
    let when = |is: bool, bit: u8| if is { bit } else { 0 };
    let tag = when(flags != 0, FLAGS)
        | when(expiry != Expiry::Never, EXPIRY)
        | when(expiry.span_s().is_some(), SLIDING)
        | when(version != 0, VERSION)
        | when(marks.stale, STALE)
        | when(marks.token_sent, TOKEN_OUT)
        | when(access.is_some(), ACCESS)
        | when(access.is_some_and(|access| access.fetched) || has_value_list, FETCHED);
    out.push(tag);
    if flags != 0 {
        out.extend_from_slice(&flags.to_le_bytes());
    }
    if let Some(at) = expiry.at() {
        encode_varint(at.0, out);
    }
    if let Some(span_s) = expiry.span_s() {
        encode_varint(span_s.into(), out);
    }
    if version != 0 {
        out.extend_from_slice(&version.to_le_bytes());
    }
    if let Some(access) = access {
        encode_varint(access.at.0, out);
    }
}

/// Returns the number of bytes that `encode_header` appends.
pub(super) fn header_len(attributes: &Attributes) -> usize {
    let Attributes { flags, expiry, version, access, has_value_list, .. } = *attributes;
    let access = access.filter(|_| !has_value_list);
    let when = |is: bool, len: usize| if is { len } else { 0 };
    1 + when(flags != 0, 4)
        + when(version != 0, 8)
        + expiry.at().map_or(0, |at| varint_len(at.0))
        + expiry.span_s().map_or(0, |span_s| varint_len(span_s.into()))
        + access.map_or(0, |access| varint_len(access.at.0))
}

fn varint_len(number: u64) -> usize {
    (64 - (number | 1).leading_zeros() as usize).div_ceil(7)
}

/// Decodes the attributes. Returns the attributes and the remaining bytes, which are the value.
/// Returns `None` if the bytes are not a record.
#[inline]
pub(super) fn decode_header(bytes: &[u8]) -> Option<(Attributes, &[u8])> {
    let (&tag, mut rest) = bytes.split_first()?;
    let mut attributes = Attributes::default();
    if tag == 0 {
        return Some((attributes, rest));
    }
    if tag & FLAGS != 0 {
        attributes.flags = u32::from_le_bytes(*take(&mut rest)?);
    }
    if tag & EXPIRY != 0 {
        attributes.expiry = Expiry::At(UnixSeconds(decode_varint(&mut rest)?));
    }
    if tag & SLIDING != 0 {
        let at = attributes.expiry.at()?;
        attributes.expiry = Expiry::Sliding { at, span_s: decode_varint(&mut rest)?.try_into().ok()? };
    }
    if tag & VERSION != 0 {
        attributes.version = u64::from_le_bytes(*take(&mut rest)?);
    }
    attributes.marks = StaleMarks { stale: tag & STALE != 0, token_sent: tag & TOKEN_OUT != 0 };
    if tag & ACCESS != 0 {
        let at = UnixSeconds(decode_varint(&mut rest)?);
        attributes.access = Some(LastAccess { at, fetched: tag & FETCHED != 0 });
    } else {
        // Only an access can be a fetch, so the bit without an access marks a list of values.
        attributes.has_value_list = tag & FETCHED != 0;
    }
    Some((attributes, rest))
}

/// Returns true if the tag of a record marks a list of values.
#[inline]
pub(super) fn has_value_list(bytes: &[u8]) -> bool {
    bytes.first().is_some_and(|tag| tag & (ACCESS | FETCHED) == FETCHED)
}

/// Decodes a stored record.
#[inline]
pub(super) fn decode(bytes: &[u8]) -> Option<Record<'_>> {
    let (attributes, value) = decode_header(bytes)?;
    Some(Record::new(value, attributes))
}

pub(super) fn encode_varint(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Removes a varint from the beginning of `bytes` and returns it. Returns `None` if there is no
/// varint, or if it has more than 64 bits or is not in its shortest form.
pub(super) fn decode_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        if shift == 63 && byte > 1 {
            return None;
        }
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return (byte != 0 || shift == 0).then_some(number);
        }
    }
    None
}

fn take<'a, const N: usize>(bytes: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (taken, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(taken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_plain_record_costs_one_byte() {
        let mut out = Vec::new();
        encode_header(&Attributes::default(), &mut out);
        assert_eq!(out, [0]);
    }

    proptest! {
        #[test]
        fn record_encoding_round_trips(
            flags in any::<u32>(), at in any::<u64>(), span_s in any::<Option<u32>>(), version in any::<u64>(),
            stale in any::<bool>(), token_sent in any::<bool>(), access in any::<Option<(u64, bool)>>(),
            kind in 0..3, value in any::<Vec<u8>>(),
        ) {
            let at = UnixSeconds(at);
            let expiry = match (kind, span_s) {
                (0, _) => Expiry::Never,
                (_, None) => Expiry::At(at),
                (_, Some(span_s)) => Expiry::Sliding { at, span_s },
            };
            let access = access.map(|(at, fetched)| LastAccess { at: UnixSeconds(at), fetched });
            let marks = StaleMarks { stale, token_sent };
            let attributes = Attributes { flags, expiry, version, marks, access, has_value_list: stale && access.is_none() };
            let mut out = Vec::new();
            encode_header(&attributes, &mut out);
            prop_assert_eq!(out.len(), header_len(&attributes));
            out.extend_from_slice(&value);
            prop_assert_eq!(decode(&out), Some(Record::new(&value, attributes)));
        }

        #[test]
        fn any_bytes_are_a_record_or_none(bytes in any::<Vec<u8>>()) {
            decode(&bytes);
        }
    }
}
