//! Databases in files of the machine's own file system, their backups, and the databases restored
//! from them.
#![allow(dead_code)] // Each test uses its part.

use std::path::Path;
use std::sync::Arc;
use todana::backup::{BackedUp, BackupReceiver};
use todana::disk::SystemDisk;
use todana::{DatabaseName, Db, RestorationReport, RestoreOptions, Result, SystemClock};

pub(crate) fn open(path: &Path) -> Db {
    Db::open(path.to_str().unwrap()).unwrap()
}

/// Returns a backup as a stream.
pub(crate) fn stream(db: &Db) -> Vec<u8> {
    let (mut backup, mut bytes) = (db.backup().unwrap(), Vec::new());
    while backup.next(&mut bytes).unwrap() {}
    bytes
}

/// Receives a stream in small pieces, as a directory.
pub(crate) fn receive(stream: &[u8], target: &Path) -> Result<BackedUp> {
    let mut receiver = BackupReceiver::create(Arc::new(SystemDisk), target)?;
    stream.chunks(1000).try_for_each(|bytes| receiver.take(bytes))?;
    receiver.finish(&mut |_| ())
}

pub(crate) fn back_up(db: &Db, to: &Path) {
    receive(&stream(db), to).unwrap();
}

/// Restores a backup to a database with this name.
pub(crate) fn restore(from: &Path, to: &Path) -> Result<RestorationReport> {
    let options = RestoreOptions { from: from.into(), ..RestoreOptions::default() };
    let name = DatabaseName::parse(to.to_str().unwrap()).unwrap();
    todana::restore(Arc::new(SystemDisk), &options, &name, Arc::new(SystemClock), &mut |_| ())
}
