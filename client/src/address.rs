//! Parses the address of a server.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

const DEFAULT_PORT: u16 = 11211;

/// The address of a server: `host`, `host:port`, `[v6]:port`, `todana://host:port`,
/// `memcached://...`, `todanas://...` (TLS), `unix:path` or `/path`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A host and a port.
    Tcp(String, u16),
    /// A host and a port at which the server expects TLS.
    Tls(String, u16),
    /// A Unix socket.
    Unix(PathBuf),
}

/// The error for a text that is not an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidAddress {
    text: String,
    /// The invalid text in the place of the port, if the text before it is valid.
    port: Option<String>,
}

impl InvalidAddress {
    pub(crate) fn new(text: &str) -> InvalidAddress {
        InvalidAddress { text: text.to_string(), port: None }
    }

    fn of_port(text: &str, port: &str) -> InvalidAddress {
        InvalidAddress { port: Some(port.to_string()), ..InvalidAddress::new(text) }
    }
}

impl fmt::Display for InvalidAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = &self.text;
        match &self.port {
            Some(port) => write!(f, "{text:?}: port {port} must be a number from 0 to 65535"),
            None => write!(
                f,
                "{text:?}: not an address; examples: localhost, 10.0.0.7:11211, [::1]:11211, unix:/run/todana.sock"
            ),
        }
    }
}

impl std::error::Error for InvalidAddress {}

impl FromStr for Address {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Address, InvalidAddress> {
        let invalid = || InvalidAddress::new(text);
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() { Err(invalid()) } else { Ok(Address::Unix(path.into())) };
        }
        if text.starts_with('/') {
            return Ok(Address::Unix(text.into()));
        }
        let schemes = [("todana://", false), ("memcached://", false), ("todanas://", true)];
        let schemed = schemes.iter().find_map(|(scheme, tls)| Some((text.strip_prefix(scheme)?, *tls)));
        if schemed.is_none() && text.contains("://") {
            return Err(invalid());
        }
        let (rest, is_tls) = schemed.unwrap_or((text, false));
        let rest = rest.trim_end_matches('/');
        let (host, port) = if let Some(bracketed) = rest.strip_prefix('[') {
            let (host, after) = bracketed.split_once(']').ok_or_else(invalid)?;
            (host, after.strip_prefix(':').or(after.is_empty().then_some("")).ok_or_else(invalid)?)
        } else {
            match rest.rsplit_once(':') {
                // A text with several colons and no brackets is an IPv6 address without a port.
                Some((host, port)) if !host.contains(':') => (host, port),
                _ => (rest, ""),
            }
        };
        if host.is_empty() || rest.contains(['/', ' ', '@']) {
            return Err(invalid());
        }
        let port = match port {
            "" => DEFAULT_PORT,
            port => port.parse().map_err(|_| InvalidAddress::of_port(text, port))?,
        };
        Ok(if is_tls { Address::Tls(host.to_string(), port) } else { Address::Tcp(host.to_string(), port) })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Address::Tls(..) = self {
            f.write_str("todanas://")?;
        }
        match self {
            Address::Tcp(host, port) | Address::Tls(host, port) if host.contains(':') => {
                write!(f, "[{host}]:{port}")
            }
            Address::Tcp(host, port) | Address::Tls(host, port) => write!(f, "{host}:{port}"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written() {
        for (text, written) in [
            ("localhost", "localhost:11211"),
            ("10.0.0.7:99", "10.0.0.7:99"),
            ("todana://h:1/", "h:1"),
            ("memcached://h", "h:11211"),
            ("todanas://h", "todanas://h:11211"),
            ("todanas://[::1]:5", "todanas://[::1]:5"),
            ("[::1]:5", "[::1]:5"),
            ("::1", "[::1]:11211"),
            ("[::1]", "[::1]:11211"),
            ("unix:/run/t.sock", "unix:/run/t.sock"),
            ("unix:t.sock", "unix:t.sock"),
            ("/run/t.sock", "unix:/run/t.sock"),
        ] {
            assert_eq!(text.parse::<Address>().map(|address| address.to_string()).as_deref(), Ok(written));
        }
        for text in ["", ":1", "h:x", "h:70000", "unix:", "[::1", "[::1]x", "http://h", "a@h", "a:b@h"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
        for text in ["redis://h", "http://h:80", "https://h/"] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains("not an address; examples"), "{error}");
        }
        for (text, port) in [("h:x", "x"), ("10.0.0.7:70000", "70000"), ("[::1]:-1", "-1")] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            let expected = format!("{text:?}: port {port} must be a number from 0 to 65535");
            assert_eq!(error, expected);
        }
    }
}
