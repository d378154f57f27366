//! A database of each kind.

use todana::Db;

/// Runs a test on a database of each kind, made in a folder of its own.
pub(crate) fn on_each_kind(test: impl Fn(Db)) {
    for name in ["mem:hash", "mem:tree", "x.hash", "x.tree"] {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join(name);
        let name = if name.starts_with("mem") { name } else { place.to_str().unwrap() };
        eprintln!("{name}");
        test(Db::open(name).unwrap());
    }
}
