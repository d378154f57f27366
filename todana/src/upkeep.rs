//! Upkeep: regular work on a database, done in ticks. It removes expired records, returns sparse
//! memory and keeps limits.
//!
//! A server ticks all its databases in one thread; a [`Db`](crate::Db) has a thread of its own.

use crate::background_thread::BackgroundThread;
use crate::counters::WorkerCounters;
use crate::{CachedClock, Database};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use todana_core::Result;

/// Time between two ticks.
pub const TICK: Duration = Duration::from_millis(100);
/// The most of a tick that maintenance of all databases together may take.
const WORK: Duration = Duration::from_millis(25);

/// The upkeep of one database. Only one thread may use it at a time.
pub struct Upkeep {
    database: Arc<Database>,
    worker_counters: Arc<WorkerCounters>,
}

impl Upkeep {
    /// Creates the upkeep of a database.
    pub fn new(database: Arc<Database>) -> Upkeep {
        let worker_counters = database.worker_counters();
        Upkeep { database, worker_counters }
    }

    /// Does the work that is due. `began` is the start of this tick for all databases.
    pub fn tick(&self, began: Instant) {
        self.database.guard_front();
        while self.database.maintain() && began.elapsed() < WORK {}
        self.database.keep_to_limits(&self.worker_counters, || began.elapsed() < WORK);
    }
}

/// Starts the upkeep of one database in a thread of its own, which also updates the clock.
pub(crate) fn start_upkeep_thread(
    database: &Arc<Database>,
    clock: Arc<CachedClock>,
) -> Result<BackgroundThread> {
    let ends = Arc::new(AtomicBool::new(false));
    let (upkeep, is_over) = (Upkeep::new(Arc::clone(database)), Arc::clone(&ends));
    let work = move || {
        while !is_over.load(Ordering::Acquire) {
            clock.tick();
            let began = Instant::now();
            upkeep.tick(began);
            std::thread::park_timeout(TICK.saturating_sub(began.elapsed()));
        }
    };
    BackgroundThread::start("upkeep", move || ends.store(true, Ordering::Release), work)
}
