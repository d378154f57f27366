//! Sends load to a server. Each thread runs a readiness loop over several connections.
//!
//! A connection writes a batch of requests at once and waits for all replies. The latency of a
//! request is the time from the write of its batch to the end of its reply. The loop is closed: a
//! server that stalls receives fewer requests meanwhile. The percentiles therefore describe the
//! requests that were sent, and not a constant stream of users.

use super::process;
use super::progress::progress;
use super::report::LoadRound;
use super::workload::{Workload, WorkloadOperation};
use hdrhistogram::Histogram;
use mio::net::{TcpStream, UnixStream};
use mio::{Events, Interest, Poll, Token};
use std::collections::VecDeque;
use std::error::Error;
use std::io::{self, Read, Write};
use std::net::ToSocketAddrs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use todana_client::{Address, Login, SocketTimeouts, Tls, TlsStream, cannot_connect};
use todana_protocol::memcached::client::{self, ClientResponse};

/// A server to send load to.
#[derive(Debug)]
pub struct LoadTarget {
    /// The server's name in tables and charts.
    pub name: String,
    /// The address at which the server listens.
    pub address: Address,
    /// The TLS configuration, which is required for a TLS address.
    pub tls: Option<Tls>,
    /// The user and the password for the login.
    pub login: Option<Login>,
    /// The process ID of the server, for CPU time and memory.
    pub pid: Option<u32>,
}

impl LoadTarget {
    /// Returns the number of records on the server, or `None` if the statistics of the server do
    /// not contain it.
    pub(crate) fn records(&self) -> Result<Option<u64>, todana_client::Error> {
        let mut connection = todana_client::Connection::open_with(
            &self.address,
            SocketTimeouts::default(),
            self.tls.as_ref(),
        )?;
        if let Some(login) = &self.login {
            connection.log_in(login)?;
        }
        Ok(connection.statistic("curr_items")?.and_then(|count| count.parse().ok()))
    }
}

/// The amount of load in a round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadPlan {
    pub(crate) connections: usize,
    pub(crate) threads: usize,
    pub(crate) pipeline: usize,
    /// The number of requests of all connections together.
    pub(crate) requests: u64,
    pub(crate) duration: Option<Duration>,
}

/// The longest time that a server may send nothing. After this time the run fails.
const SILENCE: Duration = Duration::from_secs(20);
const SAMPLE: Duration = Duration::from_millis(100);
const READ: usize = 64 << 10;
/// The maximum number of bytes of a batch that stores keys in order. This limit is needed in
/// addition to the length of the pipeline, because values may be large.
const LOAD_BATCH: usize = 1 << 20;
/// The time limit for opening a connection.
const CONNECT: Duration = Duration::from_secs(10);
const VALUE_LEN_MAX: usize = 1 << 30;
/// The greatest latency that is recorded. A longer latency is recorded as this one.
const LATENCY_MAX_NS: u64 = 60_000_000_000;

enum LoadSocket {
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    Unix(UnixStream),
}

