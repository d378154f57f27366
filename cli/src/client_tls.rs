//! The TLS options of client commands.

use crate::CommandFailure;
use std::path::PathBuf;
use todana_client::{Address, Tls, TlsFiles};

/// The files that a client command needs for TLS.
#[derive(Clone, Debug, Default, PartialEq, clap::Args)]
pub(crate) struct ClientTls {
    /// PEM file of authorities, or the server's own [default: the system's]
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,
    /// PEM file of the client certificate, for a server that requires one
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// PEM file of the private key, if that of --tls-cert does not contain it
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
}

impl ClientTls {
    /// Returns the TLS settings for connections to these addresses, or `None` if none uses TLS.
    pub(crate) fn load(&self, addresses: &[&Address]) -> Result<Option<Tls>, CommandFailure> {
        let is_needed = addresses.iter().any(|address| matches!(address, Address::Tls(..)));
        if !is_needed {
            let given = [("--tls-ca", &self.tls_ca), ("--tls-cert", &self.tls_cert)];
            return match given.iter().find(|(_, file)| file.is_some()) {
                // A user who gives TLS options expects TLS, so the connection must not be made
                // without it.
                Some((name, _)) => {
                    Err(CommandFailure::usage(format!("{name}: needs a TLS server; use todanas://HOST:PORT")))
                }
                None => Ok(None),
            };
        }
        let files =
            TlsFiles { ca: self.tls_ca.clone(), cert: self.tls_cert.clone(), key: self.tls_key.clone() };
        Tls::load(&files).map(Some).map_err(|error| CommandFailure::usage(error.to_string()))
    }
}
