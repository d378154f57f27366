//! Tests many clients that log in at once: a slow check delays no other client, and the login of
//! one client admits no other.

use crate::running;

use running::{Client, Running, options};
use std::io::Read;
use std::path::Path;
use todana_server::{
    AuthenticationMode, LimitOptions, PoolOptions, ProtocolOptions, ProxyOptions, ServerOptions,
    password_line,
};

/// Hashes of the password `secret`: a cheap one, and one that takes about half a second to check.
const CHEAP: &str = "$argon2id$v=19$m=8,t=1,p=1$c2FsdHNhbHQ$vk+JgWgZGbXHtEqPQPhzXbD+QxxkJR5Fq2AXLhDyYaY";
const DEAR: &str = "$argon2id$v=19$m=65536,t=8,p=1$c2FsdHNhbHQ$vk+JgWgZGbXHtEqPQPhzXbD+QxxkJR5Fq2AXLhDyYaY";

fn packet(opcode: u8, key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x80, opcode];
    packet.extend((key.len() as u16).to_be_bytes());
    packet.extend([0; 4]);
    packet.extend(((key.len() + value.len()) as u32).to_be_bytes());
    packet.extend([0; 12]);
    [&packet, key, value].concat()
}

fn response(opcode: u8, status: u8, value: &[u8]) -> Vec<u8> {
    let mut packet = packet(opcode, b"", value);
    packet[0] = 0x81;
    packet[7] = status;
    packet
}

fn login(user: &str, password: &str) -> Vec<u8> {
    packet(0x21, b"PLAIN", format!("\0{user}\0{password}").as_bytes())
}

fn admitted() -> Vec<u8> {
    response(0x21, 0x00, b"Authenticated")
}

fn refused() -> Vec<u8> {
    response(0x21, 0x20, b"Auth failure.")
}

fn start(users: &Path, threads: usize) -> Running {
    let authentication = AuthenticationMode::Sasl(users.to_path_buf());
    Running::start(ServerOptions {
        protocols: ProtocolOptions { authentication, ..options().protocols },
        limits: LimitOptions { threads, ..options().limits },
        ..options()
    })
}

/// Creates a file of users, which is deleted with its folder.
fn users(text: &str) -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("users");
    std::fs::write(&path, text).unwrap();
    (folder, path)
}

#[test]
fn slow_password_check_delays_no_other_client() {
    let (_folder, path) = users(&format!("alice:{DEAR}\nbob:plain\n"));
    let server = start(&path, 1);
    let mut slow = server.connect();
    slow.send(&[login("alice", "wrong"), packet(0x0b, b"", b"")].concat());
    let mut other = server.connect();
    other.send(&[packet(0x0b, b"", b""), login("bob", "plain"), packet(0x0a, b"", b"")].concat());
    other.expect(&response(0x0b, 0, b"1.6.45"));
    other.expect(&admitted());
    other.expect(&response(0x0a, 0, b""));
    // The other client was served during the check. The command after the slow login has waited for
    // its outcome.
    slow.stream.set_nonblocking(true).unwrap();
    let early = slow.stream.read(&mut [0]).unwrap_err();
    assert_eq!(early.kind(), std::io::ErrorKind::WouldBlock);
    slow.stream.set_nonblocking(false).unwrap();
    slow.expect(&refused());
    slow.expect(&response(0x0b, 0, b"1.6.45"));
}

#[test]
fn concurrent_logins_get_their_own_results() {
    let (_folder, path) = users(&format!("alice:{CHEAP}\n"));
    let server = start(&path, 3);
    let mut clients: Vec<Client> = (0..60).map(|_| server.connect()).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        let password = if number % 3 == 0 { "wrong" } else { "secret" };
        client.send(&[login("alice", password), packet(0x0a, b"", b"")].concat());
    }
    for (number, client) in clients.iter_mut().enumerate() {
        if number % 3 == 0 {
            client.expect(&refused());
            client.expect(&response(0x0a, 0x20, b"Auth failure."));
            assert_eq!(client.rest(), b"");
        } else {
            client.expect(&admitted());
            client.expect(&response(0x0a, 0, b""));
        }
    }
    let stat = |client: &mut Client, name: &str| {
        client.send(&packet(0x10, b"", b""));
        let mut found = None;
        loop {
            let mut header = [0; 24];
            client.read_exact(&mut header);
            let (key_len, body_len) = (usize::from(header[3]), usize::from(header[11]));
            let mut body = vec![0; body_len];
            client.read_exact(&mut body);
            if body_len == 0 {
                return found.unwrap_or_else(|| panic!("there is no statistic {name}"));
            }
            if &body[..key_len] == name.as_bytes() {
                found = Some(String::from_utf8(body[key_len..].to_vec()).unwrap());
            }
        }
    };
    assert_eq!(stat(&mut clients[1], "auth_cmds"), "60");
    assert_eq!(stat(&mut clients[1], "auth_errors"), "20");
}

