//! Bytes in and out: who connects, what is read and written, and when.
//!
//! ```text
//! addresses, descriptors   where to listen, and how many files that takes
//! listener, acceptor       sockets; connections in turn to the workers
//! worker                   one readiness loop, which owns its connections
//! connection, output       one of them, and what it has to send
//! idle                     connections that nobody uses
//! tls, udp                 the same encrypted, and by datagrams
//! ```

pub(crate) mod acceptor;
pub(crate) mod addresses;
pub(crate) mod connection;
pub(crate) mod descriptors;
pub(crate) mod idle;
pub(crate) mod listener;
pub(crate) mod output;
pub(crate) mod tls;
pub(crate) mod udp;
pub(crate) mod worker;
