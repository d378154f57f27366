//! Makes the snapshot files of a server's databases, and reads them back at the start.

use super::{SnapshotOptions, SnapshotWriter, read_snapshot};
use crate::databases::{ServedDatabase, failed, has_ended};
use crate::shared::Shared;
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
use todana::{Action, Clock, Expiry, Opened, Overwrite, Record, kyoto};
use todana_core::Attributes;
use todana_protocol::kyoto::StoredValue;
use todana_protocol::kyoto::snapshot::{COUNT_AT, HEAD_LEN, SnapshotHead, file_name};

/// File in the data directory of a database whose snapshot is being read back. After a crash it
/// shows that the snapshot must be read again.
const UNDER_WAY: &str = "reading-snapshot";
/// File in the snapshot directory, locked by the server that writes there.
const LOCK: &str = "snapshots.lock";
/// Times from here on, some thousand years in the future, are not times but five letters of a value
/// without a time.
const UNLIKELY: u64 = 0x20 << 32;
/// Records between two checks for cancellation.
const LOOK_EVERY: u64 = 256;

/// The outcomes of this server's snapshots.
#[derive(Default)]
pub(crate) struct SnapshotHistory {
    made: AtomicU64,
    failed: AtomicU64,
    /// Time stamp of the newest snapshot.
    timestamp: AtomicU64,
    /// The reason why the last snapshot of a database failed, by its number.
    troubles: Mutex<BTreeMap<usize, String>>,
    /// The lock of the directory, held until the server ends.
    lock: Mutex<Option<Box<dyn Send + Sync>>>,
    /// True once a warning has been logged that snapshots leave out some attributes of records.
    has_told_left_out: AtomicBool,
    /// The time stamp from which replication from a master continues; `None` means the position
    /// file decides.
    begins: Mutex<Option<u64>>,
}

impl SnapshotHistory {
    /// Returns the numbers of successful and failed snapshots, the time stamp of the newest one,
    /// and the reason of the last failure of any database.
    pub(crate) fn told(&self) -> (u64, u64, u64, String) {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let troubles: Vec<String> = self.troubles.lock().values().cloned().collect();
        (count(&self.made), count(&self.failed), count(&self.timestamp), troubles.join("; "))
    }

    /// Notes that a database starts with the state of a master's log at this time stamp.
    fn begins_at(&self, timestamp: u64) {
        let mut begins = self.begins.lock();
        *begins = Some(begins.map_or(timestamp, |other| other.min(timestamp)));
    }

    /// Returns the latest time stamp from which replication from a master may continue, for
    /// databases that are only in memory. Later changes were lost with the previous process,
    /// whatever its position file says.
    pub(crate) fn begins(&self) -> Option<u64> {
        *self.begins.lock()
    }

