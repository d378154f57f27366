//! A database under construction: it gets its name only when it is complete and on disk.
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

/// Removes the unfinished database when dropped before [`finish`](Self::finish).
pub(crate) struct StagedDirectory {
    path: PathBuf,
    partial: PathBuf,
    target: PathBuf,
    lock: Option<Lock>,
    /// Everything at `partial` belongs to this value.
    is_ours: bool,
}

impl StagedDirectory {
    /// Creates the staging directory. Fails with `Invalid` if something exists at `path`, or if the
    /// staging directory contains foreign files. Fails with `Busy` if another process is creating
    /// the same database or has it open. The remains of a killed process are removed.
    pub(crate) fn create(path: &Path) -> Result<StagedDirectory> {
        let partial = beside(path, ".partial");
        let target = partial.join(path.file_name().unwrap_or_default());
        let own = [partial.join("lock"), target.clone(), beside(&target, ".partial")];
        refuse_foreign(&partial, &|name| own.contains(&partial.join(name)))?;
        fs::create_dir_all(&partial).map_err(|error| cannot("make", &partial, &error))?;
        let held = Some(lock(&SystemDisk, &partial)?);
        let mut draft = StagedDirectory { path: path.into(), target, partial, lock: held, is_ours: false };
        if path.symlink_metadata().is_ok() {
            let message = format!("{} is there already", path.display());
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let _unused =
            if draft.target.join("lock").exists() { Some(lock(&SystemDisk, &draft.target)?) } else { None };
        draft.remove_contents().map_err(|error| cannot("remove", &draft.target, &error))?;
        draft.is_ours = true;
        Ok(draft)
    }

    /// Returns the path of the database until it is finished.
    pub(crate) fn place(&self) -> &Path {
        &self.target
    }

    /// Returns the name of the database until it is finished.
    pub(super) fn name(&self, of: &Name) -> Result<String> {
        of.at(&self.target)
    }

    /// Renames the database to its final path. Everything in it must be synced, and it must not be
    /// open.
    pub(crate) fn finish(mut self) -> Result<()> {
        fs::rename(&self.target, &self.path)
            .map_err(|error| cannot("give its name to", &self.target, &error))?;
        self.is_ours = false;
        sync_above(&SystemDisk, &self.path)
    }

    fn remove_contents(&self) -> io::Result<()> {
        for left in [&self.target, &beside(&self.target, ".partial")] {
            match fs::remove_dir_all(left) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

impl Drop for StagedDirectory {
    fn drop(&mut self) {
        // Best effort: its name marks it as incomplete, and the next attempt with the same name
        // removes it.
        if self.is_ours {
            let _ = self.remove_contents();
        }
        let _ = fs::remove_file(self.partial.join("lock"));
        self.lock = None;
        let _ = fs::remove_dir(&self.partial);
    }
}
