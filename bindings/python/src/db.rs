//! A database: opened by name, closed, and what is done with all of it.

use crate::conversion::Form;
use crate::error::raised;
use crate::records::Records;
use crate::source::{Home, Source};
use crate::transaction::{Snapshot, Transaction};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use todana::update_log::Sync;
use todana::{DataOptions, DbOptions, Kind, WhenFull};

/// An open database, as a dict that is shared by all threads.
#[pyclass(name = "DB", module = "todana", extends = Records, subclass, frozen, generic, weakref)]
pub(crate) struct Database {
    home: Arc<Home>,
}

#[pymethods]
impl Database {
    #[new]
    #[pyo3(signature = (name, *, data_dir=None, sync=None, memory_max=None, when_full="evict", read_only=false, text=false))]
    #[allow(clippy::too_many_arguments)] // They are Python's, by name.
    fn new(
        py: Python<'_>,
        name: PathBuf,
        data_dir: Option<PathBuf>,
        sync: Option<&Bound<'_, PyAny>>,
        memory_max: Option<u64>,
        when_full: &str,
        read_only: bool,
        text: bool,
    ) -> PyResult<PyClassInitializer<Self>> {
        let Some(name) = name.to_str() else {
            return Err(PyValueError::new_err(format!("\"{}\" is no text", name.display())));
        };
        let name = if read_only { format!("{name}#mode=r") } else { name.into() };
        let mut options = DbOptions::default();
        if let Some(directory) = &data_dir {
            options = options.data_dir(directory);
        }
        if let Some(sync) = sync {
            let mut data = DataOptions::default();
            data.log.sync = sync_of(sync)?;
            options = options.data_options(data);
        }
        if let Some(bytes) = memory_max {
            options = options.memory_max(bytes);
        }
        options = options.when_full(match when_full {
            "evict" => WhenFull::Evict,
            "refuse" => WhenFull::Refuse,
            _ => return Err(PyValueError::new_err("when_full is \"evict\" or \"refuse\"")),
        });
        let db = py.detach(|| options.open(&name)).map_err(raised)?;
        let form = if text { Form::Text } else { Form::Bytes };
        let is_in_memory = matches!(db.name().kind, Kind::MemHash | Kind::MemTree);
        let home = Home::new(db, form, is_in_memory, data_dir.is_none());
        let records = Records::new(Source::Database(Arc::clone(&home)));
        Ok(PyClassInitializer::from(records).add_subclass(Database { home }))
    }

    /// The name that it was opened by.
    #[getter]
    fn name(&self) -> &str {
        &self.home.name
    }

    /// Whether it has been closed.
    #[getter]
    fn closed(&self) -> bool {
        !self.home.is_open()
    }

    /// Closes it; transactions that are open are aborted. To close it again does nothing.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.home.close());
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) {
        self.close(py);
    }

    fn __repr__(&self) -> String {
        let closed = if self.home.is_open() { "" } else { ", closed" };
        format!("<todana.DB {:?}{closed}>", self.home.name)
    }

    /// How many records there are, expired ones that nobody has met yet included. Costs no scan.
    fn __len__(&self) -> PyResult<usize> {
        let count = self.home.db().map_err(raised)?.count();
        Ok(usize::try_from(count).unwrap_or(usize::MAX))
    }

    /// Begins a transaction, once no other one is open: `with db.transaction() as t:`
    fn transaction(&self, py: Python<'_>) -> PyResult<Py<Transaction>> {
        Py::new(py, Transaction::begin(py, &self.home)?)
    }

    /// A view of the database as it is now, whatever is written later.
    fn snapshot(&self, py: Python<'_>) -> PyResult<Py<Snapshot>> {
        Py::new(py, Snapshot::take(py, &self.home)?)
    }

    /// Removes all records.
    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        let db = self.home.db().map_err(raised)?;
        py.detach(|| db.clear()).map_err(raised)
    }

    /// Returns once all that was written so far is on disk, where it is kept there.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        let db = self.home.db().map_err(raised)?;
        py.detach(|| db.sync()).map_err(raised)
    }

    /// Makes a checkpoint, where it is kept on disk: the next opening needs no more of the log than what comes after.
    fn checkpoint(&self, py: Python<'_>) -> PyResult<()> {
        let db = self.home.db().map_err(raised)?;
        py.detach(|| db.checkpoint()).map_err(raised)
    }

    /// What it holds, by name.
    fn status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let db = self.home.db().map_err(raised)?;
        let status = py.detach(|| db.status());
        let answer = PyDict::new(py);
        answer.set_item("name", &self.home.name)?;
        answer.set_item("kind", db.name().kind.word())?;
        answer.set_item("records", status.records)?;
        answer.set_item("live_bytes", status.live_bytes)?;
        answer.set_item("memory_bytes", status.committed_bytes)?;
        answer.set_item("evictions", status.evictions)?;
        Ok(answer)
    }
}

/// `"always"`, `"never"`, or so many seconds.
fn sync_of(object: &Bound<'_, PyAny>) -> PyResult<Sync> {
    let wrong = || PyValueError::new_err("sync is \"always\", \"never\" or a number of seconds");
    if let Ok(word) = object.extract::<&str>() {
        return match word {
            "always" => Ok(Sync::Always),
            "never" => Ok(Sync::Never),
            _ => Err(wrong()),
        };
    }
    if object.is_instance_of::<PyBool>() {
        return Err(PyTypeError::new_err("sync is \"always\", \"never\" or a number of seconds"));
    }
    let seconds: f64 = object.extract()?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(interval) if !interval.is_zero() => Ok(Sync::Every(interval)),
        _ => Err(wrong()),
    }
}
