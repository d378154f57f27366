//! The master's side of Todana's own protocol: the logs of databases in, bytes for a replica out.
//! It owns no socket or clock.
//!
//! Invariant: only changes that are on this server's disk are sent, so no replica has more than
//! this server after a crash.

use super::branch::{newest, to_logged, to_record, to_sent};
use std::io;
use std::sync::Arc;
use todana::checkpoint::{CheckpointForm, send_checkpoint};
use todana::update_log::{Epoch, LogBytes, LogPacker, LogPart, LogPosition, UpdateLog};
use todana::{DataDirectory, Database, UnixSeconds, common_place};
use todana_core::{Error, ErrorKind, Result};
use todana_protocol::replication::{
    AnsweredStart, DatabaseAnswer, EpochPlace, LogEnd, MalformedFrame, MasterMessage, MasterWelcome,
    ReplicaHello, ReplicaMessage, RequestedStart,
};

/// The number of bytes of a log that are read and sent at a time.
const PIECE_LEN: usize = 64 << 10;
/// The maximum number of bytes of log that are kept on disk for one replica alone.
const HELD_MAX: u64 = 4 << 30;
const TOO_SLOW: &str = "the replica is too slow: more than 4 GiB of log are kept for it";

/// A database of a master, and its log.
#[derive(Clone)]
pub(super) struct LoggedDatabase {
    pub(super) database: Arc<Database>,
    pub(super) directory: Arc<DataDirectory>,
}

/// A database that is sent to a replica.
pub(super) struct SentDatabase {
    /// The number of the database.
    pub(super) number: u16,
    source: LoggedDatabase,
    /// The form of a checkpoint that the replica can take.
    form: CheckpointForm,
    /// The rest of the log. `None` until the checkpoint has been sent.
    log: Option<SentLog>,
    /// The position up to which the replica has applied the log.
    pub(super) applied: u64,
    /// The position from which the replica continues after its death.
    pub(super) stored: u64,
}

/// The rest of a log, from a position on.
struct SentLog {
    bytes: LogBytes,
    packer: LogPacker,
}

/// The stream to one replica.
pub(super) struct MasterSide {
    pub(super) databases: Vec<SentDatabase>,
    /// The time that the replica has stated last.
    asked_us: u64,
    /// The time that the replica had stated when changes were last looked for.
    answered_us: u64,
    out: Vec<u8>,
}

/// The times in a heartbeat.
pub(super) struct HeartbeatTimes {
    /// The time of this server before the changes were looked for, in Unix milliseconds.
    pub(super) time_ms: u64,
    /// The time up to which records that have expired may be removed ([`MasterSide::removal_s`]).
    pub(super) removal_s: u64,
    /// The age of this server's records before the changes were looked for.
    pub(super) age_us: u64,
}

/// Sends bytes to the replica.
pub(super) type SendBytes<'s> = dyn FnMut(&[u8]) -> io::Result<()> + 's;

impl MasterSide {
    /// Answers the greeting of a replica: appends the answer to `out`. `find` returns the database
    /// with a number, or the reason why it cannot be sent. Fails with the reason if the replica is
    /// refused; that answer is in `out`, too.
    pub(super) fn accept(
        hello: &ReplicaHello,
        own: u16,
        epoch: u64,
        find: &dyn Fn(u16) -> std::result::Result<LoggedDatabase, String>,
        out: &mut Vec<u8>,
    ) -> std::result::Result<MasterSide, String> {
        let accepted = MasterSide::open(hello, own, epoch, find);
        match accepted {
            Ok((side, databases)) => {
                MasterWelcome { server_id: own, epoch, databases }.put(out);
                Ok(side)
            }
            Err(why) => {
                MasterWelcome::put_refusal(&why, out);
                Err(why)
            }
        }
    }

