//! An image of a database on disk, for a command of `synchronize`: one file, as of one moment, as long as the command runs.
//!
//! The original holds writers up while a command copies its file. Ours is a directory that is written all the time; so the command gets a
//! backup of it as a single file (docs/format/backup.md, the stream), which `todana restore` reads.

use crate::shared::Shared;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use todana::backup::Backup;
use todana::disk::SystemDisk;
use todana_core::{Error, ErrorKind, Result};

/// What stands behind the name of the database.
const SUFFIX: &str = ".backup";

/// Two of a database would have one name.
static TURN: Mutex<()> = Mutex::new(());

/// The file, which goes when this is dropped.
pub(super) struct Image {
    path: PathBuf,
    _turn: MutexGuard<'static, ()>,
}

impl Drop for Image {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!("{}: cannot be removed: {error}", self.path.display());
        }
    }
}

impl Image {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the image of a database; `None` for one in memory.
    pub(super) fn write(shared: &Shared, number: usize, called_off: &AtomicBool) -> Result<Option<Image>> {
        let served = &shared.databases[number];
        let Some(place) = &served.name.path else { return Ok(None) };
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let mut path = place.clone().into_os_string();
        path.push(SUFFIX);
        let image = Image { path: path.into(), _turn: turn };
        // That of a hash on disk holds a log for replicas alone.
        let is_in_files = served.database.engine().durable().is_some();
        let mut backup = match shared.exports.directory(number).filter(|_| !is_in_files) {
            Some(directory) => Backup::start(&directory, &served.database, called_off)?,
            None => Backup::of_files(Arc::new(SystemDisk), &served.database)?,
        };
        let unwritable = |error| {
            Error::new(
                ErrorKind::Unavailable,
                format!("{}: cannot be written: {error}", image.path.display()),
            )
        };
        let mut file = image.create().map_err(unwritable)?;
        let mut piece = Vec::new();
        while backup.next(&mut piece)? {
            if called_off.load(Ordering::Relaxed) {
                return Err(Error::new(ErrorKind::Closed, "the image was called off"));
            }
            file.write_all(&piece).map_err(unwritable)?;
            piece.clear();
        }
        Ok(Some(image))
    }

    /// One that a killed server has left is in the way.
    fn create(&self) -> io::Result<File> {
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&self.path)
    }
}
