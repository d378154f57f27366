//! The data directory. Opening it restores the records of a database and logs the database's
//! changes from then on (docs/format/data-directory.md).

mod allowance;
mod branch;
mod epochs;
pub(crate) mod identity;
mod replay;
mod replica_log;
mod staged_directory;
mod verification;
mod work_paths;

use crate::backup::BackupManifest;
use crate::checkpoint::{
    CheckpointHistory, CheckpointInfo, CheckpointOptions, CheckpointStore, DiskFootprint, LoadedCheckpoint,
    LogHold,
};
use crate::clock::Clock;
use crate::disk::{Disk, File, busy};
use crate::open::contents::expect_kind;
pub(crate) use crate::open::contents::{CHECKPOINTS, EPOCHS, LOG, REPLICA_LOG, SALVAGE};
use crate::open::hinted;
use crate::update_log::{
    DatabaseIdentity, EpochPlace, LogBytes, LogOptions, LogPlace, LogPosition, LogReader, LogTail, UpdateLog,
    append_recent, segments, write_lost_segment,
};
use crate::versions::OPENINGS_MARGIN;
use crate::{Database, DatabaseKind};
use allowance::RaisedMemoryLimit;
use parking_lot::Mutex;
use std::io::{self, IoSlice};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use todana_core::{Error, ErrorKind, Result};
use todana_engine::reserve::{Reserve, ReserveDisk};

pub use branch::{LastSource, SalvagedLog};
pub use epochs::{EPOCHS_MAX, EpochHistory, EpochRole, common_place};
pub(crate) use replay::{ReplaySummary, replay};
pub(crate) use staged_directory::StagedDirectory;
pub use verification::{NewestCheckpoint, VerificationReport, verify};
pub use work_paths::refuse_overlap;
use work_paths::staging_paths;
pub(crate) use work_paths::{beside, refuse_foreign, salvage_copy};

/// Options for the files of a data directory.
#[derive(Clone, Copy, Debug, Default)]
pub struct DataOptions {
    /// Options of the update log.
    pub log: LogOptions,
    /// Options of the checkpoints.
    pub checkpoints: CheckpointOptions,
}

/// An open data directory. It is locked for this process until the value is dropped and the thread
/// that writes its log has ended.
pub struct DataDirectory {
    disk: Arc<dyn Disk>,
    /// The same disk, but with a reserve that the log may use when the disk is full.
    log_disk: ReserveDisk,
    path: PathBuf,
    identity: DatabaseIdentity,
    checkpoint_store: CheckpointStore,
    checkpoints: Mutex<CheckpointOptions>,
    footprint: Mutex<DiskFootprint>,
    history: Mutex<CheckpointHistory>,
    epochs: Mutex<EpochHistory>,
    /// The place in the log of the master up to which the database has its changes.
    followed: Mutex<Option<EpochPlace>>,
    lock: DirectoryLock,
}

/// The lock on a directory. Until it is dropped, no other process can open the directory.
pub(crate) type DirectoryLock = Arc<dyn Send + Sync>;

/// The result of opening a data directory.
#[derive(Clone, Debug)]
pub struct OpeningReport {
    /// The checkpoint that was restored, if there was one.
    pub checkpoint: Option<CheckpointInfo>,
    /// Damaged checkpoints that are newer than the restored one: file, offset and reason of each.
    /// The older checkpoint and the longer log after it gave the same state.
    pub refused: Vec<String>,
    /// Older checkpoints in which damage was found. They are not needed while the restored
    /// checkpoint is intact.
    pub spare: Vec<String>,
    /// Log entries that were replayed.
    pub entries: u64,
    /// How many bytes of changes are lost according to the replayed part of the log. A salvage
    /// records such a loss in the log.
    pub lost: u64,
    /// True if the replayed part of the log lacks changes: they are lost, or they came with a copy
    /// of a master's records that was not completed.
    pub has_gap: bool,
    /// The position of the log's end, where new entries are appended.
    pub end: LogPosition,
    /// The bytes after `end` that were cut off.
    pub tail: LogTail,
    /// The duration of the opening.
    pub took: Duration,
}

