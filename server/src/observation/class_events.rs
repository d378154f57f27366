//! Counts evictions and other removals by memcached's size classes. Engines do not know these
//! classes: they report the size of each removed record to an observer.

use std::sync::atomic::{AtomicU64, Ordering};
use todana_core::SizeClass;
use todana_engine::{Departure, DepartureCause};
use todana_protocol::memcached::{CHUNK_SIZES, ITEM_OVERHEAD_BYTES, size_class};

/// The events that are counted for each class.
#[derive(Clone, Copy)]
pub(crate) enum ClassEvent {
    Evicted,
    EvictedWithExpiry,
    EvictedByWrite,
    EvictedUnread,
    /// The seconds since the last use of the last evicted record that was in the engine's sample.
    /// This is not a count.
    EvictedIdle,
    /// An expired record was removed to free memory.
    Displaced,
    /// The record was removed together with all others.
    Cleared,
    Swept,
    ExpiredUnread,
    Promoted,
    Spared,
}

const EVENTS: usize = ClassEvent::Spared as usize + 1;

/// The counts of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClassEvents([u64; EVENTS]);

impl ClassEvents {
    pub(crate) fn get(&self, event: ClassEvent) -> u64 {
        self.0[event as usize]
    }
}

/// The counts of all classes since the last reset.
#[derive(Debug)]
pub(crate) struct ClassEventCounters(Vec<[AtomicU64; EVENTS]>);

impl ClassEventCounters {
    pub(crate) fn new() -> ClassEventCounters {
        ClassEventCounters(CHUNK_SIZES.iter().map(|_| Default::default()).collect())
    }

    fn add(&self, class: usize, event: ClassEvent, by: u64) {
        if by > 0 {
            self.0[class - 1][event as usize].fetch_add(by, Ordering::Relaxed);
        }
    }

    pub(crate) fn count(&self, departure: &Departure) {
        let class = class_of(departure.plain_size);
        let unread = match departure.cause {
            DepartureCause::Evicted { by_write } => {
                self.add(class, ClassEvent::Evicted, 1);
                self.add(class, ClassEvent::EvictedWithExpiry, departure.expires.into());
                self.add(class, ClassEvent::EvictedByWrite, by_write.into());
                if let Some(idle_s) = departure.idle_s {
                    self.0[class - 1][ClassEvent::EvictedIdle as usize].store(idle_s, Ordering::Relaxed);
                }
                ClassEvent::EvictedUnread
            }
            cause => {
                self.add(class, ClassEvent::Displaced, (cause == DepartureCause::Displaced).into());
                self.add(class, ClassEvent::Swept, (cause == DepartureCause::Swept).into());
                ClassEvent::ExpiredUnread
            }
        };
        self.add(class, unread, departure.is_unread.into());
    }

    pub(crate) fn count_passed(&self, plain_size: usize, is_first: bool) {
        let event = if is_first { ClassEvent::Promoted } else { ClassEvent::Spared };
        self.add(class_of(plain_size), event, 1);
    }

    pub(crate) fn count_cleared(&self, classes: &[SizeClass]) {
        for (index, class) in classes.iter().enumerate().filter(|(_, class)| class.records > 0) {
            self.add((index + 1).min(self.0.len()), ClassEvent::Cleared, class.records);
        }
    }

    /// Returns the counts of the class with this number in memcached.
    pub(crate) fn of(&self, class: usize) -> ClassEvents {
        ClassEvents(self.0[class - 1].each_ref().map(|count| count.load(Ordering::Relaxed)))
    }

    pub(crate) fn reset(&self) {
        self.0.iter().flatten().for_each(|count| count.store(0, Ordering::Relaxed));
    }
}

/// Returns memcached's number of the class of records with this plain size.
pub(crate) fn class_of(plain_size: usize) -> usize {
    size_class(plain_size as u64 + ITEM_OVERHEAD_BYTES)
}
