//! Copies of values in the proxy: which are kept, and reads that have one reply together.

use crate::running;

use running::{Client, Running, options};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;
use todana_server::{
    LimitOptions, ListenOptions, ListenerPlace, PoolOptions, PoolProtocol, ProxyListener, ProxyOptions,
    ProxyRoutes, RouteTree, Server, ServerOptions, WhenDown,
};

fn near(pool: &str, hot: bool, coalesce: bool) -> RouteTree {
    RouteTree::Near {
        with: Box::new(RouteTree::Pool(pool.into())),
        ttl: Duration::from_secs(3600),
        bytes_max: 1 << 20,
        records_max: None,
        hot,
        coalesce,
        is_shared: true,
    }
}

fn pool(server: SocketAddr) -> PoolOptions {
    PoolOptions {
        servers: vec![server.to_string().parse().unwrap()],
        speak: PoolProtocol::Text,
        when_down: WhenDown::Error,
        reply_timeout: None,
        connect_timeout: running::WAIT_MAX,
        ..PoolOptions::default()
    }
}

/// The options of a proxy of one server whose routes have a cache.
fn proxy_options(pool: PoolOptions, default: RouteTree) -> ServerOptions {
    let pools = BTreeMap::from([("main".into(), pool)]);
    let routes = Some(ProxyRoutes { default, ..ProxyRoutes::to_pool("main") });
    let proxy = Some(ProxyOptions { pools, routes, ..ProxyOptions::default() });
    // All clients have one worker, so its connections are theirs.
    let limits = LimitOptions { threads: 1, ..LimitOptions::default() };
    let listen = ListenOptions { port: 0, ..options().listen };
    ServerOptions { proxy, limits, listen, ..options() }
}

fn ask(client: &mut Client, request: &str, reply: &str) {
    client.send(request.as_bytes());
    client.expect(reply.as_bytes());
}

fn expect(stream: &mut TcpStream, expected: &str) {
    let mut bytes = vec![0; expected.len()];
    stream.read_exact(&mut bytes).unwrap();
    assert_eq!(bytes.escape_ascii().to_string(), expected.as_bytes().escape_ascii().to_string());
}

#[test]
fn frequent_keys_alone_have_copies() {
    let server = Running::start(options());
    let proxy = Running::start(proxy_options(pool(server.addresses[0]), near("main", true, false)));
    let (mut client, mut direct) = (proxy.connect(), server.connect());
    for value in 1..=3 {
        ask(&mut direct, &format!("set k 0 0 1\r\n{value}\r\n"), "STORED\r\n");
        ask(&mut client, "get k\r\n", &format!("VALUE k 0 1\r\n{value}\r\nEND\r\n"));
    }
    ask(&mut direct, "set k 0 0 1\r\n4\r\n", "STORED\r\n");
    ask(&mut client, "get k\r\n", "VALUE k 0 1\r\n3\r\nEND\r\n");
    // A key that is removed by a write is still frequent.
    ask(&mut client, "set k 0 0 1\r\n5\r\nget k\r\n", "STORED\r\nVALUE k 0 1\r\n5\r\nEND\r\n");
    ask(&mut client, "get k\r\n", "VALUE k 0 1\r\n5\r\nEND\r\n");
    ask(&mut direct, "set k 0 0 1\r\n6\r\n", "STORED\r\n");
    ask(&mut client, "get k\r\n", "VALUE k 0 1\r\n5\r\nEND\r\n");
}

