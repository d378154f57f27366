//! `restore`, `verify` and `salvage` see every acknowledged write of a killed process, even if its
//! database was not opened since, and they change nothing.
//!
//! They once read only the segments and not the file `recent` beside them. So their results
//! silently lacked the writes that the process had not passed to the system, although the next
//! opening had them. If a hash was salvaged, these writes were lost for good.

use crate::crash_disk;
use crate::folder;
use crate::kept;

use crash_disk::{CrashDisk, State};
use folder::{copy, files};
use kept::{CrashDiskDatabase, DATA, StoredRecords, open, options};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use todana::disk::SystemDisk;
use todana::update_log::{LogOptions, LogTail, SyncPolicy};
use todana::{
    Clock, DataOptions, Database, DatabaseName, Db, DbOptions, ManualClock, Records as _, RestoreOptions,
    SalvageReport, SystemClock, UnixSeconds, restore, salvage, verify,
};
use todana_engine::{MemHash, MemHashOptions};

const NOW: u64 = 1_700_000_000;
const TARGET: &str = "/restored";

fn hourly() -> SyncPolicy {
    SyncPolicy::Every(Duration::from_secs(3600))
}

/// With these options nothing is synced before the close, and there are several segments.
fn unsynced() -> LogOptions {
    LogOptions { segment_len: 3000, ..options(hourly()) }
}

fn acknowledge(kept: &CrashDiskDatabase) {
    kept.log().wait(kept.logged()).unwrap();
}

/// Returns the files of the database except the lock, which is created only to check that the
/// database is closed.
fn source(state: &State) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = state.files();
    files.retain(|path, _| path.starts_with(DATA) && !path.ends_with("lock"));
    files
}

fn empty() -> (Database, Arc<dyn Clock>) {
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::new(UnixSeconds(NOW)));
    let engine = MemHash::new(MemHashOptions { shards: Some(1), ..MemHashOptions::default() }).unwrap();
    (Database::new(Box::new(engine), Arc::clone(&clock)), clock)
}

fn from_data() -> RestoreOptions {
    RestoreOptions { from: DATA.into(), target: TARGET.into(), ..RestoreOptions::default() }
}

/// Returns the records of the restored directory without their versions, which a restored database
/// assigns again.
fn restored(disk: &CrashDisk) -> StoredRecords {
    let moved = disk.state();
    let mut state = CrashDisk::new().state();
    for (path, bytes) in moved.files() {
        if let Ok(rest) = path.strip_prefix(TARGET) {
            state.put(&Path::new(DATA).join(rest), bytes);
        }
    }
    open(&CrashDisk::with(state), NOW, unsynced()).unwrap().records()
}

#[test]
fn restored_directory_has_writes_of_killed_process() {
    let disk = CrashDisk::new();
    let kept = open(&disk, NOW, unsynced()).unwrap();
    for number in 0..150 {
        kept.set(format!("key {}", number % 40).as_bytes(), format!("value {number}").as_bytes());
        acknowledge(&kept);
        if number % 10 != 3 {
            continue;
        }
        let state = disk.state();
        for is_damaged_allowed in [false, true] {
            let killed = CrashDisk::with(state.clone());
            let before = source(&killed.state());
            let (database, clock) = empty();
            let shared = Arc::new(killed.clone());
            let reported = match is_damaged_allowed {
                false => restore(shared, &from_data(), &database, clock, &mut |_| ()).unwrap(),
                true => {
                    let salvaged = salvage(shared, &from_data(), &database, clock, &mut |_| ()).unwrap();
                    assert_eq!(salvaged.damages, []);
                    salvaged.restored
                }
            };
            assert_eq!(
                (reported.position, reported.tail),
                (kept.log().end(), LogTail::Clean),
                "write {number}"
            );
            assert_eq!(restored(&killed), kept.records(), "write {number}");
            assert_eq!(source(&killed.state()), before, "write {number}");
        }
    }
}

#[test]
fn verify_reads_the_writes_of_a_killed_process() {
    let disk = CrashDisk::new();
    let kept = open(&disk, NOW, unsynced()).unwrap();
    for number in 0..60u64 {
        kept.set(format!("key {number}").as_bytes(), b"value");
        acknowledge(&kept);
        let killed = CrashDisk::with(disk.state());
        let before = source(&killed.state());
        let found = verify(Arc::new(killed.clone()), Path::new(DATA), &mut |_| ()).unwrap();
        assert_eq!((found.log.1, found.changes), (kept.log().end(), number + 1));
        assert_eq!((found.tail, found.damages), (LogTail::Clean, Vec::new()));
        assert_eq!(source(&killed.state()), before);
    }
}

/// The log of a killed process continues the log of a backup.
#[test]
fn restore_replays_the_log_of_killed_process() {
    let disk = CrashDisk::new();
    let kept = open(&disk, NOW, LogOptions { segment_len: 1 << 20, ..unsynced() }).unwrap();
    kept.set(b"before", b"1");
    kept.directory.checkpoint(&kept.database).unwrap();
    let mut state = disk.state();
    for (path, bytes) in state.files() {
        if let Ok(rest) = path.strip_prefix(DATA)
            && !rest.ends_with("recent")
        {
            state.put(&Path::new("/earlier").join(rest), bytes);
        }
    }
    disk.damage(|now| *now = state);
    kept.set(b"after", b"2");
    acknowledge(&kept);
    let killed = CrashDisk::with(disk.state());
    let (database, clock) = empty();
    let more = RestoreOptions { from: "/earlier".into(), log: Some(DATA.into()), ..from_data() };
    restore(Arc::new(killed.clone()), &more, &database, clock, &mut |_| ()).unwrap();
    assert_eq!(restored(&killed), kept.records());
}

