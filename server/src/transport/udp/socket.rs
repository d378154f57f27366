//! The sockets that datagrams come from.

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
pub(crate) struct Socket {
    socket: UdpSocket,
    /// Its dialect; `None` is the server's.
    pub(super) choice: Option<DialectChoice>,
}

impl Socket {
    /// Opens the sockets that the options ask for: one for each address that TCP listens on. A port
    /// that is given with an address applies to both.
    pub(crate) fn open(options: &ServerOptions) -> io::Result<Vec<Socket>> {
        match options.listen.udp_port {
            Some(port) if options.listen.unix_socket.is_none() => {
                open_each(places(&options.listen.addresses, port)?, Transport::Udp, |address, speech| {
                    Ok(Socket { socket: Socket::open_one(address)?, choice: speech.choice })
                })
            }
            _ => Ok(Vec::new()),
        }
    }

    fn open_one(address: SocketAddr) -> io::Result<UdpSocket> {
        let socket = socket2::Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        if address.is_ipv6() {
            // `*` listens on v4 by itself.
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
