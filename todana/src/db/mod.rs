//! The embeddable database: opened by its name, with a thread for its upkeep.

mod batch;
mod bulk;
mod cursor;
mod dump;
mod iter;
mod options;
mod similarity;
mod snapshot;
mod snapshot_tracker;
mod thread_counters;
mod transfer;

use crate::background_thread::BackgroundThread;
use crate::backup::BackupSender;
use crate::database::is_change;
use crate::disk::SystemDisk;
use crate::durability::CommitPoint;
use crate::open::OpenDatabase;
use crate::{Database, DatabaseName, Records, ScanDirection, Transaction, WorkerCounters};
use snapshot_tracker::SnapshotTracker;
use std::borrow::Cow;
use std::fmt;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use thread_counters::ThreadCounters;
use todana_core::{EngineStatus, Error, ErrorKind, Operation, Record, Reply, Result, ScanPosition, Visitor};

pub(crate) use batch::CopiedRecord;
pub(crate) use bulk::{distribute, thread_count};
pub use cursor::RecordCursor;
pub use dump::DumpedValues;
pub use iter::{IterKeys, IterRecords, RecordIter};
pub(crate) use iter::{successor, unordered};
pub use options::DbOptions;
pub(crate) use similarity::ClosestKeys;
pub use similarity::KeySymbols;
pub use snapshot::Snapshot;
pub use transfer::{LoadSummary, MergePolicy};

/// An open database. Clones share the database; it is closed when the last clone is dropped.
///
/// ```
/// use todana::{Db, Records};
///
/// let db = Db::open("mem:hash")?;
/// db.set(b"hello", b"world")?;
/// assert_eq!(db.get(b"hello")?, Some(b"world".to_vec()));
/// # Ok::<(), todana::Error>(())
/// ```
#[derive(Clone)]
pub struct Db(Arc<DbInner>);

struct DbInner {
    /// Stopped before the other fields are dropped.
    upkeep: Option<BackgroundThread>,
    owner: OpenDatabase,
    thread_counters: ThreadCounters,
    notes: Vec<String>,
    tracker: Arc<SnapshotTracker>,
}

impl fmt::Debug for Db {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Db").field(&self.name().to_string()).finish()
    }
}

impl Db {
    /// Opens a database by its name, such as `mem:hash`; [`DatabaseName`] lists all forms. Fails
    /// with `Invalid` for a name that has none of them, and as [`DbOptions::open`] does.
    pub fn open(name: &str) -> Result<Db> {
        DbOptions::default().open(name)
    }

    /// Returns the name with which the database was opened.
    pub fn name(&self) -> &DatabaseName {
        self.0.owner.name()
    }

    /// Returns the findings of the opening that the user should know: what was cut off after a
    /// crash, lost, skipped, or rebuilt.
    pub fn notes(&self) -> &[String] {
        &self.0.notes
    }

    /// Returns the database itself, for commands and statistics.
    pub fn database(&self) -> &Database {
        self.0.owner.database()
    }

    /// Returns the status of the engine.
    pub fn status(&self) -> EngineStatus {
        self.database().status()
    }

    /// Returns the number of records, with expired ones that have not been removed yet. Needs no
    /// scan.
    pub fn count(&self) -> u64 {
        self.status().records
    }

