//! A thread that works until it is stopped, and waits with a limit for a disk that may never
//! answer.

use std::thread::JoinHandle;
use std::time::Duration;
use todana_core::{Error, ErrorKind, Result};

/// Called every few milliseconds; returns true when the caller does not wait any longer. `None`
/// waits without a limit.
pub(crate) type GivesUp<'g> = Option<&'g dyn Fn() -> bool>;

/// A thread that works until it is stopped. Dropping the value stops the thread and waits for its
/// end.
pub(crate) struct BackgroundThread {
    stop: Box<dyn Fn() + Send + Sync>,
    thread: Option<JoinHandle<()>>,
}

impl BackgroundThread {
    /// Starts a thread with this name. `stop` makes `work` return soon; the thread is unparked
    /// after it.
    pub(crate) fn start(
        name: &str,
        stop: impl Fn() + Send + Sync + 'static,
        work: impl FnOnce() + Send + 'static,
    ) -> Result<BackgroundThread> {
        let thread = std::thread::Builder::new().name(name.into()).spawn(work).map_err(|error| {
            Error::new(ErrorKind::Unavailable, format!("thread \"{name}\": cannot be started: {error}"))
        })?;
        Ok(BackgroundThread { stop: Box::new(stop), thread: Some(thread) })
    }

    /// Stops the thread and waits for its end. Returns false if the caller gave up first; the
    /// thread then keeps running alone.
    pub(crate) fn end(&mut self, gives_up: GivesUp<'_>) -> bool {
        let Some(thread) = self.thread.take() else { return true };
        (self.stop)();
        thread.thread().unpark();
        let is_over = ends(&thread, gives_up);
        if is_over {
            // A panic of the thread has already been reported.
            let _ = thread.join();
        }
        is_over
    }
}

impl Drop for BackgroundThread {
    fn drop(&mut self) {
        self.end(None);
    }
}

/// Runs `work` in a thread of its own if the caller may give up, otherwise in this one. Returns
/// `None` if the caller gave up, or if no thread can be started. A call to a hanging disk never
/// returns, so the thread then keeps running alone.
pub(crate) fn run_unless<T: Send + 'static>(
    gives_up: GivesUp<'_>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    if gives_up.is_none() {
        return Some(work());
    }
    let thread = std::thread::Builder::new().name("closing".into()).spawn(work).ok()?;
    if ends(&thread, gives_up) { thread.join().ok() } else { None }
}

/// Waits for the end of a thread. Returns false if the caller gives up first.
fn ends<T>(thread: &JoinHandle<T>, gives_up: GivesUp<'_>) -> bool {
    let Some(gives_up) = gives_up else { return true };
    while !thread.is_finished() {
        if gives_up() {
            return false;
        }
        // Nothing unparks this thread; a short delay at the end of a server does no harm.
        std::thread::park_timeout(Duration::from_millis(5));
    }
    true
}
