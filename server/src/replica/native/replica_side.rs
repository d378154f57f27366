//! The replica's side of Todana's own protocol: bytes of the master in, changes of databases out.
//! It owns no socket, clock or file.
//!
//! Invariants: entries are applied in the order of the log, each once. An entry is applied only if
//! its checksum, its database and its position are right. Otherwise the stream ends with an error,
//! and the next one begins after the last entry that was applied, or with a checkpoint.

use super::branch::{self, BranchOutcome};
use super::reached_place::{ReachedPlace, StoredState};
use std::sync::Arc;
use todana::checkpoint::CheckpointDecoder;
use todana::replication::ChangeOrigin;
use todana::update_log::{EntryDecoder, EpochStart, LogChange, LogPosition};
use todana::{DataDirectory, Database, SalvagedLog, UnixSeconds, WorkerCounters};
use todana_core::{Error, ErrorKind, RecordLoad};
use todana_protocol::replication::{
    AnsweredStart, AppliedPosition, DatabaseAnswer, DatabaseRequest, EpochPlace, FrameDecoder, GREETING,
    LogEnd, LogPlace, MalformedFrame, MasterMessage, MasterWelcome, ReplicaHello, ReplicaMessage,
    RequestedStart,
};

/// The most bytes of the log that a replica receives between two heartbeats while it follows the
/// changes of clients. If there are more, it is catching up.
const FOLLOWED_MAX: u64 = 4 << 20;

/// A database of a replica, and the place in the log of its master.
pub(in crate::replica) struct FollowedDatabase {
    /// The number of the database at the master.
    pub(super) number: u16,
    pub(super) database: Arc<Database>,
    pub(super) worker_counters: Arc<WorkerCounters>,
    /// The files of the database, if it has an update log.
    pub(super) directory: Option<Arc<DataDirectory>>,
    /// The place in the log of the first master, whose changes may have passed several servers.
    /// `None` if it is not known.
    pub(super) source: Option<EpochPlace>,
    /// If `source` is not known: a place up to which the database has the log of the first master,
    /// and perhaps more of it.
    pub(super) least_source: Option<EpochPlace>,
    /// The place after the last entry that was applied. `None` if all records must be copied.
    pub(super) place: Option<LogPlace>,
    /// The position from which the replica continues after its own death.
    pub(super) stored: u64,
    /// The records are those of one moment of the master once the log has been applied up to this
    /// position.
    pub(super) complete_from: u64,
    /// The end of the master's log as last stated.
    pub(super) master_end: u64,
    /// The time at which the log of the master ended there, in Unix milliseconds.
    pub(super) master_time_ms: u64,
    /// The records contain all changes that the master made before this time, by the clock of
    /// the replica's own messages, in microseconds. 0 if no such time is known.
    pub(in crate::replica) fresh_at_us: u64,
    /// True if clients may change records here, too: the server and its master are a pair.
    pub(super) is_pair: bool,
    /// True while the records are a part of those of the master. The database then refuses changes
    /// of clients, because a copy that is cut off begins with the removal of all records.
    pub(super) is_copying: bool,
    /// True if the log of the master is wanted from its beginning although there is a place: the
    /// master of the place is lost.
    wants_beginning: bool,
    /// True if all records must be copied, because the log cannot be applied from the place on.
    pub(super) wants_copy: bool,
    /// The end of the master's log when this server, with records of its own, began to apply it
    /// from its beginning. `u64::MAX` until the master has stated it.
    merged_until: u64,
    /// The place in the log of the first master up to which the database has had its changes, if a
    /// part of them is applied again after a death. The records are those of an earlier moment
    /// until then. 0 if they are not.
    pub(super) reapplied_until: u64,
    /// True while changes are applied again, after a death, from before the epoch that the own log
    /// has entered last. The log must not state their sources: they would be taken for places in
    /// the log of that epoch.
    pub(super) is_before_own_epoch: bool,
    /// The epochs that the master knew when it accepted this replica.
    pub(super) offered_epochs: Vec<EpochStart>,
    receiving: ReceivedPart,
}

