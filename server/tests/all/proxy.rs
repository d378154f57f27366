//! The proxy: clients get the replies that one server would send, in the order of their requests.

use crate::running;

use running::{Running, eventually, options};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;
use todana_client::ring::ServerEntry;
use todana_server::{
    LimitOptions, ListenOptions, PoolOptions, PoolProtocol, ProxyOptions, ProxyRoutes, RouteTree, Server,
    ServerOptions, WhenDown,
};

fn proxy_of(servers: &[&Running], when_down: WhenDown) -> Running {
    let addresses: Vec<SocketAddr> = servers.iter().map(|server| server.addresses[0]).collect();
    proxy_with(PoolOptions { speak: PoolProtocol::Auto, ..pool_at(&addresses, when_down) })
}

fn proxy_at(servers: &[SocketAddr], when_down: WhenDown) -> Running {
    proxy_with(pool_at(servers, when_down))
}

fn proxy_with(pool: PoolOptions) -> Running {
    let pools = BTreeMap::from([("main".into(), pool)]);
    let proxy = ProxyOptions { pools, ..ProxyOptions::default() };
    Running::start(ServerOptions { proxy: Some(proxy), ..options() })
}

/// Returns a pool of servers of a known dialect: scripted servers expect no questions about it.
fn pool_at(servers: &[SocketAddr], when_down: WhenDown) -> PoolOptions {
    let servers = servers.iter().map(|address| address.to_string().parse::<ServerEntry>().unwrap());
    PoolOptions {
        servers: servers.collect(),
        when_down,
        speak: PoolProtocol::Meta,
        retry: Duration::from_millis(20),
        ..PoolOptions::default()
    }
}

/// Sends the requests in pieces of this length, closes the sending side, and returns the replies.
fn replies(server: &Running, requests: &[u8], piece_len: usize) -> Vec<u8> {
    let mut stream = TcpStream::connect(server.addresses[0]).unwrap();
    stream.set_nodelay(true).unwrap();
    let mut writer = stream.try_clone().unwrap();
    let pieces = requests.chunks(piece_len);
    let mut replies = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            pieces.for_each(|piece| writer.write_all(piece).unwrap());
            writer.shutdown(Shutdown::Write).unwrap();
        });
        stream.read_to_end(&mut replies).unwrap();
    });
    replies
}

/// Requests of each kind, with many keys.
fn requests() -> Vec<u8> {
    let mut out = Vec::new();
    for n in 0..200 {
        let (key, value) = (format!("key:{n}"), "v".repeat(n * 7 % 1000));
        out.extend_from_slice(format!("set {key} {n} 0 {}\r\n{value}\r\n", value.len()).as_bytes());
        match n % 8 {
            0 => out.extend_from_slice(format!("set n{n} 0 0 1 noreply\r\n5\r\nincr n{n} 7\r\n").as_bytes()),
            1 => out.extend_from_slice(format!("delete {key} noreply\r\nget {key}\r\n").as_bytes()),
            2 => out.extend_from_slice(format!("mg {key} s v f k\r\nmg none{n} v q\r\nmn\r\n").as_bytes()),
            3 => out.extend_from_slice(format!("ms m{n} 2 q F5\r\nhi\r\nmg m{n} v f\r\n").as_bytes()),
            4 => out
                .extend_from_slice(format!("add {key} 0 0 1\r\nx\r\nappend {key} 0 0 1\r\ny\r\n").as_bytes()),
            5 => {
                out.extend_from_slice(format!("touch {key} 100\r\ngat 100 {key}\r\nma n0 v q\r\n").as_bytes())
            }
            6 => out.extend_from_slice(b"bogus\r\nget\r\nset k 0 0 x\r\nincr key:2 1\r\nversion\r\n"),
            _ => out.extend_from_slice(
                format!("md {key} q\r\nmd {key}\r\nprepend none 0 0 1\r\nz\r\n").as_bytes(),
            ),
        }
        if n % 10 == 9 {
            let keys: String = (0..=n + 3).rev().map(|n| format!(" key:{n}")).collect();
            out.extend_from_slice(format!("get{keys} key:0 key:0\r\n").as_bytes());
            out.extend_from_slice(format!("gat 0 key:{n} none key:2\r\n").as_bytes());
        }
    }
    out
}

