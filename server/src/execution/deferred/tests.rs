//! Plays conversations with an executor whose replies are pending and with one whose replies are
//! not, and compares the replies.

use super::{DROPPED, EXECUTED, RELEASE, RELEASED};
use crate::{
    DatabaseOptions, DatabaseSpec, KyotoMode, KyotoOptions, LimitOptions, ListenOptions, MemoryOptions,
    ObservationOptions, PluginOptions, ProtocolOptions, Server, ServerHandle, ServerOptions, TraceOptions,
    TyrantMode, TyrantOptions,
};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;
use todana_protocol::tyrant::{FieldBuffer, TyrantPutMode, TyrantRequest};

const WAIT_MAX: Duration = Duration::from_secs(60);
/// The longest input that is also sent byte by byte.
const BYTEWISE_MAX: usize = 32 << 10;

/// All tests share the counters, so only one test runs at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

struct TestServer {
    addresses: Vec<SocketAddr>,
    handle: ServerHandle,
    serving: Option<JoinHandle<std::io::Result<()>>>,
}

impl TestServer {
    fn start(options: &ServerOptions, defers_replies: bool) -> TestServer {
        let server = Server::bind(ServerOptions { defers_replies, ..options.clone() }).unwrap();
        let (addresses, handle) = (server.tcp_addresses().to_vec(), server.handle());
        let serving = Some(std::thread::spawn(move || server.run()));
        TestServer { addresses, handle, serving }
    }

    fn connect(&self, address: usize) -> TcpStream {
        let stream = TcpStream::connect(self.addresses[address]).unwrap();
        stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    /// Sends a conversation, and returns all bytes received.
    fn play(&self, address: usize, input: &[u8], piece_len: usize) -> Vec<u8> {
        let mut stream = self.connect(address);
        let mut writer = stream.try_clone().unwrap();
        let input = input.to_vec();
        let writing = std::thread::spawn(move || {
            // The server may close the connection first.
            let _ = input.chunks(piece_len).try_for_each(|piece| writer.write_all(piece));
            let _ = writer.shutdown(Shutdown::Write);
        });
        let mut received = Vec::new();
        // A connection that was reset has already sent its replies.
        let _ = stream.read_to_end(&mut received);
        writing.join().unwrap();
        received
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.handle.stop();
        self.serving.take().unwrap().join().unwrap().unwrap();
    }
}

fn options(kyoto: KyotoOptions, database: &str) -> ServerOptions {
    let name = |name: &str| todana::DatabaseName::parse(name).unwrap();
    let plugin = kyoto.plugin.map(|_| "proto[ascii]:127.0.0.1:0".to_owned());
    ServerOptions {
        listen: ListenOptions {
            port: 0,
            addresses: std::iter::once("127.0.0.1:0".to_owned()).chain(plugin).collect(),
            ..ListenOptions::default()
        },
        memory: MemoryOptions { limit_mib: 0, ..MemoryOptions::default() },
        protocols: ProtocolOptions { kyoto, ..ProtocolOptions::default() },
        databases: DatabaseOptions {
            database: Some(name(database)),
            further: vec![DatabaseSpec { name: name(":"), data: None }],
            ..DatabaseOptions::default()
        },
        limits: LimitOptions { threads: 2, ..LimitOptions::default() },
        ..ServerOptions::default()
    }
}

/// Plays conversations with both executors, with the input in one piece and in small pieces, and
/// compares the replies.
fn compare(options: &ServerOptions, address: usize, conversations: &[(String, Vec<u8>)]) {
    let before = EXECUTED.load(Ordering::SeqCst);
    for (name, input) in conversations {
        let is_short = |&piece_len: &usize| piece_len == usize::MAX || input.len() <= BYTEWISE_MAX;
        for piece_len in [usize::MAX, 1, 7].into_iter().filter(is_short) {
            let play = |defers_replies| {
                let server = TestServer::start(options, defers_replies);
                without_dates(&server.play(address, input, piece_len)).escape_ascii().to_string()
            };
            // Some replies show the current second. They differ if a second ends between the two
            // runs.
            let (mut expected, mut found) = (play(false), play(true));
            if found != expected {
                (expected, found) = (play(false), play(true));
            }
            assert_eq!(found, expected, "{name}, {piece_len} bytes at a time");
            assert!(!expected.is_empty(), "{name} has replies");
        }
    }
    let executed = EXECUTED.load(Ordering::SeqCst) - before;
    assert!(executed >= conversations.len() as u64, "{executed} replies were pending");
}

/// Returns answers without the lines that state a date or the port of the server.
fn without_dates(answer: &[u8]) -> Vec<u8> {
    let lines = answer.split_inclusive(|&byte| byte == b'\n');
    let is_same = |line: &&[u8]| !line.starts_with(b"Date: ") && !line.starts_with(b"Location: ");
    lines.filter(is_same).flatten().copied().collect()
}

/// Returns the input of transcripts: one conversation for each connection.
fn transcripts(dialect: &str, is_wanted: impl Fn(&str) -> bool) -> Vec<(String, Vec<u8>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/transcripts").join(dialect);
    let mut conversations = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        if path.extension().is_none_or(|extension| extension != "txt") || !is_wanted(&name) {
            continue;
        }
        let mut input = Vec::new();
        for line in std::fs::read_to_string(&path).unwrap().lines() {
            let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
            match kind {
                ">" if !rest.contains('$') => input.extend(unescaped(rest)),
                "#>" => input.extend(from_hex(rest)),
                "call" => input.extend(call(rest)),
                "!" => conversations.push((name.clone(), std::mem::take(&mut input))),
                _ => {}
            }
        }
        conversations.push((name, input));
    }
    conversations.retain(|(_, input)| !input.is_empty());
    conversations.sort();
    conversations
}