/// A copy would be older than the reader allows.
#[test]
fn copies_serve_no_reads_that_require_freshness() {
    let server = Running::start(options());
    let proxy = Running::start(proxy_options(pool(server.addresses[0]), near("main", false, false)));
    let (mut client, mut plain) = (proxy.connect(), server.connect());
    ask(&mut client, "set k 0 0 1\r\n1\r\nget k\r\n", "STORED\r\nVALUE k 0 1\r\n1\r\nEND\r\n");
    for request in ["mg k v Y\r\n", "mg k v Y100\r\n", "ms k 1 Y\r\n2\r\n", "md k Y\r\n"] {
        ask(&mut client, request, "CLIENT_ERROR the flag Y needs a route to one server\r\n");
    }
    ask(&mut client, "mg k v\r\n", "VA 1\r\n1\r\n");
    // Without a cache the request goes to its server.
    let proxy = Running::start(proxy_options(pool(server.addresses[0]), RouteTree::Pool("main".into())));
    ask(&mut proxy.connect(), "mg k v Y100\r\n", "VA 1 Y\r\n1\r\n");
    ask(&mut plain, "mg k v Y100\r\n", "VA 1 Y\r\n1\r\n");
}

#[test]
fn equal_reads_under_way_have_one_reply() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let pool = pool(listener.local_addr().unwrap());
    let proxy = Running::start(proxy_options(pool, near("main", true, true)));
    let mut clients = [(); 4].map(|()| proxy.connect());
    clients[0].send(b"get k\r\n");
    let mut server = listener.accept().unwrap().0;
    expect(&mut server, "get k\r\n");
    // The second key shows that the request before it was handled.
    clients[1].send(b"get k\r\nget b\r\n");
    expect(&mut server, "get b\r\n");
    clients[2].send(b"get c k\r\n");
    expect(&mut server, "get c\r\n");
    // A read after a write must not have the reply to one before it.
    clients[3].send(b"set k 0 0 1\r\n2\r\nget k\r\n");
    expect(&mut server, "set k 0 0 1\r\n2\r\nget k\r\n");
    clients[0].send(b"get k\r\nget d\r\n");
    expect(&mut server, "get k\r\nget d\r\n");
    let old = b"VALUE k 0 1\r\n1\r\nEND\r\n";
    server.write_all(old).unwrap();
    server.write_all(b"VALUE b 0 1\r\nb\r\nEND\r\nVALUE c 0 1\r\nc\r\nEND\r\nSTORED\r\n").unwrap();
    clients[0].expect(old);
    clients[1].expect(b"VALUE k 0 1\r\n1\r\nEND\r\nVALUE b 0 1\r\nb\r\nEND\r\n");
    clients[2].expect(b"VALUE c 0 1\r\nc\r\nVALUE k 0 1\r\n1\r\nEND\r\n");
    let new = b"VALUE k 0 1\r\n2\r\nEND\r\n";
    server.write_all(&[&new[..], new, b"END\r\n"].concat()).unwrap();
    clients[3].expect(b"STORED\r\n");
    clients[3].expect(new);
    clients[0].expect(new);
    clients[0].expect(b"END\r\n");
}

#[test]
fn joined_reads_survive_lost_connections() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let pool = PoolOptions { retries: 2, ..pool(listener.local_addr().unwrap()) };
    let address = listener.local_addr().unwrap();
    let proxy = Running::start(proxy_options(pool, near("main", true, true)));
    let mut clients = [(); 2].map(|()| proxy.connect());
    for losses in [2, 3] {
        clients[0].send(b"get k\r\n");
        let mut server = listener.accept().unwrap().0;
        expect(&mut server, "get k\r\n");
        clients[1].send(b"get k\r\nget b\r\n");
        expect(&mut server, "get b\r\n");
        for _ in 1..losses {
            drop(server);
            server = listener.accept().unwrap().0;
            expect(&mut server, "get k\r\nget b\r\n");
        }
        if losses == 2 {
            server.write_all(b"VALUE k 0 1\r\n1\r\nEND\r\nEND\r\n").unwrap();
            clients[0].expect(b"VALUE k 0 1\r\n1\r\nEND\r\n");
            clients[1].expect(b"VALUE k 0 1\r\n1\r\nEND\r\nEND\r\n");
            drop(server);
        } else {
            drop(server);
            let lost = format!("SERVER_ERROR server {address}: closed\r\n");
            clients[0].expect(lost.as_bytes());
            clients[1].expect(lost.repeat(2).as_bytes());
        }
    }
}