#[test]
fn abandoned_login_does_not_admit_another_client() {
    let (_folder, path) = users(&format!("alice:{CHEAP}\n"));
    let server = start(&path, 1);
    for _ in 0..50 {
        let mut leaving = server.connect();
        leaving.send(&login("alice", "secret"));
        drop(leaving);
        let mut next = server.connect();
        next.send(&packet(0x00, b"k", b""));
        next.expect(&response(0x00, 0x20, b"Auth failure."));
        assert_eq!(next.rest(), b"");
    }
}

#[test]
fn pending_logins_are_answered_at_a_stop() {
    let (_folder, path) = users(&format!("alice:{DEAR}\n"));
    let mut server = start(&path, 1);
    let mut client = server.connect();
    client.send(&login("alice", "wrong"));
    // The same worker serves this request after the login, so the login has been read by now.
    let mut other = server.connect();
    other.send(&packet(0x0b, b"", b""));
    other.expect(&response(0x0b, 0, b"1.6.45"));
    server.handle.stop();
    client.expect(&refused());
    assert_eq!(client.rest(), b"");
    server.join();
}

#[test]
fn users_are_reloaded_unless_the_file_is_faulty() {
    let line = password_line("alice", b"secret").unwrap();
    let (_folder, path) = users(&line);
    let server = start(&path, 1);
    let mut old = server.connect();
    let expect = |user: &str, password: &str, answer: &[u8]| {
        let mut client = server.connect();
        client.send(&login(user, password));
        client.expect(answer);
        client
    };
    old.send(&login("alice", "secret"));
    old.expect(&admitted());
    std::fs::write(&path, "carol:other\n").unwrap();
    expect("alice", "secret", &admitted());
    (server.reload)();
    expect("alice", "secret", &refused());
    expect("carol", "other", &admitted());
    for fault in ["carol\n", "dave:$argon2id$v=19$m=8\n"] {
        std::fs::write(&path, fault).unwrap();
        (server.reload)();
        expect("carol", "other", &admitted());
    }
    // A connection that has logged in stays logged in.
    old.send(&packet(0x0a, b"", b""));
    old.expect(&response(0x0a, 0, b""));
}

#[test]
fn text_users_are_read_again() {
    let (_folder, path) = users("alice:secret\n");
    let authentication = AuthenticationMode::Text(path.clone());
    let server = Running::start(ServerOptions {
        protocols: ProtocolOptions { authentication, ..options().protocols },
        ..options()
    });
    let expect = |token: &str, answer: &str| {
        let mut client = server.connect();
        client.send(format!("set x 0 0 {}\r\n{token}\r\n", token.len()).as_bytes());
        client.expect(answer.as_bytes());
    };
    expect("alice secret", "STORED\r\n");
    std::fs::write(&path, "alice:changed\n").unwrap();
    expect("alice secret", "STORED\r\n");
    (server.reload)();
    expect("alice secret", "CLIENT_ERROR authentication failure\r\n");
    expect("alice changed", "STORED\r\n");
    std::fs::remove_file(&path).unwrap();
    (server.reload)();
    expect("alice changed", "STORED\r\n");
}

