//! Defines the state of the proxy that all workers share: pools, listeners, and the targets of
//! their requests.

use super::ejection::Ejection;
use super::kept_filters::KeptFilters;
use super::near_cache::NearCache;
use super::pool_server::{PoolServer, ServerNumbers};
use super::proxy_pool::ProxyPool;
use super::route::{Route, RouteFilter};
use super::route_table::{RouteBuilder, RouteTable, RouteTarget};
use super::server_access::PoolAccess;
use super::server_health::HealthLimits;
use crate::options::{
    ListenerPlace, ListenerProtocol, OptionsError, ProxyListener, ProxyOptions, ProxyRoutes, ProxyVersion,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use todana_client::ring::ServerEntry;

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
    kept: KeptFilters,
    numbers: Arc<ServerNumbers>,
    /// The reply to `version`.
    pub(crate) version: ProxyVersion,
    /// The maximum duration of a stop.
    pub(crate) drain: Duration,
    /// The number of frequent keys that each worker counts.
    pub(super) hot_keys: usize,
    /// The maximum number of requests of a worker that servers have not answered.
    pub(super) in_flight_max: Option<usize>,
    /// The longest time that a pool lets a request wait until it can be sent. `None` means no
    /// limit.
    pub(super) queue_timeout: Option<Duration>,
}

/// A listener and its routes.
#[derive(Clone)]
struct ListenerRoutes {
    listener: Option<ProxyListener>,
    /// False if only the clients that it has accepted before are left.
    is_open: bool,
    table: Arc<RouteTable>,
}

/// A server, by the numbers of its pool and of itself in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServerPlace {
    pub(crate) pool: usize,
    pub(crate) server: usize,
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
        let mut builder = RouteBuilder::new(options, before.map(|before| &before.kept));
        let common = options.routes.as_ref().unwrap_or(&to_first);
        let common = Arc::new(builder.table("", common)?);
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
            let routes = one.listener.as_ref().and_then(|listener| listener.routes.as_ref());
            one.table = match (pool, routes) {
                (Some(pool), Some(routes)) => Arc::new(builder.table(pool, routes)?),
                (Some(pool), None) => Arc::new(builder.table(pool, &ProxyRoutes::to_pool(pool))?),
                (None, _) => Arc::clone(&common),
            };
        }
        let numbers = before.map_or_else(Arc::default, |before| Arc::clone(&before.numbers));
        let pools = options.pools.iter().map(|(name, pool)| {
            let ring = pool.server_choice(|_| true);
            let ring = ring.map_err(|error| OptionsError::new(format!("pool {name}: {error}")))?;
            let access = PoolAccess::load(pool);
            let access = access.map_err(|error| OptionsError::new(format!("pool {name}: {error}")))?;
            let before = before.and_then(|before| before.pools.iter().find(|before| before.name == *name));
            let counters = before.map_or_else(Arc::default, |before| Arc::clone(&before.counters));
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
                    server.show_label(options.show_servers);
                    return Arc::clone(server);
                }
                let access = access.of_server(pool, entry);
                let server = PoolServer::new(&numbers, entry, limits, pool.speak, access);
                server.show_label(options.show_servers);
                Arc::new(server)
            };
            let servers = pool.servers.iter().map(server).collect();
            Ok(ProxyPool {
                name: name.clone(),
                options: Arc::new(pool.clone()),
                ring,
                counters,
                ejection: pool.eject.then(Ejection::default),
                servers,
            })
        });
        let pools = pools.collect::<Result<_, _>>()?;
        let ProxyOptions { version, drain, in_flight_max, hot_keys, ref zone, .. } = *options;
        let queue_timeouts: Option<Vec<Duration>> =
            options.pools.values().map(|pool| pool.queue_timeout).collect();
        let queue_timeout = queue_timeouts.and_then(|timeouts| timeouts.into_iter().max());
        let RouteBuilder { kept, routes, .. } = builder;
        let zone = zone.clone();
        Ok(ProxyState {
            pools,
            routes,
            zone,
            listeners,
            common,
            kept,
            numbers,
            version,
            drain,
            hot_keys,
            in_flight_max,
            queue_timeout,
        })
    }

    /// Returns the target of the requests for a key that come by a listener. `command` begins with
    /// the command word.
    #[inline]
    pub(crate) fn target_of(&self, listener: usize, command: &[u8], key: &[u8]) -> RouteTarget {
        self.table_of(listener).target_of(command, key)
    }

    /// Returns the pool of a target; of several, the first one that is asked.
    #[inline]
    pub(crate) fn first_pool(&self, target: RouteTarget) -> Option<usize> {
        match target {
            RouteTarget::Pool(pool) => Some(pool),
            RouteTarget::Route(route) => self.routes[route].pools.first_number(),
            RouteTarget::Refuse | RouteTarget::Null => None,
        }
    }

    /// Returns the server of a key in a pool.
    #[inline]
    pub(crate) fn place_of(&self, pool: usize, key: &[u8]) -> ServerPlace {
        ServerPlace { pool, server: self.pools[pool].server_of(key) }
    }

    /// Returns the server of a key in a pool, or `None` if the request sets a time to live that
    /// must be limited there.
    #[inline]
    pub(crate) fn unlimited_place_of(&self, pool: usize, key: &[u8], sets_ttl: bool) -> Option<ServerPlace> {
        let server = self.pools[pool].unlimited_server_of(key, sets_ttl)?;
        Some(ServerPlace { pool, server })
    }

    /// Returns the servers of the copies of a key in a pool.
    pub(crate) fn places_of(&self, pool: usize, key: &[u8], copies: usize) -> Vec<ServerPlace> {
        let ranked = self.pools[pool].ranked(key, copies);
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

    /// Returns the protocol of the clients of a listener.
    pub(crate) fn protocol_of(&self, listener: usize) -> ListenerProtocol {
        let listener = self.listeners.get(listener).and_then(|one| one.listener.as_ref());
        listener.map_or(ListenerProtocol::Memcached, |listener| listener.protocol)
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

/// Returns true if two listeners have the same address, so that its socket can stay.
fn is_same_place(one: &ListenerPlace, other: &ListenerPlace) -> bool {
    match (one, other) {
        (ListenerPlace::Unix { path: one, .. }, ListenerPlace::Unix { path: other, .. }) => one == other,
        _ => one == other,
    }
}
