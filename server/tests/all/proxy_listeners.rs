//! The listeners of a proxy: each has its routes, and they change while clients are served.

use crate::running;

use running::{Client, Running, eventually, options};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;
use todana_server::{
    AdminOptions, ListenerPlace, ObservationOptions, PoolOptions, PoolProtocol, ProxyListener, ProxyOptions,
    ProxyReloader, ProxyRoutes, RouteTree, Server, ServerOptions, WhenDown,
};

fn pool_of(servers: &[&Running]) -> PoolOptions {
    let servers = servers.iter().map(|server| server.addresses[0].to_string().parse().unwrap());
    PoolOptions { servers: servers.collect(), when_down: WhenDown::Error, ..PoolOptions::default() }
}

fn listener(place: &str, pool: Option<&str>) -> ProxyListener {
    ProxyListener::new(ListenerPlace::Tcp(place.into()), pool.map(String::from))
}

fn unix_listener(path: &Path, mode: u32, pool: &str) -> ProxyListener {
    ProxyListener::new(ListenerPlace::Unix { path: path.into(), mode }, Some(pool.into()))
}

fn start(proxy: &ProxyOptions) -> (Running, ProxyReloader) {
    let server = Server::bind(ServerOptions { proxy: Some(proxy.clone()), ..options() }).unwrap();
    let reloader = server.proxy_reloader().unwrap();
    (Running::of(server), reloader)
}

fn mode_of(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn ask_unix(path: &Path, request: &[u8], reply: &[u8]) {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.write_all(request).unwrap();
    let mut answer = vec![0; reply.len()];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer.escape_ascii().to_string(), reply.escape_ascii().to_string());
}

#[test]
fn each_listener_serves_its_own_pool() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("c.sock");
    let servers = [(); 3].map(|()| Running::start(options()));
    let pools = ["a", "b", "c"].into_iter().zip(&servers).map(|(name, one)| (name.into(), pool_of(&[one])));
    let routes = ProxyRoutes {
        prefixes: vec![("b:".into(), RouteTree::Pool("b".into()))],
        ..ProxyRoutes::to_pool("a")
    };
    let listeners = vec![
        listener("127.0.0.1:0", None),
        listener("127.0.0.1:0", Some("b")),
        unix_listener(&path, 0o640, "c"),
    ];
    let proxy =
        ProxyOptions { listeners, pools: pools.collect(), routes: Some(routes), ..ProxyOptions::default() };
    let (proxy, _) = start(&proxy);
    let mut common = proxy.connect();
    common.set(b"x", b"of a");
    common.set(b"b:x", b"by prefix");
    let mut own = proxy.connect_to(proxy.addresses[1]);
    own.set(b"x", b"of b");
    own.expect_value(b"b:x", b"by prefix");
    ask_unix(&path, b"set x 0 0 4\r\nof c\r\nget x y\r\n", b"STORED\r\nVALUE x 0 4\r\nof c\r\nEND\r\n");
    assert_eq!(mode_of(&path), 0o640);
    common.expect_value(b"x", b"of a");
    for (server, value) in servers.iter().zip(["of a", "of b", "of c"]) {
        server.connect().expect_value(b"x", value.as_bytes());
    }
    // The command reaches only the pool of its listener.
    own.send(b"flush_all\r\n");
    own.expect(b"OK\r\n");
    own.send(b"get x b:x\r\n");
    own.expect(b"END\r\n");
    common.expect_value(b"x", b"of a");
}

#[test]
fn listener_takes_no_more_clients_than_allowed() {
    let server = Running::start(options());
    let mut limited = listener("127.0.0.1:0", None);
    limited.clients_max = Some(1);
    let mut proxy = ProxyOptions {
        listeners: vec![limited, listener("127.0.0.1:0", None)],
        pools: BTreeMap::from([("main".into(), pool_of(&[&server]))]),
        ..ProxyOptions::default()
    };
    let (running, reloader) = start(&proxy);
    let mut first = running.connect();
    first.set(b"a", b"1");
    running.connect_to(running.addresses[1]).expect_value(b"a", b"1");
    assert_eq!(running.connect().rest(), b"ERROR Too many open connections\r\n");
    proxy.listeners[0].clients_max = Some(2);
    reloader.reload(&proxy).unwrap();
    let mut second = running.connect();
    second.expect_value(b"a", b"1");
    assert_eq!(running.connect().rest(), b"ERROR Too many open connections\r\n");
    drop(first);
    eventually("another client is served", || {
        let mut third = running.connect();
        third.send(b"version\r\n");
        third.line() == "VERSION 1.6.45\r\n"
    });
    second.expect_value(b"a", b"1");
}

