//! One blocking connection, text protocol.

use crate::Address;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use todana_protocol::memcached::client::{self, Fetch, Invalid, Malformed, Response, Store};

/// How long to wait for a connection, and for each piece of a reply.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The largest value that is taken: the largest that a server can hold.
const VALUE_LEN_MAX: usize = 1 << 30;
const READ: usize = 64 << 10;

/// Why a request failed.
#[derive(Debug)]
pub enum Error {
    /// The connection.
    Io(io::Error),
    /// The request cannot be sent: its key, mostly.
    Invalid(Invalid),
    /// The reply cannot be understood; the connection is of no more use.
    Malformed,
    /// The server refused: its error line.
    Refused(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Io(error) => error.fmt(f),
            Error::Invalid(error) => error.fmt(f),
            Error::Malformed => Malformed.fmt(f),
            Error::Refused(line) => write!(f, "the server says: {line}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Error::Io(error)
    }
}

impl From<Invalid> for Error {
    fn from(error: Invalid) -> Self {
        Error::Invalid(error)
    }
}

impl From<Malformed> for Error {
    fn from(_: Malformed) -> Self {
        Error::Malformed
    }
}

/// A record that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The key.
    pub key: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
    /// The client's flags.
    pub flags: u32,
    /// The version, if it was asked for.
    pub version: Option<u64>,
}

/// The outcome of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is done.
    Done,
    /// The condition of add, replace, append or prepend does not hold.
    NotStored,
    /// The version differs.
    Exists,
    /// There is no such record.
    NotFound,
}

enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// A connection. Requests may be written ahead of reading their replies.
pub struct Connection {
    socket: Socket,
    output: Vec<u8>,
    input: Vec<u8>,
    at: usize,
}

