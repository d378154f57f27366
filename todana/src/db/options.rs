//! Options for opening a database.

use super::snapshot_tracker::{SnapshotTracker, TrackedEngine};
use super::thread_counters::ThreadCounters;
use super::{Db, DbInner};
use crate::data_directory::DataOptions;
use crate::disk::{Disk, SystemDisk};
use crate::open::{DataPurpose, DatabaseName, EngineOptions, OpenDatabase, OpenOptions};
use crate::transaction::WhileWaiting;
use crate::upkeep::start_upkeep_thread;
use crate::{CachedClock, Clock, Database};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use todana_core::{MemoryLimit, Result, WhenFull};

/// Options for opening a database, in addition to its [name](DatabaseName).
///
/// A limit on records (`capcnt`, `capnum`) or bytes (`capsiz`) removes old records for new ones.
/// The least recently used records are removed by `mem:hash`, and by `mem:tree` for a limit on
/// bytes. All other databases remove records in a cycle over all of them, in the order of the keys
/// if there is one. The bytes are those of memory for a database in memory, and those of the
/// records for a database on disk, whose files shrink later as their free space is reclaimed. A
/// transaction is limited before its commit returns. A database that was larger when the limit was
/// set shrinks gradually.
///
/// `mode=r` opens the database read-only ([`read_only`](Self::read_only)).
///
/// ```
/// use todana::{DbOptions, Records};
///
/// let folder = tempfile::tempdir().unwrap();
/// let kept = DbOptions::default().data_dir(folder.path().join("data"));
/// let db = kept.open("mem:hash")?;
/// db.set(b"hello", b"world")?;
/// drop(db);
/// let again = kept.open("mem:hash")?;
/// assert_eq!(again.get(b"hello")?, Some(b"world".to_vec()));
/// # Ok::<(), todana::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct DbOptions {
    data_dir: Option<PathBuf>,
    data: DataOptions,
    memory_max: Option<u64>,
    when_full: WhenFull,
    while_waiting: Option<WhileWaiting>,
    reads_only: bool,
    original_names: bool,
}

impl DbOptions {
    /// Keeps the data of a database in memory in this directory, as an update log and checkpoints.
    /// Creates the directory if it is missing.
    pub fn data_dir(mut self, directory: impl AsRef<Path>) -> Self {
        self.data_dir = Some(directory.as_ref().into());
        self
    }

    /// Sets the options of the data directory: when writes count as durable, and when checkpoints
    /// are written.
    pub fn data_options(mut self, options: DataOptions) -> Self {
        self.data = options;
        self
    }

    /// Limits the memory of a database in memory to this number of bytes, which includes the index
    /// and unused space. [`when_full`](Self::when_full) selects what happens at the limit.
    pub fn memory_max(mut self, bytes: u64) -> Self {
        self.memory_max = Some(bytes);
        self
    }

    /// Selects whether, at the memory limit, old records are evicted or new ones refused.
    pub fn when_full(mut self, when_full: WhenFull) -> Self {
        self.when_full = when_full;
        self
    }

    /// Calls `call` at this interval while a thread waits for another thread's transaction to end,
    /// in order to begin one or to write. No lock of the library is held. If `call` fails, the wait
    /// ends with its error, mostly `Busy`, and nothing has been done. This allows a program to stop
    /// waiting after some time, or upon a signal.
    ///
    /// ```
    /// use std::sync::atomic::{AtomicUsize, Ordering};
    /// use std::time::Duration;
    /// use todana::{DbOptions, Error, ErrorKind, Records};
    ///
    /// static TIMES: AtomicUsize = AtomicUsize::new(0);
    /// let three_times = || match TIMES.fetch_add(1, Ordering::Relaxed) {
    ///     0..3 => Ok(()),
    ///     _ => Err(Error::new(ErrorKind::Busy, "it takes too long")),
    /// };
    /// let options = DbOptions::default().while_waiting(Duration::from_millis(1), three_times);
    /// let db = options.open("mem:hash")?;
    /// let transaction = db.begin()?;
    /// std::thread::scope(|scope| {
    ///     let written = scope.spawn(|| db.set(b"a", b"1")).join().unwrap();
    ///     assert_eq!(written.unwrap_err().kind(), ErrorKind::Busy);
    /// });
    /// transaction.commit()?;
    /// db.set(b"a", b"1")?;
    /// # Ok::<(), todana::Error>(())
    /// ```
    pub fn while_waiting(
        mut self,
        every: Duration,
        call: impl Fn() -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        self.while_waiting = Some(WhileWaiting { every, call: Arc::new(call) });
        self
    }

