//! Opens a database, restores its records, keeps them on disk, and closes the database.
//!
//! ```text
//! open   checks the name, opens the engine; for `disk:tree`, first locks the directory
//! lock   locks the data directory of a database in memory, or that of a log for replicas
//! load   restores the data directory's records, starts the threads for checkpoints and syncs
//! close  closes the log and the engine's files
//! ```
//!
//! Before `close`, the owner calls `stop_checkpoints`, and for a tree `make_last_checkpoint`.
//!
//! Each [`Db`](crate::Db) owns one `OpenDatabase`, and a server owns one for each of its databases.
//! Not here: upkeep ([`DatabaseUpkeep`](crate::Upkeep)), which one thread of a server does for all
//! databases.

use super::check::DataPurpose;
use super::{DatabaseName, DatabaseStorage, EngineOptions};
use crate::Database;
use crate::background_thread::{BackgroundThread, run_unless};
use crate::checkpoint::{CheckpointKeeper, KeeperOutcome};
use crate::data_directory::{DataDirectory, DataOptions, LoadProgress, OpeningReport, seed_of};
use crate::disk::Disk;
use crate::durability::start_sync_thread;
use crate::table::{IndexChange, IndexVisitor};
use crate::update_log::SyncPolicy;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use todana_core::{CheckpointedEngine, Engine, Error, ErrorKind, Result};
use todana_engine::table::INDEXES_MAX;

/// Options for opening a database, in addition to its name.
#[derive(Clone)]
pub struct OpenOptions {
    /// Options of the engine.
    pub engine: EngineOptions,
    /// When a change counts as durable, if the engine keeps changes in files of its own.
    pub engine_sync: SyncPolicy,
    /// The data directory of a database in memory, or the directory of a log for replicas. Ignored
    /// for a tree, whose log lies at the tree's own path.
    pub data_dir: Option<(PathBuf, DataPurpose)>,
    /// Options for the files of the data directory.
    pub data: DataOptions,
}

/// The result of loading a data directory.
#[derive(Clone, Debug, Default)]
pub struct LoadedData {
    /// Describes the restored records. `None` if the directory holds no records.
    pub records: Option<OpeningReport>,
    /// True if a new update log for replicas was started, so that replicas receive all records
    /// again.
    pub has_new_replica_log: bool,
}

/// An open database, with its locks and its threads for checkpoints and syncs.
pub struct OpenDatabase {
    name: DatabaseName,
    /// Ended before the database is closed.
    checkpoints: Option<CheckpointKeeper>,
    syncs: Option<BackgroundThread>,
    database: Arc<Database>,
    disk: Arc<dyn Disk>,
    data_dir: Option<(PathBuf, DataPurpose)>,
    data: DataOptions,
    /// The data directory, which stays locked until the database is closed.
    directory: Option<Arc<DataDirectory>>,
    is_loaded: bool,
    /// True if a checkpoint was abandoned because the disk does not answer.
    has_hung: bool,
}

impl OpenDatabase {
    /// Opens the engine of a database. `build` creates the database over the engine. Of the data
    /// directory of a database in memory, only the hash seed in its newest checkpoint is read.
    /// Fails with `Invalid` if the name does not suit the options or the contents of the directory,
    /// and as [`DatabaseName::open_engine`] does.
    pub fn open(
        name: DatabaseName,
        disk: Arc<dyn Disk>,
        options: OpenOptions,
        build: impl FnOnce(Box<dyn Engine>) -> Database,
    ) -> Result<OpenDatabase> {
        let OpenOptions { mut engine, engine_sync, mut data_dir, data } = options;
        let place =
            |data_dir: &Option<(PathBuf, DataPurpose)>| data_dir.as_ref().map(|(path, _)| path.clone());
        name.check(data_dir.as_ref().map(|(path, purpose)| (&**path, *purpose)), engine.limit.when_full)?;
        name.check_place(&*disk, place(&data_dir).as_deref())?;
        let disk = name.disk(disk);
        let mut directory = None;
        match name.kind.storage() {
            DatabaseStorage::Memory => {
                // An engine with the seed of the checkpoint restores the checkpoint's records one
                // bucket after another, which is faster.
                engine.seed = place(&data_dir).and_then(|path| seed_of(Arc::clone(&disk), &path));
            }
            DatabaseStorage::Files | DatabaseStorage::Cluster => {}
            DatabaseStorage::FilesAndLog => {
                data_dir = name.path.clone().map(|path| (path, DataPurpose::Records));
                let path = name.path.as_deref().unwrap_or(Path::new(""));
                // The lock must exist before the engine reads the directory.
                directory = Some(Arc::new(DataDirectory::open(Arc::clone(&disk), path)?));
            }
        }
        let mut database = build(name.open_engine(Arc::clone(&disk), engine)?).with_engine_sync(engine_sync);
        if name.tuning.read_only {
            database = database.read_only();
        }
        Ok(OpenDatabase {
            database: Arc::new(database.with_limits_of(&name)),
            checkpoints: None,
            syncs: None,
            name,
            disk,
            data_dir,
            data,
            directory,
            is_loaded: false,
            has_hung: false,
        })
    }

    /// Returns the name of the database.
    pub fn name(&self) -> &DatabaseName {
        &self.name
    }

    /// Returns the database.
    pub fn database(&self) -> &Arc<Database> {
        &self.database
    }

    /// Returns the data directory, once it is locked.
    pub fn directory(&self) -> Option<&Arc<DataDirectory>> {
        self.directory.as_ref()
    }

    /// Returns true once the records have been restored.
    pub fn is_loaded(&self) -> bool {
        self.is_loaded
    }

