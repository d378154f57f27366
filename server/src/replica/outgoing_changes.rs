//! QueuedKind a replica is sent: first all records, if the logs do not tell of them, then the changes of all databases by their time
//! stamps.
//!
//! Always true: nothing that is sent is newer than what is on this server's disk, so a crash leaves no replica ahead of it. QueuedKind is
//! read from the log is on disk; what is read from memory (records of a scan, values that were touched) leaves once the log is
//! synced up to its end as of after the read.

use crate::shared::Shared;
use std::collections::VecDeque;
use std::sync::Arc;
use todana::replication::{FeedStart, ReplicationFeed, STAMPS_PER_SECOND, first_of_second};
use todana::update_log::{LogChange, LogPosition};
use todana::{Clock, Expiry, Record, kyoto};
use todana_core::{Attributes, Error, ErrorKind, Result, ScanPosition};
use todana_protocol::kyoto::binary::ReplicaRequest;
use todana_protocol::kyoto::message::{StoredValue, UpdateChange as Sent, UpdateMessage};
use todana_protocol::kyoto::replication::{put_progress, put_update};

/// Of a log read at once.
const PIECE: usize = 128 << 10;
/// Sent at once.
const PORTION: usize = 64 << 10;
/// The same of a scan, where each portion waits for the disk while others write, and no piece of a log is in memory.
const SCAN_PORTION: usize = PORTION + PIECE;
/// A replica hears how far it is after so many messages that are not for it.
const SKIPPED_MAX: u32 = 256;
/// Where several logs are merged, an entry of one may come to be readable behind later ones of another: what a replica may have
/// missed so is sent again.
const SLACK: u64 = 3 * STAMPS_PER_SECOND;
/// So much of the log may be on disk for the sake of one replica alone.
const HELD_MAX: u64 = 4 << 30;

/// Where all that is sent comes from.
pub(super) struct OutgoingChanges {
    shared: Arc<Shared>,
    hello: ReplicaRequest,
    lines: Vec<DatabaseChanges>,
    /// Where the scan of a database stands; `None` behind the last one.
    scan: Option<(usize, Option<ScanPosition>)>,
    /// Before its records a database is cleared at the other end.
    clears: bool,
    /// The last time stamp sent.
    last: u64,
    skipped: u32,
    /// Records that went without their client flags.
    flags_lost: u64,
}

/// The changes of one database.
struct DatabaseChanges {
    number: usize,
    feed: ReplicationFeed,
    until: LogPosition,
    /// The round reaches further than the one before: what it reads has to be on disk first.
    has_more: bool,
    queue: VecDeque<QueuedChange>,
    /// Messages, and keys of retags, one behind the other, from `at` on.
    bytes: Vec<u8>,
    at: usize,
    /// Something has been read from memory, whose change may not be on disk yet.
    has_read_memory: bool,
    /// Records that have been read and go without their client flags.
    flags_lost: u64,
}

/// QueuedKind has been read of a log.
struct QueuedChange {
    stamp: u64,
    /// Of its bytes.
    len: usize,
    what: QueuedKind,
}

#[derive(Clone, Copy)]
enum QueuedKind {
    NotWanted,
    UpdateMessage,
    /// The bytes are a key. The record is looked for only when it is its turn: many in a row may be large.
    Retag {
        server_id: u16,
        expiry: Expiry,
    },
}

