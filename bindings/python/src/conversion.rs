//! Keys, values and times, from Python and to it.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyMemoryView, PyString};
use std::borrow::Cow;
use todana_core::Ttl;

/// Longer values are copied before they become Python's: with the zeroing that Python's own allocation costs, and where no memory for
/// them is an exception.
const LONG_LEN: usize = 1 << 20;

/// The bytes of a key or value, in place or copied.
pub(crate) type Octets<'a> = Cow<'a, [u8]>;

/// The bytes of a key or value: `bytes`, whatever else is memory, or `str` as UTF-8.
#[inline]
pub(crate) fn octets<'a>(object: &'a Bound<'_, PyAny>) -> PyResult<Octets<'a>> {
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

/// How keys and values come out.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// As `bytes`.
    Bytes,
    /// As `str`, of UTF-8.
    Text,
}

impl Form {
    /// Not to be called under a lock: what it raises may run anything.
    #[inline]
    pub(crate) fn show<'py>(self, py: Python<'py>, octets: &[u8]) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Form::Text => PyString::from_bytes(py, octets).map(Bound::into_any),
            Form::Bytes if octets.len() <= LONG_LEN => Ok(PyBytes::new(py, octets).into_any()),
            Form::Bytes => PyBytes::new_with(py, octets.len(), |to| {
                to.copy_from_slice(octets);
                Ok(())
            })
            .map(Bound::into_any),
        }
    }

    /// Makes `bytes` where that can be done under a lock: it runs nothing of Python's, and cannot fail but for memory of which there
    /// has always been so much.
    #[inline]
    pub(crate) fn show_under_lock<'py>(self, py: Python<'py>, octets: &[u8]) -> Option<Bound<'py, PyAny>> {
        (self == Form::Bytes && octets.len() <= LONG_LEN).then(|| PyBytes::new(py, octets).into_any())
    }
}

/// A time to live, of the arguments that say one: at most one of them is given.
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
            // Saturates; 0 is long past, too.
            Ok(Ttl::At((at.ceil() as u64).max(1)))
        }
        _ => Err(PyValueError::new_err("only one of ttl, sliding and expires can be given")),
    }
}

/// Whole seconds, at least one; `None` for what is over by now.
fn span(object: &Bound<'_, PyAny>, method: &str) -> PyResult<Option<u32>> {
    let seconds = number(object, method)?;
    // Saturates at 136 years.
    Ok((seconds > 0.0).then(|| seconds.ceil() as u32))
}

/// A number of seconds, or what `method` makes one of: of a `timedelta`, a `datetime`.
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
