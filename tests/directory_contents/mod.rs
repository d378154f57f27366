//! The contents of a directory, to compare them before and after.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Returns everything below a directory: files with their bytes, directories with `None`.
pub(crate) fn contents(directory: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(contents(&path));
            found.insert(path, None);
        } else {
            let bytes = fs::read(&path).unwrap();
            found.insert(path, Some(bytes));
        }
    }
    found
}
