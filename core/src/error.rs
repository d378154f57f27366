//! Defines errors: a kind that says what the caller can do next, and a message for people.

use std::fmt;

/// The result of an operation that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// The kind of an error, which says how the caller can react.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request is wrong. The caller should correct it.
    Invalid,
    /// Memory or disk space is exhausted. The caller should free some.
    Full,
    /// Another user holds the resource. The caller should try again.
    Busy,
    /// Stored bytes are damaged. The caller should repair them.
    Corrupt,
    /// The resource cannot be reached now. The caller should try later.
    Unavailable,
    /// The resource was closed. The caller should open it again.
    Closed,
}

/// An error: its kind, and a message (lower case, no full stop, naming the object).
#[derive(Clone, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    is_refused_write: bool,
    is_read_only: bool,
}

impl Error {
    /// Creates an error of this kind with this message.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error { kind, message: message.into(), is_refused_write: false, is_read_only: false }
    }

    /// Creates the error of a change that an engine's files refused because of a full disk, a
    /// missing descriptor or a failing device. The record is unchanged.
    pub fn refused_write(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error { is_refused_write: true, ..Error::new(kind, message) }
    }

    /// Creates the error of a change to a database that was opened read-only.
    pub fn read_only(message: impl Into<String>) -> Self {
        Error { is_read_only: true, ..Error::new(ErrorKind::Invalid, message) }
    }

    /// Returns true if the change was refused because the database was opened read-only.
    pub fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// Returns true if the change was refused by the engine's files.
    pub fn is_refused_write(&self) -> bool {
        self.is_refused_write
    }

    /// Returns true if memory is full. Removing records then makes room. If files are full it does
    /// not, because a removal itself needs space there.
    pub fn is_out_of_memory(&self) -> bool {
        self.kind == ErrorKind::Full && !self.is_refused_write
    }

    /// Returns what the caller can do about the error.
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
