//! The changes that a replica receives: first all records, if the logs do not go back far enough,
//! then the changes of all databases by their time stamps.
//!
//! Invariant: nothing is sent that is newer than this server's disk, so a crash leaves no replica
//! ahead of it. Changes that are read from the log are on disk. Those that are read from memory
//! (records of a scan, values whose expiry changed) are sent once the log is synced up to its end
//! after the read.

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

/// The bytes of a log that are read at once.
const PIECE: usize = 128 << 10;
/// The bytes that are sent at once.
const PORTION: usize = 64 << 10;
/// The bytes of a scan that are sent at once. Each portion waits for the disk while others write,
/// and no piece of a log is in memory.
const SCAN_PORTION: usize = PORTION + PIECE;
/// The number of messages from other origins after which a replica is sent its position.
const SKIPPED_MAX: u32 = 256;
/// Where several logs are merged, an entry of one log may become readable after later entries of
/// another. The changes of this span are sent again, because a replica may have missed some of
/// them.
const SLACK: u64 = 3 * STAMPS_PER_SECOND;
/// The most bytes of log that are kept on disk for one replica alone.
const HELD_MAX: u64 = 4 << 30;

/// The source of all messages to one replica.
pub(super) struct OutgoingChanges {
    shared: Arc<Shared>,
    hello: ReplicaRequest,
    lines: Vec<DatabaseChanges>,
    /// The database and position of the scan; `None` after the last database.
    scan: Option<(usize, Option<ScanPosition>)>,
    /// True if the replica clears each database before it receives the records.
    clears: bool,
    /// The last time stamp that was sent.
    last: u64,
    skipped: u32,
    /// The records that were sent without their client flags.
    flags_lost: u64,
}

/// The changes of one database.
struct DatabaseChanges {
    number: usize,
    feed: ReplicationFeed,
    until: LogPosition,
    /// True if this round reaches further than the one before: its changes must be synced first.
    has_more: bool,
    queue: VecDeque<QueuedChange>,
    /// Messages, and keys of retags, one after another, from `at` on.
    bytes: Vec<u8>,
    at: usize,
    /// True if something was read from memory whose change may not be on disk yet.
    has_read_memory: bool,
    /// The records that were read and are sent without their client flags.
    flags_lost: u64,
}

/// A change that was read from a log.
struct QueuedChange {
    stamp: u64,
    /// The number of its bytes.
    len: usize,
    what: QueuedKind,
}

#[derive(Clone, Copy)]
enum QueuedKind {
    NotWanted,
    UpdateMessage,
    /// The bytes are a key. The record is read only when it is sent, because the values of many
    /// retags in a row may be large.
    Retag {
        server_id: u16,
        expiry: Expiry,
    },
}

impl OutgoingChanges {
    /// Collects all changes that this replica has not received. Fails with `Unavailable` if no
    /// database has a log, or a log cannot be read.
    pub(super) fn new(shared: &Arc<Shared>, hello: ReplicaRequest) -> Result<OutgoingChanges> {
        let databases = shared.databases.len();
        let logged: Vec<_> = (0..databases)
            .filter(|&number| shared.databases[number].database.log().is_some())
            .filter_map(|number| Some((number, shared.persistence.exports.directory(number)?)))
            .collect();
        if logged.is_empty() {
            let message = "no database has an update log; databases in memory have one with --data-dir, trees always, and a hash under ktserver's name with -ulog";
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        if logged.len() < databases {
            tracing::warn!("replica: does not receive all databases, because some have no update log");
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
                "replica: its position is ahead of this server's clock; it does not receive changes until then"
            );
        }
        let mut scan = None;
        let mut last = hello.timestamp;
        if !is_whole {
            // A server that follows another one may be one of a pair. Records that only the replica
            // has may then be the replica's own.
            let clears = shared.master_link.follow_state().master.is_none();
            if clears {
                tracing::warn!(
                    server_id = hello.server_id,
                    "replica: the update log does not go back to its position; it is cleared and receives all records"
                );
            } else {
                tracing::warn!(
                    server_id = hello.server_id,
                    "replica: the update log does not go back to its position; it receives all records, but not \
                     what was removed here meanwhile"
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
            // Lower than all time stamps of a log, so that a replica that is interrupted begins
            // again.
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

    /// Begins a round, which sends all changes that are in the logs by now. Returns a time stamp:
    /// later changes are all newer. Fails with `Unavailable` if a log cannot be written.
    pub(super) fn begin_round(&mut self) -> Result<u64> {
        let before = first_of_second(self.shared.clock.now().0.saturating_sub(1)).saturating_sub(1);
        // Read at once, so that the ends are of one moment.
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
                let message = "the replica is too slow: more than 4 GiB of log are kept for it";
                return Err(Error::new(ErrorKind::Busy, message));
            }
        }
        Ok(before)
    }

    /// Appends the next messages, which may then be sent. Returns false if the round has none left.
    /// Fails with `Unavailable` if a log cannot be written.
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
            // Time stamps never decrease, even if a change is sent again.
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

    /// Returns the number of records sent without their client flags since the last call.
    pub(super) fn take_flags_lost(&mut self) -> u64 {
        let of_lines: u64 = self.lines.iter_mut().map(|line| std::mem::take(&mut line.flags_lost)).sum();
        of_lines + std::mem::take(&mut self.flags_lost)
    }

    /// Returns the last time stamp that was sent. No lower one may follow.
    pub(super) fn last(&mut self, at_least: u64) -> u64 {
        self.last = self.last.max(at_least);
        self.skipped = 0;
        self.last
    }

    /// Appends the next records of the scan.
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

/// Returns a record's value as the replica stores it.
fn stored<'r>(record: &Record<'r>, is_persistent: bool) -> StoredValue<'r> {
    if is_persistent {
        return StoredValue::raw(record.value);
    }
    StoredValue::with_expiry(time(record.attributes.expiry), record.value)
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

    /// Reads until there is a message, or the end of the round is reached.
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
                // Origins are server IDs, because only this protocol sets them.
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

    /// Returns the time stamp of the next change, or the highest of all if there is none.
    fn next_stamp(&self) -> u64 {
        self.next().unwrap_or(u64::MAX)
    }

    fn next(&self) -> Option<u64> {
        self.queue.front().map(|queued| queued.stamp)
    }

    /// Writes the next change with this time stamp. Returns false if the replica does not want it.
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
                // The value is the current one; the change that stored it follows later in the log.
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
