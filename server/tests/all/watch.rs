//! Tests connections that watch events, and the list of all connections.

use crate::running;

use running::{Client, Running, eventually, options};
use std::collections::BTreeSet;
use std::io::Write;
use todana::DatabaseName;
use todana_server::{
    DatabaseOptions, LimitOptions, MemoryOptions, ObservationOptions, ProtocolOptions, ServerOptions,
};

/// Reads the line of an event and removes its time, its number and the descriptor of its
/// connection.
fn event(watcher: &mut Client) -> String {
    let line = watcher.line();
    let (time, rest) = line.strip_prefix("ts=").and_then(|line| line.split_once(" gid=")).expect(&line);
    let (seconds, micros) = time.split_once('.').expect("seconds and microseconds");
    assert!(seconds.parse::<u64>().is_ok() && micros.len() == 6 && micros.parse::<u32>().is_ok(), "{time}");
    let (_, rest) = rest.split_once(" type=").expect("a type");
    let words: Vec<&str> = rest.split_whitespace().filter(|word| !word.starts_with("cfd=")).collect();
    words.join(" ")
}

fn watch(server: &Running, streams: &str) -> Client {
    let mut watcher = server.connect();
    watcher.send(format!("watch {streams}\r\n").as_bytes());
    watcher.expect(b"OK\r\n");
    watcher
}

#[test]
fn watcher_sees_reads_stores_and_deletions() {
    let server = Running::start(options());
    let mut watcher = watch(&server, "fetchers mutations deletions");
    let mut client = server.connect();
    for (request, reply, events) in [
        (
            "set a%b 0 100 2\r\nxy\r\n",
            "STORED\r\n",
            &[
                "item_get key=a%25b status=not_found clsid=0 size=0",
                "item_store key=a%25b status=stored cmd=set ttl=100 clsid=1 size=2",
            ][..],
        ),
        (
            "get a%b none\r\n",
            "VALUE a%b 0 2\r\nxy\r\nEND\r\n",
            &[
                "item_get key=a%25b status=found clsid=1 size=2",
                "item_get key=none status=not_found clsid=0 size=0",
            ],
        ),
        ("append a%b 0 0 100\r\n", "", &[]),
        (
            &format!("{}\r\n", "z".repeat(100)),
            "STORED\r\n",
            &[
                "item_get key=a%25b status=found clsid=1 size=2",
                "item_store key=a%25b status=stored cmd=append ttl=0 clsid=4 size=102",
            ],
        ),
        (
            "cas none 0 0 1 5\r\nx\r\n",
            "NOT_FOUND\r\n",
            &[
                "item_get key=none status=not_found clsid=0 size=0",
                "item_store key=none status=not_found cmd=cas ttl=0 clsid=1 size=1",
            ],
        ),
        (
            "set dead 0 -1 1\r\nx\r\n",
            "STORED\r\n",
            &[
                "item_get key=dead status=not_found clsid=0 size=0",
                "item_store key=dead status=stored cmd=set ttl=-1 clsid=1 size=1",
            ],
        ),
        ("mg dead v\r\n", "EN\r\n", &["item_get key=dead status=expired clsid=0 size=0"]),
        (
            "ma n N30 J5\r\n",
            "HD\r\n",
            &[
                "item_get key=n status=not_found clsid=0 size=0",
                "item_store key=n status=stored cmd=add ttl=30 clsid=1 size=1",
            ],
        ),
        (
            "delete a%b\r\n",
            "DELETED\r\n",
            &[
                "item_get key=a%25b status=found clsid=4 size=102",
                "deleted key=a%25b cmd=delete clsid=4 size=102",
            ],
        ),
        (
            "md n\r\n",
            "HD\r\n",
            &["item_get key=n status=found clsid=1 size=1", "deleted key=n cmd=md clsid=1 size=1"],
        ),
        ("delete n\r\n", "NOT_FOUND\r\n", &["item_get key=n status=not_found clsid=0 size=0"]),
    ] {
        client.send(request.as_bytes());
        client.expect(reply.as_bytes());
        for expected in events {
            assert_eq!(event(&mut watcher), *expected, "{request}");
        }
    }
    assert_eq!(client.stat("log_watchers"), "1");
    assert_eq!(client.stat("log_watcher_skipped"), "0");
    assert_ne!(client.stat("log_watcher_sent"), "0");
}

