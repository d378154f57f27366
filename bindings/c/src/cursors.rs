//! Exports cursors: positions among the records that stay valid after all changes.
#![allow(unsafe_code, reason = "no_mangle; nothing here follows a pointer")]

use crate::answer::{ResultPlace, TODANA_NONE, TODANA_OK, answer, found};
use crate::attributes::ShownRecord;
use crate::handles::{HandleTable, new_number, shown};
use crate::open_database::{self, DatabaseHandle, DatabaseScope};
use crate::raw::Bytes;
use parking_lot::Mutex;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::Arc;
use todana::{OwnedRecord, Result};

/// A cursor, for one thread at a time. It holds no lock and stays valid after all changes. If its
/// record is removed, it keeps the position and steps to the next record from there. Functions that
/// move it return TODANA_NONE if there is no record; the cursor then has no position.
pub struct CursorHandle {
    _private: [u8; 0],
}

struct OpenCursor {
    cursor: todana::RecordCursor<DatabaseScope>,
    /// The record that was shown last.
    last: OwnedRecord,
}

static OPEN: HandleTable<Mutex<OpenCursor>> = HandleTable::new();

/// Opens a cursor without a position. In an unordered database the cursor can only move forwards.
#[unsafe(no_mangle)]
pub extern "C" fn todana_cursor_open(
    db: *mut DatabaseHandle,
    cursor: Option<&mut MaybeUninit<*mut CursorHandle>>,
) -> c_int {
    answer(|| {
        let place = cursor.must()?;
        let scope = open_database::with(db, |open_database| Ok(Arc::clone(open_database)))?;
        let (number, cursor) = (new_number(), todana::RecordCursor::new(scope));
        OPEN.insert(number, Arc::new(Mutex::new(OpenCursor { cursor, last: OwnedRecord::default() })));
        place.put(shown(number));
        Ok(TODANA_OK)
    })
}

/// Closes a cursor. NULL is ignored.
#[unsafe(no_mangle)]
pub extern "C" fn todana_cursor_close(cursor: *mut CursorHandle) -> c_int {
    answer(|| {
        if !cursor.is_null() {
            OPEN.remove(cursor.addr(), "cursor")?;
        }
        Ok(TODANA_OK)
    })
}

/// Moves to the first record.
#[unsafe(no_mangle)]
pub extern "C" fn todana_cursor_first(cursor: *mut CursorHandle) -> c_int {
    moved(cursor, |cursor| cursor.first())
}

/// Moves to the last record.
#[unsafe(no_mangle)]
pub extern "C" fn todana_cursor_last(cursor: *mut CursorHandle) -> c_int {
    moved(cursor, |cursor| cursor.last())
}

/// Moves to the record with this key. If there is none in an ordered database, moves to the first
/// record after the key.
#[unsafe(no_mangle)]
pub extern "C" fn todana_cursor_jump(cursor: *mut CursorHandle, key: Bytes) -> c_int {
    moved(cursor, |cursor| cursor.jump(key.as_slice()?))
}

/// Moves to the record with this key. If there is none, moves to the last record before the key.
#[unsafe(no_mangle)]
pub extern "C" fn todana_cursor_jump_back(cursor: *mut CursorHandle, key: Bytes) -> c_int {
    moved(cursor, |cursor| cursor.jump_back(key.as_slice()?))
}

/// Moves to the next record.
#[unsafe(no_mangle)]
pub extern "C" fn todana_cursor_step(cursor: *mut CursorHandle) -> c_int {
    moved(cursor, |cursor| cursor.step())
}

/// Moves to the previous record.
#[unsafe(no_mangle)]
pub extern "C" fn todana_cursor_step_back(cursor: *mut CursorHandle) -> c_int {
    moved(cursor, |cursor| cursor.step_back())
}

/// Shows the current record with its present value. The view stays valid until the next call with
/// this cursor. TODANA_NONE: the record was removed (its key is still shown), or the cursor has no
/// position (`key.data` is NULL).
#[unsafe(no_mangle)]
pub extern "C" fn todana_cursor_record(
    cursor: *mut CursorHandle,
    record: Option<&mut MaybeUninit<ShownRecord>>,
) -> c_int {
    answer(|| {
        let place = record.must()?;
        at(cursor, |standing| {
            let key = standing.cursor.key();
            match standing.cursor.record()? {
                Some(record) => {
                    standing.last = record;
                    place.put(ShownRecord::of_owned(key.unwrap_or_default(), &standing.last));
                    Ok(TODANA_OK)
                }
                None => {
                    place.put(key.map_or(ShownRecord::NOTHING, ShownRecord::of_key));
                    Ok(TODANA_NONE)
                }
            }
        })
    })
}

/// Replaces the value of the current record and keeps its attributes. TODANA_NONE: the record was
/// removed.
#[unsafe(no_mangle)]
pub extern "C" fn todana_cursor_set(cursor: *mut CursorHandle, value: Bytes) -> c_int {
    moved(cursor, |cursor| cursor.set_value(value.as_slice()?))
}

/// Removes the current record. The cursor keeps its position and steps from there. TODANA_NONE: the
/// record had already been removed.
#[unsafe(no_mangle)]
pub extern "C" fn todana_cursor_remove(cursor: *mut CursorHandle) -> c_int {
    moved(cursor, |cursor| cursor.remove())
}

fn moved(
    cursor: *mut CursorHandle,
    run: impl FnOnce(&mut todana::RecordCursor<DatabaseScope>) -> Result<bool>,
) -> c_int {
    answer(|| at(cursor, |standing| run(&mut standing.cursor).map(found)))
}

fn at<T>(cursor: *mut CursorHandle, run: impl FnOnce(&mut OpenCursor) -> Result<T>) -> Result<T> {
    let standing = OPEN.find(cursor.addr(), "cursor")?;
    run(&mut standing.lock())
}
