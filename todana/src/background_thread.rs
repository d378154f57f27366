//! A thread that works until it is stopped, and waiting that is bounded where a disk may never answer.

use std::thread::JoinHandle;
use std::time::Duration;
use todana_core::{Error, ErrorKind, Result};

/// Returns true once the caller no longer waits; called every few milliseconds. `None` waits without a bound.
pub(crate) type GivesUp<'g> = Option<&'g dyn Fn() -> bool>;

/// A thread that works until it is stopped. Dropping the value stops the thread and waits for its end.
pub(crate) struct BackgroundThread {
    stop: Box<dyn Fn() + Send + Sync>,
    thread: Option<JoinHandle<()>>,
}

impl BackgroundThread {
    /// Starts a thread of this name. `stop` makes `work` return soon; the thread is unparked after it.
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

    /// Stops the thread and waits for its end. Returns false if the caller gave up first: the thread then runs on alone.
    pub(crate) fn end(&mut self, gives_up: GivesUp<'_>) -> bool {
        let Some(thread) = self.thread.take() else { return true };
        (self.stop)();
        thread.thread().unpark();
        let is_over = ends(&thread, gives_up);
        if is_over {
            // A panic in the thread has been reported already.
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

/// Does the work in a thread of its own if the caller may give up, else in this one. Returns `None` if the caller gave up, or no thread
/// can be started. A disk that hangs never returns to its caller, so the thread then runs on alone.
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
        // Nothing unparks this thread: the end of a server is in no hurry.
        std::thread::park_timeout(Duration::from_millis(5));
    }
    true
}
