//! Tests failover between processes: under the load of several clients, the master is killed at a
//! random moment, its replica is promoted, and the old master comes back as its replica. No
//! acknowledged write may be lost, and the salvaged log of the old master must have exactly the
//! writes that only it had.
//!
//! `TODANA_ROUNDS` sets the number of failovers.

#[path = "../../server/tests/replication_lab/line.rs"]
#[allow(dead_code)]
mod line;
mod running;

use line::Line;
use running::{RunningServer, TestFolder, TextClient, eventually, refused, text, todana};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

const CLIENTS: usize = 4;
/// The number of keys of each client.
const KEYS: usize = 20;
/// The number of writes that a client sends at once.
const BATCH: usize = 8;
/// The longest time in milliseconds after which the master is killed.
const LIFE_MAX_MS: u64 = 120;

const UNCONFIRMED: &str = "SERVER_ERROR the changes were made here, but may not be on a replica\r\n";
const SUPERSEDED: &str = "SERVER_ERROR another server has become the master; send changes to it\r\n";

const REPLICA: &str = "SERVER_ERROR this server is a replica; send changes to its master\r\n";

/// A server whose port changes, and an address that does not.
struct FailoverServer {
    id: usize,
    folder: String,
    kind: &'static str,
    running: Option<RunningServer>,
    line: Line,
}

impl FailoverServer {
    fn new(folder: &TestFolder, id: usize, kind: &'static str) -> FailoverServer {
        let ending = if kind == "tree" { ".tree" } else { "" };
        let folder = folder.path(&format!("data{id}{ending}"));
        FailoverServer { id, folder, kind, running: None, line: Line::new() }
    }

    /// Starts the server as a master, or as the replica of a master.
    fn start(&mut self, master: Option<&FailoverServer>) {
        self.start_with(master, &["--ack", "1", "--ack-timeout", "200"]);
    }

    fn start_with(&mut self, master: Option<&FailoverServer>, further: &[&str]) {
        let id = self.id.to_string();
        let mut words = vec!["--server-id", &id, "--log-keep-size", "1g"];
        words.extend(further);
        match self.kind {
            "tree" => words.push(&self.folder),
            kind => words.extend([kind, "--data-dir", &self.folder]),
        }
        let address = master.map(|master| format!("todana://{}", master.line.address));
        if let Some(address) = &address {
            words.extend(["--replicate", address]);
        }
        let running = RunningServer::start(&words);
        self.line.lead_to(Some(running.address.parse().unwrap()));
        self.running = Some(running);
    }

    fn kill(&mut self) {
        self.line.lead_to(None);
        if let Some(mut running) = self.running.take() {
            running.child.kill().unwrap();
            running.child.wait().unwrap();
        }
    }

    fn running(&self) -> &RunningServer {
        self.running.as_ref().expect("it runs")
    }

    fn client(&self) -> TextClient {
        TextClient::connect(self.running())
    }

    /// Writes a record that a replica must confirm.
    fn expect_confirmed(&self, value: &str) {
        eventually("a replica confirms", || self.client().set("marker", value.as_bytes()) == "STORED\r\n");
    }

    /// Writes another record, and waits until replicas have it. The first records may arrive before
    /// the master has stated that they are complete.
    fn expect_arrival(&self, replicas: &[&FailoverServer]) {
        assert_eq!(self.client().set("arrival", b"1"), "STORED\r\n");
        let has_it = |server: &&FailoverServer| server.client().ask("mg arrival\r\n") == "HD\r\n";
        eventually("the record arrives", || replicas.iter().all(has_it));
    }

    fn values(&self) -> Vec<Option<String>> {
        let mut client = self.client();
        let key = |number| format!("c{}-{}", number / KEYS, number % KEYS);
        let mut value = |number| {
            let head = client.ask(&format!("get {}\r\n", key(number)));
            let has_value = head.starts_with("VALUE");
            let value = has_value.then(|| client.line().trim_end().to_string());
            if has_value {
                assert_eq!(client.line(), "END\r\n");
            }
            value
        };
        (0..CLIENTS * KEYS).map(&mut value).collect()
    }

