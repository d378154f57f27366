//! The program under the name `ktserver`, in a folder of its own.
#![allow(dead_code, reason = "each program of tests uses a part")]

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// This time is longer than any machine needs. It only ends a test that hangs.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(60);

/// A folder that contains the executable under the name `ktserver`.
pub(crate) struct KtserverFolder {
    pub(crate) folder: TempDir,
    ktserver: PathBuf,
}

impl KtserverFolder {
    pub(crate) fn new() -> KtserverFolder {
        let folder = tempfile::tempdir().unwrap();
        let ktserver = folder.path().join("ktserver");
        symlink(env!("CARGO_BIN_EXE_todana"), &ktserver).unwrap();
        KtserverFolder { folder, ktserver }
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.ktserver);
        command.args(words).stdin(Stdio::null()).current_dir(self.folder.path());
        command
    }

    pub(crate) fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    /// Starts a server on a port that the system chooses, and waits for its start.
    pub(crate) fn start(&self, words: &[&str]) -> KtserverProcess {
        let log = self.path("log");
        // A previous server has logged its port to this file.
        let _ = fs::remove_file(&log);
        let base = ["-host", "127.0.0.1", "-port", "-1", "-log", &log];
        let mut child = self.command(&[&base[..], words].concat()).stderr(Stdio::piped()).spawn().unwrap();
        eventually("the server's start", || {
            if let Some(status) = child.try_wait().unwrap() {
                let mut stderr = String::new();
                child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
                panic!("{words:?} ended with {status}: {stderr}");
            }
            read(&log).contains("the server has started")
        });
        let ports = ports(&read(&log));
        KtserverProcess { child, ports, log }
    }
}

/// Returns the ports in a server's log.
pub(crate) fn ports(log: &str) -> Vec<u16> {
    let opened = log.lines().filter_map(|line| line.split_once("server socket opened: expr="));
    let places = opened.map(|(_, place)| place.split(' ').next().unwrap());
    places.map(|place| place.rsplit(':').next().unwrap().parse().unwrap()).collect()
}

pub(crate) fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Waits until another process has done something.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < WAIT_MAX, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub(crate) struct KtserverProcess {
    pub(crate) child: Child,
    /// The port of the server, and that of the plug-in.
    pub(crate) ports: Vec<u16>,
    pub(crate) log: String,
}

impl KtserverProcess {
    pub(crate) fn connect(&self, number: usize) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.ports[number])).unwrap();
        stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        stream
    }

    /// Sends bytes after which the server closes the connection. Returns everything that is
    /// received before that.
    pub(crate) fn last_words(&self, number: usize, sent: &[u8]) -> String {
        let mut stream = self.connect(number);
        stream.write_all(sent).unwrap();
        let mut got = Vec::new();
        // If the server closes without reading everything, the connection is reset.
        let _ = stream.read_to_end(&mut got);
        String::from_utf8_lossy(&got).into_owned()
    }

    /// Returns the status and body of a procedure call or a resource.
    pub(crate) fn ask(&self, method: &str, target: &str, body: &str) -> (u16, String) {
        let len = body.len();
        let head =
            format!("{method} {target} HTTP/1.1\r\nConnection: close\r\nContent-Length: {len}\r\n\r\n");
        let answer = self.last_words(0, (head + body).as_bytes());
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{target}: {answer:?}"));
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    /// Calls a procedure, which must succeed.
    pub(crate) fn call(&self, target: &str) -> String {
        let (status, body) = self.ask("POST", &format!("/rpc/{target}"), "");
        assert_eq!(status, 200, "{target}: {body}");
        body
    }

    pub(crate) fn field(&self, target: &str, name: &str) -> String {
        let body = self.call(target);
        let line = body.lines().find_map(|line| line.strip_prefix(&format!("{name}\t")));
        line.unwrap_or_else(|| panic!("{name}: {body}")).to_owned()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), signal).unwrap();
    }

    pub(crate) fn end(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("the end", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    pub(crate) fn stop(mut self) {
        self.signal(Signal::SIGTERM);
        assert!(self.end().success());
    }
}

impl Drop for KtserverProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
