//! `todana salvage` of a tree on disk that has lost its update log, and of a damaged table.

use crate::running;

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

/// A table whose damaged block holds the definitions of its indexes could not be salvaged, and
/// `verify` did not suggest it.
#[test]
fn table_with_damaged_definitions_is_salvaged() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    fs::write(at.join("rows.tsv"), "a\tname\\x00Ann\nb\tname\\x00Bob\n").unwrap();
    run(at, &["import", "./u.table#idx=name:lex", "rows.tsv"], 0);
    let file = at.join("u.table/table/data.mdb");
    let mut bytes = fs::read(&file).unwrap();
    // The leaf page with the only block, whose fence is a zero byte, ends with the block.
    let is_leaf = |page: &&mut [u8]| {
        let node = usize::from(u16::from_le_bytes([page[16], page[17]]));
        page[10] == 2 && page.get(node + 6..node + 9) == Some(&[1, 0, 0])
    };
    bytes.chunks_mut(4096).find(is_leaf).unwrap()[4095] ^= 1;
    fs::write(&file, bytes).unwrap();

    let advice = "`todana salvage ./u.table TARGET` recovers the intact records";
    let (_, complaint) = run(at, &["count", "./u.table"], 3);
    assert!(complaint.contains(advice), "{complaint}");
    let (said, _) = run(at, &["verify", "./u.table"], 1);
    assert!(
        said.contains("it begins with the definitions of the indexes") && said.contains(advice),
        "{said}"
    );
    let (said, printed) = run(at, &["salvage", "./u.table", "./v.table"], 0);
    assert!(said.starts_with("./v.table: 0 records restored"), "{said}");
    assert!(printed.contains("left out; damaged records or blocks in total: 1, with "), "{printed}");
    let lost = "the definitions of the indexes, if there were any, are lost: the new table has no indexes";
    assert!(printed.contains(lost), "{printed}");
    assert_eq!(run(at, &["list", "./v.table"], 0).0, "");
}
