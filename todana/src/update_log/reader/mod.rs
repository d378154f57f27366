//! Reads the log from a position to its end, and checks each entry before returning it.

mod bit_flip;
mod salvage;

use super::entry::{self, CONTENT_LEN_MAX, FRAME_LEN, LogChange, LogEntry, LogPosition, MARK_LEN};
use super::segment::{DatabaseIdentity, HEADER_LEN, SegmentHeader, name_of, start_of};
use crate::disk::{Disk, File};
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana_core::{Error, ErrorKind, Result};

pub use salvage::LogDamage;
pub(crate) use salvage::{MendedSegments, can_mark_lost, mend_segments, write_lost_segment};

/// Bytes that are read at once, unless an entry is longer.
const WINDOW_LEN: usize = 256 << 10;

/// The state of the end of a log. Returned by [`LogReader::tail`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LogTail {
    /// The log ends after a complete entry.
    #[default]
    Clean,
    /// The log ends in the remains of a write that a crash has interrupted. The write was never
    /// acknowledged.
    Torn {
        /// Path of the file.
        path: PathBuf,
        /// The offset at which the complete entries end.
        offset: u64,
        /// The number of bytes after `offset`.
        len: u64,
    },
}

/// Reads the log in a directory without changing it.
pub struct LogReader {
    disk: Arc<dyn Disk>,
    directory: PathBuf,
    identity: DatabaseIdentity,
    /// The starts of the segments that have not been opened yet, in reverse order.
    unopened: Vec<LogPosition>,
    segment: Option<SegmentReader>,
    /// The position of the next entry.
    position: LogPosition,
    /// The highest position up to which the log was on disk, according to the marks that were read.
    synced: LogPosition,
    /// How many times the database had been opened when the current segment was created.
    openings: u32,
    tail: LogTail,
}

struct SegmentReader {
    /// The seed of the database's checksums.
    seed: u32,
    path: PathBuf,
    file: Box<dyn File>,
    file_len: u64,
    start: LogPosition,
    window: FileWindow,
}

/// A part of a file that has been read into memory.
#[derive(Default)]
struct FileWindow {
    offset: u64,
    bytes: Vec<u8>,
}

/// The result of reading at a position.
enum FoundEntry {
    /// A complete entry with this length, including its frame.
    Complete(usize),
    /// The file ends here.
    End,
    /// The bytes here are not a complete entry.
    Incomplete,
}