#[test]
fn reload_keeps_the_copies_of_equal_routes() {
    let servers = [(); 2].map(|()| Running::start(options()));
    let before = proxy_options(pool(servers[0].addresses[0]), near("main", false, false));
    let server = Server::bind(before.clone()).unwrap();
    let reloader = server.proxy_reloader().unwrap();
    let proxy = Running::of(server);
    let (mut client, mut direct) = (proxy.connect(), servers[0].connect());
    ask(&mut client, "set k 0 0 1\r\n1\r\n", "STORED\r\n");
    ask(&mut client, "get k\r\n", "VALUE k 0 1\r\n1\r\nEND\r\n");
    ask(&mut direct, "set k 0 0 1\r\n2\r\n", "STORED\r\n");
    let mut options = before.proxy.unwrap();
    options.pools.insert("another".into(), pool(servers[1].addresses[0]));
    reloader.reload(&options).unwrap();
    ask(&mut client, "get k\r\n", "VALUE k 0 1\r\n1\r\nEND\r\n");
    options.routes.as_mut().unwrap().default = near("main", true, false);
    reloader.reload(&options).unwrap();
    ask(&mut client, "get k\r\n", "VALUE k 0 1\r\n2\r\nEND\r\n");
}

/// The same key has different values in the clusters of moxi.
#[test]
fn each_listener_has_its_own_copies() {
    let servers = [(); 2].map(|()| Running::start(options()));
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let names = ["a", "b"];
    let pools =
        names.iter().zip(&servers).map(|(name, server)| (name.to_string(), pool(server.addresses[0])));
    let listeners = names.map(|name| {
        let near = |prefix: &str| (prefix.to_string(), near(name, false, false));
        let routes = ProxyRoutes { prefixes: vec![near("k"), near("l")], ..ProxyRoutes::to_pool(name) };
        let place = ListenerPlace::Unix { path: path(name), mode: 0o700 };
        ProxyListener { routes: Some(routes), ..ProxyListener::new(place, Some(name.into())) }
    });
    let proxy =
        ProxyOptions { pools: pools.collect(), listeners: listeners.to_vec(), ..ProxyOptions::default() };
    let _proxy = Running::start(ServerOptions { proxy: Some(proxy), ..options() });
    let get = |name: &str| {
        let mut stream = std::os::unix::net::UnixStream::connect(path(name)).unwrap();
        stream.write_all(b"get k l\r\nquit\r\n").unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        reply
    };
    for value in ["1", "2"] {
        for (server, name) in servers.iter().zip(names) {
            for key in ["k", "l"] {
                server.connect().set(key.as_bytes(), format!("{name}{value}").as_bytes());
            }
            let first = format!("VALUE k 0 2\r\n{name}1\r\nVALUE l 0 2\r\n{name}1\r\nEND\r\n");
            assert_eq!(get(name), first);
        }
    }
}

/// A copy once hid that the value is stale, or that another client recomputes it.
#[test]
fn stale_values_have_no_copies() {
    let server = Running::start(options());
    let pool = PoolOptions { speak: PoolProtocol::Meta, ..pool(server.addresses[0]) };
    let proxy = Running::start(proxy_options(pool, near("main", false, false)));
    let (mut client, mut direct) = (proxy.connect(), server.connect());
    ask(&mut direct, "set k 0 0 1\r\n1\r\n", "STORED\r\n");
    ask(&mut direct, "md k I T30\r\n", "HD\r\n");
    ask(&mut client, "mg k s v\r\n", "VA 1 s1 X W\r\n1\r\n");
    ask(&mut client, "mg k s v\r\n", "VA 1 s1 Z X\r\n1\r\n");
    ask(&mut client, "mg k s v\r\n", "VA 1 s1 Z X\r\n1\r\n");
}
