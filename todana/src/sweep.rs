//! The sweep for expired records that no request has found: rounds over all records, in small
//! steps.
//!
//! A round begins when it may find something: `earliest` is no later than any expiry that was
//! stored since the last round, or that the last round found and left. So a database whose records
//! all live for hours is not scanned. The sweep need not be exact, because expired records are
//! never shown. A record that a round misses, because the engine grew meanwhile, is found by a
//! later round.

use crate::expiry::{deadline, resolve};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use todana_core::{Engine, Expiry, ScanPosition, SweepAim, Ttl, UnixSeconds};

/// Records between two readings of the clock, some tens of microseconds.
const STEP_RECORDS: usize = 2048;
/// Shortest time between the beginnings of two rounds ...
const ROUND: Duration = Duration::from_secs(1);
/// ... and longest time while any record has an expiry, for records that earlier rounds missed.
const ROUND_LATEST: Duration = Duration::from_secs(30);
/// The duration of a step ...
const WORK: Duration = Duration::from_micros(900);
/// ... and of the rest after it, as a multiple of the step, so that the sweep takes less than 1 %
/// of a core ...
const REST: u32 = 105;
/// ... unless at least one of this number of records was expired: then there is memory to gain.
const WORTHWHILE: u64 = 8;
/// The longest time that a write without room spends on removing expired records.
const RELIEF: Duration = Duration::from_millis(1);

const NEVER: u64 = u64::MAX;

/// The result of a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// Time from the start of the previous round to the start of this one; zero for the first.
    pub since_last: Duration,
    /// Time from its start to its end, including its rests.
    pub elapsed: Duration,
    /// Number of records that it visited.
    pub seen: u64,
    /// Number of those that it removed.
    pub removed: u64,
}

/// The work of the sweep since the start or the last reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sweeps {
    /// A round is under way.
    pub is_running: bool,
    /// Number of rounds that were begun.
    pub rounds: u64,
    /// Number of records visited.
    pub seen: u64,
    /// Number of those that were removed as expired, without those removed by a write that needed
    /// memory.
    pub removed: u64,
}

#[derive(Debug)]
pub(crate) struct Sweep {
    /// A round was requested, whether or not it could find something.
    wanted: AtomicBool,
    is_running: AtomicBool,
    rounds: AtomicU64,
    seen: AtomicU64,
    removed: AtomicU64,
    /// No expiry stored since the last round began, or left by it, is earlier.
    earliest: AtomicU64,
    /// Records removed since the start, by any thread.
    gone: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The position at which the round in progress continues.
    place: Option<ScanPosition>,
    running: bool,
    started: Option<Instant>,
    /// The earliest expiry that this round found and left.
    earliest: u64,
    /// Records visited and removed in this round.
    seen: u64,
    removed: u64,
    since_last: Duration,
    /// The last completed round, until it is returned.
    finished: Option<Round>,
    /// No step is made before this time.
    rests_until: Option<Instant>,
}

impl State {
    fn finish(&mut self) {
        self.finished = Some(Round {
            since_last: self.since_last,
            elapsed: self.started.map_or(Duration::ZERO, |started| started.elapsed()),
            seen: self.seen,
            removed: self.removed,
        });
    }
}

impl Sweep {
    pub(crate) fn new() -> Sweep {
        let state = State {
            place: None,
            running: false,
            started: None,
            earliest: NEVER,
            seen: 0,
            removed: 0,
            since_last: Duration::ZERO,
            finished: None,
            rests_until: None,
        };
        Sweep {
            wanted: AtomicBool::new(false),
            is_running: AtomicBool::new(false),
            rounds: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            removed: AtomicU64::new(0),
            earliest: AtomicU64::new(NEVER),
            gone: AtomicU64::new(0),
            state: Mutex::new(state),
        }
    }

    /// Requests a round, which begins with the next step or after the round in progress: that one
    /// may have passed records that have expired since.
    pub(crate) fn want(&self) {
        self.wanted.store(true, Ordering::Relaxed);
    }

    pub(crate) fn counts(&self) -> Sweeps {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let is_wanted = self.wanted.load(Ordering::Relaxed);
        Sweeps {
            is_running: is_wanted || self.is_running.load(Ordering::Relaxed),
            rounds: get(&self.rounds),
            seen: get(&self.seen),
            removed: get(&self.removed),
        }
    }

    /// Takes note of a time to live that a record was given. Must be called after the record was
    /// stored: a round that begins in between would forget the note and miss the record.
    #[inline]
    pub(crate) fn note(&self, ttl: Ttl, now: UnixSeconds) {
        if ttl != Ttl::Never {
            self.note_expiry(resolve(ttl, now));
        }
    }

