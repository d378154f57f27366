//! The data directory: opening it brings a database back and keeps it from then on
//! (docs/format/data-directory.md).

mod allowance;
pub(crate) mod identity;
mod replay;
mod replica_log;
mod staged_directory;
mod verification;
mod work_paths;

use crate::backup::Manifest;
use crate::checkpoint::{
    CheckpointHistory, CheckpointInfo, CheckpointOptions, CheckpointStore, DiskFootprint, LoadedCheckpoint,
    LogHold,
};
use crate::clock::Clock;
use crate::disk::{Disk, File, busy};
use crate::open::contents::expect_kind;
pub(crate) use crate::open::contents::{CHECKPOINTS, LOG};
use crate::open::hinted;
use crate::update_log::{
    DatabaseIdentity, LogBytes, LogOptions, LogPlace, LogPosition, LogReader, LogTail, UpdateLog,
    append_recent, write_lost_segment,
};
use crate::{Database, Kind};
use allowance::Allowance;
use parking_lot::Mutex;
use replay::Replayed;
use std::io::{self, IoSlice};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use todana_core::{Error, ErrorKind, Result};
use todana_engine::reserve::{Reserve, ReserveDisk};

pub(crate) use staged_directory::StagedDirectory;
pub use verification::{Newest, Verified, verify};
pub use work_paths::refuse_overlap;
pub(crate) use work_paths::{beside, refuse_foreign};

/// How a data directory is kept.
#[derive(Clone, Copy, Debug, Default)]
pub struct DataOptions {
    /// The update log.
    pub log: LogOptions,
    /// Checkpoints.
    pub checkpoints: CheckpointOptions,
}

/// An open data directory: locked for this process until it is dropped and the thread that writes
/// its log has ended.
pub struct DataDirectory {
    disk: Arc<dyn Disk>,
    /// The same, of which the log's writes may spend a reserve.
    log_disk: ReserveDisk,
    path: PathBuf,
    identity: DatabaseIdentity,
    checkpoint_store: CheckpointStore,
    checkpoints: Mutex<CheckpointOptions>,
    footprint: Mutex<DiskFootprint>,
    history: Mutex<CheckpointHistory>,
    lock: Lock,
}

/// Nobody else has a directory open as long as this is there.
pub(crate) type Lock = Arc<dyn Send + Sync>;

/// What opening a data directory has found.
#[derive(Clone, Debug)]
pub struct Opened {
    /// The checkpoint that was brought back, if there was any.
    pub checkpoint: Option<CheckpointInfo>,
    /// Newer ones that were not, because they are damaged: file, offset and why. The older one and
    /// more of the log have given the same state.
    pub refused: Vec<String>,
    /// Older ones that are damaged where it was looked at: nothing needs them as long as that one
    /// is whole.
    pub spare: Vec<String>,
    /// Entries of the log that were read again.
    pub entries: u64,
    /// Bytes of changes in that part of the log that a repair has marked as lost: they were not
    /// made again.
    pub lost: u64,
    /// Where the log ended, and where it goes on.
    pub end: LogPosition,
    /// What was cut off behind that.
    pub tail: LogTail,
    /// How long it took.
    pub took: Duration,
}

impl Opened {
    /// What of it the user of the database should know, as sentences.
    pub fn notes(&self) -> Vec<String> {
        let refused = self.refused.iter().map(|why| {
            format!("a checkpoint is damaged, the one before it and a longer log take its place: {why}")
        });
        let mut notes: Vec<String> = refused.collect();
        if self.lost > 0 {
            notes.push(format!("{} bytes of the log are lost, as a repair has marked", self.lost));
        }
        if let LogTail::Torn { path, offset, len } = &self.tail {
            notes.push(format!(
                "{} at offset {offset}: {len} bytes of writes that were not finished are cut off",
                path.display()
            ));
        }
        notes
    }
}

/// How far opening has come.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Bytes of checkpoint and log that are still to be read.
    pub remaining: u64,
    /// Bytes read.
    pub done: u64,
}

