//! Records move from three servers to four while clients use them: nearly no request misses because
//! of the move, and no reply has an old value.
//!
//! `cargo xtask test` moves some records. `cargo xtask prove proxy` moves a million.

mod running;

use fastrand::Rng;
use running::{Client, Running, options};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use todana_client::ring::ServerEntry;
use todana_server::{PoolOptions, ProxyOptions, ProxyRoutes, RouteTree, ServerOptions, WhenDown};

const CLIENTS: usize = 4;
/// The number of requests that a client sends at a time.
const BATCH: usize = 16;
/// The greatest share of requests that may miss because of the move: 0.1 %.
const MISSES_PER_MILLION_MAX: u64 = 1000;

/// Chooses numbers below `count` with the frequencies of Zipf's law and exponent 1.
struct Zipf {
    sums: Vec<f64>,
}

impl Zipf {
    fn new(count: usize) -> Zipf {
        let mut sum = 0.0;
        let next = |rank: usize| {
            sum += 1.0 / rank as f64;
            sum
        };
        Zipf { sums: (1..=count).map(next).collect() }
    }

    fn next(&self, random: &mut Rng) -> usize {
        let at = random.f64() * self.sums.last().unwrap();
        self.sums.partition_point(|sum| *sum <= at)
    }
}

fn pool(servers: &[SocketAddr]) -> PoolOptions {
    let servers = servers.iter().map(|address| address.to_string().parse::<ServerEntry>().unwrap());
    PoolOptions {
        servers: servers.collect(),
        reply_timeout: Some(Duration::from_secs(60)),
        when_down: WhenDown::Error,
        ..PoolOptions::default()
    }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

/// A client of the keys whose rank has its remainder modulo `CLIENTS`.
struct MovingClient {
    client: Client,
    number: usize,
    /// The version of each key.
    versions: Vec<u32>,
    requests: u64,
    misses: u64,
}

impl MovingClient {
    fn new(client: Client, number: usize, keys: usize) -> MovingClient {
        MovingClient { client, number, versions: vec![0; keys / CLIENTS], requests: 0, misses: 0 }
    }

    fn value(&self, index: usize) -> String {
        format!("{}:{index}:{}", self.number, self.versions[index])
    }

    fn put_set(&self, index: usize, end: &str, out: &mut Vec<u8>) {
        let value = self.value(index);
        let line = format!("set k{}:{index} 0 0 {}{end}\r\n{value}\r\n", self.number, value.len());
        out.extend_from_slice(line.as_bytes());
    }

    fn store_all(&mut self) {
        let indexes: Vec<usize> = (0..self.versions.len()).collect();
        for some in indexes.chunks(1000) {
            let mut bytes = Vec::new();
            some.iter().for_each(|&index| self.put_set(index, " noreply", &mut bytes));
            bytes.extend_from_slice(b"mn\r\n");
            self.client.send(&bytes);
            self.client.expect(b"MN\r\n");
        }
    }

    /// Reads and writes records of different keys. Writes back the records that are missing.
    fn turn(&mut self, zipf: &Zipf, random: &mut Rng) {
        let mut indexes: Vec<usize> = (0..BATCH).map(|_| zipf.next(random)).collect();
        indexes.sort_unstable();
        indexes.dedup();
        let is_set: Vec<bool> = indexes.iter().map(|_| random.u8(..10) == 0).collect();
        let mut bytes = Vec::new();
        for (&index, &is_set) in indexes.iter().zip(&is_set) {
            if is_set {
                self.versions[index] += 1;
                self.put_set(index, "", &mut bytes);
            } else {
                bytes.extend_from_slice(format!("get k{}:{index}\r\n", self.number).as_bytes());
            }
        }
        self.client.send(&bytes);
        let mut missing = Vec::new();
        for (&index, &is_set) in indexes.iter().zip(&is_set) {
            if is_set {
                self.client.expect(b"STORED\r\n");
                continue;
            }
            let value = self.value(index);
            let line = self.client.line();
            if line == "END\r\n" {
                self.misses += 1;
                self.put_set(index, "", &mut missing);
                continue;
            }
            assert_eq!(line, format!("VALUE k{}:{index} 0 {}\r\n", self.number, value.len()));
            self.client.expect(format!("{value}\r\nEND\r\n").as_bytes());
        }
        self.requests += indexes.len() as u64;
        let stored = missing.iter().filter(|&&byte| byte == b'\n').count() / 2;
        self.client.send(&missing);
        (0..stored).for_each(|_| self.client.expect(b"STORED\r\n"));
    }
}

#[test]
fn move_to_another_server_causes_few_misses() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let keys: usize = number("TODANA_PROXY_MOVED").unwrap_or(20_000);
    let over = Duration::from_millis((keys as u64 / 20).max(1000));
    let servers = [(); 4].map(|()| Running::start(options()));
    let addresses = servers.each_ref().map(|server| server.addresses[0]);
    let start_ms = now_ms() + 1500 + keys as u64 / 50;
    let migrate = RouteTree::Migrate { new: "new".into(), old: "old".into(), start_ms, over };
    let pools = BTreeMap::from([("old".into(), pool(&addresses[..3])), ("new".into(), pool(&addresses))]);
    let routes = ProxyRoutes { default: migrate, ..ProxyRoutes::to_pool("new") };
    let proxy = ProxyOptions { pools, routes: Some(routes), ..ProxyOptions::default() };
    let proxy = Running::start(ServerOptions { proxy: Some(proxy), ..options() });
    let zipf = Zipf::new(keys / CLIENTS);
    let end_ms = start_ms + over.as_millis() as u64 + 500;
    let (requests, misses) = std::thread::scope(|scope| {
        let clients = [0, 1, 2, 3].map(|number| {
            let (client, zipf) = (proxy.connect(), &zipf);
            scope.spawn(move || {
                let mut random = Rng::with_seed(number as u64);
                let mut client = MovingClient::new(client, number, keys);
                client.store_all();
                while now_ms() < end_ms {
                    client.turn(zipf, &mut random);
                }
                (client.requests, client.misses)
            })
        });
        let counts = clients.map(|client| client.join().unwrap());
        counts.iter().fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1))
    });
    let moved = servers[3].connect().stat("curr_items");
    println!("{requests} requests, {misses} misses, {moved} records on the new server");
    assert_ne!(moved, "0");
    assert!(misses * 1_000_000 <= requests * MISSES_PER_MILLION_MAX, "{misses} of {requests}");
}
