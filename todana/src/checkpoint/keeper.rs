//! The thread that writes a checkpoint whenever one is due.

use super::CheckpointInfo;
use crate::background_thread::{BackgroundThread, GivesUp};
use crate::{DataDirectory, Database};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use todana_core::Result;

/// How often the thread checks whether a checkpoint is due.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// Delay after a failed checkpoint.
const RETRY_DELAY: Duration = Duration::from_secs(10);

/// Writes a checkpoint of a database whenever one is due, in a thread of its own, until it is
/// dropped. Dropping it aborts a checkpoint in progress.
pub struct CheckpointKeeper(BackgroundThread);

impl CheckpointKeeper {
    /// Starts the thread, which calls `report` with the result of each checkpoint.
    pub fn start(
        directory: Arc<DataDirectory>,
        database: Arc<Database>,
        mut report: impl FnMut(Result<CheckpointInfo>) + Send + 'static,
    ) -> Result<CheckpointKeeper> {
        let stop = Arc::new(AtomicBool::new(false));
        let stops = Arc::clone(&stop);
        let work = move || {
            // If changes wait in memory for a checkpoint, they can accumulate within one interval,
            // so the thread checks more often.
            let is_checkpointed = database.engine().checkpointed().is_some();
            let check_every = if is_checkpointed { CHECK_EVERY / 20 } else { CHECK_EVERY };
            let mut report = |made: Result<CheckpointInfo>| {
                database.note_checkpoint(made.is_err());
                report(made);
            };
            let (mut pause, mut has_failed) = (check_every, false);
            loop {
                std::thread::park_timeout(pause);
                if stops.load(Ordering::Acquire) {
                    return;
                }
                pause = check_every;
                directory.measure(&database);
                if database.engine().durable().is_some() {
                    if let Err(error) = directory.trim_replica_log(&database) {
                        pause = RETRY_DELAY;
                        report(Err(error));
                    }
                    continue;
                }
                // After a failure the next checkpoint is due at once. Each failure is reported
                // until a checkpoint succeeds.
                if !has_failed && !directory.is_checkpoint_due(&database) {
                    continue;
                }
                let made = directory.checkpoint_unless(&database, &stops);
                if stops.load(Ordering::Acquire) {
                    return;
                }
                has_failed = made.is_err();
                if has_failed {
                    pause = RETRY_DELAY;
                }
                report(made);
            }
        };
        let stop = move || stop.store(true, Ordering::Release);
        BackgroundThread::start("checkpoints", stop, work).map(CheckpointKeeper)
    }

    /// Aborts a checkpoint in progress and ends the thread. Returns false if `gives_up` ended the
    /// wait because the disk does not answer.
    pub(crate) fn end(&mut self, gives_up: GivesUp<'_>) -> bool {
        self.0.end(gives_up)
    }
}
