//! Defines the outcomes of a call, with their status codes and texts.

use std::borrow::Cow;

/// The status of a call's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerStatus {
    /// 200: the call succeeded.
    Ok,
    /// 201: the record was stored (REST).
    Created,
    /// 204: the record was removed (REST).
    NoContent,
    /// 400: parameters are missing, or the database or cursor does not exist.
    BadRequest,
    /// 401: the request has no valid name and password.
    Unauthorized,
    /// 403: a web page of another site caused the request.
    Forbidden,
    /// 404: there is no such record (REST).
    NotFound,
    /// 413: the body exceeds its limit.
    TooLarge,
    /// 431: the head exceeds its limit.
    HeadTooLarge,
    /// 450: the stored data does not satisfy the call's condition.
    LogicalInconsistency,
    /// 500: the database failed.
    InternalError,
    /// 501: the procedure does not exist, or the database does not support it.
    NotImplemented,
    /// 503: a wait ended without a signal.
    TimedOut,
}

impl AnswerStatus {
    /// Returns the status code.
    pub fn code(self) -> u16 {
        match self {
            AnswerStatus::Ok => 200,
            AnswerStatus::Created => 201,
            AnswerStatus::NoContent => 204,
            AnswerStatus::BadRequest => 400,
            AnswerStatus::Unauthorized => 401,
            AnswerStatus::Forbidden => 403,
            AnswerStatus::NotFound => 404,
            AnswerStatus::TooLarge => 413,
            AnswerStatus::HeadTooLarge => 431,
            AnswerStatus::LogicalInconsistency => 450,
            AnswerStatus::InternalError => 500,
            AnswerStatus::NotImplemented => 501,
            AnswerStatus::TimedOut => 503,
        }
    }

    /// Returns the status line.
    pub(super) fn line(self) -> &'static str {
        match self {
            AnswerStatus::Ok => "HTTP/1.1 200 OK\r\n",
            AnswerStatus::Created => "HTTP/1.1 201 Created\r\n",
            AnswerStatus::NoContent => "HTTP/1.1 204 No Content\r\n",
            AnswerStatus::BadRequest => "HTTP/1.1 400 Bad Request\r\n",
            AnswerStatus::Unauthorized => "HTTP/1.1 401 Unauthorized\r\n",
            AnswerStatus::Forbidden => "HTTP/1.1 403 Forbidden\r\n",
            AnswerStatus::NotFound => "HTTP/1.1 404 Not Found\r\n",
            AnswerStatus::TooLarge => "HTTP/1.1 413 Request Entity Too Large\r\n",
            AnswerStatus::HeadTooLarge => "HTTP/1.1 431 Request Header Fields Too Large\r\n",
            AnswerStatus::LogicalInconsistency => "HTTP/1.1 450 Logical Inconsistency\r\n",
            AnswerStatus::InternalError => "HTTP/1.1 500 Internal Server Error\r\n",
            AnswerStatus::NotImplemented => "HTTP/1.1 501 Not Implemented\r\n",
            AnswerStatus::TimedOut => "HTTP/1.1 503 Service Unavailable\r\n",
        }
    }
}

/// An error of a database, with its number and name in the original.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatabaseError {
    /// 1: a database of this kind does not support the operation.
    NotImplemented,
    /// 2: the database is not open.
    InvalidOperation,
    /// 3: the database could not be opened.
    NoRepository,
    /// 4: the database is read-only.
    NoPermission,
    /// 5: the file is damaged.
    BrokenFile,
    /// 6: the record exists already.
    Duplication,
    /// 7: the record does not exist.
    NoRecord,
    /// 8: the stored data does not satisfy the condition.
    LogicalInconsistency,
    /// 9: the operating system reported an error.
    SystemError,
    /// 15: any other error.
    Miscellaneous,
}

impl DatabaseError {
    /// Returns the number.
    pub fn number(self) -> u8 {
        match self {
            DatabaseError::NotImplemented => 1,
            DatabaseError::InvalidOperation => 2,
            DatabaseError::NoRepository => 3,
            DatabaseError::NoPermission => 4,
            DatabaseError::BrokenFile => 5,
            DatabaseError::Duplication => 6,
            DatabaseError::NoRecord => 7,
            DatabaseError::LogicalInconsistency => 8,
            DatabaseError::SystemError => 9,
            DatabaseError::Miscellaneous => 15,
        }
    }

    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            DatabaseError::NotImplemented => "not implemented",
            DatabaseError::InvalidOperation => "invalid operation",
            DatabaseError::NoRepository => "no repository",
            DatabaseError::NoPermission => "no permission",
            DatabaseError::BrokenFile => "broken file",
            DatabaseError::Duplication => "record duplication",
            DatabaseError::NoRecord => "no record",
            DatabaseError::LogicalInconsistency => "logical inconsistency",
            DatabaseError::SystemError => "system error",
            DatabaseError::Miscellaneous => "miscellaneous error",
        }
    }

    /// Returns the status of the call's answer.
    pub fn status(self) -> AnswerStatus {
        match self {
            DatabaseError::NotImplemented => AnswerStatus::NotImplemented,
            DatabaseError::Duplication | DatabaseError::NoRecord | DatabaseError::LogicalInconsistency => {
                AnswerStatus::LogicalInconsistency
            }
            _ => AnswerStatus::InternalError,
        }
    }
}

