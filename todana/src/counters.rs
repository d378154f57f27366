//! Counters of events, by worker; some of them also by the size of the record.

use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use todana_core::Error;
use todana_engine::ClassBounds;

macro_rules! counters {
    ($(#[$about:meta])* $Counters:ident, $Counts:ident; $($(#[$doc:meta])* $name:ident,)*) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        #[derive(Debug, Default)]
        pub(crate) struct $Counts {
            $(pub(crate) $name: WorkerCount,)*
        }

        impl AddAssign for $Counters {
            fn add_assign(&mut self, other: $Counters) {
                $(self.$name += other.$name;)*
            }
        }

        impl $Counters {
            fn add(&mut self, counts: &$Counts) {
                $(self.$name += counts.$name.get();)*
            }

            fn since(self, earlier: &$Counters) -> $Counters {
                $Counters { $($name: self.$name - earlier.$name,)* }
            }
        }
    };
}

counters! {
    /// Counts of events since the start or the last reset. The names are those of memcached's
    /// `stats`.
    Counters, Counts;
    /// Reads, one for each key. Reads that set a new time to live count as touches.
    cmd_get,
    /// Storage commands, without those refused for their size or for lack of memory.
    cmd_set,
    /// Flushes.
    cmd_flush,
    /// Touches, including `gat`, and meta reads that set a new time to live.
    cmd_touch,
    /// Meta commands of any kind.
    cmd_meta,
    /// Reads that found a record.
    get_hits,
    /// Reads that found none.
    get_misses,
    /// Commands of any kind that found an expired record.
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
    /// Compare-and-sets that found another version.
    cas_badval,
    /// Touches that found a record.
    touch_hits,
    /// Touches that found none.
    touch_misses,
    /// Stores refused for their size.
    store_too_large,
    /// Stores refused for lack of memory.
    store_no_memory,
    /// Records stored or created.
    total_items,
    /// Expired records that commands have removed; those removed to make room are counted by the
    /// engine.
    reclaimed,
    /// Changes refused because the update log or the files of the engine cannot be written.
    log_refusals,
}

counters! {
    /// Counts of events on the records of one size class. The names are those of memcached's `stats
    /// slabs`.
    ClassCounters, ClassCounts;
    /// Reads that found a record.
    get_hits,
    /// Storage commands, as in [`Counters`].
    cmd_set,
    /// Deletes that found a record.
    delete_hits,
    /// Increments that found a record.
    incr_hits,
    /// Decrements that found a record.
    decr_hits,
    /// Compare-and-sets that stored.
    cas_hits,
    /// Compare-and-sets that found another version.
    cas_badval,
    /// Touches that found a record.
    touch_hits,
    /// Records of any command for which there was no memory.
    out_of_memory,
    /// Expired records that commands have removed, and whose memory was freed.
    reclaimed,
}

/// The counters of one worker. Only one thread may add to them at a time, so adding causes no
/// contention; two threads would lose counts.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct WorkerCounters {
    pub(crate) counts: Counts,
    classes: Box<[ClassCounts]>,
}

impl WorkerCounters {
    /// Returns the counts of this worker since the start, regardless of resets.
    pub fn counters(&self) -> Counters {
        let mut sum = Counters::default();
        sum.add(&self.counts);
        sum
    }

    /// Counts a failed change if the files refused it.
    #[cold]
    pub(crate) fn count_refusal(&self, error: &Error) {
        self.counts.log_refusals.add(u64::from(error.is_refused_write()));
    }

    /// Returns the counters of a class, or of the last one if there is no such class.
    #[inline]
    pub(crate) fn class(&self, class: usize) -> &ClassCounts {
        &self.classes[class.min(self.classes.len() - 1)]
    }
}

/// One counter of one worker.
#[derive(Debug, Default)]
pub(crate) struct WorkerCount(AtomicU64);

impl WorkerCount {
    #[inline]
    pub(crate) fn add(&self, by: u64) {
        // A worker, a thread or a transaction has its own counters, so no atomic addition is
        // needed.
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

/// The counters of all workers, and the sums at the last reset. Counters stay after their worker
/// ends.
#[derive(Debug, Default)]
pub(crate) struct CounterRegistry {
    state: Mutex<RegistryState>,
}

#[derive(Debug, Default)]
struct RegistryState {
    workers: Vec<Arc<WorkerCounters>>,
    at_reset: CounterSums,
}

#[derive(Debug, Default)]
struct CounterSums {
    counters: Counters,
    classes: Vec<ClassCounters>,
}

impl CounterRegistry {
    fn state(&self) -> MutexGuard<'_, RegistryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn open(&self, classes: &ClassBounds) -> Arc<WorkerCounters> {
        let classes = (0..classes.len()).map(|_| ClassCounts::default()).collect();
        let worker_counters = Arc::new(WorkerCounters { counts: Counts::default(), classes });
        self.state().workers.push(Arc::clone(&worker_counters));
        worker_counters
    }

    pub(crate) fn sum(&self) -> Counters {
        let state = self.state();
        state.sums().counters.since(&state.at_reset.counters)
    }

    pub(crate) fn sum_by_class(&self) -> Vec<ClassCounters> {
        let state = self.state();
        let before =
            state.at_reset.classes.iter().copied().chain(std::iter::repeat(ClassCounters::default()));
        state.sums().classes.into_iter().zip(before).map(|(now, before)| now.since(&before)).collect()
    }

    pub(crate) fn reset(&self) {
        let mut state = self.state();
        state.at_reset = state.sums();
    }
}

impl RegistryState {
    fn sums(&self) -> CounterSums {
        let mut sums = CounterSums::default();
        for worker_counters in &self.workers {
            sums.counters.add(&worker_counters.counts);
            sums.classes
                .resize(sums.classes.len().max(worker_counters.classes.len()), ClassCounters::default());
            sums.classes.iter_mut().zip(&worker_counters.classes).for_each(|(sum, counts)| sum.add(counts));
        }
        sums
    }
}
