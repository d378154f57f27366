//! A directory that is being made: it gets its name only once it is whole and on disk.

use super::{CHECKPOINTS, LOG, Lock, beside, cannot, refuse_foreign};
use crate::backup::{BACKUP, HASH};
use crate::disk::Disk;
use crate::open::contents::is_ours;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana_core::{Error, ErrorKind, Result};
use todana_engine::reserve::RESERVE;

/// `<name>.partial`, until it is `<name>`. Dropped before that, it is removed.
pub(crate) struct Target {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    partial: PathBuf,
    lock: Lock,
    is_finished: bool,
}

impl Target {
    /// Fails with `Invalid` if there is anything but an empty directory at the path, or a symbolic link in the way, with `Busy` if
    /// another process makes the same one, or with `Invalid` if others have put anything where it is made. What one that was killed has
    /// left is removed.
    pub(crate) fn create(disk: Arc<dyn Disk>, path: &Path) -> Result<Target> {
        let nameless =
            || Error::new(ErrorKind::Invalid, format!("{} names no directory to make", path.display()));
        path.file_name().ok_or_else(nameless)?;
        let partial = beside(path, ".partial");
        refuse_taken(&*disk, path)?;
        refuse_foreign(&partial, &|name| name == "lock" || is_part(name) || is_made(name))?;
        let lock = lock_partial(&*disk, path, &partial)?;
        let path = path.to_path_buf();
        let target = Target { disk, path, partial, lock, is_finished: false };
        // Whoever held the lock before may have finished it meanwhile.
        refuse_taken(&*target.disk, &target.path)?;
        target.empty()?;
        Ok(target)
    }

    /// Where it will be.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Where to make it.
    pub(crate) fn partial(&self) -> &Path {
        &self.partial
    }

    /// The lock, for whoever opens it as a data directory. It is held until it has its name, or is removed, all the same: there is no
    /// moment at which somebody else could take it for what a killed process has left.
    pub(crate) fn lock(&self) -> Lock {
        Arc::clone(&self.lock)
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
        for part in PARTS {
            self.remove_files(&self.partial.join(part), &is_ours)?;
        }
        self.remove_files(&self.partial, &is_made)
    }

    fn remove_files(&self, directory: &Path, is_ours: &dyn Fn(&str) -> bool) -> Result<()> {
        refuse_link(&*self.disk, directory)?;
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
        // Best effort: its name says that it is not whole, and the next one of the same name removes it. The lock's file goes
        // last: once it has, the next one may make what is removed here.
        let _ = self.empty();
        for part in PARTS {
            let _ = self.disk.remove_directory(&self.partial.join(part));
        }
        let _ = self.disk.remove(&self.partial.join("lock"));
        let _ = self.disk.remove_directory(&self.partial);
    }
}

/// The directories in it.
const PARTS: [&str; 3] = [LOG, CHECKPOINTS, HASH];

fn is_part(name: &str) -> bool {
    PARTS.contains(&name)
}

/// Returns true for the name of a file that is made beside these directories.
fn is_made(name: &str) -> bool {
    let name = name.strip_suffix(".partial").unwrap_or(name);
    ["identity", BACKUP, RESERVE].contains(&name)
}

/// Makes the directory, and locks it before anything else is done in it.
fn lock_partial(disk: &dyn Disk, path: &Path, partial: &Path) -> Result<Lock> {
    // So often it may be removed or get its name in between.
    const TRIES: u32 = 10;
    let lock_path = partial.join("lock");
    let mut tries = 0;
    loop {
        tries += 1;
        refuse_link(disk, partial)?;
        match disk.make_directory(partial) {
            // It was there, and has gone since.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && tries < TRIES => continue,
            made => made.map_err(|error| cannot("make", partial, &error))?,
        }
        refuse_link(disk, &lock_path)?;
        match disk.lock(&lock_path) {
            Ok(lock) => return Ok(Arc::new(lock)),
            Err(error) if error.kind() == io::ErrorKind::NotFound && tries < TRIES => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let message = format!("another process is making {}", path.display());
                return Err(Error::new(ErrorKind::Busy, message));
            }
            Err(error) => return Err(cannot("lock", &lock_path, &error)),
        }
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

/// Nothing is written or removed where a link leads: whoever made it may mean us to do so elsewhere.
pub(super) fn refuse_link(disk: &dyn Disk, path: &Path) -> Result<()> {
    if disk.is_link(path).map_err(|error| cannot("read", path, &error))? {
        let message = format!("{} is a symbolic link; it is not followed", path.display());
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    Ok(())
}
