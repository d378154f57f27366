//! Checkpoints, backups and the update log of a running server, as docs/protocol/exports.md
//! describes them.

use crate::running;

use rcgen::{CertificateParams, KeyPair};
use running::{RunningServer, WAIT_MAX, text, todana};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use todana::update_log::{EntryDecoder, LogChange, LogPosition};
use todana_client::{Connection, Error, ExportFrame, LogFrom, SocketTimeouts};

fn start(folder: &Path, options: &[&str]) -> RunningServer {
    let mut all = vec!["--data-dir", folder.to_str().unwrap(), "-t", "2"];
    all.extend(options);
    RunningServer::start(&all)
}

fn connect(server: &RunningServer) -> Connection {
    let timeouts = SocketTimeouts { connect: WAIT_MAX, read: WAIT_MAX, write: WAIT_MAX };
    Connection::open_within(&server.address.parse().unwrap(), timeouts).unwrap()
}

/// A connection for raw requests.
struct RawConnection(BufReader<TcpStream>);

impl RawConnection {
    fn connect(server: &RunningServer) -> RawConnection {
        RawConnection(server.talk())
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
        self.news()
    }

    /// Returns the next line that is not `WAIT`.
    fn news(&mut self) -> String {
        loop {
            let line = self.line();
            if line != "WAIT\r\n" {
                return line;
            }
        }
    }

    /// Returns the data of the frame that begins with this line.
    fn data(&mut self, line: &str) -> Vec<u8> {
        let len: usize = line.strip_prefix("DATA ").expect(line).trim_end().parse().unwrap();
        assert!(len <= 65_536);
        let mut data = vec![0; len + 2];
        self.0.read_exact(&mut data).unwrap();
        assert!(data.ends_with(b"\r\n"));
        data.truncate(len);
        data
    }

    /// Returns all remaining data.
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

/// Stores records that cannot be compressed, in total more than sockets and buffers can hold.
fn fill(raw: &mut RawConnection, megabytes: usize) {
    let mut random = fastrand::Rng::with_seed(7);
    let mut value = vec![0; 32 << 10];
    for number in 0..megabytes * 32 {
        random.fill(&mut value);
        raw.set(&format!("filler:{number}"), &value);
    }
}

/// Returns the position of the oldest log entry.
fn log_begins_at(server: &RunningServer) -> u64 {
    let mut raw = RawConnection::connect(server);
    let head = raw.ask("todana log first\r\n");
    head.strip_prefix("LOG position=").expect(&head).split(' ').next().unwrap().parse().unwrap()
}

/// Writes a little, so that the log grows, and requests a checkpoint.
fn write_and_checkpoint(server: &RunningServer) {
    RawConnection::connect(server).set("some", b"thing");
    connect(server).checkpoint(0).unwrap();
}

#[test]
fn checkpoint_on_request_precedes_the_next_reply() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path(), &[]);
    let mut raw = RawConnection::connect(&server);
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
fn servers_without_data_or_permission_refuse_exports() {
    let server = RunningServer::start(&[]);
    let mut raw = RawConnection::connect(&server);
    for request in ["checkpoint", "backup", "backup 1000", "log first", "log 0 follow"] {
        let line = raw.ask(&format!("todana {request}\r\n"));
        assert_eq!(line, "SERVER_ERROR no data directory: the server was started without --data-dir\r\n");
    }
    assert_eq!(raw.ask("todana\r\n"), "ERROR\r\n");
    assert_eq!(raw.ask("todana backup fast\r\n"), "CLIENT_ERROR bad command line format\r\n");
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path(), &["-X"]);
    let mut raw = RawConnection::connect(&server);
    assert_eq!(raw.ask("todana backup\r\n"), "ERROR backup not allowed\r\n");
    assert_eq!(raw.ask("todana log first\r\n"), "ERROR log not allowed\r\n");
    assert!(raw.ask("todana checkpoint\r\n").starts_with("CHECKPOINT "));
}

