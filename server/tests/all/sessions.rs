//! Tests sessions with a running server: the order of replies, input in pieces, ends of
//! connections, limits, slow peers and garbage.

use crate::running;

use running::{Client, Running, eventually, options};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::time::Duration;
use todana_server::{LimitOptions, ListenOptions, MemoryOptions, ObservationOptions, Server, ServerOptions};

fn repeated(byte: u8, len: usize) -> Vec<u8> {
    vec![byte; len]
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let server = Running::start(options());
    let mut client = server.connect();
    let (mut requests, mut expected) = (Vec::new(), Vec::new());
    for n in 0..3_000 {
        write!(requests, "set key-{n} {n} 0 5\r\n{n:05}\r\nget key-{n} missing\r\ndelete key-{n}\r\n")
            .unwrap();
        write!(expected, "STORED\r\nVALUE key-{n} {n} 5\r\n{n:05}\r\nEND\r\nDELETED\r\n").unwrap();
    }
    client.send(&requests);
    client.expect(&expected);
}

#[test]
fn requests_may_come_byte_by_byte() {
    let server = Running::start(options());
    let mut client = server.connect();
    for byte in
        b"set k 7 0 11\r\nhello\r\nabcd\r\nget k\r\nincr k 1\r\nms m 2 T0 c\r\nhi\r\nmg m v\r\nversion\r\n"
    {
        client.send(&[*byte]);
    }
    client.expect(b"STORED\r\nVALUE k 7 11\r\nhello\r\nabcd\r\nEND\r\n");
    client.expect(b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n");
    client.expect(b"HD c1\r\nVA 2\r\nhi\r\nVERSION 1.6.45\r\n");
}

#[test]
fn half_closed_peer_is_still_answered() {
    let server = Running::start(options());
    let mut client = server.connect();
    let mut requests = Vec::new();
    let mut expected = Vec::new();
    for n in 0..500 {
        write!(requests, "set k 0 0 4\r\n{n:04}\r\nget k\r\n").unwrap();
        write!(expected, "STORED\r\nVALUE k 0 4\r\n{n:04}\r\nEND\r\n").unwrap();
    }
    client.send(&requests);
    client.stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(client.rest(), expected);
}

/// The soak found this defect: a request arrived and its connection was reset, both noticed in the
/// same turn, and a reply stayed in a buffer. The next client of the same thread received that
/// reply before its own.
#[test]
fn reply_of_a_reset_connection_reaches_nobody() {
    let server = Running::start(ServerOptions {
        limits: LimitOptions { threads: 1, ..options().limits },
        ..options()
    });
    let mut other = server.connect();
    other.send(b"set k 0 0 5\r\nother\r\n");
    other.expect(b"STORED\r\n");
    for _ in 0..20 {
        let leaving: Vec<Client> = (0..40)
            .map(|_| {
                let mut client = server.connect();
                client.send(b"version\r\n");
                client.expect(b"VERSION 1.6.45\r\n");
                client
            })
            .collect();
        // With this number of clients, the server notices both events of most of them in one turn.
        for mut client in leaving {
            client.send(b"version\r\nno such command\r\n");
            socket2::SockRef::from(&client.stream).set_linger(Some(Duration::ZERO)).unwrap();
        }
        for _ in 0..10 {
            other.send(b"get k\r\n");
            other.expect(b"VALUE k 0 5\r\nother\r\nEND\r\n");
        }
    }
}

#[test]
fn quit_sends_pending_replies_then_closes() {
    let server = Running::start(options());
    let mut client = server.connect();
    let value = repeated(b'v', 900_000);
    client.set(b"big", &value);
    client.send(b"get big\r\nget big\r\nquit\r\nset late 0 0 1\r\nx\r\n");
    let one = [b"VALUE big 0 900000\r\n", &value[..], b"\r\nEND\r\n"].concat();
    let rest = client.rest();
    assert!(rest == [&one[..], &one[..]].concat(), "{} bytes", rest.len());
    let mut other = server.connect();
    other.send(b"get late\r\n");
    other.expect(b"END\r\n");
}

/// The refusals end when a slot is free again.
#[test]
fn connection_over_the_limit_is_refused() {
    let server = Running::start(ServerOptions {
        limits: LimitOptions { connections_max: 3, ..options().limits },
        ..options()
    });
    let mut clients: Vec<Client> = (0..3).map(|_| server.connect()).collect();
    clients.iter_mut().for_each(Client::expect_version);
    let mut refused = server.connect();
    assert_eq!(refused.rest(), b"ERROR Too many open connections\r\n");
    assert_eq!(clients[0].stat("rejected_connections"), "1");
    assert_eq!(clients[0].stat("curr_connections"), "3");
    let mut leaving = clients.pop().unwrap();
    leaving.send(b"quit\r\n");
    assert_eq!(leaving.rest(), b"");
    eventually("the slot is free", || clients[0].stat("curr_connections") == "2");
    server.connect().expect_version();
}

#[test]
fn stalled_upload_delays_nobody() {
    let server = Running::start(ServerOptions {
        limits: LimitOptions { threads: 1, ..options().limits },
        ..options()
    });
    let mut stalled = server.connect();
    stalled.send(b"set stalled 0 0 500000\r\n");
    stalled.send(&repeated(b'x', 250_000));
    let mut other = server.connect();
    for n in 0..100 {
        other.set(b"k", n.to_string().as_bytes());
    }
    other.send(b"get stalled\r\n");
    other.expect(b"END\r\n");
    stalled.send(&repeated(b'x', 250_000));
    stalled.send(b"\r\n");
    stalled.expect(b"STORED\r\n");
}

/// The client sends far more requests than it reads replies. The server's memory for the replies
/// must stay limited.
fn slow_reader(value_len: usize, bound: u64) {
    let server = Running::start(ServerOptions {
        limits: LimitOptions { threads: 1, ..options().limits },
        ..options()
    });
    let mut other = server.connect();
    let value = repeated(b's', value_len);
    other.set(b"big", &value);
    let mut slow = server.connect();
    // The replies take just over 100 MiB.
    let wanted = (100 << 20) / value_len;
    slow.send(&b"get big\r\n".repeat(wanted));
    let mut most = 0;
    eventually("the slow reader's replies wait", || {
        most = other.stat("response_obj_bytes").parse().unwrap();
        most > 0
    });
    for n in 0..200 {
        other.set(b"k", n.to_string().as_bytes());
        most = most.max(other.stat("response_obj_bytes").parse().unwrap());
    }
    assert!(most <= bound, "{most} bytes wait for a client that does not read");
    // The client was only slow: it receives all replies once it reads.
    let one = [format!("VALUE big 0 {value_len}\r\n").as_bytes(), &value, b"\r\nEND\r\n"].concat();
    for _ in 0..wanted {
        slow.expect(&one);
    }
    assert_eq!(other.stat("response_obj_bytes"), "0");
}

#[test]
fn pending_replies_of_medium_values_are_bounded() {
    slow_reader(60_000, 4 << 20);
}

/// Large values are shared, not copied. The replies of a complete batch may wait.
#[test]
fn pending_shared_values_are_at_most_a_batch() {
    slow_reader(1_000_000, 17 << 20);
}

#[test]
fn pending_replies_of_large_values_are_bounded() {
    slow_reader(1_000_000, 4 << 20);
}

#[test]
fn values_above_the_largest_size_are_refused() {
    let server = Running::start(options());
    let mut client = server.connect();
    let largest = repeated(b'l', 1_048_516);
    client.set(b"k", &largest);
    client.expect_value(b"k", &largest);
    client.send(b"set k 0 0 1048517\r\n");
    client.send(&repeated(b'x', 1_048_517));
    client.send(b"\r\nget k\r\n");
    client.expect(b"SERVER_ERROR object too large for cache\r\nEND\r\n");
}

#[test]
fn items_of_eight_mebibytes_go_there_and_back() {
    let server = Running::start(ServerOptions {
        limits: LimitOptions { item_size_max: 8 << 20, ..options().limits },
        ..options()
    });
    let mut client = server.connect();
    for len in [300_000, 1_048_576, 5_000_001, (8 << 20) - 60] {
        let value: Vec<u8> = (0..len).map(|n: usize| (n % 251) as u8).collect();
        client.set(b"k", &value);
        client.expect_value(b"k", &value);
    }
}

#[test]
fn a_get_line_may_name_two_thousand_keys() {
    let server = Running::start(options());
    let mut client = server.connect();
    let (mut line, mut expected) = (b"get".to_vec(), Vec::new());
    for n in 0..2_000 {
        if n % 2 == 0 {
            client.send(format!("set a-rather-long-key-{n} 0 0 4 noreply\r\n{n:04}\r\n").as_bytes());
            write!(expected, "VALUE a-rather-long-key-{n} 0 4\r\n{n:04}\r\n").unwrap();
        }
        write!(line, " a-rather-long-key-{n}").unwrap();
    }
    line.extend_from_slice(b"\r\n");
    expected.extend_from_slice(b"END\r\n");
    client.send(&line);
    client.expect(&expected);
}

#[test]
fn a_stop_delivers_the_replies_that_are_pending() {
    let mut server = Running::start(options());
    let mut client = server.connect();
    let value = repeated(b'p', 1_000_000);
    client.set(b"big", &value);
    // This is more than the sockets can buffer, so that a part is pending when the server stops.
    client.send(&b"get big\r\n".repeat(10));
    eventually("replies are pending", || {
        server.connect().stat("response_obj_bytes").parse::<u64>().unwrap() > 0
    });
    eventually("all are received", || {
        server.connect().stat("bytes_read").parse::<usize>().unwrap()
            >= value.len() + 10 * b"get big\r\n".len()
    });
    server.handle.stop();
    let one = [b"VALUE big 0 1000000\r\n", &value[..], b"\r\nEND\r\n"].concat();
    let rest = client.rest();
    assert!(rest == one.repeat(10), "{} bytes of {}", rest.len(), 10 * one.len());
    server.join();
}

/// `ServerHandle::stop` promises that received requests are answered. This must also hold for a
/// pipeline that is longer than one turn.
#[test]
fn a_stop_answers_all_that_was_received() {
    let mut server = Running::start(ServerOptions {
        limits: LimitOptions { threads: 1, ..options().limits },
        ..options()
    });
    let mut client = server.connect();
    let value = repeated(b'p', 1_000_000);
    client.set(b"big", &value);
    let mut requests = b"get big\r\n".repeat(16);
    requests.extend(b"version\r\n".repeat(2_000));
    client.send(&requests);
    eventually("replies are pending", || {
        server.connect().stat("response_obj_bytes").parse::<u64>().unwrap() > 0
    });
    eventually("all has been received", || {
        server.connect().stat("bytes_read").parse::<usize>().unwrap() >= requests.len()
    });
    server.handle.stop();
    let one = [b"VALUE big 0 1000000\r\n", &value[..], b"\r\nEND\r\n"].concat();
    let expected = [one.repeat(16), b"VERSION 1.6.45\r\n".repeat(2_000)].concat();
    let rest = client.rest();
    assert!(rest == expected, "{} bytes of {}", rest.len(), expected.len());
    server.join();
}

#[test]
fn a_stop_ends_idle_connections_and_the_server() {
    let mut server = Running::start(options());
    let mut idle: Vec<Client> = (0..20).map(|_| server.connect()).collect();
    idle.iter_mut().for_each(Client::expect_version);
    server.handle.stop();
    server.join();
    for client in &mut idle {
        assert_eq!(client.rest(), b"");
    }
}

fn unix_options(path: &std::path::Path) -> ServerOptions {
    ServerOptions {
        listen: ListenOptions { unix_socket: Some(path.to_path_buf()), ..options().listen },
        ..options()
    }
}

fn unix_version(path: &std::path::Path) -> Vec<u8> {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.write_all(b"version\r\nquit\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    answer
}

#[test]
fn a_unix_socket_serves_with_its_permissions() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let server = Running::start(ServerOptions {
        listen: ListenOptions { unix_mask: 0o750, ..unix_options(&path).listen },
        ..unix_options(&path)
    });
    assert!(server.addresses.is_empty(), "a Unix socket takes the place of TCP");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o750);
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.write_all(b"set k 1 0 5\r\nhello\r\nget k\r\nquit\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, b"STORED\r\nVALUE k 1 5\r\nhello\r\nEND\r\n");
}

#[test]
fn a_stale_unix_socket_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "the listener that is gone has left its file");
    let _server = Running::start(unix_options(&path));
    assert_eq!(unix_version(&path), b"VERSION 1.6.45\r\n");
}

