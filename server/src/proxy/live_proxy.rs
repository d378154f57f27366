//! Holds the version of the proxy's state that is in use, and replaces it while clients are served.
//!
//! A state never changes. Each worker adopts a new one at the beginning of a turn; requests under
//! way keep the old one. Servers that both have keep their connections, health and counters.

use super::proxy_counters::ProxyCounters;
use super::proxy_state::ProxyState;
use crate::handle::ServerHandle;
use crate::observation::hot_keys::HotKeys;
use crate::options::{ListenerPlace, OptionsError, ProxyListener, ProxyOptions};
use crate::transport::acceptor::ListenerChanges;
use crate::transport::served_listener::{ListenerClients, ServedListener};
use crate::transport::tls::Tls;
use std::collections::BTreeMap;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};

/// The number of keys for which the servers of an old and a new ring are compared.
const COMPARED_KEYS: u32 = 10_000;

/// The state in use.
pub(crate) struct LiveProxy {
    version: AtomicU64,
    state: Mutex<Arc<ProxyState>>,
    /// The numbers of reloads that succeeded and that failed.
    reloads: [AtomicU64; 2],
    pub(crate) counters: ProxyCounters,
    pub(crate) hot_keys: HotKeys,
    /// The clients of each open listener.
    clients: Mutex<BTreeMap<usize, Arc<ListenerClients>>>,
}

impl LiveProxy {
    pub(crate) fn new(state: ProxyState) -> LiveProxy {
        LiveProxy {
            version: AtomicU64::new(1),
            state: Mutex::new(Arc::new(state)),
            reloads: Default::default(),
            counters: ProxyCounters::default(),
            hot_keys: HotKeys::default(),
            clients: Mutex::default(),
        }
    }

    /// Returns the number of the version in use, from 1.
    #[inline]
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Relaxed)
    }

    /// Returns the state in use.
    pub(crate) fn state(&self) -> Arc<ProxyState> {
        Arc::clone(&self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the numbers of reloads that succeeded and that failed.
    pub(crate) fn reloads(&self) -> [u64; 2] {
        self.reloads.each_ref().map(|count| count.load(Ordering::Relaxed))
    }

    /// Returns the number of the clients of a pool's own listeners, of those that have left after a
    /// failure, and of the others that have left. A pool without a listener has the clients of all
    /// common listeners.
    pub(crate) fn clients_of(&self, pool: &str) -> [u64; 3] {
        let listeners = self.state().listeners();
        let is_own =
            |number: &usize| listeners.get(number).is_some_and(|one| one.pool.as_deref() == Some(pool));
        let is_common = |number: &usize| listeners.get(number).is_none_or(|one| one.pool.is_none());
        let has_own = listeners.keys().any(is_own);
        let clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let of_pool =
            clients.iter().filter(|(number, _)| if has_own { is_own(number) } else { is_common(number) });
        of_pool.fold([0; 3], |[a, b, c], (_, clients)| {
            let [current, failed, left] = clients.counts();
            [a + current, b + failed, c + left]
        })
    }

    /// Returns the port of a pool's own listener, or else 0.
    pub(crate) fn port_of(&self, pool: &str) -> u16 {
        let listeners = self.state().listeners();
        let own = listeners.values().find(|listener| listener.pool.as_deref() == Some(pool));
        match own.map(|listener| &listener.place) {
            Some(ListenerPlace::Tcp(address)) => {
                address.rsplit(':').next().and_then(|port| port.parse().ok()).unwrap_or_default()
            }
            _ => 0,
        }
    }

    fn set_clients(&self, clients: &BTreeMap<usize, Arc<ListenerClients>>) {
        *self.clients.lock().unwrap_or_else(PoisonError::into_inner) = clients.clone();
    }

    /// Sets all counters to 0, except those of reloads.
    pub(crate) fn reset_counters(&self) {
        self.counters.reset();
        for pool in &self.state().pools {
            pool.counters.reset();
            pool.servers.iter().for_each(|server| server.counters.reset());
        }
    }

    fn replace(&self, state: Arc<ProxyState>) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
        // The state is stored first, so a worker that sees the number gets this state or a later
        // one.
        self.version.fetch_add(1, Ordering::SeqCst);
    }
}

/// Returns the error with which a proxy does not start with these options, except for those of
/// listeners. Reads the files that the options name.
pub fn check_proxy(options: &ProxyOptions) -> Result<(), OptionsError> {
    ProxyState::new(options).map(|_| ())
}

