//! Defines the options of the listeners: addresses, ports, sockets and TLS.

use super::OptionsError;
use crate::transport::addresses::{ListenMode, ListenTlsMode};
use crate::transport::tls::{ClientCertificates, TlsOptions};
use crate::transport::udp::message::MESSAGE_LEN_MAX;
use std::path::PathBuf;

/// The addresses on which the server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenOptions {
    /// The addresses to listen on: `host`, `host:port`, `[v6]:port`, or `*` for all addresses. An
    /// empty list stands for 127.0.0.1. Each address may begin with `notls:` (no TLS), `btls:` (TLS
    /// without client certificates) or `mtls:` (TLS with client certificates), and with
    /// `proto[ascii]:`, `proto[binary]:` or `proto[auto]:`, which replaces
    /// [`protocol`](super::ProtocolOptions::protocol) at this address.
    pub addresses: Vec<String>,
    /// The TCP port of addresses without a port; 0 lets the system choose one.
    pub port: u16,
    /// False disables TCP.
    pub tcp: bool,
    /// The UDP port of addresses without a port; 0 lets the system choose one, and `None` disables
    /// UDP.
    pub udp_port: Option<u16>,
    /// The maximum number of bytes of all replies to one UDP request. A longer reply is replaced by
    /// an error. The limit is needed because a client can forge the sender of a datagram, and the
    /// replies then go to a victim.
    pub udp_reply_max: usize,
    /// The path of a Unix socket to listen on instead of TCP.
    pub unix_socket: Option<PathBuf>,
    /// The permissions of the Unix socket.
    pub unix_mask: u32,
    /// The number of connections that may wait to be accepted.
    pub backlog: u32,
    /// The TLS options of all TCP addresses without a TLS prefix.
    pub tls: Option<TlsOptions>,
    /// True if two combinations are accepted that memcached accepts and that are otherwise refused:
    /// UDP without encryption together with TLS; and listeners that require client certificates
    /// although no authority is configured to check them, so that every handshake fails.
    pub lenient_tls: bool,
    /// The interface of the system by which workers receive and send.
    pub io: IoMode,
}

/// The interface of the system by which workers receive from clients and send to them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoMode {
    /// io_uring, if the system allows it, otherwise epoll.
    #[default]
    Auto,
    /// io_uring. The server does not start if the system does not allow it.
    Uring,
    /// epoll.
    Epoll,
}

impl Default for ListenOptions {
    fn default() -> Self {
        ListenOptions {
            addresses: Vec::new(),
            port: 11211,
            tcp: true,
            udp_port: None,
            udp_reply_max: 16 << 10,
            unix_socket: None,
            unix_mask: 0o700,
            backlog: 1024,
            tls: None,
            lenient_tls: false,
            io: IoMode::default(),
        }
    }
}

impl ListenOptions {
    pub(super) fn validate(&self) -> Result<(), OptionsError> {
        let wrong = |text: &str| Err(OptionsError(text.to_string()));
        if self.unix_mask > 0o777 {
            return wrong("the socket's permissions must be octal, at most 777 (-a)");
        }
        if self.udp_reply_max > MESSAGE_LEN_MAX {
            return wrong("a reply over UDP may be at most 87m (--udp-reply-max)");
        }
        if self.udp_port.is_some() && self.tls.is_some() && !self.lenient_tls {
            return wrong("UDP has no TLS; give either -U or a certificate");
        }
        if self.unix_socket.is_some() && !self.addresses.is_empty() {
            return wrong("a Unix socket replaces TCP; give either -s or -l");
        }
        match &self.tls {
            None if self.asks(ListenTlsMode::Basic) || self.asks(ListenTlsMode::Mutual) => {
                wrong("btls: and mtls: need a certificate (--tls-cert)")
            }
            Some(tls) if tls.verify_mode > 3 => wrong("the mode for client certificates must be 0 to 3"),
            Some(tls)
                if tls.ca.is_none()
                    && (tls.verify_mode > 0 || self.asks(ListenTlsMode::Mutual) && !self.lenient_tls) =>
            {
                wrong("client certificates cannot be checked without an authority; set --tls-ca")
            }
            _ => Ok(()),
        }
    }

    /// Returns true if one of the addresses serves only clients with a certificate.
    pub(crate) fn requires_client_certificates(&self) -> bool {
        let is_default = self.tls.as_ref().is_some_and(|tls| tls.ask() == ClientCertificates::Always);
        is_default || self.asks(ListenTlsMode::Mutual)
    }

    /// Returns true if one of the addresses has this TLS prefix.
    fn asks(&self, tls: ListenTlsMode) -> bool {
        let mut names = self.addresses.iter().flat_map(|list| list.split(','));
        names.any(|name| ListenMode::of(name.trim()).0.tls == tls)
    }
}