#[test]
fn live_socket_and_ordinary_file_are_kept() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let _server = Running::start(unix_options(&path));
    let error = Server::bind(unix_options(&path)).err().expect("somebody serves there");
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    assert_eq!(unix_version(&path), b"VERSION 1.6.45\r\n");
    let file = directory.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    assert!(Server::bind(unix_options(&file)).is_err());
    assert_eq!(std::fs::read(&file).unwrap(), b"precious");
}

/// If an operator removed the socket file and started a new server, the old server removed the new
/// server's file when it ended, and no client could reach the new server.
#[test]
fn a_server_that_ends_leaves_its_successors_socket() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let first = Running::start(unix_options(&path));
    std::fs::remove_file(&path).unwrap();
    let second = Running::start(unix_options(&path));
    drop(first);
    assert_eq!(unix_version(&path), b"VERSION 1.6.45\r\n");
    drop(second);
    assert!(!path.exists(), "its own socket goes with a server");
}

/// The connect fails, but not because no server listens. A socket of another user fails in this
/// way, and may be in use.
#[test]
fn socket_without_connect_permission_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let other = UnixDatagram::bind(&path).unwrap();
    let error = Server::bind(unix_options(&path)).err().expect("a socket of another kind is in use");
    assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    let sender = UnixDatagram::unbound().unwrap();
    sender.send_to(b"still there", &path).unwrap();
    let mut received = [0; 16];
    let len = other.recv(&mut received).unwrap();
    assert_eq!(&received[..len], b"still there");
}

