//! Statistics through a proxy: those of the servers added up, and those of the proxy itself.

use crate::running;

use running::{Client, Running, eventually, options};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;
use todana_server::{
    AdminOptions, LimitOptions, ListenerPlace, NutcrackerStatsOptions, ObservationOptions, PoolOptions,
    PoolProtocol, ProxyListener, ProxyName, ProxyOptions, ProxyRoutes, ProxyVersion, RouteTree, Server,
    ServerOptions, WhenDown,
};

fn pool_at(servers: &[SocketAddr], speak: PoolProtocol) -> PoolOptions {
    let servers = servers.iter().map(|address| address.to_string().parse().unwrap());
    PoolOptions { servers: servers.collect(), speak, when_down: WhenDown::Error, ..PoolOptions::default() }
}

fn proxy_of<const N: usize>(pools: [(&str, PoolOptions); N]) -> ProxyOptions {
    let pools = pools.map(|(name, pool)| (name.into(), pool));
    ProxyOptions { pools: BTreeMap::from(pools), ..ProxyOptions::default() }
}

/// Starts a proxy with one worker, so that it has one connection to each server.
fn start(proxy: ProxyOptions) -> Running {
    let limits = LimitOptions { threads: 1, ..LimitOptions::default() };
    Running::start(ServerOptions { proxy: Some(proxy), limits, ..options() })
}

/// A server whose only connection gets these replies, each after a request of the given length.
/// Returns its address.
fn scripted(replies: Vec<(usize, &'static [u8])>) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serving = std::thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        for (len, reply) in replies {
            stream.read_exact(&mut vec![0; len]).unwrap();
            stream.write_all(reply).unwrap();
        }
        // The connection stays open until the proxy ends.
        let _ = stream.read(&mut [0]);
    });
    (address, serving)
}

/// Returns a packet of a client.
fn packet(opcode: u8, key: &[u8]) -> Vec<u8> {
    let len = key.len() as u8;
    [&[0x80, opcode, 0, len, 0, 0, 0, 0, 0, 0, 0, len], &[0; 12][..], key].concat()
}

/// Reads a packet of a server: its status, key and value.
fn read_packet(client: &mut Client) -> (u8, String, String) {
    let header = client.take(24);
    let (key_len, extras_len) = (usize::from(header[3]), usize::from(header[4]));
    let body_len = u32::from_be_bytes(header[8..12].try_into().unwrap()) as usize;
    let body = String::from_utf8(client.take(body_len)).unwrap();
    let (key, value) = body[extras_len..].split_at(key_len);
    (header[7], key.into(), value.into())
}

fn of(statistics: &[(String, String)], name: &str) -> String {
    let mut found = statistics.iter().filter(|(found, _)| found == name);
    let value = found.next().unwrap_or_else(|| panic!("{name}: {statistics:?}")).1.clone();
    assert_eq!(found.next(), None);
    value
}

const SUMS: [&str; 9] = [
    "cmd_get",
    "cmd_set",
    "get_hits",
    "get_misses",
    "curr_items",
    "bytes",
    "limit_maxbytes",
    "evictions",
    "total_items",
];

