//! Decodes and answers REST requests, in which each record is an HTTP resource.

use super::answer::{AnswerBanner, put_head};
use super::columns::put_percent;
use super::date::format_date;
use super::http::RestMode;
use super::{AnswerStatus, CallFailure, DatabaseError, DatabaseTarget, HttpForm, expiry};
use crate::ReplySink;
use memchr::memchr;

/// The action of a request on its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestAction<'a> {
    /// Reads the record. [`HttpForm`] distinguishes HEAD from GET.
    Get,
    /// Stores the record.
    Put {
        /// The value.
        value: &'a [u8],
        /// The condition.
        mode: RestMode,
        /// The absolute time of expiry in seconds since 1970. A time in the past stores a record
        /// that has already expired.
        xt: Option<u64>,
    },
    /// Removes the record.
    Delete,
    /// An unknown method.
    Unknown,
}

/// A request for a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestRequest<'a> {
    /// The database.
    pub target: DatabaseTarget<'a>,
    /// The key.
    pub key: &'a [u8],
    /// The action.
    pub action: RestAction<'a>,
    /// The target of the request as sent, for the header `Location`.
    pub location: &'a [u8],
    /// The form of the answer.
    pub form: HttpForm,
}

/// The outcome of a request for a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestAnswer<'a> {
    /// The record was read.
    Found {
        /// The value.
        value: &'a [u8],
        /// The time of expiry, if any.
        xt: Option<u64>,
    },
    /// The record was stored.
    Stored {
        /// The port on which the server listens.
        port: u16,
    },
    /// The record was removed.
    Removed,
    /// The request failed: the record or the database does not exist, a condition does not hold, or
    /// the database failed.
    Failed(CallFailure<'a>),
    /// The method is unknown.
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

/// Returns the status of a failure: 404 if a read or a removal finds no record, 450 if the
/// condition of a store does not hold, and 500 for other errors of a database.
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

/// Splits a path into the name of the database and the key, both still encoded.
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

/// Writes the path of a resource: the database, unless it is the first database, and the key.
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
    fn failure_status_depends_on_the_action() {
        let put = RestAction::Put { value: b"", mode: RestMode::Add, xt: None };
        for (action, error, status) in [
            (RestAction::Get, DatabaseError::NoRecord, AnswerStatus::NotFound),
            (RestAction::Delete, DatabaseError::NoRecord, AnswerStatus::NotFound),
            (put, DatabaseError::NoRecord, AnswerStatus::LogicalInconsistency),
            (put, DatabaseError::Duplication, AnswerStatus::LogicalInconsistency),
            (put, DatabaseError::NoPermission, AnswerStatus::InternalError),
            (RestAction::Get, DatabaseError::NotImplemented, AnswerStatus::InternalError),
            (RestAction::Delete, DatabaseError::LogicalInconsistency, AnswerStatus::InternalError),
        ] {
            assert_eq!(rest_status(&action, &CallFailure::Database(error)), status, "{action:?} {error:?}");
        }
    }

    #[test]
    fn path_is_a_key_with_an_optional_database() {
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
