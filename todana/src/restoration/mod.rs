//! Restoration: creates a database of a backup, and optionally of more of its update log, as of
//! some time.
//!
//! ```text
//! checkpoint --+
//! log of it ---+--> records in memory --one new checkpoint--> TARGET.partial --> TARGET
//! more log ----+       as of a time                              a new identity
//! ```
//!
//! The records are read into memory and written as a new database with a new identity; files are
//! not copied and cut. Two databases that continued from the same position with the same identity
//! could not be distinguished by readers of their logs, such as a replica or a later restoration. A
//! restoration takes as much memory as a server does for the same records.
//!
//! A point in time is a position in the log: all changes before the first mark of a later time. So
//! changes of one second stay together, and a clock that was set back does not end the restoration
//! too early.

mod database;

use crate::backup::Manifest;
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
use crate::{DataDirectory, DataOptions, Database, Name, Progress, moment};
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana_core::{Error, ErrorKind, Result, UnixSeconds};

pub(crate) use database::{expect_hash, number_anew, path_of};

/// Options of a restoration.
#[derive(Clone, Debug, Default)]
pub struct RestoreOptions {
    /// A backup, or a data directory that is not open.
    pub from: PathBuf,
    /// More of the same database's log: a data directory, or the directory of its segments.
    pub log: Option<PathBuf>,
    /// The point in time, Unix time in milliseconds; `None`: the end.
    pub until_ms: Option<u64>,
    /// The path of the new data directory. The name of a database on disk contains its path.
    pub target: PathBuf,
}