    /// Opens the database read-only, as `mode=r` in its name does: next to other readers in this
    /// process and in others, but never next to a writer. Nothing on disk changes, so the database
    /// may lie on a read-only file system. The remains of a crash are corrected in memory, and
    /// expired records are skipped. Every change fails with `Invalid`.
    ///
    /// ```
    /// use todana::{DbOptions, ErrorKind, Records};
    ///
    /// let folder = tempfile::tempdir().unwrap();
    /// let name = folder.path().join("carts.hash");
    /// let name = name.to_str().unwrap();
    /// DbOptions::default().open(name)?.set(b"hello", b"world")?;
    /// let reading = DbOptions::default().read_only();
    /// let (one, other) = (reading.open(name)?, reading.open(name)?);
    /// assert_eq!(one.get(b"hello")?, other.get(b"hello")?);
    /// assert_eq!(one.set(b"hello", b"you").unwrap_err().kind(), ErrorKind::Invalid);
    /// assert_eq!(DbOptions::default().open(name).unwrap_err().kind(), ErrorKind::Busy);
    /// # Ok::<(), todana::Error>(())
    /// ```
    pub fn read_only(mut self) -> Self {
        self.reads_only = true;
        self
    }

    /// Parses names as the original servers and libraries do ([`DatabaseName::parse_as_original`]):
    /// unknown tuning is ignored, not refused.
    ///
    /// ```
    /// use todana::{Db, DbOptions};
    ///
    /// assert!(Db::open("%#nosuchword=1").is_err());
    /// assert!(DbOptions::default().original_names(true).open("%#nosuchword=1").is_ok());
    /// ```
    pub fn original_names(mut self, is_wanted: bool) -> Self {
        self.original_names = is_wanted;
        self
    }

    /// Opens a database by its name. Fails with `Invalid` for an unknown form of name and for
    /// options that do not apply to the database, with `Busy` if another process has the database
    /// open, with `Corrupt` if its data is damaged, with `Full` if the data does not fit into
    /// memory, and with `Unavailable` if the disk cannot be read or written.
    pub fn open(&self, name: &str) -> Result<Db> {
        self.open_on(Arc::new(SystemDisk), name)
    }

    /// Opens a database on another file system, such as that of a test that inspects the files
    /// after a crash. The LMDB file of a tree is always on the machine's file system.
    pub fn open_on(&self, disk: Arc<dyn Disk>, name: &str) -> Result<Db> {
        let name = if self.original_names {
            DatabaseName::parse_as_original(name)
        } else {
            DatabaseName::parse(name)
        };
        let mut name = name?;
        name.tuning.read_only |= self.reads_only;
        name.tuning.must_exist |= name.tuning.read_only;
        self.open_name(disk, name)
    }

    /// Opens a database by its parsed name.
    pub(crate) fn open_name(&self, disk: Arc<dyn Disk>, name: DatabaseName) -> Result<Db> {
        let clock = Arc::new(CachedClock::new());
        let tracker = Arc::<SnapshotTracker>::default();
        let options = OpenOptions {
            engine: EngineOptions {
                limit: MemoryLimit { bytes: self.memory_max, when_full: self.when_full },
                reserve_bytes: Some(self.data.log.reserve_bytes),
                ..EngineOptions::default()
            },
            engine_sync: self.data.log.sync,
            data_dir: self.data_dir.clone().map(|path| (path, DataPurpose::Records)),
            data: self.data,
        };
        let mut owner = OpenDatabase::open(name, disk, options, |engine| {
            let engine = Box::new(TrackedEngine { engine, tracker: Arc::clone(&tracker) });
            let database = Database::new(engine, Arc::clone(&clock) as Arc<dyn Clock>);
            self.while_waiting.iter().cloned().fold(database, Database::while_waiting)
        })?;
        let mut notes =
            owner.database().engine().durable().map_or(Vec::new(), |durable| durable.open_notes());
        let loaded = owner.load(&mut |_| ControlFlow::Continue(()), |_| ())?;
        notes.extend(loaded.records.map_or(Vec::new(), |opened| opened.notes()));
        let (database, directory) = (owner.database(), owner.directory());
        if let Some(directory) = directory.filter(|_| database.engine().checkpointed().is_some()) {
            let (weak, directory) = (Arc::downgrade(database), Arc::clone(directory));
            let relieve = move |database: Arc<Database>| database.relieve_front(&directory);
            database.before_commit(move || weak.upgrade().map_or(Ok(()), &relieve));
        }
        let upkeep = Some(start_upkeep_thread(database, clock)?);
        Ok(Db(Arc::new(DbInner {
            upkeep,
            owner,
            thread_counters: ThreadCounters::default(),
            notes,
            tracker,
        })))
    }
}
