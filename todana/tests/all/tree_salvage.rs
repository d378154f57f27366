//! A tree on disk whose update log is damaged or lost. Its records up to the last checkpoint are
//! intact, and can be salvaged.

use crate::folder;

use folder::copy;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana::disk::SystemDisk;
use todana::update_log::{LogOptions, SyncPolicy};
use todana::{
    DataOptions, DatabaseName, Db, DbOptions, ErrorKind, Records, RestoreOptions, Result, SalvageReport,
    SystemClock,
};

fn open(path: &Path) -> Result<Db> {
    let log = LogOptions { sync: SyncPolicy::Always, segment_len: 1_000, ..LogOptions::default() };
    let options = DbOptions::default().data_options(DataOptions { log, ..DataOptions::default() });
    options.open(path.to_str().unwrap())
}

fn keys(db: &Db) -> Vec<String> {
    let mut keys = Vec::new();
    db.for_each(&mut |key, _| {
        keys.push(String::from_utf8(key.to_vec()).unwrap());
        ControlFlow::Continue(())
    })
    .unwrap();
    keys
}

fn set(db: &Db, prefix: &str) {
    for n in 0..9 {
        db.set(format!("{prefix}{n}").as_bytes(), &[b'v'; 300]).unwrap();
    }
}

/// Creates a tree as a killed process leaves it: nine records in the tree, and nine more in the
/// log.
fn killed_tree(folder: &Path) -> PathBuf {
    let (tree, killed) = (folder.join("x.tree"), folder.join("killed.tree"));
    let db = open(&tree).unwrap();
    set(&db, "a");
    db.checkpoint().unwrap();
    set(&db, "b");
    copy(&tree, &killed);
    killed
}

fn segments(tree: &Path) -> Vec<PathBuf> {
    let names = folder::files(&tree.join("log"));
    names.into_iter().filter(|path| path.extension().is_some_and(|ending| ending == "log")).collect()
}

fn salvage(from: &Path, to: &Path) -> Result<SalvageReport> {
    let options = RestoreOptions { from: from.into(), ..RestoreOptions::default() };
    let name = DatabaseName::parse(to.to_str().unwrap())?;
    todana::salvage(Arc::new(SystemDisk), &options, &name, Arc::new(SystemClock), &mut |_| ())
}

fn texts(salvaged: &SalvageReport) -> String {
    let texts = salvaged.damages.iter().map(|damage| format!("{}: {}", damage.finding.what, damage.outcome));
    texts.collect::<Vec<_>>().join("\n")
}

