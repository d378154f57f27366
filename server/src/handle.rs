//! Defines the handle that stops a server from any thread, and the stages of a stop.

use mio::Waker;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The stage of a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopStage {
    No,
    /// The server answers the requests that it has received, within seconds, and then ends.
    Drain,
    AtOnce,
}

/// Stops a server from another thread.
#[derive(Clone)]
pub struct ServerHandle(Arc<HandleState>);

struct HandleState {
    stopping: AtomicU8,
    wakers: Mutex<Vec<Arc<Waker>>>,
}

impl ServerHandle {
    pub(crate) fn new() -> ServerHandle {
        ServerHandle(Arc::new(HandleState { stopping: AtomicU8::new(0), wakers: Mutex::new(Vec::new()) }))
    }

    /// Stops the server. After the first call, the server accepts no more connections, answers the
    /// requests that it has received, and ends. A second call ends it at once.
    pub fn stop(&self) {
        let _ = self
            .0
            .stopping
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |stage| Some((stage + 1).min(2)));
        self.wake();
    }

    /// Wakes all threads with a loop.
    pub(crate) fn wake(&self) {
        for waker in self.0.wakers.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            // The wake-up fails if the thread's loop has ended already, and is then not needed.
            let _ = waker.wake();
        }
    }

    pub(crate) fn stopping(&self) -> StopStage {
        match self.0.stopping.load(Ordering::SeqCst) {
            0 => StopStage::No,
            1 => StopStage::Drain,
            _ => StopStage::AtOnce,
        }
    }

    pub(crate) fn add(&self, waker: Arc<Waker>) {
        self.0.wakers.lock().unwrap_or_else(PoisonError::into_inner).push(waker);
    }
}
