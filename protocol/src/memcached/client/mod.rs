//! The client side of memcached's dialects: writes requests and decodes replies.
//!
//! ```text
//! request     checks of keys, and errors of requests that cannot be sent
//! text        get, set, incr ... -> bytes
//! meta        mg, ms, md, ma, me, with their flags -> bytes
//! reply       bytes -> replies of both dialects, distinguished by their first word
//! packet      packets of the binary dialect
//! operation   operations -> requests of any dialect; their replies
//! statistics  requests for statistics; their replies
//! handshake   the question which dialect a server knows, and logins
//! ```
//!
//! Invariants:
//! - A request is checked before it is written. A refused request leaves the buffer unchanged, so a
//!   key cannot inject another command.
//! - Replies borrow from the input, and the input may be split anywhere.
//!
//! Not here: sockets and timeouts (see the `client` crate), and the assignment of replies to
//! requests. Replies arrive in the order of the requests.
//!
//! ```
//! use todana_protocol::memcached::client::*;
//!
//! let mut out = Vec::new();
//! put_words(&mut out, "get", &[b"cart:17"])?;
//! MetaRequest::get(&mut out, b"cart:18")?.want(MetaField::Value).ttl(60).end()?;
//! assert_eq!(out, b"get cart:17\r\nmg cart:18 v T60\r\n");
//!
//! let replies = b"VALUE cart:17 0 3\r\n2 x\r\nEND\r\n";
//! let (len, reply) = decode(replies, 1 << 20).unwrap().unwrap();
//! let expected =
//!     ClientResponse::Value { key: b"cart:17", flags: 0, version: None, value: b"2 x" };
//! assert_eq!(reply, expected);
//! assert_eq!(decode(&replies[len..], 1 << 20), Ok(Some((5, ClientResponse::Line(b"END")))));
//! # Ok::<(), InvalidRequest>(())
//! ```

#[cfg(test)]
mod exchange;
mod handshake;
mod meta;
mod operation;
mod packet;
mod reply;
mod request;
mod statistics;
mod text;

pub use handshake::{
    DetectedServer, LoginReply, decode_login_reply, detected_server, put_detection, put_login, put_version,
};
pub use meta::{MetaField, MetaRequest};
pub use operation::{
    AskedReply, NotSpoken, RecordFields, ServerDialect, ServerReply, TimeLeft, decode_reply_of,
    put_operation, put_operation_for,
};
pub use packet::{binary_reply_len, packet_opaque, refuses_vbucket, set_packet_opaque, set_packet_vbucket};
pub use reply::{ClientResponse, MalformedReply, MetaFlags, RefusalKind, ServerRefusal, decode};
pub use request::{InvalidRequest, KEY_LEN_MAX, check_key};
pub use statistics::{ServerStatistic, put_statistics, statistics_of};
pub use text::{StoreVerb, TextFetch, TextStore, put_get, put_line, put_store, put_words};
