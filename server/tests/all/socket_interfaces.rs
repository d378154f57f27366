//! Tests that clients see the same bytes with io_uring as with epoll, in the cases in which a
//! connection leaves the ring of its worker and returns to it.

use crate::running;

use running::{Client, Running, options};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use todana_server::{
    EvictionGoal, IoMode, LimitOptions, ListenOptions, MemoryOptions, Server, ServerOptions,
};

/// Runs a test with each interface that the system allows.
fn with_each(test: impl Fn(ServerOptions)) {
    for io in [IoMode::Epoll, IoMode::Uring] {
        let listen = ListenOptions { io, port: 0, ..options().listen };
        let limits = LimitOptions { threads: 2, item_size_max: 8 << 20, ..options().limits };
        let options = ServerOptions { listen, limits, ..options() };
        // Without io_uring, `auto` must still start.
        if io == IoMode::Uring && Server::bind(options.clone()).is_err() {
            let listen = ListenOptions { io: IoMode::Auto, ..options.listen.clone() };
            Running::start(ServerOptions { listen, ..options }).connect().expect_version();
            continue;
        }
        test(options);
    }
}

/// Returns bytes that differ by their position.
fn value(len: usize) -> Vec<u8> {
    (0..len).map(|at| ((at * 31) >> 3) as u8).collect()
}

#[test]
fn settings_show_the_options_in_use() {
    with_each(|options| {
        let io = if options.listen.io == IoMode::Uring { "uring" } else { "epoll" };
        for (stores_plain, evict_for, compress, goal) in
            [(false, EvictionGoal::Objects, "auto", "objects"), (true, EvictionGoal::Bytes, "never", "bytes")]
        {
            let memory = MemoryOptions { stores_plain, evict_for, ..options.memory.clone() };
            let server = Running::start(ServerOptions { memory, ..options.clone() });
            let settings = server.connect().stats(" settings");
            let last: Vec<_> =
                settings[settings.len() - 3..].iter().map(|(name, value)| (&**name, &**value)).collect();
            assert_eq!(last, [("io", io), ("compress", compress), ("evict_for", goal)]);
        }
    });
}

#[test]
fn long_and_short_requests_may_alternate() {
    with_each(|options| {
        let server = Running::start(options);
        let mut client = server.connect();
        for round in 0..3 {
            // Around the length of a buffer of the ring, of what is kept, and of long values.
            for len in [1, 2_000, 2_048, 4_096, 8_192, 20_000, 65_536, 300_000, 5_000_000] {
                let value = value(len + round);
                client.set(b"k", &value);
                client.expect_value(b"k", &value);
            }
            // After these short requests, the connection returns to the ring.
            for number in 0..100 {
                client.set(b"short", format!("{number}").as_bytes());
                client.expect_value(b"short", format!("{number}").as_bytes());
            }
        }
    });
}

#[test]
fn requests_are_answered_in_order_however_many_arrive() {
    with_each(|options| {
        let server = Running::start(options);
        let mut client = server.connect();
        client.set(b"n", b"0");
        for count in [1, 16, 17, 100, 1_000, 40_000] {
            client.set(b"n", b"0");
            let mut sender = client.stream.try_clone().unwrap();
            let requests = b"incr n 1\r\n".repeat(count);
            let writer = std::thread::spawn(move || sender.write_all(&requests).unwrap());
            for number in 1..=count {
                client.expect(format!("{number}\r\n").as_bytes());
            }
            writer.join().unwrap();
        }
    });
}

#[test]
fn slow_reader_gets_everything_in_the_end() {
    with_each(|options| {
        let server = Running::start(options);
        let mut client = server.connect();
        let (long, short) = (value(30_000), value(1_000));
        client.set(b"long", &long);
        client.set(b"short", &short);
        // More than the buffers of the sockets hold.
        let mut sender = client.stream.try_clone().unwrap();
        let writer = std::thread::spawn(move || {
            sender.write_all(&b"get long\r\nget short\r\n".repeat(1_000)).unwrap();
        });
        let mut other = server.connect();
        for _ in 0..100 {
            other.expect_value(b"short", &short);
        }
        for _ in 0..1_000 {
            client.expect(&[b"VALUE long 0 30000\r\n", &long[..], b"\r\nEND\r\n"].concat());
            client.expect(&[b"VALUE short 0 1000\r\n", &short[..], b"\r\nEND\r\n"].concat());
        }
        writer.join().unwrap();
        // Short requests follow, for which the connection returns to the ring.
        for _ in 0..100 {
            client.expect_value(b"short", &short);
        }
    });
}

#[test]
fn requests_in_single_bytes_are_answered() {
    with_each(|options| {
        let server = Running::start(options);
        let mut client = server.connect();
        for byte in b"set k 0 0 3\r\nabc\r\nget k\r\nversion\r\n" {
            client.send(&[*byte]);
        }
        client.expect(b"STORED\r\nVALUE k 0 3\r\nabc\r\nEND\r\nVERSION 1.6.45\r\n");
    });
}

