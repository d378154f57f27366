//! Kyoto Tycoon's protocols: sessions and procedures.
//!
//! ```text
//! session     what a connection keeps: cursors, a bulk request under way, what it waits for
//! dispatcher  decodes requests and gives each to its procedure
//! scope       what the requests of a worker get at
//! answers     what goes back, and failures that procedures share
//! procedures  calls: those about records ...
//! cursors     ... those about a cursor
//! cursor_table the cursors of a connection, within a bound
//! work        ... and those that take long: all keys, all that is dead, a disk
//! pattern     regular expressions of POSIX
//! command     programs that `synchronize` runs
//! image       ... on a backup of the database in one file
//! answer_memory  long answers: their memory, counted, bounded and waited for
//! background_call  ... as background jobs
//! signals     connections that wait for a name
//! resources   REST
//! bulk_calls  bulk calls of HTTP
//! bulk        the binary protocol's bulk requests, record by record
//! scripts     procedures in Lua, which the crate `script` runs
//! state       what all workers share
//! plugin      memcached's clients, as the plug-in server treats them
//! queues      ... and the messages that they leave for each other
//! plugin_flags  flags of memcached's clients, after the value
//! replication whom the server follows, and its update log
//! report      what the server and its databases tell of themselves
//! counters    what has been asked for
//! ```
//!
//! Not here: encoding (`protocol::kyoto`), and the effect of operations on records (`todana`).

mod answer_memory;
mod answers;
mod background_call;
mod bulk;
mod bulk_calls;
mod command;
mod counters;
mod cursor_table;
mod cursors;
mod dispatcher;
mod image;
mod plugin;
mod plugin_flags;
mod procedures;
mod queues;
mod replication;
mod report;
mod resources;
mod scope;
mod scripts;
mod session;
mod signals;
mod state;
mod work;

pub(crate) use answer_memory::STALL;
pub(crate) use counters::{Counters, Sums};
pub(crate) use dispatcher::KyotoWorker;
pub(crate) use plugin::PluginCounters;
pub(crate) use queues::PluginSession;
pub(crate) use scripts::Scripts;
pub(crate) use session::KyotoSession;
pub(crate) use state::KyotoState;

/// The version that clients see, by which they choose features.
pub const VERSION: &str = "0.9.56";
