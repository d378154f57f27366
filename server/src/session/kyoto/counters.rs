//! What has been asked for, by kind, misses included.

use crate::observation::counters::{Own, WorkerCounters};

macro_rules! counters {
    ($($name:ident $told:literal,)* ; $($own:ident,)*) => {
        /// Of one worker: only it writes.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: Own,)*
            $(pub(crate) $own: Own,)*
        }

        /// Of all workers.
        #[derive(Clone, Copy, Debug, Default)]
        pub(crate) struct Sums {
            $(pub(crate) $name: u64,)*
            $(pub(crate) $own: u64,)*
        }

        impl Sums {
            pub(crate) fn of(workers: &[WorkerCounters]) -> Sums {
                Sums {
                    $($name: workers.iter().map(|worker| worker.kyoto.$name.get()).sum(),)*
                    $($own: workers.iter().map(|worker| worker.kyoto.$own.get()).sum(),)*
                }
            }

            /// Those that monitoring agents know, each by the name that they read.
            pub(crate) fn told(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$(($told, self.$name),)*].into_iter()
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
    ;
    calls,
    resources,
    binary,
    refused,
    bytes_read,
    bytes_written,
}
