//! Defines the state of the proxy that all workers share: pools, and the health and addresses of
//! their servers.

use super::near_cache::NearCache;
use super::route::{PoolRoute, Route, RouteFilter};
use super::server_health::{HealthLimits, ServerHealth};
use crate::options::{
    OptionsError, PoolOptions, PoolProtocol, ProxyOptions, ProxyRoutes, ProxyVersion, RouteTree,
};
use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use todana_client::Address;
use todana_client::ring::{ServerChoice, ServerEntry};
use todana_protocol::memcached::client::ServerDialect;

/// The state of the proxy.
pub(crate) struct ProxyState {
    pub(crate) pools: Vec<ProxyPool>,
    /// The routes that need more than one pool, or filters.
    pub(crate) routes: Vec<Route>,
    zone: Option<String>,
    /// The routes by prefix of the key, the longest prefix first.
    prefixes: Vec<(String, RouteTarget)>,
    default: RouteTarget,
}

/// The target of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RouteTarget {
    /// The pool with this number.
    Pool(usize),
    /// The route with this number.
    Route(usize),
    /// No server: the request is an error.
    Refuse,
    /// No server: reads are misses.
    Null,
}

/// A server, by the numbers of its pool and of itself in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServerPlace {
    pub(crate) pool: usize,
    pub(crate) server: usize,
}

/// A pool of servers.
pub(crate) struct ProxyPool {
    pub(crate) options: Arc<PoolOptions>,
    pub(crate) ring: ServerChoice,
    pub(crate) servers: Vec<Arc<PoolServer>>,
}

