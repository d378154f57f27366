//! The server side of memcached's binary protocol: decodes packets to commands, and encodes replies
//! as packets.
//!
//! ```text
//! header   the 24 bytes before every packet
//! opcode   the meaning of each opcode, and the lengths that its packets may have
//! decode   packet -> command
//! form     the properties of a packet on which its reply depends
//! status   the status of a response, and its text
//! reply    reply -> packets
//! ```
//!
//! Invariants, as for the text dialect:
//! - Commands and forms borrow from the input, and nothing is copied.
//! - The decoder is a few words of state and has no buffer.
//! - The requests do not depend on how the input is split.
//! - An unwanted body is discarded as it arrives.
//!
//! Not here: the choice of dialect for a connection (see [`DialectChoice`](super::DialectChoice)),
//! the meaning of commands, and permissions.

mod decode;
mod form;
mod header;
mod opcode;
mod reply;
mod status;

pub(in crate::memcached) use decode::{PacketPosition, decode, decode_block, head, skip_discarded};
pub(in crate::memcached) use form::BinaryForm;
pub(in crate::memcached) use header::{HEADER_LEN, PacketHeader, REQUEST_MAGIC, RESPONSE_MAGIC};
pub(in crate::memcached) use reply::{encode, put_failure};
pub(in crate::memcached) use status::PacketStatus;
