//! Exports views of keys, values and items, which can be iterated any number of times, and their
//! iterators.

use crate::conversion::octets;
use crate::error::raised;
use crate::source::{PythonDatabase, RecordsSource};
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::collections::VecDeque;
use std::ops::Bound as Limit;
use std::sync::Arc;
use todana::{Error, ErrorKind, IterKeys, RecordIter, Records, Result};

/// The parts of each record that are yielded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ItemPart {
    Keys,
    Values,
    Items,
}

/// The records of a view.
#[derive(Clone)]
pub(crate) enum KeySelection {
    All,
    Prefix(Vec<u8>),
    /// The records from the first key, inclusive, to the second key, exclusive.
    Range(Option<Vec<u8>>, Option<Vec<u8>>),
}

impl KeySelection {
    pub(crate) fn of(
        start: Option<&Bound<'_, PyAny>>,
        stop: Option<&Bound<'_, PyAny>>,
        prefix: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<KeySelection> {
        let own = |object: Option<&Bound<'_, PyAny>>| -> PyResult<Option<Vec<u8>>> {
            object.map(|object| octets(object).map(|octets| octets.into_owned())).transpose()
        };
        match (own(start)?, own(stop)?, own(prefix)?) {
            (None, None, None) => Ok(KeySelection::All),
            (None, None, Some(prefix)) => Ok(KeySelection::Prefix(prefix)),
            (start, stop, None) => Ok(KeySelection::Range(start, stop)),
            _ => Err(raised(Error::new(
                ErrorKind::Invalid,
                "a prefix is a range by itself: give one or the other",
            ))),
        }
    }

    fn has(&self, key: &[u8]) -> bool {
        match self {
            KeySelection::All => true,
            KeySelection::Prefix(prefix) => key.starts_with(prefix),
            KeySelection::Range(start, stop) => {
                start.as_ref().is_none_or(|start| key >= &start[..])
                    && stop.as_ref().is_none_or(|stop| key < &stop[..])
            }
        }
    }

    fn iter(&self, source: RecordsSource) -> Result<RecordIter<RecordsSource>> {
        match self {
            KeySelection::All => Ok(RecordIter::new(source)),
            KeySelection::Prefix(prefix) => Ok(RecordIter::with_prefix(source, prefix)),
            KeySelection::Range(start, stop) => RecordIter::within(
                source,
                start.clone().map_or(Limit::Unbounded, Limit::Included),
                stop.clone().map_or(Limit::Unbounded, Limit::Excluded),
            ),
        }
    }
}

/// The keys, values or items of a database or of a range. Each iteration shows the records of that
/// time.
#[pyclass(name = "View", module = "todana", frozen, generic)]
pub(crate) struct PyView {
    source: RecordsSource,
    part: ItemPart,
    which: KeySelection,
    is_down: bool,
}

impl PyView {
    pub(crate) fn new(
        source: RecordsSource,
        part: ItemPart,
        which: KeySelection,
        is_down: bool,
    ) -> PyResult<PyView> {
        if !source.is_ordered() && (is_down || matches!(which, KeySelection::Range(..))) {
            let message = "this kind of database keeps no order of keys: there are no ranges of them, and no going backwards";
            return Err(raised(Error::new(ErrorKind::Invalid, message)));
        }
        Ok(PyView { source, part, which, is_down })
    }

    pub(crate) fn iterator(&self, is_down: bool) -> PyResult<PyRecordIterator> {
        let iter = self.which.iter(self.source.clone()).map_err(raised)?;
        Ok(PyRecordIterator::new(Arc::clone(self.source.database()), self.part, iter, is_down))
    }
}

#[pymethods]
impl PyView {
    fn __iter__(&self) -> PyResult<PyRecordIterator> {
        self.iterator(self.is_down)
    }

    fn __reversed__(&self) -> PyResult<PyRecordIterator> {
        PyView::new(self.source.clone(), self.part, self.which.clone(), !self.is_down)?
            .iterator(!self.is_down)
    }

    /// Returns the number of records. Reads all keys of the view.
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        py.detach(|| {
            let mut count = 0;
            for key in self.which.iter(self.source.clone())?.keys() {
                key?;
                count += 1;
            }
            Ok(count)
        })
        .map_err(raised)
    }

    /// Returns True if the view contains this key, value or item. The search for a value reads all
    /// values.
    fn __contains__(&self, py: Python<'_>, item: &Bound<'_, PyAny>) -> PyResult<bool> {
        match self.part {
            ItemPart::Keys => {
                let key = octets(item)?;
                py.detach(|| Ok(self.which.has(&key) && self.source.contains(&key)?)).map_err(raised)
            }
            ItemPart::Items => {
                let (key, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = item.extract()?;
                let (key, value) = (octets(&key)?, octets(&value)?);
                py.detach(|| {
                    Ok(self.which.has(&key) && self.source.get(&key)?.is_some_and(|found| *found == *value))
                })
                .map_err(raised)
            }
            ItemPart::Values => {
                let value = octets(item)?;
                py.detach(|| {
                    for item in self.which.iter(self.source.clone())? {
                        if item?.1 == *value {
                            return Ok(true);
                        }
                    }
                    Ok(false)
                })
                .map_err(raised)
            }
        }
    }

    fn __repr__(&self) -> String {
        let part = match self.part {
            ItemPart::Keys => "keys",
            ItemPart::Values => "values",
            ItemPart::Items => "items",
        };
        format!("<todana.View: {part} of {:?}>", self.source.database().name)
    }
}

