//! Runs the maintenance thread, which does the upkeep of all databases. Each tick also measures the
//! memory of the process.

use crate::databases::{ServedDatabase, has_ended};
use crate::handle::StopStage;
use crate::shared::SharedState;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use todana::{DatabaseUpkeep, TICK};
use todana_core::{Error, ErrorKind, Result};

/// The minimum interval between two trims of the allocator. A trim locks the allocator.
const TRIM_PAUSE: Duration = Duration::from_secs(2);

/// The number of ticks, a minute, after which the counts of hot keys are halved.
const HOT_KEY_TICKS: u64 = 600;
/// The number of ticks after the start until the allocator returns the memory that only the start
/// needed.
const SETTLED_TICKS: u64 = 2;

/// Runs until the server stops.
pub(crate) fn run(shared: &SharedState) {
    let mut has_settled = false;
    let mut trimmed_at: Option<Instant> = None;
    let upkeep = |served: &ServedDatabase| DatabaseUpkeep::new(Arc::clone(&served.database));
    let upkeeps: Vec<DatabaseUpkeep> = shared.databases.iter().map(upkeep).collect();
    while shared.lifecycle.stopping() == StopStage::No {
        shared.clock.tick();
        let start = Instant::now();
        let tick = shared.observation.maintenance_rounds.fetch_add(1, Ordering::Relaxed);
        shared.persistence.exports.check(tick);
        if let Err(error) = shared.observation.slow_requests.write() {
            tracing::debug!(%error, "the log of slow requests cannot be written");
        }
        if tick > 0 && tick.is_multiple_of(HOT_KEY_TICKS) {
            shared.databases.iter().for_each(|served| served.hot_keys.halve());
        }
        for (served, upkeep) in shared.databases.iter().zip(&upkeeps) {
            upkeep.tick(start);
            served.log_damage();
            served.log_refusals();
        }
        if let Some(round) = shared.databases.primary().database.take_sweep_round() {
            shared.observation.observers.send_swept(&round);
        }
        if !has_settled && tick >= SETTLED_TICKS && !shared.lifecycle.is_loading() {
            has_settled = true;
            todana_engine::trim_allocator();
        }
        if trimmed_at.is_none_or(|at| at.elapsed() >= TRIM_PAUSE) && shared.kyoto.answers.take_returned() {
            // The memory that was freed is still in the lists of the allocator.
            todana_engine::trim_allocator();
            trimmed_at = Some(Instant::now());
        }
        if shared.kyoto.answers.is_wanted() {
            // The workers disconnect clients that read nothing while others wait for memory.
            shared.wake_queues.wake_all();
        }
        shared.measure_memory();
        // The server unparks this thread when it stops.
        std::thread::park_timeout(TICK.saturating_sub(start.elapsed()));
    }
}

/// Waits for the thread to end. The thread may be waiting for a disk. Once `gives_up` returns true,
/// the thread is abandoned, together with its references to the databases and their locks, and the
/// call fails with `Unavailable`.
pub(crate) fn end(thread: JoinHandle<()>, gives_up: &dyn Fn() -> bool) -> Result<()> {
    if !has_ended(&thread, gives_up) {
        let what = "maintenance: unfinished, and the databases stay open, because the disk does not respond";
        tracing::warn!("{what}");
        return Err(Error::new(ErrorKind::Unavailable, what));
    }
    if thread.join().is_err() {
        tracing::error!("maintenance: the thread panicked");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unfinished_maintenance_is_an_error_at_shutdown() {
        let (release, waits) = std::sync::mpsc::channel::<()>();
        let at_work = std::thread::spawn(move || assert!(waits.recv().is_err()));
        let error = end(at_work, &|| true).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("the databases stay open"), "{error}");
        drop(release);
        assert!(end(std::thread::spawn(|| ()), &|| false).is_ok());
    }
}