impl OutgoingChanges {
    /// All that this replica has not had. Fails with `Unavailable` if no database has a log, or one cannot be read.
    pub(super) fn new(shared: &Arc<Shared>, hello: ReplicaRequest) -> Result<OutgoingChanges> {
        let databases = shared.databases.len();
        let logged: Vec<_> = (0..databases)
            .filter(|&number| shared.databases[number].database.log().is_some())
            .filter_map(|number| Some((number, shared.persistence.exports.directory(number)?)))
            .collect();
        if logged.is_empty() {
            let message = "no database has an update log: there is one for each in memory with a data directory, for trees, and for a hash under ktserver's name (-ulog)";
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        if logged.len() < databases {
            tracing::warn!("a replica follows, but not all databases: some have no update log");
        }
        let after = if logged.len() > 1 { hello.timestamp.saturating_sub(SLACK) } else { hello.timestamp };
        let mut lines = Vec::new();
        let (mut is_whole, mut clearings) = (true, false);
        for (number, directory) in &logged {
            let (feed, begins) = ReplicationFeed::open(directory, *number, databases, after)?;
            is_whole &= begins == FeedStart::Complete;
            lines.push(DatabaseChanges::new(*number, feed));
        }
        let now = first_of_second(shared.clock.now().0);
        if hello.timestamp > now.saturating_add(SLACK) && hello.timestamp < u64::MAX {
            tracing::warn!(
                server_id = hello.server_id,
                "a replica's position lies ahead of this server's clock: what changes here until then does not reach it"
            );
        }
        let mut scan = None;
        let mut last = hello.timestamp;
        if !is_whole {
            // Whoever follows somebody may be one of a pair: then what the replica has and this server has not may be what it has made
            // itself.
            let clears = shared.master_link.follow_state().master.is_none();
            if clears {
                tracing::warn!(
                    server_id = hello.server_id,
                    "the update log does not go back to where a replica stands: it is told to clear, and gets all records"
                );
            } else {
                tracing::warn!(
                    server_id = hello.server_id,
                    "the update log does not go back to where a replica stands: it gets all records; what has been removed here \
                     meanwhile stays there"
                );
            }
            clearings = clears;
            lines.clear();
            for (number, directory) in &logged {
                let end = shared.databases[*number].database.log().map(|log| log.end()).unwrap_or_default();
                lines.push(DatabaseChanges::new(
                    *number,
                    ReplicationFeed::open_at(directory, *number, databases, end)?,
                ));
            }
            // Lower than all that a log has: who is cut off before the end begins again.
            (scan, last) = (Some((0, None)), 0);
        }
        Ok(OutgoingChanges {
            shared: Arc::clone(shared),
            hello,
            lines,
            scan,
            clears: clearings,
            last,
            skipped: 0,
            flags_lost: 0,
        })
    }

    /// A new round: what is in the logs by now will be sent. Returns the time stamp before which nothing more can come then. Fails with
    /// `Unavailable` where a log cannot be written.
    pub(super) fn begin_round(&mut self) -> Result<u64> {
        let before = first_of_second(self.shared.clock.now().0.saturating_sub(1)).saturating_sub(1);
        // All at once, so that they are of one time.
        let shared = &self.shared;
        let log = |line: &DatabaseChanges| shared.databases[line.number].database.log();
        for line in &mut self.lines {
            let end = log(line).map_or(line.until, |log| log.end());
            line.has_more = end > line.until || line.has_more;
            line.until = end;
        }
        for line in &mut self.lines {
            if std::mem::take(&mut line.has_more) {
                shared.databases[line.number].database.sync_to(line.until)?;
            }
            if line.feed.held().len_bytes() > HELD_MAX {
                let message = "the replica is too slow: too much of the log is kept for it";
                return Err(Error::new(ErrorKind::Busy, message));
            }
        }
        Ok(before)
    }

    /// Appends the next messages, which may leave then; false if this round has none left. Fails with `Unavailable` where a log cannot
    /// be written.
    pub(super) fn take(&mut self, out: &mut Vec<u8>) -> Result<bool> {
        let goes_on = match self.scan.is_some() {
            true => self.take_records(out).map(|()| true),
            false => self.take_changes(out),
        }?;
        for line in self.lines.iter_mut().filter(|line| line.has_read_memory) {
            self.shared.databases[line.number].database.sync()?;
            line.has_read_memory = false;
        }
        Ok(goes_on)
    }

    fn take_changes(&mut self, out: &mut Vec<u8>) -> Result<bool> {
        loop {
            for line in &mut self.lines {
                line.fill(&self.shared, &self.hello)?;
            }
            let first = self.lines.iter_mut().min_by_key(|line| line.next_stamp());
            let Some((line, stamp)) = first.and_then(|line| line.next().map(|stamp| (line, stamp))) else {
                return Ok(!out.is_empty());
            };
            // Nothing goes back, though something may be sent again.
            self.last = stamp.max(self.last.saturating_add(1));
            match line.pop(self.last, &self.shared, out)? {
                true => self.skipped = 0,
                false => self.skipped += 1,
            }
            if self.skipped >= SKIPPED_MAX {
                put_progress(self.last, out);
                self.skipped = 0;
            }
            if out.len() >= PORTION {
                return Ok(true);
            }
        }
    }

    /// How many records have gone without their client flags since the last call.
    pub(super) fn take_flags_lost(&mut self) -> u64 {
        let of_lines: u64 = self.lines.iter_mut().map(|line| std::mem::take(&mut line.flags_lost)).sum();
        of_lines + std::mem::take(&mut self.flags_lost)
    }

    /// The last time stamp that was sent; no lower one may follow.
    pub(super) fn last(&mut self, at_least: u64) -> u64 {
        self.last = self.last.max(at_least);
        self.skipped = 0;
        self.last
    }

    /// A piece of the scan of all records.
    fn take_records(&mut self, out: &mut Vec<u8>) -> Result<()> {
        let Some((index, place)) = self.scan.take() else { return Ok(()) };
        let Some(line) = self.lines.get_mut(index) else {
            return Ok(());
        };
        line.has_read_memory = true;
        let own = self.shared.options.databases.replication.server_id;
        let served = &self.shared.databases[line.number];
        let (number, persistent) = (line.number as u16, served.name.tuning.persistent);
        let (last, flags_lost) = (&mut self.last, &mut self.flags_lost);
        let wanted = self.hello.wants(own);
        if self.clears && wanted && place.is_none() {
            *last += 1;
            put_update(*last, &UpdateMessage { server_id: own, database: number, change: Sent::Clear }, out);
        }
        let next = served.database.scan(place, &mut |key, record| {
            if wanted {
                *last += 1;
                *flags_lost += u64::from(record.attributes.flags != 0);
                let change = Sent::Set { key, stored: stored(&record, persistent) };
                put_update(*last, &UpdateMessage { server_id: own, database: number, change }, out);
            }
            if out.len() >= SCAN_PORTION {
                std::ops::ControlFlow::Break(())
            } else {
                std::ops::ControlFlow::Continue(())
            }
        })?;
        self.scan = match next {
            Some(place) => Some((index, Some(place))),
            None if index + 1 < self.lines.len() => Some((index + 1, None)),
            None => None,
        };
        Ok(())
    }
}

/// A record's value as it is stored at the other end.
fn stored<'r>(record: &Record<'r>, is_persistent: bool) -> StoredValue<'r> {
    if is_persistent {
        return StoredValue::raw(record.value);
    }
    StoredValue::mortal(time(record.attributes.expiry), record.value)
}

