//! Routes of the proxy over several pools, and clients and servers of different dialects.

use crate::running;

use running::{Client, Running, eventually, options};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;
use todana_client::ring::ServerEntry;
use todana_server::{
    LimitOptions, PoolOptions, PoolProtocol, ProxyOptions, ProxyRoutes, ReplicaRead, ReplicaWrite, RouteTree,
    ServerOptions, ShadowedRequests, WhenDown,
};

fn pool(servers: &[SocketAddr], speak: PoolProtocol) -> PoolOptions {
    let servers = servers.iter().map(|address| address.to_string().parse::<ServerEntry>().unwrap());
    PoolOptions {
        servers: servers.collect(),
        speak,
        when_down: WhenDown::Error,
        retry: Duration::from_millis(20),
        ..PoolOptions::default()
    }
}

/// A proxy with the pools `a`, `b` and so on, of one server each.
fn routed(servers: &[SocketAddr], speak: PoolProtocol, default: RouteTree) -> Running {
    let names = ["a", "b", "c"].into_iter().map(String::from);
    let pools: BTreeMap<String, PoolOptions> =
        names.zip(servers.iter().map(|server| pool(&[*server], speak))).collect();
    let routes = ProxyRoutes { default, prefixes: Vec::new(), commands: BTreeMap::new() };
    proxy(pools, routes)
}

fn proxy(pools: BTreeMap<String, PoolOptions>, routes: ProxyRoutes) -> Running {
    let proxy = ProxyOptions { pools, routes: Some(routes), ..ProxyOptions::default() };
    Running::start(ServerOptions { proxy: Some(proxy), ..options() })
}

fn names(pools: &[&str]) -> Vec<String> {
    pools.iter().map(ToString::to_string).collect()
}

/// An address at which nobody listens.
fn closed() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn ask(client: &mut Client, request: &str, reply: &str) {
    client.send(request.as_bytes());
    client.expect(reply.as_bytes());
}

const DIALECTS: [PoolProtocol; 3] = [PoolProtocol::Text, PoolProtocol::Auto, PoolProtocol::Binary];

#[test]
fn failover_asks_the_next_pool_after_an_error() {
    for speak in DIALECTS {
        let server = Running::start(options());
        let tree =
            RouteTree::Failover { pools: names(&["a", "b"]), on_miss: false, ttl: Duration::from_secs(10) };
        let proxy = routed(&[closed(), server.addresses[0]], speak, tree);
        let mut client = proxy.connect();
        ask(&mut client, "set k 7 0 2\r\nhi\r\n", "STORED\r\n");
        ask(&mut client, "get k\r\n", "VALUE k 7 2\r\nhi\r\nEND\r\n");
        ask(&mut client, "get none k none2\r\n", "VALUE k 7 2\r\nhi\r\nEND\r\n");
        ask(&mut client, "delete none\r\n", "NOT_FOUND\r\n");
        // A record that is away from its place lives for a short time only.
        let mut direct = server.connect();
        direct.send(b"mg k t\r\n");
        let left: u32 = direct.line().trim().strip_prefix("HD t").unwrap().parse().unwrap();
        assert!((5..=10).contains(&left), "{left}");
    }
}

#[test]
fn failover_asks_the_next_pool_after_a_miss() {
    let servers = [(); 2].map(|()| Running::start(options()));
    let addresses = servers.each_ref().map(|server| server.addresses[0]);
    let tree = RouteTree::Failover { pools: names(&["a", "b"]), on_miss: true, ttl: Duration::from_secs(10) };
    let proxy = routed(&addresses, PoolProtocol::Auto, tree);
    servers[1].connect().set(b"k", b"second");
    let mut client = proxy.connect();
    ask(&mut client, "get k\r\n", "VALUE k 0 6\r\nsecond\r\nEND\r\n");
    ask(&mut client, "set k 0 0 5\r\nfirst\r\n", "STORED\r\n");
    ask(&mut client, "get k none\r\n", "VALUE k 0 5\r\nfirst\r\nEND\r\n");
    servers[1].connect().expect_value(b"k", b"second");
}

