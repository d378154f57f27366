//! Holds the addresses, states and idle times of all connections. Workers write the table; `stats
//! conns` reads it.
//!
//! An entry is written when the state of its connection changes, and at most once a second for the
//! time of the last command. For most requests, the table therefore costs only two comparisons.

use crate::transport::listener::{ClientListener, ClientStream};
use mio::net::TcpStream;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One end of a connection, in memcached's notation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionAddress {
    Tcp(SocketAddr),
    Udp(SocketAddr),
    Unix(Arc<str>),
    /// The system did not report the address.
    Unknown,
}

impl fmt::Display for ConnectionAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectionAddress::Tcp(address @ SocketAddr::V4(_)) => write!(f, "tcp:{address}"),
            ConnectionAddress::Tcp(SocketAddr::V6(address)) => {
                write!(f, "tcp6:[{}]:{}", address.ip(), address.port())
            }
            ConnectionAddress::Udp(address @ SocketAddr::V4(_)) => write!(f, "udp:{address}"),
            ConnectionAddress::Udp(SocketAddr::V6(address)) => {
                write!(f, "udp6:[{}]:{}", address.ip(), address.port())
            }
            ConnectionAddress::Unix(path) => write!(f, "unix:{path}"),
            ConnectionAddress::Unknown => f.write_str("unknown"),
        }
    }
}

impl ConnectionAddress {
    fn unix(path: &Path) -> ConnectionAddress {
        // Blanks in a path are replaced, because each statistic is one line of three words.
        ConnectionAddress::Unix(path.display().to_string().replace(char::is_whitespace, "?").into())
    }
}

/// The state of a connection, with memcached's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionState {
    /// The connection waits for a request.
    Waiting,
    /// The connection waits for the rest of a request.
    Receiving,
    /// The connection executes a request.
    Executing,
    /// The connection waits for its peer to read.
    Sending,
    /// The connection watches events.
    Watching,
}

impl ConnectionState {
    const ALL: [ConnectionState; 5] = [
        ConnectionState::Waiting,
        ConnectionState::Receiving,
        ConnectionState::Executing,
        ConnectionState::Sending,
        ConnectionState::Watching,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            ConnectionState::Waiting => "conn_read",
            ConnectionState::Receiving => "conn_nread",
            ConnectionState::Executing => "conn_parse_cmd",
            ConnectionState::Sending => "conn_mwrite",
            ConnectionState::Watching => "conn_watch",
        }
    }
}

/// An entry of the connection table.
#[derive(Debug)]
pub(crate) struct ConnectionInfo {
    pub(crate) descriptor: i32,
    pub(crate) peer: ConnectionAddress,
    pub(crate) local: ConnectionAddress,
    state: AtomicU8,
    /// The time of the last command in Unix seconds. 32 bits suffice until 2106.
    last_command_at: AtomicU32,
}

impl ConnectionInfo {
    fn new(descriptor: i32, peer: ConnectionAddress, local: ConnectionAddress, now: u64) -> ConnectionInfo {
        let (state, last_command_at) =
            (AtomicU8::new(ConnectionState::Waiting as u8), AtomicU32::new(now as u32));
        ConnectionInfo { descriptor, peer, local, state, last_command_at }
    }

    pub(crate) fn state(&self) -> ConnectionState {
        ConnectionState::ALL[usize::from(self.state.load(Ordering::Relaxed)) % ConnectionState::ALL.len()]
    }

    pub(crate) fn last_command_at(&self) -> u64 {
        self.last_command_at.load(Ordering::Relaxed).into()
    }

    pub(crate) fn set_state(&self, state: ConnectionState) {
        self.state.store(state as u8, Ordering::Relaxed);
    }

    pub(crate) fn set_last_command_at(&self, now: u64) {
        let now = now as u32;
        if self.last_command_at.load(Ordering::Relaxed) != now {
            self.last_command_at.store(now, Ordering::Relaxed);
        }
    }
}

fn tcp_ends(tcp: &TcpStream) -> (i32, ConnectionAddress, ConnectionAddress) {
    let address =
        |outcome: io::Result<SocketAddr>| outcome.map_or(ConnectionAddress::Unknown, ConnectionAddress::Tcp);
    (tcp.as_raw_fd(), address(tcp.peer_addr()), address(tcp.local_addr()))
}

