//! Listening sockets, and the streams of their connections.

use crate::options::ServerOptions;
use crate::transport::addresses::{ListenDialect, ListenPlace, PlaceTls, places};
use crate::transport::tls::{ClientCertificates, Tls, TlsStream};
use mio::event::Source;
use mio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use mio::{Interest, Registry, Token};
use socket2::{Domain, Protocol, Socket, Type};
use std::fmt;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana_protocol::memcached::DialectChoice;

/// A listening socket.
pub(crate) enum Listener {
    Tcp(TcpListener, Option<ListenTls>, Option<DialectChoice>),
    /// The file is dropped first: while the socket is open, no other file can have the same inode.
    Unix(SocketFile, UnixListener),
}

/// The file of a Unix socket, removed with its listener.
pub(crate) struct SocketFile {
    path: PathBuf,
    /// `None` if the system did not report it after the socket was bound.
    identity: Option<FileIdentity>,
}

impl SocketFile {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// Device and inode, which distinguish the file from a later socket with the same path.
type FileIdentity = (u64, u64);

fn identity(path: &Path) -> Option<FileIdentity> {
    std::fs::symlink_metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // The file may belong to a later server, which would be unreachable without it.
        if self.identity.is_some() && identity(&self.path) == self.identity {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// TLS at a listener.
#[derive(Clone)]
pub(crate) struct ListenTls {
    tls: Arc<Tls>,
    ask: ClientCertificates,
}

/// The socket of a connection.
pub(crate) enum Stream {
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    Unix(UnixStream),
}

/// A new connection.
pub(crate) struct NewConnection {
    pub(crate) stream: Stream,
    /// The dialect of its listener; `None` is the server's.
    pub(crate) choice: Option<DialectChoice>,
}

/// The error of an address that cannot be used; its source is the system's error.
#[derive(Debug)]
pub struct ListenError {
    what: String,
    transport: Transport,
    cause: io::Error,
}

impl ListenError {
    /// Returns the transport of the address.
    pub fn transport(&self) -> Transport {
        self.transport
    }
}

/// The transport of a server's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// A stream.
    Tcp,
    /// Datagrams.
    Udp,
    /// A stream from this host.
    Unix,
}

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.cause)
    }
}

impl std::error::Error for ListenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.cause)
    }
}

fn named(cause: io::Error, what: &str, transport: Transport) -> io::Error {
    io::Error::new(cause.kind(), ListenError { what: what.to_string(), transport, cause })
}

/// Opens every address once, and fails with the first one that cannot be used. If a name has
/// several addresses, those of a family that the system does not have may be missing: `*` and
/// `localhost` mean both families, also without IPv6.
pub(crate) fn open_each<T>(
    places: Vec<ListenPlace>,
    transport: Transport,
    mut open: impl FnMut(SocketAddr, ListenDialect) -> io::Result<T>,
) -> io::Result<Vec<T>> {
    let (mut opened, mut served) = (Vec::new(), Vec::new());
    for ListenPlace { addresses: group, speech } in places {
        let mut missing = Vec::new();
        for &address in &group {
            let before = |wanted: &dyn Fn(ListenDialect) -> bool| {
                served.iter().any(|&(served, speech)| served == address && wanted(speech))
            };
            if before(&|served| served == speech) {
                continue;
            }
            // If the system chooses the port, the other listener has another address.
            if address.port() != 0 && before(&|served| served != speech) {
                let what = format!("{address}: given twice with different dialects or TLS");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
            }
            match open(address, speech) {
                Ok(listener) => {
                    opened.push(listener);
                    served.push((address, speech));
                }
                Err(error) => {
                    let is_unavailable = is_unavailable(address, &error);
                    let over = if transport == Transport::Udp { "UDP " } else { "" };
                    let described = named(error, &format!("cannot listen on {over}{address}"), transport);
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
                // `*` means all addresses that exist: many containers have no IPv6.
                tracing::info!("{error}; going on without");
            } else {
                tracing::warn!("{error}; other addresses of the same name are served");
            }
        }
    }
    Ok(opened)
}

/// Returns true if the system has no such address, as opposed to one in use or forbidden. For IPv4
/// only the complete family may be missing: a foreign address is a mistake in the name.
fn is_unavailable(address: SocketAddr, error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error())
        || address.is_ipv6() && error.kind() == io::ErrorKind::AddrNotAvailable
}

impl Listener {
    /// Opens all listeners of the options. A Unix socket never uses TLS, because nobody can
    /// intercept it.
    pub(crate) fn open(options: &ServerOptions, tls: Option<&Arc<Tls>>) -> io::Result<Vec<Listener>> {
        if let Some(path) = &options.listen.unix_socket {
            return Ok(vec![Listener::open_unix(path, options)?]);
        }
        if !options.listen.tcp {
            return Ok(Vec::new());
        }
        open_each(
            places(&options.listen.addresses, options.listen.port)?,
            Transport::Tcp,
            |address, speech| {
                let secure = tls.and_then(|tls| ListenTls::at(tls, speech.tls));
                let listener = Listener::open_tcp(address, options)?;
                Ok(Listener::Tcp(listener, secure, speech.choice))
            },
        )
    }

