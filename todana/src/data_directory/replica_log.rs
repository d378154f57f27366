//! The update log of a hash on disk. The hash keeps its records in files of its own, so nothing is
//! ever restored from this log. Only replicas read it.
//!
//! A replica must never have changes that the hash's files have lost. So the log is continued only
//! if both the log and the files were closed properly, and the files still hold the same contents
//! (`replica-log`, docs/format/data-directory.md, section 2). Otherwise the old log is removed and
//! a new log starts. The new log starts after the position at which the old one ended, and with a
//! later time than any in the old one, even if the clock was set back. A replica then does not find
//! its position in the new log, so the server makes it remove its records and sends all records
//! again.

use super::{CHECKPOINTS, DataDirectory, DataOptions, LOG, REPLICA_LOG, cannot};
use crate::Database;
use crate::clock::{Clock, ClockAhead};
use crate::file_header::write_atomically;
use crate::open::contents::is_hidden;
use crate::update_log::{
    LogPosition, LogReader, LogTail, SEGMENT_HEADER_LEN, UpdateLog, last_mark_ms, segment_name,
    segment_start, segments,
};
use std::io;
use std::sync::Arc;
use todana_core::{ContentsToken, Error, ErrorKind, Result};

const MAGIC: &[u8; 8] = b"TODANARL";
const VERSION: u32 = 2;
const LEN: usize = 76;

/// The state in which earlier openings have left the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EarlierLog {
    /// There was no log.
    Nothing,
    /// There was a log, but its state is unknown because its record is damaged.
    Existence,
    /// The log is open, or was not closed properly.
    Open(LogReach),
    /// The log was closed properly. The token identifies the contents of the engine's files at that
    /// time.
    Closed(LogReach, ContentsToken),
}

/// A position and a time that a log has reached at least.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LogReach {
    position: LogPosition,
    time_ms: u64,
}

impl EarlierLog {
    fn reached(self) -> LogReach {
        match self {
            EarlierLog::Nothing | EarlierLog::Existence => LogReach::default(),
            EarlierLog::Open(reached) | EarlierLog::Closed(reached, _) => reached,
        }
    }
}

