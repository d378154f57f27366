//! Kyoto Tycoon's and Tokyo Tyrant's clients of a proxy, whose records are in memcached's servers.

use crate::kyoto_client;
use crate::running;
use crate::tyrant_client;

use kyoto_client::{answer, call, store_many};
use running::{Client, Running, options};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::time::Duration;
use todana_protocol::tyrant::{TyrantPutMode, TyrantRequest};
use todana_server::{
    LimitOptions, ListenerPlace, ListenerProtocol, PoolOptions, PoolProtocol, ProxyListener, ProxyOptions,
    ProxyRoutes, RouteTree, ServerOptions, WhenDown,
};

const DIALECTS: [PoolProtocol; 3] = [PoolProtocol::Text, PoolProtocol::Auto, PoolProtocol::Binary];

fn pool(servers: &[SocketAddr], speak: PoolProtocol) -> PoolOptions {
    let servers = servers.iter().map(|address| address.to_string().parse().unwrap());
    let retry = Duration::from_millis(20);
    PoolOptions {
        servers: servers.collect(),
        speak,
        when_down: WhenDown::Error,
        retry,
        ..PoolOptions::default()
    }
}

/// A proxy with a listener for each protocol: memcached's, Kyoto Tycoon's, and Tokyo Tyrant's.
fn proxy(pools: BTreeMap<String, PoolOptions>, default: RouteTree) -> Running {
    let listener = |protocol| {
        let place = ListenerPlace::Tcp("127.0.0.1:0".into());
        ProxyListener { protocol, ..ProxyListener::new(place, None) }
    };
    let listeners = ListenerProtocol::ALL.map(|(_, protocol)| listener(protocol)).to_vec();
    let routes = ProxyRoutes { default, prefixes: Vec::new(), commands: BTreeMap::new() };
    let proxy = ProxyOptions { listeners, pools, routes: Some(routes), ..ProxyOptions::default() };
    let limits = LimitOptions { threads: 1, ..options().limits };
    Running::start(ServerOptions { proxy: Some(proxy), limits, ..options() })
}

/// Three servers and a proxy of them.
fn ring(speak: PoolProtocol) -> ([Running; 3], Running) {
    let servers = [(); 3].map(|()| Running::start(options()));
    let addresses = servers.each_ref().map(|server| server.addresses[0]);
    let pools = BTreeMap::from([("main".to_string(), pool(&addresses, speak))]);
    let proxy = proxy(pools, RouteTree::Pool("main".into()));
    (servers, proxy)
}

fn memcached(proxy: &Running) -> Client {
    proxy.connect_to(proxy.addresses[0])
}

fn kyoto(proxy: &Running) -> Client {
    proxy.connect_to(proxy.addresses[1])
}

fn tyrant(proxy: &Running) -> Client {
    proxy.connect_to(proxy.addresses[2])
}

/// Sends a call of Kyoto Tycoon, and compares its answer.
fn ask(client: &mut Client, name: &str, map: &str, status: u16, body: &str) {
    client.send(&call(name, map));
    let (found, text) = answer(client);
    assert_eq!((found, &*String::from_utf8(text).unwrap()), (status, body), "{name} {map:?}");
}

fn request(client: &mut Client, request: &TyrantRequest<'_>, reply: &[u8]) {
    tyrant_client::ask(client, request, reply);
}

#[test]
fn calls_and_requests_reach_the_same_records() {
    for speak in DIALECTS {
        let (servers, proxy) = ring(speak);
        let (mut plain, mut kyoto, mut tyrant) = (memcached(&proxy), kyoto(&proxy), tyrant(&proxy));
        for n in 0..20 {
            let (key, value) = (format!("key:{n}"), format!("value {n}"));
            ask(&mut kyoto, "set", &format!("key\t{key}\nvalue\t{value}\n"), 200, "");
            plain.expect_value(key.as_bytes(), value.as_bytes());
            let found = [&[0, 0, 0, 0, value.len() as u8], value.as_bytes()].concat();
            request(&mut tyrant, &TyrantRequest::Get { key: key.as_bytes() }, &found);
            plain.set(key.as_bytes(), b"changed");
            ask(&mut kyoto, "get", &format!("key\t{key}\n"), 200, "value\tchanged\n");
        }
        for server in &servers {
            server.connect().send(b"stats\r\n");
        }
    }
}

