//! The kinds of databases and their engines. No other file constructs an engine.
//!
//! A new engine is a variant of [`Kind`] with its row in [`KINDS`], and an arm in
//! [`Name::open_engine_at`].

use super::{Name, hinted, hinted_tree};
use crate::disk::{Disk, ReadOnlyDisk, SystemDisk};
use std::path::Path;
use std::sync::Arc;
use todana_core::{Engine, MemoryLimit, Result};
use todana_engine::{
    Compression, DiskHash, DiskHashOptions, DiskTree, DiskTreeOptions, EvictionObserver, MemHash,
    MemHashOptions, MemTree, MemTreeOptions, ValueCompression, Void,
};

/// The folder of the tree, beside its update log.
pub(crate) const TREE: &str = "tree";

/// The kind of a database: its engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// In memory, the smallest.
    MemHash,
    /// In memory, in the order of the keys.
    MemTree,
    /// On disk, for data larger than memory.
    DiskHash,
    /// On disk, in the order of the keys.
    DiskTree,
}

/// The storage of a kind of database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// In memory. A data directory can hold an update log and checkpoints of the records.
    Memory,
    /// In files of the engine at the path of the database, which serve as its log.
    Files,
    /// At the path of the database, beside an update log whose checkpoint the engine's files are.
    FilesAndLog,
}

/// The properties of a kind. If two kinds share a name or ending, the first one is meant.
struct KindRow {
    /// The plain name of the kind.
    word: &'static str,
    storage: Storage,
    is_ordered: bool,
    can_compress: bool,
    /// Whether the engine itself limits the number of records, and of bytes.
    limits_records: bool,
    limits_bytes: bool,
    /// Names of databases in memory, and endings of the paths of those on disk.
    names: &'static [&'static str],
    /// Words of the tuning `type`.
    types: &'static [&'static str],
}

/// Indexed by [`Kind`].
#[rustfmt::skip]
const KINDS: &[(Kind, KindRow)] = &[
    (Kind::MemHash, KindRow {
        word: "mem:hash",
        storage: Storage::Memory,
        is_ordered: false, can_compress: false, limits_records: true, limits_bytes: true,
        names: &["mem:hash", ":", "-", "*"],
        types: &[":", "kcs", "sdb", "stash", "-", "kcph", "phdb", "phash", "*", "kcc", "cdb", "cache"],
    }),
    (Kind::MemTree, KindRow {
        word: "mem:tree",
        storage: Storage::Memory,
        is_ordered: true, can_compress: true, limits_records: false, limits_bytes: true,
        names: &["mem:tree", "%", "+"],
        types: &["%", "kcg", "gdb", "grass", "+", "kcpt", "ptdb", "ptree"],
    }),
    (Kind::DiskHash, KindRow {
        word: "disk:hash",
        storage: Storage::Files,
        is_ordered: false, can_compress: true, limits_records: false, limits_bytes: false,
        names: &["hash", "kch", "kcd", "tch", "tcf"],
        types: &["kch", "hdb", "hash", "kcd", "ddb", "dir", "directory"],
    }),
    (Kind::DiskTree, KindRow {
        word: "disk:tree",
        storage: Storage::FilesAndLog,
        is_ordered: true, can_compress: false, limits_records: false, limits_bytes: false,
        names: &["tree", "kct", "kcf", "tcb"],
        types: &["kct", "tdb", "tree", "kcf", "fdb", "for", "forest"],
    }),
];

impl Kind {
    fn row(self) -> &'static KindRow {
        &KINDS[self as usize].1
    }

    fn find(is_meant: impl Fn(&KindRow) -> bool) -> Option<Kind> {
        KINDS.iter().find(|(_, row)| is_meant(row)).map(|(kind, _)| *kind)
    }

    /// Returns the kind that a database of this name or path has.
    pub(super) fn of_database(database: &str) -> Option<Kind> {
        let in_memory = |row: &KindRow| row.storage == Storage::Memory;
        if let Some(kind) = Kind::find(|row| in_memory(row) && row.names.contains(&database)) {
            return Some(kind);
        }
        let (stem, ending) = database.rsplit_once('.')?;
        if stem.is_empty() || stem.ends_with('/') {
            return None;
        }
        Kind::find(|row| !in_memory(row) && row.names.contains(&ending))
    }

    /// Returns the kind that a word of the tuning `type` names.
    pub(super) fn of_type(word: &str) -> Option<Kind> {
        Kind::find(|row| row.types.contains(&word))
    }

    /// Returns the plain name: `mem:hash`, `mem:tree`, `disk:hash`, `disk:tree`.
    pub fn word(self) -> &'static str {
        self.row().word
    }

    /// Returns where records are kept.
    pub fn storage(self) -> Storage {
        self.row().storage
    }

    /// Returns true if records are in memory, so that they are lost with the process unless there
    /// is a data directory.
    pub fn is_in_memory(self) -> bool {
        self.storage() == Storage::Memory
    }

    /// Returns true if records are in the order of their keys.
    pub fn is_ordered(self) -> bool {
        self.row().is_ordered
    }

    /// Returns true if values can be compressed.
    pub fn can_compress(self) -> bool {
        self.row().can_compress
    }

    /// Returns true if the engine itself limits the number of records.
    pub(crate) fn limits_records(self) -> bool {
        self.row().limits_records
    }

    /// Returns true if the engine itself limits the number of bytes.
    pub(crate) fn limits_bytes(self) -> bool {
        self.row().limits_bytes
    }
}

