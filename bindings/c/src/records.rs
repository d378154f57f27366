//! Records by their key: one, and several.
#![allow(unsafe_code, reason = "no_mangle; nothing here follows a pointer")]

use crate::answer::{Out, TODANA_NONE, TODANA_OK, TODANA_OTHER, answer, found, invalid};
use crate::attributes::Attributes;
use crate::home::{self, Database, Home};
use crate::raw::{Bytes, List};
use std::ffi::c_int;
use std::mem::MaybeUninit;
use todana::{CompareOutcome, Records, Result, Ttl};

/// The value of a record, for the caller to free. TODANA_NONE: there is none.
#[unsafe(no_mangle)]
pub extern "C" fn todana_get(db: *mut Database, key: Bytes, value: Option<&mut MaybeUninit<Bytes>>) -> c_int {
    answer(|| {
        let value = value.must()?;
        let mut copy = None;
        with(db, |home| home.view(key.as_slice()?, &mut |record| copy = Some(Bytes::give(record.value))))?;
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

/// The same with its attributes and its version, for todana_compare_and_set(). Each but `value` may be NULL. The first time costs a write, as
/// a version is made only when it is asked for.
#[unsafe(no_mangle)]
pub extern "C" fn todana_get_with(
    db: *mut Database,
    key: Bytes,
    value: Option<&mut MaybeUninit<Bytes>>,
    attributes: Option<&mut MaybeUninit<Attributes>>,
    version: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    answer(|| {
        let value = value.must()?;
        let record = with(db, |home| home.get_record(key.as_slice()?))?;
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
        attributes.put(Attributes::of(record.flags, record.expiry));
        version.put(record.version);
        Ok(code)
    })
}

/// Whether there is a record: TODANA_OK or TODANA_NONE.
#[unsafe(no_mangle)]
pub extern "C" fn todana_contains(db: *mut Database, key: Bytes) -> c_int {
    answer(|| with(db, |home| home.contains(key.as_slice()?)).map(found))
}

/// Stores a record, whatever was there; it stays until it is removed.
#[unsafe(no_mangle)]
pub extern "C" fn todana_set(db: *mut Database, key: Bytes, value: Bytes) -> c_int {
    answer(|| with(db, |home| home.set(key.as_slice()?, value.as_slice()?)).map(|()| TODANA_OK))
}

/// Stores a record with attributes. NULL: none.
#[unsafe(no_mangle)]
pub extern "C" fn todana_set_with(
    db: *mut Database,
    key: Bytes,
    value: Bytes,
    attributes: Option<&Attributes>,
) -> c_int {
    store(db, key, value, attributes, Home::set_with, |()| TODANA_OK)
}

/// Stores a record if there is none. TODANA_OTHER: there is one. `attributes` may be NULL.
#[unsafe(no_mangle)]
pub extern "C" fn todana_add(
    db: *mut Database,
    key: Bytes,
    value: Bytes,
    attributes: Option<&Attributes>,
) -> c_int {
    store(db, key, value, attributes, Home::add_with, |is_new| if is_new { TODANA_OK } else { TODANA_OTHER })
}

/// Stores a record if there is one, in its place. TODANA_NONE: there is none. `attributes` may be NULL: those of before do not stay.
#[unsafe(no_mangle)]
pub extern "C" fn todana_replace(
    db: *mut Database,
    key: Bytes,
    value: Bytes,
    attributes: Option<&Attributes>,
) -> c_int {
    store(db, key, value, attributes, Home::replace_with, found)
}

/// Puts a piece behind a value; makes the record if there is none.
#[unsafe(no_mangle)]
pub extern "C" fn todana_append(db: *mut Database, key: Bytes, piece: Bytes) -> c_int {
    answer(|| with(db, |home| home.append(key.as_slice()?, piece.as_slice()?)).map(|()| TODANA_OK))
}

/// Puts a piece before a value; makes the record if there is none.
#[unsafe(no_mangle)]
pub extern "C" fn todana_prepend(db: *mut Database, key: Bytes, piece: Bytes) -> c_int {
    answer(|| with(db, |home| home.prepend(key.as_slice()?, piece.as_slice()?)).map(|()| TODANA_OK))
}

/// Adds to a decimal number, and tells the sum (unless `sum` is NULL). Where there is no record it is `*initial`, to which nothing is added;
/// if that is NULL: TODANA_NONE. TODANA_INVALID: what is there is no number, or the sum leaves the range of 64 bits.
#[unsafe(no_mangle)]
pub extern "C" fn todana_increment(
    db: *mut Database,
    key: Bytes,
    delta: i64,
    initial: Option<&i64>,
    sum: Option<&mut MaybeUninit<i64>>,
) -> c_int {
    add(db, key, initial.is_none(), sum, |home, key| home.increment(key, delta, initial.copied()))
}

/// Adds to a number as Kyoto Cabinet and Kyoto Tycoon store it, 8 bytes with the most significant first, and reports the sum (unless `sum`
/// is NULL). Without a record, `origin` is added to. INT64_MAX as `origin` stores `delta` itself, whatever number was there; INT64_MIN
/// requires a record: TODANA_NONE. Attributes stay. TODANA_INVALID: the value is not 8 bytes long, or the sum leaves the range of 64 bits.
#[unsafe(no_mangle)]
pub extern "C" fn todana_increment_binary(
    db: *mut Database,
    key: Bytes,
    delta: i64,
    origin: i64,
    sum: Option<&mut MaybeUninit<i64>>,
) -> c_int {
    add(db, key, origin == i64::MIN, sum, |home, key| home.increment_binary(key, delta, origin.into()))
}

/// The same for a number with a fraction, in 16 bytes. INFINITY and -INFINITY as `origin` have those meanings.
#[unsafe(no_mangle)]
pub extern "C" fn todana_increment_double(
    db: *mut Database,
    key: Bytes,
    delta: f64,
    origin: f64,
    sum: Option<&mut MaybeUninit<f64>>,
) -> c_int {
    let is_required = origin == f64::NEG_INFINITY;
    add(db, key, is_required, sum, |home, key| home.increment_double(key, delta, origin.into()))
}

/// Replaces the value if the record is still of this version (todana_get_with()). TODANA_OTHER: somebody has changed it; TODANA_NONE: it is
/// gone. The new record has no attributes.
#[unsafe(no_mangle)]
pub extern "C" fn todana_compare_and_set(db: *mut Database, key: Bytes, value: Bytes, version: u64) -> c_int {
    answer(|| {
        let outcome = with(db, |home| home.compare_and_set(key.as_slice()?, value.as_slice()?, version))?;
        Ok(match outcome {
            CompareOutcome::Stored => TODANA_OK,
            CompareOutcome::Changed => TODANA_OTHER,
            CompareOutcome::Missing => TODANA_NONE,
        })
    })
}

/// Puts `*to` (NULL: nothing) in the place of a record if its value is `*from` (NULL: if there is none). TODANA_OTHER: it is not. Attributes
/// stay.
#[unsafe(no_mangle)]
pub extern "C" fn todana_compare_and_swap(
    db: *mut Database,
    key: Bytes,
    from: Option<&Bytes>,
    to: Option<&Bytes>,
) -> c_int {
    answer(|| {
        let (from, to) = (from.map(Bytes::as_slice).transpose()?, to.map(Bytes::as_slice).transpose()?);
        let was_equal = with(db, |home| home.compare_and_swap(key.as_slice()?, from, to))?;
        Ok(if was_equal { TODANA_OK } else { TODANA_OTHER })
    })
}

/// Removes a record. TODANA_NONE: there is none.
#[unsafe(no_mangle)]
pub extern "C" fn todana_remove(db: *mut Database, key: Bytes) -> c_int {
    answer(|| with(db, |home| home.remove(key.as_slice()?)).map(found))
}

/// Removes a record and gives its value, for the caller to free. TODANA_NONE: there is none.
#[unsafe(no_mangle)]
pub extern "C" fn todana_seize(
    db: *mut Database,
    key: Bytes,
    value: Option<&mut MaybeUninit<Bytes>>,
) -> c_int {
    answer(|| {
        let value = value.must()?;
        let seized = with(db, |home| home.seize(key.as_slice()?))?;
        value.put(seized.as_deref().map_or(Ok(Bytes::NONE), Bytes::give)?);
        Ok(found(seized.is_some()))
    })
}

/// Gives a record another life; its flags stay. NULL: it stays until it is removed. TODANA_NONE: there is none.
#[unsafe(no_mangle)]
pub extern "C" fn todana_touch(db: *mut Database, key: Bytes, attributes: Option<&Attributes>) -> c_int {
    answer(|| {
        let (ttl, _) = taken(attributes)?;
        with(db, |home| home.touch(key.as_slice()?, ttl)).map(found)
    })
}

/// The values of several records, in the order of the keys, for the caller to free: todana_free(values.items). `data` is NULL where there is
/// none. If one cannot be read nothing is given, and todana_message() names its key; todana_get() has the others one by one.
#[unsafe(no_mangle)]
pub extern "C" fn todana_get_many(
    db: *mut Database,
    keys: List,
    values: Option<&mut MaybeUninit<List>>,
) -> c_int {
    answer(|| {
        let values = values.must()?;
        let all = with(db, |home| home.get_many(&keys.as_slices()?))?;
        values.put(List::give(&all)?);
        Ok(TODANA_OK)
    })
}

/// Stores several records, one after the other; within a transaction, as one. There must be as many values as keys.
#[unsafe(no_mangle)]
pub extern "C" fn todana_set_many(db: *mut Database, keys: List, values: List) -> c_int {
    answer(|| {
        let (keys, values) = (keys.as_slices()?, values.as_slices()?);
        if keys.len() != values.len() {
            return Err(invalid(format!("{} keys and {} values", keys.len(), values.len())));
        }
        let records: Vec<_> = keys.into_iter().zip(values).collect();
        with(db, |home| home.set_many(&records)).map(|()| TODANA_OK)
    })
}

/// Removes several records, and tells how many there were (unless `removed` is NULL).
#[unsafe(no_mangle)]
pub extern "C" fn todana_remove_many(
    db: *mut Database,
    keys: List,
    removed: Option<&mut MaybeUninit<usize>>,
) -> c_int {
    answer(|| {
        removed.put(with(db, |home| home.remove_many(&keys.as_slices()?))?);
        Ok(TODANA_OK)
    })
}

fn with<T>(db: *mut Database, run: impl FnOnce(&Home) -> Result<T>) -> Result<T> {
    home::with(db, |home| run(home))
}

/// Adds to a number. If there is no record, and one `is_required`, it is `TODANA_NONE`.
fn add<T>(
    db: *mut Database,
    key: Bytes,
    is_required: bool,
    sum: Option<&mut MaybeUninit<T>>,
    add: impl FnOnce(&Home, &[u8]) -> Result<T>,
) -> c_int {
    answer(|| {
        with(db, |home| {
            let key = key.as_slice()?;
            match add(home, key) {
                Ok(made) => {
                    sum.put(made);
                    Ok(TODANA_OK)
                }
                Err(_) if is_required && !home.contains(key)? => Ok(TODANA_NONE),
                Err(error) => Err(error),
            }
        })
    })
}

/// Stores a record in one of the ways to do so.
fn store<T>(
    db: *mut Database,
    key: Bytes,
    value: Bytes,
    attributes: Option<&Attributes>,
    store: impl FnOnce(&Home, &[u8], &[u8], Ttl, u32) -> Result<T>,
    code: impl FnOnce(T) -> c_int,
) -> c_int {
    answer(|| {
        let (ttl, flags) = taken(attributes)?;
        with(db, |home| store(home, key.as_slice()?, value.as_slice()?, ttl, flags)).map(code)
    })
}

fn taken(attributes: Option<&Attributes>) -> Result<(Ttl, u32)> {
    let attributes = attributes.copied().unwrap_or_default();
    Ok((attributes.ttl()?, attributes.flags()))
}
