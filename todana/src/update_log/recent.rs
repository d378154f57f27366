//! What the log took last, kept beside it until the system has it: it outlives the process (docs/format/update-log.md, section 4).

use super::entry::{self, CONTENT_LEN_MAX, FRAME_LEN, Position};
use super::pending::seal_entries;
use super::reader::Reader;
use super::segment::{HEADER_LEN, Identity, name_of, start_of};
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
    /// Makes the ring of a log that has been opened so often; `None` if it cannot be made.
    pub(crate) fn create(
        disk: &dyn Disk,
        directory: &Path,
        identity: Identity,
        openings: u32,
        len: u64,
    ) -> Option<RecentEntries> {
        let ring = RecentWrites::create(disk, directory, len)?;
        Some(RecentEntries { ring, seed: identity.seed(), mask: mask_of(openings) })
    }

    /// Seals entries that begin at a position and keeps them. Returns false if they cannot be kept without losing what stands from
    /// `needed` on.
    pub(crate) fn keep(
        &mut self,
        at: Position,
        entries: &mut [u8],
        synced: Position,
        needed: Position,
    ) -> bool {
        let end = at.0 + entries.len() as u64;
        if end.saturating_sub(needed.0) > self.ring.len() {
            return false;
        }
        seal_entries(entries, self.seed, &mut at.clone(), None, synced, self.mask);
        self.ring.put(at.0, entries)
    }
}

/// Tells the entries of one opening from those of another, which may have stood at the same positions and been lost with the power.
fn mask_of(openings: u32) -> u32 {
    crc32c::crc32c(&openings.to_le_bytes())
}

/// Removes what was kept beside a log: its segments have all of it.
pub(crate) fn remove_recent(disk: &dyn Disk, directory: &Path) {
    recent::remove(disk, directory);
}

/// Appends to a log what a process that was killed has left beside it, and cuts off what was torn there. Nobody has the log open.
/// Leaves a log that is damaged as it is. Fails with `Unavailable` if it cannot be read or written.
pub(crate) fn append_recent(disk: &Arc<dyn Disk>, directory: &Path, identity: Identity) -> Result<()> {
    let Some((path, patch)) = left_behind(disk, directory, identity)? else { return Ok(()) };
    let append = || -> io::Result<()> {
        let file = disk.open(&path, true)?;
        file.set_len(patch.offset)?;
        file.write_at(patch.offset, &mut [IoSlice::new(&patch.bytes)])?;
        file.sync()
    };
    append().map_err(|error| cannot("write", &path, &error))
}

/// Returns a file system that shows a log as [`append_recent`] would leave it, and changes nothing. Fails with `Unavailable` if the log
/// cannot be read.
pub(crate) fn with_recent(
    disk: Arc<dyn Disk>,
    directory: &Path,
    identity: Identity,
) -> Result<Arc<dyn Disk>> {
    Ok(match left_behind(&disk, directory, identity)? {
        Some((path, patch)) => Arc::new(PatchedDisk::new(disk, path, patch)),
        None => disk,
    })
}

/// Returns the last segment, and what it is to look like with what is kept beside it; `None` if nothing is, or the log is damaged.
fn left_behind(
    disk: &Arc<dyn Disk>,
    directory: &Path,
    identity: Identity,
) -> Result<Option<(PathBuf, FilePatch)>> {
    if !has_recent(&**disk, directory).map_err(|error| cannot("read", directory, &error))? {
        return Ok(None);
    }
    let names = disk.list(directory).map_err(|error| cannot("read", directory, &error))?;
    let Some(start) = names.iter().filter_map(|name| start_of(name)).max() else { return Ok(None) };
    let path = directory.join(name_of(start));
    let read = || -> Result<(Position, u32)> {
        let mut reader = Reader::open(Arc::clone(disk), directory, identity, start)?;
        while reader.next_entry()?.is_some() {}
        Ok((reader.position(), reader.openings()))
    };
    let len_of = || disk.open(&path, false).and_then(|file| file.len());
    let made_for_len = len_of().map_err(|error| cannot("read", &path, &error))?;
    let (end, openings) = match read() {
        // Its reader reports that.
        Err(error) if error.kind() == ErrorKind::Corrupt => return Ok(None),
        read => read?,
    };
    let bytes = RecentWrites::read(&**disk, directory, end.0);
    let Some(mut bytes) = bytes.map_err(|error| cannot("read", directory, &error))? else { return Ok(None) };
    let len = unmask(&mut bytes, identity.seed(), mask_of(openings), end);
    bytes.truncate(len);
    let offset = HEADER_LEN as u64 + (end.0 - start.0);
    let patch = FilePatch { offset, len: offset + len as u64, bytes, made_for_len };
    Ok((len > 0).then_some((path, patch)))
}

/// Makes entries that begin at a position of what is kept of them; returns how many bytes of it are whole entries.
fn unmask(bytes: &mut [u8], seed: u32, mask: u32, position: Position) -> usize {
    let mut at = 0;
    while let Some((frame, rest)) = bytes[at..].split_first_chunk_mut::<FRAME_LEN>() {
        let size = u32::from_le_bytes(frame[..4].try_into().expect("four bytes"));
        let crc = u32::from_le_bytes(frame[4..].try_into().expect("four bytes")) ^ mask;
        let position = Position(position.0 + at as u64);
        let Some(content) = rest.get(..size as usize) else { break };
        let is_whole = (1..=CONTENT_LEN_MAX).contains(&size)
            && crc32c::crc32c_append(entry::crc_of_frame(seed, position, size), content) == crc;
        if !is_whole {
            break;
        }
        frame[4..].copy_from_slice(&crc.to_le_bytes());
        at += FRAME_LEN + content.len();
    }
    at
}

fn cannot(what: &str, path: &Path, error: &io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, format!("cannot {what} {}: {error}", path.display()))
}
