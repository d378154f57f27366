//! Exports orders of keys that differ from the order of their bytes.

use crate::conversion::octets;
use crate::error::raised;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use todana::KeyOrder;

/// Returns the stored form of a key, by which an ordered database sorts the key in this order:
/// "lexdesc", "dec" or "decdesc". With a sort key, the keys are sorted by their sort keys, and keys
/// with equal sort keys by their bytes.
#[pyfunction]
#[pyo3(signature = (key, order=None, *, sort_key=None))]
pub(crate) fn stored_key<'py>(
    py: Python<'py>,
    key: &Bound<'py, PyAny>,
    order: Option<&str>,
    sort_key: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyBytes>> {
    let key = octets(key)?;
    let stored = match (order, sort_key) {
        (Some(order), None) => order_of(order)?.stored(&key),
        (None, Some(sort_key)) => KeyOrder::stored_by(&octets(sort_key)?, &key),
        _ => return Err(PyValueError::new_err("either order or sort_key has to be given")),
    };
    Ok(PyBytes::new(py, &stored))
}

/// Returns the key of a stored form. Without an order, the stored form must have been created with
/// a sort key.
#[pyfunction]
#[pyo3(signature = (stored, order=None))]
pub(crate) fn original_key<'py>(
    py: Python<'py>,
    stored: &Bound<'py, PyAny>,
    order: Option<&str>,
) -> PyResult<Bound<'py, PyBytes>> {
    let order = order.map_or(Ok(KeyOrder::BySortKey), order_of)?;
    let key = order.original(&octets(stored)?).map_err(raised)?;
    Ok(PyBytes::new(py, &key))
}

fn order_of(word: &str) -> PyResult<KeyOrder> {
    KeyOrder::of_comparator(word)
        .ok_or_else(|| PyValueError::new_err("order is \"lexdesc\", \"dec\" or \"decdesc\""))
}
