//! Exports operations on one record or several records by their keys.
#![allow(unsafe_code, reason = "no_mangle; nothing here follows a pointer")]

use crate::answer::{ResultPlace, TODANA_NONE, TODANA_OK, TODANA_OTHER, answer, found, invalid};
use crate::attributes::RecordAttributes;
use crate::open_database::{self, DatabaseHandle, RegisteredDatabase};
use crate::raw::{Bytes, BytesList};
use std::ffi::c_int;
use std::mem::MaybeUninit;
use todana::{CompareOutcome, Records, Result, Ttl};

/// Returns the value of a record. The caller frees it. TODANA_NONE: there is no record.
#[unsafe(no_mangle)]
pub extern "C" fn todana_get(
    db: *mut DatabaseHandle,
    key: Bytes,
    value: Option<&mut MaybeUninit<Bytes>>,
) -> c_int {
    answer(|| {
        let value = value.must()?;
        let mut copy = None;
        with(db, |open_database| {
            open_database.view(key.as_slice()?, &mut |record| copy = Some(Bytes::give(record.value)))
        })?;
        match copy {
            Some(copy) => {
                value.put(copy?);
                Ok(TODANA_OK)
            }
            None => {
                value.put(Bytes::NONE);
                Ok(TODANA_NONE)
            }
        }
    })
}

/// Returns a record with its attributes and its version, which todana_compare_and_set() needs. All
/// pointers for results except `value` may be NULL. The first request for the version of a record
/// costs a write, because versions are created on demand.
#[unsafe(no_mangle)]
pub extern "C" fn todana_get_with(
    db: *mut DatabaseHandle,
    key: Bytes,
    value: Option<&mut MaybeUninit<Bytes>>,
    attributes: Option<&mut MaybeUninit<RecordAttributes>>,
    version: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    answer(|| {
        let value = value.must()?;
        let record = with(db, |open_database| open_database.get_record(key.as_slice()?))?;
        let code = found(record.is_some());
        let record = match record {
            Some(record) => {
                value.put(Bytes::give(&record.value)?);
                record
            }
            None => {
                value.put(Bytes::NONE);
                Default::default()
            }
        };
        attributes.put(RecordAttributes::of(record.flags, record.expiry));
        version.put(record.version);
        Ok(code)
    })
}

/// Returns TODANA_OK if there is a record, else TODANA_NONE.
#[unsafe(no_mangle)]
pub extern "C" fn todana_contains(db: *mut DatabaseHandle, key: Bytes) -> c_int {
    answer(|| with(db, |open_database| open_database.contains(key.as_slice()?)).map(found))
}

/// Stores a record that does not expire. Replaces an existing record.
#[unsafe(no_mangle)]
pub extern "C" fn todana_set(db: *mut DatabaseHandle, key: Bytes, value: Bytes) -> c_int {
    answer(|| {
        with(db, |open_database| open_database.set(key.as_slice()?, value.as_slice()?)).map(|()| TODANA_OK)
    })
}

/// Stores a record with attributes. NULL: the record has no attributes.
#[unsafe(no_mangle)]
pub extern "C" fn todana_set_with(
    db: *mut DatabaseHandle,
    key: Bytes,
    value: Bytes,
    attributes: Option<&RecordAttributes>,
) -> c_int {
    store(db, key, value, attributes, RegisteredDatabase::set_with, |()| TODANA_OK)
}

/// Stores a record if there is none. TODANA_OTHER: there is already a record. `attributes` may be
/// NULL.
#[unsafe(no_mangle)]
pub extern "C" fn todana_add(
    db: *mut DatabaseHandle,
    key: Bytes,
    value: Bytes,
    attributes: Option<&RecordAttributes>,
) -> c_int {
    store(db, key, value, attributes, RegisteredDatabase::add_with, |is_new| {
        if is_new { TODANA_OK } else { TODANA_OTHER }
    })
}

/// Replaces a record and its attributes. TODANA_NONE: there is no record. `attributes` may be NULL.
#[unsafe(no_mangle)]
pub extern "C" fn todana_replace(
    db: *mut DatabaseHandle,
    key: Bytes,
    value: Bytes,
    attributes: Option<&RecordAttributes>,
) -> c_int {
    store(db, key, value, attributes, RegisteredDatabase::replace_with, found)
}

/// Appends a piece to a value, or creates the record.
#[unsafe(no_mangle)]
pub extern "C" fn todana_append(db: *mut DatabaseHandle, key: Bytes, piece: Bytes) -> c_int {
    answer(|| {
        with(db, |open_database| open_database.append(key.as_slice()?, piece.as_slice()?)).map(|()| TODANA_OK)
    })
}