#[test]
fn commands_have_routes_of_their_own() {
    let servers = [(); 2].map(|()| Running::start(options()));
    let pools = ["a", "b"].into_iter().zip(&servers).map(|(name, one)| (name.into(), pool_of(&[one])));
    let routes = |flush: RouteTree| ProxyRoutes {
        prefixes: vec![("p:".into(), RouteTree::Pool("a".into()))],
        commands: BTreeMap::from([
            ("flush_all".into(), flush),
            ("delete".into(), RouteTree::Refuse),
            ("gets".into(), RouteTree::Pool("b".into())),
            ("incr".into(), RouteTree::Null),
        ]),
        ..ProxyRoutes::to_pool("a")
    };
    let mut proxy = ProxyOptions {
        listeners: vec![listener("127.0.0.1:0", None)],
        pools: pools.collect(),
        routes: Some(routes(RouteTree::Refuse)),
        ..ProxyOptions::default()
    };
    let (running, reloader) = start(&proxy);
    let mut client = running.connect();
    for server in &servers {
        server.connect().set(b"x", b"1");
        server.connect().set(b"p:x", b"1");
    }
    client.send(b"set x 0 0 1\r\n2\r\nget x y\r\nincr x 1\r\nincr p:x 1\r\ndelete x\r\ndelete p:x\r\n");
    client.expect(b"STORED\r\nVALUE x 0 1\r\n2\r\nEND\r\nNOT_FOUND\r\n2\r\n");
    client.expect(b"CLIENT_ERROR refused by the proxy\r\nDELETED\r\n");
    client.send(b"gets x none\r\nflush_all\r\n");
    assert!(client.line().starts_with("VALUE x 0 1 "));
    client.expect(b"1\r\nEND\r\nCLIENT_ERROR flush_all not allowed\r\n");
    proxy.routes = Some(routes(RouteTree::Pool("b".into())));
    reloader.reload(&proxy).unwrap();
    client.send(b"flush_all\r\ngets x none\r\n");
    client.expect(b"OK\r\nEND\r\n");
    client.expect_value(b"x", b"2");
}

#[test]
fn listeners_change_without_dropping_a_client() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("proxy.sock");
    let servers = [(); 2].map(|()| Running::start(options()));
    let pools = ["a", "b"].into_iter().zip(&servers).map(|(name, one)| (name.into(), pool_of(&[one])));
    let first = ProxyOptions {
        listeners: vec![listener("127.0.0.1:0", Some("a")), unix_listener(&path, 0o700, "b")],
        pools: pools.collect(),
        ..ProxyOptions::default()
    };
    let (running, reloader) = start(&first);
    servers[0].connect().set(b"x", b"a");
    servers[1].connect().set(b"x", b"b");
    let mut client = running.connect();
    client.expect_value(b"x", b"a");
    let mut unix = UnixStream::connect(&path).unwrap();
    unix.write_all(b"get x\r\n").unwrap();
    let mut unix_lines = BufReader::new(unix.try_clone().unwrap());
    let mut line = String::new();
    unix_lines.read_line(&mut line).unwrap();
    assert_eq!(line, "VALUE x 0 1\r\n");
    // The TCP listener gets another pool, the Unix socket other permissions, and there is a third.
    let other = folder.path().join("other.sock");
    let mut second = first.clone();
    second.listeners[0].pool = Some("b".into());
    second.listeners[1] = unix_listener(&path, 0o750, "a");
    second.listeners.push(unix_listener(&other, 0o700, "a"));
    reloader.reload(&second).unwrap();
    eventually("the client has the new routes", || {
        client.send(b"get x\r\n");
        client.expect(b"VALUE x 0 1\r\n");
        let value = client.line();
        client.expect(b"END\r\n");
        value == "b\r\n"
    });
    ask_unix(&path, b"get x\r\n", b"VALUE x 0 1\r\na\r\nEND\r\n");
    ask_unix(&other, b"get x\r\n", b"VALUE x 0 1\r\na\r\nEND\r\n");
    assert_eq!(mode_of(&path), 0o750);
    // The listener and the pool of this client are gone, but the client is not.
    let mut third = first.clone();
    third.pools.remove("b");
    third.listeners = vec![listener("127.0.0.1:0", Some("a"))];
    reloader.reload(&third).unwrap();
    eventually("the sockets are gone", || !path.exists() && !other.exists());
    client.expect_value(b"x", b"a");
    unix.write_all(b"get x\r\n").unwrap();
    let mut rest = vec![0; b"b\r\nEND\r\nVALUE x 0 1\r\na\r\nEND\r\n".len()];
    unix_lines.read_exact(&mut rest).unwrap();
    assert_eq!(rest, b"b\r\nEND\r\nVALUE x 0 1\r\na\r\nEND\r\n");
}

