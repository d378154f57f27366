//! The kinds of databases and their engines. No other file constructs an engine.
//!
//! A new engine is a variant of [`DatabaseKind`] with its row in [`KINDS`], and an arm in
//! [`DatabaseName::open_engine_at`].

use super::{DatabaseName, hinted, hinted_tree};
use crate::disk::{Disk, ReadOnlyDisk};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana_core::{Engine, Error, ErrorKind, MemoryLimit, Result};
use todana_engine::{
    Compression, DiskHash, DiskHashOptions, DiskTree, DiskTreeOptions, EvictionGoal, EvictionObserver,
    FixedArray, FixedArrayOptions, FixedLayout, FixedTree, MemHash, MemHashOptions, MemTree, MemTreeOptions,
    TableEngine, ValueCompression, Void,
};

/// The kind of a database: its engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DatabaseKind {
    /// In memory, the smallest.
    MemHash,
    /// In memory, ordered by key.
    MemTree,
    /// On disk, for data larger than memory.
    DiskHash,
    /// On disk, ordered by key.
    DiskTree,
    /// In memory: rows of columns with indexes.
    MemTable,
    /// On disk: rows of columns with indexes.
    DiskTable,
    /// In memory: records of numbers, with values of a bounded length.
    MemFixed,
    /// On disk: records of numbers, with values of a bounded length.
    DiskFixed,
    /// On a cluster of other machines.
    Cluster,
}

/// The storage of a kind of database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatabaseStorage {
    /// Records are in memory. A data directory can hold an update log and checkpoints.
    Memory,
    /// Records are in files at the path of the database. These files are also the log of the
    /// changes.
    Files,
    /// Records are in files at the path of the database. An update log lies beside them; the files
    /// are the checkpoint of this log.
    FilesAndLog,
    /// Records are on other machines, which keep them.
    Cluster,
}

/// The properties of a kind. If two kinds have the same name or ending, it selects the first of
/// them.
struct KindRow {
    /// The plain name of the kind.
    word: &'static str,
    storage: DatabaseStorage,
    /// The folder of the engine's files, beside the update log. Its name says the kind.
    folder: Option<&'static str>,
    is_ordered: bool,
    can_compress: bool,
    /// True if the engine itself limits the number of records, and of bytes.
    limits_records: bool,
    limits_bytes: bool,
    /// Names of databases in memory, or endings of the paths of databases on disk.
    names: &'static [&'static str],
    /// Values of the tuning word `type`.
    types: &'static [&'static str],
}

