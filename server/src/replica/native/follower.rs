//! The thread that follows a master in Todana's own protocol.
//!
//! Invariant: a position is stored only after the changes before it are on disk. The stored
//! position of a database is discarded before its records are copied again.

use super::master_stream::{MasterStream, PendingStream, login};
use super::positions::{OwnIds, PositionFile, PositionKeeper};
use super::promotion;
use super::replica_side::{FollowedDatabase, ReplicaSide, StreamError, StreamEvent};
use super::served::unix_ms;
use crate::databases::ServedDatabase;
use crate::handle::StopStage;
use crate::replica::freshness::now_us;
use crate::replica::master_follower::wait_for_disk;
use crate::replica::options::{MasterAddress, REPLICA_POSITION};
use crate::shared::SharedState;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use todana::disk::Disk;
use todana::update_log::Epoch;
use todana_protocol::replication::AppliedPosition;

/// The pause after a failed connection to the master, before the next attempt.
const RETRY: Duration = Duration::from_secs(1);
/// The connection to the master is closed if no message is completed for this time. The master
/// sends a heartbeat each second, except while it syncs its log.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// The interval at which the positions are stored.
const STORE_INTERVAL: Duration = Duration::from_secs(1);
/// The interval at which the thread checks whether the server stops, and at which the positions are
/// sent to the master even if they have not changed.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// The minimum interval between two messages with positions while changes arrive without a pause.
const STATE_INTERVAL: Duration = Duration::from_millis(20);
const BUFFER_LEN: usize = 128 << 10;
/// The time limit of the answer to an announcement.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);

/// The thread that follows the master.
pub(in crate::replica) struct NativeFollower {
    shared: Arc<SharedState>,
    master: MasterAddress,
    side: ReplicaSide,
    /// True if this server was promoted. It then announces itself to its former master.
    is_master: bool,
    keeper: PositionKeeper,
    /// The connection that is being opened.
    pending: Option<PendingStream>,
    stored_at: Instant,
    last_warning: String,
    last_file_warning: String,
}

/// The reason why a connection to the master ended.
enum FollowEnd {
    Stopped,
    Stream(StreamError),
    Connection(io::Error),
}

impl From<io::Error> for FollowEnd {
    fn from(error: io::Error) -> FollowEnd {
        FollowEnd::Connection(error)
    }
}

impl From<StreamError> for FollowEnd {
    fn from(error: StreamError) -> FollowEnd {
        FollowEnd::Stream(error)
    }
}

impl NativeFollower {
    /// Prepares to follow the master, and makes all databases replicas.
    pub(in crate::replica) fn new(shared: &Arc<SharedState>, disk: Arc<dyn Disk>) -> NativeFollower {
        let options = &shared.options.databases.replication;
        let server_id = options.server_id;
        let master = shared.master_link.follow_state().master.unwrap_or_default();
        let file = position_path(shared).map(|path| PositionFile::new(disk, path));
        let own_ids = (0..shared.databases.len()).map(|index| own_ids(shared, index)).collect();
        let (keeper, outcome) = PositionKeeper::open(file, own_ids);
        if let Err(error) = outcome {
            let path = keeper.path().unwrap_or(Path::new("")).display();
            tracing::error!("{path}: {error}; all records of the master are copied");
        }
        let is_master = promotion::is_promoted(shared);
        let databases = match is_master {
            true => Vec::new(),
            false => followed_databases(shared, &keeper),
        };
        if is_master {
            // The options have made the databases replicas.
            shared.databases.each(|database| database.follow_master(false));
            shared.master_link.set_native_master(None);
        }
        shared.master_link.followed.note(&databases);
        NativeFollower {
            side: ReplicaSide::new(server_id, keeper.epoch(), databases),
            master,
            is_master,
            keeper,
            pending: None,
            stored_at: Instant::now(),
            last_warning: String::new(),
            last_file_warning: String::new(),
            shared: Arc::clone(shared),
        }
    }