#[test]
fn watcher_sees_connections_requests_and_system_events() {
    let server = Running::start(options());
    let mut connections = watch(&server, "connevents");
    let mut requests = watch(&server, "rawcmds sysevents");
    let rest =
        |event: String| event.split_once(" rport=").map(|(before, _)| before.to_string()).unwrap_or(event);
    // This is the connection of the second watcher.
    assert_eq!(rest(event(&mut connections)), "conn_new rip=127.0.0.1");
    let mut client = server.connect();
    assert_eq!(rest(event(&mut connections)), "conn_new rip=127.0.0.1");
    client.send(b"set k 0 0 1\r\nx\r\nflush_all\r\ncache_memlimit 100\r\nmn\r\n");
    client.expect(b"STORED\r\nOK\r\nOK\r\nMN\r\n");
    for expected in
        ["rawcmd cmd=set key=k", "rawcmd cmd=flush_all", "flush", "memory_limit mib=100", "rawcmd cmd=mn"]
    {
        assert_eq!(event(&mut requests), expected);
    }
    client.send(b"quit\r\n");
    let closed = event(&mut connections);
    assert!(closed.starts_with("conn_close rip=127.0.0.1 rport="), "{closed}");
    assert!(closed.ends_with(" transport=tcp reason=normal"), "{closed}");
}

#[test]
fn watcher_sees_each_eviction() {
    told_of_each_eviction("mem:hash");
}

#[test]
fn watcher_sees_each_eviction_from_a_tree() {
    told_of_each_eviction("mem:tree");
}

fn told_of_each_eviction(database: &str) {
    let database = Some(DatabaseName::parse(database).unwrap());
    let options = ServerOptions {
        memory: MemoryOptions { limit_mib: 8, ..options().memory },
        databases: DatabaseOptions { database, ..options().databases },
        observation: ObservationOptions { watcher_buffer_bytes: 64 << 20, ..options().observation },
        ..options()
    };
    let server = Running::start(options);
    let mut watcher = watch(&server, "evictions");
    let mut client = server.connect();
    let mut stored = 0_usize;
    while client.stat("evictions").parse::<usize>().unwrap() < 500 {
        assert!(stored < 100_000, "nothing is evicted");
        for number in stored..stored + 500 {
            let ttl = if number % 2 == 0 { 0 } else { 1000 };
            client.send(format!("set k%{number} 7 {ttl} 900 noreply\r\n").as_bytes());
            client.send(&[[b'x'; 900].as_slice(), b"\r\n"].concat());
        }
        stored += 500;
        client.send(b"mn\r\n");
        client.expect(b"MN\r\n");
    }
    // The limit is that of the process, so maintenance may continue to evict. The evictions that
    // were reported have happened.
    let evictions: usize = client.stat("evictions").parse().unwrap();
    let mut gone = BTreeSet::new();
    for _ in 0..evictions {
        let event = event(&mut watcher);
        let words: Vec<&str> = event.split(' ').collect();
        let [kind, key, fetch, ttl, access, class, size] = words[..] else { panic!("{event}") };
        assert_eq!((kind, access, class, size), ("eviction", "la=0", "clsid=12", "size=900"), "{event}");
        assert!(fetch == "fetch=yes" || fetch == "fetch=no", "{event}");
        let number: usize = key.strip_prefix("key=k%25").expect(&event).parse().unwrap();
        let ttl: i64 = ttl.strip_prefix("ttl=").expect(&event).parse().unwrap();
        assert!(if number.is_multiple_of(2) { ttl == -1 } else { (1..=1000).contains(&ttl) }, "{event}");
        assert!(gone.insert(number), "told twice: {event}");
    }
    for number in gone {
        client.send(format!("mg k%{number}\r\n").as_bytes());
        client.expect(b"EN\r\n");
    }
}

#[test]
fn evictions_without_watchers_are_not_reported() {
    let server = Running::start(ServerOptions {
        memory: MemoryOptions { limit_mib: 8, ..options().memory },
        ..options()
    });
    let _watcher = watch(&server, "deletions");
    let mut client = server.connect();
    for number in 0.. {
        client.set(format!("k{number}").as_bytes(), &[b'x'; 10_000]);
        if number % 100 == 0 && client.stat("evictions") != "0" {
            break;
        }
    }
    assert_eq!(client.stat("log_worker_written"), "0");
}

