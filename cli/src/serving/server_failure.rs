//! The failure of a server under a name such as `memcached`: an exit code and a message.

use std::process::ExitCode;

/// An exit code and the message for standard error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerFailure {
    pub(crate) code: u8,
    pub(crate) message: String,
}

impl ServerFailure {
    pub(crate) fn new(code: u8, message: impl Into<String>) -> ServerFailure {
        ServerFailure { code, message: message.into() }
    }

    /// Prints the message and returns the exit code.
    pub(crate) fn report(self) -> ExitCode {
        eprintln!("{}", self.message);
        ExitCode::from(self.code)
    }
}