impl OpeningReport {
    /// Returns a sentence on records that must be copied from a master again. Returns `None` if
    /// there are none, or if the log lost bytes to a repair, which `notes` reports instead.
    pub fn gap_note(&self) -> Option<&'static str> {
        (self.has_gap && self.lost == 0).then_some(
            "update log: lacks records that were copied from a master; \
             this server must copy them again, as a replica",
        )
    }

    /// Returns the findings of the opening that a user should know, as sentences.
    pub fn notes(&self) -> Vec<String> {
        let refused = self.refused.iter().map(|why| {
            format!("checkpoint: damaged; using the previous checkpoint and a longer part of the log: {why}")
        });
        let mut notes: Vec<String> = refused.collect();
        if self.lost > 0 {
            notes.push(format!("update log: {} bytes are lost, as marked by a repair", self.lost));
        }
        notes.extend(self.gap_note().map(String::from));
        if let LogTail::Torn { path, offset, len } = &self.tail {
            notes.push(format!(
                "{}: {len} bytes of unfinished writes at offset {offset} were cut off",
                path.display()
            ));
        }
        notes
    }
}

/// The progress of an opening.
#[derive(Clone, Copy, Debug)]
pub struct LoadProgress {
    /// Bytes of the checkpoint and the log that have not been read yet.
    pub remaining: u64,
    /// Bytes that have been read.
    pub done: u64,
}

impl DataDirectory {
    /// Opens and locks a directory, or creates a new one. Fails with `Busy` if another process has
    /// it open, with `Corrupt` if it is damaged, and with `Unavailable` if it cannot be read or
    /// created. On a [read-only](Disk::is_read_only) disk the directory is opened for reading and
    /// can have several readers: its records are restored, and changes are not logged.
    pub fn open(disk: Arc<dyn Disk>, path: &Path) -> Result<DataDirectory> {
        refuse_backup(&*disk, path)?;
        if disk.is_read_only() {
            read_identity(&*disk, path)?;
        }
        // A tree on disk has its log in such a directory too. `restore` checks for a tree.
        expect_kind(&*disk, path, DatabaseKind::MemHash)?;
        make_directory(&*disk, path)?;
        let lock = lock(&*disk, path)?;
        for directory in [path.join(LOG), path.join(CHECKPOINTS)] {
            make_directory(&*disk, &directory)?;
        }
        // The names of new directories must be on disk before files are written in them.
        disk.sync_directory(path).map_err(|error| cannot("sync", path, &error))?;
        let identity = identity::read_or_create(&*disk, path).map_err(|error| hinted(error, path))?;
        let checkpoint_store =
            CheckpointStore::new(Arc::clone(&disk), path.join(CHECKPOINTS), path.join(LOG), identity);
        let (path, checkpoints) = (path.to_path_buf(), Mutex::default());
        let (footprint, history, followed) = Default::default();
        let epochs = Mutex::new(EpochHistory::read(&*disk, &path)?);
        let reserve = Reserve::find(Arc::clone(&disk), &path);
        let log_disk = ReserveDisk { disk: Arc::clone(&disk), reserve };
        let directory = DataDirectory {
            disk,
            log_disk,
            path,
            identity,
            checkpoint_store,
            checkpoints,
            footprint,
            history,
            epochs,
            followed,
            lock,
        };
        directory.remove_partial(&directory.path.join(LOG))?;
        directory.remove_partial(&directory.path.join(CHECKPOINTS))?;
        let log_disk: Arc<dyn Disk> = Arc::new(directory.log_disk.clone());
        append_recent(&log_disk, &directory.path.join(LOG), identity)?;
        Ok(directory)
    }