#[test]
fn pid_file_exists_from_bind_to_exit() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pid");
    let server = Server::bind(ServerOptions {
        listen: ListenOptions { port: 0, ..options().listen },
        observation: ObservationOptions { pid_file: Some(path.clone()), ..options().observation },
        ..options()
    })
    .unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{}\n", std::process::id()));
    drop(server);
    assert!(!path.exists());
    let nowhere = directory.path().join("missing").join("pid");
    let error = Server::bind(ServerOptions {
        listen: ListenOptions { port: 0, ..options().listen },
        observation: ObservationOptions { pid_file: Some(nowhere.clone()), ..options().observation },
        ..options()
    });
    let error = error.err().expect("the directory is missing").to_string();
    assert!(error.contains(nowhere.to_str().unwrap()), "{error}");
}

#[test]
fn the_memory_limit_can_be_changed_within_bounds() {
    let server = Running::start(options());
    let mut client = server.connect();
    for (request, reply) in [
        ("cache_memlimit 128", "OK"),
        ("cache_memlimit 8", "OK"),
        ("cache_memlimit 7", "MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m"),
        ("cache_memlimit 1000000001", "MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes"),
        ("cache_memlimit", "ERROR"),
        ("cache_memlimit x", "ERROR"),
    ] {
        client.send(format!("{request}\r\n").as_bytes());
        client.expect(format!("{reply}\r\n").as_bytes());
    }
    assert_eq!(client.stat("limit_maxbytes"), (8 << 20).to_string());
    client.send(b"cache_memlimit 32 noreply\r\n");
    assert_eq!(client.stat("limit_maxbytes"), (32 << 20).to_string());
}

