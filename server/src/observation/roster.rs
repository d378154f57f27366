//! The roster: who is connected, from where, and since when they have been silent. Workers write it, `stats conns` reads it.
//!
//! A seat is written to when its state changes, and at most once a second for the time of its last command; so keeping it
//! costs the hot path two comparisons.

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

/// One end of a connection, as memcached writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    Tcp(SocketAddr),
    Udp(SocketAddr),
    Unix(Arc<str>),
    /// The system did not say.
    Unknown,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address @ SocketAddr::V4(_)) => write!(f, "tcp:{address}"),
            Address::Tcp(SocketAddr::V6(address)) => write!(f, "tcp6:[{}]:{}", address.ip(), address.port()),
            Address::Udp(address @ SocketAddr::V4(_)) => write!(f, "udp:{address}"),
            Address::Udp(SocketAddr::V6(address)) => write!(f, "udp6:[{}]:{}", address.ip(), address.port()),
            Address::Unix(path) => write!(f, "unix:{path}"),
            Address::Unknown => f.write_str("unknown"),
        }
    }
}

impl Address {
    fn unix(path: &Path) -> Address {
        // A name without blanks: each statistic is one line of three words.
        Address::Unix(path.display().to_string().replace(char::is_whitespace, "?").into())
    }
}

/// What a connection is doing, in memcached's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It waits for a request.
    Waiting,
    /// It waits for the rest of one.
    Receiving,
    /// A request is executed.
    Executing,
    /// Its peer has to read.
    Sending,
    /// It watches events.
    Watching,
}

impl State {
    const ALL: [State; 5] =
        [State::Waiting, State::Receiving, State::Executing, State::Sending, State::Watching];

    pub(crate) fn name(self) -> &'static str {
        match self {
            State::Waiting => "conn_read",
            State::Receiving => "conn_nread",
            State::Executing => "conn_parse_cmd",
            State::Sending => "conn_mwrite",
            State::Watching => "conn_watch",
        }
    }
}

/// A connection on the roster.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) descriptor: i32,
    pub(crate) peer: Address,
    pub(crate) local: Address,
    state: AtomicU8,
    /// Unix seconds; 32 bits last until 2106.
    last_command_at: AtomicU32,
}

impl Seat {
    fn new(descriptor: i32, peer: Address, local: Address, now: u64) -> Seat {
        let (state, last_command_at) = (AtomicU8::new(State::Waiting as u8), AtomicU32::new(now as u32));
        Seat { descriptor, peer, local, state, last_command_at }
    }

    pub(crate) fn state(&self) -> State {
        State::ALL[usize::from(self.state.load(Ordering::Relaxed)) % State::ALL.len()]
    }

    pub(crate) fn last_command_at(&self) -> u64 {
        self.last_command_at.load(Ordering::Relaxed).into()
    }

    pub(crate) fn has_come_to(&self, state: State) {
        self.state.store(state as u8, Ordering::Relaxed);
    }

    pub(crate) fn has_asked(&self, now: u64) {
        let now = now as u32;
        if self.last_command_at.load(Ordering::Relaxed) != now {
            self.last_command_at.store(now, Ordering::Relaxed);
        }
    }
}

fn tcp_ends(tcp: &TcpStream) -> (i32, Address, Address) {
    let address = |outcome: io::Result<SocketAddr>| outcome.map_or(Address::Unknown, Address::Tcp);
    (tcp.as_raw_fd(), address(tcp.peer_addr()), address(tcp.local_addr()))
}

/// All connections, by descriptor.
#[derive(Debug, Default)]
pub(crate) struct Roster {
    listeners: Vec<(i32, Address)>,
    unix: Option<Address>,
    /// Sockets that datagrams come from, in the order of the UDP thread.
    datagrams: Vec<Seat>,
    seats: Mutex<BTreeMap<i32, Arc<Seat>>>,
}

impl Roster {
    /// Creates an empty roster; `datagrams`: descriptor and address of each UDP socket.
    pub(crate) fn new(
        listeners: &[Listener],
        datagrams: impl Iterator<Item = (i32, Option<SocketAddr>)>,
        now: u64,
    ) -> Roster {
        let mut roster = Roster::default();
        for listener in listeners {
            let (descriptor, address) = match listener {
                Listener::Tcp(tcp, ..) => {
                    (tcp.as_raw_fd(), tcp.local_addr().map_or(Address::Unknown, Address::Tcp))
                }
                Listener::Unix(file, unix) => {
                    let address = Address::unix(file.path());
                    roster.unix = Some(address.clone());
                    (unix.as_raw_fd(), address)
                }
            };
            roster.listeners.push((descriptor, address));
        }
        roster.datagrams.extend(datagrams.map(|(descriptor, address)| {
            let address = address.map_or(Address::Unknown, Address::Udp);
            Seat::new(descriptor, address.clone(), address, now)
        }));
        roster
    }

    fn seats_now(&self) -> MutexGuard<'_, BTreeMap<i32, Arc<Seat>>> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection comes.
    pub(crate) fn enter(&self, stream: &mut Stream, now: u64) -> Arc<Seat> {
        let unix = || self.unix.clone().unwrap_or(Address::Unknown);
        let (descriptor, peer, local) = match stream {
            Stream::Tcp(tcp) => tcp_ends(tcp),
            Stream::Tls(tls) => tcp_ends(tls.socket()),
            Stream::Unix(stream) => (stream.as_raw_fd(), unix(), unix()),
        };
        let seat = Arc::new(Seat::new(descriptor, peer, local, now));
        self.seats_now().insert(descriptor, Arc::clone(&seat));
        seat
    }

    /// A connection goes; to be called before its descriptor is free for another one.
    pub(crate) fn leave(&self, seat: &Seat) {
        self.seats_now().remove(&seat.descriptor);
    }

    pub(crate) fn listeners(&self) -> &[(i32, Address)] {
        &self.listeners
    }

    /// The sockets of UDP, which are nobody's in particular.
    pub(crate) fn datagrams(&self) -> &[Seat] {
        &self.datagrams
    }

    /// All who are there now.
    pub(crate) fn seats(&self) -> Vec<Arc<Seat>> {
        self.seats_now().values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_as_memcached_writes_them() {
        let tcp = |text: &str| Address::Tcp(text.parse().unwrap()).to_string();
        assert_eq!(tcp("127.0.0.1:5"), "tcp:127.0.0.1:5");
        assert_eq!(tcp("[::1]:5"), "tcp6:[::1]:5");
        let udp = |text: &str| Address::Udp(text.parse().unwrap()).to_string();
        assert_eq!((udp("127.0.0.1:5"), udp("[::1]:5")), ("udp:127.0.0.1:5".into(), "udp6:[::1]:5".into()));
        assert_eq!(Address::unix(Path::new("/run/a b")).to_string(), "unix:/run/a?b");
    }

    #[test]
    fn every_state_comes_back() {
        let seat = Seat::new(1, Address::Unknown, Address::Unknown, 0);
        for state in State::ALL {
            seat.has_come_to(state);
            assert_eq!(seat.state(), state);
        }
    }
}
