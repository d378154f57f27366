//! Why the program does not start, in memcached's words and with its exit codes.

pub(super) use crate::serving::ServerFailure;

/// A value that cannot be.
pub(super) const BAD_VALUE: u8 = 1;
/// Wrong usage (`EX_USAGE`).
pub(super) const USAGE: u8 = 64;
/// No such user (`EX_NOUSER`).
pub(super) const NO_USER: u8 = 67;
/// The system refuses: an address, a limit (`EX_OSERR`).
pub(super) const SYSTEM: u8 = 71;

/// What a shell shows of a program that has aborted, as memcached does where it cannot have its memory file.
pub(super) const ABORTED: u8 = 134;

impl ServerFailure {
    pub(super) fn bad_value(message: impl Into<String>) -> ServerFailure {
        ServerFailure::new(BAD_VALUE, message)
    }

    pub(super) fn usage(message: impl Into<String>) -> ServerFailure {
        ServerFailure::new(USAGE, message)
    }
}
