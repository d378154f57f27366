//! The changes of one database for a replica: reads the log from a time stamp on, as the log grows.

use super::stamps::{StampAssigner, StampScheme};
use crate::DataDirectory;
use crate::checkpoint::HeldBytes;
use crate::update_log::{
    EntryDecoder, LogBytes, LogChange, LogPosition, SegmentInfo, last_mark_ms, segments,
};
use todana_core::{ErrorKind, Result};

/// How many times the list of segments is read again because segments were removed in the meantime.
const TRIES: u32 = 16;

/// Whether the log contains all changes that a replica misses. Returned by
/// [`ReplicationFeed::open`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedStart {
    /// The log contains the last change that the replica has, and all later changes.
    Complete,
    /// The log starts after the last change that the replica has, or the replica has none.
    Later,
}

/// Reads the changes of a log that a replica has not received, with their time stamps. The unread
/// part of the log is kept until this value is dropped.
pub struct ReplicationFeed {
    bytes: LogBytes,
    entries: EntryDecoder,
    stamps: StampAssigner,
    /// Changes up to and including this time stamp are skipped.
    after: u64,
    piece: Vec<u8>,
    has_gap: bool,
}

impl ReplicationFeed {
    /// Reads the changes after the time stamp `after` (0: all changes), and again those that share
    /// it. Fails as [`DataDirectory::log_bytes`] does.
    pub fn open(
        directory: &DataDirectory,
        scheme: StampScheme,
        after: u64,
    ) -> Result<(ReplicationFeed, FeedStart)> {
        let after = if scheme.is_shared(after) { after - 1 } else { after };
        let mut tries = 0;
        loop {
            let all = segments(&**directory.disk(), &directory.path().join(crate::data_directory::LOG))?;
            let second = after / scheme.per_second();
            // The time stamps of a second depend on the first mark of that second, so reading must
            // start at or before this mark. If the clock was set back, they also depend on earlier
            // marks, until the clock has reached its former time.
            let usable_segments = usable_segments(directory, &all, second);
            let early =
                usable_segments.iter().take_while(|segment| segment.created_ms / 1000 < second).count();
            // Reading starts one segment earlier, because marks of a segment may be later than the
            // creation of the next one.
            let begin = usable_segments.get(early.saturating_sub(2)).or(usable_segments.first()).copied();
            let from_birth = begin.is_none_or(|begin| begin.start == LogPosition(0));
            // If the database was opened before the log started, the log does not contain its first
            // records.
            let has_all = from_birth && begin.is_none_or(|begin| begin.openings <= 1);
            let is_complete = if second == 0 { has_all } else { early > 0 || from_birth };
            let start_kind = if is_complete { FeedStart::Complete } else { FeedStart::Later };
            tries += 1;
            match directory.log_bytes(begin.map(|begin| begin.start)) {
                Err(error) if error.kind() == ErrorKind::Invalid && tries < TRIES => {}
                Err(error) => return Err(error),
                Ok(bytes) => return Ok((ReplicationFeed::of(bytes, scheme, after), start_kind)),
            }
        }
    }

    /// Starts at a position between two entries. In the second of this position, the time stamps
    /// are lower than those that readers of the complete second compute.
    pub fn open_at(
        directory: &DataDirectory,
        scheme: StampScheme,
        from: LogPosition,
    ) -> Result<ReplicationFeed> {
        Ok(ReplicationFeed::of(directory.log_bytes(Some(from))?, scheme, 0))
    }

    fn of(bytes: LogBytes, scheme: StampScheme, after: u64) -> ReplicationFeed {
        let entries = EntryDecoder::new(bytes.identity().database_id, bytes.position());
        let stamps = StampAssigner::new(scheme);
        ReplicationFeed { bytes, entries, stamps, after, piece: Vec::new(), has_gap: false }
    }

    /// Returns the position after the last entry that was read.
    pub fn position(&self) -> LogPosition {
        self.bytes.position()
    }

    /// Returns true if the changes that were read lack some: they are lost, or came with a copy of
    /// a master's records. The reader must read all records.
    pub fn has_gap(&self) -> bool {
        self.has_gap
    }

    /// Returns the number of bytes of log that are on disk only because of this feed.
    pub fn held(&self) -> HeldBytes {
        self.bytes.held()
    }

    /// Reads up to `len_max` bytes before `until`, which must be readable. Calls `see` for each
    /// change that is now complete, with its time stamp and the server that made it first (`None`:
    /// this server). The changes of a transaction are passed one by one. Fails with `Corrupt` where
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
                // A transaction has more bytes than changes, so each change gets a time stamp of
                // its own.
                LogChange::Transaction(changes) => (position.0..)
                    .zip(changes.iter())
                    .for_each(|(position, change)| show(stamps.at(position), &change)),
                change @ (LogChange::Put { .. }
                | LogChange::Retag { .. }
                | LogChange::Remove { .. }
                | LogChange::Clear) => {
                    show(stamps.at(position.0), &change);
                }
                LogChange::Lost { .. } => self.has_gap |= stamps.at(position.0) > after,
                LogChange::PlanClear { .. } | LogChange::Epoch(_) => {}
            }
        }
        Ok(())
    }
}

/// Returns segments at which a reader may start to compute the time stamps from `second` on: those
/// that begin at a later second than all marks before them. Segments from `second` on may be among
/// them although they do not fulfil this.
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
        // Between two openings of the database, the clock may have been set back. If that was only
        // a little, the creation times of the segments do not show it, so the marks are read.
        if let Some(next) = all.get(at + 1).filter(|next| next.openings != segment.openings) {
            let log = directory.path().join(crate::data_directory::LOG);
            latest = latest.max(Some(last_mark_ms(directory.disk(), &log, segment, next.start) / 1000));
        }
    }
    usable_segments
}
