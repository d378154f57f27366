//! Regression tests for damage that `verify` and `salvage` once missed.
//!
//! If the newest segment of a hash was missing, or truncated between two entries, nothing was
//! reported. A hash without segments was reported as "no data directory". If there were more than
//! 1000 damages, only 1000 were counted. A tree could be verified only by opening it for writing. A
//! new database could be created within the folder from which it was salvaged.

use crate::folder;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use todana::disk::SystemDisk;
use todana::{
    DatabaseName, Db, DbOptions, ErrorKind, Records, RestoreOptions, Result, SalvageReport, SystemClock,
    VerificationReport,
};

fn verify(path: &Path) -> Result<VerificationReport> {
    todana::verify(Arc::new(SystemDisk), path, &mut |_| ())
}

fn salvage(from: &Path, to: &Path) -> Result<SalvageReport> {
    let options = RestoreOptions { from: from.into(), ..RestoreOptions::default() };
    let name = DatabaseName::parse(to.to_str().unwrap())?;
    todana::salvage(Arc::new(SystemDisk), &options, &name, Arc::new(SystemClock), &mut |_| ())
}

fn open(path: &Path) -> Db {
    Db::open(path.to_str().unwrap()).unwrap()
}

/// Creates a hash in three segments by opening it, writing to it and closing it three times.
fn three_segments(folder: &Path) -> PathBuf {
    let path = folder.join("x.hash");
    for key in [b"k1", b"k2", b"k3"] {
        open(&path).set(key, b"value").unwrap();
    }
    assert!(verify(&path).unwrap().damages.is_empty());
    path
}

fn newest_segment(path: &Path) -> PathBuf {
    let paths = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|ending| ending == "segment")).max().unwrap()
}

#[test]
fn newest_segment_that_is_gone_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = three_segments(folder.path());
    let gone = newest_segment(&path);
    fs::remove_file(&gone).unwrap();
    let damages = verify(&path).unwrap().damages;
    assert_eq!(
        damages,
        [format!("{} at offset 0: the segment is missing, but the index names it", gone.display())]
    );
    let made = folder.path().join("made.hash");
    let salvaged = salvage(&path, &made).unwrap();
    assert_eq!(salvaged.damages[0].finding.path, gone);
    assert_eq!(salvaged.restored.records, 2);
    assert_eq!(open(&made).get(b"k2").unwrap(), Some(b"value".to_vec()));
}

#[test]
fn segment_cut_between_two_entries_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = three_segments(folder.path());
    let cut = newest_segment(&path);
    // The put of k3: 4 bytes of checksum, tag, two lengths, key and value, padded to a multiple of
    // 8.
    let len = fs::metadata(&cut).unwrap().len() - 16;
    fs::File::options().write(true).open(&cut).unwrap().set_len(len).unwrap();
    let damages = verify(&path).unwrap().damages;
    assert_eq!(damages, [format!("{} at offset {len}: the file is cut off", cut.display())]);
    let salvaged = salvage(&path, &folder.path().join("made.hash")).unwrap();
    assert_eq!((salvaged.damages[0].finding.path.clone(), salvaged.restored.records), (cut, 2));
}

#[test]
fn hash_without_segments_is_known_by_its_index() {
    let folder = tempfile::tempdir().unwrap();
    let path = three_segments(folder.path());
    while let Some(entry) = fs::read_dir(&path)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.extension().is_some_and(|ending| ending == "segment"))
    {
        fs::remove_file(entry).unwrap();
    }
    let shown = path.display();
    let said = format!(
        "{shown} at offset 0: no segment of the hash is left; the index names 3, to {shown}/0000000003.segment"
    );
    for error in [verify(&path).unwrap_err(), salvage(&path, &folder.path().join("made.hash")).unwrap_err()] {
        assert_eq!((error.kind(), error.to_string()), (ErrorKind::Corrupt, said.clone()));
    }
    assert!(!folder.path().join("made.hash").exists());
}

#[test]
fn damages_beyond_the_list_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.hash");
    let db = open(&path);
    for n in 0..2_400 {
        db.set(format!("key {n:04}").as_bytes(), format!("the value {n:04}").as_bytes()).unwrap();
    }
    drop(db);
    let segment = newest_segment(&path);
    let mut bytes = fs::read(&segment).unwrap();
    for n in (0..2_400).step_by(2) {
        let value = format!("the value {n:04}").into_bytes();
        let at = bytes.windows(value.len()).position(|found| found == value).unwrap();
        bytes[at] ^= 0xff;
        bytes[at + 5] ^= 0xff;
    }
    fs::write(&segment, bytes).unwrap();
    let damages = verify(&path).unwrap().damages;
    assert_eq!(damages.len(), 1_001);
    assert_eq!(damages[1_000], format!("{}: 200 more damages are not listed", path.display()));
}