#[test]
fn calls_have_the_effect_of_kyoto_tycoon() {
    for speak in DIALECTS {
        let (_servers, proxy) = ring(speak);
        let client = &mut kyoto(&proxy);
        ask(client, "get", "key\ta\n", 450, "ERROR\tDB: 7: no record: no record\n");
        ask(client, "add", "key\ta\nvalue\t1\n", 200, "");
        ask(
            client,
            "add",
            "key\ta\nvalue\t2\n",
            450,
            "ERROR\tDB: 6: record duplication: record duplication\n",
        );
        ask(client, "replace", "key\tnone\nvalue\t2\n", 450, "ERROR\tDB: 7: no record: no record\n");
        ask(client, "replace", "key\ta\nvalue\t2\n", 200, "");
        ask(client, "append", "key\ta\nvalue\t3\n", 200, "");
        ask(client, "append", "key\tnew\nvalue\tpiece\n", 200, "");
        ask(client, "get", "key\ta\n", 200, "value\t23\n");
        ask(client, "get", "key\tnew\n", 200, "value\tpiece\n");
        ask(client, "check", "key\ta\n", 200, "vsiz\t2\n");
        ask(client, "increment", "key\tsum\nnum\t5\n", 200, "num\t5\n");
        ask(client, "increment", "key\tsum\nnum\t-7\n", 200, "num\t-2\n");
        ask(client, "increment_double", "key\treal\nnum\t1.5\n", 200, "num\t1.500000\n");
        ask(client, "increment_double", "key\treal\nnum\t1.5\n", 200, "num\t3.000000\n");
        ask(client, "cas", "key\ta\noval\t23\nnval\t24\n", 200, "");
        ask(
            client,
            "cas",
            "key\ta\noval\t23\nnval\t25\n",
            450,
            "ERROR\tDB: 8: logical inconsistency: status conflict\n",
        );
        ask(client, "cas", "key\tb\nnval\tnew\n", 200, "");
        ask(client, "get", "key\ta\n", 200, "value\t24\n");
        ask(client, "remove", "key\ta\n", 200, "");
        ask(client, "remove", "key\ta\n", 450, "ERROR\tDB: 7: no record: no record\n");
        if speak != PoolProtocol::Text {
            ask(client, "cas", "key\tb\noval\tnew\n", 200, "");
            ask(client, "get", "key\tb\n", 450, "ERROR\tDB: 7: no record: no record\n");
            ask(client, "seize", "key\tnew\n", 200, "value\tpiece\n");
            ask(client, "get", "key\tnew\n", 450, "ERROR\tDB: 7: no record: no record\n");
        }
        ask(client, "clear", "", 200, "");
        ask(client, "get", "key\tsum\n", 450, "ERROR\tDB: 7: no record: no record\n");
    }
}

#[test]
fn bulk_calls_are_divided_by_server() {
    for speak in DIALECTS {
        let (_servers, proxy) = ring(speak);
        let client = &mut kyoto(&proxy);
        ask(client, "set_bulk", "_a\t1\n_b\t2\n_c\t3\n_a\t4\n", 200, "num\t3\n");
        ask(client, "get_bulk", "_c\t\n_none\t\n_a\t\n_b\t\n", 200, "_a\t4\n_b\t2\n_c\t3\nnum\t3\n");
        ask(client, "remove_bulk", "_a\t\n_none\t\n_b\t\n", 200, "num\t2\n");
        ask(client, "get_bulk", "_a\t\n_c\t\n", 200, "_c\t3\nnum\t1\n");
        // The binary protocol.
        store_many(client, 0..100, b"value");
        let mut get = [&[0xBA][..], &[0, 0, 0, 0], &2u32.to_be_bytes()].concat();
        for key in ["00000099", "missing"] {
            get.extend([&[0, 0][..], &(key.len() as u32).to_be_bytes(), key.as_bytes()].concat());
        }
        client.send(&get);
        let head =
            [&[0xBA][..], &1u32.to_be_bytes(), &[0, 0], &8u32.to_be_bytes(), &5u32.to_be_bytes()].concat();
        client.expect(&head);
        client.take(8);
        client.expect(b"00000099value");
    }
}

