//! A background thread that can be stopped, and calls with a limit for a disk that may never
//! answer.

use std::thread::JoinHandle;
use std::time::Duration;
use todana_core::{Error, ErrorKind, Result};

/// A callback that is called every few milliseconds during a wait. It returns true to end the wait
/// early. `None` waits without a limit.
pub(crate) type GivesUp<'g> = Option<&'g dyn Fn() -> bool>;

/// A thread that works until it is stopped. Dropping the value stops the thread and waits for its
/// end.
pub(crate) struct BackgroundThread {
    stop: Box<dyn Fn() + Send + Sync>,
    thread: Option<JoinHandle<()>>,
}

impl BackgroundThread {
    /// Starts a thread with this name. To end the thread, `stop` is called and the thread is
    /// unparked; `work` must then return soon.
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

    /// Stops the thread and waits for its end. Returns false if `gives_up` ended the wait; the
    /// thread then continues on its own.
    pub(crate) fn end(&mut self, gives_up: GivesUp<'_>) -> bool {
        let Some(thread) = self.thread.take() else { return true };
        (self.stop)();
        thread.thread().unpark();
        let is_over = ends(&thread, gives_up);
        if is_over {
            // If the thread has panicked, the panic has already been reported.
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

/// Runs `work` in a new thread if the wait can be given up, otherwise in the calling thread.
/// Returns `None` if the wait was given up, or if no thread can be started. A call to a hanging
/// disk never returns, so the thread then continues on its own.
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

/// Waits for the end of a thread. Returns false if `gives_up` ended the wait.
fn ends<T>(thread: &JoinHandle<T>, gives_up: GivesUp<'_>) -> bool {
    let Some(gives_up) = gives_up else { return true };
    while !thread.is_finished() {
        if gives_up() {
            return false;
        }
        // Nothing unparks the waiting thread, so this is a poll. Its delay occurs only at the end
        // of a server and does no harm.
        std::thread::park_timeout(Duration::from_millis(5));
    }
    true
}