/// Indexed by [`DatabaseKind`].
#[rustfmt::skip]
const KINDS: &[(DatabaseKind, KindRow)] = &[
    (DatabaseKind::MemHash, KindRow {
        word: "mem:hash",
        storage: DatabaseStorage::Memory, folder: None,
        is_ordered: false, can_compress: false, limits_records: true, limits_bytes: true,
        names: &["mem:hash", ":", "-", "*"],
        types: &[":", "kcs", "sdb", "stash", "-", "kcph", "phdb", "phash", "*", "kcc", "cdb", "cache"],
    }),
    (DatabaseKind::MemTree, KindRow {
        word: "mem:tree",
        storage: DatabaseStorage::Memory, folder: None,
        is_ordered: true, can_compress: true, limits_records: false, limits_bytes: true,
        names: &["mem:tree", "%", "+"],
        types: &["%", "kcg", "gdb", "grass", "+", "kcpt", "ptdb", "ptree"],
    }),
    (DatabaseKind::DiskHash, KindRow {
        word: "disk:hash",
        storage: DatabaseStorage::Files, folder: None,
        is_ordered: false, can_compress: true, limits_records: false, limits_bytes: false,
        names: &["hash", "kch", "kcd", "tch", "hdb"],
        types: &["kch", "hdb", "hash", "kcd", "ddb", "dir", "directory"],
    }),
    (DatabaseKind::DiskTree, KindRow {
        word: "disk:tree",
        storage: DatabaseStorage::FilesAndLog, folder: Some("tree"),
        is_ordered: true, can_compress: false, limits_records: false, limits_bytes: false,
        names: &["tree", "kct", "kcf", "tcb", "bdb"],
        types: &["kct", "tdb", "tree", "kcf", "fdb", "for", "forest"],
    }),
    (DatabaseKind::MemTable, KindRow {
        word: "mem:table",
        storage: DatabaseStorage::Memory, folder: None,
        is_ordered: true, can_compress: false, limits_records: false, limits_bytes: false,
        names: &["mem:table"],
        types: &["mem:table"],
    }),
    (DatabaseKind::DiskTable, KindRow {
        word: "disk:table",
        storage: DatabaseStorage::FilesAndLog, folder: Some("table"),
        is_ordered: true, can_compress: false, limits_records: false, limits_bytes: false,
        names: &["table", "tct", "tdb"],
        types: &["table"],
    }),
    (DatabaseKind::MemFixed, KindRow {
        word: "mem:fixed",
        storage: DatabaseStorage::Memory, folder: None,
        is_ordered: false, can_compress: false, limits_records: false, limits_bytes: true,
        names: &["mem:fixed"],
        types: &["mem:fixed"],
    }),
    (DatabaseKind::DiskFixed, KindRow {
        word: "disk:fixed",
        storage: DatabaseStorage::FilesAndLog, folder: Some("fixed"),
        is_ordered: false, can_compress: false, limits_records: false, limits_bytes: false,
        names: &["fixed", "tcf", "fdb"],
        types: &["fixed"],
    }),
    (DatabaseKind::Cluster, KindRow {
        word: "cluster",
        storage: DatabaseStorage::Cluster, folder: None,
        is_ordered: false, can_compress: false, limits_records: false, limits_bytes: false,
        names: &[],
        types: &[],
    }),
];

