//! Failures of the start, with memcached's exit codes and wording.

pub(super) use crate::serving::ServerFailure;

/// Exit code for an invalid value.
pub(super) const BAD_VALUE: u8 = 1;
/// Exit code for wrong usage (`EX_USAGE`).
pub(super) const USAGE: u8 = 64;
/// Exit code for an unknown user (`EX_NOUSER`).
pub(super) const NO_USER: u8 = 67;
/// Exit code for a failed system call, such as one for an address or a limit (`EX_OSERR`).
pub(super) const SYSTEM: u8 = 71;

/// Exit code that a shell reports for an aborted process. memcached aborts if it cannot open its
/// memory file.
pub(super) const ABORTED: u8 = 134;

impl ServerFailure {
    pub(super) fn bad_value(message: impl Into<String>) -> ServerFailure {
        ServerFailure::new(BAD_VALUE, message)
    }

    pub(super) fn usage(message: impl Into<String>) -> ServerFailure {
        ServerFailure::new(USAGE, message)
    }
}
