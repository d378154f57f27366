//! Limits on the requests of a proxy that wait: for a connection, for a turn, for a server that is
//! down.

use crate::running;

use running::{Running, eventually, options};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;
use todana_server::{
    LimitOptions, MemoryOptions, PoolLogin, PoolOptions, PoolProtocol, ProxyOptions, ProxyRoutes,
    ReplicaRead, ReplicaWrite, RouteTree, ServerOptions, WhenDown,
};

/// Returns a pool of one server of a known dialect, whose failures are shown.
fn pool(server: &str) -> PoolOptions {
    PoolOptions {
        servers: vec![server.parse().unwrap()],
        speak: PoolProtocol::Meta,
        when_down: WhenDown::Error,
        connect_timeout: running::WAIT_MAX,
        reply_timeout: None,
        ..PoolOptions::default()
    }
}

/// Starts a proxy with one worker, so that all clients share its connections.
fn proxy(pool: PoolOptions, in_flight_max: Option<usize>) -> Running {
    let pools = BTreeMap::from([("main".into(), pool)]);
    let proxy = Some(ProxyOptions { pools, in_flight_max, ..ProxyOptions::default() });
    let limits = LimitOptions { threads: 1, ..LimitOptions::default() };
    Running::start(ServerOptions { proxy, limits, ..options() })
}

fn listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

fn expect(stream: &mut TcpStream, expected: &str) {
    let mut bytes = vec![0; expected.len()];
    stream.read_exact(&mut bytes).unwrap();
    assert_eq!(bytes.escape_ascii().to_string(), expected.as_bytes().escape_ascii().to_string());
}

/// Fails if there is something to read.
fn expect_nothing(stream: &mut TcpStream) {
    stream.set_nonblocking(true).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    stream.set_nonblocking(false).unwrap();
}

#[test]
fn further_requests_wait_for_their_turn() {
    let (listener, address) = listener();
    let proxy = proxy(pool(&address), Some(1));
    let mut clients = [(); 2].map(|()| proxy.connect());
    // Without the limit, both requests would leave in one write.
    clients[0].send(b"get a\r\nget b\r\n");
    let mut server = listener.accept().unwrap().0;
    expect(&mut server, "get a\r\n");
    expect_nothing(&mut server);
    clients[1].send(b"get c\r\nget d e\r\n");
    server.write_all(b"END\r\n").unwrap();
    clients[0].expect(b"END\r\n");
    // The sessions have their turns one after another.
    let mut line = [0; 7];
    let mut seen = Vec::new();
    for _ in 0..2 {
        server.read_exact(&mut line).unwrap();
        seen.push(line[4]);
        expect_nothing(&mut server);
        server.write_all(b"END\r\n").unwrap();
    }
    seen.sort_unstable();
    assert_eq!(seen, b"bc");
    expect(&mut server, "get d e\r\n");
    server.write_all(b"END\r\n").unwrap();
    clients[0].expect(b"END\r\n");
    clients[1].expect(b"END\r\nEND\r\n");
}

#[test]
fn long_wait_for_a_turn_is_an_error() {
    let (listener, address) = listener();
    let queue_timeout = Some(Duration::from_millis(20));
    let proxy = proxy(PoolOptions { queue_timeout, ..pool(&address) }, Some(1));
    let mut clients = [(); 2].map(|()| proxy.connect());
    clients[0].send(b"get a\r\n");
    let mut server = listener.accept().unwrap().0;
    expect(&mut server, "get a\r\n");
    clients[1].send(b"set b 0 0 1\r\nx\r\nget b c\r\nset d 0 0 1 noreply\r\ny\r\nms e 1 q\r\nz\r\nmn\r\n");
    let busy = "SERVER_ERROR server proxy: busy\r\n";
    clients[1].expect(busy.repeat(3).as_bytes());
    server.write_all(b"END\r\n").unwrap();
    clients[0].expect(b"END\r\n");
    clients[1].expect(b"MN\r\n");
    // None of the refused requests was sent.
    clients[1].send(b"get f\r\n");
    expect(&mut server, "get f\r\n");
}

