//! Backups of databases on disk, with and without a running server: verified, restored, and
//! compared record by record.

use crate::running;

use running::{RunningServer, TestFolder, text, todana};
use std::fs;
use std::io::{BufRead, Write};
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Returns all records of a database or a server as text, in the order of their keys.
fn records(folder: &TestFolder, place: &str) -> Vec<String> {
    let exported = folder.expect(&["export", place], 0);
    let mut lines: Vec<String> = exported.lines().map(String::from).collect();
    lines.sort();
    lines
}

fn fill(folder: &TestFolder, place: &str, lines: &str) {
    assert!(folder.import(place, lines).status.success());
}

/// Returns records with all possible attributes, and one that is longer than a piece of a backup.
fn many() -> String {
    let mut lines: Vec<String> = (0..5000).map(|number| format!("k{number:05}\tvalue {number}\n")).collect();
    lines.push(format!("long\t{}\n", "x".repeat(3_000_000)));
    lines.push("flagged\t1\t77\n".into());
    lines.push("mortal\t1\t0\t4000000000\n".into());
    lines.push("sliding\t1\t5\t4000000000~300\n".into());
    lines.push("odd\\x00\\t\t\\n\n".into());
    lines.concat()
}

fn largest_file(directory: &Path) -> std::path::PathBuf {
    let files = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    files.max_by_key(|path| path.metadata().unwrap().len()).unwrap()
}

#[test]
fn backup_without_a_server_restores_every_record() {
    for (name, to) in [("x.hash", &["again.hash"][..]), ("x.tree", &["again.tree", "again.hash"])] {
        let folder = TestFolder::new();
        fill(&folder, name, &many());
        let all = records(&folder, name);
        assert_eq!(all.len(), 5005);
        let said = folder.expect(&["backup", name, "saved"], 0);
        assert!(said.contains("5005 records"), "{said}");
        let said = folder.expect(&["verify", "saved"], 0);
        assert!(said.starts_with("a backup as of 2"), "{said}");
        for to in to {
            let said = folder.expect(&["restore", "saved", to], 0);
            assert!(said.starts_with(&format!("{to}: 5005 records")), "{said}");
            assert_eq!(records(&folder, to), all);
            assert!(folder.expect(&["check", to], 0).starts_with("intact: 5005 records"));
            // The result is an ordinary database, which can be written and opened again.
            folder.expect(&["set", "new", "1", "-S", to], 0);
            assert_eq!(folder.expect(&["get", "new", "-S", to], 0), "1");
            assert!(folder.complaint(&["restore", "saved", to], 2).contains("exists already"));
        }
        // The source has continued unchanged.
        assert_eq!(records(&folder, name), all);
        assert!(folder.complaint(&["backup", name, "saved"], 2).contains("exists already"));
    }
}

#[test]
fn numbered_records_survive_copies_backups_and_salvage() {
    let folder = TestFolder::new();
    let mut lines: Vec<String> = (1..=5000).map(|number| format!("{number}\tvalue {number}\n")).collect();
    lines.push("6001\t1\t77\n6002\t1\t0\t4000000000\n6003\t1\t5\t4000000000~300\n".into());
    lines.push("6004\t\n".into());
    // The database keeps the width with which it is created.
    fill(&folder, "x.fixed#width=20", &lines.concat());
    let all = records(&folder, "x.fixed");
    assert_eq!(all.len(), 5004);
    assert!(!folder.import("x.fixed", "7000\tmore than twenty bytes\n").status.success());
    assert!(!folder.import("x.fixed", "word\t1\n").status.success());
    assert_eq!(folder.expect(&["list", "x.fixed", "--limit", "3"], 0), "1\n2\n3\n");
    assert!(folder.expect(&["verify", "x.fixed"], 0).starts_with("intact: 5004 records"));

    folder.expect(&["copy", "x.fixed", "copy.hash"], 0);
    folder.expect(&["copy", "copy.hash", "copy.fixed"], 0);
    folder.expect(&["backup", "x.fixed", "saved"], 0);
    assert!(folder.expect(&["verify", "saved"], 0).starts_with("a backup as of 2"));
    for to in ["again.fixed", "again.tree"] {
        folder.expect(&["restore", "saved", to], 0);
    }
    fs::remove_dir_all(folder.path("copy.fixed") + "/log").unwrap();
    folder.complaint(&["count", "copy.fixed"], 3);
    folder.expect(&["salvage", "copy.fixed", "salvaged.fixed"], 0);
    for name in ["copy.hash", "again.fixed", "again.tree", "salvaged.fixed"] {
        assert!(records(&folder, name) == all, "{name}");
    }
    // The directory cannot be opened as another kind.
    fs::rename(folder.path("again.fixed"), folder.path("other.tree")).unwrap();
    assert!(folder.complaint(&["count", "other.tree"], 2).contains("a numbered database on disk"));

    // The records move to a database in memory with a data directory, and back.
    let data = folder.path("data");
    folder.expect(&["restore", "saved", "data"], 0);
    for restart in [false, true] {
        let server = RunningServer::start(&["mem:fixed#width=20", "--data-dir", &data]);
        assert_eq!(server.expect(&["get", "0017"], 0), "value 17");
        assert_eq!(server.expect(&["get", "max"], 0), if restart { "new" } else { "" });
        assert_eq!(server.expect(&["count", &server.address], 0), if restart { "5005\n" } else { "5004\n" });
        server.expect(&["set", "next", "new"], 0);
        server.expect(&["delete", "1"], 0);
        if !restart {
            server.expect(&["set", "1", "value 1"], 0);
        }
    }
}

