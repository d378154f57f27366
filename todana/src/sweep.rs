//! The sweep: removes expired records that no request has found, in rounds over all records and in
//! small steps.
//!
//! A round starts only if it may find an expired record. For this, `earliest` holds a time that is
//! not later than the expiry of any live record, as far as the sweep knows them. So a database
//! whose records all live for hours is not scanned in the meantime. The sweep need not be exact,
//! because expired records are never shown. If a round misses a record because the engine grew
//! during the round, a later round finds that record.

use crate::expiry::{deadline, resolve};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use todana_core::{Engine, Expiry, ScanPosition, SweepAim, Ttl, UnixSeconds};

/// The number of records between two readings of the clock. They take some tens of microseconds.
const STEP_RECORDS: usize = 2048;
/// The shortest time between the starts of two rounds.
const ROUND_INTERVAL_MIN: Duration = Duration::from_secs(1);
/// The longest time between the starts of two rounds while any record has an expiry. These rounds
/// find records that earlier rounds missed.
const ROUND_INTERVAL_MAX: Duration = Duration::from_secs(30);
/// The duration of a step.
const STEP_TIME: Duration = Duration::from_micros(900);
/// The pause after a step, as a multiple of `STEP_TIME`, so that the sweep takes less than 1 % of a
/// core.
const PAUSE_FACTOR: u32 = 105;
/// If at least one of this number of records was expired, the next step follows without a pause,
/// because the sweep then frees much memory.
const EXPIRED_ONE_IN: u64 = 8;
/// The longest time that a write spends on removing expired records when it finds no room.
const RELIEF_TIME: Duration = Duration::from_millis(1);

const NEVER: u64 = u64::MAX;

/// The result of one round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweepRound {
    /// Time from the start of the previous round to the start of this round; zero for the first
    /// round.
    pub since_last: Duration,
    /// Time from the start of the round to its end, with all pauses.
    pub elapsed: Duration,
    /// Number of records that the round visited.
    pub seen: u64,
    /// Number of records that the round removed.
    pub removed: u64,
}

/// The work of the sweep since the start or the last reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweepCounters {
    /// True if a round is in progress or requested.
    pub is_running: bool,
    /// Number of rounds that were started.
    pub rounds: u64,
    /// Number of records visited.
    pub seen: u64,
    /// Number of records that the rounds removed as expired. Records removed by a write that needed
    /// memory do not count.
    pub removed: u64,
}

#[derive(Debug)]
pub(crate) struct ExpirySweep {
    /// A round was requested, even if no record is known to be expired.
    wanted: AtomicBool,
    is_running: AtomicBool,
    rounds: AtomicU64,
    seen: AtomicU64,
    removed: AtomicU64,
    /// The earliest expiry that was stored since the last round began, or that the last round found
    /// and left.
    earliest: AtomicU64,
    /// Number of records removed since the start, by any thread.
    removed_total: AtomicU64,
    state: Mutex<SweepState>,
}

#[derive(Debug)]
struct SweepState {
    /// The position at which the round in progress continues.
    place: Option<ScanPosition>,
    running: bool,
    started: Option<Instant>,
    /// The earliest expiry of the live records that this round has found.
    earliest: u64,
    /// Numbers of records visited and removed in this round.
    seen: u64,
    removed: u64,
    since_last: Duration,
    /// The last completed round, until [`ExpirySweep::take_round`] has returned it.
    finished: Option<SweepRound>,
    /// The end of the current pause.
    paused_until: Option<Instant>,
}

impl SweepState {
    fn finish(&mut self) {
        self.finished = Some(SweepRound {
            since_last: self.since_last,
            elapsed: self.started.map_or(Duration::ZERO, |started| started.elapsed()),
            seen: self.seen,
            removed: self.removed,
        });
    }
}

impl ExpirySweep {
    pub(crate) fn new() -> ExpirySweep {
        let state = SweepState {
            place: None,
            running: false,
            started: None,
            earliest: NEVER,
            seen: 0,
            removed: 0,
            since_last: Duration::ZERO,
            finished: None,
            paused_until: None,
        };
        ExpirySweep {
            wanted: AtomicBool::new(false),
            is_running: AtomicBool::new(false),
            rounds: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            removed: AtomicU64::new(0),
            earliest: AtomicU64::new(NEVER),
            removed_total: AtomicU64::new(0),
            state: Mutex::new(state),
        }
    }

    /// Requests a round. It starts with the next step, or after a round in progress, because that
    /// round may have passed records that have expired since.
    pub(crate) fn request_round(&self) {
        self.wanted.store(true, Ordering::Relaxed);
    }

    pub(crate) fn counts(&self) -> SweepCounters {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let is_wanted = self.wanted.load(Ordering::Relaxed);
        SweepCounters {
            is_running: is_wanted || self.is_running.load(Ordering::Relaxed),
            rounds: get(&self.rounds),
            seen: get(&self.seen),
            removed: get(&self.removed),
        }
    }

