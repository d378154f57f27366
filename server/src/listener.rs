//! Listening sockets and the streams that come out of them.

use crate::options::Options;
use mio::event::Source;
use mio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use mio::{Interest, Registry, Token};
use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, Type};
use std::fmt;
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

/// An error with the address that it is about; the system's own is its source.
#[derive(Debug)]
struct Named {
    what: String,
    cause: io::Error,
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.cause)
    }
}

impl std::error::Error for Named {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.cause)
    }
}

fn named(error: io::Error, what: &str) -> io::Error {
    io::Error::new(error.kind(), Named { what: what.to_string(), cause: error })
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

fn is_any_v6(address: SocketAddr) -> bool {
    address.is_ipv6() && address.ip().is_unspecified()
}

/// Whether the system has no addresses of this kind at all.
fn lacks_family(error: &io::Error) -> bool {
    let cause = error.get_ref().and_then(|named| named.source()?.downcast_ref::<io::Error>());
    let number = cause.unwrap_or(error).raw_os_error();
    [Errno::AFNOSUPPORT, Errno::ADDRNOTAVAIL].iter().any(|errno| number == Some(errno.raw_os_error()))
}

impl Listener {
    /// Opens all listeners that the options ask for.
    pub(crate) fn open(options: &Options) -> io::Result<Vec<Listener>> {
        if let Some(path) = &options.unix_socket {
            return Ok(vec![Listener::open_unix(path, options)?]);
        }
        let mut listeners = Vec::new();
        for address in addresses(options)? {
            match Listener::open_tcp(address, options) {
                // All addresses (`*`) are those that there are: many containers have no IPv6.
                Err(error) if !listeners.is_empty() && is_any_v6(address) && lacks_family(&error) => {
                    tracing::info!("{error}; going on without");
                }
                listener => listeners.push(listener?),
            }
        }
        Ok(listeners)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_address_and_keeps_its_cause() {
        let held = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = held.local_addr().unwrap().port();
        let Err(error) = Listener::open(&Options { port, ..Options::default() }) else {
            panic!("two listeners on one port");
        };
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert!(error.to_string().contains(&format!("127.0.0.1:{port}")), "{error}");
        let cause = error.get_ref().unwrap().source().unwrap().downcast_ref::<io::Error>().unwrap();
        assert_eq!(cause.raw_os_error(), Some(Errno::ADDRINUSE.raw_os_error()));
        assert!(!lacks_family(&error));
        assert!(lacks_family(&named(Errno::AFNOSUPPORT.into(), "cannot listen on [::]:1")));
    }
}
