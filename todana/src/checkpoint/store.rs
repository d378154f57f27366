//! The checkpoints of a data directory: lists, loads, writes and removes them, and removes the log
//! that is not needed any longer.

use super::writer::WrittenCheckpoint;
use super::{
    CheckpointFailure, CheckpointInfo, CheckpointOptions, CheckpointReader, CheckpointSink, WorkPacer, write,
};
use crate::Database;
use crate::disk::{Disk, File};
use crate::update_log::{
    self, DatabaseIdentity, LogPosition, SEGMENT_HEADER_LEN, UpdateLog, segment_name, segment_start,
};
use parking_lot::Mutex;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use todana_core::{CheckpointedEngine, Error, ErrorKind, FrozenContent, FrozenFile, Result};
use todana_engine::reserve::is_out_of_room;

const SUFFIX: &str = ".checkpoint";
/// The number of intact checkpoints that are kept: the newest, and a spare one in case the newest
/// becomes damaged.
const KEPT_COUNT: usize = 2;
/// Most bytes of a checkpoint that are written before a sync. A longer sync would delay the syncs
/// of the log.
const UNSYNCED_MAX: u64 = 8 << 20;

/// The checkpoints of a directory, and the part of the log that is kept for them.
pub(crate) struct CheckpointStore {
    disk: Arc<dyn Disk>,
    directory: PathBuf,
    log: PathBuf,
    identity: DatabaseIdentity,
    /// The intact checkpoints, the newest first. Locked while a checkpoint is written.
    intact: Mutex<Vec<KnownCheckpoint>>,
    holds: Arc<LogHolds>,
    /// The number of checkpoints without a name that were written for backups.
    unnamed_count: AtomicU64,
}

/// The disk space that a data directory uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskFootprint {
    /// Number of segments of the update log.
    pub log_segments: u64,
    /// Length of these segments in bytes.
    pub log_bytes: u64,
    /// Number of checkpoints.
    pub checkpoints: u64,
    /// Length of the intact checkpoints in bytes.
    pub checkpoint_bytes: u64,
}

#[derive(Clone, Copy)]
struct KnownCheckpoint {
    start: LogPosition,
    len: u64,
}

/// The result of loading the newest checkpoint.
#[derive(Default)]
pub(crate) struct LoadedCheckpoint {
    pub(crate) checkpoint: Option<CheckpointInfo>,
    /// Damaged checkpoints that are newer than the loaded one, with the damage of each.
    pub(crate) refused: Vec<String>,
    /// Checkpoints older than the loaded one in which a check has found damage, with the damage of
    /// each.
    pub(crate) spare: Vec<String>,
}

impl CheckpointStore {
    pub(crate) fn new(
        disk: Arc<dyn Disk>,
        directory: PathBuf,
        log: PathBuf,
        identity: DatabaseIdentity,
    ) -> CheckpointStore {
        let (intact, holds) = (Mutex::new(Vec::new()), Arc::new(LogHolds::default()));
        CheckpointStore { disk, directory, log, identity, intact, holds, unnamed_count: AtomicU64::new(0) }
    }

    /// Returns the positions of all checkpoints, the newest first.
    pub(crate) fn list(&self) -> Result<Vec<LogPosition>> {
        let names = match self.disk.list(&self.directory) {
            // A missing directory is created when the database is opened.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            names => names.map_err(|error| cannot("read", &self.directory, &error))?,
        };
        let mut starts: Vec<LogPosition> =
            names.iter().filter_map(|name| update_log::position_of(name, SUFFIX)).collect();
        starts.sort_unstable_by(|one, other| other.cmp(one));
        Ok(starts)
    }

    pub(crate) fn open(&self, start: LogPosition) -> std::result::Result<CheckpointReader, String> {
        let path = self.path_of(start);
        let reader = CheckpointReader::open(&*self.disk, &path, self.identity)?;
        if reader.start() != start {
            return Err(format!(
                "{} at offset 0: the file name does not match the position in the header",
                path.display()
            ));
        }
        Ok(reader)
    }

