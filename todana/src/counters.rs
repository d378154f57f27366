//! What has happened, counted by worker.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What has happened since the start or the last reset. The names are those of memcached's `stats`.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        /// The counters of one worker: no other thread adds to them, so adding costs no contention.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub struct Lane {
            $(pub(crate) $name: Count,)*
        }

        impl Counters {
            fn add(&mut self, lane: &Lane) {
                $(self.$name += lane.$name.get();)*
            }

            fn since(self, earlier: &Counters) -> Counters {
                Counters { $($name: self.$name - earlier.$name,)* }
            }
        }
    };
}

counters! {
    /// Reads: one for each key.
    cmd_get,
    /// Storage commands.
    cmd_set,
    /// Flushes.
    cmd_flush,
    /// Touches, `gat` included.
    cmd_touch,
    /// Meta commands of any kind.
    cmd_meta,
    /// Reads that found a record.
    get_hits,
    /// Reads that found none.
    get_misses,
    /// Of those, the ones that met an expired record.
    get_expired,
    /// Deletes that found a record.
    delete_hits,
    /// Deletes that found none.
    delete_misses,
    /// Increments that found a record.
    incr_hits,
    /// Increments that found none.
    incr_misses,
    /// Decrements that found a record.
    decr_hits,
    /// Decrements that found none.
    decr_misses,
    /// Compare-and-sets that stored.
    cas_hits,
    /// Compare-and-sets that found no record.
    cas_misses,
    /// Compare-and-sets that met another version.
    cas_badval,
    /// Touches that found a record.
    touch_hits,
    /// Touches that found none.
    touch_misses,
    /// Stores refused for their size.
    store_too_large,
    /// Stores refused for want of memory.
    store_no_memory,
    /// Records stored.
    total_items,
    /// Expired records whose memory was taken back.
    reclaimed,
}

/// One counter of one worker.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    #[inline]
    pub(crate) fn add(&self, by: u64) {
        // Only the lane's owner writes, so this needs no atomic addition.
        self.0.store(self.0.load(Ordering::Relaxed) + by, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn one(&self) {
        self.add(1);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// All lanes, and the sums at the last reset. Lanes stay when their worker ends.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    lanes: Mutex<(Vec<Arc<Lane>>, Counters)>,
}

impl Lanes {
    pub(crate) fn open(&self) -> Arc<Lane> {
        let lane = Arc::new(Lane::default());
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner).0.push(Arc::clone(&lane));
        lane
    }

    pub(crate) fn sum(&self) -> Counters {
        let lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        sum(&lanes.0).since(&lanes.1)
    }

    pub(crate) fn reset(&self) {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        lanes.1 = sum(&lanes.0);
    }
}

fn sum(lanes: &[Arc<Lane>]) -> Counters {
    let mut sum = Counters::default();
    lanes.iter().for_each(|lane| sum.add(lane));
    sum
}
