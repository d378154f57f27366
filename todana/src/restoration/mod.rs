//! Restoration: creates a database from a backup, and optionally from more of its update log, as of
//! a point in time.
//!
//! ```text
//! checkpoint ----+
//! log after it --+--> records in memory --one new checkpoint--> TARGET.partial --> TARGET
//! more log ------+       as of a time                              a new identity
//! ```
//!
//! The records are read into memory and written as a new database with a new identity. A
//! restoration needs as much memory as a server needs for the same records. The files are not
//! simply copied and cut off: the copy and the original would then continue from the same position
//! with the same identity, and readers of their logs, such as a replica, could not distinguish
//! them.
//!
//! A point in time is a position in the log: it includes all changes before the first mark of a
//! later time. So changes of one second stay together, and a clock that was set back does not end
//! the restoration too early.

mod database;

use crate::backup::BackupManifest;
use crate::checkpoint::{CheckpointFailure, CheckpointOptions, CheckpointReader, CheckpointStore};
use crate::clock::Clock;
use crate::data_directory::{
    CHECKPOINTS, LOG, StagedDirectory, cannot, read_identity, refuse_overlap, refuse_tree,
};
use crate::disk::{Disk, SystemDisk};
use crate::update_log::{
    DatabaseIdentity, LogChange, LogEntry, LogPosition, LogReader, LogTail, openings_of, segment_start,
    segments, with_recent,
};
use crate::versions::openings_of_restored;
use crate::{DataDirectory, DataOptions, Database, DatabaseName, LoadProgress, moment};
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana_core::{Error, ErrorKind, Result, UnixSeconds};

pub(crate) use database::{expect_hash, path_of, set_openings};

/// Options of a restoration.
#[derive(Clone, Debug, Default)]
pub struct RestoreOptions {
    /// A backup, or a data directory that is not open.
    pub from: PathBuf,
    /// A log of the same database that continues the backup: a data directory, or the directory of
    /// the log's segments.
    pub log: Option<PathBuf>,
    /// The point in time, Unix time in milliseconds. `None` means the end of the log.
    pub until_ms: Option<u64>,
    /// The path of the new data directory. Not used for a database on disk, whose name contains its
    /// path.
    pub target: PathBuf,
}

/// The database to create.
#[derive(Clone, Copy)]
pub enum RestoreInto<'a> {
    /// A data directory. The records are read into this database in memory, which must be empty and
    /// have room for all of them. It is dropped afterwards.
    Directory(&'a Database),
    /// A database on disk with this name. Its records need not fit into memory.
    Disk(&'a DatabaseName),
}

impl RestoreOptions {
    /// Returns the paths of the sources. The new database must not be created at one of them.
    pub(crate) fn sources(&self) -> impl Iterator<Item = &Path> {
        [Some(&self.from), self.log.as_ref()].into_iter().flatten().map(PathBuf::as_path)
    }
}

impl RestoreInto<'_> {
    /// Returns the path of the new database.
    pub(crate) fn place<'o>(&'o self, options: &'o RestoreOptions) -> Result<&'o Path> {
        match self {
            RestoreInto::Directory(_) => Ok(&options.target),
            RestoreInto::Disk(name) => path_of(name),
        }
    }
}

impl<'a> From<&'a Database> for RestoreInto<'a> {
    fn from(database: &'a Database) -> Self {
        RestoreInto::Directory(database)
    }
}

impl<'a> From<&'a DatabaseName> for RestoreInto<'a> {
    fn from(name: &'a DatabaseName) -> Self {
        RestoreInto::Disk(name)
    }
}

