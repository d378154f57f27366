//! memcached's dialects, executed.
//!
//! ```text
//! session   one connection's session
//! service   commands: those about data go to the database, the server's own stay here
//! upload    long values on their way in
//! listing   answers that need a walk over all records
//! crawler   the settings of `lru_crawler`
//! ```

pub(crate) mod crawler;
pub(crate) mod listing;
pub(crate) mod service;
pub(crate) mod session;
pub(crate) mod upload;
