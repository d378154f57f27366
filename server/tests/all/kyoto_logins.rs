//! Tests Kyoto Tycoon's protocols on a server that requires logins.

use crate::kyoto_client;
use crate::running;

use kyoto_client::{answer, call, kyoto, page, until_waiting, watched};
use running::{Client, Running, eventually};
use std::io::{Read, Write};
use std::path::PathBuf;
use todana_server::AuthenticationMode::{self, Passwords, Sasl, Text};
use todana_server::{
    KyotoMode, KyotoOptions, LimitOptions, ListenOptions, ProtocolOptions, ServerOptions, password_line,
};

/// The hash of a password other than `wrong`. It is expensive: a check takes about half a second.
const DEAR: &str = "$argon2id$v=19$m=65536,t=8,p=1$c2FsdHNhbHQ$vk+JgWgZGbXHtEqPQPhzXbD+QxxkJR5Fq2AXLhDyYaY";

/// The credentials `alice:secret`, and `alice` with another password.
const RIGHT: &str = "Basic YWxpY2U6c2VjcmV0";
const WRONG: &str = "Basic YWxpY2U6d3Jvbmc=";
/// `bob:plain`.
const BOB: &str = "Basic Ym9iOnBsYWlu";

/// A bulk request of the binary protocol for no record, and its answer.
const BINARY: &[u8] = b"\xBA\0\0\0\0\0\0\0\0";
const NO_RECORD: &[u8] = b"\xBA\0\0\0\0";

