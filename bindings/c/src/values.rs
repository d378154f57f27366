//! Exports several values of a key, and records whose keys are numbers.
#![allow(unsafe_code, reason = "no_mangle; nothing here follows a pointer")]

use crate::answer::{ResultPlace, TODANA_NONE, TODANA_OK, answer, found, invalid};
use crate::attributes::ShownRecord;
use crate::database::with_db;
use crate::open_database::{self, DatabaseHandle, RegisteredDatabase};
use crate::raw::{Bytes, BytesList};
use crate::tables::expect_no_transaction;
use crate::visitors::{ViewFunction, there};
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use todana::tyrant::{AddValuesVisitor, RemoveValuesVisitor, ValuesVisitor};
use todana::{OwnedRecord, Records, Result, ScanDirection};

/// The number of records that todana_fixed_each() reads at once.
const BATCH: usize = 256;

/// Adds a value to the values of a key in a tree: after all others, or before them if `is_first` is
/// not 0. All other functions see the first value only. TODANA_INVALID: the database is not a tree.
#[unsafe(no_mangle)]
pub extern "C" fn todana_add_value(
    db: *mut DatabaseHandle,
    key: Bytes,
    value: Bytes,
    is_first: c_int,
) -> c_int {
    answer(|| {
        let values = [value.as_slice()?];
        let mut visitor =
            if is_first != 0 { AddValuesVisitor::first(&values) } else { AddValuesVisitor::last(&values) };
        with_tree(db, |tree| tree.visit(key.as_slice()?, &mut visitor))?;
        Ok(TODANA_OK)
    })
}

/// Returns all values of a key in a tree. The caller frees them: todana_free(values.items). Like a
/// write, waits while another thread has an open transaction. TODANA_NONE: there is no record.
#[unsafe(no_mangle)]
pub extern "C" fn todana_get_values(
    db: *mut DatabaseHandle,
    key: Bytes,
    values: Option<&mut MaybeUninit<BytesList>>,
) -> c_int {
    answer(|| {
        let values = values.must()?;
        let mut all = Vec::new();
        with_tree(db, |tree| {
            let mut see = |value: &[u8]| all.push(Some(value.to_vec()));
            tree.visit(key.as_slice()?, &mut ValuesVisitor::new(&mut see))
        })?;
        values.put(if all.is_empty() { BytesList::NONE } else { BytesList::give(&all)? });
        Ok(found(!all.is_empty()))
    })
}

/// Removes all values of a key in a tree. TODANA_NONE: there is no record. todana_remove() removes
/// only the first value.
#[unsafe(no_mangle)]
pub extern "C" fn todana_remove_values(db: *mut DatabaseHandle, key: Bytes) -> c_int {
    answer(|| {
        let mut visitor = RemoveValuesVisitor::default();
        with_tree(db, |tree| tree.visit(key.as_slice()?, &mut visitor))?;
        Ok(found(visitor.is_found()))
    })
}

/// Returns the largest length of a value and the largest number of a database whose keys are
/// numbers. Either pointer may be NULL. TODANA_INVALID: the keys are not numbers.
#[unsafe(no_mangle)]
pub extern "C" fn todana_fixed_limits(
    db: *mut DatabaseHandle,
    width: Option<&mut MaybeUninit<usize>>,
    number_max: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    answer(|| {
        with_db(db, |db| {
            let numbered = db.database().engine().numbered();
            let numbered = numbered.ok_or_else(|| invalid("the keys of this database are not numbers"))?;
            width.put(numbered.width());
            number_max.put(numbered.number_max());
            Ok(TODANA_OK)
        })
    })
}

/// Returns the number that a key means: "min" and "max" are the lowest and the highest number of a
/// record. TODANA_NONE: there are no records, or no record can have the key. todana_number()
/// converts a number to a key for the other functions. Does not see the changes of an open
/// transaction.
#[unsafe(no_mangle)]
pub extern "C" fn todana_fixed_number(
    db: *mut DatabaseHandle,
    key: Bytes,
    number: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    answer(|| {
        let place = number.must()?;
        let number = with_db(db, |db| db.database().number_of(key.as_slice()?))?;
        place.put(number.unwrap_or(0));
        Ok(if number.is_some() { TODANA_OK } else { TODANA_NONE })
    })
}

/// Stores a value under a new number: the one after the highest, or the one before the lowest if
/// `is_first` is not 0. Stores the number in `number`, unless it is NULL. TODANA_INVALID: the keys
/// are not numbers, the value is too long, or there is no such number. TODANA_BUSY: this thread has
/// an open transaction.
#[unsafe(no_mangle)]
pub extern "C" fn todana_fixed_add(
    db: *mut DatabaseHandle,
    value: Bytes,
    is_first: c_int,
    number: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    answer(|| {
        open_database::with(db, |open_database| {
            expect_no_transaction(open_database)?;
            open_database.with_db(|db| {
                number.put(db.add_numbered(heading(is_first), value.as_slice()?)?);
                Ok(TODANA_OK)
            })
        })
    })
}

/// Calls `see` with the records from the number `first` to `last`, both included, while `see`
/// returns 0; backwards if `backwards` is not 0. The key of a record is its number as text. Records
/// have no attributes here. No lock is held meanwhile, so `see` may call the library. Does not see
/// the changes of an open transaction.
#[unsafe(no_mangle)]
pub extern "C" fn todana_fixed_each(
    db: *mut DatabaseHandle,
    first: u64,
    last: u64,
    backwards: c_int,
    see: ViewFunction,
    context: *mut c_void,
) -> c_int {
    answer(|| {
        let (see, heading) = (there(see)?, heading(backwards));
        let (mut first, mut last) = (first, last);
        loop {
            let batch = with_db(db, |db| db.numbered_records(heading, first..=last, BATCH))?;
            for (number, value) in &batch {
                let record = OwnedRecord { value: value.clone(), ..OwnedRecord::default() };
                if see(context, &ShownRecord::of_owned(number.to_string().as_bytes(), &record)) != 0 {
                    return Ok(TODANA_OK);
                }
            }
            match (batch.last(), heading) {
                (Some((number, _)), ScanDirection::Up) if *number < last => first = number + 1,
                (Some((number, _)), ScanDirection::Down) if *number > first => last = number - 1,
                _ => return Ok(TODANA_OK),
            }
        }
    })
}

fn heading(backwards: c_int) -> ScanDirection {
    if backwards != 0 { ScanDirection::Down } else { ScanDirection::Up }
}

/// Runs `run` with a database whose keys may have several values.
fn with_tree<T>(db: *mut DatabaseHandle, run: impl FnOnce(&RegisteredDatabase) -> Result<T>) -> Result<T> {
    open_database::with(db, |open_database| {
        open_database.with_base(|db| {
            if db.database().holds_value_lists() {
                return Ok(());
            }
            Err(invalid("a key has one value in this kind of database; use mem:tree or PATH.tree"))
        })?;
        run(open_database)
    })
}
