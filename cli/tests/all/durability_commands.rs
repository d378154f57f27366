//! The commands for data directories do what their help promises, with and without a running
//! server.

use crate::running;

use running::{RunningServer, TestFolder, expect, refused, run, stop, text, todana};
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

fn start(directory: &str, options: &[&str]) -> RunningServer {
    let words =
        [&["--data-dir", directory, "--sync", "always", "-t", "2", "--admin-port", "0"], options].concat();
    RunningServer::start(&words)
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

/// Creates the directory of a server that was stopped, with records a, b and c. Then b was changed
/// and c removed.
fn stopped(directory: &str) {
    let server = start(directory, &[]);
    for (key, value) in [("a", "1"), ("b", "1"), ("c", "1"), ("b", "2")] {
        server.expect(&["set", key, value], 0);
    }
    server.expect(&["delete", "c"], 0);
    stop(server);
}

#[test]
fn stopped_directory_is_backed_up_restored_and_served() {
    let folder = TestFolder::new();
    let (data, backup, again) = (folder.path("data"), folder.path("backup"), folder.path("again"));
    stopped(&data);
    let said = expect(&["backup", &data, &backup], 0);
    assert!(said.starts_with(&format!("{backup}: ")), "{said}");
    assert!(said.contains(" bytes of changes since the beginning; "), "{said}");
    let said = expect(&["verify", &backup], 0);
    assert!(said.starts_with("a backup as of 2"), "{said}");
    assert!(said.contains("checkpoints: 0 intact"), "{said}");
    let said = expect(&["restore", &backup, &again], 0);
    assert!(said.starts_with(&format!("{again}: 2 records restored, last changed 2")), "{said}");
    let server = start(&again, &[]);
    assert_eq!(server.expect(&["get", "b"], 0), "2");
    server.expect(&["get", "c"], 1);
    stop(server);
    // The same is done again after a checkpoint.
    let said = expect(&["backup", &again, &folder.path("second")], 0);
    assert!(said.contains("a checkpoint of 2 records"), "{said}");
    // Neither command replaces anything that exists, and a backup cannot be served.
    assert!(refused(&["backup", &data, &backup], 2).contains("exists already"));
    assert!(refused(&["restore", &backup, &again], 2).contains("exists already"));
    let why = refused(&["serve", "-p", "-1", "--admin-port", "0", "--data-dir", &backup], 3);
    assert!(why.contains("todana restore"), "{why}");
    assert!(refused(&["backup", &folder.path("nothing"), &folder.path("x")], 3).contains("does not exist"));
    assert!(!Path::new(&folder.path("nothing")).exists());
}

#[test]
fn directory_in_use_is_only_read() {
    let folder = TestFolder::new();
    let data = folder.path("data");
    let server = start(&data, &[]);
    server.expect(&["set", "a", "1"], 0);
    assert!(refused(&["backup", &data, &folder.path("b")], 3).contains("give the server's address, and"));
    assert!(refused(&["restore", &data, &folder.path("r")], 3).contains("back it up first"));
    assert!(refused(&["salvage", &data, &folder.path("s")], 3).contains("stop it first"));
    assert!(expect(&["verify", &data], 0).contains("; 1 change in 2 entries ("));
    let line = expect(&["log", &data], 0);
    let columns: Vec<&str> = line.trim_end_matches('\n').split('\t').collect();
    assert_eq!(columns[3..], ["put", "a", "size=1", "1"], "{line}");
    assert_eq!(fs::read_dir(folder.0.path()).unwrap().count(), 1);
}

#[test]
fn point_in_time_restores_from_backup_and_log() {
    let folder = TestFolder::new();
    let (data, backup) = (folder.path("data"), folder.path("backup"));
    stopped(&data);
    expect(&["backup", &data, &backup], 0);
    let server = start(&data, &[]);
    server.expect(&["set", "b", "3"], 0);
    // New values are written until the server's clock has reached the next second.
    let column = |line: &str, n| line.split('\t').nth(n).unwrap().to_string();
    let first = column(expect(&["log", &data], 0).lines().last().unwrap(), 1);
    let mut number = 3;
    let lines = loop {
        number += 1;
        server.expect(&["set", "b", &number.to_string()], 0);
        let log = expect(&["log", &data, "--since", &first], 0);
        if column(log.lines().last().unwrap(), 1) != first {
            break log;
        }
    };
    stop(server);
    let last = column(lines.lines().last().unwrap(), 1);
    for (name, until) in [("then", &first), ("end", &last)] {
        let had = lines.lines().rfind(|line| column(line, 1) == *until).map(|line| column(line, 6)).unwrap();
        let target = folder.path(name);
        expect(&["restore", &backup, &target, "--log", &data, "--until", until], 0);
        let server = start(&target, &[]);
        assert_eq!(server.expect(&["get", "b"], 0), had, "{until}: {lines}");
        assert_eq!(server.expect(&["get", "a"], 0), "1");
        stop(server);
    }
    let why = refused(&["restore", &backup, &folder.path("x"), "--until", "yesterday"], 2);
    assert!(why.contains("neither a Unix time"), "{why}");
    // This time is before the first change.
    let said = expect(&["restore", &backup, &folder.path("before"), "--until", "1000000000"], 0);
    assert!(said.contains(": 0 records restored (position 0 of the log)"), "{said}");
}

#[test]
fn every_byte_of_a_backup_is_checked() {
    let folder = TestFolder::new();
    let (data, backup) = (folder.path("data"), folder.path("backup"));
    stopped(&data);
    expect(&["backup", &data, &backup], 0);
    let paths = files(Path::new(&backup));
    assert_eq!(paths.len(), 3, "{paths:?}");
    for path in &paths {
        let bytes = fs::read(path).unwrap();
        // The tests of the library flip every byte. Here each byte needs a process, so only some
        // are flipped.
        for at in (0..bytes.len()).step_by(41) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            fs::write(path, damaged).unwrap();
            let said = expect(&["verify", &backup], 1);
            assert!(said.contains("damaged: ") && said.contains(path.to_str().unwrap()), "{said}");
            let why = refused(&["restore", &backup, &folder.path("x")], 3);
            assert!(why.contains(path.to_str().unwrap()), "{why}");
            assert!(!Path::new(&folder.path("x")).exists());
        }
        fs::write(path, bytes).unwrap();
    }
    expect(&["verify", &backup], 0);
}

