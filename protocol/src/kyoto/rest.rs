//! REST: records as resources.

use super::answer::{AnswerBanner, put_head};
use super::columns::put_percent;
use super::date::format_date;
use super::http::RestMode;
use super::{AnswerStatus, CallFailure, DatabaseError, DatabaseTarget, HttpForm, expiry};
use crate::ReplySink;
use memchr::memchr;

/// What is to be done with a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestAction<'a> {
    /// Read it; HEAD is told by the form.
    Get,
    /// Store it.
    Put {
        /// The value.
        value: &'a [u8],
        /// How.
        mode: RestMode,
        /// The absolute time when it dies, in seconds since 1970; a past one stores a dead record.
        xt: Option<u64>,
    },
    /// Remove it.
    Delete,
    /// A method that is not known here.
    Unknown,
}

/// A request for a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestRequest<'a> {
    /// The database.
    pub target: DatabaseTarget<'a>,
    /// The key.
    pub key: &'a [u8],
    /// What to do.
    pub action: RestAction<'a>,
    /// The target as it was sent, for `Location`.
    pub location: &'a [u8],
    /// How to answer.
    pub form: HttpForm,
}

/// How a request for a resource ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestAnswer<'a> {
    /// It was read.
    Found {
        /// The value.
        value: &'a [u8],
        /// When it dies, if it does.
        xt: Option<u64>,
    },
    /// It was stored.
    Stored {
        /// The port that the server listens at.
        port: u16,
    },
    /// It was removed.
    Removed,
    /// It was not: no record, or what was to be stored did not fit what is there, or the database failed, or is none.
    Failed(CallFailure<'a>),
    /// The method is none.
    Unknown,
}

/// Writes an answer.
pub fn answer_rest(
    request: &RestRequest<'_>,
    banner: &AnswerBanner,
    answer: &RestAnswer<'_>,
    out: &mut impl ReplySink,
) {
    let form = &request.form;
    let empty = |status, out: &mut _| put_head(form, banner, status, Some(0), out);
    match *answer {
        RestAnswer::Found { value, xt } => {
            put_head(form, banner, AnswerStatus::Ok, Some(value.len()), out);
            if let Some(xt) = xt.filter(|&xt| xt < expiry::NEVER) {
                out.put(b"X-Kt-Xt: ");
                out.put(format_date(xt).as_bytes());
                out.put(b"\r\n");
            }
            out.put(b"\r\n");
            if !form.is_head {
                out.put(value);
            }
        }
        RestAnswer::Stored { port } => {
            empty(AnswerStatus::Created, out);
            out.put(b"Location: http://localhost:");
            out.put(itoa::Buffer::new().format(port).as_bytes());
            for piece in request.location.split(|&byte| byte == b'\r') {
                out.put(piece);
            }
            out.put(b"\r\n\r\n");
        }
        RestAnswer::Removed => {
            empty(AnswerStatus::NoContent, out);
            out.put(b"\r\n");
        }
        RestAnswer::Failed(CallFailure::NoSuchDatabase) => {
            let body = b"no such database\n";
            put_head(form, banner, AnswerStatus::BadRequest, (!form.is_head).then_some(body.len()), out);
            out.put(b"\r\n");
            if !form.is_head {
                out.put(body);
            }
        }
        RestAnswer::Failed(failure) => {
            empty(rest_status(&request.action, &failure), out);
            out.put(b"X-Kt-Error: ");
            out.put(&failure.text());
            out.put(b"\r\n\r\n");
        }
        RestAnswer::Unknown => {
            empty(AnswerStatus::NotImplemented, out);
            out.put(b"\r\n");
        }
    }
}

/// What is missing is 404 to who reads or removes it, what does not fit what is there 450 to who stores, and all else that a
/// database says 500.
fn rest_status(action: &RestAction<'_>, failure: &CallFailure<'_>) -> AnswerStatus {
    match (failure, action) {
        (
            CallFailure::Database(DatabaseError::NoRecord | DatabaseError::Duplication),
            RestAction::Put { .. },
        ) => AnswerStatus::LogicalInconsistency,
        (CallFailure::Database(DatabaseError::NoRecord), _) => AnswerStatus::NotFound,
        (CallFailure::Database(_) | CallFailure::Detailed { .. }, _) => AnswerStatus::InternalError,
        (failure, _) => failure.status(),
    }
}

/// The name of the database and the key in a path, both as they are sent.
pub(super) fn split_path(path: &[u8]) -> (&[u8], &[u8]) {
    let path = path.strip_prefix(b"/").unwrap_or(path);
    match memchr(b'/', path) {
        None => (b"", path),
        Some(slash) => {
            let key = &path[slash + 1..];
            (&path[..slash], key.strip_prefix(b"/").unwrap_or(key))
        }
    }
}

/// Writes the path of a resource: of the database, if it is not the first, and the key.
pub fn put_path(database: Option<&[u8]>, key: &[u8], out: &mut impl ReplySink) {
    out.put(b"/");
    if let Some(database) = database {
        put_percent(database, out);
        out.put(b"/");
    }
    put_percent(key, out);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_is_told_by_the_status_that_the_action_gives_it() {
        let put = RestAction::Put { value: b"", mode: RestMode::Add, xt: None };
        for (action, trouble, status) in [
            (RestAction::Get, DatabaseError::NoRecord, AnswerStatus::NotFound),
            (RestAction::Delete, DatabaseError::NoRecord, AnswerStatus::NotFound),
            (put, DatabaseError::NoRecord, AnswerStatus::LogicalInconsistency),
            (put, DatabaseError::Duplication, AnswerStatus::LogicalInconsistency),
            (put, DatabaseError::NoPermission, AnswerStatus::InternalError),
            (RestAction::Get, DatabaseError::NotImplemented, AnswerStatus::InternalError),
            (RestAction::Delete, DatabaseError::LogicalInconsistency, AnswerStatus::InternalError),
        ] {
            assert_eq!(
                rest_status(&action, &CallFailure::Database(trouble)),
                status,
                "{action:?} {trouble:?}"
            );
        }
    }

    #[test]
    fn a_path_is_a_key_or_a_database_and_a_key() {
        for (path, database, key) in [
            ("", "", ""),
            ("/", "", ""),
            ("/k", "", "k"),
            ("k", "", "k"),
            ("//k", "", "k"),
            ("///k", "", "k"),
            ("/db/k", "db", "k"),
            ("/db//k", "db", "k"),
            ("/db///k", "db", "/k"),
            ("db/a/b/", "db", "a/b/"),
            ("/db/", "db", ""),
        ] {
            assert_eq!(split_path(path.as_bytes()), (database.as_bytes(), key.as_bytes()), "{path:?}");
        }
    }
}
