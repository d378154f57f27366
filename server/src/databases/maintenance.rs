//! The maintenance thread: upkeep of all databases. Each tick also measures the memory of the
//! process.

use crate::databases::{ServedDatabase, has_ended};
use crate::handle::Stopping;
use crate::shared::Shared;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use todana::{TICK, Upkeep};
use todana_core::{Error, ErrorKind, Result};

/// Minimum interval between two trims of the allocator, which is locked meanwhile.
const TRIM_PAUSE: Duration = Duration::from_secs(2);

/// Ticks after the start until the allocator returns the memory that only the start needed.
const SETTLED_TICKS: u64 = 2;

/// Runs until the server stops.
pub(crate) fn run(shared: &Shared) {
    let mut has_settled = false;
    let mut trimmed_at: Option<Instant> = None;
    let upkeep = |served: &ServedDatabase| Upkeep::new(Arc::clone(&served.database));
    let upkeeps: Vec<Upkeep> = shared.databases.iter().map(upkeep).collect();
    while shared.lifecycle.stopping() == Stopping::No {
        shared.clock.tick();
        let start = Instant::now();
        let tick = shared.observation.housekeepings.fetch_add(1, Ordering::Relaxed);
        shared.persistence.exports.look(tick);
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
            // The freed memory is in the allocator's lists.
            todana_engine::trim_allocator();
            trimmed_at = Some(Instant::now());
        }
        if shared.kyoto.answers.is_wanted() {
            // Workers check for readers that take nothing.
            shared.wake_queues.wake_all();
        }
        shared.measure_memory();
        // Unparked early when the server stops.
        std::thread::park_timeout(TICK.saturating_sub(start.elapsed()));
    }
}

/// Waits for the thread to end. It may be waiting for a disk: once `gives_up` returns true it is
/// abandoned, together with its references to the databases and their locks. Fails with
/// `Unavailable` then.
pub(crate) fn end(thread: JoinHandle<()>, gives_up: &dyn Fn() -> bool) -> Result<()> {
    if !has_ended(&thread, gives_up) {
        let what = "housekeeping is left unfinished and keeps the databases open: the disk does not answer";
        tracing::warn!("{what}");
        return Err(Error::new(ErrorKind::Unavailable, what));
    }
    if thread.join().is_err() {
        tracing::error!("a thread ended by a panic");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn housekeeping_that_is_left_unfinished_is_no_good_end() {
        let (release, waits) = std::sync::mpsc::channel::<()>();
        let at_work = std::thread::spawn(move || assert!(waits.recv().is_err()));
        let error = end(at_work, &|| true).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("keeps the databases open"), "{error}");
        drop(release);
        assert!(end(std::thread::spawn(|| ()), &|| false).is_ok());
    }
}