#[test]
fn long_wait_for_a_connection_is_an_error() {
    let (listener, address) = listener();
    let folder = tempfile::tempdir().unwrap();
    let password_file = folder.path().join("password");
    std::fs::write(&password_file, "secret\n").unwrap();
    let login = Some(PoolLogin { user: "web".into(), password_file, password: None });
    let queue_timeout = Some(Duration::from_millis(20));
    let proxy = proxy(PoolOptions { queue_timeout, login, ..pool(&address) }, Some(2));
    let mut client = proxy.connect();
    // The server does not answer the question before the login.
    for _ in 0..5 {
        client.send(b"get a\r\nset b 0 0 1\r\nx\r\n");
        client.expect(format!("SERVER_ERROR server {address}: timed out\r\n").repeat(2).as_bytes());
    }
    let mut server = listener.accept().unwrap().0;
    expect(&mut server, "version\r\n");
    // A request that has waited too long is not sent later.
    server.write_all(b"VERSION 1.6.45\r\n").unwrap();
    client.send(b"set c 0 0 1\r\nx\r\n");
    expect(&mut server, "set c 0 0 1\r\nx\r\n");
    server.write_all(b"STORED\r\n").unwrap();
    client.expect(b"STORED\r\n");
}

#[test]
fn server_with_another_connection_stays_up() {
    let (listener, address) = listener();
    let proxy = proxy(PoolOptions { connections: 2, ..pool(&address) }, None);
    let mut clients = [(); 2].map(|()| proxy.connect());
    clients[0].send(b"get a\r\n");
    let mut server = listener.accept().unwrap().0;
    expect(&mut server, "get a\r\n");
    server.write_all(b"END\r\n").unwrap();
    clients[0].expect(b"END\r\n");
    drop(listener);
    // Each of two clients has a connection of its own.
    clients[1].send(b"get b\r\n");
    clients[1].expect(format!("SERVER_ERROR server {address}: refused\r\n").as_bytes());
    clients[0].send(b"get c\r\n");
    expect(&mut server, "get c\r\n");
    server.write_all(b"END\r\n").unwrap();
    clients[0].expect(b"END\r\n");
}

#[test]
fn copies_avoid_servers_that_are_down() {
    let servers = [(); 3].map(|()| Running::start(options()));
    let entries = servers.each_ref().map(|server| server.addresses[0].to_string().parse().unwrap());
    let retry = Duration::from_secs(3600);
    let eject = true;
    let pool = PoolOptions { servers: entries.to_vec(), eject, retry, retry_max: retry, ..pool("a") };
    let default = RouteTree::Replicate {
        pools: vec!["main".into()],
        copies: 2,
        read: ReplicaRead::First,
        write: ReplicaWrite::All,
        on_miss: true,
        repair: true,
    };
    let routes = Some(ProxyRoutes { default, ..ProxyRoutes::to_pool("main") });
    let pools = BTreeMap::from([("main".into(), pool)]);
    let proxy = Some(ProxyOptions { pools, routes, ..ProxyOptions::default() });
    let proxy = Running::start(ServerOptions { proxy, ..options() });
    let [first, second, third] = servers;
    drop(third);
    let mut client = proxy.connect();
    let keys: Vec<String> = (0..40).map(|number| format!("k{number}")).collect();
    eventually("the server is down", || {
        keys.iter().all(|key| {
            client.send(format!("set {key} 0 0 1\r\nx\r\n").as_bytes());
            client.line() == "STORED\r\n"
        })
    });
    for server in [&first, &second] {
        assert_eq!(server.connect().stat("curr_items"), "40");
    }
}