fn replicate(read: ReplicaRead, write: ReplicaWrite) -> RouteTree {
    RouteTree::Replicate {
        pools: names(&["a", "b", "c"]),
        copies: 1,
        read,
        write,
        on_miss: true,
        repair: true,
    }
}

#[test]
fn each_copy_gets_the_writes() {
    for speak in DIALECTS {
        let servers = [(); 3].map(|()| Running::start(options()));
        let addresses = servers.each_ref().map(|server| server.addresses[0]);
        let proxy = routed(&addresses, speak, replicate(ReplicaRead::First, ReplicaWrite::All));
        let mut client = proxy.connect();
        ask(&mut client, "set k 3 0 1\r\n5\r\n", "STORED\r\n");
        servers
            .iter()
            .for_each(|server| ask(&mut server.connect(), "get k\r\n", "VALUE k 3 1\r\n5\r\nEND\r\n"));
        // Arithmetic takes place at the first copy; the others lose the record.
        ask(&mut client, "incr k 2\r\n", "7\r\n");
        eventually("the others have no record", || {
            servers[1..].iter().all(|server| server.connect().stat("curr_items") == "0")
        });
        ask(&mut servers[0].connect(), "get k\r\n", "VALUE k 3 1\r\n7\r\nEND\r\n");
        ask(&mut client, "delete k\r\n", "DELETED\r\n");
        ask(&mut client, "get k\r\n", "END\r\n");
        // The first copy knows the version, and the others get the value.
        ask(&mut client, "set k 0 0 1\r\n1\r\n", "STORED\r\n");
        client.send(b"gets k\r\n");
        let line = client.line();
        let version = line.trim().rsplit(' ').next().unwrap();
        client.expect(b"1\r\nEND\r\n");
        ask(&mut client, &format!("cas k 0 0 1 {version}\r\n2\r\n"), "STORED\r\n");
        ask(&mut client, &format!("cas k 0 0 1 {version}\r\n3\r\n"), "EXISTS\r\n");
        eventually("all copies have the value", || {
            servers.iter().all(|server| {
                let mut direct = server.connect();
                direct.send(b"get k\r\n");
                direct.line() == "VALUE k 0 1\r\n" && direct.line() == "2\r\n"
            })
        });
    }
}

/// Each copy decided alone, so copies without the record stored what the first one had refused.
#[test]
fn first_copy_decides_conditional_writes() {
    for speak in DIALECTS {
        let servers = [(); 3].map(|()| Running::start(options()));
        let addresses = servers.each_ref().map(|server| server.addresses[0]);
        let proxy = routed(&addresses, speak, replicate(ReplicaRead::First, ReplicaWrite::All));
        let mut client = proxy.connect();
        let others_have_none = || {
            eventually("the others have no record", || {
                servers[1..].iter().all(|server| server.connect().stat("curr_items") == "0")
            });
        };
        ask(&mut client, "add k 3 0 1\r\n5\r\n", "STORED\r\n");
        for server in &servers {
            ask(&mut server.connect(), "get k\r\n", "VALUE k 3 1\r\n5\r\nEND\r\n");
        }
        ask(&mut client, "incr k 2\r\n", "7\r\n");
        others_have_none();
        ask(&mut client, "add k 0 0 1\r\n9\r\n", "NOT_STORED\r\n");
        ask(&mut client, "touch k 100\r\n", "TOUCHED\r\n");
        others_have_none();
        ask(&mut client, "replace k 4 0 1\r\n8\r\n", "STORED\r\n");
        for server in &servers {
            ask(&mut server.connect(), "get k\r\n", "VALUE k 4 1\r\n8\r\nEND\r\n");
        }
    }
}

