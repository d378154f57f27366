//! memcached's dialects, executed.
//!
//! ```text
//! session   one connection's session: batches of requests
//! commands  commands: those about records go to the executor, the server's own are answered here
//! upload    long values on their way in
//! listing   answers that need a walk over all records
//! watcher   a connection that is sent events
//! export    a connection that is sent a backup, a checkpoint or the update log
//! crawler   the settings of `lru_crawler`
//! ```

pub(crate) mod commands;
pub(crate) mod crawler;
pub(crate) mod export;
pub(crate) mod listing;
pub(crate) mod session;
pub(crate) mod upload;
pub(crate) mod watcher;
