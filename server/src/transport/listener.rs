//! Opens listening sockets and accepts the streams of their connections.

use crate::options::{ListenOptions, ServerOptions};
use crate::transport::addresses::{ListenMode, ListenName, ListenTlsMode, places};
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
pub(crate) enum ClientListener {
    Tcp(TcpListener, Option<ListenTls>, Option<DialectChoice>),
    /// The file is dropped before the socket. While the socket is open, no other file can have the
    /// same inode.
    Unix(SocketFile, UnixListener),
}

/// The file of a Unix socket. Dropping the value removes the file.
pub(crate) struct SocketFile {
    path: PathBuf,
    /// The identity of the file; `None` if the system did not report it after the socket was bound.
    identity: Option<FileIdentity>,
}

impl SocketFile {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// The device and inode of a file, which distinguish it from a later file at the same path.
type FileIdentity = (u64, u64);

fn identity(path: &Path) -> Option<FileIdentity> {
    std::fs::symlink_metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // The file may belong to a server that started later. Without the file, clients could not
        // reach that server.
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
pub(crate) enum ClientStream {
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    Unix(UnixStream),
}

/// An address that cannot be used. The source of this error is the error of the system.
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

/// The transport protocol of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// A stream over TCP.
    Tcp,
    /// Datagrams over UDP.
    Udp,
    /// A stream over a Unix socket, from the same machine.
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
    places: Vec<ListenName>,
    transport: Transport,
    mut open: impl FnMut(SocketAddr, ListenMode) -> io::Result<T>,
) -> io::Result<Vec<T>> {
    let (mut opened, mut served) = (Vec::new(), Vec::new());
    for ListenName { addresses: group, mode } in places {
        let mut missing = Vec::new();
        for &address in &group {
            let was_opened = |wanted: &dyn Fn(ListenMode) -> bool| {
                served.iter().any(|&(place, its_mode)| place == address && wanted(its_mode))
            };
            if was_opened(&|its_mode| its_mode == mode) {
                continue;
            }
            // If the system chooses the port, the two listeners get different ports, so there is no
            // conflict.
            if address.port() != 0 && was_opened(&|its_mode| its_mode != mode) {
                let what = format!("{address}: given twice with different dialects or TLS");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
            }
            match open(address, mode) {
                Ok(listener) => {
                    opened.push(listener);
                    served.push((address, mode));
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
                // `*` means all addresses that exist. Many containers have no IPv6.
                tracing::info!("{error}; the server starts without this address");
            } else {
                tracing::warn!("{error}; the other addresses of this name are served");
            }
        }
    }
    Ok(opened)
}

/// Returns true if the system has no address of this kind, rather than an address that is in use or
/// forbidden. For IPv4, this is so only if the system has no IPv4 at all: an IPv4 address of
/// another machine is a mistake in the name.
fn is_unavailable(address: SocketAddr, error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error())
        || address.is_ipv6() && error.kind() == io::ErrorKind::AddrNotAvailable
}

impl ClientListener {
    /// Opens all listeners of the options. A Unix socket never uses TLS, because nobody can
    /// intercept it.
    pub(crate) fn open(options: &ServerOptions, tls: Option<&Arc<Tls>>) -> io::Result<Vec<ClientListener>> {
        if let Some(path) = &options.listen.unix_socket {
            let ListenOptions { unix_mask, backlog, .. } = options.listen;
            return Ok(vec![ClientListener::open_unix(path, unix_mask, backlog)?]);
        }
        if !options.listen.tcp {
            return Ok(Vec::new());
        }
        open_each(places(&options.listen.addresses, options.listen.port)?, Transport::Tcp, |address, mode| {
            let secure = tls.and_then(|tls| ListenTls::at(tls, mode.tls));
            let listener = ClientListener::open_tcp(address, options.listen.backlog)?;
            Ok(ClientListener::Tcp(listener, secure, mode.choice))
        })
    }

    pub(super) fn open_tcp(address: SocketAddr, backlog: u32) -> io::Result<TcpListener> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        if address.is_ipv6() {
            // `*` opens a separate socket for IPv4.
            socket.set_only_v6(true)?;
        }
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
        Ok(TcpListener::from_std(socket.into()))
    }

