//! The update log of a database whose engine keeps its records in files of its own: for replicas alone, which follow it.
//!
//! The engine's files say what the database holds; nothing is read back from this log. What replicas have been told must be what
//! the files hold, so a log goes on only where it is known to tell the same: where the last opening with it was closed in good
//! order, and was the last one (`replica-log`, docs/format/data-directory.md, section 2). Otherwise it begins anew behind its end. No
//! replica's place is found there, so each is told to clear, and gets all records.

use super::{CHECKPOINTS, DataDirectory, DataOptions, LOG, cannot};
use crate::Database;
use crate::clock::Clock;
use crate::file_header::write_whole;
use crate::update_log::{Position, Reader, Tail, UpdateLog, segment_start, segments};
use std::io;
use std::sync::Arc;
use todana_core::{Durable, Error, ErrorKind, Result};

const FILE: &str = "replica-log";
const MAGIC: &[u8; 8] = b"TODANARL";
const VERSION: u32 = 1;
const LEN: usize = 48;

/// How the log of an opening ended: `None` while it is open.
type Ending = Option<Closed>;

/// What a database that was closed in good order had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Closed {
    /// The number of that opening.
    openings: u32,
    /// Behind the last change in the log.
    end: Position,
    records: u64,
    live_bytes: u64,
}

impl Closed {
    fn of(database: &Database, durable: &dyn Durable, end: Position) -> Closed {
        let records = database.engine().status().records;
        Closed { openings: durable.openings(), end, records, live_bytes: durable.usage().live_bytes }
    }
}

impl DataDirectory {
    /// Keeps an update log here of a database whose engine keeps its records itself, for replicas. Returns true if it goes on where
    /// it was; false if it begins anew, so that replicas get all records. Fails with `Invalid` if the directory holds a database
    /// of its own, or the engine keeps no records.
    pub fn keep_replica_log(
        &self,
        database: &Database,
        clock: Arc<dyn Clock>,
        options: &DataOptions,
    ) -> Result<bool> {
        *self.checkpoints.lock() = options.checkpoints;
        let durable = database
            .engine()
            .durable()
            .ok_or_else(|| Error::new(ErrorKind::Invalid, "the engine keeps no records of its own"))?;
        let closed = self.read_ending()?;
        let now = Closed::of(database, durable, Position(0));
        let is_same = |closed: &Closed| {
            closed.openings.checked_add(1) == Some(now.openings)
                && (closed.records, closed.live_bytes) == (now.records, now.live_bytes)
        };
        let end = closed.filter(is_same).and_then(|closed| self.end_from(closed.end));
        // From here on a crash leaves a log that does not go on.
        self.write_ending(None)?;
        let is_new = now.openings == 1 && now.records == 0;
        let begin = match end {
            Some(end) => end,
            None => self.remove_replica_log(is_new)?,
        };
        let log = UpdateLog::start(self.log_place(now.openings), begin, clock, options.log)?;
        database.attach(log, now.openings);
        self.measure(database);
        Ok(end.is_some() || begin == Position(0))
    }

    /// Says that the log and the engine's files tell the same. Called once both have been closed in good order, and nothing has been
    /// written since.
    pub fn close_replica_log(&self, database: &Database) -> Result<()> {
        let (Some(durable), Some(log)) = (database.engine().durable(), database.log()) else { return Ok(()) };
        self.write_ending(Some(Closed::of(database, durable, log.end())))
    }

    /// Removes what of the log is older than the options keep it for replicas that are away.
    pub(crate) fn trim_replica_log(&self, database: &Database) -> Result<()> {
        let options = *self.checkpoints.lock();
        let Some(log) = database.log() else { return Ok(()) };
        if self.footprint().log_bytes > options.log_kept_len {
            self.shelf.trim(log.synced(), &options, database.now().0.saturating_mul(1000))?;
        }
        Ok(())
    }