#[test]
fn missing_copies_are_repaired_with_their_time() {
    let servers = [(); 3].map(|()| Running::start(options()));
    let addresses = servers.each_ref().map(|server| server.addresses[0]);
    let proxy = routed(&addresses, PoolProtocol::Auto, replicate(ReplicaRead::First, ReplicaWrite::All));
    ask(&mut servers[2].connect(), "set k 9 100 2\r\nhi\r\n", "STORED\r\n");
    ask(&mut proxy.connect(), "get k\r\n", "VALUE k 9 2\r\nhi\r\nEND\r\n");
    for server in &servers[..2] {
        let mut direct = server.connect();
        eventually("the copy is repaired", || server.connect().stat("curr_items") == "1");
        direct.send(b"mg k t f v\r\n");
        let line = direct.line();
        let left: u32 = line.split(' ').nth(2).unwrap().strip_prefix('t').unwrap().parse().unwrap();
        assert!((90..=100).contains(&left), "{line}");
        assert!(line.ends_with(" f9\r\n"), "{line}");
        direct.expect(b"hi\r\n");
    }
}

#[test]
fn majority_of_copies_decides() {
    let servers = [(); 3].map(|()| Running::start(options()));
    let addresses = servers.each_ref().map(|server| server.addresses[0]);
    let proxy =
        routed(&addresses, PoolProtocol::Auto, replicate(ReplicaRead::Majority, ReplicaWrite::Majority));
    servers[0].connect().set(b"k", b"odd");
    servers[1].connect().set(b"k", b"same");
    servers[2].connect().set(b"k", b"same");
    let mut client = proxy.connect();
    ask(&mut client, "get k\r\n", "VALUE k 0 4\r\nsame\r\nEND\r\n");
    servers[2].connect().set(b"k", b"third");
    ask(&mut client, "get k\r\n", "VALUE k 0 3\r\nodd\r\nEND\r\n");
    servers[0].connect().set(b"only", b"v");
    ask(&mut client, "add only 0 0 1\r\nx\r\n", "STORED\r\n");
}

#[test]
fn one_pool_can_have_copies() {
    let servers = [(); 3].map(|()| Running::start(options()));
    let addresses = servers.each_ref().map(|server| server.addresses[0]);
    let pools = BTreeMap::from([("a".into(), pool(&addresses, PoolProtocol::Auto))]);
    let default = RouteTree::Replicate {
        pools: names(&["a"]),
        copies: 2,
        read: ReplicaRead::Fastest,
        write: ReplicaWrite::All,
        on_miss: true,
        repair: true,
    };
    let proxy = proxy(pools, ProxyRoutes { default, ..ProxyRoutes::to_pool("a") });
    let mut client = proxy.connect();
    for n in 0..50 {
        ask(&mut client, &format!("set k{n} 0 0 1\r\nx\r\n"), "STORED\r\n");
    }
    let counts = servers.each_ref().map(|server| server.connect().stat("curr_items").parse::<u32>().unwrap());
    assert_eq!(counts.iter().sum::<u32>(), 100);
    assert!(counts.iter().all(|count| *count < 50), "{counts:?}");
    ask(&mut client, "get k7 k8 none\r\n", "VALUE k7 0 1\r\nx\r\nVALUE k8 0 1\r\nx\r\nEND\r\n");
}

