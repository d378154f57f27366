//! Tests the admin pages over real sockets.

use crate::exposition;
use crate::running;

use exposition::Exposition;
use running::{Running, WAIT_MAX, eventually, options};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use todana_server::{
    AdminOptions, DataDirectoryOptions, DatabaseName, DatabaseOptions, DatabaseSpec, KyotoMode, KyotoOptions,
    ListenOptions, MasterAddress, MemoryOptions, ObservationOptions, ProtocolOptions, ReplicationOptions,
    ServerOptions, SyncPolicy, TraceOptions,
};

pub(crate) fn pages() -> Option<AdminOptions> {
    Some(AdminOptions { port: 0, is_required: true, ..AdminOptions::default() })
}

fn start() -> Running {
    Running::start(ServerOptions {
        observation: ObservationOptions { admin: pages(), ..options().observation },
        ..options()
    })
}

fn connect(server: &Running) -> TcpStream {
    let stream = TcpStream::connect(server.admin_addresses[0]).unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    stream.set_write_timeout(Some(WAIT_MAX)).unwrap();
    stream
}

/// Sends `bytes` and reads until the server closes.
fn exchange(server: &Running, bytes: &[u8]) -> String {
    let mut stream = connect(server);
    stream.write_all(bytes).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Returns the status line and the body of a page.
fn page(server: &Running, path: &str) -> (String, String) {
    let answer =
        exchange(server, format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").as_bytes());
    let (head, body) = answer.split_once("\r\n\r\n").expect("a whole head");
    let len = format!("\r\nContent-Length: {}\r\n", body.len());
    assert!(head.contains(&len), "{head}");
    (head.split("\r\n").next().unwrap().to_string(), body.to_string())
}

pub(crate) fn metrics(server: &Running) -> Exposition {
    let (status, body) = page(server, "/metrics");
    assert_eq!(status, "HTTP/1.1 200 OK");
    Exposition::read(&body).unwrap()
}

#[test]
fn pages_answer_and_others_are_not_there() {
    let server = start();
    for (path, status, body) in [
        ("/", "200 OK", "todana: /metrics /metrics/totals /healthz /readyz\n"),
        ("/healthz", "200 OK", "ok\n"),
        ("/readyz?verbose", "200 OK", "ready\n"),
        ("http://localhost/healthz", "200 OK", "ok\n"),
        ("/metrics/", "404 Not Found", "no such page\ntodana: /metrics /metrics/totals /healthz /readyz\n"),
    ] {
        assert_eq!(page(&server, path), (format!("HTTP/1.1 {status}"), body.to_string()), "{path}");
    }
    let head = exchange(&server, b"HEAD /healthz HTTP/1.0\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("\r\nContent-Length: 3\r\n"), "{head}");
    assert!(head.ends_with("\r\n\r\n"), "{head}");
    let post = exchange(
        &server,
        b"POST /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc",
    );
    assert!(post.starts_with("HTTP/1.1 405 ") && post.contains("\r\nAllow: GET, HEAD\r\n"), "{post}");
}

#[test]
fn server_has_no_pages_by_default() {
    assert_eq!(Running::start(options()).admin_addresses, []);
}

/// If the port is taken, the server starts without the pages, unless the pages are required.
#[test]
fn optional_admin_pages_do_not_prevent_a_start() {
    let taken = start();
    let port = taken.admin_addresses[0].port();
    let admin = |is_required| Some(AdminOptions { port, is_required, ..AdminOptions::default() });
    let server = Running::start(ServerOptions {
        observation: ObservationOptions { admin: admin(false), ..options().observation },
        ..options()
    });
    assert_eq!(server.admin_addresses, []);
    server.connect().expect_version();
    let refused = todana_server::Server::bind(ServerOptions {
        listen: ListenOptions { port: 0, ..options().listen },
        observation: ObservationOptions { admin: admin(true), ..options().observation },
        ..options()
    });
    let message = refused.err().expect("an error").to_string();
    let expected = format!(
        "admin pages: cannot be served (--admin-port, TODANA_ADMIN_PORT): cannot listen on 127.0.0.1:{port}: "
    );
    assert!(message.starts_with(&expected), "{message}");
}

/// Sends the requests whose effect on the metrics is known.
fn requests(server: &Running) -> running::Client {
    let mut client = server.connect();
    let talk: [(&[u8], &[u8]); 20] = [
        (b"set n 0 0 1\r\n5\r\n", b"STORED\r\n"),
        (b"set a 0 0 3\r\nabc\r\n", b"STORED\r\n"),
        (b"add b 0 0 1\r\n1\r\n", b"STORED\r\n"),
        (b"get a\r\n", b"VALUE a 0 3\r\nabc\r\nEND\r\n"),
        (b"get n\r\n", b"VALUE n 0 1\r\n5\r\nEND\r\n"),
        (b"get none\r\n", b"END\r\n"),
        (b"incr n 1\r\n", b"6\r\n"),
        (b"incr none 1\r\n", b"NOT_FOUND\r\n"),
        (b"decr n 2\r\n", b"4\r\n"),
        (b"decr n 2\r\n", b"2\r\n"),
        (b"decr none 1\r\n", b"NOT_FOUND\r\n"),
        (b"touch a 0\r\n", b"TOUCHED\r\n"),
        (b"touch none 0\r\n", b"NOT_FOUND\r\n"),
        (b"cas none 0 0 1 1\r\n1\r\n", b"NOT_FOUND\r\n"),
        (b"cas a 0 0 1 18446744073709551615\r\n1\r\n", b"EXISTS\r\n"),
        (b"delete b\r\n", b"DELETED\r\n"),
        (b"delete none\r\n", b"NOT_FOUND\r\n"),
        (b"delete none\r\n", b"NOT_FOUND\r\n"),
        (b"mg a v\r\n", b"VA 3\r\nabc\r\n"),
        (b"set big 0 0 2000000\r\n", b"SERVER_ERROR object too large for cache\r\n"),
    ];
    for (request, answer) in talk {
        client.send(request);
        client.expect(answer);
    }
    client.send(&vec![b'x'; 2_000_000]);
    client.send(b"\r\n");
    // The discarded value is counted before this request is answered.
    client.expect_version();
    client
}

#[test]
fn metrics_that_dashboards_read_have_true_values() {
    let server = start();
    let mut client = requests(&server);
    let stats = client.stats("");
    let stat = |name: &str| {
        let value = &stats.iter().find(|(found, _)| found == name).unwrap_or_else(|| panic!("{name}")).1;
        value.parse::<f64>().unwrap()
    };
    let metrics = metrics(&server);
    let value = |name: &str, labels: &str| {
        metrics.value(name, labels).unwrap_or_else(|| panic!("{name} {labels} is missing"))
    };
    let kind = |name: &str| metrics.0[name].kind.as_str();
    for (labels, expected) in [
        ("command=get,status=hit", 3.0),
        ("command=get,status=miss", 1.0),
        ("command=delete,status=hit", 1.0),
        ("command=delete,status=miss", 2.0),
        ("command=incr,status=hit", 1.0),
        ("command=incr,status=miss", 1.0),
        ("command=decr,status=hit", 2.0),
        ("command=decr,status=miss", 1.0),
        ("command=cas,status=hit", 0.0),
        ("command=cas,status=miss", 1.0),
        ("command=cas,status=badval", 1.0),
        ("command=touch,status=hit", 1.0),
        ("command=touch,status=miss", 1.0),
        ("command=flush,status=hit", 0.0),
        ("command=set,status=hit", stat("cmd_set") - 2.0),
    ] {
        assert_eq!(value("memcached_commands_total", labels), expected, "{labels}");
    }
    assert_eq!(metrics.0["memcached_commands_total"].samples.len(), 15);
    for (name, expected) in [
        ("memcached_up", 1.0),
        ("memcached_accepting_connections", 1.0),
        ("memcached_accepting_conns", 1.0),
        ("memcached_current_connections", 1.0),
        ("memcached_max_connections", 1024.0),
        ("memcached_connections_total", 1.0),
        ("memcached_connections_rejected_total", 0.0),
        ("memcached_connections_listener_disabled_total", 0.0),
        ("memcached_connections_yielded_total", stat("conn_yields")),
        ("memcached_current_items", 2.0),
        ("memcached_current_bytes", stat("bytes")),
        ("memcached_limit_bytes", 0.0),
        ("memcached_items_total", stat("total_items")),
        ("memcached_items_evicted_total", 0.0),
        ("memcached_items_reclaimed_total", 0.0),
        ("memcached_direct_reclaims_total", 0.0),
        ("memcached_item_too_large_total", 1.0),
        ("memcached_item_no_memory_total", 0.0),
        ("memcached_read_bytes_total", stat("bytes_read")),
        ("memcached_lru_crawler_starts_total", stat("lru_crawler_starts")),
        ("memcached_lru_crawler_reclaimed_total", stat("crawler_reclaimed")),
        ("memcached_lru_crawler_items_checked_total", stat("crawler_items_checked")),
        ("memcached_lru_crawler_moves_to_cold_total", 0.0),
        ("memcached_lru_crawler_moves_to_warm_total", 0.0),
        ("memcached_lru_crawler_moves_within_lru_total", 0.0),
        ("memcached_slab_current_items", 2.0),
        ("todana_records", 2.0),
        ("todana_live_bytes", stat("bytes")),
        ("todana_meta_commands_total", 1.0),
        ("todana_evictions_total", 0.0),
        ("todana_held_bytes", 0.0),
        ("todana_worker_threads", 4.0),
    ] {
        let labels = if name.starts_with("memcached_slab_") { "slab=1" } else { "" };
        assert_eq!(value(name, labels), expected, "{name}");
        let is_counter = name.ends_with("_total");
        assert_eq!(kind(name), if is_counter { "counter" } else { "gauge" }, "{name}");
    }
    assert_eq!(value("memcached_version", "version=1.6.45"), 1.0);
    assert_eq!(value("todana_build_info", concat!("version=", env!("CARGO_PKG_VERSION"))), 1.0);
    // The answer to `stats` itself may be counted by now.
    assert!(stat("bytes_written") > 100.0);
    assert!(value("memcached_written_bytes_total", "") >= stat("bytes_written"));
    assert!(value("memcached_time_seconds", "") >= stat("time"));
    assert!(value("memcached_uptime_seconds", "") >= stat("uptime"));
    assert_eq!(kind("memcached_uptime_seconds"), "counter", "as the exporter has it");
    for name in ["enabled", "sleep", "to_crawl"] {
        value(&format!("memcached_lru_crawler_{name}"), "");
    }
    for name in ["todana_committed_bytes", "todana_anonymous_bytes", "memcached_malloced_bytes"] {
        assert!(value(name, "") > 0.0, "{name}");
    }
    for name in ["cpu_seconds_total", "user_cpu_seconds_total", "system_cpu_seconds_total"] {
        assert_eq!(kind(&format!("memcached_process_{name}")), "counter");
    }
    let process = |name: &str| value(&format!("memcached_process_{name}"), "");
    assert!(process("resident_memory_bytes") <= process("virtual_memory_bytes"));
    assert!(process("open_fds") > 3.0 && process("open_fds") <= process("max_fds"));
    let age = value("memcached_time_seconds", "") - process("start_time_seconds");
    assert!(age > -2.0 && age < 86_400.0, "started {age} s ago");
}

#[test]
fn flushes_and_evictions_are_counted() {
    let server = Running::start(ServerOptions {
        memory: MemoryOptions { limit_mib: 64, ..options().memory },
        observation: ObservationOptions { admin: pages(), ..options().observation },
        ..options()
    });
    let mut client = server.connect();
    client.send(b"flush_all\r\n");
    client.expect(b"OK\r\n");
    assert_eq!(metrics(&server).value("memcached_commands_total", "command=flush,status=hit"), Some(1.0));
    let value = vec![b'v'; 100_000];
    for key in 0..1000 {
        client.set(format!("key{key}").as_bytes(), &value);
    }
    let mut evictions = || client.stat("evictions").parse::<f64>().unwrap();
    let before = evictions();
    let metrics = metrics(&server);
    let after = evictions();
    assert!(before > 0.0);
    // The background may evict more between the two reads. The classes are read first.
    let by_class = metrics.0["memcached_slab_items_evicted_total"].samples.values().sum::<f64>();
    let all = metrics.value("memcached_items_evicted_total", "").unwrap();
    let ours = metrics.value("todana_evictions_total", "").unwrap();
    let in_order = [before, by_class, all, ours, after];
    assert!(in_order.is_sorted(), "{in_order:?}");
    assert_eq!(metrics.value("memcached_limit_bytes", ""), Some(f64::from(64 << 20)));
    let limit = metrics.value("todana_engine_limit_bytes", "").unwrap();
    assert!(limit > 0.0 && limit < f64::from(64 << 20), "{limit}");
}

#[test]
fn docs_list_exactly_the_names_that_there_are() {
    let folder = tempfile::tempdir().unwrap();
    let data = Some(DataDirectoryOptions::new(folder.path().into(), SyncPolicy::Never));
    let name = DatabaseName::parse(&format!("{}/x.hash", folder.path().display())).unwrap();
    let further = vec![DatabaseSpec { name, data: None }];
    // This server follows another one and has a replica.
    let master = Some(MasterAddress { host: "127.0.0.1".into(), port: 1 });
    let position_file = Some(folder.path().join("position"));
    let replication = ReplicationOptions { master, position_file, ..ReplicationOptions::default() };
    let kyoto = KyotoMode::Beside;
    let more = ServerOptions {
        protocols: ProtocolOptions {
            kyoto: KyotoOptions { spoken: kyoto, ..options().protocols.kyoto },
            ..options().protocols
        },
        databases: DatabaseOptions { data, further, replication, ..options().databases },
        ..options()
    };
    // No request names a trace, so nothing connects to this address.
    let traces = TraceOptions { collector: "http://127.0.0.1:1".parse().unwrap(), with_keys: false };
    let server = Running::start(ServerOptions {
        memory: MemoryOptions { limit_mib: 64, ..more.memory },
        observation: ObservationOptions { admin: pages(), traces: Some(traces), ..more.observation },
        ..more
    });
    let mut replica = server.connect();
    replica.send(b"\xB1\0\0\0\0\0\0\0\0\0\0\0\0\0\x02");
    replica.expect(b"\xB1");
    requests(&server);
    eventually("it is shown", || server.connect().stat("todana_replicas") == "1");
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md")).unwrap();
    let listed: BTreeSet<String> = text
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .filter(|name| name.starts_with("memcached_") || name.starts_with("todana_"))
        .map(|name| name.split('{').next().unwrap_or_default().to_string())
        .collect();
    // Only a stream in Todana's own protocol, or a former master, has these figures.
    let others: BTreeSet<String> =
        ["todana_replica_lag_bytes", "todana_replicas_lag_bytes", "todana_salvaged_log_info"]
            .map(String::from)
            .into();
    let shown = metrics(&server).names();
    assert!(listed.is_superset(&others) && shown.is_disjoint(&others));
    assert_eq!(shown, &listed - &others);
}

/// If every class is in use, the classes are the largest part of `/metrics`.
#[test]
fn totals_are_all_metrics_but_those_by_class() {
    let server = start();
    server.connect().set(b"k", b"v");
    let (status, body) = page(&server, "/metrics/totals");
    assert_eq!(status, "HTTP/1.1 200 OK");
    let totals = Exposition::read(&body).unwrap();
    let all = metrics(&server);
    let is_by_class = |name: &String| {
        let mut labels = all.0[name].samples.keys();
        labels.any(|labels| labels.iter().any(|(name, _)| name == "slab"))
    };
    let (by_class, rest): (BTreeSet<_>, BTreeSet<_>) = all.names().into_iter().partition(is_by_class);
    assert!(by_class.len() > 20, "{by_class:?}");
    assert_eq!(totals.names(), rest);
}

#[test]
fn requests_on_one_connection_are_answered_in_order() {
    let server = start();
    let mut stream = connect(&server);
    let one = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
    let last = "GET /nothing HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let all = format!("{}{}{}{last}", one("/healthz"), one("/"), one("/readyz"));
    // The input is divided into pieces that end within requests.
    for piece in all.as_bytes().chunks(7) {
        stream.write_all(piece).unwrap();
    }
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap();
    let bodies: Vec<&str> =
        answers.split("HTTP/1.1 ").skip(1).map(|one| one.split_once("\r\n\r\n").unwrap().1).collect();
    assert_eq!(bodies[0], "ok\n");
    assert_eq!(bodies[1..3], ["todana: /metrics /metrics/totals /healthz /readyz\n", "ready\n"]);
    assert!(bodies[3].starts_with("no such page"), "{bodies:?}");
    assert_eq!(bodies.len(), 4);
}

#[test]
fn garbage_and_huge_heads_are_refused() {
    let server = start();
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let huge = [b"GET / HTTP/1.1\r\nHost: ".to_vec(), vec![b'a'; 1 << 20], b"\r\n\r\n".to_vec()].concat();
    let many = [&b"GET / HTTP/1.1\r\n"[..], &b"A: b\r\n".repeat(100), b"\r\n"].concat();
    let long = [b"GET /".to_vec(), vec![b'a'; 100_000], b" HTTP/1.1\r\nHost: a\r\n\r\n".to_vec()].concat();
    let tls = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec();
    let mut inputs = vec![huge, many, long, tls, b"get a\r\n".to_vec(), b"\x80\x01\0\x03abc".to_vec()];
    inputs.extend((0..200).map(|_| {
        let len = random.usize(..3000);
        (0..len).map(|_| random.u8(..)).collect()
    }));
    for input in &inputs {
        let mut stream = connect(&server);
        // The server may close before everything is sent.
        let _ = stream.write_all(input);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let start = &answer[..answer.len().min(10)];
        let is_refusal =
            start.is_empty() || start.starts_with(b"HTTP/1.1 4") || start.starts_with(b"HTTP/1.1 5");
        assert!(is_refusal, "seed {seed}: {} answers {}", input.escape_ascii(), answer.escape_ascii());
    }
    metrics(&server);
    server.connect().expect_version();
}

#[test]
fn too_long_head_is_refused_with_status_431() {
    let server = start();
    let mut stream = connect(&server);
    stream.write_all(&[b"GET / HTTP/1.1\r\nA: ".to_vec(), vec![b'a'; 8 << 10]].concat()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
}

#[test]
fn a_thousand_connections_keep_nobody_out() {
    let server = start();
    let mut waiting = Vec::new();
    for number in 0..1000 {
        let mut stream = connect(&server);
        // Some clients send nothing, some send half a request, and some do not read the reply.
        let said: &[u8] = match number % 3 {
            0 => b"",
            1 => b"GET /metrics HTTP/1.1\r\nHo",
            _ => b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n",
        };
        let _ = stream.write_all(said);
        waiting.push(stream);
        if number % 100 == 0 {
            metrics(&server);
        }
    }
    let metrics = metrics(&server);
    // This process holds both ends of the remaining connections.
    let open = metrics.value("memcached_process_open_fds", "").unwrap();
    assert!(open >= 1000.0, "{open}");
    assert_eq!(metrics.value("memcached_current_connections", ""), Some(0.0));
    server.connect().expect_version();
    // The server closed the first connection to make room for others.
    let mut rest = Vec::new();
    let _ = waiting[0].read_to_end(&mut rest);
    assert_eq!(rest, b"");
}

#[test]
fn half_a_request_is_not_waited_for() {
    let server = start();
    let mut stream = connect(&server);
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n").unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"", "closed by the server");
}

#[test]
fn stopping_server_is_alive_but_not_ready() {
    let mut server = start();
    let mut client = server.connect();
    client.set(b"large", &vec![b'x'; 1_000_000]);
    // No client reads these replies, so the server still has bytes to send.
    client.send(&b"get large\r\n".repeat(64));
    eventually("the answers wait", || {
        metrics(&server).value("todana_pending_output_bytes", "").unwrap() > 0.0
    });
    server.handle.stop();
    assert_eq!(page(&server, "/readyz"), ("HTTP/1.1 503 Service Unavailable".into(), "stopping\n".into()));
    assert_eq!(page(&server, "/healthz").1, "ok\n");
    drop(client);
    server.join();
    assert!(TcpStream::connect(server.admin_addresses[0]).is_err());
}