impl LoadSocket {
    /// Connects, and waits until the connection is open. A run in which only some connections are
    /// open would measure something else.
    fn open(target: &LoadTarget) -> Result<LoadSocket, todana_client::Error> {
        let LoadTarget { address, tls, login, .. } = target;
        let failed = |error| cannot_connect(address, &error);
        Ok(match address {
            Address::Unix(path) => {
                let mut stream = std::os::unix::net::UnixStream::connect(path).map_err(failed)?;
                stream.set_read_timeout(Some(CONNECT))?;
                log_in(login.as_ref(), &mut stream)?;
                stream.set_nonblocking(true)?;
                LoadSocket::Unix(UnixStream::from_std(stream))
            }
            Address::Tcp(host, port) => {
                let mut stream = connect(host, *port).map_err(failed)?;
                stream.set_read_timeout(Some(CONNECT))?;
                log_in(login.as_ref(), &mut stream)?;
                stream.set_nonblocking(true)?;
                LoadSocket::Tcp(TcpStream::from_std(stream))
            }
            Address::Tls(host, port) => {
                let tls = tls
                    .as_ref()
                    .ok_or_else(|| io::Error::other("there is nothing to check its certificate by"))?;
                let stream = connect(host, *port).map_err(failed)?;
                stream.set_read_timeout(Some(CONNECT))?;
                let mut stream = tls.connect(host, stream).map_err(failed)?;
                log_in(login.as_ref(), &mut stream)?;
                stream.socket().set_nonblocking(true)?;
                LoadSocket::Tls(Box::new(stream.map(TcpStream::from_std)))
            }
        })
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            LoadSocket::Tcp(stream) => stream.read(buffer),
            LoadSocket::Tls(stream) => stream.read(buffer),
            LoadSocket::Unix(stream) => stream.read(buffer),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            LoadSocket::Tcp(stream) => stream.write(bytes),
            LoadSocket::Tls(stream) => stream.write(bytes),
            LoadSocket::Unix(stream) => stream.write(bytes),
        }
    }

    /// Sends as many of the bytes that TLS has buffered as the socket accepts.
    fn flush(&mut self) -> io::Result<()> {
        match self {
            LoadSocket::Tls(stream) if stream.has_unsent() => match stream.flush() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
                outcome => outcome,
            },
            _ => Ok(()),
        }
    }

    /// Returns true if a read shorter than the buffer means that the socket is empty. This does not
    /// hold for TLS, which reads one TLS record at a time.
    fn is_drained_by_short_reads(&self) -> bool {
        !matches!(self, LoadSocket::Tls(_))
    }

    fn register(&mut self, poll: &Poll, token: Token) -> io::Result<()> {
        let interest = Interest::READABLE | Interest::WRITABLE;
        match self {
            LoadSocket::Tcp(stream) => poll.registry().register(stream, token, interest),
            LoadSocket::Tls(stream) => poll.registry().register(stream.socket(), token, interest),
            LoadSocket::Unix(stream) => poll.registry().register(stream, token, interest),
        }
    }
}

fn log_in(login: Option<&Login>, stream: &mut (impl Read + Write)) -> Result<(), todana_client::Error> {
    login.map_or(Ok(()), |login| login.log_in(stream))
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

/// The source of a connection's operations.
enum OperationSource {
    /// A random mix of gets and sets.
    Mix(fastrand::Rng),
    /// Sets of these keys, in order.
    Keys(std::ops::RangeInclusive<u64>),
}

struct LoadConnection {
    socket: LoadSocket,
    source: OperationSource,
    output: Vec<u8>,
    output_at: usize,
    /// The received bytes, of which the first `held` are not parsed yet. The vector keeps its
    /// length, because clearing it before each read would cost more than the read.
    input: Vec<u8>,
    held: usize,
    waiting: VecDeque<WorkloadOperation>,
    /// True if the value for the current get has arrived.
    hit: bool,
    sent_at: Instant,
}

/// The results of one thread.
struct ThreadResult {
    latencies: Histogram<u64>,
    gets: u64,
    hits: u64,
    sets: u64,
    errors: u64,
    first_error: Option<String>,
    /// The time of the last reply.
    end: Instant,
}

impl ThreadResult {
    fn wrong(&mut self, what: impl FnOnce() -> String) {
        self.errors += 1;
        self.first_error.get_or_insert_with(what);
    }
}

/// The state that all threads share.
struct RoundState<'a> {
    workload: &'a Workload,
    plan: &'a LoadPlan,
    /// The number of requests that no thread has taken yet.
    left: AtomicU64,
    done: AtomicU64,
    stop: AtomicBool,
}

impl RoundState<'_> {
    /// Takes up to `wanted` of the remaining requests and returns their number.
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