#[test]
fn new_pool_is_filled_from_the_old_one() {
    for speak in DIALECTS {
        let servers = [(); 2].map(|()| Running::start(options()));
        let addresses = servers.each_ref().map(|server| server.addresses[0]);
        let tree = RouteTree::WarmUp { new: "a".into(), old: "b".into(), ttl: None };
        let proxy = routed(&addresses, speak, tree);
        let (mut client, mut new, mut old) = (proxy.connect(), servers[0].connect(), servers[1].connect());
        for key in ["k", "n", "s", "d", "c"] {
            ask(&mut old, &format!("set {key} 4 0 1\r\n5\r\n"), "STORED\r\n");
        }
        ask(&mut client, "get k\r\nget k none\r\n", "VALUE k 4 1\r\n5\r\nEND\r\nVALUE k 4 1\r\n5\r\nEND\r\n");
        ask(&mut new, "get k\r\n", "VALUE k 4 1\r\n5\r\nEND\r\n");
        // A change of a record that only the old pool has moves it first.
        ask(&mut client, "incr n 2\r\nget n\r\n", "7\r\nVALUE n 4 1\r\n7\r\nEND\r\n");
        ask(&mut client, "add s 0 0 1\r\nx\r\n", "NOT_STORED\r\n");
        ask(&mut client, "delete d\r\nget d\r\n", "DELETED\r\nEND\r\n");
        ask(&mut client, "set c 0 0 1\r\nx\r\ndelete c\r\nget c\r\n", "STORED\r\nDELETED\r\nEND\r\n");
        eventually("the old pool has only what was read", || old.stat("curr_items") == "1");
        // The version is that of the new pool.
        ask(&mut old, "set v 0 0 1\r\n1\r\n", "STORED\r\n");
        client.send(b"gets v\r\n");
        let line = client.line();
        client.expect(b"1\r\nEND\r\n");
        let version = line.trim().rsplit(' ').next().unwrap();
        ask(&mut client, &format!("cas v 0 0 1 {version}\r\n2\r\n"), "STORED\r\n");
        ask(&mut client, "get v\r\n", "VALUE v 0 1\r\n2\r\nEND\r\n");
    }
}

/// The record may be at the old server, so its failure must not look as if there were none.
#[test]
fn failure_of_the_old_pool_is_no_miss() {
    for tree in [
        RouteTree::WarmUp { new: "a".into(), old: "b".into(), ttl: None },
        RouteTree::Migrate { new: "a".into(), old: "b".into(), start_ms: 0, over: Duration::from_secs(1) },
    ] {
        let server = Running::start(options());
        let proxy = routed(&[server.addresses[0], closed()], PoolProtocol::Meta, tree);
        let mut client = proxy.connect();
        for request in ["get k", "mg k v", "gets k", "incr k 1", "touch k 9", "delete k"] {
            client.send(format!("{request}\r\n").as_bytes());
            let reply = client.line();
            assert!(reply.starts_with("SERVER_ERROR server 127.0.0.1:"), "{request}: {reply}");
        }
        ask(&mut client, "set k 0 0 1\r\nx\r\nget k\r\n", "STORED\r\nVALUE k 0 1\r\nx\r\nEND\r\n");
        client.send(b"delete k\r\n");
        assert!(client.line().starts_with("SERVER_ERROR server 127.0.0.1:"));
    }
}

/// A record that an earlier request was moving came back after `flush_all`.
#[test]
fn flush_waits_for_requests_before_it() {
    let servers = [(); 2].map(|()| Running::start(options()));
    let addresses = servers.each_ref().map(|server| server.addresses[0]);
    let tree = RouteTree::WarmUp { new: "a".into(), old: "b".into(), ttl: None };
    let proxy = routed(&addresses, PoolProtocol::Meta, tree);
    ask(&mut servers[1].connect(), "set n 0 0 1\r\n5\r\n", "STORED\r\n");
    ask(&mut proxy.connect(), "incr n 1\r\nflush_all\r\nget n\r\n", "6\r\nOK\r\nEND\r\n");
}