    pub(in crate::replica) fn run(mut self) {
        // The file must name the IDs that the databases have since this opening.
        self.store();
        if self.is_master {
            tracing::warn!(
                epoch = %promotion::server_epoch(&self.shared),
                "replication: this server was promoted, so it does not follow the master of its options"
            );
        }
        while self.may_continue() {
            for request in self.shared.master_link.take_promotions() {
                let outcome = self.promote(request.is_forced);
                request.answer(outcome);
            }
            if self.is_master && !promotion::is_promoted(&self.shared) {
                self.follow_again();
            }
            self.side.reset();
            let ended = if self.is_master { self.announce() } else { self.follow() };
            self.shared.master_link.is_connected.store(false, Ordering::Relaxed);
            let why = match ended {
                Ok(()) | Err(FollowEnd::Stopped) => None,
                Err(FollowEnd::Connection(error)) => Some(error.to_string()),
                Err(FollowEnd::Stream(StreamError::Refused(why))) => Some(why),
                Err(FollowEnd::Stream(StreamError::Malformed(why))) => {
                    Some(format!("the replication stream is malformed: {why}"))
                }
                Err(FollowEnd::Stream(StreamError::MustCopy(why))) => {
                    Some(format!("{why}; all records of the database are copied"))
                }
                Err(FollowEnd::Stream(StreamError::Failed(error))) => {
                    Some(format!("a change cannot be applied: {error}"))
                }
            };
            self.store();
            if let Some(why) = why {
                let text = format!("master {}:{}: {why}", self.master.host, self.master.port);
                if text != self.last_warning {
                    tracing::warn!("{text}; trying again every second");
                    self.last_warning = text;
                }
            }
            let since = Instant::now();
            while since.elapsed() < RETRY && self.may_continue() && !self.is_interrupted() {
                std::thread::park_timeout(CHECK_INTERVAL);
            }
        }
    }

    fn may_continue(&self) -> bool {
        self.shared.lifecycle.stopping() == StopStage::No
    }

    /// Returns true if the thread must handle a promotion or follow its master again.
    fn is_interrupted(&self) -> bool {
        let is_demoted = self.is_master && promotion::superseded_by(&self.shared).is_some();
        self.shared.master_link.has_promotions() || is_demoted
    }

    /// Makes this server the master.
    fn promote(&mut self, is_forced: bool) -> Result<String, String> {
        if self.is_master {
            return Err("this server is the master already".into());
        }
        if self.side.databases.iter().any(|followed| followed.is_pair) {
            return Err("this server takes changes of clients already, as one of a pair".into());
        }
        let epoch = promotion::promote(&self.shared, &self.side.databases, is_forced)?;
        self.is_master = true;
        // The positions belong to the log of the former master.
        self.side.databases.clear();
        self.keeper.note_epoch(epoch.0);
        self.store();
        self.shared.master_link.set_native_master(None);
        self.shared.master_link.followed.note(&[]);
        tracing::warn!(%epoch, "replication: this server was promoted and takes changes");
        Ok(format!("PROMOTED epoch={epoch}"))
    }

    /// Follows the master of the options, after another server has become the master.
    fn follow_again(&mut self) {
        tracing::warn!("replication: this server follows its master again");
        self.is_master = false;
        self.shared.master_link.set_native_master(Some(self.master.clone()));
        self.side.databases = followed_databases(&self.shared, &self.keeper);
        // The followed databases refuse changes as replicas now. All others accept changes again.
        self.shared.databases.each(|database| database.set_superseded(false));
        self.note_progress();
    }

    /// Connects to the master. After an interruption, the next call continues the same attempt, so
    /// there is one at a time.
    fn connect(&mut self) -> Result<MasterStream, FollowEnd> {
        let tls = self.shared.options.databases.replication.native.tls.as_ref();
        let pending = match self.pending.take() {
            Some(pending) => pending,
            None => PendingStream::open(&self.master, tls)?,
        };
        loop {
            if let Some(outcome) = pending.wait() {
                return Ok(outcome?);
            }
            if !self.may_continue() || self.is_interrupted() {
                self.pending = Some(pending);
                return Err(FollowEnd::Stopped);
            }
        }
    }

