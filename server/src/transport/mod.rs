//! Transport: sockets, connections and workers.
//!
//! ```text
//! addresses, descriptors   listen addresses, and the limit of open files
//! listener, acceptor       sockets; new connections for the workers
//! served_listener          a listener and its clients
//! worker                   one loop, which owns its connections
//! client_ring              the io_uring of a worker, if the system allows it
//! connection, output       a connection, and its bytes to send
//! refused_replies          errors in place of replies that replicas have not confirmed
//! idle                     detection of idle connections
//! tls, udp                 TLS, and UDP
//! ```

pub(crate) mod acceptor;
pub(crate) mod addresses;
pub(crate) mod client_ring;
pub(crate) mod connection;
pub(crate) mod descriptors;
pub(crate) mod idle;
pub(crate) mod listener;
pub(crate) mod output;
pub(crate) mod refused_replies;
pub(crate) mod served_listener;
pub(crate) mod tls;
pub(crate) mod udp;
pub(crate) mod worker;