fn from_hex(text: &str) -> Vec<u8> {
    let digits: String = text.split_whitespace().collect();
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
}

fn call(text: &str) -> Vec<u8> {
    let (name, pairs) = text.split_once(' ').unwrap_or((text, ""));
    let body = unescaped(pairs);
    let head = format!(
        "POST /rpc/{name} HTTP/1.1\r\nContent-Type: text/tab-separated-values\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), &body].concat()
}

fn unescaped(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        rest = &rest[first.len_utf8()..];
        if first != '\\' {
            bytes.extend_from_slice(first.encode_utf8(&mut [0; 4]).as_bytes());
            continue;
        }
        let escape = rest.as_bytes()[0];
        rest = &rest[1..];
        match escape {
            b'r' => bytes.push(b'\r'),
            b'n' => bytes.push(b'\n'),
            b't' => bytes.push(b'\t'),
            b'\\' => bytes.push(b'\\'),
            b'x' => {
                bytes.push(u8::from_str_radix(&rest[..2], 16).unwrap());
                rest = &rest[2..];
            }
            _ => {
                let (repeated, behind) = rest.split_once('}').unwrap();
                let (count, piece) = repeated.split_once('*').unwrap();
                bytes.extend(unescaped(piece).repeat(count.parse().unwrap()));
                rest = behind;
            }
        }
    }
    bytes
}

/// Returns a request of memcached's binary protocol.
fn packet(opcode: u8, extras: &[u8], key: &[u8], value: &[u8], version: u64) -> Vec<u8> {
    let body_len = (extras.len() + key.len() + value.len()) as u32;
    let mut packet = vec![0x80, opcode];
    packet.extend((key.len() as u16).to_be_bytes());
    packet.extend([extras.len() as u8, 0, 0, 0]);
    packet.extend(body_len.to_be_bytes());
    packet.extend(u32::from(opcode).to_be_bytes());
    packet.extend(version.to_be_bytes());
    [packet, extras.to_vec(), key.to_vec(), value.to_vec()].concat()
}

fn beside() -> KyotoOptions {
    KyotoOptions { spoken: KyotoMode::Beside, ..KyotoOptions::default() }
}