    /// Opens an existing data directory. Fails with `Unavailable` if the directory holds no
    /// database.
    pub fn open_existing(disk: Arc<dyn Disk>, path: &Path) -> Result<DataDirectory> {
        read_identity(&*disk, path)?;
        DataDirectory::open(disk, path)
    }

    fn log_place(&self, openings: u32) -> LogPlace {
        let DataDirectory { log_disk, path, identity, lock, .. } = self;
        LogPlace {
            disk: log_disk.clone(),
            directory: path.join(LOG),
            identity: *identity,
            openings,
            _lock: Arc::clone(lock),
        }
    }

    /// Creates the first segment of a new directory's log, without entries. `openings` is the
    /// number of openings in its header.
    pub(crate) fn begin_log(&self, openings: u32) -> Result<()> {
        let (log, start) = (self.path.join(LOG), LogPosition(0));
        write_lost_segment(&*self.disk, &log, self.identity, openings, (start, start))
            .map_err(|error| cannot("write to", &log, &error))
    }

    /// Returns the identity of the database.
    pub fn identity(&self) -> DatabaseIdentity {
        self.identity
    }

    /// Returns the epochs that the database knows.
    pub fn epochs(&self) -> EpochHistory {
        self.epochs.lock().clone()
    }

    /// Stores the epochs. They are on disk when this returns.
    pub fn store_epochs(&self, history: EpochHistory) -> Result<()> {
        let mut stored = self.epochs.lock();
        if *stored != history {
            history.write(&*self.disk, &self.path)?;
            *stored = history;
        }
        Ok(())
    }

    /// Returns the place in the log of the master up to which the database has its changes, if it
    /// is known.
    pub fn followed(&self) -> Option<EpochPlace> {
        *self.followed.lock()
    }

    /// Notes the place in the log of the master up to which the database has its changes.
    pub fn note_followed(&self, place: Option<EpochPlace>) {
        *self.followed.lock() = place;
    }

