//! A tree on disk and its update log, opened again after the process was killed.

use crate::crash_disk;
use crate::folder;

use crash_disk::CrashDisk;
use folder::copy;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use todana::disk::SystemDisk;
use todana::update_log::{LogOptions, SyncPolicy};
use todana::{Clock, DataDirectory, DataOptions, Database, ManualClock, WorkerCounters};
use todana_core::{Operation, Reply, Store, Ttl, UnixSeconds};
use todana_engine::{DiskTree, DiskTreeOptions};

const START: u64 = 1_700_000_000;

struct OpenedTree {
    database: Database,
    worker_counters: Arc<WorkerCounters>,
    clock: Arc<ManualClock>,
    // This is dropped last, because the lock must outlive the log.
    directory: DataDirectory,
}

fn open(path: &Path) -> OpenedTree {
    let clock = Arc::new(ManualClock::new(UnixSeconds(START)));
    let clock_too = || Arc::clone(&clock) as Arc<dyn Clock>;
    let directory = DataDirectory::open(Arc::new(SystemDisk), path).unwrap();
    let options = DiskTreeOptions { spills: false, ..DiskTreeOptions::default() };
    let engine = DiskTree::open(&path.join("tree"), options).unwrap();
    let database = Database::new(Box::new(engine), clock_too());
    // With this interval, nothing is synced without a request.
    let log = LogOptions { sync: SyncPolicy::Every(Duration::from_secs(3600)), ..LogOptions::default() };
    let options = DataOptions { log, ..DataOptions::default() };
    directory.restore(&database, clock_too(), &options, &mut |_| ()).unwrap();
    OpenedTree { worker_counters: database.worker_counters(), database, clock, directory }
}

impl OpenedTree {
    fn run(&self, command: Operation<'_>) {
        let mut is_done = false;
        self.database.execute(&self.worker_counters, &command, &mut |reply| {
            is_done = matches!(reply, Reply::Done | Reply::Stored(_));
        });
        assert!(is_done, "{command:?}");
    }

    fn set(&self, key: &[u8]) {
        self.run(Operation::Store(Store { key, value: b"1", ..Store::default() }));
    }

    fn records(&self) -> u64 {
        self.database.status().records
    }
}

#[test]
fn planned_flush_outlives_a_checkpoint_and_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let (place, left) = (folder.path().join("x.tree"), folder.path().join("left.tree"));
    let tree = open(&place);
    tree.set(b"a");
    tree.run(Operation::Flush { at: Ttl::Seconds(3600) });
    let log = tree.database.log().unwrap();
    log.sync_to(log.end()).unwrap();
    tree.directory.checkpoint(&tree.database).unwrap();
    copy(&place, &left);

    let tree = open(&left);
    assert_eq!(tree.records(), 1);
    tree.clock.advance(3599);
    tree.database.maintain();
    assert_eq!(tree.records(), 1);
    tree.clock.advance(1);
    tree.database.maintain();
    assert_eq!(tree.records(), 0);
}

const LOG: &str = "/data";

fn tree_with_front(folder: &Path, front_bytes: u64) -> Database {
    let options = DiskTreeOptions { spills: false, front_bytes, ..DiskTreeOptions::default() };
    let engine = DiskTree::open(folder, options).unwrap();
    Database::new(Box::new(engine), Arc::new(ManualClock::new(UnixSeconds(START))))
}

/// Replays the log of this disk into a database. Stops early if `breaks` is true.
fn restore(disk: &CrashDisk, database: &Database, breaks: bool) -> todana_core::Result<DataDirectory> {
    let directory = DataDirectory::open(Arc::new(disk.clone()), Path::new(LOG)).unwrap();
    let log = LogOptions { sync: SyncPolicy::Never, ..LogOptions::default() };
    let options = DataOptions { log, ..DataOptions::default() };
    let clock = Arc::new(ManualClock::new(UnixSeconds(START)));
    let flow = if breaks { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
    directory.restore_unless(database, clock, &options, &mut |_| flow).map(|_| directory)
}

#[test]
fn tree_never_outruns_its_log() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name);
    // Written, but not synced.
    let disk = CrashDisk::new();
    let database = tree_with_front(&place("first"), 1 << 30);
    let _directory = restore(&disk, &database, false).unwrap();
    let worker_counters = database.worker_counters();
    for n in 0..3000 {
        let key = format!("k{n}");
        let store = Store { key: key.as_bytes(), value: &[b'v'; 1000], ..Store::default() };
        database.execute(&worker_counters, &Operation::Store(store), &mut |_| ());
    }
    let log = database.log().unwrap();
    while log.written() < log.end() {
        std::thread::yield_now();
    }
    disk.stop();

    // The next process writes a checkpoint while it reads, and ends immediately.
    let disk = CrashDisk::with(disk.state());
    let tree = tree_with_front(&place("second"), 256 << 10);
    restore(&disk, &tree, true).map(|_| ()).unwrap_err();
    disk.stop();
    drop(tree);
    let kept = tree_with_front(&place("second"), 1 << 30).status().records;
    assert!(kept > 100, "{kept} records in the tree");
    for seed in 0..16 {
        let database = tree_with_front(&place(&format!("after {seed}")), 1 << 30);
        let disk = CrashDisk::with(disk.state().reboot(seed));
        let _directory = restore(&disk, &database, false).unwrap();
        let reported = database.status().records;
        assert!(reported >= kept, "seed {seed}: {reported} records in the log, {kept} in the tree");
    }
}
