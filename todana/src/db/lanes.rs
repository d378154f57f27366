//! A lane for every thread and every open transaction, as no two threads may count in one at once.

use crate::counters::WorkerCounters;
use parking_lot::Mutex;
use std::cell::Cell;
use std::ptr;
use std::sync::{Arc, OnceLock};
use thread_local::ThreadLocal;

#[derive(Default)]
pub(super) struct ThreadLanes {
    by_thread: ThreadLocal<Arc<WorkerCounters>>,
    /// Of threads whose thread-locals are gone: those of the main thread go before the functions run that were given to `atexit`.
    late: Late,
    /// Of transactions that are over.
    spare: Mutex<Vec<Arc<WorkerCounters>>>,
}

/// A list: what is in it stays where it is.
#[derive(Default)]
struct Late(OnceLock<Box<LateLane>>);

struct LateLane {
    /// Where the thread has what it keeps. A thread that comes after it may have that, and the lane.
    thread: usize,
    lane: Arc<WorkerCounters>,
    next: Late,
}

/// Dropped as the thread ends.
struct End;

thread_local! {
    static HAS_ENDED: Cell<bool> = const { Cell::new(false) };
    static END: End = const { End };
}

impl Drop for End {
    fn drop(&mut self) {
        HAS_ENDED.set(true);
    }
}

impl ThreadLanes {
    /// This thread's.
    #[inline]
    pub(super) fn own(&self, open: impl FnOnce() -> Arc<WorkerCounters>) -> &WorkerCounters {
        match self.by_thread.get() {
            Some(lane) => lane,
            None => self.first(open),
        }
    }

    /// One for a transaction, which may go from thread to thread.
    pub(super) fn lend(&self, open: impl FnOnce() -> Arc<WorkerCounters>) -> Arc<WorkerCounters> {
        let spare = self.spare.lock().pop();
        spare.unwrap_or_else(open)
    }

    /// The transaction is over.
    pub(super) fn take_back(&self, lane: Arc<WorkerCounters>) {
        self.spare.lock().push(lane);
    }

    #[cold]
    fn first(&self, open: impl FnOnce() -> Arc<WorkerCounters>) -> &Arc<WorkerCounters> {
        if HAS_ENDED.get() {
            return self.late.own(open);
        }
        let lane = self.by_thread.get_or(open);
        // After what `thread_local` keeps, so that it is dropped before that.
        let _ = END.try_with(|_| ());
        lane
    }
}

impl Late {
    fn own(&self, open: impl FnOnce() -> Arc<WorkerCounters>) -> &Arc<WorkerCounters> {
        let thread = HAS_ENDED.with(|kept| ptr::from_ref(kept).addr());
        let (mut open, mut place) = (Some(open), self);
        loop {
            let late = place.0.get_or_init(|| {
                let lane =
                    open.take().expect("only the last place is empty, and then this is the thread's")();
                Box::new(LateLane { thread, lane, next: Late::default() })
            });
            if late.thread == thread {
                return &late.lane;
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
    fn threads_that_are_past_their_end_have_lanes_of_their_own() {
        let db = Db::open("mem:hash").unwrap();
        let late = Late::default();
        let own = || Arc::as_ptr(late.own(|| db.database().lane())).addr();
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