    /// Notes the time to live of a record. Must be called after the record was stored. If a round
    /// started between the note and the store, the round would clear the note and miss the record.
    #[inline]
    pub(crate) fn note_ttl(&self, ttl: Ttl, now: UnixSeconds) {
        if ttl != Ttl::Never {
            self.note_expiry(resolve(ttl, now));
        }
    }

    /// Notes the expiry of a record, as [`note_ttl`](Self::note_ttl) does.
    #[inline]
    pub(crate) fn note_expiry(&self, expiry: Expiry) {
        let at = deadline(expiry);
        // This is rarely true, because most records expire later than some other live record.
        if at < self.earliest.load(Ordering::Relaxed) {
            self.earliest.fetch_min(at, Ordering::Relaxed);
        }
    }

    /// Does one step. Returns true if another step should follow at once.
    pub(crate) fn step(&self, engine: &dyn Engine, now: UnixSeconds) -> bool {
        let Ok(mut state) = self.state.try_lock() else { return false };
        let began = Instant::now();
        if state.paused_until.is_some_and(|until| began < until) {
            return false;
        }
        if !state.running {
            let age = state.started.map_or(Duration::MAX, |started| began - started);
            let is_due = age >= ROUND_INTERVAL_MIN && self.may_find_expired(&state, now)
                || age >= ROUND_INTERVAL_MAX && state.earliest != NEVER
                || self.wanted.load(Ordering::Relaxed);
            if !is_due {
                return false;
            }
            self.begin(&mut state, began);
        }
        let (removed, seen) = self.work(&mut state, engine, SweepAim::Tidiness, now, STEP_TIME, |_| false);
        self.removed.fetch_add(removed, Ordering::Relaxed);
        let is_worthwhile = removed * EXPIRED_ONE_IN > seen;
        state.paused_until = (!is_worthwhile).then(|| began + began.elapsed() * PAUSE_FACTOR);
        state.running && is_worthwhile
    }

    /// Returns the number of records removed so far, by any thread. A writer that found no room can
    /// compare two results: if the number has grown, there is room now, even if the writer itself
    /// finds nothing to remove.
    #[inline]
    pub(crate) fn removed_total(&self) -> u64 {
        self.removed_total.load(Ordering::Acquire)
    }

    /// Removes expired records for a write that found no room, if there are any.
    pub(crate) fn relieve(&self, engine: &dyn Engine, now: UnixSeconds) {
        let mut state = self.lock();
        let began = Instant::now();
        // Records that the current round has already passed may have expired since, so a second
        // round may be needed.
        for _ in 0..2 {
            if !state.running {
                if !self.may_find_expired(&state, now) {
                    break;
                }
                self.begin(&mut state, began);
            }
            let left = RELIEF_TIME.saturating_sub(began.elapsed());
            let (removed, _) =
                self.work(&mut state, engine, SweepAim::Room, now, left, |removed| removed > 0);
            if removed > 0 {
                return;
            }
        }
    }

    /// Returns the last completed round, unless it was returned before.
    pub(crate) fn take_round(&self) -> Option<SweepRound> {
        self.state.try_lock().ok()?.finished.take()
    }

    fn lock(&self) -> MutexGuard<'_, SweepState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if a round may find an expired record.
    fn may_find_expired(&self, state: &SweepState, now: UnixSeconds) -> bool {
        state.removed > 0 || self.earliest.load(Ordering::Relaxed) <= now.0
    }

    fn begin(&self, state: &mut SweepState, now: Instant) {
        self.earliest.store(NEVER, Ordering::Relaxed);
        self.is_running.store(true, Ordering::Relaxed);
        self.wanted.store(false, Ordering::Relaxed);
        self.rounds.fetch_add(1, Ordering::Relaxed);
        *state = SweepState {
            place: None,
            running: true,
            started: Some(now),
            earliest: NEVER,
            seen: 0,
            removed: 0,
            since_last: state.started.map_or(Duration::ZERO, |last| now - last),
            finished: state.finished,
            paused_until: None,
        };
    }

    /// Continues the round until its end, for a limited time, or until it has removed `enough`
    /// records. Returns the number of removed records and the number of visited records.
    fn work(
        &self,
        state: &mut SweepState,
        engine: &dyn Engine,
        aim: SweepAim,
        now: UnixSeconds,
        time: Duration,
        enough: impl Fn(u64) -> bool,
    ) -> (u64, u64) {
        let began = Instant::now();
        let (mut removed, mut seen) = (0, 0);
        while state.running && !enough(removed) && began.elapsed() < time {
            let SweepState { place, earliest, .. } = &mut *state;
            let swept = engine.sweepable().map(|perishable| {
                perishable.sweep(place.take(), STEP_RECORDS, aim, &mut |expiry| {
                    let is_over = !expiry.is_live(now);
                    if !is_over {
                        *earliest = deadline(expiry).min(*earliest);
                    }
                    is_over
                })
            });
            // If the engine cannot be swept now, expired records only occupy memory for longer.
            let swept = swept.and_then(Result::ok).unwrap_or_default();
            (removed, seen) = (removed + swept.removed, seen + swept.seen);
            state.seen += swept.seen;
            state.removed += swept.removed;
            self.removed_total.fetch_add(swept.removed, Ordering::Release);
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
