//! The contents of a data directory are restored when it is opened again.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Barrier};
use std::time::Duration;
use todana::disk::SystemDisk;
use todana::update_log::{LogOptions, LogTail, SyncPolicy};
use todana::{Clock, DataDirectory, DataOptions, Database, ManualClock, OpeningReport, WorkerCounters};
use todana_core::{
    Arithmetic, ArithmeticDirection, Attributes, Delete, ErrorKind, Get, MemoryLimit, Operation, ReplyNeeds,
    Store, StoreMode, Touch, Ttl, UnixSeconds, WhenFull,
};
use todana_engine::{MemHash, MemHashOptions};

type StoredRecords = BTreeMap<Vec<u8>, (Vec<u8>, Attributes)>;

struct OpenedDirectory {
    database: Database,
    worker_counters: Arc<WorkerCounters>,
    clock: Arc<ManualClock>,
    opened: OpeningReport,
    // This is dropped last, because the lock must outlive the log.
    _directory: DataDirectory,
}

fn open(path: &Path, now: u64, sync: SyncPolicy) -> OpenedDirectory {
    let clock = Arc::new(ManualClock::new(UnixSeconds(now)));
    let engine = MemHash::new(MemHashOptions::default()).unwrap();
    let database = Database::new(Box::new(engine), Arc::clone(&clock) as Arc<dyn Clock>);
    let directory = DataDirectory::open(Arc::new(SystemDisk), path).unwrap();
    let options = DataOptions { log: LogOptions { sync, ..LogOptions::default() }, ..DataOptions::default() };
    let opened =
        directory.restore(&database, Arc::clone(&clock) as Arc<dyn Clock>, &options, &mut |_| ()).unwrap();
    let worker_counters = database.worker_counters();
    OpenedDirectory { database, worker_counters, clock, opened, _directory: directory }
}

impl OpenedDirectory {
    fn run(&self, command: Operation<'_>) -> String {
        let mut answer = String::new();
        self.database.execute(&self.worker_counters, &command, &mut |reply| answer = format!("{reply:?}"));
        answer
    }

    fn set(&self, key: &[u8], value: &[u8]) {
        let answer = self.run(Operation::Store(Store { key, value, ..Store::default() }));
        assert!(answer.starts_with("Stored"), "{answer}");
    }

    fn records(&self) -> StoredRecords {
        let mut records = StoredRecords::new();
        let mut place = None;
        loop {
            let scan = self.database.engine().scan(place, &mut |key, record| {
                records.insert(key.to_vec(), (record.value.to_vec(), record.attributes));
                ControlFlow::Continue(())
            });
            place = scan.unwrap();
            if place.is_none() {
                return records;
            }
        }
    }
}

