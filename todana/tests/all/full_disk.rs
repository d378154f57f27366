//! A database on a full disk can be opened and read, and accepts removals, which free space.
//!
//! An opening on a full disk was once refused, because each opening creates a segment, so that not
//! even reads were possible. `delete` and `flush` were refused as well, because the log entry of a
//! removal needs space, too. Only other programs could free space.

use crate::crash_disk;
use crate::kept;

use crash_disk::{CrashDisk, Op};
use kept::{CrashDiskDatabase, open, open_with};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use todana::checkpoint::CheckpointOptions;
use todana::update_log::{DurabilityHealth, LogOptions, SyncPolicy};
use todana::{DataOptions, Database, ManualClock};
use todana_core::{Delete, DurableEngine, Get, Operation, Reply, Store, Touch, Ttl, UnixSeconds};
use todana_engine::disk::Disk;
use todana_engine::reserve::RESERVE;
use todana_engine::{DiskHash, DiskHashOptions};

const NOW: u64 = 1_700_000_000;
const RESERVE_BYTES: u64 = 64 << 10;
const REFUSED: &str = "Refused(LogUnwritable)";
const MODES: [SyncPolicy; 3] =
    [SyncPolicy::Always, SyncPolicy::Every(Duration::from_millis(5)), SyncPolicy::Never];

fn options(sync: SyncPolicy) -> LogOptions {
    LogOptions { reserve_bytes: RESERVE_BYTES, ..kept::options(sync) }
}

fn key(number: usize) -> Vec<u8> {
    format!("user{number}").into_bytes()
}

fn delete(key: &[u8]) -> Operation<'_> {
    Operation::Delete(Delete { key, ..Delete::default() })
}

fn is_well(kept: &CrashDiskDatabase) -> bool {
    kept.log().health() == DurabilityHealth::Well
}

/// Waits until the log accepts all changes again.
fn recover(kept: &CrashDiskDatabase) {
    let (sender, reported) = std::sync::mpsc::channel();
    kept.log().on_progress(move || {
        let _ = sender.send(());
    });
    while !is_well(kept) {
        reported.recv().unwrap();
    }
}

/// Stores records until one is refused. Returns their number.
fn fill(kept: &CrashDiskDatabase) -> usize {
    for number in 0.. {
        let stored = kept.set(&key(number), &[b'v'; 400]);
        // The sync writes everything now, so that the disk is really full.
        let _ = kept.log().sync_to(kept.log().end());
        if stored == REFUSED {
            return number;
        }
    }
    unreachable!("it is never refused")
}

#[test]
fn full_disk_takes_removals_and_refuses_all_else() {
    for sync in MODES {
        let disk = CrashDisk::new();
        let kept = open(&disk, NOW, options(sync)).unwrap();
        disk.limit(disk.used() + 20_000);
        let records = fill(&kept);
        assert!(records > 30, "{records}");
        assert!(!is_well(&kept) && !kept.database.takes_changes());
        // The change during which the disk became full is kept, in the space of the reserve.
        for number in 0..records {
            assert_eq!(kept.get(&key(number)), Some(vec![b'v'; 400]));
        }
        let refusals = kept.database.counters().log_refusals;
        assert_eq!(kept.set(&key(0), b"new"), REFUSED);
        assert_eq!(kept.run(Operation::Touch(Touch { key: b"user0", ttl: Ttl::Seconds(60) })), REFUSED);
        let emptied = Operation::Delete(Delete { key: b"user0", drop_value: true, ..Delete::default() });
        assert_eq!(kept.run(emptied), REFUSED);
        assert_eq!(kept.database.counters().log_refusals, refusals + 3);
        for number in 0..records / 2 {
            assert_eq!(kept.run(delete(&key(number))), "Deleted");
        }
        assert_eq!(kept.run(delete(b"nobody")), "NotFound");
        kept.log().sync_to(kept.log().end()).unwrap();
        let state = kept.disk.state().reboot(1);
        kept.kill();
        let again = open(&CrashDisk::with(state), NOW, options(sync)).unwrap();
        assert_eq!(again.records().len(), records - records / 2);
        again.kill();
    }
}

