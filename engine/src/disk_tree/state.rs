//! What a tree knows of itself: its mark and its totals (docs/format/disk-tree.md, section 1).

use super::stored::Checksums;
use crate::raw::crc32c;
use todana_core::{Error, ErrorKind, Expiry, Result};

/// What is known of all records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) records: u64,
    /// Of keys, and records as they are stored, without their checksums.
    pub(super) bytes: u64,
    /// Records with an expiry.
    pub(super) perishable: u64,
}

impl Totals {
    pub(super) fn one(key_len: usize, stored_len: usize, expiry: Expiry) -> Totals {
        let perishable = u64::from(expiry != Expiry::Never);
        Totals { records: 1, bytes: (key_len + stored_len) as u64, perishable }
    }
}

/// The entry of `state`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    pub(super) mark: u64,
    pub(super) totals: Totals,
    pub(super) checksums: Checksums,
}

const MAGIC: &[u8; 8] = b"TODANADT";
const VERSION: u32 = 2;
/// Of version 1.
const NUMBERS_LEN: usize = 44;
const LEN: usize = 52;
/// Bit of the flags: there may be records without a checksum.
const MIXED: u32 = 1;

impl State {
    pub(super) fn encode(&self) -> [u8; LEN] {
        let Totals { records, bytes, perishable } = self.totals;
        let mut out = [0; LEN];
        out[..8].copy_from_slice(MAGIC);
        out[8..12].copy_from_slice(&VERSION.to_le_bytes());
        for (field, number) in out[12..44].chunks_exact_mut(8).zip([self.mark, records, bytes, perishable]) {
            field.copy_from_slice(&number.to_le_bytes());
        }
        let flags = if self.checksums == Checksums::Mixed { MIXED } else { 0 };
        out[44..48].copy_from_slice(&flags.to_le_bytes());
        let checksum = crc32c(0, &out[..48]);
        out[48..].copy_from_slice(&checksum.to_le_bytes());
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<State> {
        let corrupt = |what: &str| Error::new(ErrorKind::Corrupt, what);
        let small = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let number = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let version = small(8).filter(|_| bytes.starts_with(MAGIC));
        let checksums = match (version, bytes.len()) {
            (Some(1), NUMBERS_LEN) => Checksums::Mixed,
            (Some(VERSION), LEN) if small(48) != Some(crc32c(0, &bytes[..48])) => {
                return Err(corrupt("its state does not match its checksum"));
            }
            (Some(VERSION), LEN) if small(44) == Some(MIXED) => Checksums::Mixed,
            (Some(VERSION), LEN) if small(44) == Some(0) => Checksums::All,
            (Some(version), _) if version > VERSION => {
                let message =
                    format!("it is a disk tree of version {version}, and this reads up to {VERSION}");
                return Err(Error::new(ErrorKind::Invalid, message));
            }
            _ => return Err(corrupt("its state is none of a disk tree")),
        };
        let field = |at| number(at).expect("the length was compared");
        let totals = Totals { records: field(20), bytes: field(28), perishable: field(36) };
        Ok(State { mark: field(12), totals, checksums })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_bit_of_a_state_is_refused() {
        let totals = Totals { records: 3, bytes: 50, perishable: 1 };
        for checksums in [Checksums::All, Checksums::Mixed] {
            let state = State { mark: 17, totals, checksums };
            let bytes = state.encode();
            assert_eq!(State::decode(&bytes).unwrap(), state);
            for bit in 0..LEN * 8 {
                let mut changed = bytes;
                changed[bit / 8] ^= 1 << (bit % 8);
                State::decode(&changed).unwrap_err();
            }
        }
    }
}