#[test]
fn log_refuses_positions_it_does_not_have() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path(), &[]);
    (0..3).for_each(|_| write_and_checkpoint(&server));
    let first = log_begins_at(&server);
    assert!(first > 0);
    let mut raw = RawConnection::connect(&server);
    let line = raw.ask("todana log 0\r\n");
    assert_eq!(
        line,
        format!("SERVER_ERROR the update log does not go back to position 0, only to {first}\r\n")
    );
    let line = raw.ask("todana log 18446744073709551615\r\n");
    assert!(line.starts_with("SERVER_ERROR the update log ends at position "), "{line}");
    // The connection can still be used.
    assert!(raw.ask("todana log end\r\n").starts_with("LOG position="));
    assert_eq!(raw.rest(), b"");
    assert!(raw.ask("version\r\n").starts_with("VERSION "));
}

#[test]
fn third_concurrent_backup_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path(), &[]);
    let slow = || {
        let mut raw = RawConnection::connect(&server);
        // At this rate, the backup would take hours.
        let line = raw.ask("todana backup 1\r\n");
        assert!(line.starts_with("DATA "), "{line}");
        raw
    };
    let (first, second) = (slow(), slow());
    let mut third = RawConnection::connect(&server);
    assert_eq!(third.ask("todana backup\r\n"), "SERVER_ERROR busy\r\n");
    assert_eq!(third.ask("todana checkpoint\r\n"), "SERVER_ERROR busy\r\n");
    // Readers of the log are counted separately.
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
fn stalled_receiver_harms_nobody_and_gets_everything() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path(), &["-m", "256"]);
    let mut other = RawConnection::connect(&server);
    fill(&mut other, 64);
    connect(&server).checkpoint(0).unwrap();
    let before = server.anonymous_mib();
    let mut stalled = RawConnection::connect(&server);
    stalled.send(b"todana backup\r\n");
    // The server keeps working, and writes other checkpoints.
    for number in 0..2_000 {
        other.set("counter", number.to_string().as_bytes());
    }
    let mut most = 0;
    for _ in 0..5 {
        write_and_checkpoint(&server);
        most = most.max(server.anonymous_mib());
    }
    assert!(most < before + 24, "{most} MiB, {before} MiB before");
    // The log that the receiver needs is complete, although checkpoints were written in the
    // meantime.
    let target = folder.path().join("backup");
    let disk = std::sync::Arc::new(todana::disk::SystemDisk);
    let mut receiver = todana::backup::BackupReceiver::create(disk, &target).unwrap();
    receiver.take(&stalled.rest()).unwrap();
    let backed_up = receiver.finish(&mut |_| ()).unwrap();
    assert!(backed_up.records >= 64 * 32 && backed_up.len > 64 << 20, "{backed_up:?}");
}

