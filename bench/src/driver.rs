//! Drives a server: threads with a readiness loop each, connections with a pipeline each.
//!
//! A connection writes a batch of requests at once and waits for all their replies; a request's latency counts from
//! the moment its batch is written to the moment its reply is whole. The loop is closed: a server that stalls is asked
//! less often meanwhile, so the percentiles are those of the requests that were made, not of a steady stream of users.

use super::process;
use super::progress::progress;
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
use todana_client::{Address, Login, Timeouts, Tls, TlsStream, cannot_connect};
use todana_protocol::memcached::client::{self, Response};

/// A server that is driven.
#[derive(Debug)]
pub struct Target {
    /// The server's name in tables and charts.
    pub name: String,
    /// Where it listens.
    pub address: Address,
    /// How to speak TLS, if the address wants that.
    pub tls: Option<Tls>,
    /// Who one is there.
    pub login: Option<Login>,
    /// Its process.
    pub pid: Option<u32>,
}

impl Target {
    /// Returns how many records the server holds; `None` if it does not say.
    pub(crate) fn records(&self) -> Result<Option<u64>, todana_client::Error> {
        let mut connection =
            todana_client::Connection::open_with(&self.address, Timeouts::default(), self.tls.as_ref())?;
        if let Some(login) = &self.login {
            connection.log_in(login)?;
        }
        Ok(connection.statistic("curr_items")?.and_then(|count| count.parse().ok()))
    }
}

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
/// A batch that stores keys in order ends at this length, whatever the pipeline: values may be large.
const LOAD_BATCH: usize = 1 << 20;
/// How long to wait for a connection.
const CONNECT: Duration = Duration::from_secs(10);
const VALUE_LEN_MAX: usize = 1 << 30;
/// Latencies above this are counted as this.
const LATENCY_MAX_NS: u64 = 60_000_000_000;

enum Socket {
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    Unix(UnixStream),
}

impl Socket {
    /// Connects, waiting for it: a bench with half its connections would be another bench.
    fn open(target: &Target) -> Result<Socket, todana_client::Error> {
        let Target { address, tls, login, .. } = target;
        let failed = |error| cannot_connect(address, &error);
        Ok(match address {
            Address::Unix(path) => {
                let mut stream = std::os::unix::net::UnixStream::connect(path).map_err(failed)?;
                stream.set_read_timeout(Some(CONNECT))?;
                say(login.as_ref(), &mut stream)?;
                stream.set_nonblocking(true)?;
                Socket::Unix(UnixStream::from_std(stream))
            }
            Address::Tcp(host, port) => {
                let mut stream = connect(host, *port).map_err(failed)?;
                stream.set_read_timeout(Some(CONNECT))?;
                say(login.as_ref(), &mut stream)?;
                stream.set_nonblocking(true)?;
                Socket::Tcp(TcpStream::from_std(stream))
            }
            Address::Tls(host, port) => {
                let tls = tls
                    .as_ref()
                    .ok_or_else(|| io::Error::other("there is nothing to check its certificate by"))?;
                let stream = connect(host, *port).map_err(failed)?;
                stream.set_read_timeout(Some(CONNECT))?;
                let mut stream = tls.connect(host, stream).map_err(failed)?;
                say(login.as_ref(), &mut stream)?;
                stream.socket().set_nonblocking(true)?;
                Socket::Tls(Box::new(stream.map(TcpStream::from_std)))
            }
        })
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.read(buffer),
            Socket::Tls(stream) => stream.read(buffer),
            Socket::Unix(stream) => stream.read(buffer),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.write(bytes),
            Socket::Tls(stream) => stream.write(bytes),
            Socket::Unix(stream) => stream.write(bytes),
        }
    }

    /// Sends what a write has taken and kept, as far as that goes.
    fn flush(&mut self) -> io::Result<()> {
        match self {
            Socket::Tls(stream) if stream.has_unsent() => match stream.flush() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
                outcome => outcome,
            },
            _ => Ok(()),
        }
    }

    /// A read that comes up short has taken all that there was.
    fn is_drained_by_short_reads(&self) -> bool {
        !matches!(self, Socket::Tls(_))
    }

    fn register(&mut self, poll: &Poll, token: Token) -> io::Result<()> {
        let interest = Interest::READABLE | Interest::WRITABLE;
        match self {
            Socket::Tcp(stream) => poll.registry().register(stream, token, interest),
            Socket::Tls(stream) => poll.registry().register(stream.socket(), token, interest),
            Socket::Unix(stream) => poll.registry().register(stream, token, interest),
        }
    }
}