#[test]
fn damaged_directory_is_refused_and_salvaged() {
    let folder = TestFolder::new();
    let data = folder.path("data");
    stopped(&data);
    let path = files(Path::new(&folder.path("data/log"))).remove(0);
    let mut bytes = fs::read(&path).unwrap();
    // These bytes are in the first change, after the segment's header and a mark.
    bytes[64 + 25 + 8..64 + 25 + 12].fill(0xff);
    fs::write(&path, &bytes).unwrap();
    let why = refused(&["serve", "-p", "-1", "--admin-port", "0", "--data-dir", &data], 3);
    assert!(why.contains(path.to_str().unwrap()), "{why}");
    assert!(why.contains(&format!("`todana salvage {data} TARGET`")), "{why}");
    assert!(expect(&["verify", &data], 1).contains("damaged: "));
    let target = folder.path("target");
    let output = run(&["salvage", &data, &target]);
    let said = text(&output.stderr);
    let place = format!("todana: {} at offset 89: entries are damaged or missing: ", path.display());
    assert!(output.status.success() && said.starts_with(&place), "{said}");
    assert!(said.contains("bytes of the log are marked as lost"), "{said}");
    assert!(text(&output.stdout).starts_with(&format!("{target}: ")));
    assert_eq!(fs::read(&path).unwrap(), bytes);
    expect(&["verify", &target], 0);
    // The old names of commands are supported for one version.
    assert!(expect(&["repair", &data], 1).contains("damaged: "));
    assert!(refused(&["repair", &data, "--yes"], 2).contains(&format!("`todana salvage {data} TARGET`")));
    let server = start(&target, &[]);
    server.expect(&["get", "a"], 1);
    assert_eq!(server.expect(&["get", "b"], 0), "2");
}

#[test]
fn stored_bytes_cannot_break_the_log_columns() {
    let folder = TestFolder::new();
    let data = folder.path("data");
    let server = start(&data, &["-o", "negative_exptime=sliding", "--log-segment-size", "4k"]);
    let long = "x".repeat(3_000);
    server.expect(&["set", "flagged", "tab\there\\", "--flags", "7"], 0);
    server.expect(&["set", "mortal", "1", "--ttl", "2000000000"], 0);
    server.expect(&["set", "long", &long], 0);
    server.expect(&["set", "long", &long], 0);
    server.expect(&["delete", "mortal"], 0);
    let printed = |options: &[&str]| {
        let lines = expect(&[&["log", &data], options].concat(), 0);
        let line = |line: &str| line.splitn(4, '\t').nth(3).unwrap().to_string();
        lines.lines().map(line).collect::<Vec<String>>()
    };
    let short = format!("put\tlong\tsize=3000\t{}\\...", &long[..40]);
    let lines = [
        "put\tflagged\tsize=14 flags=7\ttab\\there\\\\".replace("size=14", "size=9"),
        "put\tmortal\tsize=1 expiry=2000000000\t1".to_string(),
        short.clone(),
        short,
        "remove\tmortal\t-\t".to_string(),
    ];
    assert_eq!(printed(&[]), lines);
    assert_eq!(printed(&["--values", "none"])[2], "put\tlong\tsize=3000\t");
    assert_eq!(printed(&["--values", "whole"])[2], format!("put\tlong\tsize=3000\t{long}"));
    // From the position of a line.
    let all = expect(&["log", &data], 0);
    let position = all.lines().nth(3).unwrap().split('\t').next().unwrap();
    assert_eq!(expect(&["log", &data, "--from", position], 0).lines().count(), 2);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    assert_eq!(printed(&["--since", &(now + 1_000).to_string()]), Vec::<String>::new());
    assert_eq!(printed(&["--until", &(now - 1_000).to_string()]), Vec::<String>::new());
    assert_eq!(
        printed(&["--since", &(now - 1_000).to_string(), "--until", &(now + 1_000).to_string()]),
        lines
    );
    let segments = expect(&["log", &data, "--segments"], 0);
    assert_eq!(segments.lines().count(), 2, "{segments}");
    assert!(segments.starts_with("00000000000000000000.log\t0\t"), "{segments}");
    assert!(refused(&["log", &folder.path("nothing")], 3).contains("does not exist"));
}