    /// Loads the newest intact checkpoint into an empty database, if a checkpoint exists.
    /// `progress` is called with the checkpoint's position, the number of bytes read and the total
    /// number of bytes.
    pub(crate) fn load_newest(
        &self,
        database: &Database,
        progress: &mut dyn FnMut(LogPosition, u64, u64) -> ControlFlow<()>,
    ) -> Result<LoadedCheckpoint> {
        let mut loaded = LoadedCheckpoint::default();
        let mut intact = self.intact.lock();
        for start in self.list()? {
            let reader = match self.open(start) {
                Ok(reader) => reader,
                Err(why) => {
                    let is_older = loaded.checkpoint.is_some();
                    if is_older { &mut loaded.spare } else { &mut loaded.refused }.push(why);
                    continue;
                }
            };
            intact.push(KnownCheckpoint { start, len: reader.len() });
            if loaded.checkpoint.is_some() {
                // An older checkpoint is needed only if the newest becomes damaged, so only its
                // header and footer are checked.
                continue;
            }
            let began = Instant::now();
            match reader.load(database, &mut |done| progress(start, done, reader.len())) {
                Ok(()) => {
                    loaded.checkpoint = Some(CheckpointInfo {
                        path: self.path_of(start),
                        start,
                        until: reader.footer.until,
                        records: reader.footer.records,
                        len: reader.len(),
                        created_ms: reader.header.created_ms,
                        took: began.elapsed(),
                    });
                }
                Err(CheckpointFailure::Refused(error)) => return Err(error),
                Err(CheckpointFailure::Damaged(why)) => {
                    intact.pop();
                    loaded.refused.push(why);
                    database.engine().clear(&mut || ())?;
                }
            }
        }
        Ok(loaded)
    }

    /// Returns true if the log has grown enough for another checkpoint. On a full disk, any growth
    /// is enough.
    pub(crate) fn is_due(&self, end: LogPosition, options: &CheckpointOptions, is_full: bool) -> bool {
        // The lock is held while a checkpoint is written; another one is not due then.
        let Some(intact) = self.intact.try_lock() else { return false };
        let (start, len) = intact.first().map_or((LogPosition(0), 0), |last| (last.start, last.len));
        end.0.saturating_sub(start.0) > if is_full { 0 } else { options.log_len_min.max(len) }
    }

    /// Writes a checkpoint, and removes the checkpoints and the log that are not needed any longer.
    pub(crate) fn write_new(
        &self,
        database: &Database,
        options: &CheckpointOptions,
        stops: &AtomicBool,
    ) -> Result<CheckpointInfo> {
        let mut intact = self.intact.lock();
        let began = Instant::now();
        if let Some(log) = database.log() {
            // A new segment starts here, so that all log before the checkpoint can be removed
            // later.
            log.rotate()?;
        }
        let is_full = database.log().is_some_and(UpdateLog::takes_only_removals);
        let now_ms = database.now().0.saturating_mul(1000);
        let mut made = match self.write_named(database, options, stops) {
            Err(error) if error.kind() == ErrorKind::Full && intact.len() > 1 => {
                // On a full disk, the new checkpoint needs the space of the spare one.
                self.prune(&mut intact, 1, options, now_ms)?;
                self.write_named(database, options, stops)?
            }
            made => made?,
        };
        intact.retain(|known| known.start != made.start);
        intact.insert(0, KnownCheckpoint { start: made.start, len: made.len });
        // On a full disk, there is no space for a spare checkpoint.
        self.prune(&mut intact, if is_full { 1 } else { KEPT_COUNT }, options, now_ms)?;
        made.took = began.elapsed();
        Ok(made)
    }

    /// Writes a checkpoint for a single reader, and returns its open file, whose name is already
    /// removed. Other files of the directory do not depend on this checkpoint. The caller must hold
    /// the log that the checkpoint needs.
    pub(crate) fn write_unnamed(
        &self,
        database: &Database,
        options: &CheckpointOptions,
        stops: &AtomicBool,
    ) -> Result<(CheckpointInfo, Box<dyn File>)> {
        let began = Instant::now();
        if let Some(log) = database.log() {
            // A new segment starts here, so that the reader receives little log from before the
            // checkpoint.
            log.rotate()?;
        }
        // Several of these checkpoints may be written at the same time, so each gets a number.
        // After a crash, the next opening removes all partial files.
        let number = self.unnamed_count.fetch_add(1, Ordering::Relaxed);
        let partial = self.directory.join(format!("backup-{number}.checkpoint.partial"));
        let made = self.write_to(database, options, stops, &partial);
        let open = || self.disk.open(&partial, false).map_err(|error| cannot("read", &partial, &error));
        let opened = made.and_then(|made| Ok((made, open()?)));
        let removed = self.disk.remove(&partial);
        let (written, file) = opened?;
        removed.map_err(|error| cannot("remove", &partial, &error))?;
        Ok((CheckpointInfo { took: began.elapsed(), ..checkpoint(partial, &written) }, file))
    }

