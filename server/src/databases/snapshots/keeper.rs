//! Creates the snapshot files of a server's databases at intervals, and reads them when the server
//! starts.

use super::{SnapshotOptions, SnapshotWriter, read_snapshot};
use crate::databases::{ServedDatabase, failed, has_ended};
use crate::shared::SharedState;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io::{self, IoSlice, Read, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use todana::disk::{Disk, File};
use todana::replication::{STAMPS_PER_SECOND, first_of_second};
use todana::update_log::{LogPosition, segments};
use todana::{Action, Clock, Expiry, OpeningReport, OverwriteVisitor, Record, kyoto};
use todana_core::{Attributes, RecordLoad};
use todana_protocol::kyoto::StoredValue;
use todana_protocol::kyoto::snapshot::{COUNT_AT, HEAD_LEN, SnapshotHead, file_name};

/// The name of a file in the data directory of a database. The file exists while a snapshot is
/// being read into the database. If it exists at a start, a crash interrupted the reading, and the
/// snapshot must be read again.
const READING_MARK: &str = "reading-snapshot";
/// The name of a file in the snapshot directory that the server holds locked.
const LOCK: &str = "snapshots.lock";
/// The lowest number that cannot be an expiry time, because it is thousands of years ahead. Such a
/// number is the first five bytes of a value that was stored without a time.
const IMPLAUSIBLE_TIME: u64 = 0x20 << 32;
/// The number of records between two checks whether the work was cancelled.
const CHECK_EVERY_RECORDS: u64 = 256;

/// The outcomes of the snapshots of this server.
#[derive(Default)]
pub(crate) struct SnapshotHistory {
    made: AtomicU64,
    failed: AtomicU64,
    /// The time stamp of the newest snapshot.
    timestamp: AtomicU64,
    /// The reason why the last snapshot of a database failed, by the number of the database.
    troubles: Mutex<BTreeMap<usize, String>>,
    /// The lock of the directory, held until the server ends.
    lock: Mutex<Option<Box<dyn Send + Sync>>>,
    /// True once a warning has been logged that snapshots leave out some attributes of records.
    has_warned_left_out: AtomicBool,
    /// The time stamp from which replication from a master continues. `None` means that the
    /// position file decides.
    replication_start: Mutex<Option<u64>>,
}

impl SnapshotHistory {
    /// Returns the numbers of successful and failed snapshots, the time stamp of the newest one,
    /// and the reason of the last failure of each database.
    pub(crate) fn figures(&self) -> (u64, u64, u64, String) {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let troubles: Vec<String> = self.troubles.lock().values().cloned().collect();
        (count(&self.made), count(&self.failed), count(&self.timestamp), troubles.join("; "))
    }

    /// Notes that a database starts with the state of a master's log at this time stamp.
    fn note_replication_start(&self, timestamp: u64) {
        let mut replication_start = self.replication_start.lock();
        *replication_start = Some(replication_start.map_or(timestamp, |other| other.min(timestamp)));
    }

    /// Returns the latest time stamp from which replication from a master may continue, for
    /// databases that are only in memory. Later changes were lost with the previous process, even
    /// if its position file has a later time stamp.
    pub(crate) fn replication_start(&self) -> Option<u64> {
        *self.replication_start.lock()
    }

    /// Logs once that a record has attributes that the format cannot store.
    fn warn_left_out(&self, label: &str, attributes: &Attributes) {
        let warn_left_out = attributes.flags != 0
            || attributes.has_value_list
            || matches!(attributes.expiry, Expiry::Sliding { .. });
        if warn_left_out && !self.has_warned_left_out.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                database = label,
                "snapshots: client flags, sliding expiries and the values of a key after the first are left out; use a \
                 data directory to keep them"
            );
        }
    }

    /// Records and logs an outcome. A repeated failure is not logged again.
    fn note(&self, number: usize, label: &str, outcome: io::Result<Option<SnapshotHead>>) {
        match outcome {
            Ok(None) => {}
            Ok(Some(head)) => {
                self.made.fetch_add(1, Ordering::Relaxed);
                self.timestamp.store(head.timestamp, Ordering::Relaxed);
                self.troubles.lock().remove(&number);
                tracing::debug!(database = label, records = head.count, "snapshot: written");
            }
            Err(error) => {
                self.failed.fetch_add(1, Ordering::Relaxed);
                let why = error.to_string();
                let mut troubles = self.troubles.lock();
                if troubles.get(&number) != Some(&why) {
                    tracing::error!(
                        database = label,
                        "snapshot: cannot be written, and the previous one stays: {why}"
                    );
                    troubles.insert(number, why);
                }
            }
        }
    }
}