/// What to do if neither server of a pair can follow the other.
pub(super) const EMPTY_ONE: &str = "stop one of the two servers and remove its data directory";

/// The part of a database that the master sends.
enum ReceivedPart {
    Nothing,
    Log(Box<ReceivedLog>),
    Checkpoint(Box<ReceivedCheckpoint>),
}

struct ReceivedLog {
    database_id: [u8; 16],
    /// The position of the next byte.
    next_byte: u64,
    entries: EntryDecoder,
}

impl ReceivedLog {
    fn expect_next(&self, position: u64) -> Result<(), StreamError> {
        match position == self.next_byte {
            true => Ok(()),
            false => Err(StreamError::Malformed("the log has a gap")),
        }
    }
}

struct ReceivedCheckpoint {
    database_id: [u8; 16],
    /// True if the records must be removed before the first of the master's.
    clears: bool,
    decoder: CheckpointDecoder,
}

/// The reason why a stream ends.
#[derive(Debug)]
pub(super) enum StreamError {
    /// The master refuses this replica, or cannot continue.
    Refused(String),
    /// The bytes are not those of the protocol. The next stream may be intact.
    Malformed(&'static str),
    /// The log does not continue at the position of a database, or is damaged. Its records must be
    /// copied.
    MustCopy(String),
    /// A change could not be applied.
    Failed(Error),
}

impl From<MalformedFrame> for StreamError {
    fn from(_: MalformedFrame) -> StreamError {
        StreamError::Malformed("a message is malformed")
    }
}

/// The effect of a message for the owner of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamEvent {
    /// The master has accepted this replica. The positions must be stored before the next call,
    /// because some may have been given up.
    Accepted { master_id: u16, epoch: u64, copies: usize },
    /// Changes have arrived, and are applied by the next call.
    Received,
    /// Changes were applied.
    Applied,
    /// All records of the database with this index have been copied.
    Copied { index: usize, records: u64 },
    /// The positions must be stored before the next call, because applying the last change again
    /// would do harm.
    MustStore,
    /// The master has stated its end.
    Heartbeat,
}

/// The stream of a master.
pub(super) struct ReplicaSide {
    server_id: u16,
    epoch: u64,
    pub(super) databases: Vec<FollowedDatabase>,
    frames: FrameDecoder,
    /// The server ID of the master, once it has accepted this replica.
    master_id: Option<u16>,
    /// The index of a database whose entries have not all been applied.
    pending: Option<usize>,
    /// The time of this server in its last message, which the master may state.
    asked_us: u64,
    /// The changes that only this server had, with the index of the database. They are in files,
    /// and will not be in the database any more.
    pub(super) salvaged: Vec<(usize, SalvagedLog)>,
}

impl FollowedDatabase {
    /// Creates the state of a database with this stored state, and makes the database a replica.
    /// With `is_pair`, clients may change records, too.
    pub(super) fn new(
        number: u16,
        database: &Arc<Database>,
        counters: &Arc<WorkerCounters>,
        stored: Option<StoredState>,
        is_pair: bool,
    ) -> FollowedDatabase {
        // Without some of its records, the database is no longer the one that was at the place.
        let stored = if database.lacks_changes() { stored.map(|_| StoredState::Copying) } else { stored };
        let is_copying = stored == Some(StoredState::Copying);
        let (place, source) = match stored {
            Some(StoredState::Place(ReachedPlace { place, source, .. })) => (Some(place), source),
            _ => (None, None),
        };
        database.follow_master(!is_pair || is_copying);
        FollowedDatabase {
            number,
            database: Arc::clone(database),
            worker_counters: Arc::clone(counters),
            directory: None,
            source,
            least_source: None,
            place,
            stored: place.map_or(0, |place| place.position),
            complete_from: 0,
            master_end: 0,
            master_time_ms: 0,
            fresh_at_us: 0,
            is_pair,
            is_copying,
            wants_beginning: false,
            wants_copy: false,
            merged_until: 0,
            reapplied_until: 0,
            is_before_own_epoch: false,
            offered_epochs: Vec::new(),
            receiving: ReceivedPart::Nothing,
        }
    }

