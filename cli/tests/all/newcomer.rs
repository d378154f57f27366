//! Messages that a first-time user meets. Each of them names the rejected word and the reason.

use crate::running;

use running::{RunningServer, TestFolder, expect, refused, run, stop, text, todana};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};

fn start(options: &[&str]) -> RunningServer {
    RunningServer::start(&[&["-t", "2", "--admin-port", "0"], options].concat())
}

/// Starts a server with a data directory, which syncs every write before its reply.
fn keep(directory: &str, options: &[&str]) -> RunningServer {
    start(&[&["--data-dir", directory, "--sync", "always"], options].concat())
}

/// Creates the directory of a server that was stopped, with records a and b in a checkpoint, and c
/// after the checkpoint.
fn stopped(directory: &str) {
    let server = keep(directory, &[]);
    server.expect(&["set", "a", "1"], 0);
    server.expect(&["set", "b", "22"], 0);
    server.expect(&["checkpoint"], 0);
    server.expect(&["set", "c", "333"], 0);
    stop(server);
}

#[test]
fn wrong_directories_are_explained() {
    let folder = TestFolder::new();
    let (gone, file) = (folder.path("gone"), folder.path("file"));
    fs::write(&file, "x").unwrap();
    let (data, target) = (folder.path("data"), folder.path("target"));
    stopped(&data);
    let commands: [(&str, &[&str], &[&str]); 5] = [
        ("verify", &["verify"], &[]),
        ("restore", &["restore"], &[&target]),
        ("--log", &["restore", &data, &target, "--log"], &[]),
        ("log", &["log"], &[]),
        ("backup", &["backup"], &[&target]),
    ];
    for (what, before, behind) in commands {
        let why = |word: &str, code| refused(&[before, &[word], behind].concat(), code);
        assert_eq!(why(&gone, 3), format!("todana: {gone}: does not exist\n"), "{what}");
        let said = why(&file, 3);
        if what == "restore" {
            // `restore` also accepts a backup in a single file.
            let begins = format!("todana: {file}: neither a directory nor a complete single-file backup: ");
            assert!(said.starts_with(&begins), "{said}");
        } else {
            assert_eq!(said, format!("todana: {file}: is a file; {what} needs a directory\n"));
        }
        let below = format!("{file}/data");
        assert_eq!(why(&below, 3), format!("todana: {below}: does not exist; {file} is a file\n"));
        if !["log", "backup"].contains(&what) {
            for word in ["127.0.0.1:11211", "todanas://host", "unix:/run/todana.sock", "[::1]:5"] {
                let expected = format!(
                    "todana: {word}: looks like a server; {what} needs a directory: the server's --data-dir, or a backup of it\n"
                );
                assert_eq!(why(word, 2), expected);
            }
        } else {
            let expected = "todana: nowhere: does not exist; to name a server, add its port: nowhere:11211\n";
            assert_eq!(why("nowhere", 3), expected);
        }
        assert!(!fs::exists(&target).unwrap());
    }
}

#[test]
fn every_command_names_servers_alike() {
    let folder = TestFolder::new();
    let server = keep(&folder.path("data"), &[]);
    let address = server.address.as_str();
    server.expect(&["set", "a", "1"], 0);
    for word in ["-S", "--server"] {
        assert!(expect(&["checkpoint", word, address], 0).starts_with("a checkpoint of 1 record"));
        assert!(expect(&["log", word, address, "--values", "none"], 0).contains("\tput\ta\t"));
        let target = folder.path(&format!("backup{word}"));
        assert!(expect(&["backup", word, address, &target], 0).starts_with(&target));
    }
    // If no argument names a place, the variable counts.
    server.expect(&["checkpoint"], 0);
    assert!(server.expect(&["log"], 0).contains("\tput\ta\t"));
    server.expect(&["backup", &folder.path("by variable")], 0);
    let data = folder.path("data");
    assert!(server.expect(&["log", &data], 0).contains("\tput\ta\t"));
    // An ambiguous place is refused.
    for words in [&["checkpoint"][..], &["log"], &["backup", &folder.path("x")]] {
        let both = [&words[..1], &["-S", address, address], &words[1..]].concat();
        assert!(refused(&both, 2).contains("give only one"), "{words:?}");
    }
    assert!(refused(&["log"], 2).contains("name a server with -S"));
    assert!(refused(&["backup", &folder.path("x")], 2).contains("name a server with -S"));
    assert!(!fs::exists(folder.path("x")).unwrap());
}

