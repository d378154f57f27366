//! Counters of events. Each worker has its own; some counters are also divided by the size of the
//! record.

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
    /// Keys that were read. A read that sets a new time to live counts as a touch instead.
    cmd_get,
    /// Storage commands. Commands that were refused for their size or for lack of memory do not
    /// count.
    cmd_set,
    /// Flushes of all records.
    cmd_flush,
    /// Touches. `gat` and meta reads that set a new time to live are included.
    cmd_touch,
    /// Meta commands of any kind.
    cmd_meta,
    /// Reads that found a record.
    get_hits,
    /// Reads that found no record.
    get_misses,
    /// Commands of any kind that found an expired record.
    get_expired,
    /// Deletes that found a record.
    delete_hits,
    /// Deletes that found no record.
    delete_misses,
    /// Increments that found a record.
    incr_hits,
    /// Increments that found no record.
    incr_misses,
    /// Decrements that found a record.
    decr_hits,
    /// Decrements that found no record.
    decr_misses,
    /// Compare-and-set commands that stored.
    cas_hits,
    /// Compare-and-set commands that found no record.
    cas_misses,
    /// Compare-and-set commands that found another version.
    cas_badval,
    /// Touches that found a record.
    touch_hits,
    /// Touches that found no record.
    touch_misses,
    /// Stores refused for their size.
    store_too_large,
    /// Stores refused for lack of memory.
    store_no_memory,
    /// Records stored or created.
    total_items,
    /// Expired records that commands have removed. The engine counts the expired records that it
    /// removes for room.
    reclaimed,
    /// Changes that were refused because the update log or the files of the engine cannot be
    /// written.
    log_refusals,
}

counters! {
    /// Counts of events on the records of one size class. The names are those of memcached's `stats
    /// slabs`.
    ClassCounters, ClassCounts;
    /// Reads that found a record.
    get_hits,
    /// Storage commands, counted as in [`Counters`].
    cmd_set,
    /// Deletes that found a record.
    delete_hits,
    /// Increments that found a record.
    incr_hits,
    /// Decrements that found a record.
    decr_hits,
    /// Compare-and-set commands that stored.
    cas_hits,
    /// Compare-and-set commands that found another version.
    cas_badval,
    /// Touches that found a record.
    touch_hits,
    /// Stores that any command attempted and for which there was no memory.
    out_of_memory,
    /// Expired records that commands have removed.
    reclaimed,
}

/// The counters of one worker. Only one thread at a time may add to them, so adding causes no
/// contention. If two threads added at once, counts would be lost.
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

    /// Counts a failed change if it failed because the log or the engine's files cannot be written.
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
        // Only one thread adds to a counter, so no atomic addition is needed.
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

/// The counters of all workers, and the sums at the last reset. The counters of a worker stay after
/// its end.
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
