//! Long values through the proxy: they pass in pieces, on connections of their own.

use crate::running;

use running::{Client, Running, options};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;
use todana_server::{LimitOptions, PoolOptions, PoolProtocol, ProxyOptions, Server, ServerOptions, WhenDown};

const LEN: usize = 300_000;

/// Returns a pool of one server whose failures are shown. Its times do not end during a test.
fn pool(server: &str) -> PoolOptions {
    PoolOptions {
        servers: vec![server.parse().unwrap()],
        speak: PoolProtocol::Meta,
        when_down: WhenDown::Error,
        connect_timeout: Duration::from_secs(100),
        reply_timeout: Some(Duration::from_secs(100)),
        ..PoolOptions::default()
    }
}

/// Starts a proxy with one worker, so that all clients share its connections.
fn proxy(pool: PoolOptions) -> Running {
    let pools = BTreeMap::from([("main".into(), pool)]);
    let proxy = Some(ProxyOptions { pools, ..ProxyOptions::default() });
    let limits = LimitOptions { threads: 1, ..LimitOptions::default() };
    Running::start(ServerOptions { proxy, limits, ..options() })
}

/// A proxy in front of one server, whose replies the test writes.
struct Scripted {
    proxy: Running,
    listener: TcpListener,
    address: String,
}

impl Scripted {
    fn new() -> Scripted {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        Scripted { proxy: proxy(pool(&address)), listener, address }
    }

    /// Accepts the next connection, and reads these bytes from it.
    fn accept(&self, expected: &[u8]) -> TcpStream {
        let mut stream = self.listener.accept().unwrap().0;
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        expect(&mut stream, expected);
        stream
    }
}

fn expect(stream: &mut TcpStream, expected: &[u8]) {
    let mut bytes = vec![0; expected.len()];
    stream.read_exact(&mut bytes).unwrap();
    let shown = |bytes: &[u8]| bytes[..bytes.len().min(100)].escape_ascii().to_string();
    assert!(bytes == expected, "{} where {} is expected", shown(&bytes), shown(expected));
}