    /// Fails with `Invalid` if what is kept here is a log for replicas alone.
    pub(super) fn refuse_replica_log(&self) -> Result<()> {
        let names = self.disk.list(&self.path).map_err(|error| cannot("read", &self.path, &error))?;
        if names.iter().any(|name| name == FILE) {
            let message = format!(
                "{} holds the update log of a hash on disk, and no records; give the database in memory another directory",
                self.path.display()
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        Ok(())
    }

    /// Where the log ends, if it is intact from its last segment on and has all up to `end`.
    fn end_from(&self, end: Position) -> Option<Position> {
        let log = self.path.join(LOG);
        let last = segments(&*self.disk, &log).ok()?.last()?.start;
        let mut reader = Reader::open(Arc::clone(&self.disk), &log, self.identity, last).ok()?;
        while reader.next_entry().ok()?.is_some() {}
        (*reader.tail() == Tail::Clean && reader.position() >= end).then(|| reader.position())
    }

    /// Removes all segments; returns where the log begins anew: at the beginning only for a database that is new, too.
    fn remove_replica_log(&self, is_new: bool) -> Result<Position> {
        let log = self.path.join(LOG);
        let names = self.disk.list(&log).map_err(|error| cannot("read", &log, &error))?;
        let mut starts: Vec<(Position, &String)> =
            names.iter().filter_map(|name| Some((segment_start(name)?, name))).collect();
        starts.sort_unstable();
        let Some((last, name)) = starts.last() else {
            return Ok(Position(if is_new { 0 } else { 1 }));
        };
        let path = log.join(name);
        let len = self.disk.open(&path, false).and_then(|file| file.len());
        let begin = Position(last.0 + len.map_err(|error| cannot("read", &path, &error))? + 1);
        // The oldest first, so that there is never a gap.
        for (_, name) in &starts {
            let path = log.join(name);
            self.disk.remove(&path).map_err(|error| cannot("remove", &path, &error))?;
        }
        self.disk.sync_directory(&log).map_err(|error| cannot("sync", &log, &error))?;
        Ok(begin)
    }

    /// Fails with `Invalid` if the directory is not that of such a log, and not new. What is damaged tells of no good ending.
    fn read_ending(&self) -> Result<Ending> {
        let path = self.path.join(FILE);
        let mut bytes = [0; LEN];
        match self.disk.open(&path, false).and_then(|file| file.read_at(0, &mut bytes)) {
            Ok(_) => Ok(decode(&bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                for part in [LOG, CHECKPOINTS].map(|part| self.path.join(part)) {
                    if !self.disk.list(&part).map_err(|error| cannot("read", &part, &error))?.is_empty() {
                        let message = format!(
                            "{} holds a database in memory; a hash on disk needs another directory for its update log",
                            self.path.display()
                        );
                        return Err(Error::new(ErrorKind::Invalid, message));
                    }
                }
                Ok(None)
            }
            Err(error) => Err(cannot("read", &path, &error)),
        }
    }

    fn write_ending(&self, ending: Ending) -> Result<()> {
        write_whole(&*self.disk, &self.path, FILE, &encode(ending))
            .map_err(|error| cannot("write", &self.path.join(FILE), &error))
    }
}

fn encode(ending: Ending) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    if let Some(Closed { openings, end, records, live_bytes }) = ending {
        bytes[12..16].copy_from_slice(&1_u32.to_le_bytes());
        bytes[16..20].copy_from_slice(&openings.to_le_bytes());
        for (at, number) in [(20, end.0), (28, records), (36, live_bytes)] {
            bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
    }
    let crc = crc32c::crc32c(&bytes[..LEN - 4]);
    bytes[LEN - 4..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8; LEN]) -> Ending {
    let four = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let eight = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let is_whole = &bytes[..8] == MAGIC && crc32c::crc32c(&bytes[..LEN - 4]) == four(LEN - 4);
    (is_whole && four(8) == VERSION && four(12) == 1).then(|| Closed {
        openings: four(16),
        end: Position(eight(20)),
        records: eight(28),
        live_bytes: eight(36),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ending_comes_back_and_a_flipped_bit_is_none() {
        let ending = Some(Closed { openings: 7, end: Position(1 << 40), records: 3, live_bytes: 99 });
        let bytes = encode(ending);
        assert_eq!(decode(&bytes), ending);
        assert_eq!(decode(&encode(None)), None);
        for bit in 0..LEN * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&damaged), None, "bit {bit}");
        }
    }
}
