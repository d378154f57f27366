//! Question: how much of the driver's throughput is left through a database, and through a server?
//!
//! Each round stores and reads the same records in three ways: by the driver alone, by
//! `RemoteDatabase`, and by the server whose address `TODANA_SERVER` has, which must serve the
//! keyspace `todana_throughput` of the same cluster. `TODANA_CASSANDRA` names the cluster.

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
const KEYS: u64 = 20_000;
const VALUE: [u8; 100] = [b'v'; 100];
const ROUND: Duration = Duration::from_secs(4);
const ROUNDS: usize = 3;

fn key(number: u64) -> String {
    format!("user:{:08}", number % KEYS)
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

/// Sends requests through `AT_ONCE` connections until the round ends. Returns the requests per
/// second.
fn server_rate(runtime: &Runtime, address: &str, request: fn(u64) -> String, end: &'static [u8]) -> f64 {
    let (next, began) = (Arc::new(AtomicU64::new(0)), Instant::now());
    runtime.block_on(async {
        let mut tasks = Vec::new();
        for _ in 0..AT_ONCE {
            let next = Arc::clone(&next);
            let mut stream = TcpStream::connect(address).await.expect("the server listens");
            stream.set_nodelay(true).expect("a socket has this option");
            tasks.push(tokio::spawn(async move {
                let mut buffer = vec![0; 4096];
                while began.elapsed() < ROUND {
                    let text = request(next.fetch_add(1, Ordering::Relaxed));
                    stream.write_all(text.as_bytes()).await.expect("the server reads");
                    let mut len = 0;
                    while !buffer[..len].ends_with(end) {
                        let got = stream.read(&mut buffer[len..]).await.expect("the server answers");
                        assert!(got > 0, "the server has closed the connection");
                        len += got;
                    }
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
    let server = std::env::var("TODANA_SERVER").ok();
    println!("{:8} {:>12} {:>12} {:>12}", "", "driver", "database", "server");
    let mut sums = [[0.0; 3]; 2];
    for _ in 0..ROUNDS {
        let (shared, statement) = (Arc::clone(&session), set.clone());
        let sets = rate(&runtime, move |number| {
            let (session, statement) = (Arc::clone(&shared), statement.clone());
            async move {
                let values = (&VALUE[..], 0, number as i64, key(number).into_bytes());
                session.execute_unpaged(&statement, values).await.expect("the record is stored");
            }
        });
        let stored = database_rate(&database, |number| {
            let key = key(number);
            let store = Store { key: key.as_bytes(), value: &VALUE, ..Store::default() };
            OwnedOperation::new(&Operation::Store(store))
        });
        let set_text = |number| format!("set {} 0 0 100\r\n{}\r\n", key(number), "v".repeat(100));
        let sent = server.as_ref().map_or(0.0, |at| server_rate(&runtime, at, set_text, b"STORED\r\n"));
        let (shared, statement) = (Arc::clone(&session), get.clone());
        let gets = rate(&runtime, move |number| {
            let (session, statement) = (Arc::clone(&shared), statement.clone());
            async move {
                let values = (key(number).into_bytes(),);
                session.execute_unpaged(&statement, values).await.expect("the record is read");
            }
        });
        let read = database_rate(&database, |number| {
            OwnedOperation::new(&Operation::Get(Get { key: key(number).as_bytes(), ..Get::default() }))
        });
        let get_text = |number| format!("get {}\r\n", key(number));
        let asked = server.as_ref().map_or(0.0, |at| server_rate(&runtime, at, get_text, b"END\r\n"));
        for (index, (word, rates)) in
            [("set", [sets, stored, sent]), ("get", [gets, read, asked])].into_iter().enumerate()
        {
            println!("{word:8} {:12.0} {:12.0} {:12.0}", rates[0], rates[1], rates[2]);
            (0..3).for_each(|way| sums[index][way] += rates[way]);
        }
    }
    for (word, sum) in [("set", sums[0]), ("get", sums[1])] {
        println!("{word}: database {:.2}, server {:.2} of the driver", sum[1] / sum[0], sum[2] / sum[0]);
    }
}