fn expect_end(stream: &mut TcpStream) {
    let mut rest = Vec::new();
    // An end with unread bytes is a reset.
    match stream.read_to_end(&mut rest) {
        Ok(len) => assert_eq!(len, 0),
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
}

/// Returns a value without a period of the length of a buffer.
fn value(len: usize) -> Vec<u8> {
    (0..len).map(|at| b'a' + (at % 251 % 26) as u8).collect()
}

fn head(words: &str) -> Vec<u8> {
    format!("{words}\r\n").into_bytes()
}

/// Lets another request pass over the shared connection.
fn expect_free(scripted: &Scripted, shared: &mut Option<TcpStream>) {
    let mut client = scripted.proxy.connect();
    client.send(b"get other\r\n");
    match shared {
        Some(stream) => expect(stream, b"get other\r\n"),
        None => *shared = Some(scripted.accept(b"get other\r\n")),
    }
    shared.as_mut().unwrap().write_all(b"END\r\n").unwrap();
    client.expect(b"END\r\n");
}

#[test]
fn long_value_is_sent_as_it_arrives() {
    let scripted = Scripted::new();
    let value = value(LEN);
    let mut client = scripted.proxy.connect();
    for (line, reply) in [("set k 5 0 300000", "STORED"), ("ms k 300000 T0", "HD")] {
        client.send(&head(line));
        client.send(&value[..200_000]);
        let mut upload = scripted.accept(&head(line));
        expect(&mut upload, &value[..200_000]);
        expect_free(&scripted, &mut None);
        client.send(&value[200_000..]);
        client.send(b"\r");
        expect(&mut upload, &value[200_000..]);
        client.send(b"\n");
        expect(&mut upload, b"\r\n");
        upload.write_all(&head(reply)).unwrap();
        client.expect(&head(reply));
        // The next round connects anew.
        drop(upload);
    }
}

#[test]
fn requests_around_a_long_value_stay_in_order() {
    let scripted = Scripted::new();
    let value = value(LEN);
    let mut client = scripted.proxy.connect();
    let requests =
        [b"get k\r\n", &head("set k 0 0 300000 noreply")[..], &value, b"\r\nget k\r\nget k\r\n"].concat();
    let mut writer = client.stream.try_clone().unwrap();
    let writing = std::thread::spawn(move || writer.write_all(&requests).unwrap());
    let mut shared = scripted.accept(b"get k\r\n");
    scripted.listener.set_nonblocking(true).unwrap();
    // The proxy has handled all that it has read before it serves another client.
    let mut busy = scripted.proxy.connect();
    busy.expect_version();
    assert_eq!(scripted.listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    scripted.listener.set_nonblocking(false).unwrap();
    shared.write_all(b"END\r\n").unwrap();
    client.expect(b"END\r\n");
    let mut upload = scripted.accept(&head("set k 0 0 300000"));
    expect(&mut upload, &value);
    expect(&mut upload, b"\r\n");
    writing.join().unwrap();
    busy.expect_version();
    shared.set_nonblocking(true).unwrap();
    assert_eq!(shared.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    shared.set_nonblocking(false).unwrap();
    upload.write_all(b"STORED\r\n").unwrap();
    expect(&mut shared, b"get k\r\nget k\r\n");
    shared.write_all(b"END\r\nEND\r\n").unwrap();
    client.expect(b"END\r\nEND\r\n");
}

#[test]
fn incomplete_value_is_not_stored() {
    let scripted = Scripted::new();
    let value = value(LEN);
    for has_wrong_end in [false, true] {
        let mut client = scripted.proxy.connect();
        client.send(&head("set k 0 0 300000"));
        client.send(&value[..100_000]);
        let mut upload = scripted.accept(&head("set k 0 0 300000"));
        expect(&mut upload, &value[..100_000]);
        if has_wrong_end {
            client.send(&value[100_000..]);
            client.send(b"xxversion\r\n");
            client.expect(b"CLIENT_ERROR bad data chunk\r\nVERSION 1.6.45\r\n");
        } else {
            drop(client);
        }
        let mut rest = Vec::new();
        let _ = upload.read_to_end(&mut rest);
        assert!(value[100_000..].starts_with(&rest));
    }
}

/// The client has sent all: only its value is missing, not its connection.
#[test]
fn half_closed_client_ends_its_upload() {
    let scripted = Scripted::new();
    let mut client = scripted.proxy.connect();
    client.send(&[&head("set k 0 0 300000")[..], &value(1000)].concat());
    let mut upload = scripted.accept(&[&head("set k 0 0 300000")[..], &value(1000)].concat());
    client.stream.shutdown(std::net::Shutdown::Write).unwrap();
    expect_end(&mut upload);
    assert_eq!(client.rest(), b"");
}

#[test]
fn reply_before_the_end_discards_the_rest() {
    let scripted = Scripted::new();
    let value = value(LEN);
    let address = &scripted.address;
    for reply in ["SERVER_ERROR object too large for cache", "closed"] {
        let mut client = scripted.proxy.connect();
        client.send(&head("set k 0 0 300000"));
        client.send(&value[..100_000]);
        let mut upload = scripted.accept(&head("set k 0 0 300000"));
        expect(&mut upload, &value[..100_000]);
        if reply == "closed" {
            drop(upload);
            client.expect(&head(&format!("SERVER_ERROR server {address}: closed")));
        } else {
            upload.write_all(&head(reply)).unwrap();
            client.expect(&head(reply));
            expect_end(&mut upload);
        }
        // The rest of the value is no request.
        client.send(&value[100_000..]);
        client.send(b"\r\nversion\r\n");
        client.expect(b"VERSION 1.6.45\r\n");
    }
}

#[test]
fn third_long_value_waits_for_a_connection() {
    let scripted = Scripted::new();
    let value = value(LEN);
    let line = |n: usize| head(&format!("set k{n} 0 0 300000"));
    let mut clients: Vec<Client> = (0..4).map(|_| scripted.proxy.connect()).collect();
    let mut uploads = Vec::new();
    for (n, client) in clients[..2].iter_mut().enumerate() {
        client.send(&[&line(n)[..], &value[..1000]].concat());
        uploads.push(scripted.accept(&[&line(n)[..], &value[..1000]].concat()));
    }
    let mut shared = None;
    for (n, client) in clients[2..].iter_mut().enumerate() {
        client.send(&[&line(2 + n)[..], &value[..1000]].concat());
        expect_free(&scripted, &mut shared);
    }
    // The proxy notices the end of a client that waits when it reads again.
    drop(clients.remove(2));
    clients[0].send(&[&value[1000..], b"\r\n"].concat());
    expect(&mut uploads[0], &[&value[1000..], b"\r\n"].concat());
    uploads[0].write_all(b"STORED\r\n").unwrap();
    clients[0].expect(b"STORED\r\n");
    expect(&mut uploads[0], &[&line(2)[..], &value[..1000]].concat());
    expect_end(&mut uploads[0]);
    scripted.accept(&[&line(3)[..], &value[..1000]].concat());
    clients[1].send(&[&value[1000..], b"\r\n"].concat());
    expect(&mut uploads[1], &[&value[1000..], b"\r\n"].concat());
    uploads[1].write_all(b"STORED\r\n").unwrap();
    clients[1].expect(b"STORED\r\n");
}

/// A server that accepts nothing stops its client: the bytes stay in the sockets.
#[test]
fn blocked_server_stops_its_client() {
    let scripted = Scripted::new();
    let client = scripted.proxy.connect();
    let mut stream = client.stream.try_clone().unwrap();
    stream.write_all(&head("set k 0 0 1000000000")).unwrap();
    let _upload = scripted.accept(&head("set k 0 0 1000000000"));
    stream.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
    let piece = vec![b'x'; 1 << 20];
    let mut sent = 0;
    let error = loop {
        match stream.write(&piece) {
            Ok(len) => sent += len,
            Err(error) => break error,
        }
        assert!(sent < 64 << 20, "the proxy keeps the value");
    };
    assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
    expect_free(&scripted, &mut None);
}

/// Sends a packet of the binary protocol, and returns the status of the reply.
fn set_packet(client: &mut Client, key: &str, value: &[u8]) -> u8 {
    let mut packet = vec![0x80, 1, 0, key.len() as u8, 8, 0, 0, 0];
    packet.extend_from_slice(&((8 + key.len() + value.len()) as u32).to_be_bytes());
    packet.extend_from_slice(&[0; 20]);
    client.send(&[&packet, key.as_bytes(), value].concat());
    let header = client.take(24);
    client.take(u32::from_be_bytes(header[8..12].try_into().unwrap()) as usize);
    header[7]
}

#[test]
fn servers_of_each_dialect_store_long_values() {
    let mut with_room = options();
    with_room.limits.item_size_max = 8 << 20;
    let server = Running::start(with_room);
    for speak in [PoolProtocol::Text, PoolProtocol::Meta, PoolProtocol::Binary, PoolProtocol::Auto] {
        let proxy = proxy(PoolOptions { speak, ..pool(&server.addresses[0].to_string()) });
        let (mut client, mut packets) = (proxy.connect(), proxy.connect());
        for len in [(64 << 10) - 1, 64 << 10, (64 << 10) + 1, 1_000_000, 5_000_000] {
            let value = value(len);
            client.set(b"k", &value);
            client.expect_value(b"k", &value);
            assert_eq!(set_packet(&mut packets, "b", &value), 0, "{speak:?}");
            client.expect_value(b"b", &value);
        }
    }
}

#[test]
fn long_reply_is_passed_on_as_it_arrives() {
    let scripted = Scripted::new();
    let mut client = scripted.proxy.connect();
    let mut value = value(LEN);
    // It begins like a reply that is hidden from the client.
    value[..4].copy_from_slice(b"EN\r\n");
    let mut server = None;
    for (request, forwarded, head, end) in [
        ("get k\r\n", "get k\r\n", "VALUE k 0 300000\r\n", "\r\nEND\r\n"),
        ("mg k v q\r\n", "mg k v\r\n", "VA 300000\r\n", "\r\n"),
    ] {
        client.send(request.as_bytes());
        match &mut server {
            None => server = Some(scripted.accept(forwarded.as_bytes())),
            Some(server) => expect(server, forwarded.as_bytes()),
        }
        let server = server.as_mut().unwrap();
        server.write_all(&[head.as_bytes(), &value[..100_000]].concat()).unwrap();
        client.expect(&[head.as_bytes(), &value[..100_000]].concat());
        server.write_all(&value[100_000..]).unwrap();
        client.expect(&value[100_000..]);
        server.write_all(end.as_bytes()).unwrap();
        client.expect(end.as_bytes());
    }
    client.expect_version();
}

/// An error in place of the rest of a value would be taken for a part of it.
#[test]
fn loss_within_a_value_ends_the_client() {
    let scripted = Scripted::new();
    for earlier in ["", "get first\r\n"] {
        let mut client = scripted.proxy.connect();
        client.send(&[earlier.as_bytes(), b"get k\r\nversion\r\n"].concat());
        let mut server = scripted.accept(&[earlier.as_bytes(), b"get k\r\n"].concat());
        if !earlier.is_empty() {
            server.write_all(b"END\r\n").unwrap();
            client.expect(b"END\r\n");
        }
        let begun = [&head("VALUE k 0 300000")[..], &[b'x'; 1000]].concat();
        server.write_all(&begun).unwrap();
        client.expect(&begun);
        drop(server);
        assert_eq!(client.rest(), b"");
    }
}

#[test]
fn values_that_cannot_be_kept_are_errors() {
    let mut with_room = options();
    with_room.limits.item_size_max = 64 << 20;
    let server = Running::start(with_room);
    let proxy = proxy(pool(&server.addresses[0].to_string()));
    let value = value((16 << 20) + 1);
    let mut client = proxy.connect();
    client.set(b"long", &value);
    client.set(b"short", b"1");
    client.send(b"get short long short\r\nget short\r\n");
    client.expect(b"VALUE short 0 1\r\n1\r\nSERVER_ERROR value too long to be kept by the proxy\r\n");
    client.expect(b"VALUE short 0 1\r\n1\r\nEND\r\n");
    let mut packets = proxy.connect();
    assert_eq!(set_packet(&mut packets, "b", &value), 0x86);
    assert_eq!(set_packet(&mut packets, "b", b"1"), 0);
    let get = [b"\x80\0\0\x04\0\0\0\0\0\0\0\x04", &[0; 12][..], b"long"].concat();
    packets.send(&get);
    let reply = packets.take(24);
    assert_ne!(reply[7], 0);
    packets.take(u32::from_be_bytes(reply[8..12].try_into().unwrap()) as usize);
    assert_eq!(set_packet(&mut packets, "b", b"1"), 0);
}

const VERY_LONG: usize = 3_000_000;

/// Writes as much of a long reply as the peer accepts, in another thread.
fn write_in_background(stream: &TcpStream, bytes: Vec<u8>) -> std::thread::JoinHandle<()> {
    let mut stream = stream.try_clone().unwrap();
    std::thread::spawn(move || {
        let _ = stream.write_all(&bytes);
    })
}

#[test]
fn very_long_reply_is_read_again() {
    let scripted = Scripted::new();
    let head = head("VALUE k 0 3000000");
    let reply = |byte| [&head[..], &vec![byte; VERY_LONG], b"\r\nEND\r\n"].concat();
    let mut client = scripted.proxy.connect();
    client.send(b"get k\r\nget later\r\n");
    let mut shared = scripted.accept(b"get k\r\nget later\r\n");
    let first = write_in_background(&shared, reply(b'1'));
    let mut own = scripted.accept(b"get k\r\n");
    first.join().unwrap();
    shared.write_all(b"END\r\n").unwrap();
    expect_free(&scripted, &mut Some(shared.try_clone().unwrap()));
    let second = write_in_background(&own, reply(b'2'));
    client.expect(&reply(b'2'));
    second.join().unwrap();
    client.expect(b"END\r\n");
    // The connection is used again, also if there is no such record any more.
    for reply in [reply(b'3'), b"END\r\n".to_vec(), reply(b'4')] {
        client.send(b"get k\r\n");
        expect(&mut shared, b"get k\r\n");
        let first = write_in_background(&shared, very_long_reply(&head, b'1'));
        expect(&mut own, b"get k\r\n");
        first.join().unwrap();
        let second = write_in_background(&own, reply.clone());
        client.expect(&reply);
        second.join().unwrap();
    }
}

/// The reply of the server must not show the effect of a later request of the same client.
#[test]
fn read_before_a_write_is_not_repeated() {
    let scripted = Scripted::new();
    let reply = very_long_reply(&head("VALUE k 0 3000000"), b'1');
    let mut client = scripted.proxy.connect();
    client.send(b"get k\r\nset k 0 0 1\r\nx\r\n");
    let mut shared = scripted.accept(b"get k\r\nset k 0 0 1\r\nx\r\n");
    let writing = write_in_background(&shared, reply.clone());
    client.expect(&reply);
    writing.join().unwrap();
    shared.write_all(b"STORED\r\n").unwrap();
    client.expect(b"STORED\r\n");
}

/// Later requests wait until the server has begun to answer the repeated one.
#[test]
fn write_does_not_overtake_a_repeated_read() {
    let scripted = Scripted::new();
    let reply = very_long_reply(&head("VALUE k 0 3000000"), b'1');
    let mut client = scripted.proxy.connect();
    client.send(b"get k\r\n");
    let mut shared = scripted.accept(b"get k\r\n");
    let first = write_in_background(&shared, reply.clone());
    let own = scripted.accept(b"get k\r\n");
    first.join().unwrap();
    client.send(b"set k 0 0 1\r\nx\r\n");
    expect_free(&scripted, &mut Some(shared.try_clone().unwrap()));
    let second = write_in_background(&own, reply.clone());
    expect(&mut shared, b"set k 0 0 1\r\nx\r\n");
    shared.write_all(b"STORED\r\n").unwrap();
    client.expect(&reply);
    client.expect(b"STORED\r\n");
    second.join().unwrap();
}

/// Returns the reply with a very long value.
fn very_long_reply(head: &[u8], byte: u8) -> Vec<u8> {
    [head, &vec![byte; VERY_LONG], b"\r\nEND\r\n"].concat()
}

/// The client reads nothing, so the proxy stops to read its value, and nothing else.
#[test]
fn slow_reader_stops_only_its_own_value() {
    let scripted = Scripted::new();
    let len = 80_000_000;
    let mut client = scripted.proxy.connect();
    client.send(b"get k\r\n");
    let shared = scripted.accept(b"get k\r\n");
    let begun = head(&format!("VALUE k 0 {len}"));
    let mut on_shared = shared.try_clone().unwrap();
    on_shared.write_all(&[&begun[..], &[b'1'; 100]].concat()).unwrap();
    let mut own = scripted.accept(b"get k\r\n");
    own.write_all(&begun).unwrap();
    own.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
    let piece = vec![b'2'; 1 << 20];
    let mut sent = 0;
    while let Ok(count) = own.write(&piece) {
        sent += count;
        assert!(sent < 64 << 20, "the proxy keeps the value");
    }
    // The rest of the first reply still passes, and other clients are served after it.
    let mut left = len - 100;
    while left > 0 {
        let count = left.min(piece.len());
        on_shared.write_all(&piece[..count]).unwrap();
        left -= count;
    }
    on_shared.write_all(b"\r\nEND\r\n").unwrap();
    expect_free(&scripted, &mut Some(shared.try_clone().unwrap()));
    own.set_write_timeout(None).unwrap();
    let second = write_in_background(&own, [&vec![b'2'; len - sent][..], b"\r\nEND\r\n"].concat());
    client.expect(&begun);
    let mut left = len;
    while left > 0 {
        let bytes = client.take(left.min(1 << 20));
        assert!(bytes == piece[..bytes.len()]);
        left -= bytes.len();
    }
    client.expect(b"\r\nEND\r\n");
    second.join().unwrap();
}

#[test]
fn client_that_leaves_ends_its_read() {
    let scripted = Scripted::new();
    let begun = [&head("VALUE k 0 3000000")[..], &[b'1'; 100]].concat();
    for loses_server in [false, true] {
        let mut client = scripted.proxy.connect();
        client.send(b"get k\r\n");
        let mut shared = scripted.accept(b"get k\r\n");
        shared.write_all(&begun).unwrap();
        let mut own = scripted.accept(b"get k\r\n");
        own.set_write_timeout(Some(Duration::from_secs(60))).unwrap();
        own.write_all(&begun).unwrap();
        client.expect(&begun);
        if loses_server {
            drop(own);
            assert_eq!(client.rest(), b"");
        } else {
            // The proxy notices it when it sends more.
            drop(client);
            let error = (0..).find_map(|_| own.write(&[b'1'; 1000]).err()).unwrap();
            assert!(matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{error}");
        }
    }
}

#[test]
fn very_long_values_pass_in_both_directions() {
    let mut with_room = options();
    with_room.limits.item_size_max = 64 << 20;
    let server = Running::start(with_room);
    let value = value(20_000_000);
    for speak in [PoolProtocol::Text, PoolProtocol::Auto] {
        let proxy = proxy(PoolOptions { speak, ..pool(&server.addresses[0].to_string()) });
        let mut client = proxy.connect();
        for _ in 0..3 {
            client.set(b"k", &value);
            client.expect_value(b"k", &value);
        }
        client.send(b"mg k s v\r\n");
        client.expect(&[b"VA 20000000 s20000000\r\n", &value[..], b"\r\n"].concat());
    }
}

/// Such a read was once repeated after the request that came next.
#[test]
fn read_with_an_effect_is_not_repeated() {
    let value = value(3 << 20);
    for (request, last, replies) in [
        ("get k\r\nflush_all\r\n", "flush_all\r\n", "OK\r\n"),
        ("get k\r\nmg k s T-1\r\n", "mg k s T-1\r\n", "HD s3145728\r\n"),
        ("gat -1 k\r\nget n\r\n", "get n\r\n", "END\r\n"),
        ("mg k v h\r\nget n\r\n", "get n\r\n", "END\r\n"),
    ] {
        let scripted = Scripted::new();
        let mut client = scripted.proxy.connect();
        client.send(request.as_bytes());
        let mut shared = scripted.accept(request.as_bytes());
        let (first, end) = match request.starts_with("mg ") {
            true => (head("VA 3145728 h0"), &b"\r\n"[..]),
            false => (head("VALUE k 0 3145728"), &b"\r\nEND\r\n"[..]),
        };
        let reply = [&first[..], &value, end, replies.as_bytes()].concat();
        let writing = write_in_background(&shared, reply.clone());
        client.expect(&reply);
        writing.join().unwrap();
        // Nothing was asked again.
        shared.set_nonblocking(true).unwrap();
        assert_eq!(shared.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
        scripted.listener.set_nonblocking(true).unwrap();
        assert_eq!(scripted.listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock, "{last:?}");
    }
}

/// Such a read was once lost, because the new configuration has other servers.
#[test]
fn repeated_read_survives_a_reload() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut proxy =
        ProxyOptions { pools: BTreeMap::from([("main".into(), pool(&address))]), ..ProxyOptions::default() };
    let limits = LimitOptions { threads: 1, ..LimitOptions::default() };
    let server = Server::bind(ServerOptions { proxy: Some(proxy.clone()), limits, ..options() }).unwrap();
    let reloader = server.proxy_reloader().unwrap();
    let scripted = Scripted { proxy: Running::of(server), listener, address };
    let mut client = scripted.proxy.connect();
    // The read waits for the reply before it.
    client.send(b"get first\r\nget k\r\n");
    let mut shared = scripted.accept(b"get first\r\nget k\r\n");
    proxy.pools.get_mut("main").unwrap().servers = vec!["127.0.0.1:1".parse().unwrap()];
    reloader.reload(&proxy).unwrap();
    let value = value(2 << 20);
    let reply = [&head("VALUE k 0 2097152")[..], &value, b"\r\nEND\r\n"].concat();
    let writing = write_in_background(&shared, [b"END\r\n", &reply[..]].concat());
    client.expect(b"END\r\n");
    let again = scripted.accept(b"get k\r\n");
    let answering = write_in_background(&again, reply.clone());
    client.expect(&reply);
    writing.join().unwrap();
    answering.join().unwrap();
    // The connection of the former configuration has ended.
    shared.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    expect_end(&mut shared);
}
