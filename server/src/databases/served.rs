//! A database as all threads of a server use it: its name, its records, the state of its files, and
//! the state that was last logged.

use crate::options::DataDirectoryOptions;
use parking_lot::Mutex;
use std::sync::Arc;
use todana::update_log::DurabilityHealth;
use todana::{Database, Durability, Name, OpenDatabase};
use todana_core::{CheckpointedEngine, Error, ErrorKind, LONG_VALUE_LEN};

/// A database, shared by all threads of a server.
pub(crate) struct ServedDatabase {
    pub(crate) name: Name,
    pub(crate) database: Arc<Database>,
    pub(crate) data: Option<DataDirectoryOptions>,
    /// True if the engine offers memory into which long values are received.
    pub(crate) has_buffers: bool,
    /// Held while a command of `synchronize` has an image of the database, because two images would
    /// have one name.
    pub(crate) imaging: Mutex<()>,
    logged: Mutex<LoggedState>,
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
        // A buffer takes no memory before it is filled.
        let buffer = database.engine().buffer(LONG_VALUE_LEN);
        let has_buffers = !buffer.is_err_and(|error| error.kind() == ErrorKind::Invalid);
        ServedDatabase {
            name,
            database,
            data,
            has_buffers,
            imaging: Mutex::default(),
            logged: Mutex::default(),
        }
    }

    /// Returns the length from which values are received into memory of the engine. Shorter ones
    /// wait in the memory of the connection, which is bounded.
    pub(crate) fn long_block_len(&self) -> usize {
        if self.has_buffers { LONG_VALUE_LEN } else { usize::MAX }
    }

    /// Returns the bytes of the files that hold its records; 0 for a database in memory.
    pub(crate) fn disk_bytes(&self) -> u64 {
        let engine = self.database.engine();
        let of_tree = engine.checkpointed().map_or(0, CheckpointedEngine::file_bytes);
        engine.durable().map_or(of_tree, |durable| durable.disk_usage().bytes)
    }

    /// Returns the reason why the engine's own files refuse changes.
    pub(crate) fn refused_write(&self) -> Option<Error> {
        self.database.engine().durable().and_then(|files| files.refused_write_error())
    }

    /// Logs once that changes cannot be kept and once that they can again, because replies to
    /// clients give no reason.
    pub(crate) fn log_refusals(&self) {
        let health = self.database.durability().map_or(DurabilityHealth::Well, Durability::health);
        let mut logged = self.logged.lock();
        // A sync and a write of files may report the same cause in different words.
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
            DurabilityHealth::Well => tracing::info!(database, "changes are taken again"),
            DurabilityHealth::Stuck(why) => {
                tracing::error!(database, "changes are refused until they can be kept: {why}");
            }
            DurabilityHealth::Lost(why) => {
                tracing::error!(database, "changes are refused until a restart: {why}")
            }
        }
        logged.health = health;
    }

    /// Logs once why maintenance of the engine's own files cannot go on, and which damaged records
    /// are gone.
    pub(crate) fn log_damage(&self) {
        let engine = self.database.engine();
        let Some(files) = engine.durable() else { return self.log_damage_of_tree() };
        let (trouble, damaged) = (files.maintenance_error(), files.damaged_records());
        let mut logged = self.logged.lock();
        let (label, trouble) = (self.name.label(), trouble.map(|error| error.to_string()));
        // The record comes first, because maintenance continues once the damaged record is removed.
        if let Some((count, last)) = damaged.filter(|(count, _)| *count != logged.damaged_records) {
            let gone = count - logged.damaged_records;
            tracing::error!(
                database = label,
                records = gone,
                "damaged records were overwritten or removed: {last}"
            );
            logged.damaged_records = count;
        }
        if trouble != logged.trouble {
            match &trouble {
                Some(why) => tracing::error!(database = label, "housekeeping cannot go on: {why}"),
                None => tracing::info!(database = label, "housekeeping goes on"),
            }
            logged.trouble = trouble;
        }
    }

    /// Logs new damaged records of a tree on disk. A tree's maintenance has no failures of its own.
    fn log_damage_of_tree(&self) {
        let Some((count, last)) = self.damaged_records() else { return };
        let mut logged = self.logged.lock();
        if count != logged.damaged_records {
            let records = count - logged.damaged_records;
            tracing::error!(database = self.name.label(), records, "damaged records were met: {last}");
            logged.damaged_records = count;
        }
    }

    /// Returns the number of damaged records since the start, and the reason of the last one. For a
    /// hash they are those that were overwritten or removed, for a tree all that were read.
    pub(crate) fn damaged_records(&self) -> Option<(u64, Error)> {
        let engine = self.database.engine();
        match engine.durable() {
            Some(files) => files.damaged_records(),
            None => engine.checkpointed()?.damaged_records(),
        }
    }

    /// Returns true if the engine keeps records in files, whose damage and failures are reported.
    pub(crate) fn has_files(&self) -> bool {
        let engine = self.database.engine();
        engine.durable().is_some() || engine.checkpointed().is_some()
    }

    /// Returns why maintenance or checkpoints of its files fail.
    pub(crate) fn trouble(&self) -> Option<String> {
        let of_files = self.database.engine().durable().and_then(|files| files.maintenance_error());
        let of_tree =
            || self.database.has_stuck_checkpoints().then(|| "no checkpoint can be made".to_string());
        of_files.map(|trouble| trouble.to_string()).or_else(of_tree)
    }
}
