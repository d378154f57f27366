//! The connections of the proxy to its servers: TLS, logins, Unix sockets, and time limits.

use crate::running;

use running::{Running, eventually, options};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Duration;
use todana_server::{
    AuthenticationMode, LimitOptions, ListenOptions, PoolLogin, PoolOptions, PoolProtocol, PoolTlsOptions,
    ProtocolOptions, ProxyOptions, Server, ServerOptions, TlsOptions, WhenDown,
};

/// Returns a pool of one server of a known dialect, whose failures are shown.
fn pool(server: &str) -> PoolOptions {
    PoolOptions {
        servers: vec![server.parse().unwrap()],
        speak: PoolProtocol::Meta,
        when_down: WhenDown::Error,
        connect_timeout: Duration::from_secs(10),
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

fn listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

fn expect(stream: &mut TcpStream, expected: &[u8]) {
    let mut bytes = vec![0; expected.len()];
    stream.read_exact(&mut bytes).unwrap();
    assert_eq!(bytes.escape_ascii().to_string(), expected.escape_ascii().to_string());
}

fn with_tls(folder: &Path) -> ListenOptions {
    let signed = rcgen::generate_simple_self_signed(vec!["cache.internal".to_string()]).unwrap();
    let chain = folder.join("server.pem");
    std::fs::write(&chain, signed.cert.pem() + &signed.signing_key.serialize_pem()).unwrap();
    ListenOptions { tls: Some(TlsOptions { chain, ..TlsOptions::default() }), ..options().listen }
}

/// Returns the reply to a `set` through a proxy whose server has TLS and logins.
fn reply_with(tls: Option<PoolTlsOptions>, password: &str, speak: PoolProtocol) -> String {
    let folder = tempfile::tempdir().unwrap();
    let (users, password_file) = (folder.path().join("users"), folder.path().join("password"));
    std::fs::write(&users, "web:secret\n").unwrap();
    std::fs::write(&password_file, format!("{password}\nsecond line\n")).unwrap();
    let authentication = AuthenticationMode::Text(users);
    let server = Running::start(ServerOptions {
        listen: with_tls(folder.path()),
        protocols: ProtocolOptions { authentication, ..options().protocols },
        ..options()
    });
    let ca = Some(folder.path().join("server.pem"));
    let tls = tls.map(|tls| PoolTlsOptions { ca, ..tls });
    let login = Some(PoolLogin { user: "web".into(), password_file, password: None });
    let address = server.addresses[0].to_string();
    let proxy = proxy(PoolOptions { tls, login, speak, ..pool(&address) });
    let mut client = proxy.connect();
    client.send(b"set a 0 0 1\r\nx\r\n");
    let reply = client.line();
    if reply == "STORED\r\n" {
        client.expect_value(b"a", b"x");
    }
    reply.replace(&address, "SERVER")
}

#[test]
fn servers_with_tls_and_logins_are_reached() {
    let tls = PoolTlsOptions { server_name: Some("cache.internal".into()), ..PoolTlsOptions::default() };
    for speak in [PoolProtocol::Auto, PoolProtocol::Meta] {
        assert_eq!(reply_with(Some(tls.clone()), "secret", speak), "STORED\r\n");
        assert_eq!(
            reply_with(Some(tls.clone()), "wrong", speak),
            "SERVER_ERROR server SERVER: login failed\r\n"
        );
    }
}

#[test]
fn server_without_tls_fails_the_handshake() {
    let server = Running::start(options());
    let address = server.addresses[0].to_string();
    let folder = tempfile::tempdir().unwrap();
    with_tls(folder.path());
    let tls = PoolTlsOptions { ca: Some(folder.path().join("server.pem")), ..PoolTlsOptions::default() };
    let proxy = proxy(PoolOptions { tls: Some(tls), ..pool(&address) });
    let mut client = proxy.connect();
    client.send(b"get a\r\n");
    let reply = client.line();
    let reason = reply.strip_prefix(&format!("SERVER_ERROR server {address}: "));
    assert!(matches!(reason, Some("tls failed\r\n" | "closed\r\n")), "{reply}");
}

#[test]
fn servers_at_unix_sockets_are_reached() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("server.sock");
    let listen = ListenOptions { unix_socket: Some(path.clone()), ..options().listen };
    let _server = Running::start(ServerOptions { listen, ..options() });
    let proxy = proxy(pool(&format!("unix:{}", path.display())));
    let mut client = proxy.connect();
    client.set(b"a", b"1");
    client.expect_value(b"a", b"1");
}

#[test]
fn unusable_files_are_refused_with_their_names() {
    let missing = || Path::new("/nowhere/file").to_path_buf();
    let login = PoolLogin { user: "web".into(), password_file: missing(), password: None };
    for pool in [
        PoolOptions { login: Some(login), ..pool("a:1") },
        PoolOptions {
            tls: Some(PoolTlsOptions { ca: Some(missing()), ..PoolTlsOptions::default() }),
            ..pool("a:1")
        },
    ] {
        let pools = BTreeMap::from([("main".into(), pool)]);
        let proxy = Some(ProxyOptions { pools, ..ProxyOptions::default() });
        let error = Server::bind(ServerOptions { proxy, ..options() }).err().unwrap();
        let error = error.to_string();
        assert!(error.starts_with("pool main: ") && error.contains("/nowhere/file"), "{error}");
    }
}

/// A request that is overdue keeps its place: its late reply must not become that of another.
#[test]
fn late_replies_are_dropped() {
    let (listener, address) = listener();
    let second = Duration::from_secs(1);
    let proxy = proxy(PoolOptions { reply_timeout: Some(second), ..pool(&address) });
    let mut slow = proxy.connect();
    slow.send(b"get a\r\n");
    let mut server = listener.accept().unwrap().0;
    expect(&mut server, b"get a\r\n");
    // The reply to the first request arrives slowly, so the connection is in use.
    server.write_all(b"VALUE a 0 100000\r\n").unwrap();
    let (ends, is_over) = channel::<()>();
    let mut writer = server.try_clone().unwrap();
    let dripping = std::thread::spawn(move || {
        let mut len = 0;
        while is_over.recv_timeout(Duration::from_millis(5)).is_err() {
            writer.write_all(b"x").unwrap();
            len += 1;
        }
        writer.write_all(&vec![b'x'; 100_000 - len]).unwrap();
        writer.write_all(b"\r\nEND\r\n").unwrap();
    });
    let mut quick = proxy.connect();
    quick.send(b"get b\r\n");
    quick.expect(format!("SERVER_ERROR server {address}: timed out\r\n").as_bytes());
    quick.send(b"get c\r\n");
    ends.send(()).unwrap();
    dripping.join().unwrap();
    slow.expect(b"VALUE a 0 100000\r\n");
    slow.expect(&[b'x'; 100_000]);
    slow.expect(b"\r\nEND\r\n");
    server.write_all(b"VALUE b 0 1\r\nB\r\nEND\r\nVALUE c 0 1\r\nC\r\nEND\r\n").unwrap();
    quick.expect(b"VALUE c 0 1\r\nC\r\nEND\r\n");
    expect(&mut server, b"get b\r\nget c\r\n");
}

#[test]
fn idle_connections_are_checked() {
    let (listener, address) = listener();
    let proxy = proxy(PoolOptions { ping: Some(Duration::from_millis(20)), ..pool(&address) });
    let mut client = proxy.connect();
    client.send(b"get a\r\n");
    let mut server = listener.accept().unwrap().0;
    expect(&mut server, b"get a\r\n");
    server.write_all(b"END\r\n").unwrap();
    client.expect(b"END\r\n");
    for _ in 0..3 {
        expect(&mut server, b"version\r\n");
        server.write_all(b"VERSION 1.6.45\r\n").unwrap();
    }
}

#[test]
fn connections_can_be_opened_at_the_start() {
    let (listener, address) = listener();
    let _proxy = proxy(PoolOptions { preconnect: true, connections: 3, ..pool(&address) });
    let mut streams = [(); 3].map(|()| listener.accept().unwrap().0);
    streams[0].set_nonblocking(true).unwrap();
    assert_eq!(streams[0].read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn keys_of_a_dead_server_move() {
    let (alive, dying) = (Running::start(options()), Running::start(options()));
    let address = dying.addresses[0];
    let both = [alive.addresses[0], address].map(|address| address.to_string().parse().unwrap());
    let retry = Duration::from_millis(20);
    let limits = (true, Duration::from_secs(7));
    let pool =
        PoolOptions { servers: both.to_vec(), eject: limits.0, stand_in_ttl: limits.1, retry, ..pool("a") };
    let proxy = proxy(pool);
    let mut client = proxy.connect();
    let keys: Vec<String> = (0..40).map(|n| format!("k{n}")).collect();
    keys.iter().for_each(|key| client.set(key.as_bytes(), b"1"));
    let mut direct = alive.connect();
    let mut seconds_left = |key: &String| {
        direct.send(format!("mg {key} t\r\n").as_bytes());
        direct.line()
    };
    let moved: Vec<&String> = keys.iter().filter(|key| seconds_left(key) == "EN\r\n").collect();
    assert!(!moved.is_empty() && moved.len() < keys.len());
    drop(dying);
    eventually("the server is down", || {
        client.send(format!("set {} 0 0 1\r\n2\r\n", moved[0]).as_bytes());
        client.line() == "STORED\r\n"
    });
    for key in &keys {
        client.set(key.as_bytes(), b"2");
        client.expect_value(key.as_bytes(), b"2");
        client.send(format!("ms {key} 1 T0\r\n3\r\n").as_bytes());
        client.expect(b"HD\r\n");
        let mut is_capped = || ["HD t7\r\n", "HD t6\r\n"].contains(&seconds_left(key).as_str());
        assert_eq!(is_capped(), moved.contains(&key), "{key}");
        client.send(format!("gat 1000 {key} none\r\n").as_bytes());
        client.expect(format!("VALUE {key} 0 1\r\n3\r\nEND\r\n").as_bytes());
        assert_eq!(is_capped(), moved.contains(&key), "{key} of a line");
    }
    let mut again = options();
    again.listen.port = address.port();
    let _again = Running::of(Server::bind(again).unwrap());
    eventually("the server is up", || {
        client.send(format!("get {}\r\n", moved[0]).as_bytes());
        let is_miss = client.line() == "END\r\n";
        if !is_miss {
            client.expect(b"3\r\nEND\r\n");
        }
        is_miss
    });
}

/// A reply that is longer than one turn may read.
#[test]
fn long_replies_are_read_in_turns() {
    let server = Running::start(options());
    let proxy = proxy(pool(&server.addresses[0].to_string()));
    let value = vec![b'v'; 1 << 20];
    let mut client = proxy.connect();
    for _ in 0..3 {
        client.set(b"long", &value[..1_000_000]);
        client.expect_value(b"long", &value[..1_000_000]);
    }
}
