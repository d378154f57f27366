//! Ejects servers that are down: their keys go to the other servers of the pool until they are up.

use super::proxy_state::ProxyPool;
use super::server_health::HEALTH_CHANGES;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use todana_client::ring::ServerChoice;

/// The choice among the servers of a pool that are up.
#[derive(Default)]
pub(super) struct Ejection {
    /// The number of changes of health that `choice` takes into account.
    seen: AtomicU64,
    /// True if there is a choice, so that requests need no lock while all servers are up.
    is_reduced: AtomicBool,
    /// `None` while all servers are up, or none.
    choice: RwLock<Option<Arc<ServerChoice>>>,
}

impl Ejection {
    /// Returns the choice among the servers that are up, or `None` if keys have their own servers.
    #[inline]
    pub(super) fn choice(&self, pool: &ProxyPool) -> Option<Arc<ServerChoice>> {
        if HEALTH_CHANGES.load(Ordering::Acquire) != self.seen.load(Ordering::Relaxed) {
            self.rebuild(pool);
        }
        if !self.is_reduced.load(Ordering::Relaxed) {
            return None;
        }
        self.choice.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    #[cold]
    fn rebuild(&self, pool: &ProxyPool) {
        // Requests of other workers need not wait for a new ring.
        let Ok(mut choice) = self.choice.try_write() else { return };
        let changes = HEALTH_CHANGES.load(Ordering::Acquire);
        let is_live: Vec<bool> = pool.servers.iter().map(|server| !server.health.is_down()).collect();
        *choice = match is_live.contains(&true) && is_live.contains(&false) {
            true => pool.options.server_choice(|server| is_live[server]).ok().map(Arc::new),
            false => None,
        };
        self.is_reduced.store(choice.is_some(), Ordering::Relaxed);
        self.seen.store(changes, Ordering::Relaxed);
    }
}

impl ProxyPool {
    /// Returns the server of a key: that of the ring, or with `eject` another one while it is down.
    #[inline]
    pub(crate) fn server_of(&self, key: &[u8]) -> usize {
        let choice = self.ejection.as_ref().and_then(|ejection| ejection.choice(self));
        choice.as_deref().unwrap_or(&self.ring).server_of(key)
    }

    /// Returns true if another server than the one of the ring has the key now. A record that is
    /// stored there must not live longer than `stand-in-ttl`.
    pub(crate) fn is_stood_in(&self, key: &[u8]) -> bool {
        self.ejection.is_some() && self.server_of(key) != self.ring.server_of(key)
    }
}
