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
use todana::replication::NANOS;
use todana::{Action, Overwrite, Record, WorkerCounters, kyoto};
use todana_core::{Attributes, Error, Expiry, Result};
use todana_protocol::kyoto::binary::Hello;
use todana_protocol::kyoto::message::{Change, Message};
use todana_protocol::kyoto::replication::{News, Replica, ReplicaStep, put_acknowledgement};

/// A master that cannot be had is tried again after so long.
const RETRY: Duration = Duration::from_secs(1);
const CONNECT: Duration = Duration::from_secs(5);
/// A master that says nothing for so long is none.
const SILENCE: Duration = Duration::from_secs(60);
/// The position is kept so often.
const KEEP_EVERY: Duration = Duration::from_secs(1);
/// It is asked so often whether the server stops, or another master is wanted.
const ASK_EVERY: Duration = Duration::from_millis(100);
/// No interval is longer: the master would take its replica for dead.
const INTERVAL_MAX: Duration = Duration::from_secs(10);

/// Whom this server follows, and how far it has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) master: Option<MasterAddress>,
    pub(crate) timestamp: u64,
    pub(crate) interval: Duration,
    /// Counts changes of the others by whoever looks after the server.
    version: u64,
}

/// Whom this server follows, for all threads.
#[derive(Default)]
pub(crate) struct Link {
    standing: Mutex<Standing>,
    changed: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
    is_connected: AtomicBool,
    /// When this server last had all that its master had.
    had_all_at: Mutex<Option<Instant>>,
}

/// Why a master is not followed any further.
enum Left {
    /// The server stops, or another one is wanted.
    Called,
    Lost(String),
}

impl From<io::Error> for Left {
    fn from(error: io::Error) -> Left {
        Left::Lost(error.to_string())
    }
}

impl From<Error> for Left {
    fn from(error: Error) -> Left {
        Left::Lost(error.to_string())
    }
}

