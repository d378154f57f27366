//! What has been asked for, by kind, misses included.

use crate::counters::{Own, WorkerCounters};

macro_rules! counters {
    ($($name:ident $told:literal,)*) => {
        /// Of one worker: only it writes.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: Own,)*
        }

        impl Counters {
            /// The sums over all workers, each by the name that monitoring agents read.
            pub(crate) fn sums(workers: &[WorkerCounters]) -> Vec<(&'static str, u64)> {
                vec![$(($told, workers.iter().map(|worker| worker.kyoto.$name.get()).sum()),)*]
            }
        }
    };
}

counters! {
    set "cnt_set",
    set_misses "cnt_set_misses",
    remove "cnt_remove",
    remove_misses "cnt_remove_misses",
    get "cnt_get",
    get_misses "cnt_get_misses",
    script "cnt_script",
    misc "cnt_misc",
}
