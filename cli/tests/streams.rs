//! Checkpoints, backups and the update log of a server at work: docs/protocol/exports.md.

mod running;

use running::Server;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;
use todana::update_log::{Change, Entries, Position};
use todana_client::{Connection, Error, Frame, LogFrom, Timeouts};

/// Long enough for any machine: it only ends what would hang.
const PATIENCE: Duration = Duration::from_secs(60);

fn start(folder: &Path, options: &[&str]) -> Server {
    let mut all = vec!["--data-dir", folder.to_str().unwrap(), "-t", "2"];
    all.extend(options);
    Server::start(&all)
}

fn connect(server: &Server) -> Connection {
    let timeouts = Timeouts { connect: PATIENCE, read: PATIENCE, write: PATIENCE };
    Connection::open_within(&server.address.parse().unwrap(), timeouts).unwrap()
}

/// A connection that speaks for itself.
struct Raw(BufReader<TcpStream>);

impl Raw {
    fn connect(server: &Server) -> Raw {
        let stream = TcpStream::connect(&server.address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Raw(BufReader::new(stream))
    }

    fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line
    }

    fn ask(&mut self, request: &str) -> String {
        self.send(request.as_bytes());
        self.line()
    }

    /// The next line that is not `WAIT`.
    fn news(&mut self) -> String {
        loop {
            let line = self.line();
            if line != "WAIT\r\n" {
                return line;
            }
        }
    }

    /// The data of the frame that begins with this line.
    fn data(&mut self, line: &str) -> Vec<u8> {
        let len: usize = line.strip_prefix("DATA ").expect(line).trim_end().parse().unwrap();
        assert!(len <= 65_536);
        let mut data = vec![0; len + 2];
        self.0.read_exact(&mut data).unwrap();
        assert!(data.ends_with(b"\r\n"));
        data.truncate(len);
        data
    }

    /// All the data that is still to come.
    fn rest(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        loop {
            let line = self.news();
            if line == "END\r\n" {
                return all;
            }
            all.extend(self.data(&line));
        }
    }

    fn set(&mut self, key: &str, value: &[u8]) {
        self.send(format!("set {key} 0 0 {}\r\n", value.len()).as_bytes());
        self.send(value);
        self.send(b"\r\n");
        assert_eq!(self.line(), "STORED\r\n");
    }
}

/// Stores records that no compression makes smaller; more than sockets and buffers on the way can hold.
fn fill(raw: &mut Raw, megabytes: usize) {
    let mut random = fastrand::Rng::with_seed(7);
    let mut value = vec![0; 32 << 10];
    for number in 0..megabytes * 32 {
        random.fill(&mut value);
        raw.set(&format!("filler:{number}"), &value);
    }
}

/// What the process has in memory, in KiB.
fn resident_kib(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// How far back the log goes.
fn log_begins_at(server: &Server) -> u64 {
    let mut raw = Raw::connect(server);
    let head = raw.ask("todana log first\r\n");
    head.strip_prefix("LOG position=").expect(&head).split(' ').next().unwrap().parse().unwrap()
}

/// Lets the log grow by a little, and has a checkpoint made.
fn write_and_checkpoint(server: &Server) {
    Raw::connect(server).set("some", b"thing");
    connect(server).checkpoint().unwrap();
}

#[test]
fn a_checkpoint_is_made_when_asked_for_and_the_next_request_is_served_behind_it() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path(), &[]);
    let mut raw = Raw::connect(&server);
    raw.set("key", b"value");
    raw.send(b"todana checkpoint\r\nget key\r\n");
    let line = raw.news();
    let position = line.strip_prefix("CHECKPOINT position=").expect(&line).split(' ').next().unwrap();
    assert!(line.contains(" records=1 bytes="), "{line}");
    let file = folder.path().join(format!("checkpoints/{position:0>20}.checkpoint"));
    let len = file.metadata().unwrap().len();
    assert!(line.contains(&format!(" bytes={len} ms=")), "{line}");
    assert_eq!([raw.line(), raw.line(), raw.line()], ["VALUE key 0 5\r\n", "value\r\n", "END\r\n"]);
}

#[test]
fn a_server_that_keeps_nothing_says_so_and_one_that_shows_nothing_too() {
    let server = Server::start(&[]);
    let mut raw = Raw::connect(&server);
    for request in ["checkpoint", "backup", "backup 1000", "log first", "log 0 follow"] {
        let line = raw.ask(&format!("todana {request}\r\n"));
        assert_eq!(line, "SERVER_ERROR no data directory: the server was started without --data-dir\r\n");
    }
    assert_eq!(raw.ask("todana\r\n"), "ERROR\r\n");
    assert_eq!(raw.ask("todana backup fast\r\n"), "CLIENT_ERROR bad command line format\r\n");
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path(), &["-X"]);
    let mut raw = Raw::connect(&server);
    assert_eq!(raw.ask("todana backup\r\n"), "ERROR backup not allowed\r\n");
    assert_eq!(raw.ask("todana log first\r\n"), "ERROR log not allowed\r\n");
    assert!(raw.ask("todana checkpoint\r\n").starts_with("CHECKPOINT "));
}

