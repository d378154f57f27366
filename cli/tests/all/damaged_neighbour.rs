//! If one of a server's databases is damaged, the others lose nothing.

use crate::running;

use running::{RunningServer, TestFolder, text, todana};
use std::path::{Path, PathBuf};

const GOOD: &str = "good.hash";
const BAD: &str = "bad.hash";

/// Creates two databases with some records each.
fn two() -> TestFolder {
    let folder = TestFolder::new();
    let lines: String = (0..50).map(|n| format!("key{n}\tvalue number {n} of fifty\n")).collect();
    for name in [GOOD, BAD] {
        assert!(folder.import(name, &lines).status.success());
    }
    folder
}

fn segments(folder: &Path) -> Vec<PathBuf> {
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let is_segment = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "segment");
    let mut paths: Vec<PathBuf> = paths.filter(is_segment).collect();
    paths.sort();
    paths
}

/// Flips a bit of these bytes in the segments of a database. Returns the changed file.
fn damage(folder: &Path, bytes: &[u8]) -> PathBuf {
    for path in segments(folder) {
        let mut content = std::fs::read(&path).unwrap();
        if let Some(at) = content.windows(bytes.len()).position(|window| window == bytes) {
            content[at] ^= 1;
            std::fs::write(&path, content).unwrap();
            return path;
        }
    }
    panic!("no segment holds {bytes:?}");
}

fn names(folder: &TestFolder) -> [String; 2] {
    [GOOD, BAD].map(|name| folder.path(name))
}

#[test]
fn damaged_database_prevents_start_and_spares_the_others() {
    let folder = two();
    // The log must be read at the opening, as after a crash.
    let [good, bad] = names(&folder);
    std::fs::remove_file(Path::new(&bad).join("index")).unwrap();
    // The marks after these bytes prove that the bytes were on disk.
    folder.expect(&["set", "later", "1", "-S", BAD], 0);
    std::fs::remove_file(Path::new(&bad).join("index")).unwrap();
    let spoiled = damage(bad.as_ref(), b"value number 7 of");
    for order in [[&good, &bad], [&bad, &good]] {
        let output = todana().args(["serve", "-p", "-1"]).args(order).output().unwrap();
        assert!(!output.status.success());
        let printed = text(&output.stderr);
        assert!(printed.contains(spoiled.to_str().unwrap()) && printed.contains("offset"), "{printed}");
        assert_eq!(text(&output.stdout), "", "it listens");
        assert_eq!(folder.expect(&["get", "key7", "-S", GOOD], 0), "value number 7 of fifty");
    }
    let server = RunningServer::start(&[&good]);
    assert_eq!(server.expect(&["get", "key7"], 0), "value number 7 of fifty");
    running::stop(server);
    assert_eq!(folder.expect(&["count", GOOD], 0), "50\n");
}

#[test]
fn damaged_record_of_one_database_spares_another() {
    let folder = two();
    let [good, bad] = names(&folder);
    damage(bad.as_ref(), b"value number 7 of");
    let start = || RunningServer::start(&["--sync", "always", &good, &bad]);
    let mut server = start();
    for n in 0..20 {
        server.expect(&["set", &format!("new{n}"), "acknowledged"], 0);
    }
    server.signal("KILL");
    server.child.wait().unwrap();
    let server = start();
    for n in 0..20 {
        assert_eq!(server.expect(&["get", &format!("new{n}")], 0), "acknowledged");
    }
    assert_eq!(server.expect(&["get", "key7"], 0), "value number 7 of fifty");
    running::stop(server);
    assert_eq!(folder.expect(&["get", "key8", "-S", BAD], 0), "value number 8 of fifty");
    let printed = folder.complaint(&["get", "key7", "-S", BAD], 3);
    assert!(printed.contains("damaged") || printed.contains("checksum"), "{printed}");
    // A damaged record can be overwritten.
    folder.expect(&["set", "key7", "new", "-S", BAD], 0);
    assert_eq!(folder.expect(&["get", "key7", "-S", BAD], 0), "new");
    assert_eq!(folder.expect(&["count", BAD], 0), "50\n");
}
