//! Defines the state of the proxy that all workers share: pools, and the health and addresses of
//! their servers.

use super::ejection::Ejection;
use super::live_proxy::LiveProxy;
use super::near_cache::NearCache;
use super::route::{PoolRoute, Route, RouteFilter};
use super::server_access::{PoolAccess, ServerAccess};
use super::server_counters::ServerCounters;
use super::server_health::{HealthLimits, ServerHealth};
use crate::options::{
    ListenerPlace, OptionsError, PoolOptions, PoolProtocol, ProxyListener, ProxyOptions, ProxyRoutes,
    ProxyVersion, RouteTree,
};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use todana_client::Address;
use todana_client::ring::{ServerChoice, ServerEntry};
use todana_protocol::memcached::client::ServerDialect;

/// The state of the proxy.
pub(crate) struct ProxyState {
    pub(crate) pools: Vec<ProxyPool>,
    /// The routes that need more than one pool, or filters.
    pub(crate) routes: Vec<Route>,
    zone: Option<String>,
    /// The listeners by their numbers. A listener keeps its number in later states.
    listeners: Vec<ListenerRoutes>,
    /// The routes of listeners without a pool of their own.
    common: Arc<RouteTable>,
    numbers: Arc<ServerNumbers>,
    /// The maximum duration of a stop.
    pub(crate) drain: Duration,
}

/// A listener and its routes.
#[derive(Clone)]
struct ListenerRoutes {
    listener: Option<ProxyListener>,
    /// False if only the clients that it has accepted before are left.
    is_open: bool,
    table: Arc<RouteTable>,
}

