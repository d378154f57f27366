//! A restoration yields exactly the state at the requested time. Damaged sources are refused, and
//! no files are left.

use crate::folder;

use folder::{FolderDatabase, NOW, disk, drain, empty, files, folder, open, receive};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use todana::{
    Clock, DataDirectory, Db, ManualClock, Records, RestorationReport, RestoreOptions, restore, verify,
};
use todana_core::{ErrorKind, Get, Operation, ReplyNeeds, Result, Ttl, UnixSeconds};

/// The time of the machine's clock, long after the last change.
const LATER: u64 = NOW + 10_000;

fn restored(from: &Path, log: Option<&Path>, until: Option<u64>, target: &Path) -> Result<RestorationReport> {
    restored_at(LATER, from, log, until, target)
}

fn restored_at(
    now: u64,
    from: &Path,
    log: Option<&Path>,
    until: Option<u64>,
    target: &Path,
) -> Result<RestorationReport> {
    let clock = Arc::new(ManualClock::new(UnixSeconds(now)));
    let database = empty(&clock);
    let options = RestoreOptions {
        from: from.into(),
        log: log.map(Into::into),
        until_ms: until.map(|until| until * 1000),
        target: target.into(),
    };
    restore(disk(), &options, &database, clock as Arc<dyn Clock>, &mut |_| ())
}

type StatesBySecond = BTreeMap<u64, BTreeMap<String, String>>;

/// Creates twelve seconds of changes, with a backup in the middle and checkpoints before and after
/// it. Returns the state at each second.
fn history(folder: &Path) -> (FolderDatabase, StatesBySecond) {
    let kept = open(&folder.join("data"), 300);
    let mut moments = StatesBySecond::from([(NOW - 1, BTreeMap::new())]);
    for second in 0..12 {
        for n in 0..3 {
            kept.set(&format!("key {}", (second * 2 + n) % 7), &format!("second {second} {n}"));
        }
        kept.delete(&format!("key {}", second % 5));
        match second {
            8 => {
                kept.flush(Ttl::Never);
                kept.set("behind the clear", "1");
            }
            3 | 10 => drop(kept.directory.checkpoint(&kept.database).unwrap()),
            5 => {
                let stream = drain(kept.start_backup());
                receive(&stream, &folder.join("backup")).unwrap();
            }
            _ => {}
        }
        kept.settle();
        moments.insert(NOW + second, kept.records());
        kept.clock.advance(1);
    }
    (kept, moments)
}

#[test]
fn each_second_is_restored_as_it_was() {
    let folder = folder();
    let (kept, moments) = history(folder.path());
    drop(kept);
    let path = |name: &str| folder.path().join(name);
    for (&second, had) in &moments {
        // The sources are a backup with the log of its database, and the database itself.
        for (from, log) in [("backup", Some("data")), ("backup", Some("data/log")), ("data", None)] {
            let target = path(&format!("{from} {log:?} {second}").replace('/', " "));
            let outcome = restored(&path(from), log.map(path).as_deref(), Some(second), &target);
            if from == "backup" && second < NOW + 5 {
                // The checkpoint of the database is later than this time, and the log before it was
                // removed.
                let error = outcome.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Invalid, "{second}: {error}");
                assert!(error.to_string().contains("does not go back"), "{error}");
                assert!(!target.exists());
                continue;
            }
            if from == "data" && second < NOW + 5 {
                assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Invalid, "{second}");
                continue;
            }
            let outcome = outcome.unwrap();
            assert_eq!(outcome.time_ms, second * 1000, "{from} {log:?}");
            assert_eq!(outcome.records, had.len() as u64);
            assert_eq!(open(&target, 1 << 20).records(), *had, "{from} {log:?} {second}");
        }
    }
}

#[test]
fn restore_reaches_any_time_in_the_log() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    let kept = open(&path("data"), 300);
    let mut moments = StatesBySecond::new();
    for second in 0..4 {
        kept.set(&format!("key {second}"), "1");
        kept.settle();
        moments.insert(NOW + second, kept.records());
        kept.clock.advance(1);
    }
    receive(&drain(kept.start_backup()), &path("backup")).unwrap();
    kept.set("too late", "1");
    drop(kept);
    for (second, had) in moments {
        let target = path(&format!("{second}"));
        restored(&path("data"), None, Some(second), &target).unwrap();
        assert_eq!(open(&target, 1 << 20).records(), had);
    }
    let outcome = restored(&path("backup"), None, None, &path("end")).unwrap();
    assert_eq!(outcome.records, 4);
    assert_eq!(open(&path("end"), 1 << 20).records().len(), 4);
    // With the log of the directory, to its end.
    assert_eq!(restored(&path("backup"), Some(&path("data")), None, &path("more")).unwrap().records, 5);
}