/// If the last segment is damaged before its end, the entries in the ring are not affected.
#[test]
fn salvaged_log_includes_the_ring() {
    let disk = CrashDisk::new();
    let kept = open(&disk, NOW, LogOptions { segment_len: 1 << 20, ..unsynced() }).unwrap();
    // These are more entries than the ring can hold. Their marks state that all of them are on
    // disk.
    for number in 0..800 {
        kept.set(format!("key {number}").as_bytes(), b"value");
        if number % 50 == 0 {
            kept.log().sync_to(kept.log().end()).unwrap();
        }
    }
    for number in 800..810 {
        kept.set(format!("key {number}").as_bytes(), b"value");
        acknowledge(&kept);
    }
    let mut state = disk.state();
    let (segment, bytes) =
        source(&state).into_iter().find(|(path, _)| path.extension() == Some("log".as_ref())).unwrap();
    // Two changed bits, because a single one is corrected.
    for bit in [0, 1] {
        state.flip(&segment, 900 * 8 + bit);
    }
    assert!(bytes.len() > 2 * 4096);
    let (database, clock) = empty();
    let killed = CrashDisk::with(state);
    let salvaged = salvage(Arc::new(killed.clone()), &from_data(), &database, clock, &mut |_| ()).unwrap();
    assert_eq!(salvaged.damages.len(), 1);
    assert_eq!(salvaged.restored.position, kept.log().end());
    let found = restored(&killed);
    assert!((808..810).contains(&found.len()), "{}", found.len());
    (90..810).for_each(|number| assert!(found.contains_key(format!("key {number}").as_bytes()), "{number}"));
}

/// Creates a database on disk as a killed process leaves it, without any sync.
fn killed(folder: &Path, name: &str, count: usize) -> PathBuf {
    let (place, left) = (folder.join(name), folder.join(format!("left-{name}")));
    let log = LogOptions { sync: hourly(), ..LogOptions::default() };
    let options = DbOptions::default().data_options(DataOptions { log, ..DataOptions::default() });
    let db = options.open(place.to_str().unwrap()).unwrap();
    for number in 0..count {
        db.set(format!("key {number}").as_bytes(), format!("value {number}").as_bytes()).unwrap();
    }
    copy(&place, &left);
    left
}

fn contents(place: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let is_content = |path: &PathBuf| !path.ends_with("lock") && !path.ends_with("tree");
    files(place).into_iter().filter(is_content).map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

fn salvaged(from: &Path, to: &Path) -> (SalvageReport, Db) {
    let options = RestoreOptions { from: from.into(), ..RestoreOptions::default() };
    let name = DatabaseName::parse(to.to_str().unwrap()).unwrap();
    let salvaged =
        salvage(Arc::new(SystemDisk), &options, &name, Arc::new(SystemClock), &mut |_| ()).unwrap();
    (salvaged, Db::open(to.to_str().unwrap()).unwrap())
}

#[test]
fn copy_of_killed_hash_has_every_write() {
    let folder = folder::folder();
    // With these numbers, the segments contain none, some and most of the writes.
    for count in [1, 100, 5000, 20_000] {
        let left = killed(folder.path(), &format!("{count}.hash"), count);
        let before = contents(&left);
        let (found, db) = salvaged(&left, &folder.path().join(format!("new-{count}.hash")));
        assert!(found.damages.is_empty() && found.restored.entries >= count as u64, "{found:?}");
        assert_eq!(db.count(), count as u64);
        for number in 0..count {
            let value = db.get(format!("key {number}").as_bytes()).unwrap();
            assert_eq!(value, Some(format!("value {number}").into_bytes()));
        }
        assert_eq!(contents(&left), before);
    }
}

#[test]
fn salvaged_hash_loses_the_damaged_record_alone() {
    // These are more entries than the ring can hold. In the ring, damaged entries would be found
    // intact.
    const COUNT: usize = 100_000;
    let folder = folder::folder();
    let left = killed(folder.path(), "x.hash", COUNT);
    let segment = left.join("0000000001.segment");
    let mut bytes = fs::read(&segment).unwrap();
    let at = bytes.windows(9).position(|found| found == b"value 77\0").unwrap();
    (bytes[at + 2], bytes[at + 4]) = (b'?', b'?');
    fs::write(&segment, bytes).unwrap();
    let (found, db) = salvaged(&left, &folder.path().join("new.hash"));
    assert!(!found.damages.is_empty());
    for number in 0..COUNT {
        let value = db.get(format!("key {number}").as_bytes()).unwrap();
        assert_eq!(value, (number != 77).then(|| format!("value {number}").into_bytes()), "{number}");
    }
}

#[test]
fn killed_tree_log_is_read_to_its_end() {
    let folder = folder::folder();
    let left = killed(folder.path(), "x.tree", 300);
    let log = |left: &Path| -> Vec<(PathBuf, Vec<u8>)> { contents(&left.join("log")) };
    let before = log(&left);
    let (found, db) = salvaged(&left, &folder.path().join("new.tree"));
    assert!(found.damages.is_empty(), "{found:?}");
    assert_eq!((log(&left), db.count()), (before, 300));
}
