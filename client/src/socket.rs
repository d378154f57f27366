//! A blocking stream to a server: TCP, TLS or Unix.

use crate::{Address, Tls, TlsFiles, TlsStream};
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// How long to wait. None of them may be zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// For a connection to each address that the name has.
    pub connect: Duration,
    /// For the next piece of a reply.
    pub read: Duration,
    /// For the server to take the next piece of a request.
    pub write: Duration,
}

impl Default for Timeouts {
    /// Ten seconds each.
    fn default() -> Self {
        let ten = Duration::from_secs(10);
        Timeouts { connect: ten, read: ten, write: ten }
    }
}

pub(crate) enum Socket {
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    Unix(UnixStream),
}

impl Socket {
    pub(crate) fn open(address: &Address, timeouts: Timeouts, tls: Option<&Tls>) -> io::Result<Socket> {
        match address {
            Address::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(timeouts.read))?;
                stream.set_write_timeout(Some(timeouts.write))?;
                Ok(Socket::Unix(stream))
            }
            Address::Tcp(host, port) => Ok(Socket::Tcp(connect(host, *port, timeouts)?)),
            Address::Tls(host, port) => {
                let tls = tls.map_or_else(|| Tls::load(&TlsFiles::default()), |tls| Ok(tls.clone()))?;
                let stream = tls.connect(host, connect(host, *port, timeouts)?);
                let stream = stream.map_err(|error| clearer(error, "the server does not shake hands"))?;
                Ok(Socket::Tls(Box::new(stream)))
            }
        }
    }

    pub(crate) fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let outcome = match self {
            Socket::Tcp(stream) => stream.write_all(bytes),
            Socket::Tls(stream) => stream.write_all(bytes).and_then(|()| stream.flush()),
            Socket::Unix(stream) => stream.write_all(bytes),
        };
        outcome.map_err(|error| clearer(error, "the server does not take the request"))
    }

    /// Reads at least one byte. Fails with `Interrupted` when a signal has come in.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let outcome = match self {
            Socket::Tcp(stream) => stream.read(buffer),
            Socket::Tls(stream) => stream.read(buffer),
            Socket::Unix(stream) => stream.read(buffer),
        };
        match outcome {
            Ok(0) => {
                let kind = io::ErrorKind::UnexpectedEof;
                Err(io::Error::new(kind, "the server closed the connection"))
            }
            outcome => outcome.map_err(|error| clearer(error, "the server does not answer")),
        }
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Socket::read(self, buffer)
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Socket::write_all(self, bytes).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn connect(host: &str, port: u16, timeouts: Timeouts) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, timeouts.connect) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(timeouts.read))?;
                stream.set_write_timeout(Some(timeouts.write))?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The system's words for a timeout ("resource temporarily unavailable") explain nothing.
fn clearer(error: io::Error, timeout: &str) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            io::Error::new(io::ErrorKind::TimedOut, timeout.to_string())
        }
        _ => error,
    }
}
