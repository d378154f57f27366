//! If a change cannot be stored, the existing record stays unchanged, whichever engine refuses the
//! change and for any reason.
//!
//! A hash on disk once refused a `set` because no further segment could be created (no inode, a
//! quota, too many open files, a read-only file system). The old record was then removed:
//! memcached's rule for a cache was applied to every refusal and every engine, and the short entry
//! of the removal still fitted into the last segment. In that way all of 1,000 records were lost,
//! and neither health nor counters nor the log reported anything.

use crate::crash_disk;
use crate::kept;

use crash_disk::{CrashDisk, Op};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use todana::update_log::{DurabilityHealth, SyncPolicy};
use todana::{Database, ManualClock, WorkerCounters};
use todana_core::{
    Arithmetic, Delete, DurableEngine, ErrorKind, Get, MemoryLimit, Operation, RefusalReason, RefusedStore,
    Reply, Store, StoreMode, Touch, Ttl, UnixSeconds, WhenFull,
};
use todana_engine::{DiskHash, DiskHashOptions, MemHash, MemHashOptions};

const NOW: u64 = 1_700_000_000;
/// This number of records fills most of the first segment.
const RECORDS: usize = 100;
/// ENOSPC, EDQUOT, EMFILE, ENFILE, EROFS, EACCES, EIO.
const CAUSES: [i32; 7] = [28, 122, 24, 23, 30, 13, 5];

struct LimitedHash {
    disk: CrashDisk,
    database: Database,
    worker_counters: Arc<WorkerCounters>,
}

fn open_hash(disk: &CrashDisk) -> LimitedHash {
    let options =
        DiskHashOptions { disk: Arc::new(disk.clone()), reserve_bytes: 0, ..DiskHashOptions::default() };
    let engine = DiskHash::open(Path::new("/data"), options).unwrap();
    let clock = Arc::new(ManualClock::new(UnixSeconds(NOW)));
    let database = Database::new(Box::new(engine), clock).with_engine_sync(SyncPolicy::Always);
    let worker_counters = database.worker_counters();
    LimitedHash { disk: disk.clone(), database, worker_counters }
}

fn key(number: usize) -> Vec<u8> {
    format!("user{number}").into_bytes()
}

fn value(number: usize) -> Vec<u8> {
    format!("{number} precious ").repeat(800).into_bytes()
}

impl LimitedHash {
    /// Creates a database with little space left in its first segment.
    fn with_records() -> LimitedHash {
        let hash = open_hash(&CrashDisk::new());
        for number in 0..RECORDS {
            assert_eq!(hash.set(&key(number), &value(number)), "Stored");
        }
        hash.files().sync().unwrap();
        hash
    }

    fn files(&self) -> &dyn DurableEngine {
        self.database.engine().durable().unwrap()
    }

    fn run(&self, command: Operation<'_>) -> String {
        let mut answer = String::new();
        self.database.execute(&self.worker_counters, &command, &mut |reply| {
            answer = match reply {
                Reply::Stored(_) => "Stored".into(),
                other => format!("{other:?}"),
            }
        });
        answer
    }

