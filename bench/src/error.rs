//! Defines the errors of a benchmark.

use std::{fmt, io};

/// The reason why a benchmark ended without a valid result.
#[derive(Debug)]
pub enum BenchError {
    /// The options contradict each other.
    Usage(String),
    /// A file, a process or a server has unexpected contents or an unexpected state.
    Failed(String),
    /// The results cannot be printed.
    Io(io::Error),
    /// A server is unreachable, refuses requests or sends an unexpected reply.
    Client(todana_client::Error),
    /// A database without a server failed.
    Database(todana::Error),
}

impl fmt::Display for BenchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BenchError::Usage(message) | BenchError::Failed(message) => f.write_str(message),
            BenchError::Io(error) => error.fmt(f),
            BenchError::Client(error) => error.fmt(f),
            BenchError::Database(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for BenchError {}

impl From<io::Error> for BenchError {
    fn from(error: io::Error) -> Self {
        BenchError::Io(error)
    }
}

impl From<todana_client::Error> for BenchError {
    fn from(error: todana_client::Error) -> Self {
        BenchError::Client(error)
    }
}

impl From<todana::Error> for BenchError {
    fn from(error: todana::Error) -> Self {
        BenchError::Database(error)
    }
}
