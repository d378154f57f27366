//! Keys, values and items: views that can be gone through as often as need be, and iterators, each of which goes once.

use crate::conversion::octets;
use crate::error::raised;
use crate::source::{Home, Source};
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::collections::VecDeque;
use std::ops::Bound as Limit;
use std::sync::Arc;
use todana::{Error, ErrorKind, IterKeys, RecordIter, Records, Result};

/// What is shown of each record.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Keys,
    Values,
    Items,
}

/// Which records are shown.
#[derive(Clone)]
pub(crate) enum Which {
    All,
    Prefix(Vec<u8>),
    /// The first is included, the other is not.
    Range(Option<Vec<u8>>, Option<Vec<u8>>),
}

impl Which {
    pub(crate) fn of(
        start: Option<&Bound<'_, PyAny>>,
        stop: Option<&Bound<'_, PyAny>>,
        prefix: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Which> {
        let own = |object: Option<&Bound<'_, PyAny>>| -> PyResult<Option<Vec<u8>>> {
            object.map(|object| octets(object).map(|octets| octets.into_owned())).transpose()
        };
        match (own(start)?, own(stop)?, own(prefix)?) {
            (None, None, None) => Ok(Which::All),
            (None, None, Some(prefix)) => Ok(Which::Prefix(prefix)),
            (start, stop, None) => Ok(Which::Range(start, stop)),
            _ => Err(raised(Error::new(
                ErrorKind::Invalid,
                "a prefix is a range by itself: give one or the other",
            ))),
        }
    }

    fn has(&self, key: &[u8]) -> bool {
        match self {
            Which::All => true,
            Which::Prefix(prefix) => key.starts_with(prefix),
            Which::Range(start, stop) => {
                start.as_ref().is_none_or(|start| key >= &start[..])
                    && stop.as_ref().is_none_or(|stop| key < &stop[..])
            }
        }
    }

    fn iter(&self, source: Source) -> Result<RecordIter<Source>> {
        match self {
            Which::All => Ok(RecordIter::new(source)),
            Which::Prefix(prefix) => Ok(RecordIter::with_prefix(source, prefix)),
            Which::Range(start, stop) => RecordIter::within(
                source,
                start.clone().map_or(Limit::Unbounded, Limit::Included),
                stop.clone().map_or(Limit::Unbounded, Limit::Excluded),
            ),
        }
    }
}

/// The keys, values or items of a database, or of a range of it, as they are whenever it is gone through.
#[pyclass(module = "todana", frozen, generic)]
pub(crate) struct View {
    source: Source,
    part: Part,
    which: Which,
    is_down: bool,
}

impl View {
    pub(crate) fn new(source: Source, part: Part, which: Which, is_down: bool) -> PyResult<View> {
        if !source.is_ordered() && (is_down || matches!(which, Which::Range(..))) {
            let message = "this kind of database keeps no order of keys: there are no ranges of them, and no going backwards";
            return Err(raised(Error::new(ErrorKind::Invalid, message)));
        }
        Ok(View { source, part, which, is_down })
    }

    pub(crate) fn iterator(&self, is_down: bool) -> PyResult<Iterator> {
        let iter = self.which.iter(self.source.clone()).map_err(raised)?;
        Ok(Iterator::new(Arc::clone(self.source.home()), self.part, iter, is_down))
    }
}

#[pymethods]
impl View {
    fn __iter__(&self) -> PyResult<Iterator> {
        self.iterator(self.is_down)
    }

    fn __reversed__(&self) -> PyResult<Iterator> {
        View::new(self.source.clone(), self.part, self.which.clone(), !self.is_down)?.iterator(!self.is_down)
    }

    /// How many there are; all keys of it are looked at.
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

