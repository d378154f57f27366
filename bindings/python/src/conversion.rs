//! Converts keys, values and times between Python and the library.

use pyo3::exceptions::{PyKeyError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyDict, PyMapping, PyMemoryView, PyString, PyTuple};
use std::borrow::Cow;
use todana_core::Ttl;

/// The length from which a value is copied before it becomes a Python object. For such a value,
/// Python's own allocation zeroes the memory, and raises an exception if there is none.
const LONG_LEN: usize = 1 << 20;

/// The bytes of a key or value, borrowed or copied.
pub(crate) type ObjectBytes<'a> = Cow<'a, [u8]>;

/// Returns the bytes of a key or value: `bytes`, any other buffer, or `str` as UTF-8.
#[inline]
pub(crate) fn octets<'a>(object: &'a Bound<'_, PyAny>) -> PyResult<ObjectBytes<'a>> {
    if let Ok(bytes) = object.cast::<PyBytes>() {
        return Ok(Cow::Borrowed(bytes.as_bytes()));
    }
    if let Ok(text) = object.cast::<PyString>() {
        return Ok(Cow::Borrowed(text.to_str()?.as_bytes()));
    }
    copied(object).map(Cow::Owned)
}

#[cold]
fn copied(object: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    if let Ok(bytes) = object.cast::<PyByteArray>() {
        return Ok(bytes.to_vec());
    }
    match PyMemoryView::from(object) {
        Ok(view) => view.call_method0("tobytes")?.extract(),
        Err(_) => {
            let kind = object.get_type().name()?;
            Err(PyTypeError::new_err(format!("a key or value is bytes or str, not {kind}")))
        }
    }
}

/// The Python type of returned keys and values.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutputForm {
    /// `bytes`.
    Bytes,
    /// `str`, decoded from UTF-8.
    Text,
}

impl OutputForm {
    /// Returns the Python object. Must not be called under a lock, because an exception may run any
    /// Python code.
    #[inline]
    pub(crate) fn show<'py>(self, py: Python<'py>, octets: &[u8]) -> PyResult<Bound<'py, PyAny>> {
        match self {
            OutputForm::Text => PyString::from_bytes(py, octets).map(Bound::into_any),
            OutputForm::Bytes if octets.len() <= LONG_LEN => Ok(PyBytes::new(py, octets).into_any()),
            OutputForm::Bytes => PyBytes::new_with(py, octets.len(), |to| {
                to.copy_from_slice(octets);
                Ok(())
            })
            .map(Bound::into_any),
        }
    }

    /// Returns `bytes`, or `None` if this type of object cannot be created under a lock. Runs no
    /// Python code, and fails only if there is no memory for a small object.
    #[inline]
    pub(crate) fn show_under_lock<'py>(self, py: Python<'py>, octets: &[u8]) -> Option<Bound<'py, PyAny>> {
        (self == OutputForm::Bytes && octets.len() <= LONG_LEN).then(|| PyBytes::new(py, octets).into_any())
    }
}

/// Returns the time to live from the arguments, of which at most one may be present.
pub(crate) fn ttl(
    ttl: Option<&Bound<'_, PyAny>>,
    sliding: Option<&Bound<'_, PyAny>>,
    expires: Option<&Bound<'_, PyAny>>,
) -> PyResult<Ttl> {
    match (ttl, sliding, expires) {
        (None, None, None) => Ok(Ttl::Never),
        (Some(ttl), None, None) => Ok(span(ttl, "total_seconds")?.map_or(Ttl::Expired, Ttl::Seconds)),
        (None, Some(sliding), None) => match span(sliding, "total_seconds")? {
            Some(span_s) => Ok(Ttl::Sliding(span_s)),
            None => Err(PyValueError::new_err("a sliding time to live is more than 0 seconds")),
        },
        (None, None, Some(expires)) => {
            let at = number(expires, "timestamp")?;
            // A time that is too large becomes the largest time. 0 becomes 1, which is also in the
            // distant past.
            Ok(Ttl::At((at.ceil() as u64).max(1)))
        }
        _ => Err(PyValueError::new_err("only one of ttl, sliding and expires can be given")),
    }
}

/// Returns whole seconds, at least one, or `None` for a time in the past.
fn span(object: &Bound<'_, PyAny>, method: &str) -> PyResult<Option<u32>> {
    let seconds = number(object, method)?;
    // A span that is too large becomes the largest span, 136 years.
    Ok((seconds > 0.0).then(|| seconds.ceil() as u32))
}

/// Returns a number of seconds. The argument is a number, or a `timedelta` or `datetime` whose
/// `method` computes the number.
fn number(object: &Bound<'_, PyAny>, method: &str) -> PyResult<f64> {
    let seconds: f64 = match object.getattr_opt(method)? {
        Some(method) => method.call0()?.extract()?,
        None => object.extract()?,
    };
    if seconds.is_nan() {
        return Err(PyValueError::new_err("a time is a number"));
    }
    Ok(seconds)
}

/// Returns the keys and values of a mapping or of pairs.
pub(crate) fn pairs<'py>(
    records: &Bound<'py, PyAny>,
) -> PyResult<Vec<(Bound<'py, PyAny>, Bound<'py, PyAny>)>> {
    if let Ok(dict) = records.cast::<PyDict>() {
        return Ok(dict.iter().collect());
    }
    // An object that is registered as a mapping need not be a `PyMapping`.
    if records.cast::<PyMapping>().is_ok() || records.hasattr("keys")? {
        let keys = records.call_method0("keys")?;
        return keys
            .try_iter()?
            .map(|key| {
                let key = key?;
                let value = records.get_item(&key)?;
                Ok((key, value))
            })
            .collect();
    }
    records.try_iter()?.map(|pair| pair?.extract()).collect()
}

/// Returns the exception for a key without a record.
pub(crate) fn missing(key: &Bound<'_, PyAny>) -> PyErr {
    PyKeyError::new_err((key.clone().unbind(),))
}

/// Fails with TypeError if a call of `pop` has more than one default.
pub(crate) fn expect_one_default(default: &Bound<'_, PyTuple>) -> PyResult<()> {
    if default.len() > 1 {
        let message = format!("pop expected at most 2 arguments, got {}", 1 + default.len());
        return Err(PyTypeError::new_err(message));
    }
    Ok(())
}
