//! Opens the databases of a server with the server's options, and logs the outcome.

use super::{ServedDatabase, failed};
use crate::options::{DataDirectoryOptions, DatabaseSpec, ServerOptions};
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use todana::checkpoint::KeeperOutcome;
use todana::disk::Disk;
use todana::update_log::{LogOptions, LogTail};
use todana::{
    CachedClock, Clock, DataOptions, Database, EngineOptions, LoadProgress, OpenDatabase, OpenOptions,
    OpeningReport,
};
use todana_core::{MemoryLimit, Result, WhenFull};
use todana_engine::EvictionObserver;

/// Bounds of the memory for changes that wait to be written to the update log. Within these bounds,
/// the memory is a share of the memory limit. The lower bound is a megabyte, so that the disk
/// receives pieces of at least a quarter of a megabyte.
const BACKLOG_MIN: u64 = 1 << 20;
const BACKLOG_MAX: u64 = 32 << 20;

/// The options with which all databases of a server are opened.
pub(crate) struct DatabaseOpener<'o> {
    pub(crate) options: &'o ServerOptions,
    pub(crate) shards: usize,
    /// The upper bounds of the size classes by which records are counted.
    pub(crate) class_bounds: &'o [u32],
    pub(crate) clock: &'o Arc<CachedClock>,
    pub(crate) disk: &'o Arc<dyn Disk>,
}

impl DatabaseOpener<'_> {
    /// Opens a database. Its data directory is not loaded yet. `observer` is notified of evictions.
    pub(crate) fn open(
        &self,
        spec: DatabaseSpec,
        observer: Option<Arc<dyn EvictionObserver>>,
    ) -> Result<(ServedDatabase, OpenDatabase)> {
        let DatabaseSpec { name, data } = spec;
        let options = OpenOptions {
            engine: EngineOptions {
                limit: MemoryLimit { bytes: None, when_full: when_full(self.options) },
                shards: Some(self.shards),
                class_bounds: self.class_bounds.to_vec(),
                evict_for: self.options.memory.evict_for,
                observer,
                stores_plain: self.options.memory.stores_plain,
                stores_nothing: self.options.databases.stores_nothing || name.cluster.is_some(),
                ..EngineOptions::default()
            },
            engine_sync: self.options.databases.sync,
            data_dir: data.as_ref().map(|place| (place.directory.clone(), place.purpose())),
            data: data.as_ref().map_or_else(DataOptions::default, |place| self.data_options(place)),
        };
        let owner = OpenDatabase::open(name, Arc::clone(self.disk), options, |engine| {
            let clock = Arc::clone(self.clock) as Arc<dyn Clock>;
            let database = Database::with_classes(engine, clock, self.class_bounds.to_vec());
            if self.options.memory.emulate_full { database.emulate_full() } else { database }
        })?;
        for note in owner.database().engine().durable().map_or(Vec::new(), |durable| durable.open_notes()) {
            tracing::warn!(database = owner.name().label(), "{note}");
        }
        Ok((ServedDatabase::new(&owner, data), owner))
    }

    fn data_options(&self, place: &DataDirectoryOptions) -> DataOptions {
        let DataDirectoryOptions { sync, segment_len, segment_age, checkpoints, .. } = place.clone();
        let limit_bytes = self.options.memory.limit_mib << 20;
        let backlog_max = if limit_bytes == 0 { BACKLOG_MAX } else { limit_bytes / 16 };
        let backlog_max = backlog_max.clamp(BACKLOG_MIN, BACKLOG_MAX);
        let log = LogOptions { sync, segment_len, segment_age, backlog_max, ..LogOptions::default() };
        DataOptions { log, checkpoints }
    }
}

/// Returns the action of an engine that reaches the memory limit.
pub(crate) fn when_full(options: &ServerOptions) -> WhenFull {
    if options.memory.refuse_when_full { WhenFull::Refuse } else { WhenFull::Evict }
}

/// Loads the records of a database from its data directory. From then on, changes are stored in
/// this directory, too. `on_durable` is called each time changes have become durable.
pub(crate) fn load(
    owner: &mut OpenDatabase,
    progress: &mut dyn FnMut(LoadProgress) -> ControlFlow<()>,
    on_durable: impl Fn() + Send + Sync + Clone + 'static,
) -> io::Result<Option<OpeningReport>> {
    let name = owner.name().clone();
    let (label, notify) = (name.label().to_string(), on_durable.clone());
    let report = move |outcome: KeeperOutcome| {
        match outcome {
            KeeperOutcome::Checkpoint(Ok(made)) => {
                tracing::info!(records = made.records, database = label, "checkpoint: created")
            }
            KeeperOutcome::LogNotTrimmed(error) => {
                tracing::error!(
                    %error,
                    database = label,
                    "update log for replicas: old segments cannot be removed; check the disk, the server retries every 10 seconds"
                );
            }
            KeeperOutcome::Checkpoint(Err(error)) => {
                tracing::error!(
                    %error,
                    database = label,
                    "checkpoint: cannot be created, and the update log keeps growing; check the disk, the server retries every 10 seconds"
                );
            }
        }
        // Writers may be waiting for this checkpoint, which frees memory for further changes.
        notify();
    };
    let loaded = owner.load(progress, report).map_err(failed)?;
    if let Some(durability) = owner.database().durability() {
        durability.on_progress(on_durable);
    }
    if let Some(opened) = &loaded.records {
        log_findings(name.label(), opened);
    }
    if loaded.has_new_replica_log {
        tracing::info!(
            database = name.label(),
            "update log: starts again, because changes may be missing from it; replicas will receive all records"
        );
    }
    for warning in &name.warnings {
        tracing::warn!(database = name.label(), "{warning}");
    }
    for note in &name.notes {
        tracing::info!(database = name.label(), "{note}");
    }
    Ok(loaded.records)
}

/// Creates the last checkpoint of a tree on disk. Gives up once `gives_up` returns true, for
/// example because the disk does not respond.
pub(crate) fn make_last_checkpoint(owner: &mut OpenDatabase, gives_up: &dyn Fn() -> bool) {
    if let Err(error) = owner.make_last_checkpoint(Some(gives_up)) {
        let database = owner.name().label();
        tracing::warn!(%error, database, "last checkpoint: cannot be created; the next start will take longer");
    }
}

/// Logs the outcome of loading a data directory.
fn log_findings(database: &str, opened: &OpeningReport) {
    for why in &opened.refused {
        tracing::error!(
            database,
            "checkpoint: damaged; using the previous checkpoint and a longer part of the log: {why}"
        );
    }
    for why in &opened.spare {
        tracing::warn!(database, "older checkpoint: damaged, but not needed now: {why}");
    }
    if opened.lost > 0 {
        tracing::warn!(database, "update log: {} bytes are lost, as marked by a repair", opened.lost);
    }
    if let Some(note) = opened.gap_note() {
        tracing::error!(database, "{note}");
    }
    if let LogTail::Torn { path, offset, len } = &opened.tail {
        tracing::warn!(
            database,
            "{}: {len} bytes of unfinished writes at offset {offset} were cut off",
            path.display()
        );
    }
}
