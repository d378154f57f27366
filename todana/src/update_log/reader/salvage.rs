//! Mends the log in a copy of a damaged database.
//!
//! All positions stay the same, so that checkpoints still find theirs: lost entries are replaced by
//! an entry of the same length that records the loss. In an entry with one changed bit, the bit is
//! corrected.

use super::{
    DatabaseIdentity, Disk, Error, ErrorKind, FRAME_LEN, File, FileWindow, FoundEntry, HEADER_LEN, LogChange,
    LogEntry, LogPosition, Path, PathBuf, Result, SegmentHeader, SegmentReader, entry, name_of, start_of,
    unreadable,
};
use std::io::{self, IoSlice};
use std::ops::ControlFlow;

/// The length of the shortest entry.
const ENTRY_LEN_MIN: u64 = FRAME_LEN as u64 + 1;
/// Bytes that are written at once.
const PIECE_LEN: u64 = 1 << 20;
/// The longest gap that is marked as lost. The mark occupies as many bytes on disk as the gap. If
/// more is missing, the files are probably not parts of one log.
const LOST_MAX: u64 = 64 << 30;

/// A damaged place in a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogDamage {
    /// Path of the file.
    pub path: PathBuf,
    /// Offset of the damage.
    pub offset: u64,
    /// Description of the damage.
    pub what: String,
    /// How many bytes of entries are lost; 0 if the damage can be mended.
    pub lost: u64,
}

/// The result of mending the segments of a log.
#[derive(Default)]
pub(crate) struct MendedSegments {
    /// All damages, in order.
    pub(crate) findings: Vec<LogDamage>,
    /// The end of the log.
    pub(crate) end: LogPosition,
    /// Those of the given positions at which an entry ends.
    pub(crate) entry_ends: Vec<LogPosition>,
}

/// A part of the new content of a segment.
enum SegmentPiece {
    /// Bytes of the old segment that stay unchanged.
    Kept { offset: u64, len: u64 },
    /// A part with this number of lost bytes.
    Lost(u64),
    /// Bytes that replace the damaged ones.
    Mended(Vec<u8>),
}

impl SegmentPiece {
    fn len(&self) -> u64 {
        match self {
            SegmentPiece::Kept { len, .. } | SegmentPiece::Lost(len) => *len,
            SegmentPiece::Mended(bytes) => bytes.len() as u64,
        }
    }
}

/// Checks the segments that reach beyond `from`, and rewrites the damaged ones, so that the log can
/// be read again. `from` must lie between two entries. The log must be a copy that is not open.
///
/// Lost entries stay lost, and later changes of the same records are kept. A torn tail does not
/// count as damage, because opening the log cuts it off. If one of `places` lies in a lost part,
/// the loss is recorded by two entries that meet there, so that a checkpoint at this position can
/// be used. Fails with `Corrupt` if the log starts after `from`.
pub(crate) fn mend_segments(
    disk: &dyn Disk,
    directory: &Path,
    identity: DatabaseIdentity,
    from: LogPosition,
    places: &[LogPosition],
) -> Result<MendedSegments> {
    let names = disk.list(directory).map_err(|error| unreadable(directory, &error))?;
    let mut starts: Vec<LogPosition> = names.iter().filter_map(|name| start_of(name)).collect();
    starts.sort_unstable();
    let Some(first) = starts.partition_point(|&start| start <= from).checked_sub(1) else {
        if starts.is_empty() && from == LogPosition(0) {
            return Ok(MendedSegments::default());
        }
        let message =
            format!("{}: the update log does not go back to position {}", directory.display(), from.0);
        return Err(Error::new(ErrorKind::Corrupt, message));
    };
    let mut mended = MendedSegments::default();
    let mut openings = 0;
    for (n, &start) in starts.iter().enumerate().skip(first) {
        let path = directory.join(name_of(start));
        let found_before = mended.findings.len();
        let (mut segment, header) = open_segment(disk, path, identity, start, &mut openings, &mut mended)?;
        let pieces = segment.pieces(starts.get(n + 1).copied(), places, &mut mended)?;
        mended.end = LogPosition(start.0 + pieces.iter().map(SegmentPiece::len).sum::<u64>());
        if mended.findings.len() > found_before {
            segment.rewrite(disk, directory, header, &pieces).map_err(|error| {
                let path = segment.path.display();
                Error::new(ErrorKind::Unavailable, format!("{path}: cannot mend its copy: {error}"))
            })?;
        }
    }
    mended.entry_ends.extend(places.iter().filter(|&&place| place == mended.end));
    Ok(mended)
}