/// Returns the files with their bytes, except the lock.
fn contents(tree: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let files = folder::files(tree).into_iter().filter(|path| path.is_file());
    let files = files.filter(|path| !path.ends_with("lock") && !path.ends_with("lock.mdb"));
    files.map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

/// Salvages a tree that cannot be opened. The new tree gets the path of the old one, which stays
/// unchanged under another name.
fn salvaged(tree: &Path, says: &str) -> Db {
    let error = open(tree).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    let before = contents(tree);
    let made = tree.with_extension("made.tree");
    let salvaged = salvage(tree, &made).unwrap();
    assert!(texts(&salvaged).contains(says), "{}", texts(&salvaged));
    let is_original = |damage: &todana::FoundDamage| damage.finding.path.starts_with(tree);
    assert!(salvaged.damages.iter().all(is_original), "{salvaged:?}");
    assert_eq!(contents(tree), before, "salvaging changes nothing");
    assert!(
        fs::read_dir(tree.parent().unwrap())
            .unwrap()
            .all(|entry| { !entry.unwrap().file_name().to_str().unwrap().contains(".salvage") })
    );
    fs::rename(tree, tree.with_extension("damaged.tree")).unwrap();
    fs::rename(&made, tree).unwrap();
    let db = open(tree).unwrap();
    assert_eq!(db.count(), salvaged.restored.records);
    db
}

/// Checks that the database accepts writes and keeps them.
fn assert_goes_on(db: Db, tree: &Path) {
    let left = tree.with_extension("left.tree");
    db.set(b"c", b"1").unwrap();
    let keys_before = keys(&db);
    copy(tree, &left);
    drop(db);
    assert_eq!(keys(&open(&left).unwrap()), keys_before);
    assert_eq!(keys(&open(tree).unwrap()), keys_before);
}

const NINE: [&str; 9] = ["a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8"];

#[test]
fn tree_without_log_has_its_checkpoint() {
    let folder = folder::folder();
    let tree = killed_tree(folder.path());
    fs::remove_dir_all(tree.join("log")).unwrap();
    let db = salvaged(&tree, "acknowledged after the last checkpoint, if there were any, are lost");
    assert_eq!(keys(&db), NINE);
    assert_goes_on(db, &tree);
}

#[test]
fn tree_with_only_pages_has_its_records() {
    let folder = folder::folder();
    let tree = killed_tree(folder.path());
    fs::remove_dir_all(tree.join("log")).unwrap();
    fs::remove_file(tree.join("identity")).unwrap();
    // If the identity is missing, an opening creates another one, which is not that of the tree.
    let db = salvaged(&tree, "reconstructed from the other files");
    assert_eq!(keys(&db), NINE);
    assert_goes_on(db, &tree);
}

#[test]
fn tree_log_after_a_gap_is_salvaged() {
    let folder = folder::folder();
    let tree = killed_tree(folder.path());
    let segments = segments(&tree);
    assert!(segments.len() >= 3, "{segments:?}");
    fs::remove_file(&segments[0]).unwrap();
    let db = salvaged(&tree, "bytes between are lost");
    let found = keys(&db);
    assert_eq!(found[..9], NINE);
    assert!(found.len() > 9 && found.len() < 18 && found.contains(&"b8".into()), "{found:?}");
    assert_goes_on(db, &tree);
}

#[test]
fn tree_with_older_log_copy_has_its_records() {
    let folder = folder::folder();
    let (tree, older, killed) =
        (folder.path().join("x.tree"), folder.path().join("older.tree"), folder.path().join("killed.tree"));
    let db = open(&tree).unwrap();
    set(&db, "a");
    copy(&tree, &older);
    set(&db, "b");
    db.checkpoint().unwrap();
    copy(&tree, &killed);
    fs::remove_dir_all(killed.join("log")).unwrap();
    copy(&older.join("log"), &killed.join("log"));
    let db = salvaged(&killed, "acknowledged after the last checkpoint, if there were any, are lost");
    assert_eq!(keys(&db).len(), 18);
    assert_goes_on(db, &killed);
}

#[test]
fn lost_log_never_repeats_versions() {
    let folder = folder::folder();
    let tree = killed_tree(folder.path());
    let db = open(&tree).unwrap();
    let before = db.get_record(b"a1").unwrap().unwrap().version;
    assert!(before > 0);
    drop(db);
    fs::remove_dir_all(tree.join("log")).unwrap();
    let db = salvaged(&tree, "acknowledged after the last checkpoint, if there were any, are lost");
    assert_eq!(db.get_record(b"a1").unwrap().unwrap().version, before);
    let after = db.get_record(b"a2").unwrap().unwrap().version;
    assert!(after >> 32 > (before >> 32) + 60_000, "{after:x} behind {before:x}");
}

#[test]
fn damaged_tree_log_is_marked_lost() {
    let folder = folder::folder();
    let tree = killed_tree(folder.path());
    let segment = &segments(&tree)[0];
    let mut bytes = fs::read(segment).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 20].fill(7);
    fs::write(segment, bytes).unwrap();
    let db = salvaged(&tree, "everything after them is kept");
    let found = keys(&db);
    assert_eq!(found[..9], NINE);
    assert!((10..18).contains(&found.len()) && found.contains(&"b8".into()), "{found:?}");
    assert_goes_on(db, &tree);
}