    /// Returns the values of the writes in a log.
    fn logged(&self, directory: &str) -> BTreeSet<String> {
        let output = todana().args(["log", directory, "--values", "whole"]).output().unwrap();
        assert!(output.status.success(), "{directory}: {}", text(&output.stderr));
        let mut values = BTreeSet::new();
        for line in text(&output.stdout).lines() {
            let columns: Vec<&str> = line.split('\t').collect();
            if columns[3] == "put" && columns[4].starts_with('c') {
                values.insert(columns[6].to_string());
            }
        }
        values
    }

    /// Returns the directories of its salvaged logs.
    fn salvaged(&self) -> BTreeSet<String> {
        let all = std::fs::read_dir(format!("{}/salvage", self.folder)).into_iter().flatten();
        all.map(|entry| entry.unwrap().path().to_str().unwrap().to_string()).collect()
    }
}

impl Drop for FailoverServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The writes of one client: the key, the value, and whether the server has acknowledged it.
type ClientWrites = Vec<(usize, String, bool)>;

/// Writes until the server ends the connection.
fn write_until_the_end(client: usize, round: usize, server: &str) -> ClientWrites {
    let mut writes = ClientWrites::new();
    let Ok(stream) = TcpStream::connect(server) else { return writes };
    stream.set_read_timeout(Some(running::WAIT_MAX)).unwrap();
    let mut stream = BufReader::new(stream);
    loop {
        let mut batch = Vec::new();
        let first = writes.len();
        for _ in 0..BATCH {
            let (key, value) = (writes.len() % KEYS, format!("r{round}c{client}n{}", writes.len()));
            batch.extend_from_slice(
                format!("set c{client}-{key} 0 0 {}\r\n{value}\r\n", value.len()).as_bytes(),
            );
            writes.push((key, value, false));
        }
        if stream.get_mut().write_all(&batch).is_err() {
            return writes;
        }
        for write in &mut writes[first..] {
            let mut line = String::new();
            match stream.read_line(&mut line) {
                Ok(_) if line == "STORED\r\n" => write.2 = true,
                Ok(0) | Err(_) => return writes,
                Ok(_) => assert_eq!(line, UNCONFIRMED),
            }
        }
    }
}

