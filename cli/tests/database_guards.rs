//! What a command must not do to a database on disk, however it is named.

mod running;

use running::{text, todana};
use std::fs;
use std::path::Path;

/// Runs a command in a folder; returns its exit code, output and complaint.
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
fn a_slash_behind_the_name_of_a_tree_makes_no_data_directory_of_it() {
    let folder = folder_with("./u.tree");
    let at = folder.path();
    assert_ne!(run(at, &["repair", "./u.tree/"]).0, Some(0));
    assert_eq!(run(at, &["repair", "./u.tree/", "--yes"]).0, Some(0));
    assert_eq!(fs::read_dir(at.join("u.tree/checkpoints")).unwrap().count(), 0);
    assert_eq!(run(at, &["verify", "./u.tree/"]).0, Some(2));
    assert_eq!(run(at, &["backup", "./u.tree/", "bk"]).0, Some(0));
    assert_eq!(run(at, &["verify", "bk"]).0, Some(0));
    assert_eq!(fs::read_dir(at.join("u.tree/checkpoints")).unwrap().count(), 0);
    assert_eq!(count(at, "./u.tree/"), "3\n");
}

#[test]
fn a_tree_under_another_name_is_refused_where_a_data_directory_is_wanted() {
    let folder = folder_with("./u.tree");
    let at = folder.path();
    fs::rename(at.join("u.tree"), at.join("users")).unwrap();
    for words in [
        &["repair", "users"][..],
        &["repair", "users", "--yes"],
        &["verify", "users"],
        &["backup", "./users", "bk"],
        &["restore", "users", "made"],
        &["restore", "--damaged", "users", "made"],
    ] {
        let (code, _, complaint) = run(at, words);
        assert_eq!(code, Some(2), "{words:?}: {complaint}");
        assert!(complaint.contains("is a tree on disk, no data directory"), "{words:?}: {complaint}");
    }
    assert!(!at.join("bk").exists() && !at.join("made").exists());
    fs::rename(at.join("users"), at.join("u.tree")).unwrap();
    assert_eq!(fs::read_dir(at.join("u.tree/checkpoints")).unwrap().count(), 0);
    assert_eq!(count(at, "./u.tree"), "3\n");
}

#[test]
fn no_name_has_a_command_empty_what_it_is_to_read() {
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
            assert!(run(at, &["check", name]).2.contains("is emptied when it is opened"));
        }
        assert!(!at.join("other.hash").exists());
    }
}

#[test]
fn a_check_of_a_tree_says_that_its_values_carry_no_checksums() {
    let said = "values carry no checksums";
    for (name, says) in [("./x.tree", true), ("./x.hash", false)] {
        let folder = folder_with(name);
        let (code, out, _) = run(folder.path(), &["check", name]);
        assert_eq!((code, out.contains(said)), (Some(0), says), "{out}");
    }
}