/// Opens a segment and returns its header. If the header is damaged, returns a reconstructed one.
fn open_segment(
    disk: &dyn Disk,
    path: PathBuf,
    identity: DatabaseIdentity,
    start: LogPosition,
    openings: &mut u32,
    mended: &mut MendedSegments,
) -> Result<(SegmentReader, SegmentHeader)> {
    let file = disk.open(&path, false).map_err(|error| unreadable(&path, &error))?;
    let file_len = file.len().map_err(|error| unreadable(&path, &error))?;
    if start.0.checked_add(file_len).is_none() {
        let message = format!("{} at offset 0: position out of range", path.display());
        return Err(Error::new(ErrorKind::Corrupt, message));
    }
    let mut bytes = [0; HEADER_LEN];
    file.read_at(0, &mut bytes).map_err(|error| unreadable(&path, &error))?;
    let header = SegmentHeader::decode(&bytes).and_then(|header| {
        let is_ours = header.identity.database_id == identity.database_id && header.start == start;
        if is_ours { Ok(header) } else { Err("belongs to another database, or to another position".into()) }
    });
    let header = header.unwrap_or_else(|what| {
        mended.findings.push(LogDamage { path: path.clone(), offset: 0, what, lost: 0 });
        // All fields except the creation time are known.
        SegmentHeader { identity, openings: *openings, start, created_ms: 0 }
    });
    *openings = header.openings.max(*openings);
    let segment =
        SegmentReader { seed: identity.seed(), path, file, file_len, start, window: FileWindow::default() };
    Ok((segment, header))
}

impl SegmentReader {
    /// Returns the parts of the segment's new content, which follow the header. `next` is the start
    /// of the next segment.
    fn pieces(
        &mut self,
        next: Option<LogPosition>,
        places: &[LogPosition],
        mended: &mut MendedSegments,
    ) -> Result<Vec<SegmentPiece>> {
        let mut pieces = Vec::new();
        let mut offset = HEADER_LEN as u64;
        let limit =
            next.map_or(self.file_len.max(offset), |next| offset.saturating_add(next.0 - self.start.0));
        while offset < limit {
            let position = LogPosition(self.start.0 + offset - HEADER_LEN as u64);
            mended.entry_ends.extend(places.iter().filter(|&&place| place == position));
            if let Some(len) = self.complete_entry_len(offset, limit)? {
                match pieces.last_mut() {
                    Some(SegmentPiece::Kept { offset: from, len: kept }) if *from + *kept == offset => {
                        *kept += len
                    }
                    _ => pieces.push(SegmentPiece::Kept { offset, len }),
                }
                offset += len;
                continue;
            }
            let path = self.path.clone();
            if let Some(at) = self.flipped_bit(offset, position)?
                && let Some(bytes) = self.mended_entry(offset, position, at)?
                && offset + bytes.len() as u64 <= limit
            {
                let what = format!("one bit of the byte at offset {at} has changed");
                mended.findings.push(LogDamage { path, offset, what, lost: 0 });
                offset += bytes.len() as u64;
                pieces.push(SegmentPiece::Mended(bytes));
                continue;
            }
            let Some(end) = self.next_complete_entry(offset, limit)?.or(next.map(|_| limit)) else {
                // This cannot be distinguished from a torn tail.
                break;
            };
            let within =
                |place: &LogPosition| place.0.checked_sub(position.0).filter(|&at| at < end - offset);
            let can_be_cut = |&at: &u64| can_mark_lost(at) && can_mark_lost(end - offset - at);
            let cut = places.iter().filter_map(within).filter(can_be_cut).min();
            let lost = cut.unwrap_or(end - offset);
            if !can_mark_lost(lost) {
                let name = self.path.display();
                let what = match lost {
                    0..ENTRY_LEN_MIN => format!("{name} at offset {offset}: too short for an entry"),
                    _ => format!(
                        "{name} at offset {offset}: {lost} bytes of entries are missing before the next segment, \
                         too many to be marked as lost; one of the two segments belongs to another log"
                    ),
                };
                return Err(Error::new(ErrorKind::Corrupt, what));
            }
            let what = "entries are damaged or missing".into();
            mended.findings.push(LogDamage { path, offset, what, lost });
            pieces.push(SegmentPiece::Lost(lost));
            offset += lost;
        }
        if next.is_some() && self.file_len > limit {
            let what = "bytes follow the last entry".into();
            mended.findings.push(LogDamage { path: self.path.clone(), offset: limit, what, lost: 0 });
        }
        Ok(pieces)
    }

