//! The program under the name `memcached`, and its servers.

// Each test file uses only part of this module.
#![allow(dead_code)]

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// This time is longer than any machine needs. It only ends a test that hangs.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(60);

/// A folder that contains the executable under the name `memcached`.
pub(crate) struct MemcachedFolder {
    folder: TempDir,
}

impl MemcachedFolder {
    pub(crate) fn new() -> MemcachedFolder {
        let folder = tempfile::tempdir().unwrap();
        symlink(env!("CARGO_BIN_EXE_todana"), folder.path().join("memcached")).unwrap();
        MemcachedFolder { folder }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns a command without the environment variables of this process, on ports that the
    /// system chooses.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.path("memcached"));
        command.args(["-p", "-1", "-l", "127.0.0.1"]).args(words).current_dir(self.folder.path());
        if geteuid().is_root() {
            command.args(["-u", "root"]);
        }
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TODANA_")) {
            command.env_remove(name);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// Starts a server and waits until it listens. Its output goes to a file.
    pub(crate) fn start(&self, mut command: Command) -> MemcachedServer {
        let (ports, said) = (self.path("ports"), self.path("said"));
        let _ = fs::remove_file(&ports);
        command.env("MEMCACHED_PORT_FILENAME", &ports).stderr(File::create(&said).unwrap());
        let mut child = command.spawn().unwrap();
        eventually("the file with the ports", || {
            if let Some(status) = child.try_wait().unwrap() {
                panic!("{command:?} ended with {status}: {}", fs::read_to_string(&said).unwrap());
            }
            ports.exists()
        });
        let ports = fs::read_to_string(&ports).unwrap();
        let port = ports.lines().find_map(|line| line.strip_prefix("TCP INET: ")).expect(&ports);
        MemcachedServer { child, port: port.parse().unwrap(), said }
    }
}

/// Waits until another process has done something.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < WAIT_MAX, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub(crate) struct MemcachedServer {
    pub(crate) child: Child,
    pub(crate) port: u16,
    /// The file that contains the server's standard error.
    said: PathBuf,
}

impl MemcachedServer {
    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).unwrap();
        stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        stream
    }

    /// Sends requests on a new connection. Returns the reply.
    pub(crate) fn ask(&self, requests: &str) -> String {
        let mut stream = self.connect();
        stream.write_all(requests.as_bytes()).unwrap();
        stream.write_all(b"quit\r\n").unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        reply
    }

    /// Returns the server's output so far.
    pub(crate) fn said(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.said).unwrap()).into_owned()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), signal).unwrap();
    }

    /// Ends the server. Returns its status and output.
    pub(crate) fn end_by(mut self, signal: Signal) -> (ExitStatus, String) {
        self.signal(signal);
        (self.child.wait().unwrap(), self.said())
    }
}

impl Drop for MemcachedServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
