//! Iterators: over all records, a range, or what begins alike; forwards or backwards.
#![allow(unsafe_code, reason = "no_mangle; nothing here follows a pointer")]

use crate::answer::{Out, TODANA_NONE, TODANA_OK, answer, invalid};
use crate::attributes::Shown;
use crate::handles::{Handles, new_number, shown};
use crate::home::{self, Database, Scope};
use crate::raw::Bytes;
use crate::visitors::{See, there};
use parking_lot::Mutex;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ops::Bound;
use std::sync::Arc;
use todana::{IterKeys, IterRecords, OwnedRecord, RecordIter, Records, Result};

/// Over which records, and how. All zero: over all of them, forwards.
#[repr(C)]
pub struct Range {
    /// The first key; NULL: from the start.
    from: Bytes,
    /// The key to stop before; NULL: to the end.
    to: Bytes,
    /// The keys that begin so, instead of the two above. NULL: no matter.
    prefix: Bytes,
    /// Not 0: `from` itself does not belong to it.
    without_from: c_int,
    /// Not 0: `to` itself belongs to it.
    with_to: c_int,
    /// Not 0: backwards.
    backwards: c_int,
    /// Not 0: values are not wanted, and not copied.
    only_keys: c_int,
}

/// An iterator over records, for one thread at a time.
pub struct Iterator {
    _private: [u8; 0],
}

struct Iterating {
    walk: Walk,
    is_backwards: bool,
    /// What was shown last.
    last: (Vec<u8>, OwnedRecord),
}

enum Walk {
    Records(IterRecords<Scope>),
    Keys(IterKeys<Scope>),
}

static OPEN: Handles<Mutex<Iterating>> = Handles::new();

/// Opens an iterator. `range` may be NULL: all records. Where keys have no order there are no ranges and no way back: TODANA_INVALID.
/// Records are fetched in batches, without a lock in between: what is written meanwhile is shown or not. Within a transaction of the thread it
/// shows what that sees.
#[unsafe(no_mangle)]
pub extern "C" fn todana_iterate(
    db: *mut Database,
    range: Option<&Range>,
    iterator: Option<&mut MaybeUninit<*mut Iterator>>,
) -> c_int {
    answer(|| {
        let iterator = iterator.must()?;
        let iterating = Iterating::new(db, range)?;
        let number = new_number();
        OPEN.insert(number, Arc::new(Mutex::new(iterating)));
        iterator.put(shown(number));
        Ok(TODANA_OK)
    })
}

/// Shows the next record; it stays where it is until the iterator's next call. TODANA_NONE: there are no more.
#[unsafe(no_mangle)]
pub extern "C" fn todana_next(iterator: *mut Iterator, record: Option<&mut MaybeUninit<Shown>>) -> c_int {
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

/// Closes an iterator. NULL is left alone.
#[unsafe(no_mangle)]
pub extern "C" fn todana_iterator_close(iterator: *mut Iterator) -> c_int {
    answer(|| {
        if !iterator.is_null() {
            OPEN.remove(iterator.addr(), "iterator")?;
        }
        Ok(TODANA_OK)
    })
}

/// Calls `see` with each record of a range (NULL: all) while it returns 0. No lock is held meanwhile: it may call the library.
#[unsafe(no_mangle)]
pub extern "C" fn todana_each(
    db: *mut Database,
    range: Option<&Range>,
    see: See,
    context: *mut c_void,
) -> c_int {
    answer(|| {
        let see = there(see)?;
        let mut iterating = Iterating::new(db, range)?;
        while iterating.step()? {
            if see(context, &iterating.shown()) != 0 {
                break;
            }
        }
        Ok(TODANA_OK)
    })
}

impl Iterating {
    fn new(db: *mut Database, range: Option<&Range>) -> Result<Iterating> {
        let scope = home::with(db, |home| Ok(Arc::clone(home)))?;
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
        let walk = if only_keys { Walk::Keys(iter.keys()) } else { Walk::Records(iter.records()) };
        Ok(Iterating { walk, is_backwards, last: Default::default() })
    }

    fn step(&mut self) -> Result<bool> {
        let next = match (&mut self.walk, self.is_backwards) {
            (Walk::Records(records), false) => records.next(),
            (Walk::Records(records), true) => records.next_back(),
            (Walk::Keys(keys), false) => keys.next().map(alone),
            (Walk::Keys(keys), true) => keys.next_back().map(alone),
        };
        let next = next.transpose()?;
        let is_there = next.is_some();
        self.last = next.unwrap_or_default();
        Ok(is_there)
    }

    fn shown(&self) -> Shown {
        match &self.walk {
            Walk::Records(_) => Shown::of_owned(&self.last.0, &self.last.1),
            Walk::Keys(_) => Shown::of_key(&self.last.0),
        }
    }
}

impl Range {
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