#[test]
fn pending_text_replies_equal_immediate_ones() {
    let _guard = ONE_AT_A_TIME.lock();
    let names = [
        "add",
        "append",
        "cas",
        "decr",
        "delete",
        "flush_all",
        "gat",
        "gats",
        "get",
        "gets",
        "incr",
        "ma",
        "md",
        "meta_base64",
        "meta_quiet",
        "meta_faults",
        "mg",
        "mn",
        "ms",
        "ms_compare",
        "noreply",
        "numbers",
        "prepend",
        "replace",
        "set",
        "touch",
        "quit",
        "large",
        "framing",
    ];
    let mut conversations = transcripts("memcached", |name| names.contains(&name));
    assert!(conversations.len() >= names.len());
    let long = [b"get a\r\nset long 3 0 300000\r\n", &[b'x'; 300_000][..], b"\r\nget long a\r\n"].concat();
    conversations.push(("long".to_owned(), long));
    compare(&options(beside(), "%"), 0, &conversations);
}

/// Operations of one connection begin together, and each has its own span, in their order.
#[test]
fn pending_requests_have_a_span_each() {
    let _guard = ONE_AT_A_TIME.lock();
    let collector = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", collector.local_addr().unwrap());
    let traces = TraceOptions { collector: address.parse().unwrap(), with_keys: true };
    let observation = ObservationOptions { traces: Some(traces), ..ObservationOptions::default() };
    let server = TestServer::start(&ServerOptions { observation, ..options(beside(), "%") }, true);
    let trace = "OtS_kvNXezTaajzpKdDg5HNg";
    let long = "x".repeat(300_000);
    let input = format!(
        "ms a 1 {trace}\r\n1\r\nmg b v {trace}\r\nmg c v O17\r\nmd d {trace}\r\nms e 300000 {trace}\r\n{long}\r\n"
    );
    let replies = format!("HD {trace}\r\nEN {trace}\r\nEN O17\r\nNF {trace}\r\nHD {trace}\r\n");
    assert_eq!(String::from_utf8_lossy(&server.play(0, input.as_bytes(), usize::MAX)), replies);
    let mut found = Vec::new();
    while found.len() < 4 {
        let mut reader = BufReader::new(collector.accept().unwrap().0);
        let mut line = String::new();
        let mut len = 0;
        while line != "\r\n" {
            line.clear();
            reader.read_line(&mut line).unwrap();
            len = line.strip_prefix("Content-Length: ").map_or(len, |len| len.trim().parse().unwrap());
        }
        let mut body = vec![0; len];
        reader.read_exact(&mut body).unwrap();
        reader.get_mut().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        for span in body["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap() {
            let attribute = |name: &str| {
                let all = span["attributes"].as_array().unwrap();
                let value = all.iter().find(|one| one["key"] == name).unwrap();
                value["value"]["stringValue"].as_str().unwrap().to_string()
            };
            let command = span["name"].as_str().unwrap();
            found.push(format!(
                "{command} {} {}",
                attribute("todana.key"),
                attribute("db.response.status_code")
            ));
        }
    }
    assert_eq!(found, ["ms a HD", "mg b EN", "md d NF", "ms e HD"]);
}