#[test]
fn a_log_is_not_read_from_where_it_does_not_go() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path(), &[]);
    (0..3).for_each(|_| write_and_checkpoint(&server));
    let first = log_begins_at(&server);
    assert!(first > 0);
    let mut raw = Raw::connect(&server);
    let line = raw.ask("todana log 0\r\n");
    assert_eq!(
        line,
        format!("SERVER_ERROR the update log does not go back to position 0, only to {first}\r\n")
    );
    let line = raw.ask("todana log 18446744073709551615\r\n");
    assert!(line.starts_with("SERVER_ERROR the update log ends at position "), "{line}");
    // The connection is as good as before.
    assert!(raw.ask("todana log end\r\n").starts_with("LOG position="));
    assert_eq!(raw.rest(), b"");
    assert!(raw.ask("version\r\n").starts_with("VERSION "));
}

#[test]
fn two_backups_go_on_at_once_a_third_is_refused_until_one_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path(), &[]);
    let slow = || {
        let mut raw = Raw::connect(&server);
        // It would take hours.
        let line = raw.ask("todana backup 1\r\n");
        assert!(line.starts_with("DATA "), "{line}");
        raw
    };
    let (first, second) = (slow(), slow());
    let mut third = Raw::connect(&server);
    assert_eq!(third.ask("todana backup\r\n"), "SERVER_ERROR busy\r\n");
    assert_eq!(third.ask("todana checkpoint\r\n"), "SERVER_ERROR busy\r\n");
    // Whoever reads the log is counted apart.
    assert!(third.ask("todana log end\r\n").starts_with("LOG "));
    third.rest();
    drop(first);
    let line = loop {
        let line = third.ask("todana checkpoint\r\n");
        if line != "SERVER_ERROR busy\r\n" {
            break line;
        }
    };
    assert!(line.starts_with("CHECKPOINT "), "{line}");
    drop(second);
}

#[test]
fn a_receiver_that_stalls_harms_nobody_and_gets_all_of_it_in_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path(), &["-m", "256"]);
    let mut other = Raw::connect(&server);
    fill(&mut other, 64);
    connect(&server).checkpoint().unwrap();
    let before = resident_kib(&server);
    let mut stalled = Raw::connect(&server);
    stalled.send(b"todana backup\r\n");
    // The server works on, and makes other checkpoints.
    for number in 0..2_000 {
        other.set("counter", number.to_string().as_bytes());
    }
    let mut most = 0;
    for _ in 0..5 {
        write_and_checkpoint(&server);
        most = most.max(resident_kib(&server));
    }
    assert!(most < before + (24 << 10), "{most} KiB, {before} KiB before");
    // In the log that it needs nothing is missing, whatever checkpoints have been made.
    let target = folder.path().join("backup");
    let disk = std::sync::Arc::new(todana::disk::SystemDisk);
    let mut receiver = todana::backup::Receiver::create(disk, &target).unwrap();
    receiver.take(&stalled.rest()).unwrap();
    let backed_up = receiver.finish(&mut |_| ()).unwrap();
    assert!(backed_up.records >= 64 * 32 && backed_up.len > 64 << 20, "{backed_up:?}");
}

#[test]
fn what_a_receiver_holds_of_the_log_is_let_go_when_it_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path(), &["-m", "256"]);
    fill(&mut Raw::connect(&server), 1);
    write_and_checkpoint(&server);
    for request in ["todana backup 1\r\n", "todana log first follow\r\n"] {
        let mut receiver = Raw::connect(&server);
        let line = receiver.ask(request);
        assert!(line.starts_with("DATA ") || line.starts_with("LOG "), "{line}");
        if request.contains("follow") {
            // It reads on, so it holds what comes.
            fill(&mut Raw::connect(&server), 16);
        }
        let held_from = log_begins_at(&server);
        (0..4).for_each(|_| write_and_checkpoint(&server));
        let still = log_begins_at(&server);
        let end = connect(&server).checkpoint().unwrap().position;
        assert!(still < end, "{request}");
        if request.contains("backup") {
            // Its own checkpoint stays too.
            (0..3).for_each(|_| write_and_checkpoint(&server));
            assert_eq!(log_begins_at(&server), still);
        }
        drop(receiver);
        let mut tries = 0;
        while log_begins_at(&server) < end {
            write_and_checkpoint(&server);
            tries += 1;
            assert!(tries < 1_000, "{request}: {} of {end}, {held_from}", log_begins_at(&server));
        }
    }
}

