//! Reading the log: from a position to its end, entry by entry, each checked before it is shown.

use super::entry::{self, CONTENT_LEN_MAX, Change, Entry, FRAME_LEN, MARK_LEN, Position};
use super::segment::{HEADER_LEN, Header, Identity, name_of, start_of};
use crate::disk::{Disk, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana_core::{Error, ErrorKind, Result};

/// Read at once, unless an entry is longer.
const WINDOW: usize = 256 << 10;

/// How the log ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tail {
    /// Behind a whole entry.
    Clean,
    /// In what a crash has left of a write that nobody was told was on disk.
    Torn {
        /// The file.
        path: PathBuf,
        /// Where the whole entries end in it.
        offset: u64,
        /// The bytes behind.
        len: u64,
    },
}

/// Reads the log of a directory. Nothing is changed by it.
pub struct Reader {
    disk: Arc<dyn Disk>,
    directory: PathBuf,
    identity: Identity,
    /// Where the segments begin that have not been opened yet, the last one first.
    ahead: Vec<Position>,
    segment: Option<Segment>,
    /// Of the next entry.
    position: Position,
    tail: Tail,
}

struct Segment {
    path: PathBuf,
    file: Box<dyn File>,
    file_len: u64,
    start: Position,
    window: Window,
}

/// A stretch of a file.
#[derive(Default)]
struct Window {
    offset: u64,
    bytes: Vec<u8>,
}

/// What stands at a place.
enum Found {
    /// An entry's frame and content, so long.
    Whole(usize),
    /// No more entries.
    End,
    /// Not a whole entry.
    Bad,
}

