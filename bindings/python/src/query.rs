//! Exports queries for the rows of a table, and set operations on queries.

use crate::conversion::{ObjectBytes, octets};
use crate::error::raised;
use crate::source::PythonDatabase;
use crate::view::{ItemForm, ItemPart, ItemTypes, PyRecordIterator, RemainingRecords};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyFloat, PyInt, PyTuple};
use std::borrow::Cow;
use std::sync::Arc;
use todana::table::{Condition, ConditionOperator, Query, QueryOrder, SetOperation, SnippetStyle, Table};
use todana::{Error, ErrorKind};

/// The rows that a query or a set operation on queries finds. Each call searches again.
#[pyclass(module = "todana", subclass, frozen, generic)]
pub(crate) struct RowSet {
    database: Arc<PythonDatabase>,
    queries: Vec<Query>,
    operation: SetOperation,
}

impl RowSet {
    pub(crate) fn new(database: &Arc<PythonDatabase>, query: Query) -> RowSet {
        let database = Arc::clone(database);
        RowSet { database, queries: vec![query], operation: SetOperation::Union }
    }

    fn iterator(&self, py: Python<'_>, part: ItemPart) -> PyResult<PyRecordIterator> {
        let items = ItemForm { part, types: ItemTypes::Row };
        let search = self.database.search(py, |db| {
            Table::new(db)?.search_owned(&self.queries, self.operation, part == ItemPart::Keys)
        })?;
        Ok(PyRecordIterator::new(&self.database, items, RemainingRecords::Search(search), false))
    }
}

#[pymethods]
impl RowSet {
    /// Returns an iterator over the keys of the found rows.
    fn keys(&self, py: Python<'_>) -> PyResult<PyRecordIterator> {
        self.iterator(py, ItemPart::Keys)
    }

    /// Returns an iterator over the found rows, each a dict. Rows are read in batches, so a large
    /// result needs little memory.
    fn rows(&self, py: Python<'_>) -> PyResult<PyRecordIterator> {
        self.iterator(py, ItemPart::Values)
    }

    /// Returns an iterator over the keys and rows.
    fn items(&self, py: Python<'_>) -> PyResult<PyRecordIterator> {
        self.iterator(py, ItemPart::Items)
    }

    /// Returns the number of found rows.
    fn count(&self, py: Python<'_>) -> PyResult<u64> {
        let db = self.database.db().map_err(raised)?;
        py.detach(|| Table::new(&db)?.count_set(&self.queries, self.operation)).map_err(raised)
    }

    /// Removes the found rows. Returns their number.
    fn delete(&self, py: Python<'_>) -> PyResult<u64> {
        let db = self.database.db().map_err(raised)?;
        py.detach(|| Table::new(&db)?.remove_matching_set(&self.queries, self.operation)).map_err(raised)
    }

    /// Searches, and returns the description of the plan in Tokyo Cabinet's words.
    fn hint(&self, py: Python<'_>) -> PyResult<String> {
        let search = self
            .database
            .search(py, |db| Table::new(db)?.search_owned(&self.queries, self.operation, true))?;
        py.detach(|| search.hint()).map_err(raised)
    }

    fn __repr__(&self) -> String {
        format!("<todana.RowSet of {:?}>", self.database.name)
    }
}

/// A query: all conditions must hold. A query never changes; its methods return new queries.
#[pyclass(name = "Query", module = "todana", extends = RowSet, frozen, generic)]
pub(crate) struct PyQuery;

impl PyQuery {
    pub(crate) fn of(rows: RowSet) -> PyClassInitializer<PyQuery> {
        PyClassInitializer::from(rows).add_subclass(PyQuery)
    }

    /// Returns the query that `change` makes of a copy.
    fn changed(slf: &PyRef<'_, Self>, change: impl FnOnce(Query) -> Query) -> PyResult<Py<PyQuery>> {
        let rows = slf.as_super();
        Py::new(slf.py(), PyQuery::of(RowSet::new(&rows.database, change(rows.queries[0].clone()))))
    }

    fn combined(
        slf: &PyRef<'_, Self>,
        others: &Bound<'_, PyTuple>,
        operation: SetOperation,
    ) -> PyResult<RowSet> {
        let rows = slf.as_super();
        let mut queries = rows.queries.clone();
        for other in others {
            let other = other.cast::<PyQuery>()?.borrow();
            let other = other.as_super();
            if !Arc::ptr_eq(&other.database, &rows.database) {
                let message = "the queries of a set operation belong to one table";
                return Err(raised(Error::new(ErrorKind::Invalid, message)));
            }
            queries.extend(other.queries.iter().cloned());
        }
        Ok(RowSet { database: Arc::clone(&rows.database), queries, operation })
    }
}

