//! A database, data directory or backup under construction, which gets its final name only when it
//! is complete and on disk.
//!
//! ```text
//! x.tree.partial --rename--> x.tree
//! x.tree.partial.lock        locked until the rename, then removed
//! x.tree.partial.partial     files that the engine copies, until they are complete
//! ```
//!
//! The lock file lies beside the directory, because a database in the directory has a lock of its
//! own.

use super::{DirectoryLock, beside, cannot, lock, refuse_foreign, staging_paths, sync_above};
use crate::disk::Disk;
use crate::open::contents::is_ours;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana_core::{Error, ErrorKind, Result};

/// A directory under construction. If the value is dropped before [`finish`](Self::finish), the
/// unfinished directory is removed.
pub(crate) struct StagedDirectory {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    place: PathBuf,
    /// The path of files that the engine copies.
    copies: PathBuf,
    lock_path: PathBuf,
    _lock: DirectoryLock,
    /// True if all files under `place` and `copies` belong to this value.
    is_ours: bool,
}

impl StagedDirectory {
    /// Reserves the paths of a new directory, and removes the remains of a killed process. Fails
    /// with `Invalid` if `path` is anything but an empty directory, and if a symbolic link or a
    /// foreign file lies at one of the paths. Fails with `Busy` if another process is creating the
    /// same directory or has the remains open.
    pub(crate) fn create(disk: Arc<dyn Disk>, path: &Path) -> Result<StagedDirectory> {
        if path.file_name().is_none() {
            let message = format!("{}: not the name of a new directory", path.display());
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let [place, copies] = staging_paths(path);
        let lock_path = beside(&place, ".lock");
        refuse_taken(&*disk, path)?;
        refuse_foreign(&place, &is_ours)?;
        refuse_foreign(&copies, &is_ours)?;
        let lock = lock_beside(&*disk, path, &lock_path)?;
        let mut staged = StagedDirectory {
            disk,
            path: path.into(),
            place,
            copies,
            lock_path,
            _lock: lock,
            is_ours: false,
        };
        // Checked again, because another process may have finished the directory before this one
        // got the lock.
        refuse_taken(&*staged.disk, &staged.path)?;
        staged.remove_remains()?;
        staged.is_ours = true;
        Ok(staged)
    }

    /// Returns the final path of the directory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path at which to create the directory.
    pub(crate) fn place(&self) -> &Path {
        &self.place
    }

    /// Renames the directory to its final path. All its files must be synced, and a database in it
    /// must be closed.
    pub(crate) fn finish(mut self) -> Result<()> {
        let renamed = self.disk.rename(&self.place, &self.path);
        renamed.map_err(|error| cannot("rename", &self.place, &error))?;
        self.is_ours = false;
        sync_above(&*self.disk, &self.path)
    }

    /// Removes the remains of a killed process. Fails with `Busy` if a process has them open.
    fn remove_remains(&self) -> Result<()> {
        let mut unused = Vec::new();
        for left in [&self.place, &self.copies] {
            // A process that only reads a database locks its directory, not the lock file beside
            // it.
            if self.disk.list(left).is_ok() {
                unused.push(lock(&*self.disk, left)?);
            }
        }
        self.remove_contents()
    }

    fn remove_contents(&self) -> Result<()> {
        remove_ours(&*self.disk, &self.copies)?;
        remove_ours(&*self.disk, &self.place)
    }
}

impl Drop for StagedDirectory {
    fn drop(&mut self) {
        // A failure is ignored: the name marks the directory as incomplete, and the next attempt to
        // create the same directory removes it.
        if self.is_ours {
            let _ = self.remove_contents();
        }
        let _ = self.disk.remove(&self.lock_path);
    }
}

/// Removes a directory, with the files and directories in it that belong to a database or a backup.
fn remove_ours(disk: &dyn Disk, directory: &Path) -> Result<()> {
    refuse_link(disk, directory)?;
    let names = match disk.list(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            return disk.remove(directory).map_err(|error| cannot("remove", directory, &error));
        }
        names => names.map_err(|error| cannot("read", directory, &error))?,
    };
    names
        .iter()
        .filter(|name| is_ours(name))
        .try_for_each(|name| remove_ours(disk, &directory.join(name)))?;
    // If a foreign file is left in the directory, this fails and both stay.
    let _ = disk.remove_directory(directory);
    Ok(())
}

/// Locks the file beside the directory under construction.
fn lock_beside(disk: &dyn Disk, path: &Path, lock_path: &Path) -> Result<DirectoryLock> {
    refuse_link(disk, lock_path)?;
    if fs::metadata(lock_path).is_ok_and(|found| !found.is_file() || found.len() > 0) {
        let message = format!("{}: is not a lock file; move it elsewhere", lock_path.display());
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    disk.make_directory(parent).map_err(|error| cannot("create", parent, &error))?;
    match disk.lock(lock_path) {
        Ok(lock) => Ok(Arc::new(lock)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            let message = format!("{}: another process is creating it", path.display());
            Err(Error::new(ErrorKind::Busy, message))
        }
        Err(error) => Err(cannot("lock", lock_path, &error)),
    }
}

fn refuse_taken(disk: &dyn Disk, path: &Path) -> Result<()> {
    refuse_link(disk, path)?;
    let is_taken = match disk.list(path) {
        Ok(names) => !names.is_empty(),
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound => false,
            io::ErrorKind::NotADirectory => true,
            _ => return Err(cannot("read", path, &error)),
        },
    };
    if is_taken {
        let message = format!("{}: exists already; existing files are never replaced", path.display());
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    Ok(())
}

/// Fails with `Invalid` if the path is a symbolic link. Nothing is written to or removed from the
/// link's target, because the user may not have meant that place.
pub(super) fn refuse_link(disk: &dyn Disk, path: &Path) -> Result<()> {
    if disk.is_link(path).map_err(|error| cannot("read", path, &error))? {
        let message = format!("{}: is a symbolic link, which is not followed", path.display());
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    Ok(())
}
