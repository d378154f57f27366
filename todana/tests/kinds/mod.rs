//! A database of each kind.

#![allow(dead_code, reason = "not every test file takes both")]

use tempfile::TempDir;
use todana::Db;

/// Returns the name of a database of each kind, in its own folder.
pub(crate) fn names() -> impl Iterator<Item = (TempDir, String)> {
    // A hash without memory reads all records in the order of its files.
    let names = ["mem:hash", "mem:tree", "x.hash", "x.hash#memory=0", "x.tree", "mem:table", "x.table"];
    names.into_iter().map(|name| {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join(name);
        let name = if name.starts_with("mem") { name } else { place.to_str().unwrap() };
        eprintln!("{name}");
        let name = name.to_owned();
        (folder, name)
    })
}

/// Runs a test on a database of each kind.
pub(crate) fn on_each_kind(test: impl Fn(Db)) {
    for (_folder, name) in names() {
        test(Db::open(&name).unwrap());
    }
}
