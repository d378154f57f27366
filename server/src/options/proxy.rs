//! Defines the options of a proxy: its listeners, its pools of servers, and the routes of requests.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use todana_client::Address;
use todana_client::ring::{KeyFilter, Ring, RingError, RingOptions, ServerChoice, ServerEntry, VbucketMap};

/// The options of a proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyOptions {
    /// The program whose replies to errors and whose statistics the proxy has.
    pub name: ProxyName,
    /// The addresses at which clients connect.
    pub listeners: Vec<ProxyListener>,
    /// The number of workers. `None` means one for each processor.
    pub threads: Option<usize>,
    /// The place of the proxy. Routes that prefer near servers prefer those of the same zone.
    pub zone: Option<String>,
    /// The pools by their names.
    pub pools: BTreeMap<String, PoolOptions>,
    /// The routes of the requests of all listeners that do not serve a single pool. `None` means
    /// that there is no such listener.
    pub routes: Option<ProxyRoutes>,
    /// True if errors name the server that caused them.
    pub show_servers: bool,
    /// The reply to `version`.
    pub version: ProxyVersion,
    /// The number of frequent keys that each worker counts; 0 counts none.
    pub hot_keys: usize,
    /// The maximum duration of a stop, in which replies to the requests that have arrived are
    /// sent.
    pub drain: Duration,
    /// The maximum number of requests of each worker that servers have not answered yet. Further
    /// requests wait. `None` means no limit.
    pub in_flight_max: Option<usize>,
    /// The port of the statistics in twemproxy's form. `None` means that there is none.
    pub nutcracker_stats: Option<NutcrackerStatsOptions>,
}

impl Default for ProxyOptions {
    fn default() -> Self {
        ProxyOptions {
            name: ProxyName::Todana,
            listeners: Vec::new(),
            threads: None,
            zone: None,
            pools: BTreeMap::new(),
            routes: None,
            show_servers: true,
            version: ProxyVersion::Own,
            hot_keys: 1000,
            drain: Duration::from_secs(5),
            in_flight_max: None,
            nutcracker_stats: None,
        }
    }
}

/// The program that a proxy replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyName {
    /// None: the proxy runs under its own name.
    Todana,
    /// moxi, which has its own error lines, and answers `stats proxy`.
    Moxi,
    /// twemproxy.
    Nutcracker,
}

/// The reply of a proxy to `version`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyVersion {
    /// That of `todana serve`.
    Own,
    /// The lowest version of the servers that are up.
    Servers,
}

/// The port of the statistics in twemproxy's form: a JSON object for each connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NutcrackerStatsOptions {
    /// The address, without the port.
    pub address: String,
    /// The port.
    pub port: u16,
}

/// An address at which clients connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyListener {
    /// The address.
    pub place: ListenerPlace,
    /// The protocol of the clients.
    pub protocol: ListenerProtocol,
    /// The pool that serves all requests of the listener. `None` means that
    /// [`ProxyOptions::routes`] apply.
    pub pool: Option<String>,
    /// With `pool`, routes for the requests of the listener that end at this pool.
    pub routes: Option<ProxyRoutes>,
    /// The number of connections that may wait to be accepted.
    pub backlog: u32,
    /// The maximum number of clients of the listener. `None` means that only the limit of the
    /// process applies.
    pub clients_max: Option<usize>,
}

impl ProxyListener {
    /// Returns a listener with the default limits.
    pub fn new(place: ListenerPlace, pool: Option<String>) -> ProxyListener {
        let protocol = ListenerProtocol::Memcached;
        ProxyListener { place, protocol, pool, routes: None, backlog: 1024, clients_max: None }
    }
}

/// The protocol of the clients of a listener of a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenerProtocol {
    /// memcached's text, meta and binary dialects.
    Memcached,
    /// Kyoto Tycoon's HTTP and binary protocols.
    Kyoto,
    /// Tokyo Tyrant's binary protocol.
    Tyrant,
}

impl ListenerProtocol {
    /// All protocols with their names in configurations.
    pub const ALL: [(&str, ListenerProtocol); 3] = [
        ("memcached", ListenerProtocol::Memcached),
        ("kyoto", ListenerProtocol::Kyoto),
        ("tyrant", ListenerProtocol::Tyrant),
    ];
}

/// The place of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenerPlace {
    /// A text as in [`ListenOptions::addresses`](super::ListenOptions::addresses).
    Tcp(String),
    /// A Unix socket.
    Unix {
        /// The path.
        path: PathBuf,
        /// The permissions.
        mode: u32,
    },
}

