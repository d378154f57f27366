//! Defines the layout of records that are too long for a bucket: each has a block of its own, and
//! a stub in its bucket refers to it.
//!
//! The layout is that of `crate::record`. The key is stored as text of variable length.

use super::key::Key;
use crate::record::{self, KEY_VARIABLE, PREFIX, RecordParts};
use todana_core::Attributes;

/// Appends a complete record.
pub(super) fn put_block_record(out: &mut Vec<u8>, key: &Key<'_>, value: &[u8], attributes: &Attributes) {
    let put_key = |out: &mut Vec<u8>| out.extend_from_slice(key.text);
    record::put_record(out, KEY_VARIABLE, key.text.len(), put_key, value, attributes);
}

/// Decodes the record that fills a block.
pub(super) fn block_record(bytes: &[u8]) -> RecordParts {
    let mut next = 1;
    let (mut prefix, mut more, mut header) = (0, 0, bytes[0]);
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

/// Returns the size of the record for statistics: the lengths of the key and the value as text, + 4
/// if there are flags.
pub(super) fn plain_size(bytes: &[u8], parts: &RecordParts) -> usize {
    parts.key.len() + parts.value_text_len(bytes) + parts.flags_size()
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
                put_block_record(&mut out, &Key::new(key, &HashSeeds::new(1, 0)), value, &attributes);
                let len = out.len();
                out.extend_from_slice(&[0xAA; 8]);
                let parts = block_record(&out);
                assert_eq!((&out[parts.key.clone()], parts.value.end), (key, len));
                assert_eq!(parts.value_text(&out, &mut [0; 20]), value);
                assert_eq!(parts.attributes(&out), attributes);
                let flags = if attributes.flags == 0 { 0 } else { 4 };
                assert_eq!(plain_size(&out, &parts), key.len() + value.len() + flags);
            }
        }
    }
}