/// Replaces the options of a running proxy.
#[derive(Clone)]
pub struct ProxyReloader(Arc<ReloaderState>);

struct ReloaderState {
    live: Arc<LiveProxy>,
    handle: ServerHandle,
    tls: Option<Arc<Tls>>,
    /// The port of addresses without one.
    port: u16,
    changes: Sender<ListenerChanges>,
    /// The clients of each open listener. The lock is held during a reload.
    clients: Mutex<BTreeMap<usize, Arc<ListenerClients>>>,
}

impl ProxyReloader {
    pub(crate) fn new(
        live: &Arc<LiveProxy>,
        handle: &ServerHandle,
        tls: Option<&Arc<Tls>>,
        port: u16,
        changes: Sender<ListenerChanges>,
        listeners: &[ServedListener],
    ) -> ProxyReloader {
        let clients = listeners.iter().map(|listener| (listener.number, Arc::clone(&listener.clients)));
        let clients = clients.collect();
        live.set_clients(&clients);
        ProxyReloader(Arc::new(ReloaderState {
            live: Arc::clone(live),
            handle: handle.clone(),
            tls: tls.cloned(),
            port,
            changes,
            clients: Mutex::new(clients),
        }))
    }

    /// Serves with these options from now on. Requests under way are completed with the old ones.
    /// Fails, and changes nothing, if the options cannot be used or a listener cannot be opened.
    pub fn reload(&self, options: &ProxyOptions) -> io::Result<()> {
        let outcome = self.replace(options);
        self.0.live.reloads[usize::from(outcome.is_err())].fetch_add(1, Ordering::Relaxed);
        outcome
    }

    /// Notes that the options could not be read, for the statistics.
    pub fn note_failure(&self) {
        self.0.live.reloads[1].fetch_add(1, Ordering::Relaxed);
    }

    fn replace(&self, options: &ProxyOptions) -> io::Result<()> {
        let reloader = &*self.0;
        let mut clients = reloader.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let old = reloader.live.state();
        let unusable = |error: OptionsError| io::Error::new(io::ErrorKind::InvalidInput, error);
        let new = ProxyState::following(options, Some(&old)).map_err(unusable)?;
        let (before, after) = (old.listeners(), new.listeners());
        let mut opened = Vec::new();
        for (number, listener) in &after {
            if !before.contains_key(number) {
                let tls = reloader.tls.as_ref();
                opened.extend(ServedListener::open(*number, listener, reloader.port, tls)?);
            }
        }
        for (number, listener) in &after {
            if let Some(before) = before.get(number) {
                set_mode(before, listener)?;
            }
        }
        for (number, listener) in &after {
            if let Some(clients) = clients.get(number) {
                clients.set_max(listener.clients_max);
            }
        }
        let closed: Vec<usize> =
            before.keys().copied().filter(|number| !after.contains_key(number)).collect();
        clients.retain(|number, _| !closed.contains(number));
        clients.extend(opened.iter().map(|listener| (listener.number, Arc::clone(&listener.clients))));
        reloader.live.set_clients(&clients);
        new.resolve_all(true);
        log_moved_keys(&old, &new);
        reloader.live.replace(Arc::new(new));
        // A listener is opened after the workers can know its number.
        let _ = reloader.changes.send(ListenerChanges { opened, closed });
        reloader.handle.wake();
        Ok(())
    }
}

/// Gives the file of a Unix socket its new permissions.
fn set_mode(before: &ProxyListener, after: &ProxyListener) -> io::Result<()> {
    match (&before.place, &after.place) {
        (ListenerPlace::Unix { mode: before, .. }, ListenerPlace::Unix { path, mode }) if before != mode => {
            std::fs::set_permissions(path, Permissions::from_mode(*mode))
        }
        _ => Ok(()),
    }
}

/// Logs the share of keys that have another server in the new version of a pool.
fn log_moved_keys(old: &ProxyState, new: &ProxyState) {
    for pool in &new.pools {
        let Some(before) = old.pools.iter().find(|before| before.name == pool.name) else { continue };
        if before.options == pool.options {
            continue;
        }
        let has_moved = |key: &String| before.label_of(key.as_bytes()) != pool.label_of(key.as_bytes());
        let keys = (0..COMPARED_KEYS).map(|number| format!("key:{number}"));
        let moved = keys.filter(has_moved).count();
        if moved > 0 {
            tracing::warn!(
                "proxy: pool {}: {:.1} % of the keys have another server now",
                pool.name,
                moved as f64 * 100.0 / f64::from(COMPARED_KEYS)
            );
        }
    }
}
