//! Exports the records of a database whose keys are numbers.

use crate::conversion::{missing, octets};
use crate::error::raised;
use crate::source::{PythonDatabase, RecordsSource};
use crate::view::{ItemForm, ItemPart, ItemTypes, NumberedWalk, PyRecordIterator, RemainingRecords};
use pyo3::prelude::*;
use std::sync::Arc;
use todana::{Db, Error, ErrorKind, Records, Result, ScanDirection};
use todana_core::{NumberedEngine, key_of_number};

/// The records of a database of numbers, as a dict from number to value.
#[pyclass(name = "Fixed", module = "todana", frozen, generic, mapping)]
pub(crate) struct PyFixed {
    source: RecordsSource,
}

fn numbered(db: &Db) -> Result<&dyn NumberedEngine> {
    db.database().engine().numbered().ok_or_else(|| {
        Error::new(ErrorKind::Invalid, "database: its keys are not numbers; use mem:fixed or PATH.fixed")
    })
}

impl PyFixed {
    pub(crate) fn new(source: RecordsSource) -> PyResult<PyFixed> {
        let db = source.database().db().map_err(raised)?;
        numbered(&db).map_err(raised)?;
        drop(db);
        Ok(PyFixed { source })
    }

    /// Returns the database, because walks and new numbers ignore transactions and snapshots.
    fn database(&self) -> PyResult<&Arc<PythonDatabase>> {
        match &self.source {
            RecordsSource::Database(database) => Ok(database),
            RecordsSource::Transaction(_) | RecordsSource::Snapshot(_) => {
                let message = "ranges, ends and new numbers belong to the database, \
                    not to a transaction or a snapshot";
                Err(raised(Error::new(ErrorKind::Invalid, message)))
            }
        }
    }

    fn with_db<T: Send>(&self, py: Python<'_>, run: impl FnOnce(&Db) -> Result<T> + Send) -> PyResult<T> {
        let db = self.database()?.db().map_err(raised)?;
        py.detach(|| run(&db)).map_err(raised)
    }

    fn value<'py>(&self, py: Python<'py>, number: u64) -> PyResult<Option<Bound<'py, PyAny>>> {
        let value = self.source.read(py, |source| source.get(key_of_number(number, &mut [0; 20])))?;
        value.map(|value| self.source.form().show(py, &value)).transpose()
    }

    fn walk(
        &self,
        part: ItemPart,
        start: Option<u64>,
        stop: Option<u64>,
        is_down: bool,
    ) -> PyResult<PyRecordIterator> {
        let database = self.database()?;
        let last = stop.map_or(u64::MAX, |stop| stop.saturating_sub(1));
        let walk = NumberedWalk::new(database, start.unwrap_or(1)..=last);
        let items = ItemForm { part, types: ItemTypes::Numbered };
        Ok(PyRecordIterator::new(database, items, RemainingRecords::Numbered(walk), is_down))
    }
}

#[pymethods]
impl PyFixed {
    /// The largest length of a value, in bytes.
    #[getter]
    fn width(&self, py: Python<'_>) -> PyResult<usize> {
        let db = self.source.database().db().map_err(raised)?;
        py.detach(|| Ok(numbered(&db)?.width())).map_err(raised)
    }

    /// The largest number.
    #[getter]
    fn number_max(&self, py: Python<'_>) -> PyResult<u64> {
        let db = self.source.database().db().map_err(raised)?;
        py.detach(|| Ok(numbered(&db)?.number_max())).map_err(raised)
    }

    fn __getitem__<'py>(&self, py: Python<'py>, number: u64) -> PyResult<Bound<'py, PyAny>> {
        match self.value(py, number)? {
            Some(value) => Ok(value),
            None => Err(missing(number.into_pyobject(py)?.as_any())),
        }
    }

    fn __setitem__(&self, py: Python<'_>, number: u64, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let value = octets(value)?;
        self.source.change(py, |source| source.set(key_of_number(number, &mut [0; 20]), &value))
    }

    fn __delitem__(&self, py: Python<'_>, number: u64) -> PyResult<()> {
        match self.source.change(py, |source| source.remove(key_of_number(number, &mut [0; 20])))? {
            true => Ok(()),
            false => Err(missing(number.into_pyobject(py)?.as_any())),
        }
    }

    fn __contains__(&self, py: Python<'_>, number: u64) -> PyResult<bool> {
        self.source.read(py, |source| source.contains(key_of_number(number, &mut [0; 20])))
    }

    fn __iter__(&self) -> PyResult<PyRecordIterator> {
        self.walk(ItemPart::Keys, None, None, false)
    }

    fn __reversed__(&self) -> PyResult<PyRecordIterator> {
        self.walk(ItemPart::Keys, None, None, true)
    }

    /// Returns the number of records, including expired records that are not removed yet.
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        let count = self.with_db(py, |db| Ok(db.count()))?;
        Ok(usize::try_from(count).unwrap_or(usize::MAX))
    }

    /// Returns the value of a record, or `default`.
    #[pyo3(signature = (number, default=None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        number: u64,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        Ok(self.value(py, number)?.or(default))
    }

    /// Stores a record if there is none. Returns True if the record was stored.
    fn add(&self, py: Python<'_>, number: u64, value: &Bound<'_, PyAny>) -> PyResult<bool> {
        let value = octets(value)?;
        self.source.change(py, |source| source.add(key_of_number(number, &mut [0; 20]), &value))
    }

    /// Stores a value under the number after the highest one, and returns that number.
    fn add_next(&self, py: Python<'_>, value: &Bound<'_, PyAny>) -> PyResult<u64> {
        let value = octets(value)?;
        self.with_db(py, |db| db.add_numbered(ScanDirection::Up, &value))
    }

    /// Stores a value under the number before the lowest one, and returns that number.
    fn add_prev(&self, py: Python<'_>, value: &Bound<'_, PyAny>) -> PyResult<u64> {
        let value = octets(value)?;
        self.with_db(py, |db| db.add_numbered(ScanDirection::Down, &value))
    }

    /// Returns the lowest number of a record, or None if there are no records.
    fn min(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        self.with_db(py, |db| db.database().number_of(b"min"))
    }

    /// Returns the highest number of a record, or None if there are no records.
    fn max(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        self.with_db(py, |db| db.database().number_of(b"max"))
    }

    /// Returns an iterator over the numbers of all records, or of a range that includes `start` and
    /// excludes `stop`.
    #[pyo3(signature = (start=None, stop=None, *, reverse=false))]
    fn keys(&self, start: Option<u64>, stop: Option<u64>, reverse: bool) -> PyResult<PyRecordIterator> {
        self.walk(ItemPart::Keys, start, stop, reverse)
    }

    /// Returns an iterator over the values of all records or of a range.
    #[pyo3(signature = (start=None, stop=None, *, reverse=false))]
    fn values(&self, start: Option<u64>, stop: Option<u64>, reverse: bool) -> PyResult<PyRecordIterator> {
        self.walk(ItemPart::Values, start, stop, reverse)
    }

    /// Returns an iterator over the numbers and values of all records or of a range.
    #[pyo3(signature = (start=None, stop=None, *, reverse=false))]
    fn items(&self, start: Option<u64>, stop: Option<u64>, reverse: bool) -> PyResult<PyRecordIterator> {
        self.walk(ItemPart::Items, start, stop, reverse)
    }

    fn __repr__(&self) -> String {
        format!("<todana.Fixed of {:?}>", self.source.database().name)
    }
}
