//! Entries that a killed process has left in the ring (docs/format/disk-hash.md, section 6).

use super::entry;
use super::segment::{HEADER_LEN, Segment, read_error};
use super::walk::{CHUNK, walk};
use crate::disk::{Disk, FilePatch};
use crate::recent::{RecentWrites, has_recent};
use std::path::Path;
use todana_core::Result;

/// The maximum length of an entry in the ring. Longer ones are written directly.
const ENTRY_LEN_MAX: u64 = 256 << 10;

/// Returns the patch that adds the entries in the ring to the last segment, which has `len` bytes.
/// They continue where its complete entries end. `None` if there are none.
pub(super) fn after_entries(
    disk: &dyn Disk,
    directory: &Path,
    segment: &Segment,
    len: u64,
) -> Result<Option<FilePatch>> {
    if !has_recent(disk, directory).map_err(|error| read_error(directory, &error))? {
        return Ok(None);
    }
    let end = walk(segment, HEADER_LEN as u64, len, CHUNK, &mut |_, _, _| Ok(true))?;
    let ring = read(disk, directory, end)?;
    Ok(patch_of(&ring, segment, end, len))
}

/// Returns the same patch for a segment that may be damaged before its end: the entries in the ring
/// continue where the last entry in the file ends, or where it begins if it is incomplete.
pub(super) fn after_damage(
    disk: &dyn Disk,
    directory: &Path,
    segment: &Segment,
    len: u64,
) -> Result<Option<FilePatch>> {
    let after_entries = after_entries(disk, directory, segment, len)?;
    if after_entries.as_ref().is_some_and(|patch| patch.len > len) {
        return Ok(after_entries);
    }
    let from = len.saturating_sub(ENTRY_LEN_MAX).max(HEADER_LEN as u64).next_multiple_of(entry::ALIGN as u64);
    let ring = read(disk, directory, from)?;
    let offsets = (from..=len).step_by(entry::ALIGN);
    let patches = offsets.filter_map(|offset| {
        let kept = ring.get((offset - from) as usize..).unwrap_or_default();
        patch_of(kept, segment, offset, len)
    });
    // Entries before the end of the file are in the file too.
    Ok(patches.into_iter().find(|patch| patch.len > len).or(after_entries))
}

fn read(disk: &dyn Disk, directory: &Path, from: u64) -> Result<Vec<u8>> {
    let ring = RecentWrites::read(disk, directory, from).map_err(|error| read_error(directory, &error))?;
    Ok(ring.unwrap_or_default())
}

/// Returns a patch with the complete entries at the beginning of `ring`. Checksums depend on
/// segment and offset, so entries of another place are not accepted.
fn patch_of(ring: &[u8], segment: &Segment, offset: u64, file_len: u64) -> Option<FilePatch> {
    let mut len = 0;
    while let Some((head, _)) = entry::decode(&ring[len..], segment.seed_at(offset + len as u64)) {
        len += head.len;
    }
    let end = offset + len as u64;
    let bytes = ring[..len].to_vec();
    (len > 0).then_some(FilePatch { offset, bytes, len: end.max(file_len), made_for_len: file_len })
}
