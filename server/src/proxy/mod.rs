//! The proxy: passes the requests of clients on to the servers that hold the keys.
//!
//! ```text
//! proxy_state    pools, listeners, and the targets of requests; shared by all workers
//! proxy_pool     a pool: its servers, and the choice among them
//! pool_server    a server: its addresses, health and counters
//! live_proxy     the state in use, and its replacement
//! route          the routes that need more than the choice of a server in one pool
//! ejection       other servers for the keys of servers that are down
//! near_cache     copies of values in the proxy;  recent_requests: the keys that are worth a copy
//! route_table    the routes of a listener;  kept_filters: caches and limits that outlive a reload
//! tallies        counters and times, with a copy for each worker
//! server_counters, proxy_counters   the counters of a server, of a pool and of the proxy
//! proxy_metrics  the metrics
//! turn_queue     the sessions that wait because too many requests are in flight
//! kept_bytes     the memory of requests under way
//! server_resolver the thread that resolves names
//! server_health  whether a server is up, and when to probe it again
//! server_access  certificates and logins
//! proxy_worker   the links of one worker to all servers
//! server_link    the connections of one worker to one server
//! shared_reads   equal reads with one reply;  server_request: the identity of a request
//! value_lanes    who uses the connections for long values
//! ```
//!
//! A request of a client goes from its session (`session::proxy`) to the worker's connection to the
//! server, and its reply goes back to that session. No request passes from one worker to another.
//! Not here: rings and sockets (`todana_client`), the order of replies (`session::proxy`).

mod ejection;
mod kept_bytes;
mod kept_filters;
mod live_proxy;
mod near_cache;
mod pool_server;
mod proxy_counters;
mod proxy_metrics;
mod proxy_pool;
mod proxy_state;
mod proxy_worker;
mod recent_requests;
mod route;
mod route_table;
mod server_access;
mod server_counters;
mod server_health;
mod server_link;
mod server_request;
mod server_resolver;
mod shared_reads;
mod tallies;
mod turn_queue;
mod value_lanes;

pub(crate) use kept_bytes::{CountedBytes, KeptBytes};
pub(crate) use live_proxy::LiveProxy;
pub use live_proxy::{ProxyReloader, check_proxy};
pub(crate) use near_cache::{NearCache, NearFill};
pub(crate) use pool_server::PoolServer;
pub(crate) use proxy_counters::{ClientCommand, PoolSums, ProxyCount};
pub(crate) use proxy_pool::ProxyPool;
pub(crate) use proxy_state::{ProxyState, ServerPlace};
pub(crate) use proxy_worker::{ProxyWorker, TimedPool};
pub(crate) use route::{PoolRoute, Route, RouteFilter, has_moved, is_in_share};
pub(crate) use route_table::RouteTarget;
pub(crate) use server_counters::ServerCount;
pub(crate) use server_request::{ReplyDelivery, RequestTag, SERVER_TOKENS, SendRefusal};
pub(crate) use server_resolver::ServerResolver;
