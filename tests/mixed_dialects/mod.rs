//! Clients of all dialects on one server. Each sends arbitrary bytes, or asks for a list of the
//! records that the others have stored. Invariant: the server still answers the next client.
//!
//!     step = dialect(1) | len(1) | bytes(len)
//!
//! `dialect` modulo 16 chooses the request of a connection: the bytes as they are, a request of a
//! dialect with the bytes as its key (of a length that the first byte chooses), or one of the
//! lists.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::OnceLock;
use std::time::Duration;
use todana_protocol::kyoto::client::{put_bulk, put_key, put_record};
use todana_protocol::kyoto::{AnswerPairs, BulkOperation, BulkRecord, put_path};
use todana_protocol::memcached::client::MetaRequest;
use todana_server::{
    KyotoMode, KyotoOptions, LimitOptions, ListenOptions, MemoryOptions, ProtocolOptions, Server,
    ServerOptions,
};

/// Lengths next to the limits of dialects and of their buffers.
const LENS: [usize; 16] = [0, 1, 2, 7, 186, 187, 188, 249, 250, 251, 253, 255, 256, 4096, 65535, 65536];
/// The requests played from one input. More would only repeat their effects.
const STEPS_MAX: usize = 24;

/// Plays one input.
pub(crate) fn play(input: &[u8]) {
    let mut rest = input;
    for _ in 0..STEPS_MAX {
        let [dialect, len, behind @ ..] = rest else { break };
        let (bytes, behind) = behind.split_at(behind.len().min(usize::from(*len)));
        rest = behind;
        ask(&request(dialect % 16, bytes));
    }
    for list in
        [&b"lru_crawler metadump all\r\n"[..], b"lru_crawler mgdump all\r\n", b"stats cachedump 1 0\r\n"]
    {
        ask(list);
    }
    ask(&call("match_prefix", &[(b"prefix", b"")]));
    assert!(ask(b"version\r\n").starts_with(b"VERSION "), "the next client is answered");
    ask(b"flush_all\r\n");
}

/// Returns the request of a connection.
fn request(dialect: u8, bytes: &[u8]) -> Vec<u8> {
    let key = &key(bytes)[..];
    let mut out = Vec::new();
    match dialect {
        0 => return bytes.to_vec(),
        1 => return [b"set ", key, b" 0 0 1\r\nv\r\nget ", key, b"\r\n"].concat(),
        2 => drop(MetaRequest::set(&mut out, key, b"v").and_then(MetaRequest::end)),
        3 => {
            out = vec![0x80, 1];
            out.extend((key.len() as u16).to_be_bytes());
            out.extend([8, 0, 0, 0]);
            out.extend((key.len() as u32 + 9).to_be_bytes());
            out.extend([0; 20]);
            out.extend_from_slice(key);
            out.push(b'v');
        }
        4 => return call("set", &[(b"key", key), (b"value", bytes)]),
        5 => {
            out.extend_from_slice(b"PUT ");
            put_path(None, key, &mut out);
            out.extend_from_slice(b" HTTP/1.1\r\nContent-Length: 1\r\n\r\nv");
        }
        6 => {
            put_bulk(BulkOperation::Set, 1, false, &mut out);
            put_record(&BulkRecord { database: 0, key, value: bytes, xt: i64::MAX }, &mut out);
        }
        7 => {
            put_bulk(BulkOperation::Get, 1, false, &mut out);
            put_key(0, key, &mut out);
        }
        8 => return call("match_prefix", &[(b"prefix", bytes)]),
        9 => return call("match_similar", &[(b"origin", bytes), (b"range", b"9")]),
        10 => {
            return [call("cur_jump", &[(b"CUR", b"1"), (b"key", key)]), call("cur_get", &[(b"CUR", b"1")])]
                .concat();
        }
        11 => return call("increment", &[(b"key", key), (b"num", b"1")]),
        12 => return call("append", &[(b"key", key), (b"value", bytes)]),
        13 => return [b"incr ", key, b" 1\r\nmg ", key, b" k v t f s\r\nme ", key, b"\r\n"].concat(),
        14 => {
            return [&b"stats detail on\r\nlru_crawler mgdump all\r\nmg "[..], bytes, b" b k v\r\n"].concat();
        }
        _ => {
            return b"stats items\r\nstats sizes\r\nstats detail dump\r\nlru_crawler metadump all\r\n"
                .to_vec();
        }
    }
    out
}

/// Repeats the bytes after the first one, up to the length that the first one chooses.
fn key(bytes: &[u8]) -> Vec<u8> {
    let [choice, pattern @ ..] = bytes else { return Vec::new() };
    let pattern = if pattern.is_empty() { &[*choice][..] } else { pattern };
    pattern.iter().copied().cycle().take(LENS[usize::from(choice % 16)]).collect()
}

fn call(name: &str, pairs: &[(&[u8], &[u8])]) -> Vec<u8> {
    let (mut output, mut out) = (AnswerPairs::default(), Vec::new());
    pairs.iter().for_each(|(name, value)| output.push(name, value));
    output.write_call(name, "localhost", &mut out);
    out
}

/// Sends a request on a new connection, and reads until the server closes it or stays silent.
fn ask(request: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address()).expect("the server takes connections");
    let mut answer = Vec::new();
    // The server may close at once if this is not a request.
    let _ = stream.write_all(request);
    let _ = stream.shutdown(Shutdown::Write);
    let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
    let _ = stream.read_to_end(&mut answer);
    answer
}

/// Returns the address of the one server, which lives as long as the process.
fn address() -> SocketAddr {
    static SERVER: OnceLock<SocketAddr> = OnceLock::new();
    *SERVER.get_or_init(|| {
        let options = ServerOptions {
            listen: ListenOptions { port: 0, ..ListenOptions::default() },
            memory: MemoryOptions { limit_mib: 0, ..MemoryOptions::default() },
            protocols: ProtocolOptions {
                kyoto: KyotoOptions { spoken: KyotoMode::Beside, ..KyotoOptions::default() },
                ..ProtocolOptions::default()
            },
            limits: LimitOptions { threads: 1, ..LimitOptions::default() },
            ..ServerOptions::default()
        };
        let server = Server::bind(options).expect("a port is free");
        let address = server.tcp_addresses()[0];
        std::thread::spawn(move || server.run());
        address
    })
}
