//! `todana salvage` of a tree on disk that has lost its update log.

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
fn tree_without_its_log_is_salvaged() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    fs::write(at.join("records.tsv"), "a\t1\nb\t2\n").unwrap();
    run(at, &["import", "./u.tree", "records.tsv"], 0);
    fs::remove_dir_all(at.join("u.tree/log")).unwrap();

    let (_, complaint) = run(at, &["count", "./u.tree"], 3);
    assert!(
        complaint.contains("`todana salvage ./u.tree TARGET` recovers the intact records"),
        "{complaint}"
    );
    let (said, printed) = run(at, &["salvage", "./u.tree", "./v.tree"], 0);
    for part in [
        "./u.tree/log",
        "log from position",
        "is missing",
        "saved, with 2 records",
        "after the last checkpoint",
    ] {
        assert!(printed.contains(part), "{part}: {printed}");
    }
    assert!(said.starts_with("./v.tree: 2 records restored"), "{said}");
    run(at, &["count", "./u.tree"], 3);
    assert_eq!(run(at, &["list", "./v.tree", "--values"], 0).0, "a\t1\nb\t2\n");
    run(at, &["import", "./v.tree", "records.tsv"], 0);
    assert!(run(at, &["verify", "./v.tree"], 0).0.starts_with("intact: 2 records"));
}
