//! Databases on disk, used by commands directly and by a server.

use crate::running;

use running::{RunningServer, TestFolder, stop, text, todana};
use std::path::{Path, PathBuf};

const BOTH: [&str; 2] = ["x.hash", "./x.tree"];

#[test]
fn data_commands_work_on_databases_as_on_servers() {
    for name in BOTH {
        let folder = TestFolder::new();
        let at = |words: &[&str], code| folder.expect(&[words, &["-S", name]].concat(), code);
        at(&["set", "hello", "world", "--flags", "7", "--ttl", "1000"], 0);
        assert_eq!(at(&["get", "hello"], 0), "world");
        assert_eq!(at(&["get", "hello", "nope"], 1), "world\n");
        at(&["set", "hello", "again", "--add"], 1);
        at(&["set", "hello", "!", "--append"], 0);
        at(&["set", "hello", "(", "--prepend"], 0);
        let shown = at(&["get", "hello", "--json", "--versions"], 0);
        let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
        assert_eq!((&shown["value"], &shown["flags"]), (&"(world!".into(), &7.into()));
        let version = shown["version"].as_u64().unwrap().to_string();
        at(&["set", "hello", "swapped", "--cas", &version], 0);
        at(&["set", "hello", "swapped", "--cas", &version], 1);
        at(&["set", "n", "41"], 0);
        assert_eq!(at(&["incr", "n"], 0), "42\n");
        assert_eq!(at(&["decr", "n", "2"], 0), "40\n");
        at(&["incr", "nope"], 1);
        at(&["incr", "hello"], 3);
        at(&["touch", "n", "100"], 0);
        at(&["touch", "nope", "100"], 1);
        at(&["delete", "n"], 0);
        at(&["delete", "n"], 1);
        assert!(at(&["stats"], 0).contains("records"));
        at(&["ping"], 2);
        at(&["flush"], 0);
        at(&["get", "hello"], 1);
    }
}

/// A hash on disk once numbered its versions from 1 at each opening, so a version of one opening
/// was valid in the next.
#[test]
fn versions_never_repeat_after_a_new_opening() {
    for name in BOTH {
        let folder = TestFolder::new();
        let mut seen = Vec::new();
        for value in ["1", "2", "3"] {
            folder.expect(&["set", "a", value, "-S", name], 0);
            let shown = folder.expect(&["get", "a", "--json", "--versions", "-S", name], 0);
            let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
            let version = shown["version"].as_u64().unwrap();
            assert!(seen.iter().all(|&earlier| earlier < version), "{seen:?}, {version}");
            seen.push(version);
        }
        folder.expect(&["set", "a", "x", "--cas", &seen[0].to_string(), "-S", name], 1);
    }
}

#[test]
fn db_option_and_environment_name_a_database() {
    let folder = TestFolder::new();
    folder.expect(&["set", "a", "1", "--db", "x.hash"], 0);
    let output = todana().args(["get", "a"]).env("TODANA_SERVER", folder.path("x.hash")).output().unwrap();
    assert_eq!(text(&output.stdout), "1");
}

#[test]
fn reading_commands_create_nothing() {
    let folder = TestFolder::new();
    for words in [
        &["get", "a", "-S", "x.hash"][..],
        &["delete", "a", "-S", "x.tree"],
        &["incr", "a", "-S", "x.tree"],
        &["list", "x.hash"],
        &["count", "x.tree"],
        &["inform", "x.hash"],
        &["check", "x.hash"],
        &["export", "x.hash"],
        &["copy", "x.hash", "y.hash"],
        &["merge", "y.hash", "x.hash"],
        &["compact", "x.hash"],
    ] {
        assert!(folder.complaint(words, 3).contains("does not exist"), "{words:?}");
    }
    // Most of these names were once accepted, and the next start failed.
    for name in [
        "log",
        "checkpoints",
        "lock",
        "identity",
        "epochs",
        "salvage",
        "reserve",
        "recent",
        "backup",
        "replica-position",
        "replica-log",
        "slow-requests.jsonl",
        "slow-requests.old.jsonl",
        "0000000001.segment",
        "x.partial",
    ] {
        let further = format!("{name}=mem:hash");
        let words = ["serve", "mem:hash", &further, "--data-dir", "d"];
        assert!(folder.complaint(&words, 2).contains("reserved"), "{name}");
    }
    assert_eq!(std::fs::read_dir(folder.0.path()).unwrap().count(), 0);
}

#[test]
fn wrong_database_names_are_explained() {
    let folder = TestFolder::new();
    assert!(folder.complaint(&["get", "a", "-S", "mem:hash"], 2).contains("memory of its server"));
    assert!(folder.complaint(&["copy", "localhost:1", "x.hash"], 2).contains("not a database on disk"));
    std::fs::write(folder.path("f.hash"), "").unwrap();
    assert!(folder.complaint(&["get", "a", "-S", "f.hash"], 3).contains("is a file"));
    assert!(folder.complaint(&["verify", "x.hash"], 3).contains("does not exist"));
}

