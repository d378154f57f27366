//! The thread that follows a master: it connects, takes what comes, and keeps how far it has come.
//!
//! What has been taken is on disk before the position behind it is kept, where there is a disk: after a crash a little is taken
//! twice, and nothing is missed.

use super::options::MasterAddress;
use super::position;
use crate::handle::Stopping;
use crate::shared::Shared;
use std::io::{self, ErrorKind, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use todana::kyoto::UnreadBytes;
use todana::replication::STAMPS_PER_SECOND;
use todana::{Action, Overwrite, Record, WorkerCounters, kyoto};
use todana_core::{Attributes, Error, Expiry, Result};
use todana_protocol::kyoto::binary::ReplicaRequest;
use todana_protocol::kyoto::message::{UpdateChange, UpdateMessage};
use todana_protocol::kyoto::replication::{MasterMessage, ReplicaDecoder, ReplicaStep, put_acknowledgement};

/// A master that cannot be had is tried again after so long.
const RETRY: Duration = Duration::from_secs(1);
const CONNECT: Duration = Duration::from_secs(5);
/// A master that says nothing for so long is none.
const SILENCE: Duration = Duration::from_secs(60);
/// The position is kept so often.
const STORE_EVERY: Duration = Duration::from_secs(1);
/// It is asked so often whether the server stops, or another master is wanted.
const ASK_EVERY: Duration = Duration::from_millis(100);
/// No interval is longer: the master would take its replica for dead.
const INTERVAL_MAX: Duration = Duration::from_secs(10);

/// Whom this server follows, and how far it has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FollowState {
    pub(crate) master: Option<MasterAddress>,
    pub(crate) timestamp: u64,
    pub(crate) interval: Duration,
    /// Counts changes of the others by whoever looks after the server.
    version: u64,
}

/// Whom this server follows, for all threads.
#[derive(Default)]
pub(crate) struct MasterLink {
    state: Mutex<FollowState>,
    changed: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
    is_connected: AtomicBool,
    /// When this server last had all that its master had.
    had_all_at: Mutex<Option<Instant>>,
}

/// Why a master is not followed any further.
enum FollowError {
    /// The server stops, or another one is wanted.
    Interrupted,
    Lost(String),
}

impl From<io::Error> for FollowError {
    fn from(error: io::Error) -> FollowError {
        FollowError::Lost(error.to_string())
    }
}

impl From<Error> for FollowError {
    fn from(error: Error) -> FollowError {
        FollowError::Lost(error.to_string())
    }
}

impl MasterLink {
    fn lock(&self) -> MutexGuard<'_, FollowState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where it stands.
    pub(crate) fn follow_state(&self) -> FollowState {
        self.lock().clone()
    }

    /// Whether a master is being followed, which has accepted that.
    pub(crate) fn is_connected(&self) -> bool {
        self.is_connected.load(Ordering::Relaxed)
    }

    /// How long ago this server had all that its master had; until it has had that once, how old its position is, or else for how
    /// long it has been there (`age`).
    pub(crate) fn delay(&self, now_s: u64, age: Duration) -> Duration {
        let had_all_at = *self.had_all_at.lock().unwrap_or_else(PoisonError::into_inner);
        match (had_all_at, self.lock().timestamp / STAMPS_PER_SECOND) {
            (Some(then), _) => then.elapsed(),
            (None, 0) => age,
            (None, position_s) => Duration::from_secs(now_s.saturating_sub(position_s)),
        }
    }

    fn note_caught_up(&self, when: Option<Instant>) {
        *self.had_all_at.lock().unwrap_or_else(PoisonError::into_inner) = when;
    }

    /// Follows another master, or none, from now on.
    pub(crate) fn change(&self, set: impl FnOnce(&mut FollowState)) {
        let mut state = self.lock();
        let before = state.master.clone();
        set(&mut state);
        state.version += 1;
        if state.master != before {
            self.note_caught_up(None);
        }
        self.changed.notify_all();
    }

    /// Starts the thread, where there may be a master. A position that cannot be read is told, and all that the master has is taken again.
    pub(crate) fn start(&self, shared: &Arc<Shared>) -> io::Result<()> {
        let options = &shared.options.databases.replication;
        if options.master.is_none() && options.position_file.is_none() {
            return Ok(());
        }
        let timestamp =
            options.position_file.as_deref().map_or(Ok(0), position::read).unwrap_or_else(|error| {
                tracing::error!("{error}: the master is followed from the beginning");
                0
            });
        let (master, interval) = (options.master.clone(), options.interval);
        *self.lock() = FollowState { master, timestamp, interval, version: 0 };
        let follower = MasterFollower::new(shared);
        let thread = std::thread::Builder::new().name("link".into()).spawn(move || follower.run())?;
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(())
    }

