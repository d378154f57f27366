//! Listening sockets and the streams that come out of them.

use crate::options::Options;
use mio::event::Source;
use mio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use mio::{Interest, Registry, Token};
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// A socket that connections come from.
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

/// A connection's socket.
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

fn named(error: io::Error, what: &str) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// The addresses that the options name.
fn addresses(options: &Options) -> io::Result<Vec<SocketAddr>> {
    if options.listen.is_empty() {
        return Ok(vec![SocketAddr::from(([127, 0, 0, 1], options.port))]);
    }
    let mut addresses = Vec::new();
    for name in options.listen.iter().flat_map(|list| list.split(',')).map(str::trim) {
        if name == "*" {
            addresses.push(SocketAddr::from(([0, 0, 0, 0], options.port)));
            addresses.push(SocketAddr::from(([0u16; 8], options.port)));
            continue;
        }
        let with_port = name.to_socket_addrs().or_else(|_| {
            let bare = name.trim_start_matches('[').trim_end_matches(']');
            (bare, options.port).to_socket_addrs()
        });
        let found = with_port.map_err(|error| named(error, &format!("cannot find address {name:?}")))?;
        addresses.extend(found);
    }
    addresses.dedup();
    Ok(addresses)
}

impl Listener {
    /// Opens all listeners that the options ask for.
    pub(crate) fn open(options: &Options) -> io::Result<Vec<Listener>> {
        if let Some(path) = &options.unix_socket {
            return Ok(vec![Listener::open_unix(path, options)?]);
        }
        addresses(options)?.into_iter().map(|address| Listener::open_tcp(address, options)).collect()
    }

    fn open_tcp(address: SocketAddr, options: &Options) -> io::Result<Listener> {
        let open = || {
            let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
            socket.set_reuse_address(true)?;
            if address.is_ipv6() {
                // `*` listens on v4 by itself.
                socket.set_only_v6(true)?;
            }
            socket.set_nonblocking(true)?;
            socket.bind(&address.into())?;
            socket.listen(i32::try_from(options.listen_backlog).unwrap_or(i32::MAX))?;
            Ok(Listener::Tcp(TcpListener::from_std(socket.into())))
        };
        open().map_err(|error: io::Error| named(error, &format!("cannot listen on {address}")))
    }

    fn open_unix(path: &Path, options: &Options) -> io::Result<Listener> {
        let what = format!("cannot listen on {}", path.display());
        match std::fs::symlink_metadata(path) {
            Ok(metadata) if metadata.file_type().is_socket() => {
                if std::os::unix::net::UnixStream::connect(path).is_ok() {
                    let error = io::Error::from(io::ErrorKind::AddrInUse);
                    return Err(named(error, &what));
                }
                // Left behind by a server that is gone.
                std::fs::remove_file(path)?;
            }
            Ok(_) => {
                return Err(io::Error::new(
                    io::ErrorKind::AlreadyExists,
                    format!("{what}: it is not a socket"),
                ));
            }
            Err(_) => {}
        }
        let open = || {
            let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
            socket.set_nonblocking(true)?;
            socket.bind(&socket2::SockAddr::unix(path)?)?;
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(options.unix_mask))?;
            socket.listen(i32::try_from(options.listen_backlog).unwrap_or(i32::MAX))?;
            Ok(Listener::Unix(UnixListener::from_std(socket.into()), path.to_path_buf()))
        };
        open().map_err(|error: io::Error| named(error, &what))
    }

    /// The next waiting connection, set up.
    pub(crate) fn accept(&self) -> io::Result<Stream> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                // Neither is worth losing the connection over.
                let _ = stream.set_nodelay(true);
                let _ = socket2::SockRef::from(&stream).set_keepalive(true);
                Ok(Stream::Tcp(stream))
            }
            Listener::Unix(listener, _) => Ok(Stream::Unix(listener.accept()?.0)),
        }
    }

    /// Where it listens, as people write it.
    pub(crate) fn name(&self) -> String {
        match self {
            Listener::Tcp(listener) => listener.local_addr().map_or_else(|_| "?".into(), |a| a.to_string()),
            Listener::Unix(_, path) => path.display().to_string(),
        }
    }

    pub(crate) fn tcp_address(&self) -> Option<SocketAddr> {
        match self {
            Listener::Tcp(listener) => listener.local_addr().ok(),
            Listener::Unix(..) => None,
        }
    }

    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        match self {
            Listener::Tcp(listener) => listener.register(registry, token, Interest::READABLE),
            Listener::Unix(listener, _) => listener.register(registry, token, Interest::READABLE),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Listener::Unix(_, path) = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Stream {
    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        // Edge-triggered, so asking for both once costs no further call.
        let interest = Interest::READABLE | Interest::WRITABLE;
        match self {
            Stream::Tcp(stream) => stream.register(registry, token, interest),
            Stream::Unix(stream) => stream.register(registry, token, interest),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(buffer),
            Stream::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
        }
    }

    fn write_vectored(&mut self, pieces: &[io::IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write_vectored(pieces),
            Stream::Unix(stream) => stream.write_vectored(pieces),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