/// Options for opening an engine, in addition to the name of the database.
#[derive(Clone, Default)]
pub struct EngineOptions {
    /// The behaviour at the memory limit, and the limit unless the name sets a lower one.
    pub limit: MemoryLimit,
    /// Number of separately locked parts of an engine in memory; `None`: the engine's default.
    pub shards: Option<usize>,
    /// The seed of a hash in memory ([`seed_of`](crate::seed_of)); `None`: a random one.
    pub seed: Option<u64>,
    /// Upper bounds of the sizes by which records are counted.
    pub class_bounds: Vec<u32>,
    /// Notified of evicted records.
    pub observer: Option<Arc<dyn EvictionObserver>>,
    /// Bytes reserved on disk for removals on a full disk; `None`: the engine's default.
    pub reserve_bytes: Option<u64>,
    /// Makes the engine store nothing, whatever the name says.
    pub stores_nothing: bool,
    /// A tree on disk may write records before a checkpoint, because there is no update log.
    pub spills: bool,
}

impl Name {
    /// Returns the disk on which a database of this name is opened. With `mode=r` the disk is
    /// read-only.
    pub fn disk(&self, disk: Arc<dyn Disk>) -> Arc<dyn Disk> {
        if self.tuning.read_only { Arc::new(ReadOnlyDisk::new(disk)) } else { disk }
    }

    /// Opens the engine of a database. The directory of a tree must be locked by its data
    /// directory; its files are on the system's disk, whatever `disk` is. Fails with `Corrupt` if
    /// the data is damaged, with `Busy` if another process has it open, and with `Unavailable` if
    /// the disk cannot be read or written.
    pub fn open_engine(&self, disk: Arc<dyn Disk>, options: EngineOptions) -> Result<Box<dyn Engine>> {
        let path = self.path.as_deref().unwrap_or(Path::new(""));
        self.open_engine_at(path, disk, options).map_err(|error| match self.kind.storage() {
            Storage::Memory => error,
            Storage::Files => hinted(error, path),
            Storage::FilesAndLog => hinted_tree(error),
        })
    }

    /// Opens the engine at another path, without a hint in its errors.
    pub(crate) fn open_engine_at(
        &self,
        path: &Path,
        disk: Arc<dyn Disk>,
        options: EngineOptions,
    ) -> Result<Box<dyn Engine>> {
        let tuning = &self.tuning;
        let EngineOptions { limit, seed, class_bounds, observer, .. } = options;
        let limit = MemoryLimit { bytes: limit.bytes.into_iter().chain(tuning.bytes_max).min(), ..limit };
        if options.stores_nothing && self.kind.is_in_memory() {
            return Ok(Box::new(Void::new(class_bounds.len() + 1)));
        }
        Ok(match self.kind {
            Kind::MemHash => {
                let capacity_records = tuning.records_max;
                let shards = shards(options.shards, capacity_records);
                let options =
                    MemHashOptions { seed, shards, limit, class_bounds, capacity_records, observer };
                Box::new(MemHash::new(options)?)
            }
            Kind::MemTree => {
                let compression = tuning.compress.then(Compression::default);
                let options = MemTreeOptions { partitions: None, limit, class_bounds, compression, observer };
                Box::new(MemTree::new(options)?)
            }
            Kind::DiskHash => {
                let default = DiskHashOptions::default();
                let options = DiskHashOptions {
                    disk,
                    is_mapped: !tuning.unmapped,
                    compression: tuning.compress.then(ValueCompression::default),
                    reserve_bytes: options.reserve_bytes.unwrap_or(default.reserve_bytes),
                    ..default
                };
                Box::new(DiskHash::open(path, options)?)
            }
            Kind::DiskTree => {
                // With an update log, the tree must not be ahead of the log.
                let options = DiskTreeOptions { spills: options.spills, disk, ..DiskTreeOptions::default() };
                Box::new(DiskTree::open(&path.join(TREE), options)?)
            }
        })
    }
}

/// Returns the number of shards of a hash in memory. The limit on records is divided among the
/// shards, so each must have some.
fn shards(wanted: Option<usize>, records_max: Option<u64>) -> Option<usize> {
    const DEFAULT: usize = 16;
    const RECORDS_MIN: u64 = 1024;
    let Some(records_max) = records_max else { return wanted };
    let most = usize::try_from(records_max / RECORDS_MIN).unwrap_or(usize::MAX).max(1);
    Some(wanted.unwrap_or(DEFAULT).min(1 << most.ilog2()))
}

/// Opens or creates a hash on disk, whose number of openings is at least `openings_min`.
pub(crate) fn hash_at(path: &Path, compresses: bool, openings_min: u32) -> Result<DiskHash> {
    let compression = compresses.then(ValueCompression::default);
    DiskHash::open(path, DiskHashOptions { compression, openings_min, ..DiskHashOptions::default() })
}

/// Opens the tree of a database on the system's disk, beside its update log.
pub(crate) fn tree_at(path: &Path) -> Result<DiskTree> {
    let disk = Arc::new(SystemDisk);
    DiskTree::open(&path.join(TREE), DiskTreeOptions { spills: false, disk, ..DiskTreeOptions::default() })
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