/// A server that was started with little memory has few shards, each of which can address 16 GiB.
/// It once accepted a higher limit than its shards could fill. Once they were full, nothing would
/// have been evicted, and every write refused.
#[test]
fn memory_limit_beyond_the_shards_is_refused() {
    let server = Running::start(ServerOptions {
        memory: MemoryOptions { limit_mib: 64, ..MemoryOptions::default() },
        limits: LimitOptions { threads: 1, ..LimitOptions::default() },
        ..ServerOptions::default()
    });
    let mut client = server.connect();
    let refusal = "MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust";
    for (mebibytes, reply) in [(1_000_000, refusal), (32_769, refusal), (32_768, "OK"), (32_769, refusal)] {
        client.send(format!("cache_memlimit {mebibytes}\r\n").as_bytes());
        client.expect(format!("{reply}\r\n").as_bytes());
    }
    assert_eq!(client.stat("limit_maxbytes"), (32_768u64 << 20).to_string());
    let large = Running::start(ServerOptions {
        memory: MemoryOptions { limit_mib: 1_000_000, ..MemoryOptions::default() },
        limits: LimitOptions { threads: 1, ..LimitOptions::default() },
        ..ServerOptions::default()
    });
    let mut client = large.connect();
    client.send(b"cache_memlimit 1000000\r\n");
    client.expect(b"OK\r\n");
}

#[test]
fn stats_has_memcached_names_in_memcached_order() {
    let server = Running::start(options());
    let mut client = server.connect();
    let stats = client.stats("");
    let names: Vec<&str> = stats.iter().map(|(name, _)| name.as_str()).collect();
    let mut at = 0;
    for expected in include_str!("sessions/stats_names.txt").split_whitespace() {
        let found = names[at..].iter().position(|&name| name == expected);
        at += found.unwrap_or_else(|| panic!("{expected} is not behind {:?}", names[..at].last())) + 1;
    }
    for (name, value) in &stats {
        assert!(!value.is_empty() && !value.contains(' '), "{name} has the value {value:?}");
    }
    let mut unique = names.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), names.len());
}

#[test]
fn stats_of_other_groups_are_answered() {
    let server = Running::start(ServerOptions {
        memory: MemoryOptions { limit_mib: 64, ..options().memory },
        limits: LimitOptions { threads: 3, item_size_max: 2 << 20, ..options().limits },
        ..options()
    });
    let mut client = server.connect();
    let settings = client.stats(" settings");
    let setting =
        |name: &str| settings.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str());
    assert_eq!(setting("num_threads"), Some("3"));
    assert_eq!(setting("item_size_max"), Some("2097152"));
    assert_eq!(setting("maxbytes"), Some("67108864"));
    assert_eq!(setting("evictions"), Some("on"));
    client.set(b"k", b"v");
    assert_eq!(client.stats(" items")[0], ("items:1:number".into(), "1".into()));
    assert_eq!(client.stats(" slabs")[0], ("1:chunk_size".into(), "96".into()));
    client.send(b"stats nonsense\r\n");
    client.expect(b"ERROR\r\n");
    assert_eq!(client.stat("cmd_set"), "1");
    client.send(b"stats reset\r\n");
    client.expect(b"RESET\r\n");
    assert_eq!((client.stat("cmd_set"), client.stat("curr_items")), ("0".into(), "1".into()));
}
