//! Records that leave, or stay, by the engine's own decision: counted for its status, and reported to the observer.

use super::sample::{Seen, Share};
use std::fmt::Debug;
use todana_core::{EngineStatus, Record, SizeClass};

/// Learns about records that leave without being removed by a client. Methods run under a lock of the engine's: they must be
/// brief and must not call the engine.
pub trait EvictionObserver: Debug + Send + Sync {
    /// Returns true if `evicted` is to be called now. It is asked before each eviction, so this must cost next to nothing.
    fn is_listening(&self) -> bool;

    /// Notes a record that is evicted. `is_read`: it has been read since its value was stored, and since memory became scarce;
    /// reads before that leave no trace. Records that leave because they have expired are not reported here.
    fn evicted(&self, key: &[u8], record: Record<'_>, is_read: bool);

    /// Notes the size and fate of a record, always.
    fn departed(&self, _departure: &Departure) {}

    /// Notes that a record of this plain size was passed over when its turn came, as it had been used: for the first time, or
    /// once more.
    fn passed_over(&self, _plain_size: usize, _is_first: bool) {}

    /// Notes that all records of a part of the engine were removed at once: how many, by [`EngineStatus::classes`].
    fn cleared(&self, _classes: &[SizeClass]) {}
}

/// A record that has left, or has expired before a client ended it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure {
    /// Key + value + 4 if it carries flags.
    pub plain_size: usize,
    /// Why it has left.
    pub cause: Cause,
    /// It carried an expiry.
    pub expires: bool,
    /// It had never been read: known of records in the engine's sample, estimated for others.
    pub is_unread: bool,
    /// Seconds since its last use, if it was in the sample.
    pub idle_s: Option<u64>,
}

/// Why a record leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// To make room for a write, or for housekeeping.
    Evicted {
        /// For a write.
        by_write: bool,
    },
    /// It had expired, and room was wanted.
    Displaced,
    /// It had expired, and a sweep came by.
    Swept,
    /// It had expired, and a client removed or overwrote it.
    Ended,
}

/// The counts of one part of an engine.
#[derive(Clone, Copy, Default)]
pub(crate) struct Departures {
    pub(crate) evictions: u64,
    evictions_with_expiry: u64,
    evictions_by_writes: u64,
    evicted_unfetched: u64,
    reclaimed: u64,
    cleared: u64,
    expired_unfetched: u64,
    promotions: u64,
    second_chances: u64,
    evicted: Share,
    expired: Share,
}

impl Departures {
    /// Counts a record that has left; `seen` is what the sample knows of it.
    pub(crate) fn count(
        &mut self,
        observer: Option<&dyn EvictionObserver>,
        (plain_size, cause, expires): (usize, Cause, bool),
        seen: Option<Seen>,
        now: u32,
    ) {
        let is_evicted = matches!(cause, Cause::Evicted { .. });
        let share = if is_evicted { &mut self.evicted } else { &mut self.expired };
        let unread = share.one(seen.map(|seen| seen.fetched));
        match cause {
            Cause::Evicted { by_write } => {
                self.evictions += 1;
                self.evictions_with_expiry += u64::from(expires);
                self.evictions_by_writes += u64::from(by_write);
                self.evicted_unfetched += unread;
            }
            Cause::Displaced => self.reclaimed += 1,
            Cause::Swept | Cause::Ended => {}
        }
        self.expired_unfetched += if is_evicted { 0 } else { unread };
        if let Some(observer) = observer {
            let idle_s = seen.map(|seen| seen.idle_s(now));
            observer.departed(&Departure { plain_size, cause, expires, is_unread: unread > 0, idle_s });
        }
    }

    /// Counts a record that stays although its turn had come.
    pub(crate) fn count_passed(
        &mut self,
        observer: Option<&dyn EvictionObserver>,
        plain_size: usize,
        is_first: bool,
    ) {
        *if is_first { &mut self.promotions } else { &mut self.second_chances } += 1;
        observer.inspect(|observer| observer.passed_over(plain_size, is_first));
    }

    /// Counts records that were removed all at once.
    pub(crate) fn count_cleared(&mut self, observer: Option<&dyn EvictionObserver>, classes: &[SizeClass]) {
        self.cleared += classes.iter().map(|class| class.records).sum::<u64>();
        observer.inspect(|observer| observer.cleared(classes));
    }

    pub(crate) fn add_to(&self, status: &mut EngineStatus) {
        status.evictions += self.evictions;
        status.evictions_with_expiry += self.evictions_with_expiry;
        status.evictions_by_writes += self.evictions_by_writes;
        status.evicted_unfetched += self.evicted_unfetched;
        status.reclaimed += self.reclaimed;
        status.cleared += self.cleared;
        status.expired_unfetched += self.expired_unfetched;
        status.promotions += self.promotions;
        status.second_chances += self.second_chances;
    }
}