#[test]
fn keys_move_at_their_time() {
    let servers = [(); 2].map(|()| Running::start(options()));
    let addresses = servers.each_ref().map(|server| server.addresses[0]);
    let moves = |start_ms| RouteTree::Migrate {
        new: "a".into(),
        old: "b".into(),
        start_ms,
        over: Duration::from_secs(1),
    };
    let before = routed(&addresses, PoolProtocol::Auto, moves(u64::MAX / 2));
    let after = routed(&addresses, PoolProtocol::Auto, moves(0));
    let (mut new, mut old) = (servers[0].connect(), servers[1].connect());
    // A write before the move leaves no older record in the new pool.
    ask(&mut new, "set k 0 0 1\r\nx\r\n", "STORED\r\n");
    ask(&mut before.connect(), "set k 0 0 1\r\n1\r\nget k\r\n", "STORED\r\nVALUE k 0 1\r\n1\r\nEND\r\n");
    eventually("the new pool has no record", || new.stat("curr_items") == "0");
    ask(&mut after.connect(), "get k\r\n", "VALUE k 0 1\r\n1\r\nEND\r\n");
    eventually("the new pool has the record", || new.stat("curr_items") == "1");
    ask(&mut new, "get k\r\n", "VALUE k 0 1\r\n1\r\nEND\r\n");
    ask(&mut after.connect(), "set k 0 0 1\r\n2\r\nget k\r\n", "STORED\r\nVALUE k 0 1\r\n2\r\nEND\r\n");
    eventually("the old pool has no record", || old.stat("curr_items") == "0");
}

/// The older record was deleted at the server that had just stored the newer one.
#[test]
fn server_of_two_pools_keeps_its_records() {
    let (new, old) = (|| "b".to_string(), || "a".to_string());
    let over = Duration::from_secs(1);
    for tree in [
        RouteTree::WarmUp { new: new(), old: old(), ttl: None },
        RouteTree::Migrate { new: new(), old: old(), start_ms: 0, over },
        RouteTree::Migrate { new: new(), old: old(), start_ms: u64::MAX, over },
        replicate(ReplicaRead::First, ReplicaWrite::All),
    ] {
        let server = Running::start(options());
        let proxy = routed(&[server.addresses[0]; 3], PoolProtocol::Auto, tree.clone());
        let mut client = proxy.connect();
        for number in 0..20 {
            ask(&mut client, &format!("set k{number} 0 0 1\r\n5\r\n"), "STORED\r\n");
            ask(&mut client, &format!("incr k{number} 2\r\n"), "7\r\n");
        }
        for number in 0..20 {
            let reply = format!("VALUE k{number} 0 1\r\n7\r\nEND\r\n");
            ask(&mut client, &format!("get k{number}\r\n"), &reply);
        }
        assert_eq!(server.connect().stat("delete_hits"), "0", "{tree:?}");
        ask(&mut client, "delete k1\r\n", "DELETED\r\n");
        ask(&mut client, "get k1\r\n", "END\r\n");
    }
}

#[test]
fn shadow_gets_copies_and_is_not_waited_for() {
    let servers = [(); 2].map(|()| Running::start(options()));
    let addresses = servers.each_ref().map(|server| server.addresses[0]);
    let shadow = |requests| RouteTree::Shadow {
        pool: "b".into(),
        share_ppm: 1_000_000,
        requests,
        with: Box::new(RouteTree::Pool("a".into())),
    };
    let proxy = routed(&addresses, PoolProtocol::Text, shadow(ShadowedRequests::Writes));
    let mut client = proxy.connect();
    ask(&mut client, "set k 0 0 1\r\nx\r\nget k\r\n", "STORED\r\nVALUE k 0 1\r\nx\r\nEND\r\n");
    eventually("the shadow has the record", || servers[1].connect().stat("curr_items") == "1");
    assert_eq!(servers[1].connect().stat("cmd_get"), "0");
    let proxy = routed(&[addresses[0], closed()], PoolProtocol::Text, shadow(ShadowedRequests::All));
    ask(&mut proxy.connect(), "get k\r\n", "VALUE k 0 1\r\nx\r\nEND\r\n");
}