#[test]
fn restored_database_repeats_no_version() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    let kept = open(&path("data"), 1 << 20);
    kept.set("key", "1");
    let version = |kept: &FolderDatabase| {
        let get = Operation::Get(Get {
            key: b"key",
            needs: ReplyNeeds { version: true, ..ReplyNeeds::default() },
            ..Get::default()
        });
        let mut version = 0;
        kept.database.execute(&kept.worker_counters, &get, &mut |reply| {
            if let todana_core::Reply::Hit(hit) = reply {
                version = hit.record.attributes.version;
            }
        });
        version
    };
    receive(&drain(kept.start_backup()), &path("backup")).unwrap();
    // The database is opened several more times, and shows versions each time.
    drop(kept);
    let mut last = 0;
    for _ in 0..3 {
        let kept = open(&path("data"), 1 << 20);
        kept.set("key", "1");
        last = version(&kept);
    }
    let old = DataDirectory::open(disk(), &path("data")).unwrap().identity();
    restored(&path("backup"), Some(&path("data")), Some(NOW), &path("target")).unwrap();
    let kept = open(&path("target"), 1 << 20);
    assert_ne!(kept.directory.identity(), old);
    kept.set("key", "1");
    assert!(version(&kept) > last);
}

#[test]
fn restore_cancels_a_later_planned_clear() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    let kept = open(&path("data"), 1 << 20);
    kept.set("key", "1");
    kept.flush(Ttl::Seconds(5));
    kept.settle();
    kept.clock.advance(3);
    kept.set("other", "1");
    kept.settle();
    drop(kept);
    let outcome = restored(&path("data"), None, Some(NOW + 4), &path("before")).unwrap();
    assert_eq!((outcome.records, outcome.cancelled_clear), (2, Some(UnixSeconds(NOW + 5))));
    assert_eq!(open(&path("before"), 1 << 20).records().len(), 2);
    let outcome = restored(&path("data"), None, Some(NOW + 5), &path("then")).unwrap();
    assert_eq!((outcome.records, outcome.cancelled_clear), (0, None));
    assert_eq!(restored(&path("data"), None, None, &path("end")).unwrap().records, 0);
    // A clear that is not due yet stays planned.
    let outcome = restored_at(NOW + 4, &path("data"), None, None, &path("planned")).unwrap();
    assert_eq!((outcome.records, outcome.cancelled_clear), (2, None));
    let kept = open(&path("planned"), 1 << 20);
    kept.clock.advance(5);
    kept.database.maintain();
    assert_eq!(kept.records().len(), 0);
}

#[test]
fn no_flipped_bit_of_a_backup_is_restored() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    let kept = open(&path("data"), 200);
    for n in 0..5 {
        kept.set(&format!("key {n}"), "value");
        kept.settle();
    }
    let mut backup = kept.start_backup();
    let mut stream = Vec::new();
    backup.next(&mut stream).unwrap();
    kept.set("later", "value");
    while backup.next(&mut stream).unwrap() {}
    receive(&stream, &path("backup")).unwrap();
    for file in files(&path("backup")).iter().filter(|file| !file.ends_with("lock")) {
        let bytes = fs::read(file).unwrap();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            fs::write(file, &damaged).unwrap();
            let error = restored(&path("backup"), None, None, &path("target")).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "byte {at} of {file:?}: {error}");
            assert!(!path("target").exists() && !path("target.partial").exists());
        }
        fs::write(file, &bytes).unwrap();
    }
    assert_eq!(restored(&path("backup"), None, None, &path("target")).unwrap().records, 6);
    assert_eq!(verify(disk(), &path("target"), &mut |_| ()).unwrap().damages, Vec::<String>::new());
}

#[test]
fn existing_target_and_used_source_are_refused() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    let kept = open(&path("data"), 200);
    kept.set("key", "value");
    let error = restored(&path("data"), None, None, &path("target")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    drop(kept);
    let error = restored(&path("data"), None, None, &path("data")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let error = restored(&path("nothing"), None, None, &path("target")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(!path("target").exists() && !path("target.partial").exists());
}

#[test]
fn foreign_log_is_refused_by_restore() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    for name in ["data", "other"] {
        let kept = open(&path(name), 300);
        (0..20).for_each(|n| kept.set(&format!("{name} {n}"), "1"));
        kept.settle();
    }
    let tree = path("x.tree");
    let db = Db::open(tree.to_str().unwrap()).unwrap();
    db.set(b"of the tree", b"1").unwrap();
    drop(db);
    fs::create_dir(path("empty")).unwrap();
    for (log, what) in [
        (path("other"), "is the log of another database"),
        (path("other").join("log"), "is the log of another database"),
        (tree.clone(), "is the log of a tree on disk"),
        (tree.join("log"), "is the log of a tree on disk"),
        (path("empty"), "is not an update log"),
    ] {
        let error = restored(&path("data"), Some(&log), None, &path("target")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains(what), "{what}: {error}");
        assert!(!path("target").exists());
    }
}