#[test]
fn flush_on_a_full_disk_frees_space() {
    let disk = CrashDisk::new();
    let checkpoints = CheckpointOptions { log_len_min: 1 << 30, ..CheckpointOptions::default() };
    let wanted = DataOptions { log: options(SyncPolicy::Always), checkpoints };
    let kept = open_with(&disk, NOW, wanted).unwrap();
    disk.limit(disk.used() + 20_000);
    fill(&kept);
    assert_eq!(kept.run(Operation::Flush { at: Ttl::Never }), "Done");
    kept.log().wait(kept.log().end()).unwrap();
    // Even if the log has hardly grown.
    assert!(kept.directory.is_checkpoint_due(&kept.database));
    kept.directory.checkpoint(&kept.database).unwrap();
    assert!(!kept.directory.is_checkpoint_due(&kept.database));
    recover(&kept);
    assert!(kept.set(b"after", b"v").starts_with("Stored"));
    kept.log().wait(kept.log().end()).unwrap();
    let state = kept.disk.state().reboot(2);
    kept.kill();
    let again = open(&CrashDisk::with(state), NOW, options(SyncPolicy::Always)).unwrap();
    assert_eq!(again.records().len(), 1);
    again.kill();
}

#[test]
fn checkpoint_replaces_the_spare_on_full_disk() {
    let disk = CrashDisk::new();
    let kept = open(&disk, NOW, options(SyncPolicy::Always)).unwrap();
    for number in 0..100 {
        kept.set(&key(number), format!("{number}").repeat(200).as_bytes());
    }
    let checkpoints = |disk: &CrashDisk| {
        let files = disk.state().files();
        files.keys().filter(|path| path.extension().is_some_and(|is| is == "checkpoint")).count()
    };
    for _ in 0..2 {
        kept.set(b"more", b"m");
        kept.directory.checkpoint(&kept.database).unwrap();
    }
    assert_eq!(checkpoints(&disk), 2);
    kept.set(b"more", b"n");
    kept.log().wait(kept.log().end()).unwrap();
    disk.limit(disk.used() + 200);
    kept.directory.checkpoint(&kept.database).unwrap();
    assert_eq!(checkpoints(&disk), 2);
    let state = kept.disk.state().reboot(2);
    kept.kill();
    let again = open(&CrashDisk::with(state), NOW, options(SyncPolicy::Always)).unwrap();
    assert_eq!(again.records().len(), 101);
    again.kill();
}

#[test]
fn full_disk_allows_opening_and_removals() {
    for is_closed in [true, false] {
        let disk = CrashDisk::new();
        let kept = open(&disk, NOW, options(SyncPolicy::Always)).unwrap();
        for number in 0..50 {
            kept.set(&key(number), &[b'v'; 400]);
        }
        kept.log().wait(kept.log().end()).unwrap();
        if is_closed {
            kept.log().close().unwrap();
        }
        kept.kill();
        let disk = CrashDisk::with(disk.state());
        assert!(disk.state().has_name(&Path::new(kept::DATA).join(RESERVE)));
        disk.limit(disk.used());
        // The second opening finds the remains of the first one.
        for opening in 0..3 {
            let kept = open(&disk, NOW, options(SyncPolicy::Always)).unwrap();
            assert_eq!(kept.records().len(), 50 - opening);
            // The first opening may have left a part of the reserve.
            let is_refused = |_: &usize| {
                let stored = kept.set(b"more", &[b'v'; 400]);
                let _ = kept.log().sync_to(kept.log().end());
                stored == REFUSED
            };
            (0..1_000).find(is_refused).expect("it is refused");
            assert!(!is_well(&kept));
            assert_eq!(kept.run(delete(b"more")), "Deleted");
            assert_eq!(kept.run(delete(&key(opening))), "Deleted");
            kept.log().wait(kept.log().end()).unwrap();
            kept.kill();
            disk.come_up(None);
        }
        disk.heal();
        let kept = open(&disk, NOW, options(SyncPolicy::Always)).unwrap();
        assert!(is_well(&kept) && kept.set(b"new", b"v").starts_with("Stored"));
        kept.kill();
    }
}

