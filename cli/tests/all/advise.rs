//! `todana advise` on real servers, as far as they are installed, and on this one.

use crate::running;

use running::{RunningServer, TestFolder, WAIT_MAX, expect, stop, todana};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// The number of records in each server, with keys of 8 bytes and values of 10 or 110.
const RECORDS: usize = 3_000;

fn record(number: usize) -> (String, String) {
    let value = if number.is_multiple_of(2) { "v".repeat(10) } else { "w".repeat(110) };
    (format!("key:{number:04}"), value)
}

/// A server that ends with the test.
struct OtherServer {
    child: Child,
    port: u16,
}

impl OtherServer {
    /// Starts a program on a port that is free now. Returns `None` if the program is not installed.
    fn start(program: &str, words: impl Fn(&str) -> Vec<String>) -> Option<OtherServer> {
        // Kyoto Tycoon accepts no port above 32767, so the system cannot choose one.
        let mut ports = std::iter::repeat_with(|| fastrand::u16(12_000..32_000));
        let port = ports.find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok()).unwrap();
        let mut command = Command::new(program);
        command
            .args(words(&port.to_string()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let Ok(child) = command.spawn() else {
            println!("{program} is not installed");
            return None;
        };
        let mut server = OtherServer { child, port };
        let start = Instant::now();
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            assert!(server.child.try_wait().unwrap().is_none() && start.elapsed() < WAIT_MAX, "{program}");
            std::thread::yield_now();
        }
        Some(server)
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Sends requests, and reads replies until they end with `end`.
    fn ask(&self, requests: &[u8], end: &str) {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).unwrap();
        stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        let mut sender = stream.try_clone().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || sender.write_all(requests).unwrap());
            let (mut all, mut bytes) = (Vec::new(), [0; 4096]);
            while !all.ends_with(end.as_bytes()) {
                let len = stream.read(&mut bytes).unwrap();
                assert!(len > 0, "{}", String::from_utf8_lossy(&all));
                all.extend_from_slice(&bytes[..len]);
            }
        });
    }
}

impl Drop for OtherServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the text of a line of the report.
fn figure<'r>(report: &'r str, name: &str) -> &'r str {
    let line =
        report.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{name}: {report}"));
    line.trim()
}

/// Checks the report on a server with all records, of which `sample` are read.
fn check(address: &str, name: &str, sample: &str) -> String {
    let report = expect(&["advise", address, "--sample", sample], 0);
    assert!(figure(&report, "server").starts_with(name), "{report}");
    assert_eq!(figure(&report, "records"), "3,000");
    assert_eq!(figure(&report, "average key"), "8.0 bytes");
    let average: f64 = figure(&report, "average value").trim_end_matches(" bytes").parse().unwrap();
    let bounds = if sample == "300" { 45.0..75.0 } else { 60.0..60.1 };
    assert!(bounds.contains(&average), "{report}");
    let here = figure(&report, "memory here");
    assert!(here.starts_with("2.") && here.contains(" MiB"), "{report}");
    report
}