    pub(super) fn open_unix(path: &Path, mode: u32, backlog: u32) -> io::Result<ClientListener> {
        let what = format!("cannot listen on {}", path.display());
        match std::fs::symlink_metadata(path) {
            Ok(metadata) if metadata.file_type().is_socket() => {
                if let Some(error) = in_use(path) {
                    return Err(named(error, &what, Transport::Unix));
                }
                // The file was left by an earlier server. Another process may have removed it
                // meanwhile.
                match std::fs::remove_file(path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        return Err(named(error, &what, Transport::Unix));
                    }
                    _ => {}
                }
            }
            Ok(_) => {
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("{what}: not a socket")));
            }
            Err(_) => {}
        }
        let open = || {
            let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
            socket.set_nonblocking(true)?;
            socket.bind(&socket2::SockAddr::unix(path)?)?;
            let file = SocketFile { path: path.to_path_buf(), identity: identity(path) };
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
            socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
            Ok(ClientListener::Unix(file, UnixListener::from_std(socket.into())))
        };
        open().map_err(|error: io::Error| named(error, &what, Transport::Unix))
    }

    pub(crate) fn accept_stream(&self) -> io::Result<ClientStream> {
        match self {
            ClientListener::Tcp(listener, secure, _) => {
                let (stream, _) = listener.accept()?;
                // If one of these options cannot be set, the connection still works, so it stays
                // open.
                let _ = stream.set_nodelay(true);
                let _ = socket2::SockRef::from(&stream).set_keepalive(true);
                let Some(ListenTls { tls, ask }) = secure else { return Ok(ClientStream::Tcp(stream)) };
                // A failure concerns only this connection; later ones may succeed.
                let stream =
                    TlsStream::new(stream, tls, *ask).map_err(|_| io::ErrorKind::ConnectionAborted)?;
                Ok(ClientStream::Tls(Box::new(stream)))
            }
            ClientListener::Unix(_, listener) => Ok(ClientStream::Unix(listener.accept()?.0)),
        }
    }

    /// Returns the address of the listener in the form that users write and `todana`'s client
    /// accepts, with a scheme for TLS.
    pub(crate) fn name(&self) -> String {
        match self {
            ClientListener::Tcp(listener, Some(_), _) => {
                listener.local_addr().map_or_else(|_| "?".into(), |address| format!("todanas://{address}"))
            }
            ClientListener::Tcp(listener, ..) => {
                listener.local_addr().map_or_else(|_| "?".into(), |a| a.to_string())
            }
            ClientListener::Unix(file, _) => file.path.display().to_string(),
        }
    }

    /// Returns the descriptor of the listener, and its dialect if that differs from the server's.
    pub(crate) fn speaks(&self) -> (i32, Option<DialectChoice>) {
        match self {
            ClientListener::Tcp(listener, _, choice) => (listener.as_raw_fd(), *choice),
            ClientListener::Unix(_, listener) => (listener.as_raw_fd(), None),
        }
    }

    pub(crate) fn tcp_address(&self) -> Option<SocketAddr> {
        match self {
            ClientListener::Tcp(listener, ..) => listener.local_addr().ok(),
            ClientListener::Unix(..) => None,
        }
    }

    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        match self {
            ClientListener::Tcp(listener, ..) => listener.register(registry, token, Interest::READABLE),
            ClientListener::Unix(_, listener) => listener.register(registry, token, Interest::READABLE),
        }
    }

    /// Removes the listener from its poll.
    pub(crate) fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        match self {
            ClientListener::Tcp(listener, ..) => listener.deregister(registry),
            ClientListener::Unix(_, listener) => listener.deregister(registry),
        }
    }
}