    fn open_tcp(address: SocketAddr, options: &ServerOptions) -> io::Result<TcpListener> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        if address.is_ipv6() {
            // `*` listens on IPv4 by itself.
            socket.set_only_v6(true)?;
        }
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(i32::try_from(options.listen.backlog).unwrap_or(i32::MAX))?;
        Ok(TcpListener::from_std(socket.into()))
    }

    fn open_unix(path: &Path, options: &ServerOptions) -> io::Result<Listener> {
        let what = format!("cannot listen on {}", path.display());
        match std::fs::symlink_metadata(path) {
            Ok(metadata) if metadata.file_type().is_socket() => {
                if let Some(error) = in_use(path) {
                    return Err(named(error, &what, Transport::Unix));
                }
                // A file left by an earlier server; it may have been removed meanwhile.
                match std::fs::remove_file(path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        return Err(named(error, &what, Transport::Unix));
                    }
                    _ => {}
                }
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
            let file = SocketFile { path: path.to_path_buf(), identity: identity(path) };
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(options.listen.unix_mask))?;
            socket.listen(i32::try_from(options.listen.backlog).unwrap_or(i32::MAX))?;
            Ok(Listener::Unix(file, UnixListener::from_std(socket.into())))
        };
        open().map_err(|error: io::Error| named(error, &what, Transport::Unix))
    }

    /// Accepts the next waiting connection.
    pub(crate) fn accept(&self) -> io::Result<NewConnection> {
        let choice = if let Listener::Tcp(_, _, choice) = self { *choice } else { None };
        Ok(NewConnection { stream: self.accept_stream()?, choice })
    }

    pub(crate) fn accept_stream(&self) -> io::Result<Stream> {
        match self {
            Listener::Tcp(listener, secure, _) => {
                let (stream, _) = listener.accept()?;
                // Neither failure is worth closing the connection.
                let _ = stream.set_nodelay(true);
                let _ = socket2::SockRef::from(&stream).set_keepalive(true);
                let Some(ListenTls { tls, ask }) = secure else { return Ok(Stream::Tcp(stream)) };
                // Other connections may succeed.
                let stream =
                    TlsStream::new(stream, tls, *ask).map_err(|_| io::ErrorKind::ConnectionAborted)?;
                Ok(Stream::Tls(Box::new(stream)))
            }
            Listener::Unix(_, listener) => Ok(Stream::Unix(listener.accept()?.0)),
        }
    }

    /// Returns its address in the form that users write and our clients accept, with a scheme for
    /// TLS.
    pub(crate) fn name(&self) -> String {
        match self {
            Listener::Tcp(listener, Some(_), _) => {
                listener.local_addr().map_or_else(|_| "?".into(), |address| format!("todanas://{address}"))
            }
            Listener::Tcp(listener, ..) => {
                listener.local_addr().map_or_else(|_| "?".into(), |a| a.to_string())
            }
            Listener::Unix(file, _) => file.path.display().to_string(),
        }
    }

    /// Returns its descriptor, and its dialect if that is not the server's.
    pub(crate) fn speaks(&self) -> (i32, Option<DialectChoice>) {
        match self {
            Listener::Tcp(listener, _, choice) => (listener.as_raw_fd(), *choice),
            Listener::Unix(_, listener) => (listener.as_raw_fd(), None),
        }
    }

    pub(crate) fn tcp_address(&self) -> Option<SocketAddr> {
        match self {
            Listener::Tcp(listener, ..) => listener.local_addr().ok(),
            Listener::Unix(..) => None,
        }
    }

    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        match self {
            Listener::Tcp(listener, ..) => listener.register(registry, token, Interest::READABLE),
            Listener::Unix(_, listener) => listener.register(registry, token, Interest::READABLE),
        }
    }
}

/// Returns the reason why the socket at `path` must stay; `None` if nobody listens there. A socket
/// that cannot be reached for another reason, such as another owner, may be a server's.
/// another user's, say) may well be a server's.
fn in_use(path: &Path) -> Option<io::Error> {
    let connect = || {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        // A server with a full backlog exists, too; this does not wait for it.
        socket.set_nonblocking(true)?;
        socket.connect(&socket2::SockAddr::unix(path)?)
    };
    match connect() {
        Err(error) if matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) => {
            None
        }
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Some(error),
        _ => Some(io::ErrorKind::AddrInUse.into()),
    }
}

impl ListenTls {
    fn at(tls: &Arc<Tls>, place: PlaceTls) -> Option<ListenTls> {
        let ask = match place {
            PlaceTls::Off => return None,
            PlaceTls::Default => tls.options().ask(),
            PlaceTls::Basic => ClientCertificates::Never,
            PlaceTls::Mutual => ClientCertificates::Always,
        };
        Some(ListenTls { tls: Arc::clone(tls), ask })
    }
}

