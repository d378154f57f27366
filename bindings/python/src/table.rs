//! Exports the rows of a table as dicts of their columns.

use crate::conversion::{ObjectBytes, expect_one_default, missing, octets, pairs};
use crate::error::raised;
use crate::query::{PyQuery, RowSet};
use crate::source::{PythonDatabase, RecordsSource};
use crate::view::{ItemForm, ItemPart, ItemTypes, KeySelection, PyRecordIterator, PyView, row_dict};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::sync::Arc;
use todana::table::{IndexKind, Query, Row, RowPutMode, Table, store_row};
use todana::{Error, ErrorKind, Records, Result};

/// The rows of a table: a dict of dicts.
#[pyclass(name = "Table", module = "todana", frozen, generic, mapping)]
pub(crate) struct PyTable {
    source: RecordsSource,
}

/// Returns a row with the columns of a mapping or of pairs.
fn row_of(columns: &Bound<'_, PyAny>) -> PyResult<Row> {
    let columns = pairs(columns)?;
    let columns: Vec<(ObjectBytes<'_>, ObjectBytes<'_>)> =
        columns.iter().map(|(name, value)| Ok((octets(name)?, octets(value)?))).collect::<PyResult<_>>()?;
    Row::new(&columns).map_err(raised)
}

impl PyTable {
    pub(crate) fn new(source: RecordsSource) -> PyResult<PyTable> {
        let db = source.database().db().map_err(raised)?;
        Table::new(&db).map_err(raised)?;
        drop(db);
        Ok(PyTable { source })
    }

    /// Returns the database, because indexes and queries ignore transactions and snapshots.
    fn database(&self) -> PyResult<&Arc<PythonDatabase>> {
        match &self.source {
            RecordsSource::Database(database) => Ok(database),
            RecordsSource::Transaction(_) | RecordsSource::Snapshot(_) => {
                let message = "queries, indexes and new numbers belong to the table of the database, \
                    not of a transaction or a snapshot";
                Err(raised(Error::new(ErrorKind::Invalid, message)))
            }
        }
    }

    /// Runs `run`, which may take long, with the table of the database.
    fn with_table<T: Send>(
        &self,
        py: Python<'_>,
        run: impl FnOnce(&Table) -> Result<T> + Send,
    ) -> PyResult<T> {
        let db = self.database()?.db().map_err(raised)?;
        py.detach(|| run(&Table::new(&db)?)).map_err(raised)
    }

    fn store(
        &self,
        py: Python<'_>,
        mode: RowPutMode,
        key: &Bound<'_, PyAny>,
        columns: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        let (key, row) = (octets(key)?, row_of(columns)?);
        self.source.change(py, |source| store_row(source, mode, &key, &row))
    }

    fn row<'py>(&self, py: Python<'py>, key: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let key = octets(key)?;
        if key.is_empty() {
            return Ok(None);
        }
        let value = self.source.read(py, |source| source.get(&key))?;
        value.map(|value| row_dict(py, self.source.form(), &value)).transpose()
    }

    fn view(
        &self,
        part: ItemPart,
        (start, stop): (Option<&Bound<'_, PyAny>>, Option<&Bound<'_, PyAny>>),
        prefix: Option<&Bound<'_, PyAny>>,
        reverse: bool,
    ) -> PyResult<PyView> {
        let items = ItemForm { part, types: ItemTypes::Row };
        PyView::new(self.source.clone(), items, KeySelection::of(start, stop, prefix)?, reverse)
    }
}

