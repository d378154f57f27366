//! The databases of a server: made, read back, kept and closed.
//!
//! The first is the one that memcached's protocols use. All are alike in how they are kept:
//!
//! ```text
//! memory     an update log and checkpoints in a data directory, if there is to be one
//! PATH.tree  the same at PATH, with the tree beside it in place of checkpoints
//! PATH.hash  its files are its log: a thread syncs them; if replicas are to follow, they have an update log besides
//! ```

pub(crate) mod awaits;
pub(crate) mod exports;
pub(crate) mod janitor;
pub(crate) mod memory;
pub(crate) mod patience;
pub(crate) mod shards;
pub(crate) mod snapshots;

use crate::databases::exports::Exports;
use crate::databases::patience::Pulse;
use crate::databases::snapshots::History;
use crate::options::{DataPlace, Further, Options};
use parking_lot::Mutex;
use std::io;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use todana::checkpoint::CheckpointKeeper;
use todana::disk::Disk;
use todana::update_log::{DurabilityHealth, LogTail};
use todana::{
    CachedClock, Clock, CommitPoint, DataDirectory, DataOptions, Database, Durability, EngineOptions, Name,
    Opened, Storage, SyncThread, seed_of,
};
use todana_core::{CheckpointedEngine, Error, ErrorKind, LONG_VALUE_LEN, MemoryLimit, Result, WhenFull};
use todana_engine::EvictionObserver;

/// What all threads know of a database.
pub(crate) struct Served {
    pub(crate) name: Name,
    pub(crate) database: Arc<Database>,
    pub(crate) data: Option<DataPlace>,
    /// Values may come straight into memory of the engine's.
    pub(crate) has_buffers: bool,
    /// Held while a command of `synchronize` has an image of it: two would have one name.
    pub(crate) imaging: Mutex<()>,
    /// What the log has told of its files.
    told: Mutex<Told>,
}

/// All databases of a server, in their order.
pub(crate) struct Databases {
    all: Vec<Served>,
}

impl Databases {
    /// Fails if the databases cannot stand beside each other. There is at least one.
    pub(crate) fn new(all: Vec<Served>) -> Result<Databases> {
        Name::expect_distinct(all.iter().map(|one| &one.name))?;
        Ok(Databases { all })
    }

    /// Returns the number of the database that a client means by this name.
    pub(crate) fn number(&self, name: &str) -> Option<usize> {
        self.all.iter().position(|one| one.name.is_meant_by(name))
    }

    /// Returns the first database, that memcached's protocols use.
    #[inline]
    pub(crate) fn primary(&self) -> &Served {
        &self.all[0]
    }

    /// Has a database brought to disk up to this point, where anything vouches for its changes.
    #[inline]
    pub(crate) fn request_durability(&self, number: usize, point: CommitPoint) {
        if let Some(durability) = self.all[number].database.durability() {
            durability.request(point);
        }
    }

    /// Does this to each database.
    pub(crate) fn each(&self, act: impl Fn(&Database)) {
        self.all.iter().for_each(|served| act(&served.database));
    }
}

impl Deref for Databases {
    type Target = [Served];

    #[inline]
    fn deref(&self) -> &[Served] {
        &self.all
    }
}

/// What keeps the databases of a server on disk, and takes copies of them.
pub(crate) struct Persistence {
    /// Checkpoints, backups and logs under way to clients.
    pub(crate) exports: Arc<Exports>,
    /// Outcomes of snapshots.
    pub(crate) snapshots: History,
    /// Of the disk of the databases.
    pub(crate) pulse: Arc<Pulse>,
}

impl Persistence {
    pub(crate) fn new(pulse: Arc<Pulse>) -> Persistence {
        Persistence { exports: Arc::default(), snapshots: History::default(), pulse }
    }
}

/// What has been told of a database's files.
#[derive(Default)]
struct Told {
    trouble: Option<String>,
    health: DurabilityHealth,
    damaged_records: u64,
}

