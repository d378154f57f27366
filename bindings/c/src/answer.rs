//! Converts results of functions to codes, and keeps the message of a failed call for its thread.
#![allow(unsafe_code, reason = "no_mangle; nothing here follows a pointer")]

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_char, c_int};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use todana::{Error, ErrorKind, Result};

/// The call succeeded.
pub const TODANA_OK: c_int = 0;
/// There is no such record, or there are no more records.
pub const TODANA_NONE: c_int = 1;
/// There is already a record, or the record differs from the expected one.
pub const TODANA_OTHER: c_int = 2;

/// The call is invalid. Correct it.
pub const TODANA_INVALID: c_int = -1;
/// There is no room. Remove records or raise the limit.
pub const TODANA_FULL: c_int = -2;
/// Another process or thread uses the database: try again. Also: a visitor called the library, or
/// this thread bypassed its own transaction.
pub const TODANA_BUSY: c_int = -3;
/// Stored bytes are damaged. Salvage the database.
pub const TODANA_CORRUPT: c_int = -4;
/// The disk cannot be read or written now.
pub const TODANA_UNAVAILABLE: c_int = -5;
/// The handle was closed, or was never open.
pub const TODANA_CLOSED: c_int = -6;
/// The library caught an error of its own. Report it, and stop using the database.
pub const TODANA_BROKEN: c_int = -7;

thread_local! {
    static MESSAGE: RefCell<CString> = RefCell::default();
    static IN_VISITOR: Cell<bool> = const { Cell::new(false) };
}

/// Returns the message of the last failed call of this thread, or "" if no call has failed. The
/// message stays valid until the next call fails.
#[unsafe(no_mangle)]
pub extern "C" fn todana_message() -> *const c_char {
    MESSAGE
        .try_with(|message| message.borrow().as_ptr())
        .unwrap_or(c"the thread ends: it keeps no message".as_ptr())
}

/// Returns the version of the library.
#[unsafe(no_mangle)]
pub extern "C" fn todana_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => c"",
        };
    VERSION.as_ptr()
}

/// Runs the body of a function. Turns an error or a panic into a code and a message for this
/// thread. If the library was built to abort on panics, as by the profile `release`, a panic ends
/// the process instead.
pub(crate) fn answer(run: impl FnOnce() -> Result<c_int>) -> c_int {
    if IN_VISITOR.get() {
        return note(TODANA_BUSY, "a visitor must not call the library".into());
    }
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(code)) => code,
        Ok(Err(error)) => note(code_of(error.kind()), error.to_string()),
        Err(panic) => note(TODANA_BROKEN, format!("an error of the library itself: {}", words(&*panic))),
    }
}

fn code_of(kind: ErrorKind) -> c_int {
    match kind {
        ErrorKind::Invalid => TODANA_INVALID,
        ErrorKind::Full => TODANA_FULL,
        ErrorKind::Busy => TODANA_BUSY,
        ErrorKind::Corrupt => TODANA_CORRUPT,
        ErrorKind::Unavailable => TODANA_UNAVAILABLE,
        ErrorKind::Closed => TODANA_CLOSED,
    }
}

fn note(code: c_int, message: String) -> c_int {
    let mut message = message.into_bytes();
    message.retain(|&byte| byte != 0);
    let message = CString::new(message).unwrap_or_default();
    // While the process ends, the message cannot be stored any more. The code must suffice.
    let _ = MESSAGE.try_with(|last| last.replace(message));
    code
}

fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic")
}

/// Runs a visitor. Calls of the library by the visitor are refused, because the visitor may run
/// under a lock.
pub(crate) fn visiting<T>(run: impl FnOnce() -> T) -> T {
    IN_VISITOR.set(true);
    // A C function cannot unwind. An attempt aborts the process.
    let outcome = run();
    IN_VISITOR.set(false);
    outcome
}

/// Returns `TODANA_OK` if there was a record, else `TODANA_NONE`.
pub(crate) fn found(is_there: bool) -> c_int {
    if is_there { TODANA_OK } else { TODANA_NONE }
}

pub(crate) fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

/// A pointer through which a function stores a result for its caller.
pub(crate) trait ResultPlace<T> {
    /// Returns the pointer, or an error if it is NULL. A function must call this before it does
    /// anything that cannot be repeated, because the result would be lost.
    fn must(self) -> Result<Self>
    where
        Self: Sized;

    /// Stores the result, unless the pointer is NULL.
    fn put(self, value: T);
}

impl<T> ResultPlace<T> for Option<&mut MaybeUninit<T>> {
    fn must(self) -> Result<Self> {
        if self.is_none() { Err(invalid("the place for the result is NULL")) } else { Ok(self) }
    }

    fn put(self, value: T) {
        if let Some(place) = self {
            place.write(value);
        }
    }
}
