//! All records whose places begin with the same 511 bytes, in one LMDB value (docs/format/disk-tree.md, section 2).

use super::front::Entry;
use super::place;
use super::record::{decode_varint, encode_varint};
use super::stored::Checksums;
use crate::raw::crc32c;
use std::cmp::Ordering;
use todana_core::{Error, ErrorKind, Record, Result};

/// In front of the checksum where there are sheaves without. None of version 1 begins so: the number is not in its shortest form.
const MARK: [u8; 3] = [0x80, 0x80, 0];

/// A sheaf that has been read. Its own checksum covers what tells the records apart; each record has one besides.
pub(super) struct Sheaf<'a> {
    pub(super) stalks: Vec<Stalk<'a>>,
    has_checksums: bool,
}

/// A record in a sheaf: the rest of its place, and its bytes.
pub(super) type Stalk<'a> = (&'a [u8], &'a [u8]);

impl<'a> Sheaf<'a> {
    /// Reads the sheaf under an LMDB key; no bytes are an empty one.
    pub(super) fn parse(checksums: Checksums, at: &[u8], bytes: &'a [u8]) -> Result<Sheaf<'a>> {
        let damaged = |what: &str| Error::new(ErrorKind::Corrupt, format!("a sheaf of long keys {what}"));
        let checked = match checksums {
            Checksums::All => Some(bytes),
            Checksums::Mixed => bytes.strip_prefix(&MARK),
        };
        let (expected, mut rest) = match checked.filter(|_| !bytes.is_empty()).map(<[u8]>::split_first_chunk)
        {
            None => (None, bytes),
            Some(Some((checksum, rest))) => (Some(u32::from_le_bytes(*checksum)), rest),
            Some(None) => return Err(damaged("ends early")),
        };
        let mut stalks: Vec<Stalk<'_>> = Vec::new();
        let mut crc = crc32c(0, at);
        while !rest.is_empty() {
            let start = rest;
            let stalk = take(&mut rest).and_then(|place| Some((place, take(&mut rest)?)));
            let stalk = stalk.ok_or_else(|| damaged("ends early"))?;
            if stalks.last().is_some_and(|last| last.0 >= stalk.0) {
                return Err(damaged("is not in order"));
            }
            crc = crc32c(crc, &start[..start.len() - rest.len() - stalk.1.len()]);
            stalks.push(stalk);
        }
        if expected.is_some_and(|expected| expected != crc) {
            return Err(damaged("does not match its checksum"));
        }
        Ok(Sheaf { stalks, has_checksums: expected.is_some() })
    }

    /// The stored record whose place goes on like this.
    pub(super) fn find(&self, rest: &[u8]) -> Option<&'a [u8]> {
        self.stalks.iter().find(|stalk| stalk.0 == rest).map(|stalk| stalk.1)
    }

    /// How the checksums of its records are to be read; `None` if they have none.
    pub(super) fn checksums(&self) -> Option<Checksums> {
        self.has_checksums.then_some(Checksums::All)
    }
}

/// Returns the bytes of a record of a sheaf; `None` if it is damaged.
pub(super) fn verified<'a>(checksums: Option<Checksums>, key: &[u8], stored: &'a [u8]) -> Option<&'a [u8]> {
    checksums.map_or(Some(stored), |checksums| checksums.verified(key, stored))
}

/// Returns a record of a sheaf; `None` if it is damaged.
pub(super) fn decode<'a>(checksums: Option<Checksums>, key: &[u8], stored: &'a [u8]) -> Option<Record<'a>> {
    super::record::decode(verified(checksums, key, stored)?)
}

fn take<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = decode_varint(bytes)?.try_into().ok()?;
    let (taken, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(taken)
}

/// Returns the sheaf with these changes, which are in order and belong here; empty if nothing is left. Records that had no
/// checksum get one; a damaged record stays as damaged as it is.
pub(super) fn changed(checksums: Checksums, at: &[u8], old: &[u8], changes: &[&Entry]) -> Result<Vec<u8>> {
    let old = Sheaf::parse(checksums, at, old)?;
    let mut new = SheafWriter::new(checksums, at);
    let keep = |new: &mut SheafWriter, (rest, stored): Stalk<'_>| match old.has_checksums {
        true => new.add(rest, &[], [stored, &[]]),
        false => new.add_checked(rest, place::to_key(&[at, rest].concat()), [stored, &[]]),
    };
    let mut kept = old.stalks.iter().copied().peekable();
    for change in changes {
        let place = place::of_key(change.key());
        let rest = place::split(&place).1.expect("what comes here has a long key");
        while let Some(stalk) = kept.next_if(|stalk| stalk.0 < rest) {
            keep(&mut new, stalk);
        }
        let _replaced = kept.next_if(|stalk| stalk.0.cmp(rest) == Ordering::Equal);
        if let Some(parts) = change.parts() {
            new.add_checked(rest, change.key(), parts);
        }
    }
    kept.for_each(|stalk| keep(&mut new, stalk));
    Ok(new.finish())
}

/// Writes a sheaf.
struct SheafWriter {
    out: Vec<u8>,
    /// Where the checksum is to stand; the records come after it.
    checksum_at: usize,
    crc: u32,
    prefix: Vec<u8>,
}

impl SheafWriter {
    fn new(checksums: Checksums, at: &[u8]) -> SheafWriter {
        let mut out = if checksums == Checksums::Mixed { MARK.to_vec() } else { Vec::new() };
        let checksum_at = out.len();
        out.extend_from_slice(&[0; 4]);
        SheafWriter { out, checksum_at, crc: crc32c(0, at), prefix: Vec::new() }
    }

    fn add_checked(&mut self, rest: &[u8], key: &[u8], parts: [&[u8]; 2]) {
        let mut prefix = std::mem::take(&mut self.prefix);
        prefix.clear();
        Checksums::All.begin(key, parts, &mut prefix);
        self.add(rest, &prefix, parts);
        self.prefix = prefix;
    }

    fn add(&mut self, rest: &[u8], prefix: &[u8], parts: [&[u8]; 2]) {
        let start = self.out.len();
        encode_varint(rest.len() as u64, &mut self.out);
        self.out.extend_from_slice(rest);
        encode_varint((prefix.len() + parts[0].len() + parts[1].len()) as u64, &mut self.out);
        self.crc = crc32c(self.crc, &self.out[start..]);
        [prefix, parts[0], parts[1]].iter().for_each(|part| self.out.extend_from_slice(part));
    }

    fn finish(mut self) -> Vec<u8> {
        if self.out.len() == self.checksum_at + 4 {
            return Vec::new();
        }
        self.out[self.checksum_at..self.checksum_at + 4].copy_from_slice(&self.crc.to_le_bytes());
        self.out
    }
}
