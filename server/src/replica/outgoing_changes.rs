//! Produces the changes that a replica receives: first all records, if the logs do not reach back
//! far enough; then the changes of all databases in the order of their time stamps.
//!
//! Invariant: a change is sent only after it is on this server's disk, so no replica has more than
//! the server after a crash. A change that is read from the log is on disk. For data that is read
//! from memory (records of a scan, values of records whose expiry changed), the log is synced after
//! the read, up to its end, before the data is sent.

use super::replica_request::{ReplicaRequest, SentChange};
use crate::shared::SharedState;
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;
use todana::replication::{ChangeOrigin, FeedStart, ReplicationFeed};
use todana::tyrant::take_part;
use todana::update_log::{LogChange, LogPosition};
use todana::{Clock, Expiry};
use todana_core::{Attributes, Error, ErrorKind, Record, RecordValues, Result, ScanPosition};

/// The number of bytes of a log that are read at a time.
const PIECE: usize = 128 << 10;
/// The number of bytes that are sent at a time.
const PORTION: usize = 64 << 10;
/// The number of bytes of a scan that are sent at a time. It is larger, because each portion of a
/// scan waits for a sync if there are writers, and because no piece of a log is in memory during a
/// scan.
const SCAN_PORTION: usize = PORTION + PIECE;
/// The number of messages that may be left out because of their origins, before the replica is sent
/// its new position.
const SKIPPED_MAX: u32 = 256;
/// The span of time stamps that is sent again when a replica connects, if several logs are merged.
/// An entry of one log may become readable after later entries of another log, so the replica may
/// have missed some of these changes.
const SLACK_S: u64 = 3;
/// The maximum number of bytes of log that are kept on disk for one replica alone.
const HELD_MAX: u64 = 4 << 30;

/// The longest list whose values are kept, so that values added to it are sent without the others.
const KEPT_LIST_MAX: usize = 16 << 20;

/// The messages to one replica.
pub(super) struct OutgoingChanges {
    shared: Arc<SharedState>,
    request: ReplicaRequest,
    lines: Vec<DatabaseChanges>,
    /// The database that the scan reads and the position in it; `None` after the last database.
    scan: Option<(usize, Option<ScanPosition>)>,
    /// True if the replica clears each database before it receives the records.
    clears: bool,
    /// The last time stamp that was sent.
    last: u64,
    /// True if this round began with all records.
    has_scanned: bool,
    skipped: u32,
    lost: LostAttributes,
}

/// The numbers of records that were sent without all of their attributes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LostAttributes {
    /// Records without their client flags.
    pub(super) flags: u64,
    /// Records with only the first of several values.
    pub(super) values: u64,
}

impl LostAttributes {
    /// Counts a record that is sent to this replica.
    fn count(&mut self, request: &ReplicaRequest, attributes: &Attributes) {
        self.flags += u64::from(attributes.flags != 0);
        self.values += u64::from(attributes.has_value_list && request.lacks_lists());
    }
}

/// The changes of one database.
struct DatabaseChanges {
    number: usize,
    feed: ReplicationFeed,
    until: LogPosition,
    /// True if the log has grown since the previous round, so that it must be synced before its new
    /// changes are sent.
    has_more: bool,
    queue: VecDeque<QueuedChange>,
    /// The changes as they are sent, and the keys of records with a changed expiry, one after
    /// another. Bytes before `at` have been sent.
    bytes: Vec<u8>,
    at: usize,
    /// True if data was read from memory that may not be on disk yet.
    has_read_memory: bool,
    /// The key and the list that the replica has after the queued changes, if the last list that
    /// was sent was not changed since.
    sent_list: Option<(Vec<u8>, Vec<u8>)>,
    /// The records that were read and lose attributes when they are sent.
    lost: LostAttributes,
}

/// A change that was read from a log.
struct QueuedChange {
    stamp: u64,
    /// The number of bytes of the change in `DatabaseChanges::bytes`.
    len: usize,
    what: QueuedKind,
}

