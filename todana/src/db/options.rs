//! How a database is opened.

use super::lanes::ThreadLanes;
use super::witness::{Witness, Witnessed};
use super::{Db, Inner};
use crate::data_directory::{DataDirectory, DataOptions, seed_of};
use crate::disk::{Disk, SystemDisk};
use crate::open::contents::expect_kind;
use crate::open::{EngineOptions, Name, Storage, Tuning};
use crate::transaction::WhileWaiting;
use crate::upkeep::UpkeepThread;
use crate::{CachedClock, Clock, Database};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use todana_core::{Error, ErrorKind, MemoryLimit, Result, WhenFull};

/// How a database is opened, beside what its [name](Name) says.
///
/// A limit on records (`capcnt`, `capnum`) or bytes (`capsiz`) removes others for new ones. In memory, on the hash, and for bytes on both kinds, those
/// go that are used least. Everywhere else a hand goes round over all records, in the order of the keys where they have one, and what it
/// comes to goes. Bytes are those of memory for what is in memory, and those of the records for what is on disk, whose files
/// follow as room in them is reclaimed. What a transaction writes is limited before its commit returns;
/// a database that was larger before it was limited shrinks by and by.
///
/// `mode=r` opens it for reading ([`read_only`](Self::read_only)).
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
    /// A database in memory keeps its data in this directory, made if need be: an update log and checkpoints.
    pub fn data_dir(mut self, directory: impl AsRef<Path>) -> Self {
        self.data_dir = Some(directory.as_ref().into());
        self
    }

    /// How the data directory is kept: when writes count as made, and when checkpoints are made of them.
    pub fn data_options(mut self, options: DataOptions) -> Self {
        self.data = options;
        self
    }

    /// A database in memory holds at most so many bytes, index and slack included; what happens then says [`when_full`](Self::when_full).
    pub fn memory_max(mut self, bytes: u64) -> Self {
        self.memory_max = Some(bytes);
        self
    }

    /// Whether records go for new ones where memory is full, or new ones are refused.
    pub fn when_full(mut self, when_full: WhenFull) -> Self {
        self.when_full = when_full;
        self
    }

    /// Who waits for another thread's transaction to end, to begin one or to write, calls this every so often, with no lock of the library's
    /// held. What it fails with ends the wait: nothing has been done then, and the call fails, with `Busy` mostly. For whoever shall be able
    /// to stop waiting: after some time, or when there is a signal.
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
    /// let db = DbOptions::default().while_waiting(Duration::from_millis(1), three_times).open("mem:hash")?;
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

    /// Opens the database for reading, as `mode=r` in its name does: beside others that read it, in this process and in others, and never
    /// beside one that writes. Nothing on disk changes, so it can lie on a file system that is mounted for reading only. What a crash has left
    /// is put right in memory, and what has expired is passed over. Every change fails with `Invalid`.
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

    /// Takes names as the original servers and libraries do ([`Name::parse_as_original`]): unknown tuning is passed over, not refused.
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

    /// Opens a database by its name. Fails with `Invalid` for a name that says nothing, and for options that do not go with it; with
    /// `Busy` if another process has it; with `Corrupt` if what is kept is damaged; with `Full` if it has no room in memory;
    /// with `Unavailable` if the disk cannot be read or written.
    pub fn open(&self, name: &str) -> Result<Db> {
        self.open_on(Arc::new(SystemDisk), name)
    }

    /// The same on a file system of one's own: that of a test, say, which sees what is left when it stops. What LMDB keeps of a
    /// tree lies on the machine's all the same.
    pub fn open_on(&self, disk: Arc<dyn Disk>, name: &str) -> Result<Db> {
        let name = if self.original_names { Name::parse_as_original(name) } else { Name::parse(name) };
        let mut name = name?;
        name.tuning.read_only |= self.reads_only;
        name.tuning.must_exist |= name.tuning.read_only;
        self.check(&name, &*disk)?;
        let disk = name.disk(disk);
        let clock = Arc::new(CachedClock::new());
        let kept = self.place(&name)?;
        // Locked before the engine looks at what lies in it.
        let directory = kept.as_ref().map(|path| DataDirectory::open(Arc::clone(&disk), path)).transpose()?;
        let witness = Arc::<Witness>::default();
        let in_memory = kept.as_deref().filter(|_| name.kind.is_in_memory());
        let options = EngineOptions {
            limit: MemoryLimit { bytes: self.memory_max, when_full: self.when_full },
            seed: in_memory.and_then(|directory| seed_of(Arc::clone(&disk), directory)),
            reserve_bytes: Some(self.data.log.reserve_bytes),
            ..EngineOptions::default()
        };
        let engine = Witnessed { engine: name.open_engine(disk, options)?, witness: Arc::clone(&witness) };
        let mut database = Database::new(Box::new(engine), Arc::clone(&clock) as Arc<dyn Clock>);
        if let Some(while_waiting) = &self.while_waiting {
            database = database.while_waiting(while_waiting.clone());
        }
        let Tuning { read_only, truncate, .. } = name.tuning;
        if read_only {
            database = database.read_only();
        }
        let database = Arc::new(database.sync_engine(self.data.log.sync).limited_as(&name));
        let directory = directory.map(Arc::new);
        let mut notes = database.engine().durable().map_or(Vec::new(), |durable| durable.open_notes());
        if let Some(directory) = &directory {
            let clock = Arc::clone(&clock) as Arc<dyn Clock>;
            notes.extend(directory.restore(&database, clock, &self.data, &mut |_| ())?.notes());
        }
        if let Some(directory) = directory.as_ref().filter(|_| database.engine().checkpointed().is_some()) {
            let (weak, directory) = (Arc::downgrade(&database), Arc::clone(directory));
            let relieve = move |database: Arc<Database>| database.relieve_front(&directory);
            database.before_commit(move || weak.upgrade().map_or(Ok(()), &relieve));
        }
        let upkeep = UpkeepThread::start(&database, clock, directory.as_ref())?;
        let (upkeep, lanes) = (Some(upkeep), ThreadLanes::default());
        let db = Db(Arc::new(Inner { upkeep, database, lanes, directory, notes, witness, name }));
        if truncate {
            db.clear()?;
        }
        Ok(db)
    }

    /// Refuses what the name asks for and cannot be had, before anything is made.
    fn check(&self, name: &Name, disk: &dyn Disk) -> Result<()> {
        let refuse = |what: &str| Err(Error::new(ErrorKind::Invalid, format!("database \"{name}\": {what}")));
        let Tuning { records_max, compress, read_only, truncate, must_exist, .. } = name.tuning;
        name.expect_own_kind(disk)?;
        if let (true, Some(directory)) = (name.kind.is_in_memory(), &self.data_dir) {
            expect_kind(disk, directory, name.kind)?;
        }
        if compress && !name.kind.can_compress() {
            return refuse("only mem:tree and PATH.hash are compressed (opts=c, zcomp=)");
        }
        if read_only && truncate {
            return refuse("what may only be read cannot be emptied");
        }
        if records_max.is_some() && self.when_full == WhenFull::Refuse {
            return refuse("at a number of records others go for new ones; new ones are not refused");
        }
        if must_exist {
            return match name.path.as_deref().or(self.data_dir.as_deref()) {
                Some(path) if path.exists() => Ok(()),
                Some(path) => refuse(&format!("there is none at {}", path.display())),
                None => refuse("nothing is there in memory before it is opened"),
            };
        }
        Ok(())
    }

    /// The data directory, where there is one.
    fn place(&self, name: &Name) -> Result<Option<PathBuf>> {
        match (name.kind.storage(), &name.path, &self.data_dir) {
            (Storage::Memory, _, place) => Ok(place.clone()),
            (_, _, Some(_)) => {
                let message = format!(
                    "database \"{name}\" keeps its data at its own path, and takes no data directory"
                );
                Err(Error::new(ErrorKind::Invalid, message))
            }
            (Storage::Files, _, None) => Ok(None),
            (Storage::FilesAndLog, path, None) => Ok(path.clone()),
        }
    }
}