impl LogReader {
    /// Starts at `from`, which must lie between two entries. Fails with `Corrupt` if the log starts
    /// after `from`, or if a segment is missing or belongs to another database. Fails with
    /// `Unavailable` if the log cannot be read.
    pub fn open(
        disk: Arc<dyn Disk>,
        directory: &Path,
        identity: DatabaseIdentity,
        from: LogPosition,
    ) -> Result<LogReader> {
        let names = match disk.list(directory) {
            // A missing directory is created when the database is opened.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            names => names.map_err(|error| unreadable(directory, &error))?,
        };
        let mut unopened: Vec<LogPosition> = names.iter().filter_map(|name| start_of(name)).collect();
        unopened.sort_unstable();
        let first = unopened.partition_point(|&start| start <= from).checked_sub(1);
        let Some(first) = first else {
            if unopened.is_empty() && from == LogPosition(0) {
                return Ok(LogReader::new(disk, directory, identity, unopened, from));
            }
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!("{}: the update log does not go back to position {}", directory.display(), from.0),
            ));
        };
        unopened.drain(..first);
        unopened.reverse();
        let mut reader = LogReader::new(disk, directory, identity, unopened, from);
        let start = *reader.unopened.last().expect("one begins at or before");
        reader.open_segment(start)?;
        if let Some(segment) = &reader.segment
            && reader.position > segment.end()
        {
            let offset = segment.file_len;
            return Err(segment.damaged(offset, &format!("the log ends before position {}", from.0)));
        }
        Ok(reader)
    }

    fn new(
        disk: Arc<dyn Disk>,
        directory: &Path,
        identity: DatabaseIdentity,
        unopened: Vec<LogPosition>,
        from: LogPosition,
    ) -> LogReader {
        LogReader {
            disk,
            directory: directory.to_path_buf(),
            identity,
            unopened,
            segment: None,
            position: from,
            synced: LogPosition(0),
            openings: 0,
            tail: LogTail::Clean,
        }
    }

    /// Returns the next entry and its position, or `None` at the end. Fails with `Corrupt` where
    /// bytes that were once on disk are damaged or missing; the message names the file and the
    /// offset.
    pub fn next_entry(&mut self) -> Result<Option<(LogPosition, LogEntry<'_>)>> {
        Ok(self.next_content()?.map(|(position, _, entry)| (position, entry)))
    }

    /// Returns the next entry as [`next_entry`](Self::next_entry) does, with the content from which
    /// it was decoded.
    pub(crate) fn next_content(&mut self) -> Result<Option<(LogPosition, &[u8], LogEntry<'_>)>> {
        loop {
            let Some(segment) = &mut self.segment else { return Ok(None) };
            let offset = segment.offset_of(self.position);
            match segment.entry_at(offset, self.position)? {
                FoundEntry::Complete(len) => {
                    let position = self.position;
                    self.position.0 += len as u64;
                    let segment = self.segment.as_ref().expect("it was there");
                    let content = &segment.window.at(offset)[FRAME_LEN..len];
                    let Some(entry) = entry::decode(content) else {
                        return Err(segment.damaged(offset, "the entry has a kind unknown to this program"));
                    };
                    if let LogChange::Mark { synced, .. } = entry.change {
                        self.synced = self.synced.max(synced);
                    }
                    return Ok(Some((position, content, entry)));
                }
                FoundEntry::End | FoundEntry::Incomplete if self.unopened.len() > 1 => {
                    // A segment before the last one must end exactly where the next segment starts.
                    if offset < segment.file_len {
                        return Err(segment.damaged(offset, "an entry is damaged"));
                    }
                    self.unopened.pop();
                    let next = *self.unopened.last().expect("there is one more");
                    if next != self.position {
                        let here = self.position.0;
                        let what = format!("the log continues at position {}, not at {here}", next.0);
                        return Err(segment.damaged(offset, &what));
                    }
                    self.open_segment(next)?;
                }
                FoundEntry::End | FoundEntry::Incomplete => {
                    self.check_end(offset)?;
                    return Ok(None);
                }
            }
        }
    }

    /// Returns the position after the last entry that was read.
    pub fn position(&self) -> LogPosition {
        self.position
    }

    /// Returns the file and the offset of the current position, for a message.
    pub(crate) fn location(&self) -> String {
        match &self.segment {
            Some(segment) => {
                format!("{} at offset {}", segment.path.display(), segment.offset_of(self.position))
            }
            None => format!("{} at offset 0", self.directory.display()),
        }
    }

    /// Returns the file and the offset after which entries may not be on disk although they could
    /// be read. The system may have failed to write them, and may have reported that only to a
    /// process that has ended since.
    ///
    /// At the end of the log the offset is exact. Before the end it may be lower than necessary.
    pub fn unsynced(&self) -> Option<(&Path, u64)> {
        let segment = self.segment.as_ref()?;
        let from = self.synced.max(segment.start);
        (from < self.position).then(|| (segment.path.as_path(), segment.offset_of(from)))
    }

    /// Returns how many times the database has been opened. The number is complete only at the end
    /// of the log.
    pub fn openings(&self) -> u32 {
        self.openings
    }

    /// Returns the state of the end of the log. Valid after `next_entry` has returned `None`.
    pub fn tail(&self) -> &LogTail {
        &self.tail
    }

    /// Returns the number of bytes that have not been read yet, for a progress bar.
    pub fn remaining(&self) -> u64 {
        let here = self.segment.as_ref().map_or(0, |segment| segment.end().0.saturating_sub(self.position.0));
        // Segments follow each other without gaps, so the start of the last segment gives the total
        // length of all earlier ones.
        let others = self.unopened.first().map_or(0, |last| last.0.saturating_sub(self.position.0));
        here.max(others)
    }

    fn open_segment(&mut self, start: LogPosition) -> Result<()> {
        let path = self.directory.join(name_of(start));
        let file = self.disk.open(&path, false).map_err(|error| unreadable(&path, &error))?;
        let file_len = file.len().map_err(|error| unreadable(&path, &error))?;
        let mut header = [0; HEADER_LEN];
        let got = file.read_at(0, &mut header).map_err(|error| unreadable(&path, &error))?;
        let header = if got < HEADER_LEN {
            Err("the header is cut off".into())
        } else {
            SegmentHeader::decode(&header).and_then(|header| {
                if header.identity.database_id != self.identity.database_id {
                    Err("belongs to another database".into())
                } else if header.start != start {
                    Err("the file name does not match the first position".into())
                } else if start.0.checked_add(file_len).is_none() {
                    Err("position out of range".into())
                } else {
                    Ok(header)
                }
            })
        };
        let header = header.map_err(|why| {
            Error::new(ErrorKind::Corrupt, format!("{} at offset 0: {why}", path.display()))
        })?;
        self.openings = self.openings.max(header.openings);
        let (seed, window) = (self.identity.seed(), FileWindow::default());
        self.segment = Some(SegmentReader { seed, path, file, file_len, start, window });
        Ok(())
    }

    /// Checks whether the incomplete entry at `offset` in the last segment is a torn tail or
    /// damage.
    fn check_end(&mut self, offset: u64) -> Result<()> {
        let segment = self.segment.as_mut().expect("there is a last segment");
        let len = segment.file_len - offset;
        if len == 0 {
            return Ok(());
        }
        if let Some(synced) = segment.furthest_synced(offset)?
            && synced > self.position
        {
            return Err(segment.damaged(offset, "an entry that was on disk is damaged"));
        }
        if let Some(at) = segment.flipped_bit(offset, self.position)? {
            return Err(segment.damaged(offset, &format!("one bit of the byte at offset {at} has changed")));
        }
        self.tail = LogTail::Torn { path: segment.path.clone(), offset, len };
        Ok(())
    }
}

