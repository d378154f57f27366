//! Defines the router, which finds the segment of a key.
//!
//! Every visit begins here, so the router is read far more often than it is changed. It holds
//! several copies of a reference to one table. Each thread reads a copy of its own under a lock in
//! a cache line of its own. A change creates a new table and stores the reference to it in all
//! copies. A reader holds the lock only during the lookup. After locking the partition, the reader
//! compares the partition's `changed_epoch` with the epoch of the table. If the table was too old,
//! the reader repeats the lookup.

use super::separators::SeparatorList;
use parking_lot::RwLock;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The location of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentLocation {
    pub(super) partition: u32,
    pub(super) slot: u32,
}

/// The table of all segments, in the order of their keys.
#[derive(Clone)]
pub(super) struct RoutingTable {
    /// The number of changes so far.
    pub(super) epoch: u64,
    /// The keys between neighbouring segments.
    pub(super) separators: SeparatorList,
    pub(super) locations: Vec<SegmentLocation>,
}

/// The number of copies of the reference to the table.
const COPIES: usize = 16;

#[repr(align(128))]
struct TableCopy(RwLock<Arc<RoutingTable>>);

pub(super) struct SegmentRouter {
    copies: [TableCopy; COPIES],
}

/// Returns the index of the copy that this thread reads.
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

impl SegmentRouter {
    pub(super) fn new(location: SegmentLocation) -> SegmentRouter {
        let table =
            RoutingTable { epoch: 0, separators: SeparatorList::default(), locations: vec![location] };
        let table = Arc::new(table);
        SegmentRouter { copies: std::array::from_fn(|_| TableCopy(RwLock::new(Arc::clone(&table)))) }
    }

    /// Returns the segment of a key, and the epoch of the table.
    #[inline]
    pub(super) fn find(&self, key: &[u8]) -> (SegmentLocation, u64) {
        self.locate(|separators| separators.up_to(key))
    }

    /// Returns the segment that contains the keys just below this key, and the epoch of the table.
    pub(super) fn find_below(&self, key: &[u8]) -> (SegmentLocation, u64) {
        self.locate(|separators| separators.below(key))
    }

    /// Returns the last segment, and the epoch of the table.
    pub(super) fn find_last(&self) -> (SegmentLocation, u64) {
        self.locate(SeparatorList::len)
    }

    #[inline]
    fn locate(&self, choose: impl FnOnce(&SeparatorList) -> usize) -> (SegmentLocation, u64) {
        let table = self.copies[own_copy()].0.read();
        (table.locations[choose(&table.separators)], table.epoch)
    }

    /// Returns the current table.
    pub(super) fn table(&self) -> Arc<RoutingTable> {
        Arc::clone(&self.copies[0].0.read())
    }

    /// Replaces the table by a new one. Only one thread at a time may call this.
    pub(super) fn install(&self, table: RoutingTable) {
        let table = Arc::new(table);
        for copy in &self.copies {
            *copy.0.write() = Arc::clone(&table);
        }
    }
}
