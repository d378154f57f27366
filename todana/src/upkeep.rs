//! Upkeep: the regular work on a database. Each tick removes expired records, returns sparse memory
//! to the system, and enforces limits.
//!
//! In a server, one thread does the ticks of all databases. A [`Db`](crate::Db) has a thread of its
//! own.

use crate::background_thread::BackgroundThread;
use crate::counters::WorkerCounters;
use crate::{CachedClock, Database};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use todana_core::Result;

/// The time between two ticks.
pub const TICK: Duration = Duration::from_millis(100);
/// The most time that the maintenance of all databases may take in one tick.
const TICK_WORK_MAX: Duration = Duration::from_millis(25);

/// The upkeep of one database. Only one thread may use it at a time.
pub struct DatabaseUpkeep {
    database: Arc<Database>,
    worker_counters: Arc<WorkerCounters>,
}

impl DatabaseUpkeep {
    /// Creates the upkeep of a database.
    pub fn new(database: Arc<Database>) -> DatabaseUpkeep {
        let worker_counters = database.worker_counters();
        DatabaseUpkeep { database, worker_counters }
    }

    /// Does the work that is due. `began` is the time at which the tick began for the first
    /// database.
    pub fn tick(&self, began: Instant) {
        self.database.guard_front();
        while self.database.maintain() && began.elapsed() < TICK_WORK_MAX {}
        self.database.keep_to_limits(&self.worker_counters, || began.elapsed() < TICK_WORK_MAX);
    }
}

/// Starts a thread for the upkeep of one database, which also updates the clock.
pub(crate) fn start_upkeep_thread(
    database: &Arc<Database>,
    clock: Arc<CachedClock>,
) -> Result<BackgroundThread> {
    let ends = Arc::new(AtomicBool::new(false));
    let (upkeep, is_over) = (DatabaseUpkeep::new(Arc::clone(database)), Arc::clone(&ends));
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
