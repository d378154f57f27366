//! A server on a full disk starts, serves reads and accepts removals. Removals make room, and then
//! the server accepts writes again.
//!
//! Such a start was once refused, so that reads that had worked before failed. `delete` and
//! `flush_all` were refused like writes, so that only other programs could make room.

mod running;

use running::{RunningServer, SmallDisk, TextClient, WAIT_MAX, eventually, todana};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

const RECORDS: usize = 400;
const VALUE: [u8; 5_000] = [b'v'; 5_000];

/// Returns the databases, in the words of the command line.
fn kinds(small: &SmallDisk) -> Vec<(&'static str, Vec<String>)> {
    let path = |name: &str| small.path(name).to_str().unwrap().to_string();
    vec![
        ("memory", vec!["--data-dir".into(), path("data")]),
        ("hash", vec![path("x.hash")]),
        ("tree", vec![path("x.tree")]),
    ]
}

fn start(words: &[String]) -> RunningServer {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    RunningServer::start(&[&["--sync", "always", "-t", "2"], &words[..]].concat())
}

fn kill(mut server: RunningServer) {
    server.child.kill().unwrap();
    server.child.wait().unwrap();
}

fn key(number: usize) -> String {
    format!("k{number}")
}

fn has(client: &mut TextClient, number: usize) -> bool {
    match client.ask(&format!("mg {}\r\n", key(number))).as_str() {
        "HD\r\n" => true,
        "EN\r\n" => false,
        said => panic!("{said}"),
    }
}

fn is_refused(said: &str) -> bool {
    said.starts_with("SERVER_ERROR cannot write the ")
}

fn write_until_refused(client: &mut TextClient) {
    assert!((0..10_000).any(|_| is_refused(&client.set("more", &VALUE))), "it is never refused");
}

fn stored(words: &[String]) {
    let server = start(words);
    let mut client = TextClient::connect(&server);
    for number in 0..RECORDS {
        assert_eq!(client.set(&key(number), &VALUE), "STORED\r\n");
    }
    // The server is stopped regularly, so that the next start removes no files.
    running::stop(server);
}

#[test]
fn removals_make_room_on_a_full_disk() {
    for kind in 0..3 {
        let Some(small) = SmallDisk::mount("size=24m") else {
            eprintln!("skipped: no file system can be mounted here");
            return;
        };
        let (kind, words) = kinds(&small).swap_remove(kind);
        stored(&words);
        small.fill();
        for round in 0..2 {
            let server = start(&words);
            let mut client = TextClient::connect(&server);
            assert!((round..RECORDS).all(|number| has(&mut client, number)), "{kind}");
            // This uses any space that the start has freed.
            small.fill();
            write_until_refused(&mut client);
            assert_eq!(client.stat("todana_log_health"), "stuck", "{kind}");
            assert_eq!(client.stat("todana_log_takes_writes"), "0", "{kind}");
            assert_eq!(client.ask(&format!("delete {}\r\n", key(round))), "DELETED\r\n", "{kind}");
            kill(server);
        }
        let server = start(&words);
        let mut client = TextClient::connect(&server);
        assert!((0..RECORDS).all(|number| has(&mut client, number) == (number >= 2)), "{kind}");
        for number in 2..RECORDS - 10 {
            assert_eq!(client.ask(&format!("delete {}\r\n", key(number))), "DELETED\r\n", "{kind}");
        }
        eventually(&format!("{kind} takes writes again"), || client.stat("todana_log_health") == "well");
        // The file of a tree never shrinks, and a transaction writes no page that has just been
        // freed.
        let writes = if kind == "tree" { 5 } else { 50 };
        for number in 0..writes {
            // Compaction may still be in progress.
            eventually(kind, || client.set(&format!("new{number}"), &VALUE) == "STORED\r\n");
        }
        kill(server);
        let server = start(&words);
        let mut client = TextClient::connect(&server);
        assert!((0..RECORDS).all(|number| has(&mut client, number) == (number >= RECORDS - 10)), "{kind}");
        assert_eq!(client.ask(&format!("mg new{}\r\n", writes - 1)), "HD\r\n", "{kind}");
    }
}

#[test]
fn flush_makes_room_on_a_full_disk() {
    for kind in 0..3 {
        let Some(small) = SmallDisk::mount("size=24m") else {
            eprintln!("skipped: no file system can be mounted here");
            return;
        };
        let (kind, words) = kinds(&small).swap_remove(kind);
        let server = start(&words);
        let mut client = TextClient::connect(&server);
        for number in 0..RECORDS {
            assert_eq!(client.set(&key(number), &VALUE), "STORED\r\n");
        }
        // The disk fills while the server runs.
        small.fill();
        write_until_refused(&mut client);
        assert!((0..RECORDS).all(|number| has(&mut client, number)), "{kind}");
        assert_eq!(client.ask("flush_all\r\n"), "OK\r\n", "{kind}");
        assert!((0..RECORDS).all(|number| !has(&mut client, number)), "{kind}");
        eventually(&format!("{kind} takes writes again"), || client.stat("todana_log_health") == "well");
        eventually(kind, || client.set("after", &VALUE) == "STORED\r\n");
        kill(server);
        let server = start(&words);
        let mut client = TextClient::connect(&server);
        assert!((0..RECORDS).all(|number| !has(&mut client, number)), "{kind}");
        assert_eq!(client.ask("mg after\r\n"), "HD\r\n", "{kind}");
    }
}

#[test]
fn log_reports_start_and_end_of_full_disk() {
    let Some(small) = SmallDisk::mount("size=24m") else {
        eprintln!("skipped: no file system can be mounted here");
        return;
    };
    let words = kinds(&small).swap_remove(0).1;
    stored(&words);
    let ballast = small.fill();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut server =
        RunningServer::start_logging(todana(), &[&["-v", "-t", "2"], &words[..]].concat(), Stdio::piped());
    let stderr = BufReader::new(server.child.stderr.take().unwrap());
    let (sender, lines) = std::sync::mpsc::channel();
    std::thread::spawn(move || stderr.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    let wait_for = |wanted: &str, never: &str| loop {
        let line = lines.recv_timeout(WAIT_MAX).unwrap_or_else(|_| panic!("no line with: {wanted}"));
        if line.contains(wanted) {
            return;
        }
        assert!(!line.contains(never), "{line}");
    };
    let over = "writes: accepted again";
    let begun = "writes: refused until they can be stored: update log: cannot write to it: the disk is full";
    small.fill();
    write_until_refused(&mut TextClient::connect(&server));
    wait_for(begun, over);
    fs::remove_file(ballast).unwrap();
    wait_for(over, begun);
    kill(server);
    assert!(Path::new(words[1]).join("reserve").exists());
}
