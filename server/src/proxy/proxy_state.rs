//! Defines the state of the proxy that all workers share: pools, and the health and addresses of
//! their servers.

use super::server_health::{HealthLimits, ServerHealth};
use crate::options::{OptionsError, PoolOptions, ProxyOptions};
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use todana_client::Address;
use todana_client::ring::Ring;

/// The interval at which names are resolved again.
const RESOLVE_EVERY: Duration = Duration::from_secs(30);

/// The state of the proxy.
pub(crate) struct ProxyState {
    pub(crate) pools: Vec<ProxyPool>,
}

/// A pool of servers.
pub(crate) struct ProxyPool {
    pub(crate) options: PoolOptions,
    pub(crate) ring: Ring,
    pub(crate) servers: Vec<PoolServer>,
}

/// A server of a pool.
pub(crate) struct PoolServer {
    pub(crate) label: String,
    pub(crate) address: Address,
    pub(crate) health: ServerHealth,
    /// The address to which the name of the server was last resolved.
    resolved: Mutex<Option<SocketAddr>>,
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

impl ProxyState {
    /// Builds the pools. Fails if a ring cannot be built.
    pub(crate) fn new(options: &ProxyOptions) -> Result<ProxyState, OptionsError> {
        let pools = options.pools.iter().map(|(name, pool)| {
            let ring = Ring::new(&pool.ring, &pool.servers, |_| true)
                .map_err(|error| OptionsError::new(format!("pool {name}: {error}")))?;
            let servers = pool.servers.iter().map(|entry| PoolServer {
                label: entry.label().to_string(),
                address: entry.address.clone(),
                health: ServerHealth::new(HealthLimits {
                    failures: pool.failures,
                    retry: pool.retry,
                    retry_max: pool.retry_max,
                }),
                resolved: Mutex::new(numeric(&entry.address)),
            });
            Ok(ProxyPool { options: pool.clone(), ring, servers: servers.collect() })
        });
        Ok(ProxyState { pools: pools.collect::<Result<_, _>>()? })
    }

    /// Resolves the names of all servers. Blocks while the resolver works.
    fn resolve_all(&self) {
        self.pools.iter().flat_map(|pool| &pool.servers).for_each(PoolServer::resolve);
    }
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
        std::thread::Builder::new().name("resolver".into()).spawn(move || {
            loop {
                state.resolve_all();
                if is_over.recv_timeout(RESOLVE_EVERY) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        })?;
        Ok(ServerResolver { _ends: ends })
    }
}