    /// Announces to the former master that this server is the master.
    fn announce(&mut self) -> Result<(), FollowEnd> {
        let options = &self.shared.options.databases.replication;
        let (user, password) = login(&options.native)?;
        let epoch = promotion::server_epoch(&self.shared);
        let mut side = ReplicaSide::new(options.server_id, epoch.0, Vec::new());
        let mut stream = self.connect()?;
        let mut out = Vec::new();
        side.put_greeting(user.as_bytes(), password.as_bytes(), &mut out);
        stream.send(&out)?;
        let mut buffer = vec![0; BUFFER_LEN];
        let since = Instant::now();
        while since.elapsed() < ANSWER_TIME_MAX && self.may_continue() && !self.is_interrupted() {
            match stream.read(&mut buffer) {
                Ok(0) => return Err(io::Error::other("the server closed the connection").into()),
                Ok(len) => side.push(&buffer[..len]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(error) => return Err(error.into()),
            }
            if let Some(StreamEvent::Accepted { epoch, .. }) = side.next_event()? {
                promotion::supersede(&self.shared, Epoch(epoch)).map_err(StreamError::Failed)?;
                break;
            }
        }
        Ok(())
    }

    fn follow(&mut self) -> Result<(), FollowEnd> {
        let (user, password) = login(&self.shared.options.databases.replication.native)?;
        let mut stream = self.connect()?;
        let mut out = Vec::new();
        self.side.put_greeting(user.as_bytes(), password.as_bytes(), &mut out);
        stream.send(&out)?;
        let mut buffer = vec![0; BUFFER_LEN];
        let (mut heard_at, mut stated_at) = (Instant::now(), Instant::now());
        let mut stated = Vec::new();
        loop {
            if !self.may_continue() || self.is_interrupted() {
                return Err(FollowEnd::Stopped);
            }
            let is_idle = match stream.read(&mut buffer) {
                Ok(0) => {
                    return Err(io::Error::other("the master closed the connection").into());
                }
                Ok(len) => {
                    self.side.push(&buffer[..len]);
                    len < buffer.len()
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => true,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            };
            let outcome = self.apply();
            self.report_salvaged();
            self.note_progress();
            if outcome? {
                heard_at = Instant::now();
            } else if heard_at.elapsed() >= SILENCE_MAX {
                return Err(io::Error::other("no message from the master for 60 seconds").into());
            }
            wait_for_disk(&self.shared).map_err(StreamError::Failed)?;
            self.make_durable()?;
            if self.stored_at.elapsed() >= STORE_INTERVAL {
                self.store();
            }
            let positions = self.durable_positions();
            let is_due = match positions == stated {
                true => stated_at.elapsed() >= CHECK_INTERVAL,
                false => is_idle || stated_at.elapsed() >= STATE_INTERVAL,
            };
            // Until the master has accepted this replica, the positions may belong to another log.
            if is_due && self.shared.master_link.is_connected() {
                out.clear();
                self.side.put_positions(now_us(), positions.clone(), &mut out);
                stream.send(&out)?;
                (stated, stated_at) = (positions, Instant::now());
            }
        }
    }

    /// Applies all complete messages that have arrived. Returns false if there were none.
    fn apply(&mut self) -> Result<bool, StreamError> {
        let mut has_message = false;
        while let Some(event) = self.side.next_event()? {
            has_message = true;
            match event {
                StreamEvent::Applied | StreamEvent::Heartbeat => {}
                StreamEvent::Received => self.note_progress(),
                StreamEvent::MustStore => {
                    self.note_progress();
                    self.must_store()?;
                }
                StreamEvent::Accepted { master_id, copies, epoch } => {
                    // Records may be removed from now on.
                    self.note_progress();
                    self.keeper.note_epoch(epoch);
                    self.must_store()?;
                    self.shared.master_link.is_connected.store(true, Ordering::Relaxed);
                    self.shared.master_link.followed.note_master(master_id);
                    let master = format!("{}:{}", self.master.host, self.master.port);
                    tracing::info!(master_id, copies, "replication: follows {master}");
                    self.last_warning.clear();
                }
                StreamEvent::Copied { index, records } => {
                    tracing::info!(database = index, records, "replication: all records were copied");
                    self.must_store()?;
                }
            }
        }
        Ok(has_message)
    }

    /// Logs and counts the changes that only this server had.
    fn report_salvaged(&mut self) {
        for (database, log) in self.side.salvaged.drain(..) {
            tracing::warn!(
                database,
                changes = log.changes,
                "replication: changes that only this server had are not merged; `todana log {}` prints them",
                log.directory.display()
            );
            self.shared.master_link.note_salvaged(&log);
        }
    }

    /// Waits until the applied changes are durable, as the options of the databases state. The
    /// master may acknowledge them after it has received the positions. Fails if the server stops
    /// before that.
    fn make_durable(&self) -> Result<(), FollowEnd> {
        let may_continue = || self.may_continue();
        for followed in &self.side.databases {
            if !followed.database.await_durability(&may_continue).map_err(StreamError::Failed)? {
                return Err(FollowEnd::Stopped);
            }
        }
        Ok(())
    }

    /// Returns the positions, without those of databases whose copied records are only in memory.
    fn durable_positions(&self) -> Vec<AppliedPosition> {
        let mut positions = self.side.positions();
        for (position, followed) in positions.iter_mut().zip(&self.side.databases) {
            if followed.database.awaits_checkpoint() {
                position.applied = 0;
            }
        }
        positions
    }

    fn note_progress(&self) {
        let link = &self.shared.master_link;
        link.followed.note(&self.side.databases);
        let databases = &self.side.databases;
        let has_all = databases.iter().all(FollowedDatabase::has_all);
        let time_ms = databases.iter().map(|followed| followed.master_time_ms).min().unwrap_or_default();
        let position = databases.first().map_or(0, FollowedDatabase::applied);
        let lag = databases.iter().map(FollowedDatabase::lag_bytes).sum();
        link.note_native(position, lag, has_all.then_some(time_ms));
        if has_all {
            let age = Duration::from_millis(unix_ms().saturating_sub(time_ms));
            link.note_caught_up(Instant::now().checked_sub(age));
        }
    }

    /// Stores the positions, or ends the stream.
    fn must_store(&mut self) -> Result<(), StreamError> {
        if self.store() {
            return Ok(());
        }
        Err(StreamError::Refused("its changes cannot be applied while no position can be stored".into()))
    }

    /// Stores the positions. Returns false if that fails.
    fn store(&mut self) -> bool {
        self.stored_at = Instant::now();
        match self.keeper.store(&mut self.side.databases) {
            Ok(()) => {
                self.last_file_warning.clear();
                true
            }
            Err(error) => {
                let path = self.keeper.path().unwrap_or(Path::new("")).display();
                let text = format!("{path}: cannot store the replication position: {error}");
                if text != self.last_file_warning {
                    tracing::warn!("{text}; trying again every second");
                    self.last_file_warning = text;
                }
                false
            }
        }
    }
}

/// Makes the databases replicas, which continue at their stored positions.
fn followed_databases(shared: &SharedState, keeper: &PositionKeeper) -> Vec<FollowedDatabase> {
    let options = &shared.options.databases.replication.native;
    let followed = if options.database.is_some() { 1 } else { shared.databases.len() };
    let databases = shared.databases.iter().take(followed).enumerate();
    let one = |(index, served): (usize, &ServedDatabase)| {
        let number = options.database.unwrap_or(index as u16);
        let counters = served.database.worker_counters();
        let stored = keeper.state(index, number);
        let is_pair = options.accepts_writes;
        let followed = FollowedDatabase::new(number, &served.database, &counters, stored, is_pair);
        let directory = shared.persistence.exports.directory(index);
        match directory.filter(|_| served.database.log().is_some()) {
            Some(directory) => followed.in_directory(directory, stored),
            None => followed,
        }
    };
    databases.map(one).collect()
}

/// Returns the path of the file with the positions: the one of the options, or one in the first
/// data directory.
fn position_path(shared: &SharedState) -> Option<PathBuf> {
    let options = &shared.options.databases;
    let data = options.data.as_ref().map(|data| data.directory.join(REPLICA_POSITION));
    options.replication.position_file.clone().or(data)
}

/// Returns the IDs of a database. Those of a hash on disk change with each opening, so a position
/// becomes invalid if older files replace those of the hash.
fn own_ids(shared: &SharedState, index: usize) -> OwnIds {
    let database = &shared.databases[index].database;
    match (database.engine().durable(), shared.persistence.exports.directory(index)) {
        (Some(files), _) => OwnIds {
            found: files.contents_token_at_open().map(|token| token.opening_id()),
            left: Some(files.contents_token().opening_id()),
        },
        (None, directory) => {
            let id = directory.map(|directory| directory.identity().database_id);
            OwnIds { found: id, left: id }
        }
    }
}
