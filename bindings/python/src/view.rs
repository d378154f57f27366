//! Exports views of keys, values and items, which can be iterated any number of times, and their
//! iterators.

use crate::conversion::{OutputForm, octets};
use crate::error::raised;
use crate::source::{OpenSearch, PythonDatabase, RecordsSource};
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::collections::VecDeque;
use std::ops::{Bound as Limit, RangeInclusive};
use std::sync::Arc;
use todana::table::Row;
use todana::{Error, ErrorKind, IterKeys, RecordIter, Records, Result, ScanDirection};
use todana_core::number_of_key;

/// The parts of each record that are yielded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ItemPart {
    Keys,
    Values,
    Items,
}

/// The Python types of yielded keys and values.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ItemTypes {
    /// Both are bytes or text.
    Plain,
    /// The value is a row: a dict of its columns. The record with the empty key is not a row.
    Row,
    /// The key is a number.
    Numbered,
}

/// The form of the items that are yielded.
#[derive(Clone, Copy)]
pub(crate) struct ItemForm {
    pub(crate) part: ItemPart,
    pub(crate) types: ItemTypes,
}

impl From<ItemPart> for ItemForm {
    fn from(part: ItemPart) -> ItemForm {
        ItemForm { part, types: ItemTypes::Plain }
    }
}

impl ItemForm {
    fn show<'py>(
        self,
        py: Python<'py>,
        form: OutputForm,
        key: &[u8],
        value: &[u8],
    ) -> PyResult<Bound<'py, PyAny>> {
        let shown_key = || match self.types {
            ItemTypes::Numbered => Ok(number_of_key(key).into_pyobject(py)?),
            ItemTypes::Plain | ItemTypes::Row => form.show(py, key),
        };
        let shown_value = || match self.types {
            ItemTypes::Row => Ok(row_dict(py, form, value)?.into_any()),
            ItemTypes::Plain | ItemTypes::Numbered => form.show(py, value),
        };
        match self.part {
            ItemPart::Keys => shown_key(),
            ItemPart::Values => shown_value(),
            ItemPart::Items => Ok(PyTuple::new(py, [shown_key()?, shown_value()?])?.into_any()),
        }
    }

    /// Returns true if this record is one of those that are yielded.
    fn has(self, key: &[u8]) -> bool {
        self.types != ItemTypes::Row || !key.is_empty()
    }
}

/// Returns a dict of the columns of a row.
pub(crate) fn row_dict<'py>(py: Python<'py>, form: OutputForm, value: &[u8]) -> PyResult<Bound<'py, PyDict>> {
    let columns = PyDict::new(py);
    for (name, value) in Row::stored(value).columns() {
        columns.set_item(form.show(py, name)?, form.show(py, value)?)?;
    }
    Ok(columns)
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
    items: ItemForm,
    which: KeySelection,
    is_down: bool,
}

impl PyView {
    pub(crate) fn new(
        source: RecordsSource,
        items: impl Into<ItemForm>,
        which: KeySelection,
        is_down: bool,
    ) -> PyResult<PyView> {
        if !source.is_ordered() && (is_down || matches!(which, KeySelection::Range(..))) {
            let message = "this kind of database keeps no order of keys: there are no ranges of them, and no going backwards";
            return Err(raised(Error::new(ErrorKind::Invalid, message)));
        }
        Ok(PyView { source, items: items.into(), which, is_down })
    }

    pub(crate) fn iterator(&self, is_down: bool) -> PyResult<PyRecordIterator> {
        let iter = self.which.iter(self.source.clone()).map_err(raised)?;
        let ahead = if self.items.part == ItemPart::Keys {
            RemainingRecords::Keys(iter.keys())
        } else {
            RemainingRecords::Records(iter)
        };
        Ok(PyRecordIterator::new(self.source.database(), self.items, ahead, is_down))
    }
}

#[pymethods]
impl PyView {
    fn __iter__(&self) -> PyResult<PyRecordIterator> {
        self.iterator(self.is_down)
    }