impl Connection {
    /// Connects. Fails after ten seconds.
    pub fn open(address: &Address) -> Result<Connection, Error> {
        let named =
            |error: io::Error| io::Error::new(error.kind(), format!("cannot connect to {address}: {error}"));
        let socket = match address {
            Address::Unix(path) => {
                let stream = UnixStream::connect(path).map_err(named)?;
                stream.set_read_timeout(Some(TIMEOUT))?;
                stream.set_write_timeout(Some(TIMEOUT))?;
                Socket::Unix(stream)
            }
            Address::Tcp(host, port) => {
                let mut last = io::Error::new(io::ErrorKind::NotFound, "no such host");
                let mut found = None;
                for address in (host.as_str(), *port).to_socket_addrs().map_err(named)? {
                    match TcpStream::connect_timeout(&address, TIMEOUT) {
                        Ok(stream) => {
                            found = Some(stream);
                            break;
                        }
                        Err(error) => last = error,
                    }
                }
                let stream = found.ok_or(last).map_err(named)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(TIMEOUT))?;
                stream.set_write_timeout(Some(TIMEOUT))?;
                Socket::Tcp(stream)
            }
        };
        Ok(Connection { socket, output: Vec::new(), input: Vec::new(), at: 0 })
    }

    /// Sends what has been written so far.
    pub fn flush(&mut self) -> Result<(), Error> {
        match &mut self.socket {
            Socket::Tcp(stream) => stream.write_all(&self.output)?,
            Socket::Unix(stream) => stream.write_all(&self.output)?,
        }
        self.output.clear();
        Ok(())
    }

    /// Waits for the next reply and hands it to `see`.
    fn response<T>(&mut self, see: impl FnOnce(Response<'_>) -> Result<T, Error>) -> Result<T, Error> {
        loop {
            if let Some((len, response)) = client::decode(&self.input[self.at..], VALUE_LEN_MAX)? {
                let outcome = match response {
                    Response::Refused(refusal) => {
                        Err(Error::Refused(String::from_utf8_lossy(refusal.line).into_owned()))
                    }
                    response => see(response),
                };
                self.at += len;
                if self.at == self.input.len() {
                    self.input.clear();
                    self.at = 0;
                }
                return outcome;
            }
            self.input.drain(..self.at);
            self.at = 0;
            let held = self.input.len();
            self.input.resize(held + READ, 0);
            let outcome = match &mut self.socket {
                Socket::Tcp(stream) => stream.read(&mut self.input[held..]),
                Socket::Unix(stream) => stream.read(&mut self.input[held..]),
            };
            self.input.truncate(held + *outcome.as_ref().unwrap_or(&0));
            if outcome? == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
        }
    }

    fn outcome(&mut self) -> Result<Outcome, Error> {
        self.response(|response| match response {
            Response::Line(b"STORED" | b"DELETED" | b"TOUCHED" | b"OK" | b"RESET") => Ok(Outcome::Done),
            Response::Line(b"NOT_STORED") => Ok(Outcome::NotStored),
            Response::Line(b"EXISTS") => Ok(Outcome::Exists),
            Response::Line(b"NOT_FOUND") => Ok(Outcome::NotFound),
            _ => Err(Error::Malformed),
        })
    }

    /// Sends one line and reads its outcome.
    pub fn simple(&mut self, line: &str) -> Result<Outcome, Error> {
        client::put_line(&mut self.output, line)?;
        self.flush()?;
        self.outcome()
    }

    /// Reads records; with their versions if asked. They come in the order of the keys, without the missing ones.
    pub fn get(&mut self, keys: &[&[u8]], versions: bool) -> Result<Vec<Item>, Error> {
        client::put_get(&mut self.output, Fetch { versions, touch: None }, keys)?;
        self.flush()?;
        let mut items = Vec::new();
        loop {
            let item = self.response(|response| match response {
                Response::Value { key, flags, version, value } => {
                    Ok(Some(Item { key: key.to_vec(), value: value.to_vec(), flags, version }))
                }
                Response::Line(b"END") => Ok(None),
                _ => Err(Error::Malformed),
            })?;
            match item {
                Some(item) => items.push(item),
                None => return Ok(items),
            }
        }
    }

    /// Stores a record.
    pub fn store(&mut self, store: &Store<'_>) -> Result<Outcome, Error> {
        self.write_store(store)?;
        self.flush()?;
        self.read_outcome()
    }

    /// Writes a storage request without sending it; its outcome is for `read_outcome`, in order.
    pub fn write_store(&mut self, store: &Store<'_>) -> Result<(), Error> {
        Ok(client::put_store(&mut self.output, store, false)?)
    }

    /// Bytes written and not sent yet.
    pub fn unsent_len(&self) -> usize {
        self.output.len()
    }

    /// The outcome of the oldest request that has none yet.
    pub fn read_outcome(&mut self) -> Result<Outcome, Error> {
        self.outcome()
    }

    /// Removes a record.
    pub fn delete(&mut self, key: &[u8]) -> Result<Outcome, Error> {
        client::put_words(&mut self.output, "delete", &[key])?;
        self.flush()?;
        self.outcome()
    }

    /// Gives a record a new time to live.
    pub fn touch(&mut self, key: &[u8], exptime: i64) -> Result<Outcome, Error> {
        client::put_words(&mut self.output, "touch", &[key, exptime.to_string().as_bytes()])?;
        self.flush()?;
        self.outcome()
    }

    /// Adds to (or subtracts from) a number; `None` if there is no such record.
    pub fn count(&mut self, key: &[u8], delta: u64, up: bool) -> Result<Option<u64>, Error> {
        let verb = if up { "incr" } else { "decr" };
        client::put_words(&mut self.output, verb, &[key, delta.to_string().as_bytes()])?;
        self.flush()?;
        self.response(|response| match response {
            Response::Number(number) => Ok(Some(number)),
            Response::Line(b"NOT_FOUND") => Ok(None),
            _ => Err(Error::Malformed),
        })
    }

    /// The statistics of a group (empty: the general ones), in the server's order.
    pub fn stats(&mut self, group: &str) -> Result<Vec<(String, String)>, Error> {
        let words: &[&[u8]] = if group.is_empty() { &[] } else { &[group.as_bytes()] };
        client::put_words(&mut self.output, "stats", words)?;
        self.flush()?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut statistics = Vec::new();
        loop {
            let line = self.response(|response| match response {
                Response::Statistic { name, value } => Ok(Some((text(name), text(value)))),
                Response::Line(b"END" | b"RESET") => Ok(None),
                _ => Err(Error::Malformed),
            })?;
            match line {
                Some(line) => statistics.push(line),
                None => return Ok(statistics),
            }
        }
    }

    /// The server's version.
    pub fn version(&mut self) -> Result<String, Error> {
        client::put_words(&mut self.output, "version", &[])?;
        self.flush()?;
        self.response(|response| match response {
            Response::Line(line) if line.starts_with(b"VERSION ") => {
                Ok(String::from_utf8_lossy(&line[8..]).into_owned())
            }
            _ => Err(Error::Malformed),
        })
    }

    /// The keys that the server holds, one after another, by `lru_crawler metadump`: its line for each key, as it is
    /// (`key=... exp=... ...`).
    pub fn metadump(&mut self, mut see: impl FnMut(&str) -> Result<(), Error>) -> Result<(), Error> {
        client::put_words(&mut self.output, "lru_crawler metadump all", &[])?;
        self.flush()?;
        loop {
            let line = self.response(|response| match response {
                Response::Line(b"END") => Ok(None),
                Response::Line(b"OK") => Ok(Some(String::new())),
                Response::Line(line) => Ok(Some(String::from_utf8_lossy(line).into_owned())),
                _ => Err(Error::Malformed),
            })?;
            match line {
                None => return Ok(()),
                Some(line) if line.is_empty() => {}
                Some(line) => see(&line)?,
            }
        }
    }
}
