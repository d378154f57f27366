//! The client's side of memcached's text and meta dialects: requests out, replies in.
//!
//! ```text
//! request   what cannot be sent, and why; keys
//! text      get, set, incr ... -> bytes
//! meta      mg, ms, md, ma, me, with their flags -> bytes
//! reply     bytes -> replies, of both dialects: their first word tells them apart
//! ```
//!
//! Always true: a request is checked before it is written, and one that is refused leaves the buffer as it was, so a
//! key cannot smuggle in another command; replies borrow from the input; what has come may be cut anywhere.
//!
//! Not here: sockets and timeouts (see the `client` crate), which reply belongs to which request (they come in order).
//!
//! ```
//! use todana_protocol::memcached::client::{Meta, Response, Want, decode, put_words};
//!
//! let mut out = Vec::new();
//! put_words(&mut out, "get", &[b"cart:17"])?;
//! Meta::get(&mut out, b"cart:18")?.want(Want::Value).ttl(60).end()?;
//! assert_eq!(out, b"get cart:17\r\nmg cart:18 v T60\r\n");
//!
//! let replies = b"VALUE cart:17 0 3\r\n2 x\r\nEND\r\n";
//! let (len, reply) = decode(replies, 1 << 20).unwrap().unwrap();
//! assert_eq!(reply, Response::Value { key: b"cart:17", flags: 0, version: None, value: b"2 x" });
//! assert_eq!(decode(&replies[len..], 1 << 20), Ok(Some((5, Response::Line(b"END")))));
//! # Ok::<(), todana_protocol::memcached::client::Invalid>(())
//! ```

#[cfg(test)]
mod exchange;
mod meta;
mod reply;
mod request;
mod text;

pub use meta::{Meta, Want};
pub use reply::{Malformed, MetaFlags, Refusal, RefusalKind, Response, decode};
pub use request::{Invalid, KEY_LEN_MAX, check_key};
pub use text::{Fetch, Store, Verb, put_get, put_line, put_store, put_words};