fn say(login: Option<&Login>, stream: &mut (impl Read + Write)) -> Result<(), todana_client::Error> {
    login.map_or(Ok(()), |login| login.say(stream))
}

fn connect(host: &str, port: u16) -> io::Result<std::net::TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for address in (host, port).to_socket_addrs()? {
        match std::net::TcpStream::connect_timeout(&address, CONNECT) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
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
    /// Its first `held` bytes have come and are not understood yet. Kept at its length: clearing it for each read would
    /// cost more than the read.
    input: Vec<u8>,
    held: usize,
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
    /// When the last reply was there.
    end: Instant,
}

impl Found {
    fn wrong(&mut self, what: impl FnOnce() -> String) {
        self.errors += 1;
        self.first_error.get_or_insert_with(what);
    }
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
    target: &Target,
    workload: &Workload,
    plan: &Plan,
    load: bool,
    title: &str,
) -> Result<Round, Box<dyn Error>> {
    let (server, pid) = (&target.address, target.pid);
    let common = Common {
        workload,
        plan,
        left: AtomicU64::new(plan.requests),
        done: AtomicU64::new(0),
        stop: AtomicBool::new(false),
    };
    let mut groups: Vec<Vec<Connection>> = (0..plan.threads).map(|_| Vec::new()).collect();
    for number in 0..plan.connections as u64 {
        let socket = Socket::open(target)?;
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
            input: vec![0; READ],
            held: 0,
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
    let bar = progress(plan.requests, template).with_message(title.to_string());
    let cpu_before = pid.map(process::cpu_time).transpose()?;
    let start = Instant::now();
    let (found, mut samples, cpu_after) = std::thread::scope(|scope| {
        let threads: Vec<_> = groups
            .into_iter()
            .map(|group| {
                scope.spawn(|| {
                    let found = drive(&common, group);
                    // The others would go on for nothing.
                    common.stop.fetch_or(found.is_err(), Ordering::Relaxed);
                    found.map_err(|error| format!("{server}: {error}"))
                })
            })
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
        let cpu_after = pid.map(process::cpu_time);
        let found: Vec<_> = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err("a thread panicked".into())))
            .collect();
        (found, samples, cpu_after)
    });
    bar.finish_and_clear();
    let found = found.into_iter().collect::<Result<Vec<Found>, String>>()?;
    let end = found.iter().map(|part| part.end).max().unwrap_or(start);
    let elapsed = end - start;
    samples.retain(|(seconds, _)| *seconds < elapsed.as_secs_f64());
    samples.push((elapsed.as_secs_f64(), common.done.load(Ordering::Relaxed)));
    let mut round = Round::new(Duration::ZERO, elapsed, samples);
    for part in found {
        round.latencies.add(&part.latencies)?;
        round.gets += part.gets;
        round.hits += part.hits;
        round.sets += part.sets;
        round.errors += part.errors;
        round.first_error = round.first_error.take().or(part.first_error);
    }
    round.cpu = cpu_before.zip(cpu_after.transpose()?).map(|(before, after)| after.since(before));
    round.resident = pid.map(process::resident).transpose()?;
    round.anonymous = pid.map(process::anonymous).transpose()?;
    Ok(round)
}

/// Latencies in nanoseconds, to three digits.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3).expect("the bounds are constants that fit")
}

fn drive(common: &Common<'_>, mut connections: Vec<Connection>) -> Result<Found, Box<dyn Error>> {
    let mut poll = Poll::new()?;
    let mut events = Events::with_capacity(1024);
    let mut found = Found {
        latencies: histogram(),
        gets: 0,
        hits: 0,
        sets: 0,
        errors: 0,
        first_error: None,
        end: Instant::now(),
    };
    let (mut key, mut value) = (Vec::new(), Vec::new());
    let mut active = 0;
    for (index, connection) in connections.iter_mut().enumerate() {
        connection.socket.register(&poll, Token(index))?;
        if connection.begin(common, &mut key, &mut value)? {
            active += 1;
        }
    }
    while active > 0 {
        match poll.poll(&mut events, Some(SILENCE)) {
            Ok(()) => {}
            // Somebody stopped us and let us go on.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.into()),
        }
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
            let is_answered = event.is_readable()
                && connection.receive(common, &mut found, &mut value, event.is_read_closed())?;
            if is_answered && !connection.begin(common, &mut key, &mut value)? {
                active -= 1;
            }
        }
    }
    found.end = Instant::now();
    Ok(found)
}