/// Shows the records of a view once, in batches. An iterator stays valid after all changes.
#[pyclass(name = "Iterator", module = "todana", frozen, generic)]
pub(crate) struct PyRecordIterator {
    database: Arc<PythonDatabase>,
    part: ItemPart,
    is_down: bool,
    /// The fetched records and the remaining records. A thread that waits for the interpreter never
    /// holds this lock.
    walk: Mutex<BatchWalk>,
}

struct BatchWalk {
    fetched: VecDeque<(Vec<u8>, Vec<u8>)>,
    ahead: RemainingRecords,
    batch_len: usize,
}

/// The records that have not been fetched.
enum RemainingRecords {
    Keys(IterKeys<RecordsSource>),
    Records(RecordIter<RecordsSource>),
    /// An error, which is raised once.
    Failed(Error),
    Nothing,
}

impl RemainingRecords {
    fn next(&mut self, is_down: bool) -> Option<Result<(Vec<u8>, Vec<u8>)>> {
        let bare = |key: Result<Vec<u8>>| key.map(|key| (key, Vec::new()));
        match self {
            RemainingRecords::Keys(keys) if is_down => keys.next_back().map(bare),
            RemainingRecords::Keys(keys) => keys.next().map(bare),
            RemainingRecords::Records(records) if is_down => records.next_back(),
            RemainingRecords::Records(records) => records.next(),
            RemainingRecords::Failed(_) | RemainingRecords::Nothing => None,
        }
    }
}

/// The length of the first batch, as in the library's own batches.
const BATCH_FIRST: usize = 16;
const BATCH_MAX: usize = 1024;
const BATCH_BYTES_MAX: usize = 1 << 20;

impl BatchWalk {
    /// Fetches the next batch if the last batch is used up.
    fn fetch(&mut self, is_down: bool) -> Result<()> {
        let mut bytes = 0;
        while self.fetched.len() < self.batch_len && bytes < BATCH_BYTES_MAX {
            match self.ahead.next(is_down) {
                Some(Ok((key, value))) => {
                    bytes += key.len() + value.len();
                    self.fetched.push_back((key, value));
                }
                // The records before the error are shown first.
                Some(Err(error)) => self.ahead = RemainingRecords::Failed(error),
                None => break,
            }
        }
        self.batch_len = (self.batch_len * 2).min(BATCH_MAX);
        if !self.fetched.is_empty() {
            return Ok(());
        }
        match std::mem::replace(&mut self.ahead, RemainingRecords::Nothing) {
            RemainingRecords::Failed(error) => Err(error),
            _ => Ok(()),
        }
    }
}

impl PyRecordIterator {
    pub(crate) fn new(
        database: Arc<PythonDatabase>,
        part: ItemPart,
        iter: RecordIter<RecordsSource>,
        is_down: bool,
    ) -> PyRecordIterator {
        let ahead = if part == ItemPart::Keys {
            RemainingRecords::Keys(iter.keys())
        } else {
            RemainingRecords::Records(iter)
        };
        let walk = BatchWalk { fetched: VecDeque::new(), ahead, batch_len: BATCH_FIRST };
        PyRecordIterator { database, part, is_down, walk: Mutex::new(walk) }
    }

    pub(crate) fn next(&self, py: Python<'_>) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        self.database.must_be_of_this_process()?;
        // A thread that fetches records holds this lock, and does not need the interpreter to
        // finish.
        if let Some(mut walk) = self.walk.try_lock() {
            if let Some(record) = walk.fetched.pop_front() {
                return Ok(Some(record));
            }
            if matches!(walk.ahead, RemainingRecords::Nothing) {
                return Ok(None);
            }
        }
        py.detach(|| {
            let mut walk = self.walk.lock();
            if walk.fetched.is_empty() {
                walk.fetch(self.is_down)?;
            }
            Ok(walk.fetched.pop_front())
        })
    }
}

#[pymethods]
impl PyRecordIterator {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some((key, value)) = self.next(py).map_err(raised)? else { return Ok(None) };
        let form = self.database.form;
        Ok(Some(match self.part {
            ItemPart::Keys => form.show(py, &key)?,
            ItemPart::Values => form.show(py, &value)?,
            ItemPart::Items => PyTuple::new(py, [form.show(py, &key)?, form.show(py, &value)?])?.into_any(),
        }))
    }
}
