//! Opens the sockets that receive datagrams.

use crate::options::ServerOptions;
use crate::transport::addresses::places;
use crate::transport::listener::{Transport, open_each};
use mio::net::UdpSocket;
use mio::{Interest, Registry, Token};
use socket2::{Domain, Protocol, Type};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use todana_protocol::memcached::DialectChoice;

/// A socket for datagrams.
pub(crate) struct DatagramSocket {
    socket: UdpSocket,
    /// The dialect of the socket; `None` means the dialect of the server.
    pub(super) choice: Option<DialectChoice>,
}

impl DatagramSocket {
    /// Opens the sockets of the options: one for each address on which TCP listens. A port that is
    /// part of an address applies to both protocols.
    pub(crate) fn open(options: &ServerOptions) -> io::Result<Vec<DatagramSocket>> {
        match options.listen.udp_port {
            Some(port) if options.listen.unix_socket.is_none() => {
                open_each(places(&options.listen.addresses, port)?, Transport::Udp, |address, mode| {
                    Ok(DatagramSocket { socket: DatagramSocket::open_one(address)?, choice: mode.choice })
                })
            }
            _ => Ok(Vec::new()),
        }
    }

    fn open_one(address: SocketAddr) -> io::Result<UdpSocket> {
        let socket = socket2::Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        if address.is_ipv6() {
            // `*` opens a separate socket for IPv4.
            socket.set_only_v6(true)?;
        }
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        Ok(UdpSocket::from_std(socket.into()))
    }

    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.socket.local_addr().ok()
    }

    pub(crate) fn descriptor(&self) -> i32 {
        self.socket.as_raw_fd()
    }

    pub(super) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        registry.register(&mut self.socket, token, Interest::READABLE)
    }

    pub(super) fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.socket.recv_from(buffer)
    }

    pub(super) fn send(&self, datagram: &[u8], to: SocketAddr) -> io::Result<usize> {
        self.socket.send_to(datagram, to)
    }
}