/// Prepends a piece to a value, or creates the record.
#[unsafe(no_mangle)]
pub extern "C" fn todana_prepend(db: *mut DatabaseHandle, key: Bytes, piece: Bytes) -> c_int {
    answer(|| {
        with(db, |open_database| open_database.prepend(key.as_slice()?, piece.as_slice()?))
            .map(|()| TODANA_OK)
    })
}

/// Adds to a decimal number. Stores the sum in `sum`, unless it is NULL. If there is no record,
/// stores `*initial` and adds nothing to it. TODANA_NONE: there is no record, and `initial` is
/// NULL. TODANA_INVALID: the value is not a number, or the sum exceeds the range of 64 bits.
#[unsafe(no_mangle)]
pub extern "C" fn todana_increment(
    db: *mut DatabaseHandle,
    key: Bytes,
    delta: i64,
    initial: Option<&i64>,
    sum: Option<&mut MaybeUninit<i64>>,
) -> c_int {
    add(db, key, initial.is_none(), sum, |open_database, key| {
        open_database.increment(key, delta, initial.copied())
    })
}

/// Adds to a number in the form of Kyoto Cabinet and Kyoto Tycoon: 8 bytes, the most significant
/// first. Stores the sum in `sum`, unless it is NULL. If there is no record, adds to `origin`. If
/// `origin` is INT64_MAX, stores `delta` itself. If `origin` is INT64_MIN, there must be a record:
/// TODANA_NONE. Keeps the attributes. TODANA_INVALID: the value is not 8 bytes long, or the sum
/// exceeds the range of 64 bits.
#[unsafe(no_mangle)]
pub extern "C" fn todana_increment_binary(
    db: *mut DatabaseHandle,
    key: Bytes,
    delta: i64,
    origin: i64,
    sum: Option<&mut MaybeUninit<i64>>,
) -> c_int {
    add(db, key, origin == i64::MIN, sum, |open_database, key| {
        open_database.increment_binary(key, delta, origin.into())
    })
}

/// Does the same as todana_increment_binary() for a number with a fraction, which has 16 bytes.
/// INFINITY corresponds to INT64_MAX, and -INFINITY to INT64_MIN.
#[unsafe(no_mangle)]
pub extern "C" fn todana_increment_double(
    db: *mut DatabaseHandle,
    key: Bytes,
    delta: f64,
    origin: f64,
    sum: Option<&mut MaybeUninit<f64>>,
) -> c_int {
    let is_required = origin == f64::NEG_INFINITY;
    add(db, key, is_required, sum, |open_database, key| {
        open_database.increment_double(key, delta, origin.into())
    })
}

/// Replaces the value if the record still has this version (todana_get_with()). TODANA_OTHER: the
/// record has changed. TODANA_NONE: there is no record. The new record has no attributes.
#[unsafe(no_mangle)]
pub extern "C" fn todana_compare_and_set(
    db: *mut DatabaseHandle,
    key: Bytes,
    value: Bytes,
    version: u64,
) -> c_int {
    answer(|| {
        let outcome = with(db, |open_database| {
            open_database.compare_and_set(key.as_slice()?, value.as_slice()?, version)
        })?;
        Ok(match outcome {
            CompareOutcome::Stored => TODANA_OK,
            CompareOutcome::Changed => TODANA_OTHER,
            CompareOutcome::Missing => TODANA_NONE,
        })
    })
}

/// Replaces a record by `*to` if its value is `*from`. If `to` is NULL, removes the record. If
/// `from` is NULL, there must be no record. TODANA_OTHER: the value differs. Keeps the attributes.
#[unsafe(no_mangle)]
pub extern "C" fn todana_compare_and_swap(
    db: *mut DatabaseHandle,
    key: Bytes,
    from: Option<&Bytes>,
    to: Option<&Bytes>,
) -> c_int {
    answer(|| {
        let (from, to) = (from.map(Bytes::as_slice).transpose()?, to.map(Bytes::as_slice).transpose()?);
        let was_equal = with(db, |open_database| open_database.compare_and_swap(key.as_slice()?, from, to))?;
        Ok(if was_equal { TODANA_OK } else { TODANA_OTHER })
    })
}

/// Removes a record. TODANA_NONE: there is no record.
#[unsafe(no_mangle)]
pub extern "C" fn todana_remove(db: *mut DatabaseHandle, key: Bytes) -> c_int {
    answer(|| with(db, |open_database| open_database.remove(key.as_slice()?)).map(found))
}