#[test]
fn replies_are_those_of_one_server() {
    let requests = requests();
    for piece_len in [usize::MAX, 1000, 7] {
        let direct = Running::start(options());
        let servers = [(); 3].map(|()| Running::start(options()));
        let proxy = proxy_of(&servers.each_ref(), WhenDown::Gentle);
        let expected = replies(&direct, &requests, piece_len);
        let answered = replies(&proxy, &requests, piece_len);
        let lines = |bytes: &[u8]| bytes.split(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect::<Vec<_>>();
        let (expected, answered) = (lines(&expected), lines(&answered));
        for (number, (one, other)) in expected.iter().zip(&answered).enumerate() {
            assert_eq!(one.escape_ascii().to_string(), other.escape_ascii().to_string(), "line {number}");
        }
        assert_eq!(expected.len(), answered.len());
        let counts = servers.each_ref().map(|server| server.connect().stat("curr_items"));
        assert!(counts.iter().all(|count| count != "0"), "{counts:?}");
    }
}

#[test]
fn quit_ends_after_the_replies_before_it() {
    let servers = [(); 2].map(|()| Running::start(options()));
    let proxy = proxy_of(&servers.each_ref(), WhenDown::Gentle);
    let mut client = proxy.connect();
    client.send(b"set a 0 0 1\r\nx\r\nget a b c\r\nquit\r\nget a\r\n");
    assert_eq!(client.rest(), b"STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n");
}

#[test]
fn commands_about_a_server_are_refused() {
    let server = Running::start(options());
    let proxy = proxy_of(&[&server], WhenDown::Gentle);
    let mut client = proxy.connect();
    let memory = ["lru_crawler enable", "cache_memlimit 64", "slabs automove 1", "lru mode flat"];
    // Malformed commands, which were answered by ERROR.
    let malformed = ["lru tune 1", "lru", "extstore x", "slabs reassign 1", "watch x", "cache_memlimit x"];
    for command in ["watch", "shutdown", "stats detail on"].iter().chain(&memory).chain(&malformed) {
        client.send(format!("{command}\r\n").as_bytes());
        client.expect(b"CLIENT_ERROR not through a proxy\r\n");
    }
}

/// A misspelt name must show, and the keys of the server may go to others.
#[test]
fn server_without_an_address_goes_down() {
    let servers = vec!["no-such-host.invalid:11211".parse::<ServerEntry>().unwrap()];
    let proxy = proxy_with(PoolOptions { servers, ..pool_at(&[], WhenDown::Error) });
    let mut client = proxy.connect();
    let mut reply = || {
        client.send(b"get k\r\n");
        client.line()
    };
    eventually("the server is down", || {
        let reply = reply();
        let reason = reply.trim_end().strip_prefix("SERVER_ERROR server no-such-host.invalid:11211: ");
        assert!(matches!(reason, Some("name not found" | "down")), "{reply}");
        reason == Some("down")
    });
}

#[test]
fn dead_server_costs_its_own_keys_only() {
    for when_down in [WhenDown::Gentle, WhenDown::Error, WhenDown::Miss] {
        let (alive, dying) = (Running::start(options()), Running::start(options()));
        let proxy = proxy_of(&[&alive, &dying], when_down);
        let mut client = proxy.connect();
        let keys: Vec<String> = (0..64).map(|n| format!("k{n}")).collect();
        keys.iter().for_each(|key| client.set(key.as_bytes(), b"v"));
        let mut direct = dying.connect();
        let is_lost: Vec<bool> = keys
            .iter()
            .map(|key| {
                direct.send(format!("mg {key}\r\n").as_bytes());
                direct.line() == "HD\r\n"
            })
            .collect();
        assert!(is_lost.contains(&true) && is_lost.contains(&false));
        let address = dying.addresses[0];
        drop(direct);
        drop(dying);
        let is_error = when_down == WhenDown::Error;
        let is_named = |line: &str| {
            line.starts_with(&format!("SERVER_ERROR server {address}: "))
                && ["refused\r\n", "closed\r\n", "down\r\n"].iter().any(|reason| line.ends_with(reason))
        };
        for (key, is_lost) in keys.iter().zip(&is_lost) {
            client.send(format!("get {key}\r\n").as_bytes());
            let line = client.line();
            match (is_lost, is_error) {
                (false, _) => {
                    assert_eq!(line, format!("VALUE {key} 0 1\r\n"));
                    client.expect(b"v\r\nEND\r\n");
                }
                (true, true) => assert!(is_named(&line), "{line}"),
                (true, false) => assert_eq!(line, "END\r\n"),
            }
            client.send(format!("set {key} 0 0 1\r\nw\r\n").as_bytes());
            let line = client.line();
            match (is_lost, when_down) {
                (false, _) => assert_eq!(line, "STORED\r\n"),
                (true, WhenDown::Gentle) => {
                    assert_eq!(line, "SERVER_ERROR out of memory storing object\r\n");
                }
                (true, _) => assert!(is_named(&line), "{line}"),
            }
        }
        client.send(format!("get {}\r\nmn\r\n", keys.join(" ")).as_bytes());
        for (key, _) in keys.iter().zip(&is_lost).filter(|(_, is_lost)| !**is_lost) {
            client.expect(format!("VALUE {key} 0 1\r\nw\r\n").as_bytes());
        }
        let line = client.line();
        assert!(if is_error { is_named(&line) } else { line == "END\r\n" }, "{line}");
        client.expect(b"MN\r\n");
    }
}

#[test]
fn restarted_server_is_used_again() {
    let server = Running::start(options());
    let address = server.addresses[0];
    let proxy = proxy_of(&[&server], WhenDown::Error);
    let mut client = proxy.connect();
    client.set(b"a", b"1");
    drop(server);
    client.send(b"get a\r\n");
    assert!(client.line().starts_with("SERVER_ERROR"));
    let mut again = options();
    again.listen.port = address.port();
    let server = Server::bind(again).unwrap();
    let _server = Running::of(server);
    eventually("the server is up", || {
        client.send(b"set a 0 0 1\r\n2\r\n");
        client.line() == "STORED\r\n"
    });
    client.expect_value(b"a", b"2");
}

/// A server that reads a request and closes the connection, and answers the next request.
#[test]
fn safe_requests_survive_a_lost_connection() {
    for (request, reply, is_repeated) in [
        (&b"get a\r\n"[..], &b"VALUE a 0 1\r\nx\r\nEND\r\n"[..], true),
        (b"set a 0 0 2\r\nhi\r\n", b"STORED\r\n", true),
        (b"mg a v T9\r\n", b"HD\r\n", false),
        (b"incr a 1\r\n", b"7\r\n", false),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = proxy_at(&[listener.local_addr().unwrap()], WhenDown::Error);
        let mut client = proxy.connect();
        client.send(request);
        let accept = || {
            let mut stream = listener.accept().unwrap().0;
            let mut asked = vec![0; request.len()];
            stream.read_exact(&mut asked).unwrap();
            assert_eq!(asked, request);
            stream
        };
        drop(accept());
        if is_repeated {
            accept().write_all(reply).unwrap();
            client.expect(reply);
        } else {
            let address = listener.local_addr().unwrap();
            client.expect(format!("SERVER_ERROR server {address}: closed\r\n").as_bytes());
        }
    }
}

#[test]
fn silent_server_costs_the_time_limit() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let proxy = proxy_at(&[address], WhenDown::Error);
    let mut client = proxy.connect();
    client.send(b"get a\r\nincr b 1\r\nversion\r\n");
    let mut late = listener.accept().unwrap().0;
    for _ in 0..2 {
        client.expect(format!("SERVER_ERROR server {address}: timed out\r\n").as_bytes());
    }
    client.expect(b"VERSION 1.6.45\r\n");
    // An answer that comes too late belongs to no later request.
    let _ = late.write_all(b"VALUE a 0 1\r\nx\r\nEND\r\n");
    client.send(b"get c\r\n");
    let mut next = listener.accept().unwrap().0;
    let mut asked = [0; 7];
    next.read_exact(&mut asked).unwrap();
    assert_eq!(&asked, b"get c\r\n");
    next.write_all(b"VALUE c 0 1\r\ny\r\nEND\r\n").unwrap();
    client.expect(b"VALUE c 0 1\r\ny\r\nEND\r\n");
}

