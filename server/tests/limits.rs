//! Tests idle connections, and connections beyond the limit.

mod running;

use running::{Running, eventually, options};
use std::io::Read;
use todana_server::{LimitOptions, ServerOptions};

#[test]
fn idle_connections_are_closed_silently_and_counted() {
    let server = Running::start(ServerOptions {
        limits: LimitOptions { idle_timeout_s: 1, threads: 2, ..options().limits },
        ..options()
    });
    let mut silent = server.connect();
    let mut served = server.connect();
    let mut halfway = server.connect();
    served.expect_version();
    halfway.send(b"set k 0 0 10\r\nhalf");
    // The reads end when the server closes. Otherwise, they would fail after their timeout.
    for client in [&mut silent, &mut served, &mut halfway] {
        assert_eq!(client.rest(), b"");
    }
    let mut client = server.connect();
    assert_eq!(client.stat("idle_kicks"), "3");
    assert!(client.stats(" settings").contains(&("idle_timeout".into(), "1".into())));
}

#[test]
fn connection_with_unread_replies_is_not_idle() {
    let server = Running::start(ServerOptions {
        limits: LimitOptions { idle_timeout_s: 1, ..options().limits },
        ..options()
    });
    let mut slow = server.connect();
    let value = vec![b'v'; 1_000_000];
    slow.set(b"k", &value);
    // This is more than the sockets can buffer, so that a part stays in the server.
    slow.send(&b"get k\r\n".repeat(40));
    let mut witness = server.connect();
    // The server would have closed the slow connection before this one.
    assert_eq!(witness.rest(), b"");
    for _ in 0..40 {
        slow.expect(&[b"VALUE k 0 1000000\r\n", &value[..], b"\r\nEND\r\n"].concat());
    }
}

#[test]
fn idle_kicks_are_absent_without_a_limit() {
    let server = Running::start(options());
    let stats = server.connect().stats("");
    assert!(stats.iter().all(|(name, _)| name != "idle_kicks"));
}

#[test]
fn connections_over_the_limit_get_an_error() {
    let server = Running::start(ServerOptions {
        limits: LimitOptions { connections_max: 2, ..options().limits },
        ..options()
    });
    let (mut first, mut second) = (server.connect(), server.connect());
    first.expect_version();
    second.expect_version();
    assert_eq!(server.connect().rest(), b"ERROR Too many open connections\r\n");
    assert_eq!(first.stat("rejected_connections"), "1");
    assert_eq!(first.stat("listen_disabled_num"), "0");
    drop(second);
    eventually("the place of one that has gone is free", || first.stat("curr_connections") == "1");
    server.connect().expect_version();
}

#[test]
fn or_they_wait_until_there_is_room() {
    let server = Running::start(ServerOptions {
        limits: LimitOptions { connections_max: 2, connections_refused: false, ..options().limits },
        ..options()
    });
    let (mut first, mut second) = (server.connect(), server.connect());
    first.expect_version();
    second.expect_version();
    let mut third = server.connect();
    third.send(b"version\r\n");
    eventually("accepting pauses", || first.stat("accepting_conns") == "0");
    third.stream.set_nonblocking(true).unwrap();
    assert_eq!(third.stream.read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    third.stream.set_nonblocking(false).unwrap();
    drop(second);
    third.expect(b"VERSION 1.6.45\r\n");
    assert_eq!(first.stat("rejected_connections"), "0");
    // All failed attempts count as one pause. A second pause may have begun, because the limit is
    // reached again.
    let pauses: u64 = first.stat("listen_disabled_num").parse().unwrap();
    assert!((1..=2).contains(&pauses), "{pauses}");
    assert_ne!(first.stat("time_in_listen_disabled_us"), "0");
    assert!(first.stats(" settings").contains(&("maxconns_fast".into(), "no".into())));
}

/// memcached counts a yield if a connection has been served `-R` requests and has more to send. The
/// last turn does not count.
#[test]
fn a_yield_is_a_turn_cut_short() {
    let server = Running::start(ServerOptions {
        limits: LimitOptions { threads: 1, ..options().limits },
        ..options()
    });
    let mut asker = server.connect();
    let mut yields = 0;
    for (requests, more) in [(1, 0), (20, 0), (21, 1), (40, 1), (41, 2), (100, 4)] {
        let mut client = server.connect();
        client.send(&b"mn\r\n".repeat(requests));
        client.expect(&b"MN\r\n".repeat(requests));
        yields += more;
        assert_eq!(asker.stat("conn_yields"), yields.to_string(), "after {requests} requests");
    }
    let keys: String = (0..100).map(|key| format!(" k{key}")).collect();
    asker.send(format!("get{keys}\r\n").as_bytes());
    asker.expect(b"END\r\n");
    assert_eq!(asker.stat("conn_yields"), yields.to_string(), "the keys of a line are one request");
}

#[test]
fn a_reset_takes_the_counters_of_connections_back() {
    let server = Running::start(ServerOptions {
        limits: LimitOptions {
            connections_max: 1,
            connections_refused: true,
            threads: 1,
            ..options().limits
        },
        ..options()
    });
    let mut client = server.connect();
    client.send(&b"mn\r\n".repeat(21));
    client.expect(&b"MN\r\n".repeat(21));
    assert_eq!(server.connect().rest(), b"ERROR Too many open connections\r\n");
    assert_eq!((client.stat("conn_yields"), client.stat("rejected_connections")), ("1".into(), "1".into()));
    client.send(b"stats reset\r\n");
    client.expect(b"RESET\r\n");
    let stats = client.stats("");
    let stat = |name: &str| stats.iter().find(|(found, _)| found == name).unwrap().1.clone();
    for name in ["conn_yields", "rejected_connections", "total_connections", "listen_disabled_num"] {
        assert_eq!(stat(name), "0", "{name}");
    }
    assert_eq!(stat("time_in_listen_disabled_us"), "0");
    assert_eq!(stat("curr_connections"), "1");
    // memcached also counts the request that asks.
    assert_eq!(stat("bytes_read"), "7");
}
