//! A database for a program of one's own: opened by name, kept in order by a thread of its own.

mod batch;
mod bulk;
mod cursor;
mod draft;
mod dump;
mod iter;
mod lanes;
mod options;
mod similarity;
mod snapshot;
mod transfer;
mod witness;

use crate::backup::Backup;
use crate::data_directory::DataDirectory;
use crate::database::is_change;
use crate::disk::SystemDisk;
use crate::durability::CommitPoint;
use crate::upkeep::UpkeepThread;
use crate::{Database, Name, Records, ScanDirection, Transaction, WorkerCounters};
use lanes::ThreadLanes;
use std::borrow::Cow;
use std::fmt;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use todana_core::{EngineStatus, Error, ErrorKind, Operation, Record, Reply, Result, ScanPosition, Visitor};
use witness::Witness;

pub(crate) use bulk::{deal, thread_count};
pub use cursor::RecordCursor;
pub(crate) use draft::Draft;
pub use dump::DumpedValues;
pub(crate) use iter::unordered;
pub use iter::{IterKeys, IterRecords, RecordIter};
pub use options::DbOptions;
pub(crate) use similarity::Closest;
pub use similarity::KeySymbols;
pub use snapshot::Snapshot;
pub use transfer::{LoadSummary, MergePolicy};

/// An open database. Clones are the same one; it is closed when the last of them is dropped.
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
pub struct Db(Arc<Inner>);

struct Inner {
    /// Ends first.
    upkeep: Option<UpkeepThread>,
    database: Arc<Database>,
    lanes: ThreadLanes,
    directory: Option<Arc<DataDirectory>>,
    notes: Vec<String>,
    witness: Arc<Witness>,
    name: Name,
}

impl fmt::Debug for Db {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Db").field(&self.0.name.to_string()).finish()
    }
}

impl Db {
    /// Opens a database by its name: `mem:hash`, and what else [`Name`] tells. Fails with `Invalid` for a name that says nothing, and as
    /// [`DbOptions::open`] does.
    pub fn open(name: &str) -> Result<Db> {
        DbOptions::default().open(name)
    }

    /// The name that it was opened by.
    pub fn name(&self) -> &Name {
        &self.0.name
    }

    /// What opening it has found that its user should know: what a crash had left and was cut off, what is lost or was passed over, what had
    /// to be made anew.
    pub fn notes(&self) -> &[String] {
        &self.0.notes
    }

    /// The database, for commands and statistics.
    pub fn database(&self) -> &Database {
        &self.0.database
    }

    /// What the engine holds.
    pub fn status(&self) -> EngineStatus {
        self.0.database.status()
    }

    /// How many records there are, expired ones that nobody has met yet included. Costs no scan.
    pub fn count(&self) -> u64 {
        self.status().records
    }

