//! What a function answers: a code, and a message for people when something has gone wrong.
#![allow(unsafe_code, reason = "no_mangle; nothing here follows a pointer")]

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_char, c_int};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use todana::{Error, ErrorKind, Result};

/// It is done.
pub const TODANA_OK: c_int = 0;
/// There is no such record; or there are no more of them.
pub const TODANA_NONE: c_int = 1;
/// There is one already, or another one than was expected.
pub const TODANA_OTHER: c_int = 2;

/// The call is wrong: mend it.
pub const TODANA_INVALID: c_int = -1;
/// There is no room: make some.
pub const TODANA_FULL: c_int = -2;
/// Another one has it: try again. Or this thread calls from within a visitor, or past its own transaction.
pub const TODANA_BUSY: c_int = -3;
/// What is stored is damaged: salvage it.
pub const TODANA_CORRUPT: c_int = -4;
/// The disk cannot be reached or written now.
pub const TODANA_UNAVAILABLE: c_int = -5;
/// It was closed, or was never open.
pub const TODANA_CLOSED: c_int = -6;
/// An error of the library itself, which it has caught: report it, and trust the database no further.
pub const TODANA_BROKEN: c_int = -7;

thread_local! {
    static MESSAGE: RefCell<CString> = RefCell::default();
    static IN_VISITOR: Cell<bool> = const { Cell::new(false) };
}

/// What went wrong in the last call of this thread that failed; "" if none has. It stays until the next one fails.
#[unsafe(no_mangle)]
pub extern "C" fn todana_message() -> *const c_char {
    MESSAGE
        .try_with(|message| message.borrow().as_ptr())
        .unwrap_or(c"the thread ends: it keeps no message".as_ptr())
}

/// The version of the library.
#[unsafe(no_mangle)]
pub extern "C" fn todana_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => c"",
        };
    VERSION.as_ptr()
}

/// The body of every function: what goes wrong becomes a code and this thread's message, a panic, too. (Where the library was built to
/// abort on panics, as `release` is, a panic ends the process before it comes here.)
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
    // Where the process ends, the code must do.
    let _ = MESSAGE.try_with(|last| last.replace(message));
    code
}

fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic")
}

/// Runs a visitor: whatever it calls meanwhile is refused, as it may run under a lock.
pub(crate) fn visiting<T>(run: impl FnOnce() -> T) -> T {
    IN_VISITOR.set(true);
    // C code does not unwind: where it tries to, the process is aborted.
    let outcome = run();
    IN_VISITOR.set(false);
    outcome
}

/// `TODANA_OK`, or `TODANA_NONE` if there was none.
pub(crate) fn found(is_there: bool) -> c_int {
    if is_there { TODANA_OK } else { TODANA_NONE }
}

pub(crate) fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

/// Where a result goes.
pub(crate) trait Out<T> {
    /// The place, which must be there. To be asked before anything is done that would be lost with the result.
    fn must(self) -> Result<Self>
    where
        Self: Sized;

    /// Puts it there, unless nobody wants it.
    fn put(self, value: T);
}

impl<T> Out<T> for Option<&mut MaybeUninit<T>> {
    fn must(self) -> Result<Self> {
        if self.is_none() { Err(invalid("the place for the result is NULL")) } else { Ok(self) }
    }

    fn put(self, value: T) {
        if let Some(place) = self {
            place.write(value);
        }
    }
}
