//! Cursors: positions among the records that are kept between calls.

use crate::conversion::octets;
use crate::error::{outcome, raised};
use crate::interruption;
use crate::record::PyRecord;
use crate::source::Source;
use parking_lot::ReentrantMutex;
use pyo3::prelude::*;
use std::cell::RefCell;
use todana::{Error, ErrorKind, RecordCursor as Place, Result};

/// A position among the records that survives all changes. In an unordered database it can only
/// move forwards.
#[pyclass(name = "Cursor", module = "todana", frozen, generic)]
pub(crate) struct PyCursor {
    source: Source,
    /// A holder may wait for the interpreter, so other threads wait for the lock without the
    /// interpreter. A signal handler may run while the call that it interrupts holds the lock, and
    /// cannot wait for that call.
    place: ReentrantMutex<RefCell<Place<Source>>>,
}

impl PyCursor {
    pub(crate) fn new(source: Source) -> PyCursor {
        let place = RefCell::new(Place::new(source.clone()));
        PyCursor { place: ReentrantMutex::new(place), source }
    }

    fn run<T: Send>(
        &self,
        py: Python<'_>,
        run: impl FnOnce(&mut Place<Source>) -> Result<T> + Send,
    ) -> PyResult<T> {
        self.source.must_be_of_this_process().map_err(raised)?;
        outcome(py.detach(|| {
            loop {
                if let Some(place) = self.place.try_lock_for(interruption::EVERY) {
                    let message = "the cursor is in use by the call that a signal has interrupted";
                    let place = place.try_borrow_mut();
                    return run(&mut *place.map_err(|_| Error::new(ErrorKind::Busy, message))?);
                }
                interruption::look()?;
            }
        }))
    }

    fn show<'py>(&self, py: Python<'py>, octets: Option<Vec<u8>>) -> PyResult<Option<Bound<'py, PyAny>>> {
        octets.map(|octets| self.source.form().show(py, &octets)).transpose()
    }
}

#[pymethods]
impl PyCursor {
    /// Moves to the first record. Returns False if there is none, as all moves do; the cursor then
    /// has no position.
    fn first(&self, py: Python<'_>) -> PyResult<bool> {
        self.run(py, |place| place.first())
    }

    /// Moves to the last record.
    fn last(&self, py: Python<'_>) -> PyResult<bool> {
        self.run(py, |place| place.last())
    }

    /// Moves to the record with this key or, in an ordered database, the first one after it.
    fn jump(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let key = octets(key)?;
        self.run(py, |place| place.jump(&key))
    }

    /// Moves to the record with this key, or the last one before it.
    fn jump_back(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let key = octets(key)?;
        self.run(py, |place| place.jump_back(&key))
    }

    /// Moves to the next record.
    fn step(&self, py: Python<'_>) -> PyResult<bool> {
        self.run(py, |place| place.step())
    }

    /// Moves to the previous record.
    fn step_back(&self, py: Python<'_>) -> PyResult<bool> {
        self.run(py, |place| place.step_back())
    }

    /// Returns the current key, or None without a position.
    #[getter]
    fn key<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let key = self.run(py, |place| Ok(place.key().map(<[u8]>::to_vec)))?;
        self.show(py, key)
    }

    /// Returns the current value, or None if the record was removed.
    #[getter]
    fn value<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let value = self.run(py, |place| place.value())?;
        self.show(py, value)
    }

    /// Returns the current record with its attributes, or None if it was removed. Its version is
    /// the one that was returned last, or 0.
    fn get_record(&self, py: Python<'_>) -> PyResult<Option<PyRecord>> {
        let record = self.run(py, |place| place.record())?;
        record.map(|record| PyRecord::show(py, self.source.form(), record)).transpose()
    }

    /// Replaces the value and keeps flags and expiry. Returns False if the record was removed.
    fn set_value(&self, py: Python<'_>, value: &Bound<'_, PyAny>) -> PyResult<bool> {
        let value = octets(value)?;
        self.run(py, |place| place.set_value(&value))
    }

    /// Removes the record. The cursor keeps its position and steps from there. Returns False if the
    /// record was removed already.
    fn remove(&self, py: Python<'_>) -> PyResult<bool> {
        self.run(py, |place| place.remove())
    }

    /// Removes the record and returns its value, or None if it was removed already.
    fn seize<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let value = self.run(py, |place| place.seize())?;
        self.show(py, value)
    }
}