#[test]
fn counters_of_servers_of_each_dialect_add_up() {
    let servers = [(); 3].map(|()| Running::start(options()));
    let dialects = [PoolProtocol::Text, PoolProtocol::Auto, PoolProtocol::Binary];
    let pools: Vec<PoolOptions> =
        servers.iter().zip(dialects).map(|(server, speak)| pool_at(&[server.addresses[0]], speak)).collect();
    let routes = ProxyRoutes {
        prefixes: ["b:", "c:"].map(|prefix| (prefix.into(), RouteTree::Pool(prefix[..1].into()))).into(),
        ..ProxyRoutes::to_pool("a")
    };
    let [a, b, c] = <[PoolOptions; 3]>::try_from(pools).unwrap();
    let proxy = start(ProxyOptions { routes: Some(routes), ..proxy_of([("a", a), ("b", b), ("c", c)]) });
    let mut client = proxy.connect();
    for n in 0..10 {
        for prefix in ["a:", "b:", "c:"] {
            client.set(format!("{prefix}{n}").as_bytes(), b"value");
            client.send(format!("get {prefix}{n}\r\nget {prefix}none\r\n").as_bytes());
            client.expect(format!("VALUE {prefix}{n} 0 5\r\nvalue\r\nEND\r\nEND\r\n").as_bytes());
        }
    }
    let text = client.stats("");
    assert_eq!(of(&text, "curr_items"), "30");
    assert_eq!(of(&text, "cmd_get"), "60");
    let direct = servers.each_ref().map(|server| server.connect().stats(""));
    for name in SUMS {
        let sum: u64 = direct.iter().map(|one| of(one, name).parse::<u64>().unwrap()).sum();
        assert_eq!(of(&text, name), sum.to_string(), "{name}");
    }
    // A hash of the servers is no hash of the proxy, and sizes as powers cannot be added.
    assert_eq!(of(&text, "hash_power_level"), of(&direct[0], "hash_power_level"));
    for (name, value) in [("pid", std::process::id().to_string()), ("version", "1.6.45".into())] {
        assert_eq!(of(&text, name), value);
    }
    assert_eq!(of(&text, "curr_connections"), "1");
    assert!(of(&text, "bytes_read").parse::<u64>().unwrap() > 1000);
    let names = |statistics: &[(String, String)]| -> Vec<String> {
        statistics.iter().map(|(name, _)| name.clone()).filter(|name| !name.starts_with("todana_")).collect()
    };
    assert_eq!(names(&text), names(&direct[0]));

    client = proxy.connect();
    client.send(&packet(0x10, b""));
    let mut binary = Vec::new();
    loop {
        let (status, name, value) = read_packet(&mut client);
        assert_eq!(status, 0);
        if name.is_empty() {
            break;
        }
        binary.push((name, value));
    }
    assert_eq!(names(&binary), names(&text));
    SUMS.iter().for_each(|name| assert_eq!(of(&binary, name), of(&text, name)));

    client.send(&packet(0x10, b"reset"));
    assert_eq!(read_packet(&mut client), (0, "".into(), "".into()));
    let mut client = proxy.connect();
    assert_eq!(of(&client.stats(""), "cmd_get"), "0");
    assert!(servers.each_ref().iter().all(|server| server.connect().stat("cmd_set") == "0"));
    client.set(b"b:1", b"value");
    client.send(b"stats reset\r\nget b:1\r\n");
    client.expect(b"RESET\r\nVALUE b:1 0 5\r\nvalue\r\nEND\r\n");
    assert_eq!(of(&client.stats(" settings"), "evictions"), "on");
    assert_eq!(servers[1].connect().stat("cmd_set"), "0");
    for group in ["items", "slabs", "sizes", "conns"] {
        client.send(format!("stats {group}\r\n").as_bytes());
        client.expect(b"CLIENT_ERROR ask the servers\r\n");
    }
    client.send(b"stats nothing\r\n");
    client.expect(b"CLIENT_ERROR not through a proxy\r\n");
}

