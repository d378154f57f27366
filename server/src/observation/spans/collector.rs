//! Defines the address of a collector of OpenTelemetry, and sends a request to it.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::str::FromStr;
use std::time::Duration;

/// The time limit of each step of a request.
const TIME_MAX: Duration = Duration::from_secs(10);
/// The maximum length of the head of a response.
const HEAD_MAX: usize = 16 << 10;

/// The address of a collector: `http://HOST[:PORT][/PATH]`. As with the variable
/// `OTEL_EXPORTER_OTLP_ENDPOINT`, spans go to `PATH/v1/traces`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectorAddress {
    /// The host and the port as they were written.
    authority: String,
    host: String,
    port: u16,
    /// The path of spans.
    path: String,
}

/// An address of another form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectorAddressError;

impl fmt::Display for CollectorAddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a collector is http://HOST:PORT, with a path if it needs one")
    }
}

impl std::error::Error for CollectorAddressError {}

impl FromStr for CollectorAddress {
    type Err = CollectorAddressError;

    fn from_str(text: &str) -> Result<CollectorAddress, CollectorAddressError> {
        let is_printable = text.bytes().all(|byte| byte.is_ascii_graphic());
        let rest = text.strip_prefix("http://").filter(|_| is_printable).ok_or(CollectorAddressError)?;
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (host, port) = match authority.rsplit_once(':').filter(|(_, port)| !port.ends_with(']')) {
            Some((host, port)) => (host, port.parse().map_err(|_| CollectorAddressError)?),
            None => (authority, 80),
        };
        let plain = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let is_name = !plain.is_empty() && !plain.contains(['[', ']', '@', '?', '#']);
        if !is_name || (plain.contains(':') && plain == host) || path.contains(['?', '#']) {
            return Err(CollectorAddressError);
        }
        let path = format!("{}/v1/traces", path.trim_end_matches('/'));
        Ok(CollectorAddress { authority: authority.into(), host: plain.into(), port, path })
    }
}

impl fmt::Display for CollectorAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.authority, self.path)
    }
}

/// The reason why a collector has not accepted spans.
#[derive(Debug)]
pub(super) enum SendFailure {
    /// A later attempt may succeed.
    Unavailable(io::Error),
    /// The collector refuses these spans.
    Refused(u16),
}

impl fmt::Display for SendFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SendFailure::Unavailable(error) => error.fmt(f),
            SendFailure::Refused(status) => write!(f, "status {status}"),
        }
    }
}

impl CollectorAddress {
    /// Sends spans, and waits for the status of the response.
    pub(super) fn send(&self, body: &[u8]) -> Result<(), SendFailure> {
        match self.exchange(body).map_err(SendFailure::Unavailable)? {
            200..300 => Ok(()),
            // The statuses that OTLP's specification names.
            status @ (429 | 502..=504) => {
                Err(SendFailure::Unavailable(io::Error::other(format!("status {status}"))))
            }
            status => Err(SendFailure::Refused(status)),
        }
    }

    fn exchange(&self, body: &[u8]) -> io::Result<u16> {
        let mut stream = self.connect()?;
        let head = format!(
            "POST {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: todana/{}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n",
            self.path,
            self.authority,
            env!("CARGO_PKG_VERSION"),
            body.len()
        );
        stream.write_all(&[head.as_bytes(), body].concat())?;
        let mut response = Vec::new();
        let mut buffer = [0; 1024];
        while response.len() < HEAD_MAX && !response.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
            match stream.read(&mut buffer)? {
                0 => break,
                len => response.extend_from_slice(&buffer[..len]),
            }
        }
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut head = httparse::Response::new(&mut headers);
        let invalid = || io::Error::new(io::ErrorKind::InvalidData, "the response is not HTTP");
        head.parse(&response).map_err(|_| invalid())?;
        head.code.ok_or_else(invalid)
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in (&*self.host, self.port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, TIME_MAX) {
                Ok(stream) => {
                    stream.set_read_timeout(Some(TIME_MAX))?;
                    stream.set_write_timeout(Some(TIME_MAX))?;
                    return Ok(stream);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_url_with_path_of_traces() {
        for (text, url, host, port) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces", "127.0.0.1", 4318),
            ("http://tempo:4318/", "http://tempo:4318/v1/traces", "tempo", 4318),
            ("http://[::1]:4318/otlp/", "http://[::1]:4318/otlp/v1/traces", "::1", 4318),
            ("http://[::1]", "http://[::1]/v1/traces", "::1", 80),
            ("http://tempo", "http://tempo/v1/traces", "tempo", 80),
        ] {
            let address: CollectorAddress = text.parse().unwrap();
            assert_eq!((&*address.to_string(), &*address.host, address.port), (url, host, port));
        }
        for text in [
            "127.0.0.1:4318",
            "https://tempo:4318",
            "http://",
            "http://:4318",
            "http://tempo:x",
            "http://::1:4318",
            "http://a b:1",
            "http://a:1/x?y",
            "http://user@a:1",
        ] {
            assert_eq!(text.parse::<CollectorAddress>(), Err(CollectorAddressError), "{text}");
        }
    }
}