#[test]
fn directory_with_a_server_address_must_be_explicit() {
    let folder = TestFolder::new();
    stopped(&folder.path("localhost:11211"));
    let at_home = |words: &[&str]| todana().args(words).current_dir(folder.0.path()).output().unwrap();
    let unsure = at_home(&["backup", "localhost:11211", "target"]);
    assert_eq!(unsure.status.code(), Some(2));
    let why = text(&unsure.stderr);
    assert!(
        why.contains("todana://localhost:11211 for the server, ./localhost:11211 for the directory"),
        "{why}"
    );
    assert!(at_home(&["backup", "./localhost:11211", "target"]).status.success());
    assert!(text(&at_home(&["log", "./localhost:11211"]).stdout).contains("\tput\tc\t"));
}

#[test]
fn log_positions_are_strict_on_directories_and_servers() {
    let folder = TestFolder::new();
    let data = folder.path("data");
    let server = keep(&data, &[]);
    for key in ["a", "b", "c"] {
        server.expect(&["set", key, "1"], 0);
        server.expect(&["checkpoint"], 0);
    }
    let places = [server.address.as_str(), &data];
    let segments = expect(&["log", &data, "--segments"], 0);
    let oldest: u64 = segments.split('\t').nth(1).unwrap().parse().unwrap();
    assert!(oldest > 0);
    let said = expect(&["log", &data], 0);
    let last: u64 = said.lines().last().unwrap().split('\t').next().unwrap().parse().unwrap();
    for place in places {
        let why = |from: u64| refused(&["log", place, "--from", &from.to_string()], 3);
        for from in [0, 1, oldest - 1] {
            let expected = format!("the update log does not go back to position {from}, only to {oldest}\n");
            assert!(why(from).ends_with(&expected), "{place}: {}", why(from));
        }
        let between = format!("position {} of the update log is not between two entries\n", last + 1);
        assert!(why(last + 1).ends_with(&between), "{place}");
        assert!(why(1 << 40).contains("the update log ends at position "), "{place}");
        let lines = |from: &str| expect(&["log", place, "--from", from], 0).lines().count();
        assert_eq!(lines(&oldest.to_string()), said.lines().count());
        assert_eq!(lines(&last.to_string()), 1);
        assert_eq!(lines("end"), 0);
    }
}

#[test]
fn follower_from_the_end_sees_only_new_changes() {
    let folder = TestFolder::new();
    let data = folder.path("data");
    let server = keep(&data, &[]);
    server.expect(&["set", "before", "1"], 0);
    let mut command = todana();
    command.args(["log", &data, "--from", "end", "--follow"]).stdout(Stdio::piped());
    let mut follows = command.spawn().unwrap();
    let mut line = String::new();
    let is_seen = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // The follower does not report that it has started, so the test keeps writing.
        scope.spawn(|| {
            while !is_seen.load(Ordering::Relaxed) {
                server.expect(&["set", "after", "1"], 0);
            }
        });
        let read = BufReader::new(follows.stdout.take().unwrap()).read_line(&mut line);
        is_seen.store(true, Ordering::Relaxed);
        let _ = follows.kill();
        let _ = follows.wait();
        read.unwrap();
    });
    assert_eq!(line.split('\t').nth(4), Some("after"), "{line}");
}