#[test]
fn servers_without_an_answer_are_left_out() {
    let good = Running::start(options());
    good.connect().set(b"k", b"v");
    // It answers a part in time.
    let (slow, serving) = scripted(vec![(7, b"STAT curr_items 1000\r\n")]);
    let (strange, other) = scripted(vec![(
        7,
        b"STAT curr_items 7\r\nSTAT bytes -1\r\nSTAT hash_power_level 40\r\nSTAT new_name 5\r\nSTAT pid 1\r\nEND\r\n",
    )]);
    let (refusing, third) = scripted(vec![(7, b"ERROR\r\n")]);
    let down = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let addresses = [good.addresses[0], slow, strange, refusing, down];
    let pool = PoolOptions {
        reply_timeout: Some(Duration::from_millis(300)),
        ping: None,
        ..pool_at(&addresses, PoolProtocol::Text)
    };
    // A server of two pools is counted once.
    let second = PoolOptions { ..pool_at(&[good.addresses[0]], PoolProtocol::Text) };
    let routes = ProxyRoutes {
        prefixes: vec![("b:".into(), RouteTree::Pool("b".into()))],
        ..ProxyRoutes::to_pool("a")
    };
    let proxy = start(ProxyOptions { routes: Some(routes), ..proxy_of([("a", pool), ("b", second)]) });
    let mut client = proxy.connect();
    let found = client.stats("");
    assert_eq!(of(&found, "curr_items"), "8");
    assert_eq!(of(&found, "bytes"), good.connect().stat("bytes"));
    assert_eq!(of(&found, "hash_power_level"), "40");
    assert_eq!(of(&found, "new_name"), "5");
    assert_eq!(of(&found, "pid"), std::process::id().to_string());
    drop((client, proxy));
    [serving, other, third].into_iter().for_each(|serving| serving.join().unwrap());
}

#[test]
fn version_is_the_lowest_of_the_servers() {
    let good = Running::start(options());
    let (old, serving) = scripted(vec![(9, b"VERSION 1.6.9\r\n"), (9, b"VERSION 1.6.9\r\n")]);
    let (odd, other) = scripted(vec![(9, b"VERSION new\r\n"), (9, b"VERSION new\r\n")]);
    let pool = PoolOptions { ping: None, ..pool_at(&[good.addresses[0], old, odd], PoolProtocol::Text) };
    let proxy = start(ProxyOptions { version: ProxyVersion::Servers, ..proxy_of([("main", pool)]) });
    let mut client = proxy.connect();
    client.send(b"version\r\nmn\r\n");
    client.expect(b"VERSION 1.6.9\r\nMN\r\n");
    let mut client = proxy.connect();
    client.send(&packet(0x0b, b""));
    assert_eq!(read_packet(&mut client), (0, "".into(), "1.6.9".into()));
    drop((client, proxy));
    [serving, other].into_iter().for_each(|serving| serving.join().unwrap());

    let binary = pool_at(&[good.addresses[0]], PoolProtocol::Binary);
    let proxy = start(ProxyOptions { version: ProxyVersion::Servers, ..proxy_of([("main", binary)]) });
    proxy.connect().expect_version();
}

#[test]
fn hidden_servers_are_not_named_in_errors() {
    let good = Running::start(options());
    let down = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for is_shown in [false, true] {
        let pool = pool_at(&[down], PoolProtocol::Text);
        let routes = ProxyRoutes {
            prefixes: vec![("b:".into(), RouteTree::Pool("b".into()))],
            ..ProxyRoutes::to_pool("a")
        };
        let proxy = start(ProxyOptions {
            show_servers: is_shown,
            routes: Some(routes),
            ..proxy_of([("a", pool), ("b", pool_at(&[good.addresses[0]], PoolProtocol::Text))])
        });
        let mut client = proxy.connect();
        for request in ["get k\r\n", "set k 0 0 1\r\nx\r\n", "get b:1 k\r\n", "flush_all\r\n", "md k\r\n"] {
            client.send(request.as_bytes());
            let line = client.line();
            match is_shown {
                false => assert_eq!(line, "SERVER_ERROR backend failure\r\n", "{request}"),
                true => assert!(line.starts_with(&format!("SERVER_ERROR server {down}: ")), "{line}"),
            }
        }
        // Of the binary protocol, the text of the error.
        let mut client = proxy.connect();
        client.send(&packet(0x00, b"k"));
        let (status, _, value) = read_packet(&mut client);
        assert_eq!(status, 0x86);
        assert_eq!(value == "SERVER_ERROR backend failure", !is_shown, "{value}");
    }
}