/// A pool: servers, the ring over them, and the way in which the proxy speaks to them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolOptions {
    /// The servers.
    pub servers: Vec<ServerEntry>,
    /// The file from which `servers` were read, one in each line. The proxy watches the file.
    pub servers_file: Option<PathBuf>,
    /// A server whose reply to `config get cluster` lists the servers.
    pub discover: Option<Address>,
    /// The map that is used instead of the ring. `servers` are those of the map.
    pub vbuckets: Option<PoolVbuckets>,
    /// The ring, but without its filter of keys. [`PoolOptions::ring_options`] returns both.
    pub ring: RingOptions,
    /// The two characters around the part of a key that is hashed. Empty: the complete key is
    /// hashed.
    pub hash_tag: String,
    /// Only the part of a key before this text is hashed, unless the text is empty.
    pub hash_stop: String,
    /// The prefixes that are removed from keys before they are hashed.
    pub hash_without: Vec<String>,
    /// The protocol of requests to the servers.
    pub speak: PoolProtocol,
    /// The maximum duration of connecting, including TLS and the login.
    pub connect_timeout: Duration,
    /// The maximum time until the answer, from the moment at which the request is due on its
    /// connection. `None` means no limit.
    pub reply_timeout: Option<Duration>,
    /// The number of connections of each worker to each server.
    pub connections: usize,
    /// True if the connections are opened at the start instead of for the first request.
    pub preconnect: bool,
    /// The number of consecutive failures after which a server is down.
    pub failures: u32,
    /// The time from the failure of a server to the first probe. It doubles after each probe up to
    /// `retry_max`.
    pub retry: Duration,
    /// The longest time between two probes.
    pub retry_max: Duration,
    /// The number of times that a request which may safely be repeated is sent again after its
    /// connection was lost.
    pub retries: u32,
    /// The interval in which idle connections are checked. `None` means that they are not.
    pub ping: Option<Duration>,
    /// The interval in which the names of the servers are resolved again.
    pub dns: Duration,
    /// True if the keys of a server that is down go to the other servers.
    pub eject: bool,
    /// With `eject`, the maximum time to live of a record that is stored on another server.
    pub stand_in_ttl: Duration,
    /// The answers while a server is down.
    pub when_down: WhenDown,
    /// The maximum number of requests that wait for a server.
    pub queue: usize,
    /// The maximum time for which a request waits until it can be sent. `None` means no limit.
    pub queue_timeout: Option<Duration>,
    /// TLS to the servers.
    pub tls: Option<PoolTlsOptions>,
    /// The login at the servers.
    pub login: Option<PoolLogin>,
}

impl Default for PoolOptions {
    fn default() -> Self {
        PoolOptions {
            servers: Vec::new(),
            servers_file: None,
            discover: None,
            vbuckets: None,
            ring: RingOptions::default(),
            hash_tag: String::new(),
            hash_stop: String::new(),
            hash_without: Vec::new(),
            speak: PoolProtocol::Auto,
            connect_timeout: Duration::from_millis(250),
            reply_timeout: Some(Duration::from_secs(1)),
            connections: 1,
            preconnect: false,
            failures: 3,
            retry: Duration::from_secs(1),
            retry_max: Duration::from_secs(10),
            retries: 1,
            ping: Some(Duration::from_secs(5)),
            dns: Duration::from_secs(30),
            eject: false,
            stand_in_ttl: Duration::from_secs(10),
            when_down: WhenDown::Gentle,
            queue: 10_000,
            queue_timeout: None,
            tls: None,
            login: None,
        }
    }
}

impl PoolOptions {
    /// Returns the options of the ring with its filter of keys. Fails if the hash tag is not two
    /// characters or a prefix is empty.
    pub fn ring_options(&self) -> Result<RingOptions, RingError> {
        let key_filter = KeyFilter::new(&self.hash_tag, &self.hash_stop, &self.hash_without)?;
        Ok(RingOptions { key_filter, ..self.ring.clone() })
    }

    /// Returns the function that chooses the server of a key among those for which `is_live`
    /// returns true. A map of vbuckets always uses all servers.
    pub fn server_choice(&self, is_live: impl Fn(usize) -> bool) -> Result<ServerChoice, RingError> {
        match &self.vbuckets {
            Some(vbuckets) => Ok(ServerChoice::Vbuckets(vbuckets.map.clone())),
            None => Ring::new(&self.ring_options()?, &self.servers, is_live).map(ServerChoice::Ring),
        }
    }
}

