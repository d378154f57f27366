//! Options of the commands that are clients of a server that speaks TLS.

use crate::CommandFailure;
use std::path::PathBuf;
use todana_client::{Address, Tls, TlsFiles};

const HEADING: &str = "TLS, for todanas://";

/// Which files the client's side of TLS needs.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct ClientTls {
    /// Authorities to check the server by, or its own certificate, PEM [default: those that the system trusts]
    #[arg(long, value_name = "FILE", help_heading = HEADING)]
    tls_ca: Option<PathBuf>,
    /// Certificate to show to a server that asks for one, PEM
    #[arg(long, value_name = "FILE", help_heading = HEADING)]
    tls_cert: Option<PathBuf>,
    /// Its private key, PEM, if it is not in the same file
    #[arg(long, value_name = "FILE", help_heading = HEADING, requires = "tls_cert")]
    tls_key: Option<PathBuf>,
}

impl ClientTls {
    /// What a connection to one of the addresses needs; `None` if none of them speaks TLS.
    pub(crate) fn load(&self, addresses: &[&Address]) -> Result<Option<Tls>, CommandFailure> {
        let is_needed = addresses.iter().any(|address| matches!(address, Address::Tls(..)));
        if !is_needed {
            let given = [("--tls-ca", &self.tls_ca), ("--tls-cert", &self.tls_cert)];
            return match given.iter().find(|(_, file)| file.is_some()) {
                // In the clear, where it was not meant to be, is the one thing that must not happen.
                Some((name, _)) => {
                    Err(CommandFailure::usage(format!("{name} wants a server todanas://HOST:PORT")))
                }
                None => Ok(None),
            };
        }
        let files =
            TlsFiles { ca: self.tls_ca.clone(), cert: self.tls_cert.clone(), key: self.tls_key.clone() };
        Tls::load(&files).map(Some).map_err(|error| CommandFailure::usage(error.to_string()))
    }
}