/// What only its owner knows.
#[derive(Default)]
pub(crate) struct Kept {
    /// Locked until the server ends.
    pub(crate) directory: Option<Arc<DataDirectory>>,
    /// Makes checkpoints of it.
    keeper: Option<CheckpointKeeper>,
    syncer: Option<SyncThread>,
    is_kept: bool,
    /// A checkpoint that was being made was left to itself: the disk does not answer.
    has_hung: bool,
}

/// How hash engines are made that the server itself has wishes for.
pub(crate) struct Making<'m> {
    pub(crate) options: &'m Options,
    pub(crate) shards: usize,
    /// Sizes by which records are counted.
    pub(crate) class_bounds: &'m [u32],
    /// Told of what is evicted.
    pub(crate) observer: Option<Arc<dyn EvictionObserver>>,
    pub(crate) clock: &'m Arc<CachedClock>,
    pub(crate) disk: &'m Arc<dyn Disk>,
}

impl Making<'_> {
    /// Makes or opens a database. What a data directory holds is not in it yet.
    pub(crate) fn open(self, further: Further) -> Result<(Served, Kept)> {
        let Further { name, data } = further;
        if let Some(path) = name.path.as_deref().filter(|_| !name.kind.is_in_memory()) {
            prepare(&name, path, &**self.disk)?;
        }
        let mut kept = Kept::default();
        let disk = name.disk(Arc::clone(self.disk));
        if let (Storage::FilesAndLog, Some(place)) = (name.kind.storage(), &data) {
            // Locked before the engine looks at what lies in it.
            kept.claim(&name, Arc::clone(self.disk), &place.directory)?;
        }
        let in_memory = data.as_ref().filter(|_| name.kind.is_in_memory());
        let engine = name.open_engine(
            disk,
            EngineOptions {
                limit: MemoryLimit { bytes: None, when_full: when_full(self.options) },
                shards: Some(self.shards),
                // So that records come back bucket by bucket.
                seed: in_memory.and_then(|place| seed_of(Arc::clone(self.disk), &place.directory)),
                class_bounds: self.class_bounds.to_vec(),
                observer: self.observer,
                stores_nothing: self.options.databases.stores_nothing,
                ..EngineOptions::default()
            },
        )?;
        for note in engine.durable().map_or(Vec::new(), |durable| durable.open_notes()) {
            tracing::warn!(database = name.label(), "{note}");
        }
        // A buffer takes no memory before it is filled.
        let has_buffers =
            !engine.buffer(LONG_VALUE_LEN).is_err_and(|error| error.kind() == ErrorKind::Invalid);
        let sync = self.options.databases.sync;
        let read_only = name.tuning.read_only;
        let clock = Arc::clone(self.clock) as Arc<dyn Clock>;
        let mut database =
            Database::with_classes(engine, clock, self.class_bounds.to_vec()).sync_engine(sync);
        if read_only {
            database = database.read_only();
        }
        if self.options.memory.emulate_full {
            database = database.emulate_full();
        }
        let database = Arc::new(database.limited_as(&name));
        let served =
            Served { name, database, data, has_buffers, imaging: Mutex::default(), told: Mutex::default() };
        Ok((served, kept))
    }
}

/// What happens at a memory limit.
pub(crate) fn when_full(options: &Options) -> WhenFull {
    if options.memory.refuse_when_full { WhenFull::Refuse } else { WhenFull::Evict }
}