/// Returns true if a database has snapshots; databases on disk have none.
fn has_snapshots(served: &ServedDatabase) -> bool {
    served.name.kind.is_in_memory()
}

/// Creates the directory of the files if necessary, and locks it for this process, because two
/// servers would replace each other's files. Fails if the directory cannot be created or locked, or
/// if another process holds the lock. The message names the directory.
pub(crate) fn prepare(
    disk: &dyn Disk,
    options: &SnapshotOptions,
    history: &SnapshotHistory,
) -> io::Result<()> {
    let directory = &options.directory;
    disk.make_directory(directory).map_err(|error| path_error("create", directory, &error))?;
    let (path, mut lock) = (directory.join(LOCK), history.lock.lock());
    if lock.is_none() {
        *lock = Some(disk.lock(&path).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => io::Error::new(
                error.kind(),
                format!("{}: another server writes its snapshots there", directory.display()),
            ),
            _ => path_error("lock", &path, &error),
        })?);
    }
    Ok(())
}

fn path_error(what: &str, path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: cannot {what}: {error}", path.display()))
}

fn is_missing(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

/// Reads the snapshot of a database, if there is one. If the database was loaded from a data
/// directory, it is newer than any snapshot and stays unchanged. Fails if the file cannot be read
/// completely, because a server that continued without these records would later replace the file.
/// Fails with `Interrupted` if `may_continue` returns false.
pub(crate) fn restore(
    shared: &Arc<SharedState>,
    number: usize,
    opened: Option<&OpeningReport>,
    disk: &dyn Disk,
    may_continue: &dyn Fn() -> bool,
) -> io::Result<()> {
    let served = &shared.databases[number];
    let label = served.name.label();
    let is_in_memory_alone = has_snapshots(served) && served.data.is_none();
    let note_replication_start = |timestamp| {
        if is_in_memory_alone {
            shared.persistence.snapshots.note_replication_start(timestamp);
        }
    };
    let mark = has_snapshots(served).then_some(served.data.as_ref()).flatten();
    let mark = mark.map(|place| place.directory.join(READING_MARK));
    let is_half_read = mark.as_ref().map_or(Ok(false), |mark| exists(disk, mark))?;
    let (path, file) = match find(shared, number, disk)? {
        Some(found) => found,
        None if is_half_read => return Err(half_read(mark.as_deref())),
        None => {
            note_replication_start(0);
            return Ok(());
        }
    };
    if let (Some(_), Some(opened)) = (&mark, opened)
        && opened.end != LogPosition(0)
        && !is_half_read
    {
        expect_older(served, opened.end, &path, &*file, disk)?;
        tracing::info!(
            database = label,
            "{}: not read, because the update log has newer records",
            path.display()
        );
        return Ok(());
    }
    if let Some(mark) = &mark {
        if !is_half_read {
            disk.create(mark).map(drop).map_err(|error| path_error("create", mark, &error))?;
        }
        sync_names(disk, mark)?;
    }
    let (head, records) = fill(shared, served, &path, &*file, may_continue)?;
    note_replication_start(head.timestamp);
    served.database.sync().map_err(failed)?;
    if let Some(mark) = &mark {
        disk.remove(mark).map_err(|error| path_error("remove", mark, &error))?;
        sync_names(disk, mark)?;
    }
    tracing::info!(database = label, records, "{}: snapshot loaded", path.display());
    Ok(())
}

/// Returns the snapshot of a database, if there is one.
fn find(
    shared: &SharedState,
    number: usize,
    disk: &dyn Disk,
) -> io::Result<Option<(PathBuf, Box<dyn File>)>> {
    let Some(options) = &shared.options.databases.snapshots else { return Ok(None) };
    let served = &shared.databases[number];
    if !has_snapshots(served) {
        tracing::info!(
            database = served.name.label(),
            "snapshots: none are written, because the database is on disk"
        );
        return Ok(None);
    }
    let path = options.directory.join(file_name(number as u32));
    match disk.open(&path, false) {
        Err(error) if is_missing(&error) => Ok(None),
        file => file.map_err(|error| path_error("read", &path, &error)).map(|file| Some((path, file))),
    }
}

fn exists(disk: &dyn Disk, path: &Path) -> io::Result<bool> {
    match disk.open(path, false) {
        Err(error) if is_missing(&error) => Ok(false),
        file => file.map(|_| true).map_err(|error| path_error("read", path, &error)),
    }
}

/// Fails if the snapshot is newer than the log and was written without the log, for example by a
/// server that was started without it. The records of the log are older than those of the snapshot,
/// and the next snapshot would replace the file. `end` is the end of the log at this start.
fn expect_older(
    served: &ServedDatabase,
    end: LogPosition,
    path: &Path,
    file: &dyn File,
    disk: &dyn Disk,
) -> io::Result<()> {
    let Some(place) = &served.data else { return Ok(()) };
    let mut bytes = [0; HEAD_LEN];
    file.read_at(0, &mut bytes).map_err(|error| path_error("read", path, &error))?;
    let Some(head) = SnapshotHead::parse(&bytes) else { return Ok(()) };
    let log = place.directory.join("log");
    let segments = segments(disk, &log).map_err(failed)?;
    let last = segments.iter().filter(|segment| segment.start < end).map(|segment| segment.created_ms).max();
    // The time stamp of a snapshot that was written by a server with a log is the end of a second.
    // The log's own time has the same resolution.
    let is_beside_log = head.timestamp == as_of_second(head.timestamp / STAMPS_PER_SECOND);
    match last.filter(|_| !is_beside_log) {
        Some(last) if head.timestamp / STAMPS_PER_SECOND > last / 1000 => Err(io::Error::other(format!(
            "snapshot {}: newer than the update log {} and written without it; remove one of them",
            path.display(),
            log.display()
        ))),
        _ => Ok(()),
    }
}

/// Returns the time stamp of a snapshot that contains everything that was logged up to the end of
/// this second.
fn as_of_second(second: u64) -> u64 {
    first_of_second(second.saturating_add(1)).saturating_sub(1)
}

/// Returns the error of a snapshot that was read only partly. A server must not serve a part of the
/// records. Reading the file again after serving them would overwrite newer changes.
fn half_read(mark: Option<&Path>) -> io::Error {
    let mark = mark.unwrap_or(Path::new(READING_MARK)).display();
    io::Error::other(format!(
        "{mark}: an earlier start ended while it read a snapshot; start with that snapshot, or remove this file to \
         continue with the records that were read"
    ))
}

fn sync_names(disk: &dyn Disk, file: &Path) -> io::Result<()> {
    file.parent().map_or(Ok(()), |directory| disk.sync_directory(directory))
}

/// Stores the unexpired records of a file. Returns the header of the file and the number of stored
/// records.
fn fill(
    shared: &SharedState,
    served: &ServedDatabase,
    path: &Path,
    file: &dyn File,
    may_continue: &dyn Fn() -> bool,
) -> io::Result<(SnapshotHead, u64)> {
    let (database, worker_counters) = (&served.database, served.database.worker_counters());
    let (now, own_id) = (shared.clock.now(), shared.options.databases.replication.server_id);
    let is_persistent = served.name.tuning.persistent;
    let (mut records, mut seen, mut is_cancelled) = (0, 0u64, false);
    let mut see = |key: &[u8], stored: &StoredValue<'_>| {
        seen += 1;
        if seen.is_multiple_of(CHECK_EVERY_RECORDS) {
            if !may_continue() {
                is_cancelled = true;
                return Err("cancelled".into());
            }
            if let Some(log) = database.log()
                && log.is_backlogged()
            {
                log.wait_while(log.end(), may_continue).map_err(|error| error.to_string())?;
            }
        }
        let (expiry, value) = if is_persistent {
            (Expiry::Never, stored.as_raw().unwrap_or_default())
        } else {
            let timed = stored.split().filter(|(time, _)| !(IMPLAUSIBLE_TIME..kyoto::NEVER).contains(time));
            let (time, value) = timed.ok_or_else(|| {
                format!(
                    "the value of record {seen} does not begin with a plausible time; was the database without times (ktopts=p)?"
                )
            })?;
            (kyoto::expiry_of(time), value)
        };
        if !expiry.is_live(now) {
            return Ok(());
        }
        let next_bytes = (key.len() + value.len()) as u64;
        database.compress_for_load(RecordLoad { next_bytes, ..RecordLoad::default() });
        let record = Record::new(value, Attributes { expiry, ..Attributes::default() });
        let visitor = &mut OverwriteVisitor(Action::Put(record));
        let stored = match database.is_replica() {
            // A replica refuses changes without an origin, because they come from clients.
            true => database.visit_record_from(own_id.into(), &worker_counters, key, visitor),
            false => database.visit_record(&worker_counters, key, visitor),
        };
        stored.map_err(|error| error.to_string())?;
        records += 1;
        Ok(())
    };
    let mut head = SnapshotHead::default();
    let mut begin = |found| {
        head = found;
        Ok(())
    };
    let read = read_snapshot(SnapshotInput { file, at: 0 }, &mut begin, &mut see);
    match read {
        Ok(()) if seen < head.count => Err(io::Error::other(format!(
            "snapshot {}: ends after {seen} of {} records, because it is truncated or records were removed while it was written; `todana load` loads the records that it has",
            path.display(),
            head.count
        ))),
        Ok(()) => Ok((head, records)),
        Err(_) if is_cancelled => Err(io::ErrorKind::Interrupted.into()),
        Err(error) => Err(io::Error::other(format!("snapshot {}: {error}", path.display()))),
    }
}