impl DataDirectory {
    /// Opens a directory and locks it, or makes a new one. Fails with `Busy` if another process has
    /// it, with `Corrupt` if it is damaged, with `Unavailable` if it cannot be read or made. On a
    /// disk that is [read only](Disk::is_read_only) it is opened for reading, beside others: what
    /// is kept is brought back, and no changes are kept.
    pub fn open(disk: Arc<dyn Disk>, path: &Path) -> Result<DataDirectory> {
        refuse_backup(&*disk, path)?;
        if disk.is_read_only() {
            read_identity(&*disk, path)?;
        }
        // A tree's lies beside it; whether it is one is for whoever reads it back.
        expect_kind(&*disk, path, Kind::MemHash)?;
        make_directory(&*disk, path)?;
        let lock = lock(&*disk, path)?;
        for directory in [path.join(LOG), path.join(CHECKPOINTS)] {
            make_directory(&*disk, &directory)?;
        }
        // Whatever was made is there before anything lies in it.
        disk.sync_directory(path).map_err(|error| cannot("sync", path, &error))?;
        let identity = identity::read_or_make(&*disk, path).map_err(|error| hinted(error, path))?;
        let checkpoint_store =
            CheckpointStore::new(Arc::clone(&disk), path.join(CHECKPOINTS), path.join(LOG), identity);
        let (path, checkpoints) = (path.to_path_buf(), Mutex::default());
        let (footprint, history) = Default::default();
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
            lock,
        };
        directory.remove_partial(&directory.path.join(LOG))?;
        directory.remove_partial(&directory.path.join(CHECKPOINTS))?;
        let log_disk: Arc<dyn Disk> = Arc::new(directory.log_disk.clone());
        append_recent(&log_disk, &directory.path.join(LOG), identity)?;
        Ok(directory)
    }

    /// Opens a directory that is there already: what holds no database is not made one. Fails with
    /// `Unavailable` then.
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

    /// Begins the log of a new directory, as that of a database that has been opened so often.
    pub(crate) fn begin_log(&self, openings: u32) -> Result<()> {
        let (log, start) = (self.path.join(LOG), LogPosition(0));
        write_lost_segment(&*self.disk, &log, self.identity, openings, (start, start))
            .map_err(|error| cannot("write", &log, &error))
    }

    /// Who the database is.
    pub fn identity(&self) -> DatabaseIdentity {
        self.identity
    }

    /// Brings back what is kept here into an empty database, and keeps its changes from then on.
    /// `progress` is told now and then. Fails with `Corrupt` if anything is damaged that was on
    /// disk, the message naming file and offset; with `Full` if the memory limit leaves no room for
    /// all of it and nothing may be evicted.
    pub fn restore(
        &self,
        database: &Database,
        clock: Arc<dyn Clock>,
        options: &DataOptions,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Opened> {
        self.restore_unless(database, clock, options, &mut |step| {
            progress(step);
            ControlFlow::Continue(())
        })
    }

    /// The same; it is called off, with `Closed`, when `progress` breaks: the database then has
    /// some of it, and what is kept here stays as it was.
    pub fn restore_unless(
        &self,
        database: &Database,
        clock: Arc<dyn Clock>,
        options: &DataOptions,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Opened> {
        self.bring_back(database, clock, options, progress).map_err(|error| hinted(error, &self.path))
    }

    fn bring_back(
        &self,
        database: &Database,
        clock: Arc<dyn Clock>,
        options: &DataOptions,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Opened> {
        let began = Instant::now();
        *self.checkpoints.lock() = options.checkpoints;
        let log = self.path.join(LOG);
        let open = |from| LogReader::open(Arc::clone(&self.disk), &log, self.identity, from);
        let allowance = Allowance::of(database);
        let mut log_len: Option<(LogPosition, u64)> = None;
        let engine = database.engine().checkpointed();
        match engine {
            Some(engine) => engine.bind_to_log(self.identity.database_id)?,
            None => {
                refuse_tree(&*self.disk, &self.path)?;
                self.refuse_replica_log()?;
            }
        }
        let brought = match engine {
            // What it had at its mark lies in files of its own.
            Some(_) => LoadedCheckpoint::default(),
            None => self.checkpoint_store.load_newest(database, &mut |start, done, len| {
                let (_, ahead) = *log_len
                    .take_if(|(from, _)| *from == start)
                    // Whether the log can be read is found out when it is.
                    .get_or_insert_with(|| (start, open(start).map_or(0, |reader| reader.remaining())));
                log_len = Some((start, ahead));
                progress(Progress { remaining: len - done + ahead, done })
            })?,
        };
        let checkpoint = brought.checkpoint;
        let log_position = engine.map(|engine| LogPosition(engine.log_position()));
        let from =
            log_position.or(checkpoint.as_ref().map(|checkpoint| checkpoint.start)).unwrap_or_default();
        let mut reader = open(from).map_err(|error| also(error, &brought.refused))?;
        let start = reader.position();
        let checkpoint_len = checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.len);
        if let Some(allowance) = &allowance {
            allowance.extend(reader.remaining());
        }
        let mut trouble = None;
        let entries = replay::replay(database, &mut reader, &mut |reader| {
            if let Some(engine) = engine.filter(|engine| engine.is_due() && !self.disk.is_read_only()) {
                // Else all of the log might not fit into memory. From this mark on it is read again
                // if need be, so what has been read has to be on disk first.
                let made = self.secure(reader).and_then(|()| engine.checkpoint(engine.log_position()));
                if let Err(error) = made {
                    trouble = Some(error);
                    return ControlFlow::Break(());
                }
            }
            let done = checkpoint_len + reader.position().0 - start.0;
            progress(Progress { remaining: reader.remaining(), done })
        });
        let Replayed { entries, lost } = entries.map_err(|error| trouble.unwrap_or(error))?;
        if let Some(allowance) = allowance {
            allowance.end(database, clock.now())?;
        }
        let (end, tail) = (reader.position(), reader.tail().clone());
        if let Some(checkpoint) = checkpoint.as_ref().filter(|checkpoint| end < checkpoint.until) {
            let (name, until) = (checkpoint.path.display(), checkpoint.until.0);
            let place = reader.location();
            let message =
                format!("{place}: the update log ends at position {}, but {name} needs it to {until}", end.0);
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        if !self.disk.is_read_only() {
            self.cut(&tail)?;
            self.secure(&reader)?;
            let openings = reader.openings().saturating_add(1);
            drop(reader);
            let log = UpdateLog::start(self.log_place(openings), end, clock, options.log)?;
            database.attach(log, openings);
            self.measure(database);
        }
        let found = checkpoint.clone().map(|found| CheckpointInfo { took: Duration::ZERO, ..found });
        self.history.lock().last = found;
        let took = began.elapsed();
        let LoadedCheckpoint { refused, spare, .. } = brought;
        Ok(Opened { checkpoint, refused, spare, entries, lost, end, tail, took })
    }

    /// Makes a checkpoint of the database that was restored from here, while it goes on working;
    /// removes those before the last one, and what of the log they needed. Fails with `Unavailable`
    /// if that cannot be written; what there was stays. Takes a second or two for ten million small
    /// records, and little memory.
    pub fn checkpoint(&self, database: &Database) -> Result<CheckpointInfo> {
        self.checkpoint_unless(database, &AtomicBool::new(false))
    }

    /// The same; it is called off, with `Closed`, when `stops` becomes true.
    pub fn checkpoint_unless(&self, database: &Database, stops: &AtomicBool) -> Result<CheckpointInfo> {
        self.refuse_if_read_only()?;
        let options = *self.checkpoints.lock();
        let made = match database.engine().checkpointed() {
            Some(engine) => self.checkpoint_store.checkpoint_engine(database, engine, &self.path, &options),
            None => self.checkpoint_store.write_new(database, &options, stops),
        };
        self.history.lock().add(&made);
        self.measure(database);
        made
    }

    /// A checkpoint of the records of a database whose engine keeps its own on disk, for a backup
    /// alone: its file has no name any more and is gone when it is closed.
    pub(crate) fn checkpoint_aside(
        &self,
        database: &Database,
        stops: &AtomicBool,
    ) -> Result<(CheckpointInfo, Box<dyn File>)> {
        self.refuse_if_read_only()?;
        let options = *self.checkpoints.lock();
        self.checkpoint_store.write_unnamed(database, &options, stops)
    }

    /// Removes what is kept of the update log longer than any checkpoint needs it, as far as
    /// `is_over` says so of the time when a segment came to its end, Unix time in milliseconds;
    /// nothing that somebody reads. Waits for a checkpoint that is being made. Fails with
    /// `Unavailable` if something cannot be removed.
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

    /// What has become of the checkpoints, whoever asked for them.
    pub fn history(&self) -> CheckpointHistory {
        self.history.lock().clone()
    }

    /// Whether the log has grown enough since the last checkpoint for another one.
    pub fn is_checkpoint_due(&self, database: &Database) -> bool {
        let options = *self.checkpoints.lock();
        database.log().is_some_and(|log| {
            // What has been removed on a full disk makes room there only with the next one.
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

    /// What is on disk here, as of the last look at it: those who ask do not wait for the disk.
    pub fn footprint(&self) -> DiskFootprint {
        *self.footprint.lock()
    }

    /// Looks at what is on disk. Whoever makes checkpoints does so now and then.
    pub(crate) fn measure(&self, database: &Database) {
        let Some(end) = database.log().map(UpdateLog::written) else { return };
        // What cannot be looked at now is as it was.
        if let Ok(footprint) = self.checkpoint_store.footprint(end) {
            *self.footprint.lock() = footprint;
        }
    }

    /// Keeps the update log from a position on, whatever checkpoints are made, until what this
    /// returns is dropped.
    pub fn hold(&self, from: LogPosition) -> LogHold {
        self.checkpoint_store.hold(from)
    }

    /// Reads the update log from a position on, `None` for as far back as it goes, as bytes, beside
    /// whoever writes it. Fails with `Invalid` if it does not go back so far, with `Unavailable` if
    /// it cannot be read.
    pub fn log_bytes(&self, from: Option<LogPosition>) -> Result<LogBytes> {
        // Before it is looked at what there is.
        let hold = self.hold(from.unwrap_or_default());
        LogBytes::open(Arc::clone(&self.disk), &self.path.join(LOG), self.identity, from, hold)
    }

    fn refuse_if_read_only(&self) -> Result<()> {
        if !self.disk.is_read_only() {
            return Ok(());
        }
        Err(Error::read_only(format!("{} was opened for reading only", self.path.display())))
    }

    pub(crate) fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn checkpoint_store(&self) -> &CheckpointStore {
        &self.checkpoint_store
    }

    /// What has been read of the log is on disk when this returns.
    fn secure(&self, reader: &LogReader) -> Result<()> {
        match reader.unsynced() {
            Some((path, offset)) => {
                write_again(&self.log_disk, path, offset).map_err(|error| cannot("write", path, &error))
            }
            None => Ok(()),
        }
    }

    /// Cuts a torn tail off, for good before anything is written behind it.
    fn cut(&self, tail: &LogTail) -> Result<()> {
        let LogTail::Torn { path, offset, .. } = tail else { return Ok(()) };
        let cut = || {
            let file = self.log_disk.open(path, true)?;
            file.set_len(*offset)?;
            file.sync()
        };
        cut().map_err(|error| cannot("cut", path, &error))
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

/// The seed of the hash whose records the newest checkpoint of a data directory holds, if there is
/// one: they come back to an engine of the same seed in half the time that they take elsewhere, or
/// less. Takes no lock and looks at no more than the beginning and the end of the file.
pub fn seed_of(disk: Arc<dyn Disk>, path: &Path) -> Option<u64> {
    let identity = identity::read(&*disk, path).ok()??;
    let checkpoint_store = CheckpointStore::new(disk, path.join(CHECKPOINTS), path.join(LOG), identity);
    let mut starts = checkpoint_store.list().ok()?.into_iter();
    let newest = starts.find_map(|start| checkpoint_store.open(start).ok())?;
    newest.header.order.map(|order| order.seed)
}

/// Writes what stands in a file from an offset on once more, and syncs it: the system may have
/// failed to write it, and take it for written since. From then on the log tells that it is on
/// disk.
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

/// The error, and what else was wrong.
fn also(error: Error, refused: &[String]) -> Error {
    let why = refused.iter().map(|why| format!("; {why}"));
    Error::new(error.kind(), format!("{error}{}", why.collect::<String>()))
}

/// The name of a directory is on disk, and the names of those that lead to it, which may be new,
/// too. Where nothing may be made, nothing was; and some systems cannot sync the directories that
/// lead to a mount.
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

/// Makes a directory, if it is not there.
fn make_directory(disk: &dyn Disk, path: &Path) -> Result<()> {
    disk.make_directory(path).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => {
            let message = format!("{} is a file; the data wants a directory", path.display());
            Error::new(ErrorKind::Unavailable, message)
        }
        _ => cannot("make", path, &error),
    })
}

/// Locks a directory that is there. Fails with `Busy` if another process has it.
pub(crate) fn lock(disk: &dyn Disk, path: &Path) -> Result<Lock> {
    let lock_path = path.join("lock");
    let lock = disk.lock(&lock_path).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => Error::new(ErrorKind::Busy, busy(disk, path, &lock_path)),
        _ => cannot("lock", &lock_path, &error),
    })?;
    Ok(Arc::new(lock))
}

/// A backup is no data directory, though it is laid out as one: fails with `Invalid`.
fn refuse_backup(disk: &dyn Disk, path: &Path) -> Result<()> {
    // What else is wrong shows further on.
    let is_backup = match Manifest::read(disk, path) {
        Ok(manifest) => manifest.is_some(),
        Err(error) => error.kind() == ErrorKind::Corrupt,
    };
    if is_backup {
        let message =
            format!("{} is a backup: make a data directory of it with `todana restore`", path.display());
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    Ok(())
}

/// A tree on disk has an update log too, but its records lie in its own file: whoever takes it for
/// the data of a database in memory finds an empty one. Fails with `Invalid` for one, whatever the
/// directory is called.
pub(crate) fn refuse_tree(disk: &dyn Disk, path: &Path) -> Result<()> {
    if is_tree(disk, path) {
        let message = format!(
            "{} is a tree on disk, no data directory: `todana verify` reads it, `todana copy` makes a copy of it",
            path.display()
        );
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    Ok(())
}

/// Returns true if a directory holds a tree on disk.
pub(crate) fn is_tree(disk: &dyn Disk, path: &Path) -> bool {
    // What cannot be listed shows further on.
    disk.list(&path.join(crate::open::engine::TREE))
        .is_ok_and(|names| names.iter().any(|name| name == "data.mdb"))
}

/// The names in a directory; none if it is missing, which is not made by looking.
pub(crate) fn names(disk: &dyn Disk, directory: &Path) -> Result<Vec<String>> {
    match disk.list(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        names => names.map_err(|error| cannot("read", directory, &error)),
    }
}

/// Returns true if there is a file.
pub(crate) fn is_there(disk: &dyn Disk, file: &Path) -> Result<bool> {
    match disk.open(file, false) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(cannot("read", file, &error)),
    }
}

/// Who the database of a directory is; fails if it is none.
pub(crate) fn read_identity(disk: &dyn Disk, path: &Path) -> Result<DatabaseIdentity> {
    let found =
        identity::read(disk, path).and_then(|found| found.ok_or_else(|| identity::missing(disk, path)));
    found.map_err(|error| hinted(error, path))
}

pub(crate) fn cannot(what: &str, path: &Path, error: &io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, format!("cannot {what} {}: {error}", path.display()))
}
