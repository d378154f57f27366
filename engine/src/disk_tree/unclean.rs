//! The file by which an opening learns that the process before it did not close the tree, and whether the machine has been running since.
//!
//! What a killed process had written is in the system's memory, and complete. Only a machine that stopped can have lost pages of it that
//! were not synced, so the file names the boot of the machine. A copy that was made while the tree was open may be of several moments, and
//! has the same note: so it names the tree's file, too, which has another number there.
//!
//! Measured (2 shared cores, 2026-11, dev profile): a server of a tree of 1,000,000 records, 343 MB, opened 0.4 to 0.9 s after a kill, and
//! 9.3 to 11.7 s with the walk that every kill cost before.

use crate::disk::{Disk, SystemDisk};
use std::fs;
use std::io::{self, IoSlice};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Where Linux names the boot of the machine, in containers that of their host.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The file is there while the tree is open. It is removed when this is dropped, if this has created it.
pub(super) struct Unclean {
    path: PathBuf,
    found: Found,
    is_ours: bool,
}

/// What the process before has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// It closed the tree.
    Nothing,
    /// It was killed, and the machine has been running since.
    OfThisBoot,
    /// The machine may have stopped, or this is a copy.
    Unknown,
}

impl Unclean {
    /// The directory must be locked.
    pub(super) fn find(directory: &Path) -> Unclean {
        let path = directory.join("unclean");
        let found = match note_in(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Found::Nothing,
            Ok(named) if note_of(directory).is_some_and(|note| note == named) => Found::OfThisBoot,
            _ => Found::Unknown,
        };
        Unclean { path, found, is_ours: false }
    }

    /// Returns true if the tree was not closed, and pages of it may be lost.
    pub(super) fn may_lack_pages(&self) -> bool {
        self.found == Found::Unknown
    }

    /// Says that the tree is open. The name has to be synced.
    pub(super) fn begin(mut self) -> io::Result<Unclean> {
        let file = match SystemDisk.create(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                SystemDisk.open(&self.path, true)?
            }
            created => created?,
        };
        self.is_ours = true;
        // After a loss of power, or on a full disk, it may be empty, or have what it had before: another boot. That costs a walk alone.
        let note = self.path.parent().and_then(note_of).unwrap_or_default();
        let _ = file.set_len(0).and_then(|()| file.write_at(0, &mut [IoSlice::new(&note)]));
        Ok(self)
    }
}

/// Reads a note, of which the beginning is enough.
fn note_in(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 256];
    let got = SystemDisk.open(path, false)?.read_at(0, &mut bytes)?;
    bytes.truncate(got);
    Ok(bytes)
}

/// Names the boot of this machine and the file of the tree; `None` where the system does not name them.
fn note_of(directory: &Path) -> Option<Vec<u8>> {
    let boot_id = fs::read_to_string(BOOT_ID).ok().filter(|id| !id.trim().is_empty())?;
    let file = fs::metadata(directory.join("data.mdb")).ok()?;
    Some(format!("{} {}:{}", boot_id.trim(), file.dev(), file.ino()).into_bytes())
}

impl Drop for Unclean {
    fn drop(&mut self) {
        if self.is_ours {
            // One that stays may cost the next opening a walk.
            let _ = SystemDisk.remove(&self.path);
        }
    }
}
