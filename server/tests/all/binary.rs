//! The transcripts of `tests/transcripts/memcached-binary`: requests and expected replies, written
//! field by field. Their format is described in `tests/transcripts/memcached-binary/README.md`.
//!
//! Each file runs twice against a live server over a socket: with its input at once, and byte by
//! byte.

use crate::{running, transcript};

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;
use todana_server::{AuthenticationMode, ListenOptions, MemoryOptions, Server, ServerOptions};
use transcript::{bytes, transcripts};

const REQUEST: u8 = 0x80;
const RESPONSE: u8 = 0x81;
const HEADER_LEN: usize = 24;

/// The users that may log in where a transcript requires logins.
const PASSWORDS: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/transcripts/memcached-binary/passwords");

const OPCODES: [(&str, u8); 36] = [
    ("get", 0x00),
    ("set", 0x01),
    ("add", 0x02),
    ("replace", 0x03),
    ("delete", 0x04),
    ("incr", 0x05),
    ("decr", 0x06),
    ("quit", 0x07),
    ("flush", 0x08),
    ("getq", 0x09),
    ("noop", 0x0a),
    ("version", 0x0b),
    ("getk", 0x0c),
    ("getkq", 0x0d),
    ("append", 0x0e),
    ("prepend", 0x0f),
    ("stat", 0x10),
    ("setq", 0x11),
    ("addq", 0x12),
    ("replaceq", 0x13),
    ("deleteq", 0x14),
    ("incrq", 0x15),
    ("decrq", 0x16),
    ("quitq", 0x17),
    ("flushq", 0x18),
    ("appendq", 0x19),
    ("prependq", 0x1a),
    ("verbosity", 0x1b),
    ("touch", 0x1c),
    ("gat", 0x1d),
    ("gatq", 0x1e),
    ("sasl_list", 0x20),
    ("sasl_auth", 0x21),
    ("sasl_step", 0x22),
    ("gatk", 0x23),
    ("gatkq", 0x24),
];

/// The texts in the bodies of errors.
const ERRORS: [(u16, &str); 9] = [
    (0x01, "Not found"),
    (0x02, "Data exists for key."),
    (0x03, "Too large."),
    (0x04, "Invalid arguments"),
    (0x05, "Not stored."),
    (0x06, "Non-numeric server-side value for incr or decr"),
    (0x20, "Auth failure."),
    (0x81, "Unknown command"),
    (0x82, "Out of memory"),
];

/// The version in a packet.
#[derive(Clone, Debug)]
enum Cas {
    Number(u64),
    /// The number is captured at its first occurrence in a response, and is never 0.
    Named(String),
}

/// A packet as a line describes it.
#[derive(Clone, Debug)]
struct Packet {
    opcode: u8,
    status: u16,
    cas: Cas,
    opaque: u32,
    extras: Vec<u8>,
    key: Vec<u8>,
    value: Vec<u8>,
    key_len: Option<u16>,
    extras_len: Option<u8>,
    body_len: Option<u32>,
}

/// One step: the packets to send, and the expected responses.
#[derive(Clone, Debug, Default)]
struct Step {
    line: usize,
    requests: Vec<Sent>,
    responses: Vec<Packet>,
    closes: bool,
}

#[derive(Clone, Debug)]
enum Sent {
    Packet(Packet),
    Raw(Vec<u8>),
}

fn number(text: &str, place: &str) -> u64 {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.unwrap_or_else(|_| panic!("{place}: {text:?} is no number"))
}

impl Packet {
    fn new(opcode: u8) -> Packet {
        Packet {
            opcode,
            status: 0,
            cas: Cas::Number(0),
            opaque: 0,
            extras: Vec::new(),
            key: Vec::new(),
            value: Vec::new(),
            key_len: None,
            extras_len: None,
            body_len: None,
        }
    }

