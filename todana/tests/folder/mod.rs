//! A database in a folder of the machine's own file system, its backups, and their contents.
#![allow(dead_code)] // Each test uses its part.

#[path = "../../../tests/swayed_disk/mod.rs"]
pub(crate) mod swayed_disk;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use swayed_disk::{Sway, Swayed};
use todana::backup::{BackedUp, BackupReceiver, BackupSender};
use todana::update_log::{LogOptions, SyncPolicy};
use todana::{
    Clock, DataDirectory, DataOptions, Database, ManualClock, RestoreOptions, SalvageReport, WorkerCounters,
};
use todana_core::{Delete, Operation, Result, Store, Ttl, UnixSeconds};
use todana_engine::{MemHash, MemHashOptions};

pub(crate) const NOW: u64 = 1_700_000_000;

pub(crate) struct FolderDatabase {
    pub(crate) database: Arc<Database>,
    pub(crate) worker_counters: Arc<WorkerCounters>,
    pub(crate) clock: Arc<ManualClock>,
    // This is dropped last, because the lock must outlive the log.
    pub(crate) directory: DataDirectory,
}

/// The machine's file system without syncs. The tests create thousands of files, and no crash
/// happens.
#[derive(Clone)]
pub(crate) struct UnsyncedDisk;

impl Sway for UnsyncedDisk {
    fn syncs(&self) -> io::Result<bool> {
        Ok(false)
    }

    fn syncs_directory(&self) -> io::Result<bool> {
        Ok(false)
    }
}

pub(crate) fn disk() -> Arc<Swayed<UnsyncedDisk>> {
    Arc::new(Swayed(UnsyncedDisk))
}

/// Creates a temporary folder, in memory if possible.
pub(crate) fn folder() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap()
}

/// Creates a database without a log.
pub(crate) fn empty(clock: &Arc<ManualClock>) -> Database {
    let options = MemHashOptions { shards: Some(1), seed: Some(1), ..MemHashOptions::default() };
    let engine = MemHash::new(options).unwrap();
    Database::new(Box::new(engine), Arc::clone(clock) as Arc<dyn Clock>)
}

pub(crate) fn open(path: &Path, segment_len: u64) -> FolderDatabase {
    let log = LogOptions { sync: SyncPolicy::Always, segment_len, ..LogOptions::default() };
    open_with(path, &DataOptions { log, ..DataOptions::default() })
}

pub(crate) fn open_with(path: &Path, options: &DataOptions) -> FolderDatabase {
    let clock = Arc::new(ManualClock::new(UnixSeconds(NOW)));
    let database = empty(&clock);
    let directory = DataDirectory::open(disk(), path).unwrap();
    directory.restore(&database, Arc::clone(&clock) as Arc<dyn Clock>, options, &mut |_| ()).unwrap();
    let worker_counters = database.worker_counters();
    FolderDatabase { database: Arc::new(database), worker_counters, clock, directory }
}

impl FolderDatabase {
    pub(crate) fn set(&self, key: &str, value: &str) {
        let store = Store { key: key.as_bytes(), value: value.as_bytes(), ..Store::default() };
        self.database.execute(&self.worker_counters, &Operation::Store(store), &mut |_| ());
    }

    pub(crate) fn delete(&self, key: &str) {
        let delete = Delete { key: key.as_bytes(), ..Delete::default() };
        self.database.execute(&self.worker_counters, &Operation::Delete(delete), &mut |_| ());
    }

    pub(crate) fn flush(&self, at: Ttl) {
        self.database.execute(&self.worker_counters, &Operation::Flush { at }, &mut |_| ());
    }

    pub(crate) fn settle(&self) {
        let log = self.database.log().unwrap();
        log.wait(log.end()).unwrap();
    }

    pub(crate) fn records(&self) -> BTreeMap<String, String> {
        let mut records = BTreeMap::new();
        let mut place = None;
        loop {
            place = self
                .database
                .engine()
                .scan(place, &mut |key, record| {
                    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
                    records.insert(text(key), text(record.value));
                    ControlFlow::Continue(())
                })
                .unwrap();
            if place.is_none() {
                return records;
            }
        }
    }

    pub(crate) fn start_backup(&self) -> BackupSender {
        BackupSender::start(&self.directory, &self.database, &AtomicBool::new(false)).unwrap()
    }
}

/// Salvages into a new data directory.
pub(crate) fn salvage(from: &Path, target: &Path) -> Result<SalvageReport> {
    let clock = Arc::new(ManualClock::new(UnixSeconds(NOW)));
    let database = empty(&clock);
    let options = RestoreOptions { from: from.into(), target: target.into(), ..RestoreOptions::default() };
    todana::salvage(disk(), &options, &database, clock as Arc<dyn Clock>, &mut |_| ())
}

pub(crate) fn drain(mut backup: BackupSender) -> Vec<u8> {
    let mut stream = Vec::new();
    while backup.next(&mut stream).unwrap() {}
    stream
}

pub(crate) fn receive(stream: &[u8], target: &Path) -> Result<BackedUp> {
    let mut receiver = BackupReceiver::create(disk(), target)?;
    receiver.take(stream)?;
    receiver.finish(&mut |_| ())
}

/// Returns all files below a directory.
pub(crate) fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

/// Copies the present contents of the files, which are those that a killed process would leave.
pub(crate) fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let place = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &place);
        } else {
            fs::copy(entry.path(), place).unwrap();
        }
    }
}
