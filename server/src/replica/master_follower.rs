//! Runs the thread that follows a master: it connects, applies the master's changes, and stores its
//! position in the master's log.
//!
//! If the database is kept on disk, changes are synced before the position after them is stored. A
//! crash can therefore cause some changes to be applied twice, but none to be missed. After the
//! death of the process, the records that such changes depend on are put back first
//! ([`UndoLog`]).

use super::applied_message::{Applied, ApplyError, FollowError, MessageEvent};
use super::kyoto_master::KyotoMaster;
use super::master_link::FollowState;
use super::options::{MasterAddress, MasterProtocol};
use super::position;
use super::tyrant_master::TyrantMaster;
use crate::handle::StopStage;
use crate::shared::SharedState;
use std::io::{self, ErrorKind, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use todana::WorkerCounters;
use todana::disk::Disk;
use todana::kyoto::UnreadBytes;
use todana::replication::UndoLog;
use todana_core::{RecordLoad, Result};
use todana_protocol::kyoto::replication::put_acknowledgement;

/// The pause after a failed connection to the master, before the next attempt.
const RETRY: Duration = Duration::from_secs(1);
const CONNECT: Duration = Duration::from_secs(5);
/// The connection to the master is closed if no byte arrives for this time.
const SILENCE: Duration = Duration::from_secs(60);
/// The interval at which the position is stored.
const STORE_EVERY: Duration = Duration::from_secs(1);
/// The interval at which the thread checks whether the server stops or another master was chosen.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// The longest interval between two requests for changes. With a longer interval, the master would
/// disconnect its replica.
const INTERVAL_MAX: Duration = Duration::from_secs(10);

/// The stream of a master, in one of two protocols.
enum MasterStream {
    Kyoto(KyotoMaster),
    Tyrant(TyrantMaster),
}

impl MasterStream {
    fn new(shared: &Arc<SharedState>, counters: &[Arc<WorkerCounters>], state: &FollowState) -> MasterStream {
        match state.protocol {
            // A master of Todana's own protocol has a thread of its own.
            MasterProtocol::Kyoto | MasterProtocol::Native => {
                MasterStream::Kyoto(KyotoMaster::new(shared, counters))
            }
            MasterProtocol::Tyrant { checks_outcomes } => {
                MasterStream::Tyrant(TyrantMaster::new(shared, &counters[0], checks_outcomes))
            }
        }
    }

    /// Writes the request for the changes after a position.
    fn put_request(&self, position: u64, out: &mut Vec<u8>) {
        match self {
            MasterStream::Kyoto(master) => master.put_request(position, out),
            MasterStream::Tyrant(master) => master.put_request(position, out),
        }
    }

    fn apply_next(
        &mut self,
        unread: &[u8],
        undo: Option<&mut UndoLog>,
    ) -> std::result::Result<Applied, ApplyError> {
        match self {
            MasterStream::Kyoto(master) => master.apply_next(unread),
            MasterStream::Tyrant(master) => master.apply_next(unread, undo),
        }
    }

    /// Returns true if the master waits for an acknowledgement before it sends more.
    fn asks_again(&self) -> bool {
        matches!(self, MasterStream::Kyoto(_))
    }
}

/// The thread that follows the master.
pub(super) struct MasterFollower {
    shared: Arc<SharedState>,
    disk: Arc<dyn Disk>,
    /// The counters of this thread, by database. All connections use them, because a database keeps
    /// counters for ever.
    worker_counters: Vec<Arc<WorkerCounters>>,
    position_file: Option<PathBuf>,
    undo: Option<UndoLog>,
    /// The position that the file contains.
    stored: u64,
    stored_at: Instant,
    /// The last warning about the master and the last one about the file, so that a repeated
    /// warning is not logged again.
    last_warning: String,
    last_file_warning: String,
}

impl MasterFollower {
    /// Creates the follower. `stored` is the position that the file contains.
    pub(super) fn new(shared: &Arc<SharedState>, disk: Arc<dyn Disk>, stored: u64) -> MasterFollower {
        let databases = shared.databases.iter();
        let position_file = shared.options.databases.replication.position_file.clone();
        let undo_path = position_file.as_deref().map(position::undo_path_of);
        MasterFollower {
            worker_counters: databases.map(|served| served.database.worker_counters()).collect(),
            undo: undo_path.map(|path| UndoLog::new(path, stored)),
            position_file,
            stored,
            stored_at: Instant::now(),
            last_warning: String::new(),
            last_file_warning: String::new(),
            shared: Arc::clone(shared),
            disk,
        }
    }

    pub(super) fn run(mut self) {
        while self.may_continue() {
            let state = self.shared.master_link.follow_state();
            if let Some(master) = &state.master {
                let outcome = self.follow(master, &state);
                self.shared.master_link.is_connected.store(false, Ordering::Relaxed);
                match outcome {
                    Ok(()) | Err(FollowError::Interrupted) => {}
                    Err(FollowError::Differs(what)) => {
                        tracing::error!(
                            "master {}:{}: {what}; it is no longer followed until a client names it again",
                            master.host,
                            master.port
                        );
                        // A client may have named another master meanwhile.
                        self.shared.master_link.change(|now| {
                            if now.version == state.version {
                                now.master = None;
                            }
                        });
                    }
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

    fn may_continue(&self) -> bool {
        self.shared.lifecycle.stopping() == StopStage::No
    }

    /// Waits for this time, or until the follow state changes from the one with this version.
    fn pause(&self, version: u64, time: Duration) {
        let since = Instant::now();
        while since.elapsed() < time && self.may_continue() {
            let link = &self.shared.master_link;
            let state = link.lock();
            if state.version != version {
                return;
            }
            drop(link.changed.wait_timeout(state, CHECK_INTERVAL));
        }
    }

    fn follow(
        &mut self,
        master: &MasterAddress,
        state: &FollowState,
    ) -> std::result::Result<(), FollowError> {
        // The records belong to the position at which the process continues after its end.
        if let Some(undo) = self.undo.as_mut().filter(|undo| undo.must_restore())
            && undo.position() != state.timestamp
        {
            undo.begin(state.timestamp);
        }
        let mut dialect = MasterStream::new(&self.shared, &self.worker_counters, state);
        let stream = connect(master)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(CHECK_INTERVAL))?;
        stream.set_write_timeout(Some(SILENCE))?;
        let mut out = Vec::new();
        dialect.put_request(state.timestamp, &mut out);
        (&stream).write_all(&out)?;
        let mut last_received = Instant::now();
        let (mut input, mut wanted) = (UnreadBytes::new(&stream), 0);
        // Until it has caught up, a replica loads records.
        let mut is_loading = true;
        loop {
            if !self.may_continue() || self.shared.master_link.lock().version != state.version {
                return Err(FollowError::Interrupted);
            }
            match input.read_more(std::mem::take(&mut wanted)) {
                Ok(0) => return Err(FollowError::Lost("the master closed the connection".into())),
                Ok(_) => last_received = Instant::now(),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    if last_received.elapsed() >= SILENCE {
                        return Err(FollowError::Lost("no data for 60 seconds".into()));
                    }
                }
                Err(error) => return Err(error.into()),
            }
            if is_loading {
                let load = RecordLoad { all_bytes: 0, next_bytes: input.unread().len() as u64 };
                self.shared.databases.iter().for_each(|served| served.database.compress_for_load(load));
            }
            let mut last = None;
            let (mut has_caught_up, mut must_store) = (false, false);
            let outcome = loop {
                match dialect.apply_next(input.unread(), self.undo.as_mut()) {
                    Ok(Applied::NeedMore { at_least }) => {
                        wanted = at_least;
                        break Ok(());
                    }
                    Ok(Applied::Message { consumed, position, event }) => {
                        last = position.or(last);
                        match event {
                            MessageEvent::None => {}
                            MessageEvent::CaughtUp => has_caught_up = true,
                            MessageEvent::MustStore => must_store = true,
                            MessageEvent::Accepted => {
                                self.shared.master_link.is_connected.store(true, Ordering::Relaxed);
                                tracing::info!(
                                    from = state.timestamp,
                                    "replication: follows {}:{}",
                                    master.host,
                                    master.port
                                );
                                self.last_warning.clear();
                            }
                        }
                        input.consume(consumed);
                        if self.undo.as_ref().is_some_and(UndoLog::is_large) {
                            self.note_position(state, last, false);
                            self.store_position();
                        }
                    }
                    Err(ApplyError { position, why }) => {
                        last = position.or(last);
                        break Err(why);
                    }
                }
            };
            is_loading &= !has_caught_up;
            self.note_position(state, last, has_caught_up && outcome.is_ok());
            outcome?;
            wait_for_disk(&self.shared)?;
            if must_store || self.stored_at.elapsed() >= STORE_EVERY {
                self.store_position();
            }
            if has_caught_up && dialect.asks_again() {
                self.pause(state.version, state.interval.min(INTERVAL_MAX));
                out.clear();
                put_acknowledgement(&mut out);
                (&stream).write_all(&out)?;
            }
        }
    }

    /// Notes the position of the last applied change, if there is one, unless another master has
    /// been chosen.
    fn note_position(&self, state: &FollowState, last: Option<u64>, has_caught_up: bool) {
        let mut now = self.shared.master_link.lock();
        if now.version == state.version {
            now.timestamp = last.unwrap_or(now.timestamp);
            if has_caught_up {
                self.shared.master_link.note_caught_up(Some(Instant::now()));
            }
        }
    }

    /// Syncs the changes before the position, and then stores the position.
    fn store_position(&mut self) {
        self.stored_at = Instant::now();
        let FollowState { protocol, timestamp, .. } = self.shared.master_link.follow_state();
        let Some(path) = self.position_file.as_deref().filter(|_| timestamp != self.stored) else { return };
        let synced = self.shared.databases.iter().try_for_each(|served| served.database.sync());
        let outcome = synced
            .map_err(io::Error::other)
            .and_then(|()| position::write(&*self.disk, path, protocol, timestamp));
        match outcome {
            Ok(()) => {
                self.stored = timestamp;
                if let Some(undo) = &mut self.undo {
                    undo.begin(timestamp);
                }
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

/// Waits while too many changes wait to be written to disk.
pub(super) fn wait_for_disk(shared: &SharedState) -> Result<()> {
    let may_continue = || shared.lifecycle.stopping() == StopStage::No;
    for served in shared.databases.iter() {
        if let Some(log) = served.database.log()
            && log.is_backlogged()
        {
            log.wait_while(log.end(), &may_continue)?;
        }
        let database = &served.database;
        while !database.front_has_room() && !database.has_stuck_checkpoints() && may_continue() {
            std::thread::park_timeout(CHECK_INTERVAL / 10);
        }
    }
    Ok(())
}

pub(super) fn connect(master: &MasterAddress) -> io::Result<TcpStream> {
    let mut outcome = Err(io::Error::new(ErrorKind::NotFound, "the host name has no address"));
    for address in (master.host.as_str(), master.port).to_socket_addrs()? {
        outcome = TcpStream::connect_timeout(&address, CONNECT);
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}
