//! Encodes and verifies records with the checksum of their key and contents, as LMDB stores them
//! (docs/format/disk-tree.md, section 3).

use super::record;
use crate::raw::crc32c;
use todana_core::Record;

/// States which records of a tree have checksums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ChecksumMode {
    /// All records have a checksum.
    #[default]
    All,
    /// Version 1 wrote some of the records, and these have no checksum. In the other records, a
    /// mark before the checksum shows that there is one.
    Mixed,
}

/// The byte before a checksum in a tree with records of version 1. No record of version 1 begins
/// with this byte, or with a byte that differs from it in one bit: such a byte would mean a sliding
/// expiry without an expiry, and a read without an access time. (A read without an access time
/// marks a list of values since version 2, so a list without a checksum is damaged.)
const MARK: u8 = 0x84;
const CHECKSUM_LEN: usize = 4;

impl ChecksumMode {
    /// Appends the bytes that precede a record. The record is given in two parts.
    pub(super) fn begin(self, key: &[u8], parts: [&[u8]; 2], out: &mut Vec<u8>) {
        if self == ChecksumMode::Mixed {
            out.push(MARK);
        }
        out.extend_from_slice(&checksum(key, parts).to_le_bytes());
    }

    /// Returns the bytes of a record. Returns `None` if the checksum shows that the key or the
    /// record is damaged.
    #[inline]
    pub(super) fn verified<'a>(self, key: &[u8], stored: &'a [u8]) -> Option<&'a [u8]> {
        let Some(checked) = self.after_mark(stored) else {
            return (!record::has_value_list(stored)).then_some(stored);
        };
        let (expected, record) = checked.split_first_chunk()?;
        (checksum(key, [record, &[]]) == u32::from_le_bytes(*expected)).then_some(record)
    }

    /// Returns the record, or `None` if it is damaged.
    #[inline]
    pub(super) fn decode<'a>(self, key: &[u8], stored: &'a [u8]) -> Option<Record<'a>> {
        record::decode(self.verified(key, stored)?)
    }

    /// Returns the bytes of a record without checking them.
    pub(super) fn unverified(self, stored: &[u8]) -> &[u8] {
        match self.after_mark(stored) {
            Some(checked) => checked.get(CHECKSUM_LEN..).unwrap_or_default(),
            None => stored,
        }
    }

    /// Separates the checksum from the record. Returns `None` if the record has no checksum.
    #[inline]
    pub(super) fn after_mark(self, stored: &[u8]) -> Option<&[u8]> {
        match self {
            ChecksumMode::All => Some(stored),
            ChecksumMode::Mixed => stored.strip_prefix(&[MARK]),
        }
    }
}

#[inline]
fn checksum(key: &[u8], parts: [&[u8]; 2]) -> u32 {
    parts.iter().fold(crc32c(0, key), |crc, part| crc32c(crc, part))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use todana_core::Attributes;

    #[test]
    fn mark_is_two_bits_from_any_old_record() {
        for bit in 0..8 {
            let near = [MARK ^ 1 << bit, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1];
            assert_eq!(ChecksumMode::Mixed.decode(b"", &near), None, "bit {bit}");
        }
        assert_eq!(record::decode(&[MARK; 30]), None);
    }

    proptest! {
        #[test]
        fn changed_bit_is_never_a_record(key in any::<Vec<u8>>(), value in any::<Vec<u8>>(), at in any::<prop::sample::Index>()) {
            for checksums in [ChecksumMode::All, ChecksumMode::Mixed] {
                let mut plain = Vec::new();
                record::encode_header(&Attributes::default(), &mut plain);
                plain.extend_from_slice(&value);
                let mut stored = Vec::new();
                checksums.begin(&key, [&plain[..1], &plain[1..]], &mut stored);
                stored.extend_from_slice(&plain);
                prop_assert_eq!(checksums.verified(&key, &stored), Some(&plain[..]));
                prop_assert_eq!(checksums.unverified(&stored), &plain[..]);
                let bit = at.index((key.len() + stored.len()) * 8);
                let mut other = [&key[..], &stored[..]].concat();
                other[bit / 8] ^= 1 << (bit % 8);
                let (key, stored) = other.split_at(key.len());
                prop_assert_eq!(checksums.decode(key, stored), None);
            }
        }

        #[test]
        fn old_record_is_read_in_a_mixed_tree(value in any::<Vec<u8>>()) {
            let stored = [&[0], &value[..]].concat();
            let record = ChecksumMode::Mixed.decode(b"key", &stored);
            prop_assert_eq!(record, Some(Record::new(&value, Attributes::default())));
        }
    }
}
