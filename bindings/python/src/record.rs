//! A record as Python is shown it, with its attributes.

use crate::conversion::Form;
use pyo3::prelude::*;
use todana::OwnedRecord;

/// A record with all that rides with its value.
#[pyclass(name = "Record", module = "todana", frozen, get_all, generic)]
pub(crate) struct Whole {
    /// The value.
    value: Py<PyAny>,
    /// The client's flags.
    flags: u32,
    /// When it expires, in Unix seconds; None if it does not.
    expires: Option<u64>,
    /// Of a record that expires so many seconds after its last use: how many; else None.
    sliding: Option<u32>,
    /// By which `compare_and_set` tells whether it has changed.
    version: u64,
}

impl Whole {
    pub(crate) fn show(py: Python<'_>, form: Form, record: OwnedRecord) -> PyResult<Whole> {
        Ok(Whole {
            value: form.show(py, &record.value)?.unbind(),
            flags: record.flags,
            expires: record.expiry.at().map(|at| at.0),
            sliding: record.expiry.span_s(),
            version: record.version,
        })
    }
}

#[pymethods]
impl Whole {
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let value = self.value.bind(py).repr()?;
        let number = |number: Option<u64>| number.map_or("None".into(), |number| number.to_string());
        Ok(format!(
            "Record(value={value}, flags={}, expires={}, sliding={}, version={})",
            self.flags,
            number(self.expires),
            number(self.sliding.map(u64::from)),
            self.version
        ))
    }
}