#[pymethods]
impl PyTable {
    fn __getitem__<'py>(&self, py: Python<'py>, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
        self.row(py, key)?.ok_or_else(|| missing(key))
    }

    fn __setitem__(&self, py: Python<'_>, key: &Bound<'_, PyAny>, row: &Bound<'_, PyAny>) -> PyResult<()> {
        self.store(py, RowPutMode::Put, key, row).map(drop)
    }

    fn __delitem__(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<()> {
        let name = octets(key)?;
        let is_removed = !name.is_empty() && self.source.change(py, |source| source.remove(&name))?;
        if is_removed { Ok(()) } else { Err(missing(key)) }
    }

    fn __contains__(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let key = octets(key)?;
        Ok(!key.is_empty() && self.source.read(py, |source| source.contains(&key))?)
    }

    fn __iter__(&self) -> PyResult<PyRecordIterator> {
        self.view(ItemPart::Keys, (None, None), None, false)?.iterator(false)
    }

    fn __reversed__(&self) -> PyResult<PyRecordIterator> {
        self.view(ItemPart::Keys, (None, None), None, true)?.iterator(true)
    }

    /// Returns the number of rows. Reads all keys.
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.view(ItemPart::Keys, (None, None), None, false)?.__len__(py)
    }

    /// Returns a row as a dict of its columns, or `default`.
    #[pyo3(signature = (key, default=None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        Ok(self.row(py, key)?.map(Bound::into_any).or(default))
    }

    /// Stores a row, a mapping or pairs of column names and values, and replaces an existing row.
    fn set(&self, py: Python<'_>, key: &Bound<'_, PyAny>, row: &Bound<'_, PyAny>) -> PyResult<()> {
        self.store(py, RowPutMode::Put, key, row).map(drop)
    }

    /// Stores a row if there is none. Returns True if the row was stored.
    fn add(&self, py: Python<'_>, key: &Bound<'_, PyAny>, row: &Bound<'_, PyAny>) -> PyResult<bool> {
        self.store(py, RowPutMode::Keep, key, row)
    }

    /// Adds the columns that an existing row lacks, or stores a new row.
    fn add_columns(&self, py: Python<'_>, key: &Bound<'_, PyAny>, row: &Bound<'_, PyAny>) -> PyResult<()> {
        self.store(py, RowPutMode::AddMissing, key, row).map(drop)
    }

    /// Removes a row and returns it. If there is no row, returns `default` or raises KeyError.
    #[pyo3(signature = (key, /, *default))]
    fn pop<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        default: &Bound<'py, PyTuple>,
    ) -> PyResult<Bound<'py, PyAny>> {
        expect_one_default(default)?;
        let name = octets(key)?;
        let value =
            if name.is_empty() { None } else { self.source.change(py, |source| source.seize(&name))? };
        match value {
            Some(value) => row_dict(py, self.source.form(), &value).map(Bound::into_any),
            None => default.get_item(0).map_err(|_| missing(key)),
        }
    }

    /// Returns the keys of all rows, or of a range that includes `start` and excludes `stop`.
    #[pyo3(signature = (start=None, stop=None, *, prefix=None, reverse=false))]
    fn keys(
        &self,
        start: Option<&Bound<'_, PyAny>>,
        stop: Option<&Bound<'_, PyAny>>,
        prefix: Option<&Bound<'_, PyAny>>,
        reverse: bool,
    ) -> PyResult<PyView> {
        self.view(ItemPart::Keys, (start, stop), prefix, reverse)
    }

    /// Returns all rows or those of a range.
    #[pyo3(signature = (start=None, stop=None, *, prefix=None, reverse=false))]
    fn values(
        &self,
        start: Option<&Bound<'_, PyAny>>,
        stop: Option<&Bound<'_, PyAny>>,
        prefix: Option<&Bound<'_, PyAny>>,
        reverse: bool,
    ) -> PyResult<PyView> {
        self.view(ItemPart::Values, (start, stop), prefix, reverse)
    }

    /// Returns the keys and rows of the table or of a range.
    #[pyo3(signature = (start=None, stop=None, *, prefix=None, reverse=false))]
    fn items(
        &self,
        start: Option<&Bound<'_, PyAny>>,
        stop: Option<&Bound<'_, PyAny>>,
        prefix: Option<&Bound<'_, PyAny>>,
        reverse: bool,
    ) -> PyResult<PyView> {
        self.view(ItemPart::Items, (start, stop), prefix, reverse)
    }

    /// Returns a number that was not returned for this table before, for the key of a new row.
    fn new_number(&self, py: Python<'_>) -> PyResult<u64> {
        self.with_table(py, Table::new_number)
    }

    /// Creates the index on a column, or drops it if `kind` is None: "lexical" and "decimal" for
    /// the order of texts and numbers, "token" for words, "qgram" for full-text conditions.
    /// Replaces an index of another kind. The empty name means the key of the row.
    #[pyo3(signature = (column, kind))]
    fn set_index(&self, py: Python<'_>, column: &Bound<'_, PyAny>, kind: Option<&str>) -> PyResult<()> {
        let kind = kind.map(kind_of).transpose()?;
        let column = octets(column)?;
        self.with_table(py, |table| table.set_index(&column, kind))
    }

    /// Returns the indexes: the column, the kind, and True if the index is complete. An index on
    /// existing rows is built in the background, and queries use it when it is complete.
    fn indexes<'py>(&self, py: Python<'py>) -> PyResult<Vec<(Bound<'py, PyAny>, String, bool)>> {
        let indexes = self.with_table(py, |table| Ok(table.indexes()))?;
        let form = self.source.form();
        indexes
            .iter()
            .map(|index| {
                let kind = index.kind.name().to_ascii_lowercase();
                Ok((form.show(py, &index.column)?, kind, index.is_complete))
            })
            .collect()
    }

    /// Completes the indexes that are being built in the background.
    fn finish_indexes(&self, py: Python<'_>) -> PyResult<()> {
        self.with_table(py, |table| {
            table.finish_indexes();
            Ok(())
        })
    }

    /// Returns a query for all rows, to which conditions, an order and a limit can be added.
    fn query(&self, py: Python<'_>) -> PyResult<Py<PyQuery>> {
        Py::new(py, PyQuery::of(RowSet::new(self.database()?, Query::new())))
    }

    fn __repr__(&self) -> String {
        format!("<todana.Table of {:?}>", self.source.database().name)
    }
}

fn kind_of(word: &str) -> PyResult<IndexKind> {
    IndexKind::ALL.into_iter().find(|kind| kind.name().eq_ignore_ascii_case(word)).ok_or_else(|| {
        PyValueError::new_err("kind is \"lexical\", \"decimal\", \"token\", \"qgram\" or None")
    })
}
