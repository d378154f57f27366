//! Defines a blocking stream to a server over TCP, TLS or a Unix socket.

use crate::{Address, Tls, TlsFiles, TlsStream};
use socket2::SockRef;
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// The time limits of a connection. None of them may be zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketTimeouts {
    /// The limit for connecting to each address of the host.
    pub connect: Duration,
    /// The limit for the arrival of the next part of a reply.
    pub read: Duration,
    /// The limit until the server accepts the next part of a request.
    pub write: Duration,
}

impl Default for SocketTimeouts {
    /// Returns limits of ten seconds each.
    fn default() -> Self {
        let ten = Duration::from_secs(10);
        SocketTimeouts { connect: ten, read: ten, write: ten }
    }
}

pub(crate) enum ClientSocket {
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    Unix(UnixStream),
}

impl ClientSocket {
    pub(crate) fn open(
        address: &Address,
        timeouts: SocketTimeouts,
        tls: Option<&Tls>,
    ) -> io::Result<ClientSocket> {
        match address {
            Address::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(timeouts.read))?;
                stream.set_write_timeout(Some(timeouts.write))?;
                Ok(ClientSocket::Unix(stream))
            }
            Address::Tcp(host, port) => Ok(ClientSocket::Tcp(connect(host, *port, timeouts)?)),
            Address::Tls(host, port) => {
                let tls = tls.map_or_else(|| Tls::load(&TlsFiles::default()), |tls| Ok(tls.clone()))?;
                let stream = tls.connect(host, connect(host, *port, timeouts)?);
                let stream = stream.map_err(|error| clearer(error, "the server does not shake hands"))?;
                Ok(ClientSocket::Tls(Box::new(stream)))
            }
        }
    }

    /// Returns the certificate of the server in DER, if the connection uses TLS.
    pub(crate) fn certificate(&self) -> Option<&[u8]> {
        if let ClientSocket::Tls(stream) = self { stream.certificate() } else { None }
    }

    /// Returns true if bytes, the end of the stream or an error have arrived.
    pub(crate) fn has_arrivals(&self) -> bool {
        let socket = match self {
            ClientSocket::Tcp(stream) => SockRef::from(stream),
            ClientSocket::Tls(stream) => SockRef::from(stream.socket_ref()),
            ClientSocket::Unix(stream) => SockRef::from(stream),
        };
        let peeked = socket.set_nonblocking(true).and_then(|()| socket.peek(&mut [MaybeUninit::uninit()]));
        let is_silent = peeked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        socket.set_nonblocking(false).is_err() || !is_silent
    }

    pub(crate) fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let outcome = match self {
            ClientSocket::Tcp(stream) => stream.write_all(bytes),
            ClientSocket::Tls(stream) => stream.write_all(bytes).and_then(|()| stream.flush()),
            ClientSocket::Unix(stream) => stream.write_all(bytes),
        };
        outcome.map_err(|error| clearer(error, "the server does not take the request"))
    }

    /// Reads at least one byte. Fails with `Interrupted` if a signal arrived.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let outcome = match self {
            ClientSocket::Tcp(stream) => stream.read(buffer),
            ClientSocket::Tls(stream) => stream.read(buffer),
            ClientSocket::Unix(stream) => stream.read(buffer),
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

impl Read for ClientSocket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        ClientSocket::read(self, buffer)
    }
}

impl Write for ClientSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        ClientSocket::write_all(self, bytes).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn connect(host: &str, port: u16, timeouts: SocketTimeouts) -> io::Result<TcpStream> {
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

/// The system's text for a timeout ("resource temporarily unavailable") does not explain the error.
fn clearer(error: io::Error, timeout: &str) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            io::Error::new(io::ErrorKind::TimedOut, timeout.to_string())
        }
        _ => error,
    }
}