    fn parse(line: &str, place: &str) -> Packet {
        let mut words = line.split_ascii_whitespace();
        let name = words.next().unwrap_or_else(|| panic!("{place}: no packet"));
        let known = OPCODES.iter().find(|(known, _)| *known == name).map(|(_, opcode)| *opcode);
        let mut packet = Packet::new(known.unwrap_or_else(|| number(name, place) as u8));
        for word in words {
            let (field, value) = word.split_once('=').unwrap_or_else(|| panic!("{place}: FIELD=VALUE"));
            let number = || number(value, place);
            match field {
                "key" => packet.key = bytes(value, place),
                "value" => packet.value = bytes(value, place),
                // The numbers of the extras are encoded in their order in the line.
                "flags" | "expiry" => packet.extras.extend((number() as u32).to_be_bytes()),
                "delta" | "initial" => packet.extras.extend(number().to_be_bytes()),
                "extras" => packet.extras.extend(bytes(value, place)),
                "number" => packet.value = number().to_be_bytes().to_vec(),
                "cas" => {
                    packet.cas = match value.strip_prefix('$') {
                        Some(name) => Cas::Named(name.to_string()),
                        None => Cas::Number(number()),
                    }
                }
                "status" => packet.status = number() as u16,
                "error" => {
                    packet.status = number() as u16;
                    let text = ERRORS.iter().find(|(status, _)| *status == packet.status);
                    packet.value = text.unwrap_or_else(|| panic!("{place}: no such error")).1.into();
                }
                "opaque" => packet.opaque = number() as u32,
                "key_len" => packet.key_len = Some(number() as u16),
                "extras_len" => packet.extras_len = Some(number() as u8),
                "body_len" => packet.body_len = Some(number() as u32),
                other => panic!("{place}: unknown field {other:?}"),
            }
        }
        packet
    }

    fn bytes(&self, magic: u8, cas: u64) -> Vec<u8> {
        let body_len = self.extras.len() + self.key.len() + self.value.len();
        let mut bytes = vec![magic, self.opcode];
        bytes.extend(self.key_len.unwrap_or(self.key.len() as u16).to_be_bytes());
        bytes.extend([self.extras_len.unwrap_or(self.extras.len() as u8), 0]);
        bytes.extend(self.status.to_be_bytes());
        bytes.extend(self.body_len.unwrap_or(body_len as u32).to_be_bytes());
        bytes.extend(self.opaque.to_be_bytes());
        bytes.extend(cas.to_be_bytes());
        bytes.extend_from_slice(&self.extras);
        bytes.extend_from_slice(&self.key);
        bytes.extend_from_slice(&self.value);
        bytes
    }
}

fn parse(name: &str, text: &str) -> (ServerOptions, Vec<Step>) {
    let mut options = ServerOptions {
        listen: ListenOptions { port: 0, ..running::options().listen },
        ..ServerOptions::default()
    };
    let mut steps: Vec<Step> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let place = format!("{name}:{}", index + 1);
        let (kind, rest) = line.split_at(line.len().min(2));
        match kind {
            "" | "# " | "#" => {}
            "> " => {
                if steps.last().is_none_or(|step| !step.responses.is_empty() || step.closes) {
                    steps.push(Step { line: index + 1, ..Step::default() });
                }
                let sent = match rest.strip_prefix("raw ") {
                    Some(raw) => Sent::Raw(bytes(raw, &place)),
                    None => Sent::Packet(Packet::parse(rest, &place)),
                };
                steps.last_mut().expect("pushed above").requests.push(sent);
            }
            "< " => {
                let step = steps.last_mut().unwrap_or_else(|| panic!("{place}: nothing was sent"));
                step.responses.push(Packet::parse(rest, &place));
            }
            "! " => steps.last_mut().unwrap_or_else(|| panic!("{place}: nothing was sent")).closes = true,
            "= " => match rest {
                "-F" => options.limits.flush_allowed = false,
                "-S" => options.protocols.authentication = AuthenticationMode::Sasl(PASSWORDS.into()),
                other => panic!("{place}: unknown option {other}"),
            },
            _ => panic!("{place}: what is {line:?}?"),
        }
    }
    (options, steps)
}

/// One connection of a client.
struct Client {
    stream: TcpStream,
    unread: Vec<u8>,
}

impl Client {
    fn connect(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        Client { stream, unread: Vec::new() }
    }