    /// Returns the position after the last entry that was applied.
    pub(super) fn applied(&self) -> u64 {
        self.place.map_or(0, |place| place.position)
    }

    /// Returns the state to store: what the server continues with after its own death.
    pub(super) fn state(&self) -> Option<StoredState> {
        match self.place {
            // The merge begins again after a death.
            Some(place) if place.position < self.merged_until => None,
            // The copied records are not in the log, and not on disk yet.
            Some(_) if self.database.awaits_checkpoint() => Some(StoredState::Copying),
            Some(place) => {
                let own_end = self.database.log().map_or(0, |log| log.end().0);
                // While changes are applied again, the source is not that of the place.
                let is_exact = self.reapplied_until == 0 && !self.is_before_own_epoch;
                let source = self.source.filter(|_| is_exact);
                Some(StoredState::Place(ReachedPlace { place, own_end, source }))
            }
            None => self.is_copying.then_some(StoredState::Copying),
        }
    }

    /// Notes that the state is stored, or that no state outlives the process.
    pub(super) fn note_stored(&mut self) -> todana_core::Result<()> {
        if self.is_copying && self.place.is_some() {
            self.end_copy()?;
            self.is_copying = false;
            self.database.follow_master(!self.is_pair);
        }
        Ok(())
    }

    fn wanted(&self) -> RequestedStart {
        match self.place {
            Some(place) if !self.wants_beginning => RequestedStart::Place(place),
            None if !self.has_own_records() => RequestedStart::Checkpoint,
            _ => RequestedStart::Beginning,
        }
    }

    /// Returns the format of buckets that the database can take over from an image, or 0. The log
    /// does not contain the records of an image, so a server of a pair, which sends its log to its
    /// own master, takes none.
    fn bucket_format(&self) -> u8 {
        let format = self.database.bucket_format().filter(|_| !self.is_pair);
        format.and_then(|format| u8::try_from(format).ok()).unwrap_or_default()
    }

    /// Returns true if the records may be changes of this server's clients.
    fn has_own_records(&self) -> bool {
        self.is_pair && !self.is_copying && self.database.status().records > 0
    }

    /// Returns the error after which all records are copied, or after which this server follows no
    /// more because its clients' changes would be lost.
    fn give_up(&mut self, why: String) -> StreamError {
        if self.is_pair {
            return StreamError::Refused(format!("{why}; {EMPTY_ONE}"));
        }
        (self.place, self.wants_copy, self.fresh_at_us) = (None, true, 0);
        StreamError::MustCopy(why)
    }

    /// Returns true until the master has stated by which time records may be removed.
    fn may_remove_nothing(&self) -> bool {
        self.database.removal_time(UnixSeconds(u64::MAX)).0 == 0
    }

    /// Returns the bytes of the log that have not been applied, as far as the master has stated its
    /// end.
    pub(super) fn lag_bytes(&self) -> u64 {
        self.master_end.saturating_sub(self.applied())
    }

    /// Returns true if the records are those that the master had when it last stated its end.
    pub(super) fn has_all(&self) -> bool {
        self.master_time_ms > 0 && self.applied() >= self.master_end && self.is_complete()
    }

    /// Returns true if the records are those of one moment of the master.
    fn is_complete(&self) -> bool {
        self.complete_place().is_some()
    }

    /// Returns the place up to which changes have arrived. The records may show any of them.
    pub(in crate::replica) fn received_place(&self) -> Option<LogPlace> {
        let place = self.complete_place()?;
        match &self.receiving {
            ReceivedPart::Log(log) => Some(LogPlace { position: place.position.max(log.next_byte), ..place }),
            _ => Some(place),
        }
    }

    /// Returns the place of which the records are all those that the master had there.
    pub(in crate::replica) fn complete_place(&self) -> Option<LogPlace> {
        self.place.filter(|place| place.position >= self.complete_from)
    }
}

impl ReplicaSide {
    pub(super) fn new(server_id: u16, epoch: u64, databases: Vec<FollowedDatabase>) -> ReplicaSide {
        let frames = FrameDecoder::default();
        let (master_id, pending, asked_us, salvaged) = Default::default();
        ReplicaSide { server_id, epoch, databases, frames, master_id, pending, asked_us, salvaged }
    }

