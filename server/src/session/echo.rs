//! Defines an echo dialect for tests: each line that begins with `echo ` is sent back unchanged.
//!
//! It shows what a dialect needs in addition to its own file: a variant in `session/mod.rs`, an arm
//! in `dispatch.rs`, and its first bytes in `detected_dialect.rs`.

use super::{NextAction, Session, SessionProgress, SessionTurn};
use crate::transport::output::OUTPUT_MAX;
use todana_protocol::ReplySink;

/// The first bytes of a connection that speaks this dialect.
pub(super) const FIRST_BYTES: &[u8] = b"echo ";

/// A connection that speaks the echo dialect.
pub(crate) struct EchoSession;

impl Session for EchoSession {
    type Worker = ();

    fn advance(&mut self, _worker: &mut (), turn: &mut SessionTurn<'_>, input: &[u8]) -> SessionProgress {
        let mut consumed = 0;
        let next = loop {
            let Some(len) = input[consumed..].iter().position(|&byte| byte == b'\n') else {
                break NextAction::READ;
            };
            if *turn.budget == 0 {
                break NextAction::Yield;
            }
            if turn.output.len() > OUTPUT_MAX {
                break NextAction::Flush;
            }
            let line = &input[consumed..=consumed + len];
            turn.output.put(line);
            consumed += line.len();
            *turn.budget -= 1;
        };
        SessionProgress { consumed, next }
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        KyotoMode, KyotoOptions, ListenOptions, MemoryOptions, ProtocolOptions, Server, ServerOptions,
    };
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpStream};
    use std::time::Duration;

    const WAIT_MAX: Duration = Duration::from_secs(60);

    #[test]
    fn new_dialect_is_detected_beside_the_others() {
        let options = ServerOptions {
            listen: ListenOptions { port: 0, ..ListenOptions::default() },
            memory: MemoryOptions { limit_mib: 0, ..MemoryOptions::default() },
            protocols: ProtocolOptions {
                kyoto: KyotoOptions { spoken: KyotoMode::Beside, ..KyotoOptions::default() },
                ..ProtocolOptions::default()
            },
            ..ServerOptions::default()
        };
        let server = Server::bind(options).unwrap();
        let (address, handle) = (server.tcp_addresses()[0], server.handle());
        let serving = std::thread::spawn(move || server.run());
        let connect = || {
            let stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
            stream
        };
        let ask = |stream: &mut TcpStream, bytes: &[u8], expected: &[u8]| {
            stream.write_all(bytes).unwrap();
            let mut reply = vec![0; expected.len()];
            stream.read_exact(&mut reply).unwrap();
            assert_eq!(reply, expected);
        };
        let (mut echo, mut memcached, mut kyoto) = (connect(), connect(), connect());
        ask(&mut echo, b"echo one\nget two\nthr", b"echo one\nget two\n");
        ask(&mut memcached, b"set key 0 0 5\r\nvalue\r\n", b"STORED\r\n");
        ask(&mut kyoto, b"GET /key HTTP/1.1\r\n\r\n", b"HTTP/1.1 200 OK\r\n");
        ask(&mut echo, b"ee\n", b"three\n");
        let many: Vec<u8> = (0..100_000).flat_map(|n| format!("line {n}\n").into_bytes()).collect();
        let mut writer = echo.try_clone().unwrap();
        let sent = many.clone();
        let writing = std::thread::spawn(move || {
            writer.write_all(&sent).unwrap();
            writer.shutdown(Shutdown::Write).unwrap();
        });
        let mut received = Vec::new();
        echo.read_to_end(&mut received).unwrap();
        writing.join().unwrap();
        assert!(received == many, "{} of {} bytes came back", received.len(), many.len());
        handle.stop();
        serving.join().unwrap().unwrap();
    }
}
