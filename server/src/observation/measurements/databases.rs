//! Defines the figures of each database and of each replica.

use super::table;
use crate::databases::ServedDatabase;
use crate::replica::ConnectedReplica;
use crate::shared::SharedState;
use std::sync::Arc;
use todana::DataDirectory;
use todana::table::visible_records;
use todana::update_log::{DurabilityHealth, UpdateLog};
use todana_core::{CheckpointedEngine, EngineStatus};

/// The figures of a database, read once for all its rows.
pub(crate) struct DatabaseReadings {
    pub(crate) number: usize,
    status: EngineStatus,
    directory: Option<Arc<DataDirectory>>,
}

impl DatabaseReadings {
    /// Reads the figures of a database. Returns `None` if there is no database with this number.
    pub(crate) fn read(shared: &SharedState, number: usize) -> Option<DatabaseReadings> {
        let database = &shared.databases.get(number)?.database;
        let status = EngineStatus { records: visible_records(database), ..database.status() };
        Some(DatabaseReadings { number, status, directory: shared.persistence.exports.directory(number) })
    }

    /// Reads the figures of all databases.
    pub(crate) fn all(shared: &SharedState) -> impl Iterator<Item = DatabaseReadings> {
        (0..).map_while(|number| DatabaseReadings::read(shared, number))
    }

    pub(crate) fn served<'s>(&self, shared: &'s SharedState) -> &'s ServedDatabase {
        &shared.databases[self.number]
    }
}

table! { DATABASES, "Databases",
    "`stats databases` shows these rows for each database, with its number as a prefix, as in\n\
     `0:records`. `stats databases NAME` shows those of one database.",
    |s, d: DatabaseReadings|
    "name", _, _, Gauge, "Name of the database." => d.served(s).name.label();
    "kind", _, _, Gauge, "Kind of the database, for example `mem:hash`." => d.served(s).name.kind.word();
    "records", _, "todana_database_records", Gauge, "Records of a database, by its name." => d.status.records;
    "bytes", _, "todana_database_bytes", Gauge, "Bytes of the records as stored." => d.status.live_bytes;
    "plain_bytes", _, "todana_database_plain_bytes", Gauge, "Bytes of keys and values as clients see them." =>
        plain_bytes(&d.status);
    "key_shapes", _, "todana_database_key_shapes", Gauge, "Key shapes with which keys are stored (a hash in memory)." =>
        d.status.encoding.key_shapes;
    "dictionaries", _, "todana_database_dictionaries", Gauge, "Dictionaries with which values are stored (a hash in memory)." =>
        d.status.encoding.dictionaries;
    "dictionary_bytes", _, "todana_database_dictionary_bytes", Gauge, "Memory of these dictionaries." =>
        d.status.encoding.dictionary_bytes;
    "compressed_values", _, "todana_database_compressed_values", Gauge, "Values above 64 KiB that are compressed (in memory)." =>
        d.status.encoding.compressed_values;
    "compressed_plain_bytes", _, "todana_database_compressed_plain_bytes", Gauge, "Bytes of these values as clients see them." =>
        d.status.encoding.compressed_plain_bytes;
    "compressed_bytes", _, "todana_database_compressed_bytes", Gauge, "Bytes of these values as stored." =>
        d.status.encoding.compressed_stored_bytes;
    "memory_bytes", _, "todana_database_memory_bytes", Gauge, "Memory that the engine holds." => d.status.committed_bytes;
    "disk_bytes", _, "todana_database_disk_bytes", Gauge, "Bytes of the engine's files; 0 in memory." =>
        d.served(s).disk_bytes();
    "evictions", _, "todana_database_evictions_total", Counter, "Records evicted." => d.status.evictions;
    "takes_writes", _, "todana_database_takes_writes", Gauge, "0 while changes cannot be written to disk." =>
        takes_writes(d.served(s));
    "refused_writes", _, "todana_database_refused_writes_total", Counter, "Writes refused because changes could not be written to disk." =>
        d.served(s).database.counters().log_refusals;
    "health", _, _, Gauge, "`well`, `stuck` or `lost`, for databases that are kept on disk." => health(d.served(s));
    "pending_bytes", _, _, Gauge, "Memory of changes that wait for a checkpoint (a tree on disk)." =>
        health(d.served(s)).map(|_| pending_bytes(d.served(s)));
    _, _, "todana_database_pending_bytes", Gauge, "Memory of changes that wait for a checkpoint (a tree on disk)." =>
        pending_bytes(d.served(s));
    "damaged_records", _, "todana_database_damaged_records_total", Counter,
        "Damaged records: of a hash on disk those that were overwritten or removed, of a tree on disk those that were read, each counted once." =>
        d.served(s).has_files().then(|| d.served(s).damaged_records().map_or(0, |(count, _)| count));
    "last_damage", _, _, Gauge, "File and reason of the last damaged record; for a hash also its offset." =>
        d.served(s).damaged_records().filter(|_| d.served(s).has_files()).map(|(_, last)| last.to_string());
    "trouble", _, _, Gauge, "Reason why maintenance of the files, or the checkpoint of a tree, fails." =>
        d.served(s).trouble().filter(|_| d.served(s).has_files()).map(|trouble| trouble.to_string());
    _, _, "todana_database_in_trouble", Gauge,
        "1 while maintenance of a hash on disk cannot continue, because compaction found damage or the disk is full, or while no checkpoint of a tree on disk can be created." =>
        d.served(s).has_files().then(|| d.served(s).trouble().is_some());
    "log_bytes", _, "todana_database_log_bytes", Gauge, "Bytes of the update log on disk." =>
        d.directory.as_ref().map(|directory| directory.footprint().log_bytes);
    "checkpoints_made", _, "todana_database_checkpoints_made_total", Counter, "Checkpoints created." =>
        d.directory.as_ref().map(|directory| directory.history().written);
    "checkpoints_failed", _, "todana_database_checkpoints_failed_total", Counter, "Checkpoints that failed." =>
        d.directory.as_ref().map(|directory| directory.history().failed);
}