#[test]
fn every_kind_of_change_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let before = open(folder.path(), 1_000, SyncPolicy::Every(Duration::from_secs(1)));
    assert_eq!((before.opened.entries, before.opened.end.0), (0, 0));
    before.set(b"plain", b"value");
    before.set(b"", b"");
    before.set(b"gone", b"soon");
    before.set(b"long", &vec![b'l'; 300_000]);
    before.run(Operation::Store(Store {
        key: b"tagged",
        value: b"v",
        flags: 42,
        ttl: Ttl::Seconds(100),
        needs: ReplyNeeds { version: true, ..ReplyNeeds::default() },
        ..Store::default()
    }));
    before.run(Operation::Store(Store {
        key: b"sliding",
        value: b"s",
        ttl: Ttl::Sliding(60),
        ..Store::default()
    }));
    before.run(Operation::Delete(Delete { key: b"gone", ..Delete::default() }));
    let append = StoreMode::Append;
    before.run(Operation::Store(Store { key: b"plain", value: b"+", mode: append, ..Store::default() }));
    before.run(Operation::Store(Store { key: b"long", value: b"+", mode: append, ..Store::default() }));
    before.set(b"number", b"41");
    before.run(Operation::Arithmetic(Arithmetic {
        key: b"number",
        direction: ArithmeticDirection::Increment,
        delta: 1,
        ..Arithmetic::default()
    }));
    before.run(Operation::Touch(Touch { key: b"number", ttl: Ttl::Seconds(500) }));
    // An access moves the expiry of the first record. The second record keeps the version that was
    // shown.
    before.clock.advance(30);
    before.run(Operation::Get(Get { key: b"sliding", ..Get::default() }));
    let needs = ReplyNeeds { version: true, ..ReplyNeeds::default() };
    before.run(Operation::Get(Get { key: b"plain", needs, ..Get::default() }));
    let records = before.records();
    assert_eq!(records.len(), 6);
    assert_eq!(records[&b"sliding"[..]].1.expiry.at(), Some(UnixSeconds(1_090)));
    before.database.log().unwrap().close().unwrap();
    drop(before);

    let after = open(folder.path(), 1_040, SyncPolicy::Always);
    assert_eq!(after.opened.tail, LogTail::Clean);
    assert_eq!(after.records(), records);
    // A version that is shown now was never shown before.
    let shown = after.run(Operation::Store(Store { key: b"new", value: b"n", needs, ..Store::default() }));
    let version: u64 = shown.split("version: ").nth(1).unwrap().split(',').next().unwrap().parse().unwrap();
    assert!(version > records.values().map(|(_, attributes)| attributes.version).max().unwrap() + (1 << 31));
}

#[test]
fn flush_and_planned_flush_are_restored() {
    let folder = tempfile::tempdir().unwrap();
    let first = open(folder.path(), 1_000, SyncPolicy::Never);
    first.set(b"a", b"1");
    first.run(Operation::Flush { at: Ttl::Expired });
    first.set(b"b", b"2");
    first.run(Operation::Flush { at: Ttl::Seconds(60) });
    drop(first);
    let second = open(folder.path(), 1_059, SyncPolicy::Never);
    assert_eq!(second.records().into_keys().collect::<Vec<_>>(), [b"b"]);
    second.clock.advance(1);
    assert_eq!(second.run(Operation::Get(Get { key: b"b", ..Get::default() })), "Miss");
    second.set(b"c", b"3");
    drop(second);
    let third = open(folder.path(), 1_061, SyncPolicy::Never);
    assert_eq!(third.records().into_keys().collect::<Vec<_>>(), [b"c"]);
    third.clock.advance(1_000);
    assert_ne!(third.run(Operation::Get(Get { key: b"c", ..Get::default() })), "Miss");
}

#[test]
fn second_process_gets_busy() {
    let folder = tempfile::tempdir().unwrap();
    let _first = open(folder.path(), 1, SyncPolicy::Never);
    let second = DataDirectory::open(Arc::new(SystemDisk), folder.path());
    let error = second.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(error.to_string().contains("is open in another process"), "{error}");
}

#[test]
fn sync_policy_decides_when_a_change_is_durable() {
    let folder = tempfile::tempdir().unwrap();
    let opening = open(folder.path(), 1, SyncPolicy::Always);
    opening.set(b"k", b"v");
    let log = opening.database.log().unwrap();
    log.wait(log.end()).unwrap();
    assert!(log.synced() >= log.end());
    drop(opening);
    let opening = open(folder.path(), 1, SyncPolicy::Every(Duration::from_secs(3600)));
    opening.set(b"k", b"w");
    let log = opening.database.log().unwrap();
    assert!(log.is_durable(log.end()) && log.synced() < log.end());
    log.sync_to(log.end()).unwrap();
    assert!(log.synced() >= log.end());
}