/// The reason why a call failed, which determines the status and the text of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallFailure<'a> {
    /// 400: parameters are missing or wrong.
    InvalidParameters,
    /// 400: the database does not exist.
    NoSuchDatabase,
    /// 400: the cursor does not exist.
    NoSuchCursor,
    /// 501: no procedure has this name.
    NoSuchProcedure(&'a [u8]),
    /// 503: a wait ended without a signal.
    TimedOut,
    /// An error of the database with the detail that this error usually has.
    Database(DatabaseError),
    /// An error of the database with another detail, and possibly another status.
    Detailed {
        /// The status.
        status: AnswerStatus,
        /// The error.
        error: DatabaseError,
        /// The detail.
        detail: &'a str,
    },
    /// Any other failure.
    Other {
        /// The status.
        status: AnswerStatus,
        /// The text.
        text: &'a str,
    },
}

impl CallFailure<'_> {
    /// `cas` found another value than expected.
    pub const STATUS_CONFLICT: CallFailure<'static> = CallFailure::Detailed {
        status: AnswerStatus::LogicalInconsistency,
        error: DatabaseError::LogicalInconsistency,
        detail: "status conflict",
    };

    /// A regular expression is invalid.
    pub const COMPILATION_FAILED: CallFailure<'static> = CallFailure::Detailed {
        status: AnswerStatus::LogicalInconsistency,
        error: DatabaseError::LogicalInconsistency,
        detail: "compilation failed",
    };

    /// The command of `synchronize` failed. The manual documents the status 450, but the original
    /// sends 500.
    pub const POSTPROCESSING_FAILED: CallFailure<'static> = CallFailure::Detailed {
        status: AnswerStatus::InternalError,
        error: DatabaseError::LogicalInconsistency,
        detail: "postprocessing failed",
    };

    /// There is no update log, so it cannot be listed.
    pub const NO_UPDATE_LOG: CallFailure<'static> =
        CallFailure::Other { status: AnswerStatus::BadRequest, text: "no update log allows no replication" };

    /// There is no file with the position of the replication.
    pub const NO_RTS_FILE: CallFailure<'static> =
        CallFailure::Other { status: AnswerStatus::NotImplemented, text: "the RTS file is not set" };

    /// Scripts are disabled. The spelling is the original's.
    pub const SCRIPTING_DISABLED: CallFailure<'static> = CallFailure::Other {
        status: AnswerStatus::NotImplemented,
        text: "the scripting extention is disabled",
    };

    /// No script procedure has this name.
    pub const NO_SUCH_SCRIPT: CallFailure<'static> =
        CallFailure::Other { status: AnswerStatus::NotImplemented, text: "no such scripting procedure" };

    /// Returns the status of the answer.
    pub fn status(&self) -> AnswerStatus {
        match *self {
            CallFailure::InvalidParameters | CallFailure::NoSuchDatabase | CallFailure::NoSuchCursor => {
                AnswerStatus::BadRequest
            }
            CallFailure::NoSuchProcedure(_) => AnswerStatus::NotImplemented,
            CallFailure::TimedOut => AnswerStatus::TimedOut,
            CallFailure::Database(error) => error.status(),
            CallFailure::Detailed { status, .. } | CallFailure::Other { status, .. } => status,
        }
    }

    /// Returns the text of `ERROR` or `X-Kt-Error`. The usual texts are not copied.
    pub fn text(&self) -> Cow<'_, [u8]> {
        let text = match *self {
            CallFailure::InvalidParameters => "invalid parameters",
            CallFailure::NoSuchDatabase => "no such database",
            CallFailure::NoSuchCursor => "no such cursor",
            CallFailure::NoSuchProcedure(name) => return Cow::Owned([b"not implemented: ", name].concat()),
            CallFailure::TimedOut => "the condition timed out",
            CallFailure::Database(error) => match error {
                DatabaseError::NotImplemented => "DB: 1: not implemented: not implemented",
                DatabaseError::InvalidOperation => "DB: 2: invalid operation: not opened",
                DatabaseError::NoRepository => "DB: 3: no repository: open failed",
                DatabaseError::NoPermission => "DB: 4: no permission: permission denied",
                DatabaseError::BrokenFile => "DB: 5: broken file: broken file",
                DatabaseError::Duplication => "DB: 6: record duplication: record duplication",
                DatabaseError::NoRecord => "DB: 7: no record: no record",
                DatabaseError::LogicalInconsistency => "DB: 8: logical inconsistency: logical inconsistency",
                DatabaseError::SystemError => "DB: 9: system error: system error",
                DatabaseError::Miscellaneous => "DB: 15: miscellaneous error: miscellaneous error",
            },
            CallFailure::Detailed { error, detail, .. } => {
                let text = format!("DB: {}: {}: {detail}", error.number(), error.name());
                return Cow::Owned(text.into_bytes());
            }
            CallFailure::Other { text, .. } => text,
        };
        Cow::Borrowed(text.as_bytes())
    }
}
