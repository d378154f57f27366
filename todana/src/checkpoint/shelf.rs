//! The checkpoints of a data directory: which there are, which of them stay, and what of the log stays for them.

use super::writer::Written;
use super::{CheckpointFailure, CheckpointInfo, CheckpointOptions, CheckpointReader, Sink, write};
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
/// So many whole ones are kept.
const KEPT: usize = 2;
/// What waits to be synced is bounded, so that the log's own syncs do not wait for all of a checkpoint at once.
const UNSYNCED_MAX: u64 = 8 << 20;

/// The checkpoints of a directory, and the log that goes with them.
pub(crate) struct Shelf {
    disk: Arc<dyn Disk>,
    directory: PathBuf,
    log: PathBuf,
    identity: DatabaseIdentity,
    /// Known to be whole, the newest one first. Locked while one is made.
    whole: Mutex<Vec<Known>>,
    holds: Arc<Holds>,
    /// How many have been made aside.
    asides: AtomicU64,
}

/// What a data directory has on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskFootprint {
    /// Segments of the update log.
    pub log_segments: u64,
    /// Their bytes.
    pub log_bytes: u64,
    /// Checkpoints.
    pub checkpoints: u64,
    /// Bytes of those that are whole.
    pub checkpoint_bytes: u64,
}

#[derive(Clone, Copy)]
struct Known {
    start: LogPosition,
    len: u64,
}

/// What bringing back the newest checkpoint has come to.
#[derive(Default)]
pub(crate) struct BroughtBack {
    pub(crate) checkpoint: Option<CheckpointInfo>,
    /// Newer ones that are not whole, and why.
    pub(crate) refused: Vec<String>,
    /// Older ones that are not, as far as they were looked at, and why.
    pub(crate) spare: Vec<String>,
}

impl Shelf {
    pub(crate) fn new(
        disk: Arc<dyn Disk>,
        directory: PathBuf,
        log: PathBuf,
        identity: DatabaseIdentity,
    ) -> Shelf {
        let (whole, holds) = (Mutex::new(Vec::new()), Arc::new(Holds::default()));
        Shelf { disk, directory, log, identity, whole, holds, asides: AtomicU64::new(0) }
    }

    /// Where they begin, the newest one first.
    pub(crate) fn list(&self) -> Result<Vec<LogPosition>> {
        let names = match self.disk.list(&self.directory) {
            // Whoever opens a database makes it.
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
            return Err(format!("{} at offset 0: its name is not that of its position", path.display()));
        }
        Ok(reader)
    }