#[test]
fn watcher_sees_sweeps() {
    let server = Running::start(ServerOptions {
        protocols: ProtocolOptions { debug_commands: true, ..options().protocols },
        ..options()
    });
    let mut watcher = watch(&server, "sysevents");
    let mut client = server.connect();
    client
        .send(b"set stays 0 0 1\r\nx\r\nset goes 0 100 1\r\nx\r\nset too 0 100 1\r\nx\r\ndebugtime +200\r\n");
    client.expect(b"STORED\r\nSTORED\r\nSTORED\r\nOK\r\n");
    let swept = event(&mut watcher);
    assert_eq!(
        swept,
        "lru_crawler crawler=0 lru=all low_mark=0 next_reclaims=0 since_run=0 next_run=1 elapsed=0 examined=3 reclaimed=2"
    );
}

#[test]
fn watcher_sees_why_connections_close() {
    let server = Running::start(ServerOptions {
        limits: LimitOptions { idle_timeout_s: 1, shutdown_allowed: true, ..options().limits },
        ..options()
    });
    let mut watcher = watch(&server, "connevents");
    let idle = server.connect();
    let name = format!("rip=127.0.0.1 rport={} transport=tcp", idle.stream.local_addr().unwrap().port());
    assert_eq!(event(&mut watcher), format!("conn_new {name}"));
    assert_eq!(event(&mut watcher), format!("conn_close {name} reason=idle_timeout"));
    // memcached's suite (watcher.t) expects an error here. Todana once logged a normal close.
    for no_request in [b"GET / HTTP/1.1\r\n".to_vec(), vec![b'x'; 3000]] {
        let mut client = server.connect();
        let name =
            format!("rip=127.0.0.1 rport={} transport=tcp", client.stream.local_addr().unwrap().port());
        assert_eq!(event(&mut watcher), format!("conn_new {name}"));
        client.send(&no_request);
        assert_eq!(event(&mut watcher), format!("conn_close {name} reason=error"));
    }
    let mut stopper = server.connect();
    let name = format!("rip=127.0.0.1 rport={} transport=tcp", stopper.stream.local_addr().unwrap().port());
    assert_eq!(event(&mut watcher), format!("conn_new {name}"));
    stopper.send(b"quit\r\n");
    assert_eq!(event(&mut watcher), format!("conn_close {name} reason=normal"));
}

/// A client may also watch streams whose events cannot happen here, as in a memcached that was
/// built without them. Unknown streams are refused.
#[test]
fn proxy_streams_are_silent_unknown_ones_refused() {
    let server = Running::start(options());
    let mut watcher = watch(&server, "proxyreqs proxyevents proxyuser");
    let mut client = server.connect();
    for words in ["bogus", "evictions bogus", "proxycmds", "all", "EVICTIONS"] {
        client.send(format!("watch {words}\r\n").as_bytes());
        client.expect(b"ERROR\r\n");
    }
    client.set(b"k", b"v");
    assert_eq!(client.stat("log_watchers"), "1");
    assert_eq!(client.stat("log_worker_written"), "0");
    watcher.stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(watcher.rest(), b"");
}

#[test]
fn slow_watcher_gets_the_number_of_missed_lines() {
    let server = Running::start(ServerOptions {
        observation: ObservationOptions { watcher_buffer_bytes: 1, ..options().observation },
        ..options()
    });
    let mut watcher = watch(&server, "fetchers");
    let mut client = server.connect();
    let gets = format!("mg {} q\r\n", "k".repeat(250)).repeat(1000) + "mn\r\n";
    eventually("lines are skipped", || {
        client.send(gets.as_bytes());
        client.expect(b"MN\r\n");
        client.stat("log_watcher_skipped") != "0"
    });
    let mut number = 0;
    loop {
        let line = watcher.line();
        if let Some(skipped) = line.strip_prefix("skipped=") {
            let skipped: u64 = skipped.trim_end().parse().unwrap();
            // The next line has the number that follows the skipped ones.
            let next = watcher.line();
            assert_eq!(gid(&next), number + skipped + 1, "{next}");
            break;
        }
        let gid = gid(&line);
        assert_eq!(gid, number + 1, "{line}");
        number = gid;
        // An event is logged after the skipped ones, because the line about them appears only
        // before another line.
        client.send(b"mg more q\r\nmn\r\n");
        client.expect(b"MN\r\n");
    }
}

