//! Connections to a server: what the command line, the load generator and (later) the proxy stand on.
//!
//! ```text
//! address      host:port, todana://host:port, todanas://host:port (TLS), unix:/path
//! destination  an address, and who one is there
//! login        saying that, by memcached's token
//! socket       a blocking stream with timeouts, in the clear or over tls
//! connection   requests and their replies over it, in the text dialect (in meta where text cannot carry a key)
//! ```
//!
//! Not here: wire formats (`protocol`), pools and rings (their first user is not there yet).
#![forbid(unsafe_code)]

mod address;
mod connection;
mod destination;
mod error;
mod login;
mod socket;
mod tls;
mod tls_error;

pub use address::{Address, InvalidAddress};
pub use connection::{
    Connection, Found, Frame, Item, LogFrom, LogHead, Made, Outcome, cannot_connect, needs_base64,
};
pub use destination::Destination;
pub use error::{Error, Refusal};
pub use login::{InvalidLogin, Login};
pub use socket::Timeouts;
pub use tls::{Tls, TlsFiles, TlsStream};
pub use todana_protocol::memcached::client::{Fetch, Invalid, RefusalKind, Store, Verb};