fn fill_as_memcached(address: &str) {
    let lines: String = (0..RECORDS).map(record).map(|(key, value)| format!("{key}\t{value}\n")).collect();
    let mut command = todana();
    let mut child = command.args(["load", "-", "-S", address]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
fn memcached_is_sampled_by_its_classes() {
    let words = |port: &str| ["-u", "root", "-l", "127.0.0.1", "-p", port].map(String::from).to_vec();
    let Some(server) = OtherServer::start("memcached", words) else { return };
    let address = server.address();
    fill_as_memcached(&address);
    let before = expect(&["dump", "-", "-S", &address], 0);
    let report = check(&address, "memcached ", "300");
    assert!(figure(&report, "confidence").starts_with("+-"), "{report}");
    assert!(figure(&report, "memory there").contains("the process"), "{report}");
    let report = check(&address, "memcached ", "10000");
    assert_eq!(figure(&report, "confidence"), "all records were read");
    // Sampling changes no record.
    let sorted = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(String::from).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(&expect(&["dump", "-", "-S", &address], 0)), sorted(&before));
}

#[test]
fn redis_is_sampled_with_its_types() {
    let folder = TestFolder::new();
    let words = |port: &str| {
        let words = ["--port", port, "--bind", "127.0.0.1", "--save", "", "--dir", &folder.path("")];
        words.map(String::from).to_vec()
    };
    let Some(server) = OtherServer::start("redis-server", words) else { return };
    let mut requests = String::new();
    for (key, value) in (0..RECORDS).map(record) {
        requests += &format!("SET {key} {value} EX 1000\r\n");
    }
    requests += "LPUSH list 1\r\nSELECT 3\r\nSET other 1\r\nECHO complete\r\n";
    server.ask(requests.as_bytes(), "complete\r\n");
    let report = check(&server.address(), "redis ", "10000");
    assert_eq!(figure(&report, "with expiry"), "100 %");
    assert!(report.contains("are of type list, which does not carry over"), "{report}");
    assert!(report.contains("db3 not sampled"), "{report}");
    let part = expect(&["advise", &server.address(), "--sample", "300"], 0);
    assert!(figure(&part, "confidence").starts_with("+-"), "{part}");
    server.ask(b"CONFIG SET requirepass secret\r\n", "+OK\r\n");
    let said = running::refused(&["advise", &server.address()], 3);
    assert!(said.contains("NOAUTH"), "{said}");
    check(&format!("todana://default:secret@{}", server.address()), "redis ", "10000");
}

#[test]
fn own_servers_are_sampled_as_each_kind() {
    let server = RunningServer::start(&["-t", "2", "--admin-port", "0"]);
    fill_as_memcached(&server.address);
    let report = check(&server.address, "todana ", "300");
    assert!(figure(&report, "memory there").contains("the process"), "{report}");
    check(&server.address, "todana ", "10000");
    let report = expect(&["advise", &server.address, "--kind", "kyoto"], 0);
    assert_eq!(figure(&report, "records"), "3,000");
    stop(server);

    let folder = TestFolder::new();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_todana"), folder.path("ktserver")).unwrap();
    check_kyoto(&OtherServer::start(&folder.path("ktserver"), kyoto_words).unwrap());
}

#[test]
fn kyoto_tycoon_is_sampled_with_its_expiry() {
    if let Some(server) = OtherServer::start("ktserver", kyoto_words) {
        check_kyoto(&server);
    }
}

fn kyoto_words(port: &str) -> Vec<String> {
    ["-host", "127.0.0.1", "-port", port, "*"].map(String::from).to_vec()
}

/// Fills a server of Kyoto Tycoon, half with expiry, and checks the reports.
fn check_kyoto(server: &OtherServer) {
    let store = |count: usize, first_line: &str| {
        let lines = (0..count).map(record).map(|(key, value)| format!("_{key}\t{value}\n"));
        let body = first_line.to_owned() + &lines.collect::<String>();
        let head = "POST /rpc/set_bulk HTTP/1.1\r\nContent-Type: text/tab-separated-values\r\n";
        let call = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
        server.ask(call.as_bytes(), &format!("num\t{count}\n"));
    };
    store(RECORDS, "");
    let report = check(&server.address(), "kyoto tycoon ", "10000");
    assert!(figure(&report, "memory there").contains("sys_mem_rss"), "{report}");
    assert_eq!(figure(&report, "with expiry"), "0 %");
    store(RECORDS / 2, "xt\t1000\n");
    assert_eq!(figure(&check(&server.address(), "kyoto tycoon ", "10000"), "with expiry"), "50 %");
}

#[test]
fn empty_and_absent_servers_are_explained() {
    let server = RunningServer::start(&["-t", "2", "--admin-port", "0"]);
    let said = running::refused(&["advise", &server.address], 3);
    assert!(
        said.contains("no record could be read from todana ") && said.ends_with("which has 0\n"),
        "{said}"
    );
    let said = running::refused(&["advise", &server.address, "--kind", "redis"], 3);
    assert_eq!(said, "todana: the server's reply is not one of Redis\n");
    stop(server);
    assert!(running::refused(&["advise", "127.0.0.1:1"], 3).contains("is the server running?"));
}