#[test]
fn tree_restores_to_memory_hash_names_its_target() {
    let folder = TestFolder::new();
    fill(&folder, "x.tree", &many());
    folder.expect(&["backup", "x.tree", "saved"], 0);
    folder.expect(&["restore", "saved", "data"], 0);
    let server = RunningServer::start(&["-m", "0", "--data-dir", &folder.path("data")]);
    assert_eq!(server.expect(&["get", "k00017"], 0), "value 17");
    assert_eq!(server.expect(&["count", &server.address], 0), "5005\n");
    drop(server);
    // A data directory can also be restored to a database on disk, without reading all records into
    // memory.
    folder.expect(&["restore", "data", "from-data.tree"], 0);
    assert_eq!(records(&folder, "from-data.tree"), records(&folder, "x.tree"));

    fill(&folder, "x.hash", "a\t1\n");
    folder.expect(&["backup", "x.hash", "files"], 0);
    for target in ["data2", "x2.tree"] {
        assert!(folder.complaint(&["restore", "files", target], 2).contains("NAME.hash"));
    }
    assert!(folder.complaint(&["restore", "files", "y.hash", "--until", "1"], 2).contains("without a log"));
    assert!(folder.complaint(&["serve", "--data-dir", "files"], 3).contains("is a backup"));
    assert!(!Path::new(&folder.path("y.hash")).exists() && !Path::new(&folder.path("x2.tree")).exists());
}

#[test]
fn damaged_hash_is_backed_up_and_reported_everywhere() {
    let folder = TestFolder::new();
    // Because of one remaining record, the segment stays, with the old records in it.
    fill(&folder, "x.hash", "stays\t1\nold\ta value that is replaced\n");
    fill(&folder, "x.hash", "old\tnew\nother\t1\n");
    let segments = fs::read_dir(folder.path("x.hash")).unwrap().map(|entry| entry.unwrap().path());
    let what = b"a value that is replaced";
    let spoilt = segments.filter(|path| path.extension().is_some_and(|end| end == "segment")).any(|path| {
        let mut bytes = fs::read(&path).unwrap();
        let Some(at) = bytes.windows(what.len()).position(|found| found == what) else { return false };
        bytes[at] ^= 0xff;
        fs::write(&path, bytes).is_ok()
    });
    assert!(spoilt);
    let said = folder.complaint(&["backup", "x.hash", "saved"], 1);
    assert!(said.contains("already damaged in the source: saved/hash/"), "{said}");
    let said = folder.expect(&["verify", "saved"], 1);
    assert!(said.contains("damaged: saved/hash/"), "{said}");
    let said = folder.complaint(&["restore", "saved", "y.hash"], 3);
    assert!(said.contains("`todana salvage saved TARGET` recovers"), "{said}");
    let said = folder.complaint(&["salvage", "saved", "data"], 2);
    assert!(said.contains("name it NAME.hash"), "{said}");
    assert_eq!(folder.expect(&["get", "old", "-S", "x.hash"], 0), "new");
}

