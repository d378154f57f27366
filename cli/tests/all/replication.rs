//! Servers that replicate each other are killed during writes, and end with the same records.
//!
//! With `TODANA_KTSERVER=PATH`, some of the servers are a real ktserver at this path.
//! `benches/kyoto_replication.py` does the same for a longer time.

use crate::running;

use running::{WAIT_MAX, eventually, todana};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

const WRITES: usize = 900;
const HEAD: &str = "HTTP/1.1\r\nContent-Type: text/tab-separated-values; colenc=U\r\nContent-Length:";

/// Names and values of a response.
type NamedValues = Vec<(Vec<u8>, Vec<u8>)>;

/// A connection for Kyoto Tycoon's procedure calls.
struct ProcedureConnection(BufReader<TcpStream>);

impl ProcedureConnection {
    fn connect(port: u16) -> Option<ProcedureConnection> {
        let stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
        stream.set_nodelay(true).ok()?;
        stream.set_read_timeout(Some(WAIT_MAX)).ok()?;
        Some(ProcedureConnection(BufReader::new(stream)))
    }

    /// Calls a procedure. Returns `None` if the server has gone.
    fn try_call(&mut self, name: &str, pairs: &[(&str, &[u8])]) -> Option<(u16, NamedValues)> {
        let lines =
            pairs.iter().map(|(name, value)| format!("{}\t{}\n", escaped(name.as_bytes()), escaped(value)));
        let body: String = lines.collect();
        let request = format!("POST /rpc/{name} {HEAD} {}\r\n\r\n{body}", body.len());
        self.0.get_mut().write_all(request.as_bytes()).ok()?;
        let (mut status, mut len, mut coding) = (None, 0, 'R');
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).ok().filter(|&len| len > 0)?;
            if status.is_none() {
                status = Some(line.split(' ').nth(1)?.parse().ok()?);
            } else if let Some(text) = line.strip_prefix("Content-Length: ") {
                len = text.trim_end().parse().ok()?;
            } else if let Some((_, text)) = line.split_once("colenc=") {
                coding = text.chars().next()?;
            } else if line == "\r\n" {
                break;
            }
        }
        let mut body = vec![0; len];
        self.0.read_exact(&mut body).ok()?;
        let pairs = body.split(|&byte| byte == b'\n').filter_map(|line| {
            let tab = line.iter().position(|&byte| byte == b'\t')?;
            Some((decoded(&line[..tab], coding), decoded(&line[tab + 1..], coding)))
        });
        Some((status?, pairs.collect()))
    }

    fn call(&mut self, name: &str, pairs: &[(&str, &[u8])]) -> (u16, NamedValues) {
        self.try_call(name, pairs).unwrap_or_else(|| panic!("{name}: the server has gone"))
    }

    /// Returns all records: value and expiry by key.
    fn records(&mut self) -> BTreeMap<Vec<u8>, NamedValues> {
        let (_, keys) = self.call("match_prefix", &[("prefix", b"")]);
        let keys: Vec<_> =
            keys.into_iter().filter_map(|(key, _)| Some(key.strip_prefix(b"_")?.to_vec())).collect();
        let records = keys.into_iter().filter_map(|key| match self.call("get", &[("key", &key)]) {
            (200, record) => Some((key, record)),
            _ => None,
        });
        records.collect()
    }
}

fn escaped(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("%{byte:02x}")).collect()
}

fn decoded(bytes: &[u8], coding: char) -> Vec<u8> {
    match coding {
        'B' => {
            let digit = |byte: &u8| {
                let all = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
                all.iter().position(|each| each == byte).map(|digit| digit as u32)
            };
            let digits: Vec<u32> = bytes.iter().filter_map(digit).collect();
            let group = |group: &[u32]| {
                let bits = (0..4).fold(0, |bits, at| bits << 6 | group.get(at).copied().unwrap_or_default());
                bits.to_be_bytes()[1..group.len()].to_vec()
            };
            digits.chunks(4).flat_map(group).collect()
        }
        'U' => {
            let mut parts = bytes.split(|&byte| byte == b'%');
            let mut all = parts.next().unwrap_or_default().to_vec();
            for part in parts {
                all.push(u8::from_str_radix(std::str::from_utf8(&part[..2]).unwrap(), 16).unwrap());
                all.extend_from_slice(&part[2..]);
            }
            all
        }
        _ => bytes.to_vec(),
    }
}

#[derive(Clone, Copy, PartialEq)]
enum ServerKind {
    Ours,
    /// A hash on disk with an update log, the usual master for ktserver.
    OursHash,
    Original,
}