    /// Warns once if a record has attributes that the format cannot store.
    fn leaves_out(&self, label: &str, attributes: &Attributes) {
        let leaves_out = attributes.flags != 0 || matches!(attributes.expiry, Expiry::Sliding { .. });
        if leaves_out && !self.has_told_left_out.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                database = label,
                "snapshots have no place for client flags and sliding expiries: records come back without them; a data directory keeps them"
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
                tracing::debug!(database = label, records = head.count, "snapshot made");
            }
            Err(error) => {
                self.failed.fetch_add(1, Ordering::Relaxed);
                let why = error.to_string();
                let mut troubles = self.troubles.lock();
                if troubles.get(&number) != Some(&why) {
                    tracing::error!(database = label, "no snapshot could be made; the last one stays: {why}");
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

/// Creates the directory of the files if necessary, and locks it for this process: two servers
/// would replace each other's files. Fails if it cannot, or if another process holds the lock; the
/// message names the directory.
pub(crate) fn prepare(
    disk: &dyn Disk,
    options: &SnapshotOptions,
    history: &SnapshotHistory,
) -> io::Result<()> {
    let directory = &options.directory;
    disk.make_directory(directory).map_err(|error| said("make", directory, &error))?;
    let (path, mut lock) = (directory.join(LOCK), history.lock.lock());
    if lock.is_none() {
        *lock = Some(disk.lock(&path).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => io::Error::new(
                error.kind(),
                format!("another server makes its snapshots in {}", directory.display()),
            ),
            _ => said("lock", &path, &error),
        })?);
    }
    Ok(())
}

fn said(what: &str, path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot {what} {}: {error}", path.display()))
}

fn is_missing(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

/// Reads the snapshot of a database back if there is one. A database that was loaded from a data
/// directory is newer than any snapshot and stays unchanged. Fails if the file cannot be read
/// completely, because a server without its records would later replace it. Fails with
/// `Interrupted` if `goes_on` returns false.
pub(crate) fn restore(
    shared: &Arc<Shared>,
    number: usize,
    opened: Option<&Opened>,
    disk: &dyn Disk,
    goes_on: &dyn Fn() -> bool,
) -> io::Result<()> {
    let served = &shared.databases[number];
    let label = served.name.label();
    let is_in_memory_alone = has_snapshots(served) && served.data.is_none();
    let begins_at = |timestamp| {
        if is_in_memory_alone {
            shared.persistence.snapshots.begins_at(timestamp);
        }
    };
    let mark = has_snapshots(served).then_some(served.data.as_ref()).flatten();
    let mark = mark.map(|place| place.directory.join(UNDER_WAY));
    let is_half_read = mark.as_ref().map_or(Ok(false), |mark| is_there(disk, mark))?;
    let (path, file) = match find(shared, number, disk)? {
        Some(found) => found,
        None if is_half_read => return Err(half_read(mark.as_deref())),
        None => {
            begins_at(0);
            return Ok(());
        }
    };
    if let (Some(_), Some(opened)) = (&mark, opened)
        && opened.end != LogPosition(0)
        && !is_half_read
    {
        expect_older(served, opened.end, &path, &*file, disk)?;
        tracing::info!(database = label, "{}: the update log has brought back more", path.display());
        return Ok(());
    }
    if let Some(mark) = &mark {
        if !is_half_read {
            disk.create(mark).map(drop).map_err(|error| said("make", mark, &error))?;
        }
        sync_names(disk, mark)?;
    }
    let (head, records) = fill(served, &path, &*file, shared.clock.now(), goes_on)?;
    begins_at(head.timestamp);
    served.database.sync().map_err(failed)?;
    if let Some(mark) = &mark {
        disk.remove(mark).map_err(|error| said("remove", mark, &error))?;
        sync_names(disk, mark)?;
    }
    tracing::info!(database = label, records, "brought back from {}", path.display());
    Ok(())
}

/// Returns the snapshot of a database, if there is one.
fn find(shared: &Shared, number: usize, disk: &dyn Disk) -> io::Result<Option<(PathBuf, Box<dyn File>)>> {
    let Some(options) = &shared.options.databases.snapshots else { return Ok(None) };
    let served = &shared.databases[number];
    if !has_snapshots(served) {
        tracing::info!(
            database = served.name.label(),
            "it keeps itself on disk: there are no snapshots of it"
        );
        return Ok(None);
    }
    let path = options.directory.join(file_name(number as u32));
    match disk.open(&path, false) {
        Err(error) if is_missing(&error) => Ok(None),
        file => file.map_err(|error| said("read", &path, &error)).map(|file| Some((path, file))),
    }
}

fn is_there(disk: &dyn Disk, path: &Path) -> io::Result<bool> {
    match disk.open(path, false) {
        Err(error) if is_missing(&error) => Ok(false),
        file => file.map(|_| true).map_err(|error| said("read", path, &error)),
    }
}

/// Refuses a snapshot that was made without the log and is newer than it, as by a server that was
/// started without the log: the log's records are older, and the next snapshot would replace the
/// file. `end` is the end of the log at this start.
fn expect_older(
    served: &ServedDatabase,
    end: LogPosition,
    path: &Path,
    file: &dyn File,
    disk: &dyn Disk,
) -> io::Result<()> {
    let Some(place) = &served.data else { return Ok(()) };
    let mut bytes = [0; HEAD_LEN];
    file.read_at(0, &mut bytes).map_err(|error| said("read", path, &error))?;
    let Some(head) = SnapshotHead::parse(&bytes) else { return Ok(()) };
    let log = place.directory.join("log");
    let segments = segments(disk, &log).map_err(failed)?;
    let last = segments.iter().filter(|segment| segment.start < end).map(|segment| segment.created_ms).max();
    // Snapshots made beside a log have a time stamp at the end of a second, which is also the
    // resolution of the log's own time.
    let is_beside_log = head.timestamp == as_of_second(head.timestamp / STAMPS_PER_SECOND);
    match last.filter(|_| !is_beside_log) {
        Some(last) if head.timestamp / STAMPS_PER_SECOND > last / 1000 => Err(io::Error::other(format!(
            "snapshot {}: it was made without the update log {} and behind it, so the log knows nothing of what is in it: remove one of them",
            path.display(),
            log.display()
        ))),
        _ => Ok(()),
    }
}

/// Returns the time stamp of a snapshot with everything that was logged up to the end of a second.
fn as_of_second(second: u64) -> u64 {
    first_of_second(second.saturating_add(1)).saturating_sub(1)
}

/// Returns the error for a snapshot that was read only partly. Serving that part would be wrong,
/// and reading the file again later would overwrite newer changes.
fn half_read(mark: Option<&Path>) -> io::Error {
    let mark = mark.unwrap_or(Path::new(UNDER_WAY)).display();
    io::Error::other(format!(
        "{mark}: a start before this one has ended while it read a snapshot; start with that snapshot, or remove this file to go on \
         with the part that was read"
    ))
}

fn sync_names(disk: &dyn Disk, file: &Path) -> io::Result<()> {
    file.parent().map_or(Ok(()), |directory| disk.sync_directory(directory))
}

/// Stores the records of a file, except expired ones. Returns the file's header and the number of
/// records.
fn fill(
    served: &ServedDatabase,
    path: &Path,
    file: &dyn File,
    now: todana::UnixSeconds,
    goes_on: &dyn Fn() -> bool,
) -> io::Result<(SnapshotHead, u64)> {
    let (database, worker_counters) = (&served.database, served.database.worker_counters());
    let is_persistent = served.name.tuning.persistent;
    let (mut records, mut seen, mut is_called_off) = (0, 0u64, false);
    let mut see = |key: &[u8], stored: &StoredValue<'_>| {
        seen += 1;
        if seen.is_multiple_of(LOOK_EVERY) {
            if !goes_on() {
                is_called_off = true;
                return Err("it was called off".into());
            }
            if let Some(log) = database.log()
                && log.is_backlogged()
            {
                log.wait_while(log.end(), goes_on).map_err(|error| error.to_string())?;
            }
        }
        let (expiry, value) = if is_persistent {
            (Expiry::Never, stored.as_raw().unwrap_or_default())
        } else {
            let timed = stored.split().filter(|(time, _)| !(UNLIKELY..kyoto::NEVER).contains(time));
            let (time, value) = timed.ok_or_else(|| {
                format!(
                    "no likely time stands before the value of record {seen}: was the database one without times (ktopts=p)?"
                )
            })?;
            (kyoto::expiry_of(time), value)
        };
        if !expiry.is_live(now) {
            return Ok(());
        }
        let record = Record::new(value, Attributes { expiry, ..Attributes::default() });
        let stored = database.visit_record(&worker_counters, key, &mut Overwrite(Action::Put(record)));
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
            "snapshot {}: it ends after {seen} of {} records: it is cut, or some went while it was made; `todana load` takes what is there",
            path.display(),
            head.count
        ))),
        Ok(()) => Ok((head, records)),
        Err(_) if is_called_off => Err(io::ErrorKind::Interrupted.into()),
        Err(error) => Err(io::Error::other(format!("snapshot {}: {error}", path.display()))),
    }
}

