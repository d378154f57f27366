//! A directory that is being made: it gets its name only once it is whole and on disk.

use super::{CHECKPOINTS, LOG, cannot};
use crate::backup::BACKUP;
use crate::disk::Disk;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana_core::{Error, ErrorKind, Result};

/// `<name>.partial`, until it is `<name>`. Dropped before that, it is removed.
pub(crate) struct Target {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    partial: PathBuf,
    lock: Option<Box<dyn Send + Sync>>,
    is_finished: bool,
}

impl Target {
    /// Fails with `Invalid` if there is anything but an empty directory at the path, with `Busy` if another process makes the
    /// same one. What one that was killed has left is removed.
    pub(crate) fn create(disk: Arc<dyn Disk>, path: &Path) -> Result<Target> {
        let nameless =
            || Error::new(ErrorKind::Invalid, format!("{} names no directory to make", path.display()));
        let mut name = path.file_name().ok_or_else(nameless)?.to_os_string();
        name.push(".partial");
        let partial = path.with_file_name(name);
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
        disk.make_directory(&partial).map_err(|error| cannot("make", &partial, &error))?;
        let lock_path = partial.join("lock");
        let lock = disk.lock(&lock_path).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => {
                Error::new(ErrorKind::Busy, format!("another process is making {}", path.display()))
            }
            _ => cannot("lock", &lock_path, &error),
        })?;
        let path = path.to_path_buf();
        let target = Target { disk, path, partial, lock: Some(lock), is_finished: false };
        target.empty()?;
        Ok(target)
    }

    /// Where to make it.
    pub(crate) fn partial(&self) -> &Path {
        &self.partial
    }

    /// Lets go of the lock, for whoever opens it as a data directory and takes it itself.
    pub(crate) fn unlock(&mut self) {
        self.lock = None;
    }

    /// Gives it its name. All that is in it has been synced.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.disk
            .rename(&self.partial, &self.path)
            .map_err(|error| cannot("give its name to", &self.partial, &error))?;
        // Whatever comes now, it is there.
        self.is_finished = true;
        super::sync_above(&*self.disk, &self.path)
    }

    /// Removes what is in it but the lock. Nothing else than what we make is touched.
    fn empty(&self) -> Result<()> {
        for part in [LOG, CHECKPOINTS] {
            self.remove_files(&self.partial.join(part), &|_| true)?;
        }
        let is_ours = |name: &str| ["identity", "identity.partial", BACKUP].contains(&name);
        self.remove_files(&self.partial, &is_ours)
    }

    fn remove_files(&self, directory: &Path, is_ours: &dyn Fn(&str) -> bool) -> Result<()> {
        let names = match self.disk.list(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            names => names.map_err(|error| cannot("read", directory, &error))?,
        };
        for name in names.iter().filter(|name| is_ours(name)) {
            let path = directory.join(name);
            self.disk.remove(&path).map_err(|error| cannot("remove", &path, &error))?;
        }
        Ok(())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if self.is_finished {
            return;
        }
        // Best effort: its name says that it is not whole, and the next one of the same name removes it.
        let _ = self.empty();
        let _ = self.disk.remove(&self.partial.join("lock"));
        for part in [LOG, CHECKPOINTS] {
            let _ = self.disk.remove_directory(&self.partial.join(part));
        }
        let _ = self.disk.remove_directory(&self.partial);
    }
}