    /// Returns the length of the entry at `offset`, or `None` if the entry is not complete.
    fn complete_entry_len(&mut self, offset: u64, limit: u64) -> Result<Option<u64>> {
        if offset >= self.file_len {
            return Ok(None);
        }
        let position = LogPosition(self.start.0 + offset - HEADER_LEN as u64);
        match self.entry_at(offset, position)? {
            FoundEntry::Complete(len) if offset + len as u64 <= limit => {
                if entry::decode(&self.window.at(offset)[FRAME_LEN..len]).is_none() {
                    // The checksum is right, so the entry is intact. A later version of the program
                    // has written it.
                    return Err(self.damaged(offset, "the entry has a kind unknown to this program"));
                }
                Ok(Some(len as u64))
            }
            _ => Ok(None),
        }
    }

    /// Returns the entry with one bit of the byte at `at` corrected, if that makes the entry
    /// complete.
    fn mended_entry(&mut self, offset: u64, position: LogPosition, at: u64) -> Result<Option<Vec<u8>>> {
        for bit in 0..8 {
            self.load(offset, FRAME_LEN)?;
            let Some(mut frame) = self.window.at(offset).first_chunk::<FRAME_LEN>().copied() else { break };
            let place = (at - offset) as usize;
            if let Some(byte) = frame.get_mut(place) {
                *byte ^= 1 << bit;
            }
            let size = u32::from_le_bytes(frame[..4].try_into().expect("four bytes"));
            let len = FRAME_LEN as u64 + u64::from(size);
            if size == 0 || offset + len > self.file_len {
                continue;
            }
            self.load(offset, len as usize)?;
            let Some(bytes) = self.window.at(offset).get(..len as usize) else { continue };
            let mut bytes = bytes.to_vec();
            let Some(byte) = bytes.get_mut(place) else { continue };
            *byte ^= 1 << bit;
            let crc =
                crc32c::crc32c_append(entry::crc_of_frame(self.seed, position, size), &bytes[FRAME_LEN..]);
            if bytes[4..8] == crc.to_le_bytes() {
                return match entry::decode(&bytes[FRAME_LEN..]) {
                    Some(_) => Ok(Some(bytes)),
                    None => Err(self.damaged(offset, "the entry has a kind unknown to this program")),
                };
            }
        }
        Ok(None)
    }

    /// Returns the offset at which the complete entries continue after a damaged one. That is
    /// directly after the damaged entry if its size is correct, otherwise at the next mark.
    fn next_complete_entry(&mut self, offset: u64, limit: u64) -> Result<Option<u64>> {
        self.load(offset, FRAME_LEN)?;
        if let Some(size) = self.window.at(offset).first_chunk::<4>() {
            let size = u32::from_le_bytes(*size);
            let after = offset + FRAME_LEN as u64 + u64::from(size);
            if size > 0 && after < limit && self.complete_entry_len(after, limit)?.is_some() {
                return Ok(Some(after));
            }
        }
        let mut found = None;
        // A mark that the search finds may lie within the damaged entry, which does no harm: the
        // log can be read from this mark on as well.
        self.for_each_mark(offset + 1, &mut |at, _| {
            found = Some(at);
            ControlFlow::Break(())
        })?;
        Ok(found.filter(|&at| at < limit))
    }