/// A map from keys to the servers of a pool, as Couchbase has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolVbuckets {
    /// The file of the map. `None` if the map stood on the command line.
    pub file: Option<PathBuf>,
    /// The map.
    pub map: VbucketMap,
}

/// The protocol of requests to the servers of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolProtocol {
    /// The meta commands if the server knows them, or else the text protocol.
    Auto,
    /// The text protocol without meta commands.
    Text,
    /// The text protocol with meta commands.
    Meta,
    /// The binary protocol.
    Binary,
}

impl PoolProtocol {
    /// Returns the name in configuration files.
    pub fn as_str(self) -> &'static str {
        match self {
            PoolProtocol::Auto => "auto",
            PoolProtocol::Text => "text",
            PoolProtocol::Meta => "meta",
            PoolProtocol::Binary => "binary",
        }
    }
}

/// The answers to requests for a server that is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenDown {
    /// Reads are misses. Writes fail with `SERVER_ERROR out of memory storing object`, the only
    /// error after which no client library takes the proxy itself for down.
    Gentle,
    /// Reads and writes fail with an error that names the server.
    Error,
    /// Reads are misses. Writes fail with an error that names the server.
    Miss,
    /// The same as [`Miss`](WhenDown::Miss), with moxi's error lines.
    Moxi,
}

/// TLS to the servers of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolTlsOptions {
    /// The authorities that may sign the certificates of the servers. `None` means those that the
    /// system trusts.
    pub ca: Option<PathBuf>,
    /// The certificate of the proxy, for servers that require one.
    pub cert: Option<PathBuf>,
    /// The private key of the certificate. `None` means that the file of the certificate contains
    /// it.
    pub key: Option<PathBuf>,
    /// The name in the certificates of the servers. `None` means the host of each server.
    pub server_name: Option<String>,
}

/// The login at the servers of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolLogin {
    /// The name of the user.
    pub user: String,
    /// The file whose first line is the password.
    pub password_file: PathBuf,
    /// The password itself. If it is given, there is no file.
    pub password: Option<String>,
}

/// The routes of requests. A route of a prefix takes precedence over a route of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyRoutes {
    /// The route of all other requests.
    pub default: RouteTree,
    /// The routes by prefix of the key. The longest prefix is the first one.
    pub prefixes: Vec<(String, RouteTree)>,
    /// The routes by command, as `flush_all`.
    pub commands: BTreeMap<String, RouteTree>,
}

impl ProxyRoutes {
    /// Returns routes that send all requests to one pool.
    pub fn to_pool(pool: &str) -> ProxyRoutes {
        ProxyRoutes { default: RouteTree::Pool(pool.into()), prefixes: Vec::new(), commands: BTreeMap::new() }
    }

    /// Returns the route of a request.
    pub fn tree_of(&self, command: &str, key: &[u8]) -> &RouteTree {
        let prefix = self.prefixes.iter().find(|(prefix, _)| key.starts_with(prefix.as_bytes()));
        prefix.map(|(_, tree)| tree).or_else(|| self.commands.get(command)).unwrap_or(&self.default)
    }
}

