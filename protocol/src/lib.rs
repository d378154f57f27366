//! Wire formats without I/O. A server's codec decodes bytes to commands and encodes replies as
//! bytes. A client's codec does the reverse. This crate has no sockets, no clocks and no engines.
#![forbid(unsafe_code)]

pub mod freshness;
pub mod kyoto;
pub mod memcached;
pub mod replication;
pub mod trace_context;
pub mod tyrant;

pub use memcached::ReplySink;
