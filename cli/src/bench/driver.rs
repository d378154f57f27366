//! Drives a server: threads with a readiness loop each, connections with a pipeline each.
//!
//! A connection writes a batch of requests at once and waits for all their replies; a request's latency counts from
//! the moment its batch is written to the moment its reply is whole.

use super::process;
use super::report::Round;
use super::workload::{Operation, Workload};
use hdrhistogram::Histogram;
use mio::net::{TcpStream, UnixStream};
use mio::{Events, Interest, Poll, Token};
use std::collections::VecDeque;
use std::error::Error;
use std::io::{self, Read, Write};
use std::net::ToSocketAddrs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use todana_client::Address;
use todana_protocol::memcached::client::{self, Response};

/// How a round is driven.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) connections: usize,
    pub(crate) threads: usize,
    pub(crate) pipeline: usize,
    /// Requests in all.
    pub(crate) requests: u64,
    pub(crate) duration: Option<Duration>,
}

/// A server that is silent for so long is given up.
const SILENCE: Duration = Duration::from_secs(20);
const SAMPLE: Duration = Duration::from_millis(100);
const READ: usize = 64 << 10;
const VALUE_LEN_MAX: usize = 1 << 30;
/// Latencies above this are counted as this.
const LATENCY_MAX_NS: u64 = 60_000_000_000;

enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    /// Connects, waiting for it: a bench with half its connections would be another bench.
    fn open(address: &Address) -> io::Result<Socket> {
        Ok(match address {
            Address::Unix(path) => {
                let stream = std::os::unix::net::UnixStream::connect(path)?;
                stream.set_nonblocking(true)?;
                Socket::Unix(UnixStream::from_std(stream))
            }
            Address::Tcp(host, port) => {
                let mut last = io::Error::from(io::ErrorKind::NotFound);
                for address in (host.as_str(), *port).to_socket_addrs()? {
                    match std::net::TcpStream::connect(address) {
                        Ok(stream) => {
                            stream.set_nodelay(true)?;
                            stream.set_nonblocking(true)?;
                            return Ok(Socket::Tcp(TcpStream::from_std(stream)));
                        }
                        Err(error) => last = error,
                    }
                }
                return Err(last);
            }
        })
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.read(buffer),
            Socket::Unix(stream) => stream.read(buffer),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.write(bytes),
            Socket::Unix(stream) => stream.write(bytes),
        }
    }

    fn register(&mut self, poll: &Poll, token: Token) -> io::Result<()> {
        let interest = Interest::READABLE | Interest::WRITABLE;
        match self {
            Socket::Tcp(stream) => poll.registry().register(stream, token, interest),
            Socket::Unix(stream) => poll.registry().register(stream, token, interest),
        }
    }
}

/// Where the operations of a connection come from.
enum Source {
    /// A random mix.
    Mix(fastrand::Rng),
    /// Sets of these keys, in order.
    Keys(std::ops::RangeInclusive<u64>),
}

struct Connection {
    socket: Socket,
    source: Source,
    output: Vec<u8>,
    output_at: usize,
    input: Vec<u8>,
    input_at: usize,
    waiting: VecDeque<Operation>,
    /// The value of the get that is being answered has come.
    hit: bool,
    sent_at: Instant,
}

/// What a thread found out.
struct Found {
    latencies: Histogram<u64>,
    gets: u64,
    hits: u64,
    sets: u64,
    errors: u64,
    first_error: Option<String>,
}

/// What all threads share.
struct Common<'a> {
    workload: &'a Workload,
    plan: &'a Plan,
    /// Requests that nobody has taken yet.
    left: AtomicU64,
    done: AtomicU64,
    stop: AtomicBool,
}

impl Common<'_> {
    /// Takes up to `wanted` requests from what is left.
    fn take(&self, wanted: usize) -> usize {
        if self.stop.load(Ordering::Relaxed) {
            return 0;
        }
        if self.plan.requests == u64::MAX {
            return wanted;
        }
        let before = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            Some(left.saturating_sub(wanted as u64))
        });
        before.unwrap_or(0).min(wanted as u64) as usize
    }
}

