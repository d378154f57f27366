//! Upkeep: what a database needs done now and then, in one tick: expired records go, sparse memory is given back, limits are kept.
//!
//! A server ticks all its databases in one thread; a database of a program's own has an [`UpkeepThread`].

use crate::checkpoint::CheckpointKeeper;
use crate::counters::WorkerCounters;
use crate::data_directory::DataDirectory;
use crate::update_log::SyncPolicy;
use crate::{CachedClock, Database};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use todana_core::{Error, ErrorKind, Result};

/// Time between two ticks.
pub const TICK: Duration = Duration::from_millis(100);
/// At most so much of a tick is spent on housekeeping, of all databases together.
const WORK: Duration = Duration::from_millis(25);

/// The upkeep of one database, by one thread at a time.
pub struct Upkeep {
    database: Arc<Database>,
    worker_counters: Arc<WorkerCounters>,
}

impl Upkeep {
    /// Takes on the upkeep of a database.
    pub fn new(database: Arc<Database>) -> Upkeep {
        let worker_counters = database.worker_counters();
        Upkeep { database, worker_counters }
    }

    /// Does what is due. `began`: when this tick of all databases began.
    pub fn tick(&self, began: Instant) {
        self.database.guard_front();
        while self.database.maintain() && began.elapsed() < WORK {}
        self.database.keep_to_limits(&self.worker_counters, || began.elapsed() < WORK);
    }
}

/// The upkeep of a database by a thread of its own, with checkpoints when they are due. Ends with this value.
pub(crate) struct UpkeepThread {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    _checkpoints: Option<CheckpointKeeper>,
}

impl UpkeepThread {
    pub(crate) fn start(
        database: &Arc<Database>,
        clock: Arc<CachedClock>,
        directory: Option<&Arc<DataDirectory>>,
    ) -> Result<UpkeepThread> {
        let checkpoints = directory
            .filter(|_| !database.is_read_only())
            .map(|directory| CheckpointKeeper::start(Arc::clone(directory), Arc::clone(database), |_| ()))
            .transpose()?;
        let ends = Arc::new(AtomicBool::new(false));
        let (upkeep, stop) = (Upkeep::new(Arc::clone(database)), Arc::clone(&ends));
        let work = move || {
            let mut synced = Instant::now();
            while !stop.load(Ordering::Acquire) {
                clock.tick();
                let began = Instant::now();
                upkeep.tick(began);
                if let (Some(durable), Some(SyncPolicy::Every(interval))) =
                    (upkeep.database.engine().durable(), upkeep.database.engine_sync())
                    && synced.elapsed() + TICK > interval
                {
                    synced = Instant::now();
                    // After one that fails later writes are refused, and their writers hear of it.
                    let _ = durable.sync();
                }
                std::thread::park_timeout(TICK.saturating_sub(began.elapsed()));
            }
        };
        let thread = std::thread::Builder::new().name("upkeep".into()).spawn(work).map_err(|error| {
            let message = format!("cannot start the thread that keeps a database: {error}");
            Error::new(ErrorKind::Unavailable, message)
        })?;
        Ok(UpkeepThread { ends, thread: Some(thread), _checkpoints: checkpoints })
    }
}

impl Drop for UpkeepThread {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic in it has been shown already.
            let _ = thread.join();
        }
    }
}