    /// Ends the current stream. The next one begins with a greeting.
    pub(super) fn reset(&mut self) {
        self.frames = FrameDecoder::default();
        (self.master_id, self.pending) = (None, None);
        for followed in &mut self.databases {
            followed.receiving = ReceivedPart::Nothing;
            followed.master_time_ms = 0;
        }
    }

    /// Appends the first bytes of a stream. `user` and `password` are empty if the master requires
    /// no login.
    pub(super) fn put_greeting(&self, user: &[u8], password: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(&GREETING);
        let databases = self.databases.iter();
        let hello = ReplicaHello {
            server_id: self.server_id,
            epoch: self.epoch(),
            user: user.into(),
            password: password.into(),
            databases: databases
                .map(|followed| DatabaseRequest {
                    number: followed.number,
                    start: followed.wanted(),
                    bucket_format: followed.bucket_format(),
                    path: branch::newest(followed.path(), self.databases.len()),
                })
                .collect(),
        };
        hello.put(out);
    }

    /// Returns the highest epoch that this server knows.
    pub(super) fn epoch(&self) -> u64 {
        let directories = self.databases.iter().filter_map(|followed| followed.directory.as_ref());
        directories.map(|directory| directory.epochs().epoch().0).fold(self.epoch, u64::max)
    }

    /// Returns the positions of all databases.
    pub(super) fn positions(&self) -> Vec<AppliedPosition> {
        let positions = self.databases.iter().map(|followed| AppliedPosition {
            number: followed.number,
            applied: followed.applied(),
            stored: followed.stored,
        });
        positions.collect()
    }

    /// Appends a message with positions and the time of this server.
    pub(super) fn put_positions(&mut self, now_us: u64, positions: Vec<AppliedPosition>, out: &mut Vec<u8>) {
        self.asked_us = now_us;
        ReplicaMessage::Applied { asked_us: now_us, positions }.put(out);
    }