/// Runs one round. `load` stores every key once, in order, instead of the random mix.
pub(crate) fn run(
    server: &Address,
    pid: Option<u32>,
    workload: &Workload,
    plan: &Plan,
    load: bool,
    title: &str,
) -> Result<Round, Box<dyn Error>> {
    let common = Common {
        workload,
        plan,
        left: AtomicU64::new(plan.requests),
        done: AtomicU64::new(0),
        stop: AtomicBool::new(false),
    };
    let mut groups: Vec<Vec<Connection>> = (0..plan.threads).map(|_| Vec::new()).collect();
    for number in 0..plan.connections as u64 {
        let socket = Socket::open(server).map_err(|error| format!("cannot connect to {server}: {error}"))?;
        let part = |n: u64| (u128::from(workload.keys) * u128::from(n) / plan.connections as u128) as u64;
        let source = if load {
            Source::Keys(part(number) + 1..=part(number + 1))
        } else {
            Source::Mix(fastrand::Rng::with_seed(workload.seed ^ (number + 1) << 32))
        };
        groups[number as usize % plan.threads].push(Connection {
            socket,
            source,
            output: Vec::new(),
            output_at: 0,
            input: Vec::new(),
            input_at: 0,
            waiting: VecDeque::new(),
            hit: false,
            sent_at: Instant::now(),
        });
    }
    let template = if plan.duration.is_some() {
        "{msg} {elapsed} {pos} requests {per_sec}"
    } else {
        "{msg} {wide_bar} {pos}/{len} {per_sec} eta {eta}"
    };
    let bar = crate::data::progress(Some(plan.requests), template).with_message(title.to_string());
    let cpu_before = pid.and_then(process::cpu_time);
    let start = Instant::now();
    let (found, samples, elapsed, cpu_after) = std::thread::scope(|scope| {
        let threads: Vec<_> = groups
            .into_iter()
            .map(|group| scope.spawn(|| drive(&common, group).map_err(|error| error.to_string())))
            .collect();
        let mut samples = Vec::new();
        let mut next = start + SAMPLE;
        while !threads.iter().all(|thread| thread.is_finished()) {
            std::thread::park_timeout(next.saturating_duration_since(Instant::now()).min(SAMPLE / 20));
            if plan.duration.is_some_and(|duration| start.elapsed() >= duration) {
                common.stop.store(true, Ordering::Relaxed);
            }
            if Instant::now() >= next {
                let done = common.done.load(Ordering::Relaxed);
                samples.push((start.elapsed().as_secs_f64(), done));
                bar.set_position(done);
                next += SAMPLE;
            }
        }
        let elapsed = start.elapsed();
        let cpu_after = pid.and_then(process::cpu_time);
        let found: Vec<_> = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err("a thread panicked".into())))
            .collect();
        (found, samples, elapsed, cpu_after)
    });
    bar.finish_and_clear();
    let found = found.into_iter().collect::<Result<Vec<Found>, String>>()?;
    let mut round = Round::new(elapsed, samples);
    for part in found {
        round.latencies.add(&part.latencies)?;
        round.gets += part.gets;
        round.hits += part.hits;
        round.sets += part.sets;
        round.errors += part.errors;
        round.first_error = round.first_error.take().or(part.first_error);
    }
    round.cpu = cpu_before.zip(cpu_after).map(|(before, after)| after.saturating_sub(before));
    round.resident = pid.and_then(process::resident);
    Ok(round)
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3).expect("the bounds are constants that fit")
}

fn drive(common: &Common<'_>, mut connections: Vec<Connection>) -> Result<Found, Box<dyn Error>> {
    let mut poll = Poll::new()?;
    let mut events = Events::with_capacity(1024);
    let mut found = Found { latencies: histogram(), gets: 0, hits: 0, sets: 0, errors: 0, first_error: None };
    let (mut key, mut value) = (Vec::new(), Vec::new());
    let mut active = 0;
    for (index, connection) in connections.iter_mut().enumerate() {
        connection.socket.register(&poll, Token(index))?;
        if connection.begin(common, &mut key, &mut value)? {
            active += 1;
        }
    }
    while active > 0 {
        poll.poll(&mut events, Some(SILENCE)).or_else(|error| match error.kind() {
            io::ErrorKind::Interrupted => Ok(()),
            _ => Err(error),
        })?;
        if events.is_empty() {
            return Err(format!("the server has been silent for {} seconds", SILENCE.as_secs()).into());
        }
        for event in &events {
            let connection = &mut connections[event.token().0];
            if connection.waiting.is_empty() {
                continue;
            }
            if event.is_writable() {
                connection.send()?;
            }
            if event.is_readable() && connection.receive(common, &mut found, &mut value)? {
                common.done.fetch_add(common.plan.pipeline as u64, Ordering::Relaxed);
                if !connection.begin(common, &mut key, &mut value)? {
                    active -= 1;
                }
            }
        }
    }
    Ok(found)
}

