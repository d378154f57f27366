//! Encodes and decodes groups of long keys. A place is the key of a record as LMDB stores it
//! (place.rs). LMDB limits its keys to 511 bytes, so all records whose places begin with the same
//! 511 bytes are a group, which is one LMDB value (docs/format/disk-tree.md, section 2).

use super::front::FrontEntry;
use super::place;
use super::record::{decode_varint, encode_varint};
use super::stored::ChecksumMode;
use crate::raw::crc32c;
use std::cmp::Ordering;
use todana_core::{Error, ErrorKind, Record, Result};

/// The bytes before the checksum of a group in trees that also have groups without checksums. No
/// group of version 1 begins with these bytes, because they are a number that is not in its
/// shortest form.
const MARK: [u8; 3] = [0x80, 0x80, 0];

/// A decoded group. The checksum of the group covers the data that separates the records. Each
/// record has a checksum of its own.
pub(super) struct LongKeyGroup<'a> {
    pub(super) records: Vec<GroupedRecord<'a>>,
    has_checksums: bool,
}

/// A record in a group: the remainder of its place after the first 511 bytes, and the stored bytes
/// of the record.
pub(super) type GroupedRecord<'a> = (&'a [u8], &'a [u8]);

impl<'a> LongKeyGroup<'a> {
    /// Decodes the group under the LMDB key `at`. Without bytes, the group is empty.
    pub(super) fn parse(checksums: ChecksumMode, at: &[u8], bytes: &'a [u8]) -> Result<LongKeyGroup<'a>> {
        let damaged = |what: &str| Error::new(ErrorKind::Corrupt, format!("a group of long keys {what}"));
        let checked = match checksums {
            ChecksumMode::All => Some(bytes),
            ChecksumMode::Mixed => bytes.strip_prefix(&MARK),
        };
        let (expected, mut rest) = match checked.filter(|_| !bytes.is_empty()).map(<[u8]>::split_first_chunk)
        {
            None => (None, bytes),
            Some(Some((checksum, rest))) => (Some(u32::from_le_bytes(*checksum)), rest),
            Some(None) => return Err(damaged("ends early")),
        };
        let mut records: Vec<GroupedRecord<'_>> = Vec::new();
        let mut crc = crc32c(0, at);
        while !rest.is_empty() {
            let start = rest;
            let grouped = take(&mut rest).and_then(|place| Some((place, take(&mut rest)?)));
            let grouped = grouped.ok_or_else(|| damaged("ends early"))?;
            if records.last().is_some_and(|last| last.0 >= grouped.0) {
                return Err(damaged("is not in order"));
            }
            crc = crc32c(crc, &start[..start.len() - rest.len() - grouped.1.len()]);
            records.push(grouped);
        }
        if expected.is_some_and(|expected| expected != crc) {
            return Err(damaged("does not match its checksum"));
        }
        Ok(LongKeyGroup { records, has_checksums: expected.is_some() })
    }

    /// Returns the stored record from the remainder of its place.
    pub(super) fn find(&self, rest: &[u8]) -> Option<&'a [u8]> {
        self.records.iter().find(|grouped| grouped.0 == rest).map(|grouped| grouped.1)
    }

    /// Returns how the checksums of the records are stored, or `None` if the records have none.
    pub(super) fn checksums(&self) -> Option<ChecksumMode> {
        self.has_checksums.then_some(ChecksumMode::All)
    }
}

/// Returns the bytes of a record of a group, or `None` if the record is damaged.
pub(super) fn verified<'a>(
    checksums: Option<ChecksumMode>,
    key: &[u8],
    stored: &'a [u8],
) -> Option<&'a [u8]> {
    checksums.map_or(Some(stored), |checksums| checksums.verified(key, stored))
}

/// Returns a record of a group, or `None` if the record is damaged.
pub(super) fn decode<'a>(
    checksums: Option<ChecksumMode>,
    key: &[u8],
    stored: &'a [u8],
) -> Option<Record<'a>> {
    super::record::decode(verified(checksums, key, stored)?)
}

fn take<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = decode_varint(bytes)?.try_into().ok()?;
    let (taken, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(taken)
}

/// Applies changes to a group and returns the encoded result, which is empty if no records remain.
/// The changes must be in order and belong to the group. Records without a checksum get one. A
/// damaged record stays damaged.
pub(super) fn changed(
    checksums: ChecksumMode,
    at: &[u8],
    old: &[u8],
    changes: &[&FrontEntry],
) -> Result<Vec<u8>> {
    let old = LongKeyGroup::parse(checksums, at, old)?;
    let mut new = LongKeyGroupWriter::new(checksums, at);
    let keep = |new: &mut LongKeyGroupWriter, (rest, stored): GroupedRecord<'_>| match old.has_checksums {
        true => new.add(rest, &[], [stored, &[]]),
        false => new.add_checked(rest, place::to_key(&[at, rest].concat()), [stored, &[]]),
    };
    let mut remaining = old.records.iter().copied().peekable();
    for change in changes {
        let place = place::of_key(change.key());
        let rest = place::split(&place).1.expect("only long keys are grouped");
        while let Some(grouped) = remaining.next_if(|grouped| grouped.0 < rest) {
            keep(&mut new, grouped);
        }
        let _replaced = remaining.next_if(|grouped| grouped.0.cmp(rest) == Ordering::Equal);
        if let Some(parts) = change.parts() {
            new.add_checked(rest, change.key(), parts);
        }
    }
    remaining.for_each(|grouped| keep(&mut new, grouped));
    Ok(new.finish())
}

/// Encodes a group.
struct LongKeyGroupWriter {
    out: Vec<u8>,
    /// The offset of the checksum. The records follow the checksum.
    checksum_at: usize,
    crc: u32,
    prefix: Vec<u8>,
}

impl LongKeyGroupWriter {
    fn new(checksums: ChecksumMode, at: &[u8]) -> LongKeyGroupWriter {
        let mut out = if checksums == ChecksumMode::Mixed { MARK.to_vec() } else { Vec::new() };
        let checksum_at = out.len();
        out.extend_from_slice(&[0; 4]);
        LongKeyGroupWriter { out, checksum_at, crc: crc32c(0, at), prefix: Vec::new() }
    }

    fn add_checked(&mut self, rest: &[u8], key: &[u8], parts: [&[u8]; 2]) {
        let mut prefix = std::mem::take(&mut self.prefix);
        prefix.clear();
        ChecksumMode::All.begin(key, parts, &mut prefix);
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
