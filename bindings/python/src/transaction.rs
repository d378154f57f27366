//! Exports transactions and snapshots, which end before their database is closed.

use crate::error::raised;
use crate::records::Records;
use crate::source::{OpenSnapshot, OpenTransaction, PythonDatabase, RecordsSource};
use pyo3::prelude::*;
use std::sync::Arc;

/// A transaction. When it is committed, all its changes become visible at once and survive a crash
/// together. As a context manager it commits at the end of the block, and aborts if an exception
/// leaves the block. Only the thread that began it may use it. Other threads can only abort it.
#[pyclass(module = "todana", extends = Records, frozen, generic, weakref)]
pub(crate) struct Transaction {
    transaction: Arc<OpenTransaction>,
}

impl Transaction {
    pub(crate) fn begin(
        py: Python<'_>,
        database: &Arc<PythonDatabase>,
    ) -> PyResult<PyClassInitializer<Transaction>> {
        let transaction = database.begin(py)?;
        let records = Records::new(RecordsSource::Transaction(Arc::clone(&transaction)));
        Ok(PyClassInitializer::from(records).add_subclass(Transaction { transaction }))
    }
}

#[pymethods]
impl Transaction {
    /// Applies all changes, or none. Returns when the changes are durable, as `sync` defines it.
    fn commit(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.transaction.commit()).map_err(raised)
    }

    /// Discards all changes. Any thread may call this method. Aborting a finished transaction has
    /// no effect.
    fn abort(&self, py: Python<'_>) {
        py.detach(|| self.transaction.abort());
    }

    /// True if the transaction has been committed or aborted.
    #[getter]
    fn closed(&self) -> bool {
        !self.transaction.is_open()
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (kind=None, _error=None, _traceback=None))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: Option<&Bound<'_, PyAny>>,
        _error: Option<&Bound<'_, PyAny>>,
        _traceback: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        match kind {
            Some(_) => {
                self.abort(py);
                Ok(())
            }
            // The block may have ended the transaction itself. If the database was closed, nothing
            // was committed, and an exception reports this.
            None => py.detach(|| self.transaction.commit_unless_ended()).map_err(raised),
        }
    }

    fn __repr__(&self) -> String {
        let closed = if self.transaction.is_open() { "" } else { ", closed" };
        format!("<todana.Transaction of {:?}{closed}>", self.transaction.database.name)
    }
}

/// A read-only view of a database at one moment, which later writes do not change.
#[pyclass(module = "todana", extends = Records, frozen, generic, weakref)]
pub(crate) struct Snapshot {
    view: Arc<OpenSnapshot>,
}

impl Snapshot {
    pub(crate) fn take(
        py: Python<'_>,
        database: &Arc<PythonDatabase>,
    ) -> PyResult<PyClassInitializer<Snapshot>> {
        let view = database.snapshot(py)?;
        let records = Records::new(RecordsSource::Snapshot(Arc::clone(&view)));
        Ok(PyClassInitializer::from(records).add_subclass(Snapshot { view }))
    }
}

#[pymethods]
impl Snapshot {
    /// Releases the memory that the snapshot uses. A second call has no effect.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.view.close());
    }

    /// True if the snapshot has been closed.
    #[getter]
    fn closed(&self) -> bool {
        !self.view.is_open()
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) {
        self.close(py);
    }

    fn __repr__(&self) -> String {
        let closed = if self.view.is_open() { "" } else { ", closed" };
        format!("<todana.Snapshot of {:?}{closed}>", self.view.database.name)
    }
}
