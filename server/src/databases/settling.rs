//! Workers that hold replies back until the update log has come far enough.

use mio::Waker;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, OnceLock};

/// Which workers wait for the log.
#[derive(Default)]
pub(crate) struct Settling {
    workers: Vec<AtomicBool>,
    wakers: OnceLock<Vec<Arc<Waker>>>,
}

impl Settling {
    pub(crate) fn new(workers: usize) -> Settling {
        Settling { workers: (0..workers).map(|_| AtomicBool::new(false)).collect(), wakers: OnceLock::new() }
    }

    /// Who is to be woken, by number. Said once.
    pub(crate) fn set_wakers(&self, wakers: Vec<Arc<Waker>>) {
        let _ = self.wakers.set(wakers);
    }

    /// A worker waits. It has to look once more after this: what came before does not wake it.
    pub(crate) fn waits(&self, worker: usize) {
        self.workers[worker].store(true, Ordering::Relaxed);
        // Against the one in `came_on`: either the worker sees how far the log has come, or it is seen to wait.
        fence(Ordering::SeqCst);
    }

    /// Wakes all workers.
    pub(crate) fn wake_all(&self) {
        for waker in self.wakers.get().into_iter().flatten() {
            // A loop that is gone needs no waking.
            let _ = waker.wake();
        }
    }

    /// The log has come on.
    pub(crate) fn came_on(&self) {
        fence(Ordering::SeqCst);
        let Some(wakers) = self.wakers.get() else { return };
        for (waits, waker) in self.workers.iter().zip(wakers) {
            if waits.load(Ordering::Relaxed) && waits.swap(false, Ordering::Relaxed) {
                // A loop that is gone needs no waking.
                let _ = waker.wake();
            }
        }
    }
}
