//! What was acknowledged is there after the process was killed, by whichever way it was written.

mod running;

use running::{Server, todana};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const CONNECTIONS: usize = 50;
/// Long enough for any machine: it only ends what would hang.
const PATIENCE: Duration = Duration::from_secs(60);

struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(server: &Server) -> Client {
        let stream = TcpStream::connect(&server.address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Client(BufReader::new(stream))
    }

    /// The line that answers; `None` when the server is gone.
    fn ask(&mut self, request: &str) -> Option<String> {
        self.0.get_mut().write_all(request.as_bytes()).ok()?;
        let mut line = String::new();
        self.0.read_line(&mut line).ok()?;
        line.ends_with("\r\n").then_some(line)
    }

    fn value(&mut self, key: &str) -> Option<u64> {
        let line = self.ask(&format!("get {key}\r\n")).unwrap();
        if line == "END\r\n" {
            return None;
        }
        assert!(line.starts_with("VALUE "), "{line}");
        let value = self.ask("").unwrap();
        assert_eq!(self.ask("").unwrap(), "END\r\n");
        Some(value.trim_end().parse().unwrap())
    }
}

fn start(folder: &Path, sync: &str) -> Server {
    Server::start(&["--data-dir", folder.to_str().unwrap(), "--sync", sync, "-t", "2", "-m", "64"])
}

/// One connection of those that write until the server is killed: it counts up a record of its own, and keeps another one
/// only while the count is even. What the server has acknowledged, and what it was asked for at most.
#[derive(Clone, Copy, Default)]
struct Count {
    acknowledged: u64,
    asked: u64,
}

fn count_up(server: &Server, number: usize, count: &Mutex<Count>, total: &AtomicU64) {
    let mut client = Client::connect(server);
    loop {
        let (next, is_pair) = {
            let mut count = count.lock().unwrap();
            count.asked = count.acknowledged + 1;
            (count.asked, count.asked.is_multiple_of(2))
        };
        let set = format!("set count:{number} 0 0 {}\r\n{next}\r\n", next.to_string().len());
        let other = if is_pair {
            format!("set pair:{number} 0 0 {}\r\n{next}\r\n", next.to_string().len())
        } else {
            format!("delete pair:{number}\r\n")
        };
        for request in [set, other] {
            match client.ask(&request).as_deref() {
                Some("STORED\r\n" | "DELETED\r\n" | "NOT_FOUND\r\n") => {}
                None => return,
                Some(other) => panic!("{other}"),
            }
        }
        count.lock().unwrap().acknowledged = next;
        total.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_killed_server_has_all_that_it_has_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let counts: Vec<Mutex<Count>> = (0..CONNECTIONS).map(|_| Mutex::default()).collect();
    // How many sessions there are; a longer run is for a machine that is free: TODANA_KILLS=200.
    let kills = std::env::var("TODANA_KILLS").map_or(6, |kills| kills.parse().unwrap());
    for kill in 1..=kills {
        let server = start(folder.path(), "always");
        {
            let mut client = Client::connect(&server);
            for (number, count) in counts.iter().enumerate() {
                let mut count = count.lock().unwrap();
                let found = client.value(&format!("count:{number}")).unwrap_or(0);
                let range = count.acknowledged..=count.asked;
                assert!(range.contains(&found), "kill {kill}: {found} of {range:?}");
                // The pair goes with the count, or is one behind it.
                let pair = client.value(&format!("pair:{number}"));
                let of = |count: u64| count.is_multiple_of(2).then_some(count).filter(|&count| count > 0);
                assert!(
                    pair == of(found) || (pair == of(found.saturating_sub(1)) && found > count.acknowledged)
                );
                // What was cut off in between is made good, so that the next time begins with both.
                let other = match of(found) {
                    Some(found) => {
                        format!("set pair:{number} 0 0 {}\r\n{found}\r\n", found.to_string().len())
                    }
                    None => format!("delete pair:{number}\r\n"),
                };
                client.ask(&other).unwrap();
                *count = Count { acknowledged: found, asked: found };
            }
        }
        let total = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for (number, count) in counts.iter().enumerate() {
                let (server, total) = (&server, &total);
                scope.spawn(move || count_up(server, number, count, total));
            }
            // In the middle of work, at another place each time.
            while total.load(Ordering::Relaxed) < 200 + 37 * kill {
                std::thread::yield_now();
            }
            server.signal("KILL");
        });
    }
    let least = counts.iter().map(|count| count.lock().unwrap().acknowledged).min();
    assert!(least > Some(0));
}

#[test]
fn a_server_that_is_stopped_has_everything_when_it_is_started_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = start(folder.path(), "3600000");
    let mut client = Client::connect(&server);
    for number in 0..1_000 {
        assert_eq!(client.ask(&format!("set key:{number} 7 0 1\r\nv\r\n")).as_deref(), Some("STORED\r\n"));
    }
    assert_eq!(client.ask("delete key:3\r\n").as_deref(), Some("DELETED\r\n"));
    drop(client);
    server.signal("TERM");
    assert!(server.child.wait().unwrap().success());
    drop(server);
    let server = start(folder.path(), "never");
    let mut client = Client::connect(&server);
    assert_eq!(client.ask("get key:3\r\n").as_deref(), Some("END\r\n"));
    assert_eq!(client.ask("get key:999\r\n").as_deref(), Some("VALUE key:999 7 1\r\n"));
    // A second server on the same directory does not start, and says why.
    let directory = folder.path().to_str().unwrap();
    let second =
        todana().args(["serve", "-p", "-1", "--admin-port", "0", "--data-dir", directory]).output().unwrap();
    assert_eq!(second.status.code(), Some(3));
    let why = String::from_utf8(second.stderr).unwrap();
    assert!(why.contains("is in use by another process"), "{why}");
}
