//! Acknowledged writes survive a kill or a stop, as far as `--sync` promises.

mod running;

use running::{RunningServer, WAIT_MAX, todana};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, mpsc};

const CONNECTIONS: usize = 50;

struct LineClient(BufReader<TcpStream>);

impl LineClient {
    fn connect(server: &RunningServer) -> LineClient {
        LineClient(server.talk())
    }

    /// Sends a request. Returns the reply line, or `None` if the server has ended.
    fn ask(&mut self, request: &str) -> Option<String> {
        self.0.get_mut().write_all(request.as_bytes()).ok()?;
        let mut line = String::new();
        self.0.read_line(&mut line).ok()?;
        line.ends_with("\r\n").then_some(line)
    }

    fn value(&mut self, key: &str) -> Option<usize> {
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

fn start(folder: &Path, sync: &str) -> RunningServer {
    start_database(folder, "mem:hash", sync)
}

/// Starts a server with a database in memory and a data directory, or with a database on disk.
fn start_database(folder: &Path, name: &str, sync: &str) -> RunningServer {
    let path = folder.join(name).into_os_string().into_string().unwrap();
    let place = if name.starts_with("mem:") { vec![name, "--data-dir", &path] } else { vec![path.as_str()] };
    RunningServer::start(&[&place[..], &["--sync", sync, "-t", "2", "-m", "64"]].concat())
}

/// The progress of a connection that writes until the server is killed. The connection counts up
/// one record, and has a second record only while the count is odd. Its writes, numbered from 1,
/// change the count and the second record in turn.
#[derive(Clone, Default)]
struct ConnectionWrites {
    /// The number of writes that were found at the start.
    begun: usize,
    /// The number of writes that were acknowledged since the start.
    acknowledged: usize,
    /// The number of writes that were requested since the start.
    asked: usize,
}

/// Returns the value of the second record for this count.
fn pair_of(count: usize) -> Option<usize> {
    Some(count).filter(|count| count % 2 == 1)
}

fn request(connection: usize, write: usize) -> String {
    let set = |name: &str, value: usize| {
        format!("set {name}:{connection} 0 0 {}\r\n{value}\r\n", value.to_string().len())
    };
    let count = write.div_ceil(2);
    match pair_of(count) {
        _ if write % 2 == 1 => set("count", count),
        Some(pair) => set("pair", pair),
        None => format!("delete pair:{connection}\r\n"),
    }
}

fn write_on(
    mut client: LineClient,
    connection: usize,
    writes: &Mutex<ConnectionWrites>,
    has_written: &dyn Fn(),
) {
    loop {
        let write = {
            let mut writes = writes.lock().unwrap();
            writes.asked += 1;
            writes.begun + writes.asked
        };
        match client.ask(&request(connection, write)).as_deref() {
            Some("STORED\r\n" | "DELETED\r\n") => {}
            None => return,
            Some(other) => panic!("{other}"),
        }
        writes.lock().unwrap().acknowledged += 1;
        has_written();
    }
}

/// Returns how many of a connection's writes are in the database. They must be the first ones.
fn writes_found(client: &mut LineClient, connection: usize) -> usize {
    let count = client.value(&format!("count:{connection}")).unwrap_or(0);
    let pair = client.value(&format!("pair:{connection}"));
    if pair == pair_of(count) {
        return 2 * count;
    }
    assert!(count > 0 && pair == pair_of(count - 1), "{pair:?} goes with no {count}");
    2 * count - 1
}

/// Kills a server under load repeatedly. No write may appear that was not requested, and no
/// acknowledged write may be missing.
fn kill_again_and_again(name: &str, sync: &str) {
    let folder = tempfile::tempdir().unwrap();
    let all: Vec<Mutex<ConnectionWrites>> = (0..CONNECTIONS).map(|_| Mutex::default()).collect();
    // The number of rounds. `TODANA_KILLS=200` sets another one, for a longer run.
    let kills = std::env::var("TODANA_KILLS").map_or(6, |kills| kills.parse().unwrap());
    let seed = std::env::var("TODANA_SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap());
    println!("TODANA_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut acknowledged = 0;
    for kill in 0..=kills {
        let mut server = start_database(folder.path(), name, sync);
        let mut client = LineClient::connect(&server);
        for (connection, writes) in all.iter().enumerate() {
            let mut writes = writes.lock().unwrap();
            let found = writes_found(&mut client, connection);
            let possible = writes.begun..=writes.begun + writes.asked;
            assert!(possible.contains(&found), "kill {kill}: {found} of {possible:?}");
            acknowledged += writes.acknowledged;
            let missing = writes.acknowledged.saturating_sub(found - writes.begun);
            assert_eq!(missing, 0, "kill {kill}: writes that were acknowledged are missing");
            *writes = ConnectionWrites { begun: found, ..ConnectionWrites::default() };
        }
        if kill % 50 == 0 || kill == kills {
            println!(
                "{name} --sync {sync}: {kill} kills, {acknowledged} writes acknowledged, none of them missing"
            );
        }
        if kill == kills {
            break;
        }
        let clients: Vec<LineClient> = (0..CONNECTIONS).map(|_| LineClient::connect(&server)).collect();
        // The server is killed during writes, at another point in each round.
        let (wanted, written) = (random.u64(200..4_000), AtomicU64::new(0));
        let (sender, enough) = mpsc::channel();
        let has_written = move || {
            if written.fetch_add(1, Ordering::Relaxed) + 1 == wanted {
                sender.send(()).unwrap();
            }
        };
        std::thread::scope(|scope| {
            for ((connection, writes), client) in all.iter().enumerate().zip(clients) {
                let has_written = &has_written;
                scope.spawn(move || write_on(client, connection, writes, has_written));
            }
            enough.recv_timeout(WAIT_MAX).unwrap();
            server.child.kill().unwrap();
        });
    }
    assert!(acknowledged > 0);
}

#[test]
fn killed_server_keeps_all_acknowledged_writes() {
    kill_again_and_again("mem:hash", "always");
}

// With any other `--sync`, a killed server once lost the acknowledged writes of that time, because
// they were only in its memory.

#[test]
fn unsynced_writes_survive_a_kill_in_memory() {
    kill_again_and_again("mem:hash", "1000");
}

#[test]
fn unsynced_writes_survive_a_kill_in_a_tree() {
    kill_again_and_again("mem:tree", "1000");
}

#[test]
fn unsynced_writes_survive_in_a_disk_hash() {
    kill_again_and_again("x.hash", "1000");
}

#[test]
fn unsynced_writes_survive_in_a_disk_tree() {
    kill_again_and_again("x.tree", "1000");
}

#[test]
fn stopped_server_keeps_everything() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = start(folder.path(), "3600000");
    let mut client = LineClient::connect(&server);
    for number in 0..1_000 {
        assert_eq!(client.ask(&format!("set key:{number} 7 0 1\r\nv\r\n")).as_deref(), Some("STORED\r\n"));
    }
    assert_eq!(client.ask("delete key:3\r\n").as_deref(), Some("DELETED\r\n"));
    drop(client);
    server.signal("TERM");
    assert!(server.child.wait().unwrap().success());
    drop(server);
    let server = start(folder.path(), "never");
    let mut client = LineClient::connect(&server);
    assert_eq!(client.ask("get key:3\r\n").as_deref(), Some("END\r\n"));
    assert_eq!(client.ask("get key:999\r\n").as_deref(), Some("VALUE key:999 7 1\r\n"));
    // A second server on the same directory does not start, and reports why.
    let directory = folder.path().join("mem:hash");
    let directory = directory.to_str().unwrap();
    let second =
        todana().args(["serve", "-p", "-1", "--admin-port", "0", "--data-dir", directory]).output().unwrap();
    assert_eq!(second.status.code(), Some(3));
    let why = String::from_utf8(second.stderr).unwrap();
    assert!(why.contains("is open in another process"), "{why}");
}