impl Reader {
    /// Reads from `from`, a position between two entries. Fails with `Corrupt` if the log does not go back so far, or a
    /// segment is missing or not of this database, with `Unavailable` if it cannot be read.
    pub fn open(disk: Arc<dyn Disk>, directory: &Path, identity: Identity, from: Position) -> Result<Reader> {
        let names = disk.list(directory).map_err(|error| unreadable(directory, &error))?;
        let mut ahead: Vec<Position> = names.iter().filter_map(|name| start_of(name)).collect();
        ahead.sort_unstable();
        let first = ahead.partition_point(|&start| start <= from).checked_sub(1);
        let Some(first) = first else {
            if ahead.is_empty() && from == Position(0) {
                let (directory, tail) = (directory.to_path_buf(), Tail::Clean);
                return Ok(Reader { disk, directory, identity, ahead, segment: None, position: from, tail });
            }
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!("the update log in {} does not go back to position {}", directory.display(), from.0),
            ));
        };
        ahead.drain(..first);
        ahead.reverse();
        let mut reader = Reader {
            disk,
            directory: directory.to_path_buf(),
            identity,
            ahead,
            segment: None,
            position: from,
            tail: Tail::Clean,
        };
        let start = *reader.ahead.last().expect("one begins at or before");
        reader.enter(start)?;
        let is_inside = reader.segment.as_ref().is_none_or(|segment| reader.position <= segment.end());
        if !is_inside {
            return Err(reader.missing(reader.position));
        }
        Ok(reader)
    }

    /// The next entry and its position; `None` at the end. Fails with `Corrupt` where something that was once on disk is
    /// damaged or missing; the message names the file and the offset.
    pub fn next_entry(&mut self) -> Result<Option<(Position, Entry<'_>)>> {
        loop {
            let Some(segment) = &mut self.segment else { return Ok(None) };
            let offset = segment.offset_of(self.position);
            match segment.find(offset, self.position)? {
                Found::Whole(len) => {
                    let position = self.position;
                    self.position.0 += len as u64;
                    let segment = self.segment.as_ref().expect("it was there");
                    let content = &segment.window.at(offset)[FRAME_LEN..len];
                    let Some(entry) = entry::decode(content) else {
                        return Err(segment.damaged(offset, "an entry that this program does not know"));
                    };
                    return Ok(Some((position, entry)));
                }
                Found::End | Found::Bad if self.ahead.len() > 1 => {
                    // Behind a segment that is not the last one the next one begins, on the byte.
                    if offset < segment.file_len {
                        return Err(segment.damaged(offset, "an entry is damaged"));
                    }
                    self.ahead.pop();
                    let next = *self.ahead.last().expect("there is one more");
                    if next != self.position {
                        return Err(self.missing(self.position));
                    }
                    self.enter(next)?;
                }
                Found::End | Found::Bad => {
                    self.end(offset)?;
                    return Ok(None);
                }
            }
        }
    }

    /// Behind the last entry that was read.
    pub fn position(&self) -> Position {
        self.position
    }

    /// How the log ends; known when `next_entry` has told that it does.
    pub fn tail(&self) -> &Tail {
        &self.tail
    }

    /// Bytes of the log that are still to be read, for a progress bar.
    pub fn remaining(&self) -> u64 {
        let here = self.segment.as_ref().map_or(0, |segment| segment.end().0.saturating_sub(self.position.0));
        // Segments follow one another without a gap, so the last one's start tells the length of all but the last.
        let others = self.ahead.first().map_or(0, |last| last.0.saturating_sub(self.position.0));
        here.max(others)
    }

    fn enter(&mut self, start: Position) -> Result<()> {
        let path = self.directory.join(name_of(start));
        let file = self.disk.open(&path, false).map_err(|error| unreadable(&path, &error))?;
        let file_len = file.len().map_err(|error| unreadable(&path, &error))?;
        let mut header = [0; HEADER_LEN];
        let got = file.read_at(0, &mut header).map_err(|error| unreadable(&path, &error))?;
        let is_last = self.ahead.len() == 1;
        if got < HEADER_LEN || Header::decode(&header).is_err() {
            // A segment gets entries only once its header is on disk.
            if is_last && file_len <= HEADER_LEN as u64 {
                self.segment = None;
                if self.position != start {
                    return Err(self.missing(self.position));
                }
                if file_len > 0 {
                    self.tail = Tail::Torn { path, offset: 0, len: file_len };
                }
                return Ok(());
            }
            let why = Header::decode(&header).err().unwrap_or_else(|| "the header is cut off".into());
            return Err(Error::new(ErrorKind::Corrupt, format!("{} at offset 0: {why}", path.display())));
        }
        let header = Header::decode(&header).expect("it was tried above");
        let wrong = if header.identity.database_id != self.identity.database_id {
            Some("it belongs to another database")
        } else if header.start != start {
            Some("its name is not that of its first position")
        } else {
            None
        };
        if let Some(wrong) = wrong {
            return Err(Error::new(ErrorKind::Corrupt, format!("{} at offset 0: {wrong}", path.display())));
        }
        self.segment = Some(Segment { path, file, file_len, start, window: Window::default() });
        Ok(())
    }

    /// The last segment ends there, or is damaged.
    fn end(&mut self, offset: u64) -> Result<()> {
        let segment = self.segment.as_mut().expect("there is a last segment");
        let len = segment.file_len - offset;
        if len == 0 || segment.is_zero_from(offset)? {
            return Ok(());
        }
        if let Some(synced) = segment.later_mark(offset)?
            && synced > self.position
        {
            return Err(segment.damaged(offset, "an entry is damaged that was on disk"));
        }
        self.tail = Tail::Torn { path: segment.path.clone(), offset, len };
        Ok(())
    }

    fn missing(&self, position: Position) -> Error {
        let directory = self.directory.display();
        let message = format!("the update log in {directory} lacks what begins at position {}", position.0);
        Error::new(ErrorKind::Corrupt, message)
    }
}

impl Segment {
    fn offset_of(&self, position: Position) -> u64 {
        HEADER_LEN as u64 + (position.0 - self.start.0)
    }

    /// The position of the file's end.
    fn end(&self) -> Position {
        Position(self.start.0 + self.file_len.saturating_sub(HEADER_LEN as u64))
    }