/// Returns the commands that the start banner suggests, with their placeholders replaced.
fn banner_commands(server: &RunningServer, known: &[(&str, &str)]) -> Vec<Vec<String>> {
    let example = server.banner[2].trim_end().strip_prefix("try: ").unwrap();
    let word = |word: &str| {
        let found = known.iter().find(|(name, _)| *name == word);
        found.map_or(word, |(_, value)| value).to_string()
    };
    let words = |line: &str| line.strip_prefix("todana ").unwrap().split(' ').map(word).collect();
    example.split(" && ").map(words).collect()
}

#[test]
fn example_of_the_banner_works_with_a_login() {
    let folder = TestFolder::new();
    let (users, tokens, password) = (folder.path("users"), folder.path("tokens"), folder.path("password"));
    fs::write(&users, "alice:s3cret\n").unwrap();
    fs::write(&tokens, "alice:s3cret\n").unwrap();
    fs::write(&password, "s3cret\n").unwrap();
    for options in [&["-S", "--password-file", &users][..], &["-Y", &tokens]] {
        let server = start(options);
        let lines = banner_commands(&server, &[("NAME", "alice"), ("FILE", &password)]);
        for (line, expected) in lines.iter().zip(["", "world"]) {
            let words: Vec<&str> = line.iter().map(String::as_str).collect();
            assert_eq!(expect(&words, 0), expected, "{options:?}: {line:?}");
        }
        assert_eq!(lines.len(), 2);
    }
    // If only binary clients are accepted, the banner suggests no text commands.
    let server = start(&["-B", "binary"]);
    assert!(server.banner[2].starts_with("try: a client of the binary protocol ("), "{:?}", server.banner);
}

#[test]
fn banner_distinguishes_new_from_loaded_data() {
    let folder = TestFolder::new();
    let data = folder.path("data");
    let begun = |options: &[&str]| {
        let mut server = keep(&data, options);
        assert!(server.banner[0].contains(", persistence: on"), "{:?}", server.banner);
        let mut line = String::new();
        server.stdout.read_line(&mut line).unwrap();
        (server, line)
    };
    let (server, line) = begun(&[]);
    let expected = format!(
        "data: {data}: no data found, starting a new database; --sync always: every write is on disk before its reply\n"
    );
    assert_eq!(line, expected);
    server.expect(&["set", "a", "1"], 0);
    stop(server);
    let (server, line) = begun(&[]);
    assert!(line.starts_with(&format!("data: {data}: loaded ")) && !line.contains("checkpoint"), "{line}");
    server.expect(&["checkpoint"], 0);
    stop(server);
    let (_server, line) = begun(&["--sync", "250"]);
    assert!(line.starts_with(&format!("data: {data}: loaded a checkpoint of 1 record, ")), "{line}");
    assert!(
        line.ends_with(
            "; --sync 250: writes are on disk within 250 ms; a power failure can lose that much\n"
        )
    );
}

#[test]
fn persistence_options_without_persistence_are_refused() {
    let folder = TestFolder::new();
    let options = [
        ("sync", "5"),
        ("log-segment-size", "1m"),
        ("log-segment-age", "60"),
        ("log-keep-size", "1g"),
        ("log-keep-age", "60"),
        ("checkpoint-log-size", "1m"),
        ("checkpoint-compression", "none"),
    ];
    let file = folder.path("todana.toml");
    for (name, value) in options {
        let nothing = "needs --data-dir DIR or a database on disk";
        let flag = format!("--{name}");
        assert_eq!(
            refused(&["config", "show", "--", &flag, value], 2),
            format!("todana: {flag}: {nothing}\n")
        );
        expect(&["config", "show", "--", &flag, value, "--data-dir", "d"], 0);
        let variable = format!("TODANA_{}", name.to_uppercase().replace('-', "_"));
        let output = todana().args(["config", "show"]).env(&variable, value).output().unwrap();
        assert_eq!(text(&output.stderr), format!("todana: {variable}: {nothing}\n"));
        fs::write(&file, format!("{name} = {value:?}\n")).unwrap();
        assert_eq!(refused(&["config", "check", &file], 2), format!("todana: {file}, line 1: {nothing}\n"));
        fs::write(&file, format!("{name} = {value:?}\ndata-dir = \"d\"\n")).unwrap();
        expect(&["config", "check", &file], 0);
    }
    // The output of `config show` is an equivalent file, in which a missing limit has no number.
    let shown = expect(&["config", "show"], 0);
    assert!(shown.contains("# log-keep-age = \"\" "), "{shown}");
    fs::write(&file, shown).unwrap();
    expect(&["config", "check", &file], 0);
    assert!(
        refused(&["config", "show", "--", "--data-dir", "d", "--log-keep-age", "0"], 2)
            .contains("at least 1")
    );
}