    fn open(
        hello: &ReplicaHello,
        own: u16,
        epoch: u64,
        find: &dyn Fn(u16) -> std::result::Result<LoggedDatabase, String>,
    ) -> std::result::Result<(MasterSide, Vec<DatabaseAnswer>), String> {
        if hello.epoch > epoch {
            let (theirs, epoch) = (Epoch(hello.epoch), Epoch(epoch));
            return Err(format!("the replica is in epoch {theirs}, this server only in epoch {epoch}"));
        }
        if hello.server_id == own {
            return Err(format!("the replica has the server ID of its master, {own}: give each its own"));
        }
        if hello.databases.is_empty() {
            return Err("the replica asks for no database".into());
        }
        let (mut sent, mut answers) = (Vec::new(), Vec::new());
        for request in &hello.databases {
            if sent.iter().any(|sent: &SentDatabase| sent.number == request.number) {
                return Err(format!("the replica asks twice for database {}", request.number));
            }
            let source = find(request.number)?;
            let database_id = source.directory.identity().database_id;
            let bytes = match request.start {
                RequestedStart::Place(place) if place.database_id == database_id => {
                    source.log_from(place.position)
                }
                RequestedStart::Beginning => source.directory.complete_log_bytes(&source.database),
                RequestedStart::Place(_) | RequestedStart::Checkpoint => Ok(None),
            };
            let mut bytes = bytes.map_err(|error| error.to_string())?;
            let mut start = AnsweredStart::Requested;
            let mut branch = None;
            if bytes.is_none() {
                branch = source.branch_of(&request.path)?;
                bytes = source.log_after(branch).map_err(|error| error.to_string())?;
                start = match &bytes {
                    Some(bytes) => AnsweredStart::Branch(bytes.position().0),
                    None => AnsweredStart::Checkpoint,
                };
            }
            let epochs = newest(source.directory.epochs().starts, hello.databases.len());
            let epochs = epochs.iter().map(to_record).collect();
            answers.push(DatabaseAnswer { number: request.number, database_id, start, branch, epochs });
            let applied = bytes.as_ref().map_or(0, |bytes| bytes.position().0);
            let form = match source.database.bucket_format() {
                Some(own) if own == u32::from(request.bucket_format) => CheckpointForm::Image,
                _ => CheckpointForm::Portable,
            };
            let number = request.number;
            let log = bytes.map(SentLog::new);
            sent.push(SentDatabase { number, source, form, log, applied, stored: applied });
        }
        Ok((MasterSide { databases: sent, asked_us: 0, answered_us: 0, out: Vec::new() }, answers))
    }

    /// Returns the number of databases whose checkpoints have not been sent.
    pub(super) fn copies(&self) -> usize {
        self.databases.iter().filter(|sent| sent.log.is_none()).count()
    }

    /// Returns the bytes of the logs that the replica has not applied.
    pub(super) fn lag_bytes(&self) -> u64 {
        self.databases.iter().map(|sent| sent.end().saturating_sub(sent.applied)).sum()
    }

    /// Returns the time, in Unix seconds, up to which records that have expired may be removed.
    /// `now` is the clock of this server. If it is itself a replica, its master may have extended
    /// an expiry in time, and that change may still be on its way.
    pub(super) fn removal_s(&self, now: UnixSeconds) -> u64 {
        self.databases.iter().map(|sent| sent.source.database.removal_time(now).0).min().unwrap_or(0)
    }

    /// Sends all changes that the logs contain now, and before them the checkpoints that the
    /// replica needs. Returns true if a heartbeat is due. Fails with `Busy` if too much of a log is
    /// kept for the replica, and with `Unavailable` if `send` fails.
    pub(super) fn send_due(&mut self, send: &mut SendBytes<'_>) -> Result<bool> {
        let mut has_sent = self.answered_us != self.asked_us;
        self.answered_us = self.asked_us;
        for sent in &mut self.databases {
            let out = &mut self.out;
            if sent.log.is_none() {
                sent.send_checkpoint(out, send)?;
                has_sent = true;
            }
            let (number, Some(log)) = (sent.number, &mut sent.log) else { continue };
            let end = sent.source.log()?.end();
            if log.bytes.position() >= end {
                continue;
            }
            sent.source.database.sync_to(end)?;
            while log.bytes.position() < end {
                log.bytes.read(end, PIECE_LEN, log.packer.input())?;
                while let Some((LogPosition(position), part)) = log.packer.next_part() {
                    out.clear();
                    match part {
                        LogPart::Plain(bytes) => MasterMessage::Log { number, position, bytes },
                        LogPart::Packed(bytes) => MasterMessage::PackedLog { number, position, bytes },
                    }
                    .put(out);
                    send(out).map_err(unsent)?;
                }
                has_sent = true;
                if log.bytes.held().len_bytes() > HELD_MAX {
                    return Err(Error::new(ErrorKind::Busy, TOO_SLOW));
                }
            }
        }
        Ok(has_sent)
    }

    /// Appends a heartbeat.
    pub(super) fn put_heartbeat(&self, times: &HeartbeatTimes, out: &mut Vec<u8>) {
        let ends = self.databases.iter().map(SentDatabase::stated_end).collect();
        let HeartbeatTimes { time_ms, removal_s, age_us } = *times;
        MasterMessage::Heartbeat { time_ms, clock_s: removal_s, asked_us: self.answered_us, age_us, ends }
            .put(out);
    }

    /// Notes the positions that the replica has stated. Fails if it has stated one of a database
    /// that it does not follow, or one after the changes that it was sent.
    pub(super) fn note(&mut self, statement: ReplicaMessage) -> std::result::Result<(), MalformedFrame> {
        let ReplicaMessage::Applied { asked_us, positions } = statement;
        self.asked_us = asked_us;
        for position in positions {
            let sent = self.databases.iter_mut().find(|sent| sent.number == position.number);
            let sent = sent.filter(|sent| position.applied <= sent.position()).ok_or(MalformedFrame)?;
            (sent.applied, sent.stored) = (position.applied, position.stored);
        }
        Ok(())
    }
}

