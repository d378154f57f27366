//! The proxy in front of servers that send wrong bytes: the client of the request learns that its
//! server is not understood, and the next client gets the reply to its own request.

use crate::running;

use running::{Running, options};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;
use todana_client::ring::ServerEntry;
use todana_server::{PoolOptions, PoolProtocol, ProxyOptions, ServerOptions, WhenDown};

/// Takes the place of the error that names the server.
const NOT_UNDERSTOOD: &str = "NOT UNDERSTOOD";

/// Starts a proxy with one server, which the test plays.
fn proxy_of(listener: &TcpListener, speak: PoolProtocol) -> Running {
    let address = listener.local_addr().unwrap();
    let pool = PoolOptions {
        servers: vec![address.to_string().parse::<ServerEntry>().unwrap()],
        when_down: WhenDown::Error,
        speak,
        retry: Duration::from_millis(20),
        ..PoolOptions::default()
    };
    let proxy = ProxyOptions { pools: BTreeMap::from([("main".into(), pool)]), ..ProxyOptions::default() };
    Running::start(ServerOptions { proxy: Some(proxy), ..options() })
}

fn accept(listener: &TcpListener, request: &str) -> TcpStream {
    let mut stream = listener.accept().unwrap().0;
    let mut bytes = vec![0; request.len()];
    stream.read_exact(&mut bytes).unwrap();
    assert_eq!(bytes.escape_ascii().to_string(), request.as_bytes().escape_ascii().to_string());
    stream
}

/// Sends a request, of which the server gets this, and which it answers by these bytes. Checks the
/// reply, and that the next request is answered over another connection.
fn exchange(request: &str, asked: &str, answer: &[u8], expected: &str) {
    println!("{} is answered by {}", request.escape_debug(), answer.escape_ascii());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = proxy_of(&listener, PoolProtocol::Meta);
    let error = format!("SERVER_ERROR server {}: not understood\r\n", listener.local_addr().unwrap());
    let mut client = proxy.connect();
    client.send(request.as_bytes());
    let mut stream = accept(&listener, asked);
    stream.write_all(answer).unwrap();
    client.expect(expected.replace(NOT_UNDERSTOOD, &error).as_bytes());
    assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0, "{}", answer.escape_ascii());
    let mut next = proxy.connect();
    next.send(b"get other\r\n");
    accept(&listener, "get other\r\n").write_all(b"VALUE other 0 1\r\ny\r\nEND\r\n").unwrap();
    next.expect(b"VALUE other 0 1\r\ny\r\nEND\r\n");
}

#[test]
fn read_of_wrong_values_is_an_error() {
    let long_line = [b'x'; 9000];
    let answers: [&[u8]; _] = [
        b"VALUE b 0 1\r\nx\r\nEND\r\n",
        b"VALUE get 0 1\r\nx\r\nEND\r\n",
        b"VALUE  0 1\r\nx\r\nEND\r\n",
        b"VALUE a\r\n",
        b"VALUE a 0\r\n",
        b"VALUE a x 1\r\nx\r\nEND\r\n",
        b"VALUE a 0 -1\r\nx\r\nEND\r\n",
        b"VALUE a 0 1 x\r\nx\r\nEND\r\n",
        b"VALUE a 0 1073741825\r\n",
        b"VALUE a 0 18446744073709551615\r\n",
        b"VALUE a 4294967296 1\r\nx\r\nEND\r\n",
        b"VALUE a 0 1\r\nxEND\r\n",
        b"STAT a b\r\n",
        b"DATA 1\r\nx\r\n",
        b"12\r\n",
        b"HD\r\n",
        b"VA 1\r\nx\r\n",
        b"VERSION 1\r\n",
        b"\r\n",
        b"\0\r\n",
        b"\x81\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\n",
        b"HTTP/1.1 400 Bad Request\r\n",
        &long_line,
    ];
    for answer in answers {
        exchange("get a\r\n", "get a\r\n", answer, NOT_UNDERSTOOD);
    }
    // The time of `gat` is no key.
    exchange("gat 30 a\r\n", "gat 30 a\r\n", b"VALUE 30 0 1\r\nx\r\nEND\r\n", NOT_UNDERSTOOD);
    exchange("gat 30 a\r\n", "gat 30 a\r\n", b"VALUE gat 0 1\r\nx\r\nEND\r\n", NOT_UNDERSTOOD);
}

