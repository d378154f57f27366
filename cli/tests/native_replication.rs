//! Tests replication in Todana's own protocol between processes: servers are killed and connections
//! are cut while clients write, and all records have the same attributes at the end.
//!
//! `TODANA_WRITES` is the number of writes of each test. `cargo xtask prove replication-kills` sets
//! it.

#[path = "../../server/tests/replication_lab/line.rs"]
#[allow(dead_code)]
mod line;
mod running;

use line::Line;
use running::{RunningServer, TestFolder, TextClient, WAIT_MAX, todana};
use std::time::{Duration, Instant};

const KEYS: u32 = 60;

/// Returns the number of writes of a test.
fn writes() -> u32 {
    std::env::var("TODANA_WRITES").ok().and_then(|text| text.parse().ok()).unwrap_or(600)
}

/// Waits until another process has done something.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < WAIT_MAX, "waited in vain for {what}");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

/// A server that can be killed. Replicas reach it over a connection that can be cut.
struct Node {
    words: Vec<String>,
    running: Option<RunningServer>,
    line: Line,
}

impl Node {
    fn new(folder: &TestFolder, id: usize, database: &str, master: Option<&Node>, further: &[&str]) -> Node {
        let data = folder.path(&format!("data{id}"));
        let mut words = vec!["--server-id".to_string(), id.to_string(), "--admin-port".into(), "0".into()];
        match database {
            "hash" => {
                words.extend([format!("{data}.hash"), "--replica-log".into(), data]);
            }
            "tree" => words.push(format!("{data}.tree")),
            kind => words.extend([kind.to_string(), "--data-dir".into(), data]),
        }
        if let Some(master) = master {
            words.extend(["--replicate".into(), format!("todana://{}", master.line.address)]);
        }
        words.extend(further.iter().map(|word| word.to_string()));
        Node { words, running: None, line: Line::new() }
    }

    fn start(&mut self) {
        let words: Vec<&str> = self.words.iter().map(String::as_str).collect();
        let mut running = RunningServer::start(&words);
        // The last address is the one for replicas, perhaps with TLS.
        let addresses = running.address.clone();
        let mut addresses = addresses.split(", ");
        running.address = addresses.next().expect("one address").into();
        let of_replicas = addresses.last().unwrap_or(&running.address);
        let of_replicas = of_replicas.strip_prefix("todanas://").unwrap_or(of_replicas);
        self.line.lead_to(Some(of_replicas.parse().unwrap()));
        self.running = Some(running);
    }

    fn kill(&mut self) {
        self.line.lead_to(None);
        if let Some(mut running) = self.running.take() {
            running.child.kill().unwrap();
            running.child.wait().unwrap();
        }
    }

    fn client(&self) -> TextClient {
        TextClient::connect(self.running.as_ref().unwrap())
    }

