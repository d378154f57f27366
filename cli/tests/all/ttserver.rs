//! The program under the name `ttserver`, as start scripts and clients use it.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// This time is longer than any machine needs. It only ends a test that hangs.
const TIME_MAX: Duration = Duration::from_secs(60);

/// A folder that contains the executable under the name `ttserver`.
struct TtserverFolder(TempDir);

impl TtserverFolder {
    fn new() -> TtserverFolder {
        let folder = tempfile::tempdir().unwrap();
        symlink(env!("CARGO_BIN_EXE_todana"), folder.path().join("ttserver")).unwrap();
        TtserverFolder(folder)
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.path("ttserver"));
        command.args(words).stdin(Stdio::null()).current_dir(self.0.path());
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Starts a server on a port that the system chooses, and waits for its start.
    fn start(&self, words: &[&str]) -> TtserverProcess {
        let started = self.log().matches("service started: ").count();
        let base = ["-host", "127.0.0.1", "-port", "-1", "-log", "log"];
        let child = self.command(&[&base[..], words].concat()).stderr(Stdio::inherit()).spawn().unwrap();
        eventually("the server's start", || self.log().matches("service started: ").count() > started);
        let log = self.log();
        let line = log.lines().rfind(|line| line.contains("server configuration: ")).unwrap();
        TtserverProcess { child, port: line.rsplit('=').next().unwrap().parse().unwrap_or(0) }
    }
}

struct TtserverProcess {
    child: Child,
    port: u16,
}

impl TtserverProcess {
    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(TIME_MAX)).unwrap();
        stream
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    fn stop(mut self) -> ExitStatus {
        self.signal(Signal::SIGTERM);
        self.child.wait().unwrap()
    }
}

impl Drop for TtserverProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < TIME_MAX, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn ask(stream: &mut (impl Read + Write), request: &[u8], reply: &[u8]) {
    stream.write_all(request).unwrap();
    let mut received = vec![0; reply.len()];
    stream.read_exact(&mut received).unwrap();
    assert_eq!(received, reply, "{:?}", String::from_utf8_lossy(&received));
}

const PUT: &[u8] = b"\xc8\x10\0\0\0\x01\0\0\0\x01kv";
const GET: &[u8] = b"\xc8\x30\0\0\0\x01k";