/// Kills the master under load, promotes the replica, and lets the old master return. Returns the
/// number of acknowledged and of salvaged writes.
fn fail_over(
    master: &mut FailoverServer,
    replica: &FailoverServer,
    random: &mut fastrand::Rng,
    round: usize,
) -> (usize, usize) {
    master.expect_confirmed(&format!("before {round}"));
    let earlier_salvage = master.salvaged();
    let server = master.running().address.clone();
    let life = Duration::from_millis(random.u64(..LIFE_MAX_MS));
    let writes: Vec<ClientWrites> = std::thread::scope(|scope| {
        let server = &server;
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| scope.spawn(move || write_until_the_end(client, round, server)))
            .collect();
        std::thread::sleep(life);
        master.kill();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    let promoted = replica.running().expect(&["promote"], 0);
    assert!(promoted.starts_with("the server is the master, in epoch "), "{promoted}");
    let kept = replica.values();
    for (client, writes) in writes.iter().enumerate() {
        expect_acknowledged(client, writes, &kept);
    }
    // The promoted server takes writes at once, although no replica confirms them yet.
    let new = format!("r{round}new");
    assert_eq!(replica.client().set("c0-0", new.as_bytes()), UNCONFIRMED);
    let of_replica = replica.logged(&replica.folder);
    master.start(Some(replica));
    replica.expect_confirmed(&format!("after {round}"));
    assert_eq!(master.values(), replica.values(), "round {round}");
    let salvage = master.salvaged();
    let mut salvaged = BTreeSet::new();
    for directory in salvage.difference(&earlier_salvage) {
        salvaged.extend(master.logged(directory));
    }
    let of_master = master.logged(&master.folder);
    for (_, value, is_acknowledged) in writes.iter().flatten() {
        let is_only_here = of_master.contains(value) && !of_replica.contains(value);
        assert_eq!(salvaged.contains(value), is_only_here, "round {round}: {value}");
        assert!(!(*is_acknowledged && is_only_here), "round {round}: {value} is lost");
    }
    let sent: BTreeSet<&String> = writes.iter().flatten().map(|(_, value, _)| value).collect();
    assert!(salvaged.iter().all(|value| sent.contains(value)), "round {round}: {salvaged:?}");
    (writes.iter().flatten().filter(|write| write.2).count(), salvaged.len())
}

/// Checks that each key has its last acknowledged value, or a later one.
fn expect_acknowledged(client: usize, writes: &ClientWrites, kept: &[Option<String>]) {
    for key in 0..KEYS {
        let of_key: Vec<_> = writes.iter().filter(|write| write.0 == key).collect();
        let Some(last) = of_key.iter().rposition(|write| write.2) else { continue };
        let kept = kept[client * KEYS + key].as_ref();
        let is_kept = of_key[last..].iter().any(|write| Some(&write.1) == kept);
        assert!(is_kept, "client {client}, key {key}: {kept:?}, not {:?}", of_key[last]);
    }
}

#[test]
fn failovers_lose_no_acknowledged_write() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<usize>().ok());
    let rounds = number("TODANA_ROUNDS").unwrap_or(3);
    let seed = number("TODANA_SEED").map_or_else(|| fastrand::u64(..), |seed| seed as u64);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let folder = TestFolder::new();
    let mut servers =
        [FailoverServer::new(&folder, 1, "mem:hash"), FailoverServer::new(&folder, 2, "mem:tree")];
    let [first, second] = &mut servers;
    first.start(None);
    second.start(Some(first));
    let (mut acknowledged, mut salvaged) = (0, 0);
    for round in 0..rounds {
        let [first, second] = &mut servers;
        let (master, replica) = if round % 2 == 0 { (first, &*second) } else { (second, &*first) };
        let counted = fail_over(master, replica, &mut random, round);
        acknowledged += counted.0;
        salvaged += counted.1;
    }
    println!("{rounds} failovers, {acknowledged} acknowledged writes, {salvaged} salvaged writes");
}

/// A master that comes back as it was learns about the promoted server, refuses changes, and
/// remembers that. A promoted server does not follow its old master again.
#[test]
fn former_master_is_fenced() {
    let folder = TestFolder::new();
    let mut old = FailoverServer::new(&folder, 1, "mem:hash");
    let mut new = FailoverServer::new(&folder, 2, "mem:hash");
    old.start_with(None, &[]);
    assert_eq!(old.client().set("c0-0", b"first"), "STORED\r\n");
    new.start_with(Some(&old), &[]);
    eventually("the record arrives", || new.values()[0].as_deref() == Some("first"));
    old.expect_arrival(&[&new]);
    old.kill();
    new.running().expect(&["promote"], 0);
    let again = refused(&["promote", "-S", &new.running().address], 3);
    assert!(again.contains("this server is the master already"), "{again}");
    assert_eq!(new.client().set("c0-0", b"second"), "STORED\r\n");
    new.kill();
    old.start_with(None, &[]);
    assert_eq!(old.client().set("c0-1", b"only here"), "STORED\r\n");
    new.start_with(Some(&old), &[]);
    // Until then, its changes are only here.
    eventually("the old master is fenced", || old.client().set("c0-1", b"only here") == SUPERSEDED);
    // It refuses changes before it has stored that.
    let epochs = std::path::Path::new(&old.folder).join("epochs");
    let is_stored = || std::fs::read_to_string(&epochs).is_ok_and(|text| !text.contains("superseded 0\n"));
    eventually("the epoch is stored", is_stored);
    assert_eq!(new.client().set("c0-2", b"third"), "STORED\r\n");
    assert_eq!(new.running().expect(&["replicas"], 0), "no master and no replicas\n");
    old.kill();
    old.start_with(None, &[]);
    assert_eq!(old.client().set("c0-2", b"no"), SUPERSEDED);
    old.kill();
    old.start_with(Some(&new), &[]);
    eventually("the databases are equal", || old.values() == new.values());
    assert_eq!(old.values()[1], None);
    let salvaged = old.salvaged();
    let salvaged: BTreeSet<String> = salvaged.iter().flat_map(|directory| old.logged(directory)).collect();
    assert_eq!(salvaged, BTreeSet::from(["only here".to_string()]));
    let shown = todana().args(["stats", "replication", "-S", &old.running().address]).output().unwrap();
    assert!(text(&shown.stdout).contains("todana_salvaged_changes"), "{}", text(&shown.stdout));
    // The former master can be promoted again; the other one then follows it by itself.
    old.running().expect(&["promote"], 0);
    assert_eq!(old.client().set("c0-3", b"fourth"), "STORED\r\n");
    eventually("the databases are equal", || old.values() == new.values());
}

