//! A server that cannot write a change to the files of a hash on disk. Clients get an error, and
//! existing data stays. Health, counters, the log and `/readyz` report the failure once at its
//! start and once at its end.
//!
//! 200 idle connections once took all descriptors of a server with `ulimit -n 64`, so that its hash
//! could create no further segment. Records that could not be replaced were then removed. A value
//! that did not fit on a full disk was refused as "out of memory", and everything else reported
//! good health.

use crate::running;

use running::{RunningServer, TextClient, WAIT_MAX, eventually, text};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

const REFUSED: &str = "SERVER_ERROR cannot write the files of the database\r\n";
const REPORTED: &str = "writes: refused until they can be stored: ";
const OVER: &str = "writes: accepted again";

/// A server with a limited number of open files, whose log the test reads.
struct LimitedServer {
    server: RunningServer,
    log: Receiver<String>,
    pages: String,
}

fn limited(files: u32, database: &Path) -> LimitedServer {
    let mut command = Command::new("sh");
    command
        .args(["-c", &format!("ulimit -n {files} && exec \"$0\" \"$@\"")])
        .arg(env!("CARGO_BIN_EXE_todana"));
    command
        .args(["serve", "-v", "-p", "-1", "--admin-port", "-1", "-t", "2", "--sync", "always"])
        .arg(database);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let banner = running::banner(&mut stdout);
    let address = banner[1].trim_end().strip_prefix("listening on ").expect("an address").to_string();
    let stderr = BufReader::new(child.stderr.take().unwrap());
    let (sender, log) = channel();
    std::thread::spawn(move || stderr.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    let pages = |line: String| Some(line.split_once("http://")?.1.trim_end_matches('/').to_string());
    let pages = std::iter::from_fn(|| log.recv_timeout(WAIT_MAX).ok()).find_map(pages).expect("its pages");
    LimitedServer { server: RunningServer { child, stdout, banner, address }, log, pages }
}

impl LimitedServer {
    /// Returns the status and the text of `/readyz`.
    fn readiness(&self) -> (String, String) {
        let mut stream = TcpStream::connect(&self.pages).unwrap();
        stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        stream.write_all(b"GET /readyz HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().to_string(), body.trim_end().to_string())
    }

    /// Waits for a line of the log. Fails if a line with `never` comes before it.
    fn expect_line(&self, wanted: &str, never: &str) {
        loop {
            let line = self.log.recv_timeout(WAIT_MAX).unwrap_or_else(|_| panic!("no line with: {wanted}"));
            if line.contains(wanted) {
                return;
            }
            assert!(!line.contains(never), "{line}");
        }
    }
}

#[test]
fn value_beyond_the_free_space_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let limited = limited(1024, &folder.path().join("x.hash"));
    let pid = limited.server.child.id().to_string();
    let limit = |limit: &str| {
        let status = Command::new("prlimit").args(["--pid", &pid, &format!("--fsize={limit}")]).status();
        status.is_ok_and(|status| status.success())
    };
    let mut client = TextClient::connect(&limited.server);
    assert_eq!(client.set("user", b"precious"), "STORED\r\n");
    if !limit("100000:unlimited") {
        eprintln!("skipped: there is no prlimit here");
        return;
    }
    let long = vec![b'n'; 180_000];
    for count in 1..=3 {
        assert_eq!(client.set("user", &long), REFUSED);
        assert_eq!(client.stat("todana_log_refusals"), count.to_string());
        assert_eq!(client.stat("store_no_memory"), "0");
    }
    client.send(b"ms user 180000 MS\r\n");
    client.send(&long);
    assert_eq!(client.ask("\r\n"), REFUSED);
    // Short values still fit.
    assert_eq!(client.set("short", b"v"), "STORED\r\n");
    assert_eq!(client.ask("mg user v\r\n"), "VA 8\r\n");
    assert_eq!(client.line(), "precious\r\n");
    assert_eq!(client.stat("todana_log_health"), "stuck");
    assert_eq!(client.stat("todana_log_takes_writes"), "0");
    assert_eq!(limited.readiness(), ("503".into(), "no writes".into()));
    limited.expect_line(REPORTED, OVER);

    assert!(limit("unlimited:unlimited"));
    eventually("it takes writes again", || client.stat("todana_log_health") == "well");
    assert_eq!(client.stat("todana_log_takes_writes"), "1");
    assert_eq!(limited.readiness(), ("200".into(), "ready".into()));
    limited.expect_line(OVER, REPORTED);
    assert_eq!(client.set("user", &long), "STORED\r\n");
}

#[test]
fn idle_clients_leave_descriptors_to_the_engine() {
    let folder = tempfile::tempdir().unwrap();
    let limited = limited(64, &folder.path().join("x.hash"));
    let mut client = TextClient::connect(&limited.server);
    for number in 0..100 {
        assert_eq!(client.set(&format!("user{number}"), b"precious"), "STORED\r\n");
    }
    let idle: Vec<TcpStream> =
        (0..200).map(|_| TcpStream::connect(&limited.server.address).unwrap()).collect();
    limited.expect_line("new clients wait", "ERROR");
    let long = vec![b'n'; 180_000];
    for number in 0..100 {
        assert_eq!(client.set(&format!("user{number}"), &long), "STORED\r\n", "{number}");
    }
    assert_eq!(client.stat("todana_log_health"), "well");
    // A waiting client is served when others have disconnected.
    drop(idle);
    assert_eq!(TextClient::connect(&limited.server).set("late", b"v"), "STORED\r\n");
}

#[test]
fn too_few_descriptors_end_the_start() {
    let folder = tempfile::tempdir().unwrap();
    // The number of other descriptors depends on those that the process inherits. If it inherits
    // none, 40 are enough to start.
    for files in [12, 16, 24, 32] {
        let script = format!("ulimit -n {files} && exec \"$0\" \"$@\"");
        // If the server starts nevertheless, `timeout` ends it.
        let mut command = Command::new("timeout");
        command.args(["60", "sh", "-c", &script, env!("CARGO_BIN_EXE_todana"), "serve", "-p", "-1"]);
        let output = command.args(["--admin-port", "0"]).arg(folder.path().join("x.hash")).output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{files}");
        let said = text(&output.stderr);
        let wanted = format!("todana: open files: the limit of {files} is too low for this server; raise it");
        assert!(said.contains(&wanted), "{files}: {said}");
    }
}

/// The server once created missing folders, so that a volume that was not mounted looked like an
/// empty database.
#[test]
fn missing_folder_above_ends_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("unmounted");
    for place in ["x.hash", "x.tree", "data"] {
        let place = missing.join(place);
        let mut command = Command::new(env!("CARGO_BIN_EXE_todana"));
        command.args(["serve", "-p", "-1", "--admin-port", "0"]);
        let is_data = place.ends_with("data");
        let output = command.args(is_data.then_some("--data-dir")).arg(&place).output().unwrap();
        assert_eq!(output.status.code(), Some(3));
        let said = text(&output.stderr);
        assert!(said.contains(&format!("the folder {} does not exist", missing.display())), "{said}");
        assert!(!missing.exists());
    }
}

#[test]
fn every_new_database_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let words = [path("x.hash"), path("y.tree"), "z=mem:tree".into(), "--data-dir".into(), path("d")];
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    for begin in [3, 0] {
        let mut server = RunningServer::start(&words);
        let mut lines = [String::new(), String::new(), String::new()];
        for line in &mut lines {
            server.stdout.read_line(line).unwrap();
        }
        let new = lines.iter().filter(|line| line.contains("no data found, starting a new database"));
        assert_eq!(new.count(), begin, "{lines:?}");
        running::stop(server);
    }
}
