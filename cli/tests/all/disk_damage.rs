//! A server with a hash whose file was changed on disk. The damage is reported in `stats
//! databases`, in `/metrics` and in the log, until the record is overwritten.

use crate::running;

use running::{TestFolder, todana};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

/// A server whose log the test reads.
struct LoggedServer {
    child: Child,
    address: String,
    metrics: String,
    log: Receiver<String>,
}

impl LoggedServer {
    fn start(name: &str) -> LoggedServer {
        let mut command = todana();
        command.args(["serve", name, "-p", "-1"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let banner = running::banner(&mut BufReader::new(child.stdout.take().unwrap()));
        let (sender, log) = channel();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        // This thread ends when the server has ended.
        std::thread::spawn(move || {
            stderr.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        let address = banner[1].trim_end().strip_prefix("listening on ").expect("an address").to_string();
        let (_, metrics) = banner[0].trim_end().split_once(", admin page: http://").expect("a place");
        let metrics = metrics.split('/').next().expect("it has a first part").to_string();
        LoggedServer { child, address, metrics, log }
    }

    /// Stops the server as an operator does.
    fn stop(mut self) {
        let status =
            Command::new("kill").args(["-s", "TERM", &self.child.id().to_string()]).status().unwrap();
        assert!(status.success() && self.child.wait().unwrap().success());
    }

    fn metrics(&self) -> String {
        let mut stream = TcpStream::connect(&self.metrics).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn ask(&self, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(running::WAIT_MAX)).unwrap();
        stream.write_all(&[request, b"quit\r\n"].concat()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// Waits for a line of the log with these words.
    fn wait_for_log(&self, words: &str) -> String {
        let until = Instant::now() + running::WAIT_MAX;
        loop {
            let line = self.log.recv_timeout(until.saturating_duration_since(Instant::now()));
            let line = line.unwrap_or_else(|error| panic!("{words}: {error}"));
            if line.contains(words) {
                return line;
            }
        }
    }
}

impl Drop for LoggedServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Flips a bit of a value on disk.
fn damage(folder: &Path, bytes: &[u8]) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let mut content = std::fs::read(&path).unwrap();
        if let Some(at) = content.windows(bytes.len()).position(|window| window == bytes) {
            content[at] ^= 1;
            return std::fs::write(&path, content).unwrap();
        }
    }
    panic!("no file holds it");
}

fn set(server: &LoggedServer, key: &str, value: &[u8]) {
    let head = format!("set {key} 0 0 {}\r\n", value.len());
    let answer = server.ask(&[head.as_bytes(), value, b"\r\n"].concat());
    assert_eq!(answer, "STORED\r\n", "{key}");
}

#[test]
fn damaged_record_is_reported_until_it_is_overwritten() {
    let folder = TestFolder::new();
    let name = folder.path("x.hash");
    let server = LoggedServer::start(&name);
    set(&server, "crane", b"one whose bytes will change on disk");
    for n in 0..15 {
        set(&server, &format!("filler{n}"), &[b'x'; 100_000]);
    }
    server.stop();
    damage(Path::new(&name), b"one whose bytes will change");

    let server = LoggedServer::start(&name);
    let stat = |name: &str| {
        let all = server.ask(b"stats databases\r\n");
        let start = format!("STAT 0:{name} ");
        all.lines().find_map(|line| line.strip_prefix(&start).map(str::to_string))
    };
    let has_line = |line: &str| assert!(server.metrics().lines().any(|found| found == line), "{line}");
    let label = name.replace('\\', "\\\\");
    assert_eq!((stat("damaged_records").as_deref(), stat("trouble")), (Some("0"), None));
    has_line(&format!("todana_database_in_trouble{{db=\"{label}\"}} 0"));
    // Old records are written until compaction reaches the segment.
    let until = Instant::now() + running::WAIT_MAX;
    let mut round = 0;
    while stat("trouble").is_none() {
        assert!(Instant::now() < until, "compaction has not come across it");
        set(&server, &format!("filler{}", round % 15), &[b'y'; 100_000]);
        // More records remain in this segment than in the damaged one, so the damaged one is
        // compacted first.
        set(&server, &format!("stays{round}"), &[b'z'; 1000]);
        round += 1;
    }
    let place = |text: &str| assert!(text.contains("0000000001.segment, offset "), "{text}");
    place(&stat("trouble").unwrap());
    place(&server.wait_for_log("maintenance: cannot continue"));
    has_line(&format!("todana_database_in_trouble{{db=\"{label}\"}} 1"));
    assert!(server.ask(b"get crane\r\n").starts_with("SERVER_ERROR"));
    assert_eq!(stat("damaged_records").as_deref(), Some("0"));

    set(&server, "crane", b"whole again");
    assert_eq!(stat("damaged_records").as_deref(), Some("1"));
    place(&stat("last_damage").unwrap());
    place(&server.wait_for_log("damaged records: overwritten or removed"));
    has_line(&format!("todana_database_damaged_records_total{{db=\"{label}\"}} 1"));
    let until = Instant::now() + running::WAIT_MAX;
    while stat("trouble").is_some() {
        assert!(Instant::now() < until, "maintenance does not continue");
    }
    has_line(&format!("todana_database_in_trouble{{db=\"{label}\"}} 0"));
    assert_eq!(server.ask(b"get crane\r\n"), "VALUE crane 0 11\r\nwhole again\r\nEND\r\n");
    // No damage is reported twice.
    let printed: Vec<String> = server.log.try_iter().collect();
    assert!(
        printed.iter().all(|line| !line.contains("maintenance: cannot") && !line.contains("damaged")),
        "{printed:?}"
    );
}
