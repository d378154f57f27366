//! What happens to connections and bytes, counted by worker where it is hot.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// One worker's own counters: only it writes.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct WorkerCounters {
    pub(crate) bytes_read: WorkerCounter,
    pub(crate) bytes_written: WorkerCounter,
    pub(crate) connection_yields: WorkerCounter,
    /// Slow readers closed for want of memory.
    pub(crate) readers_cut_off: WorkerCounter,
    /// Attempts to log in, and those that failed.
    pub(crate) logins: WorkerCounter,
    pub(crate) logins_refused: WorkerCounter,
    /// Connections closed because nobody used them.
    pub(crate) idle_kicks: WorkerCounter,
    /// Replies waiting for slow readers, and ...
    pub(crate) pending_outputs: WorkerCounter,
    /// ... their bytes.
    pub(crate) pending_bytes: WorkerCounter,
    /// Bytes of requests that are not whole yet.
    pub(crate) partial_bytes: WorkerCounter,
    /// What Kyoto's clients have asked for.
    pub(crate) kyoto: crate::session::kyoto::Counters,
    /// What memcached's clients have asked its plug-in for.
    pub(crate) plugin: crate::session::kyoto::PluginCounters,
}

/// A counter that one thread writes and any reads.
#[derive(Debug, Default)]
pub(crate) struct WorkerCounter(AtomicU64);

impl WorkerCounter {
    /// Wraps around where `by` is the difference to less.
    #[inline]
    pub(crate) fn add(&self, by: u64) {
        self.0.store(self.get().wrapping_add(by), Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counters that several threads write, each seldom.
#[derive(Debug, Default)]
pub(crate) struct ConnectionCounters {
    pub(crate) current: AtomicU64,
    pub(crate) total: AtomicU64,
    pub(crate) rejected: AtomicU64,
    /// Times accepting had to pause, for want of descriptors or because there were enough connections.
    pub(crate) accept_pauses: AtomicU64,
    /// How long in all, without the pause under way.
    pub(crate) accept_paused_us: AtomicU64,
    /// It pauses now.
    pub(crate) accepting_paused: AtomicBool,
}

macro_rules! sums {
    (workers: $($of_workers:ident)*; others: $($other:ident)*) => {
        /// The counters that `stats reset` takes back to zero, those of all workers summed up.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub(crate) struct CounterSums {
            $(pub(crate) $of_workers: u64,)*
            $(pub(crate) $other: u64,)*
        }

        impl CounterSums {
            pub(crate) fn add(&mut self, worker: &WorkerCounters) {
                $(self.$of_workers += worker.$of_workers.get();)*
            }

            /// Returns what has been counted since `before`, which was read earlier.
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
