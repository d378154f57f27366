//! Cursors: a place among the records that survives whatever is written.
#![allow(unsafe_code, reason = "no_mangle; nothing here follows a pointer")]

use crate::answer::{Out, TODANA_NONE, TODANA_OK, answer, found};
use crate::attributes::Shown;
use crate::handles::{Handles, new_number, shown};
use crate::home::{self, Database, Scope};
use crate::raw::Bytes;
use parking_lot::Mutex;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::Arc;
use todana::{OwnedRecord, Result};

/// A cursor, for one thread at a time. It holds no lock and survives whatever is written: where its record has been removed, it stands where
/// that was, and goes on to the next one. What moves it returns TODANA_NONE where there is no record; it stands nowhere then.
pub struct Cursor {
    _private: [u8; 0],
}

struct Standing {
    cursor: todana::RecordCursor<Scope>,
    /// What was shown last.
    last: OwnedRecord,
}

static OPEN: Handles<Mutex<Standing>> = Handles::new();

/// Opens a cursor, which stands nowhere at first. Where keys have no order it goes forward only.
#[unsafe(no_mangle)]
pub extern "C" fn todana_cursor_open(
    db: *mut Database,
    cursor: Option<&mut MaybeUninit<*mut Cursor>>,
) -> c_int {
    answer(|| {
        let place = cursor.must()?;
        let scope = home::with(db, |home| Ok(Arc::clone(home)))?;
        let (number, cursor) = (new_number(), todana::RecordCursor::new(scope));
        OPEN.insert(number, Arc::new(Mutex::new(Standing { cursor, last: OwnedRecord::default() })));
        place.put(shown(number));
        Ok(TODANA_OK)
    })
}

/// Closes a cursor. NULL is left alone.
#[unsafe(no_mangle)]
pub extern "C" fn todana_cursor_close(cursor: *mut Cursor) -> c_int {
    answer(|| {
        if !cursor.is_null() {
            OPEN.remove(cursor.addr(), "cursor")?;
        }
        Ok(TODANA_OK)
    })
}

/// Goes to the first record.
#[unsafe(no_mangle)]
pub extern "C" fn todana_cursor_first(cursor: *mut Cursor) -> c_int {
    moved(cursor, |cursor| cursor.first())
}

/// Goes to the last record.
#[unsafe(no_mangle)]
pub extern "C" fn todana_cursor_last(cursor: *mut Cursor) -> c_int {
    moved(cursor, |cursor| cursor.last())
}

/// Goes to the record of this key or, where keys have an order, the first one behind it.
#[unsafe(no_mangle)]
pub extern "C" fn todana_cursor_jump(cursor: *mut Cursor, key: Bytes) -> c_int {
    moved(cursor, |cursor| cursor.jump(key.as_slice()?))
}

/// Goes to the record of this key or the last one before it.
#[unsafe(no_mangle)]
pub extern "C" fn todana_cursor_jump_back(cursor: *mut Cursor, key: Bytes) -> c_int {
    moved(cursor, |cursor| cursor.jump_back(key.as_slice()?))
}

/// Goes to the next record.
#[unsafe(no_mangle)]
pub extern "C" fn todana_cursor_step(cursor: *mut Cursor) -> c_int {
    moved(cursor, |cursor| cursor.step())
}

/// Goes to the record before.
#[unsafe(no_mangle)]
pub extern "C" fn todana_cursor_step_back(cursor: *mut Cursor) -> c_int {
    moved(cursor, |cursor| cursor.step_back())
}

/// Shows the record where it stands, as it is now; that stays where it is until the cursor's next call. TODANA_NONE: it is gone (its key is
/// still shown), or the cursor stands nowhere (then `key.data` is NULL).
#[unsafe(no_mangle)]
pub extern "C" fn todana_cursor_record(
    cursor: *mut Cursor,
    record: Option<&mut MaybeUninit<Shown>>,
) -> c_int {
    answer(|| {
        let place = record.must()?;
        at(cursor, |standing| {
            let key = standing.cursor.key();
            match standing.cursor.record()? {
                Some(record) => {
                    standing.last = record;
                    place.put(Shown::of_owned(key.unwrap_or_default(), &standing.last));
                    Ok(TODANA_OK)
                }
                None => {
                    place.put(key.map_or(Shown::NOTHING, Shown::of_key));
                    Ok(TODANA_NONE)
                }
            }
        })
    })
}

/// Gives the record there another value; its attributes stay. TODANA_NONE: it is gone.
#[unsafe(no_mangle)]
pub extern "C" fn todana_cursor_set(cursor: *mut Cursor, value: Bytes) -> c_int {
    moved(cursor, |cursor| cursor.set_value(value.as_slice()?))
}

/// Removes the record there; the cursor stays, and steps from there on. TODANA_NONE: it is gone.
#[unsafe(no_mangle)]
pub extern "C" fn todana_cursor_remove(cursor: *mut Cursor) -> c_int {
    moved(cursor, |cursor| cursor.remove())
}

fn moved(cursor: *mut Cursor, run: impl FnOnce(&mut todana::RecordCursor<Scope>) -> Result<bool>) -> c_int {
    answer(|| at(cursor, |standing| run(&mut standing.cursor).map(found)))
}

fn at<T>(cursor: *mut Cursor, run: impl FnOnce(&mut Standing) -> Result<T>) -> Result<T> {
    let standing = OPEN.find(cursor.addr(), "cursor")?;
    run(&mut standing.lock())
}