/// The connections, by descriptor.
#[derive(Debug, Default)]
pub(crate) struct ConnectionTable {
    listeners: Vec<(i32, ConnectionAddress)>,
    unix: Option<ConnectionAddress>,
    /// The UDP sockets, in the order in which the UDP thread has them.
    datagrams: Vec<ConnectionInfo>,
    connections: Mutex<BTreeMap<i32, Arc<ConnectionInfo>>>,
}

impl ConnectionTable {
    /// Creates a table without connections. `datagrams` yields the descriptor and address of each
    /// UDP socket.
    pub(crate) fn new<'l>(
        listeners: impl Iterator<Item = &'l ClientListener>,
        datagrams: impl Iterator<Item = (i32, Option<SocketAddr>)>,
        now: u64,
    ) -> ConnectionTable {
        let mut connection_table = ConnectionTable::default();
        for listener in listeners {
            let (descriptor, address) = match listener {
                ClientListener::Tcp(tcp, ..) => (
                    tcp.as_raw_fd(),
                    tcp.local_addr().map_or(ConnectionAddress::Unknown, ConnectionAddress::Tcp),
                ),
                ClientListener::Unix(file, unix) => {
                    let address = ConnectionAddress::unix(file.path());
                    connection_table.unix = Some(address.clone());
                    (unix.as_raw_fd(), address)
                }
            };
            connection_table.listeners.push((descriptor, address));
        }
        connection_table.datagrams.extend(datagrams.map(|(descriptor, address)| {
            let address = address.map_or(ConnectionAddress::Unknown, ConnectionAddress::Udp);
            ConnectionInfo::new(descriptor, address.clone(), address, now)
        }));
        connection_table
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<i32, Arc<ConnectionInfo>>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection.
    pub(crate) fn insert(&self, stream: &mut ClientStream, now: u64) -> Arc<ConnectionInfo> {
        let unix = || self.unix.clone().unwrap_or(ConnectionAddress::Unknown);
        let (descriptor, peer, local) = match stream {
            ClientStream::Tcp(tcp) => tcp_ends(tcp),
            ClientStream::Tls(tls) => tcp_ends(tls.socket()),
            ClientStream::Unix(stream) => (stream.as_raw_fd(), unix(), unix()),
        };
        let info = Arc::new(ConnectionInfo::new(descriptor, peer, local, now));
        self.lock().insert(descriptor, Arc::clone(&info));
        info
    }

    /// Removes a connection. Call this before its descriptor is closed, because a new connection
    /// may get the same descriptor.
    pub(crate) fn remove(&self, info: &ConnectionInfo) {
        self.lock().remove(&info.descriptor);
    }

    pub(crate) fn listeners(&self) -> &[(i32, ConnectionAddress)] {
        &self.listeners
    }

    /// Returns the UDP sockets.
    pub(crate) fn datagrams(&self) -> &[ConnectionInfo] {
        &self.datagrams
    }

    /// Returns all connections.
    pub(crate) fn connections(&self) -> Vec<Arc<ConnectionInfo>> {
        self.lock().values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_memcached_notation() {
        let tcp = |text: &str| ConnectionAddress::Tcp(text.parse().unwrap()).to_string();
        assert_eq!(tcp("127.0.0.1:5"), "tcp:127.0.0.1:5");
        assert_eq!(tcp("[::1]:5"), "tcp6:[::1]:5");
        let udp = |text: &str| ConnectionAddress::Udp(text.parse().unwrap()).to_string();
        assert_eq!((udp("127.0.0.1:5"), udp("[::1]:5")), ("udp:127.0.0.1:5".into(), "udp6:[::1]:5".into()));
        assert_eq!(ConnectionAddress::unix(Path::new("/run/a b")).to_string(), "unix:/run/a?b");
    }

    #[test]
    fn connection_states_round_trip() {
        let info = ConnectionInfo::new(1, ConnectionAddress::Unknown, ConnectionAddress::Unknown, 0);
        for state in ConnectionState::ALL {
            info.set_state(state);
            assert_eq!(info.state(), state);
        }
    }
}