impl SegmentReader {
    fn offset_of(&self, position: LogPosition) -> u64 {
        HEADER_LEN as u64 + (position.0 - self.start.0)
    }

    /// Returns the log position of the end of the file.
    fn end(&self) -> LogPosition {
        LogPosition(self.start.0 + self.file_len.saturating_sub(HEADER_LEN as u64))
    }

    /// Reads the entry at `offset`. If it is complete, the window then contains all of it.
    fn entry_at(&mut self, offset: u64, position: LogPosition) -> Result<FoundEntry> {
        self.load(offset, FRAME_LEN)?;
        let Some(frame) = self.window.at(offset).first_chunk::<FRAME_LEN>() else {
            return Ok(if offset == self.file_len { FoundEntry::End } else { FoundEntry::Incomplete });
        };
        let size = u32::from_le_bytes(frame[..4].try_into().expect("four bytes"));
        let crc = u32::from_le_bytes(frame[4..].try_into().expect("four bytes"));
        if size == 0 {
            return Ok(FoundEntry::End);
        }
        let len = FRAME_LEN + size as usize;
        if size > CONTENT_LEN_MAX || offset + len as u64 > self.file_len {
            return Ok(FoundEntry::Incomplete);
        }
        self.load(offset, len)?;
        let Some(bytes) = self.window.at(offset).get(..len) else { return Ok(FoundEntry::Incomplete) };
        let frame = entry::crc_of_frame(self.seed, position, size);
        let is_complete = crc32c::crc32c_append(frame, &bytes[FRAME_LEN..]) == crc;
        Ok(if is_complete { FoundEntry::Complete(len) } else { FoundEntry::Incomplete })
    }

