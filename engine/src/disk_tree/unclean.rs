//! The file by which an opening learns that the process before it did not close the tree.

use crate::disk::{Disk, SystemDisk};
use std::io;
use std::path::{Path, PathBuf};

/// The file is there while the tree is open. It is removed when this is dropped, if this has created it.
pub(super) struct Unclean {
    path: PathBuf,
    is_found: bool,
    is_ours: bool,
}

impl Unclean {
    /// The directory must be locked.
    pub(super) fn find(directory: &Path) -> Unclean {
        let path = directory.join("unclean");
        Unclean { is_found: path.exists(), path, is_ours: false }
    }

    /// Returns true if the tree was not closed.
    pub(super) fn is_found(&self) -> bool {
        self.is_found
    }

    /// Says that the tree is open. The name has to be synced.
    pub(super) fn begin(mut self) -> io::Result<Unclean> {
        match SystemDisk.create(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => {
                self.is_ours = true;
                Ok(self)
            }
        }
    }
}

impl Drop for Unclean {
    fn drop(&mut self) {
        if self.is_ours {
            // One that stays costs the next opening a walk.
            let _ = SystemDisk.remove(&self.path);
        }
    }
}
