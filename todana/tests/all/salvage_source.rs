//! Salvage changes nothing in its source, in whatever way the source is damaged.

use crate::directory_contents;
use crate::folder;

use directory_contents::contents;
use folder::{disk, drain, folder, open, receive, salvage};
use std::fs;
use std::path::{Path, PathBuf};
use todana::DataDirectory;
use todana_core::ErrorKind;

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 0x10;
    fs::write(path, bytes).unwrap();
}

fn first_file(directory: &Path) -> PathBuf {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).min().unwrap()
}

/// A name, a function that damages a directory, and the number of damages.
type DamageCase = (&'static str, fn(&Path), usize);

const STORIES: [DamageCase; 9] = [
    ("nothing", |_| (), 0),
    (
        "what a killed process has left",
        |data| {
            for name in
                ["log/x.partial", "checkpoints/new.checkpoint.partial", "identity.partial", "y.partial"]
            {
                fs::write(data.join(name), "half").unwrap();
            }
        },
        0,
    ),
    ("no lock's file", |data| fs::remove_file(data.join("lock")).unwrap(), 0),
    ("no checkpoints", |data| fs::remove_dir_all(data.join("checkpoints")).unwrap(), 1),
    ("no log", |data| fs::remove_dir_all(data.join("log")).unwrap(), 2),
    ("no identity", |data| fs::remove_file(data.join("identity")).unwrap(), 1),
    ("a damaged identity", |data| flip(&data.join("identity"), 20), 1),
    ("a damaged checkpoint", |data| flip(&first_file(&data.join("checkpoints")), 100), 1),
    ("a damaged log", |data| flip(&first_file(&data.join("log")), 70), 1),
];

#[test]
fn damaged_directory_stays_as_it_is() {
    for (story, damage, damages) in STORIES {
        let folder = folder();
        let data = folder.path().join("data");
        let kept = open(&data, 150);
        for n in 0..30 {
            kept.set(&format!("key {n}"), "value");
            kept.settle();
            if n % 10 == 5 {
                kept.directory.checkpoint(&kept.database).unwrap();
            }
        }
        drop(kept);
        damage(&data);
        let before = contents(folder.path());
        let target = folder.path().join("target");
        let salvaged = salvage(&data, &target).unwrap();
        assert_eq!(salvaged.damages.len(), damages, "{story}: {salvaged:?}");
        fs::remove_dir_all(&target).unwrap();
        assert!(contents(folder.path()) == before, "{story}");
    }
}

#[test]
fn open_directory_without_identity_is_not_salvaged() {
    let folder = folder();
    let data = folder.path().join("data");
    let kept = open(&data, 150);
    kept.set("key", "value");
    kept.settle();
    for damage in [
        |data: &Path| flip(&data.join("identity"), 20),
        |data: &Path| {
            fs::remove_file(data.join("identity")).unwrap();
        },
    ] {
        damage(&data);
        let before = contents(folder.path());
        let error = salvage(&data, &folder.path().join("target")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert!(contents(folder.path()) == before);
    }
}

#[test]
fn salvage_leaves_the_damaged_backup_unchanged() {
    let folder = folder();
    let kept = open(&folder.path().join("data"), 150);
    kept.set("key", "value");
    let backup = folder.path().join("backup");
    receive(&drain(kept.start_backup()), &backup).unwrap();
    let spoils: [fn(&Path); 4] = [
        |_| (),
        |backup| flip(&backup.join("identity"), 20),
        |backup| fs::remove_file(backup.join("identity")).unwrap(),
        |backup| flip(&backup.join("backup"), 40),
    ];
    for damage in spoils {
        damage(&backup);
        let before = contents(&backup);
        let target = folder.path().join("target");
        assert_eq!(salvage(&backup, &target).unwrap().restored.records, 1);
        fs::remove_dir_all(target).unwrap();
        assert!(contents(&backup) == before);
    }
    assert_eq!(
        DataDirectory::open(disk(), &backup).err().map(|error| error.kind()),
        Some(ErrorKind::Invalid)
    );
}

/// A gap in the log is marked with as many bytes as are lost, which could fill any disk.
#[test]
fn distant_segment_does_not_fill_the_disk() {
    for far in ["09000000000000000000.log", "18446744073709551615.log", "00000000100000000000.log"] {
        let folder = folder();
        let data = folder.path().join("data");
        let kept = open(&data, 150);
        kept.set("key", "value");
        kept.settle();
        drop(kept);
        fs::write(data.join("log").join(far), "somebody's").unwrap();
        let before = contents(folder.path());
        let target = folder.path().join("target");
        let error = salvage(&data, &target).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains("one of the two segments belongs to another log"), "{error}");
        assert!(error.to_string().contains(data.to_str().unwrap()), "{error}");
        assert!(contents(folder.path()) == before);
        fs::remove_file(data.join("log").join(far)).unwrap();
        assert_eq!(salvage(&data, &target).unwrap().damages, vec![]);
    }
}