/// The new database.
#[derive(Clone, Copy)]
pub enum RestoreInto<'a> {
    /// A data directory. The records pass through this database in memory, which is empty, has room
    /// for all of them, and is dropped afterwards.
    Directory(&'a Database),
    /// A database on disk of this name. Its records need not fit into memory.
    Disk(&'a Name),
}

impl RestoreOptions {
    /// Returns the sources. None of them may lie where the new database is created.
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

impl<'a> From<&'a Name> for RestoreInto<'a> {
    fn from(name: &'a Name) -> Self {
        RestoreInto::Disk(name)
    }
}

/// A source of records for a new database.
pub(crate) trait RecordSource {
    /// Stores the records in an empty database, as of a time.
    fn bring_back(
        &self,
        database: &Database,
        until_ms: Option<u64>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Restored>;

    /// Returns the number of openings with which the new database begins, so that no version that
    /// was shown is issued again.
    fn openings_of_restored(&self, database: &Database, now: UnixSeconds) -> u32;
}

/// The result of a restoration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// Number of records in the new checkpoint, including some that have just expired.
    pub records: u64,
    /// Whether there was a log. A hash on disk has none.
    pub has_log: bool,
    /// The position of the old log to which the state corresponds.
    pub position: LogPosition,
    /// The time of the last change in the state, Unix time in milliseconds; 0 if there was none.
    pub time_ms: u64,
    /// Number of changes read from logs.
    pub entries: u64,
    /// Bytes of changes that a repair has marked as lost.
    pub lost: u64,
    /// The checkpoints that were skipped because they are damaged: file, offset and reason.
    pub refused: Vec<String>,
    /// A time was requested, and the log ends before it. Changes between the end of the log and
    /// that time, if there were any, are missing.
    pub ends_before: bool,
    /// The tail of the log; `Clean` if the log was not read to its end.
    pub tail: LogTail,
    /// The time of a planned clear that has come since then. The clear is cancelled.
    pub called_off: Option<UnixSeconds>,
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
    progress: &mut dyn FnMut(Progress),
) -> Result<Restored> {
    let open = |progress: &mut dyn FnMut(Progress)| Source::open(Arc::clone(&disk), options, progress);
    let into = into.into();
    refuse_overlap(options.sources(), into.place(options)?)?;
    if let RestoreInto::Disk(name) = into
        && let Some(manifest) = Manifest::read(&*disk, &options.from)?.filter(Manifest::is_hash)
    {
        return database::restore_hash(&*disk, &manifest, options, name, clock.now(), progress);
    }
    restore_records(Arc::clone(&disk), options, open, into, clock, progress)
}

/// Creates a database of the records of a source, which is opened after the target is staged.
pub(crate) fn restore_records<S: RecordSource>(
    disk: Arc<dyn Disk>,
    options: &RestoreOptions,
    open: impl FnOnce(&mut dyn FnMut(Progress)) -> Result<S>,
    into: RestoreInto<'_>,
    clock: Arc<dyn Clock>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Restored> {
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

/// Creates a data directory of the records of a source.
fn restore_directory<S: RecordSource>(
    disk: Arc<dyn Disk>,
    options: &RestoreOptions,
    open: impl FnOnce(&mut dyn FnMut(Progress)) -> Result<S>,
    database: &Database,
    clock: Arc<dyn Clock>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Restored> {
    let target = StagedDirectory::create(Arc::clone(&disk), &options.target)?;
    let source = open(progress)?;
    let mut restored = source.bring_back(database, options.until_ms, progress)?;
    let openings = source.openings_of_restored(database, clock.now());
    let planned = database.planned_clear();
    database.resume(planned, u64::from(openings) << 32);
    restored.called_off = settle_clear(database, planned, options.until_ms)?;
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

/// Settles a planned clear: carries it out if it was due by the requested time, and cancels it if
/// it has become due since.
fn settle_clear(
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

/// A backup or data directory, with more of its log.
pub(crate) struct Source {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    identity: DatabaseIdentity,
    checkpoint_store: CheckpointStore,
    /// The logs, each of which continues where the previous one ends.
    logs: Vec<PathBuf>,
    _lock: Option<Box<dyn Send + Sync>>,
}

/// Fails with `Invalid` if the log is missing or another database's. A log that continues from the
/// same position need not continue with the same records.
fn refuse_others_log(disk: &dyn Disk, log: &Path, identity: DatabaseIdentity, from: &Path) -> Result<()> {
    let refuse = |what: &str| {
        let message = format!("{} is {what}: more of the log of {} is wanted", log.display(), from.display());
        Err(Error::new(ErrorKind::Invalid, message))
    };
    let above = log.parent().unwrap_or(log);
    if refuse_tree(disk, above).is_err() {
        return refuse("the log of a tree on disk");
    }
    match segments(disk, log) {
        Ok(found) if found.is_empty() => refuse("no update log"),
        Ok(found) if found.iter().any(|one| one.identity.database_id != identity.database_id) => {
            refuse("another database's log")
        }
        Err(error) if error.kind() != ErrorKind::Corrupt => Err(error),
        // Damage is reported when the log is read.
        _ => Ok(()),
    }
}

/// The beginning of a restoration: a checkpoint, or none if the log reaches back to its start.
struct Beginning {
    checkpoint: Option<CheckpointReader>,
    start: LogPosition,
    until: LogPosition,
}

impl Source {
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        options: &RestoreOptions,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Source> {
        let path = options.from.clone();
        refuse_tree(&*disk, &path)?;
        let manifest = Manifest::read(&*disk, &path)?;
        if manifest.as_ref().is_some_and(Manifest::is_hash) {
            let message = format!(
                "{} is a backup of a hash on disk and becomes one again: name it NAME.hash",
                path.display()
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let identity = read_identity(&*disk, &path)?;
        let mut lock = None;
        if let Some(manifest) = manifest {
            let len = manifest.backed_up().len;
            let mut told = |done: u64| progress(Progress { done, remaining: len.saturating_sub(done) });
            if let Some((path, what)) = manifest.check(&*disk, &path, &mut told).first() {
                return Err(Error::new(ErrorKind::Corrupt, format!("{} {what}", path.display())));
            }
        } else {
            let path = path.join("lock");
            let locked = disk.lock(&path).map_err(|error| match error.kind() {
                io::ErrorKind::WouldBlock => {
                    let message = format!("{} is in use: make a backup of it first", options.from.display());
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
        // A killed process may have left recent entries beside its segments.
        let disk = logs.iter().try_fold(disk, |disk, log| with_recent(disk, log, identity))?;
        let checkpoint_store =
            CheckpointStore::new(Arc::clone(&disk), path.join(CHECKPOINTS), path.join(LOG), identity);
        Ok(Source { disk, path, identity, checkpoint_store, logs, _lock: lock })
    }
}

impl RecordSource for Source {
    fn openings_of_restored(&self, database: &Database, now: UnixSeconds) -> u32 {
        let by_logs = self.logs.iter().map(|log| openings_of(&*self.disk, log)).max().unwrap_or_default();
        openings_of_restored(by_logs.max(database.openings_known()), now)
    }

    fn bring_back(
        &self,
        database: &Database,
        until_ms: Option<u64>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Restored> {
        let mut refused = Vec::new();
        let mut earliest_ms = None;
        for start in self.checkpoint_store.list()?.into_iter().map(Some).chain([None]) {
            let beginning = match start {
                None if !self.logs.iter().any(|log| self.goes_back(log, LogPosition(0))) => break,
                None => Beginning { checkpoint: None, start: LogPosition(0), until: LogPosition(0) },
                Some(start) => match self.checkpoint_store.open(start) {
                    Err(why) => {
                        refused.push(why);
                        continue;
                    }
                    Ok(reader) => {
                        let until = reader.footer.until;
                        Beginning { checkpoint: Some(reader), start, until }
                    }
                },
            };
            // No change before `start` was made after the checkpoint was begun.
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
            match self.bring_back_from(database, &beginning, stop, progress) {
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
            let message = format!("{name} does not go back to that time; its checkpoint is of {made}");
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let why = refused.iter().map(|why| format!("; {why}")).collect::<String>();
        Err(Error::new(ErrorKind::Corrupt, format!("{name} has no checkpoint that could be read{why}")))
    }
}

impl Source {
    fn bring_back_from(
        &self,
        database: &Database,
        beginning: &Beginning,
        stop: LogPosition,
        progress: &mut dyn FnMut(Progress),
    ) -> std::result::Result<Restored, CheckpointFailure> {
        const TELL_EVERY: u64 = 1 << 12;
        let mut time_ms = 0;
        let checkpoint_len = beginning.checkpoint.as_ref().map_or(0, CheckpointReader::len);
        if let Some(checkpoint) = &beginning.checkpoint {
            time_ms = checkpoint.header.created_ms;
            let len = checkpoint.len();
            let mut told = |done: u64| {
                progress(Progress { done, remaining: len.saturating_sub(done) });
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
                progress(Progress { done, remaining });
            }
            Ok(ControlFlow::Continue(()))
        });
        let walked = walked.map_err(CheckpointFailure::Refused)?;
        if walked.position < beginning.until {
            let message = format!(
                "the update log ends at position {}, but its checkpoint needs it to {}",
                walked.position.0, beginning.until.0
            );
            return Err(CheckpointFailure::Refused(Error::new(ErrorKind::Corrupt, message)));
        }
        Ok(Restored {
            records: 0,
            has_log: true,
            position: walked.position,
            time_ms,
            entries,
            lost,
            refused: Vec::new(),
            ends_before: false,
            tail: walked.tail,
            called_off: None,
        })
    }

    /// Returns the position of the first change made later than this time, or the end if there is
    /// none.
    fn place_of(&self, until_ms: u64, from: LogPosition) -> Result<LogPosition> {
        // The search starts with the mark that begins a segment, because the time of earlier
        // entries is unknown.
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

    /// Shows the entries from a position on, through all logs, with the number of remaining bytes,
    /// until `see` breaks.
    fn walk(&self, from: LogPosition, see: &mut See<'_>) -> Result<LogProgress> {
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
            // Opening the database creates the directory then.
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

type See<'s> = dyn FnMut(LogPosition, &LogEntry<'_>, u64) -> Result<ControlFlow<()>> + 's;

/// The progress of reading the logs.
struct LogProgress {
    /// The tail of the log that was read last.
    position: LogPosition,
    tail: LogTail,
    is_cut_short: bool,
}