/// The thread that writes snapshots. Before it ends, it writes the last snapshots.
pub(crate) struct SnapshotKeeper {
    ends: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl SnapshotKeeper {
    /// Starts the thread if snapshots are configured.
    pub(crate) fn start(
        shared: &Arc<SharedState>,
        disk: Arc<dyn Disk>,
    ) -> io::Result<Option<SnapshotKeeper>> {
        let Some(options) = shared.options.databases.snapshots.clone() else { return Ok(None) };
        let ends = Arc::new(AtomicBool::new(false));
        let (shared, its_own) = (Arc::clone(shared), Arc::clone(&ends));
        let work = move || {
            let is_over = || its_own.load(Ordering::Acquire);
            let mut due = Instant::now() + options.interval;
            while !is_over() {
                let now = Instant::now();
                if now < due {
                    std::thread::park_timeout(due - now);
                    continue;
                }
                make_all(&shared, &options, &*disk, &is_over, true);
                due = Instant::now() + options.interval;
            }
            make_all(&shared, &options, &*disk, &|| false, false);
        };
        let thread = std::thread::Builder::new().name("snapshots".into()).spawn(work)?;
        Ok(Some(SnapshotKeeper { ends, thread }))
    }

    /// Requests the last snapshots from the thread and waits until they are written. `gives_up` is
    /// called repeatedly. Once it returns true, returns false.
    pub(crate) fn end(self, gives_up: &dyn Fn() -> bool) -> bool {
        self.ends.store(true, Ordering::Release);
        self.thread.thread().unpark();
        if !has_ended(&self.thread, gives_up) {
            return false;
        }
        if self.thread.join().is_err() {
            tracing::error!("snapshots: the thread panicked");
        }
        true
    }
}

/// Writes snapshots of all databases. With `is_throttled`, the thread uses at most half of the time
/// of one processor.
fn make_all(
    shared: &SharedState,
    options: &SnapshotOptions,
    disk: &dyn Disk,
    is_cancelled: &dyn Fn() -> bool,
    is_throttled: bool,
) {
    for (number, served) in shared.databases.iter().enumerate().filter(|(_, served)| has_snapshots(served)) {
        let path = options.directory.join(file_name(number as u32));
        let making = SnapshotJob { shared, served, options, disk, is_cancelled, is_throttled };
        shared.persistence.snapshots.note(number, served.name.label(), making.make(&path));
    }
}

struct SnapshotJob<'m> {
    shared: &'m SharedState,
    served: &'m ServedDatabase,
    options: &'m SnapshotOptions,
    disk: &'m dyn Disk,
    is_cancelled: &'m dyn Fn() -> bool,
    is_throttled: bool,
}

