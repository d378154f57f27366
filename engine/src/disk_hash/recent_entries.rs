//! Finds the entries that a killed process has left in the ring. The ring is the file `recent`,
//! which holds the latest bytes of the log; while a process runs, the ring is memory that is shared
//! with this file (docs/format/disk-hash.md, section 6).

use super::entry;
use super::segment::{HEADER_LEN, Segment, read_error};
use super::walk::{CHUNK, walk};
use crate::disk::{Disk, FilePatch};
use crate::recent::{RecentWrites, has_recent};
use std::path::Path;
use todana_core::Result;

/// The maximum length of an entry in the ring. Longer entries are written directly to the segment.
const ENTRY_LEN_MAX: u64 = 256 << 10;

/// Returns a patch that appends the entries in the ring to the last segment. The file of this
/// segment has `len` bytes. The patch begins where the complete entries of the file end. Returns
/// `None` if the ring has no entry for this offset.
pub(super) fn patch_at_end(
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

/// Returns the same kind of patch for a segment that may also be damaged before its end. Damage
/// hides where the last entry of the file begins or ends, so every offset near the end of the file
/// is tried. If a patch at one of these offsets makes the segment longer, that patch is returned.
pub(super) fn patch_near_end(
    disk: &dyn Disk,
    directory: &Path,
    segment: &Segment,
    len: u64,
) -> Result<Option<FilePatch>> {
    let at_end = patch_at_end(disk, directory, segment, len)?;
    if at_end.as_ref().is_some_and(|patch| patch.len > len) {
        return Ok(at_end);
    }
    let from = len.saturating_sub(ENTRY_LEN_MAX).max(HEADER_LEN as u64).next_multiple_of(entry::ALIGN as u64);
    let ring = read(disk, directory, from)?;
    let offsets = (from..=len).step_by(entry::ALIGN);
    let patches = offsets.filter_map(|offset| {
        let entries = ring.get((offset - from) as usize..).unwrap_or_default();
        patch_of(entries, segment, offset, len)
    });
    // A patch that does not reach beyond the end of the file adds nothing that the file lacks.
    Ok(patches.into_iter().find(|patch| patch.len > len).or(at_end))
}

fn read(disk: &dyn Disk, directory: &Path, from: u64) -> Result<Vec<u8>> {
    let ring = RecentWrites::read(disk, directory, from).map_err(|error| read_error(directory, &error))?;
    Ok(ring.unwrap_or_default())
}

/// Returns a patch with the complete entries at the beginning of `ring`. The checksum of an entry
/// depends on its segment and offset, so entries of another place are not accepted.
fn patch_of(ring: &[u8], segment: &Segment, offset: u64, file_len: u64) -> Option<FilePatch> {
    let mut len = 0;
    while let Some((head, _)) = entry::decode(&ring[len..], segment.seed_at(offset + len as u64)) {
        len += head.len;
    }
    let end = offset + len as u64;
    let bytes = ring[..len].to_vec();
    (len > 0).then_some(FilePatch { offset, bytes, len: end.max(file_len), made_for_len: file_len })
}