#[test]
fn times_to_live_and_requests_are_limited() {
    let server = Running::start(options());
    let ttl = |with| RouteTree::Ttl { max: Duration::from_secs(50), with: Box::new(with) };
    let pool = || RouteTree::Pool("a".into());
    let proxy = routed(&[server.addresses[0]], PoolProtocol::Auto, ttl(pool()));
    let mut client = proxy.connect();
    let mut direct = server.connect();
    for (ttl, expected) in [(0, 50), (1_000_000, 50), (20, 20), (2_000_000_000, 50)] {
        ask(&mut client, &format!("set k 0 {ttl} 1\r\nx\r\n"), "STORED\r\n");
        direct.send(b"mg k t\r\n");
        let left: i64 = direct.line().trim().strip_prefix("HD t").unwrap().parse().unwrap();
        assert!((expected - 5..=expected).contains(&left), "{ttl}: {left}");
    }
    let limited = RouteTree::Limit { per_second: 0, with: Box::new(pool()) };
    let proxy = routed(&[server.addresses[0]], PoolProtocol::Auto, limited);
    ask(&mut proxy.connect(), "get k\r\n", "SERVER_ERROR limit of the route: busy\r\n");
}

#[test]
fn near_copies_answer_until_a_write() {
    let server = Running::start(options());
    let near = RouteTree::Near {
        with: Box::new(RouteTree::Pool("a".into())),
        ttl: Duration::from_secs(3600),
        bytes_max: 1 << 20,
        records_max: None,
        hot: false,
        coalesce: false,
        is_shared: false,
    };
    let proxy = routed(&[server.addresses[0]], PoolProtocol::Auto, near);
    let (mut client, mut direct) = (proxy.connect(), server.connect());
    ask(&mut client, "set k 7 0 3\r\none\r\n", "STORED\r\n");
    ask(&mut client, "get k\r\n", "VALUE k 7 3\r\none\r\nEND\r\n");
    // The proxy does not see this change.
    ask(&mut direct, "set k 0 0 3\r\ntwo\r\n", "STORED\r\n");
    ask(&mut client, "get k\r\nget none k\r\n", &"VALUE k 7 3\r\none\r\nEND\r\n".repeat(2));
    ask(&mut client, "mg k v f s O9\r\n", "VA 3 f7 s3 O9\r\none\r\n");
    client.send(b"gets k\r\n");
    assert!(client.line().starts_with("VALUE k 0 3 "));
    client.expect(b"two\r\nEND\r\n");
    ask(&mut client, "append k 0 0 1\r\n!\r\nget k\r\n", "STORED\r\nVALUE k 0 4\r\ntwo!\r\nEND\r\n");
    // The result of a read during a write is not kept.
    ask(&mut client, "get k\r\n", "VALUE k 0 4\r\ntwo!\r\nEND\r\n");
    ask(&mut direct, "set k 0 0 5\r\nthree\r\n", "STORED\r\n");
    ask(&mut client, "get k\r\n", "VALUE k 0 4\r\ntwo!\r\nEND\r\n");
    ask(&mut client, "flush_all\r\nget k\r\n", "OK\r\nEND\r\n");
}

/// A binary request.
fn packet(opcode: u8, opaque: u8, extras: &[u8], key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x80, opcode];
    bytes.extend_from_slice(&(key.len() as u16).to_be_bytes());
    bytes.extend_from_slice(&[extras.len() as u8, 0, 0, 0]);
    bytes.extend_from_slice(&((extras.len() + key.len() + value.len()) as u32).to_be_bytes());
    bytes.extend_from_slice(&[0, 0, 0, opaque]);
    bytes.extend_from_slice(&[0; 8]);
    [&bytes, extras, key, value].concat()
}

/// Reads responses up to the one with this opaque, and returns them without their versions.
fn responses(client: &mut Client, last: u8) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    loop {
        let mut response = client.take(24);
        let len = u32::from_be_bytes(response[8..12].try_into().unwrap()) as usize;
        response[16..24].fill(0);
        response.extend(client.take(len));
        let is_last = response[15] == last;
        all.push(response);
        if is_last {
            return all;
        }
    }
}

