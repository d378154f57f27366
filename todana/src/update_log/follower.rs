//! Reads a log while a server writes it, and continues when the log has grown. Takes no lock and
//! changes nothing.

use super::entry::{LogChange, LogEntry, LogPosition};
use super::reader::LogReader;
use super::segment::{DatabaseIdentity, HEADER_LEN, SegmentHeader, name_of, start_of};
use crate::disk::Disk;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use todana_core::{Error, ErrorKind, Result};

/// How often an entry that looks damaged is read again, and after which delay. The entry may be
/// incomplete because it is just being written, or its segment may just have been removed.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(100);

/// Describes a segment of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentInfo {
    /// Path of the file.
    pub path: PathBuf,
    /// Position of the first entry.
    pub start: LogPosition,
    /// Length in bytes.
    pub len: u64,
    /// When the segment was created, as Unix time in milliseconds.
    pub created_ms: u64,
    /// How many times the database had been opened when the segment was created.
    pub openings: u32,
    /// The identity of the database.
    pub identity: DatabaseIdentity,
}

/// Returns the segments of a log, in order. Segments that are removed during the call are left out.
/// Fails with `Corrupt` if a header is damaged.
pub fn segments(disk: &dyn Disk, log: &Path) -> Result<Vec<SegmentInfo>> {
    let names = disk.list(log).map_err(|error| cannot("read", log, &error))?;
    let mut starts: Vec<LogPosition> = names.iter().filter_map(|name| start_of(name)).collect();
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
        let header = SegmentHeader::decode(&header).map_err(|why| {
            Error::new(ErrorKind::Corrupt, format!("{} at offset 0: {why}", path.display()))
        })?;
        let SegmentHeader { identity, openings, created_ms, .. } = header;
        found.push(SegmentInfo { path, start, len, created_ms, openings, identity });
    }
    Ok(found)
}

/// Returns the latest time in a mark of the segment. Reads the segment up to `end`, or up to the
/// first damage.
pub(crate) fn last_mark_ms(disk: &Arc<dyn Disk>, log: &Path, segment: &SegmentInfo, end: LogPosition) -> u64 {
    let mut told = segment.created_ms;
    let Ok(mut reader) = LogReader::open(Arc::clone(disk), log, segment.identity, segment.start) else {
        return told;
    };
    while let Ok(Some((position, entry))) = reader.next_entry() {
        if position >= end {
            break;
        }
        if let LogChange::Mark { time_ms, .. } = entry.change {
            told = told.max(time_ms);
        }
    }
    told
}

/// Reads a log while it is being written.
pub struct LogFollower {
    disk: Arc<dyn Disk>,
    log: PathBuf,
    identity: DatabaseIdentity,
    /// The position of the next entry.
    position: LogPosition,
    /// Entries before this position are skipped.
    from: LogPosition,
    /// The time of the last mark that was read; 0 before the first mark.
    time_ms: u64,
    gap: Option<(LogPosition, LogPosition)>,
}

impl LogFollower {
    /// Starts at the position `from`, at the time `since_ms`, or, without both, at the oldest
    /// entry. `log` is the directory of the segments. Fails with `Unavailable` if there are no
    /// segments.
    pub fn open(
        disk: Arc<dyn Disk>,
        log: &Path,
        from: Option<LogPosition>,
        since_ms: Option<u64>,
    ) -> Result<LogFollower> {
        let segments = segments(&*disk, log)?;
        let no_log = || Error::new(ErrorKind::Unavailable, format!("{}: has no update log", log.display()));
        let oldest = segments.first().ok_or_else(no_log)?;
        // Reading starts with the last segment that begins before the requested place. Each segment
        // begins with a mark, so the time of every entry is known, and the place need not be
        // between two entries.
        let is_early = |segment: &&SegmentInfo| {
            from.is_none_or(|from| segment.start <= from)
                && since_ms.is_none_or(|since| segment.created_ms / 1000 <= since / 1000)
        };
        let wants_all = from.is_none() && since_ms.is_none();
        let begin = segments.iter().take_while(is_early).last().filter(|_| !wants_all).unwrap_or(oldest);
        let (position, identity) = (begin.start, begin.identity);
        let from = from.unwrap_or_default();
        let gap = (from < position && from != LogPosition(0)).then_some((from, position));
        Ok(LogFollower { disk, log: log.into(), identity, position, from, time_ms: 0, gap })
    }

    /// Calls `see` for every entry that exists now and was not shown before, with its position and
    /// its time (Unix time in milliseconds), until `see` breaks. Returns false if `see` broke.
    /// Fails with `Corrupt` where the log is damaged.
    pub fn read_new(&mut self, see: &mut EntryCallback<'_>) -> Result<bool> {
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

    /// Returns the range of positions that was removed before it could be read, if there was one
    /// since the last call.
    pub fn take_gap(&mut self) -> Option<(LogPosition, LogPosition)> {
        self.gap.take()
    }

    /// Returns the position of the next entry.
    pub fn position(&self) -> LogPosition {
        self.position
    }

    fn read(&mut self, see: &mut EntryCallback<'_>) -> Result<bool> {
        let mut reader = LogReader::open(Arc::clone(&self.disk), &self.log, self.identity, self.position)?;
        loop {
            let next = reader.next_entry()?;
            let Some((position, entry)) = next else { return Ok(true) };
            if let LogChange::Mark { time_ms, .. } = entry.change {
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

    /// If the log at the current position has been removed, continues at the oldest entry and notes
    /// the gap.
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

/// Receives an entry with its position and its time (Unix time in milliseconds).
pub type EntryCallback<'s> = dyn FnMut(LogPosition, u64, &LogEntry<'_>) -> ControlFlow<()> + 's;

fn cannot(what: &str, path: &Path, error: &io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, format!("{}: cannot {what} it: {error}", path.display()))
}