impl SnapshotJob<'_> {
    /// Writes a snapshot to a new file, and then renames this file to the name of the previous
    /// snapshot. Returns `None` if the work was cancelled.
    fn make(&self, path: &Path) -> io::Result<Option<SnapshotHead>> {
        let partial = PathBuf::from(format!("{}.tmp", path.display()));
        if let Err(error) = self.disk.remove(&partial)
            && !is_missing(&error)
        {
            return Err(path_error("remove", &partial, &error));
        }
        let file = self.disk.create(&partial).map_err(|error| path_error("create", &partial, &error))?;
        let made = self.write(&*file).and_then(|head| {
            if head.is_some() {
                file.sync()?;
                self.disk.rename(&partial, path)?;
                sync_names(self.disk, path)?;
            }
            Ok(head)
        });
        if !matches!(made, Ok(Some(_))) {
            // If the file cannot be removed, the next snapshot overwrites it.
            let _ = self.disk.remove(&partial);
        }
        made.map_err(|error| path_error("write", &partial, &error))
    }

    fn write(&self, file: &dyn File) -> io::Result<Option<SnapshotHead>> {
        let database = &self.served.database;
        let status = database.status();
        let head = SnapshotHead {
            timestamp: self.timestamp(),
            count: status.records,
            size: status.committed_bytes,
            ..SnapshotHead::default()
        };
        let mut writer = SnapshotWriter::begin(SnapshotOutput { file, at: 0 }, head, self.options.packing)?;
        let is_persistent = self.served.name.tuning.persistent;
        let (mut place, mut count) = (None, 0u64);
        let label = self.served.name.label();
        loop {
            let began = Instant::now();
            place = database
                .read_all_stored(place, &mut |key, record| {
                    self.shared.persistence.snapshots.warn_left_out(label, &record.attributes);
                    let record = record.with_first_value();
                    let stored = match is_persistent {
                        true => StoredValue::raw(record.value),
                        false => {
                            let time = kyoto::time_of(record.attributes.expiry).unwrap_or(kyoto::NEVER);
                            StoredValue::with_expiry(time, record.value)
                        }
                    };
                    writer.put(key, &stored);
                    count += 1;
                    if writer.is_due() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                })
                .map_err(failed)?;
            writer.write()?;
            if place.is_none() {
                writer.finish()?;
                // The header states the number of records. With it, a reader detects a file that
                // was truncated between two records.
                let head = SnapshotHead { count, ..head };
                file.write_at(COUNT_AT, &mut [IoSlice::new(&count.to_be_bytes())])?;
                return Ok(Some(head));
            }
            if (self.is_cancelled)() {
                return Ok(None);
            }
            if self.is_throttled {
                std::thread::park_timeout(began.elapsed());
            }
        }
    }

    /// Returns a time stamp for a snapshot that starts now. Every change that was logged up to this
    /// time stamp is in the snapshot.
    fn timestamp(&self) -> u64 {
        let replication = &self.shared.options.databases.replication;
        match self.served.database.log() {
            // Within a second, the time stamps of the log are counters and not times.
            Some(_) => as_of_second(self.shared.clock.now().0.saturating_sub(2)),
            // A database without a log of its own gets a time stamp of the master's log. A server
            // that starts with this snapshot continues replication from there.
            None if replication.master.is_some() || replication.position_file.is_some() => {
                self.shared.master_link.follow_state().timestamp
            }
            None => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
                u64::try_from(now.as_millis()).unwrap_or(u64::MAX).saturating_mul(1_000_000)
            }
        }
    }
}

/// Reads a file from its start to its end.
struct SnapshotInput<'f> {
    file: &'f dyn File,
    at: u64,
}

impl Read for SnapshotInput<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let len = self.file.read_at(self.at, into)?;
        self.at += len as u64;
        Ok(len)
    }
}

/// Writes a file from its start.
struct SnapshotOutput<'f> {
    file: &'f dyn File,
    at: u64,
}

impl Write for SnapshotOutput<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write_at(self.at, &mut [IoSlice::new(bytes)])?;
        self.at += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