/// A source of records, from which a new database is created.
pub(crate) trait RecordSource {
    /// Stores the records, as of a point in time, in an empty database.
    fn restore_into(
        &self,
        database: &Database,
        until_ms: Option<u64>,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<RestorationReport>;

    /// Returns the number of openings of the new database. It is so high that no version is
    /// assigned that a client has already seen.
    fn openings_of_restored(&self, database: &Database, now: UnixSeconds) -> u32;
}

/// The result of a restoration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestorationReport {
    /// Number of records in the new database, with some that may just have expired.
    pub records: u64,
    /// True if the source had a log. A hash on disk has none.
    pub has_log: bool,
    /// The position in the old log up to which changes were restored.
    pub position: LogPosition,
    /// The time of the last restored change, Unix time in milliseconds; 0 if there was none.
    pub time_ms: u64,
    /// Number of changes that were read from logs.
    pub entries: u64,
    /// Bytes of changes that are lost, according to entries that record a loss.
    pub lost: u64,
    /// The damaged checkpoints that were skipped: file, offset and reason of each.
    pub refused: Vec<String>,
    /// True if the log ends before the requested time. Changes between its end and that time, if
    /// there were any, are missing.
    pub ends_before: bool,
    /// The tail of the log. `Clean` if the log was not read to its end.
    pub tail: LogTail,
    /// The time of a planned clear that has passed since the backup. The clear is cancelled.
    pub cancelled_clear: Option<UnixSeconds>,
}

/// Creates a new database of a backup, or of a data directory that is not open. `progress` is
/// called regularly. Fails with `Invalid` if something exists at the target, if the data does not
/// reach back to the time, or if the log belongs to another database. Fails with `Corrupt` if
/// needed data is damaged; the message names file and offset. Fails with `Busy` if the directory is
/// open. After a failure nothing is left.
///
/// A backup of a hash on disk consists of the hash's files: it becomes a hash on disk again, with
/// the same database ID (docs/format/backup.md). Fails with `Invalid` for another kind of target,
/// and with `Corrupt` if one entry is damaged; [`salvage`](crate::salvage) keeps the complete
/// entries.
pub fn restore<'a>(
    disk: Arc<dyn Disk>,
    options: &RestoreOptions,
    into: impl Into<RestoreInto<'a>>,
    clock: Arc<dyn Clock>,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<RestorationReport> {
    let open = |progress: &mut dyn FnMut(LoadProgress)| {
        RestorationSource::open(Arc::clone(&disk), options, progress)
    };
    let into = into.into();
    refuse_overlap(options.sources(), into.place(options)?)?;
    if let RestoreInto::Disk(name) = into
        && let Some(manifest) = BackupManifest::read(&*disk, &options.from)?.filter(BackupManifest::is_hash)
    {
        return database::restore_hash(&*disk, &manifest, options, name, clock.now(), progress);
    }
    restore_records(Arc::clone(&disk), options, open, into, clock, progress)
}