    /// Writes all changes of an engine that is its own checkpoint to its files in `directory`, and
    /// removes the log before these changes end.
    pub(crate) fn checkpoint_engine(
        &self,
        database: &Database,
        engine: &dyn CheckpointedEngine,
        directory: &Path,
        options: &CheckpointOptions,
    ) -> Result<CheckpointInfo> {
        let _alone = self.intact.lock();
        let began = Instant::now();
        let no_log = || Error::new(ErrorKind::Invalid, "checkpoint: the database has no update log");
        let log = database.log().ok_or_else(no_log)?;
        log.rotate()?;
        // While this exists, no commit can start, so the files contain each commit completely or
        // not at all.
        let blocked = RefCell::new(Some(database.block_commits()));
        let cut_end = Cell::new(LogPosition(0));
        let mut cut = || {
            let marked = blocked.borrow().as_ref().map(|blocked| blocked.mark(log));
            let (mark, until) = marked.unwrap_or_default();
            cut_end.set(until);
            mark.0
        };
        let mut ready = |_| {
            blocked.take();
            log.sync_to(cut_end.get())
        };
        engine.checkpoint_at(&mut cut, &mut ready)?;
        let log_position = LogPosition(engine.log_position());
        self.remove_log(log_position, options, database.now().0.saturating_mul(1000))?;
        Ok(CheckpointInfo {
            path: directory.into(),
            start: log_position,
            until: log_position,
            records: database.engine().status().records,
            len: engine.file_bytes(),
            created_ms: database.now().0.saturating_mul(1000),
            took: began.elapsed(),
        })
    }

    /// Writes a checkpoint and gives it its name. If that fails, the partial file is removed.
    fn write_named(
        &self,
        database: &Database,
        options: &CheckpointOptions,
        stops: &AtomicBool,
    ) -> Result<CheckpointInfo> {
        let partial = self.directory.join("new.checkpoint.partial");
        let made = self.write(database, options, stops, &partial);
        if made.is_err() {
            // A failed removal does no harm, because a partial file does not count as a checkpoint.
            let _ = self.disk.remove(&partial);
        }
        made
    }

    fn write(
        &self,
        database: &Database,
        options: &CheckpointOptions,
        stops: &AtomicBool,
        partial: &Path,
    ) -> Result<CheckpointInfo> {
        let failed = |error: io::Error| cannot("write to", partial, &error);
        let written = self.write_to(database, options, stops, partial)?;
        let path = self.path_of(written.header.start);
        self.disk.rename(partial, &path).map_err(failed)?;
        self.disk.sync_directory(&self.directory).map_err(failed)?;
        Ok(checkpoint(path, &written))
    }