    /// Waits for the thread, which finds out by itself that the server stops, until `gives_up` says so.
    pub(crate) fn end(&self, gives_up: &dyn Fn() -> bool) {
        let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        if crate::databases::has_ended(&thread, gives_up) && thread.join().is_err() {
            tracing::error!("the thread that follows a master ended by a panic");
        }
    }
}

struct MasterFollower {
    shared: Arc<Shared>,
    worker_counters: Vec<Arc<WorkerCounters>>,
    position_file: Option<PathBuf>,
    /// What the file holds.
    stored: u64,
    stored_at: Instant,
    /// Said already, while nothing else has happened: of the master, and of the file.
    last_warning: String,
    last_file_warning: String,
}

impl MasterFollower {
    fn new(shared: &Arc<Shared>) -> MasterFollower {
        MasterFollower {
            worker_counters: shared
                .databases
                .iter()
                .map(|served| served.database.worker_counters())
                .collect(),
            position_file: shared.options.databases.replication.position_file.clone(),
            stored: shared.master_link.follow_state().timestamp,
            stored_at: Instant::now(),
            last_warning: String::new(),
            last_file_warning: String::new(),
            shared: Arc::clone(shared),
        }
    }

    fn run(mut self) {
        while self.goes_on() {
            let state = self.shared.master_link.follow_state();
            if let Some(master) = &state.master {
                let outcome = self.follow(master, &state);
                self.shared.master_link.is_connected.store(false, Ordering::Relaxed);
                match outcome {
                    Ok(()) | Err(FollowError::Interrupted) => {}
                    Err(FollowError::Lost(why)) => {
                        let text = format!("master {}:{}: {why}", master.host, master.port);
                        if text != self.last_warning {
                            tracing::warn!("{text}; it is tried again each second");
                            self.last_warning = text;
                        }
                    }
                }
                self.store_position();
            }
            self.pause(state.version, if state.master.is_some() { RETRY } else { Duration::MAX });
        }
    }

    fn goes_on(&self) -> bool {
        self.shared.lifecycle.stopping() == Stopping::No
    }

    /// Waits so long, or until it is called.
    fn pause(&self, version: u64, time: Duration) {
        let since = Instant::now();
        while since.elapsed() < time && self.goes_on() {
            let link = &self.shared.master_link;
            let state = link.lock();
            if state.version != version {
                return;
            }
            drop(link.changed.wait_timeout(state, ASK_EVERY));
        }
    }

