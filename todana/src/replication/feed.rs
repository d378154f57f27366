//! The log of one database, from a time stamp on, as it grows.

use super::stamps::{NANOS, Stamps};
use crate::DataDirectory;
use crate::checkpoint::HeldBytes;
use crate::update_log::{
    EntryDecoder, LogBytes, LogChange, LogPosition, SegmentInfo, last_mark_ms, segments,
};
use todana_core::{ErrorKind, Result};

/// So often the log is looked at again where segments are removed meanwhile.
const TRIES: u32 = 16;

/// Where a replica's place was found in a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedStart {
    /// What it has, and all that follows it, is in the log.
    Whole,
    /// The log does not go back to what it has, which may be nothing.
    Later,
}

/// Reads the changes of a log that a replica has not seen, with their time stamps. As long as it is there, nothing that it has
/// not read is removed.
pub struct ReplicationFeed {
    bytes: LogBytes,
    entries: EntryDecoder,
    stamps: Stamps,
    /// Changes up to this one are passed over.
    after: u64,
    piece: Vec<u8>,
}

impl ReplicationFeed {
    /// The changes behind time stamp `after` (0: all there are) of database `number` of so many. Fails as
    /// [`DataDirectory::log_bytes`] does.
    pub fn open(
        directory: &DataDirectory,
        number: usize,
        databases: usize,
        after: u64,
    ) -> Result<(ReplicationFeed, FeedStart)> {
        let mut tries = 0;
        loop {
            let all = segments(&**directory.disk(), &directory.path().join(crate::data_directory::LOG))?;
            let second = after / NANOS;
            // The time stamps of a second are known to whoever has read its first mark. While a clock that was put back has not come to
            // where it was, they hang on what was before.
            let firm = firm(directory, &all, second);
            let early = firm.iter().take_while(|segment| segment.created_ms / 1000 < second).count();
            // One more: marks within it may be later than the next one's.
            let begin = firm.get(early.saturating_sub(2)).or(firm.first()).copied();
            let from_birth = begin.is_none_or(|begin| begin.start == LogPosition(0));
            // Where it was not born empty, the log does not tell with what.
            let tells_all = from_birth && begin.is_none_or(|begin| begin.openings <= 1);
            let is_whole = if second == 0 { tells_all } else { early > 0 || from_birth };
            let begins = if is_whole { FeedStart::Whole } else { FeedStart::Later };
            tries += 1;
            match directory.log_bytes(begin.map(|begin| begin.start)) {
                Err(error) if error.kind() == ErrorKind::Invalid && tries < TRIES => {}
                Err(error) => return Err(error),
                Ok(bytes) => return Ok((ReplicationFeed::of(bytes, number, databases, after), begins)),
            }
        }
    }

    /// The changes behind a position between two entries. Time stamps of the second that it is are lower than those that other
    /// readers find.
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
        let stamps = Stamps::new(number as u64, databases as u64);
        ReplicationFeed { bytes, entries, stamps, after, piece: Vec::new() }
    }

    /// Behind what has been read.
    pub fn position(&self) -> LogPosition {
        self.bytes.position()
    }

    /// What of the log is on disk for its sake.
    pub fn held(&self) -> HeldBytes {
        self.bytes.held()
    }

    /// Reads at most `len_max` bytes of what stands before `until`, which has to be readable; shows the changes that have come to be
    /// whole, each with its time stamp and the server that it was born at, if that was another. Those of a transaction come one by
    /// one. Fails with `Corrupt` where the log is damaged, with `Unavailable` where it cannot be read.
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
                // There are more bytes than changes in it.
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

/// The segments that were begun at a later second than any that is told before them, as far as these are before `second`, and perhaps
/// some that are not: a reader may begin with any of them.
fn firm<'s>(directory: &DataDirectory, all: &'s [SegmentInfo], second: u64) -> Vec<&'s SegmentInfo> {
    let mut firm = Vec::new();
    let mut latest = None;
    for (at, segment) in all.iter().enumerate() {
        let begun = Some(segment.created_ms / 1000);
        if begun > latest {
            firm.push(segment);
            latest = begun;
        }
        if latest >= Some(second) {
            break;
        }
        // The clock runs on evenly until the database is opened the next time. Only then may it have been put back, of which the times
        // of the segments tell nothing if that is not far.
        if let Some(next) = all.get(at + 1).filter(|next| next.openings != segment.openings) {
            let log = directory.path().join(crate::data_directory::LOG);
            latest = latest.max(Some(last_mark_ms(directory.disk(), &log, segment, next.start) / 1000));
        }
    }
    firm
}
