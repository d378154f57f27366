//! The sockets that datagrams come from.

use crate::addresses::places;
use crate::listener::open_each;
use crate::options::Options;
use mio::net::UdpSocket;
use mio::{Interest, Registry, Token};
use socket2::{Domain, Protocol, Type};
use std::io;
use std::net::SocketAddr;

/// A socket that datagrams come from and go to.
pub(crate) struct Socket(UdpSocket);

impl Socket {
    /// Opens all that the options ask for: one for each address that TCP listens on. A port that stands with an address
    /// counts for both.
    pub(crate) fn open(options: &Options) -> io::Result<Vec<Socket>> {
        match options.udp_port {
            Some(port) if options.unix_socket.is_none() => {
                open_each(places(&options.listen, port)?, |address, _| Socket::open_one(address))
            }
            _ => Ok(Vec::new()),
        }
    }

    fn open_one(address: SocketAddr) -> io::Result<Socket> {
        let socket = socket2::Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        if address.is_ipv6() {
            // `*` listens on v4 by itself.
            socket.set_only_v6(true)?;
        }
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        Ok(Socket(UdpSocket::from_std(socket.into())))
    }

    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.0.local_addr().ok()
    }

    pub(super) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        registry.register(&mut self.0, token, Interest::READABLE)
    }

    pub(super) fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.0.recv_from(buffer)
    }

    pub(super) fn send(&self, datagram: &[u8], to: SocketAddr) -> io::Result<usize> {
        self.0.send_to(datagram, to)
    }
}
