//! Implements the client side of TLS.

use crate::tls_error::{plain, plain_file, words};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore, SignatureScheme, StreamOwned,
};
use std::fmt;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The files in which systems keep their trusted certificate authorities. The environment variable
/// `SSL_CERT_FILE` takes precedence.
const SYSTEM_AUTHORITIES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The files of a TLS client, all in PEM format.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The authorities that may sign the server's certificate, or the server's certificate itself.
    /// `None` means the authorities that the system trusts.
    pub ca: Option<PathBuf>,
    /// The client's certificate and the intermediate certificates up to its authority, for servers
    /// that require one.
    pub cert: Option<PathBuf>,
    /// The private key of the certificate. `None` means that the file of the certificate contains
    /// the key.
    pub key: Option<PathBuf>,
}

/// A TLS configuration with loaded files. A clone costs little, and clones can resume each other's
/// TLS sessions.
#[derive(Clone)]
pub struct Tls(Arc<ClientConfig>);

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

fn wrong(what: &str, path: &Path, reason: &dyn fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("{what} {}: {reason}", path.display()))
}

fn certificates(what: &str, path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let all = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let all = all.map_err(|error| wrong(what, path, &plain_file(&error, "certificate")))?;
    if all.is_empty() { Err(wrong(what, path, &"there is no certificate in it")) } else { Ok(all) }
}

impl Tls {
    /// Reads the files. If a file cannot be read or has other contents, the error names the file.
    pub fn load(files: &TlsFiles) -> io::Result<Tls> {
        let provider = Arc::new(ring::default_provider());
        let path = match &files.ca {
            Some(path) => path.clone(),
            None => system_authorities()?,
        };
        let authorities = certificates("authorities", &path)?;
        let mut store = RootCertStore::empty();
        let (added, _) = store.add_parsable_certificates(authorities.iter().cloned());
        if added == 0 {
            return Err(wrong("authorities", &path, &"none of its certificates can be read"));
        }
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(store), Arc::clone(&provider));
        let verifier = verifier.build().map_err(|error| wrong("authorities", &path, &error))?;
        // A server's own certificate is never among the system's authorities.
        let own = if files.ca.is_some() { authorities } else { Vec::new() };
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(CertificateVerifier { own, verifier }));
        let config = match &files.cert {
            None => builder.with_no_client_auth(),
            Some(cert) => {
                let key_path = files.key.as_ref().unwrap_or(cert);
                let key = PrivateKeyDer::from_pem_file(key_path)
                    .map_err(|error| wrong("private key", key_path, &plain_file(&error, "private key")))?;
                builder
                    .with_client_auth_cert(certificates("certificate", cert)?, key)
                    .map_err(|error| wrong("private key", key_path, &words(&error)))?
            }
        };
        Ok(Tls(Arc::new(config)))
    }

    /// Prepares TLS over a non-blocking socket, which may still be connecting.
    /// [`TlsStream::shake_hands`] performs the handshake.
    pub fn prepare<S: Read + Write>(&self, host: &str, socket: S) -> io::Result<TlsStream<S>> {
        let name = ServerName::try_from(host.to_string())
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let session = ClientConnection::new(Arc::clone(&self.0), name).map_err(io::Error::other)?;
        Ok(TlsStream(StreamOwned::new(session, socket)))
    }

    /// Performs the TLS handshake over a blocking socket. The server's certificate must be valid
    /// for `host`.
    pub fn connect<S: Read + Write>(&self, host: &str, socket: S) -> io::Result<TlsStream<S>> {
        let mut stream = self.prepare(host, socket)?;
        let StreamOwned { conn, sock } = &mut stream.0;
        while conn.is_handshaking() {
            conn.complete_io(sock).map_err(plain)?;
        }
        Ok(stream)
    }
}

fn system_authorities() -> io::Result<PathBuf> {
    let named = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let usual = || SYSTEM_AUTHORITIES.iter().map(PathBuf::from).find(|path| path.exists());
    let missing = "this system has no list of authorities; name the server's";
    named.or_else(usual).ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, missing))
}

/// Accepts a certificate that an authority has signed, and a certificate that was itself given as
/// `ca`. The second rule is needed for self-signed certificates: they are marked as authorities,
/// and a server's certificate must not be an authority.
#[derive(Debug)]
struct CertificateVerifier {
    own: Vec<CertificateDer<'static>>,
    verifier: Arc<WebPkiServerVerifier>,
}

impl ServerCertVerifier for CertificateVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if self.own.iter().any(|own| own == certificate) {
            return Ok(ServerCertVerified::assertion());
        }
        self.verifier.verify_server_cert(certificate, intermediates, name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}

/// A TLS connection. Over a non-blocking socket, a read returns `WouldBlock` only after all data
/// has been read, so a short read does not mean that no data is left. Written data may wait for
/// [`Write::flush`].
pub struct TlsStream<S: Read + Write>(StreamOwned<ClientConnection, S>);

impl<S: Read + Write> TlsStream<S> {
    /// Continues the handshake as far as possible without blocking. Returns true if it is complete.
    pub fn shake_hands(&mut self) -> io::Result<bool> {
        let StreamOwned { conn, sock } = &mut self.0;
        while conn.is_handshaking() {
            match conn.complete_io(sock) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(plain(error)),
            }
        }
        Ok(true)
    }

    /// Returns the socket.
    pub fn socket_ref(&self) -> &S {
        &self.0.sock
    }

    /// Returns the socket.
    pub fn socket(&mut self) -> &mut S {
        &mut self.0.sock
    }

    /// Returns the certificate of the server in DER, after the handshake.
    pub fn certificate(&self) -> Option<&[u8]> {
        self.0.conn.peer_certificates()?.first().map(AsRef::as_ref)
    }

    /// Replaces the socket by the result of `form`, and keeps the TLS session.
    pub fn map<T: Read + Write>(self, form: impl FnOnce(S) -> T) -> TlsStream<T> {
        TlsStream(StreamOwned::new(self.0.conn, form(self.0.sock)))
    }

    /// Returns true if bytes wait for [`Write::flush`].
    pub fn has_unsent(&self) -> bool {
        self.0.conn.wants_write()
    }
}

impl<S: Read + Write> Read for TlsStream<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer).map_err(plain)
    }
}

impl<S: Read + Write> Write for TlsStream<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(plain)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(plain)
    }
}