#[derive(Clone, Copy)]
enum QueuedKind {
    NotWanted,
    Encoded {
        origin: ChangeOrigin,
    },
    /// The expiry of a record changed. The bytes of the change are the key. The record is read only
    /// when it is sent, because there may be many such records in a row, and they may be large.
    Retag {
        origin: ChangeOrigin,
        expiry: Expiry,
    },
    /// Values are added to a key. The bytes of the change are the key and a list of values, which
    /// is encoded in parts when it is sent, because each part repeats the key for each value.
    Values {
        origin: ChangeOrigin,
        key_len: usize,
        /// The number of bytes of the list that were sent.
        sent: usize,
    },
}

impl OutgoingChanges {
    /// Prepares all changes that this replica has not received. Fails with `Unavailable` if no
    /// database has a log, or if a log cannot be read.
    pub(super) fn new(shared: &Arc<SharedState>, request: ReplicaRequest) -> Result<OutgoingChanges> {
        let databases = shared.databases.len();
        let logged: Vec<_> = (0..request.databases(databases))
            .filter(|&number| shared.databases[number].database.log().is_some())
            .filter_map(|number| Some((number, shared.persistence.exports.directory(number)?)))
            .collect();
        if logged.is_empty() {
            let message = "no database has an update log; databases in memory have one with --data-dir, trees always, and a hash under ktserver's name with -ulog";
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        if logged.len() < request.databases(databases) {
            tracing::warn!("replica: does not receive all databases, because some have no update log");
        }
        let scheme = |number| request.stamps(number, databases);
        let position = request.position();
        let slack = scheme(0).first_of_second(SLACK_S);
        let after = if logged.len() > 1 { position.saturating_sub(slack) } else { position };
        let mut lines = Vec::new();
        let mut is_whole = true;
        for (number, directory) in &logged {
            let (feed, begins) = ReplicationFeed::open(directory, scheme(*number), after)?;
            is_whole &= begins == FeedStart::Complete;
            lines.push(DatabaseChanges::new(*number, feed));
        }
        let now = scheme(0).first_of_second(shared.clock.now().0);
        let server_id = request.server_id();
        if position > now.saturating_add(slack) && position < u64::MAX {
            tracing::warn!(
                server_id,
                "replica: its position is ahead of this server's clock; it does not receive changes until then"
            );
        }
        let mut changes = OutgoingChanges {
            shared: Arc::clone(shared),
            request,
            lines,
            scan: None,
            clears: false,
            last: position,
            has_scanned: false,
            skipped: 0,
            lost: LostAttributes::default(),
        };
        if !is_whole {
            changes.begin_scan("does not go back to its position")?;
        }
        Ok(changes)
    }

    /// Begins to send all records, because the log lacks changes that the replica needs.
    fn begin_scan(&mut self, why: &str) -> Result<()> {
        let server_id = self.request.server_id();
        // If this server follows another one, the two may be masters of each other. Records that
        // only the replica has may then be the replica's own, so they must not be cleared.
        self.clears = self.shared.master_link.follow_state().master.is_none();
        if self.clears {
            tracing::warn!(
                server_id,
                "replica: the update log {why}; it is cleared and receives all records"
            );
        } else {
            tracing::warn!(
                server_id,
                "replica: the update log {why}; it receives all records, but not what was removed here \
                 meanwhile"
            );
        }
        let databases = self.shared.databases.len();
        for line in &mut self.lines {
            let directory = self.shared.persistence.exports.directory(line.number);
            let directory = directory.ok_or_else(|| Error::new(ErrorKind::Closed, "the log is closed"))?;
            let end = self.shared.databases[line.number].database.log().map(|log| log.end());
            let scheme = self.request.stamps(line.number, databases);
            let feed = ReplicationFeed::open_at(&directory, scheme, end.unwrap_or_default())?;
            *line = DatabaseChanges::new(line.number, feed);
        }
        // Zero is lower than all time stamps of a log. If the replica is interrupted during the
        // scan, it therefore requests everything again.
        (self.scan, self.last, self.has_scanned) = (Some((0, None)), 0, true);
        Ok(())
    }

    /// Begins a round, which sends all changes that the logs contain now. Returns a time stamp that
    /// all later changes exceed. Fails with `Unavailable` if a log cannot be written.
    pub(super) fn begin_round(&mut self) -> Result<u64> {
        let second = self.shared.clock.now().0.saturating_sub(1);
        let before = self.request.stamps(0, 1).first_of_second(second).saturating_sub(1);
        // The ends of all logs are read together, so that they belong to one moment.
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

    /// Appends the next messages of the round to `out`. The caller may send them at once. Returns
    /// false if the round has no more messages. Fails with `Unavailable` if a log cannot be
    /// written.
    pub(super) fn take(&mut self, out: &mut Vec<u8>) -> Result<bool> {
        let has_queue = self.lines.iter().any(|line| !line.queue.is_empty());
        let may_continue = match self.scan.is_some() && !has_queue {
            true => self.take_records(out).map(|()| true),
            false => self.take_changes(out),
        }?;
        for line in self.lines.iter_mut().filter(|line| line.has_read_memory) {
            self.shared.databases[line.number].database.sync()?;
            line.has_read_memory = false;
        }
        Ok(may_continue)
    }

    fn take_changes(&mut self, out: &mut Vec<u8>) -> Result<bool> {
        loop {
            // The log is read after a scan, and up to a gap.
            let has_gap = |lines: &[DatabaseChanges]| lines.iter().any(|line| line.feed.has_gap());
            let reads = self.scan.is_none() && !has_gap(&self.lines);
            for line in self.lines.iter_mut().filter(|_| reads) {
                line.fill(&self.shared, &self.request)?;
            }
            // The changes before the gap are sent first, because all records may be removed there.
            if has_gap(&self.lines) && self.lines.iter().all(|line| line.queue.is_empty()) {
                self.begin_scan("lacks changes: they are lost, or came with a copy of a master's records")?;
                return Ok(true);
            }
            let first = self.lines.iter_mut().min_by_key(|line| line.next_stamp());
            let Some((line, stamp)) = first.and_then(|line| line.next().map(|stamp| (line, stamp))) else {
                return Ok(!out.is_empty() || self.scan.is_some());
            };
            // Time stamps must never decrease, even if a change is sent again.
            self.last = self.request.next_stamp(self.last, stamp);
            match line.pop(self.last, &self.shared, &self.request, out)? {
                true => self.skipped = 0,
                false => self.skipped += 1,
            }
            if self.skipped >= SKIPPED_MAX {
                self.request.put_progress(self.last, out);
                self.skipped = 0;
            }
            if out.len() >= PORTION {
                return Ok(true);
            }
        }
    }

    /// Returns the numbers of records that were sent without all of their attributes since the
    /// previous call.
    pub(super) fn take_lost(&mut self) -> LostAttributes {
        let mut lost = std::mem::take(&mut self.lost);
        for of_line in self.lines.iter_mut().map(|line| std::mem::take(&mut line.lost)) {
            lost.flags += of_line.flags;
            lost.values += of_line.values;
        }
        lost
    }

    /// Appends the end of a round. Returns the position of the replica after it: no lower time
    /// stamp follows. `before` is the result of [`begin_round`](Self::begin_round).
    pub(super) fn end_round(&mut self, before: u64, out: &mut Vec<u8>) -> u64 {
        self.last = self.last.max(before);
        self.skipped = 0;
        if std::mem::take(&mut self.has_scanned) {
            let own = ChangeOrigin::new(self.shared.options.databases.replication.server_id, 0);
            self.request.put_end_of_scan(self.last, own, out);
        }
        self.last
    }

    /// Appends the next records of the scan.
    fn take_records(&mut self, out: &mut Vec<u8>) -> Result<()> {
        let Some((index, place)) = self.scan.take() else { return Ok(()) };
        let Some(line) = self.lines.get_mut(index) else {
            return Ok(());
        };
        line.has_read_memory = true;
        let own = ChangeOrigin::new(self.shared.options.databases.replication.server_id, 0);
        let served = &self.shared.databases[line.number];
        let encoder = self.request.encoder(line.number, served);
        line.bytes.clear();
        line.at = 0;
        let (queue, bytes) = (&mut line.queue, &mut line.bytes);
        let (request, last, lost) = (&self.request, &mut self.last, &mut self.lost);
        let wanted = request.wants(own);
        // Without a clear, the replica may have several values of a key that has one value here.
        let removes_first = request.adds_values() && served.database.holds_value_lists() && !self.clears;
        // Stamps of the first second are lower than all time stamps of a log.
        let last_max = request.stamps(0, 1).per_second() - 1;
        let mut change = Vec::new();
        let mut put = |sent: SentChange<'_>, out: &mut Vec<u8>| {
            *last = (*last + 1).min(last_max);
            change.clear();
            encoder.put(own, sent, &mut change);
            request.put_change(*last, own, &change, out);
        };
        if self.clears && wanted && place.is_none() {
            put(SentChange::Clear, out);
        }
        let next = served.database.read_all_stored(place, &mut |key, record| {
            let is_list = record.attributes.has_value_list && request.adds_values();
            if wanted && encoder.sends(key) {
                lost.count(request, &record.attributes);
                if is_list || removes_first {
                    put(SentChange::Remove { key }, out);
                }
                if is_list {
                    queue.push_back(QueuedChange::of_list(last_max, own, key, record.value, bytes));
                } else {
                    put(SentChange::Put { key, record }, out);
                }
            }
            if out.len() >= SCAN_PORTION || !queue.is_empty() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
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
            sent_list: None,
            lost: LostAttributes::default(),
        }
    }

    /// Reads the log until there is a message, or until the end of the round is reached.
    fn fill(&mut self, shared: &SharedState, request: &ReplicaRequest) -> Result<()> {
        while self.queue.is_empty() && self.feed.position() < self.until {
            self.bytes.clear();
            self.at = 0;
            let served = &shared.databases[self.number];
            let own = ChangeOrigin::new(shared.options.databases.replication.server_id, 0);
            let encoder = request.encoder(self.number, served);
            let (queue, bytes, lost) = (&mut self.queue, &mut self.bytes, &mut self.lost);
            let sent_list = &mut self.sent_list;
            self.feed.read_new(self.until, PIECE, &mut |stamp, origin, change| {
                let origin = origin.map_or(own, ChangeOrigin::from);
                let put = |change: SentChange<'_>, bytes: &mut Vec<u8>| {
                    let before = bytes.len();
                    encoder.put(origin, change, bytes);
                    QueuedChange { stamp, len: bytes.len() - before, what: QueuedKind::Encoded { origin } }
                };
                let skipped = QueuedChange { stamp, len: 0, what: QueuedKind::NotWanted };
                let before = match *change {
                    LogChange::Put { key, .. } | LogChange::Remove { key } => {
                        sent_list.take_if(|(of, _)| of == key)
                    }
                    LogChange::Clear => sent_list.take().and(None),
                    _ => None,
                };
                let queued = match *change {
                    _ if !request.wants(origin) => skipped,
                    LogChange::Put { key, .. } | LogChange::Remove { key } if !encoder.sends(key) => skipped,
                    LogChange::Put { key, record } => {
                        lost.count(request, &record.attributes);
                        if record.attributes.has_value_list && request.adds_values() {
                            let before = before.map_or(Vec::new(), |(_, list)| list);
                            let added = record.value.strip_prefix(&*before).filter(|_| !before.is_empty());
                            if record.value.len() <= KEPT_LIST_MAX {
                                *sent_list = Some((key.to_vec(), record.value.to_vec()));
                            }
                            if let Some(added) = added.filter(|added| !added.is_empty()) {
                                // Otherwise a list that grows value by value would be sent again
                                // with each value.
                                queue.push_back(QueuedChange::of_list(stamp, origin, key, added, bytes));
                                return;
                            }
                            // The replica first removes the old values. It has the position before
                            // the change until it has all new values, so that after a disconnection
                            // it begins with the removal again.
                            let removal = put(SentChange::Remove { key }, bytes);
                            queue.push_back(QueuedChange { stamp: stamp.saturating_sub(1), ..removal });
                            QueuedChange::of_list(stamp, origin, key, record.value, bytes)
                        } else {
                            put(SentChange::Put { key, record }, bytes)
                        }
                    }
                    LogChange::Remove { key } => put(SentChange::Remove { key }, bytes),
                    LogChange::Clear => put(SentChange::Clear, bytes),
                    LogChange::Retag { key, attributes } if request.carries_expiry() => {
                        bytes.extend_from_slice(key);
                        let what = QueuedKind::Retag { origin, expiry: attributes.expiry };
                        QueuedChange { stamp, len: key.len(), what }
                    }
                    _ => skipped,
                };
                queue.push_back(queued);
            })?;
        }
        Ok(())
    }

    /// Returns the time stamp of the next change. Returns the highest possible time stamp if there
    /// is no change.
    fn next_stamp(&self) -> u64 {
        self.next().unwrap_or(u64::MAX)
    }

    fn next(&self) -> Option<u64> {
        self.queue.front().map(|queued| queued.stamp)
    }

    /// Writes the next change with this time stamp. Returns false if nothing was written, because
    /// the replica must not receive the change or the record no longer exists.
    fn pop(
        &mut self,
        stamp: u64,
        shared: &SharedState,
        request: &ReplicaRequest,
        out: &mut Vec<u8>,
    ) -> Result<bool> {
        let Some(queued) = self.queue.pop_front() else { return Ok(false) };
        let bytes = &self.bytes[self.at..self.at + queued.len];
        self.at += queued.len;
        match queued.what {
            QueuedKind::NotWanted => Ok(false),
            QueuedKind::Encoded { origin } => {
                request.put_change(stamp, origin, bytes, out);
                Ok(true)
            }
            QueuedKind::Retag { origin, expiry } => {
                let served = &shared.databases[self.number];
                let encoder = request.encoder(self.number, served);
                let before = out.len();
                // The record has its current value. The change that stored this value follows later
                // in the log.
                self.has_read_memory = true;
                let lost = &mut self.lost;
                served.database.peek_stored(bytes, &mut |now| {
                    lost.count(request, &now.attributes);
                    let has_value_list = now.attributes.has_value_list;
                    let attributes = Attributes { expiry, has_value_list, ..Attributes::default() };
                    let record = Record::new(now.value, attributes);
                    let mut change = Vec::new();
                    encoder.put(origin, SentChange::Put { key: bytes, record }, &mut change);
                    request.put_change(stamp, origin, &change, out);
                })?;
                Ok(out.len() > before)
            }
            QueuedKind::Values { origin, key_len, sent } => {
                let encoder = request.encoder(self.number, &shared.databases[self.number]);
                let (key, list) = bytes.split_at(key_len);
                let mut left = RecordValues::of_list(&list[sent..]);
                let part = take_part(key, &mut left);
                let is_last = left.encoded_len() == 0;
                let mut change = Vec::new();
                encoder.put(origin, SentChange::Add { key, values: &part }, &mut change);
                let sent_stamp = if is_last { stamp } else { stamp.saturating_sub(1) };
                request.put_change(sent_stamp, origin, &change, out);
                if !is_last {
                    let what = QueuedKind::Values { origin, key_len, sent: list.len() - left.encoded_len() };
                    self.at -= queued.len;
                    self.queue.push_front(QueuedChange { what, ..queued });
                }
                Ok(true)
            }
        }
    }
}

impl QueuedChange {
    /// Queues the values of a list, which are added to `bytes`.
    fn of_list(
        stamp: u64,
        origin: ChangeOrigin,
        key: &[u8],
        list: &[u8],
        bytes: &mut Vec<u8>,
    ) -> QueuedChange {
        bytes.extend_from_slice(key);
        bytes.extend_from_slice(list);
        let what = QueuedKind::Values { origin, key_len: key.len(), sent: 0 };
        QueuedChange { stamp, len: key.len() + list.len(), what }
    }
}