#[test]
fn list_has_prefix_range_limit_and_direction() {
    let folder = TestFolder::new();
    let keys = ["a", "ab", "abc", "b", "ba", "c\t"];
    let lines: String = keys.iter().map(|key| format!("{}\t1\n", key.replace('\t', "\\t"))).collect();
    for name in BOTH {
        assert!(folder.import(name, &lines).status.success());
    }
    let list = |words: &[&str]| folder.expect(&[&["list", "x.tree"], words].concat(), 0);
    assert_eq!(list(&[]), "a\nab\nabc\nb\nba\nc\\t\n");
    assert_eq!(list(&["--reverse"]), "c\\t\nba\nb\nabc\nab\na\n");
    assert_eq!(list(&["--prefix", "ab"]), "ab\nabc\n");
    assert_eq!(list(&["--prefix", "a", "--reverse"]), "abc\nab\na\n");
    assert_eq!(list(&["--from", "ab", "--to", "ba"]), "ab\nabc\nb\n");
    assert_eq!(list(&["--from", "ab", "--to", "ba", "--reverse"]), "b\nabc\nab\n");
    assert_eq!(list(&["--prefix", "a", "--from", "ab", "--limit", "1", "--values"]), "ab\t1\n");
    assert_eq!(list(&["--prefix", "zz"]), "");
    assert_eq!(list(&["--limit", "0"]), "");
    let mut hash: Vec<String> =
        folder.expect(&["list", "x.hash", "--prefix", "a"], 0).lines().map(String::from).collect();
    hash.sort();
    assert_eq!(hash, ["a", "ab", "abc"]);
    assert!(folder.complaint(&["list", "x.hash", "--reverse"], 2).contains("tree"));
}

/// Returns more records than one batch of the engine, and some that are longer than a batch.
fn many() -> String {
    let mut lines: Vec<String> = (0..3000).map(|number| format!("k{number:05}\tvalue {number}\n")).collect();
    lines.push(format!("long\t{}\n", "x".repeat(3_000_000)));
    lines.push("flagged\t1\t77\n".into());
    lines.push("mortal\t1\t0\t4000000000\n".into());
    lines.push("sliding\t1\t5\t4000000000~300\n".into());
    lines.push("odd\\x00\\t\t\\n\n".into());
    lines.sort();
    lines.concat()
}

fn sorted(text: &str) -> String {
    let mut lines: Vec<&str> = text.split_inclusive('\n').collect();
    lines.sort();
    lines.concat()
}

#[test]
fn import_export_and_copy_keep_every_attribute() {
    let folder = TestFolder::new();
    let lines = many();
    for name in BOTH {
        assert!(folder.import(name, &lines).status.success());
        assert_eq!(folder.expect(&["count", name], 0), "3005\n");
        assert_eq!(sorted(&folder.expect(&["export", name], 0)), lines);
        for to in ["copy.hash", "copy.tree"] {
            folder.expect(&["copy", name, to], 0);
            assert_eq!(sorted(&folder.expect(&["export", to], 0)), lines);
            assert!(folder.complaint(&["copy", name, to], 2).contains("exists already"));
            assert!(folder.expect(&["check", to], 0).starts_with("intact: 3005 records"));
            std::fs::remove_dir_all(folder.path(to)).unwrap();
        }
        folder.expect(&["export", name, "out.tsv"], 0);
        assert_eq!(sorted(&std::fs::read_to_string(folder.path("out.tsv")).unwrap()), lines);
    }
    // A tree exports in order.
    let exported = folder.expect(&["export", "x.tree"], 0);
    let keys: Vec<&str> = exported.lines().map(|line| line.split('\t').next().unwrap()).collect();
    assert!(keys.is_sorted());
}

#[test]
fn faulty_line_is_named_after_loading_the_others() {
    let folder = TestFolder::new();
    let output = folder.import("x.hash", "a\t1\nb\n");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("line 2: no tab"), "{}", text(&output.stderr));
    assert_eq!(folder.expect(&["list", "x.hash"], 0), "a\n");
}

#[test]
fn merge_overwrites_or_keeps_existing_records() {
    let folder = TestFolder::new();
    folder.import("one.hash", "a\t1\nb\t1\n");
    folder.import("two.tree", "b\t2\nc\t2\n");
    folder.expect(&["merge", "all.tree", "one.hash", "two.tree"], 0);
    assert_eq!(folder.expect(&["list", "all.tree", "--values"], 0), "a\t1\nb\t2\nc\t2\n");
    folder.expect(&["merge", "one.hash", "two.tree", "--keep"], 0);
    assert_eq!(folder.expect(&["get", "b", "c", "-S", "one.hash"], 0), "1\n2\n");
    assert!(folder.complaint(&["merge", "one.hash", "one.hash"], 2).contains("itself"));
}

