//! Reading a log beside the server that writes it, and going on as it grows. Takes no lock and changes nothing.

use super::entry::{Change, Entry, Position};
use super::reader::Reader;
use super::segment::{HEADER_LEN, Header, Identity, name_of, start_of};
use crate::disk::Disk;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use todana_core::{Error, ErrorKind, Result};

/// What looks damaged may be half written, or just have been removed: it is looked at again so often, after so long.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(100);

/// A segment of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentInfo {
    /// The file.
    pub path: PathBuf,
    /// Where its first entry stands.
    pub start: Position,
    /// Its length in bytes.
    pub len: u64,
    /// When it was made, Unix time in milliseconds.
    pub made_ms: u64,
    /// How often the database had been opened.
    pub openings: u32,
    /// The database.
    pub identity: Identity,
}

/// The segments of a log, in order. Those that are removed meanwhile are left out. Fails with `Corrupt` if a header is damaged.
pub fn segments(disk: &dyn Disk, log: &Path) -> Result<Vec<SegmentInfo>> {
    let names = disk.list(log).map_err(|error| cannot("read", log, &error))?;
    let mut starts: Vec<Position> = names.iter().filter_map(|name| start_of(name)).collect();
    starts.sort_unstable();
    let mut found = Vec::new();
    for start in starts {
        let path = log.join(name_of(start));
        let read = || -> io::Result<(u64, [u8; HEADER_LEN])> {
            let file = disk.open(&path, false)?;
            let mut header = [0; HEADER_LEN];
            file.read_at(0, &mut header)?;
            Ok((file.len()?, header))
        };
        let (len, header) = match read() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            outcome => outcome.map_err(|error| cannot("read", &path, &error))?,
        };
        let header = Header::decode(&header).map_err(|why| {
            Error::new(ErrorKind::Corrupt, format!("{} at offset 0: {why}", path.display()))
        })?;
        let Header { identity, openings, made_ms, .. } = header;
        found.push(SegmentInfo { path, start, len, made_ms, openings, identity });
    }
    Ok(found)
}

/// Returns the latest time that the marks of a segment tell, which ends there, as far as it can be read.
pub(crate) fn last_told_ms(disk: &Arc<dyn Disk>, log: &Path, segment: &SegmentInfo, end: Position) -> u64 {
    let mut told = segment.made_ms;
    let Ok(mut reader) = Reader::open(Arc::clone(disk), log, segment.identity, segment.start) else {
        return told;
    };
    while let Ok(Some((position, entry))) = reader.next_entry() {
        if position >= end {
            break;
        }
        if let Change::Mark { time_ms, .. } = entry.change {
            told = told.max(time_ms);
        }
    }
    told
}

/// Reads a log while it is written.
pub struct Follower {
    disk: Arc<dyn Disk>,
    log: PathBuf,
    identity: Identity,
    /// Of the next entry.
    position: Position,
    /// Entries before this are passed over.
    from: Position,
    /// As the last mark told; 0 before the first.
    time_ms: u64,
    gap: Option<(Position, Position)>,
}

impl Follower {
    /// Reads from a position on, or from the time that `since_ms` tells, or from the oldest entry there is. `log` is the
    /// directory of the segments. Fails with `Unavailable` if there are none.
    pub fn open(
        disk: Arc<dyn Disk>,
        log: &Path,
        from: Option<Position>,
        since_ms: Option<u64>,
    ) -> Result<Follower> {
        let segments = segments(&*disk, log)?;
        let no_log = || Error::new(ErrorKind::Unavailable, format!("{} has no update log", log.display()));
        let oldest = segments.first().ok_or_else(no_log)?;
        // The last one that begins early enough: every segment begins with a mark, so the time of all its entries is known, and
        // a position in the midst of an entry does no harm.
        let is_early = |segment: &&SegmentInfo| {
            from.is_none_or(|from| segment.start <= from)
                && since_ms.is_none_or(|since| segment.made_ms / 1000 <= since / 1000)
        };
        let wants_all = from.is_none() && since_ms.is_none();
        let begin = segments.iter().take_while(is_early).last().filter(|_| !wants_all).unwrap_or(oldest);
        let (position, identity) = (begin.start, begin.identity);
        let from = from.unwrap_or_default();
        let gap = (from < position && from != Position(0)).then_some((from, position));
        Ok(Follower { disk, log: log.into(), identity, position, from, time_ms: 0, gap })
    }

    /// Shows all entries that are there now and have not been shown, each with its position and its time (Unix time in
    /// milliseconds), until `see` breaks. False if it has broken. Fails with `Corrupt` where the log is damaged.
    pub fn read_on(&mut self, see: &mut See<'_>) -> Result<bool> {
        let mut tries = 0;
        loop {
            let before = self.position;
            match self.read(see) {
                Ok(goes_on) => return Ok(goes_on),
                Err(error) => {
                    if self.position > before {
                        tries = 0;
                    }
                    tries += 1;
                    if tries == TRIES {
                        return Err(error);
                    }
                    std::thread::sleep(PAUSE);
                    self.pass_gap()?;
                }
            }
        }
    }

    /// Positions from and to which the log was removed before it could be read, if that has happened since the last call.
    pub fn take_gap(&mut self) -> Option<(Position, Position)> {
        self.gap.take()
    }

    /// Of the next entry.
    pub fn position(&self) -> Position {
        self.position
    }

    fn read(&mut self, see: &mut See<'_>) -> Result<bool> {
        let mut reader = Reader::open(Arc::clone(&self.disk), &self.log, self.identity, self.position)?;
        loop {
            let next = reader.next_entry()?;
            let Some((position, entry)) = next else { return Ok(true) };
            if let Change::Mark { time_ms, .. } = entry.change {
                self.time_ms = time_ms;
            }
            let is_wanted = position >= self.from;
            let goes_on = !is_wanted || see(position, self.time_ms, &entry).is_continue();
            self.position = reader.position();
            if !goes_on {
                return Ok(false);
            }
        }
    }

    /// Goes on at the oldest entry, if what stands before it has been removed.
    fn pass_gap(&mut self) -> Result<()> {
        let names = self.disk.list(&self.log).map_err(|error| cannot("read", &self.log, &error))?;
        let oldest = names.iter().filter_map(|name| start_of(name)).min();
        if let Some(oldest) = oldest.filter(|&oldest| oldest > self.position) {
            let from = self.gap.map_or(self.position, |(from, _)| from);
            self.gap = Some((from, oldest));
            self.position = oldest;
        }
        Ok(())
    }
}

/// Position, time, entry.
pub type See<'s> = dyn FnMut(Position, u64, &Entry<'_>) -> ControlFlow<()> + 's;

fn cannot(what: &str, path: &Path, error: &io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, format!("cannot {what} {}: {error}", path.display()))
}