    /// Ensures that the window holds at least `len` bytes from `offset` on, or all bytes up to the
    /// end of the file.
    fn load(&mut self, offset: u64, len: usize) -> Result<()> {
        if self.window.at(offset).len() >= len {
            return Ok(());
        }
        let left = usize::try_from(self.file_len.saturating_sub(offset)).unwrap_or(usize::MAX);
        let len = len.max(WINDOW_LEN).min(left);
        let window = &mut self.window;
        window.bytes.clear();
        // The callers have compared the size of the entry with the file length, so `len` never
        // exceeds the file.
        window.bytes.resize(len, 0);
        window.offset = offset;
        let got = self
            .file
            .read_at(offset, &mut window.bytes)
            .map_err(|error| unreadable_at(&self.path, offset, &error))?;
        window.bytes.truncate(got);
        Ok(())
    }

    /// Returns the highest synced position in all marks after `from`. Searches for marks byte by
    /// byte, because entries in between may be damaged.
    fn furthest_synced(&mut self, from: u64) -> Result<Option<LogPosition>> {
        let mut furthest = None;
        self.for_each_mark(from + 1, &mut |_, synced| {
            furthest = furthest.max(Some(synced));
            ControlFlow::Continue(())
        })?;
        Ok(furthest)
    }

    /// Calls `see` with the offset and the synced position of each mark at or after `from`.
    /// Searches for marks byte by byte.
    fn for_each_mark(
        &mut self,
        from: u64,
        see: &mut dyn FnMut(u64, LogPosition) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut offset = from;
        while offset + MARK_LEN as u64 <= self.file_len {
            self.load(offset, MARK_LEN)?;
            let bytes = self.window.at(offset);
            if bytes.len() < MARK_LEN {
                break;
            }
            let places = bytes.len() - MARK_LEN + 1;
            for at in 0..places {
                let position = LogPosition(self.start.0 + offset - HEADER_LEN as u64 + at as u64);
                if let Some(synced) = mark_at(self.seed, &bytes[at..at + MARK_LEN], position)
                    && see(offset + at as u64, synced).is_break()
                {
                    return Ok(());
                }
            }
            offset += places as u64;
        }
        Ok(())
    }

    fn damaged(&self, offset: u64, what: &str) -> Error {
        Error::new(ErrorKind::Corrupt, format!("{} at offset {offset}: {what}", self.path.display()))
    }
}

/// Returns the synced position of the mark at the start of these bytes, or `None` if they are not a
/// mark.
fn mark_at(seed: u32, bytes: &[u8], position: LogPosition) -> Option<LogPosition> {
    const SIZE: [u8; 4] = ((MARK_LEN - FRAME_LEN) as u32).to_le_bytes();
    // This cheap check excludes nearly all offsets.
    if bytes[..4] != SIZE || bytes[FRAME_LEN] != 0 {
        return None;
    }
    let content = &bytes[FRAME_LEN..];
    let crc = crc32c::crc32c_append(entry::crc_of_frame(seed, position, content.len() as u32), content);
    match entry::decode(content)?.change {
        LogChange::Mark { synced, .. } if bytes[4..8] == crc.to_le_bytes() => Some(synced),
        _ => None,
    }
}

impl FileWindow {
    /// Returns the bytes of the window from this file offset on.
    fn at(&self, offset: u64) -> &[u8] {
        let skip = offset.checked_sub(self.offset).and_then(|skip| usize::try_from(skip).ok());
        skip.and_then(|skip| self.bytes.get(skip..)).unwrap_or_default()
    }
}

fn unreadable(path: &Path, error: &io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, format!("{}: cannot read it: {error}", path.display()))
}

fn unreadable_at(path: &Path, offset: u64, error: &io::Error) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!("{} at offset {offset}: cannot read it: {error}", path.display()),
    )
}
