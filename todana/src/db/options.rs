//! How a database is opened.

use super::housekeeper::Housekeeper;
use super::{Db, Inner, Kind, Name};
use crate::data_directory::{DataDirectory, DataOptions, seed_of};
use crate::disk::SystemDisk;
use crate::{CachedClock, Clock, Database};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thread_local::ThreadLocal;
use todana_core::{Engine, Error, ErrorKind, MemoryLimit, Result, WhenFull};
use todana_engine::{MemHash, MemHashOptions};

/// How a database is opened.
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

    /// Opens a database by its name. Fails with `Invalid` for a name that says nothing, and for options that do not go with it; with
    /// `Busy` if another process has it; with `Corrupt` if what is kept is damaged; with `Full` if it has no room in memory;
    /// with `Unavailable` if the disk cannot be read or written.
    pub fn open(&self, name: &str) -> Result<Db> {
        let name = Name::parse(name)?;
        let clock = Arc::new(CachedClock::new());
        let engine = self.engine(&name)?;
        let database = Arc::new(Database::new(engine, Arc::clone(&clock) as Arc<dyn Clock>));
        let directory = match &self.data_dir {
            Some(path) => {
                let directory = DataDirectory::open(Arc::new(SystemDisk), path)?;
                directory.restore(
                    &database,
                    Arc::clone(&clock) as Arc<dyn Clock>,
                    &self.data,
                    &mut |_| (),
                )?;
                Some(Arc::new(directory))
            }
            None => None,
        };
        let housekeeper = Some(Housekeeper::start(&database, clock, directory.as_ref())?);
        let lanes = ThreadLocal::new();
        Ok(Db(Arc::new(Inner { housekeeper, database, lanes, directory, name })))
    }

    fn engine(&self, name: &Name) -> Result<Box<dyn Engine>> {
        let tuning = &name.tuning;
        let bytes = self.memory_max.into_iter().chain(tuning.bytes_max).min();
        let limit = MemoryLimit { bytes, when_full: self.when_full };
        match name.kind {
            Kind::MemHash => {
                let seed =
                    self.data_dir.as_ref().and_then(|directory| seed_of(Arc::new(SystemDisk), directory));
                let capacity_records = tuning.records_max;
                // Each shard holds its part.
                let shards =
                    capacity_records.map(|max| usize::try_from(max / 1024).unwrap_or(16).clamp(1, 16));
                Ok(Box::new(MemHash::new(MemHashOptions {
                    seed,
                    shards,
                    limit,
                    capacity_records,
                    ..MemHashOptions::default()
                })?))
            }
            kind => {
                let message = format!("database \"{name}\": {} is not there yet", kind.word());
                Err(Error::new(ErrorKind::Invalid, message))
            }
        }
    }
}
