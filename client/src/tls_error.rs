//! Rewrites TLS errors for people who do not know the TLS library.

use rustls::pki_types::pem;
use rustls::{AlertDescription, CertificateError, Error, OtherError};
use std::io;

/// Replaces the text of a TLS error and keeps its kind. Other errors stay unchanged.
pub(crate) fn plain(error: io::Error) -> io::Error {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    match inner.map(words) {
        Some(words) => io::Error::new(error.kind(), words),
        None => error,
    }
}

/// Returns the reason why a file of certificates or keys cannot be used. `holds` names the expected
/// contents.
pub(crate) fn plain_file(error: &pem::Error, holds: &str) -> String {
    match error {
        pem::Error::Io(error) => error.to_string(),
        pem::Error::NoItemsFound => format!("there is no {holds} in it"),
        error => error.to_string(),
    }
}

pub(crate) fn words(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(error) => certificate(error),
        Error::AlertReceived(alert) => alert_reason(*alert),
        Error::InvalidMessage(_) => NO_TLS.into(),
        Error::PeerIncompatible(_) => NOTHING_IN_COMMON.into(),
        Error::InconsistentKeys(_) => "it is not the key of the certificate".into(),
        error => error.to_string(),
    }
}

const NOTHING_IN_COMMON: &str = "the server and this client know no version of TLS, or no cipher, in common";

/// The message for a server whose bytes are not TLS.
pub(crate) const NO_TLS: &str = "the server does not speak TLS there";

/// Returns the reason why the server's certificate was refused.
fn certificate(error: &CertificateError) -> String {
    match error {
        CertificateError::NotValidForName => "the server's certificate is for another name".into(),
        CertificateError::NotValidForNameContext { expected, presented } => {
            let names: Vec<String> = presented.iter().map(|name| bare(name)).collect();
            let other = if names.is_empty() { "no name".into() } else { names.join(", ") };
            format!("the server's certificate is not for {}, but for {other}", expected.to_str())
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "the server's certificate has expired, by this machine's clock".into()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "the server's certificate is not valid yet, by this machine's clock".into()
        }
        // A signature is also bad if the authority has the right name but another key.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => UNTRUSTED.into(),
        CertificateError::Other(error) if is_own_authority(error) => UNTRUSTED.into(),
        CertificateError::Revoked => "the server's certificate is revoked".into(),
        error => format!("the server's certificate is no good: {error}"),
    }
}

/// The message for a certificate without a trusted authority.
pub(crate) const UNTRUSTED: &str = "the server's certificate is from no authority that is trusted here";

/// Returns true if a certificate is self-signed. Such a certificate is trusted only if it was given
/// as `ca`.
fn is_own_authority(error: &OtherError) -> bool {
    error.to_string() == "CaUsedAsEndEntity"
}

/// Removes the kind from a name: `DnsName("cache")` becomes `cache`.
fn bare(name: &str) -> String {
    let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')')).unwrap_or(name);
    inner.trim_matches('"').to_string()
}

/// Returns the reason that the server stated for ending the connection.
fn alert_reason(alert: AlertDescription) -> String {
    match alert {
        AlertDescription::CertificateRequired => {
            "the server wants a certificate of its clients: --tls-cert FILE, and --tls-key FILE".into()
        }
        AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateRevoked
        | AlertDescription::CertificateExpired
        | AlertDescription::CertificateUnknown
        | AlertDescription::UnknownCA
        | AlertDescription::AccessDenied
        | AlertDescription::DecryptError => "the server does not accept this client's certificate".into(),
        AlertDescription::ProtocolVersion
        | AlertDescription::HandshakeFailure
        | AlertDescription::InsufficientSecurity => NOTHING_IN_COMMON.into(),
        AlertDescription::UnrecognisedName => "the server has no certificate for that name".into(),
        alert => format!("the server ends TLS: {alert:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::pki_types::ServerName;

    #[test]
    fn certificate_names_are_reported_without_their_kinds() {
        for (name, alert_reason) in
            [("DnsName(\"cache\")", "cache"), ("IpAddress(10.0.0.7)", "10.0.0.7"), ("plain", "plain")]
        {
            assert_eq!(bare(name), alert_reason);
        }
        let expected = ServerName::try_from("here").unwrap();
        let error = CertificateError::NotValidForNameContext { expected, presented: Vec::new() };
        assert_eq!(certificate(&error), "the server's certificate is not for here, but for no name");
    }

    #[test]
    fn other_errors_than_tls_stay_unchanged() {
        let error = plain(io::Error::new(io::ErrorKind::TimedOut, "late"));
        assert_eq!((error.kind(), error.to_string()), (io::ErrorKind::TimedOut, "late".to_string()));
        let error = plain(io::Error::new(
            io::ErrorKind::InvalidData,
            Error::AlertReceived(AlertDescription::UnknownCA),
        ));
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert_eq!(error.to_string(), "the server does not accept this client's certificate");
    }
}
