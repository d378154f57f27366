//! Defines a pool: its servers, and the choice of the server of a key.

use super::ejection::Ejection;
use super::pool_server::PoolServer;
use super::proxy_counters::PoolCounters;
use crate::options::PoolOptions;
use std::sync::Arc;
use todana_client::ring::ServerChoice;

/// A pool of servers.
pub(crate) struct ProxyPool {
    pub(crate) name: String,
    pub(crate) options: Arc<PoolOptions>,
    pub(crate) ring: ServerChoice,
    pub(crate) counters: Arc<PoolCounters>,
    /// With `eject`.
    pub(super) ejection: Option<Ejection>,
    pub(crate) servers: Vec<Arc<PoolServer>>,
}

impl ProxyPool {
    /// Returns the server of a key: that of the ring, or with `eject` another one while it is down.
    #[inline]
    pub(crate) fn server_of(&self, key: &[u8]) -> usize {
        let choice =
            self.ejection.as_ref().and_then(|ejection| ejection.choice(&self.servers, &self.options));
        choice.as_deref().unwrap_or(&self.ring).server_of(key)
    }

    /// Returns true if another server than the one of the ring has the key now. A record that is
    /// stored there must not live longer than `stand-in-ttl`.
    pub(crate) fn is_stood_in(&self, key: &[u8]) -> bool {
        self.ejection.is_some() && self.server_of(key) != self.ring.server_of(key)
    }

    /// Returns the label of the server of a key.
    pub(super) fn label_of(&self, key: &[u8]) -> &str {
        &self.servers[self.ring.server_of(key)].label
    }

    /// Returns true if connections to servers may stay when the pool gets these options.
    pub(super) fn is_spoken_to_as(&self, options: &PoolOptions) -> bool {
        let PoolOptions { tls, login, speak, .. } = &*self.options;
        (tls, login, speak) == (&options.tls, &options.login, &options.speak)
    }
}
