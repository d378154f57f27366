//! Defines a blocking connection. It speaks the text dialect, and the meta dialect for keys that a
//! text line cannot carry.

mod any_key;
mod export;

pub use any_key::{FoundRecord, needs_base64};
pub use export::{CompletedCheckpoint, ExportFrame, LogFrom, LogHeader};

use crate::socket::ClientSocket;
use crate::tls_error::{NO_TLS, UNTRUSTED};
use crate::{Address, Error, Login, SocketTimeouts, TextFetch, TextStore, Tls};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use todana_protocol::memcached::client::{self, ClientResponse};

/// The longest value that is received, in bytes. No server can store a longer value.
const VALUE_LEN_MAX: usize = 1 << 30;
/// The largest number of statistics in a reply, far above that of any server.
const STATISTICS_MAX: usize = 1 << 20;
const READ: usize = 64 << 10;
/// The first bytes of the alert that a TLS server sends to a client that does not speak TLS.
const TLS_ALERT: [u8; 2] = [0x15, 0x03];

/// A record that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchedRecord {
    /// The key.
    pub key: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
    /// The client's flags.
    pub flags: u32,
    /// The version, if it was requested.
    pub version: Option<u64>,
}

/// The outcome of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// The server carried out the write.
    Done,
    /// The condition of add, replace, append or prepend was false.
    NotStored,
    /// The version of the record differs.
    Exists,
    /// The record does not exist.
    NotFound,
}

/// A blocking connection to a server. Most methods send a request and wait for its reply. To store
/// many records faster, send requests ahead of their replies with [`Connection::write_store`],
/// [`Connection::flush`] and [`Connection::read_outcome`].
///
/// ```no_run
/// use todana_client::{Connection, TextStore};
///
/// let mut connection = Connection::open(&"localhost:11211".parse()?)?;
/// connection.store(&TextStore { key: b"hello", value: b"world", ..TextStore::default() })?;
/// assert_eq!(connection.get(&[b"hello"], false)?[0].value, b"world");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Connection {
    socket: ClientSocket,
    output: Vec<u8>,
    input: Vec<u8>,
    at: usize,
    /// The server's address, for messages.
    name: String,
    /// The address to suggest if the server turns out to speak TLS. `None` after the server has
    /// replied in plain text.
    may_be_tls: Option<String>,
    /// True if the connection has lost track of which reply belongs to which request.
    is_lost: bool,
    /// If this becomes true, requests that wait for a reply fail.
    gives_up: Option<Arc<AtomicBool>>,
}

impl Connection {
    /// Connects with the default timeouts.
    pub fn open(address: &Address) -> Result<Connection, Error> {
        Connection::open_within(address, SocketTimeouts::default())
    }

    /// Connects with these timeouts.
    pub fn open_within(address: &Address, timeouts: SocketTimeouts) -> Result<Connection, Error> {
        Connection::open_with(address, timeouts, None)
    }

    /// Connects. For a TLS address, uses the configuration `tls`, or the certificate authorities of
    /// the system if `tls` is `None`.
    pub fn open_with(
        address: &Address,
        timeouts: SocketTimeouts,
        tls: Option<&Tls>,
    ) -> Result<Connection, Error> {
        let socket =
            ClientSocket::open(address, timeouts, tls).map_err(|error| cannot_connect(address, &error))?;
        let may_be_tls = matches!(address, Address::Tcp(..)).then(|| format!("todanas://{address}"));
        let (output, input) = Default::default();
        let name = address.to_string();
        Ok(Connection { name, socket, output, input, at: 0, may_be_tls, is_lost: false, gives_up: None })
    }

    /// Logs in if the server requires it. Must be called before any request. Fails with `Refused`
    /// if the user or the password is wrong.
    pub fn log_in(&mut self, login: &Login) -> Result<(), Error> {
        self.exchange(|connection| login.log_in(&mut connection.socket))?;
        self.may_be_tls = None;
        Ok(())
    }

    /// Returns true if all further requests fail.
    pub fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Returns the certificate of the server in DER, if the connection uses TLS.
    pub fn certificate(&self) -> Option<&[u8]> {
        self.socket.certificate()
    }

    /// Returns true if the server has closed the connection since the last reply, or has sent bytes
    /// that no request asked for. Must not be called while a reply is outstanding.
    pub fn has_ended(&self) -> bool {
        self.is_lost || self.socket.has_arrivals()
    }

