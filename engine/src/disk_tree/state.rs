//! Defines the state of a tree, which is stored with it: its mark and its totals
//! (docs/format/disk-tree.md, section 1). The mark is the position in the update log up to which
//! the tree is complete.

use super::stored::ChecksumMode;
use crate::raw::crc32c;
use todana_core::{Error, ErrorKind, Expiry, Result};

/// The totals of all records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RecordTotals {
    pub(super) records: u64,
    /// The number of bytes of keys and stored records, without checksums.
    pub(super) bytes: u64,
    /// The number of records with an expiry.
    pub(super) with_expiry: u64,
}

impl RecordTotals {
    /// Replaces the contribution of one record by that of another.
    pub(super) fn replace(&mut self, old: RecordTotals, new: RecordTotals) {
        let replace =
            |total: &mut u64, old: u64, new: u64| *total = total.wrapping_sub(old).wrapping_add(new);
        replace(&mut self.records, old.records, new.records);
        replace(&mut self.bytes, old.bytes, new.bytes);
        replace(&mut self.with_expiry, old.with_expiry, new.with_expiry);
    }

    pub(super) fn one(key_len: usize, stored_len: usize, expiry: Expiry) -> RecordTotals {
        let with_expiry = u64::from(expiry != Expiry::Never);
        RecordTotals { records: 1, bytes: (key_len + stored_len) as u64, with_expiry }
    }
}

/// The state of a tree, stored as the entry in the table `state`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TreeState {
    pub(super) mark: u64,
    pub(super) totals: RecordTotals,
    pub(super) checksums: ChecksumMode,
    pub(super) layout: RecordLayout,
}

/// How LMDB's entries contain the records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum RecordLayout {
    /// Each record is an entry, except for records with long keys.
    #[default]
    Entries,
    /// Each entry is a block of records.
    Blocks,
}

const MAGIC: &[u8; 8] = b"TODANADT";
const VERSION: u32 = 2;
/// The length of the state in version 1 of the format.
const NUMBERS_LEN: usize = 44;
const LEN: usize = 52;
/// The flag of a tree that may contain records without a checksum.
const MIXED: u32 = 1;
/// The flag of a tree whose records are in blocks.
const BLOCKS: u32 = 2;

impl TreeState {
    pub(super) fn encode(&self) -> [u8; LEN] {
        let RecordTotals { records, bytes, with_expiry } = self.totals;
        let mut out = [0; LEN];
        out[..8].copy_from_slice(MAGIC);
        out[8..12].copy_from_slice(&VERSION.to_le_bytes());
        for (field, number) in out[12..44].chunks_exact_mut(8).zip([self.mark, records, bytes, with_expiry]) {
            field.copy_from_slice(&number.to_le_bytes());
        }
        let flags = match (self.layout, self.checksums) {
            (RecordLayout::Blocks, _) => BLOCKS,
            (RecordLayout::Entries, ChecksumMode::Mixed) => MIXED,
            (RecordLayout::Entries, ChecksumMode::All) => 0,
        };
        out[44..48].copy_from_slice(&flags.to_le_bytes());
        let checksum = crc32c(0, &out[..48]);
        out[48..].copy_from_slice(&checksum.to_le_bytes());
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<TreeState> {
        let corrupt = |what: &str| Error::new(ErrorKind::Corrupt, what);
        let small = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let number = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let version = small(8).filter(|_| bytes.starts_with(MAGIC));
        let (layout, checksums) = match (version, bytes.len()) {
            (Some(1), NUMBERS_LEN) => (RecordLayout::Entries, ChecksumMode::Mixed),
            (Some(VERSION), LEN) if small(48) != Some(crc32c(0, &bytes[..48])) => {
                return Err(corrupt("the state does not match its checksum"));
            }
            (Some(VERSION), LEN) if small(44) == Some(MIXED) => (RecordLayout::Entries, ChecksumMode::Mixed),
            (Some(VERSION), LEN) if small(44) == Some(BLOCKS) => (RecordLayout::Blocks, ChecksumMode::All),
            (Some(VERSION), LEN) if small(44) == Some(0) => (RecordLayout::Entries, ChecksumMode::All),
            (Some(version), _) if version > VERSION => {
                let message =
                    format!("format version {version}; this program reads versions up to {VERSION}");
                return Err(Error::new(ErrorKind::Invalid, message));
            }
            _ => return Err(corrupt("the state is not that of a disk tree")),
        };
        let field = |at| number(at).expect("the length was compared");
        let totals = RecordTotals { records: field(20), bytes: field(28), with_expiry: field(36) };
        Ok(TreeState { mark: field(12), totals, checksums, layout })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_bit_of_a_state_is_refused() {
        let totals = RecordTotals { records: 3, bytes: 50, with_expiry: 1 };
        for (layout, checksums) in [
            (RecordLayout::Entries, ChecksumMode::All),
            (RecordLayout::Entries, ChecksumMode::Mixed),
            (RecordLayout::Blocks, ChecksumMode::All),
        ] {
            let state = TreeState { mark: 17, totals, checksums, layout };
            let bytes = state.encode();
            assert_eq!(TreeState::decode(&bytes).unwrap(), state);
            for bit in 0..LEN * 8 {
                let mut changed = bytes;
                changed[bit / 8] ^= 1 << (bit % 8);
                TreeState::decode(&changed).unwrap_err();
            }
        }
    }
}
