//! Defines blocking connections to the servers of a ring.

use crate::ring::{Ring, RingError};
use crate::{
    Address, Connection, Error, FetchedRecord, Login, RingDestination, SocketTimeouts, TextFetch, TextStore,
    Tls, WriteOutcome,
};
use std::collections::BTreeMap;
use std::io;

/// Blocking connections to the servers of a ring. Each request goes to the server of its key. A
/// connection is opened when it is needed, and again after it was lost. There is no failover: a
/// request for a server that is down fails.
///
/// ```no_run
/// use todana_client::{RingConnection, TextStore};
///
/// let mut ring = RingConnection::open(&"ring:cache1,cache2,ring=pymemcache".parse()?)?;
/// ring.store(&TextStore { key: b"hello", value: b"world", ..TextStore::default() })?;
/// assert_eq!(ring.get(&[b"hello", b"missing"], false)?[0].value, b"world");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct RingConnection {
    ring: Ring,
    servers: Vec<RingServer>,
    timeouts: SocketTimeouts,
    tls: Option<Tls>,
    login: Option<Login>,
}

struct RingServer {
    address: Address,
    connection: Option<Connection>,
}

impl RingServer {
    /// Adds the address to an error of a connection.
    fn named(&self, error: Error) -> Error {
        let address = self.address.to_string();
        match error {
            Error::Io(error) if !error.to_string().contains(&address) => {
                io::Error::new(error.kind(), format!("{address}: {error}")).into()
            }
            error => error,
        }
    }
}

impl RingConnection {
    /// Prepares connections with the default timeouts.
    pub fn open(destination: &RingDestination) -> Result<RingConnection, RingError> {
        RingConnection::open_with(destination, SocketTimeouts::default(), None, None)
    }

    /// Prepares connections. Servers with TLS addresses use the configuration `tls`, or the
    /// certificate authorities of the system if `tls` is `None`. The login is the same for all
    /// servers.
    pub fn open_with(
        destination: &RingDestination,
        timeouts: SocketTimeouts,
        tls: Option<Tls>,
        login: Option<Login>,
    ) -> Result<RingConnection, RingError> {
        let ring = Ring::new(&destination.options, &destination.servers, |_| true)?;
        let server = |address: &Address| RingServer { address: address.clone(), connection: None };
        let servers = destination.servers.iter().map(|entry| server(&entry.address)).collect();
        Ok(RingConnection { ring, servers, timeouts, tls, login })
    }

    /// Returns the index of the server of a key in the list of the ring.
    pub fn server_of(&self, key: &[u8]) -> usize {
        self.ring.server_of(key)
    }

    /// Returns the number of servers.
    #[allow(clippy::len_without_is_empty, reason = "a ring has at least one server")]
    pub fn len(&self) -> usize {
        self.servers.len()
    }

    /// Returns the connection to a server, by its index. Connects if there is none.
    pub fn connection(&mut self, server: usize) -> Result<&mut Connection, Error> {
        let at = &mut self.servers[server];
        let connection = match at.connection.take().filter(|connection| !connection.is_lost()) {
            Some(connection) => connection,
            None => {
                let mut connection = Connection::open_with(&at.address, self.timeouts, self.tls.as_ref())?;
                if let Some(login) = &self.login {
                    connection.log_in(login).map_err(|error| at.named(error))?;
                }
                connection
            }
        };
        Ok(at.connection.insert(connection))
    }

    /// Drops the connections that servers have closed since their last reply, so that the next
    /// request opens them again. Must not be called while a reply is outstanding.
    pub fn drop_ended(&mut self) {
        for server in &mut self.servers {
            server.connection.take_if(|connection| connection.has_ended());
        }
    }

    /// Sends a request to the server of a key.
    fn ask<T>(
        &mut self,
        key: &[u8],
        request: impl FnOnce(&mut Connection) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let server = self.server_of(key);
        let outcome = request(self.connection(server)?);
        outcome.map_err(|error| self.servers[server].named(error))
    }

    /// Reads records, with their versions if `versions`. Returns the existing records in the order
    /// of the keys.
    pub fn get(&mut self, keys: &[&[u8]], versions: bool) -> Result<Vec<FetchedRecord>, Error> {
        self.fetch(TextFetch { versions, touch: None }, keys)
    }

    /// Reads records like [`get`](Self::get), and gives them a new expiry if `fetch` has one. The
    /// servers work at the same time. If one fails, the request fails.
    pub fn fetch(&mut self, fetch: TextFetch, keys: &[&[u8]]) -> Result<Vec<FetchedRecord>, Error> {
        let mut shares: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (index, key) in keys.iter().enumerate() {
            shares.entry(self.server_of(key)).or_default().push(index);
        }
        let outcome = self.fetch_shares(fetch, keys, &shares);
        if outcome.is_err() {
            // Replies that were not read must not be taken for those of later requests.
            shares.keys().for_each(|server| self.servers[*server].connection = None);
        }
        outcome
    }

    /// Sends the requests of all servers, and then reads their replies. `shares` has the indices of
    /// the keys of each server.
    fn fetch_shares(
        &mut self,
        fetch: TextFetch,
        keys: &[&[u8]],
        shares: &BTreeMap<usize, Vec<usize>>,
    ) -> Result<Vec<FetchedRecord>, Error> {
        let keys_of =
            |indices: &[usize]| -> Vec<&[u8]> { indices.iter().map(|index| keys[*index]).collect() };
        for (&server, indices) in shares {
            let sent = self.connection(server)?.send_fetch(fetch, &keys_of(indices));
            sent.map_err(|error| self.servers[server].named(error))?;
        }
        let mut found: Vec<Option<FetchedRecord>> = vec![None; keys.len()];
        for (&server, indices) in shares {
            let records = self.connection(server)?.receive_fetch(&keys_of(indices));
            let records = records.map_err(|error| self.servers[server].named(error))?;
            let mut asked = indices.iter();
            for record in records {
                if let Some(index) = asked.find(|index| keys[**index] == record.key) {
                    found[*index] = Some(record);
                }
            }
        }
        Ok(found.into_iter().flatten().collect())
    }

    /// Stores a record.
    pub fn store(&mut self, store: &TextStore<'_>) -> Result<WriteOutcome, Error> {
        self.ask(store.key, |connection| connection.store(store))
    }

    /// Removes a record.
    pub fn delete(&mut self, key: &[u8]) -> Result<WriteOutcome, Error> {
        self.ask(key, |connection| connection.delete(key))
    }

    /// Gives a record a new expiry.
    pub fn touch(&mut self, key: &[u8], exptime: i64) -> Result<WriteOutcome, Error> {
        self.ask(key, |connection| connection.touch(key, exptime))
    }

    /// Adds to a number or subtracts from it. Returns `None` if the record is missing.
    pub fn count(&mut self, key: &[u8], delta: u64, up: bool) -> Result<Option<u64>, Error> {
        self.ask(key, |connection| connection.count(key, delta, up))
    }
}