#[test]
fn pending_binary_replies_equal_immediate_ones() {
    let _guard = ONE_AT_A_TIME.lock();
    let mut input = Vec::new();
    // The versions are: none, that of the first record, and one that no record has.
    for version in [0, 1, 99] {
        // The opcodes of set, add and replace, and their quiet forms.
        for opcode in [0x01, 0x02, 0x03, 0x11, 0x12, 0x13] {
            for key in [&b"a"[..], b"b"] {
                input.extend(packet(opcode, &[0, 0, 0, opcode, 0, 0, 0, 0], key, b"12", version));
            }
        }
        // The opcodes of append and prepend, and their quiet forms.
        for opcode in [0x0e, 0x0f, 0x19, 0x1a] {
            input.extend(packet(opcode, &[], b"a", b"7", version));
            input.extend(packet(opcode, &[], b"missing", b"7", version));
        }
        // The extras of incr and decr: an amount of 5 and an initial number of 9.
        let sum = [[0, 0, 0, 0, 0, 0, 0, 5], [0, 0, 0, 0, 0, 0, 0, 9]].concat();
        for opcode in [0x05, 0x06, 0x15, 0x16] {
            input.extend(packet(opcode, &[&sum[..], &[0; 4]].concat(), b"n", b"", version));
            input.extend(packet(opcode, &[&sum[..], &[0xff; 4]].concat(), b"missing", b"", version));
        }
        // The opcodes of all reads, of touch, and of noop.
        for key in [&b"a"[..], b"n", b"missing"] {
            [0x00, 0x09, 0x0c, 0x0d]
                .iter()
                .for_each(|&opcode| input.extend(packet(opcode, &[], key, b"", 0)));
            [0x1c, 0x1d, 0x1e, 0x23, 0x24]
                .iter()
                .for_each(|&opcode| input.extend(packet(opcode, &[0; 4], key, b"", 0)));
        }
        input.extend(packet(0x0a, &[], b"", b"", 0));
        // The opcodes of delete and flush.
        [0x04, 0x14, 0x04].iter().for_each(|&opcode| input.extend(packet(opcode, &[], b"a", b"", version)));
        [0x08, 0x18].iter().for_each(|&opcode| input.extend(packet(opcode, &[], b"", b"", 0)));
    }
    let long = vec![b'x'; 300_000];
    let long = [packet(0x01, &[0; 8], b"long", &long, 0), packet(0x0c, &[], b"long", b"", 0)].concat();
    compare(&options(beside(), "%"), 0, &[("packets".to_owned(), input), ("long".to_owned(), long)]);
}

#[test]
fn pending_kyoto_replies_equal_immediate_ones() {
    let _guard = ONE_AT_A_TIME.lock();
    let names = ["binary", "bulk", "encodings", "numbers", "records", "rest", "cursors_tree", "match_tree"];
    compare(&options(beside(), "%"), 0, &transcripts("kyoto", |name| names.contains(&name)));
    let together = "set_bulk atomic\\t\\n_a\\t1\\n_b\\t2\\n";
    let calls = [
        together,
        "get_bulk _a\\t\\n_c\\t\\n_b\\t\\n",
        "remove_bulk _b\\t\\n_c\\t\\n",
        "clear",
        "get key\\ta\\n",
    ];
    let calls: Vec<u8> = calls.into_iter().flat_map(call).collect();
    compare(&options(beside(), "%"), 0, &[("bulk calls".to_owned(), calls)]);
}

#[test]
fn pending_tyrant_replies_equal_immediate_ones() {
    let _guard = ONE_AT_A_TIME.lock();
    let list = |words: &[&str]| words.iter().map(|word| word.as_bytes()).collect::<FieldBuffer>();
    let (keys, pairs) = (list(&["a", "none", "b", "a"]), list(&["c", "3", "d", "4", "odd"]));
    let put = |mode| TyrantRequest::Put { mode, key: b"a", value: b"12" };
    let misc =
        |name: &'static str, arguments| TyrantRequest::Misc { name: name.as_bytes(), options: 0, arguments };
    let modes = [TyrantPutMode::Put, TyrantPutMode::Keep, TyrantPutMode::Cat, TyrantPutMode::NoReply];
    let requests = modes.into_iter().map(put).chain([
        TyrantRequest::Get { key: b"a" },
        TyrantRequest::VSiz { key: b"none" },
        TyrantRequest::VSiz { key: b"a" },
        TyrantRequest::PutShl { key: b"b", value: b"345", width: 2 },
        TyrantRequest::MGet { keys: keys.list() },
        TyrantRequest::AddInt { key: b"n", delta: 5 },
        misc("putlist", pairs.list()),
        misc("getlist", keys.list()),
        misc("get", pairs.list()),
        misc("getpart", keys.list()),
        misc("putkeep", pairs.list()),
        misc("outlist", keys.list()),
        misc("out", keys.list()),
        TyrantRequest::Out { key: b"c" },
        TyrantRequest::Out { key: b"c" },
        TyrantRequest::IterInit,
        TyrantRequest::IterNext,
        TyrantRequest::FwmKeys { prefix: b"", limit: None },
        TyrantRequest::Vanish,
        misc("vanish", pairs.list()),
        TyrantRequest::RNum,
    ]);
    let mut input = Vec::new();
    requests.for_each(|request| request.encode(&mut input));
    let tyrant = TyrantOptions { spoken: TyrantMode::Binary, ..TyrantOptions::default() };
    let options = options(beside(), "%");
    let options = ServerOptions { protocols: ProtocolOptions { tyrant, ..options.protocols }, ..options };
    compare(&options, 0, &[("requests".to_owned(), input)]);
}