#[test]
fn who_follows_the_log_sees_every_write_in_the_order_of_its_key() {
    const WRITERS: u64 = 4;
    const WRITES: u64 = 300;
    for sync in ["always", "20", "never"] {
        let folder = tempfile::tempdir().unwrap();
        let server = start(folder.path(), &["--sync", sync]);
        Raw::connect(&server).set("before", b"1");
        let mut follower = connect(&server);
        let head = follower.begin_log(LogFrom::End, true).unwrap();
        let mut entries = Entries::new(head.database_id, Position(head.position));
        std::thread::scope(|scope| {
            for writer in 0..WRITERS {
                let server = &server;
                scope.spawn(move || {
                    let mut raw = Raw::connect(server);
                    for number in 0..WRITES {
                        raw.set(&format!("own:{writer}"), number.to_string().as_bytes());
                        // All of them write this one.
                        raw.set("shared", format!("{writer} {number}").as_bytes());
                        if number % 10 == 9 {
                            assert_eq!(raw.ask(&format!("delete own:{writer}\r\n")), "DELETED\r\n");
                        }
                    }
                });
            }
            let mut next = HashMap::new();
            let (mut shared, mut removed) = (HashMap::new(), 0);
            while next.values().sum::<u64>() + removed < WRITERS * (WRITES + WRITES / 10)
                || shared.values().sum::<u64>() < WRITERS * WRITES
            {
                let data = follower.next_frame(|frame| match frame {
                    Frame::Data(data) => data.to_vec(),
                    Frame::Wait => Vec::new(),
                    Frame::End => panic!("a log that is followed has no end"),
                });
                entries.take(&data.unwrap());
                while let Some((_, entry)) = entries.next_entry().unwrap() {
                    match entry.change {
                        Change::Put { key: b"shared", record } => {
                            let value = String::from_utf8(record.value.to_vec()).unwrap();
                            let (writer, number) = value.split_once(' ').unwrap();
                            let expected = shared.entry(writer.to_string()).or_insert(0u64);
                            assert_eq!(number.parse::<u64>().unwrap(), *expected);
                            *expected += 1;
                        }
                        Change::Put { key, record } => {
                            let expected = next.entry(key.to_vec()).or_insert(0u64);
                            let number: u64 = std::str::from_utf8(record.value).unwrap().parse().unwrap();
                            assert_eq!(number, *expected);
                            *expected += 1;
                        }
                        Change::Remove { key } => {
                            assert_eq!(next[key] % 10, 0, "behind the tenth");
                            removed += 1;
                        }
                        Change::Mark { .. } => {}
                        other => panic!("{other:?}"),
                    }
                }
            }
            assert_eq!((next.len(), removed), (WRITERS as usize, WRITERS * WRITES / 10));
        });
        // From any of its positions on, the rest is the same.
        drop(follower);
        let mut again = connect(&server);
        assert_eq!(again.begin_log(LogFrom::At(head.position), false).unwrap(), head);
        let mut whole = Entries::new(head.database_id, Position(head.position));
        let mut count = 0;
        while let Some(data) = again
            .next_frame(|frame| match frame {
                Frame::Data(data) => Some(data.to_vec()),
                Frame::Wait => Some(Vec::new()),
                Frame::End => None,
            })
            .unwrap()
        {
            whole.take(&data);
            while let Some((_, entry)) = whole.next_entry().unwrap() {
                count += u64::from(matches!(entry.change, Change::Put { .. } | Change::Remove { .. }));
            }
        }
        assert!(whole.is_empty());
        assert_eq!(count, WRITERS * (2 * WRITES + WRITES / 10));
    }
}

#[test]
fn a_server_that_stops_tells_those_it_sends_to_and_waits_for_none() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = start(folder.path(), &[]);
    let mut follower = connect(&server);
    follower.begin_log(LogFrom::End, true).unwrap();
    let mut slow = Raw::connect(&server);
    assert!(slow.ask("todana backup 1\r\n").starts_with("DATA "));
    server.signal("TERM");
    assert!(server.child.wait().unwrap().success());
    let refused = loop {
        match follower.next_frame(|_| ()) {
            Ok(()) => {}
            Err(Error::Refused(refusal)) => break refusal.line,
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!(refused, "SERVER_ERROR the server is stopping");
    let mut left = Vec::new();
    slow.0.read_to_end(&mut left).unwrap();
    assert!(left.ends_with(b"\r\nSERVER_ERROR the server is stopping\r\n"), "{}", left.escape_ascii());
}

#[test]
fn strangers_hear_nothing_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let users = folder.path().join("users");
    std::fs::write(&users, "user:secret\n").unwrap();
    let data = folder.path().join("data");
    let server = start(&data, &["-Y", users.to_str().unwrap()]);
    let mut raw = Raw::connect(&server);
    for request in ["checkpoint", "backup", "log first"] {
        let line = raw.ask(&format!("todana {request}\r\n"));
        assert_eq!(line, "CLIENT_ERROR unauthenticated\r\n");
    }
    assert_eq!(raw.ask("set x 0 0 11\r\nuser secret\r\n"), "STORED\r\n");
    assert!(raw.ask("todana checkpoint\r\n").starts_with("CHECKPOINT "));
}
