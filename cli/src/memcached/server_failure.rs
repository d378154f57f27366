//! Start failures with memcached's wording and exit codes.

pub(super) use crate::serving::ServerFailure;

/// An invalid value.
pub(super) const BAD_VALUE: u8 = 1;
/// Wrong usage (`EX_USAGE`).
pub(super) const USAGE: u8 = 64;
/// No such user (`EX_NOUSER`).
pub(super) const NO_USER: u8 = 67;
/// A system call failed: an address, a limit (`EX_OSERR`).
pub(super) const SYSTEM: u8 = 71;

/// The exit code that a shell reports for an aborted process. memcached aborts if it cannot open
/// its memory file.
pub(super) const ABORTED: u8 = 134;

impl ServerFailure {
    pub(super) fn bad_value(message: impl Into<String>) -> ServerFailure {
        ServerFailure::new(BAD_VALUE, message)
    }

    pub(super) fn usage(message: impl Into<String>) -> ServerFailure {
        ServerFailure::new(USAGE, message)
    }
}
