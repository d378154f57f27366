//! Stretches of the log as bytes: read from the segments of a log that is being written, and taken apart again by whoever gets
//! them.
//!
//! Nobody looks into the bytes at the reading end, so little memory is needed however long an entry is. They are checked at the
//! other end, entry by entry.

use super::entry::{self, CONTENT_LEN_MAX, Entry, FRAME_LEN, Position};
use super::segment::{HEADER_LEN, Header, Identity, name_of, start_of};
use crate::checkpoint::{Held, Hold};
use crate::disk::{Disk, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana_core::{Error, ErrorKind, Result};

/// Read at once where nobody else says how much.
const PIECE: usize = 64 << 10;
/// So often a segment that has just been removed is passed over for the next one.
const TRIES: u32 = 16;

/// Reads a log from a position on, beside whoever writes it. What has not been read yet is kept as long as this is there.
pub struct LogBytes {
    disk: Arc<dyn Disk>,
    directory: PathBuf,
    identity: Identity,
    position: Position,
    segment: Option<Segment>,
    hold: Hold,
}

#[derive(Clone)]
struct Segment {
    path: PathBuf,
    file: Arc<dyn File>,
    start: Position,
    /// Where the next one begins, if there was one when this one was opened.
    next: Option<Position>,
}

impl LogBytes {
    /// From a position between two entries, `None` for as far back as the log goes. Fails with `Invalid` if it does not go back so
    /// far, with `Unavailable` if it cannot be read. Whether the position is one between two entries
    /// [`is_between_entries`](Self::is_between_entries) tells.
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        directory: &Path,
        identity: Identity,
        from: Option<Position>,
        hold: Hold,
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
            // Whoever removes segments may have looked at the holds before there was this one, and be about to remove one of those
            // just found. It looks again before each, so what has been opened now, and all behind it, stays.
            tries += 1;
            match bytes.segment_at(bytes.position) {
                Ok(segment) => bytes.segment = Some(segment),
                Err(Missing::Removed(_)) if tries < TRIES => continue,
                Err(missing) => return Err(missing.into()),
            }
            break;
        }
        bytes.hold.advance(bytes.position);
        Ok(bytes)
    }

    /// Of the next byte.
    pub fn position(&self) -> Position {
        self.position
    }

    /// How much of the log is on disk for the sake of this alone.
    pub fn held(&self) -> Held {
        self.hold.held()
    }

    /// Who the database is: whoever takes the bytes apart needs to know.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Appends what comes next and stands before `until`, as far as [`UpdateLog::readable`](super::UpdateLog::readable) has told that
    /// it can be read, to `into`: at most `len_max` bytes, perhaps fewer. Nothing is there only at `until`. Fails with `Unavailable` if the log
    /// cannot be read, with `Corrupt` if it ends before.
    pub fn read(&mut self, until: Position, len_max: usize, into: &mut Vec<u8>) -> Result<()> {
        self.read_on(until, len_max, into)?;
        self.hold.advance(self.position);
        Ok(())
    }

    /// Whether a whole entry begins at the position, or the log ends there, at `until`. Reads all of that entry, piece by piece.
    pub fn is_between_entries(&mut self, until: Position) -> Result<bool> {
        let (position, segment) = (self.position, self.segment.clone());
        let outcome = self.is_followed_by_entry(until);
        (self.position, self.segment) = (position, segment);
        Ok(position == until || outcome?)
    }

    fn is_followed_by_entry(&mut self, until: Position) -> Result<bool> {
        let position = self.position;
        let mut bytes = Vec::new();
        while bytes.len() < FRAME_LEN && self.position < until {
            self.read_on(until, FRAME_LEN - bytes.len(), &mut bytes)?;
        }
        let Some(frame) = bytes.first_chunk::<FRAME_LEN>() else { return Ok(false) };
        let size = u32::from_le_bytes(frame[..4].try_into().expect("four bytes"));
        let crc = u32::from_le_bytes(frame[4..].try_into().expect("four bytes"));
        let end = Position(self.position.0.saturating_add(size.into()));
        if size == 0 || end > until {
            return Ok(false);
        }
        let mut found = entry::crc_of_frame(self.identity.seed(), position, size);
        while self.position < end {
            bytes.clear();
            self.read_on(end, PIECE, &mut bytes)?;
            found = crc32c::crc32c_append(found, &bytes);
        }
        Ok(found == crc)
    }

    fn read_on(&mut self, until: Position, len_max: usize, into: &mut Vec<u8>) -> Result<()> {
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
            // It was the last one when it was opened; now another one follows.
            self.segment = None;
        }
    }

    fn starts(&self) -> Result<Vec<Position>> {
        let names = self.disk.list(&self.directory).map_err(|error| unreadable(&self.directory, &error))?;
        let mut starts: Vec<Position> = names.iter().filter_map(|name| start_of(name)).collect();
        starts.sort_unstable();
        Ok(starts)
    }

    fn segment_at(&self, position: Position) -> std::result::Result<Segment, Missing> {
        let starts = self.starts()?;
        let index = starts.partition_point(|&start| start <= position).checked_sub(1);
        let Some(index) = index else {
            let message = format!("the update log does not go back to position {}", position.0);
            return Err(Error::new(ErrorKind::Invalid, message).into());
        };
        let start = starts[index];
        let path = self.directory.join(name_of(start));
        let file = self.disk.open(&path, false).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Missing::Removed(unreadable(&path, &error)),
            _ => Missing::Unreadable(unreadable(&path, &error)),
        })?;
        let mut header = [0; HEADER_LEN];
        file.read_at(0, &mut header).map_err(|error| unreadable(&path, &error))?;
        let is_its_own = Header::decode(&header).is_ok_and(|header| {
            header.start == start && header.identity.database_id == self.identity.database_id
        });
        if !is_its_own {
            let message = format!(
                "{} at offset 0: this is not the segment of this log that begins there",
                path.display()
            );
            return Err(Error::new(ErrorKind::Corrupt, message).into());
        }
        let (file, next) = (Arc::from(file), starts.get(index + 1).copied());
        Ok(Segment { path, file, start, next })
    }
}

