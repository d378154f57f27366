//! Exports operations on the records of a database, a transaction or a snapshot. A snapshot only
//! has the operations that read.

use crate::conversion::{ObjectBytes, expect_one_default, missing, octets, pairs, ttl};
use crate::cursor::PyCursor;
use crate::error::{InvalidError, raised};
use crate::numbered::PyFixed;
use crate::record::PyRecord;
use crate::source::RecordsSource;
use crate::table::PyTable;
use crate::view::{ItemPart, KeySelection, PyRecordIterator, PyView};
use crate::visits::VisitDecision;
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use todana::tyrant::{AddValuesVisitor, RemoveValuesVisitor, ValuesVisitor};
use todana::{CompareOutcome, Error, ErrorKind, IncrementOrigin, KeySymbols, Records as _, Result, Ttl};

/// The common methods of a database, a transaction and a snapshot, which work like a dict of bytes.
#[pyclass(module = "todana", subclass, frozen, generic, mapping)]
pub(crate) struct Records {
    pub(crate) source: RecordsSource,
}

impl Records {
    pub(crate) fn new(source: RecordsSource) -> Records {
        Records { source }
    }

    /// Stores a record in one of several modes.
    fn store<T: Send>(
        &self,
        py: Python<'_>,
        (key, value): (&Bound<'_, PyAny>, &Bound<'_, PyAny>),
        ttl: Ttl,
        flags: u32,
        store: impl FnOnce(&RecordsSource, &[u8], &[u8], Ttl, u32) -> Result<T> + Send,
    ) -> PyResult<T> {
        let (key, value) = (octets(key)?, octets(value)?);
        self.source.change(py, |source| store(source, &key, &value, ttl, flags))
    }

    #[inline]
    fn value<'py>(&self, py: Python<'py>, key: &[u8]) -> PyResult<Option<Bound<'py, PyAny>>> {
        let form = self.source.form();
        let mut copy = None;
        if let Some(_turn) = self.source.look_turn() {
            let mut shown = None;
            self.source
                .view_in_turn(key, &mut |record| {
                    shown = form.show_under_lock(py, record.value);
                    if shown.is_none() {
                        copy = Some(record.value.to_vec());
                    }
                })
                .map_err(raised)?;
            if shown.is_some() {
                return Ok(shown);
            }
        } else {
            copy = self.source.read(py, |source| source.get(key))?;
        }
        copy.map(|value| form.show(py, &value)).transpose()
    }

    /// Adds to a number. Raises KeyError if there is no record and `is_required` is true.
    fn sum<T: Send>(
        &self,
        key: &Bound<'_, PyAny>,
        is_required: bool,
        add: impl FnOnce(&RecordsSource, &[u8]) -> Result<T> + Send,
    ) -> PyResult<T> {
        let (py, name) = (key.py(), octets(key)?);
        match self.source.change(py, |source| add(source, &name)) {
            Err(error)
                if is_required
                    && error.is_instance_of::<InvalidError>(py)
                    && !self.source.read(py, |source| source.contains(&name))? =>
            {
                Err(missing(key))
            }
            outcome => outcome,
        }
    }

    /// Fails if a key cannot have several values.
    fn expect_value_lists(&self) -> PyResult<()> {
        if self.source.database().db().map_err(raised)?.database().holds_value_lists() {
            return Ok(());
        }
        let message = "a key has one value in this kind of database; use mem:tree or PATH.tree";
        Err(raised(Error::new(ErrorKind::Invalid, message)))
    }

    fn show_all<'py>(&self, py: Python<'py>, keys: Vec<Vec<u8>>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        keys.iter().map(|key| self.source.form().show(py, key)).collect()
    }

    fn set_pairs(
        &self,
        py: Python<'_>,
        pairs: &[(Bound<'_, PyAny>, Bound<'_, PyAny>)],
        ttl: Ttl,
        flags: u32,
    ) -> PyResult<()> {
        let octet_pairs: Vec<(ObjectBytes<'_>, ObjectBytes<'_>)> =
            pairs.iter().map(|(key, value)| Ok((octets(key)?, octets(value)?))).collect::<PyResult<_>>()?;
        self.source.at_length(py, |source| {
            octet_pairs.iter().try_for_each(|(key, value)| source.set_with(key, value, ttl, flags))
        })
    }
}