#[test]
fn binary_clients_are_answered_as_by_one_server() {
    let mut requests = Vec::new();
    let store = |flags: u32, ttl: u32| [flags.to_be_bytes(), ttl.to_be_bytes()].concat();
    let counter = |delta: u64, initial: u64, ttl: u32| {
        [&delta.to_be_bytes()[..], &initial.to_be_bytes(), &ttl.to_be_bytes()].concat()
    };
    for n in 0..20u8 {
        let key = format!("key:{n}");
        let key = key.as_bytes();
        requests.extend(packet(0x01, 1, &store(u32::from(n), 0), key, &vec![b'v'; usize::from(n) * 9]));
        requests.extend(packet(0x02, 2, &store(0, 0), key, b"x"));
        requests.extend(packet(0x03, 3, &store(0, 0), b"none", b"x"));
        requests.extend(packet(0x00, 4, b"", key, b""));
        requests.extend(packet(0x0c, 5, b"", key, b""));
        requests.extend(packet(0x0d, 6, b"", b"none", b""));
        requests.extend(packet(0x0c, 7, b"", b"none", b""));
        requests.extend(packet(0x0e, 8, b"", key, b"!"));
        requests.extend(packet(0x05, 9, &counter(3, 40, 0), &[b"n", key].concat(), b""));
        requests.extend(packet(0x05, 10, &counter(3, 40, 0), &[b"n", key].concat(), b""));
        requests.extend(packet(0x06, 11, &counter(3, 40, u32::MAX), b"none", b""));
        requests.extend(packet(0x05, 12, &counter(1, 0, 0), key, b""));
        requests.extend(packet(0x1c, 13, &100u32.to_be_bytes(), key, b""));
        requests.extend(packet(0x1d, 14, &100u32.to_be_bytes(), key, b""));
        requests.extend(packet(0x11, 15, &store(5, 0), b"quiet", b"q"));
        requests.extend(packet(0x04, 16, b"", b"quiet", b""));
        requests.extend(packet(0x04, 17, b"", b"quiet", b""));
        requests.extend(packet(0x0a, 18, b"", b"", b""));
        requests.extend(packet(0x0b, 19, b"", b"", b""));
    }
    requests.extend(packet(0x08, 90, b"", b"", b""));
    requests.extend(packet(0x00, 91, b"", b"key:1", b""));
    requests.extend(packet(0x55, 92, b"", b"", b""));
    let direct = Running::start(options());
    let mut client = direct.connect();
    client.send(&requests);
    let expected = responses(&mut client, 92);
    for speak in [PoolProtocol::Text, PoolProtocol::Meta, PoolProtocol::Auto, PoolProtocol::Binary] {
        let servers = [(); 3].map(|()| Running::start(options()));
        let addresses = servers.each_ref().map(|server| server.addresses[0]);
        let pools = BTreeMap::from([("a".into(), pool(&addresses, speak))]);
        let proxy = proxy(pools, ProxyRoutes::to_pool("a"));
        let mut client = proxy.connect();
        client.send(&requests);
        let answered = responses(&mut client, 92);
        for (number, (one, other)) in expected.iter().zip(&answered).enumerate() {
            let texts = [one, other].map(|response| response.escape_ascii().to_string());
            assert_eq!(texts[0], texts[1], "{speak:?}, response {number}");
        }
        assert_eq!(expected.len(), answered.len());
    }
}

