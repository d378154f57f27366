//! Counters of connections and bytes; those on the hot path are counted by worker.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The counters of one worker. No other thread writes them.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct WorkerCounters {
    pub(crate) bytes_read: WorkerCounter,
    pub(crate) bytes_written: WorkerCounter,
    pub(crate) connection_yields: WorkerCounter,
    /// Slow readers that were disconnected for want of memory.
    pub(crate) readers_cut_off: WorkerCounter,
    /// Attempts to log in; `logins_refused` counts the failed ones.
    pub(crate) logins: WorkerCounter,
    pub(crate) logins_refused: WorkerCounter,
    /// Connections that were closed because they were idle.
    pub(crate) idle_kicks: WorkerCounter,
    /// Replies that wait for slow readers.
    pub(crate) pending_outputs: WorkerCounter,
    /// The bytes of replies that wait for slow readers.
    pub(crate) pending_bytes: WorkerCounter,
    /// The bytes of incomplete requests.
    pub(crate) partial_bytes: WorkerCounter,
    /// Commands of Kyoto Tycoon's clients.
    pub(crate) kyoto: crate::session::kyoto::Counters,
    /// Commands of memcached's clients at the port of Kyoto Tycoon's plug-in.
    pub(crate) plugin: crate::session::kyoto::PluginCounters,
}

/// A counter that one thread writes and any thread reads.
#[derive(Debug, Default)]
pub(crate) struct WorkerCounter(AtomicU64);

impl WorkerCounter {
    /// Adds `by`, which may be a negative difference: the sum wraps around.
    #[inline]
    pub(crate) fn add(&self, by: u64) {
        self.0.store(self.get().wrapping_add(by), Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counters that several threads write, each of them rarely.
#[derive(Debug, Default)]
pub(crate) struct ConnectionCounters {
    pub(crate) current: AtomicU64,
    pub(crate) total: AtomicU64,
    pub(crate) rejected: AtomicU64,
    /// The number of times that accepting paused, for want of descriptors or because the limit of
    /// connections was reached.
    pub(crate) accept_pauses: AtomicU64,
    /// The duration of all pauses except the current one.
    pub(crate) accept_paused_us: AtomicU64,
    /// True while accepting pauses.
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

            /// Returns the difference from `before`, which was read earlier.
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
    workers: bytes_read bytes_written connection_yields readers_cut_off logins logins_refused idle_kicks;
    others: connections connections_rejected accept_pauses accept_paused_us housekeepings lines_written
        lines_skipped lines_sent
}
