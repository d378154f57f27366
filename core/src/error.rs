//! Errors: a kind that says what the caller can do next, and a message for people.

use std::fmt;

/// The result of anything that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// What the caller can do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request is wrong: mend it.
    Invalid,
    /// No memory or space: make room.
    Full,
    /// Somebody else holds it: try again.
    Busy,
    /// Stored bytes are damaged: repair.
    Corrupt,
    /// It cannot be reached now: later.
    Unavailable,
    /// It was closed: open it again.
    Closed,
}

/// An error: its kind, and a message (lower case, no full stop, naming the thing).
#[derive(Clone, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    is_refused_write: bool,
    is_read_only: bool,
}

impl Error {
    /// An error of this kind with this message.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error { kind, message: message.into(), is_refused_write: false, is_read_only: false }
    }

    /// Returns the error of a change that the files of an engine did not take: a full disk, a missing descriptor, a failing device. The
    /// record is as it was.
    pub fn refused_write(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error { is_refused_write: true, ..Error::new(kind, message) }
    }

    /// Returns the error of a change to a database that was opened for reading.
    pub fn read_only(message: impl Into<String>) -> Self {
        Error { is_read_only: true, ..Error::new(ErrorKind::Invalid, message) }
    }

    /// Returns true if nothing may be changed, as the database was opened for reading.
    pub fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// Returns true if the files of the engine did not take a change.
    pub fn is_refused_write(&self) -> bool {
        self.is_refused_write
    }

    /// What the caller can do about it.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.message)
    }
}

impl std::error::Error for Error {}