fn gid(line: &str) -> u64 {
    let (_, rest) = line.split_once(" gid=").expect(line);
    rest.split_once(' ').expect(line).0.parse().unwrap()
}

#[test]
fn twenty_first_watcher_is_refused_until_one_leaves() {
    let server = Running::start(options());
    let mut watchers: Vec<Client> = (0..20).map(|_| watch(&server, "evictions")).collect();
    let mut late = server.connect();
    late.send(b"watch\r\n");
    late.expect(b"WATCHER_TOO_MANY log watcher limit reached\r\n");
    drop(watchers.pop());
    eventually("a place is free", || {
        late.send(b"stats\r\n");
        let mut watchers = None;
        loop {
            let line = late.line();
            if line == "END\r\n" {
                return watchers.as_deref() == Some("STAT log_watchers 19\r\n");
            }
            if line.starts_with("STAT log_watchers ") {
                watchers = Some(line);
            }
        }
    });
    late.send(b"watch\r\n");
    late.expect(b"OK\r\n");
}

#[test]
fn streaming_commands_refuse_pipelined_predecessors() {
    let server = Running::start(options());
    let mut client = server.connect();
    client.send(b"mn\r\nwatch\r\n");
    client.expect(b"MN\r\nERROR cannot pipeline other commands before watch\r\n");
    client.send(b"mn\r\nlru_crawler metadump all\r\n");
    client.expect(b"MN\r\nERROR cannot pipeline other commands before metadump\r\n");
    client.expect_version();
}

#[test]
fn connection_table_shows_each_connections_state() {
    let server = Running::start(options());
    let _watcher = watch(&server, "");
    let mut half = server.connect();
    half.stream.write_all(b"mn\r\nset k 0 0 10\r\nabc").unwrap();
    half.expect(b"MN\r\n");
    let mut idle = server.connect();
    idle.expect_version();
    let mut asker = server.connect();
    eventually("each is as it should be", || {
        let stats = asker.stats(" conns");
        let mut states: Vec<&str> = stats
            .iter()
            .filter(|(name, _)| name.ends_with(":state"))
            .map(|(_, value)| value.as_str())
            .collect();
        states.sort_unstable();
        let peers: Vec<&String> =
            stats.iter().filter(|(name, _)| name.ends_with(":addr")).map(|(_, value)| value).collect();
        let asker_address = format!("tcp:{}", asker.stream.local_addr().unwrap());
        assert!(peers.contains(&&asker_address), "{peers:?}");
        states == ["conn_listening", "conn_nread", "conn_parse_cmd", "conn_read", "conn_watch"]
    });
    drop(half);
    eventually("who is gone is not on it", || {
        let stats = asker.stats(" conns");
        !stats.iter().any(|(_, value)| value == "conn_nread")
    });
}

#[test]
fn long_list_does_not_delay_other_requests() {
    let server = Running::start(ServerOptions {
        observation: ObservationOptions { track_sizes: true, ..options().observation },
        limits: LimitOptions { threads: 1, ..options().limits },
        ..options()
    });
    let mut client = server.connect();
    for start in (0..40_000).step_by(1000) {
        let sets: String =
            (start..start + 1000).map(|key| format!("set key-{key} 0 0 1 noreply\r\nx\r\n")).collect();
        client.send(sets.as_bytes());
    }
    client.send(b"mn\r\n");
    client.expect(b"MN\r\n");
    client.send(b"lru_crawler mgdump all\r\n");
    client.expect(b"OK\r\n");
    // The one worker serves another connection, although the client does not read the list.
    server.connect().expect_version();
    let mut keys = std::collections::BTreeSet::new();
    loop {
        let line = client.line();
        if line == "EN\r\n" {
            break;
        }
        let key = line.strip_prefix("mg key-").and_then(|key| key.strip_suffix("\r\n")).expect(&line);
        keys.insert(key.parse::<u32>().unwrap());
    }
    assert_eq!(keys.len(), 40_000);
    let sizes: u64 = client.stats(" sizes").iter().map(|(_, count)| count.parse::<u64>().unwrap()).sum();
    assert_eq!(sizes, 40_000);
    assert_eq!(client.stat("lru_crawler_running"), "0");
}