/// Does as the mode in the name says, and names what is in the way.
fn prepare(name: &Name, path: &Path, disk: &dyn Disk) -> Result<()> {
    let invalid = |message: String| Err(Error::new(ErrorKind::Invalid, message));
    match std::fs::metadata(path) {
        Ok(metadata) if !metadata.is_dir() => {
            invalid(format!("database \"{name}\": {} is a file; a database is a directory", path.display()))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound && name.tuning.must_exist => {
            invalid(format!("database \"{name}\": {} does not exist", path.display()))
        }
        _ => name.expect_own_kind(disk),
    }
}

impl Kept {
    /// Locks the data directory for this process; it is made if it is not there, unless the database is only read.
    pub(crate) fn claim(&mut self, name: &Name, disk: Arc<dyn Disk>, path: &Path) -> Result<()> {
        if self.directory.is_none() {
            self.directory = Some(Arc::new(DataDirectory::open(name.disk(disk), path)?));
        }
        Ok(())
    }

    /// Whether it has been read back, and is kept.
    pub(crate) fn is_kept(&self) -> bool {
        self.is_kept
    }

    /// Reads back what is kept of a database, and keeps it from then on. `came_on` is called when changes have come to disk.
    pub(crate) fn start(
        &mut self,
        served: &Served,
        disk: Arc<dyn Disk>,
        clock: Arc<dyn Clock>,
        options: &DataOptions,
        progress: &mut dyn FnMut(todana::Progress) -> std::ops::ControlFlow<()>,
        came_on: impl Fn() + Send + std::marker::Sync + Clone + 'static,
    ) -> io::Result<Option<Opened>> {
        let Served { name, database, .. } = served;
        let mut found = None;
        if let Some(place) = &served.data {
            self.claim(name, disk, &place.directory).map_err(failed)?;
            let directory = Arc::clone(self.directory.as_ref().expect("it was claimed above"));
            if place.is_for_replicas {
                if !directory.keep_replica_log(database, clock, options).map_err(failed)? {
                    tracing::info!(
                        database = name.label(),
                        "the update log begins anew, as it may not tell all that the database holds: replicas get all records"
                    );
                }
            } else {
                let opened = directory.restore_unless(database, clock, options, progress).map_err(failed)?;
                tell(name, &opened);
                found = Some(opened);
            }
            if let Some(log) = database.log() {
                log.on_progress(came_on.clone());
            }
            let directory = (!name.tuning.read_only).then_some(directory);
            let label = name.label().to_string();
            let came_on = came_on.clone();
            let report = move |made: Result<todana::checkpoint::CheckpointInfo>| {
                match made {
                    Ok(made) => tracing::info!(records = made.records, database = label, "checkpoint made"),
                    Err(error) => {
                        tracing::error!(
                            %error,
                            database = label,
                            "no checkpoint could be made: the log grows on; see to the disk, it is tried again every 10 seconds"
                        );
                    }
                }
                // Some may wait for room.
                came_on();
            };
            let keep = |directory| CheckpointKeeper::start(directory, Arc::clone(database), report);
            self.keeper = directory.map(keep).transpose().map_err(failed)?;
        }
        self.syncer = SyncThread::start(database, came_on).map_err(failed)?;
        if name.tuning.truncate {
            let flush = todana_core::Operation::Flush { at: todana::Ttl::Never };
            database.execute(&database.worker_counters(), &flush, &mut |_| ());
        }
        for warning in &name.warnings {
            tracing::warn!(database = name.label(), "{warning}");
        }
        for note in &name.notes {
            tracing::info!(database = name.label(), "{note}");
        }
        self.is_kept = true;
        Ok(found)
    }

    /// No more checkpoints, unless the disk keeps it waiting; false then.
    pub(crate) fn end_keeper(&mut self, gives_up: &dyn Fn() -> bool) -> bool {
        let has_ended = self.keeper.take().is_none_or(|keeper| keeper.end_unless(gives_up));
        self.has_hung |= !has_ended;
        has_ended
    }

    /// Brings what waits in memory for a checkpoint into the tree on disk, so that the next start is fast; as long as the disk
    /// answers. All is in the log anyway.
    pub(crate) fn settle(&mut self, served: &Served, gives_up: &dyn Fn() -> bool) {
        let pending = served.database.engine().checkpointed().map_or(0, CheckpointedEngine::pending_bytes);
        let Some(directory) = &self.directory else { return };
        if pending == 0 || !self.is_kept || self.has_hung || served.database.is_read_only() {
            return;
        }
        let stops = Arc::new(AtomicBool::new(false));
        let called_off = Arc::clone(&stops);
        let (directory, database) = (Arc::clone(directory), Arc::clone(&served.database));
        let made = unless(gives_up, move || directory.checkpoint_unless(&database, &called_off).map(drop));
        let label = served.name.label();
        match made {
            Some(Ok(())) => {}
            Some(Err(error)) => {
                tracing::warn!(%error, database = label, "no checkpoint at the end; the next start takes longer");
            }
            None => {
                stops.store(true, Ordering::Relaxed);
                self.has_hung = true;
                tracing::warn!(
                    database = label,
                    "the checkpoint at the end takes too long and is left unfinished"
                );
            }
        }
    }

    /// Brings everything to disk, and what makes the next start fast.
    pub(crate) fn close(&mut self, served: &Served, gives_up: &dyn Fn() -> bool) -> Result<()> {
        let mut outcome = Ok(());
        if let Some(log) = served.database.log() {
            outcome = log.close_unless(gives_up);
        }
        let has_ended = self.syncer.take().is_none_or(|syncer| syncer.end_unless(gives_up));
        if served.database.engine().durable().is_some() {
            let database = Arc::clone(&served.database);
            let close = move || database.engine().durable().map_or(Ok(()), |durable| durable.close());
            let closed = if has_ended { unless(gives_up, close) } else { None };
            outcome = outcome.and(closed.unwrap_or_else(|| {
                // Never dropped: that would wait for the same disk.
                std::mem::forget(Arc::clone(&served.database));
                let what = "the disk does not answer; what was written last may be lost";
                Err(Error::new(ErrorKind::Unavailable, format!("database \"{}\": {what}", served.name)))
            }));
            if let (Ok(()), Some(directory)) = (&outcome, &self.directory) {
                outcome = directory.close_replica_log(&served.database);
            }
        }
        self.directory = None;
        outcome
    }
}

/// Does this on a thread of its own, which is left to itself once `gives_up`, which is asked now and then, says so: a disk that
/// hangs keeps whoever asks it for ever. `None` then, and if there can be no thread.
fn unless<T: Send + 'static>(
    gives_up: &dyn Fn() -> bool,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let thread = std::thread::Builder::new().name("closing".into()).spawn(work).ok()?;
    if !has_ended(&thread, gives_up) {
        return None;
    }
    // A panic in it has been shown already.
    thread.join().ok()
}

