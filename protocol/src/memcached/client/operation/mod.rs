//! Writes operations as requests to a server of any dialect, and decodes their replies.
//!
//! ```text
//! text      operation -> a line of the text dialect; its reply
//! meta      operation -> a meta command; its reply
//! binary    operation -> a packet; its reply
//! exptime   times to live -> the numbers of memcached
//! ```
//!
//! Invariants:
//! - A request has exactly one reply. A request that is refused leaves the buffer unchanged.
//! - A reply that does not belong to the request is malformed. It never counts as a miss.

mod binary;
#[cfg(test)]
mod documented_bytes;
#[cfg(test)]
mod exchange;
mod exptime;
mod meta;
mod text;

use super::reply::{ClientResponse, MalformedReply, decode};
use super::request::InvalidRequest;
use std::fmt;
use todana_core::{
    ArithmeticReply, Attributes, Expiry, Get, HitReply, Operation, RecacheState, Record, RefusalReason,
    Reply, Store, StoreMode, UnixSeconds,
};

/// The dialect in which requests are sent to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerDialect {
    /// The text dialect.
    Text,
    /// The meta dialect. Such a server knows the text dialect, too.
    Meta,
    /// The binary dialect.
    Binary,
}

/// The fields of a record that only some callers need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordFields {
    /// Read the value. Without it, a read that touches becomes a `touch`: in the text dialect its
    /// reply has no flags and no version either.
    pub value: bool,
    /// Read the time to live that is left. Only meta servers report it.
    pub time_left: TimeLeft,
}

/// The time to live that a reply shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeLeft {
    /// None. The expiry in the reply is `Never`.
    Unread,
    /// The time before the operation (meta `t` before `T`).
    Before,
    /// The time after the operation (meta `t` after `T`).
    After,
}

impl Default for RecordFields {
    fn default() -> Self {
        RecordFields { value: true, time_left: TimeLeft::Unread }
    }
}

/// The form of the reply to a request that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AskedReply {
    dialect: ServerDialect,
    kind: AskedKind,
}

/// The kinds of reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AskedKind {
    /// A record.
    Record {
        with_value: bool,
        with_version: bool,
    },
    /// A record without any field: the reply to `touch` in place of a read.
    TouchedRecord,
    Store {
        mode: StoreMode,
        compares: bool,
        value_len: u32,
    },
    Delete,
    Arithmetic,
    Touch,
    /// The attributes of a record whose key has this length.
    Inspection {
        key_len: u8,
    },
    Flush,
    Noop,
}

impl AskedReply {
    /// Returns the dialect of the server.
    pub fn dialect(self) -> ServerDialect {
        self.dialect
    }

    /// Returns true if the reply consists of `VALUE` lines and `END`.
    pub fn is_values(self) -> bool {
        self.dialect == ServerDialect::Text && matches!(self.kind, AskedKind::Record { .. })
    }
}

/// The reason why an operation cannot be sent as one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotSpoken {
    /// The dialect has no such option: most options of the meta dialect in the others, a time to
    /// live that each access extends, or the time left.
    Flag,
    /// The dialect cannot name the key, because of its length or its bytes.
    Key,
    /// A text server needs several requests: arithmetic that creates its record or compares the
    /// version, and a delete that compares the version.
    Steps,
    /// The time to live is longer than 30 days. Replace it by [`Ttl::At`](todana_core::Ttl::At).
    LongSpan,
    /// The value is longer than a packet can be.
    Value,
    /// No dialect of memcached has this operation: `Modify` and `RefusedStore`.
    Operation,
}

impl fmt::Display for NotSpoken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NotSpoken::Flag => "the server's dialect has no such option",
            NotSpoken::Key => "the server's dialect cannot name the key",
            NotSpoken::Steps => "the server's dialect needs several requests",
            NotSpoken::LongSpan => "a time to live of more than 30 days must be a Unix time",
            NotSpoken::Value => "the value is too long for a packet",
            NotSpoken::Operation => "memcached has no such operation",
        })
    }
}

impl std::error::Error for NotSpoken {}

impl From<InvalidRequest> for NotSpoken {
    fn from(_: InvalidRequest) -> NotSpoken {
        NotSpoken::Key
    }
}

