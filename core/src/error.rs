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
}

impl Error {
    /// An error of this kind with this message.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error { kind, message: message.into() }
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