/// A route: turns a request into requests to pools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteTree {
    /// The server that the ring of a pool chooses.
    Pool(String),
    /// The first pool, and the next ones after an error.
    Failover {
        /// The pools.
        pools: Vec<String>,
        /// True if reads try the next pool after a miss, too.
        on_miss: bool,
        /// The maximum time to live of a record that is written to another pool than the first.
        ttl: Duration,
    },
    /// Copies of each record.
    Replicate {
        /// The pools. Each has a copy.
        pools: Vec<String>,
        /// The number of servers that have a copy. Only for a single pool; otherwise 1.
        copies: usize,
        /// The choice of the copy for reads.
        read: ReplicaRead,
        /// The answer to a write.
        write: ReplicaWrite,
        /// True if reads try the next copy after a miss, too.
        on_miss: bool,
        /// True if a hit is added to the copies that missed.
        repair: bool,
    },
    /// A new pool that is filled from an old one.
    WarmUp {
        /// The new pool.
        new: String,
        /// The old pool.
        old: String,
        /// The time to live of records that are added to the new pool. `None` means that they keep
        /// theirs.
        ttl: Option<Duration>,
    },
    /// A move of keys from an old pool to a new one, a few at a time.
    Migrate {
        /// The new pool.
        new: String,
        /// The old pool.
        old: String,
        /// The beginning, in Unix milliseconds.
        start_ms: u64,
        /// The duration.
        over: Duration,
    },
    /// A copy of some requests to another pool. Its answers are dropped.
    Shadow {
        /// The pool that gets the copies.
        pool: String,
        /// The share of the keys, in millionths.
        share_ppm: u32,
        /// The copied requests.
        requests: ShadowedRequests,
        /// The route that answers.
        with: Box<RouteTree>,
    },
    /// A cache in the proxy.
    Near {
        /// The route that answers misses and writes.
        with: Box<RouteTree>,
        /// The time for which a copy is kept.
        ttl: Duration,
        /// The maximum number of bytes of the cache.
        bytes_max: u64,
        /// The maximum number of records of the cache. `None` means that only `bytes_max` applies.
        records_max: Option<usize>,
        /// True if only keys are kept that were requested three times within `ttl`.
        hot: bool,
        /// True if only one of several equal reads is sent.
        coalesce: bool,
        /// True if all equal routes of a listener have one cache.
        is_shared: bool,
    },
    /// A limit on times to live.
    Ttl {
        /// The maximum time to live.
        max: Duration,
        /// The route that answers.
        with: Box<RouteTree>,
    },
    /// A limit on requests.
    Limit {
        /// The maximum number of requests in a second.
        per_second: u32,
        /// The route that answers.
        with: Box<RouteTree>,
    },
    /// A `CLIENT_ERROR` for each request.
    Refuse,
    /// A miss for each request.
    Null,
}

impl RouteTree {
    /// Returns the pools of a route, those that answer first. A pool may occur several times.
    pub fn pools(&self) -> Vec<&str> {
        match self {
            RouteTree::Pool(pool) => vec![pool],
            RouteTree::Failover { pools, .. } | RouteTree::Replicate { pools, .. } => {
                pools.iter().map(String::as_str).collect()
            }
            RouteTree::WarmUp { new, old, .. } | RouteTree::Migrate { new, old, .. } => vec![new, old],
            RouteTree::Shadow { pool, with, .. } => {
                let mut pools = with.pools();
                pools.push(pool);
                pools
            }
            RouteTree::Near { with, .. } | RouteTree::Ttl { with, .. } | RouteTree::Limit { with, .. } => {
                with.pools()
            }
            RouteTree::Refuse | RouteTree::Null => Vec::new(),
        }
    }
}

/// The choice of the copy that a read of replicated records uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaRead {
    /// The first copy.
    First,
    /// A copy in the zone of the proxy.
    Nearest,
    /// A random copy.
    Random,
    /// All copies at once; the first hit is the answer.
    Fastest,
    /// All copies at once; the value of more than half of them is the answer, or else the first
    /// copy's.
    Majority,
}

/// The answer to a write of replicated records, which goes to all copies at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaWrite {
    /// The worst answer.
    All,
    /// The answer of the first copy.
    First,
    /// The answer of more than half of the copies.
    Majority,
    /// The first success.
    Any,
}

/// The requests of which a shadow route sends copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShadowedRequests {
    /// Only reads.
    Reads,
    /// Only writes.
    Writes,
    /// All requests.
    All,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_precede_commands_and_the_default() {
        let routes = ProxyRoutes {
            prefixes: vec![("a:b:".into(), RouteTree::Refuse), ("a:".into(), RouteTree::Pool("a".into()))],
            commands: BTreeMap::from([("flush_all".into(), RouteTree::Null)]),
            ..ProxyRoutes::to_pool("main")
        };
        for (command, key, pools) in [
            ("get", "x", &["main"][..]),
            ("get", "a:x", &["a"]),
            ("get", "a:b:x", &[]),
            ("flush_all", "", &[]),
            ("flush_all", "a:", &["a"]),
        ] {
            assert_eq!(routes.tree_of(command, key.as_bytes()).pools(), pools, "{command} {key}");
        }
    }

    #[test]
    fn pools_are_listed_in_the_order_of_answers() {
        let near = RouteTree::Near {
            with: Box::new(RouteTree::WarmUp { new: "new".into(), old: "old".into(), ttl: None }),
            ttl: Duration::from_secs(1),
            bytes_max: 1,
            records_max: None,
            hot: false,
            coalesce: false,
            is_shared: false,
        };
        let shadow = RouteTree::Shadow {
            pool: "test".into(),
            share_ppm: 1,
            requests: ShadowedRequests::All,
            with: Box::new(near),
        };
        assert_eq!(shadow.pools(), ["new", "old", "test"]);
    }
}
