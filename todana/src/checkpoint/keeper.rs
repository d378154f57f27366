//! The thread that writes a checkpoint whenever one is due.

use super::CheckpointInfo;
use crate::background_thread::{BackgroundThread, GivesUp};
use crate::{DataDirectory, Database};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use todana_core::{Error, Result};

/// How often the thread checks whether a checkpoint is due.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// Delay after a failed checkpoint.
const RETRY_DELAY: Duration = Duration::from_secs(10);

/// The outcome of one action of a [`CheckpointKeeper`].
#[derive(Debug)]
pub enum KeeperOutcome {
    /// A checkpoint was written, or could not be written.
    Checkpoint(Result<CheckpointInfo>),
    /// The update log of a hash on disk could not be shortened. The hash itself needs no
    /// checkpoints.
    LogNotTrimmed(Error),
}

/// Writes a checkpoint of a database whenever one is due, in a thread of its own, until it is
/// dropped. Dropping it aborts a checkpoint in progress.
pub struct CheckpointKeeper(BackgroundThread);

impl CheckpointKeeper {
    /// Starts the thread, which calls `report` with the result of each checkpoint, and with each
    /// failure to shorten the log of a hash on disk.
    pub fn start(
        directory: Arc<DataDirectory>,
        database: Arc<Database>,
        mut report: impl FnMut(KeeperOutcome) + Send + 'static,
    ) -> Result<CheckpointKeeper> {
        let is_stopping = Arc::new(AtomicBool::new(false));
        let stop = {
            let is_stopping = Arc::clone(&is_stopping);
            move || is_stopping.store(true, Ordering::Release)
        };
        let work = move || {
            // If changes wait in memory for a checkpoint, they can accumulate within one interval,
            // so the thread checks more often.
            let is_checkpointed = database.engine().checkpointed().is_some();
            let check_every = if is_checkpointed { CHECK_EVERY / 20 } else { CHECK_EVERY };
            let (mut pause, mut has_failed) = (check_every, false);
            loop {
                std::thread::park_timeout(pause);
                if is_stopping.load(Ordering::Acquire) {
                    return;
                }
                pause = check_every;
                directory.measure(&database);
                if database.engine().durable().is_some() {
                    if let Err(error) = directory.trim_replica_log(&database) {
                        pause = RETRY_DELAY;
                        report(KeeperOutcome::LogNotTrimmed(error));
                    }
                    continue;
                }
                // After a failure, a checkpoint is due at each further attempt until one succeeds.
                if !has_failed && !directory.is_checkpoint_due(&database) {
                    continue;
                }
                let outcome = directory.checkpoint_unless(&database, &is_stopping);
                if is_stopping.load(Ordering::Acquire) {
                    return;
                }
                has_failed = outcome.is_err();
                if has_failed {
                    pause = RETRY_DELAY;
                }
                database.note_checkpoint(has_failed);
                report(KeeperOutcome::Checkpoint(outcome));
            }
        };
        BackgroundThread::start("checkpoints", stop, work).map(CheckpointKeeper)
    }

    /// Aborts a checkpoint in progress and ends the thread. Returns false if `gives_up` ended the
    /// wait because the disk does not answer.
    pub(crate) fn end(&mut self, gives_up: GivesUp<'_>) -> bool {
        self.0.end(gives_up)
    }
}
