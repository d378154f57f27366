//! The program `todana`, and its servers.

// Each test file uses only part of this module.
#![allow(dead_code)]

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::Duration;

/// This time is longer than any machine needs. It only ends a test that hangs.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(60);

/// Returns the program without the environment variables of this process.
pub(crate) fn todana() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_todana"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TODANA_")) {
        command.env_remove(name);
    }
    command
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

pub(crate) fn run(words: &[&str]) -> Output {
    todana().args(words).output().unwrap()
}

/// Runs a command that must end with this exit code. Returns its standard output.
pub(crate) fn expect(words: &[&str], code: i32) -> String {
    printed(words, &run(words), code)
}

/// Runs a command that must end with this exit code. Returns its standard error.
pub(crate) fn refused(words: &[&str], code: i32) -> String {
    said(words, &run(words), code)
}

fn printed(words: &[&str], output: &Output, code: i32) -> String {
    assert_eq!(output.status.code(), Some(code), "{words:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

fn said(words: &[&str], output: &Output, code: i32) -> String {
    assert_eq!(output.status.code(), Some(code), "{words:?}: {}", text(&output.stdout));
    text(&output.stderr)
}

/// A temporary folder in which commands run.
pub(crate) struct TestFolder(pub(crate) tempfile::TempDir);

impl TestFolder {
    pub(crate) fn new() -> TestFolder {
        TestFolder(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_string()
    }

    pub(crate) fn run(&self, words: &[&str]) -> Output {
        todana().args(words).current_dir(self.0.path()).output().unwrap()
    }

    /// Runs a command that must end with this exit code. Returns its standard output.
    pub(crate) fn expect(&self, words: &[&str], code: i32) -> String {
        printed(words, &self.run(words), code)
    }

    /// Runs a command that must end with this exit code. Returns its standard error.
    pub(crate) fn complaint(&self, words: &[&str], code: i32) -> String {
        said(words, &self.run(words), code)
    }

    /// Stores these lines of text in a database or a server.
    pub(crate) fn import(&self, name: &str, lines: &str) -> Output {
        let mut command = todana();
        command
            .args(["import", name])
            .current_dir(self.0.path())
            .stdin(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // A refused import does not read its input.
        let _ = child.stdin.take().unwrap().write_all(lines.as_bytes());
        child.wait_with_output().unwrap()
    }
}

/// Stops a server. Its exit code must be 0.
pub(crate) fn stop(mut server: RunningServer) {
    server.signal("TERM");
    assert!(server.child.wait().unwrap().success());
}

/// A server process on a port that the system chose.
pub(crate) struct RunningServer {
    pub(crate) child: Child,
    pub(crate) stdout: BufReader<ChildStdout>,
    pub(crate) banner: Vec<String>,
    pub(crate) address: String,
}

impl RunningServer {
    pub(crate) fn start(options: &[&str]) -> RunningServer {
        RunningServer::start_as(todana(), options)
    }

    /// Starts a server from another executable.
    pub(crate) fn start_as(command: Command, options: &[&str]) -> RunningServer {
        RunningServer::start_logging(command, options, Stdio::null())
    }

    /// Starts a server with its log at `log`.
    pub(crate) fn start_logging(mut command: Command, options: &[&str], log: Stdio) -> RunningServer {
        command.arg("serve").args(["-p", "-1"]).args(options).stderr(log);
        RunningServer::of(command)
    }

    /// Starts a proxy.
    pub(crate) fn start_proxy(options: &[&str]) -> RunningServer {
        let mut command = todana();
        command.arg("proxy").args(options).stderr(Stdio::null());
        RunningServer::of(command)
    }

    fn of(mut command: Command) -> RunningServer {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let banner = banner(&mut stdout);
        let address = banner[1].trim_end().strip_prefix("listening on ").expect("an address").to_string();
        RunningServer { child, stdout, banner, address }
    }

    pub(crate) fn run(&self, words: &[&str]) -> Output {
        todana().args(words).env("TODANA_SERVER", &self.address).output().unwrap()
    }

    /// Runs a command that must end with this exit code. Returns its output.
    pub(crate) fn expect(&self, words: &[&str], code: i32) -> String {
        let output = self.run(words);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// Opens a connection for raw requests.
    pub(crate) fn talk(&self) -> BufReader<TcpStream> {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        stream.set_write_timeout(Some(WAIT_MAX)).unwrap();
        BufReader::new(stream)
    }

    /// Returns the anonymous memory of the process in MiB. As for `-m`, the program's code does not
    /// count, because an unoptimised build has several times as much.
    pub(crate) fn anonymous_mib(&self) -> u64 {
        self.status_kib("RssAnon") >> 10
    }

    /// Returns the highest anonymous memory of the process so far, in MiB. Linux records only the
    /// peak of all resident memory, so the files that are mapped now are subtracted from it.
    pub(crate) fn anonymous_peak_mib(&self) -> u64 {
        self.status_kib("VmHWM").saturating_sub(self.status_kib("RssFile")) >> 10
    }

    /// Returns a value of the process's status file, in KiB.
    fn status_kib(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    }

    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }
}

/// A client for raw requests of the text protocol.
pub(crate) struct TextClient(pub(crate) BufReader<TcpStream>);

impl TextClient {
    pub(crate) fn connect(server: &RunningServer) -> TextClient {
        TextClient(server.talk())
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).unwrap();
    }

    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line
    }

    /// Sends a request and returns the reply line.
    pub(crate) fn ask(&mut self, request: &str) -> String {
        self.send(request.as_bytes());
        self.line()
    }

    pub(crate) fn set(&mut self, key: &str, value: &[u8]) -> String {
        self.send(format!("set {key} 0 0 {}\r\n", value.len()).as_bytes());
        self.send(value);
        self.ask("\r\n")
    }

    /// Returns a statistic, which must exist.
    pub(crate) fn stat(&mut self, name: &str) -> String {
        let mut line = self.ask("stats\r\n");
        let mut found = None;
        while line != "END\r\n" {
            assert!(!line.is_empty(), "the server closed the connection");
            let pair = line.trim_end().strip_prefix("STAT ").and_then(|pair| pair.split_once(' '));
            found = pair.filter(|(key, _)| *key == name).map(|(_, value)| value.to_string()).or(found);
            line = self.line();
        }
        found.unwrap_or_else(|| panic!("there is no statistic {name}"))
    }
}

/// Waits until a condition holds. Fails after a long time.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..6_000 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("never: {what}");
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the first three lines of a server's output.
pub(crate) fn banner(stdout: &mut BufReader<ChildStdout>) -> Vec<String> {
    let line = |_| {
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        line
    };
    (0..3).map(line).collect()
}

/// A file system in memory with a limited size.
pub(crate) struct SmallDisk {
    folder: tempfile::TempDir,
}

impl SmallDisk {
    /// Mounts such a file system. Returns `None` if that is not allowed.
    pub(crate) fn mount(options: &str) -> Option<SmallDisk> {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().to_str().unwrap();
        has_run("mount", &["-t", "tmpfs", "-o", options, "tmpfs", place]).then_some(SmallDisk { folder })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Fills the file system with a file. Returns the path of this file.
    pub(crate) fn fill(&self) -> PathBuf {
        let path = self.path("ballast");
        let mut file = std::fs::File::options().append(true).create(true).open(&path).unwrap();
        for len in [64 << 10, 4096, 1] {
            while file.write_all(&vec![1; len]).is_ok() {}
        }
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        has_run("umount", &["-l", self.folder.path().to_str().unwrap()]);
    }
}

/// Runs a system program. Returns true if it succeeds.
pub(crate) fn has_run(program: &str, words: &[&str]) -> bool {
    let status = Command::new(program).args(words).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}