    /// Returns all attributes of each record with this prefix, except the access time. The
    /// remaining seconds are rounded, because the clocks differ.
    fn records(&self, prefix: &str) -> Vec<String> {
        let mut client = self.client();
        let mut record = |number: u32| {
            let reply = client.ask(&format!("mg {prefix}{number} k f s c t v\r\n"));
            let value = if reply.starts_with("VA") { client.line() } else { String::new() };
            let words = reply.split_whitespace().map(|word| match word.strip_prefix('t') {
                Some(seconds) => {
                    format!("t{}", seconds.parse::<i64>().map_or(-1, |left| (left + 500) / 1000))
                }
                None => word.to_string(),
            });
            format!("{} {value}", words.collect::<Vec<_>>().join(" "))
        };
        (0..KEYS).map(&mut record).collect()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Sends one write with random attributes.
fn write(client: &mut TextClient, prefix: &str, random: &mut fastrand::Rng) {
    let key = format!("{prefix}{}", random.u32(..KEYS));
    let value: String = (0..random.usize(1..300)).map(|_| random.alphanumeric()).collect();
    let (flags, len) = (random.u32(..), value.len());
    let ttl = ["", " T500000", " T900000", " T0"][random.usize(..4)];
    let request = match random.u8(..10) {
        0..4 => format!("ms {key} {len} F{flags}{ttl}\r\n{value}\r\n"),
        4 => format!("ms {key} {len} F{flags} c\r\n{value}\r\n"),
        5 => format!("ms {key} {len} MA\r\n{value}\r\n"),
        6 => format!("md {key}\r\n"),
        7 => format!("md {key} I T800000\r\n"),
        8 => format!("mg {key} T700000 c\r\n"),
        _ => format!("mg {key} N600000 c f\r\n"),
    };
    let reply = client.ask(&request);
    let words = ["HD", "NS", "NF", "EN"];
    assert!(words.iter().any(|word| reply.starts_with(word)), "{request}: {reply}");
}

/// Writes at the servers with these numbers, kills each server once, and cuts connections. Then
/// compares the records of all servers.
fn survives_kills(nodes: &mut [Node], writers: &[usize]) {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    nodes.iter_mut().for_each(Node::start);
    for &writer in writers {
        // The servers of a pair must know each other before one of them is killed.
        // An empty server of a pair first copies the records of the other.
        eventually("a first write", || {
            nodes[writer].client().ask("set first 0 0 1\r\n1\r\n") == "STORED\r\n"
        });
        eventually("the first record everywhere", || {
            nodes.iter().all(|node| node.client().ask("mg first\r\n") == "HD\r\n")
        });
    }
    let mut killed: Vec<usize> = (0..nodes.len()).collect();
    random.shuffle(&mut killed);
    let (writes, mut cut_at) = (writes(), Instant::now());
    for part in 0..nodes.len() + 1 {
        for &writer in writers {
            let prefix = format!("w{writer}-");
            let mut client = nodes[writer].client();
            for number in 0..writes / (nodes.len() as u32 + 1) {
                write(&mut client, &prefix, &mut random);
                if number % 50 == 49 && (number < 600 || cut_at.elapsed() >= Duration::from_secs(1)) {
                    nodes[random.usize(..nodes.len())].line.cut();
                    cut_at = Instant::now();
                }
            }
        }
        if let Some(&at) = killed.get(part) {
            nodes[at].kill();
            nodes[at].start();
        }
    }
    for &writer in writers {
        let prefix = format!("w{writer}-");
        // This gives each record a version, and the first reader of a stale record the task to
        // renew it. Both reach the replicas.
        nodes[writer].records(&prefix);
        let expected = nodes[writer].records(&prefix);
        assert!(expected.iter().any(|record| record.starts_with("VA")));
        // In a pair, showing a version of an older state would be a change. The marker comes after
        // all other changes.
        let marker = format!("last{writer}");
        assert_eq!(nodes[writer].client().ask(&format!("set {marker} 0 0 1\r\n1\r\n")), "STORED\r\n");
        eventually("the last record everywhere", || {
            nodes.iter().all(|node| node.client().ask(&format!("mg {marker}\r\n")) == "HD\r\n")
        });
        for node in nodes.iter() {
            let mut found = Vec::new();
            let since = Instant::now();
            while found != expected {
                if since.elapsed() > WAIT_MAX {
                    let differing = found.iter().zip(&expected).find(|(found, expected)| found != expected);
                    panic!("a record differs: {differing:?}");
                }
                found = node.records(&prefix);
            }
        }
    }
}

/// Tests a chain of servers with databases of these kinds.
fn chain_survives_kills(kinds: &[&str]) {
    let folder = TestFolder::new();
    let mut nodes: Vec<Node> = Vec::new();
    for (index, kind) in kinds.iter().enumerate() {
        nodes.push(Node::new(&folder, index + 1, kind, nodes.last(), &[]));
    }
    survives_kills(&mut nodes, &[0]);
}

fn pair_survives_kills(kinds: [&str; 2]) {
    let folder = TestFolder::new();
    let mut one = Node::new(&folder, 1, kinds[0], None, &["--replica-writes"]);
    let other = Node::new(&folder, 2, kinds[1], Some(&one), &["--replica-writes"]);
    one.words.extend(["--replicate".into(), format!("todana://{}", other.line.address)]);
    survives_kills(&mut [one, other], &[0, 1]);
}

#[test]
fn killed_replica_in_memory_is_equal() {
    chain_survives_kills(&["mem:hash", "mem:hash"]);
}

#[test]
fn killed_replica_on_disk_is_equal() {
    chain_survives_kills(&["tree", "tree"]);
}

#[test]
fn killed_chain_in_memory_is_equal() {
    chain_survives_kills(&["mem:hash", "mem:tree", "mem:hash"]);
}

#[test]
fn killed_chain_on_disk_is_equal() {
    chain_survives_kills(&["tree", "hash", "tree"]);
}

#[test]
fn killed_hash_on_disk_has_equal_replicas() {
    chain_survives_kills(&["hash", "hash"]);
}

#[test]
fn killed_pair_in_memory_is_equal() {
    pair_survives_kills(["mem:hash", "mem:tree"]);
}

#[test]
fn killed_pair_on_disk_is_equal() {
    pair_survives_kills(["tree", "tree"]);
}

#[test]
fn killed_replica_with_tls_is_equal() {
    let folder = TestFolder::new();
    let rcgen::CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(vec!["127.0.0.1".into()]).unwrap();
    let (ca, both) = (folder.path("ca.pem"), folder.path("server.pem"));
    std::fs::write(&ca, cert.pem()).unwrap();
    std::fs::write(&both, cert.pem() + &signing_key.serialize_pem()).unwrap();
    // The clients of this test use no TLS.
    let tls = ["--tls-cert", &both, "-l", "notls:127.0.0.1:0", "-l", "127.0.0.1:0"];
    let master = Node::new(&folder, 1, "mem:hash", None, &tls);
    let mut replica = Node::new(&folder, 2, "mem:hash", None, &["--replica-tls-ca", &ca]);
    replica.words.extend(["--replicate".into(), format!("todanas://{}", master.line.address)]);
    survives_kills(&mut [master, replica], &[0]);
}

#[test]
fn replication_options_name_their_conflicts() {
    for (words, complaint) in [
        (&["serve", "--replica-writes"][..], "--replica-writes: needs --replicate todana://HOST:PORT"),
        (&["serve", "--replica-log", "x"], "--replica-log: needs a hash on disk"),
        (&["serve", "--replicate", "todana://a", "--replica-tls-ca", "x"], "need --replicate todanas://"),
        (&["serve", "--replicate", "todana://a", "--replica-user", "ann"], "ann: no password given"),
    ] {
        let output = todana().args(words).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains(complaint), "{words:?}: {text}");
    }
}