struct ReplicatedServer {
    kind: ServerKind,
    number: usize,
    folder: PathBuf,
    port: u16,
    process: Option<Child>,
    /// The keys written since the last kill. The original may lose the last of these writes from
    /// its log, although its database has them.
    written: BTreeSet<Vec<u8>>,
}

impl ReplicatedServer {
    fn new(kind: ServerKind, number: usize, folder: PathBuf) -> ReplicatedServer {
        std::fs::create_dir(&folder).unwrap();
        ReplicatedServer { kind, number, folder, port: 0, process: None, written: BTreeSet::new() }
    }

    fn command(&self) -> Command {
        let path = |name: &str| self.folder.join(name).to_str().unwrap().to_string();
        let (number, port, position) = (self.number.to_string(), self.port.to_string(), path("position"));
        match self.kind {
            ServerKind::Ours => {
                let mut command = todana();
                command.args([
                    "serve",
                    "-p",
                    &port,
                    "-t",
                    "1",
                    "-m",
                    "0",
                    "--admin-port",
                    "0",
                    "--sync",
                    "20",
                ]);
                command.args(["--data-dir", &path("data"), "--server-id", &number]);
                command.args(["--replica-position", &position]);
                command
            }
            ServerKind::Original | ServerKind::OursHash => {
                let mut command = match self.kind {
                    ServerKind::Original => Command::new(original().expect("looked at before")),
                    _ => {
                        let mut command = todana();
                        command.args(["as", "ktserver"]);
                        command
                    }
                };
                command.args(["-host", "127.0.0.1", "-port", &port, "-sid", &number, "-riv", "0"]);
                command.args([
                    "-ulog",
                    &path("ulog"),
                    "-rts",
                    &position,
                    "-log",
                    &path("log"),
                    &path("db.kch"),
                ]);
                command
            }
        }
    }

