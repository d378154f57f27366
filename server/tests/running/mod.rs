//! Runs a server in this process, and defines a client that checks replies.

// Each test file uses a part of this module.
#![allow(dead_code)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use todana::disk::Disk;
use todana_server::{IoMode, ListenOptions, MemoryOptions, Server, ServerHandle, ServerOptions};

/// The time after which a wait fails, so that a test does not hang. It is long enough for any
/// machine.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(60);

/// Returns the default options without a memory limit. The limit would apply to the complete
/// process, in which other tests run, too. The variable `TODANA_IO` selects the interface.
pub(crate) fn options() -> ServerOptions {
    let io = match std::env::var("TODANA_IO").as_deref() {
        Ok("uring") => IoMode::Uring,
        Ok("epoll") => IoMode::Epoll,
        Ok(other) if other != "auto" => panic!("TODANA_IO must be auto, uring or epoll, not {other:?}"),
        _ => IoMode::Auto,
    };
    ServerOptions {
        listen: ListenOptions { io, ..ListenOptions::default() },
        memory: MemoryOptions { limit_mib: 0, ..MemoryOptions::default() },
        ..ServerOptions::default()
    }
}

pub(crate) struct Running {
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) admin_addresses: Vec<SocketAddr>,
    pub(crate) udp_addresses: Vec<SocketAddr>,
    pub(crate) handle: ServerHandle,
    /// Lets the server read its files of users, certificates and scripts again.
    pub(crate) reload: Box<dyn Fn()>,
    serving: Option<JoinHandle<std::io::Result<()>>>,
}

impl Running {
    /// Starts a server on a port that the system chooses.
    pub(crate) fn start(options: ServerOptions) -> Running {
        Running::of(
            Server::bind(ServerOptions { listen: ListenOptions { port: 0, ..options.listen }, ..options })
                .unwrap(),
        )
    }

    /// Starts a server whose data is on this disk.
    pub(crate) fn start_from(options: ServerOptions, disk: Arc<dyn Disk>) -> Running {
        let options = ServerOptions { listen: ListenOptions { port: 0, ..options.listen }, ..options };
        let mut server = Server::bind_on(options, None, disk).unwrap();
        server.load(&mut |_| ()).unwrap();
        Running::of(server)
    }

    pub(crate) fn of(server: Server) -> Running {
        let (addresses, handle) = (server.tcp_addresses().to_vec(), server.handle());
        let admin_addresses = server.admin_addresses().to_vec();
        let udp_addresses = server.udp_addresses().to_vec();
        let reload = Box::new(server.reloader());
        Running {
            addresses,
            udp_addresses,
            admin_addresses,
            handle,
            reload,
            serving: Some(std::thread::spawn(move || server.run())),
        }
    }

    pub(crate) fn connect(&self) -> Client {
        self.connect_to(self.addresses[0])
    }

    pub(crate) fn connect_to(&self, address: SocketAddr) -> Client {
        Client::connect(address)
    }

    /// Waits until the server has ended.
    pub(crate) fn join(&mut self) {
        self.outcome().unwrap();
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.serving.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits until the server has ended, and returns its result.
    pub(crate) fn outcome(&mut self) -> std::io::Result<()> {
        self.serving.take().map_or(Ok(()), |serving| serving.join().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The second of these calls ends the server at once.
        self.handle.stop();
        self.handle.stop();
        if let Some(serving) = self.serving.take() {
            let _ = serving.join();
        }
    }
}

pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    reader: BufReader<TcpStream>,
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        stream.set_write_timeout(Some(WAIT_MAX)).unwrap();
        Client { reader: BufReader::new(stream.try_clone().unwrap()), stream }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Reads as many bytes as `expected` has, and compares them.
    pub(crate) fn expect(&mut self, expected: &[u8]) {
        let mut answer = vec![0; expected.len()];
        self.reader.read_exact(&mut answer).unwrap();
        let shown = |bytes: &[u8]| bytes[..bytes.len().min(200)].escape_ascii().to_string();
        assert!(answer == expected, "{} where {} is expected", shown(&answer), shown(expected));
    }

    pub(crate) fn read_exact(&mut self, bytes: &mut [u8]) {
        self.reader.read_exact(bytes).unwrap();
    }

    /// Reads exactly `len` bytes.
    pub(crate) fn take(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.reader.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Reads one line, with its end.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.reader.read_line(&mut line).unwrap();
        line
    }

    /// Reads one line, with its end. The line may contain any bytes.
    pub(crate) fn line_bytes(&mut self) -> Vec<u8> {
        let mut line = Vec::new();
        self.reader.read_until(b'\n', &mut line).unwrap();
        line
    }

    /// Reads until the server closes the connection.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        self.reader.read_to_end(&mut rest).unwrap();
        rest
    }

    pub(crate) fn expect_version(&mut self) {
        self.send(b"version\r\n");
        self.expect(b"VERSION 1.6.45\r\n");
    }

    pub(crate) fn set(&mut self, key: &[u8], value: &[u8]) {
        let len = value.len().to_string();
        self.send(&[b"set ", key, b" 0 0 ", len.as_bytes(), b"\r\n", value, b"\r\n"].concat());
        self.expect(b"STORED\r\n");
    }

    pub(crate) fn expect_value(&mut self, key: &[u8], value: &[u8]) {
        self.send(&[b"get ", key, b"\r\n"].concat());
        let len = value.len().to_string();
        self.expect(&[b"VALUE ", key, b" 0 ", len.as_bytes(), b"\r\n", value, b"\r\nEND\r\n"].concat());
    }

    pub(crate) fn stats(&mut self, group: &str) -> Vec<(String, String)> {
        self.send(format!("stats{group}\r\n").as_bytes());
        let mut stats = Vec::new();
        loop {
            let mut line = String::new();
            self.reader.read_line(&mut line).unwrap();
            let line = line.strip_suffix("\r\n").expect("a whole line");
            if line == "END" {
                return stats;
            }
            let pair = line.strip_prefix("STAT ").and_then(|pair| pair.split_once(' '));
            let (name, value) = pair.unwrap_or_else(|| panic!("not a statistic: {line:?}"));
            stats.push((name.to_string(), value.to_string()));
        }
    }

    pub(crate) fn stat(&mut self, name: &str) -> String {
        let stats = self.stats("");
        let found = stats.into_iter().find(|(found, _)| found == name);
        found.unwrap_or_else(|| panic!("there is no statistic {name}")).1
    }
}

/// Calls `holds` repeatedly until it returns true. Fails after a timeout; `what` describes the
/// condition.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..6_000 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("never: {what}");
}
