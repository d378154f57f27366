//! Reading the log: from a position to its end, entry by entry, each checked before it is shown.

mod flip;
mod salvage;

use super::entry::{self, CONTENT_LEN_MAX, Change, Entry, FRAME_LEN, MARK_LEN, Position};
use super::segment::{HEADER_LEN, Header, Identity, name_of, start_of};
use crate::disk::{Disk, File};
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana_core::{Error, ErrorKind, Result};

pub use salvage::Finding;
pub(crate) use salvage::{MendedSegments, begin_anew, can_be_marked, mend_segments};

/// Read at once, unless an entry is longer.
const WINDOW: usize = 256 << 10;

/// How the log ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Tail {
    /// Behind a whole entry.
    #[default]
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
    /// Everything before this was on disk, as marks tell.
    synced: Position,
    /// How often the database had been opened when the segment was made.
    openings: u32,
    tail: Tail,
}

struct Segment {
    /// Of the database.
    seed: u32,
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
        let names = match disk.list(directory) {
            // Whoever opens a database makes it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            names => names.map_err(|error| unreadable(directory, &error))?,
        };
        let mut ahead: Vec<Position> = names.iter().filter_map(|name| start_of(name)).collect();
        ahead.sort_unstable();
        let first = ahead.partition_point(|&start| start <= from).checked_sub(1);
        let Some(first) = first else {
            if ahead.is_empty() && from == Position(0) {
                return Ok(Reader::new(disk, directory, identity, ahead, from));
            }
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!("the update log in {} does not go back to position {}", directory.display(), from.0),
            ));
        };
        ahead.drain(..first);
        ahead.reverse();
        let mut reader = Reader::new(disk, directory, identity, ahead, from);
        let start = *reader.ahead.last().expect("one begins at or before");
        reader.enter(start)?;
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
        identity: Identity,
        ahead: Vec<Position>,
        from: Position,
    ) -> Reader {
        Reader {
            disk,
            directory: directory.to_path_buf(),
            identity,
            ahead,
            segment: None,
            position: from,
            synced: Position(0),
            openings: 0,
            tail: Tail::Clean,
        }
    }

    /// The next entry and its position; `None` at the end. Fails with `Corrupt` where something that was once on disk is
    /// damaged or missing; the message names the file and the offset.
    pub fn next_entry(&mut self) -> Result<Option<(Position, Entry<'_>)>> {
        Ok(self.next_content()?.map(|(position, _, entry)| (position, entry)))
    }

    /// The same, and the content that it was decoded from.
    pub(crate) fn next_content(&mut self) -> Result<Option<(Position, &[u8], Entry<'_>)>> {
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
                    if let Change::Mark { synced, .. } = entry.change {
                        self.synced = self.synced.max(synced);
                    }
                    return Ok(Some((position, content, entry)));
                }
                Found::End | Found::Bad if self.ahead.len() > 1 => {
                    // Behind a segment that is not the last one the next one begins, on the byte.
                    if offset < segment.file_len {
                        return Err(segment.damaged(offset, "an entry is damaged"));
                    }
                    self.ahead.pop();
                    let next = *self.ahead.last().expect("there is one more");
                    if next != self.position {
                        let here = self.position.0;
                        let what = format!("the log goes on at position {}, not at {here}", next.0);
                        return Err(segment.damaged(offset, &what));
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

    /// Where that is, for a message: file and offset.
    pub(crate) fn place(&self) -> String {
        match &self.segment {
            Some(segment) => {
                format!("{} at offset {}", segment.path.display(), segment.offset_of(self.position))
            }
            None => format!("{} at offset 0", self.directory.display()),
        }
    }

    /// What may not be on disk, although it was read: from this offset of this file on. The system may have failed to write it, and
    /// have told that to a process that is no more. Exact at the end; before, perhaps more than need be.
    pub fn unsure(&self) -> Option<(&Path, u64)> {
        let segment = self.segment.as_ref()?;
        let from = self.synced.max(segment.start);
        (from < self.position).then(|| (segment.path.as_path(), segment.offset_of(from)))
    }

    /// How often the database has been opened. Known at the end.
    pub fn openings(&self) -> u32 {
        self.openings
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
        let header = if got < HEADER_LEN {
            Err("the header is cut off".into())
        } else {
            Header::decode(&header).and_then(|header| {
                if header.identity.database_id != self.identity.database_id {
                    Err("it belongs to another database".into())
                } else if header.start != start {
                    Err("its name is not that of its first position".into())
                } else if start.0.checked_add(file_len).is_none() {
                    Err("no log is so long".into())
                } else {
                    Ok(header)
                }
            })
        };
        let header = header.map_err(|why| {
            Error::new(ErrorKind::Corrupt, format!("{} at offset 0: {why}", path.display()))
        })?;
        self.openings = self.openings.max(header.openings);
        let (seed, window) = (self.identity.seed(), Window::default());
        self.segment = Some(Segment { seed, path, file, file_len, start, window });
        Ok(())
    }

    /// The last segment ends there, or is damaged.
    fn end(&mut self, offset: u64) -> Result<()> {
        let segment = self.segment.as_mut().expect("there is a last segment");
        let len = segment.file_len - offset;
        if len == 0 {
            return Ok(());
        }
        if let Some(synced) = segment.later_mark(offset)?
            && synced > self.position
        {
            return Err(segment.damaged(offset, "an entry is damaged that was on disk"));
        }
        if let Some(at) = segment.flipped_bit(offset, self.position)? {
            return Err(segment.damaged(offset, &format!("one bit of the byte at offset {at} has changed")));
        }
        self.tail = Tail::Torn { path: segment.path.clone(), offset, len };
        Ok(())
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
        let frame = entry::crc_of_frame(self.seed, position, size);
        let is_whole = crc32c::crc32c_append(frame, &bytes[FRAME_LEN..]) == crc;
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

    /// The furthest that any mark behind `from`, looked for byte by byte, tells to have been on disk.
    fn later_mark(&mut self, from: u64) -> Result<Option<Position>> {
        let mut furthest = None;
        self.each_mark(from + 1, &mut |_, synced| {
            furthest = furthest.max(Some(synced));
            ControlFlow::Continue(())
        })?;
        Ok(furthest)
    }

    /// Shows the marks from there on, found byte by byte: where they stand and what they tell.
    fn each_mark(&mut self, from: u64, see: &mut dyn FnMut(u64, Position) -> ControlFlow<()>) -> Result<()> {
        let mut offset = from;
        while offset + MARK_LEN as u64 <= self.file_len {
            self.load(offset, MARK_LEN)?;
            let bytes = self.window.at(offset);
            if bytes.len() < MARK_LEN {
                break;
            }
            let places = bytes.len() - MARK_LEN + 1;
            for at in 0..places {
                let position = Position(self.start.0 + offset - HEADER_LEN as u64 + at as u64);
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

/// What a mark that stands in these bytes, if one does, tells to be on disk.
fn mark_at(seed: u32, bytes: &[u8], position: Position) -> Option<Position> {
    const SIZE: [u8; 4] = ((MARK_LEN - FRAME_LEN) as u32).to_le_bytes();
    // The first look rules out nearly every place.
    if bytes[..4] != SIZE || bytes[FRAME_LEN] != 0 {
        return None;
    }
    let content = &bytes[FRAME_LEN..];
    let crc = crc32c::crc32c_append(entry::crc_of_frame(seed, position, content.len() as u32), content);
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
