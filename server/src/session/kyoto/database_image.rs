//! Writes an image of a database on disk for a command of `synchronize`. The image is one file with
//! all records as of one moment. It exists while the command runs.
//!
//! Kyoto Tycoon blocks writers while a command copies the database's file. Here a database is a
//! directory that may change at any time, so the command receives a backup in a single file (the
//! stream of docs/format/backup.md), which `todana restore` reads.

use crate::shared::SharedState;
use parking_lot::{Mutex, MutexGuard};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use todana::backup::BackupSender;
use todana::disk::SystemDisk;
use todana_core::{Error, ErrorKind, Result};

/// The suffix that is appended to the name of the database.
const SUFFIX: &str = ".backup";

/// The interval at which a waiting thread checks whether it was cancelled.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// The file of an image, created by this process. Dropping the value removes the file.
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

    /// Writes the image of a database. Returns `None` for a database in memory.
    pub(super) fn write(
        shared: &'s SharedState,
        number: usize,
        cancelled: &AtomicBool,
    ) -> Result<Option<DatabaseImage<'s>>> {
        let served = &shared.databases[number];
        let Some(place) = &served.name.path else { return Ok(None) };
        let turn = wait_for(&served.image_turn, cancelled)?;
        let mut path = place.clone().into_os_string();
        path.push(SUFFIX);
        let path = PathBuf::from(path);
        let mut file = create(&path)?;
        let image = DatabaseImage { path, _turn: turn };
        // The data directory of a hash on disk holds only the log for replicas, not the records.
        let is_in_files = served.database.engine().durable().is_some();
        let mut backup = match shared.persistence.exports.directory(number).filter(|_| !is_in_files) {
            Some(directory) => BackupSender::start(&directory, &served.database, cancelled)?,
            None => BackupSender::of_files(Arc::new(SystemDisk), &served.database)?,
        };
        let mut piece = Vec::new();
        while backup.next(&mut piece)? {
            if cancelled.load(Ordering::Relaxed) {
                return Err(has_been_cancelled());
            }
            file.write_all(&piece).map_err(|error| unwritable(&image.path, &error))?;
            piece.clear();
        }
        Ok(Some(image))
    }
}

/// Creates the file. Fails if the file exists, because an operator may have put it there, or a
/// killed server may have left it.
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

fn has_been_cancelled() -> Error {
    Error::new(ErrorKind::Closed, "the image was cancelled")
}

/// Waits until the database has no other image. Fails if this image is cancelled first.
fn wait_for<'t>(turn: &'t Mutex<()>, cancelled: &AtomicBool) -> Result<MutexGuard<'t, ()>> {
    loop {
        if let Some(turn) = turn.try_lock_for(CHECK_INTERVAL) {
            return Ok(turn);
        }
        if cancelled.load(Ordering::Relaxed) {
            return Err(has_been_cancelled());
        }
    }
}
