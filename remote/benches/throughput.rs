//! Question: how much of the driver's throughput is left through a database, and through a server?
//!
//! Each round stores and reads the same records in several ways: by the driver alone, by
//! `RemoteDatabase`, and by each server of `TODANA_SERVER` (addresses, separated by commas), with
//! many connections of one request at a time, and with few connections of several. The servers must
//! serve the keyspace `todana_throughput` of the cluster that `TODANA_CASSANDRA` names. The CPU
//! time of a request is shown for this process, and for the processes `TODANA_PIDS`, as in
//! `SERVER,NODE`. The figures at the end are medians over the rounds, also those of the ratios to
//! the driver.

use scylla::client::session_builder::SessionBuilder;
use scylla::statement::prepared::PreparedStatement;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use todana::DatabaseName;
use todana_core::{Get, Operation, OwnedOperation, Reply, Store};
use todana_remote::RemoteDatabase;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

/// The requests that are under way at the same time.
const AT_ONCE: usize = 64;
/// The requests of a connection with several requests at a time.
const PIPELINED: usize = 16;
const KEYS: u64 = 20_000;
const VALUE: [u8; 100] = [b'v'; 100];
const ROUND: Duration = Duration::from_secs(4);
/// The first round warms up the cluster, and is not counted.
const ROUNDS: usize = 6;

fn key(number: u64) -> String {
    format!("user:{:08}", number % KEYS)
}