impl DatabaseKind {
    fn row(self) -> &'static KindRow {
        &KINDS[self as usize].1
    }

    fn find(is_meant: impl Fn(&KindRow) -> bool) -> Option<DatabaseKind> {
        KINDS.iter().find(|(_, row)| is_meant(row)).map(|(kind, _)| *kind)
    }

    /// Returns the kind of the database with this name or path.
    pub(super) fn of_database(database: &str) -> Option<DatabaseKind> {
        let in_memory = |row: &KindRow| row.storage == DatabaseStorage::Memory;
        if let Some(kind) = DatabaseKind::find(|row| in_memory(row) && row.names.contains(&database)) {
            return Some(kind);
        }
        let (stem, ending) = database.rsplit_once('.')?;
        if stem.is_empty() || stem.ends_with('/') {
            return None;
        }
        // Tokyo Cabinet ignores the case of an ending.
        let is_named = |row: &KindRow| row.names.iter().any(|name| name.eq_ignore_ascii_case(ending));
        DatabaseKind::find(|row| !in_memory(row) && is_named(row))
    }

    /// Returns the kind for this value of the tuning word `type`.
    pub(super) fn of_type(word: &str) -> Option<DatabaseKind> {
        DatabaseKind::find(|row| row.types.contains(&word))
    }

    /// Returns the kind whose engine has its files in a folder of this name, beside an update log.
    pub(crate) fn of_folder(name: &str) -> Option<DatabaseKind> {
        DatabaseKind::find(|row| row.folder == Some(name))
    }

    /// Returns the kind of the database on disk, with an update log, in a directory.
    pub fn at(disk: &dyn Disk, path: &Path) -> Option<DatabaseKind> {
        let folders = KINDS.iter().filter_map(|(kind, row)| Some((kind, row.folder?)));
        // A directory that cannot be listed is reported later.
        let has_pages = |folder: &str| {
            disk.list(&path.join(folder)).is_ok_and(|names| names.iter().any(|name| name == "data.mdb"))
        };
        folders.into_iter().find(|(_, folder)| has_pages(folder)).map(|(kind, _)| *kind)
    }

    /// Returns the name of the folder with the engine's files, beside the update log.
    pub fn folder(self) -> Option<&'static str> {
        self.row().folder
    }

    /// Returns the name of what a directory of this kind is.
    pub(crate) fn noun(self) -> String {
        match self.storage() {
            DatabaseStorage::Memory => "data directory".into(),
            DatabaseStorage::Cluster => "database on a cluster".into(),
            DatabaseStorage::Files => "hash on disk".into(),
            DatabaseStorage::FilesAndLog if self == DatabaseKind::DiskFixed => {
                "numbered database on disk".into()
            }
            DatabaseStorage::FilesAndLog => format!("{} on disk", self.folder().unwrap_or_default()),
        }
    }

    /// Returns the plain name: `mem:hash`, `mem:tree`, `disk:hash`, `disk:tree`, `mem:table`,
    /// `disk:table`, `mem:fixed`, `disk:fixed`.
    pub fn word(self) -> &'static str {
        self.row().word
    }

    /// Returns where records are kept.
    pub fn storage(self) -> DatabaseStorage {
        self.row().storage
    }

    /// Returns true if records are in memory. They are lost when the process ends, unless there is
    /// a data directory.
    pub fn is_in_memory(self) -> bool {
        self.storage() == DatabaseStorage::Memory
    }

    /// Returns true if the engine keeps records in the order of their keys.
    pub fn is_ordered(self) -> bool {
        self.row().is_ordered
    }

    /// Returns true if the keys are numbers.
    pub fn is_numbered(self) -> bool {
        matches!(self, DatabaseKind::MemFixed | DatabaseKind::DiskFixed)
    }

    /// Returns true if the records are rows of columns.
    pub fn is_table(self) -> bool {
        matches!(self, DatabaseKind::MemTable | DatabaseKind::DiskTable)
    }

    /// Returns true if values can be compressed.
    pub fn can_compress(self) -> bool {
        self.row().can_compress
    }

    /// Returns true if the engine itself limits the number of records.
    pub(crate) fn limits_records(self) -> bool {
        self.row().limits_records
    }

    /// Returns the directory of the tree's pages in the directory of a database.
    pub(crate) fn pages(self, path: &Path) -> PathBuf {
        path.join(self.folder().unwrap_or_default())
    }

    /// Returns true if the engine itself limits the number of bytes.
    pub(crate) fn limits_bytes(self) -> bool {
        self.row().limits_bytes
    }
}

/// Options for opening an engine, in addition to the name of the database.
#[derive(Clone, Default)]
pub struct EngineOptions {
    /// The limit on memory, unless the name sets a lower one, and the behaviour at the limit.
    pub limit: MemoryLimit,
    /// Number of separately locked parts of an engine in memory. `None` means the engine's default.
    pub shards: Option<usize>,
    /// The seed of a hash in memory ([`seed_of`](crate::seed_of)). `None` means a random one.
    pub seed: Option<u64>,
    /// Upper bounds of the size classes by which records are counted.
    pub class_bounds: Vec<u32>,
    /// The purpose of evictions from a hash in memory.
    pub evict_for: EvictionGoal,
    /// Receives the evicted records.
    pub observer: Option<Arc<dyn EvictionObserver>>,
    /// Makes engines in memory store records as they are: without dictionaries and key shapes, and
    /// long values without compression.
    pub stores_plain: bool,
    /// Bytes of the disk that are reserved so that removals succeed on a full disk. `None` means
    /// the engine's default.
    pub reserve_bytes: Option<u64>,
    /// Makes the engine discard all records, even if the name says otherwise.
    pub stores_nothing: bool,
    /// Allows a tree on disk to write records before a checkpoint. Set if there is no update log.
    pub spills: bool,
}

impl DatabaseName {
    /// Returns the disk on which a database of this name is opened. With `mode=r` the disk is
    /// read-only.
    pub fn disk(&self, disk: Arc<dyn Disk>) -> Arc<dyn Disk> {
        if self.tuning.read_only { Arc::new(ReadOnlyDisk::new(disk)) } else { disk }
    }

