//! Defines a socket to a server that connects in the background.

use crate::{Tls, TlsStream};
use mio::net::{TcpStream, UnixStream};
use mio::{Interest, Registry, Token};
use socket2::{SockRef, TcpKeepalive};
use std::fmt;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

/// The idle time after which the system checks whether the peer still exists.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// A socket to a server.
pub enum ServerSocket {
    /// A TCP connection.
    Tcp(TcpStream),
    /// A TLS connection.
    Tls(Box<TlsStream<TcpStream>>),
    /// A connection to a Unix socket.
    Unix(UnixStream),
}

impl fmt::Debug for ServerSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ServerSocket::Tcp(_) => "Tcp",
            ServerSocket::Tls(_) => "Tls",
            ServerSocket::Unix(_) => "Unix",
        })
    }
}

impl ServerSocket {
    /// Begins to connect to an address. The socket is writable once it is connected.
    pub fn connect_tcp(address: SocketAddr) -> io::Result<ServerSocket> {
        TcpStream::connect(address).map(ServerSocket::Tcp)
    }

    /// Begins to connect to an address with TLS. The certificate of the server must be valid for
    /// `host`.
    pub fn connect_tls(address: SocketAddr, tls: &Tls, host: &str) -> io::Result<ServerSocket> {
        let stream = tls.prepare(host, TcpStream::connect(address)?)?;
        Ok(ServerSocket::Tls(Box::new(stream)))
    }

    /// Connects to a Unix socket.
    pub fn connect_unix(path: &Path) -> io::Result<ServerSocket> {
        UnixStream::connect(path).map(ServerSocket::Unix)
    }

    /// Lets the system end the connection if the peer has not confirmed any bytes for
    /// `user_timeout`, and check from time to time that the peer exists.
    pub fn detect_loss(&self, user_timeout: Option<Duration>) -> io::Result<()> {
        let Some(stream) = self.tcp() else { return Ok(()) };
        let socket = SockRef::from(stream);
        socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE))?;
        #[cfg(target_os = "linux")]
        socket.set_tcp_user_timeout(user_timeout)?;
        #[cfg(not(target_os = "linux"))]
        let _ = user_timeout;
        Ok(())
    }

    /// Registers the socket for all events.
    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        let interests = Interest::READABLE | Interest::WRITABLE;
        match self {
            ServerSocket::Tcp(stream) => registry.register(stream, token, interests),
            ServerSocket::Tls(stream) => registry.register(stream.socket(), token, interests),
            ServerSocket::Unix(stream) => registry.register(stream, token, interests),
        }
    }

    fn tcp(&self) -> Option<&TcpStream> {
        match self {
            ServerSocket::Tcp(stream) => Some(stream),
            ServerSocket::Tls(stream) => Some(stream.socket_ref()),
            ServerSocket::Unix(_) => None,
        }
    }

    /// Returns true if the socket is connected, false if it is still connecting. Fails if it cannot
    /// connect.
    pub(super) fn is_connected(&self) -> io::Result<bool> {
        let (error, peer) = match (self, self.tcp()) {
            (_, Some(stream)) => (stream.take_error()?, stream.peer_addr().map(|_| ())),
            (ServerSocket::Unix(stream), _) => (stream.take_error()?, stream.peer_addr().map(|_| ())),
            _ => return Ok(true),
        };
        match (error, peer) {
            (Some(error), _) => Err(error),
            (None, Err(error)) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
            (None, peer) => peer.map(|()| true),
        }
    }

    /// Continues the TLS handshake. Returns true if it is complete.
    pub(super) fn shake_hands(&mut self) -> io::Result<bool> {
        match self {
            ServerSocket::Tls(stream) => stream.shake_hands(),
            ServerSocket::Tcp(_) | ServerSocket::Unix(_) => Ok(true),
        }
    }

    /// Sends small writes at once.
    pub(super) fn set_nodelay(&self) -> io::Result<()> {
        self.tcp().map_or(Ok(()), |stream| stream.set_nodelay(true))
    }

    /// Returns true if a read of fewer bytes than requested shows that no more have arrived.
    #[inline]
    pub(super) fn shows_end(&self) -> bool {
        !matches!(self, ServerSocket::Tls(_))
    }
}

impl Read for ServerSocket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            ServerSocket::Tcp(stream) => stream.read(buffer),
            ServerSocket::Tls(stream) => stream.read(buffer),
            ServerSocket::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for ServerSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            ServerSocket::Tcp(stream) => stream.write(bytes),
            ServerSocket::Tls(stream) => stream.write(bytes),
            ServerSocket::Unix(stream) => stream.write(bytes),
        }
    }

    /// Sends bytes of TLS that wait.
    fn flush(&mut self) -> io::Result<()> {
        match self {
            ServerSocket::Tls(stream) if stream.has_unsent() => stream.flush(),
            _ => Ok(()),
        }
    }
}