/// Returns the text of an expression, which may be a number.
fn expression_of<'a>(object: &'a Bound<'_, PyAny>) -> PyResult<ObjectBytes<'a>> {
    if object.is_instance_of::<PyInt>() || object.is_instance_of::<PyFloat>() {
        return Ok(Cow::Owned(object.str()?.to_string().into_bytes()));
    }
    octets(object)
}

#[pymethods]
impl PyQuery {
    /// Adds a condition. `operator` is one of Tokyo Cabinet's names: "streq", "strinc", "strbw",
    /// "strew", "strand", "stror", "stroreq", "strrx", "numeq", "numgt", "numge", "numlt", "numle",
    /// "numbt", "numoreq", "ftsph", "ftsand", "ftsor", "ftsex". The expression may be a number. The
    /// empty name means the key of the row. With `negate`, the rows that do not satisfy the
    /// condition are found. With `index=False`, no index is used for the condition.
    #[pyo3(signature = (column, operator, expression, *, negate=false, index=true))]
    fn r#where(
        slf: PyRef<'_, Self>,
        column: &Bound<'_, PyAny>,
        operator: &str,
        expression: &Bound<'_, PyAny>,
        negate: bool,
        index: bool,
    ) -> PyResult<Py<PyQuery>> {
        let Some(operator) = ConditionOperator::parse(operator.as_bytes()) else {
            return Err(PyValueError::new_err(format!("{operator:?} is no operator of a condition")));
        };
        let mut condition = Condition::parsed(&octets(column)?, operator, &expression_of(expression)?);
        condition.is_negated ^= negate;
        condition.uses_index &= index;
        PyQuery::changed(&slf, |query| query.condition(condition))
    }

    /// Sets the order of the rows: "strasc", "strdesc", "numasc" or "numdesc" by a column. Rows
    /// without the column come last.
    #[pyo3(signature = (column, order="strasc"))]
    fn order(slf: PyRef<'_, Self>, column: &Bound<'_, PyAny>, order: &str) -> PyResult<Py<PyQuery>> {
        let Some(order) = QueryOrder::parse(order.as_bytes()) else {
            return Err(PyValueError::new_err("order is \"strasc\", \"strdesc\", \"numasc\" or \"numdesc\""));
        };
        let column = octets(column)?;
        PyQuery::changed(&slf, |query| query.order_by(&column, order))
    }

    /// Sets the most rows that are found (None: all), and the number of rows left out at the start.
    #[pyo3(signature = (limit=None, skip=0))]
    fn limit(slf: PyRef<'_, Self>, limit: Option<u64>, skip: u64) -> PyResult<Py<PyQuery>> {
        PyQuery::changed(&slf, |query| Query { limit, skip, ..query })
    }

    /// Returns the rows that at least one query finds. The rows of this query come first.
    #[pyo3(signature = (*others))]
    fn union(slf: PyRef<'_, Self>, others: &Bound<'_, PyTuple>) -> PyResult<RowSet> {
        PyQuery::combined(&slf, others, SetOperation::Union)
    }

    /// Returns the rows that all queries find, in the order of the last query.
    #[pyo3(signature = (*others))]
    fn intersection(slf: PyRef<'_, Self>, others: &Bound<'_, PyTuple>) -> PyResult<RowSet> {
        PyQuery::combined(&slf, others, SetOperation::Intersection)
    }

    /// Returns the rows that only this query finds.
    #[pyo3(signature = (*others))]
    fn difference(slf: PyRef<'_, Self>, others: &Bound<'_, PyTuple>) -> PyResult<RowSet> {
        PyQuery::combined(&slf, others, SetOperation::Difference)
    }

    /// Returns the places in a text where words of the conditions on its column occur, with at most
    /// `width` characters on each side, and at most `limit` places. If no word occurs, `lead`
    /// returns the start of the text.
    #[pyo3(signature = (column, text, *, width=20, before="[", after="]", limit=8, lead=false))]
    #[allow(clippy::too_many_arguments)] // They are Python's, by name.
    fn snippets(
        slf: PyRef<'_, Self>,
        column: &Bound<'_, PyAny>,
        text: &Bound<'_, PyAny>,
        width: usize,
        before: &str,
        after: &str,
        limit: usize,
        lead: bool,
    ) -> PyResult<Vec<String>> {
        let (before, after) = (before.into(), after.into());
        let style = SnippetStyle { width, before, after, snippets_max: limit, leads: lead };
        let (column, text) = (octets(column)?, octets(text)?);
        Ok(slf.as_super().queries[0].snippets(&column, &String::from_utf8_lossy(&text), &style))
    }

    fn __repr__(slf: PyRef<'_, Self>) -> String {
        format!("<todana.Query of {:?}>", slf.as_super().database.name)
    }
}
