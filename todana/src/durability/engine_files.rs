//! Brings an engine's own files to disk, in rounds: when replies wait for them, or at intervals.
//!
//! ```text
//! writer:       write .. point = rounds begun + 1 .. request ........ rounds ended >= point: reply
//! sync thread:               round begins, DurableEngine::sync, round ends, notify
//! ```
//!
//! A round covers everything that was written before it began. So writers wait for the next round,
//! together with all other writers that arrive before it begins. The sync thread does the rounds
//! that are requested, or one per interval. A writer that may block ([`EngineFiles::wait`]) does a
//! round itself.

use super::{CommitPoint, DurabilityHealth};
use crate::Database;
use crate::background_thread::BackgroundThread;
use crate::update_log::SyncPolicy;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use todana_core::{DurableEngine, Error, ErrorKind, Result};
use todana_engine::waiting::{Condvar, Mutex};

/// The interval at which `goes_on` is called during a wait.
const CALLBACK_INTERVAL: Duration = Duration::from_millis(20);
/// The interval at which a sync to a full disk is tried again, unless the rounds are more frequent.
const RETRY: Duration = Duration::from_millis(100);

/// How far an engine's files are on disk.
pub(crate) struct EngineFiles {
    /// Determines when a change counts as durable.
    sync: SyncPolicy,
    begun: AtomicU64,
    over: AtomicU64,
    is_well: AtomicBool,
    state: Mutex<RoundState>,
    /// Notified when a round is requested, or when the thread must end.
    wakes: Condvar,
    /// Notified when a round has ended.
    progress: Condvar,
    /// Held by the thread that does a round.
    turn: Mutex<()>,
    listeners: Mutex<Vec<Arc<dyn Fn() + Send + std::marker::Sync>>>,
}

struct RoundState {
    wanted: u64,
    ends: bool,
    /// Stuck: the disk is full, nothing is lost, and the round is repeated. Lost: it is unknown
    /// which changes are on disk.
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
            turn: Mutex::default(),
            listeners: Mutex::default(),
        }
    }

    pub(crate) fn sync(&self) -> SyncPolicy {
        self.sync
    }

    /// Returns the commit point of the change that this thread has just written. The reply must
    /// wait for it.
    #[inline]
    pub(crate) fn commit_point(&self) -> CommitPoint {
        if self.sync != SyncPolicy::Always {
            return CommitPoint::NONE;
        }
        // The fence follows the write. All threads agree on the order of fences, so a round that
        // begins later covers the write.
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
            self.progress.wait_for(&mut state, CALLBACK_INTERVAL);
        }
        true
    }

    /// Waits until a change is durable. If no other writer does the next round, this thread does.
    pub(super) fn wait(&self, point: CommitPoint, engine: &dyn DurableEngine) -> Result<()> {
        let _turn = self.turn.lock();
        if self.is_durable(point) {
            return Ok(());
        }
        // After this failure the sync thread has ended and no round succeeds any more. A writer
        // that waited would wait forever.
        if let DurabilityHealth::Lost(why) = self.health() {
            return Err(Error::refused_write(ErrorKind::Unavailable, why));
        }
        self.round(engine)
    }

    /// Registers a callback. After each round, the thread that did the round calls it.
    pub(super) fn on_progress(&self, call: Arc<dyn Fn() + Send + std::marker::Sync>) {
        self.listeners.lock().push(call);
    }

    /// Waits until a round is requested. Returns false if the thread must end.
    fn waits_for_round(&self) -> bool {
        let mut state = self.state.lock();
        while !state.ends {
            let pause = match (self.sync, &state.health) {
                (_, DurabilityHealth::Lost(_)) => return false,
                (SyncPolicy::Every(interval), _) => interval,
                (_, DurabilityHealth::Stuck(_)) => RETRY,
                (_, DurabilityHealth::Well) if state.wanted > self.begun.load(Ordering::Relaxed) => {
                    return true;
                }
                (_, DurabilityHealth::Well) => {
                    self.wakes.wait(&mut state);
                    continue;
                }
            };
            self.wakes.wait_for(&mut state, pause);
            return !state.ends;
        }
        false
    }

    /// Syncs the files. The caller must hold `turn`.
    fn round(&self, engine: &dyn DurableEngine) -> Result<()> {
        let round = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let outcome = engine.sync();
        let mut state = self.state.lock();
        state.health = match &outcome {
            Ok(()) => {
                self.over.store(round, Ordering::SeqCst);
                DurabilityHealth::Well
            }
            Err(error) if error.kind() == ErrorKind::Full => DurabilityHealth::Stuck(error.to_string()),
            Err(error) => DurabilityHealth::Lost(error.to_string()),
        };
        self.is_well.store(state.health == DurabilityHealth::Well, Ordering::SeqCst);
        if state.health != DurabilityHealth::Well {
            // The sync thread is woken, because its pause is different after a failure.
            self.wakes.notify_one();
        }
        drop(state);
        self.progress.notify_all();
        self.listeners.lock().iter().for_each(|call| call());
        outcome
    }

    fn end(&self) {
        self.state.lock().ends = true;
        self.wakes.notify_one();
    }
}

/// Starts the thread that syncs an engine's own files, if the engine has files and the policy
/// requires syncs. Listeners are notified after each round, even a failed one. After a failure
/// changes are refused: until the next success if the disk is full, otherwise permanently.
pub(crate) fn start_sync_thread(database: &Arc<Database>) -> Result<Option<BackgroundThread>> {
    if database.engine_files().is_none_or(|files| files.sync == SyncPolicy::Never) {
        return Ok(None);
    }
    let (working, stopping) = (Arc::clone(database), Arc::clone(database));
    let work = move || {
        let (Some(files), Some(engine)) = (working.engine_files(), working.engine().durable()) else {
            return;
        };
        while files.waits_for_round() {
            let _turn = files.turn.lock();
            // A failure is stored in the health, where writers and listeners read it.
            let _ = files.round(engine);
        }
    };
    let stop = move || stopping.engine_files().map_or((), EngineFiles::end);
    BackgroundThread::start("syncing", stop, work).map(Some)
}