fn page(server: &Running, path: &str) -> String {
    let mut client = server.connect_to(server.admin_addresses[0]);
    client.send(format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n").as_bytes());
    String::from_utf8(client.rest()).unwrap()
}

/// Starts a proxy with one worker and admin pages.
fn start_with_pages(proxy: ProxyOptions) -> Running {
    let limits = LimitOptions { threads: 1, ..LimitOptions::default() };
    let admin = AdminOptions { port: 0, is_required: true, ..AdminOptions::default() };
    let observation = ObservationOptions { admin: Some(admin), ..ObservationOptions::default() };
    Running::start(ServerOptions { proxy: Some(proxy), limits, observation, ..options() })
}

/// Returns the value of a sample.
fn sample(metrics: &str, name: &str) -> Option<f64> {
    let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.map(|value| value.parse().unwrap())
}

#[test]
fn requests_are_counted_by_pool_and_server() {
    let servers = [(); 3].map(|()| Running::start(options()));
    let [a, b, c] = servers.each_ref().map(|server| server.addresses[0]);
    let routes = ProxyRoutes {
        prefixes: vec![("b:".into(), RouteTree::Pool("second".into()))],
        ..ProxyRoutes::to_pool("first")
    };
    let pools =
        [("first", pool_at(&[a, b], PoolProtocol::Text)), ("second", pool_at(&[c], PoolProtocol::Meta))];
    let proxy = start_with_pages(ProxyOptions { routes: Some(routes), ..proxy_of(pools) });
    let mut client = proxy.connect();
    (0..8).for_each(|n| client.set(format!("k{n}").as_bytes(), b"value"));
    let keys: String = (0..8).map(|n| format!(" k{n}")).collect();
    client.send(format!("get{keys}\r\nget b:1\r\nset b:2 0 0 1 noreply\r\nx\r\nincr b:2 1\r\n").as_bytes());
    (0..8).for_each(|n| client.expect(format!("VALUE k{n} 0 5\r\nvalue\r\n").as_bytes()));
    client.expect(b"END\r\nEND\r\nCLIENT_ERROR cannot increment or decrement non-numeric value\r\n");
    // The proxy counts a turn of the client's connection after its replies.
    client.send(b"get k0\r\nmn\r\n");
    client.expect(b"VALUE k0 0 5\r\nvalue\r\nEND\r\nMN\r\n");
    let metrics = page(&proxy, "/metrics");
    let value = |name: &str| sample(&metrics, &format!("todana_proxy_{name}"));
    for (name, expected) in [
        ("requests_total{pool=\"first\",command=\"set\"}", Some(8.0)),
        ("requests_total{pool=\"first\",command=\"get\"}", Some(2.0)),
        ("requests_total{pool=\"second\",command=\"get\"}", Some(1.0)),
        ("requests_total{pool=\"second\",command=\"set\"}", Some(1.0)),
        ("requests_total{pool=\"second\",command=\"incr\"}", Some(1.0)),
        ("requests_total{pool=\"second\",command=\"delete\"}", None),
        ("request_seconds_count{pool=\"first\"}", Some(10.0)),
        ("request_seconds_count{pool=\"second\"}", Some(3.0)),
        ("request_seconds_bucket{pool=\"second\",le=\"+Inf\"}", Some(3.0)),
        ("multiget_keys_total", Some(8.0)),
        ("multiget_requests_total", Some(2.0)),
        ("retries_total", Some(0.0)),
        ("reloads_total{result=\"ok\"}", Some(0.0)),
        ("migrate_share", None),
    ] {
        assert_eq!(value(name), expected, "{name}: {metrics}");
    }
    let of_server = |name: &str, pool: &str, server: SocketAddr| {
        value(&format!("{name}{{pool=\"{pool}\",server=\"{server}\"}}")).unwrap()
    };
    // 8 stores, two lines of the keys of one server, and a read.
    let requests = [a, b].map(|server| of_server("server_requests_total", "first", server));
    assert!(requests[0] > 0.0 && requests[1] > 0.0 && requests[0] + requests[1] == 11.0, "{requests:?}");
    assert_eq!(of_server("server_requests_total", "second", c), 3.0);
    let request = "get b:1\r\nset b:2 0 0 1\r\nx\r\nincr b:2 1\r\n";
    assert_eq!(of_server("server_written_bytes_total", "second", c), request.len() as f64);
    let reply = "END\r\nSTORED\r\nCLIENT_ERROR cannot increment or decrement non-numeric value\r\n";
    assert_eq!(of_server("server_read_bytes_total", "second", c), reply.len() as f64);
    for (pool, server) in [("first", a), ("first", b), ("second", c)] {
        assert_eq!(of_server("server_in_flight", pool, server), 0.0);
        assert_eq!(of_server("server_connections", pool, server), 1.0);
        let requests = of_server("server_requests_total", pool, server);
        assert_eq!(of_server("server_seconds_count", pool, server), requests);
    }
    // A histogram counts as one series.
    let is_own = |line: &&str| {
        line.starts_with("todana_proxy_") && !line.contains("_bucket{") && !line.contains("_sum{")
    };
    let series = metrics.lines().filter(is_own).count();
    assert!(series <= 30 + 12 * 3, "{series}: {metrics}");

    let statistics = client.stats(" servers");
    let of_second = |name: &str| of(&statistics, &format!("second:{c}:{name}"));
    assert_eq!(
        ["state", "in_flight", "requests", "failures", "last_error"].map(of_second),
        ["up", "0", "3", "0", "none"]
    );
    assert!(of_second("p99_us").parse::<u64>().unwrap() >= of_second("p50_us").parse().unwrap());
    client.send(b"stats reset\r\nget b:1\r\n");
    client.expect(b"RESET\r\nEND\r\n");
    // The question for the reset is the first of the new requests.
    assert_eq!(of(&client.stats(" servers"), &format!("second:{c}:requests")), "2");
}

#[test]
fn failures_are_counted_by_reason() {
    let (silent, serving) = scripted(vec![(7, b""), (7, b"END\r\nEND\r\n"), (7, b"END\r\n")]);
    let down = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let timeout = Some(Duration::from_millis(200));
    let pool = |server| PoolOptions {
        reply_timeout: timeout,
        ping: None,
        failures: 100,
        ..pool_at(&[server], PoolProtocol::Text)
    };
    let routes = ProxyRoutes {
        prefixes: vec![("b".into(), RouteTree::Pool("b".into()))],
        ..ProxyRoutes::to_pool("a")
    };
    let proxy = start_with_pages(ProxyOptions {
        routes: Some(routes),
        ..proxy_of([("a", pool(silent)), ("b", pool(down))])
    });
    let mut client = proxy.connect();
    client.send(b"get a\r\n");
    client.expect(format!("SERVER_ERROR server {silent}: timed out\r\n").as_bytes());
    client.send(b"get b\r\n");
    client.expect(format!("SERVER_ERROR server {down}: refused\r\n").as_bytes());
    client.send(b"get b\r\n");
    client.expect(format!("SERVER_ERROR server {down}: down\r\n").as_bytes());
    let metrics = page(&proxy, "/metrics");
    for (labels, expected) in [
        (format!("pool=\"a\",server=\"{silent}\",reason=\"timed_out\""), 1.0),
        (format!("pool=\"b\",server=\"{down}\",reason=\"refused\""), 1.0),
        (format!("pool=\"b\",server=\"{down}\",reason=\"timed_out\""), 0.0),
    ] {
        let name = format!("todana_proxy_server_failures_total{{{labels}}}");
        assert_eq!(sample(&metrics, &name), Some(expected), "{metrics}");
    }
    let found = client.stats(" servers");
    assert_eq!(of(&found, &format!("a:{silent}:last_error")), "timed out");
    assert_eq!(of(&found, &format!("b:{down}:last_error")), "refused");
    assert_eq!(of(&found, &format!("b:{down}:state")), "down");
    drop((client, proxy));
    let _ = serving.join();
}

/// Reads the statistics in twemproxy's form.
fn nutcracker_object(address: SocketAddr) -> String {
    let mut text = String::new();
    TcpStream::connect(address).unwrap().read_to_string(&mut text).unwrap();
    text
}

#[test]
fn nutcracker_port_serves_one_object_each() {
    let servers = [(); 2].map(|()| Running::start(options()));
    let down = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let named = |address: SocketAddr, name: &str| format!("{address} name={name}").parse().unwrap();
    let [a, b] = servers.each_ref().map(|server| server.addresses[0]);
    let pool = |servers| PoolOptions {
        servers,
        speak: PoolProtocol::Text,
        failures: 1,
        ping: None,
        ..PoolOptions::default()
    };
    let alpha = pool(vec![named(a, "one"), named(b, "two")]);
    let beta = PoolOptions { eject: true, ..pool(vec![named(down, "three")]) };
    let listener =
        |pool: &str| ProxyListener::new(ListenerPlace::Tcp("127.0.0.1:0".into()), Some(pool.into()));
    let proxy = ProxyOptions {
        name: ProxyName::Nutcracker,
        listeners: vec![listener("alpha"), listener("beta")],
        nutcracker_stats: Some(NutcrackerStatsOptions { address: "127.0.0.1".into(), port: 0 }),
        ..proxy_of([("alpha", alpha), ("beta", beta)])
    };
    let limits = LimitOptions { threads: 1, ..LimitOptions::default() };
    let bound = Server::bind(ServerOptions { proxy: Some(proxy), limits, ..options() }).unwrap();
    let port = bound.nutcracker_stats_address().unwrap();
    let running = Running::of(bound);
    let mut client = running.connect();
    (0..8).for_each(|n| client.set(format!("k{n}").as_bytes(), b"v"));
    client.send(b"get k0 k1 k2 k3 k4 k5 k6 k7\r\n");
    (0..8).for_each(|n| client.expect(format!("VALUE k{n} 0 1\r\nv\r\n").as_bytes()));
    client.expect(b"END\r\n");
    let mut other = running.connect_to(running.addresses[1]);
    other.send(b"get k\r\nquit\r\n");
    assert_eq!(other.rest(), b"END\r\n");

    let mut text = String::new();
    eventually("the client has left", || {
        text = nutcracker_object(port);
        text.contains("\"beta\": {\"client_eof\":1,")
    });
    assert!(
        text.starts_with("{\"service\":\"nutcracker\", \"source\":\"") && text.ends_with("}}}\n"),
        "{text}"
    );
    let numbers = |name: &str| -> Vec<u64> {
        let name = format!("\"{name}\":");
        let ends = text.match_indices(&name).map(|(at, found)| at + found.len());
        let value = |at: usize| text[at..].split(|char: char| !char.is_ascii_digit()).next().unwrap();
        ends.map(|at| value(at).parse().unwrap()).collect()
    };
    for (name, expected) in [
        ("client_eof", &[0, 1][..]),
        ("client_err", &[0, 0]),
        ("client_connections", &[1, 0]),
        ("server_ejects", &[0, 1]),
        ("forward_error", &[0, 1]),
        ("fragments", &[2, 0]),
        ("server_connections", &[1, 1, 0]),
        ("server_err", &[0, 0, 1]),
        ("server_eof", &[0, 0, 0]),
        ("server_timedout", &[0, 0, 0]),
        ("out_queue", &[0, 0, 0]),
        ("total_connections", &[2]),
        ("curr_connections", &[1]),
    ] {
        assert_eq!(numbers(name), expected, "{name}: {text}");
    }
    assert_eq!(numbers("requests").iter().sum::<u64>(), 11);
    assert_eq!(numbers("responses").iter().sum::<u64>(), 10);
    let ejected_at = numbers("server_ejected_at");
    assert!(ejected_at[..2] == [0, 0] && ejected_at[2] > 1_000_000_000_000_000, "{text}");
    // The names and their order are those of nutcracker 0.5.0.
    let names: Vec<&str> = text.split('"').skip(1).step_by(2).collect();
    let server = [
        "server_eof",
        "server_err",
        "server_timedout",
        "server_connections",
        "server_ejected_at",
        "requests",
        "request_bytes",
        "responses",
        "response_bytes",
        "in_queue",
        "in_queue_bytes",
        "out_queue",
        "out_queue_bytes",
    ];
    let pool =
        ["client_eof", "client_err", "client_connections", "server_ejects", "forward_error", "fragments"];
    let beta = [&["beta"][..], &pool, &["three"], &server].concat();
    let alpha = [&["alpha"][..], &pool, &["one"], &server, &["two"], &server].concat();
    assert_eq!(names[10..], [alpha, beta].concat());
}

#[test]
fn moxi_has_its_own_statistics_of_the_proxy() {
    let server = Running::start(options());
    let address = server.addresses[0];
    let pool = pool_at(&[address], PoolProtocol::Text);
    let listener = ProxyListener::new(ListenerPlace::Tcp("127.0.0.1:0".into()), Some("default".into()));
    let proxy = start(ProxyOptions {
        name: ProxyName::Moxi,
        listeners: vec![listener],
        ..proxy_of([("default", PoolOptions { connections: 4, ..pool })])
    });
    let mut client = proxy.connect();
    client.set(b"a", b"1");
    client.send(b"set b 0 0 1 noreply\r\n2\r\nget a b none\r\nget none\r\n");
    client.expect(b"VALUE a 0 1\r\n1\r\nVALUE b 0 1\r\n2\r\nEND\r\nEND\r\n");
    let found = client.stats(" proxy");
    for (name, value) in [
        ("basic:version", "1.6.45"),
        ("basic:nthreads", "1"),
        ("0:default:config", &*address.to_string()),
        ("0:default:behavior:downstream_conn_max", "4"),
        ("0:default:behavior:downstream_timeout", "1000"),
        ("0:default:pstd_stats:num_upstream", "1"),
        ("0:default:pstd_stats:tot_upstream", "1"),
        ("0:default:pstd_stats:num_downstream_conn", "1"),
        ("0:default:pstd_stats:tot_downstream_conn", "1"),
        ("0:default:pstd_stats:tot_multiget_keys", "3"),
        ("0:default:pstd_stats_cmd:regular_get:seen", "2"),
        ("0:default:pstd_stats_cmd:regular_get:hits", "2"),
        ("0:default:pstd_stats_cmd:regular_get:misses", "2"),
        ("0:default:pstd_stats_cmd:regular_set:seen", "1"),
        ("0:default:pstd_stats_cmd:quiet_set:seen", "1"),
        ("0:default:frontcache:tot_get_hits", "0"),
    ] {
        assert_eq!(of(&found, name), value, "{name}: {found:?}");
    }
    for (group, part) in [
        ("config", "config"),
        ("behaviors", "behavior:"),
        ("stats", "pstd_stats"),
        ("frontcache", "frontcache:"),
    ] {
        let found = client.stats(&format!(" proxy {group}"));
        let is_part = |name: &str| name.strip_prefix("0:default:").is_some_and(|name| name.starts_with(part));
        assert!(!found.is_empty() && found.iter().all(|(name, _)| is_part(name)), "{found:?}");
    }
    client.send(b"stats proxy reset\r\nstats proxy none\r\n");
    client.expect(b"OK\r\nCLIENT_ERROR not through a proxy\r\n");
    let seen = of(&client.stats(" proxy stats"), "0:default:pstd_stats_cmd:regular_set:seen");
    assert_eq!(seen, "0");
    assert_eq!(server.connect().stat("cmd_set"), "2");
}