/// Runs one round. If `load` is true, stores every key once, in order, instead of the random mix.
pub(crate) fn run(
    target: &LoadTarget,
    workload: &Workload,
    plan: &LoadPlan,
    load: bool,
    title: &str,
) -> Result<LoadRound, Box<dyn Error>> {
    let (server, pid) = (&target.address, target.pid);
    let common = RoundState {
        workload,
        plan,
        left: AtomicU64::new(plan.requests),
        done: AtomicU64::new(0),
        stop: AtomicBool::new(false),
    };
    let mut groups: Vec<Vec<LoadConnection>> = (0..plan.threads).map(|_| Vec::new()).collect();
    for number in 0..plan.connections as u64 {
        let socket = LoadSocket::open(target)?;
        let part = |n: u64| (u128::from(workload.keys) * u128::from(n) / plan.connections as u128) as u64;
        let source = if load {
            OperationSource::Keys(part(number) + 1..=part(number + 1))
        } else {
            OperationSource::Mix(fastrand::Rng::with_seed(workload.seed ^ (number + 1) << 32))
        };
        groups[number as usize % plan.threads].push(LoadConnection {
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
                    // After an error the results of the other threads are not needed, so these
                    // threads stop.
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
    let found = found.into_iter().collect::<Result<Vec<ThreadResult>, String>>()?;
    let end = found.iter().map(|part| part.end).max().unwrap_or(start);
    let elapsed = end - start;
    samples.retain(|(seconds, _)| *seconds < elapsed.as_secs_f64());
    samples.push((elapsed.as_secs_f64(), common.done.load(Ordering::Relaxed)));
    let mut round = LoadRound::new(Duration::ZERO, elapsed, samples);
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

/// Returns an empty histogram of latencies in nanoseconds with three significant digits.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3).expect("the bounds are constants that fit")
}

fn drive(
    common: &RoundState<'_>,
    mut connections: Vec<LoadConnection>,
) -> Result<ThreadResult, Box<dyn Error>> {
    let mut poll = Poll::new()?;
    let mut events = Events::with_capacity(1024);
    let mut found = ThreadResult {
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
            // A signal interrupted the poll, for example after SIGSTOP and SIGCONT.
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

impl LoadConnection {
    /// Sends the next batch. Returns false if no request is left.
    fn begin(
        &mut self,
        common: &RoundState<'_>,
        key: &mut Vec<u8>,
        value: &mut Vec<u8>,
    ) -> Result<bool, Box<dyn Error>> {
        self.output.clear();
        self.output_at = 0;
        let count = match &self.source {
            OperationSource::Mix(_) => common.take(common.plan.pipeline),
            OperationSource::Keys(_) => common.plan.pipeline,
        };
        for _ in 0..count {
            if matches!(self.source, OperationSource::Keys(_)) && self.output.len() >= LOAD_BATCH {
                break;
            }
            let operation = match &mut self.source {
                OperationSource::Mix(random) => common.workload.next(random),
                OperationSource::Keys(keys) => match keys.next() {
                    Some(key) => WorkloadOperation::Set(key),
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

    /// Reads replies. Returns true if the complete batch has been answered.
    fn receive(
        &mut self,
        common: &RoundState<'_>,
        found: &mut ThreadResult,
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
                if check_reply(common.workload, operation, &response, &mut self.hit, found, value) {
                    self.waiting.pop_front();
                    answered += 1;
                }
                at += used;
            }
            // All replies of one read arrived together, so they have the same time stamp.
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
            // After a short read the socket is empty, and more data causes another wake-up. The end
            // of the stream does not cause one if it arrived with the data, so the loop reads again
            // after it.
            if len < room && !is_closed && self.socket.is_drained_by_short_reads() {
                return Ok(false);
            }
        }
    }
}

/// Compares a reply with its request. Returns true if the request has been answered completely.
fn check_reply(
    workload: &Workload,
    operation: WorkloadOperation,
    response: &ClientResponse<'_>,
    hit: &mut bool,
    found: &mut ThreadResult,
    expected: &mut Vec<u8>,
) -> bool {
    match (operation, response) {
        (WorkloadOperation::Get(number), ClientResponse::Value { key, value, .. }) if !*hit => {
            *hit = true;
            if workload.verify {
                expected.clear();
                workload.put_key(expected, number);
                if expected != key {
                    found.wrong(|| {
                        format!(
                            "a get of {:?} was answered with {:?}",
                            PrintableBytes(expected),
                            PrintableBytes(key)
                        )
                    });
                }
                verify(workload, number, value, found, expected);
            }
            false
        }
        (
            WorkloadOperation::Get(number),
            ClientResponse::Meta { code: [b'V', b'A'], value: Some(value), .. },
        ) => {
            if workload.verify {
                verify(workload, number, value, found, expected);
            }
            found.gets += 1;
            found.hits += 1;
            true
        }
        (
            WorkloadOperation::Get(_),
            ClientResponse::Line(b"END") | ClientResponse::Meta { code: [b'E', b'N'], .. },
        ) => {
            found.gets += 1;
            found.hits += u64::from(std::mem::take(hit));
            true
        }
        (
            WorkloadOperation::Set(_),
            ClientResponse::Line(b"STORED") | ClientResponse::Meta { code: [b'H', b'D'], .. },
        ) => {
            found.sets += 1;
            true
        }
        _ => {
            *hit = false;
            found.wrong(|| match response {
                ClientResponse::Refused(refusal) => String::from_utf8_lossy(refusal.line).into_owned(),
                other => format!("{operation:?} was answered by {other:?}"),
            });
            true
        }
    }
}

fn verify(workload: &Workload, number: u64, value: &[u8], found: &mut ThreadResult, expected: &mut Vec<u8>) {
    expected.clear();
    workload.put_value(expected, number);
    if expected != value {
        found.wrong(|| format!("key {number} has another value than was stored"));
    }
}

/// Formats bytes as text for a message.
struct PrintableBytes<'a>(&'a [u8]);

impl std::fmt::Debug for PrintableBytes<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::super::toy_server::{self, ServerFault};
    use super::super::workload::{CommandSet, KeyDistribution, KeyFormat, KeyPicker, ValueKind, ValueSize};
    use super::*;

    const KEYS: u64 = 50;
    const PLAN: LoadPlan =
        LoadPlan { connections: 5, threads: 2, pipeline: 3, requests: 1000, duration: None };

    fn workload(protocol: CommandSet) -> Workload {
        Workload {
            keys: KEYS,
            records: None,
            shape: KeyFormat { prefix: "k".into(), width: 4 },
            value_size: ValueSize::Uniform(0, 300),
            value_kind: ValueKind::Random,
            picker: KeyPicker::new(KeyDistribution::Zipf(0.9), KEYS),
            ratio: "3:1".parse().unwrap(),
            protocol,
            seed: 5,
            verify: true,
        }
    }

    fn target(server: &Address) -> LoadTarget {
        LoadTarget { name: server.to_string(), address: server.clone(), tls: None, login: None, pid: None }
    }

    fn store(server: &Address, workload: &Workload) {
        let plan = LoadPlan { requests: KEYS, ..PLAN };
        let round = run(&target(server), workload, &plan, true, "").unwrap();
        assert_eq!((round.sets, round.gets, round.errors), (KEYS, 0, 0));
    }

    fn measure(fault: ServerFault, protocol: CommandSet, plan: &LoadPlan) -> Result<LoadRound, String> {
        let (server, workload) = (toy_server::start(fault), workload(protocol));
        store(&server, &workload);
        run(&target(&server), &workload, plan, false, "").map_err(|error| error.to_string())
    }

    #[test]
    fn requests_are_counted_and_timed_once() {
        for fault in [ServerFault::Good, ServerFault::Hesitant] {
            for protocol in [CommandSet::Text, CommandSet::Meta] {
                let round = measure(fault, protocol, &PLAN).unwrap();
                assert_eq!((round.requests(), round.errors), (1000, 0), "{fault:?} {protocol:?}");
                assert_eq!((round.hits, round.latencies.len()), (round.gets, 1000));
                // About three of four requests are gets.
                assert!((680..=820).contains(&round.gets), "{}", round.gets);
                assert_eq!(round.samples.last().map(|sample| sample.1), Some(1000));
            }
        }
    }

    #[test]
    fn unstored_key_is_a_miss() {
        let (server, workload) = (toy_server::start(ServerFault::Good), workload(CommandSet::Text));
        let only_gets = Workload { ratio: "1:0".parse().unwrap(), ..workload };
        let round = run(&target(&server), &only_gets, &PLAN, false, "").unwrap();
        assert_eq!((round.gets, round.hits, round.errors), (1000, 0, 0));
    }

    #[test]
    fn same_seed_generates_the_same_load() {
        let counts = || {
            // The test uses one thread and one connection, because the distribution of requests
            // over several connections depends on timing.
            let plan = LoadPlan { connections: 1, threads: 1, ..PLAN };
            let round = measure(ServerFault::Good, CommandSet::Text, &plan).unwrap();
            (round.gets, round.sets)
        };
        assert_eq!(counts(), counts());
    }

    #[test]
    fn timed_run_ends_and_counts_its_requests() {
        let plan = LoadPlan { requests: u64::MAX, duration: Some(Duration::from_millis(30)), ..PLAN };
        let round = measure(ServerFault::Good, CommandSet::Meta, &plan).unwrap();
        assert_eq!(round.requests(), round.latencies.len());
        assert!(round.elapsed >= Duration::from_millis(30) && round.requests() > 0);
    }

    #[test]
    fn wrong_replies_are_counted_and_the_first_reported() {
        for (fault, protocol, first) in [
            (ServerFault::Lying, CommandSet::Text, "has another value than was stored"),
            (ServerFault::Lying, CommandSet::Meta, "has another value than was stored"),
            (ServerFault::Confused, CommandSet::Text, "was answered with \"another\""),
            (ServerFault::Refusing, CommandSet::Text, "SERVER_ERROR not today"),
            (ServerFault::Refusing, CommandSet::Meta, "SERVER_ERROR not today"),
        ] {
            let round = measure(fault, protocol, &PLAN).unwrap();
            // One key in 300 has an empty value, which cannot be taken for another value. There are
            // about 50 keys.
            assert!(round.errors >= 500, "{fault:?} {protocol:?}: {}", round.errors);
            assert_eq!(round.latencies.len(), 1000);
            assert!(round.first_error.as_ref().unwrap().contains(first), "{:?}", round.first_error);
        }
    }

    #[test]
    fn closed_connection_or_extra_reply_ends_the_run() {
        let plan = LoadPlan { connections: 1, threads: 1, pipeline: 1, ..PLAN };
        for protocol in [CommandSet::Text, CommandSet::Meta] {
            let failure = measure(ServerFault::Leaving, protocol, &plan).unwrap_err();
            assert!(
                failure.contains("127.0.0.1:") && failure.ends_with("the server closed the connection"),
                "{failure}"
            );
        }
        let failure = measure(ServerFault::Chatty, CommandSet::Meta, &plan);
        match failure {
            // The second reply may arrive while the next get or set waits for its reply.
            Ok(round) => assert!(round.errors > 0),
            Err(failure) => assert!(failure.ends_with("a reply that nobody asked for"), "{failure}"),
        }
    }

    #[test]
    fn unreachable_server_is_named() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        let failure = run(&target(&address.parse().unwrap()), &workload(CommandSet::Text), &PLAN, false, "")
            .unwrap_err();
        assert!(failure.to_string().starts_with(&format!("cannot connect to {address}: ")), "{failure}");
    }
}
