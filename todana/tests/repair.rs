//! Looking at what a repair would do changes nothing; a backup is not repaired.

mod folder;

use folder::{disk, drain, folder, open, receive};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use todana::{DataDirectory, repair};
use todana_core::ErrorKind;

/// All that is below a directory: files with their bytes, directories with none.
fn tree(directory: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(tree(&path));
            found.insert(path, None);
        } else {
            let bytes = fs::read(&path).unwrap();
            found.insert(path, Some(bytes));
        }
    }
    found
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 0x10;
    fs::write(path, bytes).unwrap();
}

fn first_file(directory: &Path) -> PathBuf {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).min().unwrap()
}

/// What is wrong with a directory, and how many remedies there are.
type Story = (&'static str, fn(&Path), usize);

const STORIES: [Story; 9] = [
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
fn nothing_is_changed_without_being_told_to() {
    for (story, spoil, remedies) in STORIES {
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
        spoil(&data);
        let before = tree(folder.path());
        let found = repair(disk(), &data, false).unwrap();
        assert_eq!(found.remedies.len(), remedies, "{story}: {found:?}");
        assert!(tree(folder.path()) == before, "{story}");
        // Told to, it does what it has told.
        let done = repair(disk(), &data, true).unwrap();
        assert_eq!(done.remedies, found.remedies, "{story}");
        assert_eq!(tree(folder.path()) == before, story == "nothing", "{story}");
        assert!(repair(disk(), &data, false).unwrap().remedies.len() as u64 == found.unmended, "{story}");
    }
}

#[test]
fn a_directory_that_somebody_has_open_is_not_looked_at_although_its_identity_is_lost() {
    let folder = folder();
    let data = folder.path().join("data");
    let kept = open(&data, 150);
    kept.set("key", "value");
    kept.settle();
    for spoil in [
        |data: &Path| flip(&data.join("identity"), 20),
        |data: &Path| {
            fs::remove_file(data.join("identity")).unwrap();
        },
    ] {
        spoil(&data);
        let before = tree(folder.path());
        for repairs in [false, true] {
            assert_eq!(repair(disk(), &data, repairs).unwrap_err().kind(), ErrorKind::Busy);
            assert!(tree(folder.path()) == before);
        }
    }
}

#[test]
fn a_backup_is_left_as_it_is() {
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
    for spoil in spoils {
        spoil(&backup);
        let before = tree(&backup);
        for repairs in [false, true] {
            let error = repair(disk(), &backup, repairs).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
            assert!(error.to_string().contains("is a backup"), "{error}");
            assert!(tree(&backup) == before);
        }
    }
    assert_eq!(
        DataDirectory::open(disk(), &backup).err().map(|error| error.kind()),
        Some(ErrorKind::Invalid)
    );
}

/// What is lost is marked byte for byte, which would fill any disk.
#[test]
fn a_segment_from_elsewhere_is_not_reached_by_filling_the_disk() {
    for far in ["09000000000000000000.log", "18446744073709551615.log", "00000000100000000000.log"] {
        let folder = folder();
        let data = folder.path().join("data");
        let kept = open(&data, 150);
        kept.set("key", "value");
        kept.settle();
        drop(kept);
        fs::write(data.join("log").join(far), "somebody's").unwrap();
        let before = tree(folder.path());
        for repairs in [false, true] {
            let error = repair(disk(), &data, repairs).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            assert!(error.to_string().contains("one of both does not belong here"), "{error}");
            assert!(tree(folder.path()) == before);
        }
        fs::remove_file(data.join("log").join(far)).unwrap();
        assert_eq!(repair(disk(), &data, false).unwrap().remedies, vec![]);
    }
}
