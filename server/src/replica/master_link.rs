//! The thread that follows a master: it connects, applies the master's changes, and stores its
//! position in the master's log.
//!
//! Changes are synced before the position after them is stored, if the database is kept on disk. So
//! after a crash a few changes are applied twice, and none is missed.

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

/// The pause before a failed connection to the master is tried again.
const RETRY: Duration = Duration::from_secs(1);
const CONNECT: Duration = Duration::from_secs(5);
/// The time without any bytes after which the connection to the master is given up.
const SILENCE: Duration = Duration::from_secs(60);
/// The interval at which the position is stored.
const STORE_EVERY: Duration = Duration::from_secs(1);
/// The interval of the checks whether the server stops or another master is wanted.
const ASK_EVERY: Duration = Duration::from_millis(100);
/// The longest interval between requests. With a longer one the master would take its replica for
/// dead.
const INTERVAL_MAX: Duration = Duration::from_secs(10);

/// The master that this server follows, and its position in the master's log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FollowState {
    pub(crate) master: Option<MasterAddress>,
    pub(crate) timestamp: u64,
    pub(crate) interval: Duration,
    /// Counts the changes of the other fields by an operator.
    version: u64,
}

/// The link to the master, shared by all threads.
#[derive(Default)]
pub(crate) struct MasterLink {
    state: Mutex<FollowState>,
    changed: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
    is_connected: AtomicBool,
    /// The last moment when this server had all records of its master.
    had_all_at: Mutex<Option<Instant>>,
}

/// The reason why a master is no longer followed.
enum FollowError {
    /// The server stops, or another master is wanted.
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

    /// Returns the master and the position.
    pub(crate) fn follow_state(&self) -> FollowState {
        self.lock().clone()
    }

    /// Returns true while a master has accepted this server as its replica.
    pub(crate) fn is_connected(&self) -> bool {
        self.is_connected.load(Ordering::Relaxed)
    }

    /// Returns how long ago this server had all records of its master. Before the first such
    /// moment, returns the age of the position, or `age` if there is no position.
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

    /// Changes the master, the position or the interval from now on.
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

    /// Starts the thread if there may be a master. A position that cannot be read is logged, and
    /// all changes of the master are applied again.
    pub(crate) fn start(&self, shared: &Arc<Shared>) -> io::Result<()> {
        let options = &shared.options.databases.replication;
        if options.master.is_none() && options.position_file.is_none() {
            return Ok(());
        }
        let timestamp =
            options.position_file.as_deref().map_or(Ok(0), position::read).unwrap_or_else(|error| {
                tracing::error!("{error}; replication begins with all changes of the master");
                0
            });
        let (master, interval) = (options.master.clone(), options.interval);
        *self.lock() = FollowState { master, timestamp, interval, version: 0 };
        let follower = MasterFollower::new(shared);
        let thread = std::thread::Builder::new().name("link".into()).spawn(move || follower.run())?;
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(())
    }

    /// Waits for the thread, which ends by itself when the server stops, until `gives_up` returns
    /// true.
    pub(crate) fn end(&self, gives_up: &dyn Fn() -> bool) {
        let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        if crate::databases::has_ended(&thread, gives_up) && thread.join().is_err() {
            tracing::error!("replication: the thread that follows the master panicked");
        }
    }
}

struct MasterFollower {
    shared: Arc<Shared>,
    worker_counters: Vec<Arc<WorkerCounters>>,
    position_file: Option<PathBuf>,
    /// The position in the file.
    stored: u64,
    stored_at: Instant,
    /// The last warnings about the master and about the file, so that a repeated one is not logged
    /// again.
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
                            tracing::warn!("{text}; trying again every second");
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

    /// Waits for this time, or until the follow state changes.
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
                Ok(0) => return Err(FollowError::Lost("the master closed the connection".into())),
                Ok(_) => heard = Instant::now(),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    if heard.elapsed() >= SILENCE {
                        return Err(FollowError::Lost("no data for 60 seconds".into()));
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
                        break Err(FollowError::Lost("the replication stream is malformed".into()));
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
            // A clear that is applied twice would also remove records that were stored here in
            // between.
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

    /// Applies a message of the master. Returns its time stamp.
    fn apply_news(
        &self,
        news: &MasterMessage<'_>,
        server_id: u16,
    ) -> std::result::Result<Option<u64>, FollowError> {
        match *news {
            MasterMessage::Accepted => Ok(None),
            MasterMessage::Refused => {
                Err(FollowError::Lost("the master has no update log, or cannot read it".into()))
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
        // The master may have databases that this server does not have.
        let Some(served) = self.shared.databases.get(number) else { return Ok(()) };
        let (database, worker_counters, origin) =
            (&served.database, &self.worker_counters[number], u32::from(message.server_id));
        match message.change {
            UpdateChange::Set { key, stored } => {
                let (expiry, value) = if served.name.tuning.persistent {
                    (Expiry::Never, stored.as_raw().unwrap_or_default())
                } else {
                    let Some((time, value)) = stored.split() else {
                        tracing::warn!("replication: a record without its expiry time was skipped");
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

    /// Waits while too many changes wait for the disk.
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

    /// Stores the position, after syncing the changes before it.
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
                let text = format!("{}: cannot store the replication position: {error}", path.display());
                if text != self.last_file_warning {
                    tracing::warn!("{text}; trying again every second");
                    self.last_file_warning = text;
                }
            }
        }
    }
}

fn connect(master: &MasterAddress) -> io::Result<TcpStream> {
    let mut outcome = Err(io::Error::new(ErrorKind::NotFound, "the host name has no address"));
    for address in (master.host.as_str(), master.port).to_socket_addrs()? {
        outcome = TcpStream::connect_timeout(&address, CONNECT);
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}
