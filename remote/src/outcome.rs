//! The outcomes of requests to the cluster: executed, surely not executed, or unknown.

use scylla::errors::{DbError, ExecutionError, RequestAttemptError};
use todana_core::RefusalReason;

/// The reason why a request has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestFailure {
    /// The cluster has not executed the request and will not do so.
    NotExecuted,
    /// The request may have been executed, or may still be executed.
    Unknown,
    /// The cluster refuses the bytes of the request, for example because the value is too long.
    Refused,
}

impl RequestFailure {
    /// Returns the reply to a client whose operation fails in this way.
    pub(crate) fn refusal(self) -> RefusalReason {
        match self {
            RequestFailure::NotExecuted => RefusalReason::Unreachable,
            RequestFailure::Unknown => RefusalReason::OutcomeUnknown,
            RequestFailure::Refused => RefusalReason::TooLarge,
        }
    }

    /// Returns the failure of a read, which has no effect.
    pub(crate) fn of_read(error: &ExecutionError) -> RequestFailure {
        match RequestFailure::of_write(error) {
            RequestFailure::Refused => RequestFailure::Refused,
            _ => RequestFailure::NotExecuted,
        }
    }

    /// Returns the failure of a write.
    pub(crate) fn of_write(error: &ExecutionError) -> RequestFailure {
        match error {
            ExecutionError::EmptyPlan | ExecutionError::ConnectionPoolError(_) => RequestFailure::NotExecuted,
            ExecutionError::BadQuery(_) => RequestFailure::Refused,
            ExecutionError::LastAttemptError(attempt) => match attempt {
                RequestAttemptError::SerializationError(_)
                | RequestAttemptError::CqlRequestSerialization(_) => RequestFailure::Refused,
                RequestAttemptError::UnableToAllocStreamId => RequestFailure::NotExecuted,
                RequestAttemptError::DbError(error, _) => of_database(error),
                _ => RequestFailure::Unknown,
            },
            _ => RequestFailure::Unknown,
        }
    }
}

fn of_database(error: &DbError) -> RequestFailure {
    match error {
        DbError::SyntaxError | DbError::Invalid => RequestFailure::Refused,
        DbError::Unauthorized
        | DbError::ConfigError
        | DbError::Unavailable { .. }
        | DbError::IsBootstrapping
        | DbError::Unprepared { .. } => RequestFailure::NotExecuted,
        _ => RequestFailure::Unknown,
    }
}