#[test]
fn times_of_expiry_are_kept() {
    for speak in DIALECTS {
        let (servers, proxy) = ring(speak);
        let client = &mut kyoto(&proxy);
        ask(client, "set", "key\ta\nvalue\t1\nxt\t1000\n", 200, "");
        ask(client, "set", "key\tb\nvalue\t1\nxt\t-4102444800\n", 200, "");
        ask(client, "set", "key\tc\nvalue\t1\nxt\t-1000000000\n", 200, "");
        ask(client, "get", "key\tc\n", 450, "ERROR\tDB: 7: no record: no record\n");
        let left = |key: &str| -> i64 {
            let left = servers.iter().find_map(|server| {
                let mut direct = server.connect();
                direct.send(format!("mg {key} t\r\n").as_bytes());
                direct.line().trim().strip_prefix("HD t")?.parse().ok()
            });
            left.unwrap()
        };
        assert!((900..=1001).contains(&left("a")), "{}", left("a"));
        assert!(left("b") > 100_000_000);
        client.send(&call("get", "key\ta\n"));
        let body = String::from_utf8(answer(client).1).unwrap();
        if speak == PoolProtocol::Auto {
            let time: u64 = body.strip_prefix("value\t1\nxt\t").unwrap().trim().parse().unwrap();
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
            assert!((now + 900..=now + 1000).contains(&time), "{time}");
        } else {
            assert_eq!(body, "value\t1\n");
        }
    }
}

#[test]
fn resources_are_records() {
    let (_servers, proxy) = ring(PoolProtocol::Auto);
    let client = &mut kyoto(&proxy);
    client.send(b"PUT /a%20b HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi");
    assert_eq!(answer(client).0, 201);
    client.send(b"GET /a%20b HTTP/1.1\r\n\r\n");
    assert_eq!(answer(client), (200, b"hi".to_vec()));
    client.send(b"DELETE /a%20b HTTP/1.1\r\n\r\n");
    assert_eq!(answer(client).0, 204);
    client.send(b"GET /a%20b HTTP/1.1\r\n\r\n");
    assert_eq!(answer(client).0, 404);
}

#[test]
fn increments_of_many_clients_are_all_counted() {
    for speak in DIALECTS {
        let (_servers, proxy) = ring(speak);
        let (mut clients, mut sums): (Vec<Client>, Vec<i64>) =
            ((0..8).map(|_| kyoto(&proxy)).collect(), vec![]);
        for _ in 0..5 {
            clients.iter_mut().for_each(|client| client.send(&call("increment", "key\tsum\nnum\t1\n")));
            for client in &mut clients {
                let (status, body) = answer(client);
                assert_eq!(status, 200);
                let body = String::from_utf8(body).unwrap();
                sums.push(body.trim().strip_prefix("num\t").unwrap().parse().unwrap());
            }
        }
        sums.sort_unstable();
        assert_eq!(sums, (1..=40).collect::<Vec<i64>>());
    }
}

