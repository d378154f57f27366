//! Kills, pauses and adds nodes of a cluster of three copies, while clients write through a server.
//! No acknowledged write may be lost, counters of a `#strict` database must be exact, and another
//! database of the same server must not notice.

use super::local_cluster::LocalCluster;
use crate::clients::TestServer;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

const WRITERS: usize = 4;
const INCREMENTERS: usize = 4;
/// The records of a writer.
const KEYS: u64 = 300;
const COUNTERS: usize = 5;
/// The time between two requests of a client, so that the nodes have the processor, too.
const PAUSE: Duration = Duration::from_millis(5);
/// The time that the nodes need to notice that another one is back.
const SETTLING: Duration = Duration::from_secs(15);
/// A client of a server whose cluster hangs must get an answer within this time.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// A client of Kyoto Tycoon's protocol.
struct KyotoClient {
    address: String,
    stream: Option<BufReader<TcpStream>>,
}

/// The outcome of a call.
#[derive(Debug, PartialEq)]
enum Outcome {
    /// The text of the answer.
    Done(String),
    /// There is no such record.
    Missing,
    /// Not executed.
    Failed,
    Unknown,
}

impl KyotoClient {
    fn new(address: &str) -> KyotoClient {
        KyotoClient { address: address.into(), stream: None }
    }

    fn call(&mut self, name: &str, map: &str) -> Outcome {
        self.try_call(name, map).unwrap_or_else(|_| {
            self.stream = None;
            Outcome::Unknown
        })
    }

    fn try_call(&mut self, name: &str, map: &str) -> std::io::Result<Outcome> {
        if self.stream.is_none() {
            let stream = TcpStream::connect(&self.address)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(ANSWER_MAX))?;
            self.stream = Some(BufReader::new(stream));
        }
        let Some(stream) = &mut self.stream else { return Ok(Outcome::Failed) };
        let head = "HTTP/1.1\r\nContent-Type: text/tab-separated-values\r\nContent-Length";
        let request = format!("POST /rpc/{name} {head}: {}\r\n\r\n{map}", map.len());
        stream.get_mut().write_all(request.as_bytes())?;
        let mut line = String::new();
        stream.read_line(&mut line)?;
        let status = line.split(' ').nth(1).unwrap_or_default().to_owned();
        let mut len = 0;
        while line.trim_end() != "" {
            line.clear();
            stream.read_line(&mut line)?;
            len = line.strip_prefix("Content-Length: ").map_or(len, |len| len.trim().parse().unwrap_or(0));
        }
        let mut body = vec![0; len];
        stream.read_exact(&mut body)?;
        let body = String::from_utf8_lossy(&body).into_owned();
        Ok(match status.as_str() {
            "200" => Outcome::Done(body),
            "450" => Outcome::Missing,
            "" => Outcome::Unknown,
            _ if body.contains("may have been executed") => Outcome::Unknown,
            _ => Outcome::Failed,
        })
    }
}

/// The counts of all clients.
#[derive(Default)]
struct Tally {
    is_over: AtomicBool,
    done: AtomicU64,
    failed: AtomicU64,
    unknown: AtomicU64,
    wrong_reads: AtomicU64,
    near_calls: AtomicU64,
    near_failures: AtomicU64,
    near_longest_ms: AtomicU64,
}

impl Tally {
    fn count(&self, outcome: &Outcome) {
        let of = match outcome {
            Outcome::Done(_) | Outcome::Missing => &self.done,
            Outcome::Failed => &self.failed,
            Outcome::Unknown => &self.unknown,
        };
        of.fetch_add(1, Ordering::Relaxed);
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }
}

/// The values that a record may have: the last acknowledged one, and later ones whose outcome is
/// unknown.
type Possible = BTreeMap<u64, Vec<u64>>;

/// Returns true if a record has one of its possible values.
fn is_possible(possible: &Possible, key: u64, outcome: &Outcome) -> bool {
    let value = match outcome {
        Outcome::Done(body) => body.split_whitespace().nth(1).and_then(|value| value.parse().ok()),
        _ => None,
    };
    match possible.get(&key) {
        None => value.is_none(),
        Some(values) => value.is_some_and(|value| values.contains(&value)),
    }
}