#[test]
fn text_clients_are_served_by_binary_servers() {
    let servers = [(); 3].map(|()| Running::start(options()));
    let addresses = servers.each_ref().map(|server| server.addresses[0]);
    let pools = BTreeMap::from([("a".into(), pool(&addresses, PoolProtocol::Binary))]);
    let proxy = proxy(pools, ProxyRoutes::to_pool("a"));
    let mut client = proxy.connect();
    ask(&mut client, "set a 5 0 1\r\n1\r\nset b 0 0 1\r\n2\r\n", "STORED\r\nSTORED\r\n");
    ask(&mut client, "get a none b\r\n", "VALUE a 5 1\r\n1\r\nVALUE b 0 1\r\n2\r\nEND\r\n");
    ask(&mut client, "mg a v f k\r\nmg none v\r\nmn\r\n", "VA 1 f5 ka\r\n1\r\nEN\r\nMN\r\n");
    ask(&mut client, "incr a 4 noreply\r\nincr a 1\r\n", "6\r\n");
    ask(&mut client, "touch a 10\r\ngat 0 a\r\n", "TOUCHED\r\nVALUE a 5 1\r\n6\r\nEND\r\n");
    ask(&mut client, "mg a t\r\n", "CLIENT_ERROR not spoken by the server\r\n");
    ask(&mut client, "delete a\r\ndelete a\r\n", "DELETED\r\nNOT_FOUND\r\n");
}

/// The head of a value above 1 MiB was once dropped, so that routes found no record or an error.
#[test]
fn routes_pass_on_values_above_one_mebibyte() {
    let value = "v".repeat(2 << 20);
    let reply = format!("VALUE k 0 {}\r\n{value}\r\nEND\r\n", value.len());
    let failover =
        RouteTree::Failover { pools: names(&["a", "b"]), on_miss: true, ttl: Duration::from_secs(10) };
    let pair = |read| RouteTree::Replicate {
        pools: names(&["a", "b"]),
        copies: 1,
        read,
        write: ReplicaWrite::All,
        on_miss: true,
        repair: false,
    };
    let warm_up = RouteTree::WarmUp { new: "a".into(), old: "b".into(), ttl: None };
    let trees = [failover, pair(ReplicaRead::First), pair(ReplicaRead::Fastest), warm_up];
    for speak in [PoolProtocol::Text, PoolProtocol::Meta, PoolProtocol::Binary] {
        for tree in &trees {
            let servers = [(); 2].map(|()| Running::start(ServerOptions { limits: large(), ..options() }));
            let addresses = servers.each_ref().map(|server| server.addresses[0]);
            servers[1].connect().set(b"k", value.as_bytes());
            let proxy = routed(&addresses, speak, tree.clone());
            ask(&mut proxy.connect(), "get k\r\n", &reply);
            ask(&mut proxy.connect(), "get none k\r\n", &reply);
        }
    }
}

/// Limits of a server that stores values of several mebibytes.
fn large() -> LimitOptions {
    LimitOptions { item_size_max: 8 << 20, ..LimitOptions::default() }
}

/// The reply to a conditional store once did not wait for the other copies.
#[test]
fn reply_waits_for_all_copies() {
    let first = Running::start(options());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addresses = [first.addresses[0], listener.local_addr().unwrap()];
    let tree = RouteTree::Replicate {
        pools: names(&["a", "b"]),
        copies: 1,
        read: ReplicaRead::Random,
        write: ReplicaWrite::All,
        on_miss: true,
        repair: false,
    };
    let proxy = routed(&addresses, PoolProtocol::Meta, tree);
    first.connect().set(b"k", b"1");
    let mut client = proxy.connect();
    for (request, copied, reply) in [
        ("ms k 1 C0 MS\r\nx\r\n", "", "EX\r\n"),
        ("incr k 2\r\n", "md k\r\n", "3\r\n"),
        ("append k 0 0 1\r\nx\r\n", "md k\r\n", "STORED\r\n"),
    ] {
        client.send(request.as_bytes());
        if !copied.is_empty() {
            let mut second = listener.accept().unwrap().0;
            let mut bytes = vec![0; copied.len()];
            second.read_exact(&mut bytes).unwrap();
            assert_eq!(bytes, copied.as_bytes());
            // The client has no reply while the copy has not lost the record.
            client.stream.set_nonblocking(true).unwrap();
            assert_eq!(client.stream.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
            client.stream.set_nonblocking(false).unwrap();
            second.write_all(b"NF\r\n").unwrap();
        }
        client.expect(reply.as_bytes());
    }
}