/// Returns the maximum number of results of a search.
fn limit_of(limit: Option<usize>) -> usize {
    limit.unwrap_or(usize::MAX)
}

#[pymethods]
impl Records {
    fn __getitem__<'py>(&self, py: Python<'py>, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.value(py, &octets(key)?)?.ok_or_else(|| missing(key))
    }

    fn __setitem__(&self, py: Python<'_>, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let (key, value) = (octets(key)?, octets(value)?);
        self.source.change(py, |source| source.set(&key, &value))
    }

    fn __delitem__(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<()> {
        let name = octets(key)?;
        if self.source.change(py, |source| source.remove(&name))? { Ok(()) } else { Err(missing(key)) }
    }

    fn __contains__(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let key = octets(key)?;
        self.source.read(py, |source| source.contains(&key))
    }

    fn __iter__(&self) -> PyResult<PyRecordIterator> {
        PyView::new(self.source.clone(), ItemPart::Keys, KeySelection::All, false)?.iterator(false)
    }

    fn __reversed__(&self) -> PyResult<PyRecordIterator> {
        PyView::new(self.source.clone(), ItemPart::Keys, KeySelection::All, true)?.iterator(true)
    }

    /// Returns the number of records. Reads all keys.
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.source
            .at_length(py, |source| source.iter().keys().try_fold(0, |count, key| key.map(|_| count + 1)))
    }

    /// Returns the value of a record, or `default`.
    #[pyo3(signature = (key, default=None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        Ok(self.value(py, &octets(key)?)?.or(default))
    }

    /// Returns a record with its attributes and a version, or None. The first request for a record
    /// costs a write, because versions are created on demand.
    fn get_record(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<Option<PyRecord>> {
        let key = octets(key)?;
        let Some(record) = self.source.change(py, |source| source.get_record(&key))? else { return Ok(None) };
        PyRecord::show(py, self.source.form(), record).map(Some)
    }

    /// Returns a cursor without a position.
    fn cursor(&self) -> PyCursor {
        PyCursor::new(self.source.clone())
    }

    /// Returns the keys of all records, or of a range that includes `start` and excludes `stop`.
    #[pyo3(signature = (start=None, stop=None, *, prefix=None, reverse=false))]
    fn keys(
        &self,
        start: Option<&Bound<'_, PyAny>>,
        stop: Option<&Bound<'_, PyAny>>,
        prefix: Option<&Bound<'_, PyAny>>,
        reverse: bool,
    ) -> PyResult<PyView> {
        PyView::new(self.source.clone(), ItemPart::Keys, KeySelection::of(start, stop, prefix)?, reverse)
    }

    /// Returns the values of all records or of a range.
    #[pyo3(signature = (start=None, stop=None, *, prefix=None, reverse=false))]
    fn values(
        &self,
        start: Option<&Bound<'_, PyAny>>,
        stop: Option<&Bound<'_, PyAny>>,
        prefix: Option<&Bound<'_, PyAny>>,
        reverse: bool,
    ) -> PyResult<PyView> {
        PyView::new(self.source.clone(), ItemPart::Values, KeySelection::of(start, stop, prefix)?, reverse)
    }

    /// Returns the keys and values of all records or of a range.
    #[pyo3(signature = (start=None, stop=None, *, prefix=None, reverse=false))]
    fn items(
        &self,
        start: Option<&Bound<'_, PyAny>>,
        stop: Option<&Bound<'_, PyAny>>,
        prefix: Option<&Bound<'_, PyAny>>,
        reverse: bool,
    ) -> PyResult<PyView> {
        PyView::new(self.source.clone(), ItemPart::Items, KeySelection::of(start, stop, prefix)?, reverse)
    }

    /// Stores a record and replaces an existing one. The record expires `ttl` seconds from now,
    /// `sliding` seconds after its last use, or at the Unix time `expires`.
    #[pyo3(signature = (key, value, *, ttl=None, sliding=None, expires=None, flags=0))]
    #[allow(clippy::too_many_arguments)] // They are Python's, by name.
    fn set(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        ttl: Option<&Bound<'_, PyAny>>,
        sliding: Option<&Bound<'_, PyAny>>,
        expires: Option<&Bound<'_, PyAny>>,
        flags: u32,
    ) -> PyResult<()> {
        self.store(py, (key, value), self::ttl(ttl, sliding, expires)?, flags, RecordsSource::set_with)
    }

    /// Stores a record if there is none. Returns True if the record was stored.
    #[pyo3(signature = (key, value, *, ttl=None, sliding=None, expires=None, flags=0))]
    #[allow(clippy::too_many_arguments)]
    fn add(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        ttl: Option<&Bound<'_, PyAny>>,
        sliding: Option<&Bound<'_, PyAny>>,
        expires: Option<&Bound<'_, PyAny>>,
        flags: u32,
    ) -> PyResult<bool> {
        self.store(py, (key, value), self::ttl(ttl, sliding, expires)?, flags, RecordsSource::add_with)
    }

    /// Replaces a record, its flags and its expiry. Returns False if there is no record.
    #[pyo3(signature = (key, value, *, ttl=None, sliding=None, expires=None, flags=0))]
    #[allow(clippy::too_many_arguments)]
    fn replace(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        ttl: Option<&Bound<'_, PyAny>>,
        sliding: Option<&Bound<'_, PyAny>>,
        expires: Option<&Bound<'_, PyAny>>,
        flags: u32,
    ) -> PyResult<bool> {
        self.store(py, (key, value), self::ttl(ttl, sliding, expires)?, flags, RecordsSource::replace_with)
    }

    /// Appends a piece to a value, or creates the record.
    fn append(&self, py: Python<'_>, key: &Bound<'_, PyAny>, piece: &Bound<'_, PyAny>) -> PyResult<()> {
        let (key, piece) = (octets(key)?, octets(piece)?);
        self.source.change(py, |source| source.append(&key, &piece))
    }

    /// Prepends a piece to a value, or creates the record.
    fn prepend(&self, py: Python<'_>, key: &Bound<'_, PyAny>, piece: &Bound<'_, PyAny>) -> PyResult<()> {
        let (key, piece) = (octets(key)?, octets(piece)?);
        self.source.change(py, |source| source.prepend(&key, &piece))
    }

    /// Adds to a decimal number and returns the sum. If there is no record, stores `initial` and
    /// adds nothing to it. Raises KeyError if there is no record and `initial` is None.
    #[pyo3(signature = (key, delta=1, initial=None))]
    fn increment(&self, key: &Bound<'_, PyAny>, delta: i64, initial: Option<i64>) -> PyResult<i64> {
        self.sum(key, initial.is_none(), |source, key| source.increment(key, delta, initial))
    }

    /// Adds to a number in the form of Kyoto Cabinet, which has 8 bytes, and returns the sum. If
    /// there is no record, adds to `origin`. Raises KeyError if there is no record and `origin` is
    /// None. As in Kyoto Cabinet, `origin=2**63-1` stores `delta` itself, and `origin=-2**63` is
    /// the same as None.
    #[pyo3(signature = (key, delta=1, origin=Some(0)), text_signature = "($self, key, delta=1, origin=0)")]
    fn increment_binary(&self, key: &Bound<'_, PyAny>, delta: i64, origin: Option<i64>) -> PyResult<i64> {
        let origin = origin.map_or(IncrementOrigin::Try, IncrementOrigin::from);
        self.sum(key, origin == IncrementOrigin::Try, |source, key| {
            source.increment_binary(key, delta, origin)
        })
    }

    /// Does the same as `increment_binary` for a number with a fraction, which has 16 bytes. The
    /// infinities correspond to `2**63-1` and `-2**63`.
    #[pyo3(signature = (key, delta=1.0, origin=Some(0.0)), text_signature = "($self, key, delta=1.0, origin=0.0)")]
    fn increment_double(&self, key: &Bound<'_, PyAny>, delta: f64, origin: Option<f64>) -> PyResult<f64> {
        let origin = origin.map_or(IncrementOrigin::Try, IncrementOrigin::from);
        self.sum(key, origin == IncrementOrigin::Try, |source, key| {
            source.increment_double(key, delta, origin)
        })
    }

    /// Replaces a record if it still has this version (`get_record`). Returns True if the record
    /// was replaced.
    fn compare_and_set(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        version: u64,
    ) -> PyResult<bool> {
        let (key, value) = (octets(key)?, octets(value)?);
        let compared = self.source.change(py, |source| source.compare_and_set(&key, &value, version))?;
        Ok(compared == CompareOutcome::Stored)
    }

    /// Replaces a record by `new` if its value is `old`. If `new` is None, removes the record. If
    /// `old` is None, there must be no record. Returns True if the condition was true. Keeps flags
    /// and expiry.
    fn compare_and_swap(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        old: Option<&Bound<'_, PyAny>>,
        new: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<bool> {
        let (key, old, new) = (octets(key)?, old.map(octets).transpose()?, new.map(octets).transpose()?);
        self.source.change(py, |source| source.compare_and_swap(&key, old.as_deref(), new.as_deref()))
    }

    /// Calls `change` with a value (None if there is no record), stores the result as the new
    /// value, and returns it. A result of None removes the record. Calls `change` again if another
    /// thread changed the record meanwhile, so that no change is lost. Keeps flags and expiry.
    fn change_value<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        change: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let decide = |answer: &Bound<'_, PyAny>| {
            if answer.is_none() { VisitDecision::Remove } else { VisitDecision::Put }
        };
        let (answer, _) = self.decide(py, &octets(key)?, |value| change.call1((value,)), decide)?;
        Ok(answer)
    }

    /// Calls `visitor` with a key and its value (None if there is no record) and applies the
    /// result: None keeps the record, REMOVE removes it, and any other result replaces it. Calls
    /// `visitor` again if another thread changed the record meanwhile. Returns True if the record
    /// was changed. After an exception nothing is changed. Keeps flags and expiry.
    fn visit(&self, key: &Bound<'_, PyAny>, visitor: &Bound<'_, PyAny>) -> PyResult<bool> {
        self.visit_one(key, visitor)
    }

    /// Calls `visitor` for each of several keys and applies all results at once: other threads see
    /// all changes or none. If a key is repeated, its second visit receives the result of the
    /// first. Returns the number of changed records. After an exception nothing is changed; within
    /// the caller's transaction, the changes of earlier calls stay.
    fn visit_many(&self, keys: &Bound<'_, PyAny>, visitor: &Bound<'_, PyAny>) -> PyResult<usize> {
        self.visit_several(keys, visitor)
    }

    /// Calls `visitor` with the key and value of every record and applies each result by itself.
    /// Returns the number of changed records. After an exception, its record is unchanged and the
    /// remaining records are not visited. Within a transaction, all changes are applied or none.
    fn visit_each(&self, visitor: &Bound<'_, PyAny>) -> PyResult<usize> {
        self.visit_all(visitor)
    }

    /// Removes a record and returns its value, or None if there is no record.
    fn seize<'py>(&self, py: Python<'py>, key: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let key = octets(key)?;
        let value = self.source.change(py, |source| source.seize(&key))?;
        value.map(|value| self.source.form().show(py, &value)).transpose()
    }

    /// Removes a record and returns its value. If there is no record, returns `default` or raises
    /// KeyError.
    #[pyo3(signature = (key, /, *default))]
    fn pop<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        default: &Bound<'py, PyTuple>,
    ) -> PyResult<Bound<'py, PyAny>> {
        expect_one_default(default)?;
        match self.seize(py, key)? {
            Some(value) => Ok(value),
            None => default.get_item(0).map_err(|_| missing(key)),
        }
    }

    /// Removes the first record that is found, and returns its key and value. Raises KeyError if
    /// there are no records.
    fn popitem<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
        let taken = self.source.at_length(py, |source| {
            for key in source.iter().keys() {
                let key = key?;
                if let Some(value) = source.seize(&key)? {
                    return Ok(Some((key, value)));
                }
            }
            Ok(None)
        })?;
        let (key, value) = taken.ok_or_else(|| PyKeyError::new_err("there are no records"))?;
        let form = self.source.form();
        Ok((form.show(py, &key)?, form.show(py, &value)?))
    }

    /// Returns the value of a record. If there is no record, stores `default` and returns it.
    fn setdefault<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        default: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (name, value) = (octets(key)?, octets(default)?);
        loop {
            if let Some(found) = self.value(py, &name)? {
                return Ok(found);
            }
            if self.source.change(py, |source| source.add(&name, &value))? {
                return self.source.form().show(py, &value);
            }
        }
    }

    /// Changes the time to live of a record. Returns False if there is no record.
    #[pyo3(signature = (key, *, ttl=None, sliding=None, expires=None))]
    fn touch(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        ttl: Option<&Bound<'_, PyAny>>,
        sliding: Option<&Bound<'_, PyAny>>,
        expires: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<bool> {
        let (key, ttl) = (octets(key)?, self::ttl(ttl, sliding, expires)?);
        self.source.change(py, |source| source.touch(&key, ttl))
    }

    /// Returns a dict of the existing records among these keys. Raises an exception if a record is
    /// damaged. If `errors` is a dict, stores the exception there under the key of the record, and
    /// returns the other records.
    #[pyo3(signature = (keys, *, errors=None))]
    fn get_many<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        errors: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let found = PyDict::new(py);
        if self.source.is_in_memory() {
            for key in keys.try_iter()? {
                let key = key?;
                if let Some(value) = self.value(py, &octets(&key)?)? {
                    found.set_item(key, value)?;
                }
            }
            return Ok(found);
        }
        let keys: Vec<Bound<'py, PyAny>> = keys.try_iter()?.collect::<PyResult<_>>()?;
        let names: Vec<ObjectBytes<'_>> = keys.iter().map(octets).collect::<PyResult<_>>()?;
        let names: Vec<&[u8]> = names.iter().map(|name| &**name).collect();
        let values = self.source.at_length(py, |source| Ok(source.get_each(&names)))?;
        for (key, value) in keys.iter().zip(values) {
            match (value, errors) {
                (Ok(Some(value)), _) => found.set_item(key, self.source.form().show(py, &value)?)?,
                (Ok(None), _) => {}
                (Err(error), Some(errors)) => errors.set_item(key, raised(error))?,
                (Err(error), None) => return Err(raised(error)),
            }
        }
        Ok(found)
    }

    /// Stores the records of a mapping or of pairs, one after another, or all at once within a
    /// transaction.
    #[pyo3(signature = (records, *, ttl=None, sliding=None, expires=None, flags=0))]
    #[allow(clippy::too_many_arguments)]
    fn set_many(
        &self,
        py: Python<'_>,
        records: &Bound<'_, PyAny>,
        ttl: Option<&Bound<'_, PyAny>>,
        sliding: Option<&Bound<'_, PyAny>>,
        expires: Option<&Bound<'_, PyAny>>,
        flags: u32,
    ) -> PyResult<()> {
        self.set_pairs(py, &pairs(records)?, self::ttl(ttl, sliding, expires)?, flags)
    }

    /// Stores the records of a mapping or of pairs, and those of keyword arguments, like a dict.
    #[pyo3(signature = (records=None, /, **named))]
    fn update(
        &self,
        py: Python<'_>,
        records: Option<&Bound<'_, PyAny>>,
        named: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<()> {
        let mut all = records.map(pairs).transpose()?.unwrap_or_default();
        all.extend(named.into_iter().flatten());
        self.set_pairs(py, &all, Ttl::Never, 0)
    }

    /// Removes records one after another. Returns the number of removed records.
    fn delete_many(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<usize> {
        let keys: Vec<Bound<'_, PyAny>> = keys.try_iter()?.collect::<PyResult<_>>()?;
        let keys: Vec<ObjectBytes<'_>> = keys.iter().map(octets).collect::<PyResult<_>>()?;
        let keys: Vec<&[u8]> = keys.iter().map(|key| &**key).collect();
        self.source.at_length(py, |source| source.remove_many(&keys))
    }

    /// Removes all records.
    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        self.source.at_length(py, |source| {
            for key in source.iter().keys() {
                source.remove(&key?)?;
            }
            Ok(())
        })
    }

    /// Adds a value to the values of a key in a tree, after all others or, with `first`, before
    /// them. Other methods see the first value only.
    #[pyo3(signature = (key, value, *, first=false))]
    fn add_value(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        first: bool,
    ) -> PyResult<()> {
        self.expect_value_lists()?;
        let (key, value) = (octets(key)?, octets(value)?);
        let values: [&[u8]; 1] = [&value];
        let mut visitor =
            if first { AddValuesVisitor::first(&values) } else { AddValuesVisitor::last(&values) };
        self.source.change(py, |source| source.visit(&key, &mut visitor))
    }

    /// Returns all values of a key in a tree; an empty list if there is no record. Like a write,
    /// waits while another thread has an open transaction.
    fn get_values<'py>(&self, py: Python<'py>, key: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        self.expect_value_lists()?;
        let key = octets(key)?;
        let values = self.source.read(py, |source| {
            let mut values = Vec::new();
            source.visit(&key, &mut ValuesVisitor::new(&mut |value| values.push(value.to_vec())))?;
            Ok(values)
        })?;
        self.show_all(py, values)
    }

    /// Removes all values of a key in a tree. Returns False if there is no record. Other methods
    /// remove only the first value.
    fn remove_values(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        self.expect_value_lists()?;
        let key = octets(key)?;
        self.source.change(py, |source| {
            let mut visitor = RemoveValuesVisitor::default();
            source.visit(&key, &mut visitor)?;
            Ok(visitor.is_found())
        })
    }

    /// Returns the rows of a table, as dicts of their columns.
    fn table(&self) -> PyResult<PyTable> {
        PyTable::new(self.source.clone())
    }

    /// Returns the records of a database of numbers, as a dict from number to value.
    fn fixed(&self) -> PyResult<PyFixed> {
        PyFixed::new(self.source.clone())
    }

    /// Returns the keys that begin with `prefix`.
    #[pyo3(signature = (prefix, limit=None))]
    fn match_prefix<'py>(
        &self,
        py: Python<'py>,
        prefix: &Bound<'py, PyAny>,
        limit: Option<usize>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let prefix = octets(prefix)?;
        let keys = self.source.at_length(py, |source| source.match_prefix(&prefix, limit_of(limit)))?;
        self.show_all(py, keys)
    }

    /// Returns the keys in which a regular expression matches. The expression has the syntax of
    /// Rust's crate regex and applies to bytes. Reads all keys.
    #[pyo3(signature = (pattern, limit=None))]
    fn match_regex<'py>(
        &self,
        py: Python<'py>,
        pattern: &str,
        limit: Option<usize>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let keys = self.source.at_length(py, |source| source.match_regex(pattern, limit_of(limit)))?;
        self.show_all(py, keys)
    }

    /// Returns the keys that are most similar to `key`, the most similar first, each with its
    /// distance. The distance is the minimum number of characters that must be inserted, removed or
    /// replaced. Reads all keys. With `by_bytes`, counts bytes instead of characters of UTF-8.
    #[pyo3(signature = (key, distance, limit=None, *, by_bytes=false))]
    fn match_similar<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        distance: usize,
        limit: Option<usize>,
        by_bytes: bool,
    ) -> PyResult<Vec<(Bound<'py, PyAny>, usize)>> {
        let key = octets(key)?;
        let symbols = if by_bytes { KeySymbols::Bytes } else { KeySymbols::Characters };
        let similar = self
            .source
            .at_length(py, |source| source.match_similar(&key, distance, symbols, limit_of(limit)))?;
        similar
            .into_iter()
            .map(|(key, distance)| Ok((self.source.form().show(py, &key)?, distance)))
            .collect()
    }
}