    /// Restores the directory's records into an empty database, and logs the database's changes
    /// from then on. `progress` is called regularly. Fails with `Corrupt` if data on disk is
    /// damaged; the message names file and offset. Fails with `Full` if the records exceed the
    /// memory limit and may not be evicted.
    pub fn restore(
        &self,
        database: &Database,
        clock: Arc<dyn Clock>,
        options: &DataOptions,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<OpeningReport> {
        self.restore_unless(database, clock, options, &mut |step| {
            progress(step);
            ControlFlow::Continue(())
        })
    }

    /// Restores the records as [`restore`](Self::restore) does, until `progress` breaks. Then fails
    /// with `Closed`: the database contains some of the records, and the directory is unchanged.
    pub fn restore_unless(
        &self,
        database: &Database,
        clock: Arc<dyn Clock>,
        options: &DataOptions,
        progress: &mut dyn FnMut(LoadProgress) -> ControlFlow<()>,
    ) -> Result<OpeningReport> {
        self.restore_and_log(database, clock, options, progress).map_err(|error| hinted(error, &self.path))
    }

    fn restore_and_log(
        &self,
        database: &Database,
        clock: Arc<dyn Clock>,
        options: &DataOptions,
        progress: &mut dyn FnMut(LoadProgress) -> ControlFlow<()>,
    ) -> Result<OpeningReport> {
        let began = Instant::now();
        *self.checkpoints.lock() = options.checkpoints;
        let log = self.path.join(LOG);
        let open = |from| LogReader::open(Arc::clone(&self.disk), &log, self.identity, from);
        let allowance = RaisedMemoryLimit::of(database);
        let mut log_len: Option<(LogPosition, u64)> = None;
        let engine = database.engine().checkpointed();
        match engine {
            Some(engine) => engine.bind_to_log(self.identity.database_id)?,
            None => {
                refuse_tree(&*self.disk, &self.path)?;
                self.refuse_replica_log()?;
            }
        }
        let loaded = match engine {
            // The engine's own files contain the records up to the tree mark.
            Some(_) => LoadedCheckpoint::default(),
            None => self.checkpoint_store.load_newest(database, &mut |start, done, len| {
                let (_, ahead) = *log_len
                    .take_if(|(from, _)| *from == start)
                    // If the log is unreadable, its replay reports that.
                    .get_or_insert_with(|| (start, open(start).map_or(0, |reader| reader.remaining())));
                log_len = Some((start, ahead));
                progress(LoadProgress { remaining: len - done + ahead, done })
            })?,
        };
        let checkpoint = loaded.checkpoint;
        let log_position = engine.map(|engine| LogPosition(engine.log_position()));
        let from =
            log_position.or(checkpoint.as_ref().map(|checkpoint| checkpoint.start)).unwrap_or_default();
        let mut reader = open(from).map_err(|error| also(error, &loaded.refused))?;
        let start = reader.position();
        let checkpoint_len = checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.len);
        if let Some(allowance) = &allowance {
            allowance.extend(reader.remaining());
        }
        let mut failure = None;
        let entries = replay(database, &mut reader, &mut |reader| {
            if let Some(engine) = engine.filter(|engine| engine.is_due() && !self.disk.is_read_only()) {
                // The engine keeps the replayed changes in memory until a checkpoint, and the
                // complete log might not fit. After a crash, the log is read again from the mark of
                // this checkpoint, so the log that was read so far must be on disk first.
                let made = self.secure(reader).and_then(|()| engine.checkpoint(engine.log_position()));
                if let Err(error) = made {
                    failure = Some(error);
                    return ControlFlow::Break(());
                }
            }
            let done = checkpoint_len + reader.position().0 - start.0;
            progress(LoadProgress { remaining: reader.remaining(), done })
        });
        let ReplaySummary { entries, lost, has_gap } = entries.map_err(|error| failure.unwrap_or(error))?;
        if has_gap {
            database.note_lacking_changes();
        }
        if let Some(allowance) = allowance {
            allowance.end(database, clock.now())?;
        }
        let (end, tail) = (reader.position(), reader.tail().clone());
        if let Some(checkpoint) = checkpoint.as_ref().filter(|checkpoint| end < checkpoint.until) {
            let (name, until) = (checkpoint.path.display(), checkpoint.until.0);
            let place = reader.location();
            let message = format!(
                "{place}: the update log ends at position {}, but {name} needs it up to {until}",
                end.0
            );
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        if !self.disk.is_read_only() {
            self.cut(&tail)?;
            self.secure(&reader)?;
            let openings = reader.openings().saturating_add(1);
            drop(reader);
            let log = UpdateLog::start(self.log_place(openings), end, clock, options.log)?;
            database.attach(log, openings);
            self.complete_epochs(database)?;
            self.measure(database);
        }
        let found = checkpoint.clone().map(|found| CheckpointInfo { took: Duration::ZERO, ..found });
        self.history.lock().last = found;
        let took = began.elapsed();
        let LoadedCheckpoint { refused, spare, .. } = loaded;
        Ok(OpeningReport { checkpoint, refused, spare, entries, lost, has_gap, end, tail, took })
    }

    /// Writes a checkpoint of the database that was restored from this directory, while the
    /// database is in use. Then removes all older checkpoints except the previous one, and the log
    /// that only they needed. Fails with `Unavailable` if the checkpoint cannot be written; the
    /// older ones then stay. For ten million small records this takes a second or two, and little
    /// memory.
    pub fn checkpoint(&self, database: &Database) -> Result<CheckpointInfo> {
        self.checkpoint_unless(database, &AtomicBool::new(false))
    }

    /// Writes a checkpoint as [`checkpoint`](Self::checkpoint) does. Fails with `Closed` once
    /// `stops` is true.
    pub fn checkpoint_unless(&self, database: &Database, stops: &AtomicBool) -> Result<CheckpointInfo> {
        self.refuse_if_read_only()?;
        let options = *self.checkpoints.lock();
        let made = match database.engine().checkpointed() {
            Some(engine) => self.checkpoint_store.checkpoint_engine(database, engine, &self.path, &options),
            None => self.checkpoint_store.write_new(database, &options, stops),
        };
        if let Ok(made) = &made {
            database.note_checkpoint_start(made.start);
        }
        self.history.lock().add(&made);
        self.measure(database);
        made
    }

    /// Writes a checkpoint that only a backup uses, for a database whose engine keeps its records
    /// on disk. The file has no name, so its space becomes free when the file is closed.
    pub(crate) fn checkpoint_for_backup(
        &self,
        database: &Database,
        stops: &AtomicBool,
    ) -> Result<(CheckpointInfo, Box<dyn File>)> {
        self.refuse_if_read_only()?;
        let options = *self.checkpoints.lock();
        self.checkpoint_store.write_unnamed(database, &options, stops)
    }

    /// Removes segments of the log that are needed neither by a checkpoint nor by a reader, if
    /// `is_over` returns true for the time at which the segment ended (Unix time in milliseconds).
    /// If a checkpoint is being written, waits for its end. Fails with `Unavailable` if a segment
    /// cannot be removed.
    pub fn release_log(&self, database: &Database, is_over: &dyn Fn(u64) -> bool) -> Result<()> {
        let is_for_replicas = database.engine().durable().is_some();
        let mark = match database.engine().checkpointed() {
            Some(engine) => Some(LogPosition(engine.log_position())),
            None => database.log().filter(|_| is_for_replicas).map(UpdateLog::synced),
        };
        let outcome = self.checkpoint_store.release_log(mark, is_over);
        self.measure(database);
        outcome
    }

    /// Returns the history of checkpoints, whichever thread wrote them.
    pub fn history(&self) -> CheckpointHistory {
        self.history.lock().clone()
    }

    /// Returns true if the log has grown enough since the last checkpoint for another one.
    pub fn is_checkpoint_due(&self, database: &Database) -> bool {
        let options = *self.checkpoints.lock();
        database.awaits_checkpoint()
            || database.log().is_some_and(|log| {
                // On a full disk, the space of removed records becomes free only by the next
                // checkpoint.
                let is_full = log.takes_only_removals();
                match database.engine().checkpointed() {
                    Some(engine) => {
                        let len = log.end().0.saturating_sub(engine.log_position());
                        engine.is_due() || len > if is_full { 0 } else { options.log_len_min }
                    }
                    None => self.checkpoint_store.is_due(log.end(), &options, is_full),
                }
            })
    }

    /// Returns the disk space in use as last measured. Does not wait for the disk.
    pub fn footprint(&self) -> DiskFootprint {
        *self.footprint.lock()
    }

    /// Measures the disk space in use. The thread that writes checkpoints calls this regularly.
    pub(crate) fn measure(&self, database: &Database) {
        let Some(end) = database.log().map(UpdateLog::written) else { return };
        // If the disk cannot be read now, the previous measurement stays.
        if let Ok(footprint) = self.checkpoint_store.footprint(end) {
            *self.footprint.lock() = footprint;
        }
    }

    /// Keeps the update log from a position on until the returned value is dropped, even if
    /// checkpoints are written in the meantime.
    pub fn hold(&self, from: LogPosition) -> LogHold {
        self.checkpoint_store.hold(from)
    }

    /// Returns a reader of the update log's bytes from a position on (`None`: from the oldest
    /// entry), which also receives the entries that are appended later. Fails with `Invalid` if the
    /// log starts after the position, and with `Unavailable` if the log cannot be read.
    pub fn log_bytes(&self, from: Option<LogPosition>) -> Result<LogBytes> {
        // The hold must exist before the segments are listed, or a segment could be removed in
        // between.
        let hold = self.hold(from.unwrap_or_default());
        LogBytes::open(Arc::clone(&self.disk), &self.path.join(LOG), self.identity, from, hold)
    }

    /// Returns a reader of the update log from the creation of the database on, or `None` if the
    /// log does not contain every change since then. Fails with `Unavailable` if the log cannot be
    /// read.
    pub fn complete_log_bytes(&self, database: &Database) -> Result<Option<LogBytes>> {
        let _hold = self.hold(LogPosition(0));
        let all = segments(&*self.disk, &self.path.join(LOG))?;
        // A hash on disk that was opened before its log started began with records, and so did a
        // restored database. Any other database may have been opened and left empty.
        let openings_max = if database.engine().durable().is_some() { 1 } else { OPENINGS_MARGIN - 1 };
        let is_complete =
            all.first().is_some_and(|first| first.start == LogPosition(0) && first.openings <= openings_max);
        if !is_complete {
            return Ok(None);
        }
        self.log_bytes(Some(LogPosition(0))).map(Some)
    }

    fn refuse_if_read_only(&self) -> Result<()> {
        if !self.disk.is_read_only() {
            return Ok(());
        }
        Err(Error::read_only(format!("{}: was opened for reading only", self.path.display())))
    }

    pub(crate) fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn checkpoint_store(&self) -> &CheckpointStore {
        &self.checkpoint_store
    }

    /// Syncs the last bytes of the log that has been read, and the names of its segments.
    ///
    /// A process that was killed may have created a segment without syncing the directory. If a
    /// further segment were created now, a power failure could keep its name and lose the earlier
    /// name, and the log would have a gap.
    fn secure(&self, reader: &LogReader) -> Result<()> {
        if let Some((path, offset)) = reader.unsynced() {
            write_again(&self.log_disk, path, offset).map_err(|error| cannot("write to", path, &error))?;
        }
        let log = self.path.join(LOG);
        self.disk.sync_directory(&log).map_err(|error| cannot("sync", &log, &error))
    }

    /// Cuts off a torn tail. The file is synced before entries are written in place of the tail.
    fn cut(&self, tail: &LogTail) -> Result<()> {
        let LogTail::Torn { path, offset, .. } = tail else { return Ok(()) };
        let cut = || {
            let file = self.log_disk.open(path, true)?;
            file.set_len(*offset)?;
            file.sync()
        };
        cut().map_err(|error| cannot("truncate", path, &error))
    }

    fn remove_partial(&self, directory: &Path) -> Result<()> {
        let names = self.disk.list(directory).map_err(|error| cannot("read", directory, &error))?;
        for name in names.iter().filter(|name| name.ends_with(".partial")) {
            let path = directory.join(name);
            self.disk.remove(&path).map_err(|error| cannot("remove", &path, &error))?;
        }
        Ok(())
    }
}

/// Returns the hash seed in the newest checkpoint of a data directory, if it has a checkpoint.
/// Records are restored at least twice as fast into an engine with that seed. Takes no lock, and
/// reads only the header and the footer of the file.
pub fn seed_of(disk: Arc<dyn Disk>, path: &Path) -> Option<u64> {
    let identity = identity::read(&*disk, path).ok()??;
    let checkpoint_store = CheckpointStore::new(disk, path.join(CHECKPOINTS), path.join(LOG), identity);
    let mut starts = checkpoint_store.list().ok()?.into_iter();
    let newest = starts.find_map(|start| checkpoint_store.open(start).ok())?;
    newest.header.order.map(|order| order.seed)
}

/// Writes the bytes of a file from an offset on again, and syncs them. The system may have failed
/// to write these bytes earlier and may now consider them written. From now on the log reports them
/// as on disk, so they must be.
fn write_again(disk: &dyn Disk, path: &Path, mut offset: u64) -> io::Result<()> {
    let file = disk.open(path, true)?;
    let mut bytes = vec![0; 256 << 10];
    loop {
        let len = file.read_at(offset, &mut bytes)?;
        if len == 0 {
            return file.sync();
        }
        file.write_at(offset, &mut [IoSlice::new(&bytes[..len])])?;
        offset += len as u64;
    }
}

/// Appends the reasons of refused checkpoints to an error.
fn also(error: Error, refused: &[String]) -> Error {
    let why = refused.iter().map(|why| format!("; {why}"));
    Error::new(error.kind(), format!("{error}{}", why.collect::<String>()))
}

/// Syncs the names of a directory and of its parents, which may be new. Skips directories that this
/// process must not write to, and directories above a mount point that the system cannot sync.
pub(crate) fn sync_above(disk: &dyn Disk, directory: &Path) -> Result<()> {
    for above in directory.ancestors().skip(1) {
        let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
        if let Err(error) = disk.sync_directory(above)
            && !matches!(
                error.kind(),
                io::ErrorKind::PermissionDenied
                    | io::ErrorKind::ReadOnlyFilesystem
                    | io::ErrorKind::InvalidInput
                    | io::ErrorKind::Unsupported
            )
        {
            return Err(cannot("sync", above, &error));
        }
    }
    Ok(())
}

/// Creates a directory if it is missing.
fn make_directory(disk: &dyn Disk, path: &Path) -> Result<()> {
    disk.make_directory(path).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => {
            let message = format!("{}: is a file; a data directory is needed", path.display());
            Error::new(ErrorKind::Unavailable, message)
        }
        _ => cannot("create", path, &error),
    })
}

