//! Wire formats, sans-io: bytes in, commands out; replies in, bytes out. No sockets, no clocks, no engines.
#![forbid(unsafe_code)]

pub mod kyoto;
pub mod memcached;

pub use memcached::Sink;
