//! The server side of memcached's binary protocol: packets in, commands out; replies in, packets
//! out.
//!
//! ```text
//! header   the 24 bytes before every packet
//! opcode   the meaning of each opcode, and the shape of its packets
//! decode   packet -> command
//! form     properties of a packet that its reply depends on
//! status   the status of a response, and its text
//! reply    replies -> packets
//! ```
//!
//! Invariants, as for the text dialect: commands and forms borrow from the input and nothing is
//! copied; the decoder keeps a few words and no buffer; the requests do not depend on how the input
//! is split; an unwanted body is discarded as it arrives.
//!
//! Not here: the choice of dialect for a connection (see [`DialectChoice`](super::DialectChoice)),
//! the meaning of commands, and permissions.

mod decode;
mod form;
mod header;
mod opcode;
mod reply;
mod status;

pub(in crate::memcached) use decode::{PacketPosition, decode, decode_block, head};
pub(in crate::memcached) use form::BinaryForm;
pub(in crate::memcached) use header::REQUEST_MAGIC;
pub(in crate::memcached) use reply::encode;
