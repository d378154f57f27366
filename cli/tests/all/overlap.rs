//! Commands that create databases never remove their sources or foreign files.
//!
//! Databases are created at `TARGET.partial`. Its contents were once removed first, without a
//! check. So `salvage x.hash.partial/x.hash x.hash`, with the remains of a killed copy, erased all
//! records and reported success.

use crate::directory_contents;
use crate::running;

use directory_contents::contents;
use running::{TestFolder, text, todana};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use todana::Db;

/// Returns everything below a directory except locks: files with their bytes, and directories.
fn tree(directory: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let mut found = contents(directory);
    found.retain(|path, bytes| bytes.is_none() || path.file_name().unwrap() != "lock");
    found
}

struct DatabaseFolder(TestFolder);

impl DatabaseFolder {
    fn new() -> DatabaseFolder {
        let places = DatabaseFolder(TestFolder::new());
        for name in ["a.hash", "b.tree"] {
            places.0.import(&places.at(name), "one\t1\ntwo\t2\n");
        }
        places.0.expect(&["restore", &places.backup("b.tree", "kept"), &places.at("data")], 0);
        places.backup("a.hash", "hashes");
        places
    }

    fn at(&self, name: &str) -> String {
        self.0.path(name)
    }

    fn backup(&self, name: &str, to: &str) -> String {
        self.0.expect(&["backup", &self.at(name), &self.at(to)], 0);
        self.at(to)
    }

    /// Copies a directory. Creates the parents of the copy.
    fn put(&self, from: &str, to: &str) -> String {
        let (from, to) = (PathBuf::from(self.at(from)), PathBuf::from(self.at(to)));
        fs::create_dir_all(&to).unwrap();
        for (path, bytes) in tree(&from) {
            let place = to.join(path.strip_prefix(&from).unwrap());
            match bytes {
                None => fs::create_dir_all(place).unwrap(),
                Some(bytes) => {
                    fs::create_dir_all(place.parent().unwrap()).unwrap();
                    fs::write(place, bytes).unwrap();
                }
            }
        }
        to.to_str().unwrap().into()
    }

    /// Runs a command that must be refused with these words and must change nothing. The command
    /// may have opened its source only if it is refused because of the contents of the target.
    fn refused(&self, words: &[&str], complaint: &str) {
        let everything = PathBuf::from(self.at("."));
        let is_opened = complaint.contains("notes.txt") || complaint.contains("is open");
        let source = everything.join(Path::new(words[1]).file_name().unwrap());
        let tree_now = || {
            let mut found = tree(&everything);
            found.retain(|path, _| !(is_opened && path.starts_with(&source)));
            found
        };
        let before = tree_now();
        let outcome = todana().args(words).output().unwrap();
        let said = text(&outcome.stderr);
        assert!(!outcome.status.success(), "{words:?}: {said}");
        assert!(said.contains(complaint), "{words:?}: {said}");
        // Only the names are compared, because a message with the values would fill screens.
        let after = tree_now();
        assert_eq!(after.keys().collect::<Vec<_>>(), before.keys().collect::<Vec<_>>(), "{words:?}");
        assert!(after == before, "{words:?}");
    }
}

#[test]
fn sources_at_the_targets_temporary_path_are_refused() {
    let places = DatabaseFolder::new();
    for (command, from, at, target) in [
        ("salvage", "a.hash", "a1.hash.partial/a1.hash", "a1.hash"),
        ("salvage", "b.tree", "b1.tree.partial/b1.tree", "b1.tree"),
        ("salvage", "b.tree", "b2.tree.salvage.partial/b2.tree.salvage", "b2.tree"),
        ("salvage", "data", "saved.salvage.partial", "saved"),
        ("salvage", "data", "saved3.partial", "saved3"),
        ("restore", "kept", "r.partial", "r"),
        ("restore", "hashes", "f.hash.partial/f.hash", "f.hash"),
        ("copy", "b.tree", "e.tree.partial/e.tree", "e.tree"),
        ("copy", "a.hash", "d.hash.partial/d.hash", "d.hash"),
        ("backup", "a.hash", "j.partial/x.hash", "j"),
        // A killed copy of a hash leaves its files there.
        ("salvage", "a.hash", "a3.hash.partial.partial", "a3.hash"),
        ("salvage", "data", "saved4.salvage.partial.partial", "saved4"),
        ("restore", "hashes", "g.hash.partial.partial", "g.hash"),
    ] {
        let source = places.put(from, at);
        places.refused(&[command, &source, &places.at(target)], "would be created in its place");
    }
    let log = places.put("data", "k.partial");
    places.refused(&["restore", &places.at("kept"), &places.at("k"), "--log", &log], "in its place");
    let log = places.put("data/log", "l.partial");
    places.refused(&["restore", &places.at("kept"), &places.at("l"), "--log", &log], "in its place");
}

