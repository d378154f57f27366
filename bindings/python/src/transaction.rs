//! Transactions and snapshots: records with an end of their own.

use crate::error::raised;
use crate::records::Records;
use crate::source::{Home, Source, Undertaking, View};
use pyo3::prelude::*;
use std::sync::Arc;

/// What is done through it becomes visible, and outlives a crash, as a whole when it is committed, or not at all. As a context manager it
/// commits at the end, and aborts when an exception comes out of the block. It is used by the thread that has begun it; any other can only abort it.
#[pyclass(module = "todana", extends = Records, frozen, generic, weakref)]
pub(crate) struct Transaction {
    undertaking: Arc<Undertaking>,
}

impl Transaction {
    pub(crate) fn begin(py: Python<'_>, home: &Arc<Home>) -> PyResult<PyClassInitializer<Transaction>> {
        let undertaking = home.begin(py)?;
        let records = Records::new(Source::Transaction(Arc::clone(&undertaking)));
        Ok(PyClassInitializer::from(records).add_subclass(Transaction { undertaking }))
    }
}

#[pymethods]
impl Transaction {
    /// Makes all changes, or none. Returns once they count as made.
    fn commit(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.undertaking.commit()).map_err(raised)
    }

    /// Leaves everything as it was; any thread may call it. To abort what is over does nothing.
    fn abort(&self, py: Python<'_>) {
        py.detach(|| self.undertaking.abort());
    }

    /// Whether it has been committed or aborted.
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
            // The block may have ended it by itself. If its database was closed, nothing was committed, and the block is told so.
            None => py.detach(|| self.undertaking.commit_unless_ended()).map_err(raised),
        }
    }

    fn __repr__(&self) -> String {
        let closed = if self.undertaking.is_open() { "" } else { ", closed" };
        format!("<todana.Transaction of {:?}{closed}>", self.undertaking.home.name)
    }
}

/// A database as it was at one moment, whatever is written later; to be read only.
#[pyclass(module = "todana", extends = Records, frozen, generic, weakref)]
pub(crate) struct Snapshot {
    view: Arc<View>,
}

impl Snapshot {
    pub(crate) fn take(py: Python<'_>, home: &Arc<Home>) -> PyResult<PyClassInitializer<Snapshot>> {
        let view = home.snapshot(py)?;
        let records = Records::new(Source::Snapshot(Arc::clone(&view)));
        Ok(PyClassInitializer::from(records).add_subclass(Snapshot { view }))
    }
}

#[pymethods]
impl Snapshot {
    /// Gives up what is kept for it. To close it again does nothing.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.view.close());
    }

    /// Whether it has been closed.
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