    /// Brings the newest whole checkpoint back into an empty database, if there is any. `progress` is told where its log
    /// begins, how many bytes have been read and how many there are.
    pub(crate) fn bring_back(
        &self,
        database: &Database,
        progress: &mut dyn FnMut(LogPosition, u64, u64) -> ControlFlow<()>,
    ) -> Result<BroughtBack> {
        let mut brought = BroughtBack::default();
        let mut whole = self.whole.lock();
        for start in self.list()? {
            let reader = match self.open(start) {
                Ok(reader) => reader,
                Err(why) => {
                    let is_older = brought.checkpoint.is_some();
                    if is_older { &mut brought.spare } else { &mut brought.refused }.push(why);
                    continue;
                }
            };
            whole.push(Known { start, len: reader.len() });
            if brought.checkpoint.is_some() {
                // Looked at no further: it is needed only if the newest one is damaged some day.
                continue;
            }
            let began = Instant::now();
            match reader.load(database, &mut |done| progress(start, done, reader.len())) {
                Ok(()) => {
                    brought.checkpoint = Some(CheckpointInfo {
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
                    whole.pop();
                    brought.refused.push(why);
                    database.engine().clear(&mut || ())?;
                }
            }
        }
        Ok(brought)
    }

    /// Returns true if the log has grown enough for another one; on a full disk, if it has grown at all.
    pub(crate) fn is_due(&self, end: LogPosition, options: &CheckpointOptions, is_full: bool) -> bool {
        // One that is being made now is none the less.
        let Some(whole) = self.whole.try_lock() else { return false };
        let (start, len) = whole.first().map_or((LogPosition(0), 0), |last| (last.start, last.len));
        end.0.saturating_sub(start.0) > if is_full { 0 } else { options.log_len_min.max(len) }
    }

    /// Makes one, and removes what is not needed any longer.
    pub(crate) fn make(
        &self,
        database: &Database,
        options: &CheckpointOptions,
        stops: &AtomicBool,
    ) -> Result<CheckpointInfo> {
        let mut whole = self.whole.lock();
        let began = Instant::now();
        if let Some(log) = database.log() {
            // So that what lies before it can be removed some day.
            log.rotate()?;
        }
        let is_full = database.log().is_some_and(UpdateLog::takes_only_removals);
        let now_ms = database.now().0.saturating_mul(1000);
        let mut made = match self.write_named(database, options, stops) {
            Err(error) if error.kind() == ErrorKind::Full && whole.len() > 1 => {
                // The spare one has the room that the next one needs.
                self.tidy(&mut whole, 1, options, now_ms)?;
                self.write_named(database, options, stops)?
            }
            made => made?,
        };
        whole.retain(|known| known.start != made.start);
        whole.insert(0, Known { start: made.start, len: made.len });
        // On a full disk there is no room for a spare one.
        self.tidy(&mut whole, if is_full { 1 } else { KEPT }, options, now_ms)?;
        made.took = began.elapsed();
        Ok(made)
    }

    /// Makes one that nothing here depends on, and whose file has lost its name by the time it is returned. What of the log it needs
    /// has to be held.
    pub(crate) fn make_aside(
        &self,
        database: &Database,
        options: &CheckpointOptions,
        stops: &AtomicBool,
    ) -> Result<(CheckpointInfo, Box<dyn File>)> {
        let began = Instant::now();
        if let Some(log) = database.log() {
            // So that little of the log before it goes along.
            log.rotate()?;
        }
        // Several may be made at once. What a crash leaves is removed at the next opening, as is all that is partial.
        let number = self.asides.fetch_add(1, Ordering::Relaxed);
        let partial = self.directory.join(format!("backup-{number}.checkpoint.partial"));
        let made = self.write_to(database, options, stops, &partial);
        let open = || self.disk.open(&partial, false).map_err(|error| cannot("read", &partial, &error));
        let opened = made.and_then(|made| Ok((made, open()?)));
        let removed = self.disk.remove(&partial);
        let (written, file) = opened?;
        removed.map_err(|error| cannot("remove", &partial, &error))?;
        Ok((CheckpointInfo { took: began.elapsed(), ..checkpoint(partial, &written) }, file))
    }

    /// Has an engine that keeps a checkpoint itself bring everything there, and removes the log before it. `directory`: where
    /// it is.
    pub(crate) fn settle(
        &self,
        database: &Database,
        engine: &dyn CheckpointedEngine,
        directory: &Path,
        options: &CheckpointOptions,
    ) -> Result<CheckpointInfo> {
        let _alone = self.whole.lock();
        let began = Instant::now();
        let no_log = || Error::new(ErrorKind::Invalid, "a database without an update log has no checkpoints");
        let log = database.log().ok_or_else(no_log)?;
        log.rotate()?;
        // A commit is in as a whole, or not begun.
        let still = RefCell::new(Some(database.stillness()));
        let told = Cell::new(LogPosition(0));
        let mut cut = || {
            let marked = still.borrow().as_ref().map(|still| still.mark(log));
            let (mark, until) = marked.unwrap_or_default();
            told.set(until);
            mark.0
        };
        let mut ready = |_| {
            still.take();
            log.sync_to(told.get())
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

    /// Writes one and gives it its name. When it fails nothing is left of it.
    fn write_named(
        &self,
        database: &Database,
        options: &CheckpointOptions,
        stops: &AtomicBool,
    ) -> Result<CheckpointInfo> {
        let partial = self.directory.join("new.checkpoint.partial");
        let made = self.write(database, options, stops, &partial);
        if made.is_err() {
            // It has no name of a checkpoint, so nothing depends on this.
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
        let failed = |error: io::Error| cannot("write", partial, &error);
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
    ) -> Result<Written> {
        let failed = |error: io::Error| cannot("write", partial, &error);
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

    /// Removes all checkpoints but the `kept` newest whole ones, and the log before them. As long as there are too few, nothing.
    fn tidy(
        &self,
        whole: &mut Vec<Known>,
        kept: usize,
        options: &CheckpointOptions,
        now_ms: u64,
    ) -> Result<()> {
        let Some(oldest) = whole.get(kept - 1).map(|known| known.start) else { return Ok(()) };
        whole.truncate(kept);
        for start in self.list()? {
            if !whole.iter().any(|known| known.start == start) {
                let path = self.path_of(start);
                self.disk.remove(&path).map_err(|error| cannot("remove", &path, &error))?;
            }
        }
        self.remove_log(oldest, options, now_ms)
    }

    /// Removes the log before a position, but for what the options keep, where it is for replicas alone.
    pub(crate) fn trim(&self, position: LogPosition, options: &CheckpointOptions, now_ms: u64) -> Result<()> {
        let _alone = self.whole.lock();
        self.remove_log(position, options, now_ms)
    }

    /// Removes what of the log no checkpoint needs and the options keep all the same, as far as `is_over` says so of the time when a
    /// segment came to its end, in milliseconds. `mark`: that of an engine which keeps a checkpoint itself.
    pub(crate) fn release(&self, mark: Option<LogPosition>, is_over: &dyn Fn(u64) -> bool) -> Result<()> {
        let whole = self.whole.lock();
        let Some(needed) = mark.or_else(|| whole.get(KEPT - 1).map(|known| known.start)) else {
            return Ok(());
        };
        let ended_ms = |pair: &[LogPosition]| update_log::created_ms(&*self.disk, &self.log, pair[1]);
        self.remove_segments(needed, &|pair| !is_over(ended_ms(pair)))
    }

    /// Removes the segments that end at or before a position, but those that the options keep, or somebody who still reads them.
    fn remove_log(&self, position: LogPosition, options: &CheckpointOptions, now_ms: u64) -> Result<()> {
        let age_max_ms = u64::try_from(options.log_kept_age.as_millis()).unwrap_or(u64::MAX);
        self.remove_segments(position, &|pair| {
            // A segment ends when the one behind it is made.
            let age_ms = || now_ms.saturating_sub(update_log::created_ms(&*self.disk, &self.log, pair[1]));
            position.0 - pair[0].0 <= options.log_kept_len
                && (age_max_ms == u64::MAX || age_ms() <= age_max_ms)
        })
    }

    /// The same with those from the first on, of the last ones, of which `is_kept` says so. It is shown where they begin and end.
    fn remove_segments(&self, position: LogPosition, is_kept: &dyn Fn(&[LogPosition]) -> bool) -> Result<()> {
        let names = self.disk.list(&self.log).map_err(|error| cannot("read", &self.log, &error))?;
        let mut starts: Vec<LogPosition> = names.iter().filter_map(|name| segment_start(name)).collect();
        starts.sort_unstable();
        // In order, so that there is never a gap; the last one is written to.
        let over: Vec<&[LogPosition]> = starts.windows(2).take_while(|pair| pair[1] <= position).collect();
        let kept = over.iter().rev().take_while(|pair| is_kept(pair)).count();
        let unneeded = &over[..over.len() - kept];
        if let Some(pair) = unneeded.last() {
            self.holds.free_until(pair[1]);
        }
        for pair in unneeded {
            // Asked before each: somebody may have begun to read it since.
            if pair[1] > self.holds.first() {
                break;
            }
            let path = self.log.join(segment_name(pair[0]));
            self.disk.remove(&path).map_err(|error| cannot("remove", &path, &error))?;
            // Gone for good before the next one is: else a crash could leave a gap, which looks like a loss.
            self.disk.sync_directory(&self.log).map_err(|error| cannot("sync", &self.log, &error))?;
        }
        Ok(())
    }

    /// What there is on disk now; the log ends at `end`.
    pub(crate) fn footprint(&self, end: LogPosition) -> Result<DiskFootprint> {
        let names = self.disk.list(&self.log).map_err(|error| cannot("read", &self.log, &error))?;
        let segments: Vec<LogPosition> = names.iter().filter_map(|name| segment_start(name)).collect();
        let first = segments.iter().min().copied().unwrap_or(end);
        let headers = (segments.len() * SEGMENT_HEADER_LEN) as u64;
        let checkpoints = self.list()?;
        // One that was found damaged stands there too, and its size is not known.
        let whole = self.whole.lock();
        Ok(DiskFootprint {
            log_segments: segments.len() as u64,
            log_bytes: headers + end.0.saturating_sub(first.0),
            checkpoints: checkpoints.len() as u64,
            checkpoint_bytes: whole.iter().map(|known| known.len).sum(),
        })
    }

    pub(crate) fn hold(&self, from: LogPosition) -> LogHold {
        LogHold { holds: Arc::clone(&self.holds), number: self.holds.add(from) }
    }

    pub(crate) fn path_of(&self, start: LogPosition) -> PathBuf {
        self.directory.join(format!("{:020}{SUFFIX}", start.0))
    }
}

fn checkpoint(path: PathBuf, written: &Written) -> CheckpointInfo {
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

/// A file that is written from its beginning.
struct FileSink {
    file: Box<dyn File>,
    len: u64,
    synced: u64,
}

impl Sink for FileSink {
    fn write(&mut self, pieces: &mut [IoSlice<'_>]) -> io::Result<()> {
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

/// What of the log somebody still reads.
#[derive(Default)]
pub(crate) struct Holds(Mutex<Readers>);

#[derive(Default)]
struct Readers {
    last: u64,
    /// From where each of them needs it.
    positions: BTreeMap<u64, LogPosition>,
    /// Up to here nobody else needs it.
    free: LogPosition,
}

impl Holds {
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

/// Keeps the update log from a position on, for a backup or a replica, until it is dropped. What has been removed before is
/// not brought back.
pub struct LogHold {
    holds: Arc<Holds>,
    number: u64,
}

/// How much is on disk for the sake of one reader alone: of the update log, or of the files of a hash.
#[derive(Clone)]
pub struct HeldBytes(Kept);

#[derive(Clone)]
enum Kept {
    Log {
        holds: Arc<Holds>,
        number: u64,
    },
    /// Files that are to be read, in one directory.
    Files {
        all: Weak<[Unsent]>,
    },
}

impl LogHold {
    /// What lies before this position is not needed any longer.
    pub fn advance(&self, position: LogPosition) {
        self.holds.0.lock().positions.insert(self.number, position);
    }

    /// For whoever wants to know what this costs.
    pub fn held(&self) -> HeldBytes {
        HeldBytes(Kept::Log { holds: Arc::clone(&self.holds), number: self.number })
    }
}

impl Drop for LogHold {
    fn drop(&mut self) {
        self.holds.0.lock().positions.remove(&self.number);
    }
}

/// A file that somebody is to read, and its length.
type Unsent = (Weak<dyn FrozenContent>, u64);

/// Files of a hash whose names go when compaction does not need them any longer, for as long as this is there.
pub(crate) struct HoldFiles {
    all: Arc<[Unsent]>,
}

impl HoldFiles {
    pub(crate) fn new(all: &[FrozenFile]) -> HoldFiles {
        HoldFiles { all: all.iter().map(|file| (Arc::downgrade(&file.content), file.len)).collect() }
    }

    pub(crate) fn held(&self) -> HeldBytes {
        HeldBytes(Kept::Files { all: Arc::downgrade(&self.all) })
    }
}

impl HeldBytes {
    /// Bytes of entries that the last checkpoint would have removed if they were not held; 0 once they are not. Others may hold the
    /// same ones. Of files, those that have no name any more and still are to be read.
    pub fn len_bytes(&self) -> u64 {
        match &self.0 {
            Kept::Log { holds, number } => {
                let readers = holds.0.lock();
                let from = readers.positions.get(number);
                from.map_or(0, |from| readers.free.0.saturating_sub(from.0))
            }
            Kept::Files { all } => all.upgrade().map_or(0, |all| unnamed_bytes(&all)),
        }
    }
}

/// Bytes of files that somebody holds, and that have been removed from their directory.
fn unnamed_bytes(all: &[Unsent]) -> u64 {
    let held = all.iter().filter_map(|(content, len)| Some((content.upgrade()?, len)));
    held.filter(|(content, _)| !content.has_name()).map(|(_, len)| len).sum()
}

fn cannot(what: &str, path: &Path, error: &io::Error) -> Error {
    let kind = if is_out_of_room(error) { ErrorKind::Full } else { ErrorKind::Unavailable };
    Error::new(kind, format!("cannot {what} {}: {error}", path.display()))
}
