//! The sweep for records that expire without being met: rounds over the whole engine, in small steps.
//!
//! A round begins when there can be something to find: `earliest` is no later than any expiry that was stored since the last
//! round, or that the last round met and left. So a database whose records all have hours to live is not looked at.
//! Exactness is not needed here, as no expired record is ever shown: what slips through a round (the engine grew behind
//! its back) is found by a later one.

use crate::expiry::{deadline, resolve};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use todana_core::{Engine, Expiry, ScanPosition, SweepAim, Ttl, UnixSeconds};

/// Records looked at between two looks at the clock, some tens of microseconds.
const STEP_RECORDS: usize = 2048;
/// A round begins at most so often ...
const ROUND: Duration = Duration::from_secs(1);
/// ... and at least so often while there are records with an expiry, for those that slipped through.
const ROUND_LATEST: Duration = Duration::from_secs(30);
/// It works so long at a time ...
const WORK: Duration = Duration::from_micros(900);
/// ... and rests so many times as long, so that it takes less than 1 % of a core ...
const REST: u32 = 105;
/// ... unless at least one record in so many that it has just seen was expired: then memory is to be won.
const WORTHWHILE: u64 = 8;
/// A write that finds no room waits at most so long for expired records to go.
const RELIEF: Duration = Duration::from_millis(1);

const NEVER: u64 = u64::MAX;

/// What a round has come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// From the start of the round before to the start of this one; zero for the first.
    pub since_last: Duration,
    /// From its start to its end, with its rests.
    pub elapsed: Duration,
    /// Records passed.
    pub seen: u64,
    /// Of those, removed.
    pub removed: u64,
}

/// What the sweep has done since the start or the last reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sweeps {
    /// A round is under way.
    pub is_running: bool,
    /// Rounds begun.
    pub rounds: u64,
    /// Records looked at.
    pub seen: u64,
    /// Of those, removed because they had expired; without those that a write in want of memory has removed.
    pub removed: u64,
}

#[derive(Debug)]
pub(crate) struct Sweep {
    /// Somebody wants a round, whether or not it could find something.
    wanted: AtomicBool,
    is_running: AtomicBool,
    rounds: AtomicU64,
    seen: AtomicU64,
    removed: AtomicU64,
    /// No expiry that was stored since the last round began, or that it left, is earlier.
    earliest: AtomicU64,
    /// Removed since the start, by whichever thread.
    gone: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Where a round in progress goes on.
    place: Option<ScanPosition>,
    running: bool,
    started: Option<Instant>,
    /// The earliest expiry that this round has met and left.
    earliest: u64,
    /// Passed and removed in this round.
    seen: u64,
    removed: u64,
    since_last: Duration,
    /// The last round that has come to its end and that nobody has asked for yet.
    finished: Option<Round>,
    /// No step before this.
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

    /// Has a round begin with the next step, or when the one in progress is over: that may have passed what has expired
    /// since.
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

    /// Takes note of a time to live that a record has just been given. Not before: a round that begins in between would
    /// forget the note and miss the record.
    #[inline]
    pub(crate) fn note(&self, ttl: Ttl, now: UnixSeconds) {
        if ttl != Ttl::Never {
            self.note_expiry(resolve(ttl, now));
        }
    }

    /// The same of an expiry.
    #[inline]
    pub(crate) fn note_expiry(&self, expiry: Expiry) {
        let at = deadline(expiry);
        // Hardly ever true: most are later than others that are still to come.
        if at < self.earliest.load(Ordering::Relaxed) {
            self.earliest.fetch_min(at, Ordering::Relaxed);
        }
    }

    /// One step. Returns whether it is worth while to go on at once.
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

    /// How many records it has removed so far, by whichever thread: more than before a write found no room means that
    /// there is some now, though this thread may find nothing left to remove.
    #[inline]
    pub(crate) fn gone(&self) -> u64 {
        self.gone.load(Ordering::Acquire)
    }

    /// For a write that found no room: removes some expired records, if there are any.
    pub(crate) fn relieve(&self, engine: &dyn Engine, now: UnixSeconds) {
        let mut state = self.lock();
        let began = Instant::now();
        // What a round in progress has behind it may have expired meanwhile, so perhaps it takes another one.
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

    /// The last round that has ended, once.
    pub(crate) fn take_round(&self) -> Option<Round> {
        self.state.try_lock().ok()?.finished.take()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a round could find something.
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

    /// Goes on with the round until its end, for so long, or until what it has removed is `enough`. Returns how many
    /// records it removed of how many.
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
            // An engine that cannot be swept, or not now: nothing is lost but memory.
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
