//! The soak test's connections over TCP, TLS, Unix sockets and UDP.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;
use todana_client::{Tls, TlsStream};

/// The time after which a server that does not reply is an error. No reply takes nearly as long.
pub(super) const REPLY_TIMEOUT: Duration = Duration::from_secs(30);
/// The time after which a datagram counts as lost.
const DATAGRAM_TIMEOUT: Duration = Duration::from_secs(3);
const DATAGRAM_HEAD: usize = 8;

/// An address of a server, with its transport.
#[derive(Clone)]
pub(super) enum ServerAddress {
    Tcp(SocketAddr),
    Tls(SocketAddr, Tls),
    Unix(PathBuf),
    Udp(SocketAddr),
}

impl ServerAddress {
    pub(super) fn name(&self) -> &'static str {
        match self {
            ServerAddress::Tcp(_) => "TCP",
            ServerAddress::Tls(..) => "TLS",
            ServerAddress::Unix(_) => "Unix",
            ServerAddress::Udp(_) => "UDP",
        }
    }
}

enum ClientSocket {
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    Unix(UnixStream),
    Udp { socket: UdpSocket, id: u16, received: u16 },
}

/// A connection and the bytes that were received but not consumed.
pub(super) struct ClientConnection {
    socket: ClientSocket,
    pub(super) unread: Vec<u8>,
    chunk: Vec<u8>,
}

/// Opens a TCP connection whose reads and writes time out.
pub(super) fn tcp(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, REPLY_TIMEOUT)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
    stream.set_write_timeout(Some(REPLY_TIMEOUT))?;
    Ok(stream)
}

impl ClientConnection {
    pub(super) fn open(address: &ServerAddress) -> io::Result<ClientConnection> {
        let socket = match address {
            ServerAddress::Tcp(address) => ClientSocket::Tcp(tcp(*address)?),
            ServerAddress::Tls(address, tls) => {
                ClientSocket::Tls(Box::new(tls.connect("localhost", tcp(*address)?)?))
            }
            ServerAddress::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
                stream.set_write_timeout(Some(REPLY_TIMEOUT))?;
                ClientSocket::Unix(stream)
            }
            ServerAddress::Udp(address) => {
                let socket = UdpSocket::bind("127.0.0.1:0")?;
                socket.connect(address)?;
                socket.set_read_timeout(Some(DATAGRAM_TIMEOUT))?;
                ClientSocket::Udp { socket, id: 0, received: 0 }
            }
        };
        Ok(ClientConnection { socket, unread: Vec::new(), chunk: vec![0; 64 << 10] })
    }

    pub(super) fn is_udp(&self) -> bool {
        matches!(self.socket, ClientSocket::Udp { .. })
    }

    /// Sends the bytes; over UDP as one datagram.
    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.socket {
            ClientSocket::Tcp(stream) => stream.write_all(bytes),
            ClientSocket::Tls(stream) => stream.write_all(bytes).and_then(|()| stream.flush()),
            ClientSocket::Unix(stream) => stream.write_all(bytes),
            ClientSocket::Udp { socket, id, received } => {
                *id = id.wrapping_add(1);
                *received = 0;
                let mut datagram = vec![0; DATAGRAM_HEAD];
                datagram[..2].copy_from_slice(&id.to_be_bytes());
                datagram[5] = 1;
                datagram.extend_from_slice(bytes);
                socket.send(&datagram).map(drop)
            }
        }
    }

    /// Receives more bytes. Fails if the connection is closed or the time is over.
    pub(super) fn receive(&mut self) -> io::Result<()> {
        let len = match &mut self.socket {
            ClientSocket::Tcp(stream) => stream.read(&mut self.chunk)?,
            ClientSocket::Tls(stream) => stream.read(&mut self.chunk)?,
            ClientSocket::Unix(stream) => stream.read(&mut self.chunk)?,
            ClientSocket::Udp { socket, id, received } => {
                let len = socket.recv(&mut self.chunk)?;
                let wrong = |what| Err(io::Error::new(ErrorKind::InvalidData, what));
                let Some((head, payload)) = self.chunk[..len].split_first_chunk::<DATAGRAM_HEAD>() else {
                    return wrong("datagram: too short for its header");
                };
                let field = |at| u16::from_be_bytes([head[at], head[at + 1]]);
                if field(0) != *id {
                    return wrong("datagram: replies to another request");
                }
                if field(2) != *received || field(4) <= *received || field(6) != 0 {
                    return wrong("datagram: out of order");
                }
                if payload.len() > 1400 - DATAGRAM_HEAD {
                    return wrong("datagram: too long");
                }
                *received += 1;
                self.unread.extend_from_slice(payload);
                return Ok(());
            }
        };
        if len == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        self.unread.extend_from_slice(&self.chunk[..len]);
        Ok(())
    }

    /// Returns the next line, without its end.
    pub(super) fn line(&mut self) -> io::Result<String> {
        let mut searched = 0;
        loop {
            if let Some(at) = self.unread[searched..].iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..searched + at + 1).collect();
                return Ok(String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n']).to_string());
            }
            searched = self.unread.len();
            self.receive()?;
        }
    }

    /// Returns the next `len` bytes.
    pub(super) fn exactly(&mut self, len: usize) -> io::Result<Vec<u8>> {
        while self.unread.len() < len {
            self.receive()?;
        }
        Ok(self.unread.drain(..len).collect())
    }

    /// Sends a line and returns the next one.
    pub(super) fn ask(&mut self, line: &str) -> io::Result<String> {
        self.send(format!("{line}\r\n").as_bytes())?;
        self.line()
    }
}
