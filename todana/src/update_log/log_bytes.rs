//! Reads the update log as bytes while it is being written, and decodes these bytes at a receiver.
//!
//! The reader does not interpret the bytes, so it needs little memory even for long entries. The
//! receiver decodes them and checks each entry.

use super::entry::{self, CONTENT_LEN_MAX, FRAME_LEN, LogEntry, LogPosition};
use super::segment::{DatabaseIdentity, HEADER_LEN, SegmentHeader, name_of, start_of};
use crate::checkpoint::{HeldBytes, LogHold};
use crate::disk::{Disk, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana_core::{Error, ErrorKind, Result};

/// Bytes that are read at once if the caller states no limit.
const PIECE_LEN: usize = 64 << 10;
/// How many times the reader tries the next segment because the one it tried was just removed.
const TRIES: u32 = 16;

/// Reads the bytes of a log from a position on, while the log is being written. The unread part of
/// the log is kept until this value is dropped.
pub struct LogBytes {
    disk: Arc<dyn Disk>,
    directory: PathBuf,
    identity: DatabaseIdentity,
    position: LogPosition,
    segment: Option<OpenSegment>,
    hold: LogHold,
}

#[derive(Clone)]
struct OpenSegment {
    path: PathBuf,
    file: Arc<dyn File>,
    start: LogPosition,
    /// The start of the next segment, if it existed when the current segment was opened.
    next: Option<LogPosition>,
}

impl LogBytes {
    /// Starts at `from`, or at the oldest entry if it is `None`. Fails with `Invalid` if the log
    /// starts after `from`, and with `Unavailable` if the log cannot be read. Does not check that
    /// `from` lies between two entries; [`is_between_entries`](Self::is_between_entries) does.
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        directory: &Path,
        identity: DatabaseIdentity,
        from: Option<LogPosition>,
        hold: LogHold,
    ) -> Result<LogBytes> {
        let directory = directory.to_path_buf();
        let position = from.unwrap_or_default();
        let mut bytes = LogBytes { disk, directory, identity, position, segment: None, hold };
        let mut tries = 0;
        loop {
            let starts = bytes.starts()?;
            let first = starts.first().copied().unwrap_or_default();
            if from.is_some() && position < first {
                let message = format!(
                    "the update log does not go back to position {}, only to {}",
                    position.0, first.0
                );
                return Err(Error::new(ErrorKind::Invalid, message));
            }
            bytes.position = position.max(first);
            if starts.is_empty() {
                break;
            }
            // Another thread may have checked the holds before this one was added, and may now
            // remove the segment that was found. It checks the holds again before the next removal,
            // so a segment that could be opened stays, and so do all later ones.
            tries += 1;
            match bytes.segment_at(bytes.position) {
                Ok(segment) => bytes.segment = Some(segment),
                Err(SegmentError::Removed(_)) if tries < TRIES => continue,
                Err(missing) => return Err(missing.into()),
            }
            break;
        }
        bytes.hold.advance(bytes.position);
        Ok(bytes)
    }

    /// Returns the position of the next byte.
    pub fn position(&self) -> LogPosition {
        self.position
    }

    /// Returns the number of bytes of log that are on disk only because of this reader.
    pub fn held(&self) -> HeldBytes {
        self.hold.held()
    }

    /// Returns the identity of the database, which the receiver needs to decode the bytes.
    pub fn identity(&self) -> DatabaseIdentity {
        self.identity
    }

    /// Appends the next bytes before `until` to `into`: at most `len_max`, perhaps fewer, and none
    /// only if the reader has reached `until`. `until` must not exceed
    /// [`UpdateLog::readable`](super::UpdateLog::readable). Fails with `Unavailable` if the log
    /// cannot be read, and with `Corrupt` if it ends before `until`.
    pub fn read(&mut self, until: LogPosition, len_max: usize, into: &mut Vec<u8>) -> Result<()> {
        self.read_on(until, len_max, into)?;
        self.hold.advance(self.position);
        Ok(())
    }

    /// Returns true if a complete entry starts at the current position, or if the position is
    /// `until`, the end of the log. Reads that entry piece by piece to its end.
    pub fn is_between_entries(&mut self, until: LogPosition) -> Result<bool> {
        let (position, segment) = (self.position, self.segment.clone());
        let outcome = self.is_followed_by_entry(until);
        (self.position, self.segment) = (position, segment);
        Ok(position == until || outcome?)
    }

    fn is_followed_by_entry(&mut self, until: LogPosition) -> Result<bool> {
        let position = self.position;
        let mut bytes = Vec::new();
        while bytes.len() < FRAME_LEN && self.position < until {
            self.read_on(until, FRAME_LEN - bytes.len(), &mut bytes)?;
        }
        let Some(frame) = bytes.first_chunk::<FRAME_LEN>() else { return Ok(false) };
        let size = u32::from_le_bytes(frame[..4].try_into().expect("four bytes"));
        let crc = u32::from_le_bytes(frame[4..].try_into().expect("four bytes"));
        let end = LogPosition(self.position.0.saturating_add(size.into()));
        if size == 0 || end > until {
            return Ok(false);
        }
        let mut found = entry::crc_of_frame(self.identity.seed(), position, size);
        while self.position < end {
            bytes.clear();
            self.read_on(end, PIECE_LEN, &mut bytes)?;
            found = crc32c::crc32c_append(found, &bytes);
        }
        Ok(found == crc)
    }

    fn read_on(&mut self, until: LogPosition, len_max: usize, into: &mut Vec<u8>) -> Result<()> {
        if self.position >= until {
            return Ok(());
        }
        let mut opened = false;
        loop {
            let segment = match &mut self.segment {
                Some(segment) if segment.next != Some(self.position) => segment,
                place => {
                    opened = true;
                    *place = None;
                    let segment = self.segment_at(self.position)?;
                    self.segment.insert(segment)
                }
            };
            let left = segment.next.map_or(until, |next| next.min(until)).0 - self.position.0;
            let len = usize::try_from(left).unwrap_or(usize::MAX).min(len_max);
            let before = into.len();
            into.resize(before + len, 0);
            let offset = HEADER_LEN as u64 + (self.position.0 - segment.start.0);
            let outcome = segment.file.read_at(offset, &mut into[before..]);
            let got = *outcome.as_ref().unwrap_or(&0);
            into.truncate(before + got);
            outcome.map_err(|error| unreadable(&segment.path, &error))?;
            if got > 0 {
                self.position.0 += got as u64;
                return Ok(());
            }
            if opened {
                let what = format!("{} at offset {offset}: the file ends here", segment.path.display());
                return Err(Error::new(ErrorKind::Corrupt, what));
            }
            // A further segment has been created since this one was opened.
            self.segment = None;
        }
    }

    fn starts(&self) -> Result<Vec<LogPosition>> {
        let names = self.disk.list(&self.directory).map_err(|error| unreadable(&self.directory, &error))?;
        let mut starts: Vec<LogPosition> = names.iter().filter_map(|name| start_of(name)).collect();
        starts.sort_unstable();
        Ok(starts)
    }

    fn segment_at(&self, position: LogPosition) -> std::result::Result<OpenSegment, SegmentError> {
        let starts = self.starts()?;
        let index = starts.partition_point(|&start| start <= position).checked_sub(1);
        let Some(index) = index else {
            let message = format!("the update log does not go back to position {}", position.0);
            return Err(Error::new(ErrorKind::Invalid, message).into());
        };
        let start = starts[index];
        let path = self.directory.join(name_of(start));
        let file = self.disk.open(&path, false).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => SegmentError::Removed(unreadable(&path, &error)),
            _ => SegmentError::Unreadable(unreadable(&path, &error)),
        })?;
        let mut header = [0; HEADER_LEN];
        file.read_at(0, &mut header).map_err(|error| unreadable(&path, &error))?;
        let is_its_own = SegmentHeader::decode(&header).is_ok_and(|header| {
            header.start == start && header.identity.database_id == self.identity.database_id
        });
        if !is_its_own {
            let message =
                format!("{} at offset 0: not the segment of this log at that position", path.display());
            return Err(Error::new(ErrorKind::Corrupt, message).into());
        }
        let (file, next) = (Arc::from(file), starts.get(index + 1).copied());
        Ok(OpenSegment { path, file, start, next })
    }
}

