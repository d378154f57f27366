//! The files of an engine come to disk in rounds: before answers leave, or now and then.
//!
//! ```text
//! writer:       write .. point = rounds begun + 1 .. request ........... rounds over >= point: reply
//! sync thread:               round begins, Durable::sync, round is over, notify
//! ```
//!
//! A round covers what was written before it began. So writers wait for the next one to begin and end, together with all others that
//! come meanwhile. Only the thread touches the disk for it.

use super::{CommitPoint, DurabilityHealth};
use crate::Database;
use crate::update_log::SyncPolicy;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use todana_core::{Error, ErrorKind, Result};

/// Interval at which waiting threads are asked whether they still wait.
const ASK_EVERY: Duration = Duration::from_millis(20);
/// Interval at which a full disk is tried again, where rounds do not begin as often anyway.
const RETRY: Duration = Duration::from_millis(100);

/// How far the files of an engine have come to disk.
pub(crate) struct EngineFiles {
    /// When changes count as made.
    sync: SyncPolicy,
    begun: AtomicU64,
    over: AtomicU64,
    is_well: AtomicBool,
    state: Mutex<RoundState>,
    /// A round is wanted, or the end.
    wakes: Condvar,
    /// A round is over.
    progress: Condvar,
}

struct RoundState {
    wanted: u64,
    ends: bool,
    /// Stuck: the disk is full, nothing is lost, and the round is tried again. Lost: what the disk has kept is not known.
    health: DurabilityHealth,
}

impl EngineFiles {
    pub(crate) fn new(sync: SyncPolicy) -> EngineFiles {
        EngineFiles {
            sync,
            begun: AtomicU64::new(0),
            over: AtomicU64::new(0),
            is_well: AtomicBool::new(true),
            state: Mutex::new(RoundState { wanted: 0, ends: false, health: DurabilityHealth::Well }),
            wakes: Condvar::new(),
            progress: Condvar::new(),
        }
    }

    pub(crate) fn sync(&self) -> SyncPolicy {
        self.sync
    }

    /// Returns what the answer to a change that has just been written has to wait for.
    #[inline]
    pub(crate) fn commit_point(&self) -> CommitPoint {
        if self.sync != SyncPolicy::Always {
            return CommitPoint::NONE;
        }
        // After the write, in the order that all threads agree on: a round that begins later covers it.
        std::sync::atomic::fence(Ordering::SeqCst);
        CommitPoint(self.begun.load(Ordering::SeqCst) + 1)
    }

    pub(super) fn request(&self, point: CommitPoint) {
        let mut state = self.state.lock();
        if state.wanted < point.0 {
            state.wanted = point.0;
            self.wakes.notify_one();
        }
    }

    pub(super) fn is_durable(&self, point: CommitPoint) -> bool {
        self.over.load(Ordering::SeqCst) >= point.0
    }

    #[inline]
    pub(crate) fn takes_changes(&self) -> bool {
        self.is_well.load(Ordering::Relaxed)
    }

    pub(super) fn health(&self) -> DurabilityHealth {
        self.state.lock().health.clone()
    }

    pub(super) fn wait_while(&self, point: CommitPoint, goes_on: &dyn Fn() -> bool) -> bool {
        let mut state = self.state.lock();
        while !self.is_durable(point) {
            if state.health != DurabilityHealth::Well || !goes_on() {
                return false;
            }
            self.progress.wait_for(&mut state, ASK_EVERY);
        }
        true
    }

    /// Waits until a round is wanted; false when it is time to end.
    fn waits_for_round(&self) -> bool {
        let mut state = self.state.lock();
        let pause = match (self.sync, &state.health) {
            (_, DurabilityHealth::Lost(_)) => return false,
            (SyncPolicy::Every(interval), _) => Some(interval),
            (_, DurabilityHealth::Stuck(_)) => Some(RETRY),
            (_, DurabilityHealth::Well) => None,
        };
        if let Some(pause) = pause.filter(|_| !state.ends) {
            self.wakes.wait_for(&mut state, pause);
            return !state.ends;
        }
        while !state.ends && state.wanted <= self.begun.load(Ordering::Relaxed) {
            self.wakes.wait(&mut state);
        }
        !state.ends
    }

    fn round(&self, database: &Database) {
        let round = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let outcome = database.engine().durable().map_or(Ok(()), |durable| durable.sync());
        let mut state = self.state.lock();
        state.health = match outcome {
            Ok(()) => {
                self.over.store(round, Ordering::SeqCst);
                DurabilityHealth::Well
            }
            Err(error) if error.kind() == ErrorKind::Full => DurabilityHealth::Stuck(error.to_string()),
            Err(error) => DurabilityHealth::Lost(error.to_string()),
        };
        self.is_well.store(state.health == DurabilityHealth::Well, Ordering::SeqCst);
        self.progress.notify_all();
    }

    fn end(&self) {
        self.state.lock().ends = true;
        self.wakes.notify_one();
    }
}

/// The thread that brings an engine's own files to disk. It ends when this is dropped.
pub struct SyncThread {
    database: Arc<Database>,
    thread: Option<JoinHandle<()>>,
}

impl SyncThread {
    /// Starts it, where the engine has such files and they are synced. `on_progress` is called after each round, also one that fails:
    /// changes are refused then, for good unless the disk is merely full.
    pub fn start(
        database: &Arc<Database>,
        on_progress: impl Fn() + Send + 'static,
    ) -> Result<Option<SyncThread>> {
        if database.engine_files().is_none_or(|files| files.sync == SyncPolicy::Never) {
            return Ok(None);
        }
        let its_own = Arc::clone(database);
        let work = move || {
            while its_own.engine_files().is_some_and(EngineFiles::waits_for_round) {
                its_own.engine_files().inspect(|files| files.round(&its_own));
                on_progress();
            }
        };
        let thread = std::thread::Builder::new().name("syncing".into()).spawn(work).map_err(|error| {
            let message = format!("cannot start the thread that syncs a database: {error}");
            Error::new(ErrorKind::Unavailable, message)
        })?;
        Ok(Some(SyncThread { database: Arc::clone(database), thread: Some(thread) }))
    }

    /// Ends it. `gives_up` is asked now and then while the disk keeps it waiting; once it says so, the thread is left to itself and
    /// false is returned.
    pub fn end_unless(mut self, gives_up: &dyn Fn() -> bool) -> bool {
        self.end();
        let Some(thread) = self.thread.take() else { return true };
        while !thread.is_finished() {
            if gives_up() {
                return false;
            }
            // Nothing unparks it: there is no hurry at the end of a server.
            std::thread::park_timeout(Duration::from_millis(5));
        }
        // A panic in it has been shown already.
        let _ = thread.join();
        true
    }

    fn end(&self) {
        if let Some(files) = self.database.engine_files() {
            files.end();
        }
    }
}

impl Drop for SyncThread {
    fn drop(&mut self) {
        self.end();
    }
}