#[test]
fn token_and_later_requests_may_arrive_together() {
    let (_folder, path) = users("alice:secret\n");
    let authentication = AuthenticationMode::Text(path);
    let server = Running::start(ServerOptions {
        protocols: ProtocolOptions { authentication, ..options().protocols },
        ..options()
    });
    let mut client = server.connect();
    let login = "set x 0 0 12\r\nalice secret\r\n";
    client.send(format!("get x\r\n{login}set k 0 0 1\r\nv\r\nget k\r\n").repeat(2).as_bytes());
    client.expect(b"CLIENT_ERROR unauthenticated\r\nSTORED\r\nSTORED\r\nVALUE k 0 1\r\nv\r\nEND\r\n");
    client.expect(b"END\r\nSTORED\r\nSTORED\r\nVALUE k 0 1\r\nv\r\nEND\r\n");
}

/// With `Passwords`, clients of the text dialect send a token, and others use SASL. Both are
/// checked with the same hashes.
#[test]
fn one_file_lets_both_dialects_in() {
    let (_folder, path) = users(&format!("alice:{CHEAP}\nbob:plain\n"));
    let authentication = AuthenticationMode::Passwords(path);
    let server = Running::start(ServerOptions {
        protocols: ProtocolOptions { authentication, ..options().protocols },
        limits: LimitOptions { threads: 2, ..options().limits },
        ..options()
    });
    let token = |user: &str, password: &str| {
        let token = format!("{user} {password}");
        format!("set x 0 0 {}\r\n{token}\r\n", token.len()).into_bytes()
    };
    // One after another: the second time, the password is known without a slow check.
    for _ in 0..2 {
        let mut text = server.connect();
        text.send(&[&b"get k\r\n"[..], &token("alice", "wrong"), &token("nobody", "x")].concat());
        text.expect(
            b"CLIENT_ERROR unauthenticated\r\nCLIENT_ERROR authentication failure\r\n\
              CLIENT_ERROR authentication failure\r\n",
        );
        // Commands after a login in the same packet wait for its outcome.
        text.send(&[&token("alice", "secret")[..], b"set k 0 0 1\r\nv\r\nget k\r\n"].concat());
        text.expect(b"STORED\r\nSTORED\r\nVALUE k 0 1\r\nv\r\nEND\r\n");
    }
    let mut binary = server.connect();
    binary.send(&[login("bob", "plain"), packet(0x0a, b"", b"")].concat());
    binary.expect(&admitted());
    binary.expect(&response(0x0a, 0, b""));
    // The login of another connection does not admit this one.
    let mut stranger = server.connect();
    stranger.send(&packet(0x00, b"k", b""));
    stranger.expect(&response(0x00, 0x20, b"Auth failure."));
    assert_eq!(stranger.rest(), b"");
}

#[test]
fn clients_of_a_proxy_log_in() {
    let (_folder, path) = users(&format!("alice:{CHEAP}\nbob:plain\n"));
    let behind = Running::start(options());
    let servers = vec![behind.addresses[0].to_string().parse().unwrap()];
    let pools = [("main".into(), PoolOptions { servers, ..PoolOptions::default() })].into();
    let authentication = AuthenticationMode::Passwords(path);
    let proxy = Running::start(ServerOptions {
        protocols: ProtocolOptions { authentication, ..options().protocols },
        proxy: Some(ProxyOptions { pools, ..ProxyOptions::default() }),
        ..options()
    });
    let mut text = proxy.connect();
    text.send(b"get k\r\nset x 0 0 9\r\nbob wrong\r\nset x 0 0 9\r\nbob plain\r\n");
    text.send(b"set k 0 0 1\r\nv\r\nget k\r\n");
    text.expect(b"CLIENT_ERROR unauthenticated\r\nCLIENT_ERROR authentication failure\r\nSTORED\r\n");
    text.expect(b"STORED\r\nVALUE k 0 1\r\nv\r\nEND\r\n");
    let mut binary = proxy.connect();
    let noop = packet(0x0a, b"", b"");
    let mut stranger = proxy.connect();
    stranger.send(&noop);
    assert_eq!(stranger.rest(), response(0x0a, 0x20, b"Auth failure."));
    binary.send(&[login("alice", "wrong"), login("bob", "plain"), noop].concat());
    binary.expect(&refused());
    binary.expect(&admitted());
    binary.expect(&response(0x0a, 0, b""));
    assert_eq!(behind.connect().stat("curr_items"), "1");
}
