//! Tests a request that is larger than the worker's read buffer and arrives in pieces that do not
//! divide this buffer evenly. Such a request once panicked a worker: its bytes were appended to the
//! connection's buffer, but then searched in the shared buffer.

use crate::running;

use std::io::{Read, Write};
use std::net::TcpStream;
use todana_server::{LimitOptions, ListenOptions, MemoryOptions, Server, ServerOptions};

#[test]
fn value_in_many_pieces_is_stored_completely() {
    let options = ServerOptions {
        listen: ListenOptions { port: 0, ..running::options().listen },
        memory: MemoryOptions { limit_mib: 256, ..MemoryOptions::default() },
        limits: LimitOptions { item_size_max: 8 << 20, ..LimitOptions::default() },
        ..ServerOptions::default()
    };
    let server = Server::bind(options).unwrap();
    let (address, handle) = (server.tcp_addresses()[0], server.handle());
    let serving = std::thread::spawn(move || server.run());
    let mut stream = TcpStream::connect(address).unwrap();
    for len in [70_000usize, 200_000, 1_000_000, 7_000_000] {
        let value: Vec<u8> = (0..len).map(|n| ((n * 31) >> 3) as u8).collect();
        write!(stream, "set big 0 0 {len}\r\n").unwrap();
        stream.write_all(&value).unwrap();
        stream.write_all(b"\r\nget big\r\n").unwrap();
        let mut expected = format!("STORED\r\nVALUE big 0 {len}\r\n").into_bytes();
        expected.extend_from_slice(&value);
        expected.extend_from_slice(b"\r\nEND\r\n");
        let mut answer = vec![0; expected.len()];
        stream.read_exact(&mut answer).unwrap();
        assert!(answer == expected, "a value of {len} bytes");
    }
    handle.stop();
    serving.join().unwrap().unwrap();
}

/// If data and the end of the stream arrive together, no further event reports the end. Such a
/// connection once hung for ever.
#[test]
fn half_closed_client_is_answered_and_closed() {
    let server = Server::bind(ServerOptions {
        listen: ListenOptions { port: 0, ..running::options().listen },
        ..ServerOptions::default()
    })
    .unwrap();
    let (address, handle) = (server.tcp_addresses()[0], server.handle());
    let serving = std::thread::spawn(move || server.run());
    for request in [&b"version\r\n"[..], b"set k 0 0 100000\r\nonly a part", b"", b"get k"] {
        for _ in 0..50 {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
            stream.write_all(request).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).unwrap();
            assert_eq!(answer.is_empty(), request != b"version\r\n");
        }
    }
    handle.stop();
    serving.join().unwrap().unwrap();
}
