//! Wire formats without I/O: bytes in, commands out; replies in, bytes out. No sockets, no clocks,
//! no engines.
#![forbid(unsafe_code)]

pub mod kyoto;
pub mod memcached;

pub use memcached::ReplySink;
