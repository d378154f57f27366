//! A database that is being made: it gets its name only once it is whole and on disk.
//!
//! ```text
//! x.tree.partial/x.tree --rename--> x.tree
//! x.tree.partial/lock               held meanwhile
//! ```

use crate::data_directory::{Lock, beside, cannot, lock, refuse_foreign, sync_above};
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
    /// All that lies there by now is of this one.
    is_begun: bool,
}

impl Draft {
    /// Fails with `Invalid` if anything lies at the path, or anything that others have put there where it is made, with `Busy` if another
    /// process makes the same one or has open what lies there. What one that was killed has left is removed.
    pub(crate) fn create(path: &Path) -> Result<Draft> {
        let partial = beside(path, ".partial");
        let made = partial.join(path.file_name().unwrap_or_default());
        let own = [partial.join("lock"), made.clone(), beside(&made, ".partial")];
        refuse_foreign(&partial, &|name| own.contains(&partial.join(name)))?;
        fs::create_dir_all(&partial).map_err(|error| cannot("make", &partial, &error))?;
        let held = Some(lock(&SystemDisk, &partial)?);
        let mut draft = Draft { path: path.into(), made, partial, lock: held, is_begun: false };
        if path.symlink_metadata().is_ok() {
            let message = format!("{} is there already", path.display());
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let _unused =
            if draft.made.join("lock").exists() { Some(lock(&SystemDisk, &draft.made)?) } else { None };
        draft.empty().map_err(|error| cannot("remove", &draft.made, &error))?;
        draft.is_begun = true;
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
        self.is_begun = false;
        sync_above(&SystemDisk, &self.path)
    }

    fn empty(&self) -> io::Result<()> {
        for left in [&self.made, &beside(&self.made, ".partial")] {
            match fs::remove_dir_all(left) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // Best effort: its name says that it is not whole, and the next one of the same name removes it.
        if self.is_begun {
            let _ = self.empty();
        }
        let _ = fs::remove_file(self.partial.join("lock"));
        self.lock = None;
        let _ = fs::remove_dir(&self.partial);
    }
}