#[test]
fn log_continues_without_a_new_segment() {
    // ENOSPC (of inodes), EMFILE, EDQUOT.
    for cause in [28, 24, 122] {
        let disk = CrashDisk::new();
        let kept =
            open(&disk, NOW, LogOptions { segment_len: 1_000, ..options(SyncPolicy::Always) }).unwrap();
        let fails = Arc::new(AtomicBool::new(true));
        let goes_on = Arc::clone(&fails);
        disk.fault(move |op| match op {
            Op::Create { .. } if goes_on.load(Ordering::SeqCst) => Err(io::Error::from_raw_os_error(cause)),
            _ => Ok(()),
        });
        let segments = |disk: &CrashDisk| {
            let files = disk.state().files();
            files.keys().filter(|path| path.extension().is_some_and(|is| is == "log")).count()
        };
        for number in 0..20 {
            assert!(kept.set(&key(number), &[b'v'; 400]).starts_with("Stored"), "error {cause}");
            kept.log().wait(kept.logged()).unwrap();
        }
        assert_eq!((segments(&disk), is_well(&kept)), (1, true));
        // A checkpoint needs a new segment, and reports why there is none.
        let error = kept.directory.checkpoint(&kept.database).unwrap_err();
        assert!(error.to_string().starts_with("update log: cannot begin a segment: "), "{error}");
        assert!(is_well(&kept));
        fails.store(false, Ordering::SeqCst);
        kept.directory.checkpoint(&kept.database).unwrap();
        kept.set(b"more", b"m");
        kept.log().wait(kept.logged()).unwrap();
        assert_eq!(segments(&disk), 2);
        let state = kept.disk.state().reboot(1);
        kept.kill();
        let again = open(&CrashDisk::with(state), NOW, options(SyncPolicy::Always)).unwrap();
        assert_eq!(again.records().len(), 21);
        again.kill();
    }
}

/// If the reserve could not be created, the disk was once treated as full, and every write was
/// refused.
#[test]
fn writes_work_without_a_reserve() {
    // EACCES, EMFILE.
    for cause in [13, 24] {
        let disk = CrashDisk::new();
        disk.fault(move |op| match op {
            Op::Create { path } if path.ends_with(RESERVE) => Err(io::Error::from_raw_os_error(cause)),
            _ => Ok(()),
        });
        let kept = open(&disk, NOW, options(SyncPolicy::Always)).unwrap();
        assert!(is_well(&kept) && kept.set(b"key", b"v").starts_with("Stored"), "error {cause}");
        kept.log().wait(kept.logged()).unwrap();
        kept.kill();
    }
}

/// A segment got its name, but its directory could not be synced, because one descriptor too few
/// was left. The log continued in the segment before it, and the next opening found a gap.
#[test]
fn log_waits_for_a_possibly_named_segment() {
    let disk = CrashDisk::new();
    let options = LogOptions { segment_len: 1_000, ..options(SyncPolicy::Always) };
    let kept = open(&disk, NOW, options).unwrap();
    let fails = Arc::new(AtomicBool::new(true));
    let goes_on = Arc::clone(&fails);
    disk.fault(move |op| match op {
        Op::SyncDirectory { .. } if goes_on.load(Ordering::SeqCst) => Err(io::Error::from_raw_os_error(24)),
        _ => Ok(()),
    });
    let is_kept = |number: &usize| {
        kept.set(&key(*number), &[b'v'; 400]).starts_with("Stored") && kept.log().wait(kept.logged()).is_ok()
    };
    let acknowledged = (0..20).take_while(is_kept).count();
    assert!(acknowledged > 0);
    let again = open(&CrashDisk::with(disk.state()), NOW, options).unwrap();
    assert!((0..acknowledged).all(|number| again.get(&key(number)).is_some()));
    again.kill();
    assert!(acknowledged < 20 && !is_well(&kept));
    fails.store(false, Ordering::SeqCst);
    recover(&kept);
    assert!(is_kept(&20));
    let again = open(&CrashDisk::with(disk.state()), NOW, options).unwrap();
    assert!((0..acknowledged).chain([20]).all(|number| again.get(&key(number)).is_some()));
    again.kill();
    kept.kill();
}