    /// Appends bytes of the master.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.frames.push(bytes);
    }

    /// Reads the next message, and applies its changes. Returns `None` if it is incomplete.
    pub(super) fn next_event(&mut self) -> Result<Option<StreamEvent>, StreamError> {
        if let Some(index) = self.pending {
            return self.apply_entries(index).map(Some);
        }
        let Some(content) = self.frames.next_content()? else { return Ok(None) };
        let Some(master_id) = self.master_id else {
            let welcome = MasterWelcome::read(content)?.map_err(StreamError::Refused)?;
            return self.begin(&welcome).map(Some);
        };
        let find = |databases: &mut [FollowedDatabase], number: u16| {
            let index = databases.iter().position(|followed| followed.number == number);
            index.ok_or(StreamError::Malformed("a message about another database"))
        };
        match MasterMessage::read(content)? {
            MasterMessage::Log { number, position, bytes } => {
                let index = find(&mut self.databases, number)?;
                let ReceivedPart::Log(log) = &mut self.databases[index].receiving else {
                    return Err(StreamError::Malformed("the log comes before its checkpoint"));
                };
                log.expect_next(position)?;
                let end = log.next_byte.checked_add(bytes.len() as u64);
                log.next_byte = end.ok_or(StreamError::Malformed("the log has no end"))?;
                log.entries.push(bytes);
                self.pending = Some(index);
                Ok(Some(StreamEvent::Received))
            }
            MasterMessage::PackedLog { number, position, bytes } => {
                let index = find(&mut self.databases, number)?;
                let followed = &mut self.databases[index];
                let ReceivedPart::Log(log) = &mut followed.receiving else {
                    return Err(StreamError::Malformed("the log comes before its checkpoint"));
                };
                log.expect_next(position)?;
                match log.entries.push_packed(bytes) {
                    Ok(end) => log.next_byte = end.0,
                    Err(error) => return Err(followed.give_up(error.to_string())),
                }
                self.pending = Some(index);
                Ok(Some(StreamEvent::Received))
            }
            MasterMessage::Checkpoint { number, bytes } => {
                let index = find(&mut self.databases, number)?;
                self.databases[index].copy(index, master_id, bytes).map(Some)
            }
            MasterMessage::Heartbeat { time_ms, clock_s, asked_us, age_us, ends } => {
                for LogEnd { number, end, source } in ends {
                    let index = find(&mut self.databases, number)?;
                    let followed = &mut self.databases[index];
                    (followed.master_end, followed.master_time_ms) = (end, time_ms);
                    if followed.merged_until == u64::MAX {
                        followed.merged_until = end;
                    }
                    // The changes before this message have been applied.
                    if followed.is_complete() {
                        followed.database.note_master_time(UnixSeconds(clock_s));
                    }
                    if followed.has_all() {
                        followed.note_source(source).map_err(StreamError::Failed)?;
                    }
                    if age_us == u64::MAX {
                        followed.fresh_at_us = 0;
                    } else if followed.is_complete() {
                        let at_us = asked_us.min(self.asked_us).saturating_sub(age_us);
                        followed.fresh_at_us = followed.fresh_at_us.max(at_us);
                    }
                }
                Ok(Some(StreamEvent::Heartbeat))
            }
            MasterMessage::Failed { reason } => {
                Err(StreamError::Refused(String::from_utf8_lossy(reason).into_owned()))
            }
        }
    }

    /// Begins the logs and checkpoints that the master has announced.
    fn begin(&mut self, welcome: &MasterWelcome) -> Result<StreamEvent, StreamError> {
        if welcome.server_id == self.server_id {
            let why = format!("it has this server's ID {}: give each server its own", self.server_id);
            return Err(StreamError::Refused(why));
        }
        if welcome.databases.len() != self.databases.len() {
            return Err(StreamError::Malformed("the answer is about other databases"));
        }
        let mut all = Vec::new();
        for (index, answer) in welcome.databases.iter().enumerate() {
            let followed = &mut self.databases[index];
            match branch::leave(followed, answer, welcome.epoch) {
                Ok(BranchOutcome::Salvaged(log)) => self.salvaged.push((index, log)),
                Ok(BranchOutcome::Nothing) => {}
                Err(error) => return Err(StreamError::Refused(error.to_string())),
            }
            all.push(followed.part(answer)?);
        }
        let mut copies = 0;
        for (followed, part) in self.databases.iter_mut().zip(all) {
            copies += usize::from(matches!(part, ReceivedPart::Checkpoint(_)));
            followed.begin(part);
        }
        self.master_id = Some(welcome.server_id);
        self.epoch = self.epoch.max(welcome.epoch);
        Ok(StreamEvent::Accepted { master_id: welcome.server_id, epoch: welcome.epoch, copies })
    }

    /// Applies the complete entries of a database, up to one after which the positions must be
    /// stored.
    fn apply_entries(&mut self, index: usize) -> Result<StreamEvent, StreamError> {
        let (own, master_id) = (self.server_id, self.master_id.unwrap_or_default());
        self.pending = None;
        let followed = &mut self.databases[index];
        let receiving = std::mem::replace(&mut followed.receiving, ReceivedPart::Nothing);
        let ReceivedPart::Log(mut log) = receiving else {
            return Err(StreamError::Malformed("the log comes before its checkpoint"));
        };
        let outcome = followed.apply_log(&mut log, own, master_id);
        followed.receiving = ReceivedPart::Log(log);
        followed.note_followed();
        if matches!(outcome, Ok(StreamEvent::MustStore)) {
            self.pending = Some(index);
        }
        outcome
    }
}