#[test]
fn peer_that_sends_no_more_gets_its_replies() {
    with_each(|options| {
        let server = Running::start(options);
        let mut client = server.connect();
        client.set(b"k", &value(100_000));
        client.send(&b"get k\r\n".repeat(30));
        client.stream.shutdown(Shutdown::Write).unwrap();
        let one = [b"VALUE k 0 100000\r\n", &value(100_000)[..], b"\r\nEND\r\n"].concat();
        assert!(client.rest() == one.repeat(30));
        let mut leaving = server.connect();
        leaving.send(b"get nothing\r\nquit\r\nversion\r\n");
        assert_eq!(leaving.rest(), b"END\r\n");
    });
}

#[test]
fn many_clients_at_once_are_served() {
    with_each(|options| {
        let server = Running::start(options);
        let mut last = server.connect();
        let connections = |client: &mut Client| client.stat("curr_connections").parse::<u32>().unwrap();
        let before = connections(&mut last);
        let mut clients: Vec<Client> = (0..400).map(|_| server.connect()).collect();
        for round in 0..3 {
            for (number, client) in clients.iter_mut().enumerate() {
                client.send(
                    format!("set k{number} 0 0 6\r\n{round}{number:05}\r\nget k{number}\r\n").as_bytes(),
                );
            }
            for (number, client) in clients.iter_mut().enumerate() {
                let reply = format!("STORED\r\nVALUE k{number} 0 6\r\n{round}{number:05}\r\nEND\r\n");
                client.expect(reply.as_bytes());
            }
            // The numbers of closed connections are given to others.
            clients.drain(..100);
            clients.extend((0..100).map(|_| server.connect()));
        }
        running::eventually("closed connections are counted", || connections(&mut last) == before + 400);
    });
}

#[test]
fn stop_answers_requests_that_have_arrived() {
    with_each(|options| {
        let mut server = Running::start(options);
        let mut clients: Vec<Client> = (0..20).map(|_| server.connect()).collect();
        for client in &mut clients {
            client.set(b"k", b"v");
            client.send(&b"get k\r\n".repeat(500));
            // The first reply shows that the requests have arrived.
            client.expect(b"VALUE k 0 1\r\nv\r\nEND\r\n");
        }
        server.handle.stop();
        for client in &mut clients {
            assert!(client.rest() == b"VALUE k 0 1\r\nv\r\nEND\r\n".repeat(499));
        }
        server.join();
    });
}

/// Linux from 6.13 on completes a limited number of requests of a ring in one call. A stop closed
/// connections whose bytes arrived in the ring with the second call.
#[test]
fn stop_answers_requests_of_many_connections() {
    with_each(|options| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listen = ListenOptions { unix_socket: Some(path.clone()), ..options.listen };
        let limits = LimitOptions { threads: 1, ..options.limits };
        let mut server = Running::of(Server::bind(ServerOptions { listen, limits, ..options }).unwrap());
        let mut clients: Vec<UnixStream> = (0..300)
            .map(|_| {
                let mut client = UnixStream::connect(&path).unwrap();
                client.set_read_timeout(Some(running::WAIT_MAX)).unwrap();
                client.write_all(b"set k 0 0 1\r\nv\r\n").unwrap();
                client.read_exact(&mut [0; 8]).unwrap();
                client
            })
            .collect();
        // When a write to a Unix socket returns, the bytes have arrived. The worker needs more time
        // for the requests than these writes take.
        for client in &mut clients {
            client.write_all(&b"get k\r\n".repeat(50)).unwrap();
        }
        server.handle.stop();
        for client in &mut clients {
            let mut replies = Vec::new();
            client.read_to_end(&mut replies).unwrap();
            assert!(replies == b"VALUE k 0 1\r\nv\r\nEND\r\n".repeat(50));
        }
        server.join();
    });
}

#[test]
fn unix_sockets_are_served() {
    with_each(|options| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listen = ListenOptions { unix_socket: Some(path.clone()), ..options.listen };
        let _server = Running::of(Server::bind(ServerOptions { listen, ..options }).unwrap());
        let mut client = UnixStream::connect(&path).unwrap();
        let value = value(200_000);
        let len = value.len();
        client.write_all(&[format!("set k 0 0 {len}\r\n").as_bytes(), &value, b"\r\n"].concat()).unwrap();
        client.write_all(&b"get k\r\n".repeat(10)).unwrap();
        client.write_all(b"quit\r\n").unwrap();
        let mut replies = Vec::new();
        client.read_to_end(&mut replies).unwrap();
        let one = [format!("VALUE k 0 {len}\r\n").as_bytes(), &value, b"\r\nEND\r\n"].concat();
        assert!(replies == [&b"STORED\r\n"[..], &one.repeat(10)].concat());
    });
}