/// The reply of a server to an operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ServerReply<'a> {
    /// The reply to the operation.
    Reply(Reply<'a>),
    /// An error line, without its line end. A binary server has no such lines: the line is the text
    /// of the reply if it has this form, and otherwise states the status.
    Error(&'a [u8]),
}

/// The time of all replies. Servers report times relative to now, and a codec has no clock, so
/// expiries and accesses in replies count from this moment and have no meaning without it.
const REPLY_TIME: UnixSeconds = UnixSeconds(1 << 32);

/// Writes an operation as one request, which has one reply. Options without an effect on the reply
/// and the record, such as `silent`, are omitted if the dialect has none. `Noop` asks for a sign of
/// life.
///
/// ```
/// use todana_core::{Get, Operation, Reply, ReplyNeeds};
/// use todana_protocol::memcached::client::*;
///
/// let needs = ReplyNeeds { version: true, access: false };
/// let operation = Operation::Get(Get { key: b"a b", needs, ..Get::default() });
/// let mut out = Vec::new();
/// let asked = put_operation(ServerDialect::Meta, &operation, &mut out)?;
/// assert_eq!(out, b"mg YSBi b v f c\r\n");
/// let ServerReply::Reply(Reply::Hit(hit)) =
///     decode_reply_of(asked, b"VA 2 f5 c77\r\nhi\r\n").unwrap()
/// else {
///     panic!("a hit")
/// };
/// assert_eq!((hit.record.value, hit.record.attributes.version), (&b"hi"[..], 77));
/// # Ok::<(), NotSpoken>(())
/// ```
pub fn put_operation(
    dialect: ServerDialect,
    operation: &Operation<'_>,
    out: &mut Vec<u8>,
) -> Result<AskedReply, NotSpoken> {
    put_operation_for(dialect, operation, RecordFields::default(), out)
}

/// Writes an operation like [`put_operation`], with a choice of the fields to read. The choice
/// applies to `Get`, and its time to `Arithmetic`.
pub fn put_operation_for(
    dialect: ServerDialect,
    operation: &Operation<'_>,
    fields: RecordFields,
    out: &mut Vec<u8>,
) -> Result<AskedReply, NotSpoken> {
    let reads_time = matches!(operation, Operation::Get(_) | Operation::Arithmetic(_));
    if reads_time && fields.time_left != TimeLeft::Unread && dialect != ServerDialect::Meta {
        return Err(NotSpoken::Flag);
    }
    let start = out.len();
    let kind = match dialect {
        ServerDialect::Text => text::put(operation, fields, out),
        ServerDialect::Meta => meta::put(operation, fields, out),
        ServerDialect::Binary => binary::put(operation, fields, out),
    };
    kind.map(|kind| AskedReply { dialect, kind }).inspect_err(|_| out.truncate(start))
}

/// Decodes a reply, which must be complete.
///
/// Times in the reply are relative: compare them with the `now` of the same reply only. A field
/// that the dialect does not report has its default; the length after an append is then that of the
/// piece.
pub fn decode_reply_of(asked: AskedReply, reply: &[u8]) -> Result<ServerReply<'_>, MalformedReply> {
    match asked.dialect {
        ServerDialect::Text => text::decode_reply(asked.kind, reply),
        ServerDialect::Meta => meta::decode_reply(asked.kind, reply),
        ServerDialect::Binary => binary::decode_reply(asked.kind, reply),
    }
}

impl AskedKind {
    fn of_store(store: &Store<'_>) -> AskedKind {
        let value_len = u32::try_from(store.value.len()).unwrap_or(u32::MAX);
        AskedKind::Store { mode: store.mode, compares: store.compare.is_some(), value_len }
    }

    /// Returns the reply to an error line.
    fn error(self, line: &[u8]) -> ServerReply<'_> {
        let refusal = match (self, line) {
            (AskedKind::Store { .. }, b"SERVER_ERROR object too large for cache") => RefusalReason::TooLarge,
            // A read must stay an error: the text dialect would show this refusal as a miss.
            (
                AskedKind::Store { .. } | AskedKind::Arithmetic,
                b"SERVER_ERROR out of memory"
                | b"SERVER_ERROR out of memory storing object"
                | b"SERVER_ERROR Out of memory during read",
            ) => RefusalReason::OutOfMemory,
            (AskedKind::Arithmetic, b"CLIENT_ERROR cannot increment or decrement non-numeric value") => {
                RefusalReason::NonNumeric
            }
            _ => return ServerReply::Error(line),
        };
        ServerReply::Reply(Reply::Refused(refusal))
    }

    /// Returns the reply that says that there is no record.
    fn missing(self) -> Result<Reply<'static>, MalformedReply> {
        match self {
            AskedKind::Record { .. } | AskedKind::TouchedRecord | AskedKind::Inspection { .. } => {
                Ok(Reply::Miss)
            }
            AskedKind::Store { compares: false, mode: StoreMode::Set | StoreMode::Add, .. } => {
                Err(MalformedReply)
            }
            AskedKind::Store { mode: StoreMode::Append | StoreMode::Prepend, .. }
            | AskedKind::Store { compares: false, .. } => Ok(Reply::NotStored),
            AskedKind::Store { .. } | AskedKind::Delete | AskedKind::Arithmetic | AskedKind::Touch => {
                Ok(Reply::NotFound)
            }
            AskedKind::Flush | AskedKind::Noop => Err(MalformedReply),
        }
    }
}

/// Decodes the reply of a text or meta server that consists of a single response.
fn sole_response(reply: &[u8]) -> Result<ClientResponse<'_>, MalformedReply> {
    match decode(reply, usize::MAX)? {
        Some((len, response)) if len == reply.len() => Ok(response),
        _ => Err(MalformedReply),
    }
}

/// Returns the expiry of a record that lives for this number of seconds, or never expires.
fn expiry_in(seconds: Option<u64>) -> Expiry {
    seconds.map_or(Expiry::Never, |seconds| Expiry::At(UnixSeconds(REPLY_TIME.0.saturating_add(seconds))))
}

/// Returns the time this number of seconds ago.
fn time_ago(seconds: u64) -> UnixSeconds {
    UnixSeconds(REPLY_TIME.0.saturating_sub(seconds))
}

/// Returns a hit with these attributes.
fn hit_of(value: &[u8], attributes: Attributes) -> HitReply<'_> {
    HitReply {
        record: Record::new(value, attributes),
        expiry_before: attributes.expiry,
        access_before: attributes.access,
        recache: RecacheState::default(),
        now: REPLY_TIME,
    }
}

/// Returns the reply with a new number.
fn number_of(value: u64, version: u64) -> ArithmeticReply {
    let (expiry_before, expiry) = (Expiry::Never, Expiry::Never);
    ArithmeticReply { value, version, expiry_before, expiry, created: false, now: REPLY_TIME }
}

/// Returns true if a read has options that only the meta dialect has and that change its reply or
/// the record.
fn has_meta_options(get: &Get<'_>) -> bool {
    get.vivify.is_some() || get.recache_below_s.is_some() || get.version.is_some() || get.needs.access
}
