//! Defines the layout of records that are too long for a bucket: each has a block of its own, and
//! a stub in its bucket refers to it.
//!
//! ```text
//! block = [0xD0 | dictionary of the value (u8)] | record
//! ```
//!
//! The layout of the record is that of `crate::record`. The key is stored as text of variable
//! length. With a dictionary, the value of the record is the stored form of the value.

use super::encodings::{PlainBuffer, RecordEncodings};
use super::key::Key;
use crate::record::{self, KEY_VARIABLE, PREFIX, RecordParts};
use todana_core::Attributes;

/// The first byte of a block with a dictionary. No record begins with it, because its key would be
/// of another form than those of blocks.
const ENCODED: u8 = 0xD0;
const ENCODED_LEN: usize = 2;

/// Appends a complete record. `value` is in the form of the dictionary, or the value if that is 0.
pub(super) fn put_block_record(
    out: &mut Vec<u8>,
    key: &Key<'_>,
    (value, dictionary): (&[u8], u8),
    attributes: &Attributes,
) {
    if dictionary != 0 {
        out.extend_from_slice(&[ENCODED, dictionary]);
    }
    let put_key = |out: &mut Vec<u8>| out.extend_from_slice(key.text);
    record::put_record(out, KEY_VARIABLE, key.text.len(), put_key, value, attributes);
}

/// Returns the number of the dictionary; 0 if there is none.
pub(super) fn dictionary_of(bytes: &[u8]) -> u8 {
    if bytes[0] == ENCODED { bytes[1] } else { 0 }
}

/// Decodes the record of a block. Its value is in the form of the dictionary.
pub(super) fn block_record(bytes: &[u8]) -> RecordParts {
    let start = if bytes[0] == ENCODED { ENCODED_LEN } else { 0 };
    let mut next = start + 1;
    let (mut prefix, mut more, mut header) = (0, 0, bytes[start]);
    if header >= PREFIX {
        prefix = header;
        if prefix & record::HAS_MORE != 0 {
            more = bytes[next];
            next += 1;
        }
        header = bytes[next];
        next += 1;
    }
    RecordParts::read(bytes, prefix, more, header, next, &[0; 15])
}

/// Returns the value as text. `buffer` is the buffer into which it is unpacked.
pub(super) fn value_text<'a>(
    bytes: &'a [u8],
    parts: &RecordParts,
    encodings: &RecordEncodings,
    buffer: &'a mut PlainBuffer,
) -> &'a [u8] {
    match dictionary_of(bytes) {
        0 => parts.value_text(bytes, &mut buffer.digits),
        dictionary => {
            let mut digits = [0; 20];
            encodings.decoded(dictionary, parts.value_text(bytes, &mut digits), buffer)
        }
    }
}

/// Returns the length of the value as text.
pub(super) fn value_len(bytes: &[u8], parts: &RecordParts, encodings: &RecordEncodings) -> usize {
    match dictionary_of(bytes) {
        0 => parts.value_text_len(bytes),
        dictionary => encodings.value_len(dictionary, parts.value_text(bytes, &mut [0; 20])),
    }
}

/// Returns the size of the record for statistics: the lengths of the key and the value as text, + 4
/// if there are flags.
pub(super) fn plain_size(bytes: &[u8], parts: &RecordParts, encodings: &RecordEncodings) -> usize {
    parts.key.len() + value_len(bytes, parts, encodings) + parts.flags_size()
}

#[cfg(test)]
mod tests {
    use super::super::key::HashSeeds;
    use super::*;
    use todana_core::{Expiry, UnixSeconds};

    #[test]
    fn block_record_comes_back() {
        let expiry = Expiry::Sliding { at: UnixSeconds(1 << 33), span_s: 300 };
        let attributes = Attributes { flags: 70_000, expiry, version: 9, ..Attributes::default() };
        for (key, value) in [(&b"12345678"[..], &[b'v'; 3000][..]), (&[b'k'; 2000], b"77"), (b"", &[0; 1500])]
        {
            for attributes in [Attributes::default(), attributes] {
                let mut out = Vec::new();
                for dictionary in [0, 7] {
                    out.clear();
                    let key = Key::new(key, &HashSeeds::new(1, 0));
                    put_block_record(&mut out, &key, (value, dictionary), &attributes);
                    let len = out.len();
                    out.extend_from_slice(&[0xAA; 8]);
                    let parts = block_record(&out);
                    assert_eq!((&out[parts.key.clone()], parts.value.end), (key.text, len));
                    assert_eq!(dictionary_of(&out), dictionary);
                    assert_eq!(parts.value_text(&out, &mut [0; 20]), value);
                    assert_eq!(parts.attributes(&out), attributes);
                }
            }
        }
    }
}
