//! Tests connections to the servers of a ring, which follow scripts.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::JoinHandle;
use todana_client::{Error, RingConnection, RingDestination, TextStore, WriteOutcome};

/// The requests that a server expects, and their replies. An empty reply closes the connection.
type Script = &'static [(&'static str, &'static str)];

/// Reads a request. Returns false if the client has closed the connection instead.
fn is_read(stream: &mut TcpStream, request: &str) -> bool {
    let mut received = vec![0; request.len()];
    // A client that closes with an unread reply resets the connection.
    if !matches!(stream.read(&mut received[..1]), Ok(1)) {
        return false;
    }
    stream.read_exact(&mut received[1..]).unwrap();
    assert_eq!(received.escape_ascii().to_string(), request.escape_default().to_string());
    true
}

/// Starts a server that plays the script, on as many connections as its client opens.
fn play(script: Script) -> (String, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = std::thread::spawn(move || {
        let mut open: Option<TcpStream> = None;
        for (request, reply) in script {
            while !open.as_mut().is_some_and(|stream| is_read(stream, request)) {
                open = Some(listener.accept().unwrap().0);
            }
            match (open.as_mut(), *reply) {
                (Some(stream), reply) if !reply.is_empty() => stream.write_all(reply.as_bytes()).unwrap(),
                _ => open = None,
            }
        }
    });
    (address, server)
}

/// Two servers. The CRC-32 of bar and baz is even, that of foo and a is odd.
fn with_ring(even: Script, odd: Script, client: impl FnOnce(&mut RingConnection, &str)) {
    let (servers, threads): (Vec<_>, Vec<_>) = [even, odd].map(play).into_iter().unzip();
    let destination: RingDestination = format!("ring:{},ring=gomemcache", servers.join(",")).parse().unwrap();
    let mut ring = RingConnection::open(&destination).unwrap();
    client(&mut ring, &servers[0]);
    drop(ring);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

fn values(ring: &mut RingConnection, keys: &[&[u8]]) -> Result<Vec<String>, Error> {
    let found = ring.get(keys, false)?;
    Ok(found.iter().map(|one| format!("{}={}", one.key.escape_ascii(), one.value.escape_ascii())).collect())
}

#[test]
fn records_come_in_the_order_of_keys() {
    let even: Script = &[("get bar baz\r\n", "VALUE baz 2 1\r\nZ\r\nEND\r\n")];
    let odd: Script = &[
        ("get foo a foo\r\n", "VALUE foo 1 1\r\nF\r\nVALUE a 0 1\r\nA\r\nVALUE foo 1 1\r\nF\r\nEND\r\n"),
        ("set foo 0 0 1\r\nx\r\n", "STORED\r\n"),
        ("incr foo 1\r\n", "8\r\n"),
        ("touch foo 9\r\n", "TOUCHED\r\n"),
        ("delete foo\r\n", "NOT_FOUND\r\n"),
    ];
    with_ring(even, odd, |ring, _| {
        let found = values(ring, &[b"foo", b"bar", b"a", b"baz", b"foo"]).unwrap();
        assert_eq!(found, ["foo=F", "a=A", "baz=Z", "foo=F"]);
        let store = TextStore { key: b"foo", value: b"x", ..TextStore::default() };
        assert_eq!(ring.store(&store).unwrap(), WriteOutcome::Done);
        assert_eq!(ring.count(b"foo", 1, true).unwrap(), Some(8));
        assert_eq!(ring.touch(b"foo", 9).unwrap(), WriteOutcome::Done);
        assert_eq!(ring.delete(b"foo").unwrap(), WriteOutcome::NotFound);
    });
}

#[test]
fn unread_reply_is_not_taken_for_another() {
    let even: Script = &[("get bar\r\n", ""), ("get bar\r\n", "VALUE bar 0 1\r\n1\r\nEND\r\n")];
    let odd: Script = &[
        ("get foo\r\n", "VALUE foo 0 3\r\nold\r\nEND\r\n"),
        ("get foo\r\n", "VALUE foo 0 3\r\nnew\r\nEND\r\n"),
    ];
    with_ring(even, odd, |ring, first| {
        match values(ring, &[b"foo", b"bar"]).unwrap_err() {
            Error::Io(error) => assert!(error.to_string().contains(first), "{error}"),
            error => panic!("{error}"),
        }
        assert_eq!(values(ring, &[b"foo", b"bar"]).unwrap(), ["foo=new", "bar=1"]);
    });
}