/// A single writer counts up. A backup has all numbers up to the one of its time, and none after
/// it.
fn assert_consistent(records: &[String], at_least: u64) {
    let numbers: Vec<u64> =
        records.iter().filter_map(|line| line.strip_prefix('n')?.split('\t').next()?.parse().ok()).collect();
    let count = numbers.len() as u64;
    assert!(count > at_least, "{count} of {at_least} that had been acknowledged");
    assert!(numbers.iter().copied().eq(0..count), "a number is missing among {count}");
    let last = |name: &str| -> u64 {
        let line = records.iter().find(|line| line.starts_with(&format!("{name}\t"))).unwrap();
        line.split('\t').nth(1).unwrap().parse().unwrap()
    };
    // For each number, the writer stores two more records in this order: `first`, the number,
    // `second`.
    let (first, second) = (last("first"), last("second"));
    let all = [(count - 1, count - 1), (count - 1, count.wrapping_sub(2)), (count, count - 1)];
    assert!(all.contains(&(first, second)), "{count}: {first}, {second}");
}

#[test]
fn backup_of_a_running_server_is_consistent() {
    for name in ["x.hash", "x.tree"] {
        let folder = TestFolder::new();
        fill(&folder, name, &many());
        let server = RunningServer::start(&[&folder.path(name), "-t", "2", "--admin-port", "0"]);
        let (written, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut connection = server.talk();
                let mut line = String::new();
                for number in 0u64.. {
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                    let digits = number.to_string();
                    let set = |key: &str| format!("set {key} 0 0 {}\r\n{digits}\r\n", digits.len());
                    let all = [set("first"), set(&format!("n{number:09}")), set("second")].concat();
                    connection.get_mut().write_all(all.as_bytes()).unwrap();
                    for _ in 0..3 {
                        line.clear();
                        connection.read_line(&mut line).unwrap();
                        assert_eq!(line, "STORED\r\n");
                    }
                    written.store(number, Ordering::SeqCst);
                }
            });
            for round in 0..4 {
                // A record was written since the last backup.
                let before = written.load(Ordering::SeqCst);
                while written.load(Ordering::SeqCst) < before + 100 {
                    std::thread::yield_now();
                }
                let acknowledged = written.load(Ordering::SeqCst);
                let (saved, again) = (format!("saved{round}"), format!("again{round}.{}", &name[2..]));
                let said = folder.expect(&["backup", &server.address, &saved], 0);
                assert!(said.contains("records"), "{said}");
                folder.expect(&["verify", &saved], 0);
                folder.expect(&["restore", &saved, &again], 0);
                let records = records(&folder, &again);
                assert_consistent(&records, acknowledged);
                let others = records.iter().filter(|line| line.starts_with('k')).count();
                assert_eq!(others, 5000);
            }
            is_over.store(true, Ordering::Relaxed);
        });
    }
}