    fn set(&self, key: &[u8], value: &[u8]) -> String {
        self.run(Operation::Store(Store { key, value, ..Store::default() }))
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
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

    /// Runs maintenance several times.
    fn run_upkeep(&self) {
        for _ in 0..100 {
            self.database.maintain();
        }
    }
}

/// Returns true for the operations that must fail.
type FailingOperations = fn(&Op) -> bool;

#[test]
fn records_stay_when_a_file_refuses_writes() {
    let places: [(&str, FailingOperations); 3] = [
        ("a segment is created", |op| matches!(op, Op::Create { .. })),
        ("a long value is written", |op| matches!(op, Op::Write { bytes, .. } if bytes.len() > 100_000)),
        ("anything is created or written", |op| matches!(op, Op::Create { .. } | Op::Write { .. })),
    ];
    let long = vec![b'n'; 200_000];
    for (place, is_here) in places {
        for cause in CAUSES {
            let story = format!("{place}, error {cause}");
            let hash = LimitedHash::with_records();
            let fails = Arc::new(AtomicBool::new(true));
            let goes_on = Arc::clone(&fails);
            hash.disk.fault(move |op| match goes_on.load(Ordering::SeqCst) && is_here(op) {
                true => Err(io::Error::from_raw_os_error(cause)),
                false => Ok(()),
            });
            let store = |mode, compare| {
                Operation::Store(Store { key: b"user7", value: &long, mode, compare, ..Store::default() })
            };
            let modes = [StoreMode::Set, StoreMode::Replace, StoreMode::Append, StoreMode::Prepend];
            for (count, mode) in modes.into_iter().enumerate() {
                assert_eq!(hash.run(store(mode, None)), "Refused(FilesUnwritable)", "{story}, {mode:?}");
                assert_eq!(hash.database.counters().log_refusals, count as u64 + 1, "{story}, {mode:?}");
            }
            for number in (0..RECORDS).step_by(9) {
                assert_eq!(hash.set(&key(number), &long), "Refused(FilesUnwritable)", "{story}");
                assert_eq!(hash.get(&key(number)), Some(value(number)), "{story}");
            }
            let why = hash.files().refused_write_error().unwrap();
            assert!(why.is_refused_write() && why.to_string().starts_with("/data/"), "{story}: {why}");
            hash.run_upkeep();
            assert!(hash.files().refused_write_error().is_some(), "{story}: it has not been mended");

            fails.store(false, Ordering::SeqCst);
            hash.run_upkeep();
            assert_eq!(hash.files().refused_write_error(), None, "{story}");
            assert_eq!(hash.set(&key(0), &long), "Stored", "{story}");
            hash.files().sync().unwrap();
            let state = hash.disk.state().reboot(3);
            let again = open_hash(&CrashDisk::with(state));
            assert_eq!(again.get(&key(0)), Some(long.clone()), "{story}");
            for number in 1..RECORDS {
                assert_eq!(again.get(&key(number)), Some(value(number)), "{story}, after a restart");
            }
        }
    }
}

#[test]
fn failed_change_leaves_the_record() {
    let hash = LimitedHash::with_records();
    assert_eq!(hash.set(b"count", b"41"), "Stored");
    // More bytes wait than may, so even a short change must write them first, and cannot.
    hash.disk.limit(0);
    for filler in [vec![b'f'; 60_000], vec![b'f']] {
        let mut fillers = 0;
        while hash.set(format!("f{fillers}").as_bytes(), &filler) == "Stored" {
            fillers += 1;
            assert!(fillers < 100_000, "it is never refused");
        }
    }
    let before = hash.database.engine().status().records;
    let refusals = hash.database.counters().log_refusals;
    let changes = [
        Operation::Delete(Delete { key: b"user1", ..Delete::default() }),
        Operation::Touch(Touch { key: b"user1", ttl: Ttl::Seconds(60) }),
        Operation::Arithmetic(Arithmetic { key: b"count", delta: 1, ..Arithmetic::default() }),
        Operation::Store(Store { key: b"user1", value: b"short", ..Store::default() }),
        Operation::Flush { at: Ttl::Never },
    ];
    for command in changes {
        assert_eq!(hash.run(command), "Refused(FilesUnwritable)", "{command:?}");
        assert_eq!(hash.get(b"user1"), Some(value(1)), "{command:?}");
        assert_eq!(hash.get(b"count").as_deref(), Some(&b"41"[..]), "{command:?}");
    }
    assert_eq!(hash.database.engine().status().records, before);
    assert_eq!(hash.database.counters().log_refusals, refusals + changes.len() as u64);
}

#[test]
fn refused_batch_changes_nothing() {
    let hash = LimitedHash::with_records();
    hash.disk.fault(|op| match op {
        Op::Create { .. } => Err(io::ErrorKind::StorageFull.into()),
        _ => Ok(()),
    });
    let long = vec![b'n'; 200_000];
    let put = |value| todana_core::Action::Put(todana_core::Record::new(value, Default::default()));
    let (first, second) = (key(1), key(2));
    let error =
        hash.files().apply(&[(&first, put(&long)), (&second, todana_core::Action::Remove)]).unwrap_err();
    assert_eq!((error.kind(), error.is_refused_write()), (ErrorKind::Full, true));
    assert_eq!(hash.get(&first), Some(value(1)));
    assert_eq!(hash.get(&second), Some(value(2)));
    assert_eq!(hash.files().refused_write_error(), Some(error));
}

/// If a value is too long, or there is no memory for it, the codec refuses it before the engine
/// sees it.
#[test]
fn too_long_value_removes_nothing_on_disk() {
    let refused = |refusal| {
        let (value_len, mode) = (1 << 30, StoreMode::Set);
        Operation::RefusedStore(RefusedStore {
            key: b"user3",
            value_len,
            flags: 0,
            mode,
            compares: false,
            discards: true,
            refusal,
        })
    };
    let hash = LimitedHash::with_records();
    let kept = kept::open(&CrashDisk::new(), NOW, kept::options(SyncPolicy::Always)).unwrap();
    kept.set(b"user3", b"precious");
    for refusal in [RefusalReason::TooLarge, RefusalReason::OutOfMemory] {
        assert_eq!(hash.run(refused(refusal)), format!("Refused({refusal:?})"));
        assert_eq!(hash.get(b"user3"), Some(value(3)));
        assert_eq!(kept.run(refused(refusal)), format!("Refused({refusal:?})"));
        assert_eq!(kept.get(b"user3").as_deref(), Some(&b"precious"[..]));
    }
}

#[test]
fn full_memory_keeps_logged_records() {
    let fill = |database: &Database, worker_counters: &WorkerCounters| {
        let limit = MemoryLimit { bytes: Some(2 << 20), when_full: WhenFull::Refuse };
        database.engine().bounded().unwrap().set_limit(limit);
        for number in 0.. {
            let mut is_refused = false;
            let (key, value) = (format!("filler{number}"), [b'f'; 500]);
            let store = Store { key: key.as_bytes(), value: &value, ..Store::default() };
            database.execute(worker_counters, &Operation::Store(store), &mut |reply| {
                is_refused = matches!(reply, Reply::Refused(RefusalReason::OutOfMemory));
            });
            if is_refused {
                return;
            }
        }
    };
    let long = vec![b'n'; 60_000];
    let kept = kept::open(&CrashDisk::new(), NOW, kept::options(SyncPolicy::Never)).unwrap();
    kept.set(b"user", b"precious");
    fill(&kept.database, &kept.worker_counters);
    assert_eq!(kept.set(b"user", &long), "Refused(OutOfMemory)");
    assert_eq!(kept.get(b"user").as_deref(), Some(&b"precious"[..]));

    // A cache does as memcached does: a value that the client believes to be replaced cannot be
    // read again.
    let engine = MemHash::new(MemHashOptions { shards: Some(1), ..MemHashOptions::default() }).unwrap();
    let cache = Database::new(Box::new(engine), Arc::new(ManualClock::new(UnixSeconds(NOW))));
    let worker_counters = cache.worker_counters();
    let run = |command: Operation<'_>| {
        let mut answer = String::new();
        cache.execute(&worker_counters, &command, &mut |reply| answer = format!("{reply:?}"));
        answer
    };
    run(Operation::Store(Store { key: b"user", value: b"precious", ..Store::default() }));
    fill(&cache, &worker_counters);
    let store = Store { key: b"user", value: &long, ..Store::default() };
    assert_eq!(run(Operation::Store(store)), "Refused(OutOfMemory)");
    assert_eq!(run(Operation::Get(Get { key: b"user", ..Get::default() })), "Miss");
}

/// Several writers wait for the disk, and the first of them finds that it fails. A later sync might
/// succeed, but the thread that syncs has ended, so changes must not be accepted again.
#[test]
fn lost_files_stay_lost_for_later_waits() {
    let hash = open_hash(&CrashDisk::new());
    let store = Operation::Store(Store { key: b"a", value: b"1", ..Store::default() });
    let point = hash.database.execute(&hash.worker_counters, &store, &mut |_| ());
    let wait = || hash.database.durability().unwrap().wait(point).map_err(|error| error.kind());
    hash.disk.fault(|op| match op {
        Op::Write { .. } => Err(io::Error::from_raw_os_error(5)),
        _ => Ok(()),
    });
    assert_eq!(wait(), Err(ErrorKind::Unavailable));
    hash.disk.fault(|_| Ok(()));
    assert_eq!(wait(), Err(ErrorKind::Unavailable));
    assert!(matches!(hash.database.durability().unwrap().health(), DurabilityHealth::Lost(_)));
    assert_eq!(hash.set(b"b", b"2"), "Refused(FilesUnwritable)");
}
