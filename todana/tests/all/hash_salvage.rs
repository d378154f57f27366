//! The intact part of a damaged hash on disk, or of its backup, becomes a new database. Losses are
//! reported.

use crate::saved;

use saved::{back_up, open, restore};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana::disk::SystemDisk;
use todana::{
    DatabaseName, Db, ErrorKind, FoundDamage, Records, RestorationReport, RestoreOptions, SystemClock,
    salvage,
};

const COUNT: usize = 2000;

fn key(n: usize) -> Vec<u8> {
    format!("key {n}").into_bytes()
}

fn value(n: usize) -> Vec<u8> {
    format!("the value of number {n}, {:x}", n * 0x9e37_79b9).into_bytes()
}

fn fill(path: &Path) -> Db {
    let db = open(path);
    (0..COUNT).for_each(|n| db.set(&key(n), b"an older value").unwrap());
    (0..COUNT).for_each(|n| db.set(&key(n), &value(n)).unwrap());
    db
}

fn rescue(from: &Path, to: &Path) -> todana::Result<(Vec<FoundDamage>, RestorationReport)> {
    let options = RestoreOptions { from: from.into(), ..RestoreOptions::default() };
    let name = DatabaseName::parse(to.to_str().unwrap()).unwrap();
    let salvaged = salvage(Arc::new(SystemDisk), &options, &name, Arc::new(SystemClock), &mut |_| ())?;
    Ok((salvaged.damages, salvaged.restored))
}

/// Changes two bytes where `what` occurs in one of the files below `directory`. Returns that file.
fn damage(directory: &Path, what: &[u8]) -> PathBuf {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = fs::read(&path).unwrap();
        if let Some(at) = bytes.windows(what.len()).rposition(|found| found == what) {
            bytes[at] ^= 0xff;
            bytes[at + 3] ^= 0xff;
            fs::write(&path, &bytes).unwrap();
            return path;
        }
    }
    panic!("it is in none of them");
}

/// Checks that all values are unchanged except those of the given numbers, which must be missing.
fn is_without(db: &Db, without: &[usize]) {
    for n in 0..COUNT {
        let wanted = (!without.contains(&n)).then(|| value(n));
        assert_eq!(db.get(&key(n)).unwrap(), wanted, "{n}");
    }
    assert_eq!(db.count(), (COUNT - without.len()) as u64);
}

#[test]
fn damaged_hash_backup_is_salvaged() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let saved = path("saved");
    back_up(&fill(&path("x.hash")), &saved);
    let segment = damage(&saved.join("hash"), &value(7));
    damage(&saved.join("hash"), &value(1234));
    let before = fs::read(&segment).unwrap();
    assert_eq!(restore(&saved, &path("y.hash")).unwrap_err().kind(), ErrorKind::Corrupt);
    let (damages, restored) = rescue(&saved, &path("y.hash")).unwrap();
    is_without(&open(&path("y.hash")), &[7, 1234]);
    assert_eq!((restored.records, restored.has_log), (COUNT as u64 - 2, false));
    let reported: Vec<String> =
        damages.iter().map(|one| format!("{}: {}", one.finding.what, one.outcome)).collect();
    assert_eq!(damages[0].finding.path, segment);
    assert!(damages[0].finding.offset > 64 && damages[0].finding.lost > 0);
    assert!(reported[0].contains("its key seems to be \"key 7\": left out"), "{reported:?}");
    assert!(reported[2].contains("2 records are lost"), "{reported:?}");
    assert!(
        reported[3].contains("there were 2000 records") && reported[3].contains("2 are lost"),
        "{reported:?}"
    );
    assert_eq!(reported.len(), 4);
    // The source is unchanged.
    assert_eq!(fs::read(&segment).unwrap(), before);
    assert_eq!(rescue(&saved, &path("y.hash")).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(rescue(&saved, &path("y.tree")).unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn hash_backup_without_manifest_is_salvaged() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let saved = path("saved");
    back_up(&fill(&path("x.hash")), &saved);
    let list = fs::read(saved.join("backup")).unwrap();
    fs::write(saved.join("backup"), &list[..list.len() - 1]).unwrap();
    let (damages, restored) = rescue(&saved, &path("a.hash")).unwrap();
    assert_eq!((damages.len(), restored.records), (1, COUNT as u64));
    assert_eq!(damages[0].finding.path, saved.join("backup"));
    fs::remove_file(saved.join("backup")).unwrap();
    let (damages, _) = rescue(&saved, &path("b.hash")).unwrap();
    assert!(damages.is_empty(), "{damages:?}");
    is_without(&open(&path("b.hash")), &[]);
    // The last file of the manifest is missing; no other file refers to it.
    fs::write(saved.join("backup"), &list).unwrap();
    let mut segments: Vec<PathBuf> =
        fs::read_dir(saved.join("hash")).unwrap().map(|entry| entry.unwrap().path()).collect();
    segments.sort();
    fs::remove_file(segments.last().unwrap()).unwrap();
    if segments.len() > 1 {
        let (damages, _) = rescue(&saved, &path("c.hash")).unwrap();
        let is_told = |one: &FoundDamage| &one.finding.path == segments.last().unwrap();
        assert!(damages.iter().any(is_told), "{damages:?}");
    }
}

#[test]
fn damaged_tree_backup_is_salvaged_to_disk() {
    for target in ["y.tree", "y.hash"] {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let saved = path("saved");
        let db = open(&path("x.tree"));
        // Several blocks of a checkpoint.
        let count = 20_000;
        (0..count).for_each(|n| db.set(&key(n), &value(n)).unwrap());
        back_up(&db, &saved);
        let (damages, restored) = rescue(&saved, &path(&format!("whole{target}"))).unwrap();
        assert_eq!((damages.len(), restored.records), (0, count as u64));
        let file = fs::read_dir(saved.join("checkpoints")).unwrap().next().unwrap().unwrap().path();
        let mut bytes = fs::read(&file).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle..][..3].iter_mut().for_each(|byte| *byte ^= 0x5a);
        fs::write(&file, bytes).unwrap();
        assert_eq!(restore(&saved, &path(target)).unwrap_err().kind(), ErrorKind::Corrupt);
        let (damages, restored) = rescue(&saved, &path(target)).unwrap();
        assert_eq!(damages[0].finding.path, file);
        assert!(damages[0].outcome.contains("are lost"), "{damages:?}");
        assert!(restored.records > 0 && restored.records < count as u64);
        let again = open(&path(target));
        assert_eq!(again.count(), restored.records);
        for n in (0..count).filter(|&n| again.contains(&key(n)).unwrap()) {
            assert_eq!(again.get(&key(n)).unwrap(), Some(value(n)));
        }
        // No other files are left beside the result.
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 4);
    }
}

