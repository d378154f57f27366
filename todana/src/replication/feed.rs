//! The log of one database, from a time stamp on, as it grows.

use super::stamps::{STAMPS_PER_SECOND, StampAssigner};
use crate::DataDirectory;
use crate::checkpoint::HeldBytes;
use crate::update_log::{
    EntryDecoder, LogBytes, LogChange, LogPosition, SegmentInfo, last_mark_ms, segments,
};
use todana_core::{ErrorKind, Result};

/// How often the log is read again if segments are removed in the meantime.
const TRIES: u32 = 16;

/// Returned by [`ReplicationFeed::open`]: whether the log contains all changes that a replica
/// misses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedStart {
    /// The log contains the last change of the replica and all later ones.
    Complete,
    /// The log does not go back to the last change of the replica, which may have none.
    Later,
}

/// Reads the changes of a log that a replica has not seen, with their time stamps. While this
/// exists, log that it has not read is not removed.
pub struct ReplicationFeed {
    bytes: LogBytes,
    entries: EntryDecoder,
    stamps: StampAssigner,
    /// Changes up to this time stamp are skipped.
    after: u64,
    piece: Vec<u8>,
}

impl ReplicationFeed {
    /// Reads the changes after the time stamp `after` (0: all changes) of database `number` of
    /// `databases`. Fails as [`DataDirectory::log_bytes`] does.
    pub fn open(
        directory: &DataDirectory,
        number: usize,
        databases: usize,
        after: u64,
    ) -> Result<(ReplicationFeed, FeedStart)> {
        let mut tries = 0;
        loop {
            let all = segments(&**directory.disk(), &directory.path().join(crate::data_directory::LOG))?;
            let second = after / STAMPS_PER_SECOND;
            // A reader that has read the first mark of a second computes the right time stamps of
            // that second. While a clock that was set back has not reached its former time, they
            // depend on earlier marks.
            let usable_segments = usable_segments(directory, &all, second);
            let early =
                usable_segments.iter().take_while(|segment| segment.created_ms / 1000 < second).count();
            // One segment more, because its marks may be later than the start of the next one.
            let begin = usable_segments.get(early.saturating_sub(2)).or(usable_segments.first()).copied();
            let from_birth = begin.is_none_or(|begin| begin.start == LogPosition(0));
            // If the database was not empty when the log began, the log does not contain its first
            // records.
            let has_all = from_birth && begin.is_none_or(|begin| begin.openings <= 1);
            let is_complete = if second == 0 { has_all } else { early > 0 || from_birth };
            let start_kind = if is_complete { FeedStart::Complete } else { FeedStart::Later };
            tries += 1;
            match directory.log_bytes(begin.map(|begin| begin.start)) {
                Err(error) if error.kind() == ErrorKind::Invalid && tries < TRIES => {}
                Err(error) => return Err(error),
                Ok(bytes) => return Ok((ReplicationFeed::of(bytes, number, databases, after), start_kind)),
            }
        }
    }

    /// Reads the changes after a position between two entries. The time stamps of the second of
    /// that position are lower than those that other readers compute.
    pub fn open_at(
        directory: &DataDirectory,
        number: usize,
        databases: usize,
        from: LogPosition,
    ) -> Result<ReplicationFeed> {
        Ok(ReplicationFeed::of(directory.log_bytes(Some(from))?, number, databases, 0))
    }

    fn of(bytes: LogBytes, number: usize, databases: usize, after: u64) -> ReplicationFeed {
        let entries = EntryDecoder::new(bytes.identity().database_id, bytes.position());
        let stamps = StampAssigner::new(number as u64, databases as u64);
        ReplicationFeed { bytes, entries, stamps, after, piece: Vec::new() }
    }

    /// Returns the position after what has been read.
    pub fn position(&self) -> LogPosition {
        self.bytes.position()
    }

    /// Returns the bytes of log that are on disk only for this feed.
    pub fn held(&self) -> HeldBytes {
        self.bytes.held()
    }

    /// Reads up to `len_max` bytes before `until`, which must be readable. Calls `see` for the
    /// changes that are now complete, each with its time stamp and its original server if that is
    /// another one. The changes of a transaction are shown one by one. Fails with `Corrupt` where
    /// the log is damaged, and with `Unavailable` if it cannot be read.
    pub fn read_new(
        &mut self,
        until: LogPosition,
        len_max: usize,
        see: &mut dyn FnMut(u64, Option<u32>, &LogChange<'_>),
    ) -> Result<()> {
        self.piece.clear();
        self.bytes.read(until, len_max, &mut self.piece)?;
        self.entries.push(&self.piece);
        let (stamps, after) = (&mut self.stamps, self.after);
        while let Some((position, entry)) = self.entries.next_entry()? {
            let mut show = |stamp: u64, change: &LogChange<'_>| {
                if stamp > after {
                    see(stamp, entry.origin, change);
                }
            };
            match entry.change {
                LogChange::Mark { time_ms, .. } => stamps.mark(position.0, time_ms),
                // A transaction has more bytes than changes, so the time stamps stay unique.
                LogChange::Transaction(changes) => (position.0..)
                    .zip(changes.iter())
                    .for_each(|(position, change)| show(stamps.at(position), &change)),
                change @ (LogChange::Put { .. }
                | LogChange::Retag { .. }
                | LogChange::Remove { .. }
                | LogChange::Clear) => {
                    show(stamps.at(position.0), &change);
                }
                LogChange::PlanClear { .. } | LogChange::Lost { .. } => {}
            }
        }
        Ok(())
    }
}

/// Returns the segments that begin at a later second than all marks before them, as far as these
/// are before `second`, and perhaps some others: a reader may begin with any of them.
fn usable_segments<'s>(
    directory: &DataDirectory,
    all: &'s [SegmentInfo],
    second: u64,
) -> Vec<&'s SegmentInfo> {
    let mut usable_segments = Vec::new();
    let mut latest = None;
    for (at, segment) in all.iter().enumerate() {
        let begun = Some(segment.created_ms / 1000);
        if begun > latest {
            usable_segments.push(segment);
            latest = begun;
        }
        if latest >= Some(second) {
            break;
        }
        // The clock runs evenly until the database is opened the next time. Only then may it have
        // been set back, and the creation times of the segments do not show that if it was only a
        // little.
        if let Some(next) = all.get(at + 1).filter(|next| next.openings != segment.openings) {
            let log = directory.path().join(crate::data_directory::LOG);
            latest = latest.max(Some(last_mark_ms(directory.disk(), &log, segment, next.start) / 1000));
        }
    }
    usable_segments
}
