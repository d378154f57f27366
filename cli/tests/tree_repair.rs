//! `todana repair` on a tree on disk that has lost its update log.

mod running;

use running::{text, todana};
use std::fs;
use std::path::Path;

fn run(folder: &Path, words: &[&str], code: i32) -> (String, String) {
    let outcome = todana().args(words).current_dir(folder).output().unwrap();
    let (said, complaint) = (text(&outcome.stdout), text(&outcome.stderr));
    assert_eq!(outcome.status.code(), Some(code), "{words:?}: {said}{complaint}");
    (said, complaint)
}

#[test]
fn tree_whose_log_is_lost_is_repaired_when_told() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    fs::write(at.join("records.tsv"), "a\t1\nb\t2\n").unwrap();
    run(at, &["import", "./u.tree", "records.tsv"], 0);
    fs::remove_dir_all(at.join("u.tree/log")).unwrap();

    let (_, complaint) = run(at, &["count", "./u.tree"], 3);
    assert!(complaint.contains("`todana repair ./u.tree` shows what can be saved"), "{complaint}");
    let (told, _) = run(at, &["repair", "./u.tree"], 1);
    for part in ["log from position", "is missing", "to be saved, with 2 records", "--yes does it"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    run(at, &["count", "./u.tree"], 3);
    let (told, _) = run(at, &["repair", "./u.tree", "--yes"], 0);
    for part in
        ["what was acknowledged behind the last checkpoint is lost", "is repaired", "whole: 2 records"]
    {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert_eq!(run(at, &["list", "./u.tree", "--values"], 0).0, "a\t1\nb\t2\n");
    run(at, &["import", "./u.tree", "records.tsv"], 0);
    let (told, _) = run(at, &["repair", "./u.tree", "--yes"], 0);
    assert!(told.starts_with("whole: 2 records"), "{told}");
}