    /// Locks the data directory for this process. Creates the directory if it is missing, unless
    /// the database is read-only. Starts no thread. Fails as [`DataDirectory::open`] does.
    pub fn lock(&mut self) -> Result<()> {
        if let (None, Some((path, _))) = (&self.directory, &self.data_dir) {
            self.directory = Some(Arc::new(DataDirectory::open(Arc::clone(&self.disk), path)?));
        }
        Ok(())
    }

    /// Restores the records of the data directory, and logs every change from then on. `report`
    /// receives each later outcome of the keeper. If `progress` breaks, fails with `Closed` and
    /// leaves the directory unchanged. Fails as [`DataDirectory::restore`] does.
    pub fn load(
        &mut self,
        progress: &mut dyn FnMut(LoadProgress) -> ControlFlow<()>,
        report: impl FnMut(KeeperOutcome) + Send + 'static,
    ) -> Result<LoadedData> {
        self.lock()?;
        let (database, clock) = (&self.database, Arc::clone(self.database.clock()));
        let mut loaded = LoadedData::default();
        match (&self.directory, &self.data_dir) {
            (Some(directory), Some((_, DataPurpose::Replicas))) => {
                loaded.has_new_replica_log = !directory.keep_replica_log(database, clock, &self.data)?;
            }
            (Some(directory), _) => {
                loaded.records = Some(directory.restore_unless(database, clock, &self.data, progress)?);
            }
            (None, _) => {}
        }
        let keep = |directory: &Arc<DataDirectory>| {
            CheckpointKeeper::start(Arc::clone(directory), Arc::clone(database), report)
        };
        let directory = self.directory.as_ref().filter(|_| !database.is_read_only());
        self.checkpoints = directory.map(keep).transpose()?;
        self.syncs = start_sync_thread(database)?;
        if self.name.tuning.truncate {
            let point = database.clear(&database.worker_counters())?;
            database.durability().map_or(Ok(()), |durability| durability.wait(point))?;
        }
        // Without the indexes, queries of a database that is opened for reading take longer.
        for (column, kind) in self.name.tuning.indexes.iter().filter(|_| !database.is_read_only()) {
            let mut visitor = IndexVisitor::new(column.as_bytes(), IndexChange::CreateNew(*kind));
            database.visit_record(&database.worker_counters(), b"", &mut visitor)?;
            if visitor.is_full {
                let message = format!(
                    "database \"{}\": idx={column}: the table already has {INDEXES_MAX} indexes; drop one",
                    self.name
                );
                return Err(Error::new(ErrorKind::Invalid, message));
            }
        }
        self.is_loaded = true;
        Ok(loaded)
    }

    /// Cancels a checkpoint that is being written, and writes no more of them. Returns false if the
    /// disk does not answer before `gives_up` returns true.
    pub fn stop_checkpoints(&mut self, gives_up: Option<&dyn Fn() -> bool>) -> bool {
        let has_ended = self.checkpoints.take().is_none_or(|mut keeper| keeper.end(gives_up));
        self.has_hung |= !has_ended;
        has_ended
    }

    /// Writes the last checkpoint of a tree, so that the next opening need not read the log.
    /// Without this checkpoint nothing is lost. Fails with `Unavailable` if the disk cannot be
    /// written, or does not answer before `gives_up` returns true.
    pub fn make_last_checkpoint(&mut self, gives_up: Option<&dyn Fn() -> bool>) -> Result<()> {
        let pending = self.database.engine().checkpointed().map_or(0, CheckpointedEngine::pending_bytes);
        let Some(directory) = &self.directory else { return Ok(()) };
        if pending == 0 || !self.is_loaded || self.has_hung || self.database.is_read_only() {
            return Ok(());
        }
        let stops = Arc::new(AtomicBool::new(false));
        let is_stopped = Arc::clone(&stops);
        let (directory, database) = (Arc::clone(directory), Arc::clone(&self.database));
        let made =
            run_unless(gives_up, move || directory.checkpoint_unless(&database, &is_stopped).map(drop));
        made.unwrap_or_else(|| {
            stops.store(true, Ordering::Relaxed);
            self.has_hung = true;
            Err(self.no_answer("the checkpoint is left unfinished"))
        })
    }

    /// Writes every change to disk and closes the log and the engine's files. Checkpoints must have
    /// been stopped. Fails with `Unavailable` if the disk cannot be written, or does not answer
    /// before `gives_up` returns true; the last changes may then be lost.
    pub fn close(&mut self, gives_up: Option<&dyn Fn() -> bool>) -> Result<()> {
        let mut outcome = Ok(());
        if let Some(log) = self.database.log() {
            outcome = log.close_unless(gives_up.unwrap_or(&|| false));
        }
        let has_ended = self.syncs.take().is_none_or(|mut thread| thread.end(gives_up));
        if self.database.engine().durable().is_some() {
            let database = Arc::clone(&self.database);
            let close = move || database.engine().durable().map_or(Ok(()), |durable| durable.close());
            let closed = if has_ended { run_unless(gives_up, close) } else { None };
            outcome = outcome.and(closed.unwrap_or_else(|| {
                // The database must never be dropped, because dropping it would wait for the same
                // disk.
                std::mem::forget(Arc::clone(&self.database));
                Err(self.no_answer("the last changes may be lost"))
            }));
            if let (Ok(()), Some(directory)) = (&outcome, &self.directory) {
                outcome = directory.close_replica_log(&self.database);
            }
        }
        self.directory = None;
        outcome
    }

    fn no_answer(&self, effect: &str) -> Error {
        let message = format!("database \"{}\": the disk does not respond; {effect}", self.name);
        Error::new(ErrorKind::Unavailable, message)
    }
}
