//! Signals that come while a call waits for a transaction of another thread: Ctrl-C, mostly.
//!
//! Python's handlers run when it is asked to run them, in its main thread alone. So whoever waits there asks now and then; what a handler
//! raises is kept until the call is over, which is soon, as the wait ends with an error then.

use crate::fork::forks;
use pyo3::PyErr;
use pyo3::prelude::*;
use std::cell::{Cell, RefCell};
use std::time::Duration;
use todana::{Error, ErrorKind, Result};

/// So often they are asked for.
pub(crate) const EVERY: Duration = Duration::from_millis(50);

thread_local! {
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
    /// Whether this is the main thread; asked once for each process that it is in.
    static IS_MAIN: Cell<Option<(u32, bool)>> = const { Cell::new(None) };
}

/// Runs the handlers of signals that have come. Fails if one has raised, and then until that has been taken.
pub(crate) fn look() -> Result<()> {
    let known = IS_MAIN.get().filter(|(at, _)| *at == forks());
    if let Some((_, false)) = known {
        return Ok(());
    }
    if RAISED.with_borrow(Option::is_none) {
        // Where the interpreter ends there is nothing to ask any more.
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

/// What a handler has raised since it was last taken.
pub(crate) fn taken() -> Option<PyErr> {
    RAISED.take()
}
