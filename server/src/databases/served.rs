//! Defines a database as all threads of a server share it: its name, its records, the state of its
//! files, and the state that was last logged.

use crate::observation::hot_keys::HotKeys;
use crate::options::DataDirectoryOptions;
use parking_lot::Mutex;
use std::sync::Arc;
#[cfg(feature = "cassandra")]
use std::sync::OnceLock;
use todana::update_log::DurabilityHealth;
use todana::{Database, DatabaseName, Durability, OpenDatabase};
#[cfg(feature = "cassandra")]
use todana_core::Result;
use todana_core::{CheckpointedEngine, Error, ErrorKind, LONG_VALUE_LEN};

/// A database, shared by all threads of a server.
pub(crate) struct ServedDatabase {
    pub(crate) name: DatabaseName,
    pub(crate) database: Arc<Database>,
    pub(crate) data: Option<DataDirectoryOptions>,
    /// True if the engine can provide memory into which long values are received.
    pub(crate) has_buffers: bool,
    /// The lock that a command of `synchronize` holds while it has an image of the database. Two
    /// images at a time would have the same name.
    pub(crate) image_turn: Mutex<()>,
    /// The keys that are requested most.
    pub(crate) hot_keys: HotKeys,
    logged: Mutex<LoggedState>,
    /// The connection to the cluster, once it is open, if the records are on one.
    #[cfg(feature = "cassandra")]
    remote: OnceLock<todana_remote::RemoteDatabase>,
}

/// The state of a database's files as it was last logged.
#[derive(Default)]
struct LoggedState {
    trouble: Option<String>,
    health: DurabilityHealth,
    damaged_records: u64,
}

impl ServedDatabase {
    pub(crate) fn new(owner: &OpenDatabase, data: Option<DataDirectoryOptions>) -> ServedDatabase {
        let (name, database) = (owner.name().clone(), Arc::clone(owner.database()));
        // An unfilled buffer takes no memory, so this test of the engine costs nothing.
        let buffer = database.engine().buffer(LONG_VALUE_LEN);
        let has_buffers = !buffer.is_err_and(|error| error.kind() == ErrorKind::Invalid);
        ServedDatabase {
            name,
            database,
            data,
            has_buffers,
            image_turn: Mutex::default(),
            hot_keys: HotKeys::default(),
            logged: Mutex::default(),
            #[cfg(feature = "cassandra")]
            remote: OnceLock::new(),
        }
    }

    /// Returns true if the records are on a cluster.
    pub(crate) fn is_on_cluster(&self) -> bool {
        self.name.cluster.is_some()
    }

    /// Connects to the cluster that holds the records; does nothing if they are not on one.
    #[cfg(feature = "cassandra")]
    pub(crate) fn connect(&self) -> Result<()> {
        if self.is_on_cluster() && self.remote.get().is_none() {
            let _ = self.remote.set(todana_remote::RemoteDatabase::open(&self.name)?);
        }
        Ok(())
    }

    /// Returns the database on a cluster, once it is connected.
    #[cfg(feature = "cassandra")]
    pub(crate) fn remote(&self) -> Option<&todana_remote::RemoteDatabase> {
        self.remote.get()
    }

    /// Returns the length from which on values are received into memory of the engine. Shorter
    /// values are received into memory of the connection, which is limited.
    pub(crate) fn long_block_len(&self) -> usize {
        if self.has_buffers { LONG_VALUE_LEN } else { usize::MAX }
    }

    /// Returns the size of the files that hold the records; 0 for a database in memory.
    pub(crate) fn disk_bytes(&self) -> u64 {
        let engine = self.database.engine();
        let of_tree = engine.checkpointed().map_or(0, CheckpointedEngine::file_bytes);
        engine.durable().map_or(of_tree, |durable| durable.disk_usage().bytes)
    }

    /// Returns the reason why the engine's own files refuse changes.
    pub(crate) fn refused_write(&self) -> Option<Error> {
        self.database.engine().durable().and_then(|files| files.refused_write_error())
    }