    fn follow(
        &mut self,
        master: &MasterAddress,
        state: &FollowState,
    ) -> std::result::Result<(), FollowError> {
        let server_id = self.shared.options.databases.replication.server_id;
        let stream = connect(master)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ASK_EVERY))?;
        stream.set_write_timeout(Some(SILENCE))?;
        let mut out = Vec::new();
        ReplicaRequest { timestamp: state.timestamp, server_id, wants_only: false }.put(&mut out);
        (&stream).write_all(&out)?;
        let (mut replica, mut heard) = (ReplicaDecoder::default(), Instant::now());
        let (mut input, mut wanted) = (UnreadBytes::new(&stream), 0);
        loop {
            if !self.goes_on() || self.shared.master_link.lock().version != state.version {
                return Err(FollowError::Interrupted);
            }
            match input.read_more(std::mem::take(&mut wanted)) {
                Ok(0) => return Err(FollowError::Lost("it has closed the connection".into())),
                Ok(_) => heard = Instant::now(),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    if heard.elapsed() >= SILENCE {
                        return Err(FollowError::Lost("it has been silent for too long".into()));
                    }
                }
                Err(error) => return Err(error.into()),
            }
            let mut last = None;
            let (mut has_caught_up, mut has_cleared) = (false, false);
            let outcome = loop {
                match replica.decode(input.unread()) {
                    ReplicaStep::News { consumed, news } => {
                        match self.apply_news(&news, server_id) {
                            Ok(timestamp) => last = timestamp.or(last),
                            Err(left) => break Err(left),
                        }
                        match news {
                            MasterMessage::CaughtUp { .. } => has_caught_up = true,
                            MasterMessage::Update {
                                message: UpdateMessage { change: UpdateChange::Clear, .. },
                                ..
                            } => {
                                has_cleared = true;
                            }
                            MasterMessage::Accepted => {
                                self.shared.master_link.is_connected.store(true, Ordering::Relaxed);
                                tracing::info!(
                                    from = state.timestamp,
                                    "follows {}:{}",
                                    master.host,
                                    master.port
                                );
                                self.last_warning.clear();
                            }
                            _ => {}
                        }
                        input.consume(consumed);
                    }
                    ReplicaStep::NeedMore { at_least } => {
                        wanted = at_least;
                        break Ok(());
                    }
                    ReplicaStep::Malformed => {
                        break Err(FollowError::Lost("what it says is no replication".into()));
                    }
                }
            };
            if let Some(timestamp) = last {
                let mut now = self.shared.master_link.lock();
                if now.version == state.version {
                    now.timestamp = timestamp;
                    if has_caught_up && outcome.is_ok() {
                        self.shared.master_link.note_caught_up(Some(Instant::now()));
                    }
                }
            }
            outcome?;
            self.wait_for_disk()?;
            // A clear that is taken twice takes along what has been stored here in between.
            if has_cleared || self.stored_at.elapsed() >= STORE_EVERY {
                self.store_position();
            }
            if has_caught_up {
                self.pause(state.version, state.interval.min(INTERVAL_MAX));
                out.clear();
                put_acknowledgement(&mut out);
                (&stream).write_all(&out)?;
            }
        }
    }

    /// Takes what the master says; returns its time stamp.
    fn apply_news(
        &self,
        news: &MasterMessage<'_>,
        server_id: u16,
    ) -> std::result::Result<Option<u64>, FollowError> {
        match *news {
            MasterMessage::Accepted => Ok(None),
            MasterMessage::Refused => {
                Err(FollowError::Lost("it has no update log to follow, or cannot read it".into()))
            }
            MasterMessage::Progress { timestamp } | MasterMessage::CaughtUp { timestamp } => {
                Ok(Some(timestamp))
            }
            MasterMessage::Update { timestamp, message } => {
                if message.server_id != server_id {
                    self.apply(&message)?;
                }
                Ok(Some(timestamp))
            }
        }
    }

    fn apply(&self, message: &UpdateMessage<'_>) -> Result<()> {
        let number = usize::from(message.database);
        // Databases that are not here are the master's alone.
        let Some(served) = self.shared.databases.get(number) else { return Ok(()) };
        let (database, worker_counters, origin) =
            (&served.database, &self.worker_counters[number], u32::from(message.server_id));
        match message.change {
            UpdateChange::Set { key, stored } => {
                let (expiry, value) = if served.name.tuning.persistent {
                    (Expiry::Never, stored.as_raw().unwrap_or_default())
                } else {
                    let Some((time, value)) = stored.split() else {
                        tracing::warn!("the master has sent a record without its time: it is left out");
                        return Ok(());
                    };
                    (kyoto::expiry_of(time), value)
                };
                let record = Record::new(value, Attributes { expiry, ..Attributes::default() });
                database.visit_record_from(
                    origin,
                    worker_counters,
                    key,
                    &mut Overwrite(Action::Put(record)),
                )?;
            }
            UpdateChange::Remove { key } => {
                database.visit_record_from(origin, worker_counters, key, &mut Overwrite(Action::Remove))?;
            }
            UpdateChange::Clear => {
                database.clear_from(origin, worker_counters)?;
            }
            UpdateChange::Other { .. } => {}
        }
        Ok(())
    }

    /// Waits where more waits for the disk than there should.
    fn wait_for_disk(&self) -> Result<()> {
        for served in self.shared.databases.iter() {
            if let Some(log) = served.database.log()
                && log.is_backlogged()
            {
                log.wait_while(log.end(), &|| self.goes_on())?;
            }
            let database = &served.database;
            while !database.front_has_room() && !database.has_stuck_checkpoints() && self.goes_on() {
                std::thread::park_timeout(ASK_EVERY / 10);
            }
        }
        Ok(())
    }

    /// Keeps the position, once what is before it is on disk.
    fn store_position(&mut self) {
        self.stored_at = Instant::now();
        let timestamp = self.shared.master_link.lock().timestamp;
        let Some(path) = self.position_file.as_deref().filter(|_| timestamp != self.stored) else { return };
        let synced = self.shared.databases.iter().try_for_each(|served| served.database.sync());
        let outcome = synced.map_err(io::Error::other).and_then(|()| position::write(path, timestamp));
        match outcome {
            Ok(()) => {
                self.stored = timestamp;
                self.last_file_warning.clear();
            }
            Err(error) => {
                let text =
                    format!("the position in the master's log is not stored in {}: {error}", path.display());
                if text != self.last_file_warning {
                    tracing::warn!("{text}; it is tried again each second");
                    self.last_file_warning = text;
                }
            }
        }
    }
}

fn connect(master: &MasterAddress) -> io::Result<TcpStream> {
    let mut outcome = Err(io::Error::new(ErrorKind::NotFound, "its name has no address"));
    for address in (master.host.as_str(), master.port).to_socket_addrs()? {
        outcome = TcpStream::connect_timeout(&address, CONNECT);
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}