/// Locks an existing directory. Fails with `Busy` if another process has it.
pub(crate) fn lock(disk: &dyn Disk, path: &Path) -> Result<DirectoryLock> {
    let lock_path = path.join("lock");
    let lock = disk.lock(&lock_path).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => Error::new(ErrorKind::Busy, busy(disk, path, &lock_path)),
        _ => cannot("lock", &lock_path, &error),
    })?;
    Ok(Arc::new(lock))
}

/// Fails with `Invalid` for a backup, which has the same files as a data directory but is not one.
fn refuse_backup(disk: &dyn Disk, path: &Path) -> Result<()> {
    // A damaged manifest counts as a backup. Other errors are reported later.
    let is_backup = match BackupManifest::read(disk, path) {
        Ok(manifest) => manifest.is_some(),
        Err(error) => error.kind() == ErrorKind::Corrupt,
    };
    if is_backup {
        let message =
            format!("{}: is a backup; `todana restore` creates a data directory from it", path.display());
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    Ok(())
}

/// Fails with `Invalid` if the directory holds a tree on disk, even if its name is that of another
/// kind. A tree has an update log too, but its records are in another file, so a database in memory
/// would be restored without them.
pub(crate) fn refuse_tree(disk: &dyn Disk, path: &Path) -> Result<()> {
    if let Some(kind) = DatabaseKind::at(disk, path) {
        let message = format!(
            "{}: is a {}, not a data directory; `todana verify` checks it, `todana copy` copies it",
            path.display(),
            kind.noun()
        );
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    Ok(())
}

/// Returns the names in a directory. Returns no names if the directory is missing, and does not
/// create it.
pub(crate) fn names(disk: &dyn Disk, directory: &Path) -> Result<Vec<String>> {
    match disk.list(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        names => names.map_err(|error| cannot("read", directory, &error)),
    }
}

/// Returns true if the file exists.
pub(crate) fn is_there(disk: &dyn Disk, file: &Path) -> Result<bool> {
    match disk.open(file, false) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(cannot("read", file, &error)),
    }
}

/// Returns the identity of the database in a directory; fails if there is none.
pub(crate) fn read_identity(disk: &dyn Disk, path: &Path) -> Result<DatabaseIdentity> {
    let found =
        identity::read(disk, path).and_then(|found| found.ok_or_else(|| identity::missing(disk, path)));
    found.map_err(|error| hinted(error, path))
}

pub(crate) fn cannot(what: &str, path: &Path, error: &io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, format!("{}: cannot {what} it: {error}", path.display()))
}