/// One sync serves all clients that will probably send again, but it does not wait for them
/// forever.
#[test]
fn writes_together_with_ended_threads_become_durable() {
    let folder = tempfile::tempdir().unwrap();
    let opening = open(folder.path(), 1, SyncPolicy::Always);
    let (opening, log) = (&opening, opening.database.log().unwrap());
    for together in [8, 1, 3, 1] {
        let all = Barrier::new(together);
        std::thread::scope(|scope| {
            for key in 0..together {
                let all = &all;
                scope.spawn(move || {
                    let worker_counters = opening.database.worker_counters();
                    for _ in 0..20 {
                        all.wait();
                        let store = Store { key: &key.to_le_bytes(), value: b"v", ..Store::default() };
                        let point =
                            opening.database.execute(&worker_counters, &Operation::Store(store), &mut |_| ());
                        log.wait(point.into()).unwrap();
                        assert!(log.synced() >= point.into());
                    }
                });
            }
        });
    }
}

#[test]
fn segments_follow_one_another_and_all_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let count = || std::fs::read_dir(folder.path().join("log")).unwrap().count();
    let opening = open(folder.path(), 1, SyncPolicy::Never);
    for n in 0..10u32 {
        opening.set(b"k", &n.to_le_bytes());
        opening.database.log().unwrap().rotate().unwrap();
    }
    let segments = count();
    assert!(segments >= 10, "{segments}");
    let records = opening.records();
    drop(opening);
    let opening = open(folder.path(), 1, SyncPolicy::Never);
    assert_eq!(opening.records(), records);
    // A segment without entries is replaced.
    drop(opening);
    let segments = count();
    drop(open(folder.path(), 1, SyncPolicy::Never));
    assert!(count() <= segments + 1);
}

/// Several threads replay the log: changes of one key, and changes that concern all keys, keep
/// their order.
#[test]
fn long_history_is_restored_to_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let before = open(folder.path(), 1_000, SyncPolicy::Never);
    for n in 0..60_000u32 {
        let key = (n.wrapping_mul(2_654_435_761) >> 23).to_le_bytes();
        match n % 11 {
            0 => drop(before.run(Operation::Delete(Delete { key: &key, ..Delete::default() }))),
            1 => drop(before.run(Operation::Touch(Touch { key: &key, ttl: Ttl::Seconds(n) }))),
            _ => before.set(&key, format!("{n:0width$}", width = n as usize % 50).as_bytes()),
        }
        match n {
            // Some keys are written neither after a clear nor after a long value.
            20_000 | 59_000 => drop(before.run(Operation::Flush { at: Ttl::Expired })),
            30_000 | 59_500 => before.set(&key, &vec![b'l'; 100_000]),
            59_990 => drop(before.run(Operation::Flush { at: Ttl::Seconds(60) })),
            _ => {}
        }
    }
    let records = before.records();
    assert!((100..512).contains(&records.len()), "{}", records.len());
    drop(before);
    let after = open(folder.path(), 1_000, SyncPolicy::Never);
    assert_eq!(after.records(), records);
    assert!(after.opened.entries > 58_000, "{}", after.opened.entries);
    after.clock.advance(60);
    after.run(Operation::Get(Get { key: b"k", ..Get::default() }));
    assert_eq!(after.records(), StoredRecords::new());
}

#[test]
fn log_exceeding_memory_is_refused_without_eviction() {
    let folder = tempfile::tempdir().unwrap();
    let before = open(folder.path(), 1_000, SyncPolicy::Never);
    for n in 0..40_000u32 {
        before.set(&n.to_le_bytes(), &[b'v'; 200]);
    }
    drop(before);
    let limit = MemoryLimit { bytes: Some(4 << 20), when_full: WhenFull::Refuse };
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::new(UnixSeconds(1_000)));
    let engine = MemHash::new(MemHashOptions { limit, ..MemHashOptions::default() }).unwrap();
    let database = Database::new(Box::new(engine), Arc::clone(&clock));
    let directory = DataDirectory::open(Arc::new(SystemDisk), folder.path()).unwrap();
    let error = directory.restore(&database, clock, &DataOptions::default(), &mut |_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert!(database.log().is_none());
}