/// The thread that makes snapshots. It makes the last ones when it is asked to end.
pub(crate) struct SnapshotKeeper {
    ends: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl SnapshotKeeper {
    /// Starts the thread if snapshots are configured.
    pub(crate) fn start(shared: &Arc<Shared>, disk: Arc<dyn Disk>) -> io::Result<Option<SnapshotKeeper>> {
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

    /// Asks the thread for the last snapshots and waits for them. Returns false if `gives_up`,
    /// which is called repeatedly, returns true first.
    pub(crate) fn end(self, gives_up: &dyn Fn() -> bool) -> bool {
        self.ends.store(true, Ordering::Release);
        self.thread.thread().unpark();
        if !has_ended(&self.thread, gives_up) {
            return false;
        }
        if self.thread.join().is_err() {
            tracing::error!("the thread that makes snapshots ended by a panic");
        }
        true
    }
}

/// Makes snapshots of all databases. If it `rests`, it uses at most half of the processor's time.
fn make_all(
    shared: &Shared,
    options: &SnapshotOptions,
    disk: &dyn Disk,
    is_called_off: &dyn Fn() -> bool,
    rests: bool,
) {
    for (number, served) in shared.databases.iter().enumerate().filter(|(_, served)| has_snapshots(served)) {
        let path = options.directory.join(file_name(number as u32));
        let making = SnapshotJob { shared, served, options, disk, is_called_off, rests };
        shared.persistence.snapshots.note(number, served.name.label(), making.make(&path));
    }
}

struct SnapshotJob<'m> {
    shared: &'m Shared,
    served: &'m ServedDatabase,
    options: &'m SnapshotOptions,
    disk: &'m dyn Disk,
    is_called_off: &'m dyn Fn() -> bool,
    rests: bool,
}

impl SnapshotJob<'_> {
    /// Writes a snapshot to a file beside the last one, and then renames it over that. Returns
    /// `None` if it was cancelled.
    fn make(&self, path: &Path) -> io::Result<Option<SnapshotHead>> {
        let partial = PathBuf::from(format!("{}.tmp", path.display()));
        if let Err(error) = self.disk.remove(&partial)
            && !is_missing(&error)
        {
            return Err(said("remove", &partial, &error));
        }
        let file = self.disk.create(&partial).map_err(|error| said("make", &partial, &error))?;
        let made = self.write(&*file).and_then(|head| {
            if head.is_some() {
                file.sync()?;
                self.disk.rename(&partial, path)?;
                sync_names(self.disk, path)?;
            }
            Ok(head)
        });
        if !matches!(made, Ok(Some(_))) {
            // A file that remains is overwritten by the next snapshot.
            let _ = self.disk.remove(&partial);
        }
        made.map_err(|error| said("write", &partial, &error))
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
                .scan(place, &mut |key, record| {
                    let stored = match is_persistent {
                        true => StoredValue::raw(record.value),
                        false => {
                            let time = kyoto::time_of(record.attributes.expiry).unwrap_or(kyoto::NEVER);
                            StoredValue::with_expiry(time, record.value)
                        }
                    };
                    writer.put(key, &stored);
                    count += 1;
                    self.shared.persistence.snapshots.leaves_out(label, &record.attributes);
                    if writer.is_due() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                })
                .map_err(failed)?;
            writer.write()?;
            if place.is_none() {
                writer.finish()?;
                // The number of records written, by which a reader detects a file that was cut
                // between two records.
                let head = SnapshotHead { count, ..head };
                file.write_at(COUNT_AT, &mut [IoSlice::new(&count.to_be_bytes())])?;
                return Ok(Some(head));
            }
            if (self.is_called_off)() {
                return Ok(None);
            }
            if self.rests {
                std::thread::park_timeout(began.elapsed());
            }
        }
    }

    /// Returns a time stamp up to which every logged change is in the snapshot that starts now.
    fn timestamp(&self) -> u64 {
        let replication = &self.shared.options.databases.replication;
        match self.served.database.log() {
            // Below one second, time stamps of the log are counters, not times.
            Some(_) => as_of_second(self.shared.clock.now().0.saturating_sub(2)),
            // The time stamp of the master's log, because there is no other, and a server that
            // starts with this snapshot continues replication from there.
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

/// Reads a file from its beginning.
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

/// Writes a file from its beginning.
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
