//! Exports iterators over all records, a range, or the keys with a prefix, forwards or backwards.
#![allow(unsafe_code, reason = "no_mangle; nothing here follows a pointer")]

use crate::answer::{ResultPlace, TODANA_NONE, TODANA_OK, answer, invalid};
use crate::attributes::ShownRecord;
use crate::handles::{HandleTable, new_number, shown};
use crate::open_database::{self, DatabaseHandle, DatabaseScope};
use crate::raw::Bytes;
use crate::visitors::{ViewFunction, there};
use parking_lot::Mutex;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ops::Bound;
use std::sync::Arc;
use todana::{IterKeys, IterRecords, OwnedRecord, RecordIter, Records, Result};

/// The records that an iterator shows, and their direction. If all fields are zero, it shows all
/// records, forwards.
#[repr(C)]
pub struct KeyRange {
    /// The first key. NULL: from the start.
    from: Bytes,
    /// The key before which the iterator stops. NULL: to the end.
    to: Bytes,
    /// The prefix of the keys, which replaces `from` and `to`. NULL: no prefix.
    prefix: Bytes,
    /// Not 0: excludes the record with the key `from`.
    without_from: c_int,
    /// Not 0: includes the record with the key `to`.
    with_to: c_int,
    /// Not 0: backwards.
    backwards: c_int,
    /// Not 0: does not copy values.
    only_keys: c_int,
}

/// An iterator over records, for one thread at a time.
pub struct IteratorHandle {
    _private: [u8; 0],
}

struct OpenIterator {
    walk: IteratorKind,
    is_backwards: bool,
    /// The record that was shown last.
    last: (Vec<u8>, OwnedRecord),
}

enum IteratorKind {
    Records(IterRecords<DatabaseScope>),
    Keys(IterKeys<DatabaseScope>),
}

static OPEN: HandleTable<Mutex<OpenIterator>> = HandleTable::new();

/// Opens an iterator. `range` may be NULL for all records. TODANA_INVALID: the database is
/// unordered, so it has no ranges and cannot be read backwards. Records are read in batches without
/// a lock between the batches, so concurrent writes may or may not be shown. Within a transaction
/// of this thread, the iterator shows the records of the transaction.
#[unsafe(no_mangle)]
pub extern "C" fn todana_iterate(
    db: *mut DatabaseHandle,
    range: Option<&KeyRange>,
    iterator: Option<&mut MaybeUninit<*mut IteratorHandle>>,
) -> c_int {
    answer(|| {
        let iterator = iterator.must()?;
        let iterating = OpenIterator::new(db, range)?;
        let number = new_number();
        OPEN.insert(number, Arc::new(Mutex::new(iterating)));
        iterator.put(shown(number));
        Ok(TODANA_OK)
    })
}

/// Shows the next record. The view stays valid until the next call with this iterator. TODANA_NONE:
/// there are no more records.
#[unsafe(no_mangle)]
pub extern "C" fn todana_next(
    iterator: *mut IteratorHandle,
    record: Option<&mut MaybeUninit<ShownRecord>>,
) -> c_int {
    answer(|| {
        let record = record.must()?;
        let iterating = OPEN.find(iterator.addr(), "iterator")?;
        let mut iterating = iterating.lock();
        if !iterating.step()? {
            return Ok(TODANA_NONE);
        }
        record.put(iterating.shown());
        Ok(TODANA_OK)
    })
}

/// Closes an iterator. NULL is ignored.
#[unsafe(no_mangle)]
pub extern "C" fn todana_iterator_close(iterator: *mut IteratorHandle) -> c_int {
    answer(|| {
        if !iterator.is_null() {
            OPEN.remove(iterator.addr(), "iterator")?;
        }
        Ok(TODANA_OK)
    })
}

/// Calls `see` with each record of a range (NULL: all records) while `see` returns 0. No lock is
/// held meanwhile, so `see` may call the library.
#[unsafe(no_mangle)]
pub extern "C" fn todana_each(
    db: *mut DatabaseHandle,
    range: Option<&KeyRange>,
    see: ViewFunction,
    context: *mut c_void,
) -> c_int {
    answer(|| {
        let see = there(see)?;
        let mut iterating = OpenIterator::new(db, range)?;
        while iterating.step()? {
            if see(context, &iterating.shown()) != 0 {
                break;
            }
        }
        Ok(TODANA_OK)
    })
}

impl OpenIterator {
    fn new(db: *mut DatabaseHandle, range: Option<&KeyRange>) -> Result<OpenIterator> {
        let scope = open_database::with(db, |open_database| Ok(Arc::clone(open_database)))?;
        let is_backwards = range.is_some_and(|range| range.backwards != 0);
        if is_backwards && !scope.is_ordered() {
            return Err(invalid("keys have no order here: there is no going backwards"));
        }
        let iter = match range {
            Some(range) if !range.prefix.is_null() => {
                if !range.from.is_null() || !range.to.is_null() {
                    return Err(invalid("a range has bounds or a prefix, not both"));
                }
                RecordIter::with_prefix(scope, range.prefix.as_slice()?)
            }
            Some(range) if !range.from.is_null() || !range.to.is_null() => {
                RecordIter::within(scope, range.lower()?, range.upper()?)?
            }
            _ => RecordIter::new(scope),
        };
        let only_keys = range.is_some_and(|range| range.only_keys != 0);
        let walk =
            if only_keys { IteratorKind::Keys(iter.keys()) } else { IteratorKind::Records(iter.records()) };
        Ok(OpenIterator { walk, is_backwards, last: Default::default() })
    }

    fn step(&mut self) -> Result<bool> {
        let next = match (&mut self.walk, self.is_backwards) {
            (IteratorKind::Records(records), false) => records.next(),
            (IteratorKind::Records(records), true) => records.next_back(),
            (IteratorKind::Keys(keys), false) => keys.next().map(alone),
            (IteratorKind::Keys(keys), true) => keys.next_back().map(alone),
        };
        let next = next.transpose()?;
        let is_there = next.is_some();
        self.last = next.unwrap_or_default();
        Ok(is_there)
    }

    fn shown(&self) -> ShownRecord {
        match &self.walk {
            IteratorKind::Records(_) => ShownRecord::of_owned(&self.last.0, &self.last.1),
            IteratorKind::Keys(_) => ShownRecord::of_key(&self.last.0),
        }
    }
}

impl KeyRange {
    fn lower(&self) -> Result<Bound<Vec<u8>>> {
        bound(&self.from, self.without_from == 0)
    }

    fn upper(&self) -> Result<Bound<Vec<u8>>> {
        bound(&self.to, self.with_to != 0)
    }
}

fn bound(key: &Bytes, is_included: bool) -> Result<Bound<Vec<u8>>> {
    Ok(match (key.is_null(), is_included) {
        (true, _) => Bound::Unbounded,
        (false, true) => Bound::Included(key.as_slice()?.to_vec()),
        (false, false) => Bound::Excluded(key.as_slice()?.to_vec()),
    })
}

fn alone(key: Result<Vec<u8>>) -> Result<(Vec<u8>, OwnedRecord)> {
    key.map(|key| (key, OwnedRecord::default()))
}