/// The requests of a client use one of the connections, so they stay in order.
#[test]
fn clients_share_several_connections() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let pool = pool_at(&[listener.local_addr().unwrap()], WhenDown::Error);
    let pools = BTreeMap::from([("main".into(), PoolOptions { connections: 2, ..pool })]);
    let proxy = Some(ProxyOptions { pools, ..ProxyOptions::default() });
    let limits = LimitOptions { threads: 1, ..LimitOptions::default() };
    let proxy = Running::start(ServerOptions { proxy, limits, ..options() });
    let mut clients = [(); 3].map(|()| proxy.connect());
    let mut streams = Vec::new();
    for (number, client) in clients.iter_mut().enumerate() {
        client.send(b"incr a 1\r\n");
        if number < 2 {
            streams.push(listener.accept().unwrap().0);
        }
        // The third client has the connection of the first one.
        let stream = &mut streams[number % 2];
        for reply in [&b"1\r\n"[..], b"2\r\n"] {
            let mut asked = [0; 10];
            stream.read_exact(&mut asked).unwrap();
            assert_eq!(&asked, b"incr a 1\r\n");
            stream.write_all(reply).unwrap();
            client.expect(reply);
            if reply == b"1\r\n" {
                client.send(b"incr a 1\r\n");
            }
        }
    }
}