#[test]
fn receiver_releases_its_log_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path(), &["-m", "256"]);
    fill(&mut RawConnection::connect(&server), 1);
    write_and_checkpoint(&server);
    for request in ["todana backup 1\r\n", "todana log first follow\r\n"] {
        let mut receiver = RawConnection::connect(&server);
        let line = receiver.ask(request);
        assert!(line.starts_with("DATA ") || line.starts_with("LOG "), "{line}");
        if request.contains("follow") {
            // The receiver continues to read, and so holds the log before its position.
            fill(&mut RawConnection::connect(&server), 16);
        }
        let held_from = log_begins_at(&server);
        (0..4).for_each(|_| write_and_checkpoint(&server));
        let still = log_begins_at(&server);
        let end = connect(&server).checkpoint(0).unwrap().position;
        assert!(still < end, "{request}");
        if request.contains("backup") {
            // The checkpoint of the backup stays, too.
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
fn log_follower_sees_writes_in_key_order() {
    const WRITERS: u64 = 4;
    const WRITES: u64 = 300;
    for sync in ["always", "20", "never"] {
        let folder = tempfile::tempdir().unwrap();
        let server = start(folder.path(), &["--sync", sync]);
        RawConnection::connect(&server).set("before", b"1");
        let mut follower = connect(&server);
        let head = follower.begin_log(0, LogFrom::End, true).unwrap();
        let mut entries = EntryDecoder::new(head.database_id, LogPosition(head.position));
        std::thread::scope(|scope| {
            for writer in 0..WRITERS {
                let server = &server;
                scope.spawn(move || {
                    let mut raw = RawConnection::connect(server);
                    for number in 0..WRITES {
                        raw.set(&format!("own:{writer}"), number.to_string().as_bytes());
                        // All connections write this key.
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
                    ExportFrame::Data(data) => data.to_vec(),
                    ExportFrame::Wait => Vec::new(),
                    ExportFrame::End => panic!("a log that is followed has no end"),
                });
                entries.push(&data.unwrap());
                while let Some((_, entry)) = entries.next_entry().unwrap() {
                    match entry.change {
                        LogChange::Put { key: b"shared", record } => {
                            let value = String::from_utf8(record.value.to_vec()).unwrap();
                            let (writer, number) = value.split_once(' ').unwrap();
                            let expected = shared.entry(writer.to_string()).or_insert(0u64);
                            assert_eq!(number.parse::<u64>().unwrap(), *expected);
                            *expected += 1;
                        }
                        LogChange::Put { key, record } => {
                            let expected = next.entry(key.to_vec()).or_insert(0u64);
                            let number: u64 = std::str::from_utf8(record.value).unwrap().parse().unwrap();
                            assert_eq!(number, *expected);
                            *expected += 1;
                        }
                        LogChange::Remove { key } => {
                            assert_eq!(next[key] % 10, 0, "behind the tenth");
                            removed += 1;
                        }
                        LogChange::Mark { .. } => {}
                        other => panic!("{other:?}"),
                    }
                }
            }
            assert_eq!((next.len(), removed), (WRITERS as usize, WRITERS * WRITES / 10));
        });
        // From any position of the log, the rest is the same.
        drop(follower);
        let mut again = connect(&server);
        assert_eq!(again.begin_log(0, LogFrom::At(head.position), false).unwrap(), head);
        let mut whole = EntryDecoder::new(head.database_id, LogPosition(head.position));
        let mut count = 0;
        while let Some(data) = again
            .next_frame(|frame| match frame {
                ExportFrame::Data(data) => Some(data.to_vec()),
                ExportFrame::Wait => Some(Vec::new()),
                ExportFrame::End => None,
            })
            .unwrap()
        {
            whole.push(&data);
            while let Some((_, entry)) = whole.next_entry().unwrap() {
                count += u64::from(matches!(entry.change, LogChange::Put { .. } | LogChange::Remove { .. }));
            }
        }
        assert!(whole.is_empty());
        assert_eq!(count, WRITERS * (2 * WRITES + WRITES / 10));
    }
}

#[test]
fn stopping_server_notifies_receivers_and_waits_for_none() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = start(folder.path(), &[]);
    let mut follower = connect(&server);
    follower.begin_log(0, LogFrom::End, true).unwrap();
    let mut slow = RawConnection::connect(&server);
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
fn strangers_receive_no_exports() {
    let folder = tempfile::tempdir().unwrap();
    let users = folder.path().join("users");
    std::fs::write(&users, "user:secret\n").unwrap();
    let data = folder.path().join("data");
    let server = start(&data, &["-Y", users.to_str().unwrap()]);
    let mut raw = RawConnection::connect(&server);
    for request in ["checkpoint", "backup", "log first"] {
        let line = raw.ask(&format!("todana {request}\r\n"));
        assert_eq!(line, "CLIENT_ERROR unauthenticated\r\n");
    }
    assert_eq!(raw.ask("set x 0 0 11\r\nuser secret\r\n"), "STORED\r\n");
    assert!(raw.ask("todana checkpoint\r\n").starts_with("CHECKPOINT "));
    // The commands log in.
    let known = format!("todana://user:secret@{}", server.address);
    let target = folder.path().join("target").to_str().unwrap().to_string();
    raw.set("key", b"value");
    assert!(done(&["checkpoint", &known]).starts_with("a checkpoint of 1 record, "));
    assert!(done(&["log", &known]).ends_with("\tput\tkey\tsize=5\tvalue\n"));
    done(&["backup", &known, &target]);
    for words in [vec!["checkpoint", &server.address], vec!["log", &server.address]] {
        let output = run(&words);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(3), String::new()), "{words:?}");
    }
}

fn run(words: &[&str]) -> Output {
    todana().args(words).output().unwrap()
}

/// Runs a command that must succeed. Returns its output.
fn done(words: &[&str]) -> String {
    let output = run(words);
    assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

const WRITERS: usize = 8;
const KEYS: u64 = 50;

/// The progress of a connection on one of its keys. The value rises by [`KEYS`] with each write,
/// and each third write removes the record.
#[derive(Clone, Copy, Default)]
struct KeyProgress {
    acknowledged: u64,
    asked: u64,
}

/// Returns the value of the write with this number, or `None` for a removal.
fn stored(number: u64) -> Option<u64> {
    (number > 0 && !(number / KEYS).is_multiple_of(3)).then_some(number)
}

fn write_on(
    server: &RunningServer,
    writer: usize,
    counts: &Mutex<Vec<KeyProgress>>,
    stops: &AtomicBool,
    all: &AtomicU64,
) {
    let mut raw = RawConnection::connect(server);
    let mut number = KEYS;
    while !stops.load(Ordering::Relaxed) {
        let key = format!("{writer}:{}", number % KEYS);
        let count =
            |set: &dyn Fn(&mut KeyProgress)| set(&mut counts.lock().unwrap()[(number % KEYS) as usize]);
        count(&|count| count.asked = number);
        match stored(number) {
            Some(number) => raw.set(&key, number.to_string().as_bytes()),
            None => assert_eq!(raw.ask(&format!("delete {key}\r\n")), "DELETED\r\n"),
        }
        count(&|count| count.acknowledged = number);
        all.fetch_add(1, Ordering::Relaxed);
        number += 1;
    }
}

#[test]
fn backup_under_load_has_exactly_acknowledged_writes() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let server = start(&folder.path().join("data"), &["-m", "256"]);
    fill(&mut RawConnection::connect(&server), 8);
    let counts: Vec<Mutex<Vec<KeyProgress>>> =
        (0..WRITERS).map(|_| Mutex::new(vec![KeyProgress::default(); KEYS as usize])).collect();
    let (stops, all) = (AtomicBool::new(false), AtomicU64::new(0));
    let snapshot =
        || -> Vec<Vec<KeyProgress>> { counts.iter().map(|counts| counts.lock().unwrap().clone()).collect() };
    let mut ranges = Vec::new();
    std::thread::scope(|scope| {
        for (writer, counts) in counts.iter().enumerate() {
            let (server, stops, all) = (&server, &stops, &all);
            scope.spawn(move || write_on(server, writer, counts, stops, all));
        }
        let _stopping = StopOnDrop(&stops);
        for backup in 0..3 {
            // During the writes.
            let until = all.load(Ordering::Relaxed) + 500;
            while all.load(Ordering::Relaxed) < until {
                std::thread::yield_now();
            }
            let before = snapshot();
            let target = path(&format!("backup-{backup}"));
            let printed = done(&["backup", &server.address, &target]);
            assert!(printed.starts_with(&format!("{target}: a checkpoint of ")), "{printed}");
            ranges.push((before, snapshot()));
        }
    });
    for (backup, (before, after)) in ranges.iter().enumerate() {
        let (from, to) = (path(&format!("backup-{backup}")), path(&format!("restored-{backup}")));
        done(&["verify", &from]);
        done(&["restore", &from, &to]);
        let restored = start(Path::new(&to), &["-m", "256"]);
        let mut raw = RawConnection::connect(&restored);
        let mut there = 0;
        for (writer, (before, after)) in before.iter().zip(after).enumerate() {
            for (key, (before, after)) in before.iter().zip(after).enumerate() {
                let line = raw.ask(&format!("get {writer}:{key}\r\n"));
                let found = line.starts_with("VALUE ").then(|| {
                    let value = raw.line().trim_end().parse::<u64>().unwrap();
                    assert_eq!(raw.line(), "END\r\n");
                    value
                });
                there += u64::from(found.is_some());
                let step = usize::try_from(KEYS).unwrap();
                // The number of a write determines its key.
                let first = before.acknowledged.max(key as u64);
                let mut allowed = (first..=after.asked.max(first)).step_by(step).map(stored);
                assert!(
                    allowed.any(|allowed| allowed == found),
                    "backup {backup}, {writer}:{key}: {found:?} of {}..={}",
                    before.acknowledged,
                    after.asked
                );
            }
        }
        assert!(there > 0);
        let mut random = fastrand::Rng::with_seed(7);
        let mut value = vec![0; 32 << 10];
        for number in 0..8 * 32 {
            random.fill(&mut value);
            assert_eq!(
                raw.ask(&format!("get filler:{number}\r\n")),
                format!("VALUE filler:{number} 0 32768\r\n")
            );
            let mut found = vec![0; value.len() + 7];
            raw.0.read_exact(&mut found).unwrap();
            assert!(found.starts_with(&value) && found.ends_with(b"\r\nEND\r\n"));
        }
    }
}

/// Ends the writers when dropped, even after a panic.
struct StopOnDrop<'s>(&'s AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn interrupted_backup_leaves_no_files() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("target");
    let server = start(&folder.path().join("data"), &[]);
    fill(&mut RawConnection::connect(&server), 1);
    for signal in ["INT", "TERM", "KILL"] {
        let mut child = todana()
            .args(["backup", &server.address, target.to_str().unwrap(), "--rate", "1k"])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let partial = folder.path().join("target.partial");
        // The backup has started to write a file.
        while !partial.join("identity").exists() {
            std::thread::yield_now();
        }
        let (pid, code) = match signal {
            "KILL" => (server.child.id(), 3),
            _ => (child.id(), 130),
        };
        let status =
            std::process::Command::new("kill").args(["-s", signal, &pid.to_string()]).status().unwrap();
        assert!(status.success());
        let mut why = String::new();
        child.stderr.take().unwrap().read_to_string(&mut why).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(code), "{signal}: {why}");
        let expected = if signal == "KILL" { "todana: " } else { "todana: interrupted\n" };
        assert!(why.starts_with(expected), "{why}");
        assert!(!target.exists() && !partial.exists());
    }
}

