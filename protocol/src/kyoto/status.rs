//! How a call ended, as numbers and texts.

use std::borrow::Cow;

/// The outcome of a call, as HTTP's status line tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
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

impl Status {
    /// Its number.
    pub fn code(self) -> u16 {
        match self {
            Status::Ok => 200,
            Status::Created => 201,
            Status::NoContent => 204,
            Status::BadRequest => 400,
            Status::Unauthorized => 401,
            Status::Forbidden => 403,
            Status::NotFound => 404,
            Status::TooLarge => 413,
            Status::HeadTooLarge => 431,
            Status::LogicalInconsistency => 450,
            Status::InternalError => 500,
            Status::NotImplemented => 501,
            Status::TimedOut => 503,
        }
    }

    /// The beginning of an answer, up to its first header.
    pub(super) fn line(self) -> &'static str {
        match self {
            Status::Ok => "HTTP/1.1 200 OK\r\n",
            Status::Created => "HTTP/1.1 201 Created\r\n",
            Status::NoContent => "HTTP/1.1 204 No Content\r\n",
            Status::BadRequest => "HTTP/1.1 400 Bad Request\r\n",
            Status::Unauthorized => "HTTP/1.1 401 Unauthorized\r\n",
            Status::Forbidden => "HTTP/1.1 403 Forbidden\r\n",
            Status::NotFound => "HTTP/1.1 404 Not Found\r\n",
            Status::TooLarge => "HTTP/1.1 413 Request Entity Too Large\r\n",
            Status::HeadTooLarge => "HTTP/1.1 431 Request Header Fields Too Large\r\n",
            Status::LogicalInconsistency => "HTTP/1.1 450 Logical Inconsistency\r\n",
            Status::InternalError => "HTTP/1.1 500 Internal Server Error\r\n",
            Status::NotImplemented => "HTTP/1.1 501 Not Implemented\r\n",
            Status::TimedOut => "HTTP/1.1 503 Service Unavailable\r\n",
        }
    }
}

/// What a database says of a failure: a number, and the name that belongs to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
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

impl Trouble {
    /// Its number.
    pub fn number(self) -> u8 {
        match self {
            Trouble::NotImplemented => 1,
            Trouble::InvalidOperation => 2,
            Trouble::NoRepository => 3,
            Trouble::NoPermission => 4,
            Trouble::BrokenFile => 5,
            Trouble::Duplication => 6,
            Trouble::NoRecord => 7,
            Trouble::LogicalInconsistency => 8,
            Trouble::SystemError => 9,
            Trouble::Miscellaneous => 15,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Trouble::NotImplemented => "not implemented",
            Trouble::InvalidOperation => "invalid operation",
            Trouble::NoRepository => "no repository",
            Trouble::NoPermission => "no permission",
            Trouble::BrokenFile => "broken file",
            Trouble::Duplication => "record duplication",
            Trouble::NoRecord => "no record",
            Trouble::LogicalInconsistency => "logical inconsistency",
            Trouble::SystemError => "system error",
            Trouble::Miscellaneous => "miscellaneous error",
        }
    }

    /// The status that a call ends with.
    pub fn status(self) -> Status {
        match self {
            Trouble::NotImplemented => Status::NotImplemented,
            Trouble::Duplication | Trouble::NoRecord | Trouble::LogicalInconsistency => {
                Status::LogicalInconsistency
            }
            _ => Status::InternalError,
        }
    }
}

/// Why a call failed: its status, and the text that goes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure<'a> {
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
    Database(Trouble),
    /// What the database says, with a detail and, if need be, with another status than usual.
    Detailed {
        /// The status.
        status: Status,
        /// What the database says.
        trouble: Trouble,
        /// Of what kind.
        detail: &'a str,
    },
    /// Anything else.
    Other {
        /// The status.
        status: Status,
        /// The text.
        text: &'a str,
    },
}

impl Failure<'_> {
    /// `cas` met another value than it was to meet.
    pub const STATUS_CONFLICT: Failure<'static> = Failure::Detailed {
        status: Status::LogicalInconsistency,
        trouble: Trouble::LogicalInconsistency,
        detail: "status conflict",
    };

    /// A regular expression is none.
    pub const COMPILATION_FAILED: Failure<'static> = Failure::Detailed {
        status: Status::LogicalInconsistency,
        trouble: Trouble::LogicalInconsistency,
        detail: "compilation failed",
    };

    /// The command of `synchronize` failed; the manual says 450, the original 500.
    pub const POSTPROCESSING_FAILED: Failure<'static> = Failure::Detailed {
        status: Status::InternalError,
        trouble: Trouble::LogicalInconsistency,
        detail: "postprocessing failed",
    };

    /// No update log is kept, so none can be listed.
    pub const NO_UPDATE_LOG: Failure<'static> =
        Failure::Other { status: Status::BadRequest, text: "no update log allows no replication" };

    /// No file is kept for the position of the replication.
    pub const NO_RTS_FILE: Failure<'static> =
        Failure::Other { status: Status::NotImplemented, text: "the RTS file is not set" };

    /// There are no scripts. The spelling is the original's.
    pub const SCRIPTING_DISABLED: Failure<'static> =
        Failure::Other { status: Status::NotImplemented, text: "the scripting extention is disabled" };

    /// There is no script procedure of this name.
    pub const NO_SUCH_SCRIPT: Failure<'static> =
        Failure::Other { status: Status::NotImplemented, text: "no such scripting procedure" };

    /// The status of the answer.
    pub fn status(&self) -> Status {
        match *self {
            Failure::InvalidParameters | Failure::NoSuchDatabase | Failure::NoSuchCursor => {
                Status::BadRequest
            }
            Failure::NoSuchProcedure(_) => Status::NotImplemented,
            Failure::TimedOut => Status::TimedOut,
            Failure::Database(trouble) => trouble.status(),
            Failure::Detailed { status, .. } | Failure::Other { status, .. } => status,
        }
    }

    /// The text behind `ERROR`, or in `X-Kt-Error`; the usual ones are borrowed.
    pub fn text(&self) -> Cow<'_, [u8]> {
        let text = match *self {
            Failure::InvalidParameters => "invalid parameters",
            Failure::NoSuchDatabase => "no such database",
            Failure::NoSuchCursor => "no such cursor",
            Failure::NoSuchProcedure(name) => return Cow::Owned([b"not implemented: ", name].concat()),
            Failure::TimedOut => "the condition timed out",
            Failure::Database(trouble) => match trouble {
                Trouble::NotImplemented => "DB: 1: not implemented: not implemented",
                Trouble::InvalidOperation => "DB: 2: invalid operation: not opened",
                Trouble::NoRepository => "DB: 3: no repository: open failed",
                Trouble::NoPermission => "DB: 4: no permission: permission denied",
                Trouble::BrokenFile => "DB: 5: broken file: broken file",
                Trouble::Duplication => "DB: 6: record duplication: record duplication",
                Trouble::NoRecord => "DB: 7: no record: no record",
                Trouble::LogicalInconsistency => "DB: 8: logical inconsistency: logical inconsistency",
                Trouble::SystemError => "DB: 9: system error: system error",
                Trouble::Miscellaneous => "DB: 15: miscellaneous error: miscellaneous error",
            },
            Failure::Detailed { trouble, detail, .. } => {
                let text = format!("DB: {}: {}: {detail}", trouble.number(), trouble.name());
                return Cow::Owned(text.into_bytes());
            }
            Failure::Other { text, .. } => text,
        };
        Cow::Borrowed(text.as_bytes())
    }
}
