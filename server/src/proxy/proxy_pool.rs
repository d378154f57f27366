//! Defines a pool: its servers, and the choice of the server of a key.

use super::ejection::Ejection;
use super::pool_server::PoolServer;
use super::proxy_counters::PoolCounters;
use crate::options::{PoolOptions, PoolProtocol};
use std::sync::Arc;
use todana_client::ring::{ServerChoice, VbucketMap};
use todana_protocol::memcached::client::set_packet_vbucket;

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
        self.live_choice().as_deref().unwrap_or(&self.ring).server_of(key)
    }

    /// Returns the server of a key. `None` if it takes the place of another one, and the request
    /// sets a time to live: a record that is stored there must not live longer than
    /// `stand-in-ttl`.
    #[inline]
    pub(super) fn unlimited_server_of(&self, key: &[u8], sets_ttl: bool) -> Option<usize> {
        let Some(choice) = self.live_choice() else { return Some(self.ring.server_of(key)) };
        let server = choice.server_of(key);
        (!sets_ttl || server == self.ring.server_of(key)).then_some(server)
    }

    /// Returns the servers of a number of copies of a key, that of the key first.
    pub(super) fn ranked(&self, key: &[u8], copies: usize) -> Vec<usize> {
        let mut ranked = Vec::new();
        self.live_choice().as_deref().unwrap_or(&self.ring).rank(key, copies, &mut ranked);
        ranked
    }

    /// Returns true if one of the copies of a key is at another server than the ring's.
    pub(crate) fn is_stood_in(&self, key: &[u8], copies: usize) -> bool {
        self.live_choice().is_some_and(|choice| {
            let (mut live, mut own) = (Vec::new(), Vec::new());
            choice.rank(key, copies, &mut live);
            self.ring.rank(key, copies, &mut own);
            live != own
        })
    }

    /// Returns the choice among the servers that are up, if one is ejected.
    #[inline]
    fn live_choice(&self) -> Option<Arc<ServerChoice>> {
        self.ejection.as_ref().and_then(|ejection| ejection.choice(&self.servers, &self.options))
    }

    /// Returns the map of vbuckets, if requests carry their vbucket: only binary servers have them.
    #[inline]
    pub(crate) fn vbuckets(&self) -> Option<&VbucketMap> {
        match &self.ring {
            ServerChoice::Vbuckets(map) if self.options.speak == PoolProtocol::Binary => Some(map),
            _ => None,
        }
    }

    /// Writes the vbucket of a key into a request, if the pool has a map of vbuckets.
    #[inline]
    pub(crate) fn put_vbucket(&self, key: &[u8], request: &mut [u8]) {
        if let Some(map) = self.vbuckets() {
            set_packet_vbucket(request, map.slot_of(key));
        }
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
