//! A restoration from a data directory succeeds exactly if the directory can be opened, and has the
//! same records.

use crate::folder;

use folder::{FolderDatabase, NOW, copy, disk, empty, folder, open};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana::{Clock, DataDirectory, DataOptions, ManualClock, RestoreOptions, restore};
use todana_core::UnixSeconds;

type TextRecords = BTreeMap<String, String>;

fn opened(path: &Path) -> todana::Result<TextRecords> {
    let clock = Arc::new(ManualClock::new(UnixSeconds(NOW)));
    let database = empty(&clock);
    let directory = DataDirectory::open(disk(), path)?;
    let reported = Arc::clone(&clock) as Arc<dyn Clock>;
    directory.restore(&database, reported, &DataOptions::default(), &mut |_| ())?;
    let worker_counters = database.worker_counters();
    Ok(FolderDatabase { database: Arc::new(database), worker_counters, clock, directory }.records())
}

fn restored(path: &Path, target: &Path) -> todana::Result<TextRecords> {
    let clock = Arc::new(ManualClock::new(UnixSeconds(NOW)));
    let database = empty(&clock);
    let options = RestoreOptions { from: path.into(), target: target.into(), ..RestoreOptions::default() };
    restore(disk(), &options, &database, clock as Arc<dyn Clock>, &mut |_| ())?;
    Ok(open(target, 1 << 20).records())
}

fn newest(directory: &Path, end: &str) -> PathBuf {
    let all = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    all.filter(|path| path.extension().is_some_and(|found| found == end)).max().unwrap()
}

/// A function that changes a directory in some way.
type DirectoryChange = fn(&Path);

const DEEDS: &[(&str, DirectoryChange)] = &[
    ("nothing", |_| ()),
    ("no directory of checkpoints", |path| fs::remove_dir_all(path.join("checkpoints")).unwrap()),
    ("no log", |path| fs::remove_dir_all(path.join("log")).unwrap()),
    ("an empty log", |path| {
        fs::remove_dir_all(path.join("log")).unwrap();
        fs::create_dir(path.join("log")).unwrap();
    }),
    ("no lock", |path| fs::remove_file(path.join("lock")).unwrap()),
    ("no identity", |path| fs::remove_file(path.join("identity")).unwrap()),
    ("files of somebody else's", |path| {
        for part in ["", "log", "checkpoints"] {
            for name in ["notes.txt", "1.log", "7.checkpoint", "0000.log.gz", ".log", "index"] {
                fs::write(path.join(part).join(name), b"of somebody else").unwrap();
            }
            fs::create_dir(path.join(part).join("folder")).unwrap();
        }
    }),
    ("what was begun and not finished", |path| {
        for name in
            ["identity.partial", "log/00000000000000000007.log.partial", "checkpoints/new.checkpoint.partial"]
        {
            fs::write(path.join(name), b"half").unwrap();
        }
    }),
    ("what a repair has set aside", |path| {
        for name in [
            "identity.damaged",
            "log/00000000000000000007.log.damaged",
            "checkpoints/00000000000000000007.checkpoint.damaged-2",
        ] {
            fs::write(path.join(name), b"damaged").unwrap();
        }
    }),
    ("a torn tail", |path| {
        let log = newest(&path.join("log"), "log");
        let bytes = fs::read(&log).unwrap();
        fs::write(&log, [&bytes[..], b"\x40\0\0\0half an entry"].concat()).unwrap();
    }),
    ("a checkpoint of garbage", |path| {
        fs::write(path.join("checkpoints/00000000000000099999.checkpoint"), b"garbage").unwrap();
    }),
    ("an empty checkpoint", |path| {
        fs::write(path.join("checkpoints/00000000000000099999.checkpoint"), b"").unwrap();
    }),
    ("a segment of garbage", |path| {
        fs::write(path.join("log/00000000000000099999.log"), b"garbage").unwrap();
    }),
    ("a damaged newest checkpoint", |path| {
        let newest = fs::read_dir(path.join("checkpoints")).unwrap().map(|entry| entry.unwrap().path()).max();
        let Some(file) = newest else { return };
        let mut bytes = fs::read(&file).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0xff;
        fs::write(&file, bytes).unwrap();
    }),
];

#[test]
fn restore_accepts_exactly_what_opening_accepts() {
    for checkpoints in [0, 2] {
        let folder = folder();
        let kept = open(&folder.path().join("data"), 300);
        for n in 0..40 {
            kept.set(&format!("key {}", n % 17), &format!("value {n}"));
            if n % 15 == 14 && n / 15 < checkpoints {
                kept.settle();
                kept.directory.checkpoint(&kept.database).unwrap();
            }
        }
        kept.settle();
        drop(kept);
        let mut accepted = 0;
        for (number, (story, deed)) in DEEDS.iter().enumerate() {
            let [one, other] =
                ["opened", "restored"].map(|what| folder.path().join(format!("{what} {number}")));
            for path in [&one, &other] {
                copy(&folder.path().join("data"), path);
                deed(path);
            }
            let target = folder.path().join(format!("target {number}"));
            match (opened(&one), restored(&other, &target)) {
                (Ok(opened), Ok(restored)) => {
                    assert_eq!(opened, restored, "{story}, {checkpoints} checkpoints");
                    accepted += 1;
                }
                (Err(_), Err(_)) => assert!(!target.exists()),
                (opened, restored) => {
                    let [opened, restored] = [opened, restored].map(|outcome| outcome.map(|all| all.len()));
                    panic!("{story}, {checkpoints} checkpoints: opened: {opened:?}, restored: {restored:?}");
                }
            }
        }
        assert!(accepted >= 7, "{accepted}");
    }
}