#[test]
fn inform_shows_kind_path_records_and_bytes() {
    let folder = TestFolder::new();
    for (name, kind) in [("x.hash", "disk:hash"), ("x.tree", "disk:tree"), ("x.kct", "disk:tree")] {
        folder.import(name, "a\t1\nb\t2\n");
        let printed: serde_json::Value =
            serde_json::from_str(&folder.expect(&["inform", name, "--json"], 0)).unwrap();
        assert_eq!(
            (&printed["kind"], &printed["path"], &printed["records"]),
            (&kind.into(), &name.into(), &2.into())
        );
        assert!(printed["disk_bytes"].as_u64().unwrap() > 0);
        assert!(folder.expect(&["inform", name], 0).contains(kind));
    }
}

#[test]
fn compaction_returns_the_space_of_old_records() {
    let folder = TestFolder::new();
    let lines = |round: u32| -> String {
        (0..4000).map(|number| format!("k{number}\t{round}{}\n", "x".repeat(1000))).collect()
    };
    for round in 0..3 {
        assert!(folder.import("x.hash", &lines(round)).status.success());
    }
    folder.expect(&["compact", "x.hash"], 0);
    let printed: serde_json::Value =
        serde_json::from_str(&folder.expect(&["inform", "x.hash", "--json"], 0)).unwrap();
    let bytes = printed["record_bytes"].as_u64().unwrap();
    assert!(bytes < 2 * 4000 * 1010, "{bytes}");
    assert!(folder.expect(&["check", "x.hash"], 0).starts_with("intact: 4000 records"));
    assert!(folder.complaint(&["compact", "x.tree"], 3).contains("does not exist"));
}

fn largest_file(directory: &Path) -> PathBuf {
    let files = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let segments = files.filter(|path| path.extension().is_some_and(|extension| extension == "segment"));
    segments.max_by_key(|path| path.metadata().unwrap().len()).unwrap()
}

#[test]
fn check_finds_a_changed_byte() {
    let folder = TestFolder::new();
    folder.import("x.hash", &many());
    let file = largest_file(folder.path("x.hash").as_ref());
    let mut bytes = std::fs::read(&file).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let printed = folder.expect(&["check", "x.hash"], 1);
    assert!(printed.starts_with("damaged: "), "{printed}");
}

#[test]
fn bench_runs_on_a_database_without_a_server() {
    let folder = TestFolder::new();
    for name in BOTH {
        let words = ["bench", name, "--keys", "500", "--requests", "1000", "--threads", "2"];
        let printed = folder.expect(&words, 0);
        assert!(printed.starts_with("store all keys: 500 requests"), "{printed}");
        assert!(printed.contains("mix: 1000 requests") && printed.contains(" 0 misses"), "{printed}");
        assert_eq!(folder.expect(&["count", name], 0), "500\n");
        folder.complaint(&["bench", name, "--vs", "127.0.0.1:1"], 2);
    }
}

#[test]
fn command_line_opens_the_database_of_a_server() {
    let folder = TestFolder::new();
    for name in ["x.hash", "x.tree", "x.tcb"] {
        let path = folder.path(name);
        let mut server = RunningServer::start(&[&path, "--sync", "always"]);
        server.expect(&["set", "a", "1"], 0);
        assert_eq!(server.expect(&["count", &server.address], 0), "1\n");
        assert!(server.expect(&["inform", &server.address], 0).contains("records     "));
        let complaint = folder.complaint(&["get", "a", "-S", name], 3);
        assert!(complaint.contains(name) && complaint.contains("in use"), "{complaint}");
        // After a kill, all acknowledged writes are there.
        server.child.kill().unwrap();
        server.child.wait().unwrap();
        assert_eq!(folder.expect(&["get", "a", "-S", name], 0), "1");
        folder.expect(&["set", "b", "2", "-S", name], 0);
        let server = RunningServer::start(&[&path]);
        assert_eq!(server.expect(&["get", "a", "b"], 0), "1\n2\n");
    }
}