#[test]
fn wrong_answers_end_the_connection_to_the_server() {
    for answer in [&b"VALUE a 0 1\r\nxyz"[..], b"STORED\r\n", b"END\r\nEND\r\n", b"\x81\0\0\0\r\n"] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let proxy = proxy_at(&[address], WhenDown::Error);
        let mut client = proxy.connect();
        client.send(b"get a\r\n");
        let mut stream = listener.accept().unwrap().0;
        stream.read_exact(&mut [0; 7]).unwrap();
        stream.write_all(answer).unwrap();
        if answer.starts_with(b"END") {
            client.expect(b"END\r\n");
        } else {
            client.expect(format!("SERVER_ERROR server {address}: not understood\r\n").as_bytes());
        }
        assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0);
    }
}

#[test]
fn keys_go_to_the_pool_of_their_prefix() {
    let servers = [(); 2].map(|()| Running::start(options()));
    let pools = ["main", "sessions"]
        .iter()
        .zip(&servers)
        .map(|(name, server)| ((*name).into(), pool_at(&[server.addresses[0]], WhenDown::Error)))
        .collect();
    let routes = ProxyRoutes {
        prefixes: vec![
            ("s:no:".into(), RouteTree::Refuse),
            ("s:".into(), RouteTree::Pool("sessions".into())),
            ("gone:".into(), RouteTree::Null),
        ],
        ..ProxyRoutes::to_pool("main")
    };
    let proxy = ProxyOptions { pools, routes: Some(routes), ..ProxyOptions::default() };
    let proxy = Running::start(ServerOptions { proxy: Some(proxy), ..options() });
    let mut client = proxy.connect();
    client.set(b"a", b"1");
    client.set(b"s:a", b"2");
    client.send(b"set gone:a 0 0 1\r\nx\r\nget gone:a\r\nset s:no:a 0 0 1\r\nx\r\nmg s:no:a v\r\n");
    client.expect(b"NOT_STORED\r\nEND\r\n");
    client.expect(b"CLIENT_ERROR refused by the proxy\r\nCLIENT_ERROR refused by the proxy\r\n");
    client.send(b"get s:a gone:a a\r\nget a s:no:a s:a\r\n");
    client.expect(b"VALUE s:a 0 1\r\n2\r\nVALUE a 0 1\r\n1\r\nEND\r\n");
    client.expect(b"VALUE a 0 1\r\n1\r\nVALUE s:a 0 1\r\n2\r\nCLIENT_ERROR refused by the proxy\r\n");
    servers[0].connect().expect_value(b"a", b"1");
    servers[1].connect().expect_value(b"s:a", b"2");
}

