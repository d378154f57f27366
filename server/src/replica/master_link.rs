//! The link to the master: its address and the position in its log, which clients can change, and
//! the thread that follows it ([`MasterFollower`]).

use super::freshness::FollowedPositions;
use super::master_follower::MasterFollower;
use super::native::{NativeFollower, promote_former_master, refuse_former_master};
use super::options::{MasterAddress, MasterProtocol};
use super::position;
use crate::databases::ServedDatabase;
use crate::handle::StopStage;
use crate::shared::SharedState;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use todana::disk::Disk;
use todana::replication::STAMPS_PER_SECOND;
use todana::{Durability, SalvagedLog};

/// The interval at which a request for a promotion checks whether the server stops.
const PROMOTION_CHECK: Duration = Duration::from_millis(100);

/// The master that this server follows, and the position in its log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FollowState {
    pub(crate) master: Option<MasterAddress>,
    pub(crate) protocol: MasterProtocol,
    /// The position in the master's log, in the units of the protocol.
    pub(crate) timestamp: u64,
    pub(crate) interval: Duration,
    /// The number of times that an operator has changed the other fields.
    pub(super) version: u64,
    /// The time of the master up to which this server has its changes, in Unix milliseconds, if the
    /// protocol is Todana's own. Its positions contain no time.
    master_time_ms: u64,
}

impl FollowState {
    /// Returns the time of the position, in Unix time.
    pub(crate) fn position_time(&self) -> Duration {
        if self.protocol == MasterProtocol::Native {
            return Duration::from_millis(self.master_time_ms);
        }
        let stamps = self.protocol.stamps().per_second();
        let nanos_per_stamp = STAMPS_PER_SECOND / stamps;
        Duration::from_secs(self.timestamp / stamps)
            + Duration::from_nanos(self.timestamp % stamps * nanos_per_stamp)
    }
}

/// A request to make this server the master.
pub(super) struct PromotionRequest {
    pub(super) is_forced: bool,
    answer: Sender<Result<String, String>>,
}

impl PromotionRequest {
    /// Answers the request: with a line for the operator, or the reason of a failure.
    pub(super) fn answer(self, outcome: Result<String, String>) {
        // If this fails, the connection of the operator has ended.
        let _ = self.answer.send(outcome);
    }
}

/// The link to the master, shared by all threads.
#[derive(Default)]
pub(crate) struct MasterLink {
    state: Mutex<FollowState>,
    pub(super) changed: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
    promotions: Mutex<Vec<PromotionRequest>>,
    pub(super) is_connected: AtomicBool,
    /// The bytes of the logs of a master that have not been applied, if the protocol is Todana's
    /// own.
    lag_bytes: AtomicU64,
    /// The databases that follow a master in Todana's own protocol.
    pub(crate) followed: FollowedPositions,
    /// The number of changes that were salvaged, because only this server had them, and the
    /// directory of the last ones.
    salvaged: Mutex<(u64, PathBuf)>,
    /// The last moment when this server had all records of its master.
    had_all_at: Mutex<Option<Instant>>,
}

impl MasterLink {
    pub(super) fn lock(&self) -> MutexGuard<'_, FollowState> {
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

    /// Returns the time since this server last had all records of its master. Before the first such
    /// moment, returns the age of the position, or `age` if there is no position.
    pub(crate) fn delay(&self, now_s: u64, age: Duration) -> Duration {
        let had_all_at = *self.had_all_at.lock().unwrap_or_else(PoisonError::into_inner);
        match (had_all_at, self.follow_state().position_time().as_secs()) {
            (Some(then), _) => then.elapsed(),
            (None, 0) => age,
            (None, position_s) => Duration::from_secs(now_s.saturating_sub(position_s)),
        }
    }

    pub(super) fn note_caught_up(&self, when: Option<Instant>) {
        *self.had_all_at.lock().unwrap_or_else(PoisonError::into_inner) = when;
    }

    /// Returns the bytes of the logs of the master that have not been applied, as far as it has
    /// stated their ends. Returns `None` if its protocol has no positions.
    pub(crate) fn lag_bytes(&self) -> Option<u64> {
        let is_native = self.lock().protocol == MasterProtocol::Native;
        is_native.then(|| self.lag_bytes.load(Ordering::Relaxed))
    }

    /// Notes the position in the log of a master that is followed in Todana's own protocol, the
    /// bytes that have not been applied, and the time of the master if this server has all its
    /// changes before that.
    pub(super) fn note_native(&self, position: u64, lag_bytes: u64, time_ms: Option<u64>) {
        self.lag_bytes.store(lag_bytes, Ordering::Relaxed);
        let mut state = self.lock();
        state.timestamp = position;
        state.master_time_ms = time_ms.unwrap_or(state.master_time_ms);
    }

    /// Returns true if this server follows a master in a protocol of the originals.
    pub(crate) fn follows_originals(&self) -> bool {
        let state = self.lock();
        state.master.is_some() && state.protocol != MasterProtocol::Native
    }