    fn __reversed__(&self) -> PyResult<PyRecordIterator> {
        PyView::new(self.source.clone(), self.items, self.which.clone(), !self.is_down)?
            .iterator(!self.is_down)
    }

    /// Returns the number of records. Reads all keys of the view.
    pub(crate) fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        py.detach(|| {
            let mut count = 0;
            for key in self.which.iter(self.source.clone())?.keys() {
                count += usize::from(self.items.has(&key?));
            }
            Ok(count)
        })
        .map_err(raised)
    }

    /// Returns True if the view contains this key, value or item. The search for a value reads all
    /// values.
    fn __contains__(&self, py: Python<'_>, item: &Bound<'_, PyAny>) -> PyResult<bool> {
        match self.items.part {
            ItemPart::Keys => {
                let key = octets(item)?;
                py.detach(|| {
                    Ok(self.items.has(&key) && self.which.has(&key) && self.source.contains(&key)?)
                })
                .map_err(raised)
            }
            ItemPart::Items | ItemPart::Values if self.items.types == ItemTypes::Row => {
                let iterator = self.iterator(false)?;
                while let Some(row) = iterator.__next__(py)? {
                    if row.eq(item)? {
                        return Ok(true);
                    }
                }
                Ok(false)
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
        let part = match self.items.part {
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
    items: ItemForm,
    is_down: bool,
    /// The fetched records and the remaining records. A thread that waits for the interpreter never
    /// holds this lock.
    walk: Mutex<BatchWalk>,
}

struct BatchWalk {
    fetched: VecDeque<(Vec<u8>, Vec<u8>)>,
    items: ItemForm,
    ahead: RemainingRecords,
    batch_len: usize,
}

/// The records that have not been fetched.
pub(crate) enum RemainingRecords {
    Keys(IterKeys<RecordsSource>),
    Records(RecordIter<RecordsSource>),
    Search(Arc<OpenSearch>),
    Numbered(NumberedWalk),
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
            RemainingRecords::Search(search) => search.next(),
            RemainingRecords::Numbered(walk) => walk.next(is_down).transpose(),
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
                Some(Ok((key, _))) if !self.items.has(&key) => {}
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

/// A walk over records of numbers.
pub(crate) struct NumberedWalk {
    database: Arc<PythonDatabase>,
    /// The numbers that have not been read yet.
    numbers: RangeInclusive<u64>,
    read: VecDeque<(u64, Vec<u8>)>,
}

/// The number of numbered records that are read at once.
const NUMBERED_BATCH: usize = 256;

impl NumberedWalk {
    pub(crate) fn new(database: &Arc<PythonDatabase>, numbers: RangeInclusive<u64>) -> NumberedWalk {
        NumberedWalk { database: Arc::clone(database), numbers, read: VecDeque::new() }
    }

    fn next(&mut self, is_down: bool) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        if self.read.is_empty() && !self.numbers.is_empty() {
            let heading = if is_down { ScanDirection::Down } else { ScanDirection::Up };
            let (from, to) = self.numbers.clone().into_inner();
            self.read = self.database.db()?.numbered_records(heading, from..=to, NUMBERED_BATCH)?.into();
            self.numbers = match self.read.back() {
                Some((last, _)) if self.read.len() == NUMBERED_BATCH && is_down => from..=last - 1,
                Some((last, _)) if self.read.len() == NUMBERED_BATCH => last.saturating_add(1)..=to,
                _ => RangeInclusive::new(1, 0),
            };
        }
        Ok(self.read.pop_front().map(|(number, value)| (number.to_string().into_bytes(), value)))
    }
}

impl PyRecordIterator {
    pub(crate) fn new(
        database: &Arc<PythonDatabase>,
        items: ItemForm,
        ahead: RemainingRecords,
        is_down: bool,
    ) -> PyRecordIterator {
        let walk = BatchWalk { fetched: VecDeque::new(), items, ahead, batch_len: BATCH_FIRST };
        PyRecordIterator { database: Arc::clone(database), items, is_down, walk: Mutex::new(walk) }
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
        self.items.show(py, self.database.form, &key, &value).map(Some)
    }
}