struct LimitedHash {
    disk: CrashDisk,
    database: Database,
}

fn open_hash(disk: &CrashDisk) -> LimitedHash {
    open_hash_with(disk, DiskHashOptions { segment_bytes_min: 16 << 10, ..DiskHashOptions::default() })
}

fn open_hash_with(disk: &CrashDisk, options: DiskHashOptions) -> LimitedHash {
    let options = DiskHashOptions {
        disk: Arc::new(disk.clone()),
        buffer_bytes: 4096,
        recent_bytes: 4096,
        reserve_bytes: RESERVE_BYTES,
        ..options
    };
    let engine = DiskHash::open(Path::new("/data"), options).unwrap();
    let clock = Arc::new(ManualClock::new(UnixSeconds(NOW)));
    LimitedHash {
        disk: disk.clone(),
        database: Database::new(Box::new(engine), clock).with_engine_sync(SyncPolicy::Always),
    }
}

impl LimitedHash {
    fn run(&self, command: Operation<'_>) -> String {
        let mut answer = String::new();
        self.database.execute(&self.database.worker_counters(), &command, &mut |reply| {
            answer = match reply {
                Reply::Stored(_) => "Stored".into(),
                Reply::Hit(hit) => String::from_utf8_lossy(hit.record.value).into_owned(),
                other => format!("{other:?}"),
            }
        });
        answer
    }

    fn set(&self, number: usize) -> String {
        let (key, value) = (key(number), number.to_string().repeat(300));
        self.run(Operation::Store(Store { key: &key, value: value.as_bytes(), ..Store::default() }))
    }

    fn has(&self, number: usize) -> bool {
        let found = self.run(Operation::Get(Get { key: &key(number), ..Get::default() }));
        assert!(found == "Miss" || found == number.to_string().repeat(300), "{found}");
        found != "Miss"
    }

    fn files(&self) -> &dyn DurableEngine {
        self.database.engine().durable().unwrap()
    }

    /// Stores records until one is refused. Returns their number.
    fn fill(&self) -> usize {
        let records = (0..).find(|&number| self.set(number) != "Stored").unwrap();
        self.files().sync().unwrap();
        records
    }

    fn run_upkeep(&self) {
        for _ in 0..100 {
            self.database.maintain();
            self.files().sync().unwrap();
        }
    }
}

#[test]
fn hash_on_full_disk_recovers_by_removals() {
    let hash = open_hash(&CrashDisk::new());
    hash.disk.limit(hash.disk.used() + 200_000);
    let records = hash.fill();
    assert!(records > 100, "{records}");
    let why = hash.files().refused_write_error().unwrap();
    assert!(why.is_refused_write() && why.to_string().contains("the disk is full; only removals"), "{why}");
    assert_eq!(hash.set(0), "Refused(FilesUnwritable)");
    assert!((0..records).all(|number| hash.has(number)));
    for number in 0..records * 3 / 4 {
        assert_eq!(hash.run(delete(&key(number))), "Deleted", "{number}");
    }
    hash.files().sync().unwrap();
    // Compaction also finds its space.
    hash.run_upkeep();
    assert_eq!(hash.files().refused_write_error(), None);
    assert_eq!(hash.set(0), "Stored");
    hash.files().sync().unwrap();
    let again = open_hash(&CrashDisk::with(hash.disk.state().reboot(1)));
    for number in 0..records {
        assert_eq!(again.has(number), number == 0 || number >= records * 3 / 4, "{number}");
    }
}