/// Creates a database from the records of a source. `open` opens the source after the target's
/// paths were reserved.
pub(crate) fn restore_records<S: RecordSource>(
    disk: Arc<dyn Disk>,
    options: &RestoreOptions,
    open: impl FnOnce(&mut dyn FnMut(LoadProgress)) -> Result<S>,
    into: RestoreInto<'_>,
    clock: Arc<dyn Clock>,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<RestorationReport> {
    match into {
        RestoreInto::Directory(database) => restore_directory(disk, options, open, database, clock, progress),
        RestoreInto::Disk(name) => {
            let staged = StagedDirectory::create(Arc::new(SystemDisk), path_of(name)?)?;
            let restored =
                database::records_into(open, options.until_ms, name, staged.place(), clock, progress)?;
            staged.finish()?;
            Ok(restored)
        }
    }
}

/// Creates a data directory from the records of a source.
fn restore_directory<S: RecordSource>(
    disk: Arc<dyn Disk>,
    options: &RestoreOptions,
    open: impl FnOnce(&mut dyn FnMut(LoadProgress)) -> Result<S>,
    database: &Database,
    clock: Arc<dyn Clock>,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<RestorationReport> {
    let target = StagedDirectory::create(Arc::clone(&disk), &options.target)?;
    let source = open(progress)?;
    let mut restored = source.restore_into(database, options.until_ms, progress)?;
    let openings = source.openings_of_restored(database, clock.now());
    let planned = database.planned_clear();
    database.resume(planned, u64::from(openings) << 32);
    restored.cancelled_clear = finish_planned_clear(database, planned, options.until_ms)?;
    drop(source);
    let directory = DataDirectory::open(Arc::clone(&disk), target.place())?;
    directory.begin_log(openings)?;
    let checkpoints = CheckpointOptions { rests: 0, ..CheckpointOptions::default() };
    let kept = DataOptions { checkpoints, ..DataOptions::default() };
    directory.restore(database, clock, &kept, &mut |_| ())?;
    restored.records = directory.checkpoint(database)?.records;
    if let Some(log) = database.log() {
        log.close()?;
    }
    drop(directory);
    target.finish()?;
    Ok(restored)
}

/// Executes a planned clear that was due at the requested time. Cancels one that has become due
/// since then.
fn finish_planned_clear(
    database: &Database,
    planned: Option<UnixSeconds>,
    until_ms: Option<u64>,
) -> Result<Option<UnixSeconds>> {
    let Some(at) = planned.filter(|&at| at <= database.now()) else { return Ok(None) };
    if until_ms.is_none_or(|until| at.0.saturating_mul(1000) <= until) {
        database.replay(&LogChange::Clear)?;
        return Ok(None);
    }
    database.replay(&LogChange::PlanClear { at: None })?;
    Ok(Some(at))
}

/// A backup or a data directory, with the logs that continue it.
pub(crate) struct RestorationSource {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    identity: DatabaseIdentity,
    checkpoint_store: CheckpointStore,
    /// The logs. Each of them continues where the one before it ends.
    logs: Vec<PathBuf>,
    _lock: Option<Box<dyn Send + Sync>>,
}

/// Fails with `Invalid` if the log is missing or belongs to another database. Positions alone are
/// not enough, because the log of another database may continue from the same position with other
/// records.
fn refuse_others_log(disk: &dyn Disk, log: &Path, identity: DatabaseIdentity, from: &Path) -> Result<()> {
    let refuse = |what: &str| {
        let message = format!(
            "{}: is {what}; a continuation of the log of {} is needed",
            log.display(),
            from.display()
        );
        Err(Error::new(ErrorKind::Invalid, message))
    };
    let above = log.parent().unwrap_or(log);
    if refuse_tree(disk, above).is_err() {
        return refuse("the log of a tree on disk");
    }
    match segments(disk, log) {
        Ok(found) if found.is_empty() => refuse("not an update log"),
        Ok(found) if found.iter().any(|one| one.identity.database_id != identity.database_id) => {
            refuse("the log of another database")
        }
        Err(error) if error.kind() != ErrorKind::Corrupt => Err(error),
        // If the log is damaged, reading it reports that.
        _ => Ok(()),
    }
}

/// The start of a restoration: a checkpoint, or no checkpoint if the log starts at position 0.
struct RestorationStart {
    checkpoint: Option<CheckpointReader>,
    start: LogPosition,
    until: LogPosition,
}

impl RestorationSource {
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        options: &RestoreOptions,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<RestorationSource> {
        let path = options.from.clone();
        refuse_tree(&*disk, &path)?;
        let manifest = BackupManifest::read(&*disk, &path)?;
        if manifest.as_ref().is_some_and(BackupManifest::is_hash) {
            let message = format!(
                "{}: is a backup of a hash on disk, which can only become a hash on disk; name it NAME.hash",
                path.display()
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let identity = read_identity(&*disk, &path)?;
        let mut lock = None;
        if let Some(manifest) = manifest {
            let len = manifest.backed_up().len;
            let mut told = |done: u64| progress(LoadProgress { done, remaining: len.saturating_sub(done) });
            if let Some((path, what)) = manifest.check(&*disk, &path, &mut told).first() {
                return Err(Error::new(ErrorKind::Corrupt, format!("{} {what}", path.display())));
            }
        } else {
            let path = path.join("lock");
            let locked = disk.lock(&path).map_err(|error| match error.kind() {
                io::ErrorKind::WouldBlock => {
                    let message = format!("{}: is in use; back it up first", options.from.display());
                    Error::new(ErrorKind::Busy, message)
                }
                _ => cannot("lock", &path, &error),
            })?;
            lock = Some(locked);
        }
        let mut logs = vec![path.join(LOG)];
        if let Some(more) = &options.log {
            let within = more.join(LOG);
            let log = if disk.list(&within).is_ok() { within } else { more.clone() };
            refuse_others_log(&*disk, &log, identity, &path)?;
            logs.push(log);
        }
        // If a process was killed, the newest entries of a log may be in its file `recent`.
        let disk = logs.iter().try_fold(disk, |disk, log| with_recent(disk, log, identity))?;
        let checkpoint_store =
            CheckpointStore::new(Arc::clone(&disk), path.join(CHECKPOINTS), path.join(LOG), identity);
        Ok(RestorationSource { disk, path, identity, checkpoint_store, logs, _lock: lock })
    }
}

impl RecordSource for RestorationSource {
    fn openings_of_restored(&self, database: &Database, now: UnixSeconds) -> u32 {
        let by_logs = self.logs.iter().map(|log| openings_of(&*self.disk, log)).max().unwrap_or_default();
        openings_of_restored(by_logs.max(database.openings_known()), now)
    }

    fn restore_into(
        &self,
        database: &Database,
        until_ms: Option<u64>,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<RestorationReport> {
        let mut refused = Vec::new();
        let mut earliest_ms = None;
        for start in self.checkpoint_store.list()?.into_iter().map(Some).chain([None]) {
            let beginning = match start {
                None if !self.logs.iter().any(|log| self.goes_back(log, LogPosition(0))) => break,
                None => RestorationStart { checkpoint: None, start: LogPosition(0), until: LogPosition(0) },
                Some(start) => match self.checkpoint_store.open(start) {
                    Err(why) => {
                        refused.push(why);
                        continue;
                    }
                    Ok(reader) => {
                        let until = reader.footer.until;
                        RestorationStart { checkpoint: Some(reader), start, until }
                    }
                },
            };
            // All changes before `start` were made before the checkpoint was begun.
            let created_ms =
                beginning.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.header.created_ms);
            let stop = match until_ms {
                None => Some(LogPosition(u64::MAX)),
                Some(until_ms) if until_ms < created_ms => None,
                Some(until_ms) => Some(self.place_of(until_ms, beginning.start)?),
            };
            let Some(stop) = stop.filter(|&stop| stop >= beginning.until) else {
                earliest_ms = Some(created_ms);
                continue;
            };
            match self.replay_from(database, &beginning, stop, progress) {
                Ok(mut restored) => {
                    restored.refused = refused;
                    restored.ends_before = until_ms.is_some() && stop == LogPosition(u64::MAX);
                    return Ok(restored);
                }
                Err(CheckpointFailure::Refused(error)) => return Err(error),
                Err(CheckpointFailure::Damaged(why)) => {
                    refused.push(why);
                    database.engine().clear(&mut || ())?;
                }
            }
        }
        let name = self.path.display();
        if let Some(created_ms) = earliest_ms {
            let made = moment::text(created_ms);
            let message = format!("{name}: does not go back to that time; its checkpoint is of {made}");
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let why = refused.iter().map(|why| format!("; {why}")).collect::<String>();
        Err(Error::new(ErrorKind::Corrupt, format!("{name}: has no readable checkpoint{why}")))
    }
}

impl RestorationSource {
    fn replay_from(
        &self,
        database: &Database,
        beginning: &RestorationStart,
        stop: LogPosition,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> std::result::Result<RestorationReport, CheckpointFailure> {
        const TELL_EVERY: u64 = 1 << 12;
        let mut time_ms = 0;
        let checkpoint_len = beginning.checkpoint.as_ref().map_or(0, CheckpointReader::len);
        if let Some(checkpoint) = &beginning.checkpoint {
            time_ms = checkpoint.header.created_ms;
            let len = checkpoint.len();
            let mut told = |done: u64| {
                progress(LoadProgress { done, remaining: len.saturating_sub(done) });
                ControlFlow::Continue(())
            };
            checkpoint.load(database, &mut told)?;
        }
        let (mut entries, mut lost) = (0u64, 0);
        let walked = self.walk(beginning.start, &mut |position, entry, remaining| {
            if position >= stop {
                return Ok(ControlFlow::Break(()));
            }
            match entry.change {
                LogChange::Mark { time_ms: now_ms, .. } => time_ms = now_ms,
                LogChange::Lost { len } => lost += len,
                _ => database.replay(&entry.change)?,
            }
            entries += 1;
            if entries.is_multiple_of(TELL_EVERY) {
                let done = checkpoint_len + (position.0 - beginning.start.0);
                progress(LoadProgress { done, remaining });
            }
            Ok(ControlFlow::Continue(()))
        });
        let walked = walked.map_err(CheckpointFailure::Refused)?;
        if walked.position < beginning.until {
            let message = format!(
                "update log: ends at position {}, but the checkpoint needs it up to {}",
                walked.position.0, beginning.until.0
            );
            return Err(CheckpointFailure::Refused(Error::new(ErrorKind::Corrupt, message)));
        }
        Ok(RestorationReport {
            records: 0,
            has_log: true,
            position: walked.position,
            time_ms,
            entries,
            lost,
            refused: Vec::new(),
            ends_before: false,
            tail: walked.tail,
            cancelled_clear: None,
        })
    }

    /// Returns the position of the first change that was made after this time, or the end if there
    /// is none.
    fn place_of(&self, until_ms: u64, from: LogPosition) -> Result<LogPosition> {
        // The search starts with the mark at the start of a segment, because the times of earlier
        // entries are unknown.
        let log = self.logs.iter().find(|log| self.goes_back(log, from));
        let from = log.map_or(from, |log| self.segment_of(log, from));
        let walked = self.walk(from, &mut |_, entry, _| {
            Ok(match entry.change {
                LogChange::Mark { time_ms, .. } if time_ms > until_ms => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            })
        })?;
        Ok(if walked.is_cut_short { walked.position } else { LogPosition(u64::MAX) })
    }

    /// Passes the entries of all logs from a position on to `see`, with the number of remaining
    /// bytes, until `see` breaks.
    fn walk(&self, from: LogPosition, see: &mut LogEntryCallback<'_>) -> Result<LogProgress> {
        let mut walked = LogProgress { position: from, tail: LogTail::Clean, is_cut_short: false };
        let mut logs = self.logs.iter().peekable();
        while let Some(log) = logs.next() {
            if logs.peek().is_some() && !self.goes_back(log, walked.position) {
                continue;
            }
            let mut reader = LogReader::open(Arc::clone(&self.disk), log, self.identity, walked.position)?;
            loop {
                let remaining = reader.remaining();
                let Some((position, entry)) = reader.next_entry()? else { break };
                if see(position, &entry, remaining)?.is_break() {
                    (walked.position, walked.tail, walked.is_cut_short) = (position, LogTail::Clean, true);
                    return Ok(walked);
                }
            }
            (walked.position, walked.tail) = (reader.position(), reader.tail().clone());
        }
        Ok(walked)
    }

    fn goes_back(&self, log: &Path, to: LogPosition) -> bool {
        match self.disk.list(log) {
            Ok(names) => {
                let mut starts = names.iter().filter_map(|name| segment_start(name)).peekable();
                (starts.peek().is_none() && to == LogPosition(0)) || starts.any(|start| start <= to)
            }
            // A missing directory is created when the database is opened.
            Err(error) => error.kind() == io::ErrorKind::NotFound && to == LogPosition(0),
        }
    }

    /// Returns the start of the segment that contains a position.
    fn segment_of(&self, log: &Path, position: LogPosition) -> LogPosition {
        let names = self.disk.list(log).unwrap_or_default();
        let starts = names.iter().filter_map(|name| segment_start(name)).filter(|&start| start <= position);
        starts.max().unwrap_or(position)
    }
}

type LogEntryCallback<'s> = dyn FnMut(LogPosition, &LogEntry<'_>, u64) -> Result<ControlFlow<()>> + 's;

/// The state of reading the logs.
struct LogProgress {
    /// The tail of the log that was read last.
    position: LogPosition,
    tail: LogTail,
    is_cut_short: bool,
}
