//! Reads the files that connections to the servers of a pool need: certificates and the password.

use crate::options::{OptionsError, PoolOptions, PoolProtocol};
use std::net::SocketAddr;
use std::sync::Arc;
use std::{fs, io};
use todana_client::pool::{LossReason, ServerLogin, ServerSocket};
use todana_client::ring::ServerEntry;
use todana_client::{Address, Tls, TlsFiles};
use todana_protocol::memcached::client::ServerDialect;

/// The files that the connections to all servers of a pool need.
pub(super) struct PoolAccess {
    tls: Option<Tls>,
    login: Option<Arc<ServerLogin>>,
}

/// The way to connect to a server.
pub(crate) struct ServerAccess {
    /// The TLS configuration, and the name in the certificate of the server.
    tls: Option<(Tls, String)>,
    pub(super) login: Option<Arc<ServerLogin>>,
}

impl PoolAccess {
    /// Reads the files of a pool.
    pub(super) fn load(options: &PoolOptions) -> Result<PoolAccess, OptionsError> {
        let is_asked = options.servers.iter().any(|server| matches!(server.address, Address::Tls(..)));
        let files = options.tls.as_ref().map(|tls| TlsFiles {
            ca: tls.ca.clone(),
            cert: tls.cert.clone(),
            key: tls.key.clone(),
        });
        let files = files.or(is_asked.then(TlsFiles::default));
        let wrong = |error: io::Error| OptionsError::new(format!("TLS to the servers: {error}"));
        let tls = files.map(|files| Tls::load(&files)).transpose().map_err(wrong)?;
        let Some(login) = &options.login else { return Ok(PoolAccess { tls, login: None }) };
        let path = login.password_file.display();
        let text = match &login.password {
            Some(password) => password.clone(),
            None => fs::read_to_string(&login.password_file)
                .map_err(|error| OptionsError::new(format!("password file {path}: {error}")))?,
        };
        let dialect = match options.speak {
            PoolProtocol::Binary => ServerDialect::Binary,
            PoolProtocol::Auto | PoolProtocol::Text | PoolProtocol::Meta => ServerDialect::Text,
        };
        let login = ServerLogin::new(dialect, &login.user, text.lines().next().unwrap_or_default());
        let login = login.map_err(|_| {
            OptionsError::new(format!("login: the servers cannot read this user or the password of {path}"))
        })?;
        Ok(PoolAccess { tls, login: Some(Arc::new(login)) })
    }

    /// Returns the access to one of the servers.
    pub(super) fn of_server(&self, options: &PoolOptions, entry: &ServerEntry) -> ServerAccess {
        let tls = match (&entry.address, &self.tls) {
            (Address::Tcp(host, _) | Address::Tls(host, _), Some(tls)) => {
                let name = options.tls.as_ref().and_then(|tls| tls.server_name.clone());
                Some((tls.clone(), name.unwrap_or_else(|| host.clone())))
            }
            _ => None,
        };
        // With `tls:` addresses alone, other servers of the pool have none.
        let is_tls = options.tls.is_some() || matches!(entry.address, Address::Tls(..));
        ServerAccess { tls: tls.filter(|_| is_tls), login: self.login.clone() }
    }
}

impl ServerAccess {
    /// Begins to connect to an address.
    pub(super) fn connect(&self, address: SocketAddr) -> Result<ServerSocket, LossReason> {
        let socket = match &self.tls {
            None => ServerSocket::connect_tcp(address),
            Some((tls, host)) => ServerSocket::connect_tls(address, tls, host),
        };
        socket.map_err(|error| match error.kind() {
            // The host is no name that a certificate can have.
            io::ErrorKind::InvalidInput => LossReason::TlsFailed,
            _ => LossReason::of(&error),
        })
    }
}