/// Compaction of segments with much garbage once used up the space of the reserve. Then removals
/// were refused, and the database could not be opened again.
#[test]
fn compaction_leaves_the_reserve_to_removals() {
    let options = DiskHashOptions { segment_bytes_min: 128 << 10, ..DiskHashOptions::default() };
    let open = |disk: &CrashDisk| open_hash_with(disk, options.clone());
    let hash = open(&CrashDisk::new());
    hash.disk.limit(hash.disk.used() + 2_000_000);
    // Half of each segment is garbage.
    let records = (0..).find(|number| (0..2).any(|_| hash.set(*number) != "Stored")).unwrap();
    hash.run_upkeep();
    for number in 0..records / 2 {
        assert_eq!(hash.run(delete(&key(number))), "Deleted", "{number}");
        hash.files().sync().unwrap();
    }
    hash.disk.stop();
    drop(hash.database);
    hash.disk.come_up(None);
    let hash = open(&hash.disk);
    for number in records / 2..records {
        assert!(hash.has(number));
        assert_eq!(hash.run(delete(&key(number))), "Deleted", "{number}");
    }
    hash.run_upkeep();
    assert_eq!(hash.files().refused_write_error(), None);
    assert_eq!(hash.set(0), "Stored");
}

/// The ring of a killed process once took the space that the first segment of an opening needs.
#[test]
fn hash_opens_in_the_space_of_the_ring() {
    let hash = open_hash(&CrashDisk::new());
    (0..50).for_each(|number| assert_eq!(hash.set(number), "Stored"));
    hash.files().sync().unwrap();
    let disk = CrashDisk::with(hash.disk.state());
    disk.remove(&Path::new("/data").join(RESERVE)).unwrap();
    disk.limit(disk.used());
    let hash = open_hash(&disk);
    assert!((0..50).all(|number| hash.has(number)));
    assert_eq!(hash.run(delete(&key(0))), "Deleted");
    hash.files().sync().unwrap();
}

/// The file of an incomplete index once stayed, and each tick tried to write it again.
#[test]
fn index_without_disk_space_is_put_off() {
    let hash =
        open_hash_with(&CrashDisk::new(), DiskHashOptions { checkpoint_bytes: 1, ..Default::default() });
    (0..1000).for_each(|number| assert_eq!(hash.set(number), "Stored"));
    hash.files().sync().unwrap();
    let used = hash.disk.used();
    hash.disk.limit(used + 4096);
    let begun = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&begun);
    hash.disk.fault(move |op| {
        let is_index = matches!(op, Op::Create { path } if path.ends_with("index.partial"));
        count.fetch_add(usize::from(is_index), Ordering::SeqCst);
        Ok(())
    });
    hash.run_upkeep();
    assert_eq!((begun.load(Ordering::SeqCst), hash.disk.used()), (1, used));
    // While the disk is full, not even the close writes an index.
    hash.fill();
    hash.files().close().unwrap();
    assert_eq!(begun.load(Ordering::SeqCst), 1);
}

#[test]
fn hash_on_a_full_disk_is_cleared() {
    let hash = open_hash(&CrashDisk::new());
    hash.disk.limit(hash.disk.used() + 200_000);
    hash.fill();
    assert_eq!(hash.run(Operation::Flush { at: Ttl::Never }), "Done");
    hash.run_upkeep();
    assert_eq!(hash.files().refused_write_error(), None);
    assert_eq!(hash.set(1), "Stored");
    assert_eq!(hash.database.engine().status().records, 1);
}

#[test]
fn hash_opens_on_full_disk_for_removals() {
    for is_closed in [true, false] {
        let hash = open_hash(&CrashDisk::new());
        (0..50).for_each(|number| assert_eq!(hash.set(number), "Stored"));
        hash.files().sync().unwrap();
        if is_closed {
            hash.files().close().unwrap();
        }
        let state = hash.disk.state();
        let disk = CrashDisk::with(state);
        // Removals at the opening do not free enough space for the reserve.
        disk.limit(disk.used() - 5_000);
        for opening in 0..3 {
            let hash = open_hash(&disk);
            (0..50).for_each(|number| assert_eq!(hash.has(number), number >= opening));
            (0..1_000).find(|_| hash.set(49) != "Stored").expect("it is refused");
            assert!(hash.files().refused_write_error().is_some());
            assert_eq!(hash.run(delete(&key(opening))), "Deleted");
            hash.files().sync().unwrap();
            disk.stop();
            drop(hash);
            disk.come_up(None);
        }
        disk.heal();
        let hash = open_hash(&disk);
        assert_eq!(hash.set(0), "Stored");
    }
}