/// Returns the bytes of all records as clients see them.
fn plain_bytes(status: &EngineStatus) -> u64 {
    status.classes.iter().map(|class| class.plain_bytes).sum()
}

table! { REPLICAS, "Replicas", "`stats replicas` shows these rows with the number of the replica, as in `0:address`.", |_s, replica: Arc<ConnectedReplica>|
    "address", _, _, Gauge, "Address from which the replica connected." => &*replica.address;
    "server_id", _, _, Gauge, "Server ID of the replica." => replica.server_id;
    "delay_seconds", _, "todana_replicas_delay_seconds", Gauge, "Seconds since the replica last had all changes of this server." =>
        replica.delay();
    "position", _, _, Gauge, "The last time stamp that the replica has acknowledged; in Todana's own protocol, the position in the log of the first database." => replica.position();
    "lag_bytes", _, "todana_replicas_lag_bytes", Gauge, "Bytes of the update logs that the replica has not applied, in Todana's own protocol." => replica.lag_bytes();
    "flags_lost", _, _, Counter, "Records sent to the replica without their client flags." => replica.flags_lost();
}

/// Returns one word that states whether changes reach the disk, through the update log or through
/// the engine's own files. Returns `None` for a database that is not kept on disk.
pub(crate) fn health(served: &ServedDatabase) -> Option<&'static str> {
    let log = served.database.log().map(UpdateLog::health);
    // If the engine's own files are well, the word depends on the log for replicas.
    let health = match (served.database.durability()?.health(), log) {
        (DurabilityHealth::Well, Some(health)) => health,
        (health, _) => health,
    };
    Some(match health {
        DurabilityHealth::Lost(_) => "lost",
        // Changes reach the log, but checkpoints of the tree fail.
        DurabilityHealth::Well if served.has_files() && served.database.has_stuck_checkpoints() => "stuck",
        DurabilityHealth::Well if takes_writes(served) => "well",
        DurabilityHealth::Well | DurabilityHealth::Stuck(_) => "stuck",
    })
}

/// Returns the memory of changes that wait for a checkpoint, in bytes.
pub(crate) fn pending_bytes(served: &ServedDatabase) -> u64 {
    served.database.engine().checkpointed().map_or(0, CheckpointedEngine::pending_bytes)
}

/// Returns true if every change can be written to disk, or if the database is not kept on disk.
pub(crate) fn takes_writes(served: &ServedDatabase) -> bool {
    served.refused_write().is_none() && served.database.takes_changes()
}