/// A replica that has never reached its master can be promoted. A server with other changes does
/// not lose them by following it.
#[test]
fn replica_without_master_is_promoted() {
    let folder = TestFolder::new();
    let mut old = FailoverServer::new(&folder, 1, "mem:hash");
    let mut new = FailoverServer::new(&folder, 2, "mem:hash");
    new.start_with(Some(&old), &[]);
    assert_eq!(new.client().set("c0-0", b"1"), REPLICA);
    new.running().expect(&["promote"], 0);
    assert_eq!(new.client().set("c0-0", b"new"), "STORED\r\n");
    old.start_with(None, &[]);
    eventually("the old master is fenced", || old.client().set("c0-1", b"old") == SUPERSEDED);
    old.kill();
    old.start_with(None, &[]);
    let own = old.values();
    old.kill();
    old.start_with(Some(&new), &[]);
    if own[1].is_some() {
        // It refuses to follow, and keeps its records.
        assert_eq!(old.values()[1].as_deref(), Some("old"));
        assert_eq!(old.client().set("c0-1", b"no"), REPLICA);
        old.kill();
        std::fs::remove_dir_all(&old.folder).unwrap();
        old.start_with(Some(&new), &[]);
    }
    eventually("the databases are equal", || old.values() == new.values());
}

/// The last server of a chain goes on following the promoted one, also one whose own master was not
/// the promoted server, once it is pointed to it.
#[test]
fn chains_follow_the_promoted_server() {
    let folder = TestFolder::new();
    let mut servers: Vec<_> = (1..=4)
        .map(|id| FailoverServer::new(&folder, id, if id == 2 { "tree" } else { "mem:tree" }))
        .collect();
    let [first, second, last, sibling] = &mut servers[..] else { panic!("four servers") };
    first.start_with(None, &[]);
    second.start_with(Some(first), &[]);
    last.start_with(Some(second), &[]);
    sibling.start_with(Some(first), &[]);
    assert_eq!(first.client().set("c0-0", b"1"), "STORED\r\n");
    eventually("the record arrives", || {
        [&*last, sibling].iter().all(|server| server.values()[0].as_deref() == Some("1"))
    });
    first.expect_arrival(&[second, last, sibling]);
    first.kill();
    second.running().expect(&["promote"], 0);
    assert_eq!(second.client().set("c0-1", b"2"), "STORED\r\n");
    eventually("the change arrives", || last.values()[1].as_deref() == Some("2"));
    sibling.kill();
    sibling.start_with(Some(second), &[]);
    eventually("the change arrives", || sibling.values()[1].as_deref() == Some("2"));
    // The last server of the chain knows the epoch, so it can be the next master.
    second.kill();
    let promoted = last.running().expect(&["promote"], 0);
    assert_eq!(promoted, "the server is the master, in epoch 2\n");
    assert_eq!(last.client().set("c0-2", b"3"), "STORED\r\n");
    for server in [first, second, sibling] {
        server.kill();
        server.start_with(Some(last), &[]);
        eventually("the databases are equal", || server.values() == last.values());
        assert!(server.salvaged().is_empty());
    }
}
