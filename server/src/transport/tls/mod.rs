//! TLS: certificates read and read again, and what becomes of a connection that speaks it.
//!
//! ```text
//! Tls           one server's certificates; a refresh replaces them for the connections that come after it
//!   certificates  files -> rustls configurations, one for each manner of asking for client certificates
//!   ciphers       OpenSSL's names for cipher suites -> rustls's
//! TlsStream     one connection: ciphertext on the socket's side, plain bytes on the worker's
//! ```
//!
//! Always true: a session's tickets resume only where client certificates are asked for in the same manner, and not beyond
//! a refresh; an idle connection holds no buffer, as without TLS.
//! What rustls cannot: versions before TLS 1.2, suites without forward secrecy or with CBC, renegotiation, keys behind a
//! password, engines.

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

/// What a server that speaks TLS is told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// The server's certificate and those between it and its authority: PEM.
    pub chain: PathBuf,
    /// The certificate's private key: PEM or DER. `None`: it is in `chain`.
    pub key: Option<PathBuf>,
    /// The authorities whose client certificates count: PEM.
    pub ca: Option<PathBuf>,
    /// Whether clients show certificates, as memcached numbers it: 0 no, 1 if they have one, 2 and 3 always.
    pub verify_mode: u8,
    /// Nothing before TLS 1.3, where it is else TLS 1.2.
    pub only_1_3: bool,
    /// Cipher suites in OpenSSL's notation; `None`: all that rustls has.
    pub ciphers: Option<String>,
    /// Clients that come again may shorten the handshake by a ticket.
    pub resumption: bool,
    /// `stats` says that sessions are cached and counts the new ones.
    pub session_cache: bool,
    /// Shown as `ssl_wbuf_size` by `stats settings`, and no more: buffers exist only while something is in them.
    pub write_buffer_bytes: Option<u64>,
}

/// How a listener asks its clients for certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientCertificates {
    Never,
    /// One that is shown must be right.
    IfTheyHaveOne,
    Always,
}

impl TlsOptions {
    pub(crate) fn ask(&self) -> ClientCertificates {
        match self.verify_mode {
            0 => ClientCertificates::Never,
            1 => ClientCertificates::IfTheyHaveOne,
            _ => ClientCertificates::Always,
        }
    }
}

/// Why certificates could not be used. The words are those that memcached's users know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsError(String);

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TlsError {}

/// Certificates that have been read, and what has become of the sessions under them.
pub struct Tls {
    options: TlsOptions,
    configs: RwLock<TlsConfigs>,
    counters: TlsCounters,
}

/// What happened in handshakes and after.
#[derive(Debug, Default)]
struct TlsCounters {
    /// Whole handshakes: those that resumed a session are not counted.
    new_sessions: AtomicU64,
    handshake_errors: AtomicU64,
    /// After the handshake.
    protocol_errors: AtomicU64,
}

impl Tls {
    /// Reads the certificates. Fails when a file cannot be read or does not fit the others; the message names it.
    pub fn load(options: &TlsOptions) -> Result<Tls, TlsError> {
        let configs = RwLock::new(TlsConfigs::load(options)?);
        Ok(Tls { options: options.clone(), configs, counters: TlsCounters::default() })
    }

    /// Reads the files again, for the connections that come after. After a failure everything is as before.
    pub fn refresh(&self) -> Result<(), TlsError> {
        let configs = TlsConfigs::load(&self.options)?;
        *self.configs.write().unwrap_or_else(PoisonError::into_inner) = configs;
        Ok(())
    }

    /// Returns the number of sessions that were begun anew, if sessions are kept.
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

    /// Seconds since the certificates in use were read.
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