    /// What stands at `offset`; if it is an entry, all of it is in the window then.
    fn find(&mut self, offset: u64, position: Position) -> Result<Found> {
        self.load(offset, FRAME_LEN)?;
        let Some(frame) = self.window.at(offset).first_chunk::<FRAME_LEN>() else {
            return Ok(if offset == self.file_len { Found::End } else { Found::Bad });
        };
        let size = u32::from_le_bytes(frame[..4].try_into().expect("four bytes"));
        let crc = u32::from_le_bytes(frame[4..].try_into().expect("four bytes"));
        if size == 0 {
            return Ok(Found::End);
        }
        let len = FRAME_LEN + size as usize;
        if size > CONTENT_LEN_MAX || offset + len as u64 > self.file_len {
            return Ok(Found::Bad);
        }
        self.load(offset, len)?;
        let Some(bytes) = self.window.at(offset).get(..len) else { return Ok(Found::Bad) };
        let is_whole = crc32c::crc32c_append(entry::crc_of_frame(position, size), &bytes[FRAME_LEN..]) == crc;
        Ok(if is_whole { Found::Whole(len) } else { Found::Bad })
    }

    /// Brings `len` bytes from `offset` on into the window, or what there is of them.
    fn load(&mut self, offset: u64, len: usize) -> Result<()> {
        if self.window.at(offset).len() >= len {
            return Ok(());
        }
        let left = usize::try_from(self.file_len.saturating_sub(offset)).unwrap_or(usize::MAX);
        let len = len.max(WINDOW).min(left);
        let window = &mut self.window;
        window.bytes.clear();
        // An entry's size is checked against the file's length before it is asked for, so this is never more than there is.
        window.bytes.resize(len, 0);
        window.offset = offset;
        let got = self
            .file
            .read_at(offset, &mut window.bytes)
            .map_err(|error| unreadable_at(&self.path, offset, &error))?;
        window.bytes.truncate(got);
        Ok(())
    }

    fn is_zero_from(&mut self, mut offset: u64) -> Result<bool> {
        while offset < self.file_len {
            self.load(offset, 1)?;
            let bytes = self.window.at(offset);
            if bytes.iter().any(|&byte| byte != 0) {
                return Ok(false);
            }
            if bytes.is_empty() {
                break;
            }
            offset += bytes.len() as u64;
        }
        Ok(true)
    }

    /// The furthest that any mark behind `from`, looked for byte by byte, tells to have been on disk.
    fn later_mark(&mut self, from: u64) -> Result<Option<Position>> {
        let mut furthest = None;
        let mut offset = from + 1;
        while offset + MARK_LEN as u64 <= self.file_len {
            self.load(offset, MARK_LEN)?;
            let bytes = self.window.at(offset);
            if bytes.len() < MARK_LEN {
                break;
            }
            let places = bytes.len() - MARK_LEN + 1;
            for at in 0..places {
                let position = Position(self.start.0 + offset - HEADER_LEN as u64 + at as u64);
                if let Some(synced) = mark_at(&bytes[at..at + MARK_LEN], position) {
                    furthest = furthest.max(Some(synced));
                }
            }
            offset += places as u64;
        }
        Ok(furthest)
    }

    fn damaged(&self, offset: u64, what: &str) -> Error {
        Error::new(ErrorKind::Corrupt, format!("{} at offset {offset}: {what}", self.path.display()))
    }
}

/// What a mark that stands in these bytes, if one does, tells to be on disk.
fn mark_at(bytes: &[u8], position: Position) -> Option<Position> {
    const SIZE: [u8; 4] = ((MARK_LEN - FRAME_LEN) as u32).to_le_bytes();
    // The first look rules out nearly every place.
    if bytes[..4] != SIZE || bytes[FRAME_LEN] != 0 {
        return None;
    }
    let content = &bytes[FRAME_LEN..];
    let crc = crc32c::crc32c_append(entry::crc_of_frame(position, content.len() as u32), content);
    match entry::decode(content)?.change {
        Change::Mark { synced, .. } if bytes[4..8] == crc.to_le_bytes() => Some(synced),
        _ => None,
    }
}

impl Window {
    /// What it has from this offset on.
    fn at(&self, offset: u64) -> &[u8] {
        let skip = offset.checked_sub(self.offset).and_then(|skip| usize::try_from(skip).ok());
        skip.and_then(|skip| self.bytes.get(skip..)).unwrap_or_default()
    }
}

fn unreadable(path: &Path, error: &io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, format!("cannot read {}: {error}", path.display()))
}

fn unreadable_at(path: &Path, offset: u64, error: &io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, format!("cannot read {} at offset {offset}: {error}", path.display()))
}