/// If compaction removes files while they are sent, they are sent completely nevertheless.
#[test]
fn hash_backup_is_complete_during_compaction() {
    let folder = TestFolder::new();
    let lines = |round: u32| -> String {
        (0..8000).map(|number| format!("k{number}\t{round}{}\n", "x".repeat(1000))).collect()
    };
    fill(&folder, "x.hash", &lines(0));
    let server = RunningServer::start(&[&folder.path("x.hash"), "-t", "2", "--admin-port", "0"]);
    let before = records(&folder, &server.address);
    let files = |path: &str| fs::read_dir(path).unwrap().count();
    let first = fs::read_dir(folder.path("x.hash")).unwrap().map(|entry| entry.unwrap().path());
    let first: Vec<_> =
        first.filter(|path| path.extension().is_some_and(|extension| extension == "segment")).collect();
    let mut slow = todana()
        .args(["backup", &server.address, "saved", "--rate", "4m"])
        .current_dir(folder.0.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // The backup has started when its directory exists and contains data.
    while !Path::new(&folder.path("saved.partial/hash")).exists()
        || files(&folder.path("saved.partial/hash")) == 0
    {
        std::thread::yield_now();
    }
    for round in 1..4 {
        fill(&folder, &server.address, &lines(round));
    }
    // The loop ends when a file from the start has been removed, or when the backup has ended
    // before that.
    while first.iter().all(|path| path.exists()) && slow.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    assert!(slow.wait().unwrap().success());
    folder.expect(&["verify", "saved"], 0);
    folder.expect(&["restore", "saved", "again.hash"], 0);
    assert_eq!(records(&folder, "again.hash"), before);
}

#[test]
fn databases_are_backed_up_by_number_or_name() {
    let folder = TestFolder::new();
    fill(&folder, "x.tree", "in\tthe tree\n");
    fill(&folder, "x.hash", "in\tthe hash\n");
    let (tree, hash) = (format!("users={}", folder.path("x.tree")), folder.path("x.hash"));
    let server = RunningServer::start(&["mem:hash", &tree, &hash, "--admin-port", "0"]);
    let backup = |name: &str, to: &str, code| {
        let output = folder.run(&["backup", &server.address, to, "--database", name]);
        assert_eq!(output.status.code(), Some(code), "{name}: {}", text(&output.stderr));
        text(&output.stderr)
    };
    backup("users", "tree", 0);
    backup("1", "tree by number", 0);
    backup(&hash, "hash", 0);
    for (saved, to, value) in [
        ("tree", "a.tree", "the tree"),
        ("tree by number", "b.tree", "the tree"),
        ("hash", "c.hash", "the hash"),
    ] {
        folder.expect(&["restore", saved, to], 0);
        assert_eq!(folder.expect(&["get", "in", "-S", to], 0), value);
    }
    assert!(backup("nobody", "none", 3).contains("--database nobody: the server has no such database"));
    assert!(backup("3", "none", 3).contains("no database of this number"));
    assert!(backup("0", "none", 3).contains("no data directory"));
    assert!(!Path::new(&folder.path("none")).exists());
    // The same for checkpoints and the log.
    let said = folder.expect(&["checkpoint", &server.address, "--database", "users"], 0);
    assert!(said.starts_with("a checkpoint of 1 record"), "{said}");
    let said = folder.expect(&["log", &server.address, "--database", "users"], 0);
    assert!(said.is_empty() || said.contains("in"), "{said}");
    let refused = folder.complaint(&["checkpoint", &server.address, "--database", "2"], 3);
    assert!(refused.contains("its files are its log"), "{refused}");
    let misplaced = folder.complaint(&["backup", "x.tree", "none", "--database", "users"], 2);
    assert!(misplaced.contains("--database: needs a server"), "{misplaced}");
}

#[test]
fn damaged_backup_of_a_hash_is_not_restored() {
    let folder = TestFolder::new();
    fill(&folder, "x.hash", &many());
    // The manifest has the right checksums of files that were damaged before the backup.
    for damages_first in [false, true] {
        let file = if damages_first { "x.hash" } else { "saved0/hash" };
        let damage = || {
            let path = largest_file(Path::new(&folder.path(file)));
            let mut bytes = fs::read(&path).unwrap();
            let at = bytes.len() / 2;
            bytes[at] ^= 1;
            fs::write(&path, bytes).unwrap();
        };
        if damages_first {
            damage();
            let complaint = folder.complaint(&["backup", "x.hash", "saved1"], 1);
            assert!(complaint.contains("checksum"), "{complaint}");
            let printed = folder.expect(&["verify", "saved1"], 1);
            assert!(printed.contains("damaged: saved1/hash/"), "{printed}");
            let complaint = folder.complaint(&["restore", "saved1", "again.hash"], 3);
            assert!(complaint.contains("damaged before the backup"), "{complaint}");
            assert!(!Path::new(&folder.path("again.hash")).exists());
        } else {
            folder.expect(&["backup", "x.hash", "saved0"], 0);
            damage();
            let printed = folder.expect(&["verify", "saved0"], 1);
            assert!(printed.contains("damaged: saved0/hash/"), "{printed}");
            let complaint = folder.complaint(&["restore", "saved0", "again.hash"], 3);
            assert!(complaint.contains("checksum"), "{complaint}");
            assert!(!Path::new(&folder.path("again.hash")).exists());
        }
    }
}