/// Removes a record and returns its value. The caller frees the value. TODANA_NONE: there is no
/// record.
#[unsafe(no_mangle)]
pub extern "C" fn todana_seize(
    db: *mut DatabaseHandle,
    key: Bytes,
    value: Option<&mut MaybeUninit<Bytes>>,
) -> c_int {
    answer(|| {
        let value = value.must()?;
        let seized = with(db, |open_database| open_database.seize(key.as_slice()?))?;
        value.put(seized.as_deref().map_or(Ok(Bytes::NONE), Bytes::give)?);
        Ok(found(seized.is_some()))
    })
}

/// Changes the expiry of a record and keeps its flags. NULL: the record does not expire.
/// TODANA_NONE: there is no record.
#[unsafe(no_mangle)]
pub extern "C" fn todana_touch(
    db: *mut DatabaseHandle,
    key: Bytes,
    attributes: Option<&RecordAttributes>,
) -> c_int {
    answer(|| {
        let (ttl, _) = taken(attributes)?;
        with(db, |open_database| open_database.touch(key.as_slice()?, ttl)).map(found)
    })
}

/// Returns the values of several records, in the order of the keys. The caller frees them:
/// todana_free(values.items). `data` is NULL where there is no record. If a record cannot be read,
/// returns nothing; todana_message() then names its key, and todana_get() can read the other
/// records.
#[unsafe(no_mangle)]
pub extern "C" fn todana_get_many(
    db: *mut DatabaseHandle,
    keys: BytesList,
    values: Option<&mut MaybeUninit<BytesList>>,
) -> c_int {
    answer(|| {
        let values = values.must()?;
        let all = with(db, |open_database| open_database.get_many(&keys.as_slices()?))?;
        values.put(BytesList::give(&all)?);
        Ok(TODANA_OK)
    })
}

/// Stores several records, one after another, or all at once within a transaction. There must be as
/// many values as keys.
#[unsafe(no_mangle)]
pub extern "C" fn todana_set_many(db: *mut DatabaseHandle, keys: BytesList, values: BytesList) -> c_int {
    answer(|| {
        let (keys, values) = (keys.as_slices()?, values.as_slices()?);
        if keys.len() != values.len() {
            return Err(invalid(format!("{} keys and {} values", keys.len(), values.len())));
        }
        let records: Vec<_> = keys.into_iter().zip(values).collect();
        with(db, |open_database| open_database.set_many(&records)).map(|()| TODANA_OK)
    })
}

/// Removes several records. Stores the number of removed records in `removed`, unless it is NULL.
#[unsafe(no_mangle)]
pub extern "C" fn todana_remove_many(
    db: *mut DatabaseHandle,
    keys: BytesList,
    removed: Option<&mut MaybeUninit<usize>>,
) -> c_int {
    answer(|| {
        removed.put(with(db, |open_database| open_database.remove_many(&keys.as_slices()?))?);
        Ok(TODANA_OK)
    })
}

fn with<T>(db: *mut DatabaseHandle, run: impl FnOnce(&RegisteredDatabase) -> Result<T>) -> Result<T> {
    open_database::with(db, |open_database| run(open_database))
}

/// Adds to a number. Returns `TODANA_NONE` if there is no record and `is_required` is true.
fn add<T>(
    db: *mut DatabaseHandle,
    key: Bytes,
    is_required: bool,
    sum: Option<&mut MaybeUninit<T>>,
    add: impl FnOnce(&RegisteredDatabase, &[u8]) -> Result<T>,
) -> c_int {
    answer(|| {
        with(db, |open_database| {
            let key = key.as_slice()?;
            match add(open_database, key) {
                Ok(made) => {
                    sum.put(made);
                    Ok(TODANA_OK)
                }
                Err(_) if is_required && !open_database.contains(key)? => Ok(TODANA_NONE),
                Err(error) => Err(error),
            }
        })
    })
}

/// Stores a record in one of several modes.
fn store<T>(
    db: *mut DatabaseHandle,
    key: Bytes,
    value: Bytes,
    attributes: Option<&RecordAttributes>,
    store: impl FnOnce(&RegisteredDatabase, &[u8], &[u8], Ttl, u32) -> Result<T>,
    code: impl FnOnce(T) -> c_int,
) -> c_int {
    answer(|| {
        let (ttl, flags) = taken(attributes)?;
        with(db, |open_database| store(open_database, key.as_slice()?, value.as_slice()?, ttl, flags))
            .map(code)
    })
}

fn taken(attributes: Option<&RecordAttributes>) -> Result<(Ttl, u32)> {
    let attributes = attributes.copied().unwrap_or_default();
    Ok((attributes.ttl()?, attributes.flags()))
}