    fn start(&mut self) {
        // Another process may take the port first.
        eventually("it starts", || {
            self.port = low_port();
            let mut command = self.command();
            let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            let mut has_ended = false;
            eventually("it answers", || {
                let mut caller = ProcedureConnection::connect(self.port);
                let answers = caller.as_mut().and_then(|caller| caller.try_call("void", &[])).is_some();
                has_ended = child.try_wait().unwrap().is_some();
                answers || has_ended
            });
            self.process = Some(child).filter(|_| !has_ended);
            !has_ended
        });
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.process.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    fn caller(&self) -> ProcedureConnection {
        ProcedureConnection::connect(self.port).unwrap()
    }

    /// Repeats the writes that the log of the original may have lost.
    fn repeat_unlogged_writes(&mut self) {
        let written = std::mem::take(&mut self.written);
        if self.kind != ServerKind::Original {
            return;
        }
        let mut caller = self.caller();
        for key in written {
            let (status, record) = caller.call("get", &[("key", &key)]);
            let part =
                |name: &[u8]| record.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
            match (status, part(b"value"), part(b"xt")) {
                (200, Some(value), Some(xt)) => {
                    caller.call("set", &[("key", &key), ("value", &value), ("xt", &[b"-", &xt[..]].concat())])
                }
                (200, Some(value), None) => caller.call("set", &[("key", &key), ("value", &value)]),
                _ => caller.call("remove", &[("key", &key)]),
            };
        }
    }
}

impl Drop for ReplicatedServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns a free port. The original supports no ports above 32767.
fn low_port() -> u16 {
    loop {
        let port = fastrand::u16(20_000..32_000);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

fn original() -> Option<OsString> {
    std::env::var_os("TODANA_KTSERVER")
}

/// Executes a random write. Each server's clients use keys with another `prefix`.
fn write(
    node: &mut ReplicatedServer,
    caller: &mut ProcedureConnection,
    prefix: u8,
    random: &mut fastrand::Rng,
) {
    let number = random.u8(..120);
    let key = [&[prefix, number, 0xFF, 0, b'\t'][..], format!("key{number}").as_bytes()].concat();
    let value: Vec<u8> = (0..random.usize(..300)).map(|_| random.u8(..)).collect();
    let count = [&[prefix][..], format!("count{}", number % 9).as_bytes()].concat();
    node.written.insert(key.clone());
    node.written.insert(count.clone());
    let (key, value) = (("key", &key[..]), ("value", &value[..]));
    let (status, _) = match random.u8(..12) {
        0..3 => caller.call("set", &[key, value]),
        3 => caller.call("set", &[key, value, ("xt", b"100000")]),
        4 => caller.call("set", &[key, value, ("xt", b"1")]),
        5 => caller.call("add", &[key, value, ("xt", b"200000")]),
        6 => caller.call("append", &[key, value]),
        7 | 8 => caller.call("increment", &[("key", &count), ("num", b"7")]),
        9 => caller.call("seize", &[key]),
        10 => caller.call("replace", &[key, value]),
        _ => caller.call("remove", &[key]),
    };
    assert!(status == 200 || status == 450, "{status}");
}

fn follow(nodes: &[ReplicatedServer], links: &[(usize, usize)], changed: usize) {
    for &(follower, master) in links.iter().filter(|&&(one, other)| one == changed || other == changed) {
        if nodes[follower].process.is_some() {
            let port = nodes[master].port.to_string();
            let (status, _) = nodes[follower]
                .caller()
                .call("tune_replication", &[("host", b"127.0.0.1"), ("port", port.as_bytes())]);
            assert_eq!(status, 200);
        }
    }
}

/// Checks that servers of these kinds end with the same records. `links` are pairs of replica and
/// master, and `writers` are the servers with clients. Each server is killed while the others run.
fn converges(kinds: &[ServerKind], links: &[(usize, usize)], writers: &[usize]) {
    if kinds.contains(&ServerKind::Original) && original().is_none() {
        eprintln!("skipped: TODANA_KTSERVER names no ktserver");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let node = |(at, &kind): (usize, &ServerKind)| {
        ReplicatedServer::new(kind, at + 1, folder.path().join(at.to_string()))
    };
    let mut nodes: Vec<ReplicatedServer> = kinds.iter().enumerate().map(node).collect();
    nodes.iter_mut().for_each(ReplicatedServer::start);
    (0..nodes.len()).for_each(|changed| follow(&nodes, links, changed));
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let rounds = nodes.len() + 1;
    for round in 0..rounds {
        let write_some = |nodes: &mut [ReplicatedServer], random: &mut fastrand::Rng| {
            for &writer in writers {
                let Some(mut caller) = nodes[writer].process.as_ref().map(|_| nodes[writer].caller()) else {
                    continue;
                };
                for _ in 0..WRITES / rounds / 2 / writers.len() {
                    write(&mut nodes[writer], &mut caller, b'a' + writer as u8, random);
                }
            }
        };
        write_some(&mut nodes, &mut random);
        // Within a pair, the changes would arrive in another order at each server.
        if round == 0 && writers.len() == 1 {
            assert_eq!(nodes[writers[0]].caller().call("clear", &[]).0, 200);
            write_some(&mut nodes, &mut random);
        }
        if round < nodes.len() {
            nodes[round].kill();
            write_some(&mut nodes, &mut random);
            nodes[round].start();
            follow(&nodes, links, round);
            nodes[round].repeat_unlogged_writes();
        }
    }
    eventually("all hold the same", || {
        let first = nodes[0].caller().records();
        !first.is_empty() && nodes[1..].iter().all(|other| other.caller().records() == first)
    });
    let records = nodes[0].caller().records();
    assert!(records.values().any(|record| record.len() == 2), "some are mortal");
    assert!(records.len() > 50, "{}", records.len());
}

use ServerKind::{Original, Ours, OursHash};

#[test]
fn replica_and_master_converge_despite_kills() {
    converges(&[Ours, Ours], &[(1, 0)], &[0]);
}

#[test]
fn pair_converges_despite_kills() {
    converges(&[Ours, Ours], &[(0, 1), (1, 0)], &[0, 1]);
}

#[test]
fn chain_of_three_converges_despite_kills() {
    converges(&[Ours, Ours, Ours], &[(1, 0), (2, 1)], &[0]);
}

#[test]
fn replica_of_a_disk_hash_converges_despite_kills() {
    converges(&[OursHash, Ours], &[(1, 0)], &[0]);
    converges(&[Ours, OursHash], &[(1, 0)], &[0]);
}

#[test]
fn disk_hash_and_original_converge_despite_kills() {
    converges(&[OursHash, Original], &[(1, 0)], &[0]);
    converges(&[Original, OursHash], &[(1, 0)], &[0]);
}

#[test]
fn original_replica_converges_despite_kills() {
    converges(&[Ours, Original], &[(1, 0)], &[0]);
}

#[test]
fn replica_of_an_original_converges_despite_kills() {
    converges(&[Original, Ours], &[(1, 0)], &[0]);
}

#[test]
fn pair_with_an_original_converges_despite_kills() {
    converges(&[Ours, Original], &[(0, 1), (1, 0)], &[0, 1]);
}

#[test]
fn chains_with_originals_converge_despite_kills() {
    converges(&[Ours, Original, Ours], &[(1, 0), (2, 1)], &[0]);
    converges(&[Original, Ours, Original], &[(1, 0), (2, 1)], &[0]);
}
