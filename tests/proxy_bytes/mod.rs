//! A proxy of this process, with any bytes from a client or from its servers. Invariants: the
//! session ends, each request has one reply, and the proxy still serves the next client.
//!
//!     input = choice(1) | bytes
//!
//! `choice` modulo 4 chooses the protocol of the servers. The rest of it chooses the length of the
//! pieces in which the bytes are sent.

use std::collections::BTreeMap;
use std::io::{BufRead, Cursor, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;
use todana_client::ring::ServerEntry;
use todana_server::{
    LimitOptions, ListenOptions, MemoryOptions, PoolOptions, PoolProtocol, ProxyOptions, Server,
    ServerOptions, WhenDown,
};

/// A session that takes longer hangs. None takes nearly as long.
const HANG: Duration = Duration::from_secs(9);
/// The proxy passes a longer value on as it arrives, so a server can cut it.
const LONG_VALUE: u64 = 64 << 10;
const PROTOCOLS: [PoolProtocol; 4] =
    [PoolProtocol::Auto, PoolProtocol::Text, PoolProtocol::Meta, PoolProtocol::Binary];

/// Sends the bytes as a client.
pub(crate) fn play_client(input: &[u8]) {
    static PROXIES: OnceLock<[SocketAddr; 4]> = OnceLock::new();
    let [choice, bytes @ ..] = input else { return };
    let proxies = PROXIES.get_or_init(|| {
        let servers = [(); 2].map(|()| serve(options()));
        PROTOCOLS.map(|speak| proxy_of(&servers, speak))
    });
    let proxy = proxies[usize::from(choice % 4)];
    ask(proxy, bytes, usize::from(choice / 4) + 1);
    let next = b"set fuzzed 0 0 1\r\nx\r\nget fuzzed\r\nmn\r\n";
    let expected = b"STORED\r\nVALUE fuzzed 0 1\r\nx\r\nEND\r\nMN\r\n";
    assert_eq!(ask(proxy, next, next.len()).escape_ascii().to_string(), expected.escape_ascii().to_string());
}

/// The bytes with which the servers reply to each connection.
static REPLY: Mutex<(Vec<u8>, usize)> = Mutex::new((Vec::new(), 1));

/// Sends the bytes as a server.
pub(crate) fn play_server(input: &[u8]) {
    static PROXIES: OnceLock<[SocketAddr; 4]> = OnceLock::new();
    let [choice, bytes @ ..] = input else { return };
    let proxies = PROXIES.get_or_init(|| {
        let servers = [(); 2].map(|()| {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
            let address = listener.local_addr().expect("a bound listener has an address");
            std::thread::spawn(move || listener.incoming().flatten().for_each(reply));
            address
        });
        PROTOCOLS.map(|speak| proxy_of(&servers, speak))
    });
    *REPLY.lock().expect("no thread panics") = (bytes.to_vec(), usize::from(choice / 4) + 1);
    let requests = b"get a\r\nset b 0 0 1\r\nx\r\nmg c v k\r\ngets a b c d e\r\nincr n 1\r\ndelete d\r\n\
        ms m 2 T0\r\nhi\r\ntouch t 0\r\nmn\r\n";
    let replies = ask(proxies[usize::from(choice % 4)], requests, requests.len());
    let mut replies = Cursor::new(replies);
    for is_get in [true, false, false, true, false, false, false, false] {
        if !skip(&mut replies, is_get) {
            return;
        }
    }
    let rest = &replies.get_ref()[replies.position() as usize..];
    assert_eq!(rest.escape_ascii().to_string(), "MN\\r\\n", "after {}", replies.get_ref().escape_ascii());
}

/// Replies to a connection, and closes it.
fn reply(mut stream: TcpStream) {
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        if stream.read(&mut buffer).is_ok_and(|len| len > 0) {
            let (bytes, piece_len) = REPLY.lock().expect("no thread panics").clone();
            let _ = stream.set_nodelay(true);
            let _ = bytes.chunks(piece_len).try_for_each(|piece| stream.write_all(piece));
        }
        let _ = stream.shutdown(Shutdown::Write);
        while stream.read(&mut buffer).is_ok_and(|len| len > 0) {}
    });
}

/// Skips a reply. Returns false if the connection has ended within a long value.
fn skip(replies: &mut Cursor<Vec<u8>>, is_get: bool) -> bool {
    loop {
        let mut line = Vec::new();
        replies.read_until(b'\n', &mut line).expect("memory does not fail");
        let whole = replies.get_ref().escape_ascii();
        assert!(line.ends_with(b"\r\n"), "a reply is missing: {whole}");
        let words: Vec<&[u8]> = line.trim_ascii_end().split(|&byte| byte == b' ').collect();
        let len = match (words[0], is_get) {
            (b"VALUE", true) => words[3],
            (b"VA", false) => words[1],
            _ => return true,
        };
        let len: u64 = str::from_utf8(len).ok().and_then(|len| len.parse().ok()).expect("a length");
        let end = replies.position() + len + 2;
        if end > replies.get_ref().len() as u64 {
            assert!(len > LONG_VALUE, "a value is cut: {whole}");
            return false;
        }
        replies.set_position(end);
        if !is_get {
            return true;
        }
    }
}

/// Sends requests in pieces of this length, closes the sending side, and returns all replies.
fn ask(proxy: SocketAddr, requests: &[u8], piece_len: usize) -> Vec<u8> {
    let mut stream = TcpStream::connect(proxy).expect("the proxy accepts connections");
    let _ = stream.set_nodelay(true);
    let mut writer = stream.try_clone().expect("a socket can be cloned");
    let mut replies = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // The proxy may close the connection before the end.
            let _ = requests.chunks(piece_len).try_for_each(|piece| writer.write_all(piece));
            let _ = writer.shutdown(Shutdown::Write);
        });
        stream.set_read_timeout(Some(HANG)).expect("the time is not zero");
        if let Err(error) = stream.read_to_end(&mut replies) {
            let is_hang =
                matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut);
            assert!(!is_hang, "no end after {}", replies.escape_ascii());
        }
    });
    replies
}

fn options() -> ServerOptions {
    ServerOptions {
        listen: ListenOptions { port: 0, ..ListenOptions::default() },
        memory: MemoryOptions { limit_mib: 0, ..MemoryOptions::default() },
        limits: LimitOptions { threads: 1, ..LimitOptions::default() },
        ..ServerOptions::default()
    }
}

fn proxy_of(servers: &[SocketAddr], speak: PoolProtocol) -> SocketAddr {
    let entries = servers.iter().map(|server| server.to_string().parse::<ServerEntry>());
    let pool = PoolOptions {
        servers: entries.collect::<Result<_, _>>().expect("an address is an entry"),
        speak,
        failures: u32::MAX,
        when_down: WhenDown::Error,
        ..PoolOptions::default()
    };
    let pools = BTreeMap::from([("main".into(), pool)]);
    let proxy = Some(ProxyOptions { pools, ..ProxyOptions::default() });
    serve(ServerOptions { proxy, ..options() })
}

/// Starts a server, which lives as long as the process.
fn serve(options: ServerOptions) -> SocketAddr {
    let server = Server::bind(options).expect("a port is free");
    let address = server.tcp_addresses()[0];
    std::thread::spawn(move || server.run());
    address
}
