//! The server's side of memcached's binary protocol: packets in, commands out; replies in, packets out.
//!
//! ```text
//! header   the 24 bytes before every packet
//! opcode   what a packet asks for, and the shape that it must have
//! decode   packet -> command
//! form     what a reply must know of its packet
//! status   how a packet went, and the text that says so
//! reply    replies -> packets
//! ```
//!
//! Always true, as of the text dialect: commands and forms borrow from the input and nothing is copied; the decoder keeps
//! a few words and no buffer; however the input is cut into pieces, the same requests come out; a body that is not
//! wanted is dropped as it arrives.
//!
//! Not here: which dialect a connection speaks (see [`Choice`](super::Choice)), what commands mean, who may say what.

mod decode;
mod form;
mod header;
mod opcode;
mod reply;
mod status;

pub(in crate::memcached) use decode::{Place, decode, decode_block, head};
pub(in crate::memcached) use form::BinaryForm;
pub(in crate::memcached) use header::REQUEST_MAGIC;
pub(in crate::memcached) use reply::encode;