    /// Opens the engine of a database. The directory of a tree must already be locked; a tree
    /// always uses the system's disk instead of `disk`. Fails with `Corrupt` if the data is
    /// damaged, with `Busy` if another process has it open, and with `Unavailable` if the disk
    /// cannot be read or written.
    pub fn open_engine(&self, disk: Arc<dyn Disk>, options: EngineOptions) -> Result<Box<dyn Engine>> {
        let path = self.path.as_deref().unwrap_or(Path::new(""));
        match self.kind.storage() {
            DatabaseStorage::Memory => self.open_engine_at(path, disk, options),
            DatabaseStorage::Cluster => self.open_placeholder(options),
            DatabaseStorage::Files => {
                self.open_engine_at(path, disk, options).map_err(|error| hinted(error, path))
            }
            DatabaseStorage::FilesAndLog => {
                let tree =
                    self.open_tree(path, disk, options.spills).map_err(|error| hinted_tree(error, path))?;
                self.over_tree(tree).map_err(|error| hinted(error, path))
            }
        }
    }

    /// Opens an engine without records, in place of records that are on a cluster. Fails unless the
    /// options say that nothing is stored.
    fn open_placeholder(&self, options: EngineOptions) -> Result<Box<dyn Engine>> {
        if options.stores_nothing {
            return Ok(Box::new(Void::new(options.class_bounds.len() + 1)));
        }
        let message = format!(
            "database \"{self}\": its records are on a cluster; use `todana serve` or `todana copy` of a build with Cassandra"
        );
        Err(Error::new(ErrorKind::Invalid, message))
    }

    /// Opens the engine with its files at `path`. Its errors do not suggest a command.
    pub(crate) fn open_engine_at(
        &self,
        path: &Path,
        disk: Arc<dyn Disk>,
        options: EngineOptions,
    ) -> Result<Box<dyn Engine>> {
        let tuning = &self.tuning;
        let EngineOptions { limit, seed, class_bounds, evict_for, observer, stores_plain, .. } = options;
        let limit = MemoryLimit { bytes: limit.bytes.into_iter().chain(tuning.bytes_max).min(), ..limit };
        if options.stores_nothing && self.kind.is_in_memory() {
            return Ok(Box::new(Void::new(class_bounds.len() + 1)));
        }
        Ok(match self.kind {
            DatabaseKind::MemHash => {
                let capacity_records = tuning.records_max;
                let shards = shards(options.shards, capacity_records);
                let options = MemHashOptions {
                    seed,
                    shards,
                    limit,
                    class_bounds,
                    capacity_records,
                    capacity_bytes: None,
                    evict_for,
                    observer,
                    compresses: !stores_plain,
                };
                Box::new(MemHash::new(options)?)
            }
            DatabaseKind::MemTree => {
                let compression = tuning.compress.then(Compression::default);
                let options = MemTreeOptions {
                    limit,
                    class_bounds,
                    compression,
                    observer,
                    compresses_long_values: !stores_plain,
                    ..MemTreeOptions::default()
                };
                Box::new(MemTree::new(options)?)
            }
            DatabaseKind::DiskHash => {
                let default = DiskHashOptions::default();
                let options = DiskHashOptions {
                    disk,
                    is_mapped: !tuning.unmapped,
                    memory_bytes: tuning.memory_bytes,
                    compression: tuning.compress.then(ValueCompression::default),
                    reserve_bytes: options.reserve_bytes.unwrap_or(default.reserve_bytes),
                    ..default
                };
                Box::new(DiskHash::open(path, options)?)
            }
            DatabaseKind::MemTable => {
                // Index entries must not be evicted, and refusing one would leave a row without it.
                let compresses_long_values = !stores_plain;
                let options =
                    MemTreeOptions { class_bounds, compresses_long_values, ..MemTreeOptions::default() };
                Box::new(TableEngine::new(Box::new(MemTree::new(options)?))?)
            }
            DatabaseKind::MemFixed => {
                let FixedLayout { width, number_max } = tuning.fixed_layout();
                if FixedArrayOptions::are_possible(width, number_max) {
                    Box::new(FixedArray::new(FixedArrayOptions {
                        width,
                        number_max,
                        bytes_max: limit.bytes,
                    })?)
                } else {
                    let options = MemTreeOptions {
                        limit,
                        class_bounds,
                        observer,
                        compresses_long_values: !stores_plain,
                        ..MemTreeOptions::default()
                    };
                    Box::new(FixedTree::new(Box::new(MemTree::new(options)?), tuning.fixed_layout())?)
                }
            }
            DatabaseKind::Cluster => self.open_placeholder(EngineOptions {
                class_bounds,
                stores_nothing: options.stores_nothing,
                ..EngineOptions::default()
            })?,
            DatabaseKind::DiskTree | DatabaseKind::DiskTable | DatabaseKind::DiskFixed => {
                self.over_tree(self.open_tree(path, disk, options.spills)?)?
            }
        })
    }

