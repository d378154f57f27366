//! A database that is being made: it gets its name only once it is whole and on disk.
//!
//! ```text
//! x.tree.partial/x.tree --rename--> x.tree
//! x.tree.partial/lock               held meanwhile
//! ```

use crate::data_directory::{Lock, cannot, lock, sync_above};
use crate::disk::SystemDisk;
use crate::open::Name;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use todana_core::{Error, ErrorKind, Result};

/// Dropped before it is finished, it is removed.
pub(crate) struct Draft {
    path: PathBuf,
    partial: PathBuf,
    made: PathBuf,
    lock: Option<Lock>,
    is_finished: bool,
}

impl Draft {
    /// Fails with `Invalid` if anything lies at the path, with `Busy` if another process makes the same one. What one that was killed
    /// has left is removed.
    pub(crate) fn create(path: &Path) -> Result<Draft> {
        let file_name = path.file_name().unwrap_or_default();
        let mut name = file_name.to_os_string();
        name.push(".partial");
        let partial = path.with_file_name(name);
        fs::create_dir_all(&partial).map_err(|error| cannot("make", &partial, &error))?;
        let lock = Some(lock(&SystemDisk, &partial)?);
        let draft =
            Draft { path: path.into(), made: partial.join(file_name), partial, lock, is_finished: false };
        if path.symlink_metadata().is_ok() {
            let message = format!("{} is there already", path.display());
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        draft.empty().map_err(|error| cannot("remove", &draft.made, &error))?;
        Ok(draft)
    }

    /// Where it lies until it is finished.
    pub(crate) fn place(&self) -> &Path {
        &self.made
    }

    /// The name of the database until it is finished.
    pub(super) fn name(&self, of: &Name) -> Result<String> {
        of.at(&self.made)
    }

    /// Gives it its name. All that is in it has been synced, and nobody has it open.
    pub(crate) fn finish(mut self) -> Result<()> {
        fs::rename(&self.made, &self.path).map_err(|error| cannot("give its name to", &self.made, &error))?;
        self.is_finished = true;
        sync_above(&SystemDisk, &self.path)
    }

    fn empty(&self) -> io::Result<()> {
        match fs::remove_dir_all(&self.made) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // Best effort: its name says that it is not whole, and the next one of the same name removes it.
        if !self.is_finished {
            let _ = self.empty();
        }
        let _ = fs::remove_file(self.partial.join("lock"));
        self.lock = None;
        let _ = fs::remove_dir(&self.partial);
    }
}