    /// Returns the next response, or the received part of it if the connection ends.
    fn receive(&mut self) -> Vec<u8> {
        loop {
            if let Some(header) = self.unread.get(..HEADER_LEN) {
                let body_len = u32::from_be_bytes([header[8], header[9], header[10], header[11]]) as usize;
                if self.unread.len() >= HEADER_LEN + body_len {
                    return self.unread.drain(..HEADER_LEN + body_len).collect();
                }
            }
            let mut buffer = vec![0; 64 << 10];
            match self.stream.read(&mut buffer) {
                Ok(len @ 1..) => self.unread.extend_from_slice(&buffer[..len]),
                Ok(0) | Err(_) => return std::mem::take(&mut self.unread),
            }
        }
    }

    fn is_closed(&mut self) -> bool {
        // If the server closes with unread input, the client sees a reset.
        let is_end = |error: std::io::Error| error.kind() == std::io::ErrorKind::ConnectionReset;
        self.unread.is_empty() && self.stream.read(&mut [0]).map_or_else(is_end, |len| len == 0)
    }
}

/// Plays a transcript. Fails with a description of the first difference.
fn play(steps: &[Step], address: SocketAddr, by_bytes: bool) -> Result<(), String> {
    let mut names: BTreeMap<String, u64> = BTreeMap::new();
    let mut client = Client::connect(address);
    for step in steps {
        let mut input = Vec::new();
        for sent in &step.requests {
            match sent {
                Sent::Raw(raw) => input.extend_from_slice(raw),
                Sent::Packet(packet) => {
                    let cas = match &packet.cas {
                        Cas::Number(cas) => *cas,
                        Cas::Named(name) => names[name],
                    };
                    input.extend(packet.bytes(REQUEST, cas));
                }
            }
        }
        let piece = if by_bytes && input.len() < 3000 { 1 } else { input.len().max(1) };
        // A malformed packet may be refused, and the connection closed, before its last byte is
        // sent.
        input.chunks(piece).for_each(|piece| drop(client.stream.write_all(piece)));
        for expected in &step.responses {
            let got = client.receive();
            let shown =
                got.get(16..HEADER_LEN).and_then(|bytes| bytes.try_into().ok()).map(u64::from_be_bytes);
            let cas = match &expected.cas {
                Cas::Number(cas) => *cas,
                Cas::Named(name) => match (names.get(name), shown) {
                    (Some(known), _) => *known,
                    (None, Some(shown)) if shown != 0 => {
                        names.insert(name.clone(), shown);
                        shown
                    }
                    _ => u64::MAX,
                },
            };
            let expected = expected.bytes(RESPONSE, cas);
            if got != expected {
                let short =
                    |bytes: &[u8]| bytes.escape_ascii().to_string().chars().take(400).collect::<String>();
                return Err(format!(
                    "{}: expected {}\n  got      {}",
                    step.line,
                    short(&expected),
                    short(&got)
                ));
            }
        }
        if step.closes {
            if !client.is_closed() {
                return Err(format!("{}: the connection should be closed", step.line));
            }
            client = Client::connect(address);
        }
    }
    // Unexpected replies would come before this one.
    let noop = Packet { opaque: 0x7ead_beef, ..Packet::new(0x0a) };
    client.stream.write_all(&noop.bytes(REQUEST, 0)).unwrap();
    let last = client.receive();
    if last == noop.bytes(RESPONSE, 0) {
        Ok(())
    } else {
        Err(format!("more came at the end: {}", last.escape_ascii()))
    }
}

#[test]
fn every_binary_transcript_holds() {
    let transcripts = transcripts("memcached-binary");
    let mut failures = Vec::new();
    let mut count = 0;
    for (name, text) in &transcripts {
        let (options, steps) = parse(name, text);
        count += steps.len();
        for by_bytes in [false, true] {
            let server = Server::bind(options.clone()).unwrap();
            let (address, handle) = (server.tcp_addresses()[0], server.handle());
            let serving = std::thread::spawn(move || server.run());
            let outcome = play(&steps, address, by_bytes);
            handle.stop();
            serving.join().unwrap().unwrap();
            if let Err(failure) = outcome {
                failures.push(format!("{}{name}:{failure}", if by_bytes { "byte by byte: " } else { "" }));
                break;
            }
        }
    }
    println!("{} transcripts, {count} steps", transcripts.len());
    assert!(transcripts.len() >= 12, "the transcripts are there");
    transcript::none_fails(&failures, transcripts.len());
}

