//! The janitor: housekeeping in the background, and the memory limit of the process.
//!
//! `-m` bounds the anonymous memory of the process. The engine knows what it holds; the janitor measures what the process holds
//! besides (connections, what the allocator keeps) and leaves the engine the rest.

use crate::databases::has_ended;
use crate::handle::Stopping;
use crate::shared::Shared;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use todana_core::{Error, ErrorKind, Result};

const TICK: Duration = Duration::from_millis(100);
/// Housekeeping takes at most so much of a tick.
const WORK: Duration = Duration::from_millis(25);

/// The allocator, which is locked meanwhile, is trimmed at most so often.
const TRIM_PAUSE: Duration = Duration::from_secs(2);

/// So long after the start the allocator gives back what only the start needed.
const SETTLED_TICKS: u64 = 2;

/// Runs until the server stops.
pub(crate) fn run(shared: &Shared) {
    let mut has_settled = false;
    let mut trimmed_at: Option<Instant> = None;
    let lanes: Vec<_> = shared.databases.iter().map(|served| served.database.lane()).collect();
    while shared.stopping() == Stopping::No {
        shared.clock.tick();
        let start = Instant::now();
        let tick = shared.housekeepings.fetch_add(1, Ordering::Relaxed);
        shared.exports.look(tick);
        for (served, lane) in shared.databases.iter().zip(&lanes) {
            served.guard_front();
            while served.database.maintain() && start.elapsed() < WORK {}
            served.tell_damage();
            served.tell_refusals();
            if let Some(limiter) = &served.limiter {
                // What cannot be removed now is looked at again.
                let _ = limiter.keep_house(&served.database, lane);
            }
        }
        if let Some(round) = shared.database.take_sweep_round() {
            shared.observers.tell_swept(&round);
        }
        if !has_settled && tick >= SETTLED_TICKS && !shared.is_loading() {
            has_settled = true;
            todana_engine::trim_allocator();
        }
        if trimmed_at.is_none_or(|at| at.elapsed() >= TRIM_PAUSE) && shared.answers.take_returned() {
            // What they were collected from lies in the allocator's lists.
            todana_engine::trim_allocator();
            trimmed_at = Some(Instant::now());
        }
        if shared.answers.is_wanted() {
            // Workers look for readers that take nothing.
            shared.settling.wake_all();
        }
        shared.measure_memory();
        // Woken early when the server stops.
        std::thread::park_timeout(TICK.saturating_sub(start.elapsed()));
    }
}

/// Waits for its thread to end. It may be at work on files: when `gives_up` says so it is left to itself, with its hold on the
/// databases and on their locks. Fails with `Unavailable` then.
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

/// What the process holds besides the engine: `resident_bytes`, less what the engine held when they were measured, which is
/// known from `before` and after that alone. Large values come and go while this thread is kept from running, so all that
/// is certain is a range; what was known `last` stays as far as it lies in there. (The least of the range let a busy process
/// outgrow its limit by all that it holds besides the engine.)
pub(crate) fn outside_bytes(last: u64, resident_bytes: u64, before: u64, after: u64) -> u64 {
    let least = resident_bytes.saturating_sub(before.max(after));
    let most = resident_bytes.saturating_sub(before.min(after));
    last.clamp(least, most)
}

/// What the process is taken to hold besides the engine where it cannot be measured: what was measured `last`, or the program itself, and at least
/// what is `counted` of connections and answers.
pub(crate) fn unmeasured_bytes(last: u64, counted: u64) -> u64 {
    const PROGRAM: u64 = 8 << 20;
    last.max(PROGRAM + counted)
}

/// What the engine may hold so that the process stays within `limit_bytes`.
pub(crate) fn engine_limit(limit_bytes: u64, outside_bytes: u64) -> u64 {
    // What the measurement cannot see yet: buffers that come and go between two ticks. A 128th of the limit, within 512 KiB and 16 MiB, as it
    // depends on clients more than on the limit; of a small limit no more than a 32nd, as the records need the room.
    let margin = (limit_bytes / 32).min(512 << 10).max(limit_bytes / 128).min(16 << 20);
    // Whatever the rest takes, a little is left to store in: refusing everything would help nobody.
    limit_bytes.saturating_sub(outside_bytes + margin).max(limit_bytes / 16)
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

    #[test]
    fn what_the_engine_takes_or_gives_back_meanwhile_is_not_counted_as_the_rests() {
        // Nothing came or went: it is known exactly, whatever it was before.
        assert_eq!([0, 6, 90].map(|last| outside_bytes(last, 106, 100, 100)), [6; 3]);
        // It may be anything from 0 to 20, and from 2 to 12.
        assert_eq!([0, 6, 20, 21].map(|last| outside_bytes(last, 100, 80, 110)), [0, 6, 20, 20]);
        assert_eq!([0, 6, 20].map(|last| outside_bytes(last, 102, 100, 90)), [2, 6, 12]);
        assert_eq!(outside_bytes(5, 10, 20, 30), 0);
    }

    #[test]
    fn unmeasured_process_is_taken_to_hold_what_is_known() {
        assert_eq!(unmeasured_bytes(0, 0), 8 << 20);
        assert_eq!(unmeasured_bytes(0, 10 << 20), 18 << 20);
        assert_eq!(unmeasured_bytes(20 << 20, 1 << 20), 20 << 20);
    }

    #[test]
    fn the_engine_gets_what_the_rest_leaves() {
        assert_eq!(engine_limit(64 << 20, 4 << 20), (60 << 20) - (512 << 10));
        assert_eq!(engine_limit(8 << 20, 4 << 20), (4 << 20) - (256 << 10));
        assert_eq!(engine_limit(8 << 20, 9 << 20), 512 << 10);
        assert_eq!(engine_limit(1 << 40, 0), (1 << 40) - (16 << 20));
    }
}