/// Writes and reads records of its own until the end. Returns their possible values.
fn write_records(mut client: KyotoClient, tally: &Tally, writer: usize) -> Possible {
    let (mut possible, mut random) = (Possible::new(), fastrand::Rng::with_seed(writer as u64));
    let mut value = 0;
    while !tally.is_over() {
        let key = random.u64(0..KEYS);
        let set = format!("key\t{writer}:{key}\nvalue\t{value}\n");
        let outcome = client.call("set", &set);
        tally.count(&outcome);
        match outcome {
            Outcome::Done(_) => drop(possible.insert(key, vec![value])),
            // A write without an answer may become visible; the first one leaves the record absent
            // or not, so it is repeated until it is acknowledged.
            Outcome::Unknown if !possible.contains_key(&key) => {
                while !tally.is_over() && !matches!(client.call("set", &set), Outcome::Done(_)) {}
                possible.insert(key, vec![value]);
            }
            Outcome::Unknown => possible.entry(key).or_default().push(value),
            Outcome::Missing | Outcome::Failed => {}
        }
        value += 1;
        let read = random.u64(0..KEYS);
        let found = client.call("get", &format!("key\t{writer}:{read}\n"));
        let is_answered = matches!(found, Outcome::Done(_) | Outcome::Missing);
        if is_answered && !is_possible(&possible, read, &found) {
            tally.wrong_reads.fetch_add(1, Ordering::Relaxed);
        }
        sleep(PAUSE);
    }
    possible
}

/// Increments shared counters until the end. Returns the acknowledged and the unknown increments of
/// each.
fn increment(mut client: KyotoClient, tally: &Tally, number: usize) -> [[u64; 2]; COUNTERS] {
    let (mut counts, mut random) = ([[0; 2]; COUNTERS], fastrand::Rng::with_seed(99 + number as u64));
    while !tally.is_over() {
        let counter = random.usize(0..COUNTERS);
        let outcome = client.call("increment", &format!("DB\tstrict\nkey\tn{counter}\nnum\t1\n"));
        tally.count(&outcome);
        match outcome {
            Outcome::Done(_) => counts[counter][0] += 1,
            Outcome::Unknown => counts[counter][1] += 1,
            Outcome::Missing | Outcome::Failed => {}
        }
        sleep(PAUSE);
    }
    counts
}

/// Uses the database that is not on the cluster until the end.
fn use_neighbour(mut client: KyotoClient, tally: &Tally) {
    for number in 0_u64.. {
        if tally.is_over() {
            return;
        }
        let began = Instant::now();
        let set = client.call("set", &format!("DB\tnear\nkey\tk\nvalue\t{number}\n"));
        let get = client.call("get", "DB\tnear\nkey\tk\n");
        let is_right = matches!(set, Outcome::Done(_)) && get == Outcome::Done(format!("value\t{number}\n"));
        tally.near_calls.fetch_add(2, Ordering::Relaxed);
        tally.near_failures.fetch_add(u64::from(!is_right), Ordering::Relaxed);
        tally.near_longest_ms.fetch_max(began.elapsed().as_millis() as u64, Ordering::Relaxed);
        sleep(PAUSE);
    }
}

/// Kills, pauses and adds nodes until the time is over. All nodes run afterwards.
fn cause_faults(cluster: &mut LocalCluster, length: Duration) -> Result<(), String> {
    let began = Instant::now();
    let report = |what: &str| println!("{:4.0} s: {what}", began.elapsed().as_secs_f64());
    let mut is_grown = false;
    for round in 0.. {
        sleep(SETTLING);
        if began.elapsed() > length {
            return Ok(());
        }
        if !is_grown && round > 1 {
            report("add node 4");
            cluster.add()?;
            is_grown = true;
            report("node 4 serves clients");
            continue;
        }
        // The first node is never killed, because the others ask it for the cluster at their start.
        let number = [2, 3, 4, 1][(round / 2) % if is_grown { 4 } else { 2 }];
        if round % 2 == 0 && number != 1 {
            report(&format!("kill node {number}"));
            cluster.kill(number)?;
            sleep(SETTLING);
            report(&format!("start node {number}"));
            cluster.start_again(number)?;
        } else {
            report(&format!("pause node {number}"));
            cluster.pause(number)?;
            sleep(SETTLING);
            report(&format!("resume node {number}"));
            cluster.resume(number)?;
        }
    }
    Ok(())
}