impl Stream {
    /// Reads available bytes; returns their number, and true if there are no more for now. Zero
    /// bytes without an error are the end.
    pub(crate) fn read_some(&mut self, buffer: &mut [u8]) -> io::Result<(usize, bool)> {
        let len = match self {
            Stream::Tcp(stream) => stream.read(buffer),
            Stream::Unix(stream) => stream.read(buffer),
            Stream::Tls(stream) => return stream.read_some(buffer),
        }?;
        // A short read means that the socket is drained.
        Ok((len, len < buffer.len()))
    }

    /// Returns true if it can be read into a buffer of any length. TLS decrypts complete records,
    /// which may be longer.
    pub(crate) fn reads_any_len(&self) -> bool {
        !matches!(self, Stream::Tls(_))
    }

    /// Returns the number of kept bytes: incomplete input, and output that the socket has not
    /// taken.
    pub(crate) fn kept_lens(&self) -> (usize, usize) {
        match self {
            Stream::Tcp(_) | Stream::Unix(_) => (0, 0),
            Stream::Tls(stream) => (stream.partial_len(), stream.unsent_len()),
        }
    }

    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        // Edge-triggered, so that both interests need no further call.
        let interest = Interest::READABLE | Interest::WRITABLE;
        match self {
            Stream::Tcp(stream) => stream.register(registry, token, interest),
            Stream::Unix(stream) => stream.register(registry, token, interest),
            Stream::Tls(stream) => stream.socket().register(registry, token, interest),
        }
    }
}

impl Stream {
    /// Deregisters it from its poll.
    pub(crate) fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.deregister(registry),
            Stream::Unix(stream) => stream.deregister(registry),
            Stream::Tls(stream) => stream.socket().deregister(registry),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
            Stream::Tls(stream) => stream.write(bytes),
        }
    }

    fn write_vectored(&mut self, pieces: &[io::IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write_vectored(pieces),
            Stream::Unix(stream) => stream.write_vectored(pieces),
            Stream::Tls(stream) => stream.write_vectored(pieces),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Tcp(_) | Stream::Unix(_) => Ok(()),
            Stream::Tls(stream) => stream.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;

    fn no_family() -> io::Error {
        rustix::io::Errno::AFNOSUPPORT.into()
    }

    /// Opens the groups on a system that returns `refuse` for some addresses.
    fn opened(
        groups: &[&[&str]],
        refuse: impl Fn(SocketAddr) -> Option<io::Error>,
    ) -> Result<Vec<String>, String> {
        let place = |group: &&[&str]| ListenPlace {
            addresses: group.iter().map(|a| a.parse().unwrap()).collect(),
            speech: ListenDialect::default(),
        };
        open_each(groups.iter().map(place).collect(), Transport::Tcp, |address, _| {
            refuse(address).map_or(Ok(address.to_string()), Err)
        })
        .map_err(|error| error.to_string())
    }

    #[test]
    fn wildcard_works_without_ipv6() {
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
    fn single_address_must_be_usable() {
        let v4_only = |address: SocketAddr| address.is_ipv6().then(no_family);
        let error = opened(&[&["127.0.0.1:1"], &["[::1]:1"]], v4_only).unwrap_err();
        assert!(error.starts_with("cannot listen on [::1]:1: "), "{error}");
        let error = opened(&[&["127.0.0.1:1"], &["[::1]:1", "[::2]:1"]], v4_only).unwrap_err();
        assert!(error.starts_with("cannot listen on [::1]:1: "), "{error}");
    }

    #[test]
    fn repeated_address_is_opened_once() {
        let groups: &[&[&str]] = &[&["127.0.0.1:1"], &["[::1]:1"], &["127.0.0.1:1"]];
        assert_eq!(opened(groups, |_| None), Ok(vec!["127.0.0.1:1".into(), "[::1]:1".into()]));
        // The second name has one usable address, but not by itself.
        let v4_only = |address: SocketAddr| address.is_ipv6().then(no_family);
        let groups: &[&[&str]] = &[&["127.0.0.1:1"], &["[::1]:1", "127.0.0.1:1"]];
        assert_eq!(opened(groups, v4_only), Ok(vec!["127.0.0.1:1".into()]));
    }

    #[test]
    fn an_address_is_not_served_in_two_ways() {
        let at = |address: &str, speech| ListenPlace { addresses: vec![address.parse().unwrap()], speech };
        let place = |speech| at("127.0.0.1:1", speech);
        for one in [
            ListenDialect { tls: PlaceTls::Mutual, ..ListenDialect::default() },
            ListenDialect { choice: Some(DialectChoice::Text), ..ListenDialect::default() },
        ] {
            let places = vec![place(one), place(ListenDialect::default())];
            let error = open_each(places, Transport::Tcp, |_, speech| Ok(speech)).unwrap_err().to_string();
            assert_eq!(error, "127.0.0.1:1: given twice with different dialects or TLS");
            // The system chooses two ports.
            let places = vec![at("127.0.0.1:0", one), at("127.0.0.1:0", ListenDialect::default())];
            assert_eq!(
                open_each(places, Transport::Tcp, |_, speech| Ok(speech)).unwrap(),
                [one, ListenDialect::default()]
            );
        }
    }

    #[test]
    fn taken_or_forbidden_address_is_an_error() {
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
