//! Exports cursors: positions among the records that stay valid between calls.

use crate::conversion::octets;
use crate::error::{outcome, raised};
use crate::interruption;
use crate::record::PyRecord;
use crate::source::RecordsSource;
use parking_lot::ReentrantMutex;
use pyo3::prelude::*;
use std::cell::RefCell;
use todana::{Error, ErrorKind, RecordCursor as Place, Result};

/// A position among the records that stays valid after all changes. In an unordered database it can
/// only move forwards.
#[pyclass(name = "Cursor", module = "todana", frozen, generic)]
pub(crate) struct PyCursor {
    source: RecordsSource,
    /// The cursor. The thread that holds the lock may wait for the interpreter, so other threads
    /// must not hold the interpreter while they wait for the lock. A signal handler may run while
    /// the interrupted call holds the lock, and cannot wait for that call; the lock is therefore
    /// reentrant.
    place: ReentrantMutex<RefCell<Place<RecordsSource>>>,
}

impl PyCursor {
    pub(crate) fn new(source: RecordsSource) -> PyCursor {
        let place = RefCell::new(Place::new(source.clone()));
        PyCursor { place: ReentrantMutex::new(place), source }
    }

    fn run<T: Send>(
        &self,
        py: Python<'_>,
        run: impl FnOnce(&mut Place<RecordsSource>) -> Result<T> + Send,
    ) -> PyResult<T> {
        self.source.must_be_of_this_process().map_err(raised)?;
        outcome(py.detach(|| {
            loop {
                if let Some(place) = self.place.try_lock_for(interruption::EVERY) {
                    let message = "the cursor is in use by the call that a signal has interrupted";
                    let place = place.try_borrow_mut();
                    return run(&mut *place.map_err(|_| Error::new(ErrorKind::Busy, message))?);
                }
                interruption::check_signals()?;
            }
        }))
    }

    fn show<'py>(&self, py: Python<'py>, octets: Option<Vec<u8>>) -> PyResult<Option<Bound<'py, PyAny>>> {
        octets.map(|octets| self.source.form().show(py, &octets)).transpose()
    }
}

#[pymethods]
impl PyCursor {
    /// Moves to the first record. Like all moves, returns False if there is no record; the cursor
    /// then has no position.
    fn first(&self, py: Python<'_>) -> PyResult<bool> {
        self.run(py, |place| place.first())
    }

    /// Moves to the last record.
    fn last(&self, py: Python<'_>) -> PyResult<bool> {
        self.run(py, |place| place.last())
    }

    /// Moves to the record with this key. If there is none in an ordered database, moves to the
    /// first record after the key.
    fn jump(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let key = octets(key)?;
        self.run(py, |place| place.jump(&key))
    }

    /// Moves to the record with this key. If there is none, moves to the last record before the
    /// key.
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

    /// The current key, or None without a position.
    #[getter]
    fn key<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let key = self.run(py, |place| Ok(place.key().map(<[u8]>::to_vec)))?;
        self.show(py, key)
    }

    /// The current value, or None if the record was removed.
    #[getter]
    fn value<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let value = self.run(py, |place| place.value())?;
        self.show(py, value)
    }

    /// Returns the current record with its attributes, or None if it was removed. The version is
    /// the version that was last returned for the record, or 0.
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
    /// record had already been removed.
    fn remove(&self, py: Python<'_>) -> PyResult<bool> {
        self.run(py, |place| place.remove())
    }

    /// Removes the record and returns its value, or None if it had already been removed.
    fn seize<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let value = self.run(py, |place| place.seize())?;
        self.show(py, value)
    }
}