/// A server of a pool. It stays the same when the configuration is read again, so only its pool
/// knows its options.
pub(crate) struct PoolServer {
    pub(crate) number: ServerNumber,
    pub(crate) label: String,
    pub(crate) address: Address,
    pub(crate) health: ServerHealth,
    pub(crate) dialect: KnownDialect,
    /// The address to which the name of the server was last resolved.
    resolved: Mutex<Option<SocketAddr>>,
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
struct ServerNumbers(Mutex<(Vec<usize>, usize)>);

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
    /// Returns the address to connect to. `None` means that the name has no address.
    pub(crate) fn resolved(&self) -> Option<SocketAddr> {
        *self.resolved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resolves the name of the server. Blocks while the resolver works.
    fn resolve(&self) {
        let (Address::Tcp(host, port) | Address::Tls(host, port)) = &self.address else { return };
        let Ok(mut found) = (host.as_str(), *port).to_socket_addrs() else { return };
        if let Some(address) = found.next() {
            *self.resolved.lock().unwrap_or_else(PoisonError::into_inner) = Some(address);
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

impl ProxyState {
    /// Builds the pools. Fails if a ring cannot be built, or if a route needs more than one pool,
    /// which is not supported yet.
    pub(crate) fn new(options: &ProxyOptions) -> Result<ProxyState, OptionsError> {
        let routes = options.routes.as_ref();
        let first =
            options.pools.keys().next().ok_or_else(|| OptionsError::new("a proxy needs a pool".into()))?;
        let routes = routes.cloned().unwrap_or_else(|| ProxyRoutes::to_pool(first));
        let mut resolved = Vec::new();
        let number = |name: &str| {
            let number = options.pools.keys().position(|pool| pool == name);
            number.ok_or_else(|| OptionsError::new(format!("there is no pool {name}")))
        };
        let mut target = |tree: &RouteTree| {
            let route = Route::new(tree, &number)?;
            Ok(match (&route.filters[..], &route.pools) {
                ([], PoolRoute::Pool(pool)) => RouteTarget::Pool(*pool),
                ([], PoolRoute::Refuse) => RouteTarget::Refuse,
                ([], PoolRoute::Null) => RouteTarget::Null,
                _ => {
                    resolved.push(route);
                    RouteTarget::Route(resolved.len() - 1)
                }
            })
        };
        let prefixes = routes.prefixes.iter().map(|(prefix, tree)| Ok((prefix.clone(), target(tree)?)));
        let prefixes = prefixes.collect::<Result<_, OptionsError>>()?;
        let default = target(&routes.default)?;
        if !routes.commands.is_empty() {
            return Err(OptionsError::new("routes by command: not supported yet".into()));
        }
        if let Some(what) = unsupported_by_proxy(options) {
            return Err(OptionsError::new(format!("{what}: not supported yet")));
        }
        let numbers = Arc::default();
        let pools = options.pools.iter().map(|(name, pool)| {
            if let Some(what) = unsupported(pool) {
                return Err(OptionsError::new(format!("pool {name}: {what}: not supported yet")));
            }
            let ring = pool.server_choice(|_| true);
            let ring = ring.map_err(|error| OptionsError::new(format!("pool {name}: {error}")))?;
            let server = |entry: &ServerEntry| PoolServer {
                number: ServerNumbers::next(&numbers),
                label: entry.label().to_string(),
                address: entry.address.clone(),
                health: ServerHealth::new(HealthLimits {
                    failures: pool.failures,
                    retry: pool.retry,
                    retry_max: pool.retry_max,
                }),
                dialect: KnownDialect::new(pool.speak),
                resolved: Mutex::new(numeric(&entry.address)),
            };
            let servers = pool.servers.iter().map(|entry| Arc::new(server(entry))).collect();
            Ok(ProxyPool { options: Arc::new(pool.clone()), ring, servers })
        });
        let (routes, zone) = (resolved, options.zone.clone());
        Ok(ProxyState { pools: pools.collect::<Result<_, _>>()?, routes, zone, prefixes, default })
    }

    /// Returns the target of the requests for a key.
    #[inline]
    pub(crate) fn target_of(&self, key: &[u8]) -> RouteTarget {
        let prefix = self.prefixes.iter().find(|(prefix, _)| key.starts_with(prefix.as_bytes()));
        prefix.map_or(self.default, |(_, target)| *target)
    }

    /// Returns the server of a key in a pool.
    #[inline]
    pub(crate) fn place_of(&self, pool: usize, key: &[u8]) -> ServerPlace {
        ServerPlace { pool, server: self.pools[pool].ring.server_of(key) }
    }

    /// Returns the servers of the copies of a key in a pool.
    pub(crate) fn places_of(&self, pool: usize, key: &[u8], copies: usize) -> Vec<ServerPlace> {
        let mut ranked = Vec::new();
        self.pools[pool].ring.rank(key, copies, &mut ranked);
        ranked.into_iter().map(|server| ServerPlace { pool, server }).collect()
    }

    /// Returns a server.
    pub(crate) fn server(&self, place: ServerPlace) -> &Arc<PoolServer> {
        &self.pools[place.pool].servers[place.server]
    }

    /// Returns true if a server is in the zone of the proxy.
    pub(crate) fn is_near(&self, place: ServerPlace) -> bool {
        let zone = &self.pools[place.pool].options.servers[place.server].zone;
        zone.is_some() && *zone == self.zone
    }

    /// Returns the servers that requests can reach.
    pub(crate) fn reached_places(&self) -> Vec<ServerPlace> {
        let targets = self.prefixes.iter().map(|(_, target)| *target).chain([self.default]);
        let pools = targets.flat_map(|target| match target {
            RouteTarget::Pool(pool) => vec![pool],
            RouteTarget::Route(route) => self.routes[route].pools.numbers(),
            RouteTarget::Refuse | RouteTarget::Null => Vec::new(),
        });
        let pools: BTreeSet<usize> = pools.collect();
        let servers = |pool: usize| 0..self.pools[pool].servers.len();
        let places = |pool| servers(pool).map(move |server| ServerPlace { pool, server });
        pools.into_iter().flat_map(places).collect()
    }

    /// Returns the caches of all routes.
    pub(crate) fn near_caches(&self) -> impl Iterator<Item = &Arc<NearCache>> {
        self.routes.iter().flat_map(|route| &route.filters).filter_map(|filter| match filter {
            RouteFilter::Near(cache) => Some(cache),
            _ => None,
        })
    }

    /// Resolves the names of all servers. Blocks while the resolver works.
    fn resolve_all(&self) {
        self.pools.iter().flat_map(|pool| &pool.servers).for_each(|server| server.resolve());
    }
}

/// Returns the first option of the proxy itself that it cannot follow yet.
fn unsupported_by_proxy(options: &ProxyOptions) -> Option<&'static str> {
    [
        (!options.show_servers, "show-servers = false"),
        (options.version != ProxyVersion::Own, "the version of the servers"),
        (options.hot_keys != ProxyOptions::default().hot_keys, "hot-keys"),
        (options.drain != ProxyOptions::default().drain, "drain"),
        (options.in_flight_max.is_some(), "in-flight"),
    ]
    .into_iter()
    .find_map(|(is_asked, what)| is_asked.then_some(what))
}

/// Returns the first option of a pool that the proxy cannot follow yet.
fn unsupported(pool: &PoolOptions) -> Option<&'static str> {
    let is_tls = pool.servers.iter().any(|server| matches!(server.address, Address::Tls(..)));
    [
        (pool.tls.is_some() || is_tls, "TLS to the servers"),
        (pool.login.is_some(), "a login at the servers"),
        (pool.eject, "eject"),
        (pool.discover.is_some(), "discover"),
        (pool.servers_file.is_some(), "servers-file"),
        (pool.queue_timeout.is_some(), "queue-timeout"),
        (pool.retries != PoolOptions::default().retries, "retries"),
        (pool.ping != PoolOptions::default().ping, "ping"),
    ]
    .into_iter()
    .find_map(|(is_asked, what)| is_asked.then_some(what))
}

/// Returns the address of a server that is given by its number.
fn numeric(address: &Address) -> Option<SocketAddr> {
    let (Address::Tcp(host, port) | Address::Tls(host, port)) = address else { return None };
    Some(SocketAddr::new(host.parse::<IpAddr>().ok()?, *port))
}

/// The thread that resolves the names of servers. It ends when this value is dropped.
pub(crate) struct ServerResolver {
    _ends: Sender<()>,
}

impl ServerResolver {
    /// Starts the thread.
    pub(crate) fn start(state: &Arc<ProxyState>) -> io::Result<ServerResolver> {
        let (ends, is_over) = channel();
        let state = Arc::clone(state);
        let interval = state.pools.iter().map(|pool| pool.options.dns).min();
        let interval = interval.unwrap_or(PoolOptions::default().dns);
        std::thread::Builder::new().name("resolver".into()).spawn(move || {
            loop {
                state.resolve_all();
                if is_over.recv_timeout(interval) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        })?;
        Ok(ServerResolver { _ends: ends })
    }
}
