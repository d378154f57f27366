//! Transactions and snapshots, which end before their database.

use crate::error::raised;
use crate::records::Records;
use crate::source::{OpenDatabase, OpenSnapshot, OpenTransaction, Source};
use pyo3::prelude::*;
use std::sync::Arc;

/// A transaction. Its changes become visible, and survive a crash, all at once when it is
/// committed, or not at all. As a context manager it commits at the end, and aborts when an
/// exception leaves the block. Only the thread that began it may use it; any other can only abort
/// it.
#[pyclass(module = "todana", extends = Records, frozen, generic, weakref)]
pub(crate) struct Transaction {
    undertaking: Arc<OpenTransaction>,
}

impl Transaction {
    pub(crate) fn begin(
        py: Python<'_>,
        home: &Arc<OpenDatabase>,
    ) -> PyResult<PyClassInitializer<Transaction>> {
        let undertaking = home.begin(py)?;
        let records = Records::new(Source::Transaction(Arc::clone(&undertaking)));
        Ok(PyClassInitializer::from(records).add_subclass(Transaction { undertaking }))
    }
}

#[pymethods]
impl Transaction {
    /// Applies all changes, or none. Returns when they are durable, as `sync` defines it.
    fn commit(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.undertaking.commit()).map_err(raised)
    }

    /// Discards all changes. Any thread may call it. Aborting a finished transaction has no effect.
    fn abort(&self, py: Python<'_>) {
        py.detach(|| self.undertaking.abort());
    }

    /// True if it has been committed or aborted.
    #[getter]
    fn closed(&self) -> bool {
        !self.undertaking.is_open()
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
            // The block may have ended it by itself. If its database was closed, nothing was
            // committed, and an exception says so.
            None => py.detach(|| self.undertaking.commit_unless_ended()).map_err(raised),
        }
    }

    fn __repr__(&self) -> String {
        let closed = if self.undertaking.is_open() { "" } else { ", closed" };
        format!("<todana.Transaction of {:?}{closed}>", self.undertaking.home.name)
    }
}

/// A read-only view of a database at one moment, which later writes do not change.
#[pyclass(module = "todana", extends = Records, frozen, generic, weakref)]
pub(crate) struct Snapshot {
    view: Arc<OpenSnapshot>,
}

impl Snapshot {
    pub(crate) fn take(py: Python<'_>, home: &Arc<OpenDatabase>) -> PyResult<PyClassInitializer<Snapshot>> {
        let view = home.snapshot(py)?;
        let records = Records::new(Source::Snapshot(Arc::clone(&view)));
        Ok(PyClassInitializer::from(records).add_subclass(Snapshot { view }))
    }
}

#[pymethods]
impl Snapshot {
    /// Frees what is kept for the snapshot. Closing it again has no effect.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.view.close());
    }

    /// True if it has been closed.
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
        format!("<todana.Snapshot of {:?}{closed}>", self.view.home.name)
    }
}
