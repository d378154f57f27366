//! Upkeep: what a database needs done now and then, in one tick: expired records go, sparse memory is given back, limits are kept.
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

/// Starts the upkeep of one database, by a thread of its own that also keeps the clock.
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