    fn open_tree(&self, path: &Path, disk: Arc<dyn Disk>, spills: bool) -> Result<DiskTree> {
        // If there is an update log, records must not reach the tree's file before their log
        // entries are on disk.
        let options = DiskTreeOptions { spills, disk, ..tree_options(self.kind) };
        DiskTree::open(&self.kind.pages(path), options)
    }

    /// Returns the engine over its tree on disk.
    fn over_tree(&self, tree: DiskTree) -> Result<Box<dyn Engine>> {
        Ok(match self.kind {
            DatabaseKind::DiskFixed => Box::new(FixedTree::new(Box::new(tree), self.tuning.fixed_layout())?),
            DatabaseKind::DiskTable => Box::new(TableEngine::new(Box::new(tree))?),
            _ => Box::new(tree),
        })
    }
}

/// Returns the options for the tree of a kind. The rows of a table are alike, and its index entries
/// are small, so blocks make its file much smaller.
fn tree_options(kind: DatabaseKind) -> DiskTreeOptions {
    let default = DiskTreeOptions::default();
    match kind {
        // The changes of a table take more memory than those of a tree, because each index entry is
        // a change.
        DatabaseKind::DiskTable => DiskTreeOptions { in_blocks: true, front_bytes: 16 << 20, ..default },
        _ => default,
    }
}

/// Returns the number of shards of a hash in memory. A limit on records is divided among the
/// shards, so the number of shards is reduced until each shard may hold some records.
fn shards(wanted: Option<usize>, records_max: Option<u64>) -> Option<usize> {
    const DEFAULT: usize = 16;
    const RECORDS_MIN: u64 = 1024;
    let Some(records_max) = records_max else { return wanted };
    let most = usize::try_from(records_max / RECORDS_MIN).unwrap_or(usize::MAX).max(1);
    Some(wanted.unwrap_or(DEFAULT).min(1 << most.ilog2()))
}

/// Opens or creates a hash on disk. Its number of openings is raised to `openings_min` if it is
/// lower.
pub(crate) fn hash_at(path: &Path, compresses: bool, openings_min: u32) -> Result<DiskHash> {
    let compression = compresses.then(ValueCompression::default);
    DiskHash::open(path, DiskHashOptions { compression, openings_min, ..DiskHashOptions::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_the_row_of_its_number() {
        for (number, (kind, row)) in KINDS.iter().enumerate() {
            assert_eq!((*kind as usize, kind.word()), (number, row.word));
        }
    }

    #[test]
    fn shards_of_a_small_hash_are_few_enough() {
        assert_eq!([None, Some(7)].map(|wanted| shards(wanted, None)), [None, Some(7)]);
        let of = |max| shards(Some(8), Some(max));
        assert_eq!([1, 1024, 4095, 4096, u64::MAX].map(of), [1, 1, 2, 4, 8].map(Some));
        assert_eq!(shards(None, Some(1 << 40)), Some(16));
    }
}
