//! The commands on whole databases, for each place of records: a hash and a tree on disk, a data
//! directory, and a server. Each command works in the same way there, or names the command to use
//! instead.

use crate::running;

use running::{RunningServer, TestFolder, expect, refused, stop, text};

const LINES: &str = "a\t1\nab\t2\nb\t3\t7\nc\t4\t0\t2000000000\n";

/// Creates a folder with the same records in every place, and a server with them.
fn everywhere() -> (TestFolder, RunningServer, [String; 4]) {
    let folder = TestFolder::new();
    let [hash, tree, data] = ["x.hash", "x.tree", "data"].map(|name| folder.path(name));
    for name in [&hash, &tree] {
        assert!(folder.import(name, LINES).status.success());
    }
    let server = RunningServer::start(&["--data-dir", &data, "--admin-port", "0"]);
    assert!(folder.import(&server.address, LINES).status.success());
    stop(server);
    let server = RunningServer::start(&["--admin-port", "0"]);
    assert!(folder.import(&server.address, LINES).status.success());
    let address = server.address.clone();
    (folder, server, [hash, tree, data, address])
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

#[test]
fn reading_commands_agree_on_every_place() {
    let (_folder, _server, places) = everywhere();
    for place in &places {
        assert_eq!(expect(&["count", place], 0), "4\n", "{place}");
        assert_eq!(expect(&["get", "b", "-S", place], 0), "3", "{place}");
        assert_eq!(expect(&["get", "a", "nope", "-S", place], 1), "1\n", "{place}");
        assert_eq!(sorted(&expect(&["export", place], 0)), sorted(LINES), "{place}");
        assert_eq!(sorted(&expect(&["list", place], 0)), ["a", "ab", "b", "c"], "{place}");
        assert_eq!(
            sorted(&expect(&["list", place, "--values"], 0)),
            ["a\t1", "ab\t2", "b\t3", "c\t4"],
            "{place}"
        );
        assert_eq!(sorted(&expect(&["list", place, "--prefix", "a"], 0)), ["a", "ab"], "{place}");
        assert_eq!(sorted(&expect(&["list", place, "--from", "ab", "--to", "c"], 0)), ["ab", "b"], "{place}");
        assert_eq!(expect(&["list", place, "--limit", "2"], 0).lines().count(), 2, "{place}");
        assert_eq!(expect(&["list", place, "--limit", "0"], 0), "", "{place}");
        let printed: serde_json::Value =
            serde_json::from_str(&expect(&["inform", place, "--json"], 0)).unwrap();
        let records = if printed["records"].is_null() { &printed["curr_items"] } else { &printed["records"] };
        assert!(*records == serde_json::json!(4) || *records == serde_json::json!("4"), "{place}: {printed}");
    }
    // Ordered databases can be listed in both directions. The others report that they cannot.
    for place in &places[1..3] {
        assert_eq!(expect(&["list", place, "--reverse", "--limit", "2"], 0), "c\nb\n", "{place}");
    }
    for place in [&places[0], &places[3]] {
        assert!(refused(&["list", place, "--reverse"], 2).contains("tree"), "{place}");
    }
}

#[test]
fn writing_commands_agree_on_every_place() {
    let (folder, _server, places) = everywhere();
    for place in &places {
        expect(&["set", "n", "41", "-S", place], 0);
        assert_eq!(expect(&["incr", "n", "-S", place], 0), "42\n", "{place}");
        expect(&["delete", "a", "-S", place], 0);
        expect(&["delete", "a", "-S", place], 1);
        assert!(folder.import(place, "d\t5\n").status.success());
        assert_eq!(sorted(&expect(&["list", place], 0)), ["ab", "b", "c", "d", "n"], "{place}");
    }
    // A server finds the changes that were made to the data directory.
    let server = RunningServer::start(&["--data-dir", &places[2], "--admin-port", "0"]);
    assert_eq!(server.expect(&["get", "n", "d"], 0), "42\n5\n");
    let complaint = refused(&["count", &places[2]], 3);
    assert!(complaint.contains("in use"), "{complaint}");
}

#[test]
fn copy_and_merge_read_every_place_except_servers() {
    let (folder, _server, places) = everywhere();
    for (number, place) in places[..3].iter().enumerate() {
        for kind in ["hash", "tree"] {
            let copy = folder.path(&format!("copy{number}.{kind}"));
            expect(&["copy", place, &copy], 0);
            assert_eq!(sorted(&expect(&["export", &copy], 0)), sorted(LINES), "{place} {kind}");
        }
    }
    let all = folder.path("all.tree");
    expect(&["merge", &all, &places[0], &places[1], &places[2]], 0);
    assert_eq!(expect(&["list", &all], 0), "a\nab\nb\nc\n");
    // Into a data directory too.
    expect(&["set", "new", "1", "-S", &all], 0);
    expect(&["merge", &places[2], &all], 0);
    assert_eq!(expect(&["get", "new", "-S", &places[2]], 0), "1");

    let server = &places[3];
    let copy = folder.path("from-server.tree");
    assert!(refused(&["copy", server, &copy], 2).contains("todana dump"));
    assert!(refused(&["merge", &copy, server], 2).contains("todana dump"));
    assert!(refused(&["copy", &all, server], 2).contains("todana load"));
    assert!(refused(&["merge", server, &all], 2).contains("todana load"));
    assert!(refused(&["copy", &all, &folder.path("elsewhere")], 2).contains("x.tree"));
    assert!(refused(&["compact", server], 2).contains("by itself"));
    assert!(refused(&["check", server], 2).contains("todana verify"));
}

#[test]
fn verify_and_compact_know_each_kind() {
    let (_folder, _server, places) = everywhere();
    let [hash, tree, data, _] = &places;
    for place in [hash, tree] {
        for command in ["verify", "check", "repair"] {
            assert!(expect(&[command, place], 0).starts_with("intact: 4 records"), "{command} {place}");
        }
    }
    for command in ["verify", "check", "repair"] {
        assert!(expect(&[command, data], 0).contains("bytes of checkpoints and log are intact"));
    }
    expect(&["compact", hash], 0);
    assert!(refused(&["compact", tree], 2).contains("todana copy"));
    assert!(refused(&["compact", data], 2).contains("todana restore"));
    for place in [hash, data] {
        assert_eq!(sorted(&expect(&["export", place], 0)), sorted(LINES), "{place}");
    }
}

#[test]
fn wrong_directories_and_memory_databases_are_explained() {
    let folder = TestFolder::new();
    let missing = folder.path("gone");
    std::fs::create_dir(folder.path("empty")).unwrap();
    for words in [&["count"][..], &["list"], &["inform"], &["export"], &["get", "a", "-S"]] {
        let at = |place: &str, code| refused(&[words, &[place]].concat(), code);
        assert!(at(&missing, 3).contains("does not exist"), "{words:?}");
        assert!(at(&folder.path("empty"), 3).contains("not a data directory"), "{words:?}");
        for name in ["*", "%", "mem:tree"] {
            assert!(at(name, 2).contains("memory of its server"), "{words:?}");
        }
    }
    // The command creates no database either.
    assert!(refused(&["set", "a", "1", "-S", &missing], 3).contains("does not exist"));
    assert!(folder.import(&missing, "a\t1\n").status.code() == Some(3));
    assert!(!std::path::Path::new(&missing).exists());
    assert_eq!(std::fs::read_dir(folder.path("empty")).unwrap().count(), 0);
    folder.import("x.tree", LINES);
    folder.expect(&["backup", "x.tree", "saved"], 0);
    let complaint = folder.complaint(&["count", "./saved"], 2);
    assert!(complaint.contains("todana restore"), "{complaint}");
    let complaint = folder.complaint(&["bench", "./saved"], 2);
    assert!(!complaint.is_empty() && text(complaint.as_bytes()).contains("backup"), "{complaint}");
}