    /// Writes a segment from its header and its parts.
    fn rewrite(
        &self,
        disk: &dyn Disk,
        directory: &Path,
        header: SegmentHeader,
        pieces: &[SegmentPiece],
    ) -> io::Result<()> {
        let name = name_of(self.start);
        let partial = directory.join(format!("{name}.partial"));
        if let Err(error) = disk.remove(&partial)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error);
        }
        let file = disk.create(&partial)?;
        file.write_at(0, &mut [IoSlice::new(&header.encode())])?;
        let mut end = HEADER_LEN as u64;
        for piece in pieces {
            match piece {
                SegmentPiece::Kept { offset, len } => copy(&*self.file, *offset, *len, &*file, &mut end)?,
                SegmentPiece::Mended(bytes) => {
                    file.write_at(end, &mut [IoSlice::new(bytes)])?;
                    end += bytes.len() as u64;
                }
                SegmentPiece::Lost(lost) => write_lost(self.seed, self.start, *lost, &*file, &mut end)?,
            }
        }
        file.sync()?;
        disk.rename(&partial, &directory.join(name))?;
        disk.sync_directory(directory)
    }
}

/// Writes a segment that replaces missing log. The segment starts at `start`, and marks everything
/// before `next` as lost. `openings` is the highest known number of openings of the database.
pub(crate) fn write_lost_segment(
    disk: &dyn Disk,
    directory: &Path,
    identity: DatabaseIdentity,
    openings: u32,
    (start, next): (LogPosition, LogPosition),
) -> io::Result<()> {
    let name = name_of(start);
    let partial = directory.join(format!("{name}.partial"));
    if let Err(error) = disk.remove(&partial)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let file = disk.create(&partial)?;
    let header = SegmentHeader { identity, openings, start, created_ms: 0 };
    file.write_at(0, &mut [IoSlice::new(&header.encode())])?;
    let mut end = HEADER_LEN as u64;
    write_lost(identity.seed(), start, next.0 - start.0, &*file, &mut end)?;
    file.sync()?;
    disk.rename(&partial, &directory.join(name))?;
    disk.sync_directory(directory)
}

/// Returns true if this number of bytes can be marked as lost.
pub(crate) fn can_mark_lost(lost: u64) -> bool {
    (ENTRY_LEN_MIN..=LOST_MAX).contains(&lost)
}

/// Writes entries that mark this number of bytes as lost. `start` is the position at which the
/// segment starts.
fn write_lost(seed: u32, start: LogPosition, mut lost: u64, to: &dyn File, end: &mut u64) -> io::Result<()> {
    while lost > 0 {
        // If more than one entry is needed, the rest must be long enough for an entry.
        let len = if lost > PIECE_LEN + ENTRY_LEN_MIN { PIECE_LEN } else { lost };
        let mut bytes = Vec::new();
        let change = LogChange::Lost { len: len - ENTRY_LEN_MIN };
        entry::encode(&LogEntry::own(change), false, &mut bytes);
        let position = LogPosition(start.0 + *end - HEADER_LEN as u64);
        let frame = entry::crc_of_frame(seed, position, (len - FRAME_LEN as u64) as u32);
        let crc = crc32c::crc32c_append(frame, &bytes[FRAME_LEN..]);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        to.write_at(*end, &mut [IoSlice::new(&bytes)])?;
        *end += len;
        lost -= len;
    }
    Ok(())
}

fn copy(from: &dyn File, offset: u64, len: u64, to: &dyn File, end: &mut u64) -> io::Result<()> {
    let mut bytes = vec![0; len.min(PIECE_LEN) as usize];
    let mut done = 0;
    while done < len {
        let wanted = (len - done).min(PIECE_LEN) as usize;
        let got = from.read_at(offset + done, &mut bytes[..wanted])?;
        if got == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        to.write_at(*end, &mut [IoSlice::new(&bytes[..got])])?;
        *end += got as u64;
        done += got as u64;
    }
    Ok(())
}