fn damage(path: &str, at: u64) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at as usize] ^= 0x10;
    fs::write(path, bytes).unwrap();
}

/// Returns the files of a part of a data directory, in order.
fn files(directory: &str, part: &str) -> Vec<String> {
    let entries = fs::read_dir(format!("{directory}/{part}")).unwrap();
    let mut files: Vec<String> =
        entries.map(|entry| entry.unwrap().path().to_str().unwrap().to_string()).collect();
    files.sort();
    files
}

fn name(path: &str) -> &str {
    path.rsplit('/').next().unwrap()
}

#[test]
fn verify_counts_bytes_of_files_and_changes() {
    let folder = TestFolder::new();
    let data = folder.path("data");
    let server = keep(&data, &[]);
    for key in ["a", "b"] {
        server.expect(&["set", key, "1"], 0);
        server.expect(&["checkpoint"], 0);
    }
    server.expect(&["set", "c", "1"], 0);
    server.expect(&["delete", "a"], 0);
    stop(server);
    let bytes = |part| files(&data, part).iter().map(|path| fs::metadata(path).unwrap().len()).sum::<u64>();
    let (checkpoints, log) = (bytes("checkpoints"), bytes("log"));
    let said = expect(&["verify", &data], 0);
    let lines: Vec<&str> = said.lines().collect();
    let first = format!("checkpoints: 2 intact, {checkpoints} bytes; the newest has 2 records, as of 2");
    assert!(lines[0].starts_with(&first), "{said}");
    let changes = expect(&["log", &data], 0).lines().count();
    let second = format!("log: {} segments, {log} bytes; {changes} changes in ", files(&data, "log").len());
    assert!(lines[1].starts_with(&second), "{said}");
    assert_eq!(lines[2..], [format!("{} bytes of checkpoints and log are intact", checkpoints + log)]);
}

#[test]
fn unneeded_damaged_checkpoint_is_reported_as_such() {
    let folder = TestFolder::new();
    let (data, other) = (folder.path("data"), folder.path("other"));
    for directory in [&data, &other] {
        stopped(directory);
        let server = keep(directory, &[]);
        server.expect(&["checkpoint"], 0);
        stop(server);
    }
    let [older, newer] = files(&data, "checkpoints").try_into().unwrap();
    damage(&older, 100);
    let said = expect(&["verify", &data], 1);
    let note =
        format!("\n  an older checkpoint: the server starts with {} and does not need it\n", name(&newer));
    assert!(said.contains(&note), "{said}");
    assert!(
        said.ends_with(&format!(
            "\n`todana salvage {data} TARGET` recovers the intact records into a new database\n"
        )),
        "{said}"
    );
    let [older, newer] = files(&other, "checkpoints").try_into().unwrap();
    damage(&newer, 100);
    let said = expect(&["verify", &other], 1);
    let note = format!("\n  the server starts with the older {}, and reads more of the log\n", name(&older));
    assert!(said.contains(&note), "{said}");
    let server = keep(&other, &[]);
    assert_eq!(server.expect(&["get", "c"], 0), "333");
    // If the server does not start, no checkpoint is promised.
    damage(&files(&data, "log")[0], 70);
    let said = expect(&["verify", &data], 1);
    assert!(!said.contains("the server starts"), "{said}");
}