    /// Logs one line when changes can no longer be stored, and one when they can be stored again.
    /// The lines give the reason, which replies to clients do not show.
    pub(crate) fn log_refusals(&self) {
        let health = self.database.durability().map_or(DurabilityHealth::Well, Durability::health);
        let mut logged = self.logged.lock();
        // The health of a database after a failed sync and after a failed write may state the same
        // cause in different words.
        let is_same = match (&health, &logged.health) {
            (DurabilityHealth::Stuck(_), DurabilityHealth::Stuck(_))
                if self.database.engine_sync().is_some() =>
            {
                true
            }
            (now, before) => now == before,
        };
        if is_same {
            return;
        }
        let database = self.name.label();
        match &health {
            DurabilityHealth::Well => tracing::info!(database, "writes: accepted again"),
            DurabilityHealth::Stuck(why) => {
                tracing::error!(database, "writes: refused until they can be stored: {why}");
            }
            DurabilityHealth::Lost(why) => {
                tracing::error!(database, "writes: refused until a restart: {why}")
            }
        }
        logged.health = health;
    }

    /// Logs once why maintenance of the engine's own files cannot continue. Also logs how many
    /// damaged records were overwritten or removed.
    pub(crate) fn log_damage(&self) {
        let engine = self.database.engine();
        let Some(files) = engine.durable() else { return self.log_damage_of_tree() };
        let (trouble, damaged) = (files.maintenance_error(), files.damaged_records());
        let mut logged = self.logged.lock();
        let (label, trouble) = (self.name.label(), trouble.map(|error| error.to_string()));
        // The damaged record is logged first, because its removal lets maintenance continue.
        if let Some((count, last)) = damaged.filter(|(count, _)| *count != logged.damaged_records) {
            let gone = count - logged.damaged_records;
            tracing::error!(
                database = label,
                records = gone,
                "damaged records: overwritten or removed; the last one: {last}"
            );
            logged.damaged_records = count;
        }
        if trouble != logged.trouble {
            match &trouble {
                Some(why) => tracing::error!(database = label, "maintenance: cannot continue: {why}"),
                None => tracing::info!(database = label, "maintenance: continues"),
            }
            logged.trouble = trouble;
        }
    }

    /// Logs newly found damaged records of a tree on disk. Unlike a hash, a tree has no maintenance
    /// that could fail.
    fn log_damage_of_tree(&self) {
        let Some((count, last)) = self.damaged_records() else { return };
        let mut logged = self.logged.lock();
        if count != logged.damaged_records {
            let records = count - logged.damaged_records;
            tracing::error!(
                database = self.name.label(),
                records,
                "damaged records: found; the last one: {last}"
            );
            logged.damaged_records = count;
        }
    }

    /// Returns the number of damaged records since the start, and the error of the last one. A hash
    /// counts the damaged records that were overwritten or removed. A tree counts all damaged
    /// records that were read.
    pub(crate) fn damaged_records(&self) -> Option<(u64, Error)> {
        let engine = self.database.engine();
        match engine.durable() {
            Some(files) => files.damaged_records(),
            None => engine.checkpointed()?.damaged_records(),
        }
    }

    /// Returns true if the engine keeps records in files of its own, whose damage and failures are
    /// reported.
    pub(crate) fn has_files(&self) -> bool {
        let engine = self.database.engine();
        engine.durable().is_some() || engine.checkpointed().is_some()
    }

    /// Returns the reason why maintenance or checkpoints of the engine's files fail. Returns `None`
    /// if they succeed.
    pub(crate) fn trouble(&self) -> Option<String> {
        let of_files = self.database.engine().durable().and_then(|files| files.maintenance_error());
        let of_tree =
            || self.database.has_stuck_checkpoints().then(|| "checkpoints cannot be created".to_string());
        of_files.map(|trouble| trouble.to_string()).or_else(of_tree)
    }
}