#[test]
fn help_names_each_option() {
    let place = TtserverFolder::new();
    let output = place.run(&["--help"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && output.stderr.is_empty());
    for option in [
        "-host", "-port", "-thnum", "-tout", "-log", "-ld", "-le", "-dmn", "-pid", "-kl", "-ulog", "-ulim",
        "-uas", "-sid", "-mul", "-mask", "-unmask",
    ] {
        assert!(text.contains(option), "{option}");
    }
    assert!(text.lines().all(|line| line.len() <= 120), "too wide");
    let version = Command::new(env!("CARGO_BIN_EXE_todana")).args(["as", "ttserver", "--version"]).output();
    let version = String::from_utf8(version.unwrap().stdout).unwrap();
    assert!(version.starts_with("Tokyo Tyrant version 1.1.41 (324:0.91) for Linux"), "{version}");
}

#[test]
fn impossible_settings_end_with_code_one() {
    let place = TtserverFolder::new();
    fs::write(place.path("casket.tch"), "ToKyO CaBiNeT\n").unwrap();
    for (words, beginning) in [
        (&["casket.tch"][..], "casket.tch: is a file"),
        (&["-x"], "-x: unknown option"),
        (&["-mask", "puts"], "-mask puts: puts: unknown command"),
        (&["-log", "nowhere/log"], "the log file nowhere/log could not be opened"),
        (&["-pid", "nowhere/pid", "-port", "-1"], "-pid nowhere/pid: "),
    ] {
        let output = place.run(words);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        assert!(text.contains(&format!(": {beginning}")), "{words:?}: {text}");
    }
}

#[test]
fn server_speaks_all_protocols_and_logs_as_original() {
    let place = TtserverFolder::new();
    let server = place.start(&["-pid", "pid", "-mask", "vanish"]);
    let mut stream = server.connect();
    ask(&mut stream, PUT, &[0]);
    ask(&mut stream, b"get k\r\n", b"VALUE k 0 1\r\nv\r\nEND\r\n");
    ask(&mut server.connect(), b"GET /k HTTP/1.1\r\n\r\n", b"HTTP/1.1 200 OK\r\n");
    let mut other = server.connect();
    ask(&mut other, b"\xc8\x72", &[1]);
    ask(&mut other, b"flush_all\r\n", b"CLIENT_ERROR forbidden\r\n");
    let pid = fs::read_to_string(place.path("pid")).unwrap();
    assert_eq!(pid, format!("{}\n", server.child.id()));
    // A log that was moved away is created again.
    fs::rename(place.path("log"), place.path("old")).unwrap();
    server.signal(Signal::SIGHUP);
    eventually("the new log", || place.log().contains("the log file was reopened"));
    ask(&mut stream, GET, b"\0\0\0\0\x01v");
    assert_eq!(server.stop().code(), Some(0));
    assert!(!fs::exists(place.path("pid")).unwrap());
    let text = fs::read_to_string(place.path("old")).unwrap();
    let lines: Vec<&str> = text.lines().map(|line| line.split_once("Z\t").unwrap().1).collect();
    let begin = format!("SYSTEM\t--------- logging started [{}] --------", pid.trim());
    assert_eq!(lines[0], begin);
    for line in
        ["SYSTEM\topening the database: *", "SYSTEM\tcommand bit mask: 0x20000", "SYSTEM\tlistening started"]
    {
        assert!(lines.contains(&line), "{line}: {text}");
    }
    let text = place.log();
    assert!(
        text.contains("INFO\tsignal interruption\n") && text.contains("SYSTEM\tservice finished\n"),
        "{text}"
    );
}

#[test]
fn unix_socket_replaces_the_port() {
    let place = TtserverFolder::new();
    let child = place.command(&["-host", "socket", "-port", "0", "-log", "log"]).spawn().unwrap();
    let server = TtserverProcess { child, port: 0 };
    eventually("the server's start", || place.log().contains("listening started"));
    let mut stream = UnixStream::connect(place.path("socket")).unwrap();
    stream.set_read_timeout(Some(TIME_MAX)).unwrap();
    ask(&mut stream, PUT, &[0]);
    assert_eq!(server.stop().code(), Some(0));
}

#[test]
fn databases_survive_a_restart() {
    let place = TtserverFolder::new();
    for words in [&["casket.tch#bnum=1000"][..], &["casket.tcb"], &["-sid", "7", "-ulog", "ulog", "*"]] {
        let server = place.start(words);
        ask(&mut server.connect(), PUT, &[0]);
        assert_eq!(server.stop().code(), Some(0));
        let server = place.start(words);
        ask(&mut server.connect(), GET, b"\0\0\0\0\x01v");
        assert_eq!(server.stop().code(), Some(0));
    }
}

/// Without `-sid` the server had the ID 1. A tree on disk always has a log, so it served replicas
/// under this ID, and a real server 1 of the chain skipped its changes.
#[test]
fn server_without_an_id_refuses_replicas() {
    let place = TtserverFolder::new();
    fs::write(place.path("sid.lua"), "function sid() return _sid end").unwrap();
    let repl = b"\xc8\xa0\0\0\0\0\0\0\0\x01\0\0\0\x05";
    for (words, id, greeting) in [
        (&["casket.tcb"][..], "0", &b""[..]),
        (&["-sid", "7", "-ulog", "ulog", "casket.tcb"], "7", &[0, 0, 0, 7]),
    ] {
        let server = place.start(&[&["-ext", "sid.lua"], words].concat());
        let ext = b"\xc8\x68\0\0\0\x03\0\0\0\0\0\0\0\0\0\0\0\0sid";
        ask(&mut server.connect(), ext, &[&[0, 0, 0, 0, 1], id.as_bytes()].concat());
        let mut stream = server.connect();
        stream.write_all(repl).unwrap();
        let mut received = vec![0; greeting.len()];
        stream.read_exact(&mut received).unwrap();
        assert_eq!(received, greeting);
        if greeting.is_empty() {
            assert_eq!(stream.read(&mut [0]).unwrap(), 0, "the connection ends");
        }
        assert_eq!(server.stop().code(), Some(0));
    }
}

#[test]
fn running_process_is_left_alone_or_ended() {
    let place = TtserverFolder::new();
    let mut first = place.start(&["-pid", "pid"]);
    let words = ["-host", "127.0.0.1", "-port", "-1", "-pid", "pid"];
    let output = place.run(&words);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains(&format!("the process {} may be already running", first.child.id())), "{text}");
    let second = place.start(&["-pid", "pid", "-kl"]);
    assert_eq!(first.child.wait().unwrap().code(), Some(0));
    let pid = fs::read_to_string(place.path("pid")).unwrap();
    assert_eq!(pid.trim(), second.child.id().to_string());
    // A file that a killed server has left does not stop the next one.
    second.signal(Signal::SIGKILL);
    drop(second);
    assert_eq!(place.start(&["-pid", "pid"]).stop().code(), Some(0));
}

