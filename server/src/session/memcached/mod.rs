//! memcached's dialects: sessions and commands.
//!
//! ```text
//! session   one connection's session: batches of requests
//! commands  operations, which go to the executor, and commands about the server
//! upload    long values, received directly into their final memory
//! listing   replies that walk over all records
//! watcher   a connection that receives events
//! export    a connection that receives a backup, a checkpoint or the update log
//! crawler   the state of `lru_crawler`
//! ```

pub(crate) mod commands;
pub(crate) mod crawler;
pub(crate) mod export;
pub(crate) mod listing;
pub(crate) mod session;
pub(crate) mod upload;
pub(crate) mod watcher;
