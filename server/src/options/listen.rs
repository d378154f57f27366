//! Options of the listeners: addresses, ports, sockets, TLS.

use super::OptionsError;
use crate::transport::addresses::{ListenDialect, PlaceTls};
use crate::transport::tls::TlsOptions;
use crate::transport::udp::message::MESSAGE_LEN_MAX;
use std::path::PathBuf;

/// The addresses on which the server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenOptions {
    /// Addresses to listen on: `host`, `host:port`, `[v6]:port`, `*` for all. Empty stands for
    /// 127.0.0.1. Each may begin with `notls:`, `btls:` (without client certificates) or `mtls:`
    /// (with them), and with `proto[ascii]:`, `proto[binary]:` or `proto[auto]:`, which replaces
    /// [`protocol`](super::ProtocolOptions::protocol) at this address.
    pub addresses: Vec<String>,
    /// The TCP port for addresses that name none; 0 lets the system choose.
    pub port: u16,
    /// False disables TCP.
    pub tcp: bool,
    /// The UDP port for addresses that name none; 0 lets the system choose, `None` disables UDP.
    pub udp_port: Option<u16>,
    /// The most bytes of all replies to one UDP request; a longer reply becomes an error. The
    /// sender of a datagram can be forged, and replies then go to a victim.
    pub udp_reply_max: usize,
    /// The path of a Unix socket to listen on instead of TCP.
    pub unix_socket: Option<PathBuf>,
    /// The permissions of the Unix socket.
    pub unix_mask: u32,
    /// The number of connections that may wait to be accepted.
    pub backlog: u32,
    /// TLS for all TCP addresses that do not say otherwise.
    pub tls: Option<TlsOptions>,
    /// Accepts two combinations that memcached accepts and that are refused otherwise: UDP in clear
    /// text beside TLS, and listeners that require client certificates without an authority to
    /// verify them, where each handshake fails.
    pub lenient_tls: bool,
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
            return wrong("there is no TLS over UDP: give either -U or a certificate");
        }
        if self.unix_socket.is_some() && !self.addresses.is_empty() {
            return wrong("a Unix socket takes the place of TCP: give either -s or -l");
        }
        match &self.tls {
            None if self.asks(PlaceTls::Basic) || self.asks(PlaceTls::Mutual) => {
                wrong("btls: and mtls: need a certificate (--tls-cert)")
            }
            Some(tls) if tls.verify_mode > 3 => wrong("the mode for client certificates must be 0 to 3"),
            Some(tls)
                if tls.ca.is_none()
                    && (tls.verify_mode > 0 || self.asks(PlaceTls::Mutual) && !self.lenient_tls) =>
            {
                wrong(
                    "client certificates are asked for, but there is no authority to check them by (--tls-ca)",
                )
            }
            _ => Ok(()),
        }
    }

    /// Returns true if one of the addresses asks for TLS in this form.
    fn asks(&self, tls: PlaceTls) -> bool {
        let mut names = self.addresses.iter().flat_map(|list| list.split(','));
        names.any(|name| ListenDialect::of(name.trim()).0.tls == tls)
    }
}
