//! The thread that makes checkpoints when they are due.

use super::CheckpointInfo;
use crate::{DataDirectory, Database};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use todana_core::{Error, ErrorKind, Result};

/// How often it looks whether one is due.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long it waits after one that failed.
const RETRY: Duration = Duration::from_secs(10);
/// How often whoever waits for its end is asked whether they still do.
const ASK_EVERY: Duration = Duration::from_millis(5);

/// Makes checkpoints of a database when they are due, in a thread of its own, until it is dropped. One that is being made
/// then is called off.
pub struct CheckpointKeeper {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stops: AtomicBool,
    lock: Mutex<()>,
    wakes: Condvar,
}

impl CheckpointKeeper {
    /// Starts it. `report` is called, by its thread, after each one that was made and each that could not be made.
    pub fn start(
        directory: Arc<DataDirectory>,
        database: Arc<Database>,
        mut report: impl FnMut(Result<CheckpointInfo>) + Send + 'static,
    ) -> Result<CheckpointKeeper> {
        let shared = Arc::new(Shared::default());
        let its_own = Arc::clone(&shared);
        let work = move || {
            // What waits in memory for a checkpoint grows fast.
            let is_checkpointed = database.engine().checkpointed().is_some();
            let look_every = if is_checkpointed { LOOK_EVERY / 20 } else { LOOK_EVERY };
            let mut report = |made: Result<CheckpointInfo>| {
                database.note_checkpoint(made.is_err());
                report(made);
            };
            let mut pause = look_every;
            let mut has_failed = false;
            while its_own.waits(pause) {
                pause = look_every;
                directory.measure(&database);
                if database.engine().durable().is_some() {
                    if let Err(error) = directory.trim_replica_log(&database) {
                        pause = RETRY;
                        report(Err(error));
                    }
                    continue;
                }
                // One that has failed stays due: until there is one it is reported as trouble.
                if !has_failed && !directory.is_checkpoint_due(&database) {
                    continue;
                }
                let made = directory.checkpoint_unless(&database, &its_own.stops);
                if its_own.stops.load(Ordering::Relaxed) {
                    return;
                }
                has_failed = made.is_err();
                if has_failed {
                    pause = RETRY;
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

impl Shared {
    fn stop(&self) {
        {
            let _lock = self.lock.lock();
            self.stops.store(true, Ordering::Relaxed);
        }
        self.wakes.notify_all();
    }

    /// False when it is time to end.
    fn waits(&self, pause: Duration) -> bool {
        let mut lock = self.lock.lock();
        if !self.stops.load(Ordering::Relaxed) {
            self.wakes.wait_for(&mut lock, pause);
        }
        !self.stops.load(Ordering::Relaxed)
    }
}

impl CheckpointKeeper {
    /// Ends it, unless the disk keeps it waiting: `gives_up` is asked now and then, and once it says so, the thread is left to
    /// itself. False then.
    pub fn end_unless(mut self, gives_up: &dyn Fn() -> bool) -> bool {
        self.shared.stop();
        let Some(thread) = self.thread.take() else { return true };
        while !thread.is_finished() {
            if gives_up() {
                return false;
            }
            // Unparked by nobody: there is no hurry at the end of a server.
            std::thread::park_timeout(ASK_EVERY);
        }
        // A panic in it has been shown already.
        let _ = thread.join();
        true
    }
}

impl Drop for CheckpointKeeper {
    fn drop(&mut self) {
        self.shared.stop();
        if let Some(thread) = self.thread.take() {
            // A panic in it has been shown already.
            let _ = thread.join();
        }
    }
}