    /// Runs an exchange with the server. If it fails between a request and the end of its reply,
    /// the next request would take the rest of that reply for its own reply. The connection then
    /// becomes unusable.
    fn exchange<T>(&mut self, exchange: impl FnOnce(&mut Self) -> Result<T, Error>) -> Result<T, Error> {
        if self.is_lost {
            let error = "an earlier request failed on this connection; open another one";
            return Err(io::Error::new(io::ErrorKind::NotConnected, error).into());
        }
        let outcome = exchange(self);
        self.is_lost = !matches!(outcome, Ok(_) | Err(Error::Refused(_) | Error::Invalid(_)));
        outcome.map_err(|error| match error {
            Error::Io(error)
                if error.kind() == io::ErrorKind::TimedOut && !error.to_string().starts_with(&self.name) =>
            {
                io::Error::new(error.kind(), format!("{}: {error}", self.name)).into()
            }
            error => error,
        })
    }

    /// Sends the buffered requests. The server stops reading while its replies are not read, so a
    /// caller must not buffer megabytes of requests before reading replies.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.exchange(|connection| {
            connection.socket.write_all(&connection.output)?;
            connection.output.clear();
            Ok(())
        })
    }

    /// Waits for the next reply and passes it to `see`.
    fn response<T>(&mut self, see: impl FnOnce(ClientResponse<'_>) -> Result<T, Error>) -> Result<T, Error> {
        self.response_within(VALUE_LEN_MAX, see)
    }

    /// Waits for the next reply like `response`. A value longer than `value_len_max` counts as
    /// malformed, before memory is allocated for it.
    fn response_within<T>(
        &mut self,
        value_len_max: usize,
        see: impl FnOnce(ClientResponse<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.exchange(|connection| {
            loop {
                let unread = &connection.input[connection.at..];
                let is_tls = connection.may_be_tls.is_some() && unread.starts_with(&TLS_ALERT);
                if is_tls && let Some(server) = &connection.may_be_tls {
                    let error = format!("the server speaks TLS: its address is {server}");
                    return Err(io::Error::new(io::ErrorKind::InvalidData, error).into());
                }
                if let Some((len, response)) = client::decode(unread, value_len_max)? {
                    connection.may_be_tls = None;
                    let outcome = match response {
                        ClientResponse::Refused(refusal) => Err(Error::Refused(refusal.into())),
                        response => see(response),
                    };
                    connection.at += len;
                    if connection.at == connection.input.len() {
                        connection.input.clear();
                        connection.at = 0;
                    }
                    return outcome;
                }
                connection.input.drain(..connection.at);
                connection.at = 0;
                let held = connection.input.len();
                connection.input.resize(held + READ, 0);
                let outcome = connection.receive(held);
                connection.input.truncate(held + *outcome.as_ref().unwrap_or(&0));
                outcome.map_err(|error| match (&connection.may_be_tls, error.kind()) {
                    (Some(server), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset)
                        if held == 0 =>
                    {
                        io::Error::new(
                            error.kind(),
                            format!(
                                "{error} without a word: with TLS it is {server}, or it speaks the binary protocol or Kyoto Tycoon's only"
                            ),
                        )
                    }
                    _ => error,
                })?;
            }
        })
    }

    /// Receives bytes and appends them to the first `held` bytes of the input.
    fn receive(&mut self, held: usize) -> io::Result<usize> {
        loop {
            if self.gives_up.as_ref().is_some_and(|gives_up| gives_up.load(Ordering::Relaxed)) {
                return Err(io::Error::new(io::ErrorKind::Interrupted, "given up"));
            }
            match self.socket.read(&mut self.input[held..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                outcome => return outcome,
            }
        }
    }

    /// Makes requests fail when `gives_up` becomes true. The flag is checked after every signal and
    /// after every receive.
    pub fn give_up_when(&mut self, gives_up: Arc<AtomicBool>) {
        self.gives_up = Some(gives_up);
    }

    fn outcome(&mut self) -> Result<WriteOutcome, Error> {
        self.response(|response| match response {
            ClientResponse::Line(b"STORED" | b"DELETED" | b"TOUCHED" | b"OK" | b"RESET") => {
                Ok(WriteOutcome::Done)
            }
            ClientResponse::Line(b"NOT_STORED") => Ok(WriteOutcome::NotStored),
            ClientResponse::Line(b"EXISTS") => Ok(WriteOutcome::Exists),
            ClientResponse::Line(b"NOT_FOUND") => Ok(WriteOutcome::NotFound),
            ClientResponse::Meta { code: [b'H', b'D'], .. } => Ok(WriteOutcome::Done),
            other => Err(unexpected(other)),
        })
    }

    fn words(&mut self, verb: &str, words: &[&[u8]]) -> Result<(), Error> {
        client::put_words(&mut self.output, verb, words)?;
        self.flush()
    }

    fn line(&mut self, line: &str) -> Result<(), Error> {
        client::put_line(&mut self.output, line)?;
        self.flush()
    }

    /// Sends a line such as `flush_all` or `verbosity 1` and reads its outcome.
    pub fn simple(&mut self, line: &str) -> Result<WriteOutcome, Error> {
        self.line(line)?;
        self.outcome()
    }

    /// Reads records, with their versions if `versions`. Returns the existing records in the order
    /// of the keys.
    pub fn get(&mut self, keys: &[&[u8]], versions: bool) -> Result<Vec<FetchedRecord>, Error> {
        self.fetch(TextFetch { versions, touch: None }, keys)
    }

    /// Reads records, and gives them a new expiry if `fetch` has one. Returns the existing records
    /// in the order of the keys.
    pub fn fetch(&mut self, fetch: TextFetch, keys: &[&[u8]]) -> Result<Vec<FetchedRecord>, Error> {
        self.send_fetch(fetch, keys)?;
        self.receive_fetch(keys)
    }

    /// Sends the request of [`fetch`](Self::fetch).
    pub(crate) fn send_fetch(&mut self, fetch: TextFetch, keys: &[&[u8]]) -> Result<(), Error> {
        client::put_get(&mut self.output, fetch, keys)?;
        self.flush()
    }

    /// Reads the reply to a request of [`send_fetch`](Self::send_fetch) for these keys.
    pub(crate) fn receive_fetch(&mut self, keys: &[&[u8]]) -> Result<Vec<FetchedRecord>, Error> {
        let (mut items, mut asked) = (Vec::new(), keys.iter());
        loop {
            let item = self.response(|response| match response {
                // A reply to another request must not pass for a reply to this request.
                ClientResponse::Value { key, flags, version, value } if asked.any(|asked| *asked == key) => {
                    Ok(Some(FetchedRecord { key: key.to_vec(), value: value.to_vec(), flags, version }))
                }
                ClientResponse::Line(b"END") => Ok(None),
                other => Err(unexpected(other)),
            })?;
            match item {
                Some(item) => items.push(item),
                None => return Ok(items),
            }
        }
    }

    /// Stores a record.
    pub fn store(&mut self, store: &TextStore<'_>) -> Result<WriteOutcome, Error> {
        self.write_store(store)?;
        self.flush()?;
        self.read_outcome()
    }

    /// Buffers a storage request. `read_outcome` returns the outcomes in order.
    pub fn write_store(&mut self, store: &TextStore<'_>) -> Result<(), Error> {
        Ok(client::put_store(&mut self.output, store, false)?)
    }

    /// Returns the number of buffered bytes.
    pub fn unsent_len(&self) -> usize {
        self.output.len()
    }

    /// Reads the outcome of the oldest buffered request whose outcome has not been read.
    pub fn read_outcome(&mut self) -> Result<WriteOutcome, Error> {
        self.outcome()
    }

    /// Removes a record.
    pub fn delete(&mut self, key: &[u8]) -> Result<WriteOutcome, Error> {
        self.words("delete", &[key])?;
        self.outcome()
    }

    /// Gives a record a new expiry.
    pub fn touch(&mut self, key: &[u8], exptime: i64) -> Result<WriteOutcome, Error> {
        self.words("touch", &[key, exptime.to_string().as_bytes()])?;
        self.outcome()
    }

    /// Adds to a number or subtracts from it. Returns `None` if the record is missing.
    pub fn count(&mut self, key: &[u8], delta: u64, up: bool) -> Result<Option<u64>, Error> {
        self.words(if up { "incr" } else { "decr" }, &[key, delta.to_string().as_bytes()])?;
        self.response(|response| match response {
            ClientResponse::Number(number) => Ok(Some(number)),
            ClientResponse::Line(b"NOT_FOUND") => Ok(None),
            other => Err(unexpected(other)),
        })
    }

    /// Returns the statistics of a group in the server's order. The empty name means the general
    /// statistics.
    pub fn stats(&mut self, group: &str) -> Result<Vec<(String, String)>, Error> {
        self.line(format!("stats {group}").trim_end_matches(' '))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut statistics = Vec::new();
        loop {
            let is_full = statistics.len() == STATISTICS_MAX;
            let line = self.response(|response| match response {
                ClientResponse::Statistic { name, value } if !is_full => Ok(Some((text(name), text(value)))),
                // Lines of `stats detail dump` and `stats cachedump` consist of a word, a name, and
                // the rest.
                ClientResponse::Line(line)
                    if !is_full && (line.starts_with(b"PREFIX ") || line.starts_with(b"ITEM ")) =>
                {
                    let line = text(line);
                    let mut words = line.splitn(3, ' ').skip(1).map(String::from);
                    Ok(Some((words.next().unwrap_or_default(), words.next().unwrap_or_default())))
                }
                // `stats reset` and `stats detail on` return no statistics.
                ClientResponse::Line(b"END" | b"RESET" | b"OK") => Ok(None),
                other => Err(unexpected(other)),
            })?;
            match line {
                Some(line) => statistics.push(line),
                None => return Ok(statistics),
            }
        }
    }

    /// Returns one of the general statistics, or `None` if the server does not have it.
    pub fn statistic(&mut self, name: &str) -> Result<Option<String>, Error> {
        let found = self.stats("")?.into_iter().find(|(known, _)| known == name);
        Ok(found.map(|(_, value)| value))
    }

    /// Returns the server's version.
    pub fn version(&mut self) -> Result<String, Error> {
        self.words("version", &[])?;
        self.response(|response| match response {
            ClientResponse::Line(line) if line.starts_with(b"VERSION ") => {
                Ok(String::from_utf8_lossy(&line[8..]).into_owned())
            }
            other => Err(unexpected(other)),
        })
    }

    /// Lists the server's keys by `lru_crawler metadump` and passes each line, such as `key=...
    /// exp=... ...`, to `see`. An error of `see` ends the list and makes the connection unusable.
    pub fn metadump(&mut self, see: impl FnMut(&str) -> Result<(), Error>) -> Result<(), Error> {
        self.metadump_of("all", see)
    }

    /// Lists keys like [`metadump`](Self::metadump): those of a slab class of memcached.
    pub fn metadump_of(
        &mut self,
        class: &str,
        mut see: impl FnMut(&str) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.line(&format!("lru_crawler metadump {class}"))?;
        loop {
            let line = self.response(|response| match response {
                ClientResponse::Line(b"END") => Ok(None),
                // Servers before 1.6.43 do not send this line.
                ClientResponse::Line(b"OK") => Ok(Some(String::new())),
                ClientResponse::Line(line) if line.starts_with(b"key=") => {
                    Ok(Some(String::from_utf8_lossy(line).into_owned()))
                }
                other => Err(unexpected(other)),
            })?;
            match line {
                None => return Ok(()),
                Some(line) if line.is_empty() => {}
                Some(line) => see(&line).inspect_err(|_| self.is_lost = true)?,
            }
        }
    }
}

/// Adds the address to an error, and advice if the connection was refused.
pub fn cannot_connect(address: &Address, error: &io::Error) -> io::Error {
    let nobody = matches!(error.kind(), io::ErrorKind::ConnectionRefused)
        || matches!((address, error.kind()), (Address::Unix(_), io::ErrorKind::NotFound));
    let text = error.to_string();
    let hint = match (address, error.kind()) {
        _ if nobody => "; is the server running?".to_string(),
        (Address::Tls(..), _) if text == UNTRUSTED => {
            "; --tls-ca FILE names its authority, or its own certificate".into()
        }
        // The server sent no reply, or a reply that is not TLS.
        (Address::Tls(host, port), kind)
            if text == NO_TLS
                || matches!(
                    kind,
                    io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::TimedOut
                ) =>
        {
            format!("; without TLS it is {}", Address::Tcp(host.clone(), *port))
        }
        _ => String::new(),
    };
    io::Error::new(error.kind(), format!("cannot connect to {address}: {text}{hint}"))
}

fn unexpected(response: ClientResponse<'_>) -> Error {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Error::Unexpected(match response {
        ClientResponse::Line(line) => text(line),
        // The value is left out because it may be long.
        ClientResponse::Value { key, .. } => format!("VALUE {}", text(key)),
        ClientResponse::Meta { code, flags, .. } => format!("{} {}", text(&code), text(flags.text())),
        ClientResponse::Statistic { name, value } => format!("STAT {} {}", text(name), text(value)),
        ClientResponse::Data(data) => format!("DATA {}", data.len()),
        ClientResponse::Number(number) => number.to_string(),
        ClientResponse::Refused(refusal) => text(refusal.line),
    })
}
