//! Defines a socket to a server that connects in the background.

use mio::net::{TcpStream, UnixStream};
use mio::{Interest, Registry, Token};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::path::Path;

/// A socket to a server.
#[derive(Debug)]
pub enum ServerSocket {
    /// A TCP connection.
    Tcp(TcpStream),
    /// A connection to a Unix socket.
    Unix(UnixStream),
}

impl ServerSocket {
    /// Begins to connect to an address. The socket is writable once it is connected.
    pub fn connect_tcp(address: SocketAddr) -> io::Result<ServerSocket> {
        TcpStream::connect(address).map(ServerSocket::Tcp)
    }

    /// Begins to connect to a Unix socket.
    pub fn connect_unix(path: &Path) -> io::Result<ServerSocket> {
        UnixStream::connect(path).map(ServerSocket::Unix)
    }

    /// Registers the socket for all events.
    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        let interests = Interest::READABLE | Interest::WRITABLE;
        match self {
            ServerSocket::Tcp(stream) => registry.register(stream, token, interests),
            ServerSocket::Unix(stream) => registry.register(stream, token, interests),
        }
    }

    /// Returns true if the socket is connected, false if it is still connecting. Fails if it cannot
    /// connect.
    pub(super) fn is_connected(&self) -> io::Result<bool> {
        let (error, peer) = match self {
            ServerSocket::Tcp(stream) => (stream.take_error()?, stream.peer_addr().map(|_| ())),
            ServerSocket::Unix(stream) => (stream.take_error()?, stream.peer_addr().map(|_| ())),
        };
        match (error, peer) {
            (Some(error), _) => Err(error),
            (None, Err(error)) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
            (None, peer) => peer.map(|()| true),
        }
    }

    /// Sends small writes at once.
    pub(super) fn set_nodelay(&self) -> io::Result<()> {
        match self {
            ServerSocket::Tcp(stream) => stream.set_nodelay(true),
            ServerSocket::Unix(_) => Ok(()),
        }
    }
}

impl Read for ServerSocket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            ServerSocket::Tcp(stream) => stream.read(buffer),
            ServerSocket::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for ServerSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            ServerSocket::Tcp(stream) => stream.write(bytes),
            ServerSocket::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