/// The reason why a segment cannot be read.
enum SegmentError {
    /// The segment was removed after it had been found.
    Removed(Error),
    Unreadable(Error),
}

impl From<Error> for SegmentError {
    fn from(error: Error) -> Self {
        SegmentError::Unreadable(error)
    }
}

impl From<SegmentError> for Error {
    fn from(missing: SegmentError) -> Self {
        match missing {
            SegmentError::Removed(error) | SegmentError::Unreadable(error) => error,
        }
    }
}

/// Decodes and checks the bytes of a log as they arrive, in pieces of any length.
///
/// ```
/// use todana::update_log::{EntryDecoder, LogPosition};
///
/// let mut entries = EntryDecoder::new([7; 16], LogPosition(0));
/// entries.push(b"bytes that are not from this log");
/// assert!(entries.next_entry().is_err());
/// ```
pub struct EntryDecoder {
    seed: u32,
    /// The position of the next entry.
    position: LogPosition,
    bytes: Vec<u8>,
    /// How many of `bytes` have been returned as entries.
    at: usize,
    /// The number of bytes of the last entry.
    last_len: usize,
    /// How many of `bytes` are entries of a packed part, whose checksums were right.
    packed_len: usize,
}

impl EntryDecoder {
    /// Creates a decoder for the log of this database, from a position on.
    pub fn new(database_id: [u8; 16], from: LogPosition) -> EntryDecoder {
        let seed = DatabaseIdentity { server_id: 0, database_id }.seed();
        EntryDecoder { seed, position: from, bytes: Vec::new(), at: 0, last_len: 0, packed_len: 0 }
    }

