//! Which segment a key belongs to.
//!
//! Every visit asks this first, so it is read far more often than written. Each thread reads its own copy of one reference,
//! behind a lock of its own cache line; a change makes a new table and puts it into all copies. A reader holds that lock for the
//! look alone. Whoever has a partition's lock then sees from the partition's `changed` whether the answer still holds, and
//! asks again if not.

use super::separators::Separators;
use parking_lot::RwLock;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Where a segment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Location {
    pub(super) partition: u32,
    pub(super) slot: u32,
}

/// All segments, in the order of their keys.
#[derive(Clone)]
pub(super) struct Table {
    /// Counts changes.
    pub(super) epoch: u64,
    /// One less than there are segments.
    pub(super) separators: Separators,
    pub(super) locations: Vec<Location>,
}

/// Copies of the reference to the table.
const COPIES: usize = 16;

#[repr(align(128))]
struct Padded(RwLock<Arc<Table>>);

pub(super) struct Router {
    copies: [Padded; COPIES],
}

/// The copy that this thread reads.
fn own_copy() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static OWN: Cell<usize> = const { Cell::new(usize::MAX) });
    OWN.with(|own| {
        if own.get() == usize::MAX {
            own.set(NEXT.fetch_add(1, Ordering::Relaxed) % COPIES);
        }
        own.get()
    })
}

impl Router {
    pub(super) fn new(location: Location) -> Router {
        let table = Table { epoch: 0, separators: Separators::default(), locations: vec![location] };
        let table = Arc::new(table);
        Router { copies: std::array::from_fn(|_| Padded(RwLock::new(Arc::clone(&table)))) }
    }

    /// The segment of a key, and as of which change.
    #[inline]
    pub(super) fn find(&self, key: &[u8]) -> (Location, u64) {
        self.locate(|separators| separators.up_to(key))
    }

    /// The segment of the keys just below this one.
    pub(super) fn find_below(&self, key: &[u8]) -> (Location, u64) {
        self.locate(|separators| separators.below(key))
    }

    /// The last segment.
    pub(super) fn find_last(&self) -> (Location, u64) {
        self.locate(Separators::len)
    }

    #[inline]
    fn locate(&self, choose: impl FnOnce(&Separators) -> usize) -> (Location, u64) {
        let table = self.copies[own_copy()].0.read();
        (table.locations[choose(&table.separators)], table.epoch)
    }

    /// The table as it is.
    pub(super) fn table(&self) -> Arc<Table> {
        Arc::clone(&self.copies[0].0.read())
    }

    /// Puts another table in place. One thread at a time does.
    pub(super) fn install(&self, table: Table) {
        let table = Arc::new(table);
        for copy in &self.copies {
            *copy.0.write() = Arc::clone(&table);
        }
    }
}