    /// Returns true if clients may choose another master. They cannot if the server follows one in
    /// Todana's own protocol.
    pub(crate) fn is_changeable(&self) -> bool {
        self.lock().protocol != MasterProtocol::Native
    }

    /// Sets the master that is followed in Todana's own protocol. A promoted server follows none.
    pub(super) fn set_native_master(&self, master: Option<MasterAddress>) {
        self.lock().master = master;
        self.note_caught_up(None);
        self.is_connected.store(false, Ordering::Relaxed);
    }

    /// Notes changes that only this server had, and that are now in a salvaged log.
    pub(super) fn note_salvaged(&self, log: &SalvagedLog) {
        let mut salvaged = self.salvaged.lock().unwrap_or_else(PoisonError::into_inner);
        *salvaged = (salvaged.0 + log.changes, log.directory.clone());
    }

    /// Returns the number of changes that were salvaged since the start, and the directory of the
    /// last ones.
    pub(crate) fn salvaged(&self) -> (u64, PathBuf) {
        self.salvaged.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn promotions(&self) -> MutexGuard<'_, Vec<PromotionRequest>> {
        self.promotions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn has_promotions(&self) -> bool {
        !self.promotions().is_empty()
    }

    pub(super) fn take_promotions(&self) -> Vec<PromotionRequest> {
        std::mem::take(&mut *self.promotions())
    }

    /// Makes this server the master, and waits until it is. Returns a line for the operator, or the
    /// reason of a failure. With `is_forced`, the records need not be complete.
    pub(crate) fn promote(&self, shared: &SharedState, is_forced: bool) -> Result<String, String> {
        let follows =
            |link: &MasterLink| link.thread.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        if !follows(self) {
            return promote_former_master(shared).map(|epoch| format!("PROMOTED epoch={epoch}"));
        }
        if self.is_changeable() {
            return Err("this server follows no master in Todana's own protocol".into());
        }
        let (answer, outcome) = channel();
        self.promotions().push(PromotionRequest { is_forced, answer });
        // The thread answers, or drops the request when the server stops.
        loop {
            match outcome.recv_timeout(PROMOTION_CHECK) {
                Ok(outcome) => return outcome,
                Err(RecvTimeoutError::Timeout) if shared.lifecycle.stopping() == StopStage::No => {}
                Err(_) => return Err("the server is stopping".into()),
            }
        }
    }

    /// Changes the master, the position or the interval. The change has effect at once.
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

    /// Starts the thread, if this server has a master or a client may name one. If the position
    /// cannot be read, this is logged, and all changes of the master are applied again.
    /// `records_at` is the position of the databases in memory, if they may be older than the
    /// stored position.
    pub(crate) fn start(
        &self,
        shared: &Arc<SharedState>,
        records_at: Option<u64>,
        disk: &Arc<dyn Disk>,
    ) -> io::Result<()> {
        let options = &shared.options.databases.replication;
        let has_log =
            |served: &ServedDatabase| matches!(served.database.durability(), Some(Durability::Log(_)));
        if let Some(number) =
            shared.databases.iter().position(|served| !has_log(served)).filter(|_| options.acks > 0)
        {
            let why = "it has no update log; use --data-dir, or a tree on disk";
            return Err(io::Error::other(format!("--ack: database {number}: {why}")));
        }
        if let (MasterProtocol::Native, Some(master)) = (options.protocol, &options.master) {
            let (master, protocol) = (Some(master.clone()), options.protocol);
            *self.lock() = FollowState { master, protocol, ..FollowState::default() };
            let follower = NativeFollower::new(shared, Arc::clone(disk));
            return self.run_thread(move || follower.run());
        }
        refuse_former_master(shared);
        if options.master.is_none() && options.position_file.is_none() {
            return Ok(());
        }
        let stored = options.position_file.as_deref().map_or(Ok(0), position::read).unwrap_or_else(|error| {
            tracing::error!("{error}; replication begins with all changes of the master");
            0
        });
        let timestamp = records_at.unwrap_or(stored).min(stored);
        if timestamp < stored {
            tracing::info!(
                from = timestamp,
                "replication: continues from an earlier position, because the databases in memory are older than the stored one"
            );
        }
        let (master, protocol, interval) = (options.master.clone(), options.protocol, options.interval);
        *self.lock() = FollowState { master, protocol, timestamp, interval, ..FollowState::default() };
        // The thread starts with the earlier position. If it first followed from the stored one,
        // clients could read a later change of the master before the lost ones.
        let follower = MasterFollower::new(shared, Arc::clone(disk), stored);
        self.run_thread(move || follower.run())
    }

    fn run_thread(&self, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let thread = std::thread::Builder::new().name("link".into()).spawn(run)?;
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(())
    }

    /// Waits for the thread to end, which it does by itself when the server stops. Gives up once
    /// `gives_up` returns true.
    pub(crate) fn end(&self, gives_up: &dyn Fn() -> bool) {
        let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        if crate::databases::has_ended(&thread, gives_up) && thread.join().is_err() {
            tracing::error!("replication: the thread that follows the master panicked");
        }
    }
}