/// The targets of requests. The route of a prefix precedes that of a command.
struct RouteTable {
    /// The routes by prefix of the key, the longest prefix first.
    prefixes: Vec<(String, RouteTarget)>,
    /// The routes by command.
    commands: Vec<(String, RouteTarget)>,
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
    pub(crate) name: String,
    pub(crate) options: Arc<PoolOptions>,
    pub(crate) ring: ServerChoice,
    /// With `eject`.
    pub(super) ejection: Option<Ejection>,
    pub(crate) servers: Vec<Arc<PoolServer>>,
}

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
    /// The addresses to which the name of the server was last resolved, and the number of the one
    /// that is used.
    resolved: Mutex<(Vec<SocketAddr>, usize)>,
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
        let (addresses, used) = &*self.resolved.lock().unwrap_or_else(PoisonError::into_inner);
        addresses.get(*used).copied()
    }

    /// Selects the address after one that cannot be connected to. Returns the number of addresses.
    pub(super) fn select_next_address(&self) -> usize {
        let (addresses, used) = &mut *self.resolved.lock().unwrap_or_else(PoisonError::into_inner);
        *used = (*used + 1) % addresses.len().max(1);
        addresses.len()
    }

    /// Resolves the name of the server. Blocks while the resolver works.
    fn resolve(&self) {
        let (Address::Tcp(host, port) | Address::Tls(host, port)) = &self.address else { return };
        let Ok(found) = (host.as_str(), *port).to_socket_addrs() else { return };
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

impl ProxyState {
    /// Builds the pools and routes. Fails if a ring cannot be built, if a route names no pool, or
    /// if an option is not supported yet.
    pub(crate) fn new(options: &ProxyOptions) -> Result<ProxyState, OptionsError> {
        ProxyState::following(options, None)
    }

    /// Builds the state that replaces `before`. Servers that stay are the same in both.
    pub(crate) fn following(
        options: &ProxyOptions,
        before: Option<&ProxyState>,
    ) -> Result<ProxyState, OptionsError> {
        let first =
            options.pools.keys().next().ok_or_else(|| OptionsError::new("a proxy needs a pool".into()))?;
        let to_first = ProxyRoutes::to_pool(first);
        let mut routes = Vec::new();
        let common = options.routes.as_ref().unwrap_or(&to_first);
        let common = Arc::new(RouteTable::new(options, common, &mut routes)?);
        let mut listeners: Vec<ListenerRoutes> = before.map_or_else(Vec::new, |before| {
            let closed = |one: &ListenerRoutes| ListenerRoutes { is_open: false, ..one.clone() };
            before.listeners.iter().map(closed).collect()
        });
        for listener in &options.listeners {
            let is_same = |one: &&mut ListenerRoutes| {
                !one.is_open
                    && one.listener.as_ref().is_some_and(|one| is_same_place(&one.place, &listener.place))
            };
            let (listener, table) = (Some(listener.clone()), Arc::clone(&common));
            match listeners.iter_mut().find(is_same) {
                Some(one) => (one.listener, one.is_open) = (listener, true),
                None => listeners.push(ListenerRoutes { listener, is_open: true, table }),
            }
        }
        for one in &mut listeners {
            let pool = one.listener.as_ref().and_then(|listener| listener.pool.as_deref());
            // The clients of a closed listener stay. Those of a pool that is gone get the common
            // routes.
            let pool = pool.filter(|pool| one.is_open || options.pools.contains_key(*pool));
            one.table = match pool {
                Some(pool) => Arc::new(RouteTable::new(options, &ProxyRoutes::to_pool(pool), &mut routes)?),
                None => Arc::clone(&common),
            };
        }
        let numbers = before.map_or_else(Arc::default, |before| Arc::clone(&before.numbers));
        if let Some(what) = unsupported_by_proxy(options) {
            return Err(OptionsError::new(format!("{what}: not supported yet")));
        }
        let pools = options.pools.iter().map(|(name, pool)| {
            if let Some(what) = unsupported(pool) {
                return Err(OptionsError::new(format!("pool {name}: {what}: not supported yet")));
            }
            let ring = pool.server_choice(|_| true);
            let ring = ring.map_err(|error| OptionsError::new(format!("pool {name}: {error}")))?;
            let access = PoolAccess::load(pool);
            let access = access.map_err(|error| OptionsError::new(format!("pool {name}: {error}")))?;
            let before = before.and_then(|before| before.pools.iter().find(|before| before.name == *name));
            let mut stays: Vec<&Arc<PoolServer>> = before.map_or_else(Vec::new, |before| {
                if before.is_spoken_to_as(pool) { before.servers.iter().collect() } else { Vec::new() }
            });
            let limits =
                HealthLimits { failures: pool.failures, retry: pool.retry, retry_max: pool.retry_max };
            let server = |entry: &ServerEntry| {
                let is_same = |server: &&Arc<PoolServer>| {
                    server.address == entry.address && server.label == entry.label()
                };
                if let Some(index) = stays.iter().position(is_same) {
                    let server = stays.swap_remove(index);
                    server.health.set_limits(limits);
                    return Arc::clone(server);
                }
                Arc::new(PoolServer {
                    number: ServerNumbers::next(&numbers),
                    label: entry.label().to_string(),
                    address: entry.address.clone(),
                    health: ServerHealth::new(limits),
                    counters: ServerCounters::default(),
                    dialect: KnownDialect::new(pool.speak),
                    access: access.of_server(pool, entry),
                    resolved: Mutex::new((numeric(&entry.address), 0)),
                })
            };
            let servers = pool.servers.iter().map(server).collect();
            Ok(ProxyPool {
                name: name.clone(),
                options: Arc::new(pool.clone()),
                ring,
                ejection: pool.eject.then(Ejection::default),
                servers,
            })
        });
        let pools = pools.collect::<Result<_, _>>()?;
        let (zone, drain) = (options.zone.clone(), options.drain);
        Ok(ProxyState { pools, routes, zone, listeners, common, numbers, drain })
    }

    /// Returns the target of the requests for a key that come by a listener. `command` begins with
    /// the command word.
    #[inline]
    pub(crate) fn target_of(&self, listener: usize, command: &[u8], key: &[u8]) -> RouteTarget {
        let table = self.table_of(listener);
        let prefix = table.prefixes.iter().find(|(prefix, _)| key.starts_with(prefix.as_bytes()));
        let target = prefix.map(|(_, target)| *target).or_else(|| table.target_of_command(command));
        target.unwrap_or(table.default)
    }

    /// Returns the server of a key in a pool.
    #[inline]
    pub(crate) fn place_of(&self, pool: usize, key: &[u8]) -> ServerPlace {
        ServerPlace { pool, server: self.pools[pool].server_of(key) }
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

    /// Returns true if two places, perhaps of different pools, are the same server.
    pub(crate) fn is_same_server(&self, a: ServerPlace, b: ServerPlace) -> bool {
        let address = |place: ServerPlace| &self.pools[place.pool].servers[place.server].address;
        address(a) == address(b)
    }

    /// Returns true if a server is in the zone of the proxy.
    pub(crate) fn is_near(&self, place: ServerPlace) -> bool {
        let zone = &self.pools[place.pool].options.servers[place.server].zone;
        zone.is_some() && *zone == self.zone
    }

    /// Returns the servers that a request without a key reaches. `None` means that a route refuses
    /// it.
    pub(crate) fn reached_places(&self, listener: usize, command: &[u8]) -> Option<Vec<ServerPlace>> {
        let table = self.table_of(listener);
        let targets: Vec<RouteTarget> = match table.target_of_command(command) {
            Some(RouteTarget::Refuse) => return None,
            Some(target) => vec![target],
            None => table.targets().collect(),
        };
        let pools = targets.into_iter().flat_map(|target| match target {
            RouteTarget::Pool(pool) => vec![pool],
            RouteTarget::Route(route) => self.routes[route].pools.numbers(),
            RouteTarget::Refuse | RouteTarget::Null => Vec::new(),
        });
        let pools: BTreeSet<usize> = pools.collect();
        let servers = |pool: usize| 0..self.pools[pool].servers.len();
        let places = |pool| servers(pool).map(move |server| ServerPlace { pool, server });
        Some(pools.into_iter().flat_map(places).collect())
    }

    /// Returns the caches of all routes.
    pub(crate) fn near_caches(&self) -> impl Iterator<Item = &Arc<NearCache>> {
        self.routes.iter().flat_map(|route| &route.filters).filter_map(|filter| match filter {
            RouteFilter::Near(cache) => Some(cache),
            _ => None,
        })
    }

    /// Returns the open listeners by their numbers. Empty if the proxy uses those of the server.
    pub(super) fn listeners(&self) -> BTreeMap<usize, ProxyListener> {
        let open = self.listeners.iter().enumerate().filter(|(_, one)| one.is_open);
        open.filter_map(|(number, one)| Some((number, one.listener.clone()?))).collect()
    }

    /// Returns true if the state has this server.
    pub(super) fn has(&self, server: &Arc<PoolServer>) -> bool {
        self.pools.iter().any(|pool| pool.servers.iter().any(|one| Arc::ptr_eq(one, server)))
    }

    #[inline]
    fn table_of(&self, listener: usize) -> &RouteTable {
        self.listeners.get(listener).map_or(&self.common, |one| &one.table)
    }

    /// Resolves the names of all servers, or only of those that have no address yet. Blocks while
    /// the resolver works.
    pub(super) fn resolve_all(&self, only_new: bool) {
        let servers = self.pools.iter().flat_map(|pool| &pool.servers);
        servers.filter(|server| !only_new || server.resolved().is_none()).for_each(|server| server.resolve());
    }
}

impl ProxyPool {
    /// Returns the label of the server of a key.
    pub(super) fn label_of(&self, key: &[u8]) -> &str {
        &self.servers[self.ring.server_of(key)].label
    }

    /// Returns true if connections to servers may stay when the pool gets these options.
    fn is_spoken_to_as(&self, options: &PoolOptions) -> bool {
        let PoolOptions { tls, login, speak, .. } = &*self.options;
        (tls, login, speak) == (&options.tls, &options.login, &options.speak)
    }
}

impl RouteTable {
    /// Resolves the names of pools, and adds routes that need more than one to `routes`.
    fn new(
        options: &ProxyOptions,
        trees: &ProxyRoutes,
        routes: &mut Vec<Route>,
    ) -> Result<RouteTable, OptionsError> {
        let number = |name: &str| {
            let number = options.pools.keys().position(|pool| pool == name);
            number.ok_or_else(|| OptionsError::new(format!("there is no pool {name}")))
        };
        let mut target = |tree: &RouteTree| -> Result<RouteTarget, OptionsError> {
            let route = Route::new(tree, &number)?;
            Ok(match (&route.filters[..], &route.pools) {
                ([], PoolRoute::Pool(pool)) => RouteTarget::Pool(*pool),
                ([], PoolRoute::Refuse) => RouteTarget::Refuse,
                ([], PoolRoute::Null) => RouteTarget::Null,
                _ => {
                    routes.push(route);
                    RouteTarget::Route(routes.len() - 1)
                }
            })
        };
        let mut prefixes = Vec::new();
        for (prefix, tree) in &trees.prefixes {
            prefixes.push((prefix.clone(), target(tree)?));
        }
        let mut commands = Vec::new();
        for (command, tree) in &trees.commands {
            commands.push((command.clone(), target(tree)?));
        }
        Ok(RouteTable { prefixes, commands, default: target(&trees.default)? })
    }

    /// Returns the target of a command that has a route of its own.
    #[inline]
    fn target_of_command(&self, command: &[u8]) -> Option<RouteTarget> {
        if self.commands.is_empty() {
            return None;
        }
        let word = command.split(|&byte| byte <= b' ').next().unwrap_or_default();
        let route = self.commands.iter().find(|(command, _)| command.as_bytes() == word);
        route.map(|(_, target)| *target)
    }

    fn targets(&self) -> impl Iterator<Item = RouteTarget> {
        self.prefixes.iter().chain(&self.commands).map(|(_, target)| *target).chain([self.default])
    }
}

/// Returns true if two listeners have the same address, so that its socket can stay.
fn is_same_place(one: &ListenerPlace, other: &ListenerPlace) -> bool {
    match (one, other) {
        (ListenerPlace::Unix { path: one, .. }, ListenerPlace::Unix { path: other, .. }) => one == other,
        _ => one == other,
    }
}

/// Returns the first option of the proxy itself that it cannot follow yet.
fn unsupported_by_proxy(options: &ProxyOptions) -> Option<&'static str> {
    [
        (!options.show_servers, "show-servers = false"),
        (options.version != ProxyVersion::Own, "the version of the servers"),
        (![0, ProxyOptions::default().hot_keys].contains(&options.hot_keys), "hot-keys"),
        (options.in_flight_max.is_some(), "in-flight"),
    ]
    .into_iter()
    .find_map(|(is_asked, what)| is_asked.then_some(what))
}

/// Returns the first option of a pool that the proxy cannot follow yet.
fn unsupported(pool: &PoolOptions) -> Option<&'static str> {
    [
        (pool.discover.is_some(), "discover"),
        (pool.queue_timeout.is_some(), "queue-timeout"),
        (pool.retries > 1, "more than one repetition"),
    ]
    .into_iter()
    .find_map(|(is_asked, what)| is_asked.then_some(what))
}

/// Returns the address of a server that is given by its number.
fn numeric(address: &Address) -> Vec<SocketAddr> {
    let (Address::Tcp(host, port) | Address::Tls(host, port)) = address else { return Vec::new() };
    host.parse::<IpAddr>().map(|host| SocketAddr::new(host, *port)).into_iter().collect()
}

/// The thread that resolves the names of servers. It ends when this value is dropped.
pub(crate) struct ServerResolver {
    _ends: Sender<()>,
}

impl ServerResolver {
    /// Starts the thread.
    pub(crate) fn start(live: &Arc<LiveProxy>) -> io::Result<ServerResolver> {
        let (ends, is_over) = channel();
        let live = Arc::clone(live);
        std::thread::Builder::new().name("resolver".into()).spawn(move || {
            loop {
                let state = live.state();
                state.resolve_all(false);
                let interval = state.pools.iter().map(|pool| pool.options.dns).min();
                drop(state);
                let interval = interval.unwrap_or(PoolOptions::default().dns);
                if is_over.recv_timeout(interval) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        })?;
        Ok(ServerResolver { _ends: ends })
    }
}
