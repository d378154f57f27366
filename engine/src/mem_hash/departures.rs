//! Counts records that leave the engine, or stay in it, by a decision of the engine. The counts are
//! for the status of the engine; an observer is notified of each such record.

use super::sample::{SampledUse, UnreadEstimate};
use std::fmt::Debug;
use todana_core::{EngineStatus, Record, SizeClass};

/// Observes records that leave without being removed by a client. The methods run under a lock of
/// the engine: they must be brief and must not call the engine.
pub trait EvictionObserver: Debug + Send + Sync {
    /// Returns true if `evicted` should be called now. This is called before each eviction, so it
    /// must be very cheap.
    fn is_listening(&self) -> bool;

    /// Notes an evicted record. `is_read` states that the record was read since its value was
    /// stored; reads before memory became scarce are not recorded. Expired records are not reported
    /// here.
    ///
    /// The value of a compressed record has the right length and no meaning.
    fn evicted(&self, key: &[u8], record: Record<'_>, is_read: bool);

    /// Notes a departed record: its size and the reason.
    fn departed(&self, _departure: &Departure) {}

    /// Notes that eviction has passed over a record of this plain size because the record had been
    /// used. `is_first` states that the record was passed over for the first time.
    fn passed_over(&self, _plain_size: usize, _is_first: bool) {}

    /// Notes that all records of a part of the engine were removed at once. `classes` holds their
    /// counts by class as in [`EngineStatus::classes`].
    fn cleared(&self, _classes: &[SizeClass]) {}
}

/// A record that has left by a decision of the engine, or an expired record that a client has
/// replaced or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure {
    /// The length of the key and the value, + 4 if the record carries flags.
    pub plain_size: usize,
    /// The reason why the record has left.
    pub cause: DepartureCause,
    /// True if the record carried an expiry.
    pub expires: bool,
    /// True if the record was never read. This is known for records in the engine's sample, and
    /// estimated for others.
    pub is_unread: bool,
    /// The seconds since the last use of the record, if it was in the sample.
    pub idle_s: Option<u64>,
}

/// The reason why a record leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DepartureCause {
    /// The record was evicted, for a write or by maintenance.
    Evicted {
        /// True if the eviction was for a write.
        by_write: bool,
    },
    /// The record had expired, and was removed by an eviction to free memory.
    Displaced,
    /// The record had expired, and was removed by a sweep.
    Swept,
    /// The record had expired, and a client removed or overwrote it.
    Ended,
}

/// The counts of departed records of one part of an engine.
#[derive(Clone, Copy, Default)]
pub(crate) struct DepartureCounters {
    pub(crate) evictions: u64,
    evictions_with_expiry: u64,
    evictions_by_writes: u64,
    evicted_unfetched: u64,
    reclaimed: u64,
    cleared: u64,
    expired_unfetched: u64,
    promotions: u64,
    second_chances: u64,
    evicted: UnreadEstimate,
    expired: UnreadEstimate,
}

impl DepartureCounters {
    /// Counts a departed record and notifies the observer. `seen` is the data about the record in
    /// the sample, if the sample contained it.
    pub(crate) fn count(
        &mut self,
        observer: Option<&dyn EvictionObserver>,
        (plain_size, cause, expires): (usize, DepartureCause, bool),
        seen: Option<SampledUse>,
        now: u32,
    ) {
        let is_evicted = matches!(cause, DepartureCause::Evicted { .. });
        let share = if is_evicted { &mut self.evicted } else { &mut self.expired };
        let unread = share.one(seen.map(|seen| seen.fetched));
        match cause {
            DepartureCause::Evicted { by_write } => {
                self.evictions += 1;
                self.evictions_with_expiry += u64::from(expires);
                self.evictions_by_writes += u64::from(by_write);
                self.evicted_unfetched += unread;
            }
            DepartureCause::Displaced => self.reclaimed += 1,
            DepartureCause::Swept | DepartureCause::Ended => {}
        }
        self.expired_unfetched += if is_evicted { 0 } else { unread };
        if let Some(observer) = observer {
            let idle_s = seen.map(|seen| seen.idle_s(now));
            observer.departed(&Departure { plain_size, cause, expires, is_unread: unread > 0, idle_s });
        }
    }

    /// Counts a record that eviction has passed over.
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
