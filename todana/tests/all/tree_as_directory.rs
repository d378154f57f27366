//! A tree on disk lies in a directory with an update log. It is never a data directory, whatever
//! its name is.

use crate::folder;

use folder::{disk, folder};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana::backup::BackupSender;
use todana::{DataDirectory, Database, Db, DbOptions, Records, RestoreOptions, SystemClock, restore, verify};
use todana_core::{Error, ErrorKind};
use todana_engine::{MemHash, MemHashOptions};

/// Creates a tree with one record, and renames it to a name without `.tree`.
fn renamed_tree(folder: &Path) -> PathBuf {
    let (tree, renamed) = (folder.join("u.tree"), folder.join("users"));
    let db = Db::open(tree.to_str().unwrap()).unwrap();
    db.set(b"hello", b"world").unwrap();
    db.sync().unwrap();
    drop(db);
    fs::rename(tree, &renamed).unwrap();
    renamed
}

fn expect_refused<T>(outcome: Result<T, Error>) {
    let Err(error) = outcome else { panic!("a tree was taken for a data directory") };
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("is a tree on disk, not a data directory"), "{error}");
}

fn expect_whole(renamed: &Path) {
    let tree = renamed.with_file_name("u.tree");
    fs::rename(renamed, &tree).unwrap();
    assert_eq!(fs::read_dir(tree.join("checkpoints")).unwrap().count(), 0);
    let db = Db::open(tree.to_str().unwrap()).unwrap();
    assert_eq!(db.get(b"hello").unwrap(), Some(b"world".to_vec()));
}

fn database() -> Database {
    Database::new(Box::new(MemHash::new(MemHashOptions::default()).unwrap()), Arc::new(SystemClock))
}

/// Salvage recognises a tree by its files.
#[test]
fn renamed_tree_is_salvaged_as_a_tree() {
    let folder = folder();
    let tree = renamed_tree(folder.path());
    let salvaged = folder::salvage(&tree, &folder.path().join("target")).unwrap();
    assert_eq!((salvaged.damages, salvaged.restored.records), (vec![], 1));
    expect_whole(&tree);
}

/// `verify` also recognises the tree. The records that were stored before the close are in the
/// tree's own file.
#[test]
fn renamed_tree_is_verified_as_a_tree() {
    let folder = folder();
    let tree = renamed_tree(folder.path());
    let verified = verify(disk(), &tree, &mut |_| ()).unwrap();
    assert_eq!(verified.tree.map(|examined| examined.records), Some(1));
    assert!(verified.damages.is_empty(), "{:?}", verified.damages);
    expect_whole(&tree);
}

#[test]
fn no_backup_is_made_of_a_tree() {
    let folder = folder();
    let tree = renamed_tree(folder.path());
    let directory = DataDirectory::open_existing(disk(), &tree).unwrap();
    expect_refused(BackupSender::of_rest(&directory, &mut |_| ()));
    drop(directory);
    expect_whole(&tree);
}

#[test]
fn restore_from_a_tree_is_refused() {
    let folder = folder();
    let tree = renamed_tree(folder.path());
    let target = folder.path().join("target");
    let options = RestoreOptions { from: tree.clone(), target: target.clone(), ..RestoreOptions::default() };
    expect_refused(restore(disk(), &options, &database(), Arc::new(SystemClock), &mut |_| ()));
    assert!(!target.exists());
    expect_whole(&tree);
}

#[test]
fn tree_is_not_a_data_directory() {
    let folder = folder();
    let tree = renamed_tree(folder.path());
    for kind in ["mem:hash", "mem:tree"] {
        let options = DbOptions::default().data_dir(&tree);
        expect_refused(options.open(kind));
    }
    expect_whole(&tree);
}
