//! The contents of a directory: which kind of database the names of its files belong to. A
//! directory is opened only as the kind of database that it holds.

use super::engine::{DatabaseKind, DatabaseStorage};
use crate::backup::HASH;
use crate::disk::Disk;
use crate::update_log::position_of;
use std::io;
use std::path::Path;
use todana_core::{Error, ErrorKind, Result};
use todana_engine::DiskHash;
use todana_engine::recent::RECENT;
use todana_engine::reserve::RESERVE;

pub(crate) const EPOCHS: &str = "epochs";
pub(crate) const LOG: &str = "log";
pub(crate) const CHECKPOINTS: &str = "checkpoints";
/// The folder with the changes that only an old master has.
pub(crate) const SALVAGE: &str = "salvage";
/// The file that names the state of a hash on disk to which an update log for replicas belongs.
pub(crate) const REPLICA_LOG: &str = "replica-log";

/// The meaning of a name in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EntryOwner {
    /// Part of a hash on disk.
    Hash,
    /// Part of a data directory. Some kinds on disk contain one, so they have these names too.
    DataDirectory,
    /// The folder with the engine's files in a database on disk of this kind.
    Engine(DatabaseKind),
    Backup,
    KyotoCabinet,
    /// Part of several kinds, or of the file system.
    Common,
    /// A name that no database uses.
    Foreign,
}

impl EntryOwner {
    fn of(name: &str) -> EntryOwner {
        match name {
            "index" => EntryOwner::Hash,
            _ if is_segment(name) || is_number(name, ".dictionary", 3) => EntryOwner::Hash,
            "identity" | EPOCHS | LOG | CHECKPOINTS => EntryOwner::DataDirectory,
            "backup" => EntryOwner::Backup,
            "__KCDIR__" => EntryOwner::KyotoCabinet,
            "lock" | "lost+found" | RECENT | RESERVE => EntryOwner::Common,
            // No file of a database has a name that starts with a dot. Files such as `.gitkeep`,
            // `.nfs0000` and `.DS_Store` belong to other programs and stay untouched.
            _ if name.ends_with(".partial") || is_hidden(name) => EntryOwner::Common,
            _ => DatabaseKind::of_folder(name).map_or(EntryOwner::Foreign, EntryOwner::Engine),
        }
    }

    fn what(self) -> String {
        let text = match self {
            EntryOwner::Hash => "a hash on disk",
            EntryOwner::DataDirectory => "a data directory, or a tree on disk",
            EntryOwner::Engine(kind) => return format!("a {}", kind.noun()),
            EntryOwner::Backup => "a backup",
            EntryOwner::KyotoCabinet => "a directory of Kyoto Cabinet",
            EntryOwner::Common | EntryOwner::Foreign => "foreign files",
        };
        text.into()
    }
}

/// Fails with `Invalid` if a directory holds anything but a database of this kind (for a kind in
/// memory: its data directory). The message names the contents. A missing or empty directory is
/// accepted.
pub(crate) fn expect_kind(disk: &dyn Disk, path: &Path, kind: DatabaseKind) -> Result<()> {
    // If the directory cannot be listed, its opening reports that.
    let Ok(mut names) = disk.list(path) else { return Ok(()) };
    names.sort_unstable();
    let storage = kind.storage();
    let is_own = |marker: EntryOwner| match storage {
        DatabaseStorage::Files => marker == EntryOwner::Hash,
        DatabaseStorage::FilesAndLog => {
            marker == EntryOwner::DataDirectory || marker == EntryOwner::Engine(kind)
        }
        DatabaseStorage::Memory => marker == EntryOwner::DataDirectory,
        DatabaseStorage::Cluster => false,
    };
    let marked = |name: &String| (name.clone(), EntryOwner::of(name));
    let found: Vec<(String, EntryOwner)> = names.iter().map(marked).collect();
    let has_own = found.iter().any(|(_, marker)| is_own(*marker));
    let is_on_disk = storage != DatabaseStorage::Memory;
    let is_in_the_way = |name: &str, marker: EntryOwner| match marker {
        EntryOwner::Common => false,
        // Foreign files beside a database stay untouched. A new data directory may also contain
        // foreign files.
        EntryOwner::Foreign => !has_own && is_on_disk,
        // In a data directory, `index` may be the folder of another database of the same server.
        EntryOwner::Hash => !is_own(marker) && (is_on_disk || name != "index"),
        // A data directory that holds a tree or a backup is refused later, with a better error.
        EntryOwner::Engine(_) | EntryOwner::Backup => !is_own(marker) && is_on_disk,
        EntryOwner::DataDirectory | EntryOwner::KyotoCabinet => !is_own(marker),
    };
    if let Some((name, marker)) = found.iter().find(|(name, marker)| is_in_the_way(name, *marker)) {
        return Err(refusal(path, name, &marker.what(), kind));
    }
    let has_engine = found.iter().any(|(_, marker)| *marker == EntryOwner::Engine(kind));
    if storage == DatabaseStorage::FilesAndLog
        && !has_engine
        && disk.list(&path.join(CHECKPOINTS)).is_ok_and(|names| !names.iter().all(|name| is_hidden(name)))
    {
        return Err(refusal(path, CHECKPOINTS, "the data of a database in memory", kind));
    }
    Ok(())
}

