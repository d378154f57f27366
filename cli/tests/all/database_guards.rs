//! Commands never damage a database on disk, by whatever name it is given.

use crate::running;

use running::{text, todana};
use std::fs;
use std::path::Path;

/// Runs a command in a folder. Returns its exit code, output and error.
fn run(folder: &Path, words: &[&str]) -> (Option<i32>, String, String) {
    let output = todana().args(words).current_dir(folder).output().unwrap();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn folder_with(name: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for key in ["a", "b", "c"] {
        assert_eq!(run(folder.path(), &["set", key, "value", "-S", name]).0, Some(0));
    }
    folder
}

fn count(folder: &Path, name: &str) -> String {
    run(folder, &["count", name]).1
}

#[test]
fn slash_after_a_tree_name_changes_nothing() {
    let folder = folder_with("./u.tree");
    let at = folder.path();
    assert_eq!(run(at, &["verify", "./u.tree/"]).0, Some(0));
    assert_eq!(run(at, &["salvage", "./u.tree/", "./v.tree"]).0, Some(0));
    assert_eq!(count(at, "./v.tree/"), "3\n");
    assert_eq!(fs::read_dir(at.join("u.tree/checkpoints")).unwrap().count(), 0);
    assert_eq!(run(at, &["backup", "./u.tree/", "bk"]).0, Some(0));
    assert_eq!(run(at, &["verify", "bk"]).0, Some(0));
    assert_eq!(fs::read_dir(at.join("u.tree/checkpoints")).unwrap().count(), 0);
    assert_eq!(count(at, "./u.tree/"), "3\n");
}

#[test]
fn renamed_tree_is_refused_as_data_directory() {
    let folder = folder_with("./u.tree");
    let at = folder.path();
    fs::rename(at.join("u.tree"), at.join("users")).unwrap();
    for words in [&["verify", "users"][..], &["backup", "./users", "bk"], &["restore", "users", "made"]] {
        let (code, _, complaint) = run(at, words);
        assert_eq!(code, Some(2), "{words:?}: {complaint}");
        assert!(complaint.contains("is a tree on disk, no"), "{words:?}: {complaint}");
    }
    assert!(!at.join("bk").exists() && !at.join("made").exists());
    fs::rename(at.join("users"), at.join("u.tree")).unwrap();
    assert_eq!(fs::read_dir(at.join("u.tree/checkpoints")).unwrap().count(), 0);
    assert_eq!(count(at, "./u.tree"), "3\n");
}

#[test]
fn reading_commands_never_empty_a_database() {
    for (plain, kind) in [("./x.hash", "hash"), ("./x.tree", "tree")] {
        let folder = folder_with(plain);
        let at = folder.path();
        for tuning in ["mode=wct", "erase=true"] {
            let name = &format!("{plain}#{tuning}");
            for words in [
                &["check", name][..],
                &["count", name],
                &["list", name],
                &["inform", name],
                &["export", name],
                &["copy", name, "./other.hash"],
                &["merge", "./other.hash", name],
                &["compact", name],
                &["repair", name, "--yes"],
                &["get", "a", "-S", name],
                &["delete", "a", "-S", name],
            ] {
                assert_ne!(run(at, words).0, Some(0), "{kind}: {words:?}");
                assert_eq!(count(at, plain), "3\n", "{kind}: {words:?}");
            }
            assert!(run(at, &["check", name]).2.contains("would be emptied when opened"));
        }
        assert!(!at.join("other.hash").exists());
    }
}

#[test]
fn check_reports_a_new_tree_as_intact() {
    for name in ["./x.tree", "./x.hash"] {
        let folder = folder_with(name);
        let (code, out, _) = run(folder.path(), &["check", name]);
        assert_eq!((code, out.contains("checksum")), (Some(0), false), "{out}");
    }
}

/// A changed byte of a value was once reported as intact, because trees had no checksums.
#[test]
fn check_finds_a_changed_byte_in_a_tree() {
    let folder = folder_with("./x.tree");
    assert_eq!(run(folder.path(), &["check", "./x.tree"]).0, Some(0));
    let path = folder.path().join("x.tree/tree/data.mdb");
    let mut file = std::fs::read(&path).unwrap();
    // The tag of a plain record, and its value.
    let places: Vec<_> = (0..file.len() - 1).filter(|&at| file[at..].starts_with(b"\0value")).collect();
    assert!(!places.is_empty());
    places.iter().for_each(|at| file[at + 1] = b'9');
    std::fs::write(&path, &file).unwrap();
    let (code, out, _) = run(folder.path(), &["check", "./x.tree"]);
    assert!(
        code == Some(1) && out.starts_with("damaged: ") && out.contains("checksum differs"),
        "{code:?} {out}"
    );
}