struct Users {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

fn users(text: &str) -> Users {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("users");
    std::fs::write(&path, text).unwrap();
    Users { _folder: folder, path }
}

fn start(users: &Users) -> Running {
    Running::start(ServerOptions {
        protocols: ProtocolOptions { authentication: Passwords(users.path.clone()), ..watched().protocols },
        ..watched()
    })
}

/// Adds an `Authorization` header to a request.
fn with(authorization: &str, request: &[u8]) -> Vec<u8> {
    let line_end = request.windows(2).position(|two| two == b"\r\n").unwrap() + 2;
    let header = format!("Authorization: {authorization}\r\n");
    [&request[..line_end], header.as_bytes(), &request[line_end..]].concat()
}

fn put(key: &str, value: &str) -> Vec<u8> {
    format!("PUT /{key} HTTP/1.1\r\nContent-Length: {}\r\n\r\n{value}", value.len()).into_bytes()
}

fn get(key: &str) -> Vec<u8> {
    format!("GET /{key} HTTP/1.1\r\n\r\n").into_bytes()
}

fn ask(client: &mut Client, request: &[u8]) -> u16 {
    client.send(request);
    answer(client).0
}

fn stranger() -> (u16, Vec<u8>) {
    (401, b"401 Unauthorized (each request needs the name and password of a user)\n".to_vec())
}

/// Returns true if the server admits a client with this `Authorization`.
fn lets_in(server: &Running, authorization: &str) -> bool {
    match ask(&mut server.connect(), &with(authorization, &get("none"))) {
        404 => true,
        401 => false,
        status => panic!("{status}"),
    }
}

/// The file of users may serve both dialects of memcached, or one of them.
#[test]
fn each_request_needs_a_login_in_every_mode() {
    let hashed = password_line("alice", b"secret").unwrap();
    let (plain, hashed) = (users("alice:secret\n"), users(&hashed));
    let both: fn(PathBuf) -> AuthenticationMode = Passwords;
    for authentication in [
        both(plain.path.clone()),
        both(hashed.path.clone()),
        Sasl(hashed.path.clone()),
        Text(plain.path.clone()),
    ] {
        for kyoto_place in [KyotoMode::Beside, KyotoMode::Only] {
            let options = ServerOptions {
                protocols: ProtocolOptions {
                    authentication: authentication.clone(),
                    kyoto: KyotoOptions { spoken: kyoto_place, ..kyoto().protocols.kyoto },
                    ..kyoto().protocols
                },
                ..kyoto()
            };
            let server = Running::start(options);
            let mut client = server.connect();
            // On the same connection, requests without a login have no effect, and requests of the
            // user have one.
            for request in [put("k", "stolen"), call("set", "key\tk\nvalue\tstolen\n"), get("k")] {
                client.send(&[request.clone(), with(WRONG, &request)].concat());
                assert_eq!(answer(&mut client), stranger(), "{authentication:?}");
                assert_eq!(answer(&mut client), stranger());
            }
            assert_eq!(ask(&mut client, &with(RIGHT, &get("k"))), 404);
            assert_eq!(ask(&mut client, &with(RIGHT, &put("k", "v"))), 201);
            client.send(&with(RIGHT, &call("get", "key\tk\n")));
            assert_eq!(answer(&mut client), (200, b"value\tv\n".to_vec()));
            assert_eq!(ask(&mut client, &get("k")), 401);
        }
    }
}

#[test]
fn invalid_authorizations_are_refused() {
    let users = users(&format!("{}\ncarol:\nbob:with:colon\n", password_line("alice", b"secret").unwrap()));
    let server = start(&users);
    for (authorization, lets) in [
        (RIGHT, true),
        ("bASIC YWxpY2U6c2VjcmV0", true),
        // bob:with:colon, bob:with
        ("Basic Ym9iOndpdGg6Y29sb24=", true),
        ("Basic Ym9iOndpdGg=", false),
        // The first header is not valid base64, and the second one contains no colon.
        ("Basic YWxpY2U6c2VjcmV", false),
        ("Basic YWxp!2U6c2VjcmV0", false),
        ("Basic YWxpY2U=", false),
        ("Basic", false),
        ("Basic  ", false),
        ("", false),
        ("Bearer YWxpY2U6c2VjcmV0", false),
        ("YWxpY2U6c2VjcmV0", false),
        // The name is empty, with a password and without one, or the name has no password.
        ("Basic OnNlY3JldA==", false),
        ("Basic Og==", false),
        ("Basic YWxpY2U6", false),
        (WRONG, false),
    ] {
        assert_eq!(lets_in(&server, authorization), lets, "{authorization}");
    }
}

#[test]
fn pipelined_wrong_password_fails_only_its_own_request() {
    let users = users(&password_line("alice", b"secret").unwrap());
    let server = start(&users);
    let mut client = server.connect();
    client.send(
        &[
            with(RIGHT, &put("a", "1")),
            with(WRONG, &put("b", "2")),
            put("c", "3"),
            with(RIGHT, &call("get_bulk", "_a\t\n_b\t\n_c\t\n")),
        ]
        .concat(),
    );
    assert_eq!(answer(&mut client).0, 201);
    assert_eq!(answer(&mut client), stranger());
    assert_eq!(answer(&mut client), stranger());
    assert_eq!(answer(&mut client), (200, b"_a\t1\nnum\t1\n".to_vec()));
    assert_eq!(page(&server, "todana_auth_errors_total"), 1);
    // The first login, the wrong one, and the right one after it. A request without a name is no
    // attempt.
    assert_eq!(page(&server, "todana_auth_attempts_total"), 3);
}

#[test]
fn a_slow_check_stalls_nobody_else() {
    let users = users(&format!("alice:{DEAR}\nbob:plain\n"));
    let server = start(&users);
    let mut slow = server.connect();
    slow.send(&[with(WRONG, &put("k", "v")), with(BOB, &get("k")), with(BOB, &get("k"))].concat());
    // A single worker serves both.
    let mut other = server.connect();
    for _ in 0..100 {
        assert_eq!(ask(&mut other, &with(BOB, &get("k"))), 404);
    }
    slow.stream.set_nonblocking(true).unwrap();
    let early = slow.stream.read(&mut [0]).unwrap_err();
    assert_eq!(early.kind(), std::io::ErrorKind::WouldBlock);
    slow.stream.set_nonblocking(false).unwrap();
    assert_eq!(answer(&mut slow), stranger());
    assert_eq!(answer(&mut slow).0, 404);
    assert_eq!(answer(&mut slow).0, 404);
    // Credentials that were admitted on a connection are not checked again on it.
    assert_eq!(page(&server, "todana_auth_attempts_total"), 3);
}

#[test]
fn pending_logins_are_answered_at_a_stop() {
    let users = users(&format!("alice:{DEAR}\nbob:plain\n"));
    let mut server = start(&users);
    let mut client = server.connect();
    client.send(&with(WRONG, &put("k", "v")));
    let mut other = server.connect();
    assert_eq!(ask(&mut other, &with(BOB, &get("k"))), 404);
    server.handle.stop();
    assert_eq!(answer(&mut client), stranger());
    assert_eq!(client.rest(), b"");
    server.join();
}

#[test]
fn removed_user_is_refused_at_the_next_request() {
    for authentication in [Passwords as fn(PathBuf) -> AuthenticationMode, Text] {
        let users = users("alice:secret\nbob:plain\n");
        let server = Running::start(ServerOptions {
            protocols: ProtocolOptions {
                authentication: authentication(users.path.clone()),
                ..kyoto().protocols
            },
            ..kyoto()
        });
        let mut client = server.connect();
        assert_eq!(ask(&mut client, &with(RIGHT, &get("k"))), 404);
        std::fs::write(&users.path, "bob:plain\n").unwrap();
        assert_eq!(ask(&mut client, &with(RIGHT, &get("k"))), 404);
        (server.reload)();
        assert_eq!(ask(&mut client, &with(RIGHT, &get("k"))), 401);
        assert_eq!(ask(&mut client, &with(BOB, &get("k"))), 404);
    }
}

#[test]
fn binary_protocol_is_open_after_an_http_login() {
    let users = users(&password_line("alice", b"secret").unwrap());
    let server = start(&users);
    // A bulk request, a script call and a replica's request.
    let store = b"\xB8\0\0\0\0\0\0\0\x01\0\0\0\0\0\x01\0\0\0\x01\x7F\xFF\xFF\xFF\xFF\xFF\xFF\xFFkv";
    for request in [&store[..], b"\xB4\0\0\0\0\0\0\0\x04\0\0\0\0echo", b"\xB1\0\0\0\0\0\0\0\0\0\0\0\0\0\0"] {
        for before in [vec![], get("k"), with(WRONG, &get("k")), [with(RIGHT, &get("k")), get("k")].concat()]
        {
            let mut client = server.connect();
            client.send(&[&before, request].concat());
            let rest = client.rest();
            assert_eq!(rest.last(), Some(&0xBF), "{}", rest.escape_ascii());
        }
    }
    assert_eq!(ask(&mut server.connect(), &with(RIGHT, &get("k"))), 404);
    let mut client = server.connect();
    client.send(&[with(RIGHT, &get("k")), store.to_vec(), BINARY.to_vec()].concat());
    assert_eq!(answer(&mut client).0, 404);
    client.expect(b"\xB8\0\0\0\x01");
    client.expect(NO_RECORD);
    assert_eq!(ask(&mut client, &with(RIGHT, &get("k"))), 200);
}

#[test]
fn memcached_and_http_logins_share_port_and_users() {
    let users = users(&password_line("alice", b"secret").unwrap());
    let server = start(&users);
    let mut http = server.connect();
    assert_eq!(ask(&mut http, &with(RIGHT, &put("k", "v"))), 201);
    let mut text = server.connect();
    text.send(b"get k\r\n");
    text.expect(b"CLIENT_ERROR unauthenticated\r\n");
    text.send(b"set x 0 0 12\r\nalice secret\r\nget k\r\n");
    text.expect(b"STORED\r\nVALUE k 0 1\r\nv\r\nEND\r\n");
    let mut binary = server.connect();
    let body = b"PLAIN\0alice\0secret";
    let mut packet = vec![0x80, 0x21, 0, 5, 0, 0, 0, 0, 0, 0, 0, body.len() as u8];
    packet.extend([0; 12]);
    packet.extend(body);
    binary.send(&packet);
    let header = binary.take(24);
    assert_eq!((header[0], header[7]), (0x81, 0));
    // A memcached login on another connection is not an HTTP login.
    assert_eq!(ask(&mut server.connect(), &get("k")), 401);
}

#[test]
fn waiter_for_a_signal_logs_in_only_once() {
    let users = users(&password_line("alice", b"secret").unwrap());
    let server = start(&users);
    let mut stranger_waits = server.connect();
    let wait = call("set", "key\tk\nvalue\tv\nWAIT\tgo\nWAITTIME\t1000\n");
    assert_eq!(ask(&mut stranger_waits, &with(WRONG, &wait)), 401);
    let mut waiting = server.connect();
    waiting.send(&with(RIGHT, &wait));
    until_waiting(&server, 1);
    let mut other = server.connect();
    let signal = call("void", "SIGNAL\tgo\n");
    assert_eq!(ask(&mut other, &signal), 401);
    assert_eq!(page(&server, "todana_kyoto_waiting"), 1);
    other.send(&with(RIGHT, &signal));
    assert_eq!(answer(&mut other), (200, b"SIGNALED\t1\n".to_vec()));
    assert_eq!(answer(&mut waiting), (200, vec![]));
    assert_eq!(ask(&mut other, &with(RIGHT, &get("k"))), 200);
    // The attempts of clients with and without a login are counted. The request that waited is
    // counted once.
    assert_eq!(page(&server, "todana_auth_attempts_total"), 3);
}

#[test]
fn bytes_of_unauthenticated_clients_are_not_kept() {
    let users = users(&password_line("alice", b"secret").unwrap());
    let server = start(&users);
    // The body of this request is never complete.
    let mut client = server.connect();
    client.send(b"PUT /k HTTP/1.1\r\nContent-Length: 200000000\r\n\r\n");
    assert_eq!(answer(&mut client), stranger());
    for _ in 0..64 {
        client.send(&[b'x'; 1 << 16]);
    }
    assert_eq!(page(&server, "todana_partial_request_bytes"), 0);
    // This head never ends. The client may see the connection reset.
    let mut client = server.connect();
    let line = "X-Nothing: at all\r\n".repeat(1000);
    let _ = client.stream.write_all(b"GET /k HTTP/1.1\r\n");
    for _ in 0..(1 << 20) / line.len() {
        if client.stream.write_all(line.as_bytes()).is_err() {
            break;
        }
    }
    let mut rest = Vec::new();
    let _ = client.stream.read_to_end(&mut rest);
    assert!(rest.is_empty() || rest.starts_with(b"HTTP/1.1 431 "), "{}", rest.escape_ascii());
    eventually("it is closed", || page(&server, "todana_partial_request_bytes") == 0);
    // The bodies of users may be large.
    let mut client = server.connect();
    assert_eq!(ask(&mut client, &with(RIGHT, &put("k", &"v".repeat(5 << 20)))), 201);
}

#[test]
fn concurrent_logins_get_their_own_results() {
    let users = users(&password_line("alice", b"secret").unwrap());
    let options = ServerOptions {
        protocols: ProtocolOptions { authentication: Passwords(users.path.clone()), ..watched().protocols },
        limits: LimitOptions { threads: 3, ..watched().limits },
        ..watched()
    };
    let server = Running::start(options);
    let mut clients: Vec<Client> = (0..30).map(|_| server.connect()).collect();
    let is_wrong = |number: usize| number.is_multiple_of(3);
    for (number, client) in clients.iter_mut().enumerate() {
        let authorization = if is_wrong(number) { WRONG } else { RIGHT };
        client.send(&with(authorization, &put(&format!("k{number}"), "v")));
    }
    for (number, client) in clients.iter_mut().enumerate() {
        assert_eq!(answer(client).0, if is_wrong(number) { 401 } else { 201 });
        let status = ask(client, &with(RIGHT, &get(&format!("k{number}"))));
        assert_eq!(status, if is_wrong(number) { 404 } else { 200 });
    }
    assert_eq!(page(&server, "todana_auth_attempts_total"), 40);
    assert_eq!(page(&server, "todana_auth_errors_total"), 10);
}

#[test]
fn memcached_listener_offers_no_kyoto_login() {
    let users = users("alice:secret\n");
    for protocol in ["proto[ascii]:127.0.0.1:0", "proto[binary]:127.0.0.1:0"] {
        let server = Running::start(ServerOptions {
            listen: ListenOptions { addresses: vec![protocol.to_owned()], ..kyoto().listen },
            protocols: ProtocolOptions { authentication: Passwords(users.path.clone()), ..kyoto().protocols },
            ..kyoto()
        });
        let mut client = server.connect();
        client.send(&with(RIGHT, &get("k")));
        client.stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(!client.rest().starts_with(b"HTTP"));
    }
}

/// The memcached plug-in of Kyoto Tycoon has no logins.
#[test]
fn plug_in_dialect_is_refused_beside_logins() {
    let options = ServerOptions {
        protocols: ProtocolOptions {
            authentication: Text("users".into()),
            kyoto: KyotoOptions {
                spoken: KyotoMode::Only,
                plugin: Some(todana_server::PluginOptions::default()),
                ..KyotoOptions::default()
            },
            ..ProtocolOptions::default()
        },
        ..ServerOptions::default()
    };
    let Err(error) = todana_server::Server::bind(options) else { panic!("it starts") };
    assert!(error.to_string().contains("plug-in"), "{error}");
}
