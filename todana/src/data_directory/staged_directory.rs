//! A database, data directory or backup under construction: it gets its name only when it is
//! complete and on disk.
//!
//! ```text
//! x.tree.partial --rename--> x.tree
//! x.tree.partial.lock        locked until then; removed at the end
//! x.tree.partial.partial     files that the engine copies, before they are complete
//! ```
//!
//! The lock lies beside the directory, because a database in it has a lock of its own.

use super::{Lock, beside, cannot, lock, refuse_foreign, sync_above};
use crate::disk::Disk;
use crate::open::contents::is_ours;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana_core::{Error, ErrorKind, Result};

/// Removes the unfinished directory when dropped before [`finish`](Self::finish).
pub(crate) struct StagedDirectory {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    place: PathBuf,
    lock_path: PathBuf,
    _lock: Lock,
    /// Everything at `place` belongs to this value.
    is_ours: bool,
}

impl StagedDirectory {
    /// Reserves the place of a new directory, and removes the remains of a killed process. Fails
    /// with `Invalid` if anything but an empty directory exists at `path`, if a symbolic link is in
    /// the way, or if foreign files are. Fails with `Busy` if another process is creating the same
    /// directory or has the remains open.
    pub(crate) fn create(disk: Arc<dyn Disk>, path: &Path) -> Result<StagedDirectory> {
        if path.file_name().is_none() {
            let message = format!("{} names no directory to make", path.display());
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let (place, lock_path) = (beside(path, ".partial"), beside(path, ".partial.lock"));
        refuse_taken(&*disk, path)?;
        for work in [&place, &beside(&place, ".partial")] {
            refuse_foreign(work, &is_ours)?;
        }
        let lock = lock_beside(&*disk, path, &lock_path)?;
        let mut staged =
            StagedDirectory { disk, path: path.into(), place, lock_path, _lock: lock, is_ours: false };
        // Another process may have finished it before this one had the lock.
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

    /// Renames the directory to its final path. Everything in it must be synced, and a database in
    /// it must not be open.
    pub(crate) fn finish(mut self) -> Result<()> {
        let renamed = self.disk.rename(&self.place, &self.path);
        renamed.map_err(|error| cannot("give its name to", &self.place, &error))?;
        self.is_ours = false;
        sync_above(&*self.disk, &self.path)
    }

    /// Removes what a killed process has left, unless it is open.
    fn remove_remains(&self) -> Result<()> {
        let mut unused = Vec::new();
        for left in [&self.place, &beside(&self.place, ".partial")] {
            // Without a lock file, a reader has locked the directory itself.
            if self.disk.list(left).is_ok() {
                unused.push(lock(&*self.disk, left)?);
            }
        }
        self.remove_contents()
    }

    fn remove_contents(&self) -> Result<()> {
        remove_ours(&*self.disk, &beside(&self.place, ".partial"))?;
        remove_ours(&*self.disk, &self.place)
    }
}

impl Drop for StagedDirectory {
    fn drop(&mut self) {
        // Best effort: its name marks the directory as incomplete, and the next attempt with the
        // same name removes it.
        if self.is_ours {
            let _ = self.remove_contents();
        }
        let _ = self.disk.remove(&self.lock_path);
    }
}

/// Removes a directory and the files and directories in it that databases and backups consist of.
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
    // A foreign file stays, and the directory with it.
    let _ = disk.remove_directory(directory);
    Ok(())
}

/// Locks the file beside the directory.
fn lock_beside(disk: &dyn Disk, path: &Path, lock_path: &Path) -> Result<Lock> {
    refuse_link(disk, lock_path)?;
    if fs::metadata(lock_path).is_ok_and(|found| !found.is_file() || found.len() > 0) {
        let message = format!("{}: it is no lock; move it elsewhere", lock_path.display());
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    disk.make_directory(parent).map_err(|error| cannot("make", parent, &error))?;
    match disk.lock(lock_path) {
        Ok(lock) => Ok(Arc::new(lock)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            let message = format!("another process is making {}", path.display());
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
        let message = format!("{} is there already; it is not replaced", path.display());
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    Ok(())
}

/// Fails with `Invalid` for a symbolic link: nothing is written or removed where it leads, because
/// its owner may have meant another place.
pub(super) fn refuse_link(disk: &dyn Disk, path: &Path) -> Result<()> {
    if disk.is_link(path).map_err(|error| cannot("read", path, &error))? {
        let message = format!("{} is a symbolic link; it is not followed", path.display());
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    Ok(())
}