    fn write_to(
        &self,
        database: &Database,
        options: &CheckpointOptions,
        stops: &AtomicBool,
        partial: &Path,
    ) -> Result<WrittenCheckpoint> {
        let failed = |error: io::Error| cannot("write to", partial, &error);
        if let Err(error) = self.disk.remove(partial)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(cannot("remove", partial, &error));
        }
        let file = self.disk.create(partial).map_err(failed)?;
        let mut sink = FileSink { file, len: 0, synced: 0 };
        let written = write(database, self.identity, options, stops, &mut sink)?;
        sink.file.sync().map_err(failed)?;
        Ok(written)
    }

    /// Removes all checkpoints except the `kept` newest intact ones, and the log before the oldest
    /// that is kept. Removes nothing if there are fewer than `kept`.
    fn prune(
        &self,
        intact: &mut Vec<KnownCheckpoint>,
        kept: usize,
        options: &CheckpointOptions,
        now_ms: u64,
    ) -> Result<()> {
        let Some(oldest) = intact.get(kept - 1).map(|known| known.start) else { return Ok(()) };
        intact.truncate(kept);
        for start in self.list()? {
            if !intact.iter().any(|known| known.start == start) {
                let path = self.path_of(start);
                self.disk.remove(&path).map_err(|error| cannot("remove", &path, &error))?;
            }
        }
        self.remove_log(oldest, options, now_ms)
    }

    /// Removes the log before a position, except for the part that the options keep. Used if the
    /// log exists only for replicas.
    pub(crate) fn remove_log_before(
        &self,
        position: LogPosition,
        options: &CheckpointOptions,
        now_ms: u64,
    ) -> Result<()> {
        let _alone = self.intact.lock();
        self.remove_log(position, options, now_ms)
    }

    /// Removes segments of the log that are kept only because of the options, if `is_over` returns
    /// true for the time at which a segment ended (Unix time in milliseconds). `mark` is the tree
    /// mark if the engine is its own checkpoint.
    pub(crate) fn release_log(&self, mark: Option<LogPosition>, is_over: &dyn Fn(u64) -> bool) -> Result<()> {
        let intact = self.intact.lock();
        let Some(needed) = mark.or_else(|| intact.get(KEPT_COUNT - 1).map(|known| known.start)) else {
            return Ok(());
        };
        let ended_ms = |pair: &[LogPosition]| update_log::created_ms(&*self.disk, &self.log, pair[1]);
        self.remove_segments(needed, &|pair| !is_over(ended_ms(pair)))
    }

    /// Removes the segments that end at or before a position, except those that the options keep or
    /// that a reader still needs.
    fn remove_log(&self, position: LogPosition, options: &CheckpointOptions, now_ms: u64) -> Result<()> {
        let age_max_ms = u64::try_from(options.log_kept_age.as_millis()).unwrap_or(u64::MAX);
        self.remove_segments(position, &|pair| {
            // A segment ends when the next one is created.
            let age_ms = || now_ms.saturating_sub(update_log::created_ms(&*self.disk, &self.log, pair[1]));
            position.0 - pair[0].0 <= options.log_kept_len
                && (age_max_ms == u64::MAX || age_ms() <= age_max_ms)
        })
    }

    /// Removes the segments that end at or before a position, except those that a reader holds, and
    /// the newest ones, for which `is_kept` returns true. `is_kept` receives the start and the end
    /// of a segment.
    fn remove_segments(&self, position: LogPosition, is_kept: &dyn Fn(&[LogPosition]) -> bool) -> Result<()> {
        let names = self.disk.list(&self.log).map_err(|error| cannot("read", &self.log, &error))?;
        let mut starts: Vec<LogPosition> = names.iter().filter_map(|name| segment_start(name)).collect();
        starts.sort_unstable();
        // The oldest segment is removed first, so that the log never has a gap. The last segment
        // stays, because it is being written.
        let over: Vec<&[LogPosition]> = starts.windows(2).take_while(|pair| pair[1] <= position).collect();
        let kept = over.iter().rev().take_while(|pair| is_kept(pair)).count();
        let unneeded = &over[..over.len() - kept];
        if let Some(pair) = unneeded.last() {
            self.holds.free_until(pair[1]);
        }
        for pair in unneeded {
            // The holds are checked before each removal, because a reader may have begun in the
            // meantime.
            if pair[1] > self.holds.first() {
                break;
            }
            let path = self.log.join(segment_name(pair[0]));
            self.disk.remove(&path).map_err(|error| cannot("remove", &path, &error))?;
            // Each removal must be on disk before the next one. Otherwise a crash could undo the
            // first removal and keep the second, and the resulting gap would look like a loss.
            self.disk.sync_directory(&self.log).map_err(|error| cannot("sync", &self.log, &error))?;
        }
        Ok(())
    }

    /// Returns the disk space in use. `end` is the end of the log.
    pub(crate) fn footprint(&self, end: LogPosition) -> Result<DiskFootprint> {
        let names = self.disk.list(&self.log).map_err(|error| cannot("read", &self.log, &error))?;
        let segments: Vec<LogPosition> = names.iter().filter_map(|name| segment_start(name)).collect();
        let first = segments.iter().min().copied().unwrap_or(end);
        let headers = (segments.len() * SEGMENT_HEADER_LEN) as u64;
        let checkpoints = self.list()?;
        // A damaged checkpoint counts too, but without its length, which is unknown.
        let intact = self.intact.lock();
        Ok(DiskFootprint {
            log_segments: segments.len() as u64,
            log_bytes: headers + end.0.saturating_sub(first.0),
            checkpoints: checkpoints.len() as u64,
            checkpoint_bytes: intact.iter().map(|known| known.len).sum(),
        })
    }

    pub(crate) fn hold(&self, from: LogPosition) -> LogHold {
        LogHold { holds: Arc::clone(&self.holds), number: self.holds.add(from) }
    }

    pub(crate) fn path_of(&self, start: LogPosition) -> PathBuf {
        self.directory.join(format!("{:020}{SUFFIX}", start.0))
    }
}

fn checkpoint(path: PathBuf, written: &WrittenCheckpoint) -> CheckpointInfo {
    CheckpointInfo {
        path,
        start: written.header.start,
        until: written.footer.until,
        records: written.footer.records,
        len: written.len(),
        created_ms: written.header.created_ms,
        took: Duration::ZERO,
    }
}