#[test]
fn damaged_hash_is_salvaged_unless_it_is_open() {
    let folder = tempfile::tempdir().unwrap();
    let (path, target) = (folder.path().join("x.hash"), folder.path().join("y.hash"));
    drop(fill(&path));
    let (damages, restored) = rescue(&path, &folder.path().join("whole.hash")).unwrap();
    assert!(damages.is_empty() && restored.entries >= 2 * COUNT as u64, "{damages:?}");
    assert_eq!(
        todana::verify(Arc::new(SystemDisk), &path, &mut |_| ()).unwrap().damages,
        Vec::<String>::new()
    );
    damage(&path, &value(99));
    let verified = todana::verify(Arc::new(SystemDisk), &path, &mut |_| ()).unwrap();
    assert!(verified.damages.len() == 1 && verified.damages[0].contains("key 99"), "{verified:?}");
    let held = open(&path);
    assert_eq!(held.get(&key(99)).unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(rescue(&path, &target).unwrap_err().kind(), ErrorKind::Busy);
    drop(held);
    let (damages, restored) = rescue(&path, &target).unwrap();
    assert_eq!((damages.len(), restored.records), (2, COUNT as u64 - 1), "{damages:?}");
    is_without(&open(&target), &[99]);
    assert_eq!(open(&path).get(&key(99)).unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
}

/// Returns the bytes of the segments in a directory.
fn segment_bytes(path: &Path) -> u64 {
    let files = fs::read_dir(path).unwrap().map(|entry| entry.unwrap());
    let segments = files.filter(|file| file.path().extension().is_some_and(|end| end == "segment"));
    segments.map(|file| file.metadata().unwrap().len()).sum()
}

#[test]
fn salvaged_values_are_compressed_on_request() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let long = |n: usize| value(n).repeat(20);
    let fill = |name: &str| {
        let db = open(&path(name));
        (0..500).for_each(|n| db.set(&key(n), &long(n)).unwrap());
        db
    };
    drop(fill("packed.hash#zcomp=zstd"));
    let len = segment_bytes(&path("packed.hash"));
    damage(&path("packed.hash"), b"key 77");
    let name = path("again.hash").display().to_string() + "#zcomp=zstd";
    let (damages, _) = rescue(&path("packed.hash"), Path::new(&name)).unwrap();
    assert!(!damages.is_empty());
    let again = segment_bytes(&path("again.hash"));
    assert!(again < len * 3 / 2, "{again} bytes of {len}");
    assert_eq!(open(&path("again.hash")).get(&key(78)).unwrap(), Some(long(78)));

    let saved = path("saved");
    back_up(&fill("plain.hash"), &saved);
    damage(&saved.join("hash"), b"key 77");
    for (to, is_packed) in [("plain2.hash", false), ("packed2.hash", true)] {
        let name = path(to).display().to_string() + if is_packed { "#zcomp=zstd" } else { "" };
        let (_, restored) = rescue(&saved, Path::new(&name)).unwrap();
        assert_eq!(restored.records, 499);
        assert_eq!(segment_bytes(&path(to)) < len * 3 / 2, is_packed);
        assert_eq!(open(Path::new(&name)).get(&key(78)).unwrap(), Some(long(78)));
    }
}

/// All records of the source were stored, regardless of the limits in the name.
#[test]
fn restored_database_keeps_the_limits_of_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for source in ["x.hash", "x.tree"] {
        let saved = path(&format!("{source}.saved"));
        back_up(&fill(&path(source)), &saved);
        for target in
            ["y.hash", "y.tree"].into_iter().filter(|target| source == "x.tree" || *target == "y.hash")
        {
            let limited = |how: &str| path(&format!("{source}.{how}.{target}#capcnt=100"));
            let restored = restore(&saved, &limited("restored")).unwrap();
            let (damages, salvaged) = rescue(&saved, &limited("salvaged")).unwrap();
            assert!(damages.is_empty(), "{damages:?}");
            for (how, reported) in [("restored", restored), ("salvaged", salvaged)] {
                assert!(
                    (90..=100).contains(&reported.records),
                    "{source} {how} as {target}: {}",
                    reported.records
                );
                let db = open(&path(&format!("{source}.{how}.{target}")));
                assert_eq!(db.count(), reported.records);
                assert_eq!(db.iter().count() as u64, reported.records);
            }
        }
    }
}