impl Connection {
    /// Sends the next batch; false when there is none.
    fn begin(&mut self, common: &Common<'_>, key: &mut Vec<u8>, value: &mut Vec<u8>) -> io::Result<bool> {
        self.output.clear();
        self.output_at = 0;
        let count = match &self.source {
            Source::Mix(_) => common.take(common.plan.pipeline),
            Source::Keys(_) => common.plan.pipeline,
        };
        for _ in 0..count {
            let operation = match &mut self.source {
                Source::Mix(random) => common.workload.next(random),
                Source::Keys(keys) => match keys.next() {
                    Some(key) => Operation::Set(key),
                    None => break,
                },
            };
            common.workload.put_request(&mut self.output, operation, key, value);
            self.waiting.push_back(operation);
        }
        if self.waiting.is_empty() {
            return Ok(false);
        }
        self.sent_at = Instant::now();
        self.send()?;
        Ok(true)
    }

    fn send(&mut self) -> io::Result<()> {
        while self.output_at < self.output.len() {
            match self.socket.write(&self.output[self.output_at..]) {
                Ok(written) => self.output_at += written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads what has come; true when the whole batch is answered.
    fn receive(
        &mut self,
        common: &Common<'_>,
        found: &mut Found,
        value: &mut Vec<u8>,
    ) -> Result<bool, Box<dyn Error>> {
        loop {
            let held = self.input.len();
            self.input.resize(held + READ, 0);
            let outcome = self.socket.read(&mut self.input[held..]);
            let len = *outcome.as_ref().unwrap_or(&0);
            self.input.truncate(held + len);
            match outcome {
                Ok(0) => return Err("the server closed the connection".into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            }
            while let Some((used, response)) = client::decode(&self.input[self.input_at..], VALUE_LEN_MAX)? {
                let Some(&operation) = self.waiting.front() else {
                    return Err("the server sent a reply that nobody asked for".into());
                };
                if judge(common.workload, operation, &response, &mut self.hit, found, value) {
                    self.waiting.pop_front();
                    let latency = self.sent_at.elapsed().as_nanos().min(u128::from(LATENCY_MAX_NS)) as u64;
                    found.latencies.saturating_record(latency.max(1));
                }
                self.input_at += used;
            }
            self.input.drain(..self.input_at);
            self.input_at = 0;
            if self.waiting.is_empty() {
                return Ok(true);
            }
            if len < READ {
                return Ok(false);
            }
        }
    }
}

/// Holds a reply against its request; true when the request is answered whole.
fn judge(
    workload: &Workload,
    operation: Operation,
    response: &Response<'_>,
    hit: &mut bool,
    found: &mut Found,
    expected: &mut Vec<u8>,
) -> bool {
    match (operation, response) {
        (
            Operation::Get(key),
            Response::Value { value, .. } | Response::Meta { code: [b'V', b'A'], value: Some(value), .. },
        ) => {
            if workload.verify {
                expected.clear();
                workload.put_value(expected, key);
                if expected != value {
                    found.errors += 1;
                    found
                        .first_error
                        .get_or_insert_with(|| format!("key {key} has another value than was stored"));
                }
            }
            *hit = matches!(response, Response::Value { .. });
            if !*hit {
                found.gets += 1;
                found.hits += 1;
            }
            !*hit
        }
        (Operation::Get(_), Response::Line(b"END") | Response::Meta { code: [b'E', b'N'], .. }) => {
            found.gets += 1;
            found.hits += u64::from(std::mem::take(hit));
            true
        }
        (Operation::Set(_), Response::Line(b"STORED") | Response::Meta { code: [b'H', b'D'], .. }) => {
            found.sets += 1;
            true
        }
        _ => {
            found.errors += 1;
            found.first_error.get_or_insert_with(|| match response {
                Response::Error(line) => String::from_utf8_lossy(line).into_owned(),
                other => format!("{operation:?} was answered by {other:?}"),
            });
            true
        }
    }
}
