//! The transcripts of `tests/transcripts/memcached`: behaviour as data. Their format is described
//! in `tests/transcripts/README.md`.
//!
//! A file without clock steps runs over a socket against a live server, with its input at once and
//! byte by byte. A file with clock steps runs in process, on a clock that the test moves.

#[cfg(feature = "cassandra")]
mod cassandra;
mod transcript;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;
use todana::{Clock, Database, ManualClock, WorkerCounters};
use todana_core::{Reply, UnixSeconds};
use todana_engine::{MemHash, MemHashOptions};
use todana_protocol::memcached::{
    MemcachedCommand, MemcachedDecoder, MemcachedLimits, MemcachedStep, encode,
};
use todana_server::{AuthenticationMode, Server, ServerHandle, ServerOptions};
use transcript::{transcripts, unescape};

/// The users of transcripts that require logins.
const USERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/transcripts/users");

/// An arbitrary time: 2023-11-14.
const START: u64 = 1_700_000_000;

/// One step of a transcript.
#[derive(Debug)]
struct Block {
    line: usize,
    input: Vec<Piece>,
    output: Vec<Piece>,
    advance_s: u64,
    closes: bool,
    /// A known defect: the step is only reported, with this description, and not played.
    open: Option<String>,
}

/// A piece of input or output.
#[derive(Clone, Debug, PartialEq)]
enum Piece {
    Bytes(Vec<u8>),
    /// A number that is captured at its first occurrence in an output.
    Number(String),
    /// Lines up to `END` that contain these lines in this order.
    Among(Vec<Vec<Piece>>),
}

#[derive(Debug, Default)]
struct Transcript {
    options: ServerOptions,
    blocks: Vec<Block>,
}