    /// Begins a transaction, once no other one is open. Fails with `Busy` if this thread has one open already, and with `Invalid` where
    /// nothing may be written.
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
        let point = self.0.database.clear(self.lane())?;
        self.settle(point)
    }

    /// Shows every live record, in no order unless the engine keeps one, until `see` breaks. A record that is there throughout is
    /// shown at least once, whatever is written meanwhile. `see` may run under a lock of the engine: it must not call the
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
        let mut place: Option<ScanPosition> = None;
        let mut flow = ControlFlow::Continue(());
        loop {
            place = self.0.database.scan(place.take(), &mut |key, record| {
                flow = see(key, record);
                flow
            })?;
            if place.is_none() || flow.is_break() {
                return Ok(());
            }
        }
    }

    /// Returns once all that was written so far is on disk, where it is kept there. Fails with `Unavailable` if that cannot be
    /// brought about.
    pub fn sync(&self) -> Result<()> {
        self.0.database.sync()
    }

    /// Makes a checkpoint, where it is kept on disk: the next opening needs no more of the log than what comes after.
    pub fn checkpoint(&self) -> Result<()> {
        self.refuse_if_read_only()?;
        match &self.0.directory {
            Some(directory) => directory.checkpoint(&self.0.database).map(|_| ()),
            None => Ok(()),
        }
    }

    /// Begins a backup of a database that is kept on disk, as a server makes it: a stream for a [`Receiver`](crate::backup::Receiver). Others
    /// read and write meanwhile. Of a hash on disk it is as of this moment, of others as of its end; it is restored by
    /// [`restore`](crate::restore). Fails with `Invalid` for a database that is in memory alone, with
    /// `Unavailable` if the disk cannot be read or written.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use todana::backup::Receiver;
    /// use todana::disk::SystemDisk;
    /// use todana::{Db, Name, Records, RestoreOptions, SystemClock, restore};
    ///
    /// let folder = tempfile::tempdir().unwrap();
    /// let db = Db::open(folder.path().join("carts.hash").to_str().unwrap())?;
    /// db.set(b"hello", b"world")?;
    /// let place = folder.path().join("monday");
    /// let mut receiver = Receiver::create(Arc::new(SystemDisk), &place)?;
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
    /// restore(Arc::new(SystemDisk), &options, &Name::parse(again)?, Arc::new(SystemClock), &mut |_| ())?;
    /// assert_eq!(Db::open(again)?.get(b"hello")?, Some(b"world".to_vec()));
    /// # Ok::<(), todana::Error>(())
    /// ```
    pub fn backup(&self) -> Result<Backup> {
        let Inner { directory, database, .. } = &*self.0;
        let backup = match (database.engine().durable(), directory) {
            (Some(_), _) => Backup::of_files(Arc::new(SystemDisk), database)?,
            (None, Some(directory)) => Backup::start(directory, database, &AtomicBool::new(false))?,
            (None, None) => {
                let message = format!("database \"{}\" is in memory alone", self.name());
                return Err(Error::new(ErrorKind::Invalid, message));
            }
        };
        Ok(backup.keeping(self.clone()))
    }

    pub(crate) fn refuse_if_read_only(&self) -> Result<()> {
        if !self.0.database.is_read_only() {
            return Ok(());
        }
        Err(Error::read_only(format!("database \"{}\" was opened for reading only", self.name())))
    }

    /// This thread's.
    pub(crate) fn lane(&self) -> &WorkerCounters {
        self.0.lanes.own(|| self.0.database.lane())
    }

    /// A lane for a transaction, to be given back when that is over.
    pub(crate) fn lend_lane(&self) -> Arc<WorkerCounters> {
        self.0.lanes.lend(|| self.0.database.lane())
    }

    pub(crate) fn take_back_lane(&self, lane: Arc<WorkerCounters>) {
        self.0.lanes.take_back(lane);
    }

    /// Returns once a change counts as made.
    fn settle(&self, point: CommitPoint) -> Result<()> {
        let Inner { directory, database, .. } = &*self.0;
        match database.durability() {
            Some(durability) if !point.is_none() => {
                directory.as_ref().map_or(Ok(()), |directory| database.relieve_front(directory))?;
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
        let point = self.0.database.execute(self.lane(), command, reply);
        self.settle(point)
    }

    fn visit(&self, key: &[u8], visitor: &mut dyn Visitor) -> Result<()> {
        let visited = self.0.database.visit_record(self.lane(), key, visitor);
        let point = visited.map_err(|error| match error.is_read_only() {
            true => self.refuse_if_read_only().err().unwrap_or(error),
            false => error,
        })?;
        self.settle(point)
    }

    fn is_ordered(&self) -> bool {
        self.0.database.engine().ordered().is_some()
    }

    fn scan(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        self.0.database.scan(from, see)
    }

    fn walk(
        &self,
        heading: ScanDirection,
        from: Bound<&[u8]>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.0.database.walk(heading, from, see)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.upkeep = None;
        // Whoever wants to know that it is on disk has called `sync`.
        if let Some(log) = self.database.log() {
            if let (Some(directory), Some(_)) = (&self.directory, self.database.engine().checkpointed()) {
                // The next opening need not read the log again.
                let _ = directory.checkpoint(&self.database);
            }
            let _ = log.close();
        }
        if let Some(durable) = self.database.engine().durable() {
            let _ = durable.close();
        }
    }
}
