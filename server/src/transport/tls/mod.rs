//! TLS: certificates that can be replaced, and encrypted connections.
//!
//! ```text
//! Tls           the certificates of a server; a refresh replaces them for later connections
//!   certificates  files -> rustls configurations, one for each policy for client certificates
//!   ciphers       OpenSSL's names for cipher suites -> rustls's
//! TlsStream     one connection: ciphertext on the socket's side, plain bytes on the worker's
//! ```
//!
//! Invariants: a ticket resumes only under the same policy for client certificates, and not after a
//! refresh; an idle connection holds no buffer, as without TLS.
//! Not supported by rustls: versions before TLS 1.2, suites without forward secrecy or with CBC,
//! renegotiation, encrypted keys, engines.

mod certificates;
mod ciphers;
mod refuse_all;
mod stream;

pub(crate) use stream::TlsStream;

use certificates::TlsConfigs;
use rustls::ServerConfig;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// The TLS options of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// The file with the server's certificate chain, in PEM.
    pub chain: PathBuf,
    /// The file with the private key of the certificate, in PEM or DER. `None` if the key is in
    /// `chain`.
    pub key: Option<PathBuf>,
    /// The file with the authorities that check client certificates, in PEM.
    pub ca: Option<PathBuf>,
    /// The policy for client certificates in memcached's numbers: 0 none, 1 optional, 2 and 3
    /// required.
    pub verify_mode: u8,
    /// True requires TLS 1.3. False accepts TLS 1.2, too.
    pub only_1_3: bool,
    /// The cipher suites in OpenSSL's notation; `None` selects all suites of rustls.
    pub ciphers: Option<String>,
    /// True if clients may resume sessions by a ticket.
    pub resumption: bool,
    /// True if `stats` reports that sessions are cached, and counts new ones.
    pub session_cache: bool,
    /// The value that `stats settings` shows as `ssl_wbuf_size`. It has no other effect, because
    /// buffers exist only while they hold bytes.
    pub write_buffer_bytes: Option<u64>,
}

/// The policy of a listener for client certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientCertificates {
    Never,
    /// A client need not show a certificate. If it shows one, the certificate must be valid.
    IfOffered,
    Always,
}

impl TlsOptions {
    pub(crate) fn ask(&self) -> ClientCertificates {
        match self.verify_mode {
            0 => ClientCertificates::Never,
            1 => ClientCertificates::IfOffered,
            _ => ClientCertificates::Always,
        }
    }
}

/// The reason why certificates cannot be used, in the texts of memcached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsError(String);

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TlsError {}

/// The certificates in use, and counters of their sessions.
pub struct Tls {
    options: TlsOptions,
    configs: RwLock<TlsConfigs>,
    counters: TlsCounters,
}

/// Counters of handshakes and failures.
#[derive(Debug, Default)]
struct TlsCounters {
    /// Complete handshakes, without resumed sessions.
    new_sessions: AtomicU64,
    handshake_errors: AtomicU64,
    /// Errors after the handshake.
    protocol_errors: AtomicU64,
}

impl Tls {
    /// Reads the certificates. Fails if a file cannot be read, or if the files do not belong
    /// together. The message names the file.
    pub fn load(options: &TlsOptions) -> Result<Tls, TlsError> {
        let configs = RwLock::new(TlsConfigs::load(options)?);
        Ok(Tls { options: options.clone(), configs, counters: TlsCounters::default() })
    }

    /// Reads the files again. Later connections use the new certificates. If reading fails, the old
    /// certificates stay in use.
    pub fn refresh(&self) -> Result<(), TlsError> {
        let configs = TlsConfigs::load(&self.options)?;
        *self.configs.write().unwrap_or_else(PoisonError::into_inner) = configs;
        Ok(())
    }

    /// Returns the number of new sessions, if sessions are cached.
    pub(crate) fn new_sessions(&self) -> Option<u64> {
        self.options.session_cache.then(|| self.counters.new_sessions.load(Ordering::Relaxed))
    }

    pub(crate) fn handshake_errors(&self) -> u64 {
        self.counters.handshake_errors.load(Ordering::Relaxed)
    }

    pub(crate) fn protocol_errors(&self) -> u64 {
        self.counters.protocol_errors.load(Ordering::Relaxed)
    }

    pub(crate) fn options(&self) -> &TlsOptions {
        &self.options
    }

    /// Returns the seconds since the certificates were read.
    pub(crate) fn age_s(&self) -> u64 {
        self.configs.read().unwrap_or_else(PoisonError::into_inner).loaded.elapsed().as_secs()
    }

    fn config(&self, ask: ClientCertificates) -> Option<Arc<ServerConfig>> {
        self.configs.read().unwrap_or_else(PoisonError::into_inner).of(ask)
    }

    /// Counts a new session.
    fn established(&self, resumed: bool) {
        self.counters.new_sessions.fetch_add(u64::from(!resumed), Ordering::Relaxed);
    }

    /// Counts a failure.
    fn failed(&self, was_established: bool) {
        let counters = &self.counters;
        let counter = if was_established { &counters.protocol_errors } else { &counters.handshake_errors };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}