    /// Takes note of an expiry that a record was given.
    #[inline]
    pub(crate) fn note_expiry(&self, expiry: Expiry) {
        let at = deadline(expiry);
        // Rarely true, because most expiries are later than others that are still ahead.
        if at < self.earliest.load(Ordering::Relaxed) {
            self.earliest.fetch_min(at, Ordering::Relaxed);
        }
    }

    /// Makes one step. Returns true if another step at once is worthwhile.
    pub(crate) fn step(&self, engine: &dyn Engine, now: UnixSeconds) -> bool {
        let Ok(mut state) = self.state.try_lock() else { return false };
        let began = Instant::now();
        if state.rests_until.is_some_and(|until| began < until) {
            return false;
        }
        if !state.running {
            let age = state.started.map_or(Duration::MAX, |started| began - started);
            let is_due = age >= ROUND && self.has_something(&state, now)
                || age >= ROUND_LATEST && state.earliest != NEVER
                || self.wanted.load(Ordering::Relaxed);
            if !is_due {
                return false;
            }
            self.begin(&mut state, began);
        }
        let (removed, seen) = self.work(&mut state, engine, SweepAim::Tidiness, now, WORK, |_| false);
        self.removed.fetch_add(removed, Ordering::Relaxed);
        let is_worthwhile = removed * WORTHWHILE > seen;
        state.rests_until = (!is_worthwhile).then(|| began + began.elapsed() * REST);
        state.running && is_worthwhile
    }

    /// Returns the number of records removed so far, by any thread. A higher number than before a
    /// write found no room means that there is room now, even if this thread finds nothing to
    /// remove.
    #[inline]
    pub(crate) fn gone(&self) -> u64 {
        self.gone.load(Ordering::Acquire)
    }

    /// Removes some expired records, if there are any, for a write that found no room.
    pub(crate) fn relieve(&self, engine: &dyn Engine, now: UnixSeconds) {
        let mut state = self.lock();
        let began = Instant::now();
        // Records that the round in progress has passed may have expired since, so a second round
        // may be needed.
        for _ in 0..2 {
            if !state.running {
                if !self.has_something(&state, now) {
                    break;
                }
                self.begin(&mut state, began);
            }
            let left = RELIEF.saturating_sub(began.elapsed());
            let (removed, _) =
                self.work(&mut state, engine, SweepAim::Room, now, left, |removed| removed > 0);
            if removed > 0 {
                return;
            }
        }
    }

    /// Returns the last completed round, once.
    pub(crate) fn take_round(&self) -> Option<Round> {
        self.state.try_lock().ok()?.finished.take()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if a round could find something.
    fn has_something(&self, state: &State, now: UnixSeconds) -> bool {
        state.removed > 0 || self.earliest.load(Ordering::Relaxed) <= now.0
    }

    fn begin(&self, state: &mut State, now: Instant) {
        self.earliest.store(NEVER, Ordering::Relaxed);
        self.is_running.store(true, Ordering::Relaxed);
        self.wanted.store(false, Ordering::Relaxed);
        self.rounds.fetch_add(1, Ordering::Relaxed);
        *state = State {
            place: None,
            running: true,
            started: Some(now),
            earliest: NEVER,
            seen: 0,
            removed: 0,
            since_last: state.started.map_or(Duration::ZERO, |last| now - last),
            finished: state.finished,
            rests_until: None,
        };
    }

    /// Continues the round until its end, for a limited time, or until it has removed `enough`
    /// records. Returns the numbers of removed and of visited records.
    fn work(
        &self,
        state: &mut State,
        engine: &dyn Engine,
        aim: SweepAim,
        now: UnixSeconds,
        time: Duration,
        enough: impl Fn(u64) -> bool,
    ) -> (u64, u64) {
        let began = Instant::now();
        let (mut removed, mut seen) = (0, 0);
        while state.running && !enough(removed) && began.elapsed() < time {
            let State { place, earliest, .. } = &mut *state;
            let swept = engine.sweepable().map(|perishable| {
                perishable.sweep(place.take(), STEP_RECORDS, aim, &mut |expiry| {
                    let is_over = !expiry.is_live(now);
                    if !is_over {
                        *earliest = deadline(expiry).min(*earliest);
                    }
                    is_over
                })
            });
            // If the engine cannot be swept now, only memory is lost.
            let swept = swept.and_then(Result::ok).unwrap_or_default();
            (removed, seen) = (removed + swept.removed, seen + swept.seen);
            state.seen += swept.seen;
            state.removed += swept.removed;
            self.gone.fetch_add(swept.removed, Ordering::Release);
            let is_over = swept.next.is_none();
            state.place = swept.next;
            if is_over {
                state.running = false;
                state.finish();
                self.is_running.store(false, Ordering::Relaxed);
                self.earliest.fetch_min(state.earliest, Ordering::Relaxed);
            }
        }
        self.seen.fetch_add(seen, Ordering::Relaxed);
        (removed, seen)
    }
}
