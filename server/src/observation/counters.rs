//! Counts connections and bytes. Counters on the hot path exist once for each worker.

pub(crate) use super::worker_counter::WorkerCounter;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// The counters of one worker. No other thread writes them.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct WorkerCounters {
    pub(crate) bytes_read: WorkerCounter,
    pub(crate) bytes_written: WorkerCounter,
    pub(crate) connection_yields: WorkerCounter,
    /// The number of slow readers that were disconnected because memory was short.
    pub(crate) readers_cut_off: WorkerCounter,
    /// The number of gets that waited for a read from the disk.
    pub(crate) cold_gets: WorkerCounter,
    /// The number of attempts to log in; `logins_refused` counts those that failed.
    pub(crate) logins: WorkerCounter,
    pub(crate) logins_refused: WorkerCounter,
    /// The number of connections that were closed because they were idle.
    pub(crate) idle_kicks: WorkerCounter,
    /// The number of slow readers for which replies wait.
    pub(crate) pending_outputs: WorkerCounter,
    /// The number of bytes of replies that wait for slow readers.
    pub(crate) pending_bytes: WorkerCounter,
    /// The number of bytes of incomplete requests.
    pub(crate) partial_bytes: WorkerCounter,
    /// The counters of Kyoto Tycoon's clients.
    pub(crate) kyoto: crate::session::kyoto::KyotoCounters,
    /// The counters of memcached's clients at the port of Kyoto Tycoon's plug-in.
    pub(crate) plugin: crate::session::kyoto::PluginCounters,
    /// The counters of Tokyo Tyrant's clients.
    pub(crate) tyrant: crate::session::tyrant::TyrantCounters,
}

/// Counters that several threads write, each of them rarely.
#[derive(Debug, Default)]
pub(crate) struct ConnectionCounters {
    pub(crate) current: AtomicU64,
    pub(crate) total: AtomicU64,
    pub(crate) rejected: AtomicU64,
    /// The number of times that accepting paused, because no descriptors were left or the limit of
    /// connections was reached.
    pub(crate) accept_pauses: AtomicU64,
    /// The total duration of all pauses that have ended.
    pub(crate) accept_paused_us: AtomicU64,
    /// True during a pause.
    pub(crate) accepting_paused: AtomicBool,
}

macro_rules! sums {
    (workers: $($of_workers:ident)*; others: $($other:ident)*) => {
        /// The counters that `stats reset` sets to zero, summed over all workers.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub(crate) struct CounterSums {
            $(pub(crate) $of_workers: u64,)*
            $(pub(crate) $other: u64,)*
        }

        impl CounterSums {
            pub(crate) fn add(&mut self, worker: &WorkerCounters) {
                $(self.$of_workers += worker.$of_workers.get();)*
            }

            /// Returns the difference between these sums and `before`, which were read earlier.
            pub(crate) fn since(self, before: CounterSums) -> CounterSums {
                CounterSums {
                    $($of_workers: self.$of_workers - before.$of_workers,)*
                    $($other: self.$other - before.$other,)*
                }
            }
        }
    };
}

sums! {
    workers: bytes_read bytes_written connection_yields readers_cut_off cold_gets logins logins_refused
        idle_kicks;
    others: connections connections_rejected accept_pauses accept_paused_us maintenance_rounds lines_written
        lines_skipped lines_sent
}
