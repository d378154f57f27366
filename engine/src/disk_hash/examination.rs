//! Examines single files without opening their database.

use super::dictionary::{self, DICTIONARIES_MAX, dictionary_name};
use super::entry;
use super::segment::{FileHeader, HEADER_LEN, SEGMENT_MAGIC, Segment, corrupt, read_error};
use super::walk::{CHUNK, walk};
use crate::disk::Disk;
use std::path::Path;
use todana_core::Result;

/// Returns the ID of the database that a segment belongs to.
pub(super) fn database_of(bytes: &[u8]) -> Option<[u8; 16]> {
    FileHeader::decode(bytes, SEGMENT_MAGIC).ok().map(|(header, _)| header.identity.database_id)
}

/// Returns the number of openings of the database when the segment was created.
pub(super) fn openings_of(bytes: &[u8]) -> Option<u32> {
    FileHeader::decode(bytes, SEGMENT_MAGIC).ok().map(|(header, _)| header.openings)
}

/// Reads a segment and checks every checksum. Returns the number of records in the segment,
/// including records that are garbage.
pub(super) fn examine(disk: &dyn Disk, path: &Path, number: u64) -> Result<u64> {
    let file = disk.open(path, false).map_err(|error| read_error(path, &error))?;
    let len = file.len().map_err(|error| read_error(path, &error))?;
    let mut bytes = [0; HEADER_LEN];
    let got = file.read_at(0, &mut bytes).map_err(|error| read_error(path, &error))?;
    let (header, seed) =
        FileHeader::decode(&bytes[..got], SEGMENT_MAGIC).map_err(|what| corrupt(path, 0, &what))?;
    if header.number != number {
        return Err(corrupt(path, 0, "the number in the header differs from the file name"));
    }
    let segment = Segment::new((number, 0), path.to_path_buf(), file, seed, 0, false);
    let (mut records, mut dictionary) = (0, 0);
    let end = walk(&segment, HEADER_LEN as u64, len, CHUNK, &mut |at, head, _| {
        records += u64::from(head.kind == entry::PUT);
        let named = head.encoding.map_or(0, |encoding| encoding.dictionary);
        if u32::from(named) > header.extra {
            return Err(segment.corrupt(
                at,
                &format!(
                    "the value is compressed with dictionary {named}, which the header does not declare"
                ),
            ));
        }
        dictionary = named.max(dictionary);
        Ok(true)
    })?;
    if end < len {
        return Err(corrupt(path, end, "the checksum of the entry differs"));
    }
    if dictionary > 0 {
        let path = path.with_file_name(dictionary_name(dictionary.into()));
        dictionary::read(disk, &path, dictionary.into())?;
    }
    Ok(records)
}

/// Reads a dictionary and checks it. Returns the ID of the database to which the dictionary
/// belongs.
pub(super) fn examine_dictionary(disk: &dyn Disk, path: &Path, number: u64) -> Result<[u8; 16]> {
    let number = usize::try_from(number).unwrap_or(DICTIONARIES_MAX + 1);
    let (identity, _) = dictionary::read(disk, path, number)?;
    Ok(identity.database_id)
}
