//! Connections to a server, and the choice of a server by the hash of a key.
//!
//! ```text
//! address      host:port, todana://host:port, todanas://host:port (TLS), unix:/path
//! destination  an address with a user and a password
//! login        login by the token of memcached's text dialect
//! socket       a blocking stream with timeouts, in plain text or over TLS
//! connection   requests and replies in the text dialect, or the meta dialect if the key needs it
//! ring         which server of a list holds a key
//! ring_destination, ring_connection  servers with their ring, and connections to all of them
//! pool         connections that never block, for event loops
//! ```
//!
//! Not here: wire formats (see `protocol`).
#![forbid(unsafe_code)]

mod address;
mod connection;
mod destination;
mod error;
mod login;
pub mod pool;
pub mod ring;
mod ring_connection;
mod ring_destination;
mod socket;
mod tls;
mod tls_error;

pub use address::{Address, InvalidAddress};
pub use connection::{
    CompletedCheckpoint, Connection, ExportFrame, FetchedRecord, FoundRecord, LogFrom, LogHeader,
    WriteOutcome, cannot_connect, needs_base64,
};
pub use destination::LoginDestination;
pub use error::{Error, RefusedRequest};
pub use login::{InvalidLogin, Login};
pub use ring_connection::RingConnection;
pub use ring_destination::RingDestination;
pub use socket::SocketTimeouts;
pub use tls::{Tls, TlsFiles, TlsStream};
pub use todana_protocol::memcached::client::{InvalidRequest, RefusalKind, StoreVerb, TextFetch, TextStore};
