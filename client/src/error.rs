//! Defines the errors of requests.

use std::fmt;
use std::io;
use todana_protocol::memcached::client::{self, InvalidRequest, MalformedReply, RefusalKind};

/// The reason why a request failed. After [`Error::Refused`] and [`Error::Invalid`] the connection
/// can still be used. After any other error replies cannot be matched with requests, so all further
/// requests fail too.
#[derive(Debug)]
pub enum Error {
    /// The connection failed.
    Io(io::Error),
    /// The request is invalid, usually because of its key. It was not sent.
    Invalid(InvalidRequest),
    /// The reply does not conform to the protocol.
    MalformedReply,
    /// The reply does not fit the request. The text is the line of the reply.
    Unexpected(String),
    /// The server refused the request.
    Refused(RefusedRequest),
}

/// A server's refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedRequest {
    /// The kind of error, from the first word of the line.
    pub kind: RefusalKind,
    /// The complete line.
    pub line: String,
}

impl From<client::ServerRefusal<'_>> for RefusedRequest {
    fn from(refusal: client::ServerRefusal<'_>) -> Self {
        RefusedRequest { kind: refusal.kind, line: String::from_utf8_lossy(refusal.line).into_owned() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Io(error) => error.fmt(f),
            Error::Invalid(error) => error.fmt(f),
            Error::MalformedReply => MalformedReply.fmt(f),
            Error::Unexpected(line) => write!(f, "the server's reply {line:?} is no answer to the request"),
            Error::Refused(refusal) => write!(f, "the server says: {}", refusal.line),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io(error) => error.source(),
            _ => None,
        }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Error::Io(error)
    }
}

impl From<InvalidRequest> for Error {
    fn from(error: InvalidRequest) -> Self {
        Error::Invalid(error)
    }
}

impl From<MalformedReply> for Error {
    fn from(_: MalformedReply) -> Self {
        Error::MalformedReply
    }
}