#[test]
fn links_to_such_paths_are_resolved() {
    let places = DatabaseFolder::new();
    let source = places.put("a.hash", "a1.hash.partial/a1.hash");
    std::os::unix::fs::symlink(&source, places.at("link.hash")).unwrap();
    places.refused(&["salvage", &places.at("link.hash"), &places.at("a1.hash")], "in its place");
    let elsewhere = TestFolder::new();
    std::os::unix::fs::symlink(places.at("."), elsewhere.path("here")).unwrap();
    places.refused(&["salvage", &source, &elsewhere.path("here/a1.hash")], "in its place");
    places.put("kept", "elsewhere/m");
    std::os::unix::fs::symlink(places.at("elsewhere"), places.at("m.partial")).unwrap();
    places.refused(&["restore", &places.at("elsewhere/m"), &places.at("m")], "in its place");
    places.refused(&["restore", &places.at("kept"), &places.at("m")], "is a symbolic link");
}

#[test]
fn targets_within_the_source_are_refused() {
    let places = DatabaseFolder::new();
    for (command, from, target) in [
        ("restore", "kept", "kept/in"),
        ("restore", "hashes", "hashes/in.hash"),
        ("copy", "a.hash", "a.hash/y.hash"),
        ("copy", "b.tree", "b.tree/y.hash"),
        ("backup", "a.hash", "a.hash/b"),
        ("backup", "data", "data/missing/b"),
        ("salvage", "data", "data/in"),
    ] {
        let complaint = format!("lies within {}", places.at(from));
        places.refused(&[command, &places.at(from), &places.at(target)], &complaint);
    }
}

#[test]
fn foreign_files_at_the_target_stay_untouched() {
    let places = DatabaseFolder::new();
    for (command, from, notes, target) in [
        ("copy", "a.hash", "n.hash.partial/log/notes.txt", "n.hash"),
        ("copy", "b.tree", "o.hash.partial/notes.txt", "o.hash"),
        ("restore", "kept", "o.partial/notes.txt", "o"),
        ("restore", "kept", "p.partial/log/notes.txt", "p"),
        ("restore", "kept", "q.tree.partial/tree/notes.txt", "q.tree"),
        ("salvage", "data", "s.salvage.partial/notes.txt", "s"),
        ("backup", "b.tree", "t.partial/hash/notes.txt", "t"),
    ] {
        let notes = places.at(notes);
        fs::create_dir_all(Path::new(&notes).parent().unwrap()).unwrap();
        fs::write(&notes, "somebody's").unwrap();
        places.refused(
            &[command, &places.at(from), &places.at(target)],
            &format!("{notes}: not a file of an unfinished new database"),
        );
        // The library's own copy from files to files.
        if command == "copy" {
            let error = Db::open(&places.at("a.hash")).unwrap().copy(&places.at(target)).unwrap_err();
            assert!(
                error.to_string().contains("notes.txt: not a file of an unfinished new database"),
                "{error}"
            );
            assert_eq!(fs::read(&notes).unwrap(), b"somebody's");
        }
    }
}

#[test]
fn open_database_is_not_removed_as_a_leftover() {
    let places = DatabaseFolder::new();
    for (from, at, target, tuning) in [
        ("a.hash", "c.hash.partial", "c.hash", "type=hash"),
        ("b.tree", "c.tree.partial", "c.tree", "type=tree"),
        ("a.hash", "d.hash.partial.partial", "d.hash", "type=hash"),
        // The remains of a killed copy have no lock file, and readers do not create one.
        ("a.hash", "e.hash.partial", "e.hash", "type=hash#mode=r"),
        ("a.hash", "f.hash.partial.partial", "f.hash", "type=hash#mode=r"),
    ] {
        let left = places.put(from, at);
        let open = Db::open(&format!("{left}#{tuning}")).unwrap();
        places.refused(&["copy", &places.at("b.tree"), &places.at(target)], "is open ");
        drop(open);
        // A directory that no process has open counts as remains.
        places.0.expect(&["copy", &places.at("b.tree"), &places.at(target)], 0);
        assert!(!Path::new(&left).exists());
        assert_eq!(Db::open(&places.at(target)).unwrap().count(), 2);
    }
}