#[test]
fn calls_without_a_counterpart_are_refused() {
    let (_servers, proxy) = ring(PoolProtocol::Auto);
    let client = &mut kyoto(&proxy);
    for name in [
        "report",
        "status",
        "iterate",
        "synchronize",
        "vacuum",
        "play_script",
        "tune_replication",
        "match_prefix",
        "match_regex",
        "match_similar",
        "cur_jump",
        "cur_get",
        "cur_delete",
        "ulog_list",
    ] {
        let (status, body) = match name {
            "iterate" => (501, "ERROR\tnot implemented: iterate\n".to_string()),
            _ => (501, "ERROR\tDB: 1: not implemented: not through a proxy\n".to_string()),
        };
        ask(client, name, "CUR\t1\nkey\ta\nprefix\ta\n", status, &body);
    }
    ask(client, "set_bulk", "atomic\t\n_a\t1\n", 501, "ERROR\tDB: 1: not implemented: not implemented\n");
    let key = "k".repeat(251);
    let failed = "ERROR\tDB: 2: invalid operation: the engine does not take this\n";
    ask(client, "set", &format!("key\t{key}\nvalue\t1\n"), 500, failed);
    ask(client, "set_bulk", &format!("_a\t1\n_{key}\t1\n"), 500, failed);
    let many: String = (0..10_001).map(|n| format!("_{n}\t1\n")).collect();
    let too_many = "ERROR\tDB: 9: system error: more than 10000 records in one call\n";
    ask(client, "set_bulk", &many, 500, too_many);
    ask(client, "get", "key\t0\n", 450, "ERROR\tDB: 7: no record: no record\n");
    // Signals need no database.
    ask(client, "void", "SIGNAL\tsig\n", 200, "SIGNALED\t0\n");
    let mut client = tyrant(&proxy);
    for one in [
        TyrantRequest::RNum,
        TyrantRequest::Size,
        TyrantRequest::Stat,
        TyrantRequest::IterInit,
        TyrantRequest::IterNext,
        TyrantRequest::Sync,
        TyrantRequest::Optimize { tuning: b"" },
        TyrantRequest::AddInt { key: b"a", delta: 1 },
        TyrantRequest::PutShl { key: b"a", value: b"1", width: 1 },
        TyrantRequest::Copy { path: b"/nowhere" },
    ] {
        request(&mut client, &one, &[1]);
    }
}

#[test]
fn requests_have_the_effect_of_tokyo_tyrant() {
    for speak in DIALECTS {
        let (_servers, proxy) = ring(speak);
        let client = &mut tyrant(&proxy);
        let put = |mode, key: &'static str, value: &'static str| TyrantRequest::Put {
            mode,
            key: key.as_bytes(),
            value: value.as_bytes(),
        };
        request(client, &TyrantRequest::Get { key: b"a" }, &[1]);
        request(client, &put(TyrantPutMode::Put, "a", "one"), &[0]);
        request(client, &put(TyrantPutMode::Keep, "a", "two"), &[1]);
        request(client, &put(TyrantPutMode::Keep, "b", "two"), &[0]);
        request(client, &put(TyrantPutMode::Cat, "a", "!"), &[0]);
        request(client, &put(TyrantPutMode::Cat, "new", "piece"), &[0]);
        request(client, &put(TyrantPutMode::NoReply, "silent", "1"), &[]);
        request(client, &TyrantRequest::Get { key: b"a" }, b"\0\0\0\0\x04one!");
        request(client, &TyrantRequest::Get { key: b"new" }, b"\0\0\0\0\x05piece");
        request(client, &TyrantRequest::VSiz { key: b"a" }, b"\0\0\0\0\x04");
        request(client, &TyrantRequest::Get { key: b"silent" }, b"\0\0\0\0\x011");
        let keys: Vec<u8> = [&b"b"[..], b"none", b"a"]
            .iter()
            .flat_map(|key| [&(key.len() as u32).to_be_bytes()[..], key].concat())
            .collect();
        client.send(&[&[0xC8, 0x31][..], &3u32.to_be_bytes(), &keys].concat());
        client.expect(b"\0\0\0\0\x02\0\0\0\x01\0\0\0\x03btwo\0\0\0\x01\0\0\0\x04aone!");
        request(client, &TyrantRequest::Out { key: b"a" }, &[0]);
        request(client, &TyrantRequest::Out { key: b"a" }, &[1]);
        // A pipeline keeps its order.
        let mut bytes = Vec::new();
        for n in 0..50 {
            let value = format!("{n:02}");
            TyrantRequest::Put { mode: TyrantPutMode::Put, key: b"k", value: value.as_bytes() }
                .encode(&mut bytes);
            TyrantRequest::Get { key: b"k" }.encode(&mut bytes);
        }
        client.send(&bytes);
        for n in 0..50 {
            client.expect(&[b"\0\0\0\0\0\x02", format!("{n:02}").as_bytes()].concat());
        }
        request(client, &TyrantRequest::Vanish, &[0]);
        request(client, &TyrantRequest::Get { key: b"b" }, &[1]);
    }
}