/// Returns true if a directory, whatever its name is, holds segments or the index of a hash on disk
/// and no part of a data directory.
pub fn holds_hash(disk: &dyn Disk, path: &Path) -> bool {
    let names = disk.list(path).unwrap_or_default();
    (names.iter().any(|name| is_segment(name)) || DiskHash::has_index(disk, path))
        && !names.iter().any(|name| EntryOwner::of(name) == EntryOwner::DataDirectory)
}

/// Returns true for the name of a segment of a hash on disk.
pub(crate) fn is_segment(name: &str) -> bool {
    is_number(name, ".segment", 10)
}

/// Returns true if a data directory uses this name for its own files, or is refused if it contains
/// the name. No other database may have a folder of this name in it.
pub fn is_reserved(name: &str) -> bool {
    match EntryOwner::of(name) {
        // Only the files in such a folder show that it belongs to an engine.
        EntryOwner::Engine(_) => false,
        EntryOwner::Hash => name != "index",
        EntryOwner::Foreign => [REPLICA_LOG, SALVAGE].contains(&name),
        EntryOwner::DataDirectory | EntryOwner::Backup | EntryOwner::KyotoCabinet | EntryOwner::Common => {
            true
        }
    }
}

/// Returns true for the name of a file or folder that belongs to a database or a backup, even an
/// incomplete one.
pub(crate) fn is_ours(name: &str) -> bool {
    let name = name.strip_suffix(".partial").unwrap_or(name);
    let is_marked = matches!(
        EntryOwner::of(name),
        EntryOwner::Hash | EntryOwner::DataDirectory | EntryOwner::Engine(_) | EntryOwner::Backup
    );
    let is_placed = [".log", ".checkpoint"].iter().any(|suffix| position_of(name, suffix).is_some());
    let others = ["lock", RECENT, RESERVE, HASH, "data.mdb", "lock.mdb", "unclean", "room"];
    let is_begun = name == "new.checkpoint" || name.starts_with("backup-") && name.ends_with(".checkpoint");
    is_marked || is_placed || is_begun || others.contains(&name)
}

/// Returns true for a number that is written with at least this many digits, and a suffix.
fn is_number(name: &str, suffix: &str, digits: usize) -> bool {
    let number = name.strip_suffix(suffix).unwrap_or_default();
    number.parse::<u64>().is_ok_and(|value| format!("{value:0digits$}") == number)
}

/// Returns true for the name of a hidden file or folder.
pub(crate) fn is_hidden(name: &str) -> bool {
    name.starts_with('.')
}

fn refusal(path: &Path, name: &str, what: &str, kind: DatabaseKind) -> Error {
    let wanted = kind.noun();
    let message = format!(
        "{}: has {what} (\"{name}\") and cannot be opened as a {wanted}; use the name it was created with, or another directory",
        path.display()
    );
    Error::new(ErrorKind::Invalid, message)
}

/// Returns true if opening a database in this directory creates a new database, because the
/// directory is missing or empty.
pub fn begins_at(path: &Path) -> bool {
    match crate::disk::SystemDisk.list(path) {
        Ok(names) => names.iter().all(|name| EntryOwner::of(name) == EntryOwner::Common),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}