/// Returns the error of a path whose socket must stay, because a server listens there. Returns
/// `None` if no server listens there. If the socket cannot be reached for another reason, such as
/// missing permissions, it may belong to a running server and must stay, too.
fn in_use(path: &Path) -> Option<io::Error> {
    let connect = || {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        // A server whose backlog is full is running, too. A nonblocking connect reports this at
        // once instead of waiting.
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
    pub(super) fn at(tls: &Arc<Tls>, place: ListenTlsMode) -> Option<ListenTls> {
        let ask = match place {
            ListenTlsMode::Off => return None,
            ListenTlsMode::Default => tls.options().ask(),
            ListenTlsMode::Basic => ClientCertificates::Never,
            ListenTlsMode::Mutual => ClientCertificates::Always,
        };
        Some(ListenTls { tls: Arc::clone(tls), ask })
    }
}

impl ClientStream {
    /// Reads available bytes. Returns their number, and true if there are no more for now. Zero
    /// bytes without an error mean the end of the stream.
    pub(crate) fn read_some(&mut self, buffer: &mut [u8]) -> io::Result<(usize, bool)> {
        let len = match self {
            ClientStream::Tcp(stream) => stream.read(buffer),
            ClientStream::Unix(stream) => stream.read(buffer),
            ClientStream::Tls(stream) => return stream.read_some(buffer),
        }?;
        // If a read returns fewer bytes than requested, the socket is empty.
        Ok((len, len < buffer.len()))
    }

    /// Returns the plain bytes of bytes that the ring has received, in `buffer` if they were
    /// encrypted.
    pub(crate) fn plain<'b>(&mut self, received: &'b [u8], buffer: &'b mut [u8]) -> io::Result<&'b [u8]> {
        match self {
            ClientStream::Tcp(_) | ClientStream::Unix(_) => Ok(received),
            ClientStream::Tls(stream) => {
                let len = stream.receive(received, buffer)?;
                Ok(&buffer[..len])
            }
        }
    }

    /// Returns true if the peer has announced the end of the stream in the bytes that were
    /// received.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self, ClientStream::Tls(stream) if stream.has_ended())
    }

    /// Returns true if the stream can be read into a buffer of any length. A TLS stream cannot,
    /// because TLS decrypts complete records, which may be longer than the buffer.
    pub(crate) fn reads_any_len(&self) -> bool {
        !matches!(self, ClientStream::Tls(_))
    }

    /// Returns the number of bytes that the stream keeps: of incomplete input, and of output that
    /// the socket has not accepted.
    pub(crate) fn kept_lens(&self) -> (usize, usize) {
        match self {
            ClientStream::Tcp(_) | ClientStream::Unix(_) => (0, 0),
            ClientStream::Tls(stream) => (stream.partial_len(), stream.unsent_len()),
        }
    }

    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        // The poll is edge-triggered, so registering both interests once is enough.
        let interest = Interest::READABLE | Interest::WRITABLE;
        match self {
            ClientStream::Tcp(stream) => stream.register(registry, token, interest),
            ClientStream::Unix(stream) => stream.register(registry, token, interest),
            ClientStream::Tls(stream) => stream.socket().register(registry, token, interest),
        }
    }
}

impl ClientStream {
    /// Removes the stream from its poll.
    pub(crate) fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        match self {
            ClientStream::Tcp(stream) => stream.deregister(registry),
            ClientStream::Unix(stream) => stream.deregister(registry),
            ClientStream::Tls(stream) => stream.socket().deregister(registry),
        }
    }
}

impl Write for ClientStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            ClientStream::Tcp(stream) => stream.write(bytes),
            ClientStream::Unix(stream) => stream.write(bytes),
            ClientStream::Tls(stream) => stream.write(bytes),
        }
    }

    fn write_vectored(&mut self, pieces: &[io::IoSlice<'_>]) -> io::Result<usize> {
        match self {
            ClientStream::Tcp(stream) => stream.write_vectored(pieces),
            ClientStream::Unix(stream) => stream.write_vectored(pieces),
            ClientStream::Tls(stream) => stream.write_vectored(pieces),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            ClientStream::Tcp(_) | ClientStream::Unix(_) => Ok(()),
            ClientStream::Tls(stream) => stream.flush(),
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

    /// Opens the groups of addresses as on a system on which `refuse` returns errors for some
    /// addresses.
    fn opened(
        groups: &[&[&str]],
        refuse: impl Fn(SocketAddr) -> Option<io::Error>,
    ) -> Result<Vec<String>, String> {
        let place = |group: &&[&str]| ListenName {
            addresses: group.iter().map(|a| a.parse().unwrap()).collect(),
            mode: ListenMode::default(),
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
        // The second name has no usable address of its own: the only usable one belongs to the
        // first name, too.
        let v4_only = |address: SocketAddr| address.is_ipv6().then(no_family);
        let groups: &[&[&str]] = &[&["127.0.0.1:1"], &["[::1]:1", "127.0.0.1:1"]];
        assert_eq!(opened(groups, v4_only), Ok(vec!["127.0.0.1:1".into()]));
    }

    #[test]
    fn address_with_two_dialects_is_refused() {
        let at = |address: &str, mode| ListenName { addresses: vec![address.parse().unwrap()], mode };
        let place = |mode| at("127.0.0.1:1", mode);
        for one in [
            ListenMode { tls: ListenTlsMode::Mutual, ..ListenMode::default() },
            ListenMode { choice: Some(DialectChoice::Text), ..ListenMode::default() },
        ] {
            let places = vec![place(one), place(ListenMode::default())];
            let error = open_each(places, Transport::Tcp, |_, mode| Ok(mode)).unwrap_err().to_string();
            assert_eq!(error, "127.0.0.1:1: given twice with different dialects or TLS");
            // The system chooses two ports.
            let places = vec![at("127.0.0.1:0", one), at("127.0.0.1:0", ListenMode::default())];
            assert_eq!(
                open_each(places, Transport::Tcp, |_, mode| Ok(mode)).unwrap(),
                [one, ListenMode::default()]
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