#[test]
fn exports_work_over_tls() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let key = KeyPair::generate().unwrap();
    let names = ["localhost".to_string(), "127.0.0.1".to_string()];
    let certificate = CertificateParams::new(names).unwrap().self_signed(&key).unwrap();
    std::fs::write(path("server.pem"), certificate.pem() + &key.serialize_pem()).unwrap();
    let server = start(&folder.path().join("data"), &["--tls-cert", &path("server.pem")]);
    let address = server.address.as_str();
    assert!(address.starts_with("todanas://"), "{address}");
    let ca = path("server.pem");
    let tls = ["--tls-ca", ca.as_str()];
    let words = |words: &[&str]| done(&[words, &tls].concat());
    for number in 0..20 {
        let value = "v".repeat(10_000);
        words(&["set", &format!("key:{number}"), &value, "-S", address]);
    }
    assert!(words(&["checkpoint", address]).starts_with("a checkpoint of 20 records, "));
    words(&["backup", address, &path("backup")]);
    assert_eq!(words(&["log", address]).lines().count(), 20);
    done(&["restore", &path("backup"), &path("restored")]);
    let restored = start(&folder.path().join("restored"), &[]);
    assert_eq!(restored.expect(&["get", "key:19"], 0).trim_end().len(), 10_000);
}