impl FollowedDatabase {
    fn apply_log(
        &mut self,
        log: &mut ReceivedLog,
        own: u16,
        master_id: u16,
    ) -> Result<StreamEvent, StreamError> {
        // While the master sends what is missing, it sends no heartbeats.
        if self.applied().abs_diff(self.master_end) > FOLLOWED_MAX {
            let next_bytes = log.next_byte.saturating_sub(log.entries.position().0);
            self.database.compress_for_load(RecordLoad { all_bytes: 0, next_bytes });
        }
        loop {
            let end = log.entries.end_of_next();
            let entry = match log.entries.next_entry() {
                Ok(Some((_, entry))) => entry,
                Ok(None) => return Ok(StreamEvent::Applied),
                Err(error) => {
                    let why = error.to_string();
                    return Err(self.give_up(why));
                }
            };
            let origin = entry.origin.map_or(ChangeOrigin::new(master_id, 0), ChangeOrigin::from);
            let source = self.source_of(log.database_id, end.0, entry.source);
            if let Some(own_log) = self.database.log() {
                own_log.set_source(source);
            }
            let mut is_clear = false;
            // In a pair, a change that this server has made or passed on comes back. A former
            // master that is a replica needs the changes that it has made.
            if !(self.is_pair && origin.has_passed(own)) {
                is_clear = entry.change == LogChange::Clear;
                if is_clear && self.fresh_at_us > 0 {
                    // Readers learn that the records are not fresh before they are removed.
                    self.fresh_at_us = 0;
                    log.entries.put_back();
                    return Ok(StreamEvent::MustStore);
                }
                if is_clear && self.place.is_some_and(|place| place.position < self.merged_until) {
                    let why = "its update log removes all records, also those of this server's clients";
                    return Err(StreamError::Refused(format!("{why}; {EMPTY_ONE}")));
                }
                let applied = self.database.apply_entry(origin.into(), &self.worker_counters, &entry.change);
                match applied {
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::Corrupt => {
                        let why = error.to_string();
                        return Err(self.give_up(why));
                    }
                    // Before the first time of the master, this server removes no expired records,
                    // which may take all memory. A copy omits them.
                    Err(error) if error.is_out_of_memory() && !self.is_pair && self.may_remove_nothing() => {
                        return Err(self.give_up(error.to_string()));
                    }
                    Err(error) => return Err(StreamError::Failed(error)),
                }
            }
            if let LogChange::Mark { time_ms, .. } = entry.change
                && self.is_first_master(log.database_id)
            {
                self.database.note_master_time(UnixSeconds(time_ms / 1000));
            }
            if let LogChange::Epoch(start) = entry.change {
                self.enter_epoch(start, log.database_id, end.0).map_err(StreamError::Failed)?;
            } else if let (Some(reached), Some(position)) = (&mut self.source, source) {
                reached.place.position = reached.place.position.max(position.0);
                if position.0 >= self.reapplied_until {
                    self.reapplied_until = 0;
                }
            } else if self.source.is_some() && entry.is_change() && !self.is_before_own_epoch && !self.is_pair
            {
                // The master does not know how far it has the log of the first one.
                self.set_source(None);
            }
            self.place = Some(LogPlace { database_id: log.database_id, position: end.0 });
            if is_clear {
                // A copy of all records at the master may begin in this way.
                self.fresh_at_us = 0;
                if source.is_none() && self.source.is_some() {
                    self.set_source(None);
                }
                return Ok(StreamEvent::MustStore);
            }
        }
    }
}

impl ReceivedPart {
    fn log(place: LogPlace) -> ReceivedPart {
        let LogPlace { database_id, position } = place;
        let entries = EntryDecoder::new(database_id, LogPosition(position));
        ReceivedPart::Log(Box::new(ReceivedLog { database_id, next_byte: position, entries }))
    }
}