/// Both dialects see the same records with the same versions.
#[test]
fn both_memcached_dialects_read_the_same_records() {
    let server = Server::bind(ServerOptions {
        listen: ListenOptions { port: 0, ..running::options().listen },
        ..ServerOptions::default()
    })
    .unwrap();
    let (address, handle) = (server.tcp_addresses()[0], server.handle());
    let serving = std::thread::spawn(move || server.run());
    let mut text = Client::connect(address);
    let mut binary = Client::connect(address);

    text.stream.write_all(b"set greeting 7 0 5\r\nhello\r\n").unwrap();
    let mut stored = [0; 8];
    text.stream.read_exact(&mut stored).unwrap();
    assert_eq!(&stored, b"STORED\r\n");

    let get = Packet { key: b"greeting".to_vec(), ..Packet::new(0x00) };
    binary.stream.write_all(&get.bytes(REQUEST, 0)).unwrap();
    let hit = binary.receive();
    let version = u64::from_be_bytes(hit[16..24].try_into().unwrap());
    assert_ne!(version, 0);
    assert_eq!(hit[HEADER_LEN..], *b"\0\0\0\x07hello");

    let line = format!("gets greeting\r\ncas greeting 7 0 3 {version}\r\nbye\r\n");
    text.stream.write_all(line.as_bytes()).unwrap();
    let expected = format!("VALUE greeting 7 5 {version}\r\nhello\r\nEND\r\nSTORED\r\n");
    let mut answer = vec![0; expected.len()];
    text.stream.read_exact(&mut answer).unwrap();
    assert_eq!(String::from_utf8(answer).unwrap(), expected);

    // The `cas` of the text dialect has not shown a version to any client since.
    let set = Packet { extras: vec![0; 8], key: b"greeting".to_vec(), ..Packet::new(0x01) };
    binary.stream.write_all(&set.bytes(REQUEST, version)).unwrap();
    assert_eq!(binary.receive(), Packet::parse("set error=0x02", "").bytes(RESPONSE, 0));
    handle.stop();
    serving.join().unwrap().unwrap();
}

/// With `-M`, a set can be refused. Its client expects that the old value is replaced, so no client
/// may read the old value again.
#[test]
fn set_without_memory_removes_the_old_value() {
    let options = ServerOptions {
        listen: ListenOptions { port: 0, ..running::options().listen },
        memory: MemoryOptions { limit_mib: 8, refuse_when_full: true, ..MemoryOptions::default() },
        ..ServerOptions::default()
    };
    let request = |line: &str| Packet::parse(line, "").bytes(REQUEST, 0);
    let large = r"value=\{1000000*v}";
    // The large values occupy memory until the end of the test, and leave the records less than any
    // of them needs.
    let large_sets: Vec<_> =
        (0..9).map(|n| request(&format!("set flags=0 expiry=0 key=large{n} {large}"))).collect();
    let (append, set) = (
        request(&format!("append key=old {large}")),
        request(&format!("set flags=0 expiry=0 key=old {large}")),
    );
    let server = Server::bind(options).unwrap();
    let (address, handle) = (server.tcp_addresses()[0], server.handle());
    let serving = std::thread::spawn(move || server.run());
    let mut client = Client::connect(address);
    let mut ask = |request: &[u8]| {
        client.stream.write_all(request).unwrap();
        client.receive()
    };
    let out_of_memory = |name: &str| Packet::parse(&format!("{name} error=0x82"), "").bytes(RESPONSE, 0);

    let stored = ask(&request("set flags=0 expiry=0 key=old value=v"));
    assert_eq!(stored[..HEADER_LEN - 8], Packet::new(0x01).bytes(RESPONSE, 0)[..HEADER_LEN - 8]);
    // Nine values of a megabyte do not fit into eight.
    let stored = large_sets.iter().take_while(|set| ask(set) != out_of_memory("set")).count();
    assert!(stored < 9);
    let get = request("get key=old");
    let old = ask(&get);
    assert_eq!(old[HEADER_LEN..], *b"\0\0\0\0v");
    assert_eq!(ask(&append), out_of_memory("append"));
    assert_eq!(ask(&get), old);
    assert_eq!(ask(&set), out_of_memory("set"));
    assert_eq!(ask(&get), Packet::parse("get error=0x01", "").bytes(RESPONSE, 0));
    handle.stop();
    serving.join().unwrap().unwrap();
}
