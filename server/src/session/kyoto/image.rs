//! An image of a database on disk for a command of `synchronize`: one file, as of one moment, for
//! as long as the command runs.
//!
//! Kyoto Tycoon blocks writers while a command copies its file. Ours is a directory that is written
//! at any time, so the command receives a backup in a single file (docs/format/backup.md, the
//! stream), which `todana restore` reads.

use crate::shared::Shared;
use parking_lot::{Mutex, MutexGuard};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use todana::backup::Backup;
use todana::disk::SystemDisk;
use todana_core::{Error, ErrorKind, Result};

/// The suffix after the name of the database.
const SUFFIX: &str = ".backup";

/// The interval at which a waiting thread checks for cancellation.
const LOOK: Duration = Duration::from_millis(20);

/// The file, which is removed when this is dropped. Exists only if the file was created here.
pub(super) struct DatabaseImage<'s> {
    path: PathBuf,
    _turn: MutexGuard<'s, ()>,
}

impl Drop for DatabaseImage<'_> {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!("{}: cannot be removed: {error}", self.path.display());
        }
    }
}

impl<'s> DatabaseImage<'s> {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the image of a database; `None` for a database in memory.
    pub(super) fn write(
        shared: &'s Shared,
        number: usize,
        called_off: &AtomicBool,
    ) -> Result<Option<DatabaseImage<'s>>> {
        let served = &shared.databases[number];
        let Some(place) = &served.name.path else { return Ok(None) };
        let turn = wait_for(&served.imaging, called_off)?;
        let mut path = place.clone().into_os_string();
        path.push(SUFFIX);
        let path = PathBuf::from(path);
        let mut file = create(&path)?;
        let image = DatabaseImage { path, _turn: turn };
        // The directory of a hash on disk holds only a log for replicas.
        let is_in_files = served.database.engine().durable().is_some();
        let mut backup = match shared.persistence.exports.directory(number).filter(|_| !is_in_files) {
            Some(directory) => Backup::start(&directory, &served.database, called_off)?,
            None => Backup::of_files(Arc::new(SystemDisk), &served.database)?,
        };
        let mut piece = Vec::new();
        while backup.next(&mut piece)? {
            if called_off.load(Ordering::Relaxed) {
                return Err(has_been_called_off());
            }
            file.write_all(&piece).map_err(|error| unwritable(&image.path, &error))?;
            piece.clear();
        }
        Ok(Some(image))
    }
}

/// Creates the file. An existing file stays, because a killed server or an operator may have left
/// it.
fn create(path: &Path) -> Result<File> {
    let created = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    created.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => {
            let message = format!("{}: file exists; move or remove it", path.display());
            Error::new(ErrorKind::Unavailable, message)
        }
        _ => unwritable(path, &error),
    })
}

fn unwritable(path: &Path, error: &io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, format!("{}: cannot be written: {error}", path.display()))
}

fn has_been_called_off() -> Error {
    Error::new(ErrorKind::Closed, "the image was cancelled")
}

/// Waits until there is no other image of the database, or this one is cancelled.
fn wait_for<'t>(turn: &'t Mutex<()>, called_off: &AtomicBool) -> Result<MutexGuard<'t, ()>> {
    loop {
        if let Some(turn) = turn.try_lock_for(LOOK) {
            return Ok(turn);
        }
        if called_off.load(Ordering::Relaxed) {
            return Err(has_been_called_off());
        }
    }
}
