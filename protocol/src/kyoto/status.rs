//! How a call ended, as numbers and texts.

use std::borrow::Cow;

/// The outcome of a call, as HTTP's status line tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerStatus {
    /// 200: done.
    Ok,
    /// 201: stored, of REST.
    Created,
    /// 204: removed, of REST.
    NoContent,
    /// 400: parameters are missing, or there is no such database or cursor.
    BadRequest,
    /// 401: it came without a name and password that are known.
    Unauthorized,
    /// 403: a web page of another site has sent it.
    Forbidden,
    /// 404: no record, of REST.
    NotFound,
    /// 413: longer than may be.
    TooLarge,
    /// 431: a head longer than may be.
    HeadTooLarge,
    /// 450: it ran, but the data said no.
    LogicalInconsistency,
    /// 500: the database failed.
    InternalError,
    /// 501: no such procedure, or this database cannot.
    NotImplemented,
    /// 503: a wait ended without a signal.
    TimedOut,
}

impl AnswerStatus {
    /// Its number.
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

    /// The beginning of an answer, up to its first header.
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

/// What a database says of a failure: a number, and the name that belongs to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatabaseError {
    /// 1: this kind of database cannot.
    NotImplemented,
    /// 2: it is not open.
    InvalidOperation,
    /// 3: it could not be opened.
    NoRepository,
    /// 4: it may only be read.
    NoPermission,
    /// 5: its file is damaged.
    BrokenFile,
    /// 6: the record is there already.
    Duplication,
    /// 7: the record is not there.
    NoRecord,
    /// 8: what is there does not fit.
    LogicalInconsistency,
    /// 9: the system failed.
    SystemError,
    /// 15: anything else.
    Miscellaneous,
}

impl DatabaseError {
    /// Its number.
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

    /// Its name.
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

    /// The status that a call ends with.
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

/// Why a call failed: its status, and the text that goes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallFailure<'a> {
    /// 400: parameters are missing or wrong.
    InvalidParameters,
    /// 400: there is no such database.
    NoSuchDatabase,
    /// 400: there is no such cursor.
    NoSuchCursor,
    /// 501: there is no procedure of this name.
    NoSuchProcedure(&'a [u8]),
    /// 503: a wait ended without a signal.
    TimedOut,
    /// What the database says, with the usual detail.
    Database(DatabaseError),
    /// What the database says, with a detail and, if need be, with another status than usual.
    Detailed {
        /// The status.
        status: AnswerStatus,
        /// What the database says.
        trouble: DatabaseError,
        /// Of what kind.
        detail: &'a str,
    },
    /// Anything else.
    Other {
        /// The status.
        status: AnswerStatus,
        /// The text.
        text: &'a str,
    },
}

impl CallFailure<'_> {
    /// `cas` met another value than it was to meet.
    pub const STATUS_CONFLICT: CallFailure<'static> = CallFailure::Detailed {
        status: AnswerStatus::LogicalInconsistency,
        trouble: DatabaseError::LogicalInconsistency,
        detail: "status conflict",
    };

    /// A regular expression is none.
    pub const COMPILATION_FAILED: CallFailure<'static> = CallFailure::Detailed {
        status: AnswerStatus::LogicalInconsistency,
        trouble: DatabaseError::LogicalInconsistency,
        detail: "compilation failed",
    };

    /// The command of `synchronize` failed; the manual says 450, the original 500.
    pub const POSTPROCESSING_FAILED: CallFailure<'static> = CallFailure::Detailed {
        status: AnswerStatus::InternalError,
        trouble: DatabaseError::LogicalInconsistency,
        detail: "postprocessing failed",
    };

    /// No update log is kept, so none can be listed.
    pub const NO_UPDATE_LOG: CallFailure<'static> =
        CallFailure::Other { status: AnswerStatus::BadRequest, text: "no update log allows no replication" };

    /// No file is kept for the position of the replication.
    pub const NO_RTS_FILE: CallFailure<'static> =
        CallFailure::Other { status: AnswerStatus::NotImplemented, text: "the RTS file is not set" };

    /// There are no scripts. The spelling is the original's.
    pub const SCRIPTING_DISABLED: CallFailure<'static> = CallFailure::Other {
        status: AnswerStatus::NotImplemented,
        text: "the scripting extention is disabled",
    };

    /// There is no script procedure of this name.
    pub const NO_SUCH_SCRIPT: CallFailure<'static> =
        CallFailure::Other { status: AnswerStatus::NotImplemented, text: "no such scripting procedure" };

    /// The status of the answer.
    pub fn status(&self) -> AnswerStatus {
        match *self {
            CallFailure::InvalidParameters | CallFailure::NoSuchDatabase | CallFailure::NoSuchCursor => {
                AnswerStatus::BadRequest
            }
            CallFailure::NoSuchProcedure(_) => AnswerStatus::NotImplemented,
            CallFailure::TimedOut => AnswerStatus::TimedOut,
            CallFailure::Database(trouble) => trouble.status(),
            CallFailure::Detailed { status, .. } | CallFailure::Other { status, .. } => status,
        }
    }

    /// The text behind `ERROR`, or in `X-Kt-Error`; the usual ones are borrowed.
    pub fn text(&self) -> Cow<'_, [u8]> {
        let text = match *self {
            CallFailure::InvalidParameters => "invalid parameters",
            CallFailure::NoSuchDatabase => "no such database",
            CallFailure::NoSuchCursor => "no such cursor",
            CallFailure::NoSuchProcedure(name) => return Cow::Owned([b"not implemented: ", name].concat()),
            CallFailure::TimedOut => "the condition timed out",
            CallFailure::Database(trouble) => match trouble {
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
            CallFailure::Detailed { trouble, detail, .. } => {
                let text = format!("DB: {}: {}: {detail}", trouble.number(), trouble.name());
                return Cow::Owned(text.into_bytes());
            }
            CallFailure::Other { text, .. } => text,
        };
        Cow::Borrowed(text.as_bytes())
    }
}