#[test]
fn values_before_a_wrong_answer_are_kept() {
    let twice = b"VALUE a 0 1\r\nx\r\nVALUE a 0 1\r\nx\r\nEND\r\n";
    exchange("get a\r\n", "get a\r\n", twice, "VALUE a 0 1\r\nx\r\nNOT UNDERSTOOD");
    let reversed = b"VALUE b 0 1\r\nx\r\nVALUE a 0 1\r\nx\r\nEND\r\n";
    exchange("get a b\r\n", "get a b\r\n", reversed, "VALUE b 0 1\r\nx\r\nNOT UNDERSTOOD");
    let ended_twice = b"VALUE a 0 1\r\nx\r\nEND\r\nEND\r\n";
    exchange("get a b\r\n", "get a b\r\n", ended_twice, "VALUE a 0 1\r\nx\r\nEND\r\n");
    let stranger = b"VALUE a 0 1\r\nx\r\nVALUE c 0 1\r\nx\r\nEND\r\n";
    exchange("get a b\r\n", "get a b\r\n", stranger, "VALUE a 0 1\r\nx\r\nNOT UNDERSTOOD");
}

#[test]
fn other_commands_with_wrong_replies_are_errors() {
    for answer in [
        &b"VALUE a 0 1\r\nx\r\n"[..],
        b"END\r\n",
        b"DATA 1\r\nx\r\n",
        b"STAT a b\r\n",
        b"key=a exp=-1 \n",
        b"stored\r\n",
        b"\r\n",
        b"99999999999999999999\r\n",
        b"VA 1\r\nxy\r\n",
        b"VA -1\r\n",
        b"VA\r\n\r\n\r\n\r\n",
    ] {
        exchange("set a 0 0 1\r\nx\r\n", "set a 0 0 1\r\nx\r\n", answer, NOT_UNDERSTOOD);
        exchange("mg a v\r\n", "mg a v\r\n", answer, NOT_UNDERSTOOD);
        exchange("incr a 1\r\n", "incr a 1\r\n", answer, NOT_UNDERSTOOD);
    }
}

/// A surplus reply after those that show the dialect was taken for the reply to the first request,
/// which was held back until then: a `set` was acknowledged before its server had got it.
#[test]
fn unsent_request_has_no_reply() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = proxy_of(&listener, PoolProtocol::Auto);
    let mut client = proxy.connect();
    client.send(b"set a 0 0 1\r\nx\r\n");
    let questions = "mn\r\nversion\r\n";
    let mut stream = accept(&listener, questions);
    stream.write_all(b"MN\r\nVERSION 1.6.45\r\nSTORED\r\n").unwrap();
    let address = listener.local_addr().unwrap();
    client.expect(format!("SERVER_ERROR server {address}: not understood\r\n").as_bytes());
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    assert_eq!(rest.escape_ascii().to_string(), "");
    client.send(b"set a 0 0 1\r\nx\r\n");
    let mut stream = accept(&listener, questions);
    stream.write_all(b"MN\r\nVERSION 1.6.45\r\n").unwrap();
    let mut request = [0; 16];
    stream.read_exact(&mut request).unwrap();
    assert_eq!(request.escape_ascii().to_string(), "set a 0 0 1\\r\\nx\\r\\n");
    stream.write_all(b"STORED\r\n").unwrap();
    client.expect(b"STORED\r\n");
}

#[test]
fn surplus_reply_never_reaches_another_request() {
    let (set, asked) = ("set a 0 0 1\r\nx\r\n", "set a 0 0 1\r\nx\r\n");
    exchange(set, asked, b"STORED\r\nSTORED\r\n", "STORED\r\n");
    exchange(set, asked, b"STORED\r\nVALUE other 0 1\r\nz\r\nEND\r\n", "STORED\r\n");
    exchange(set, asked, b"STORED\r\n\0", "STORED\r\n");
    exchange("mg a v\r\n", "mg a v\r\n", b"EN\r\nEN\r\n", "EN\r\n");
    // The reply to `noreply` is hidden, and does not count for the next request.
    let request = "set a 0 0 1 noreply\r\nx\r\nget a\r\n";
    let asked = "set a 0 0 1\r\nx\r\nget a\r\n";
    exchange(request, asked, b"STORED\r\nSTORED\r\n", NOT_UNDERSTOOD);
    exchange(request, asked, b"END\r\nEND\r\n", NOT_UNDERSTOOD);
}