fn time(expiry: Expiry) -> u64 {
    kyoto::time_of(expiry).unwrap_or(kyoto::NEVER)
}

fn put_raw_update(stamp: u64, message: &[u8], out: &mut Vec<u8>) {
    put_progress(stamp, out);
    let at = out.len() - 4;
    out[at..].copy_from_slice(&(message.len() as u32).to_be_bytes());
    out.extend_from_slice(message);
}

impl DatabaseChanges {
    fn new(number: usize, feed: ReplicationFeed) -> DatabaseChanges {
        let until = feed.position();
        DatabaseChanges {
            number,
            feed,
            until,
            has_more: true,
            queue: VecDeque::new(),
            bytes: Vec::new(),
            at: 0,
            has_read_memory: false,
            flags_lost: 0,
        }
    }

    /// Reads until there is a message, or nothing is left before the end of the round.
    fn fill(&mut self, shared: &Shared, hello: &ReplicaRequest) -> Result<()> {
        while self.queue.is_empty() && self.feed.position() < self.until {
            self.bytes.clear();
            self.at = 0;
            let served = &shared.databases[self.number];
            let (own, is_persistent) =
                (shared.options.databases.replication.server_id, served.name.tuning.persistent);
            let (queue, bytes, number) = (&mut self.queue, &mut self.bytes, self.number as u16);
            let flags_lost = &mut self.flags_lost;
            self.feed.read_new(self.until, PIECE, &mut |stamp, origin, change| {
                // Origins are such ids: they come by this protocol alone.
                let server_id = origin.map_or(own, |origin| origin as u16);
                let before = bytes.len();
                let mut put = |change: Sent<'_>| {
                    UpdateMessage { server_id, database: number, change }.put(bytes);
                    QueuedKind::UpdateMessage
                };
                let what = match change {
                    _ if !hello.wants(server_id) => QueuedKind::NotWanted,
                    LogChange::Put { key, record } => {
                        *flags_lost += u64::from(record.attributes.flags != 0);
                        put(Sent::Set { key, stored: stored(record, is_persistent) })
                    }
                    LogChange::Remove { key } => put(Sent::Remove { key }),
                    LogChange::Clear => put(Sent::Clear),
                    LogChange::Retag { key, attributes } => {
                        bytes.extend_from_slice(key);
                        QueuedKind::Retag { server_id, expiry: attributes.expiry }
                    }
                    _ => QueuedKind::NotWanted,
                };
                queue.push_back(QueuedChange { stamp, len: bytes.len() - before, what });
            })?;
        }
        Ok(())
    }

    /// The time stamp of the next one; the highest of all where there is none.
    fn next_stamp(&self) -> u64 {
        self.next().unwrap_or(u64::MAX)
    }

    fn next(&self) -> Option<u64> {
        self.queue.front().map(|queued| queued.stamp)
    }

    /// Writes the next one, at this time stamp; false if it is not wanted.
    fn pop(&mut self, stamp: u64, shared: &Shared, out: &mut Vec<u8>) -> Result<bool> {
        let Some(queued) = self.queue.pop_front() else { return Ok(false) };
        let bytes = &self.bytes[self.at..self.at + queued.len];
        self.at += queued.len;
        match queued.what {
            QueuedKind::NotWanted => Ok(false),
            QueuedKind::UpdateMessage => {
                put_raw_update(stamp, bytes, out);
                Ok(true)
            }
            QueuedKind::Retag { server_id, expiry } => {
                let served = &shared.databases[self.number];
                let (database, is_persistent) = (self.number as u16, served.name.tuning.persistent);
                let before = out.len();
                // The value is that of now: what has changed it stands further on in the log.
                self.has_read_memory = true;
                let flags_lost = &mut self.flags_lost;
                served.database.peek(bytes, &mut |now| {
                    *flags_lost += u64::from(now.attributes.flags != 0);
                    let record = Record::new(now.value, Attributes { expiry, ..Attributes::default() });
                    let change = Sent::Set { key: bytes, stored: stored(&record, is_persistent) };
                    put_update(stamp, &UpdateMessage { server_id, database, change }, out);
                })?;
                Ok(out.len() > before)
            }
        }
    }
}
