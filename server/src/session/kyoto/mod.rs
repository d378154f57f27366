//! Kyoto Tycoon's protocols: sessions and procedures.
//!
//! ```text
//! session          the state of a connection: cursors, the current bulk request, its wait
//! dispatcher       decodes requests and passes each to its procedure
//! call_context     databases by name, counters and options for the calls of a worker
//! answers          answers, and failures that procedures share
//! procedures       calls about one record, and about the server
//! bulk_calls       calls about several records
//! cursors          calls about a cursor
//! cursor_table     the cursors of a connection, within a bound
//! long_call        calls that may take long: searches, removal of expired records, synchronization
//! background_call  long calls as background jobs
//! command          programs that `synchronize` runs
//! database_image   the backup of a database in one file, for these programs
//! answer_memory    the memory of long answers
//! signals          connections that wait for a name
//! resources        REST
//! bulk             the binary protocol's bulk requests, record by record
//! scripts          procedures in Lua, which the crate `script` runs
//! state            the state that all workers share
//! plugin           memcached's clients, as Kyoto Tycoon's plug-in serves them
//! plugin_flags     their flags, after the value
//! queues           their message queues
//! replication      the master of the server, and its update log
//! report           reports of the server and its databases
//! counters         counters of requests
//! ```
//!
//! Not here: encoding (`protocol::kyoto`), and the effect of operations on records (`todana`).

mod answer_memory;
mod answers;
mod background_call;
mod bulk;
mod bulk_calls;
mod call_context;
#[cfg(feature = "cassandra")]
mod cluster_cursors;
mod command;
mod counters;
mod cursor_table;
mod cursors;
mod database_image;
mod dispatcher;
mod long_call;
mod plugin;
mod plugin_flags;
mod procedures;
mod queues;
mod replication;
mod report;
mod resources;
mod scripts;
mod session;
mod signals;
mod state;

pub(crate) use answer_memory::STALL;
pub(crate) use counters::{KyotoCounters, KyotoSums};
pub(crate) use dispatcher::KyotoWorker;
pub(crate) use plugin::PluginCounters;
pub(crate) use queues::PluginSession;
pub(crate) use scripts::LuaProcedures;
pub(crate) use session::KyotoSession;
pub(crate) use state::KyotoState;

/// The version of Kyoto Tycoon that the server reports. Clients choose features by it.
pub const VERSION: &str = "0.9.56";