#[test]
fn daemon_serves_after_its_caller_has_ended() {
    let place = TtserverFolder::new();
    let (log, pid) = (place.path("log"), place.path("pid"));
    let output = place.run(&["-dmn", "-host", "127.0.0.1", "-port", "-1", "-log", &log, "-pid", &pid]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    eventually("the start", || place.log().contains("listening started"));
    let text = place.log();
    let line = text.lines().find(|line| line.contains("server configuration: ")).unwrap();
    let port: u16 = line.rsplit('=').next().unwrap().parse().unwrap();
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(TIME_MAX)).unwrap();
    ask(&mut stream, PUT, &[0]);
    let pid: i32 = fs::read_to_string(&pid).unwrap().trim().parse().unwrap();
    kill(Pid::from_raw(pid), Signal::SIGTERM).unwrap();
    eventually("the end", || place.log().contains("logging finished"));
}

#[test]
fn script_is_called_until_the_end() {
    let place = TtserverFolder::new();
    let text = "function _end() _put('ended', 'yes') end function f(key, value) return key .. value end";
    fs::write(place.path("f.lua"), text).unwrap();
    let words = ["-ext", "f.lua", "-extpc", "tick", "0.5", "-extt", "2", "casket.tch"];
    let server = place.start(&words);
    let ext = b"\xc8\x68\0\0\0\x01\0\0\0\0\0\0\0\x01\0\0\0\x01fab";
    ask(&mut server.connect(), ext, b"\0\0\0\0\x02ab");
    // The changed script is read.
    fs::write(place.path("f.lua"), text.replace("key .. value", "value .. key")).unwrap();
    server.signal(Signal::SIGHUP);
    eventually("the new script", || place.log().contains("script: reloaded"));
    ask(&mut server.connect(), ext, b"\0\0\0\0\x02ba");
    assert_eq!(server.stop().code(), Some(0));
    let server = place.start(&words);
    ask(&mut server.connect(), b"\xc8\x30\0\0\0\x05ended", b"\0\0\0\0\x03yes");
    assert_eq!(server.stop().code(), Some(0));
    assert!(place.log().contains("SYSTEM\tscripting extension: f.lua\n"));
}

fn copy_request(path: &str) -> Vec<u8> {
    [b"\xc8\x73", &(path.len() as u32).to_be_bytes()[..], path.as_bytes()].concat()
}

#[test]
fn copy_becomes_a_database_of_one_moment() {
    let place = TtserverFolder::new();
    for (words, copy) in [
        (&["*"][..], "memory.tch"),
        (&["+"], "memory.tcb"),
        (&["casket.tch"], "hash.tch"),
        (&["casket.tch"], "hash.20261123"),
        (&["casket.tcb"], "tree.tcb#bnum=5"),
        (&["casket.tcb"], "forest"),
        (&["-sid", "3", "-ulog", "ulog", "*"], "logged.tcb"),
    ] {
        let server = place.start(words);
        let mut stream = server.connect();
        ask(&mut stream, PUT, &[0]);
        ask(&mut stream, b"set f 7 0 1\r\nv\r\n", b"STORED\r\n");
        ask(&mut stream, &copy_request(copy), &[0]);
        // An existing database is never replaced.
        ask(&mut stream, &copy_request(copy), &[1]);
        assert_eq!(server.stop().code(), Some(0));
        let kind = words.last().unwrap().rsplit_once('.').map_or("", |(_, kind)| kind);
        let renamed = format!("{copy}.{kind}");
        let is_named = copy.contains(".tc");
        if !is_named {
            fs::rename(place.path(copy), place.path(&renamed)).unwrap();
        }
        let server = place.start(&[if is_named { copy } else { &renamed }]);
        ask(&mut server.connect(), GET, b"\0\0\0\0\x01v");
        ask(&mut server.connect(), b"get f\r\n", b"VALUE f 7 1\r\nv\r\nEND\r\n");
        assert_eq!(server.stop().code(), Some(0));
    }
    let leftovers = fs::read_dir(place.0.path())
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().contains("copying"));
    assert_eq!(leftovers.count(), 0);
}

#[test]
fn copy_stays_within_its_directory() {
    let place = TtserverFolder::new();
    let outside = tempfile::tempdir().unwrap();
    let server = place.start(&["*"]);
    let mut stream = server.connect();
    for path in ["nosuffix", "*", "missing/x.tch", "@touch x"] {
        ask(&mut stream, &copy_request(path), &[1]);
    }
    let anywhere = outside.path().join("anywhere.tch");
    ask(&mut stream, &copy_request(anywhere.to_str().unwrap()), &[0]);
    assert!(anywhere.exists());
    drop(server);
    let server = place.start(&["-extd", &place.path("."), "*"]);
    let mut stream = server.connect();
    for path in ["../x.tch", outside.path().join("x.tch").to_str().unwrap()] {
        ask(&mut stream, &copy_request(path), &[1]);
    }
    ask(&mut stream, &copy_request(&place.path("x.tch")), &[0]);
    drop(server);
    let server = place.start(&["-extd", outside.path().to_str().unwrap(), "*"]);
    ask(&mut server.connect(), &copy_request("x.tch"), &[0]);
    assert!(outside.path().join("x.tch").exists());
}