/// Returns the CPU time of each process, in microseconds.
fn cpu_us(pids: &[String]) -> Vec<f64> {
    let of = |pid: &String| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name of the program can contain spaces.
        let words: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks = words.get(11)?.parse::<f64>().ok()? + words.get(12)?.parse::<f64>().ok()?;
        Some(ticks * 10_000.0)
    };
    pids.iter().map(|pid| of(pid).unwrap_or(0.0)).collect()
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Calls `request` from `AT_ONCE` tasks until the round ends. Returns the requests per second.
fn rate<F>(runtime: &Runtime, request: impl Fn(u64) -> F + Clone + Send + 'static) -> f64
where
    F: Future<Output = ()> + Send,
{
    let (next, began) = (Arc::new(AtomicU64::new(0)), Instant::now());
    runtime.block_on(async {
        let tasks: Vec<_> = (0..AT_ONCE)
            .map(|_| {
                let (next, request) = (Arc::clone(&next), request.clone());
                tokio::spawn(async move {
                    while began.elapsed() < ROUND {
                        request(next.fetch_add(1, Ordering::Relaxed)).await;
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("no task panics");
        }
    });
    next.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64()
}

/// Keeps `AT_ONCE` operations under way until the round ends. Returns the operations per second.
fn database_rate(database: &RemoteDatabase, operation: impl Fn(u64) -> OwnedOperation) -> f64 {
    let (sender, replies) = channel();
    let (mut sent, mut done, began) = (0, 0, Instant::now());
    loop {
        while sent - done < AT_ONCE as u64 && began.elapsed() < ROUND {
            let sender = sender.clone();
            let check = move |reply: todana_core::OwnedReply| {
                let is_right = matches!(reply.borrowed(), Reply::Stored(_) | Reply::Hit(_) | Reply::Miss);
                let _ = sender.send(is_right);
            };
            database.submit(operation(sent), Box::new(check));
            sent += 1;
        }
        if sent == done {
            return done as f64 / began.elapsed().as_secs_f64();
        }
        assert!(replies.recv().expect("each operation has a reply"));
        done += 1;
    }
}

/// Sends requests through connections until the round ends, each with `AT_ONCE / connections`
/// requests at a time. Each reply has `reply_len` bytes. Returns the requests per second.
fn server_rate(
    runtime: &Runtime,
    address: &str,
    connections: usize,
    request: fn(u64) -> String,
    (reply_len, end): (usize, &'static [u8]),
) -> f64 {
    let (next, began) = (Arc::new(AtomicU64::new(0)), Instant::now());
    let at_a_time = AT_ONCE / connections;
    runtime.block_on(async {
        let mut tasks = Vec::new();
        for _ in 0..connections {
            let next = Arc::clone(&next);
            let mut stream = TcpStream::connect(address).await.expect("the server listens");
            stream.set_nodelay(true).expect("a socket has this option");
            tasks.push(tokio::spawn(async move {
                let mut replies = vec![0; reply_len * at_a_time];
                while began.elapsed() < ROUND {
                    let first = next.fetch_add(at_a_time as u64, Ordering::Relaxed);
                    let text: String = (first..first + at_a_time as u64).map(request).collect();
                    stream.write_all(text.as_bytes()).await.expect("the server reads");
                    stream.read_exact(&mut replies).await.expect("the server answers");
                    assert!(replies.chunks(reply_len).all(|reply| reply.ends_with(end)));
                }
            }));
        }
        for task in tasks {
            task.await.expect("no task panics");
        }
    });
    next.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64()
}

fn main() {
    let Ok(hosts) = std::env::var("TODANA_CASSANDRA") else {
        println!("skipped: TODANA_CASSANDRA names no cluster");
        return;
    };
    let name = format!("cassandra://{hosts}/todana_throughput#replication=1");
    let name = DatabaseName::parse(&name).expect("the name is well-formed");
    let database = RemoteDatabase::open(&name).expect("the cluster answers");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("threads can be started");
    let hosts: Vec<&str> = hosts.split(',').collect();
    let (session, set, get) = runtime.block_on(async {
        let session = SessionBuilder::new().known_nodes(&hosts).build().await.expect("the cluster answers");
        let set = "UPDATE todana_throughput.kv SET v = ?, f = ?, c = ? WHERE k = ?";
        let get = "SELECT v, f, c, e, TTL(v) FROM todana_throughput.kv WHERE k = ?";
        let set: PreparedStatement = session.prepare(set).await.expect("the table exists");
        let get: PreparedStatement = session.prepare(get).await.expect("the table exists");
        (Arc::new(session), set, get)
    });
    let servers = std::env::var("TODANA_SERVER").unwrap_or_default();
    let servers: Vec<&str> = servers.split(',').filter(|server| !server.is_empty()).collect();
    let others = std::env::var("TODANA_PIDS").unwrap_or_default();
    let others = others.split(',').filter(|pid| !pid.is_empty()).map(str::to_owned);
    let pids: Vec<String> = std::iter::once("self".to_owned()).chain(others).collect();
    let direct = |is_set: bool| {
        let (shared, statement) = (Arc::clone(&session), if is_set { &set } else { &get }.clone());
        rate(&runtime, move |number| {
            let (session, statement) = (Arc::clone(&shared), statement.clone());
            async move {
                let key = key(number).into_bytes();
                let result = match is_set {
                    true => session.execute_unpaged(&statement, (&VALUE[..], 0, number as i64, key)).await,
                    false => session.execute_unpaged(&statement, (key,)).await,
                };
                result.expect("the cluster answers");
            }
        })
    };
    let through_database = |is_set: bool| {
        database_rate(&database, |number| {
            let key = key(number);
            let store = Store { key: key.as_bytes(), value: &VALUE, ..Store::default() };
            let get = Get { key: key.as_bytes(), ..Get::default() };
            OwnedOperation::new(&if is_set { Operation::Store(store) } else { Operation::Get(get) })
        })
    };
    let through_server = |is_set: bool, server: &str, connections| {
        let set_text = |number| format!("set {} 0 0 100\r\n{}\r\n", key(number), "v".repeat(100));
        let get_text = |number| format!("get {}\r\n", key(number));
        let hit_len = "VALUE user:00000000 0 100\r\n".len() + VALUE.len() + "\r\nEND\r\n".len();
        let request = if is_set { set_text } else { get_text };
        let reply = if is_set { (8, &b"STORED\r\n"[..]) } else { (hit_len, &b"v\r\nEND\r\n"[..]) };
        server_rate(&runtime, server, connections, request, reply)
    };
    let mut ways = vec![("driver".to_owned(), None), ("database".to_owned(), None)];
    for (number, server) in servers.iter().enumerate() {
        for (connections, at_a_time) in [(AT_ONCE, 1), (AT_ONCE / PIPELINED, PIPELINED)] {
            let name = format!("server {}: {connections} x {at_a_time}", number + 1);
            ways.push((name, Some((*server, connections))));
        }
    }
    println!("{:34}  CPU time of a request in us, of {}", "", pids.join(", "));
    let mut rates = [vec![Vec::new(); ways.len()], vec![Vec::new(); ways.len()]];
    for round in 0..ROUNDS {
        for (is_set, rates) in [true, false].into_iter().zip(&mut rates) {
            for ((name, server), rates) in ways.iter().zip(rates) {
                let (before, began) = (cpu_us(&pids), Instant::now());
                let rate = match server {
                    Some((server, connections)) => through_server(is_set, server, *connections),
                    None if name == "driver" => direct(is_set),
                    None => through_database(is_set),
                };
                let requests = rate * began.elapsed().as_secs_f64();
                let cpu = cpu_us(&pids).into_iter().zip(before);
                let cpu: String =
                    cpu.map(|(after, before)| format!(" {:6.1}", (after - before) / requests)).collect();
                println!("{:4} {name:20} {rate:9.0} {cpu}", if is_set { "set" } else { "get" });
                if round > 0 {
                    rates.push(rate);
                }
            }
        }
    }
    for (word, rates) in ["set", "get"].into_iter().zip(&rates) {
        for ((name, _), of_way) in ways.iter().zip(rates) {
            let ratios = of_way.iter().zip(&rates[0]).map(|(rate, driver)| rate / driver).collect();
            let (rate, ratio) = (median(of_way.clone()), median(ratios));
            println!("{word} {name:20}: {rate:.0} a second, {ratio:.2} of the driver");
        }
    }
}