impl Connection {
    /// Sends the next batch; false when there is none.
    fn begin(
        &mut self,
        common: &Common<'_>,
        key: &mut Vec<u8>,
        value: &mut Vec<u8>,
    ) -> Result<bool, Box<dyn Error>> {
        self.output.clear();
        self.output_at = 0;
        let count = match &self.source {
            Source::Mix(_) => common.take(common.plan.pipeline),
            Source::Keys(_) => common.plan.pipeline,
        };
        for _ in 0..count {
            if matches!(self.source, Source::Keys(_)) && self.output.len() >= LOAD_BATCH {
                break;
            }
            let operation = match &mut self.source {
                Source::Mix(random) => common.workload.next(random),
                Source::Keys(keys) => match keys.next() {
                    Some(key) => Operation::Set(key),
                    None => break,
                },
            };
            common.workload.put_request(&mut self.output, operation, key, value)?;
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
        self.socket.flush()
    }

    /// Reads what has come; true when the whole batch is answered.
    fn receive(
        &mut self,
        common: &Common<'_>,
        found: &mut Found,
        value: &mut Vec<u8>,
        is_closed: bool,
    ) -> Result<bool, Box<dyn Error>> {
        loop {
            if self.held == self.input.len() {
                self.input.resize(2 * self.held, 0);
            }
            let room = self.input.len() - self.held;
            let len = match self.socket.read(&mut self.input[self.held..]) {
                Ok(0) => return Err("the server closed the connection".into()),
                Ok(len) => len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            };
            self.held += len;
            let now = Instant::now();
            let (mut at, mut answered) = (0, 0);
            while let Some((used, response)) = client::decode(&self.input[at..self.held], VALUE_LEN_MAX)? {
                let Some(&operation) = self.waiting.front() else {
                    return Err("the server sent a reply that nobody asked for".into());
                };
                if judge(common.workload, operation, &response, &mut self.hit, found, value) {
                    self.waiting.pop_front();
                    answered += 1;
                }
                at += used;
            }
            // All that came with one read came at one time.
            let latency = (now - self.sent_at).as_nanos().clamp(1, u128::from(LATENCY_MAX_NS)) as u64;
            found.latencies.saturating_record_n(latency, answered);
            common.done.fetch_add(answered, Ordering::Relaxed);
            if at > 0 {
                self.input.copy_within(at..self.held, 0);
                self.held -= at;
            }
            if self.waiting.is_empty() {
                return Ok(true);
            }
            // A short read has emptied the socket, and what comes next wakes us; but the end of the stream has woken
            // us already, if it came along.
            if len < room && !is_closed && self.socket.is_drained_by_short_reads() {
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
        (Operation::Get(number), Response::Value { key, value, .. }) if !*hit => {
            *hit = true;
            if workload.verify {
                expected.clear();
                workload.shape.put(expected, number);
                if expected != key {
                    found
                        .wrong(|| format!("a get of {:?} was answered with {:?}", Text(expected), Text(key)));
                }
                verify(workload, number, value, found, expected);
            }
            false
        }
        (Operation::Get(number), Response::Meta { code: [b'V', b'A'], value: Some(value), .. }) => {
            if workload.verify {
                verify(workload, number, value, found, expected);
            }
            found.gets += 1;
            found.hits += 1;
            true
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
            *hit = false;
            found.wrong(|| match response {
                Response::Refused(refusal) => String::from_utf8_lossy(refusal.line).into_owned(),
                other => format!("{operation:?} was answered by {other:?}"),
            });
            true
        }
    }
}

fn verify(workload: &Workload, number: u64, value: &[u8], found: &mut Found, expected: &mut Vec<u8>) {
    expected.clear();
    workload.put_value(expected, number);
    if expected != value {
        found.wrong(|| format!("key {number} has another value than was stored"));
    }
}

/// Bytes as text for a message.
struct Text<'a>(&'a [u8]);

impl std::fmt::Debug for Text<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::super::toy_server::{self, Manner};
    use super::super::workload::{Distribution, KeyShape, Picker, Protocol, ValueKind, ValueSize};
    use super::*;

    const KEYS: u64 = 50;
    const PLAN: Plan = Plan { connections: 5, threads: 2, pipeline: 3, requests: 1000, duration: None };

    fn workload(protocol: Protocol) -> Workload {
        Workload {
            keys: KEYS,
            shape: KeyShape { prefix: "k".into(), width: 4 },
            value_size: ValueSize::Uniform(0, 300),
            value_kind: ValueKind::Random,
            picker: Picker::new(Distribution::Zipf(0.9), KEYS),
            ratio: "3:1".parse().unwrap(),
            protocol,
            seed: 5,
            verify: true,
        }
    }

    fn target(server: &Address) -> Target {
        Target { name: server.to_string(), address: server.clone(), tls: None, login: None, pid: None }
    }

    fn store(server: &Address, workload: &Workload) {
        let plan = Plan { requests: KEYS, ..PLAN };
        let round = run(&target(server), workload, &plan, true, "").unwrap();
        assert_eq!((round.sets, round.gets, round.errors), (KEYS, 0, 0));
    }

    fn measure(manner: Manner, protocol: Protocol, plan: &Plan) -> Result<Round, String> {
        let (server, workload) = (toy_server::start(manner), workload(protocol));
        store(&server, &workload);
        run(&target(&server), &workload, plan, false, "").map_err(|error| error.to_string())
    }

    #[test]
    fn every_request_is_counted_and_timed_once() {
        for manner in [Manner::Good, Manner::Hesitant] {
            for protocol in [Protocol::Text, Protocol::Meta] {
                let round = measure(manner, protocol, &PLAN).unwrap();
                assert_eq!((round.requests(), round.errors), (1000, 0), "{manner:?} {protocol:?}");
                assert_eq!((round.hits, round.latencies.len()), (round.gets, 1000));
                // 3 of 4 are gets, give or take.
                assert!((680..=820).contains(&round.gets), "{}", round.gets);
                assert_eq!(round.samples.last().map(|sample| sample.1), Some(1000));
            }
        }
    }

    #[test]
    fn what_was_never_stored_is_missed() {
        let (server, workload) = (toy_server::start(Manner::Good), workload(Protocol::Text));
        let only_gets = Workload { ratio: "1:0".parse().unwrap(), ..workload };
        let round = run(&target(&server), &only_gets, &PLAN, false, "").unwrap();
        assert_eq!((round.gets, round.hits, round.errors), (1000, 0, 0));
    }

    #[test]
    fn the_same_seed_does_the_same_work() {
        let counts = || {
            // One thread and connection: how requests are dealt out among several is a matter of time.
            let plan = Plan { connections: 1, threads: 1, ..PLAN };
            let round = measure(Manner::Good, Protocol::Text, &plan).unwrap();
            (round.gets, round.sets)
        };
        assert_eq!(counts(), counts());
    }

    #[test]
    fn a_run_by_time_ends_and_counts_what_it_did() {
        let plan = Plan { requests: u64::MAX, duration: Some(Duration::from_millis(30)), ..PLAN };
        let round = measure(Manner::Good, Protocol::Meta, &plan).unwrap();
        assert_eq!(round.requests(), round.latencies.len());
        assert!(round.elapsed >= Duration::from_millis(30) && round.requests() > 0);
    }

    #[test]
    fn wrong_replies_are_found_and_the_first_is_shown() {
        for (manner, protocol, first) in [
            (Manner::Lying, Protocol::Text, "has another value than was stored"),
            (Manner::Lying, Protocol::Meta, "has another value than was stored"),
            (Manner::Confused, Protocol::Text, "was answered with \"another\""),
            (Manner::Refusing, Protocol::Text, "SERVER_ERROR not today"),
            (Manner::Refusing, Protocol::Meta, "SERVER_ERROR not today"),
        ] {
            let round = measure(manner, protocol, &PLAN).unwrap();
            // Of some 50 keys, one in 300 has an empty value, which cannot be another.
            assert!(round.errors >= 500, "{manner:?} {protocol:?}: {}", round.errors);
            assert_eq!(round.latencies.len(), 1000);
            assert!(round.first_error.as_ref().unwrap().contains(first), "{:?}", round.first_error);
        }
    }

    #[test]
    fn a_server_that_goes_or_talks_too_much_ends_the_run() {
        let plan = Plan { connections: 1, threads: 1, pipeline: 1, ..PLAN };
        for protocol in [Protocol::Text, Protocol::Meta] {
            let failure = measure(Manner::Leaving, protocol, &plan).unwrap_err();
            assert!(
                failure.contains("127.0.0.1:") && failure.ends_with("the server closed the connection"),
                "{failure}"
            );
        }
        let failure = measure(Manner::Chatty, Protocol::Meta, &plan);
        match failure {
            // The second answer may come when the next get or set is already waiting for its own.
            Ok(round) => assert!(round.errors > 0),
            Err(failure) => assert!(failure.ends_with("a reply that nobody asked for"), "{failure}"),
        }
    }

    #[test]
    fn a_server_that_is_not_there_is_named() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        let failure =
            run(&target(&address.parse().unwrap()), &workload(Protocol::Text), &PLAN, false, "").unwrap_err();
        assert!(failure.to_string().starts_with(&format!("cannot connect to {address}: ")), "{failure}");
    }
}
