//! Connections of the soak: bytes over TCP, TLS, Unix sockets and UDP.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;
use todana_client::{Tls, TlsStream};

/// Far above what any answer takes: it only ends what would hang.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
/// A datagram that has not come by then is lost.
const DATAGRAM_PATIENCE: Duration = Duration::from_secs(3);
const DATAGRAM_HEAD: usize = 8;

/// Where a server can be reached.
#[derive(Clone)]
pub(super) enum Place {
    Tcp(SocketAddr),
    Tls(SocketAddr, Tls),
    Unix(PathBuf),
    Udp(SocketAddr),
}

impl Place {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Place::Tcp(_) => "TCP",
            Place::Tls(..) => "TLS",
            Place::Unix(_) => "Unix",
            Place::Udp(_) => "UDP",
        }
    }
}

enum Socket {
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    Unix(UnixStream),
    Udp { socket: UdpSocket, id: u16, received: u16 },
}

/// A connection with what has come and is not consumed.
pub(super) struct Wire {
    socket: Socket,
    pub(super) unread: Vec<u8>,
    chunk: Vec<u8>,
}

/// A TCP connection that hangs at no end.
pub(super) fn tcp(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

impl Wire {
    pub(super) fn open(place: &Place) -> io::Result<Wire> {
        let socket = match place {
            Place::Tcp(address) => Socket::Tcp(tcp(*address)?),
            Place::Tls(address, tls) => Socket::Tls(Box::new(tls.connect("localhost", tcp(*address)?)?)),
            Place::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                Socket::Unix(stream)
            }
            Place::Udp(address) => {
                let socket = UdpSocket::bind("127.0.0.1:0")?;
                socket.connect(address)?;
                socket.set_read_timeout(Some(DATAGRAM_PATIENCE))?;
                Socket::Udp { socket, id: 0, received: 0 }
            }
        };
        Ok(Wire { socket, unread: Vec::new(), chunk: vec![0; 64 << 10] })
    }

    pub(super) fn is_udp(&self) -> bool {
        matches!(self.socket, Socket::Udp { .. })
    }

    /// Sends it; over UDP as one datagram.
    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.socket {
            Socket::Tcp(stream) => stream.write_all(bytes),
            Socket::Tls(stream) => stream.write_all(bytes).and_then(|()| stream.flush()),
            Socket::Unix(stream) => stream.write_all(bytes),
            Socket::Udp { socket, id, received } => {
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

    /// Waits for more; an error if there is none.
    pub(super) fn receive(&mut self) -> io::Result<()> {
        let len = match &mut self.socket {
            Socket::Tcp(stream) => stream.read(&mut self.chunk)?,
            Socket::Tls(stream) => stream.read(&mut self.chunk)?,
            Socket::Unix(stream) => stream.read(&mut self.chunk)?,
            Socket::Udp { socket, id, received } => {
                let len = socket.recv(&mut self.chunk)?;
                let wrong = |what| Err(io::Error::new(ErrorKind::InvalidData, what));
                let Some((head, payload)) = self.chunk[..len].split_first_chunk::<DATAGRAM_HEAD>() else {
                    return wrong("a datagram without its head");
                };
                let field = |at| u16::from_be_bytes([head[at], head[at + 1]]);
                if field(0) != *id {
                    return wrong("a datagram that answers another request");
                }
                if field(2) != *received || field(4) <= *received || field(6) != 0 {
                    return wrong("a datagram out of order");
                }
                if payload.len() > 1400 - DATAGRAM_HEAD {
                    return wrong("a datagram that is too long");
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

    /// The next line, without its end.
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

    /// This number of bytes.
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