fn pieces(text: &str, place: &str) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        rest = &rest[first.len_utf8()..];
        if first == '$' {
            let len = rest.find(|c: char| !c.is_ascii_lowercase()).unwrap_or(rest.len());
            assert!(len > 0, "{place}: $ without a name; write \\x24");
            pieces.push(Piece::Bytes(std::mem::take(&mut bytes)));
            pieces.push(Piece::Number(rest[..len].to_string()));
            rest = &rest[len..];
            continue;
        }
        match first {
            '\\' => rest = unescape(rest, place, &mut bytes),
            _ => bytes.extend_from_slice(first.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    pieces.push(Piece::Bytes(bytes));
    pieces
}

fn parse(name: &str, text: &str) -> Transcript {
    let mut transcript = Transcript::default();
    transcript.options.listen.port = 0;
    let mut block: Option<Block> = None;
    for (index, line) in text.lines().enumerate() {
        let place = format!("{name}:{}", index + 1);
        let (kind, rest) = line.split_at(line.len().min(2));
        let finish = |block: &mut Option<Block>, transcript: &mut Transcript| {
            transcript.blocks.extend(block.take());
        };
        let fresh = || Block {
            line: index + 1,
            input: vec![],
            output: vec![],
            advance_s: 0,
            closes: false,
            open: None,
        };
        match kind {
            "" | "# " | "#" => finish(&mut block, &mut transcript),
            "> " => {
                if block.as_ref().is_some_and(|block| !block.output.is_empty() || block.closes) {
                    finish(&mut block, &mut transcript);
                }
                block.get_or_insert_with(fresh).input.extend(pieces(rest, &place));
            }
            "< " => {
                let block = block.as_mut().unwrap_or_else(|| panic!("{place}: output without input"));
                block.output.extend(pieces(rest, &place));
            }
            "~ " => {
                let block = block.as_mut().unwrap_or_else(|| panic!("{place}: output without input"));
                let line = pieces(&format!("{rest}\\r\\n"), &place);
                match block.output.last_mut() {
                    Some(Piece::Among(lines)) => lines.push(line),
                    _ => block.output.push(Piece::Among(vec![line])),
                }
            }
            "? " => {
                finish(&mut block, &mut transcript);
                block = Some(Block { open: Some(rest.to_string()), ..fresh() });
            }
            "! " => block.as_mut().unwrap_or_else(|| panic!("{place}: nothing was sent")).closes = true,
            "@ " => {
                finish(&mut block, &mut transcript);
                let seconds = rest.strip_prefix('+').and_then(|rest| rest.strip_suffix('s'));
                let advance_s =
                    seconds.and_then(|s| s.parse().ok()).unwrap_or_else(|| panic!("{place}: @ +Ns"));
                transcript.blocks.push(Block { advance_s, ..fresh() });
            }
            "= " => match rest {
                "-F" => transcript.options.limits.flush_allowed = false,
                "-A" => transcript.options.limits.shutdown_allowed = true,
                "-M" => transcript.options.memory.refuse_when_full = true,
                "-o negative_exptime=sliding" => transcript.options.protocols.negative_is_sliding = true,
                "-o debug_commands" => transcript.options.protocols.debug_commands = true,
                "-o emulate_full" => transcript.options.memory.emulate_full = true,
                "-X" => transcript.options.limits.dump_allowed = false,
                "-W" => transcript.options.limits.watch_allowed = false,
                "-D" => transcript.options.observation.prefix_delimiter = Some(b':'),
                "-o track_sizes" => transcript.options.observation.track_sizes = true,
                "-o no_lru_crawler" => transcript.options.observation.crawler_enabled = false,
                "-Y" => transcript.options.protocols.authentication = AuthenticationMode::Text(USERS.into()),
                other => panic!("{place}: unknown option {other}"),
            },
            _ => panic!("{place}: what is {line:?}?"),
        }
    }
    transcript.blocks.extend(block);
    transcript
}

/// The result of a comparison of received and expected bytes.
enum Match {
    Whole(usize),
    Partial,
    No,
}

fn compare(expected: &[Piece], got: &[u8], names: &mut BTreeMap<String, String>) -> Match {
    let mut at = 0;
    for piece in expected {
        match piece {
            Piece::Bytes(bytes) => {
                let there = &got[at..got.len().min(at + bytes.len())];
                if there != &bytes[..there.len()] {
                    return Match::No;
                }
                if there.len() < bytes.len() {
                    return Match::Partial;
                }
                at += bytes.len();
            }
            Piece::Number(name) => {
                let len = got[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
                if at + len == got.len() {
                    return Match::Partial;
                }
                let number = String::from_utf8_lossy(&got[at..at + len]).into_owned();
                if len == 0 || names.get(name).is_some_and(|known| *known != number) {
                    return Match::No;
                }
                names.insert(name.clone(), number);
                at += len;
            }
            Piece::Among(lines) => {
                let mut lines = lines.iter().peekable();
                loop {
                    let Some(len) = got[at..].iter().position(|&byte| byte == b'\n').map(|at| at + 1) else {
                        return Match::Partial;
                    };
                    let line = &got[at..at + len];
                    at += len;
                    if line == b"END\r\n" {
                        break;
                    }
                    // A line that does not match must not define its numbers.
                    let mut tried = names.clone();
                    let fits = lines.peek().is_some_and(|expected| {
                        matches!(compare(expected, line, &mut tried), Match::Whole(whole) if whole == len)
                    });
                    if fits {
                        *names = tried;
                        lines.next();
                    }
                }
                if lines.next().is_some() {
                    return Match::No;
                }
            }
        }
    }
    Match::Whole(at)
}

fn resolve(input: &[Piece], names: &BTreeMap<String, String>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for piece in input {
        match piece {
            Piece::Bytes(more) => bytes.extend_from_slice(more),
            Piece::Number(name) => bytes.extend_from_slice(names[name].as_bytes()),
            Piece::Among(_) => unreachable!("only an output has lines among others"),
        }
    }
    bytes
}

/// A peer that answers.
trait Party {
    fn send(&mut self, bytes: &[u8]);
    /// Returns more output, or nothing if no more will come because the peer has closed or is
    /// silent for too long.
    fn receive(&mut self) -> Vec<u8>;
    fn is_closed(&mut self) -> bool;
    fn advance(&mut self, seconds: u64);
}

struct Live {
    stream: TcpStream,
}

impl Party for Live {
    fn send(&mut self, bytes: &[u8]) {
        // The server may have closed already, which the transcript then expects.
        let _ = self.stream.write_all(bytes);
    }

    fn receive(&mut self) -> Vec<u8> {
        let mut buffer = vec![0; 64 << 10];
        let len = self.stream.read(&mut buffer).unwrap_or(0);
        buffer.truncate(len);
        buffer
    }

    fn is_closed(&mut self) -> bool {
        self.receive().is_empty()
    }

    fn advance(&mut self, _: u64) {
        unreachable!("transcripts with clock steps run in process")
    }
}

struct InProcess {
    dialect: MemcachedDecoder,
    limits: MemcachedLimits,
    database: Database,
    worker_counters: Arc<WorkerCounters>,
    clock: Arc<ManualClock>,
    unread: Vec<u8>,
    output: Vec<u8>,
    closed: bool,
}

impl InProcess {
    fn new(options: &ServerOptions) -> InProcess {
        let ServerOptions { memory, protocols, limits, .. } = options;
        let needs_server = limits.shutdown_allowed
            || memory.refuse_when_full
            || protocols.debug_commands
            || memory.emulate_full;
        assert!(!needs_server, "only -F and sliding expiry go with a clock");
        let engine = MemHash::new(MemHashOptions::default()).unwrap();
        let clock = Arc::new(ManualClock::new(UnixSeconds(START)));
        let database = Database::new(Box::new(engine), Arc::clone(&clock) as Arc<dyn Clock>);
        InProcess {
            dialect: MemcachedDecoder::default(),
            limits: MemcachedLimits {
                flush_allowed: options.limits.flush_allowed,
                negative_is_sliding: options.protocols.negative_is_sliding,
                ..MemcachedLimits::default()
            },
            worker_counters: database.worker_counters(),
            database,
            clock,
            unread: Vec::new(),
            output: Vec::new(),
            closed: false,
        }
    }
}

impl Party for InProcess {
    fn send(&mut self, bytes: &[u8]) {
        self.unread.extend_from_slice(bytes);
        let mut scratch = Vec::new();
        let mut at = 0;
        while !self.closed {
            match self.dialect.decode(&self.limits, &self.unread[at..], &mut scratch) {
                MemcachedStep::Request { consumed, request } => {
                    at += consumed;
                    let output = &mut self.output;
                    let mut reply = |reply: Reply<'_>| encode(&request.form, &reply, output);
                    match &request.command {
                        MemcachedCommand::Operation(operation) => {
                            self.database.execute(&self.worker_counters, operation, &mut reply);
                        }
                        MemcachedCommand::Quit => self.closed = true,
                        MemcachedCommand::Faulty { message } => reply(Reply::Faulty(message)),
                        _ => reply(Reply::Unknown),
                    }
                }
                MemcachedStep::NeedMore { consumed, .. } => {
                    at += consumed;
                    break;
                }
                MemcachedStep::Block { .. } => unreachable!("no length is long here"),
                MemcachedStep::Close => self.closed = true,
            }
        }
        self.unread.drain(..at);
    }

    fn receive(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    fn is_closed(&mut self) -> bool {
        self.closed
    }

    fn advance(&mut self, seconds: u64) {
        self.clock.advance(seconds);
    }
}

/// Formats pieces as a transcript writes them.
fn shown(pieces: &[Piece]) -> String {
    let mut text = String::new();
    for piece in pieces {
        // A write to a String cannot fail.
        let _ = match piece {
            Piece::Bytes(bytes) => write!(text, "{}", bytes.escape_ascii()),
            Piece::Number(name) => write!(text, "${name}"),
            Piece::Among(lines) => {
                let lines: Vec<String> = lines.iter().map(|line| shown(line)).collect();
                write!(text, "... {} ... END\\r\\n", lines.join(" ... "))
            }
        };
    }
    text
}

/// Plays a transcript. Fails with a description of the first difference.
fn play(name: &str, transcript: &Transcript, party: &mut dyn Party, by_bytes: bool) -> Result<(), String> {
    let mut names = BTreeMap::new();
    let mut got = Vec::new();
    for block in &transcript.blocks {
        if block.open.is_some() {
            continue;
        }
        if block.advance_s > 0 {
            party.advance(block.advance_s);
            continue;
        }
        let input = resolve(&block.input, &names);
        let step = if by_bytes && input.len() < 3000 { 1 } else { input.len().max(1) };
        input.chunks(step).for_each(|part| party.send(part));
        loop {
            match compare(&block.output, &got, &mut names) {
                Match::Whole(len) => {
                    got.drain(..len);
                    break;
                }
                outcome => {
                    let more = if matches!(outcome, Match::Partial) { party.receive() } else { Vec::new() };
                    if more.is_empty() {
                        let expected = shown(&block.output);
                        let short = |text: String| text.chars().take(400).collect::<String>();
                        return Err(format!(
                            "{name}:{}: sent {}\n  expected {}\n  got      {}",
                            block.line,
                            short(input.escape_ascii().to_string()),
                            short(expected),
                            short(got.escape_ascii().to_string())
                        ));
                    }
                    got.extend(more);
                }
            }
        }
        if block.closes && !(got.is_empty() && party.is_closed()) {
            return Err(format!("{name}:{}: the connection should be closed", block.line));
        }
    }
    let ends_open =
        transcript.blocks.iter().rfind(|block| block.open.is_none()).is_some_and(|block| !block.closes);
    if ends_open {
        // Unexpected output would come before this reply, which belongs to no other request.
        const END: &[u8] = b"EN kend-of-the-transcript\r\n";
        party.send(b"mg end-of-the-transcript k\r\n");
        while got.len() < END.len() {
            let more = party.receive();
            if more.is_empty() {
                break;
            }
            got.extend(more);
        }
        if got != END {
            return Err(format!("{name}: more came at the end: {}", got.escape_ascii()));
        }
    }
    Ok(())
}

fn serve(
    options: ServerOptions,
) -> (std::net::SocketAddr, ServerHandle, std::thread::JoinHandle<std::io::Result<()>>) {
    let server = Server::bind(options).unwrap();
    let (address, handle) = (server.tcp_addresses()[0], server.handle());
    (address, handle, std::thread::spawn(move || server.run()))
}

#[test]
fn every_transcript_holds() {
    let transcripts = transcripts("memcached");
    let mut failures = Vec::new();
    let (mut blocks, mut open) = (0, 0);
    for (name, text) in &transcripts {
        let transcript = parse(name, text);
        blocks += transcript.blocks.len();
        for block in &transcript.blocks {
            if let Some(defect) = &block.open {
                open += 1;
                println!("known open: {name}:{}: {defect}", block.line);
            }
        }
        let has_clock = transcript.blocks.iter().any(|block| block.advance_s > 0);
        for by_bytes in [false, true] {
            let outcome = if has_clock {
                play(name, &transcript, &mut InProcess::new(&transcript.options), by_bytes)
            } else {
                let (address, handle, thread) = serve(transcript.options.clone());
                let stream = TcpStream::connect(address).unwrap();
                stream.set_nodelay(true).unwrap();
                stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
                let outcome = play(name, &transcript, &mut Live { stream }, by_bytes);
                handle.stop();
                thread.join().unwrap().unwrap();
                outcome
            };
            if let Err(failure) = outcome {
                failures.push(format!("{}{failure}", if by_bytes { "byte by byte: " } else { "" }));
                break;
            }
        }
    }
    println!("{} transcripts, {blocks} steps, {open} of them known open", transcripts.len());
    assert!(transcripts.len() >= 30, "the transcripts are there");
    transcript::none_fails(&failures, transcripts.len());
}

/// Returns true if a transcript, played in process, holds.
fn holds(text: &str) -> bool {
    let transcript = parse("a text", text);
    let outcomes = [false, true]
        .map(|by_bytes| play("", &transcript, &mut InProcess::new(&transcript.options), by_bytes));
    assert_eq!(outcomes[0].is_ok(), outcomes[1].is_ok(), "{outcomes:?}");
    outcomes[0].is_ok()
}

#[test]
fn a_wrong_transcript_does_not_hold() {
    let set = "> set k 5 0 2\\r\\nab\\r\\n\n";
    for (right, wrong) in [
        // A byte that differs, that is missing, that is superfluous, or that comes a step late.
        ("< STORED\\r\\n", "< STOREd\\r\\n"),
        ("< STORED\\r\\n", ""),
        ("< STORED\\r\\n", "< STORED\\r\\n\\r\\n"),
        ("< STORED\\r\\n", "< STORED\\r"),
        ("< STORED\\r\\n\n> get x\\r\\n\n< END\\r\\n", "> get x\\r\\n\n< END\\r\\n"),
        // A different number, and no number.
        (
            "> get k k\\r\\n\n< STORED\\r\\nVALUE k $a 2\\r\\nab\\r\\nVALUE k $a 2\\r\\nab\\r\\nEND\\r\\n",
            "> get k k\\r\\n\n< STORED\\r\\nVALUE k $a 2\\r\\nab\\r\\nVALUE k 5 $a\\r\\nab\\r\\nEND\\r\\n",
        ),
        ("< $aSTORED\\r\\n", "< $aSTORED\\r\\n"),
        // A connection that should be closed and is not, and the opposite.
        ("> quit\\r\\n\n< STORED\\r\\n\n! closed", "< STORED\\r\\n\n! closed"),
        ("> quit\\r\\n\n< STORED\\r\\n\n! closed", "> quit\\r\\n\n< STORED\\r\\n"),
        // A clock that has not moved far enough.
        (
            "> touch k 5\\r\\n\n< STORED\\r\\nTOUCHED\\r\\n\n@ +5s\n> get k\\r\\n\n< END\\r\\n",
            "> touch k 5\\r\\n\n< STORED\\r\\nTOUCHED\\r\\n\n@ +4s\n> get k\\r\\n\n< END\\r\\n",
        ),
        // A line that is not among the lines, lines in another order, and a missing end.
        (
            "> get k k\\r\\n\n< STORED\\r\\n\n~ VALUE k $f 2\n~ VALUE k $f 2\n~ ab",
            "> get k k\\r\\n\n< STORED\\r\\n\n~ VALUE k $f 2\n~ VALUE k $f 2\n~ VALUE k $f 2",
        ),
        ("> get k\\r\\n\n< STORED\\r\\n\n~ ab", "> get k\\r\\n\n< STORED\\r\\n\n~ a"),
        (
            "> get k\\r\\n\n< STORED\\r\\n\n~ VALUE k 5 2\n~ ab",
            "> get k\\r\\n\n< STORED\\r\\n\n~ ab\n~ VALUE k 5 2",
        ),
        ("> get k\\r\\n\n< STORED\\r\\n\n~ ab", "~ STORED"),
    ] {
        if right != wrong {
            assert!(holds(&format!("{set}{right}\n")), "{right}");
        }
        assert!(!holds(&format!("{set}{wrong}\n")), "{wrong}");
    }
}

#[test]
fn wrong_transcript_fails_on_a_live_server() {
    let options = parse("", "").options;
    let (address, handle, thread) = serve(options);
    let play = |text: &str| {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        play("", &parse("", text), &mut Live { stream }, false)
    };
    play("> mn\\r\\n\n< MN\\r\\n\n> quit\\r\\n\n! closed\n").unwrap();
    play("> mn\\r\\n\n< mn\\r\\n\n").unwrap_err();
    play("> mn\\r\\nmn\\r\\n\n< MN\\r\\n\n").unwrap_err();
    play("> mn\\r\\nquit\\r\\n\n< MN\\r\\nMN\\r\\n\n").unwrap_err();
    play("> mn\\r\\nquit\\r\\n\n< MN\\r\\n\n").unwrap_err();
    handle.stop();
    thread.join().unwrap().unwrap();
}

/// A transcript with a part that no reader uses or that has no meaning is refused.
#[test]
fn malformed_transcript_is_refused() {
    for text in ["get k\n", "< STORED\\r\\n\n", "! closed\n", "@ 5\n", "= -Q\n", "> \\q\n", "> $\n", "~ a\n"]
    {
        assert!(std::panic::catch_unwind(|| parse("", text)).is_err(), "{text}");
    }
}

/// Transcripts that do not hold on a cluster, with the reason.
#[cfg(feature = "cassandra")]
const NOT_ON_A_CLUSTER: &[(&str, &str)] = &[
    ("debugtime.txt", "the cluster has its own clock"),
    ("emulate_full.txt", "a cluster has no memory limit"),
    ("framing_long_gat.txt", "each of 20,000 touches of one key waits for the cluster"),
    ("lru_crawler.txt", "the records of a cluster are not listed"),
    ("me.txt", "reads do not store access times"),
    ("memory_full.txt", "a cluster has no memory limit"),
    ("ms_compare.txt", "a version has at most 58 bits"),
    ("numbers.txt", "a version has at most 58 bits"),
    ("stats.txt", "the records of a cluster are not counted by size class"),
    ("stats_cachedump.txt", "the records of a cluster are not listed"),
    ("stats_general.txt", "the records of a cluster are not counted"),
    ("stats_sizes.txt", "the records of a cluster are not counted by size class"),
    ("stats_slabs.txt", "the records of a cluster are not counted by size class"),
    ("stats_slabs_commands.txt", "the records of a cluster are not counted by size class"),
];

#[test]
#[cfg(feature = "cassandra")]
fn transcripts_hold_on_a_cluster() {
    let mut failures = Vec::new();
    let mut played = 0;
    for (file, text) in &transcripts("memcached") {
        let mut transcript = parse(file, text);
        let needs_clock = transcript.blocks.iter().any(|block| block.advance_s > 0);
        if needs_clock || NOT_ON_A_CLUSTER.iter().any(|(other, _)| other == file) {
            continue;
        }
        played += 1;
        let Some(name) = cassandra::empty("todana_transcripts", "") else { return };
        transcript.options.databases.database = Some(name);
        let (address, handle, thread) = serve(transcript.options.clone());
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        if let Err(failure) = play(file, &transcript, &mut Live { stream }, false) {
            failures.push(failure);
        }
        handle.stop();
        thread.join().unwrap().unwrap();
    }
    println!("{played} transcripts on a cluster");
    transcript::none_fails(&failures, played);
}
