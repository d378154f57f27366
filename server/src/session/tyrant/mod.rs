//! Tokyo Tyrant's protocols: their session, on the first database of the server.
//!
//! ```text
//! session          serves the requests of a connection: decodes them in batches
//! session_state    the state of a connection, and the wait for its background job
//! operations       operations on the served database, for the commands of all modules
//! records          commands about records
//! misc             the functions of `misc`
//! fixed            stores records in databases whose keys are numbers
//! numbers          keys that are numbers, and their intervals
//! table            commands on tables
//! search           searches in tables
//! iterator         the iterator, which all connections share
//! key_slots        locks of keys, which calls of scripts and some commands take
//! background_call  commands that may take long, as background jobs
//! restorations     update logs that are applied again
//! scripts          functions of the server's script
//! copies           copies of the database
//! records_seen     searches through all records, in steps
//! replication      requests of replicas, and the master that the server follows
//! statistics       the text of `stat`
//! values           keys with several values
//! http             requests over HTTP
//! http_call        a call over HTTP whose reply comes from a background job
//! text             memcached's commands as a part of Tokyo Tyrant
//! counters         counters of requests by command
//! ```
//!
//! After a line of text the connection continues with the session of another dialect
//! ([`session`]). Not here: encoding (`protocol::tyrant`), and the effect of operations on records
//! (`todana`).

mod background_call;
mod cluster_task;
mod copies;
mod counters;
mod fixed;
mod http;
mod http_call;
mod iterator;
mod key_slots;
mod misc;
mod numbers;
mod operations;
mod records;
mod records_seen;
mod replication;
mod restorations;
mod scripts;
mod search;
mod session;
mod session_state;
mod statistics;
mod table;
pub(crate) mod text;
mod values;

pub(crate) use counters::TyrantCounters;
pub(crate) use scripts::TyrantScripts;
pub(crate) use session_state::{TyrantSession, TyrantWorker};

use crate::session::background_jobs::{BackgroundJobs, JobLimits};
use crate::shared::SharedState;
use iterator::{IteratorStep, SharedIterator};
use parking_lot::Mutex;
use search::SpareCounters;
use std::sync::Arc;
use todana_core::Record;

/// The version that clients see.
pub const VERSION: &str = "1.1.41";
/// The version of the library that clients see.
pub const LIBRARY_VERSION: u32 = 324;
/// The version of the protocol that clients see.
pub const PROTOCOL_VERSION: &str = "0.91";

/// The state that all workers share for Tokyo Tyrant's clients.
pub(crate) struct TyrantState {
    /// Commands that may take long.
    pub(crate) calls: Arc<BackgroundJobs>,
    /// Copies and restorations. They may take hours, so other commands do not wait for them.
    pub(crate) file_calls: Arc<BackgroundJobs>,
    /// The script.
    pub(crate) scripts: TyrantScripts,
    /// `None` before the first `iterinit`.
    iterator: Mutex<Option<SharedIterator>>,
    /// The counters of searches that remove rows.
    spare_counters: SpareCounters,
}

impl TyrantState {
    pub(crate) fn new(scripts: TyrantScripts) -> TyrantState {
        TyrantState {
            scripts,
            calls: BackgroundJobs::new("Tyrant call", background_call::LIMITS),
            file_calls: BackgroundJobs::new(
                "Tyrant copy",
                JobLimits { threads: 1, ..background_call::LIMITS },
            ),
            iterator: Mutex::default(),
            spare_counters: SpareCounters::default(),
        }
    }

    /// Moves the iterator to the first record. Always succeeds, also without records.
    fn restart_iterator(shared: &SharedState) -> bool {
        let iterator = SharedIterator::new(&shared.databases.primary().database);
        *shared.tyrant.iterator.lock() = Some(iterator);
        true
    }

    /// Does a step of the iterator. At the end, and if it was not started, there is no record.
    fn step_iterator(
        shared: &SharedState,
        see: &mut dyn FnMut(&[u8], Record<'_>),
    ) -> todana_core::Result<IteratorStep> {
        let mut iterator = shared.tyrant.iterator.lock();
        let database = &shared.databases.primary().database;
        iterator.as_mut().map_or(Ok(IteratorStep::End), |iterator| iterator.step(database, see))
    }
}
