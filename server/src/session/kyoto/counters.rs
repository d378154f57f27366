//! Counts requests by kind, and those among them that missed.

use crate::observation::counters::{WorkerCounter, WorkerCounters};

macro_rules! counters {
    ($($name:ident)*) => {
        /// The counters of one worker, which only that worker writes.
        #[derive(Debug, Default)]
        pub(crate) struct KyotoCounters {
            $(pub(crate) $name: WorkerCounter,)*
        }

        /// The sums over all workers.
        #[derive(Clone, Copy, Debug, Default)]
        pub(crate) struct KyotoSums {
            $(pub(crate) $name: u64,)*
        }

        impl KyotoSums {
            pub(crate) fn of(workers: &[WorkerCounters]) -> KyotoSums {
                KyotoSums { $($name: workers.iter().map(|worker| worker.kyoto.$name.get()).sum(),)* }
            }
        }
    };
}

counters! {
    set set_misses remove remove_misses get get_misses script misc
    calls resources binary refused bytes_read bytes_written
}
