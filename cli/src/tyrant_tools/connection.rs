//! A connection to a server that speaks Tokyo Tyrant's binary protocol.

use super::ToolFailure;
use std::io::{BufReader, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use todana_protocol::tyrant::TyrantRequest;

/// The default port.
const PORT: u16 = 1978;
/// The longest byte string of a reply.
const LEN_MAX: usize = 1 << 30;

/// The failures of requests. Scripts distinguish them by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientError {
    HostNotFound,
    Refused,
    Send,
    Receive,
    Existing,
    NoRecord,
    Other,
}

impl From<ClientError> for ToolFailure {
    fn from(error: ClientError) -> ToolFailure {
        let (code, text) = match error {
            ClientError::HostNotFound => (2, "host not found"),
            ClientError::Refused => (3, "connection refused"),
            ClientError::Send => (4, "send error"),
            ClientError::Receive => (5, "recv error"),
            ClientError::Existing => (6, "existing record"),
            ClientError::NoRecord => (7, "no record found"),
            ClientError::Other => (9999, "miscellaneous error"),
        };
        ToolFailure(format!(": error: {code}: {text}"))
    }
}

/// A connection to a server.
pub(super) struct ServerConnection {
    reader: BufReader<Box<dyn Read>>,
    writer: Box<dyn Write>,
}

impl ServerConnection {
    /// Connects to `HOST` or `HOST:PORT`. With port 0, the host is the path of a Unix socket.
    pub(super) fn open(host: &str, port: Option<u16>) -> Result<ServerConnection, ClientError> {
        if port == Some(0) {
            let stream = UnixStream::connect(host).map_err(|_| ClientError::Refused)?;
            let reader = stream.try_clone().map_err(|_| ClientError::Refused)?;
            return Ok(ServerConnection {
                reader: BufReader::new(Box::new(reader)),
                writer: Box::new(stream),
            });
        }
        let (host, of_host) = match host.rsplit_once(':') {
            Some((name, digits)) if !name.contains(':') => match digits.parse() {
                Ok(port) => (name, Some(port)),
                Err(_) => (host, None),
            },
            _ => (host, None),
        };
        let place = (host, of_host.or(port).unwrap_or(PORT));
        let addresses: Vec<_> = place.to_socket_addrs().map_err(|_| ClientError::HostNotFound)?.collect();
        let stream = TcpStream::connect(&addresses[..]).map_err(|_| ClientError::Refused)?;
        let _ = stream.set_nodelay(true);
        let reader = stream.try_clone().map_err(|_| ClientError::Refused)?;
        Ok(ServerConnection { reader: BufReader::new(Box::new(reader)), writer: Box::new(stream) })
    }

    /// Sends a request.
    pub(super) fn send(&mut self, request: &TyrantRequest<'_>) -> Result<(), ClientError> {
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        self.writer.write_all(&bytes).map_err(|_| ClientError::Send)
    }

    /// Sends a request and reads its status. If the request has failed, returns the error `failed`.
    pub(super) fn ask(
        &mut self,
        request: &TyrantRequest<'_>,
        failed: ClientError,
    ) -> Result<(), ClientError> {
        self.send(request)?;
        if self.array::<1>()? == [0] { Ok(()) } else { Err(failed) }
    }

    /// Reads `N` bytes.
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], ClientError> {
        let mut bytes = [0; N];
        self.reader.read_exact(&mut bytes).map_err(|_| ClientError::Receive)?;
        Ok(bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, ClientError> {
        self.array().map(u32::from_be_bytes)
    }

    /// Reads this number of bytes.
    pub(super) fn take(&mut self, len: usize) -> Result<Vec<u8>, ClientError> {
        let mut bytes = Vec::new();
        let read = (&mut self.reader).take(len as u64).read_to_end(&mut bytes);
        match read {
            Ok(found) if found == len && len <= LEN_MAX => Ok(bytes),
            _ => Err(ClientError::Receive),
        }
    }

    /// Reads the length of a byte string, and the string.
    pub(super) fn bytes(&mut self) -> Result<Vec<u8>, ClientError> {
        let len = self.u32()? as usize;
        self.take(len)
    }

    /// Reads one byte. Returns `None` at the end.
    pub(super) fn byte(&mut self) -> Result<Option<u8>, ClientError> {
        let mut byte = [0];
        match self.reader.read_exact(&mut byte) {
            Ok(()) => Ok(Some(byte[0])),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(None),
            Err(_) => Err(ClientError::Receive),
        }
    }

    /// Sends bytes, and reads until the server closes the connection.
    pub(super) fn exchange(&mut self, bytes: &[u8]) -> Result<Vec<u8>, ClientError> {
        self.writer.write_all(bytes).map_err(|_| ClientError::Send)?;
        let mut answer = Vec::new();
        self.reader.read_to_end(&mut answer).map_err(|_| ClientError::Receive)?;
        Ok(answer)
    }
}
