//! What is known of the data that is kept: for statistics, which must not wait for the disk.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use todana::DataDirectory;
use todana::checkpoint::{Checkpoint, Footprint};

/// The data directory, and the checkpoints that have been made of it.
#[derive(Default)]
pub(crate) struct Keeping {
    /// Not held: it is unlocked when the server ends, whoever still looks at numbers.
    directory: OnceLock<Weak<DataDirectory>>,
    made: AtomicU64,
    failed: AtomicU64,
    last: Mutex<Option<Checkpoint>>,
}

impl Keeping {
    /// It is open, and this checkpoint was brought back. Said once.
    pub(crate) fn begins(&self, directory: &Arc<DataDirectory>, checkpoint: Option<&Checkpoint>) {
        let _ = self.directory.set(Arc::downgrade(directory));
        // How long it took to make nobody knows any more.
        let checkpoint = checkpoint.map(|found| Checkpoint { took: Default::default(), ..found.clone() });
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = checkpoint;
    }

    /// One was made, or could not be.
    pub(crate) fn tried(&self, made: todana_core::Result<Checkpoint>) {
        match made {
            Ok(made) => {
                tracing::info!(records = made.records, "checkpoint made");
                self.made.fetch_add(1, Ordering::Relaxed);
                *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(made);
            }
            Err(error) => {
                tracing::error!(%error, "no checkpoint could be made; the log grows on");
                self.failed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// What is on disk, as last looked at.
    pub(crate) fn footprint(&self) -> Footprint {
        let directory = self.directory.get().and_then(Weak::upgrade);
        directory.map_or_else(Footprint::default, |directory| directory.footprint())
    }

    /// How many were made since the start, and how many could not be.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.made.load(Ordering::Relaxed), self.failed.load(Ordering::Relaxed))
    }

    /// The newest one.
    pub(crate) fn last(&self) -> Option<Checkpoint> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
