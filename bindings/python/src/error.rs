//! Translates the library's errors into exceptions.

use crate::interruption;
use pyo3::{PyErr, PyResult};
use todana_core::{Error, ErrorKind, Result};

// The exceptions are defined in Python, because some derive from two classes.
pyo3::import_exception!(todana._errors, InvalidError);
pyo3::import_exception!(todana._errors, FullError);
pyo3::import_exception!(todana._errors, BusyError);
pyo3::import_exception!(todana._errors, CorruptError);
pyo3::import_exception!(todana._errors, UnavailableError);
pyo3::import_exception!(todana._errors, ClosedError);

/// Returns the exception for an error. If a signal handler raised an exception and so caused the
/// error, returns that exception.
#[cold]
pub(crate) fn raised(error: Error) -> PyErr {
    if let Some(error) = interruption::taken() {
        return error;
    }
    let message = error.to_string();
    match error.kind() {
        ErrorKind::Invalid => InvalidError::new_err(message),
        ErrorKind::Full => FullError::new_err(message),
        ErrorKind::Busy => BusyError::new_err(message),
        ErrorKind::Corrupt => CorruptError::new_err(message),
        ErrorKind::Unavailable => UnavailableError::new_err(message),
        ErrorKind::Closed => ClosedError::new_err(message),
    }
}

/// Returns the outcome of a call that may have waited.
pub(crate) fn outcome<T>(outcome: Result<T>) -> PyResult<T> {
    match interruption::taken() {
        Some(error) => Err(error),
        None => outcome.map_err(raised),
    }
}
