//! Figures of each database and of each replica.

use super::table;
use crate::databases::ServedDatabase;
use crate::replica::ConnectedReplica;
use crate::shared::Shared;
use std::sync::Arc;
use todana::DataDirectory;
use todana::update_log::{DurabilityHealth, UpdateLog};
use todana_core::{CheckpointedEngine, EngineStatus};

/// A database, read once for all its rows.
pub(crate) struct DatabaseReadings {
    pub(crate) number: usize,
    status: EngineStatus,
    directory: Option<Arc<DataDirectory>>,
}

impl DatabaseReadings {
    /// Reads a database. Returns `None` if there is none of this number.
    pub(crate) fn read(shared: &Shared, number: usize) -> Option<DatabaseReadings> {
        let status = shared.databases.get(number)?.database.status();
        Some(DatabaseReadings { number, status, directory: shared.persistence.exports.directory(number) })
    }

    /// Reads all databases.
    pub(crate) fn all(shared: &Shared) -> impl Iterator<Item = DatabaseReadings> {
        (0..).map_while(|number| DatabaseReadings::read(shared, number))
    }

    pub(crate) fn served<'s>(&self, shared: &'s Shared) -> &'s ServedDatabase {
        &shared.databases[self.number]
    }
}

table! { DATABASES, "Databases",
    "`stats databases` has these by the number of the database, as `0:records`; `stats databases NAME` those of one.",
    |s, d: DatabaseReadings|
    "name", _, _, Gauge, "Its name." => d.served(s).name.label();
    "kind", _, _, Gauge, "`mem:hash`, `mem:tree`, `disk:hash` or `disk:tree`." => d.served(s).name.kind.word();
    "records", _, "todana_database_records", Gauge, "Records of a database, by its name." => d.status.records;
    "bytes", _, "todana_database_bytes", Gauge, "Their bytes as stored." => d.status.live_bytes;
    "memory_bytes", _, "todana_database_memory_bytes", Gauge, "Memory that its engine holds." => d.status.committed_bytes;
    "disk_bytes", _, "todana_database_disk_bytes", Gauge, "Bytes of the files of its engine; 0 in memory." =>
        d.served(s).disk_bytes();
    "evictions", _, "todana_database_evictions_total", Counter, "Records removed to make room." => d.status.evictions;
    "takes_writes", _, "todana_database_takes_writes", Gauge, "0 while its changes cannot be written to disk." =>
        takes_writes(d.served(s));
    "refused_writes", _, "todana_database_refused_writes_total", Counter, "Writes refused for that." =>
        d.served(s).database.counters().log_refusals;
    "health", _, _, Gauge, "`well`, `stuck` or `lost`, where something is kept on disk." => health(d.served(s));
    "pending_bytes", _, _, Gauge, "Memory of changes that wait for a checkpoint (a tree on disk)." =>
        health(d.served(s)).map(|_| pending_bytes(d.served(s)));
    _, _, "todana_database_pending_bytes", Gauge, "Memory of changes that wait for a checkpoint (a tree on disk)." =>
        pending_bytes(d.served(s));
    "damaged_records", _, "todana_database_damaged_records_total", Counter,
        "Damaged records of a hash on disk that were overwritten or removed; of a tree on disk those that were met, each once." =>
        d.served(s).has_files().then(|| d.served(s).damaged_records().map_or(0, |(count, _)| count));
    "last_damage", _, _, Gauge, "File and reason of the last one, and in a hash its offset." =>
        d.served(s).damaged_records().filter(|_| d.served(s).has_files()).map(|(_, last)| last.to_string());
    "trouble", _, _, Gauge, "Why housekeeping of its files, or the checkpoint of a tree, fails." =>
        d.served(s).trouble().filter(|_| d.served(s).has_files()).map(|trouble| trouble.to_string());
    _, _, "todana_database_in_trouble", Gauge,
        "1 while housekeeping of a hash on disk cannot go on: compaction has met damage, or the disk is full; or while no checkpoint of a tree on disk can be made." =>
        d.served(s).has_files().then(|| d.served(s).trouble().is_some());
    "log_bytes", _, "todana_database_log_bytes", Gauge, "Bytes of its update log on disk." =>
        d.directory.as_ref().map(|directory| directory.footprint().log_bytes);
    "checkpoints_made", _, "todana_database_checkpoints_made_total", Counter, "Checkpoints made." =>
        d.directory.as_ref().map(|directory| directory.history().made);
    "checkpoints_failed", _, "todana_database_checkpoints_failed_total", Counter, "Checkpoints that could not be made." =>
        d.directory.as_ref().map(|directory| directory.history().failed);
}

table! { REPLICAS, "Replicas", "`stats replicas` has these by number, as `0:address`.", |_s, replica: Arc<ConnectedReplica>|
    "address", _, _, Gauge, "Where it connected from." => &*replica.address;
    "server_id", _, _, Gauge, "Its server ID." => replica.server_id;
    "delay_seconds", _, "todana_replicas_delay_seconds", Gauge, "Seconds since a replica last had all that this server had." =>
        replica.delay();
    "position", _, _, Gauge, "The last time stamp that it has acknowledged." => replica.position();
    "flags_lost", _, _, Counter, "Records sent to it without their client flags." => replica.flags_lost();
}

/// Returns in one word whether changes reach the disk, through the update log or the engine's own
/// files. Returns `None` for a database that is not kept on disk.
pub(crate) fn health(served: &ServedDatabase) -> Option<&'static str> {
    let log = served.database.log().map(UpdateLog::health);
    // If the engine's own files are well, the log for replicas beside them decides.
    let health = match (served.database.durability()?.health(), log) {
        (DurabilityHealth::Well, Some(health)) => health,
        (health, _) => health,
    };
    Some(match health {
        DurabilityHealth::Lost(_) => "lost",
        // Changes are in the log, but the tree cannot store them.
        DurabilityHealth::Well if served.has_files() && served.database.has_stuck_checkpoints() => "stuck",
        DurabilityHealth::Well if takes_writes(served) => "well",
        DurabilityHealth::Well | DurabilityHealth::Stuck(_) => "stuck",
    })
}

/// Returns the bytes of changes that wait in memory for a checkpoint.
pub(crate) fn pending_bytes(served: &ServedDatabase) -> u64 {
    served.database.engine().checkpointed().map_or(0, CheckpointedEngine::pending_bytes)
}

/// Returns true if every change can be written to disk, for a database that is kept there.
pub(crate) fn takes_writes(served: &ServedDatabase) -> bool {
    served.refused_write().is_none() && served.database.takes_changes()
}
