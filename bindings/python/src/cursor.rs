//! Cursors: a place among the records that is remembered between calls.

use crate::conversion::octets;
use crate::error::{outcome, raised};
use crate::interruption;
use crate::record::Whole;
use crate::source::Source;
use parking_lot::ReentrantMutex;
use pyo3::prelude::*;
use std::cell::RefCell;
use todana::{Error, ErrorKind, RecordCursor as Place, Result};

/// A place among the records, which survives whatever is written. Where keys have no order it goes forward only.
#[pyclass(module = "todana", frozen, generic)]
pub(crate) struct Cursor {
    source: Source,
    /// Whoever holds it may wait for the interpreter. So it is waited for without. A handler of a signal may come upon it while the call
    /// that it interrupts has it; that one it cannot wait for.
    place: ReentrantMutex<RefCell<Place<Source>>>,
}

impl Cursor {
    pub(crate) fn new(source: Source) -> Cursor {
        let place = RefCell::new(Place::new(source.clone()));
        Cursor { place: ReentrantMutex::new(place), source }
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
impl Cursor {
    /// Goes to the first record. False if there is none, as with all that moves it; it stands nowhere then.
    fn first(&self, py: Python<'_>) -> PyResult<bool> {
        self.run(py, |place| place.first())
    }

    /// Goes to the last record.
    fn last(&self, py: Python<'_>) -> PyResult<bool> {
        self.run(py, |place| place.last())
    }

    /// Goes to the record of this key or, where keys have an order, the first one behind it.
    fn jump(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let key = octets(key)?;
        self.run(py, |place| place.jump(&key))
    }

    /// Goes to the record of this key, or the last one before it.
    fn jump_back(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let key = octets(key)?;
        self.run(py, |place| place.jump_back(&key))
    }

    /// Goes to the next record.
    fn step(&self, py: Python<'_>) -> PyResult<bool> {
        self.run(py, |place| place.step())
    }

    /// Goes to the record before.
    fn step_back(&self, py: Python<'_>) -> PyResult<bool> {
        self.run(py, |place| place.step_back())
    }

    /// The key where it stands; None nowhere.
    #[getter]
    fn key<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let key = self.run(py, |place| Ok(place.key().map(<[u8]>::to_vec)))?;
        self.show(py, key)
    }

    /// The value there, as it is now; None if the record is gone.
    #[getter]
    fn value<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let value = self.run(py, |place| place.value())?;
        self.show(py, value)
    }

    /// The record there with its attributes, as it is now; None if it is gone. Its version is the one that was shown last, 0 if none was.
    fn get_record(&self, py: Python<'_>) -> PyResult<Option<Whole>> {
        let record = self.run(py, |place| place.record())?;
        record.map(|record| Whole::show(py, self.source.form(), record)).transpose()
    }

    /// Gives the record there another value; flags and expiry stay. False if it is gone.
    fn set_value(&self, py: Python<'_>, value: &Bound<'_, PyAny>) -> PyResult<bool> {
        let value = octets(value)?;
        self.run(py, |place| place.set_value(&value))
    }

    /// Removes the record there; the cursor stays, and steps from there on. False if it is gone.
    fn remove(&self, py: Python<'_>) -> PyResult<bool> {
        self.run(py, |place| place.remove())
    }

    /// Removes the record there and returns its value; None if it is gone.
    fn seize<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let value = self.run(py, |place| place.seize())?;
        self.show(py, value)
    }
}