impl SentDatabase {
    /// Returns the position after the last change of the database.
    fn end(&self) -> u64 {
        self.source.log().map_or(0, |log| log.end().0)
    }

    /// Returns the position up to which the log was sent. 0 before the checkpoint was sent.
    fn position(&self) -> u64 {
        self.log.as_ref().map_or(0, |log| log.bytes.position().0)
    }

    fn stated_end(&self) -> LogEnd {
        // The place in the log of the first master must be one before the end.
        let before = self.source.place();
        let end = self.end();
        let id =
            |place: Option<todana::update_log::EpochPlace>| place.map(|place| (place.epoch, place.log_id));
        let source = before.filter(|_| id(before) == id(self.source.place())).map(to_sent);
        LogEnd { number: self.number, end, source }
    }

    fn send_checkpoint(&mut self, out: &mut Vec<u8>, send: &mut SendBytes<'_>) -> Result<()> {
        let LoggedDatabase { database, directory } = &self.source;
        let number = self.number;
        let hold = directory.hold(self.source.log()?.end());
        let held = hold.held();
        let sent = send_checkpoint(directory, database, self.form, &mut |piece| {
            for piece in piece.chunks(PIECE_LEN) {
                out.clear();
                MasterMessage::Checkpoint { number, bytes: piece }.put(out);
                send(out)?;
            }
            match held.len_bytes() > HELD_MAX {
                true => Err(io::Error::other(TOO_SLOW)),
                false => Ok(()),
            }
        })?;
        self.log = Some(SentLog::new(directory.log_bytes(Some(sent.start))?));
        Ok(())
    }
}

impl SentLog {
    fn new(bytes: LogBytes) -> SentLog {
        let packer = LogPacker::new(bytes.position());
        SentLog { bytes, packer }
    }
}

impl LoggedDatabase {
    fn log(&self) -> Result<&UpdateLog> {
        self.database.log().ok_or_else(|| Error::new(ErrorKind::Closed, "the update log is closed"))
    }

    /// Returns the place up to which the database has the log of the first master. If that is this
    /// server, returns the end of its log.
    fn place(&self) -> Option<todana::update_log::EpochPlace> {
        if self.database.is_replica() {
            return self.directory.followed();
        }
        let (epoch, position) = (self.directory.epochs().epoch(), self.log().ok()?.end());
        let log_id = self.directory.identity().database_id;
        Some(todana::update_log::EpochPlace { epoch, log_id, position })
    }

    /// Returns true if a server with this path has a log in common with this one. One of another
    /// cluster has none.
    pub(super) fn shares_log(&self, path: &[EpochPlace]) -> bool {
        let path: Vec<_> = path.iter().copied().map(to_logged).collect();
        let own = self.directory.identity().database_id;
        path.iter().any(|place| place.log_id == own)
            || common_place(&path, &self.directory.epochs().path(self.place())).is_some()
    }

    /// Returns the last place that a replica with this path has in common with this server. Fails
    /// if this server may get there by receiving more of the same log.
    fn branch_of(&self, path: &[EpochPlace]) -> std::result::Result<Option<EpochPlace>, String> {
        let path: Vec<_> = path.iter().copied().map(to_logged).collect();
        let (place, history) = (self.place(), self.directory.epochs());
        let branch = common_place(&path, &history.path(place));
        if history.starts.is_empty() && path.last() != branch.as_ref() && !self.database.is_replica() {
            // This server has lost a part of its log, and no other one has been promoted.
            return Ok(None);
        }
        let is_behind = self.database.is_replica()
            && branch.is_some_and(|branch| Some(branch) == place && path.last() != Some(&branch));
        if is_behind {
            return Err("the replica has more changes than this server, which is itself a replica".into());
        }
        Ok(branch.map(to_sent))
    }

    /// Returns the log after a place. Returns `None` if the log does not go back to it, or is
    /// damaged where the place is searched.
    fn log_after(&self, place: Option<EpochPlace>) -> Result<Option<LogBytes>> {
        let Some(place) = place else { return Ok(None) };
        match self.directory.position_of(&self.database, to_logged(place)) {
            Ok(Some(position)) => self.log_from(position.0),
            Ok(None) => Ok(None),
            Err(error) if error.kind() == ErrorKind::Corrupt => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the log from a position on. Returns `None` if the position is not between two
    /// entries of the log, or if the log does not go back to it.
    fn log_from(&self, position: u64) -> Result<Option<LogBytes>> {
        let log = self.log()?;
        let end = log.end();
        if position > end.0 {
            return Ok(None);
        }
        self.database.sync_to(end)?;
        match self.directory.log_bytes(Some(LogPosition(position))) {
            Err(error) if error.kind() == ErrorKind::Invalid => Ok(None),
            Err(error) => Err(error),
            Ok(mut bytes) => Ok(bytes.is_between_entries(end)?.then_some(bytes)),
        }
    }
}

fn unsent(error: io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, error.to_string())
}