#[test]
fn lost_identity_is_damage_for_every_command() {
    let folder = TestFolder::new();
    let data = folder.path("data");
    stopped(&data);
    fs::remove_file(format!("{data}/identity")).unwrap();
    let what = format!("{data}/identity at offset 0: the file is missing");
    let said = expect(&["verify", &data], 1);
    assert!(said.starts_with("checkpoints: 1 intact, "), "{said}");
    assert!(said.contains(&format!("\ndamaged: {what}\n")), "{said}");
    let target = folder.path("target");
    let serve = ["serve", "-p", "-1", "--admin-port", "0", "--data-dir", &data];
    for words in [&["backup", &data, &target][..], &["restore", &data, &target], &serve] {
        let expected = format!(
            "todana: {what}; `todana salvage {data} TARGET` recovers the intact records into a new database"
        );
        assert!(refused(words, 3).starts_with(&expected), "{words:?}");
    }
    expect(&["salvage", &data, &target], 0);
    expect(&["verify", &target], 0);
    // A directory that never was a data directory does not count as a damaged one.
    let other = folder.path("other");
    fs::create_dir(&other).unwrap();
    for words in [&["verify", &other][..], &["salvage", &other, &folder.path("more")]] {
        assert_eq!(refused(words, 3), format!("todana: {other}: is not a data directory\n"));
    }
}

#[test]
fn restore_reports_how_far_back_it_can_go() {
    let folder = TestFolder::new();
    let (data, backup, target) = (folder.path("data"), folder.path("backup"), folder.path("target"));
    let server = keep(&data, &[]);
    server.expect(&["set", "a", "1"], 0);
    server.expect(&["backup", &backup], 0);
    stop(server);
    let why = refused(&["restore", &backup, &target, "--until", "2001-01-01T00:00:00Z"], 2);
    let (before, time) = why.trim_end().split_once(" is of ").unwrap();
    assert_eq!(before, format!("todana: {backup}: does not go back to that time; its checkpoint"));
    expect(&["restore", &backup, &target, "--until", time], 0);
}

#[test]
fn checkpoint_is_salvaged_without_its_log() {
    let folder = TestFolder::new();
    let data = folder.path("data");
    let server = keep(&data, &[]);
    server.expect(&["set", "a", "1"], 0);
    server.expect(&["checkpoint"], 0);
    stop(server);
    for path in files(&data, "log") {
        fs::remove_file(path).unwrap();
    }
    let [checkpoint] = files(&data, "checkpoints").try_into().unwrap();
    let start: u64 = name(&checkpoint).split('.').next().unwrap().parse().unwrap();
    let target = folder.path("target");
    let output = run(&["salvage", &data, &target]);
    let said = text(&output.stderr);
    let found = format!(
        "todana: {checkpoint} at offset 0: the log is missing from the checkpoint's position {start} on: "
    );
    assert!(output.status.success(), "{said}");
    assert!(said.starts_with(&format!("{found}saved, with 1 records as of 2")), "{said}");
    assert!(said.contains(", alone; later changes, if there were any, are lost\n"));
    expect(&["verify", &target], 0);
    let server = keep(&target, &[]);
    assert_eq!(server.expect(&["get", "a"], 0), "1");
}

