//! A request larger than the worker's read buffer, in pieces that do not fit it evenly, once
//! brought a worker down: the bytes went behind what was kept, and were then looked for in the
//! shared buffer.

use std::io::{Read, Write};
use std::net::TcpStream;
use todana_server::{LimitOptions, ListenOptions, MemoryOptions, Server, ServerOptions};

#[test]
fn a_value_that_comes_in_many_pieces_is_stored_whole() {
    let options = ServerOptions {
        listen: ListenOptions { port: 0, ..ListenOptions::default() },
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

/// Data and the end of the stream may arrive together, and then no further event tells of the end:
/// such a connection once hung for ever.
#[test]
fn whoever_sends_no_more_is_answered_and_closed() {
    let server = Server::bind(ServerOptions {
        listen: ListenOptions { port: 0, ..ListenOptions::default() },
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
