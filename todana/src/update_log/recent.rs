//! The file `recent`: a ring that keeps the newest entries until they are written to a segment. The
//! ring is memory mapped from the file, so it survives the process (docs/format/update-log.md,
//! section 4).

use super::entry::{self, CONTENT_LEN_MAX, FRAME_LEN, LogPosition};
use super::pending::seal_entries;
use super::reader::LogReader;
use super::segment::{DatabaseIdentity, HEADER_LEN, name_of, start_of};
use crate::disk::{Disk, FilePatch, PatchedDisk};
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana_core::{Error, ErrorKind, Result};
use todana_engine::recent::{self, RecentWrites, has_recent};

/// The ring of an open log.
pub(crate) struct RecentEntries {
    ring: RecentWrites,
    seed: u32,
    mask: u32,
}

impl RecentEntries {
    /// Creates the ring of a log that has been opened `openings` times. Returns `None` if it cannot
    /// be created.
    pub(crate) fn create(
        disk: &dyn Disk,
        directory: &Path,
        identity: DatabaseIdentity,
        openings: u32,
        len: u64,
    ) -> Option<RecentEntries> {
        let ring = RecentWrites::create(disk, directory, len)?;
        Some(RecentEntries { ring, seed: identity.seed(), mask: mask_of(openings) })
    }

    /// Fills in the checksums of the entries that start at `at`, and stores the entries in the
    /// ring. Returns false if they would overwrite entries at or after `needed`.
    pub(crate) fn keep(
        &mut self,
        at: LogPosition,
        entries: &mut [u8],
        synced: LogPosition,
        needed: LogPosition,
    ) -> bool {
        let end = at.0 + entries.len() as u64;
        if end.saturating_sub(needed.0) > self.ring.len() {
            return false;
        }
        seal_entries(entries, self.seed, &mut at.clone(), None, synced, self.mask);
        self.ring.put(at.0, entries)
    }
}

/// Returns a mask for the checksums of the entries of one opening. A power failure can lose entries
/// whose positions the next opening uses again; the mask distinguishes the old entries in the ring
/// from the new ones.
fn mask_of(openings: u32) -> u32 {
    crc32c::crc32c(&openings.to_le_bytes())
}

/// Removes the ring. Called when the segments of the log contain all its entries.
pub(crate) fn remove_recent(disk: &dyn Disk, directory: &Path) {
    recent::remove(disk, directory);
}

/// Appends the entries that a killed process has left in the ring to the last segment, and cuts off
/// a torn tail. The log must not be open. A damaged log is not changed. Fails with `Unavailable` if
/// the log cannot be read or written.
pub(crate) fn append_recent(
    disk: &Arc<dyn Disk>,
    directory: &Path,
    identity: DatabaseIdentity,
) -> Result<()> {
    let Some((path, patch)) = ring_patch(disk, directory, identity)? else { return Ok(()) };
    let append = || -> io::Result<()> {
        let file = disk.open(&path, true)?;
        file.set_len(patch.offset)?;
        file.write_at(patch.offset, &mut [IoSlice::new(&patch.bytes)])?;
        file.sync()
    };
    append().map_err(|error| cannot("write to", &path, &error))
}

/// Returns a file system in which the log appears as [`append_recent`] would leave it, without
/// changing the files. Fails with `Unavailable` if the log cannot be read.
pub(crate) fn with_recent(
    disk: Arc<dyn Disk>,
    directory: &Path,
    identity: DatabaseIdentity,
) -> Result<Arc<dyn Disk>> {
    Ok(match ring_patch(&disk, directory, identity)? {
        Some((path, patch)) => Arc::new(PatchedDisk::new(disk, path, patch)),
        None => disk,
    })
}

/// Returns the last segment, and the patch that appends the entries of the ring to it. Returns
/// `None` if the ring has no further entries or the log is damaged.
fn ring_patch(
    disk: &Arc<dyn Disk>,
    directory: &Path,
    identity: DatabaseIdentity,
) -> Result<Option<(PathBuf, FilePatch)>> {
    if !has_recent(&**disk, directory).map_err(|error| cannot("read", directory, &error))? {
        return Ok(None);
    }
    let names = disk.list(directory).map_err(|error| cannot("read", directory, &error))?;
    let Some(start) = names.iter().filter_map(|name| start_of(name)).max() else { return Ok(None) };
    let path = directory.join(name_of(start));
    let read = || -> Result<(LogPosition, u32)> {
        let mut reader = LogReader::open(Arc::clone(disk), directory, identity, start)?;
        while reader.next_entry()?.is_some() {}
        Ok((reader.position(), reader.openings()))
    };
    let len_of = || disk.open(&path, false).and_then(|file| file.len());
    let made_for_len = len_of().map_err(|error| cannot("read", &path, &error))?;
    let (end, openings) = match read() {
        // Damage is reported later, by the reader of the log.
        Err(error) if error.kind() == ErrorKind::Corrupt => return Ok(None),
        read => read?,
    };
    let bytes = RecentWrites::read(&**disk, directory, end.0);
    let Some(mut bytes) = bytes.map_err(|error| cannot("read", directory, &error))? else { return Ok(None) };
    let len = unmask_entries(&mut bytes, identity.seed(), mask_of(openings), end);
    bytes.truncate(len);
    let offset = HEADER_LEN as u64 + (end.0 - start.0);
    let patch = FilePatch { offset, len: offset + len as u64, bytes, made_for_len };
    Ok((len > 0).then_some((path, patch)))
}

/// Removes the mask from the entries in bytes of the ring. The bytes start at `position`. Returns
/// the total length of the complete entries.
fn unmask_entries(bytes: &mut [u8], seed: u32, mask: u32, position: LogPosition) -> usize {
    let mut at = 0;
    while let Some((frame, rest)) = bytes[at..].split_first_chunk_mut::<FRAME_LEN>() {
        let size = u32::from_le_bytes(frame[..4].try_into().expect("four bytes"));
        let crc = u32::from_le_bytes(frame[4..].try_into().expect("four bytes")) ^ mask;
        let position = LogPosition(position.0 + at as u64);
        let Some(content) = rest.get(..size as usize) else { break };
        let is_complete = (1..=CONTENT_LEN_MAX).contains(&size)
            && crc32c::crc32c_append(entry::crc_of_frame(seed, position, size), content) == crc;
        if !is_complete {
            break;
        }
        frame[4..].copy_from_slice(&crc.to_le_bytes());
        at += FRAME_LEN + content.len();
    }
    at
}

fn cannot(what: &str, path: &Path, error: &io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, format!("{}: cannot {what} it: {error}", path.display()))
}