#[test]
fn unusable_options_change_nothing() {
    let server = Running::start(options());
    let taken: SocketAddr = server.addresses[0];
    let first = ProxyOptions {
        listeners: vec![listener("127.0.0.1:0", None)],
        pools: BTreeMap::from([("main".into(), pool_of(&[&server]))]),
        ..ProxyOptions::default()
    };
    let (running, reloader) = start(&first);
    let mut client: Client = running.connect();
    client.set(b"a", b"1");
    let mut no_pool = first.clone();
    no_pool.routes = Some(ProxyRoutes::to_pool("none"));
    let mut no_address = first.clone();
    no_address.pools.clear();
    no_address.pools.insert("other".into(), PoolOptions::default());
    let mut in_use = first.clone();
    in_use.listeners.push(listener(&taken.to_string(), None));
    in_use.pools.insert("second".into(), pool_of(&[&server]));
    for (options, error) in [
        (no_pool, "there is no pool none".to_string()),
        (no_address, "pool other: ".into()),
        (in_use, format!("cannot listen on {taken}: ")),
    ] {
        let found = reloader.reload(&options).unwrap_err().to_string();
        assert!(found.starts_with(&error), "{found}");
        client.expect_value(b"a", b"1");
    }
    reloader.reload(&first).unwrap();
    client.expect_value(b"a", b"1");
}

#[test]
fn servers_are_counted() {
    let (server, gone) = (Running::start(options()), Running::start(options()));
    let pools = BTreeMap::from([("a".into(), pool_of(&[&server])), ("b".into(), pool_of(&[&gone]))]);
    let proxy = ProxyOptions {
        listeners: vec![listener("127.0.0.1:0", Some("a")), listener("127.0.0.1:0", Some("b"))],
        pools,
        ..ProxyOptions::default()
    };
    let admin = AdminOptions { port: 0, is_required: true, ..AdminOptions::default() };
    let observation = ObservationOptions { admin: Some(admin), ..ObservationOptions::default() };
    let bound = Server::bind(ServerOptions { proxy: Some(proxy.clone()), observation, ..options() }).unwrap();
    let reloader = bound.proxy_reloader().unwrap();
    let running = Running::of(bound);
    let (first, second) = (server.addresses[0], gone.addresses[0]);
    let mut client = running.connect();
    (0..3).for_each(|_| client.set(b"x", b"1"));
    assert!(page(&running, "/readyz").ends_with("\r\n\r\nready\n"));
    drop(gone);
    let mut other = running.connect_to(running.addresses[1]);
    other.send(b"get x\r\n");
    assert!(other.line().starts_with("SERVER_ERROR server "));
    assert!(page(&running, "/readyz").ends_with("\r\n\r\nno server of pool b is up\n"));
    reloader.reload(&proxy).unwrap();
    assert!(reloader.reload(&ProxyOptions::default()).is_err());
    let metrics = page(&running, "/metrics");
    for line in [
        format!("todana_proxy_server_up{{pool=\"a\",server=\"{first}\"}} 1"),
        format!("todana_proxy_server_up{{pool=\"b\",server=\"{second}\"}} 0"),
        format!("todana_proxy_server_downs_total{{pool=\"b\",server=\"{second}\"}} 1"),
        "todana_proxy_reloads_total{result=\"ok\"} 1".into(),
        "todana_proxy_reloads_total{result=\"error\"} 1".into(),
        "todana_proxy_config_info{version=\"2\"} 1".into(),
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line}: {metrics}");
    }
    let servers = client.stats(" servers");
    let of = |name: &str| servers.iter().find(|(found, _)| found == name).unwrap().1.clone();
    assert_eq!(of(&format!("a:{first}:state")), "up");
    assert!(of(&format!("a:{first}:requests")).parse::<u64>().unwrap() >= 3);
    assert_eq!(of(&format!("b:{second}:state")), "down");
    assert!(client.stats(" pools").contains(&("b:servers_up".into(), "0".into())));
    assert!(client.stats(" proxy").contains(&("config_version".into(), "2".into())));
    client.send(b"stats items\r\n");
    client.expect(b"CLIENT_ERROR ask the servers\r\n");
}

fn page(server: &Running, path: &str) -> String {
    let mut client = server.connect_to(server.admin_addresses[0]);
    client.send(format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n").as_bytes());
    String::from_utf8(client.rest()).unwrap()
}

#[test]
fn stop_answers_what_has_arrived() {
    for answers in [true, false] {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let pool = PoolOptions {
            servers: vec![silent.local_addr().unwrap().to_string().parse().unwrap()],
            speak: PoolProtocol::Text,
            reply_timeout: None,
            ..PoolOptions::default()
        };
        let drain = if answers { running::WAIT_MAX } else { Duration::from_millis(20) };
        let proxy = ProxyOptions {
            listeners: vec![listener("127.0.0.1:0", None)],
            pools: BTreeMap::from([("main".into(), pool)]),
            drain,
            ..ProxyOptions::default()
        };
        let (mut running, _) = start(&proxy);
        let (mut client, mut idle) = (running.connect(), running.connect());
        idle.expect_version();
        client.send(b"get a\r\n");
        let mut server = silent.accept().unwrap().0;
        server.read_exact(&mut [0; 7]).unwrap();
        running.handle.stop();
        assert_eq!(idle.rest(), b"");
        if answers {
            server.write_all(b"VALUE a 0 1\r\nx\r\nEND\r\n").unwrap();
            client.expect(b"VALUE a 0 1\r\nx\r\nEND\r\n");
        }
        assert_eq!(client.rest(), b"");
        running.join();
    }
}