#[test]
fn intact_part_of_a_damaged_backup_is_salvaged() {
    let folder = TestFolder::new();
    let (data, backup) = (folder.path("data"), folder.path("backup"));
    stopped(&data);
    expect(&["backup", &data, &backup], 0);
    let all = |directory: &str| {
        let server = keep(directory, &[]);
        ["a", "b", "c"].map(|key| text(&server.run(&["get", key]).stdout))
    };
    // The damage is in the last change of the log, which is then cut off, in a checkpoint, in the
    // identity, or only in the manifest.
    let last = files(&backup, "log").pop().unwrap();
    let end = fs::metadata(&last).unwrap().len();
    let checkpoint = files(&backup, "checkpoints").pop().unwrap();
    let identity = format!("{backup}/identity");
    let list = format!("{backup}/backup");
    for (path, at, had) in [
        (&last, end - 1, ["1", "22", "333"]),
        (&checkpoint, 100, ["", "", "333"]),
        (&identity, 20, ["1", "22", "333"]),
        (&list, 60, ["1", "22", "333"]),
    ] {
        let whole = fs::read(path).unwrap();
        damage(path, at);
        let target = folder.path("target");
        let advice =
            format!("`todana salvage {backup} TARGET` recovers the intact records into a new database\n");
        assert!(expect(&["verify", &backup], 1).ends_with(&format!("\n{advice}")), "{path}");
        assert!(refused(&["restore", &backup, &target], 3).ends_with(&format!("; {advice}")), "{path}");
        let output = run(&["salvage", &backup, &target]);
        let why = text(&output.stderr);
        assert!(
            output.status.success() && why.contains(path.as_str()) && !why.contains(".salvage"),
            "{path}: {why}"
        );
        assert_eq!(all(&target), had, "{path}");
        // Nothing else was created, and the backup is unchanged.
        assert_eq!(fs::read_dir(folder.0.path()).unwrap().count(), 3);
        fs::remove_dir_all(target).unwrap();
        fs::write(path, whole).unwrap();
        expect(&["verify", &backup], 0);
    }
    // An intact backup is restored as usual, even with the old option.
    let output = run(&["restore", "--damaged", &backup, &folder.path("again")]);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
}

/// Replies `ERROR` to each line of one client, as memcached does to unknown commands.
fn refuse_all_commands(listener: &TcpListener) {
    let (stream, _) = listener.accept().unwrap();
    let mut lines = BufReader::new(stream.try_clone().unwrap());
    let mut line = String::new();
    while lines.read_line(&mut line).is_ok_and(|len| len > 0) {
        (&stream).write_all(b"ERROR\r\n").unwrap();
        line.clear();
    }
}

#[test]
fn servers_without_the_feature_are_explained() {
    let folder = TestFolder::new();
    let target = folder.path("target");
    let all = |address: &str, expected: &str| {
        for words in [&["checkpoint", address][..], &["log", address], &["backup", address, &target]] {
            let why = refused(words, 3);
            assert!(why.contains(expected), "{words:?}: {why}");
        }
        assert!(!fs::exists(&target).unwrap());
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || (0..3).for_each(|_| refuse_all_commands(&listener)));
    all(&address, "the server says: ERROR: unknown command; memcached has no ");
    let plain = start(&[]);
    all(&plain.address, "no data directory: the server was started without --data-dir");
    let (kept, binary) = (folder.path("kept"), folder.path("binary"));
    let server = keep(&kept, &["-X"]);
    for words in [&["log"][..], &["backup", &target], &["dump", "-"]] {
        let output = server.run(words);
        let why = text(&output.stderr);
        assert!(
            why.contains(" not allowed: the server was started with -X, which forbids listing keys\n"),
            "{why}"
        );
    }
    let server = keep(&binary, &["-B", "binary"]);
    all(&server.address, ", or it speaks the binary protocol or Kyoto Tycoon's only\n");
}

#[test]
fn interface_and_useless_options_are_logged() {
    let folder = TestFolder::new();
    let (log, database) = (folder.path("log"), folder.path("a.hash"));
    let words = ["--io", "epoll", "-vvv", "--evict-for", "bytes", "--compress", "never", &database];
    let file = fs::File::create(&log).unwrap();
    stop(RunningServer::start_logging(todana(), &words, file.into()));
    let logged = fs::read_to_string(&log).unwrap();
    for message in [
        "sockets: epoll is used",
        "--evict-for: has no effect, because no database is a mem:hash",
        "--compress: has no effect, because no database is in memory",
    ] {
        assert_eq!(logged.matches(message).count(), 1, "{message}: {logged}");
    }
}