    /// Begins a transaction, after any other transaction has ended. Fails with `Busy` if this
    /// thread has an open transaction, and with `Invalid` if the database is read-only.
    ///
    /// ```
    /// # use todana::{Db, Records};
    /// let db = Db::open("mem:hash")?;
    /// let transaction = db.begin()?;
    /// transaction.set(b"from", b"10")?;
    /// transaction.set(b"to", b"90")?;
    /// assert_eq!(db.get(b"to")?, None);
    /// transaction.commit()?;
    /// assert_eq!(db.get(b"to")?, Some(b"90".to_vec()));
    ///
    /// let transaction = db.begin()?;
    /// transaction.remove(b"to")?;
    /// transaction.abort();
    /// assert_eq!(db.get(b"to")?, Some(b"90".to_vec()));
    /// # Ok::<(), todana::Error>(())
    /// ```
    pub fn begin(&self) -> Result<Transaction<'_>> {
        Transaction::of(Cow::Borrowed(self))
    }

    /// Removes all records.
    pub fn clear(&self) -> Result<()> {
        self.refuse_if_read_only()?;
        let point = self.database().clear(self.worker_counters())?;
        self.wait_until_durable(point)
    }

    /// Calls `see` for every live record until `see` breaks. The records of an ordered database are
    /// passed in the order of their keys. A record that exists all the time is passed at least
    /// once, even if other records are written in the meantime, and one that is changed or moved
    /// may be passed again. `see` may run under a lock of the engine, so it must not call the
    /// database.
    ///
    /// ```
    /// # use std::ops::{Bound, ControlFlow};
    /// # use todana::{Db, Records};
    /// # let db = Db::open("mem:hash")?;
    /// db.set(b"a", b"1")?;
    /// db.set(b"b", b"2")?;
    /// let mut sum = 0;
    /// db.for_each(&mut |_, record| {
    ///     sum += u32::from(record.value[0] - b'0');
    ///     ControlFlow::Continue(())
    /// })?;
    /// assert_eq!(sum, 3);
    /// # Ok::<(), todana::Error>(())
    /// ```
    pub fn for_each(&self, see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>) -> Result<()> {
        self.for_each_stored(&mut |key, record| see(key, record.with_first_value()))
    }

    /// Does the same as [`for_each`](Db::for_each), but shows all values of a key
    /// ([`Record::values`]) instead of the first.
    pub fn for_each_stored(&self, see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>) -> Result<()> {
        let mut place: Option<ScanPosition> = None;
        let mut flow = ControlFlow::Continue(());
        loop {
            place = self.database().read_all_stored(place.take(), &mut |key, record| {
                flow = see(key, record);
                flow
            })?;
            if place.is_none() || flow.is_break() {
                return Ok(());
            }
        }
    }

    /// Waits until all earlier writes are on disk, if the database is kept on disk. Fails with
    /// `Unavailable` if they cannot be written.
    pub fn sync(&self) -> Result<()> {
        self.database().sync()
    }

    /// Writes a checkpoint, if the database uses checkpoints. The next opening then reads only the
    /// log after the checkpoint.
    pub fn checkpoint(&self) -> Result<()> {
        self.refuse_if_read_only()?;
        self.0.owner.directory().map_or(Ok(()), |directory| directory.checkpoint(self.database()).map(drop))
    }

    /// Begins a backup of a database that is kept on disk, in the same form as a server's: a stream
    /// for a [`BackupReceiver`](crate::backup::BackupReceiver). Others read and write in the
    /// meantime. The backup of a hash on disk is as of this moment, that of any other database as
    /// of its end. [`restore`](crate::restore) restores it. Fails with `Invalid` for a database
    /// that is only in memory, and with `Unavailable` if the disk cannot be read or written.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use todana::backup::BackupReceiver;
    /// use todana::disk::SystemDisk;
    /// use todana::{Db, DatabaseName, Records, RestoreOptions, SystemClock, restore};
    ///
    /// let folder = tempfile::tempdir().unwrap();
    /// let db = Db::open(folder.path().join("carts.hash").to_str().unwrap())?;
    /// db.set(b"hello", b"world")?;
    /// let place = folder.path().join("monday");
    /// let mut receiver = BackupReceiver::create(Arc::new(SystemDisk), &place)?;
    /// let (mut backup, mut piece) = (db.backup()?, Vec::new());
    /// while backup.next(&mut piece)? {
    ///     receiver.take(&piece)?;
    ///     piece.clear();
    /// }
    /// receiver.finish(&mut |_| ())?;
    ///
    /// let again = folder.path().join("again.hash");
    /// let again = again.to_str().unwrap();
    /// let options = RestoreOptions { from: place, ..RestoreOptions::default() };
    /// let name = DatabaseName::parse(again)?;
    /// restore(Arc::new(SystemDisk), &options, &name, Arc::new(SystemClock), &mut |_| ())?;
    /// assert_eq!(Db::open(again)?.get(b"hello")?, Some(b"world".to_vec()));
    /// # Ok::<(), todana::Error>(())
    /// ```
    pub fn backup(&self) -> Result<BackupSender> {
        let (database, directory) = (self.0.owner.database(), self.0.owner.directory());
        let backup = match (database.engine().durable(), directory) {
            (Some(_), _) => BackupSender::of_files(Arc::new(SystemDisk), database)?,
            (None, Some(directory)) => BackupSender::start(directory, database, &AtomicBool::new(false))?,
            (None, None) => {
                let message = format!(
                    "database \"{}\": is only in memory and cannot be backed up; give it a data directory",
                    self.name()
                );
                return Err(Error::new(ErrorKind::Invalid, message));
            }
        };
        Ok(backup.keeping(self.clone()))
    }

    pub(crate) fn refuse_if_read_only(&self) -> Result<()> {
        if !self.database().is_read_only() {
            return Ok(());
        }
        Err(Error::read_only(format!("database \"{}\": was opened for reading only", self.name())))
    }

    /// Returns the counters of this thread.
    pub(crate) fn worker_counters(&self) -> &WorkerCounters {
        self.0.thread_counters.own(|| self.database().worker_counters())
    }

    /// Returns counters for a transaction. They must be returned when the transaction ends.
    pub(crate) fn lend_counters(&self) -> Arc<WorkerCounters> {
        self.0.thread_counters.lend(|| self.database().worker_counters())
    }

    pub(crate) fn return_counters(&self, worker_counters: Arc<WorkerCounters>) {
        self.0.thread_counters.take_back(worker_counters);
    }

    /// Waits until a change is durable.
    fn wait_until_durable(&self, point: CommitPoint) -> Result<()> {
        let (database, directory) = (self.database(), self.0.owner.directory());
        match database.durability() {
            Some(durability) if !point.is_none() => {
                directory.map_or(Ok(()), |directory| database.relieve_front(directory))?;
                durability.wait(point)
            }
            _ => Ok(()),
        }
    }
}

impl Records for Db {
    fn execute(&self, command: &Operation<'_>, reply: &mut dyn FnMut(Reply<'_>)) -> Result<()> {
        if is_change(command) {
            self.refuse_if_read_only()?;
        }
        let point = self.database().execute(self.worker_counters(), command, reply);
        self.wait_until_durable(point)
    }

    fn visit(&self, key: &[u8], visitor: &mut dyn Visitor) -> Result<()> {
        let visited = self.database().visit_record(self.worker_counters(), key, visitor);
        let point = visited.map_err(|error| match error.is_read_only() {
            true => self.refuse_if_read_only().err().unwrap_or(error),
            false => error,
        })?;
        self.wait_until_durable(point)
    }

    fn is_ordered(&self) -> bool {
        self.database().engine().ordered().is_some()
    }

    fn scan(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        self.database().scan(from, see)
    }

    fn walk(
        &self,
        direction: ScanDirection,
        from: Bound<&[u8]>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.database().walk(direction, from, see)
    }
}

impl Drop for DbInner {
    fn drop(&mut self) {
        self.upkeep = None;
        // Callers that must know whether the data is on disk call `sync` before. After this last
        // checkpoint, the next opening need not read the log.
        self.owner.stop_checkpoints(None);
        let _ = self.owner.make_last_checkpoint(None);
        let _ = self.owner.close(None);
    }
}
