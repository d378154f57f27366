//! Ejects servers that are down: their keys go to the other servers of the pool until they are up.

use super::pool_server::PoolServer;
use super::server_health::HEALTH_CHANGES;
use crate::options::PoolOptions;
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
    pub(super) fn choice(
        &self,
        servers: &[Arc<PoolServer>],
        options: &PoolOptions,
    ) -> Option<Arc<ServerChoice>> {
        if HEALTH_CHANGES.load(Ordering::Acquire) != self.seen.load(Ordering::Relaxed) {
            self.rebuild(servers, options);
        }
        if !self.is_reduced.load(Ordering::Relaxed) {
            return None;
        }
        self.choice.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    #[cold]
    fn rebuild(&self, servers: &[Arc<PoolServer>], options: &PoolOptions) {
        // Requests of other workers need not wait for a new ring.
        let Ok(mut choice) = self.choice.try_write() else { return };
        let changes = HEALTH_CHANGES.load(Ordering::Acquire);
        let is_live: Vec<bool> = servers.iter().map(|server| !server.health.is_down()).collect();
        *choice = match is_live.contains(&true) && is_live.contains(&false) {
            true => options.server_choice(|server| is_live[server]).ok().map(Arc::new),
            false => None,
        };
        self.is_reduced.store(choice.is_some(), Ordering::Relaxed);
        self.seen.store(changes, Ordering::Relaxed);
    }
}
