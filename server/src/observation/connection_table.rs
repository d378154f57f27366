//! The table of all connections: their addresses, states and idle times. Workers write it; `stats
//! conns` reads it.
//!
//! An entry is written when its state changes, and at most once a second for the time of its last
//! command. So maintaining it costs the hot path two comparisons.

use crate::transport::listener::{Listener, Stream};
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
        // Blanks are replaced: each statistic is one line of three words.
        ConnectionAddress::Unix(path.display().to_string().replace(char::is_whitespace, "?").into())
    }
}

/// The state of a connection, with memcached's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionState {
    /// The connection waits for a request.
    Waiting,
    /// The connection waits for the rest of a request.
    ExportReceiver,
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
        ConnectionState::ExportReceiver,
        ConnectionState::Executing,
        ConnectionState::Sending,
        ConnectionState::Watching,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            ConnectionState::Waiting => "conn_read",
            ConnectionState::ExportReceiver => "conn_nread",
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
    /// Unix seconds; 32 bits last until 2106.
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

/// All connections, by descriptor.
#[derive(Debug, Default)]
pub(crate) struct ConnectionTable {
    listeners: Vec<(i32, ConnectionAddress)>,
    unix: Option<ConnectionAddress>,
    /// The UDP sockets, in the order of the UDP thread.
    datagrams: Vec<ConnectionInfo>,
    connections: Mutex<BTreeMap<i32, Arc<ConnectionInfo>>>,
}

impl ConnectionTable {
    /// Creates a table without connections. `datagrams` yields the descriptor and address of each
    /// UDP socket.
    pub(crate) fn new(
        listeners: &[Listener],
        datagrams: impl Iterator<Item = (i32, Option<SocketAddr>)>,
        now: u64,
    ) -> ConnectionTable {
        let mut connection_table = ConnectionTable::default();
        for listener in listeners {
            let (descriptor, address) = match listener {
                Listener::Tcp(tcp, ..) => (
                    tcp.as_raw_fd(),
                    tcp.local_addr().map_or(ConnectionAddress::Unknown, ConnectionAddress::Tcp),
                ),
                Listener::Unix(file, unix) => {
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
    pub(crate) fn insert(&self, stream: &mut Stream, now: u64) -> Arc<ConnectionInfo> {
        let unix = || self.unix.clone().unwrap_or(ConnectionAddress::Unknown);
        let (descriptor, peer, local) = match stream {
            Stream::Tcp(tcp) => tcp_ends(tcp),
            Stream::Tls(tls) => tcp_ends(tls.socket()),
            Stream::Unix(stream) => (stream.as_raw_fd(), unix(), unix()),
        };
        let info = Arc::new(ConnectionInfo::new(descriptor, peer, local, now));
        self.lock().insert(descriptor, Arc::clone(&info));
        info
    }

    /// Removes a connection. Must be called before its descriptor is free for another one.
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
