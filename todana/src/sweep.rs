//! The sweep for records that expire without being met: a resumable scan in small steps.

use crate::expiry::{Bury, Living};
use std::ops::ControlFlow;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use todana_core::{Engine, Expiry, Place, Store, Ttl, UnixSeconds};

/// Records looked at between two looks at the clock, some tens of microseconds.
const STEP_RECORDS: usize = 512;
/// A round starts at most so often.
const ROUND_S: u64 = 5;
/// It works so long at a time ...
const WORK: Duration = Duration::from_millis(1);
/// ... and rests so many times as long, so that it takes less than 1 % of a core ...
const REST: u32 = 110;
/// ... unless at least one record in so many that it has just seen was expired: then memory is to be won.
const WORTHWHILE: usize = 8;

#[derive(Debug, Default)]
pub(crate) struct Sweep {
    /// Some record with an expiry was stored since the last round that found none.
    wanted: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Where a round in progress goes on.
    place: Option<Place>,
    running: bool,
    started: UnixSeconds,
    met_expiry: bool,
    /// No step before this.
    rests_until: Option<Instant>,
}

impl Sweep {
    /// Takes note of a store; a database without expiries is never swept.
    #[inline]
    pub(crate) fn note(&self, store: &Store<'_>) {
        self.note_ttl(store.ttl);
    }

    #[inline]
    pub(crate) fn note_ttl(&self, ttl: Ttl) {
        if ttl != Ttl::Never && !self.wanted.load(Ordering::Relaxed) {
            self.wanted.store(true, Ordering::Relaxed);
        }
    }

    /// One step. Returns how many records it removed, and whether it is worth while to go on at once.
    pub(crate) fn step(&self, engine: &dyn Engine, now: UnixSeconds) -> (u64, bool) {
        let Ok(mut state) = self.state.try_lock() else { return (0, false) };
        let began = Instant::now();
        if state.rests_until.is_some_and(|until| began < until) {
            return (0, false);
        }
        if !state.running {
            if !self.wanted.load(Ordering::Relaxed) || now.0 < state.started.0 + ROUND_S {
                return (0, false);
            }
            // Cleared before the round: what is stored behind the scan's back asks for another one.
            self.wanted.store(false, Ordering::Relaxed);
            *state = State { running: true, started: now, ..State::default() };
        }
        let (mut removed, mut seen) = (0, 0);
        while state.running && began.elapsed() < WORK {
            let (gone, looked_at) = self.look(&mut state, engine, now);
            (removed, seen) = (removed + gone, seen + looked_at);
        }
        let is_worthwhile = removed as usize * WORTHWHILE > seen;
        state.rests_until = (!is_worthwhile).then(|| began + began.elapsed() * REST);
        (removed, state.running && is_worthwhile)
    }

    /// Looks at some records; returns how many it removed of how many.
    fn look(&self, state: &mut State, engine: &dyn Engine, now: UnixSeconds) -> (u64, usize) {
        let mut expired = Vec::new();
        let mut seen = 0;
        let mut met_expiry = false;
        let next = engine.scan(state.place, &mut |key, record| {
            met_expiry |= record.attributes.expiry != Expiry::Never;
            if !record.attributes.expiry.is_live(now) {
                expired.push(key.to_vec());
            }
            seen += 1;
            if seen < STEP_RECORDS { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        state.met_expiry |= met_expiry;
        let mut removed = 0;
        for key in &expired {
            let mut bury = Bury;
            let mut living = Living::new(&mut bury, now);
            // Looked at again under the lock: it may have been stored anew meanwhile.
            if engine.visit(key, &mut living).is_ok() && living.met_expired {
                removed += 1;
            }
        }
        match next {
            Ok(Some(place)) => state.place = Some(place),
            Ok(None) | Err(_) => {
                state.running = false;
                if state.met_expiry {
                    self.wanted.store(true, Ordering::Relaxed);
                }
            }
        }
        (removed, seen)
    }
}