impl Link {
    fn lock(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where it stands.
    pub(crate) fn standing(&self) -> Standing {
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
        match (had_all_at, self.lock().timestamp / NANOS) {
            (Some(then), _) => then.elapsed(),
            (None, 0) => age,
            (None, position_s) => Duration::from_secs(now_s.saturating_sub(position_s)),
        }
    }

    fn note_all(&self, when: Option<Instant>) {
        *self.had_all_at.lock().unwrap_or_else(PoisonError::into_inner) = when;
    }

    /// Follows another master, or none, from now on.
    pub(crate) fn tune(&self, change: impl FnOnce(&mut Standing)) {
        let mut standing = self.lock();
        let before = standing.master.clone();
        change(&mut standing);
        standing.version += 1;
        if standing.master != before {
            self.note_all(None);
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
        *self.lock() = Standing { master, timestamp, interval, version: 0 };
        let follower = Follower::new(shared);
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

struct Follower {
    shared: Arc<Shared>,
    worker_counters: Vec<Arc<WorkerCounters>>,
    position_file: Option<PathBuf>,
    /// What the file holds.
    kept: u64,
    kept_at: Instant,
    /// Said already, while nothing else has happened: of the master, and of the file.
    told: String,
    told_of_file: String,
}

impl Follower {
    fn new(shared: &Arc<Shared>) -> Follower {
        Follower {
            worker_counters: shared
                .databases
                .iter()
                .map(|served| served.database.worker_counters())
                .collect(),
            position_file: shared.options.databases.replication.position_file.clone(),
            kept: shared.link.standing().timestamp,
            kept_at: Instant::now(),
            told: String::new(),
            told_of_file: String::new(),
            shared: Arc::clone(shared),
        }
    }

    fn run(mut self) {
        while self.goes_on() {
            let standing = self.shared.link.standing();
            if let Some(master) = &standing.master {
                let outcome = self.follow(master, &standing);
                self.shared.link.is_connected.store(false, Ordering::Relaxed);
                match outcome {
                    Ok(()) | Err(Left::Called) => {}
                    Err(Left::Lost(why)) => {
                        let text = format!("master {}:{}: {why}", master.host, master.port);
                        if text != self.told {
                            tracing::warn!("{text}; it is tried again each second");
                            self.told = text;
                        }
                    }
                }
                self.keep();
            }
            self.rest(standing.version, if standing.master.is_some() { RETRY } else { Duration::MAX });
        }
    }

    fn goes_on(&self) -> bool {
        self.shared.lifecycle.stopping() == Stopping::No
    }

    /// Waits so long, or until it is called.
    fn rest(&self, version: u64, time: Duration) {
        let since = Instant::now();
        while since.elapsed() < time && self.goes_on() {
            let link = &self.shared.link;
            let standing = link.lock();
            if standing.version != version {
                return;
            }
            drop(link.changed.wait_timeout(standing, ASK_EVERY));
        }
    }

    fn follow(&mut self, master: &MasterAddress, standing: &Standing) -> std::result::Result<(), Left> {
        let server_id = self.shared.options.databases.replication.server_id;
        let stream = connect(master)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ASK_EVERY))?;
        stream.set_write_timeout(Some(SILENCE))?;
        let mut out = Vec::new();
        Hello { timestamp: standing.timestamp, server_id, wants_only: false }.put(&mut out);
        (&stream).write_all(&out)?;
        let (mut replica, mut heard) = (Replica::default(), Instant::now());
        let (mut input, mut wanted) = (UnreadBytes::new(&stream), 0);
        loop {
            if !self.goes_on() || self.shared.link.lock().version != standing.version {
                return Err(Left::Called);
            }
            match input.read_more(std::mem::take(&mut wanted)) {
                Ok(0) => return Err(Left::Lost("it has closed the connection".into())),
                Ok(_) => heard = Instant::now(),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    if heard.elapsed() >= SILENCE {
                        return Err(Left::Lost("it has been silent for too long".into()));
                    }
                }
                Err(error) => return Err(error.into()),
            }
            let mut last = None;
            let (mut has_caught_up, mut has_cleared) = (false, false);
            let outcome = loop {
                match replica.decode(input.unread()) {
                    ReplicaStep::News { consumed, news } => {
                        match self.take(&news, server_id) {
                            Ok(timestamp) => last = timestamp.or(last),
                            Err(left) => break Err(left),
                        }
                        match news {
                            News::CaughtUp { .. } => has_caught_up = true,
                            News::Update { message: Message { change: Change::Clear, .. }, .. } => {
                                has_cleared = true;
                            }
                            News::Accepted => {
                                self.shared.link.is_connected.store(true, Ordering::Relaxed);
                                tracing::info!(
                                    from = standing.timestamp,
                                    "follows {}:{}",
                                    master.host,
                                    master.port
                                );
                                self.told.clear();
                            }
                            _ => {}
                        }
                        input.consume(consumed);
                    }
                    ReplicaStep::NeedMore { at_least } => {
                        wanted = at_least;
                        break Ok(());
                    }
                    ReplicaStep::Malformed => break Err(Left::Lost("what it says is no replication".into())),
                }
            };
            if let Some(timestamp) = last {
                let mut now = self.shared.link.lock();
                if now.version == standing.version {
                    now.timestamp = timestamp;
                    if has_caught_up && outcome.is_ok() {
                        self.shared.link.note_all(Some(Instant::now()));
                    }
                }
            }
            outcome?;
            self.relieve()?;
            // A clear that is taken twice takes along what has been stored here in between.
            if has_cleared || self.kept_at.elapsed() >= KEEP_EVERY {
                self.keep();
            }
            if has_caught_up {
                self.rest(standing.version, standing.interval.min(INTERVAL_MAX));
                out.clear();
                put_acknowledgement(&mut out);
                (&stream).write_all(&out)?;
            }
        }
    }

    /// Takes what the master says; returns its time stamp.
    fn take(&self, news: &News<'_>, server_id: u16) -> std::result::Result<Option<u64>, Left> {
        match *news {
            News::Accepted => Ok(None),
            News::Refused => Err(Left::Lost("it has no update log to follow, or cannot read it".into())),
            News::Progress { timestamp } | News::CaughtUp { timestamp } => Ok(Some(timestamp)),
            News::Update { timestamp, message } => {
                if message.server_id != server_id {
                    self.apply(&message)?;
                }
                Ok(Some(timestamp))
            }
        }
    }

    fn apply(&self, message: &Message<'_>) -> Result<()> {
        let number = usize::from(message.database);
        // Databases that are not here are the master's alone.
        let Some(served) = self.shared.databases.get(number) else { return Ok(()) };
        let (database, worker_counters, origin) =
            (&served.database, &self.worker_counters[number], u32::from(message.server_id));
        match message.change {
            Change::Set { key, stored } => {
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
            Change::Remove { key } => {
                database.visit_record_from(origin, worker_counters, key, &mut Overwrite(Action::Remove))?;
            }
            Change::Clear => {
                database.clear_from(origin, worker_counters)?;
            }
            Change::Other { .. } => {}
        }
        Ok(())
    }

    /// Waits where more waits for the disk than there should.
    fn relieve(&self) -> Result<()> {
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
    fn keep(&mut self) {
        self.kept_at = Instant::now();
        let timestamp = self.shared.link.lock().timestamp;
        let Some(path) = self.position_file.as_deref().filter(|_| timestamp != self.kept) else { return };
        let synced = self.shared.databases.iter().try_for_each(|served| served.database.sync());
        let outcome = synced.map_err(io::Error::other).and_then(|()| position::write(path, timestamp));
        match outcome {
            Ok(()) => {
                self.kept = timestamp;
                self.told_of_file.clear();
            }
            Err(error) => {
                let text =
                    format!("the position in the master's log is not kept in {}: {error}", path.display());
                if text != self.told_of_file {
                    tracing::warn!("{text}; it is tried again each second");
                    self.told_of_file = text;
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