#[test]
fn log_is_the_same_from_server_and_directory() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = start(&data, &["--sync", "always"]);
    let mut raw = RawConnection::connect(&server);
    raw.set("one", b"with a\ttab");
    raw.set("two", &[b'x'; 100]);
    assert_eq!(raw.ask("touch two 1000\r\n"), "TOUCHED\r\n");
    assert_eq!(raw.ask("delete one\r\n"), "DELETED\r\n");
    assert_eq!(raw.ask("flush_all\r\n"), "OK\r\n");
    let of_directory = done(&["log", data.to_str().unwrap()]);
    let operations: Vec<&str> = of_directory.lines().map(|line| line.split('\t').nth(3).unwrap()).collect();
    assert_eq!(operations, ["put", "put", "retag", "remove", "clear"]);
    assert_eq!(done(&["log", &server.address]), of_directory);
    let second = of_directory.lines().nth(1).unwrap();
    let position = second.split('\t').next().unwrap();
    let rest = done(&["log", &server.address, "--from", position, "--values", "whole"]);
    assert_eq!(rest.lines().count(), 4);
    assert!(rest.lines().next().unwrap().ends_with(&"x".repeat(100)), "{rest}");
    assert_eq!(done(&["log", &server.address, "--from", "end"]), "");
    // A position within an entry is refused.
    let between = (position.parse::<u64>().unwrap() + 1).to_string();
    let output = run(&["log", &server.address, "--from", &between]);
    assert_eq!(output.status.code(), Some(3));
    let why = format!("position {between} of the update log is not between two entries");
    assert!(text(&output.stderr).contains(&why), "{}", text(&output.stderr));
    // A follower receives new entries until the server ends. Then it reports its position.
    let mut child = todana()
        .args(["log", &server.address, "--from", "end", "--follow"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    // The follower may not have started yet.
    let stops = AtomicBool::new(false);
    let number = std::thread::scope(|scope| {
        let (server, stops) = (&server, &stops);
        scope.spawn(move || {
            let mut raw = RawConnection::connect(server);
            while !stops.load(Ordering::Relaxed) {
                raw.set("three", b"new");
            }
        });
        let _stopping = StopOnDrop(stops);
        lines.read_line(&mut line).unwrap()
    });
    assert!(number > 0 && line.ends_with("\tput\tthree\tsize=3\tnew\n"), "{line}");
    server.signal("TERM");
    let mut why = String::new();
    lines.read_to_string(&mut String::new()).unwrap();
    child.stderr.take().unwrap().read_to_string(&mut why).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(3));
    assert!(why.contains("the server is stopping; all changes before position "), "{why}");
}

#[test]
fn server_commands_refuse_wrong_places() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let server = RunningServer::start(&[]);
    let target = folder.path().join("target").to_str().unwrap().to_string();
    for (words, code, why) in [
        (vec!["backup", &server.address, &target], 3, "the server says: SERVER_ERROR no data directory"),
        (vec!["checkpoint", &server.address], 3, "the server says: SERVER_ERROR no data directory"),
        (vec!["log", &server.address], 3, "the server says: SERVER_ERROR no data directory"),
        (vec!["log", &server.address, "--segments"], 2, "--segments: needs a directory"),
        (vec!["log", path, "--from", "end"], 3, "has no update log"),
        (vec!["backup", path, &target, "--rate", "1m"], 2, "--rate: needs a running server"),
        (vec!["backup", &server.address, &target, "--rate", "0"], 2, "must be at least 1"),
        (vec!["backup", "127.0.0.1:1", &target], 3, "cannot connect to 127.0.0.1:1"),
    ] {
        let output = run(&words);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(why), "{words:?}: {}", text(&output.stderr));
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