impl DataDirectory {
    /// Keeps an update log for replicas in this directory, for a database whose engine keeps its
    /// records itself. Returns true if the log is continued, and false if a new log starts, so that
    /// replicas receive all records again. Fails with `Invalid` if the directory holds a database,
    /// or if the engine keeps no records on disk.
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
        let known = self.read_known()?;
        let end = match known {
            EarlierLog::Closed(reached, token) if durable.contents_token_at_open() == Some(token) => {
                self.end_from(reached.position)
            }
            _ => None,
        };
        let is_new = known == EarlierLog::Nothing && durable.contents_token_at_open().is_none();
        let now_ms = clock.now().0.saturating_mul(1000);
        // The times in the log must not decrease, even if the clock was set back.
        let (begin, from_ms) = match end {
            Some(end) => (end, known.reached().time_ms),
            None if is_new => (LogPosition(0), 0),
            None => {
                let LogReach { position, time_ms } = self.reached(known)?;
                (LogPosition(position.0.saturating_add(1)), (time_ms / 1000 + 1).saturating_mul(1000))
            }
        };
        let ahead_s = from_ms.saturating_sub(now_ms).div_ceil(1000);
        // If the process crashes after this point, the next opening starts a new log at a later
        // position.
        self.write_known(EarlierLog::Open(LogReach { position: begin, time_ms: now_ms.max(from_ms) }))?;
        if end.is_none() {
            self.remove_segments()?;
        }
        let clock: Arc<dyn Clock> = match ahead_s {
            0 => clock,
            seconds => Arc::new(ClockAhead { clock, seconds }),
        };
        let openings = durable.open_count();
        let log = UpdateLog::start(self.log_place(openings), begin, clock, options.log)?;
        database.attach(log, openings);
        self.complete_epochs(database)?;
        self.measure(database);
        Ok(end.is_some() || is_new)
    }

    /// Records that the log and the engine's files contain the same changes. Must be called after
    /// both were closed properly, and only if nothing was written since.
    pub fn close_replica_log(&self, database: &Database) -> Result<()> {
        let (Some(durable), Some(log)) = (database.engine().durable(), database.log()) else { return Ok(()) };
        let reached = LogReach { position: log.end(), time_ms: log.now_ms() };
        self.write_known(EarlierLog::Closed(reached, durable.contents_token()))
    }

    /// Removes the segments that are older than the options keep for disconnected replicas.
    pub(crate) fn trim_replica_log(&self, database: &Database) -> Result<()> {
        let options = *self.checkpoints.lock();
        let Some(log) = database.log() else { return Ok(()) };
        if self.footprint().log_bytes > options.log_kept_len {
            self.checkpoint_store.remove_log_before(
                log.synced(),
                &options,
                database.now().0.saturating_mul(1000),
            )?;
        }
        Ok(())
    }

    /// Fails with `Invalid` if the directory holds the replicas' log of a hash on disk.
    pub(super) fn refuse_replica_log(&self) -> Result<()> {
        let names = self.disk.list(&self.path).map_err(|error| cannot("read", &self.path, &error))?;
        if names.iter().any(|name| name == REPLICA_LOG) {
            let message = format!(
                "{}: has the update log of a hash on disk, and no records; use another directory for the database in memory",
                self.path.display()
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        Ok(())
    }

    /// Returns the end of the log, if the last segment is intact and ends at or after `end`.
    fn end_from(&self, end: LogPosition) -> Option<LogPosition> {
        let log = self.path.join(LOG);
        let last = segments(&*self.disk, &log).ok()?.last()?.start;
        let mut reader = LogReader::open(Arc::clone(&self.disk), &log, self.identity, last).ok()?;
        while reader.next_entry().ok()?.is_some() {}
        (*reader.tail() == LogTail::Clean && reader.position() >= end).then(|| reader.position())
    }

    /// Returns the highest position and time that the old log may have sent to a replica. A new log
    /// starts after both.
    fn reached(&self, known: EarlierLog) -> Result<LogReach> {
        let log = self.path.join(LOG);
        let mut reached = known.reached();
        for start in self.segment_starts()? {
            let path = log.join(segment_name(start));
            let len = self.disk.open(&path, false).and_then(|file| file.len());
            let len = len.map_err(|error| cannot("read", &path, &error))?;
            let end = LogPosition(start.0.saturating_add(len.saturating_sub(SEGMENT_HEADER_LEN as u64)));
            reached.position = reached.position.max(end);
        }
        // The times in damaged segments are unknown.
        let found = segments(&*self.disk, &log).unwrap_or_default();
        for (at, segment) in found.iter().enumerate() {
            let next = found.get(at + 1);
            // The end of a segment is the creation of the next one, if both belong to the same
            // opening: the clock runs evenly while a database is open.
            let last_ms = match next.is_some_and(|next| next.openings == segment.openings) {
                true => segment.created_ms,
                false => {
                    let end = next.map_or(LogPosition(u64::MAX), |next| next.start);
                    last_mark_ms(&self.disk, &log, segment, end)
                }
            };
            reached.time_ms = reached.time_ms.max(last_ms);
        }
        Ok(reached)
    }

    fn segment_starts(&self) -> Result<Vec<LogPosition>> {
        let log = self.path.join(LOG);
        let names = self.disk.list(&log).map_err(|error| cannot("read", &log, &error))?;
        let mut starts: Vec<LogPosition> = names.iter().filter_map(|name| segment_start(name)).collect();
        starts.sort_unstable();
        Ok(starts)
    }

    fn remove_segments(&self) -> Result<()> {
        let log = self.path.join(LOG);
        // The oldest segment is removed first, so that the log never has a gap.
        for start in self.segment_starts()? {
            let path = log.join(segment_name(start));
            self.disk.remove(&path).map_err(|error| cannot("remove", &path, &error))?;
        }
        self.disk.sync_directory(&log).map_err(|error| cannot("sync", &log, &error))
    }

    /// Reads the recorded state of the log. Fails with `Invalid` if the directory holds anything
    /// but a log for replicas.
    fn read_known(&self) -> Result<EarlierLog> {
        let path = self.path.join(REPLICA_LOG);
        let mut bytes = [0; LEN];
        match self.disk.open(&path, false).and_then(|file| file.read_at(0, &mut bytes)) {
            Ok(_) => Ok(decode(&bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                for part in [LOG, CHECKPOINTS].map(|part| self.path.join(part)) {
                    let names = self.disk.list(&part).map_err(|error| cannot("read", &part, &error))?;
                    if !names.iter().all(|name| is_hidden(name)) {
                        let message = format!(
                            "{}: has the data of a database in memory; use another directory for the update log of the hash on disk",
                            self.path.display()
                        );
                        return Err(Error::new(ErrorKind::Invalid, message));
                    }
                }
                Ok(EarlierLog::Nothing)
            }
            Err(error) => Err(cannot("read", &path, &error)),
        }
    }

    fn write_known(&self, known: EarlierLog) -> Result<()> {
        write_atomically(&*self.disk, &self.path, REPLICA_LOG, &encode(known))
            .map_err(|error| cannot("write to", &self.path.join(REPLICA_LOG), &error))
    }
}

fn encode(known: EarlierLog) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    let LogReach { position, time_ms } = known.reached();
    bytes[16..24].copy_from_slice(&position.0.to_le_bytes());
    bytes[24..32].copy_from_slice(&time_ms.to_le_bytes());
    if let EarlierLog::Closed(_, ContentsToken(token)) = known {
        bytes[12] = 1;
        bytes[32..72].copy_from_slice(&token);
    }
    let crc = crc32c::crc32c(&bytes[..LEN - 4]);
    bytes[LEN - 4..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8; LEN]) -> EarlierLog {
    let four = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let eight = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let is_intact = &bytes[..8] == MAGIC && crc32c::crc32c(&bytes[..LEN - 4]) == four(LEN - 4);
    if !is_intact || four(8) != VERSION {
        return EarlierLog::Existence;
    }
    let reached = LogReach { position: LogPosition(eight(16)), time_ms: eight(24) };
    match four(12) {
        0 => EarlierLog::Open(reached),
        1 => EarlierLog::Closed(reached, ContentsToken(bytes[32..72].try_into().expect("forty bytes"))),
        _ => EarlierLog::Existence,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_state_counts_only_as_existence() {
        let reached = LogReach { position: LogPosition(1 << 40), time_ms: 99 };
        for known in [EarlierLog::Open(reached), EarlierLog::Closed(reached, ContentsToken([7; 40]))] {
            let bytes = encode(known);
            assert_eq!(decode(&bytes), known);
            for bit in 0..LEN * 8 {
                let mut damaged = bytes;
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(decode(&damaged), EarlierLog::Existence, "bit {bit}");
            }
        }
    }
}