#[test]
fn banner_lists_databases_of_a_config_file() {
    let folder = TestFolder::new();
    let path = folder.path("x.tree");
    let config = folder.path("todana.toml");
    std::fs::write(&config, format!("database = [\"mem:hash\", \"carts={path}\"]\nsync = \"always\"\n"))
        .unwrap();
    let mut server = RunningServer::start(&["--config", &config]);
    let mut lines = Vec::new();
    use std::io::BufRead;
    for _ in 0..2 {
        let mut line = String::new();
        server.stdout.read_line(&mut line).unwrap();
        lines.push(line);
    }
    assert!(lines[0].starts_with("database 0: mem:hash, 64 MiB, then evicting, lost at exit"), "{lines:?}");
    assert!(lines[1].starts_with(&format!("database 1 (carts): {path}, disk:tree")), "{lines:?}");
    assert!(lines[1].contains("--sync always"), "{lines:?}");
    let shown = folder.expect(&["config", "show", "--", "--config", &config, "x.hash"], 0);
    let of_database: Vec<&str> = shown.lines().filter(|line| line.starts_with("database")).collect();
    assert!(of_database.len() == 1 && of_database[0].contains("x.hash"), "{shown}");
    assert!(!of_database[0].contains("carts") && of_database[0].contains("flag"), "{shown}");
}

#[test]
fn databases_on_disk_are_verified_and_salvaged() {
    let folder = TestFolder::new();
    for name in ["x.hash", "x.tree"] {
        folder.import(name, "a\t1\n");
        let made = format!("made-{name}");
        folder.expect(&["salvage", name, &made], 0);
        for place in [name, &made] {
            assert!(folder.expect(&["verify", place], 0).starts_with("intact: 1 record,"), "{place}");
        }
    }
}

#[test]
fn options_unfit_for_a_database_are_refused() {
    let folder = TestFolder::new();
    for (words, what) in [
        (&["serve", "x.txt"][..], "PATH.hash"),
        (&["serve", "x.hash", "--data-dir", "d"], "its own path"),
        (&["serve", "x.hash", "x.hash"], "has the same name as"),
        (&["serve", "x.tree#capcnt=5", "-M"], "(-M, when_full)"),
        (&["serve", "mem:hash", "%", "--data-dir", "d"], "NAME=%"),
        (&["serve", "mem:hash", "log=%", "--data-dir", "d"], "reserved"),
        (&["serve", "mem:tree", "--sync", "always"], "needs --data-dir DIR"),
    ] {
        assert!(folder.complaint(words, 2).contains(what), "{words:?}");
    }
    assert_eq!(std::fs::read_dir(folder.0.path()).unwrap().count(), 0);
}

#[test]
fn several_values_survive_copies_and_files() {
    let folder = TestFolder::new();
    let lines = "k\tb\t7\nk\tc\t\t\t+\nk\t\t\t\t+\nz\t1\n";
    folder.import("x.tree", lines);
    let listed = "k\tb\nk\tc\nk\t\nz\t1\n";
    folder.expect(&["copy", "x.tree", "copy.tree"], 0);
    folder.import("merged.tree", "k\told\nk\tolder\t\t\t+\n");
    folder.expect(&["merge", "merged.tree", "x.tree"], 0);
    for database in ["x.tree", "copy.tree", "merged.tree"] {
        let database = format!("./{database}");
        assert_eq!(folder.expect(&["list", &database, "--values"], 0), listed);
        assert_eq!(folder.expect(&["list", &database], 0), "k\nz\n");
        assert_eq!(folder.expect(&["dump", "-", "--db", &database], 0), lines);
    }
    let said = folder.complaint(&["dump", "x.kcss", "--format", "kcss", "--db", "./x.tree"], 0);
    assert!(said.contains("2 further values of keys are left out"), "{said}");
    for words in [&["copy", "x.tree", "x.hash"][..], &["merge", "x.hash", "x.tree"]] {
        let said = folder.complaint(words, 2);
        assert!(said.contains("record \"k\": the key has several values, which only trees hold"), "{said}");
    }
}

/// The record with the definitions of indexes was listed and counted as a row with an empty key.
#[test]
fn lists_and_counts_hide_index_definitions() {
    let folder = TestFolder::new();
    let name = format!("{}#idx=age:decimal", folder.path("x.table"));
    assert!(folder.import(&name, "ann\tage\\x0033\n").status.success());
    let path = folder.path("x.table");
    assert_eq!(folder.expect(&["count", &path], 0), "1\n");
    assert_eq!(folder.expect(&["list", &path], 0), "ann\n");
    assert_eq!(folder.expect(&["list", &path, "--reverse", "--limit", "2"], 0), "ann\n");
    assert!(folder.expect(&["info", &path], 0).contains("records     1\n"));
    let server = RunningServer::start(&[&path]);
    assert_eq!(server.expect(&["count"], 0), "1\n");
    assert_eq!(server.expect(&["count", "--database", "0"], 0), "1\n");
    assert_eq!(server.expect(&["list"], 0), "ann\n");
    stop(server);
    // A dump keeps the definitions.
    assert!(folder.expect(&["dump", "-", "-S", &path], 0).contains("age\\x00DECIMAL"));
}
