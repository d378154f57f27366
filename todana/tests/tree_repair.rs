//! A tree on disk whose update log is damaged or lost: its records are whole up to its last checkpoint, and can be had again.

mod folder;

use folder::copy;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana::disk::SystemDisk;
use todana::update_log::{LogOptions, Sync};
use todana::{DataOptions, Db, DbOptions, ErrorKind, Records, Repair, Result, repair_tree};

fn open(path: &Path) -> Result<Db> {
    let log = LogOptions { sync: Sync::Always, segment_len: 1_000, ..LogOptions::default() };
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

/// A tree as a killed process leaves it: nine records in the tree, nine more in the log.
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

fn texts(repair: &Repair) -> String {
    let remedies = repair.remedies.iter().map(|remedy| format!("{}: {}", remedy.finding.what, remedy.remedy));
    remedies.collect::<Vec<_>>().join("\n")
}

/// Repairs it, having looked what that would do, and opens it.
fn repaired(tree: &Path, says: &str) -> Db {
    let error = open(tree).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    let before = folder::files(tree);
    let would = repair_tree(Arc::new(SystemDisk), tree, false).unwrap();
    assert!(texts(&would).contains(says), "{}", texts(&would));
    let mut after = folder::files(tree);
    after.retain(|path| !path.ends_with("lock.mdb"));
    assert!(after.iter().all(|path| before.contains(path)), "looking makes nothing");
    assert_eq!(repair_tree(Arc::new(SystemDisk), tree, true).unwrap(), would);
    assert_eq!(repair_tree(Arc::new(SystemDisk), tree, true).unwrap().remedies, []);
    open(tree).unwrap()
}

/// It goes on, and keeps what it is told from then on.
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
fn tree_whose_log_is_lost_has_its_records_as_of_the_last_checkpoint() {
    let folder = folder::folder();
    let tree = killed_tree(folder.path());
    fs::remove_dir_all(tree.join("log")).unwrap();
    let db = repaired(&tree, "acknowledged behind the last checkpoint is lost");
    assert_eq!(keys(&db), NINE);
    assert_goes_on(db, &tree);
}

#[test]
fn tree_of_which_only_the_pages_are_left_is_the_same_database() {
    let folder = folder::folder();
    let tree = killed_tree(folder.path());
    let identity = fs::read(tree.join("identity")).unwrap();
    fs::remove_dir_all(tree.join("log")).unwrap();
    fs::remove_file(tree.join("identity")).unwrap();
    // Whoever opens it makes another identity, which is not to stay.
    let db = repaired(&tree, "written anew, as the other files tell it");
    assert_eq!(keys(&db), NINE);
    assert_eq!(fs::read(tree.join("identity")).unwrap()[16..32], identity[16..32], "the database id");
    assert_goes_on(db, &tree);
}

#[test]
fn tree_whose_log_goes_on_behind_a_gap_has_what_stands_there() {
    let folder = folder::folder();
    let tree = killed_tree(folder.path());
    let segments = segments(&tree);
    assert!(segments.len() >= 3, "{segments:?}");
    fs::remove_file(&segments[0]).unwrap();
    let db = repaired(&tree, "bytes between are marked as lost");
    let found = keys(&db);
    assert_eq!(found[..9], NINE);
    assert!(found.len() > 9 && found.len() < 18 && found.contains(&"b8".into()), "{found:?}");
    assert_goes_on(db, &tree);
}

#[test]
fn tree_beside_an_older_copy_of_its_log_has_its_records() {
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
    let db = repaired(&killed, "the log begins anew");
    assert_eq!(keys(&db).len(), 18);
    assert_goes_on(db, &killed);
    let kept = folder::files(&killed.join("log"));
    assert!(kept.iter().any(|path| path.extension().is_some_and(|ending| ending == "damaged")), "{kept:?}");
}

#[test]
fn versions_that_were_shown_are_not_made_again_where_the_log_is_lost() {
    let folder = folder::folder();
    let tree = killed_tree(folder.path());
    let db = open(&tree).unwrap();
    let before = db.get_record(b"a1").unwrap().unwrap().version;
    assert!(before > 0);
    drop(db);
    fs::remove_dir_all(tree.join("log")).unwrap();
    let db = repaired(&tree, "acknowledged behind the last checkpoint is lost");
    assert_eq!(db.get_record(b"a1").unwrap().unwrap().version, before);
    let after = db.get_record(b"a2").unwrap().unwrap().version;
    assert!(after >> 32 > (before >> 32) + 60_000, "{after:x} behind {before:x}");
}

#[test]
fn damage_in_the_log_of_a_tree_is_marked_as_lost_and_the_rest_kept() {
    let folder = folder::folder();
    let tree = killed_tree(folder.path());
    let segment = &segments(&tree)[0];
    let mut bytes = fs::read(segment).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 20].fill(7);
    fs::write(segment, bytes).unwrap();
    let db = repaired(&tree, "what stands behind it is kept");
    let found = keys(&db);
    assert_eq!(found[..9], NINE);
    assert!((10..18).contains(&found.len()) && found.contains(&"b8".into()), "{found:?}");
    assert_goes_on(db, &tree);
}

#[test]
fn tree_beside_the_log_of_another_database_is_not_repaired() {
    let folder = folder::folder();
    let (tree, other) = (killed_tree(folder.path()), folder.path().join("other.tree"));
    let db = open(&other).unwrap();
    set(&db, "x");
    fs::remove_dir_all(tree.join("log")).unwrap();
    copy(&other.join("log"), &tree.join("log"));
    fs::copy(other.join("identity"), tree.join("identity")).unwrap();
    let before = fs::read(tree.join("identity")).unwrap();
    for repairs in [false, true] {
        let error = repair_tree(Arc::new(SystemDisk), &tree, repairs).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains("not this tree's"), "{error}");
    }
    assert_eq!(fs::read(tree.join("identity")).unwrap(), before);
}

#[test]
fn whole_trees_need_no_repair_and_an_open_one_gets_none() {
    let folder = folder::folder();
    let tree = killed_tree(folder.path());
    assert_eq!(repair_tree(Arc::new(SystemDisk), &tree, true).unwrap().remedies, []);
    let db = open(&tree).unwrap();
    assert_eq!(keys(&db).len(), 18);
    assert_eq!(repair_tree(Arc::new(SystemDisk), &tree, true).unwrap_err().kind(), ErrorKind::Busy);
    drop(db);
    fs::remove_file(tree.join("tree/data.mdb")).unwrap();
    let error = repair_tree(Arc::new(SystemDisk), &tree, true).unwrap_err();
    assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains("data.mdb"), "{error}");
    assert!(!tree.join("tree/data.mdb").exists());
}
