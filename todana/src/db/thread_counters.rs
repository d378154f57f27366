//! Counters for each thread and each open transaction, because two threads must never count in the
//! same [`WorkerCounters`] at once.

use crate::counters::WorkerCounters;
use parking_lot::Mutex;
use std::cell::Cell;
use std::ptr;
use std::sync::{Arc, OnceLock};
use thread_local::ThreadLocal;

#[derive(Default)]
pub(super) struct ThreadCounters {
    by_thread: ThreadLocal<Arc<WorkerCounters>>,
    /// Counters of threads whose thread-local values are already destroyed. Those of the main
    /// thread are destroyed before the functions run that were registered with `atexit`.
    late: LateCountersList,
    /// Counters of ended transactions, for reuse.
    spare: Mutex<Vec<Arc<WorkerCounters>>>,
}

/// A linked list, so that its elements never move.
#[derive(Default)]
struct LateCountersList(OnceLock<Box<LateCounters>>);

struct LateCounters {
    /// The address of the thread's thread-local values. If a later thread has the same address, it
    /// uses the same counters.
    thread: usize,
    worker_counters: Arc<WorkerCounters>,
    next: LateCountersList,
}

/// Dropped when its thread ends, which marks the thread as ended.
struct ThreadEndMarker;

thread_local! {
    static HAS_ENDED: Cell<bool> = const { Cell::new(false) };
    static END_MARKER: ThreadEndMarker = const { ThreadEndMarker };
}

impl Drop for ThreadEndMarker {
    fn drop(&mut self) {
        HAS_ENDED.set(true);
    }
}

impl ThreadCounters {
    /// Returns the counters of this thread.
    #[inline]
    pub(super) fn own(&self, open: impl FnOnce() -> Arc<WorkerCounters>) -> &WorkerCounters {
        match self.by_thread.get() {
            Some(worker_counters) => worker_counters,
            None => self.first(open),
        }
    }

    /// Returns counters for a transaction, which may move from one thread to another.
    pub(super) fn lend(&self, open: impl FnOnce() -> Arc<WorkerCounters>) -> Arc<WorkerCounters> {
        let spare = self.spare.lock().pop();
        spare.unwrap_or_else(open)
    }

    /// Keeps the counters of an ended transaction for reuse.
    pub(super) fn take_back(&self, worker_counters: Arc<WorkerCounters>) {
        self.spare.lock().push(worker_counters);
    }

    #[cold]
    fn first(&self, open: impl FnOnce() -> Arc<WorkerCounters>) -> &Arc<WorkerCounters> {
        if HAS_ENDED.get() {
            return self.late.own(open);
        }
        let worker_counters = self.by_thread.get_or(open);
        // The marker is registered after the thread-local counters, so it is dropped before them.
        let _ = END_MARKER.try_with(|_| ());
        worker_counters
    }
}

impl LateCountersList {
    fn own(&self, open: impl FnOnce() -> Arc<WorkerCounters>) -> &Arc<WorkerCounters> {
        let thread = HAS_ENDED.with(|kept| ptr::from_ref(kept).addr());
        let (mut open, mut place) = (Some(open), self);
        loop {
            let late = place.0.get_or_init(|| {
                let worker_counters =
                    open.take().expect("only the last place is empty, and then this is the thread's")();
                Box::new(LateCounters { thread, worker_counters, next: LateCountersList::default() })
            });
            if late.thread == thread {
                return &late.worker_counters;
            }
            place = &late.next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Db;
    use std::sync::mpsc::channel;

    #[test]
    fn ended_threads_have_their_own_counters() {
        let db = Db::open("mem:hash").unwrap();
        let late = LateCountersList::default();
        let own = || Arc::as_ptr(late.own(|| db.database().worker_counters())).addr();
        let first = own();
        std::thread::scope(|scope| {
            let (told, tells) = channel();
            let other = scope.spawn(move || {
                told.send(own()).unwrap();
                own()
            });
            let other_lane = tells.recv().unwrap();
            assert_ne!(other_lane, first);
            assert_eq!(other.join().unwrap(), other_lane);
        });
        assert_eq!(own(), first);
    }
}