#[test]
fn tree_with_foreign_log_is_not_salvaged() {
    let folder = folder::folder();
    let (tree, other) = (killed_tree(folder.path()), folder.path().join("other.tree"));
    let db = open(&other).unwrap();
    set(&db, "x");
    fs::remove_dir_all(tree.join("log")).unwrap();
    copy(&other.join("log"), &tree.join("log"));
    fs::copy(other.join("identity"), tree.join("identity")).unwrap();
    let before = fs::read(tree.join("identity")).unwrap();
    let error = salvage(&tree, &folder.path().join("y.tree")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("not to this tree"), "{error}");
    assert!(!folder.path().join("y.tree").exists());
    assert_eq!(fs::read(tree.join("identity")).unwrap(), before);
}

/// A damaged record stopped the salvage. In a table, no other command helps, because a block cannot
/// be overwritten.
#[test]
fn damaged_records_are_left_out() {
    for ending in ["tree", "table"] {
        let folder = folder::folder();
        let place = |name: &str| folder.path().join(name).with_extension(ending);
        let db = open(&place("x")).unwrap();
        for number in 0..1000u64 {
            let value = format!("column\0{}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            db.set(number.to_string().as_bytes(), value.as_bytes()).unwrap();
        }
        drop(db);
        let file = place("x").join(ending).join("data.mdb");
        let whole = fs::read(&file).unwrap();
        let mut salvages = 0;
        for at in (2 * 4096 + 3000..whole.len()).step_by(4096) {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(&file, &damaged).unwrap();
            let target = place("y");
            // The structure of the tree may be damaged instead of a record.
            let Ok(report) = salvage(&place("x"), &target) else { continue };
            let left = open(&target).unwrap().count();
            fs::remove_dir_all(&target).unwrap();
            assert_eq!(report.restored.records, left);
            if left < 1000 {
                let text = texts(&report);
                assert!(left > 500 && text.contains("its checksum differs"), "{left}: {text}");
                assert!(text.contains(": left out; damaged records or blocks in total: 1, with "), "{text}");
                assert_eq!(report.damages[0].finding.path, file);
                salvages += 1;
            }
        }
        assert!(salvages > 0, "{ending}");
    }
}

#[test]
fn killed_tree_becomes_any_kind_of_database() {
    let folder = folder::folder();
    let tree = killed_tree(folder.path());
    for name in ["y.tree", "y.hash"] {
        let target = folder.path().join(name);
        let salvaged = salvage(&tree, &target).unwrap();
        assert_eq!((salvaged.damages, salvaged.restored.records), (vec![], 18));
        assert_eq!(Db::open(target.to_str().unwrap()).unwrap().count(), 18);
    }
    let data = folder.path().join("data");
    assert_eq!(folder::salvage(&tree, &data).unwrap().restored.records, 18);
    assert_eq!(folder::open(&data, 1 << 20).records().len(), 18);
}

#[test]
fn open_tree_is_not_salvaged() {
    let folder = folder::folder();
    let (tree, target) = (killed_tree(folder.path()), folder.path().join("y.tree"));
    let db = open(&tree).unwrap();
    assert_eq!(keys(&db).len(), 18);
    assert_eq!(salvage(&tree, &target).unwrap_err().kind(), ErrorKind::Busy);
    drop(db);
    // If the pages of the tree are missing, only the contents of its log remain.
    let other = folder::folder();
    let tree = killed_tree(other.path());
    fs::remove_file(tree.join("tree/data.mdb")).unwrap();
    let salvaged = salvage(&tree, &target).unwrap();
    assert!(salvaged.restored.records >= 9, "{salvaged:?}");
    assert!(!tree.join("tree/data.mdb").exists());
    assert!(open(&target).unwrap().contains(b"b8").unwrap());
}