/// Ends the process when dropped, even after a panic.
struct FollowingProcess(Child);

impl Drop for FollowingProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn log_follows_across_new_segments() {
    let folder = TestFolder::new();
    let data = folder.path("data");
    let server = start(&data, &["--log-segment-size", "4k"]);
    server.expect(&["set", "first", "1"], 0);
    let mut command = todana();
    command.args(["log", &data, "--follow", "--values", "none"]).stdout(Stdio::piped());
    let mut follows = FollowingProcess(command.spawn().unwrap());
    let mut lines = BufReader::new(follows.0.stdout.take().unwrap()).lines();
    let mut next = || {
        let line = lines.next().unwrap().unwrap();
        line.split('\t').nth(4).unwrap().to_string()
    };
    assert_eq!(next(), "first");
    let long = "x".repeat(2_000);
    for n in 0..10 {
        server.expect(&["set", &format!("key {n}").replace(' ', "_"), &long], 0);
        assert_eq!(next(), format!("key_{n}"));
    }
    assert!(expect(&["log", &data, "--segments"], 0).lines().count() > 3);
}

#[test]
fn directory_is_verified_while_its_server_writes() {
    let folder = TestFolder::new();
    let data = folder.path("data");
    let options = ["--log-segment-size", "4k", "--checkpoint-log-size", "4k"];
    let server = start(&data, &options);
    server.expect(&["set", "first", "1"], 0);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut stream = TcpStream::connect(&server.address).unwrap();
            stream.set_nodelay(true).unwrap();
            let value = "x".repeat(500);
            let mut reply = [0; 8];
            while !is_over.load(Ordering::Relaxed) {
                stream.write_all(format!("set key 0 0 500\r\n{value}\r\n").as_bytes()).unwrap();
                stream.read_exact(&mut reply).unwrap();
                assert_eq!(&reply, b"STORED\r\n");
            }
        });
        let mut begins = Vec::new();
        // The loop ends when a part of the log has been removed in the meantime.
        while begins.iter().collect::<BTreeSet<_>>().len() < 3 {
            let output = run(&["verify", &data]);
            let said = text(&output.stdout);
            let is_sound = output.status.code() == Some(0);
            if !is_sound {
                is_over.store(true, Ordering::Relaxed);
            }
            assert!(is_sound, "{said}{}", text(&output.stderr));
            let log = said.lines().find(|line| line.starts_with("log: ")).unwrap().to_string();
            let from = log.split("position ").nth(1).unwrap().split(' ').next().unwrap();
            begins.push(from.parse::<u64>().unwrap());
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn options_control_the_data_directory() {
    let folder = TestFolder::new();
    let data = folder.path("data");
    let options =
        ["--log-segment-size", "4k", "--checkpoint-log-size", "8k", "--checkpoint-compression", "none"];
    let checkpoints = || {
        fs::read_dir(folder.path("data/checkpoints")).map_or(0, |entries| {
            entries
                .filter(|entry| {
                    entry.as_ref().unwrap().path().extension().is_some_and(|end| end == "checkpoint")
                })
                .count()
        })
    };
    let oldest = || {
        let segments = expect(&["log", &data, "--segments"], 0);
        segments.lines().next().unwrap().split('\t').nth(1).unwrap().parse::<u64>().unwrap()
    };
    let server = start(&data, &[&options[..], &["--log-keep-size", "1g"]].concat());
    let long = "x".repeat(4_000);
    for round in 1..=3 {
        // The log grows by more than the length of the previous checkpoint.
        for n in 0..10 * round {
            server.expect(&["set", &format!("key{}", n % 3), &long], 0);
        }
        // The server checks once a second.
        while checkpoints() < round.min(2) {
            std::thread::yield_now();
        }
    }
    assert_eq!(oldest(), 0, "all is kept");
    stop(server);
    let why = refused(&["serve", "--checkpoint-compression", "gzip"], 2);
    assert!(why.contains("zstd"), "{why}");
    assert!(refused(&["serve", "--log-segment-size", "1k"], 2).contains("at least 4k"));
    let shown = expect(&["config", "show", "--", "--log-keep-age", "60", "--data-dir", &data], 0);
    assert!(shown.contains("log-keep-age = 60"), "{shown}");
}
