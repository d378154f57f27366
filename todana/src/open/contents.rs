//! The contents of a directory: the kind of database to which its names belong. A database is
//! opened as the kind that it is, or refused.

use super::engine::{Kind, Storage, TREE};
use crate::backup::HASH;
use crate::disk::Disk;
use crate::update_log::position_of;
use std::io;
use std::path::Path;
use todana_core::{Error, ErrorKind, Result};
use todana_engine::DiskHash;
use todana_engine::recent::RECENT;
use todana_engine::reserve::RESERVE;

pub(crate) const LOG: &str = "log";
pub(crate) const CHECKPOINTS: &str = "checkpoints";

/// The meaning of a name in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Marker {
    /// Part of a hash on disk.
    Hash,
    /// Part of a data directory, or of a tree on disk, which has one.
    DataDirectory,
    /// Part of a tree on disk alone.
    Tree,
    Backup,
    KyotoCabinet,
    /// Part of any kind, or of the file system.
    Common,
    /// Foreign.
    Foreign,
}

impl Marker {
    fn of(name: &str) -> Marker {
        match name {
            "index" => Marker::Hash,
            _ if is_segment(name) || is_number(name, ".dictionary", 3) => Marker::Hash,
            "identity" | LOG | CHECKPOINTS => Marker::DataDirectory,
            TREE => Marker::Tree,
            "backup" => Marker::Backup,
            "__KCDIR__" => Marker::KyotoCabinet,
            "lock" | "lost+found" | RECENT | RESERVE => Marker::Common,
            // Names that begin with a dot are never ours: `.gitkeep`, `.nfs0000` and `.DS_Store`
            // belong to other programs and are left alone.
            _ if name.ends_with(".partial") || is_hidden(name) => Marker::Common,
            _ => Marker::Foreign,
        }
    }

    fn what(self) -> &'static str {
        match self {
            Marker::Hash => "a hash on disk",
            Marker::DataDirectory => "a data directory, or a tree on disk",
            Marker::Tree => "a tree on disk",
            Marker::Backup => "a backup",
            Marker::KyotoCabinet => "a directory of Kyoto Cabinet's",
            Marker::Common | Marker::Foreign => "files of something else",
        }
    }
}

/// Fails with `Invalid` if a directory holds anything but a database of this kind, or the data of
/// one in memory. The message names the contents. A missing or empty directory holds nothing yet.
pub(crate) fn expect_kind(disk: &dyn Disk, path: &Path, kind: Kind) -> Result<()> {
    // A directory that cannot be listed is reported when it is opened.
    let Ok(mut names) = disk.list(path) else { return Ok(()) };
    names.sort_unstable();
    let storage = kind.storage();
    let is_own = |marker: Marker| match storage {
        Storage::Files => marker == Marker::Hash,
        Storage::FilesAndLog => matches!(marker, Marker::DataDirectory | Marker::Tree),
        Storage::Memory => marker == Marker::DataDirectory,
    };
    let marked = |name: &String| (name.clone(), Marker::of(name));
    let found: Vec<(String, Marker)> = names.iter().map(marked).collect();
    let has_own = found.iter().any(|(_, marker)| is_own(*marker));
    let is_on_disk = storage != Storage::Memory;
    let is_in_the_way = |name: &str, marker: Marker| match marker {
        Marker::Common => false,
        // Foreign files beside a database are left alone, and a data directory need not be empty at
        // first.
        Marker::Foreign => !has_own && is_on_disk,
        // In a data directory, `index` may be the folder of another database.
        Marker::Hash => !is_own(marker) && (is_on_disk || name != "index"),
        // For trees and backups, opening them returns a better error.
        Marker::Tree | Marker::Backup => !is_own(marker) && is_on_disk,
        Marker::DataDirectory | Marker::KyotoCabinet => !is_own(marker),
    };
    if let Some((name, marker)) = found.iter().find(|(name, marker)| is_in_the_way(name, *marker)) {
        return Err(refusal(path, name, marker.what(), storage));
    }
    let is_tree = found.iter().any(|(_, marker)| *marker == Marker::Tree);
    if storage == Storage::FilesAndLog
        && !is_tree
        && disk.list(&path.join(CHECKPOINTS)).is_ok_and(|names| !names.iter().all(|name| is_hidden(name)))
    {
        return Err(refusal(path, CHECKPOINTS, "the data of a database in memory", storage));
    }
    Ok(())
}

/// Returns true if a directory, whatever its name is, holds segments or the index of a hash on disk
/// and no part of a data directory.
pub fn holds_hash(disk: &dyn Disk, path: &Path) -> bool {
    let names = disk.list(path).unwrap_or_default();
    (names.iter().any(|name| is_segment(name)) || DiskHash::has_index(disk, path))
        && !names.iter().any(|name| Marker::of(name) == Marker::DataDirectory)
}

/// Returns true for the name of a segment of a hash on disk.
pub(crate) fn is_segment(name: &str) -> bool {
    is_number(name, ".segment", 10)
}

/// Returns true for the name of a file or folder that belongs to a database or backup, complete or
/// not.
pub(crate) fn is_ours(name: &str) -> bool {
    let name = name.strip_suffix(".partial").unwrap_or(name);
    let is_marked =
        matches!(Marker::of(name), Marker::Hash | Marker::DataDirectory | Marker::Tree | Marker::Backup);
    let is_placed = [".log", ".checkpoint"].iter().any(|suffix| position_of(name, suffix).is_some());
    let others = ["lock", RECENT, RESERVE, HASH, "data.mdb", "lock.mdb", "unclean", "room"];
    let is_begun = name == "new.checkpoint" || name.starts_with("backup-") && name.ends_with(".checkpoint");
    is_marked || is_placed || is_begun || others.contains(&name)
}

fn is_number(name: &str, suffix: &str, digits: usize) -> bool {
    name.strip_suffix(suffix)
        .is_some_and(|number| number.len() == digits && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Returns true for the name of a hidden file or folder.
pub(crate) fn is_hidden(name: &str) -> bool {
    name.starts_with('.')
}

fn refusal(path: &Path, name: &str, what: &str, storage: Storage) -> Error {
    let wanted = match storage {
        Storage::Files => "hash on disk",
        Storage::FilesAndLog => "tree on disk",
        Storage::Memory => "data directory",
    };
    let message = format!(
        "{}: it holds {what} (\"{name}\") and cannot be opened as a {wanted}; give the name that it was made by, or another directory",
        path.display()
    );
    Error::new(ErrorKind::Invalid, message)
}

/// Returns true if opening a database in this directory creates a new one, because the directory is
/// missing or empty.
pub fn begins_at(path: &Path) -> bool {
    match crate::disk::SystemDisk.list(path) {
        Ok(names) => names.iter().all(|name| Marker::of(name) == Marker::Common),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}