#[test]
fn impossible_options_are_refused() {
    for (routes, why) in [
        (Some(ProxyRoutes::to_pool("none")), "there is no pool none"),
        (
            Some(ProxyRoutes {
                default: RouteTree::WarmUp { new: "main".into(), old: "old".into(), ttl: None },
                ..ProxyRoutes::to_pool("main")
            }),
            "there is no pool old",
        ),
        (None, "pool main: "),
    ] {
        let pool = if routes.is_some() {
            pool_at(&[SocketAddr::from(([127, 0, 0, 1], 9))], WhenDown::Error)
        } else {
            PoolOptions::default()
        };
        let pools = BTreeMap::from([("main".into(), pool)]);
        let proxy = Some(ProxyOptions { pools, routes, ..ProxyOptions::default() });
        let error = Server::bind(ServerOptions {
            proxy,
            listen: ListenOptions { port: 0, ..ListenOptions::default() },
            ..options()
        });
        let error = error.err().expect("an error").to_string();
        assert!(error.starts_with(why), "{error}");
    }
}

#[test]
fn flush_reaches_all_servers() {
    let (first, second) = (Running::start(options()), Running::start(options()));
    let proxy = proxy_of(&[&first, &second], WhenDown::Gentle);
    let mut client = proxy.connect();
    (0..20).for_each(|n| client.set(format!("k{n}").as_bytes(), b"v"));
    client.send(b"flush_all noreply\r\nget k1 k2\r\nset a 0 0 1\r\nx\r\nflush_all\r\nget a\r\n");
    client.expect(b"END\r\nSTORED\r\nOK\r\nEND\r\n");
    for server in [&first, &second] {
        assert_eq!(server.connect().stat("curr_items"), "0");
    }
    let address = second.addresses[0];
    drop(second);
    client.send(b"flush_all\r\n");
    assert!(client.line().starts_with(&format!("SERVER_ERROR server {address}: ")));
}

/// A refused value, or surplus words before one, must not become commands of another client.
#[test]
fn values_never_become_commands() {
    let server = Running::start(options());
    let proxy = proxy_of(&[&server], WhenDown::Error);
    let mut client = proxy.connect();
    client.set(b"mine", b"1");
    let long_key = "k".repeat(251);
    client.send(format!("set {long_key} 0 0 11\r\nflush_all\r\n\r\nget mine\r\n").as_bytes());
    assert!(client.line().starts_with("CLIENT_ERROR"));
    client.expect(b"VALUE mine 0 1\r\n1\r\nEND\r\n");
    client.send(b"set x 0 0 9 y z\r\nflush_all\r\nget mine\r\n");
    client.expect(b"STORED\r\nVALUE mine 0 1\r\n1\r\nEND\r\n");
    // The server refuses the value, and its connection stays usable.
    let big = "b".repeat(2 << 20);
    client.send(format!("set big 0 0 {}\r\n{big}\r\nget mine\r\n", big.len()).as_bytes());
    client.expect(b"SERVER_ERROR object too large for cache\r\nVALUE mine 0 1\r\n1\r\nEND\r\n");
}

#[test]
fn requests_without_replies_do_not_hold_the_session() {
    let server = Running::start(options());
    let proxy = proxy_of(&[&server], WhenDown::Error);
    let mut client = proxy.connect();
    let sets: String = (0..10_000).map(|n| format!("set k{n} 0 0 1 noreply\r\nx\r\n")).collect();
    client.send(format!("{sets}mn\r\n").as_bytes());
    client.expect(b"MN\r\n");
    let mut gone = proxy.connect();
    gone.send(b"set a 0 0 1 noreply\r\nx\r\n");
    gone.stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(gone.rest(), b"");
}
