//! Sessions: requests decoded, executed and answered, by dialect.
//!
//! ```text
//! any        the session of a connection, of whichever dialect
//! flow       how a request is executed, and how its connection goes on after it
//! memcached  memcached's dialects
//! kyoto      Kyoto Tycoon's protocols
//! tickets    who waits for which signal or background call, and how long
//! login      who may log in, for all of them
//! ```

pub(crate) mod any;
pub(crate) mod flow;
pub(crate) mod kyoto;
pub(crate) mod login;
pub(crate) mod memcached;
pub(crate) mod tickets;
