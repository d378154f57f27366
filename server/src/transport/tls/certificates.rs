//! Reads certificates and keys from files, and creates the rustls configurations that use them.

use super::{ClientCertificates, TlsError, TlsOptions, ciphers, refuse_all};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::{TLS12, TLS13};
use rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion};
use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// The rustls configurations, one for each policy for client certificates. They share no ticket
/// keys, because a ticket from a listener without client certificates must not resume a session on
/// a listener that requires them.
pub(super) struct TlsConfigs {
    pub(super) loaded: Instant,
    never: Arc<ServerConfig>,
    /// The configuration for optional client certificates; `None` if no authority is configured to
    /// check them.
    if_offered: Option<Arc<ServerConfig>>,
    /// The configuration for required client certificates. If no authority is configured, it
    /// refuses every client.
    always: Arc<ServerConfig>,
}

impl TlsConfigs {
    pub(super) fn load(options: &TlsOptions) -> Result<TlsConfigs, TlsError> {
        let files = CertificateFiles::read(options)?;
        let (if_offered, always) = match options.ca.as_deref().zip(files.authorities.as_ref()) {
            None => (None, files.config(options, Arc::new(refuse_all::RefuseAllVerifier))?),
            Some((path, authorities)) => {
                let verifier = || {
                    WebPkiClientVerifier::builder_with_provider(
                        Arc::clone(authorities),
                        Arc::clone(&files.provider),
                    )
                };
                let optional = verifier().allow_unauthenticated().build();
                let required = verifier().build();
                let wrong = |error| authority_error(path, &error);
                let optional = files.config(options, optional.map_err(wrong)?)?;
                (Some(optional), files.config(options, required.map_err(wrong)?)?)
            }
        };
        let never = files.config(options, WebPkiClientVerifier::no_client_auth())?;
        Ok(TlsConfigs { loaded: Instant::now(), never, if_offered, always })
    }

    /// Returns the configuration for a policy. Returns `None` if the policy needs an authority and
    /// none is configured.
    pub(super) fn of(&self, ask: ClientCertificates) -> Option<Arc<ServerConfig>> {
        match ask {
            ClientCertificates::Never => Some(Arc::clone(&self.never)),
            ClientCertificates::IfOffered => self.if_offered.clone(),
            ClientCertificates::Always => Some(Arc::clone(&self.always)),
        }
    }
}

/// The content of the files.
struct CertificateFiles {
    provider: Arc<CryptoProvider>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    authorities: Option<Arc<RootCertStore>>,
}

impl CertificateFiles {
    fn read(options: &TlsOptions) -> Result<CertificateFiles, TlsError> {
        let mut provider = ring::default_provider();
        if let Some(list) = &options.ciphers {
            provider.cipher_suites = ciphers::chosen(list, &provider.cipher_suites)
                .ok_or_else(|| TlsError(format!("Error setting the provided cipher(s): {list}")))?;
        }
        let chain = certificates(&options.chain)
            .map_err(|reason| error("certificate chain", &options.chain, &reason))?;
        let key_path = options.key.as_deref().unwrap_or(&options.chain);
        let key = key(key_path).map_err(|reason| error("key", key_path, &reason))?;
        let authorities = match &options.ca {
            None => None,
            Some(path) => Some(authorities(path).map_err(|reason| authority_error(path, &reason))?),
        };
        Ok(CertificateFiles { provider: Arc::new(provider), chain, key, authorities })
    }

    fn config(
        &self,
        options: &TlsOptions,
        verifier: Arc<dyn ClientCertVerifier>,
    ) -> Result<Arc<ServerConfig>, TlsError> {
        const BOTH: [&SupportedProtocolVersion; 2] = [&TLS13, &TLS12];
        let versions = if options.only_1_3 { &BOTH[..1] } else { &BOTH[..] };
        let key_path = options.key.as_deref().unwrap_or(&options.chain);
        let builder = ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(versions)
            .map_err(|error| TlsError(format!("Error setting the provided cipher(s): {error}")))?;
        let mut config = builder
            .with_client_cert_verifier(verifier)
            .with_single_cert(self.chain.clone(), self.key.clone_key())
            .map_err(|reason| match reason {
                rustls::Error::InconsistentKeys(_) => {
                    error("key", key_path, &"it is not the key of the certificate")
                }
                reason => error("key", key_path, &reason),
            })?;
        // The client's ticket contains all data that a resumption needs, so the server needs no
        // table of sessions, which could grow.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        if options.resumption {
            config.ticketer = ring::Ticketer::new()
                .map_err(|error| TlsError(format!("Error making a key for tickets: {error}")))?;
        } else {
            config.send_tls13_tickets = 0;
        }
        Ok(Arc::new(config))
    }
}

fn error(what: &str, path: &Path, reason: &dyn Display) -> TlsError {
    TlsError(format!("Error loading the {what}: {} : {reason}", path.display()))
}

fn authority_error(path: &Path, reason: &dyn Display) -> TlsError {
    error("CA certificate", path, reason)
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let words = |error: std::io::Error| {
        let text = error.to_string();
        // The number of the error only repeats the message.
        text.split(" (os error").next().unwrap_or_default().to_string()
    };
    std::fs::read(path).map_err(words)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let found = CertificateDer::pem_slice_iter(&read(path)?).collect::<Result<Vec<_>, _>>();
    let found = found.map_err(|error| format!("not PEM: {error}"))?;
    if found.is_empty() { Err("there is no certificate in it".into()) } else { Ok(found) }
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    let bytes = read(path)?;
    let holds = |text: &[u8]| bytes.windows(text.len()).any(|window| window == text);
    if !holds(b"-----BEGIN") {
        return PrivateKeyDer::try_from(bytes).map_err(|_| "neither a PEM nor a DER key".into());
    }
    match PrivateKeyDer::from_pem_slice(&bytes) {
        Ok(key) => Ok(key),
        Err(_) if holds(b"ENCRYPTED") => Err("the key is encrypted; use a key without a password".into()),
        Err(rustls::pki_types::pem::Error::NoItemsFound) => Err("there is no private key in it".into()),
        Err(error) => Err(format!("not PEM: {error}")),
    }
}

fn authorities(path: &Path) -> Result<Arc<RootCertStore>, String> {
    let mut store = RootCertStore::empty();
    for certificate in certificates(path)? {
        store.add(certificate).map_err(|error| error.to_string())?;
    }
    Ok(Arc::new(store))
}