/// The file of a checkpoint that is being written.
struct FileSink {
    file: Box<dyn File>,
    len: u64,
    synced: u64,
}

impl CheckpointSink for FileSink {
    fn write(&mut self, pieces: &mut [IoSlice<'_>], _: &mut WorkPacer) -> io::Result<()> {
        let len: usize = pieces.iter().map(|piece| piece.len()).sum();
        self.file.write_at(self.len, pieces)?;
        self.len += len as u64;
        if self.len - self.synced >= UNSYNCED_MAX {
            self.file.sync()?;
            self.synced = self.len;
        }
        Ok(())
    }
}

/// The readers of the log, and the positions from which they need it.
#[derive(Default)]
pub(crate) struct LogHolds(Mutex<LogReaders>);

#[derive(Default)]
struct LogReaders {
    last: u64,
    /// The position from which each reader needs the log.
    positions: BTreeMap<u64, LogPosition>,
    /// Only readers need the log before this position.
    free: LogPosition,
}

impl LogHolds {
    fn add(&self, from: LogPosition) -> u64 {
        let mut readers = self.0.lock();
        readers.last += 1;
        let number = readers.last;
        readers.positions.insert(number, from);
        number
    }

    fn first(&self) -> LogPosition {
        self.0.lock().positions.values().copied().min().unwrap_or(LogPosition(u64::MAX))
    }

    fn free_until(&self, position: LogPosition) {
        let mut readers = self.0.lock();
        readers.free = readers.free.max(position);
    }
}

/// Keeps the update log from a position on, for a backup or a replica, until this value is dropped.
/// Segments that were removed before stay removed.
pub struct LogHold {
    holds: Arc<LogHolds>,
    number: u64,
}

/// Counts the bytes that are on disk only because one reader needs them: bytes of the update log,
/// or of the files of a hash.
#[derive(Clone)]
pub struct HeldBytes(HeldSource);

#[derive(Clone)]
enum HeldSource {
    Log {
        holds: Arc<LogHolds>,
        number: u64,
    },
    /// Files of one directory that the reader has not finished.
    Files {
        all: Weak<[UnsentFile]>,
    },
}

impl LogHold {
    /// Stops holding the log before this position.
    pub fn advance(&self, position: LogPosition) {
        self.holds.0.lock().positions.insert(self.number, position);
    }

    /// Returns a counter of the bytes that are held.
    pub fn held(&self) -> HeldBytes {
        HeldBytes(HeldSource::Log { holds: Arc::clone(&self.holds), number: self.number })
    }
}

impl Drop for LogHold {
    fn drop(&mut self) {
        self.holds.0.lock().positions.remove(&self.number);
    }
}

/// A file that the reader has not finished, and its length.
type UnsentFile = (Weak<dyn FrozenContent>, u64);

/// Keeps files of a hash readable until this value is dropped, even after compaction has removed
/// their names.
pub(crate) struct FileHold {
    all: Arc<[UnsentFile]>,
}

impl FileHold {
    pub(crate) fn new(all: &[FrozenFile]) -> FileHold {
        FileHold { all: all.iter().map(|file| (Arc::downgrade(&file.content), file.len)).collect() }
    }

    pub(crate) fn held(&self) -> HeldBytes {
        HeldBytes(HeldSource::Files { all: Arc::downgrade(&self.all) })
    }
}

impl HeldBytes {
    /// Returns the number of bytes of log that the last checkpoint would have removed without this
    /// hold, or 0 after the hold has ended. Other readers may hold the same bytes. For files of a
    /// hash, returns the bytes of the unfinished files whose names compaction has removed.
    pub fn len_bytes(&self) -> u64 {
        match &self.0 {
            HeldSource::Log { holds, number } => {
                let readers = holds.0.lock();
                let from = readers.positions.get(number);
                from.map_or(0, |from| readers.free.0.saturating_sub(from.0))
            }
            HeldSource::Files { all } => all.upgrade().map_or(0, |all| unnamed_bytes(&all)),
        }
    }
}

/// Returns the number of bytes of the files that have been removed from their directory.
fn unnamed_bytes(all: &[UnsentFile]) -> u64 {
    let held = all.iter().filter_map(|(content, len)| Some((content.upgrade()?, len)));
    held.filter(|(content, _)| !content.has_name()).map(|(_, len)| len).sum()
}

fn cannot(what: &str, path: &Path, error: &io::Error) -> Error {
    let kind = if is_out_of_room(error) { ErrorKind::Full } else { ErrorKind::Unavailable };
    Error::new(kind, format!("{}: cannot {what} it: {error}", path.display()))
}
