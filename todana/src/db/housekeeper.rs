//! The thread that keeps a database in order: what has expired goes, sparse memory is given back, checkpoints are made when
//! they are due.

use super::limiter::Limiter;
use crate::checkpoint::CheckpointKeeper;
use crate::data_directory::DataDirectory;
use crate::update_log::Sync;
use crate::{CachedClock, Database};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use todana_core::{Error, ErrorKind, Result};

const TICK: Duration = Duration::from_millis(100);
/// At most so much of a tick.
const WORK: Duration = Duration::from_millis(25);

/// Ends with this value.
pub(super) struct Housekeeper {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    _checkpoints: Option<CheckpointKeeper>,
}

impl Housekeeper {
    pub(super) fn start(
        database: &Arc<Database>,
        clock: Arc<CachedClock>,
        directory: Option<&Arc<DataDirectory>>,
        limiter: Option<Arc<Limiter>>,
    ) -> Result<Housekeeper> {
        let cannot = |error: std::io::Error| {
            Error::new(
                ErrorKind::Unavailable,
                format!("cannot start the thread that keeps a database: {error}"),
            )
        };
        let checkpoints = directory
            .filter(|_| !database.is_read_only())
            .map(|directory| CheckpointKeeper::start(Arc::clone(directory), Arc::clone(database), |_| ()))
            .transpose()?;
        let ends = Arc::new(AtomicBool::new(false));
        let lane = database.lane();
        let (database, told) = (Arc::clone(database), Arc::clone(&ends));
        let thread = std::thread::Builder::new()
            .name("housekeeper".into())
            .spawn(move || {
                let mut synced = Instant::now();
                while !told.load(Ordering::Acquire) {
                    clock.tick();
                    let start = Instant::now();
                    while database.maintain() && start.elapsed() < WORK {}
                    if let Some(limiter) = &limiter {
                        // Tried again by and by.
                        let _ = limiter.keep_house(&database, &lane);
                    }
                    if let (Some(durable), Sync::Every(interval)) =
                        (database.engine().durable(), database.engine_sync())
                        && !database.is_read_only()
                        && synced.elapsed() + TICK > interval
                    {
                        synced = Instant::now();
                        // One that fails keeps all later writes from being taken, which whoever makes them is told.
                        let _ = durable.sync();
                    }
                    std::thread::park_timeout(TICK.saturating_sub(start.elapsed()));
                }
            })
            .map_err(cannot)?;
        Ok(Housekeeper { ends, thread: Some(thread), _checkpoints: checkpoints })
    }
}

impl Drop for Housekeeper {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // One that has panicked has said so.
            let _ = thread.join();
        }
    }
}