/// Returns everything below a directory: the bytes and the modification time of each file, and the
/// directories.
fn contents(directory: &Path) -> BTreeMap<PathBuf, Option<(Vec<u8>, SystemTime)>> {
    let files = folder::files(directory).into_iter();
    let content = |path: &PathBuf| {
        let changed = path.metadata().unwrap().modified().unwrap();
        path.is_file().then(|| (fs::read(path).unwrap(), changed))
    };
    files.map(|path| (path.clone(), content(&path))).collect()
}

/// Creates a tree as a killed process leaves it: nine records in its last checkpoint, one more in
/// its log, and no locks.
fn tree(folder: &Path) -> PathBuf {
    let (made, path) = (folder.join("made.tree"), folder.join("x.tree"));
    let db = open(&made);
    (0..9).for_each(|n| db.set(format!("k{n}").as_bytes(), &[b'v'; 300]).unwrap());
    db.checkpoint().unwrap();
    db.set(b"k9", b"value").unwrap();
    db.sync().unwrap();
    folder::copy(&made, &path);
    for lock in
        folder::files(&path).iter().filter(|path| path.ends_with("lock") || path.ends_with("lock.mdb"))
    {
        fs::remove_file(lock).unwrap();
    }
    path
}

#[test]
fn verify_of_a_tree_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = tree(folder.path());
    let before = contents(&path);
    let verified = verify(&path).unwrap();
    assert_eq!(verified.damages, Vec::<String>::new());
    assert_eq!(verified.tree.map(|tree| (tree.records, tree.without_checksum)), Some((9, 0)));
    assert_eq!(verified.changes, 1);
    assert_eq!(contents(&path), before);
    // Reading its records, as the command also does, changes nothing either.
    let db = DbOptions::default().read_only().open(path.to_str().unwrap()).unwrap();
    assert_eq!(db.count(), 10);
    drop(db);
    assert_eq!(contents(&path), before);
    // Afterwards it can be opened for writing.
    assert_eq!(open(&path).count(), 10);
}

#[test]
fn tree_verification_reads_pages_and_log() {
    let folder = tempfile::tempdir().unwrap();
    let path = tree(folder.path());
    let damaged = |at: &Path, what: &[u8], says: &str| {
        let mut bytes = fs::read(at).unwrap();
        let at_byte = bytes.windows(what.len()).rposition(|found| found == what).unwrap();
        bytes[at_byte + 1] ^= 0xff;
        fs::write(at, bytes).unwrap();
        let damages = verify(&path).unwrap().damages;
        assert!(damages.len() == 1 && damages[0].contains(says), "{damages:?}");
    };
    let pages = path.join("tree/data.mdb");
    let intact = fs::read(&pages).unwrap();
    damaged(&pages, b"vvvvvvvv", "is damaged, its checksum differs");
    fs::write(&pages, intact).unwrap();
    assert!(verify(&path).unwrap().damages.is_empty());
    let log = folder::files(&path.join("log"));
    let segment = log.iter().find(|path| path.extension().is_some_and(|ending| ending == "log")).unwrap();
    // Damages the header: a damaged entry at the end would be a torn tail.
    damaged(segment, b"TODANA", "not a segment of an update log");

    let shown = path.display();
    fs::remove_dir_all(path.join("log")).unwrap();
    let ends = format!(
        "{shown}/log at offset 0: the update log ends at position 0, but {shown}/tree needs it up to 2833"
    );
    assert_eq!(verify(&path).unwrap().damages, [ends]);
    fs::remove_file(path.join("identity")).unwrap();
    let missing = format!("{shown}: the tree needs the update log from position 2833 on, which is missing");
    assert_eq!(verify(&path).unwrap().damages, [missing]);
}

#[test]
fn open_tree_is_not_verified() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.tree");
    let db = open(&path);
    assert_eq!(verify(&path).unwrap_err().kind(), ErrorKind::Busy);
    drop(db);
    assert!(verify(&path).unwrap().damages.is_empty());
}

#[test]
fn output_within_its_source_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let hash = three_segments(folder.path());
    let tree = tree(folder.path());
    let data = folder.path().join("data");
    DbOptions::default().data_dir(&data).open("mem:hash").unwrap().set(b"key", b"value").unwrap();
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&hash, &link).unwrap();
    for (from, within) in [(&hash, &hash), (&hash, &link), (&tree, &tree), (&data, &data)] {
        let before = contents(from);
        for to in [within.join("made.hash"), within.join("new/made.hash"), within.join("log/made.tree")] {
            let error = salvage(from, &to).unwrap_err();
            let said = format!("{}: lies within {}; choose another target", to.display(), from.display());
            assert_eq!((error.kind(), error.to_string()), (ErrorKind::Invalid, said));
        }
        assert_eq!(contents(from), before);
    }
    let error = salvage(&hash, &folder.path().join("made.tree")).unwrap_err().to_string();
    assert!(
        error.contains(": is a hash on disk, which can only become a hash on disk")
            && !error.contains("backup"),
        "{error}"
    );
}
