//! Defines a server of a pool, which all workers share: its addresses, its health and its counters.

use super::server_access::ServerAccess;
use super::server_counters::ServerCounters;
use super::server_health::{HealthLimits, ServerHealth};
use crate::options::PoolProtocol;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use todana_client::Address;
use todana_client::ring::ServerEntry;
use todana_protocol::memcached::client::ServerDialect;

/// A server of a pool. It stays the same when the configuration is read again, so only its pool
/// knows its options.
pub(crate) struct PoolServer {
    pub(crate) number: ServerNumber,
    pub(crate) label: String,
    pub(crate) address: Address,
    pub(crate) health: ServerHealth,
    pub(crate) counters: ServerCounters,
    pub(crate) dialect: KnownDialect,
    pub(super) access: ServerAccess,
    /// True if errors name the server.
    is_shown: AtomicBool,
    /// The addresses to which the name of the server was last resolved, and the number of the one
    /// that is used.
    resolved: Mutex<(Vec<SocketAddr>, usize)>,
    /// True once the resolver has answered.
    is_looked_up: AtomicBool,
    /// The number of connections of all workers that stand.
    open: AtomicUsize,
}

/// A connection to a server that stands.
pub(super) struct OpenConnection(Arc<PoolServer>);

impl OpenConnection {
    pub(super) fn new(server: &Arc<PoolServer>) -> OpenConnection {
        server.open.fetch_add(1, Ordering::Relaxed);
        OpenConnection(Arc::clone(server))
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The number of a server. No other server has the same number at the same time.
pub(crate) struct ServerNumber {
    number: usize,
    numbers: Arc<ServerNumbers>,
}

impl ServerNumber {
    #[inline]
    pub(crate) fn get(&self) -> usize {
        self.number
    }
}

impl Drop for ServerNumber {
    fn drop(&mut self) {
        self.numbers.lock().0.push(self.number);
    }
}

/// Gives numbers to servers: the least ones possible, because they are indexes.
#[derive(Default)]
pub(super) struct ServerNumbers(Mutex<(Vec<usize>, usize)>);

impl ServerNumbers {
    fn lock(&self) -> MutexGuard<'_, (Vec<usize>, usize)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(numbers: &Arc<ServerNumbers>) -> ServerNumber {
        let (free, end) = &mut *numbers.lock();
        let number = free.pop().unwrap_or_else(|| {
            *end += 1;
            *end - 1
        });
        ServerNumber { number, numbers: Arc::clone(numbers) }
    }
}

impl PoolServer {
    /// Creates the server of an entry of a pool.
    pub(super) fn new(
        numbers: &Arc<ServerNumbers>,
        entry: &ServerEntry,
        limits: HealthLimits,
        speak: PoolProtocol,
        access: ServerAccess,
    ) -> PoolServer {
        PoolServer {
            number: ServerNumbers::next(numbers),
            label: entry.label().to_string(),
            address: entry.address.clone(),
            health: ServerHealth::new(limits),
            counters: ServerCounters::default(),
            dialect: KnownDialect::new(speak),
            access,
            is_shown: AtomicBool::new(true),
            resolved: Mutex::new((numeric(&entry.address), 0)),
            is_looked_up: AtomicBool::new(false),
            open: AtomicUsize::new(0),
        }
    }

    /// Decides whether errors name the server.
    pub(super) fn show_label(&self, is_shown: bool) {
        self.is_shown.store(is_shown, Ordering::Relaxed);
    }

    /// Returns the label for errors. It is empty if errors do not name servers.
    pub(crate) fn shown_label(&self) -> &str {
        if self.is_shown.load(Ordering::Relaxed) { &self.label } else { "" }
    }

    /// Returns true if a connection of any worker stands.
    pub(super) fn has_open_connection(&self) -> bool {
        self.open.load(Ordering::Relaxed) > 0
    }

    /// Returns the address to connect to. `None` means that the name has no address.
    pub(crate) fn resolved(&self) -> Option<SocketAddr> {
        let (addresses, used) = &*self.resolved.lock().unwrap_or_else(PoisonError::into_inner);
        addresses.get(*used).copied()
    }

    /// Returns true if the resolver has answered at least once.
    pub(super) fn is_looked_up(&self) -> bool {
        self.is_looked_up.load(Ordering::Relaxed)
    }

    /// Selects the address after one that cannot be connected to. Returns the number of addresses.
    pub(super) fn select_next_address(&self) -> usize {
        let (addresses, used) = &mut *self.resolved.lock().unwrap_or_else(PoisonError::into_inner);
        *used = (*used + 1) % addresses.len().max(1);
        addresses.len()
    }

    /// Resolves the name of the server. Blocks while the resolver works.
    pub(super) fn resolve(&self) {
        let (Address::Tcp(host, port) | Address::Tls(host, port)) = &self.address else { return };
        let found = (host.as_str(), *port).to_socket_addrs();
        self.is_looked_up.store(true, Ordering::Relaxed);
        let Ok(found) = found else { return };
        let found: Vec<_> = found.collect();
        let (addresses, used) = &mut *self.resolved.lock().unwrap_or_else(PoisonError::into_inner);
        if !found.is_empty() && *addresses != found {
            (*addresses, *used) = (found, 0);
        }
    }
}

/// The dialect that a server speaks, as far as it is known.
pub(crate) struct KnownDialect(AtomicU8);

impl KnownDialect {
    const DIALECTS: [ServerDialect; 3] = [ServerDialect::Text, ServerDialect::Meta, ServerDialect::Binary];

    fn new(speak: PoolProtocol) -> KnownDialect {
        KnownDialect(AtomicU8::new(match speak {
            PoolProtocol::Auto => u8::MAX,
            PoolProtocol::Text => ServerDialect::Text as u8,
            PoolProtocol::Meta => ServerDialect::Meta as u8,
            PoolProtocol::Binary => ServerDialect::Binary as u8,
        }))
    }

    /// Returns the dialect that was configured, or that the last connection of any worker found.
    #[inline]
    pub(crate) fn get(&self) -> Option<ServerDialect> {
        Self::DIALECTS.get(usize::from(self.0.load(Ordering::Relaxed))).copied()
    }

    pub(super) fn set(&self, dialect: ServerDialect) {
        self.0.store(dialect as u8, Ordering::Relaxed);
    }
}

/// Returns the address of a server that is given by its number.
fn numeric(address: &Address) -> Vec<SocketAddr> {
    let (Address::Tcp(host, port) | Address::Tls(host, port)) = address else { return Vec::new() };
    host.parse::<IpAddr>().map(|host| SocketAddr::new(host, *port)).into_iter().collect()
}