/// Why there is no segment to read.
enum Missing {
    /// It was there, and has been removed since.
    Removed(Error),
    Unreadable(Error),
}

impl From<Error> for Missing {
    fn from(error: Error) -> Self {
        Missing::Unreadable(error)
    }
}

impl From<Missing> for Error {
    fn from(missing: Missing) -> Self {
        match missing {
            Missing::Removed(error) | Missing::Unreadable(error) => error,
        }
    }
}

/// Takes the bytes of a log apart again, as they come, and checks them.
///
/// ```
/// use todana::update_log::{Entries, Position};
///
/// let mut entries = Entries::new([7; 16], Position(0));
/// entries.take(b"whatever has come from elsewhere");
/// assert!(entries.next_entry().is_err());
/// ```
pub struct Entries {
    seed: u32,
    /// Of the next entry.
    position: Position,
    bytes: Vec<u8>,
    /// So many of them have been shown.
    at: usize,
}

impl Entries {
    /// Of the log of this database, from a position on.
    pub fn new(database_id: [u8; 16], from: Position) -> Entries {
        let seed = Identity { server_id: 0, database_id }.seed();
        Entries { seed, position: from, bytes: Vec::new(), at: 0 }
    }

    /// Takes the next bytes. They are kept until their entry has been shown.
    pub fn take(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.at);
        self.at = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// The next entry and its position; `None` if it has not come as a whole. Fails with `Corrupt` if this is no entry of that
    /// database at that position.
    pub fn next_entry(&mut self) -> Result<Option<(Position, Entry<'_>)>> {
        let unread = &self.bytes[self.at..];
        let Some((frame, rest)) = unread.split_first_chunk::<FRAME_LEN>() else { return Ok(None) };
        let size = u32::from_le_bytes(frame[..4].try_into().expect("four bytes"));
        let crc = u32::from_le_bytes(frame[4..].try_into().expect("four bytes"));
        let position = self.position;
        let wrong = || {
            let message = format!("the update log at position {}: this is no whole entry", position.0);
            Error::new(ErrorKind::Corrupt, message)
        };
        if size == 0 || size > CONTENT_LEN_MAX {
            return Err(wrong());
        }
        let Some(content) = rest.get(..size as usize) else { return Ok(None) };
        if crc32c::crc32c_append(entry::crc_of_frame(self.seed, position, size), content) != crc {
            return Err(wrong());
        }
        let entry = entry::decode(content).ok_or_else(wrong)?;
        let len = FRAME_LEN + content.len();
        // Whoever sends them says where they begin.
        let end = position.0.checked_add(len as u64).ok_or_else(|| {
            let message = format!("the update log at position {}: no log is so long", position.0);
            Error::new(ErrorKind::Corrupt, message)
        })?;
        self.at += len;
        self.position = Position(end);
        Ok(Some((position, entry)))
    }

    /// Behind the last entry that was shown.
    pub fn position(&self) -> Position {
        self.position
    }

    /// Whether nothing is left of what was taken.
    pub fn is_empty(&self) -> bool {
        self.at == self.bytes.len()
    }
}

fn unreadable(path: &Path, error: &io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, format!("cannot read {}: {error}", path.display()))
}
