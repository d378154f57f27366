//! Stopping a server, from whatever thread.

use mio::Waker;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// How far a stop has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stopping {
    No,
    /// Received requests are answered first, within seconds.
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

    /// Stops the server: no new connections, what has been received is answered, then it ends. The
    /// second time it ends at once.
    pub fn stop(&self) {
        let _ = self
            .0
            .stopping
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |stage| Some((stage + 1).min(2)));
        for waker in self.0.wakers.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            // A loop that is gone needs no waking.
            let _ = waker.wake();
        }
    }

    pub(crate) fn stopping(&self) -> Stopping {
        match self.0.stopping.load(Ordering::SeqCst) {
            0 => Stopping::No,
            1 => Stopping::Drain,
            _ => Stopping::AtOnce,
        }
    }

    pub(crate) fn add(&self, waker: Arc<Waker>) {
        self.0.wakers.lock().unwrap_or_else(PoisonError::into_inner).push(waker);
    }
}
