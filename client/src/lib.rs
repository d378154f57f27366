//! Connections to a server: what the command line, the load generator and (later) the proxy stand on.
//!
//! Not here: wire formats (`protocol`), pools and rings (their first user is not there yet).
#![forbid(unsafe_code)]

mod address;
mod connection;

pub use address::{Address, InvalidAddress};
pub use connection::{Connection, Error, Item, Outcome};
pub use todana_protocol::memcached::client::{Store, Verb};
