//! What happens to connections and bytes, counted by worker where it is hot.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// One worker's own counters: only it writes.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct WorkerCounters {
    pub(crate) bytes_read: Own,
    pub(crate) bytes_written: Own,
    pub(crate) connection_yields: Own,
    /// Slow readers closed for want of memory.
    pub(crate) readers_cut_off: Own,
    /// Attempts to log in, and those that failed.
    pub(crate) logins: Own,
    pub(crate) logins_refused: Own,
    /// Connections closed because nobody used them.
    pub(crate) idle_kicks: Own,
    /// Replies waiting for slow readers, and ...
    pub(crate) pending_outputs: Own,
    /// ... their bytes.
    pub(crate) pending_bytes: Own,
    /// Bytes of requests that are not whole yet.
    pub(crate) partial_bytes: Own,
    /// What Kyoto's clients have asked for.
    pub(crate) kyoto: crate::session::kyoto::Counters,
    /// What memcached's clients have asked its plug-in for.
    pub(crate) plugin: crate::session::kyoto::PluginCounters,
}

/// A counter that one thread writes and any reads.
#[derive(Debug, Default)]
pub(crate) struct Own(AtomicU64);

impl Own {
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

/// Those counters of all workers that `stats reset` takes back to zero, summed up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WorkerSums {
    pub(crate) bytes_read: u64,
    pub(crate) bytes_written: u64,
    pub(crate) connection_yields: u64,
    pub(crate) readers_cut_off: u64,
    pub(crate) logins: u64,
    pub(crate) logins_refused: u64,
    pub(crate) idle_kicks: u64,
}

impl WorkerSums {
    pub(crate) fn of(workers: &[WorkerCounters]) -> WorkerSums {
        let mut sums = WorkerSums::default();
        for worker in workers {
            sums.bytes_read += worker.bytes_read.get();
            sums.bytes_written += worker.bytes_written.get();
            sums.connection_yields += worker.connection_yields.get();
            sums.readers_cut_off += worker.readers_cut_off.get();
            sums.logins += worker.logins.get();
            sums.logins_refused += worker.logins_refused.get();
            sums.idle_kicks += worker.idle_kicks.get();
        }
        sums
    }

    /// What has been counted since `before`, which was read earlier.
    pub(crate) fn since(self, before: WorkerSums) -> WorkerSums {
        WorkerSums {
            bytes_read: self.bytes_read - before.bytes_read,
            bytes_written: self.bytes_written - before.bytes_written,
            connection_yields: self.connection_yields - before.connection_yields,
            readers_cut_off: self.readers_cut_off - before.readers_cut_off,
            logins: self.logins - before.logins,
            logins_refused: self.logins_refused - before.logins_refused,
            idle_kicks: self.idle_kicks - before.idle_kicks,
        }
    }
}
