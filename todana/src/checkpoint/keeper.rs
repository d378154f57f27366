//! The thread that writes checkpoints when they are due.

use super::CheckpointInfo;
use crate::{DataDirectory, Database};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use todana_core::{Error, ErrorKind, Result};

/// How often it checks whether a checkpoint is due.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Delay after a failed checkpoint.
const RETRY_DELAY: Duration = Duration::from_secs(10);
/// How often `gives_up` is called while the end of the thread is awaited.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Writes checkpoints of a database when they are due, in a thread of its own, until it is dropped.
/// A checkpoint being written at that time is aborted.
pub struct CheckpointKeeper {
    shared: Arc<KeeperState>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct KeeperState {
    stops: AtomicBool,
    lock: Mutex<()>,
    wakes: Condvar,
}

impl CheckpointKeeper {
    /// Starts the thread. The thread calls `report` after each checkpoint, successful or not.
    pub fn start(
        directory: Arc<DataDirectory>,
        database: Arc<Database>,
        mut report: impl FnMut(Result<CheckpointInfo>) + Send + 'static,
    ) -> Result<CheckpointKeeper> {
        let shared = Arc::new(KeeperState::default());
        let thread_state = Arc::clone(&shared);
        let work = move || {
            // Changes that wait in memory for a checkpoint grow fast.
            let is_checkpointed = database.engine().checkpointed().is_some();
            let check_interval = if is_checkpointed { CHECK_INTERVAL / 20 } else { CHECK_INTERVAL };
            let mut report = |made: Result<CheckpointInfo>| {
                database.note_checkpoint(made.is_err());
                report(made);
            };
            let mut pause = check_interval;
            let mut has_failed = false;
            while thread_state.wait(pause) {
                pause = check_interval;
                directory.measure(&database);
                if database.engine().durable().is_some() {
                    if let Err(error) = directory.trim_replica_log(&database) {
                        pause = RETRY_DELAY;
                        report(Err(error));
                    }
                    continue;
                }
                // After a failure a checkpoint stays due, and each failure is reported until one
                // succeeds.
                if !has_failed && !directory.is_checkpoint_due(&database) {
                    continue;
                }
                let made = directory.checkpoint_unless(&database, &thread_state.stops);
                if thread_state.stops.load(Ordering::Relaxed) {
                    return;
                }
                has_failed = made.is_err();
                if has_failed {
                    pause = RETRY_DELAY;
                }
                report(made);
            }
        };
        let thread = std::thread::Builder::new().name("checkpoints".into()).spawn(work).map_err(|error| {
            Error::new(ErrorKind::Unavailable, format!("cannot start the thread for checkpoints: {error}"))
        })?;
        Ok(CheckpointKeeper { shared, thread: Some(thread) })
    }
}

impl KeeperState {
    fn stop(&self) {
        {
            let _lock = self.lock.lock();
            self.stops.store(true, Ordering::Relaxed);
        }
        self.wakes.notify_all();
    }

    /// Returns false when the thread must end.
    fn wait(&self, pause: Duration) -> bool {
        let mut lock = self.lock.lock();
        if !self.stops.load(Ordering::Relaxed) {
            self.wakes.wait_for(&mut lock, pause);
        }
        !self.stops.load(Ordering::Relaxed)
    }
}

impl CheckpointKeeper {
    /// Ends the thread, unless the disk does not answer: `gives_up` is called regularly, and once
    /// it returns true, the thread is abandoned. Returns false in that case.
    pub fn end_unless(mut self, gives_up: &dyn Fn() -> bool) -> bool {
        self.shared.stop();
        let Some(thread) = self.thread.take() else { return true };
        while !thread.is_finished() {
            if gives_up() {
                return false;
            }
            // Nothing unparks this thread; a delay at the end of a server does no harm.
            std::thread::park_timeout(POLL_INTERVAL);
        }
        // A panic of the thread has already been printed.
        let _ = thread.join();
        true
    }
}

impl Drop for CheckpointKeeper {
    fn drop(&mut self) {
        self.shared.stop();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has already been printed.
            let _ = thread.join();
        }
    }
}