#[test]
fn pending_plugin_replies_equal_immediate_ones() {
    let _guard = ONE_AT_A_TIME.lock();
    let requests = "set a 7 0 1\r\n5\r\nincr a 37\r\nget a b\r\ndecr a 50\r\ngets a\r\nadd a 0 0 1\r\nx\r\n\
        replace a 0 0 1 noreply\r\ny\r\nget a\r\nadd b 3 0 2\r\nzz\r\nget b a c\r\ndelete a\r\ndelete a\r\n\
        incr a 1\r\nset k 0 0 3\r\nabc\r\nflush_all\r\nget k b\r\nversion\r\nnonsense\r\nget b\r\n";
    for keeps_flags in [false, true] {
        let plugin = Some(PluginOptions { keeps_flags, ..PluginOptions::default() });
        let kyoto = KyotoOptions { spoken: KyotoMode::Only, plugin, ..KyotoOptions::default() };
        compare(&options(kyoto, "%"), 1, &[("plug-in".to_owned(), requests.into())]);
    }
    let queues = "set jobs 0 0 1\r\n1\r\nset jobs 0 0 1\r\n2\r\nget jobs\r\ndelete jobs\r\nget jobs\r\n\
        delete jobs\r\ndelete jobs\r\nget jobs\r\n";
    let plugin =
        Some(PluginOptions { queue_wait_max: Some(Duration::from_millis(1)), ..PluginOptions::default() });
    let kyoto = KyotoOptions { spoken: KyotoMode::Only, plugin, ..KyotoOptions::default() };
    compare(&options(kyoto, "%"), 1, &[("queues".to_owned(), queues.into())]);
}

#[test]
fn closed_connection_drops_its_pending_reply() {
    let _guard = ONE_AT_A_TIME.lock();
    let server = TestServer::start(&options(beside(), "%"), true);
    let requests: [&[u8]; 2] = [b"set held:1 0 0 1\r\nx\r\nget held:1\r\n", b"GET /held:1 HTTP/1.1\r\n\r\n"];
    for request in requests {
        *RELEASED.lock().unwrap() = false;
        let (dropped, executed) = (DROPPED.load(Ordering::SeqCst), EXECUTED.load(Ordering::SeqCst));
        let mut leaving = server.connect(0);
        leaving.write_all(request).unwrap();
        // The worker of a waiting session continues to serve its other sessions.
        let mut others: Vec<TcpStream> = (0..4).map(|_| server.connect(0)).collect();
        for other in &mut others {
            other.write_all(b"version\r\n").unwrap();
            let mut reply = [0; 16];
            other.read_exact(&mut reply).unwrap();
            assert_eq!(&reply, b"VERSION 1.6.45\r\n");
        }
        socket2::SockRef::from(&leaving).set_linger(Some(Duration::ZERO)).unwrap();
        drop(leaving);
        let since = std::time::Instant::now();
        while DROPPED.load(Ordering::SeqCst) == dropped {
            assert!(since.elapsed() < WAIT_MAX, "the reply of a closed connection is dropped");
            std::thread::yield_now();
        }
        *RELEASED.lock().unwrap() = true;
        RELEASE.notify_all();
        while EXECUTED.load(Ordering::SeqCst) == executed {
            assert!(since.elapsed() < WAIT_MAX, "the operation is executed all the same");
            std::thread::yield_now();
        }
        let mut other = server.connect(0);
        other.write_all(b"get held:1\r\n").unwrap();
        let mut reply = [0; 26];
        other.read_exact(&mut reply).unwrap();
        assert_eq!(&reply, b"VALUE held:1 0 1\r\nx\r\nEND\r\n");
        assert_eq!(EXECUTED.load(Ordering::SeqCst), executed + 2, "nothing is executed twice");
    }
}