/// Compares all records and counters with the acknowledged writes. Returns the problems.
fn compare(client: &mut KyotoClient, records: &[Possible], counts: &[[[u64; 2]; COUNTERS]]) -> Vec<String> {
    let mut problems = Vec::new();
    for (writer, possible) in records.iter().enumerate() {
        for (key, values) in possible {
            let found = client.call("get", &format!("key\t{writer}:{key}\n"));
            if !is_possible(possible, *key, &found) {
                problems.push(format!("record {writer}:{key} is {found:?} in place of {values:?}"));
            }
        }
    }
    for counter in 0..COUNTERS {
        let sum = |kind: usize| counts.iter().map(|counts| counts[counter][kind]).sum::<u64>();
        let (done, unknown) = (sum(0), sum(1));
        let found = match client.call("increment", &format!("DB\tstrict\nkey\tn{counter}\nnum\t0\n")) {
            Outcome::Done(body) => body.split_whitespace().nth(1).and_then(|number| number.parse().ok()),
            _ => None,
        };
        println!("counter {counter}: {found:?}, {done} acknowledged, {unknown} unknown");
        if found.is_none_or(|found: u64| !(done..=done + unknown).contains(&found)) {
            problems.push(format!("counter {counter} is {found:?} after {done} increments"));
        }
    }
    problems
}

/// Runs the clients while nodes fail. Fails if a write is lost.
pub(super) fn run(cluster: &mut LocalCluster, length: Duration) -> Result<(), String> {
    let points = cluster.contact_points();
    let fast = format!("cassandra://{points}/todana_faults#replication=3");
    let strict = format!("strict=cassandra://{points}/todana_strict_faults#replication=3#strict");
    let server = TestServer::start(&[&fast, &strict, "near=mem:hash"])?;
    let tally = Arc::new(Tally::default());
    let client = || KyotoClient::new(server.address.rsplit('/').next().unwrap_or_default());
    let writers: Vec<JoinHandle<Possible>> = (0..WRITERS)
        .map(|number| {
            let (client, tally) = (client(), Arc::clone(&tally));
            spawn(move || write_records(client, &tally, number))
        })
        .collect();
    let incrementers: Vec<JoinHandle<[[u64; 2]; COUNTERS]>> = (0..INCREMENTERS)
        .map(|number| {
            let (client, tally) = (client(), Arc::clone(&tally));
            spawn(move || increment(client, &tally, number))
        })
        .collect();
    let neighbour = {
        let (client, tally) = (client(), Arc::clone(&tally));
        spawn(move || use_neighbour(client, &tally))
    };
    let caused = cause_faults(cluster, length);
    tally.is_over.store(true, Ordering::Relaxed);
    let ended = |_| "a client has ended".to_string();
    let records: Vec<Possible> =
        writers.into_iter().map(JoinHandle::join).collect::<Result<_, _>>().map_err(ended)?;
    let counts: Vec<_> =
        incrementers.into_iter().map(JoinHandle::join).collect::<Result<_, _>>().map_err(ended)?;
    neighbour.join().map_err(ended)?;
    caused?;
    let figure = |of: &AtomicU64| of.load(Ordering::Relaxed);
    println!(
        "{} writes acknowledged, {} not executed, {} unknown; near: {} calls, {} failed, the longest pair took {} ms",
        figure(&tally.done),
        figure(&tally.failed),
        figure(&tally.unknown),
        figure(&tally.near_calls),
        figure(&tally.near_failures),
        figure(&tally.near_longest_ms),
    );
    let mut problems = compare(&mut client(), &records, &counts);
    if figure(&tally.near_failures) > 0 {
        problems.push("the other database has failed".into());
    }
    if figure(&tally.wrong_reads) > 0 {
        problems.push(format!("{} reads showed a wrong value", figure(&tally.wrong_reads)));
    }
    if problems.is_empty() { Ok(()) } else { Err(problems.join("\n")) }
}