impl FollowedDatabase {
    /// Returns the part that the master has announced. Fails if this server cannot take it.
    fn part(&mut self, answer: &DatabaseAnswer) -> Result<ReceivedPart, StreamError> {
        if self.number != answer.number {
            return Err(StreamError::Malformed("the answer is about other databases"));
        }
        let database_id = answer.database_id;
        match (answer.start, self.wanted()) {
            (AnsweredStart::Requested, RequestedStart::Place(place)) if place.database_id == database_id => {
                Ok(ReceivedPart::log(place))
            }
            (AnsweredStart::Requested, RequestedStart::Beginning) => {
                Ok(ReceivedPart::log(LogPlace { database_id, position: 0 }))
            }
            (AnsweredStart::Requested, _) => Err(StreamError::Malformed("the log of another database")),
            (AnsweredStart::Branch(_), _) if self.is_copying => {
                let why = "this server had changes that its master has not".into();
                Err(StreamError::MustCopy(why))
            }
            (AnsweredStart::Branch(position), _) => Ok(ReceivedPart::log(LogPlace { database_id, position })),
            (AnsweredStart::Checkpoint, RequestedStart::Place(_)) if self.is_pair => {
                // The other server has begun anew, with a copy of this server's records.
                self.wants_beginning = true;
                let why = "its update log does not continue at this server's position";
                Err(StreamError::Refused(format!("{why}; asking for the whole log")))
            }
            (AnsweredStart::Checkpoint, _) if self.has_own_records() => {
                let why = "its update log does not go back far enough, and a copy of its records would \
                           replace changes of this server's clients";
                Err(StreamError::Refused(format!("{why}; {EMPTY_ONE}")))
            }
            (AnsweredStart::Checkpoint, _) => {
                let (clears, decoder) = (!self.is_pair || self.is_copying, CheckpointDecoder::default());
                let checkpoint = ReceivedCheckpoint { database_id, clears, decoder };
                Ok(ReceivedPart::Checkpoint(Box::new(checkpoint)))
            }
        }
    }

    fn begin(&mut self, part: ReceivedPart) {
        match &part {
            ReceivedPart::Log(log) if log.next_byte == 0 && self.source.is_none() => {
                self.place = Some(LogPlace { database_id: log.database_id, position: 0 });
                (self.complete_from, self.fresh_at_us) = (0, 0);
                self.merged_until = if self.is_pair { u64::MAX } else { 0 };
            }
            ReceivedPart::Checkpoint(_) => {
                // From now on, the records are those of no moment.
                (self.place, self.is_copying, self.merged_until) = (None, true, 0);
                self.fresh_at_us = 0;
                (self.source, self.least_source) = (None, None);
                self.note_followed();
                self.database.follow_master(true);
            }
            ReceivedPart::Log(log) => {
                let place = LogPlace { database_id: log.database_id, position: log.next_byte };
                if self.place != Some(place) {
                    (self.place, self.complete_from, self.fresh_at_us) = (Some(place), 0, 0);
                }
            }
            ReceivedPart::Nothing => {}
        }
        (self.wants_beginning, self.wants_copy) = (false, false);
        self.receiving = part;
    }

    /// Applies the next bytes of a checkpoint.
    fn copy(&mut self, index: usize, master_id: u16, bytes: &[u8]) -> Result<StreamEvent, StreamError> {
        let FollowedDatabase { database, worker_counters, .. } = self;
        let ReceivedPart::Checkpoint(checkpoint) = &mut self.receiving else {
            return Err(StreamError::Malformed("a checkpoint that was not announced"));
        };
        let origin = u32::from(master_id);
        if let Some(log) = database.log() {
            log.set_source(None);
        }
        if std::mem::take(&mut checkpoint.clears) {
            database.clear_from(origin, worker_counters).map_err(StreamError::Failed)?;
        }
        checkpoint.decoder.push(bytes);
        let mut copy = database.copy_from(origin, worker_counters, checkpoint.decoder.is_image());
        let end = checkpoint.decoder.read_records(&mut copy);
        let end = end.map_err(|error| match error.kind() {
            ErrorKind::Corrupt => StreamError::Malformed("a checkpoint is damaged"),
            _ => StreamError::Failed(error),
        })?;
        let Some(end) = end else { return Ok(StreamEvent::Applied) };
        if end.identity.database_id != checkpoint.database_id {
            return Err(StreamError::Malformed("a checkpoint of another database"));
        }
        database.adopt_checkpoint(origin, worker_counters, &end).map_err(StreamError::Failed)?;
        let place = LogPlace { database_id: checkpoint.database_id, position: end.start.0 };
        (self.place, self.complete_from) = (Some(place), end.until.0);
        self.receiving = ReceivedPart::log(place);
        Ok(StreamEvent::Copied { index, records: end.records })
    }
}