#[test]
fn failed_server_is_an_error_of_the_protocol() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let server = Running::start(options());
    let pools =
        [("a", pool(&[closed], PoolProtocol::Auto)), ("b", pool(&[server.addresses[0]], PoolProtocol::Auto))];
    let pools: BTreeMap<String, PoolOptions> = pools.map(|(name, pool)| (name.to_string(), pool)).into();
    let failing = proxy(pools.clone(), RouteTree::Pool("a".into()));
    let failed = "ERROR\tDB: 9: system error: the server of the record has not executed the call\n";
    let client = &mut kyoto(&failing);
    for (name, map) in [
        ("get", "key\ta\n"),
        ("set", "key\ta\nvalue\t1\n"),
        ("add", "key\ta\nvalue\t1\n"),
        ("increment", "key\ta\nnum\t1\n"),
        ("remove", "key\ta\n"),
        ("get_bulk", "_a\t\n_b\t\n"),
        ("clear", ""),
    ] {
        ask(client, name, map, 500, failed);
    }
    request(&mut tyrant(&failing), &TyrantRequest::Get { key: b"a" }, &[1]);
    // Routes apply to calls, too.
    let names = vec!["a".to_string(), "b".to_string()];
    let failover = RouteTree::Failover { pools: names, on_miss: false, ttl: Duration::from_secs(10) };
    let proxy = proxy(pools, failover);
    let client = &mut kyoto(&proxy);
    ask(client, "set", "key\ta\nvalue\t1\n", 200, "");
    ask(client, "increment", "key\tsum\nnum\t3\n", 200, "num\t3\n");
    server.connect().expect_value(b"a", b"1");
}

#[test]
fn garbage_ends_only_its_own_connection() {
    let (_servers, proxy) = ring(PoolProtocol::Auto);
    let (mut calls, mut requests) = (kyoto(&proxy), tyrant(&proxy));
    let mut state = 7u64;
    let mut random = |len: usize| -> Vec<u8> {
        let next = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        (0..len).map(next).collect()
    };
    let heads: [&[u8]; 8] =
        [b"get a\r\n", b"\xC8", b"\xB8", b"\xBA", b"\xB4", b"\xB1", b"POST /rpc/set HTTP/1.1\r\n", b"\x80"];
    for head in heads {
        for address in &proxy.addresses[1..] {
            for round in 0..20 {
                let mut client = proxy.connect_to(*address);
                let _ = client.stream.write_all(&[head, &random(round * 9)].concat());
                let _ = client.stream.shutdown(Shutdown::Write);
                let _ = client.stream.read_to_end(&mut Vec::new());
            }
        }
    }
    ask(&mut calls, "set", "key\ta\nvalue\t1\n", 200, "");
    request(&mut requests, &TyrantRequest::Get { key: b"a" }, b"\0\0\0\0\x011");
}

#[test]
fn operation_of_a_reset_client_is_not_continued() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let options = PoolOptions { reply_timeout: None, ..pool(&[address], PoolProtocol::Text) };
    let pools = BTreeMap::from([("a".to_string(), options)]);
    let proxy = proxy(pools, RouteTree::Pool("a".into()));
    let mut client = kyoto(&proxy);
    client.send(&call("increment", "key\ta\nnum\t1\n"));
    let mut server = silent.accept().unwrap().0;
    let mut expect = |bytes: &[u8]| {
        let mut received = vec![0; bytes.len()];
        server.read_exact(&mut received).unwrap();
        assert_eq!(received.escape_ascii().to_string(), bytes.escape_ascii().to_string());
        server.try_clone().unwrap()
    };
    expect(b"gets a\r\n");
    socket2::SockRef::from(&client.stream).set_linger(Some(Duration::ZERO)).unwrap();
    drop(client);
    let mut other = kyoto(&proxy);
    other.send(&call("get", "key\tb\n"));
    // The record of the first client is not stored before this request.
    let mut server = expect(b"get b\r\n");
    server.write_all(b"END\r\nVALUE b 0 1\r\n1\r\nEND\r\n").unwrap();
    assert_eq!(answer(&mut other), (200, b"value\t1\n".to_vec()));
}