/// Waits for a thread to end; false if it has not when `gives_up` says so.
pub(crate) fn has_ended<T>(thread: &JoinHandle<T>, gives_up: &dyn Fn() -> bool) -> bool {
    while !thread.is_finished() {
        if gives_up() {
            return false;
        }
        // Unparked by nobody: there is no hurry at the end of a server.
        std::thread::park_timeout(Duration::from_millis(5));
    }
    true
}

/// What the log tells of what was found.
fn tell(name: &Name, opened: &Opened) {
    let database = name.label();
    for why in &opened.refused {
        tracing::error!(
            database,
            "a checkpoint is damaged, the one before it and a longer log take its place: {why}"
        );
    }
    for why in &opened.spare {
        tracing::warn!(database, "a checkpoint is damaged, an older one that is not needed now: {why}");
    }
    if opened.lost > 0 {
        tracing::warn!(database, "{} bytes of the log are lost, as a repair has marked", opened.lost);
    }
    if let LogTail::Torn { path, offset, len } = &opened.tail {
        tracing::warn!(
            database,
            "{} at offset {offset}: {len} bytes of writes that were not finished are cut off",
            path.display()
        );
    }
}

impl Served {
    /// Values from this length on come straight into memory of the engine's, where it has such memory. Else they wait in the
    /// connection's, bounded as all that is not whole.
    pub(crate) fn long_block_len(&self) -> usize {
        if self.has_buffers { LONG_VALUE_LEN } else { usize::MAX }
    }

