//! Listening sockets and the streams that come out of them.

use crate::addresses::addresses;
use crate::options::Options;
use mio::event::Source;
use mio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use mio::{Interest, Registry, Token};
use socket2::{Domain, Protocol, Socket, Type};
use std::fmt;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
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

/// Opens every address once, and fails with the first that cannot be had. Where a name has several addresses, those that
/// the system knows nothing of may be missing: `*` and `localhost` mean both families also where there is no IPv6.
fn open_each<T>(
    groups: Vec<Vec<SocketAddr>>,
    mut open: impl FnMut(SocketAddr) -> io::Result<T>,
) -> io::Result<Vec<T>> {
    let (mut opened, mut served) = (Vec::new(), Vec::new());
    for group in groups {
        let mut missing = Vec::new();
        for &address in &group {
            if served.contains(&address) {
                continue;
            }
            match open(address) {
                Ok(listener) => {
                    opened.push(listener);
                    served.push(address);
                }
                Err(error) => {
                    let is_unavailable = is_unavailable(address, &error);
                    let described = named(error, &format!("cannot listen on {address}"));
                    if !is_unavailable {
                        return Err(described);
                    }
                    missing.push((address, described));
                }
            }
        }
        if missing.len() == group.len()
            && let Some((_, error)) = missing.drain(..).next()
        {
            return Err(error);
        }
        for (address, error) in missing {
            if address.ip().is_unspecified() {
                // All addresses (`*`) are those that there are: many containers have no IPv6.
                tracing::info!("{error}; going on without");
            } else {
                tracing::warn!("{error}; other addresses of the same name are served");
            }
        }
    }
    Ok(opened)
}

/// Whether the system has no such address, as opposed to one that is taken or forbidden. Of IPv4 only the whole family
/// may be missing: an address of it that is not this host's is a mistake in the name.
fn is_unavailable(address: SocketAddr, error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error())
        || address.is_ipv6() && error.kind() == io::ErrorKind::AddrNotAvailable
}

impl Listener {
    /// Opens all listeners that the options ask for.
    pub(crate) fn open(options: &Options) -> io::Result<Vec<Listener>> {
        if let Some(path) = &options.unix_socket {
            return Ok(vec![Listener::open_unix(path, options)?]);
        }
        let groups = addresses(&options.listen, options.port)?;
        open_each(groups, |address| Listener::open_tcp(address, options))
    }

    fn open_tcp(address: SocketAddr, options: &Options) -> io::Result<Listener> {
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
    use std::io::ErrorKind;

    fn no_family() -> io::Error {
        rustix::io::Errno::AFNOSUPPORT.into()
    }

    /// Opens the groups on a system that answers `refuse` for some addresses.
    fn opened(
        groups: &[&[&str]],
        refuse: impl Fn(SocketAddr) -> Option<io::Error>,
    ) -> Result<Vec<String>, String> {
        let groups = groups.iter().map(|group| group.iter().map(|a| a.parse().unwrap()).collect()).collect();
        open_each(groups, |address| refuse(address).map_or(Ok(address.to_string()), Err))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn all_addresses_are_served_on_a_host_without_ipv6() {
        let v4_only = |address: SocketAddr| address.is_ipv6().then(no_family);
        let both: &[&str] = &["0.0.0.0:1", "[::]:1"];
        assert_eq!(opened(&[both], v4_only), Ok(vec!["0.0.0.0:1".into()]));
        assert_eq!(opened(&[&["[::]:1", "0.0.0.0:1"]], v4_only), Ok(vec!["0.0.0.0:1".into()]));
        let v6_only = |address: SocketAddr| address.is_ipv4().then(no_family);
        assert_eq!(opened(&[both], v6_only), Ok(vec!["[::]:1".into()]));
        let unassigned = |address: SocketAddr| address.is_ipv6().then(|| ErrorKind::AddrNotAvailable.into());
        assert_eq!(opened(&[&["127.0.0.1:1", "[::1]:1"]], unassigned), Ok(vec!["127.0.0.1:1".into()]));
    }

    #[test]
    fn an_address_that_was_asked_for_by_itself_must_work() {
        let v4_only = |address: SocketAddr| address.is_ipv6().then(no_family);
        let error = opened(&[&["127.0.0.1:1"], &["[::1]:1"]], v4_only).unwrap_err();
        assert!(error.starts_with("cannot listen on [::1]:1: "), "{error}");
        let error = opened(&[&["127.0.0.1:1"], &["[::1]:1", "[::2]:1"]], v4_only).unwrap_err();
        assert!(error.starts_with("cannot listen on [::1]:1: "), "{error}");
    }

    #[test]
    fn an_address_that_is_named_twice_is_opened_once() {
        let groups: &[&[&str]] = &[&["127.0.0.1:1"], &["[::1]:1"], &["127.0.0.1:1"]];
        assert_eq!(opened(groups, |_| None), Ok(vec!["127.0.0.1:1".into(), "[::1]:1".into()]));
        // The second name has one address that works, if not by itself.
        let v4_only = |address: SocketAddr| address.is_ipv6().then(no_family);
        let groups: &[&[&str]] = &[&["127.0.0.1:1"], &["[::1]:1", "127.0.0.1:1"]];
        assert_eq!(opened(groups, v4_only), Ok(vec!["127.0.0.1:1".into()]));
    }

    #[test]
    fn an_address_that_is_taken_or_forbidden_is_never_passed_over() {
        for kind in [ErrorKind::AddrInUse, ErrorKind::PermissionDenied] {
            for refused in ["0.0.0.0:1", "[::]:1"] {
                let refuse = |address: SocketAddr| (address.to_string() == refused).then(|| kind.into());
                let error = opened(&[&["0.0.0.0:1", "[::]:1"]], refuse).unwrap_err();
                assert!(error.starts_with(&format!("cannot listen on {refused}: ")), "{error}");
            }
        }
        let foreign = |address: SocketAddr| address.is_ipv4().then(|| ErrorKind::AddrNotAvailable.into());
        assert!(opened(&[&["10.9.8.7:1", "[::1]:1"]], foreign).is_err());
    }
}
