//! Defines records with their attributes as Python objects.

use crate::conversion::OutputForm;
use pyo3::prelude::*;
use todana::OwnedRecord;

/// A record with its attributes.
#[pyclass(name = "Record", module = "todana", frozen, get_all, generic)]
pub(crate) struct PyRecord {
    /// The value.
    value: Py<PyAny>,
    /// The client's flags.
    flags: u32,
    /// The expiry in Unix seconds; None if the record does not expire.
    expires: Option<u64>,
    /// The number of seconds after its last use when the record expires; None without a sliding
    /// expiry.
    sliding: Option<u32>,
    /// The version, by which `compare_and_set` detects changes.
    version: u64,
}

impl PyRecord {
    pub(crate) fn show(py: Python<'_>, form: OutputForm, record: OwnedRecord) -> PyResult<PyRecord> {
        Ok(PyRecord {
            value: form.show(py, &record.value)?.unbind(),
            flags: record.flags,
            expires: record.expiry.at().map(|at| at.0),
            sliding: record.expiry.span_s(),
            version: record.version,
        })
    }
}

#[pymethods]
impl PyRecord {
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