    /// What its files take, records alone; 0 for one in memory.
    pub(crate) fn disk_bytes(&self) -> u64 {
        let engine = self.database.engine();
        let of_tree = engine.checkpointed().map_or(0, CheckpointedEngine::file_bytes);
        engine.durable().map_or(of_tree, |durable| durable.disk_usage().bytes)
    }

    /// Returns why the engine's own files do not take every change.
    pub(crate) fn refused_write(&self) -> Option<Error> {
        self.database.engine().durable().and_then(|files| files.refused_write_error())
    }

    /// Tells once that changes cannot be kept, and once that they can again: clients hear of it in words that say little.
    pub(crate) fn tell_refusals(&self) {
        let health = self.database.durability().map_or(DurabilityHealth::Well, Durability::health);
        let mut told = self.told.lock();
        // Of files, a sync and a write may report the same cause in different words.
        let is_same = match (&health, &told.health) {
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
        told.health = health;
    }

    /// Tells once what housekeeping cannot do in the engine's own files, and which damaged records have gone.
    pub(crate) fn tell_damage(&self) {
        let engine = self.database.engine();
        let Some(files) = engine.durable() else { return self.tell_damage_of_tree() };
        let (trouble, damaged) = (files.maintenance_error(), files.damaged_records());
        let mut told = self.told.lock();
        let (label, trouble) = (self.name.label(), trouble.map(|error| error.to_string()));
        // Housekeeping goes on because the damaged record has gone: in this order.
        if let Some((count, last)) = damaged.filter(|(count, _)| *count != told.damaged_records) {
            let gone = count - told.damaged_records;
            tracing::error!(
                database = label,
                records = gone,
                "damaged records were overwritten or removed: {last}"
            );
            told.damaged_records = count;
        }
        if trouble != told.trouble {
            match &trouble {
                Some(why) => tracing::error!(database = label, "housekeeping cannot go on: {why}"),
                None => tracing::info!(database = label, "housekeeping goes on"),
            }
            told.trouble = trouble;
        }
    }

    /// The same of a tree, which keeps its house without trouble: only damaged records are to be reported.
    fn tell_damage_of_tree(&self) {
        let Some((count, last)) = self.damaged_records() else { return };
        let mut told = self.told.lock();
        if count != told.damaged_records {
            let records = count - told.damaged_records;
            tracing::error!(database = self.name.label(), records, "damaged records were met: {last}");
            told.damaged_records = count;
        }
    }

    /// Damaged records since the start, and what was wrong with the last one: of a hash those that were overwritten or removed, of a
    /// tree all that were met.
    pub(crate) fn damaged_records(&self) -> Option<(u64, Error)> {
        let engine = self.database.engine();
        match engine.durable() {
            Some(files) => files.damaged_records(),
            None => engine.checkpointed()?.damaged_records(),
        }
    }

    /// Returns true if its engine keeps records in files, of which damage and trouble are reported.
    pub(crate) fn has_files(&self) -> bool {
        let engine = self.database.engine();
        engine.durable().is_some() || engine.checkpointed().is_some()
    }

    /// What keeps its files from being kept well.
    pub(crate) fn trouble(&self) -> Option<String> {
        let of_files = self.database.engine().durable().and_then(|files| files.maintenance_error());
        let of_tree =
            || self.database.has_stuck_checkpoints().then(|| "no checkpoint can be made".to_string());
        of_files.map(|trouble| trouble.to_string()).or_else(of_tree)
    }
}

/// The error of a database.
pub(crate) fn failed(error: Error) -> io::Error {
    let kind = match error.kind() {
        ErrorKind::Closed => io::ErrorKind::Interrupted,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}