    /// Appends the next bytes. They are kept until their entry has been returned.
    pub fn push(&mut self, bytes: &[u8]) {
        self.discard_returned();
        self.bytes.extend_from_slice(bytes);
    }

    /// Appends the entries of a packed part ([`LogPart::Packed`](super::LogPart::Packed)). Returns
    /// the position after them. Fails with `Corrupt` if the bytes are not entries of this database
    /// at this position, or if an earlier entry is incomplete.
    pub fn push_packed(&mut self, packed: &[u8]) -> Result<LogPosition> {
        self.discard_returned();
        let (len, end) = (self.bytes.len(), self.position.0.checked_add(self.bytes.len() as u64));
        let end = end.filter(|_| len == self.packed_len).map(LogPosition);
        if end.and_then(|end| super::packed::unpack(packed, self.seed, end, &mut self.bytes)).is_none() {
            self.bytes.truncate(len);
            let message = format!("update log after position {}: not intact packed entries", self.position.0);
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        self.packed_len = self.bytes.len();
        Ok(LogPosition(self.position.0 + self.packed_len as u64))
    }

    fn discard_returned(&mut self) {
        self.bytes.drain(..self.at);
        self.packed_len = self.packed_len.saturating_sub(self.at);
        (self.at, self.last_len) = (0, 0);
    }

    /// Returns the next entry and its position, or `None` if the entry is incomplete. Fails with
    /// `Corrupt` if the bytes are not an entry of this database at this position.
    pub fn next_entry(&mut self) -> Result<Option<(LogPosition, LogEntry<'_>)>> {
        let unread = &self.bytes[self.at..];
        let Some((frame, rest)) = unread.split_first_chunk::<FRAME_LEN>() else { return Ok(None) };
        let size = u32::from_le_bytes(frame[..4].try_into().expect("four bytes"));
        let crc = u32::from_le_bytes(frame[4..].try_into().expect("four bytes"));
        let position = self.position;
        let wrong = || {
            let message = format!("update log at position {}: not a complete entry", position.0);
            Error::new(ErrorKind::Corrupt, message)
        };
        if size == 0 || size > CONTENT_LEN_MAX {
            return Err(wrong());
        }
        let Some(content) = rest.get(..size as usize) else { return Ok(None) };
        let found = || crc32c::crc32c_append(entry::crc_of_frame(self.seed, position, size), content);
        if self.at >= self.packed_len && found() != crc {
            return Err(wrong());
        }
        let entry = entry::decode(content).ok_or_else(wrong)?;
        let len = FRAME_LEN + content.len();
        // The sender chose the start position, so the sum can overflow.
        let end = position.0.checked_add(len as u64).ok_or_else(|| {
            let message = format!("update log at position {}: position out of range", position.0);
            Error::new(ErrorKind::Corrupt, message)
        })?;
        self.at += len;
        self.last_len = len;
        self.position = LogPosition(end);
        Ok(Some((position, entry)))
    }

    /// Makes [`next_entry`](Self::next_entry) return the last entry again, unless bytes were
    /// appended after it.
    pub fn put_back(&mut self) {
        let len = std::mem::take(&mut self.last_len);
        self.at -= len;
        self.position.0 -= len as u64;
    }

    /// Returns the position after the next entry, if its first bytes have arrived.
    pub fn end_of_next(&self) -> LogPosition {
        let frame = self.bytes[self.at..].first_chunk::<FRAME_LEN>();
        let size = frame.map_or(0, |frame| u32::from_le_bytes([frame[0], frame[1], frame[2], frame[3]]));
        LogPosition(self.position.0.saturating_add(FRAME_LEN as u64 + u64::from(size)))
    }

    /// Returns the position after the last entry returned.
    pub fn position(&self) -> LogPosition {
        self.position
    }

    /// Returns true if all bytes have been returned as entries.
    pub fn is_empty(&self) -> bool {
        self.at == self.bytes.len()
    }
}

fn unreadable(path: &Path, error: &io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, format!("{}: cannot read it: {error}", path.display()))
}