/// A command without a key once left the error to the next request.
#[test]
fn long_wait_refuses_only_the_request_that_waited() {
    let (listener, address) = listener();
    let queue_timeout = Some(Duration::from_millis(20));
    let proxy = proxy(PoolOptions { queue_timeout, ..pool(&address) }, Some(1));
    let mut clients = [(); 3].map(|()| proxy.connect());
    clients[0].send(b"get a\r\n");
    let mut server = listener.accept().unwrap().0;
    expect(&mut server, "get a\r\n");
    clients[1].send(b"version\r\n");
    clients[1].expect(b"VERSION 1.6.45\r\n");
    // The value is refused, and does not reach the server.
    let long = [b"set l 0 0 100000\r\n", &[b'x'; 100_000][..], b"\r\n"].concat();
    clients[2].send(&long);
    clients[2].expect(b"SERVER_ERROR server proxy: busy\r\n");
    server.write_all(b"END\r\n").unwrap();
    clients[0].expect(b"END\r\n");
    for client in &mut clients[1..] {
        client.send(b"get f\r\n");
        expect(&mut server, "get f\r\n");
        server.write_all(b"END\r\n").unwrap();
        client.expect(b"END\r\n");
    }
}

/// The bytes of requests that a server does not take were once not counted as memory. Later, a
/// request was refused because those before it took the memory.
#[test]
fn clients_wait_while_a_server_takes_nothing() {
    let (listener, address) = listener();
    let pools = BTreeMap::from([("main".into(), pool(&address))]);
    let proxy = Some(ProxyOptions { pools, ..ProxyOptions::default() });
    let limits = LimitOptions { threads: 1, ..LimitOptions::default() };
    let memory = MemoryOptions { limit_mib: 8, ..MemoryOptions::default() };
    let proxy = Running::start(ServerOptions { proxy, limits, memory, ..options() });
    let mut client = proxy.connect();
    let request = [b"ms k 60000\r\n", &[b'x'; 60_000][..], b"\r\n"].concat();
    // The proxy reads no more than the limit allows, and the rest fills the socket.
    client.stream.set_nonblocking(true).unwrap();
    let mut sent = 0;
    let mut idle = 0;
    while sent < 64 << 20 && idle < 100 {
        match client.stream.write(&request[sent % request.len()..]) {
            Ok(len) => (sent, idle) = (sent + len, 0),
            // The reply to another client shows that the proxy has had time to read.
            Err(_) => {
                proxy.connect().expect_version();
                idle += 1;
            }
        }
    }
    assert!(sent < 24 << 20, "{sent} bytes were read");
    client.stream.set_nonblocking(false).unwrap();
    // All requests are answered once the server takes them.
    let mut rest = client.stream.try_clone().unwrap();
    let missing = request[sent % request.len()..].to_vec();
    let count = sent.div_ceil(request.len());
    let ending = std::thread::spawn(move || rest.write_all(&missing).unwrap());
    let mut server = listener.accept().unwrap().0;
    server.set_read_timeout(Some(running::WAIT_MAX)).unwrap();
    let mut bytes = vec![0; request.len()];
    for _ in 0..count {
        server.read_exact(&mut bytes).unwrap();
        assert!(bytes == request);
        server.write_all(b"HD\r\n").unwrap();
    }
    client.expect("HD\r\n".repeat(count).as_bytes());
    ending.join().unwrap();
}

/// Clients that find the reply by its opaque or its key once waited for ever.
#[test]
fn miss_of_a_lost_server_shows_the_request() {
    let (listener, address) = listener();
    drop(listener);
    let proxy = proxy(PoolOptions { when_down: WhenDown::Gentle, ..pool(&address) }, None);
    let mut client = proxy.connect();
    for (request, reply) in [
        ("mg ab v k O123\r\n", "EN kab O123\r\n"),
        ("mg YWI= b k v\r\n", "EN kYWI= b\r\n"),
        ("mg ab v\r\n", "EN\r\n"),
        ("mg ab v O1 q\r\nmg cd v O2 k\r\n", "EN O2 kcd\r\n"),
    ] {
        client.send(request.as_bytes());
        client.expect(reply.as_bytes());
    }
}
