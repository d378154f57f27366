//! A database in the data directory `/data` of a simulated disk that can crash.
#![allow(dead_code)] // Each test uses its part.

use crate::crash_disk::CrashDisk;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Mutex};
use todana::update_log::{LogOptions, LogPosition, SyncPolicy, UpdateLog};
use todana::{
    Clock, CommitPoint, DataDirectory, DataOptions, Database, ManualClock, OpeningReport, RestoreOptions,
    SalvageReport, WorkerCounters,
};
use todana_core::{Attributes, Get, Operation, Reply, Result, Store, UnixSeconds};
use todana_engine::{MemHash, MemHashOptions};

pub(crate) const DATA: &str = "/data";

pub(crate) const SALVAGED: &str = "/salvaged";

/// Keys with values and attributes.
pub(crate) type StoredRecords = BTreeMap<Vec<u8>, (Vec<u8>, Attributes)>;

pub(crate) struct CrashDiskDatabase {
    pub(crate) database: Database,
    pub(crate) worker_counters: Arc<WorkerCounters>,
    committed: Mutex<CommitPoint>,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) opened: OpeningReport,
    pub(crate) disk: CrashDisk,
    // This is dropped last, because the lock must outlive the log.
    pub(crate) directory: DataDirectory,
}

pub(crate) fn options(sync: SyncPolicy) -> LogOptions {
    // The ring is so small that it wraps. Other tests use a reserve.
    LogOptions { sync, recent_max: 4096, reserve_bytes: 0, ..LogOptions::default() }
}

/// Opens the database on the disk, or creates it.
pub(crate) fn open(disk: &CrashDisk, now: u64, log: LogOptions) -> Result<CrashDiskDatabase> {
    open_with(disk, now, DataOptions { log, ..DataOptions::default() })
}

/// Opens the database with options for checkpoints.
pub(crate) fn open_with(disk: &CrashDisk, now: u64, options: DataOptions) -> Result<CrashDiskDatabase> {
    let clock = Arc::new(ManualClock::new(UnixSeconds(now)));
    let shards = Some(1);
    let engine = MemHash::new(MemHashOptions { shards, seed: Some(1), ..MemHashOptions::default() })?;
    let database = Database::new(Box::new(engine), Arc::clone(&clock) as Arc<dyn Clock>);
    let directory = DataDirectory::open(Arc::new(disk.clone()), Path::new(DATA))?;
    let clock_too = Arc::clone(&clock) as Arc<dyn Clock>;
    let opened = directory.restore(&database, clock_too, &options, &mut |_| ())?;
    let worker_counters = database.worker_counters();
    let committed = Mutex::default();
    Ok(CrashDiskDatabase {
        database,
        worker_counters,
        committed,
        clock,
        opened,
        disk: disk.clone(),
        directory,
    })
}

/// Salvages `/data` to a new data directory on the same disk, and checks that the damaged files
/// stay unchanged.
pub(crate) fn salvage(disk: &CrashDisk, now: u64) -> Result<SalvageReport> {
    let files = |disk: &CrashDisk| {
        let mut files = disk.state().files();
        files.retain(|path, _| path.starts_with(DATA));
        files
    };
    let before = files(disk);
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::new(UnixSeconds(now)));
    let engine =
        MemHash::new(MemHashOptions { shards: Some(1), seed: Some(1), ..MemHashOptions::default() })?;
    let database = Database::new(Box::new(engine), Arc::clone(&clock));
    let options = RestoreOptions { from: DATA.into(), target: SALVAGED.into(), ..RestoreOptions::default() };
    let salvaged = todana::salvage(Arc::new(disk.clone()), &options, &database, clock, &mut |_| ());
    assert!(files(disk) == before, "damaged files are never changed");
    salvaged
}

/// Returns a disk on which the salvaged directory is `/data`.
pub(crate) fn salvaged(disk: &CrashDisk) -> CrashDisk {
    let mut state = CrashDisk::new().state();
    for (path, bytes) in disk.state().files() {
        if let Ok(rest) = path.strip_prefix(SALVAGED) {
            state.put(&Path::new(DATA).join(rest), bytes);
        }
    }
    CrashDisk::with(state)
}

impl CrashDiskDatabase {
    pub(crate) fn log(&self) -> &UpdateLog {
        self.database.log().unwrap()
    }

    /// Executes an operation and returns the reply as text.
    pub(crate) fn run(&self, command: Operation<'_>) -> String {
        let mut answer = String::new();
        let point = self
            .database
            .execute(&self.worker_counters, &command, &mut |reply| answer = format!("{reply:?}"));
        let mut committed = self.committed.lock().unwrap();
        *committed = point.max(*committed);
        answer
    }

    /// Returns the end of the last change in the update log.
    pub(crate) fn logged(&self) -> LogPosition {
        (*self.committed.lock().unwrap()).into()
    }

    pub(crate) fn set(&self, key: &[u8], value: &[u8]) -> String {
        self.run(Operation::Store(Store { key, value, ..Store::default() }))
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        let mut value = None;
        self.database.execute(
            &self.worker_counters,
            &Operation::Get(Get { key, ..Get::default() }),
            &mut |reply| {
                if let Reply::Hit(hit) = reply {
                    value = Some(hit.record.value.to_vec());
                }
            },
        );
        value
    }

    /// Returns the records that have not expired.
    pub(crate) fn records(&self) -> StoredRecords {
        let now = self.database.now();
        let mut records = StoredRecords::new();
        let mut place = None;
        loop {
            let scan = self.database.engine().scan(place, &mut |key, record| {
                if record.attributes.expiry.is_live(now) {
                    let attributes = Attributes { access: None, ..record.attributes };
                    records.insert(key.to_vec(), (record.value.to_vec(), attributes));
                }
                ControlFlow::Continue(())
            });
            place = scan.unwrap();
            if place.is_none() {
                return records;
            }
        }
    }

    /// Ends as a killed process does: entries that are not written stay unwritten.
    pub(crate) fn kill(self) {
        self.disk.stop();
    }
}