    /// Whether there is such a key, value or item. All values are looked at for a value.
    fn __contains__(&self, py: Python<'_>, item: &Bound<'_, PyAny>) -> PyResult<bool> {
        match self.part {
            Part::Keys => {
                let key = octets(item)?;
                py.detach(|| Ok(self.which.has(&key) && self.source.contains(&key)?)).map_err(raised)
            }
            Part::Items => {
                let (key, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = item.extract()?;
                let (key, value) = (octets(&key)?, octets(&value)?);
                py.detach(|| {
                    Ok(self.which.has(&key) && self.source.get(&key)?.is_some_and(|found| *found == *value))
                })
                .map_err(raised)
            }
            Part::Values => {
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
            Part::Keys => "keys",
            Part::Values => "values",
            Part::Items => "items",
        };
        format!("<todana.View: {part} of {:?}>", self.source.home().name)
    }
}

/// Goes through records once, in batches: it survives whatever is written meanwhile.
#[pyclass(module = "todana", frozen, generic)]
pub(crate) struct Iterator {
    home: Arc<Home>,
    part: Part,
    is_down: bool,
    /// What was fetched, and what there is to fetch; never held by whoever waits for the interpreter.
    walk: Mutex<Walk>,
}

struct Walk {
    fetched: VecDeque<(Vec<u8>, Vec<u8>)>,
    ahead: Ahead,
    batch_len: usize,
}

/// What has not been fetched.
enum Ahead {
    Keys(IterKeys<Source>),
    Records(RecordIter<Source>),
    /// It is told once.
    Trouble(Error),
    Nothing,
}

impl Ahead {
    fn next(&mut self, is_down: bool) -> Option<Result<(Vec<u8>, Vec<u8>)>> {
        let bare = |key: Result<Vec<u8>>| key.map(|key| (key, Vec::new()));
        match self {
            Ahead::Keys(keys) if is_down => keys.next_back().map(bare),
            Ahead::Keys(keys) => keys.next().map(bare),
            Ahead::Records(records) if is_down => records.next_back(),
            Ahead::Records(records) => records.next(),
            Ahead::Trouble(_) | Ahead::Nothing => None,
        }
    }
}

/// As the library's own batches.
const BATCH_FIRST: usize = 16;
const BATCH_MAX: usize = 1024;
const BATCH_BYTES_MAX: usize = 1 << 20;

impl Walk {
    /// Fetches the next batch when the last one has been taken.
    fn fetch(&mut self, is_down: bool) -> Result<()> {
        let mut bytes = 0;
        while self.fetched.len() < self.batch_len && bytes < BATCH_BYTES_MAX {
            match self.ahead.next(is_down) {
                Some(Ok((key, value))) => {
                    bytes += key.len() + value.len();
                    self.fetched.push_back((key, value));
                }
                // What has come so far is shown first.
                Some(Err(error)) => self.ahead = Ahead::Trouble(error),
                None => break,
            }
        }
        self.batch_len = (self.batch_len * 2).min(BATCH_MAX);
        if !self.fetched.is_empty() {
            return Ok(());
        }
        match std::mem::replace(&mut self.ahead, Ahead::Nothing) {
            Ahead::Trouble(error) => Err(error),
            _ => Ok(()),
        }
    }
}

impl Iterator {
    pub(crate) fn new(home: Arc<Home>, part: Part, iter: RecordIter<Source>, is_down: bool) -> Iterator {
        let ahead = if part == Part::Keys { Ahead::Keys(iter.keys()) } else { Ahead::Records(iter) };
        let walk = Walk { fetched: VecDeque::new(), ahead, batch_len: BATCH_FIRST };
        Iterator { home, part, is_down, walk: Mutex::new(walk) }
    }

    pub(crate) fn next(&self, py: Python<'_>) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        self.home.must_be_of_this_process()?;
        // Whoever fetches holds it, and does not need the interpreter to finish.
        if let Some(mut walk) = self.walk.try_lock() {
            if let Some(record) = walk.fetched.pop_front() {
                return Ok(Some(record));
            }
            if matches!(walk.ahead, Ahead::Nothing) {
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
impl Iterator {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some((key, value)) = self.next(py).map_err(raised)? else { return Ok(None) };
        let form = self.home.form;
        Ok(Some(match self.part {
            Part::Keys => form.show(py, &key)?,
            Part::Values => form.show(py, &value)?,
            Part::Items => PyTuple::new(py, [form.show(py, &key)?, form.show(py, &value)?])?.into_any(),
        }))
    }
}
