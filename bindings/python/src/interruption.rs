//! Handles signals, mostly Ctrl-C, while a thread waits for a transaction of another thread.
//!
//! Python runs signal handlers only on request, and only in its main thread. A wait in the main
//! thread therefore checks for signals at intervals. An exception of a handler ends the wait with
//! an error, and is kept until the call returns.

use crate::fork::forks;
use pyo3::PyErr;
use pyo3::prelude::*;
use std::cell::{Cell, RefCell};
use std::time::Duration;
use todana::{Error, ErrorKind, Result};

/// The interval between two checks.
pub(crate) const EVERY: Duration = Duration::from_millis(50);

thread_local! {
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
    /// True if this is the main thread. A fork can change the answer, so it is kept with the number
    /// of forks.
    static IS_MAIN: Cell<Option<(u32, bool)>> = const { Cell::new(None) };
}

/// Runs the handlers of received signals. Fails if a handler has raised an exception, until that
/// exception has been taken.
pub(crate) fn check_signals() -> Result<()> {
    let known = IS_MAIN.get().filter(|(at, _)| *at == forks());
    if let Some((_, false)) = known {
        return Ok(());
    }
    if RAISED.with_borrow(Option::is_none) {
        // While the interpreter ends, threads cannot attach to it any more.
        let asked = Python::try_attach(|py| if is_main(py)? { py.check_signals() } else { Ok(()) });
        match asked {
            None | Some(Ok(())) => return Ok(()),
            Some(Err(error)) => RAISED.set(Some(error)),
        }
    }
    Err(Error::new(ErrorKind::Busy, "a signal has ended the wait"))
}

fn is_main(py: Python<'_>) -> PyResult<bool> {
    if let Some((at, is_main)) = IS_MAIN.get()
        && at == forks()
    {
        return Ok(is_main);
    }
    let threading = py.import("threading")?;
    let is_main = threading.call_method0("main_thread")?.is(&threading.call_method0("current_thread")?);
    IS_MAIN.set(Some((forks(), is_main)));
    Ok(is_main)
}

/// Returns the exception of a handler and forgets it.
pub(crate) fn taken() -> Option<PyErr> {
    RAISED.take()
}
