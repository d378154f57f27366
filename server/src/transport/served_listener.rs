//! Defines a listener as the acceptor has it: a socket, its place among the listeners of a proxy,
//! and the number of its clients.

use crate::options::{ListenerPlace, ProxyListener, ServerOptions};
use crate::transport::addresses::places;
use crate::transport::listener::{ClientListener, ClientStream, ListenTls, Transport, open_each};
use crate::transport::tls::Tls;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use todana_protocol::memcached::DialectChoice;

/// A listener of the acceptor. A listener of a proxy may have several sockets.
pub(crate) struct ServedListener {
    pub(crate) socket: ClientListener,
    /// The number of the listener among those of the proxy, which chooses its routes. 0 if the
    /// server is no proxy.
    pub(crate) number: usize,
    pub(crate) clients: Arc<ListenerClients>,
}

/// A new connection.
pub(crate) struct NewConnection {
    pub(crate) stream: ClientStream,
    /// The dialect of the connection's listener; `None` means the dialect of the server.
    pub(crate) choice: Option<DialectChoice>,
    /// The number of the listener.
    pub(crate) listener: usize,
    pub(crate) client: ListenerClient,
}

/// The number of clients of a listener, and its limit.
pub(crate) struct ListenerClients {
    max: AtomicUsize,
    current: AtomicUsize,
    accepted: AtomicU64,
    failed: AtomicU64,
}

impl ListenerClients {
    fn new(max: Option<usize>) -> Arc<ListenerClients> {
        let max = AtomicUsize::new(max.unwrap_or(usize::MAX));
        let [accepted, failed] = Default::default();
        Arc::new(ListenerClients { max, current: AtomicUsize::new(0), accepted, failed })
    }

    /// Sets the limit. `None` means that there is none.
    pub(crate) fn set_max(&self, max: Option<usize>) {
        self.max.store(max.unwrap_or(usize::MAX), Ordering::Relaxed);
    }

    /// Returns the number of clients, of those that have left after a failure, and of the others
    /// that have left.
    pub(crate) fn counts(&self) -> [u64; 3] {
        let current = self.current.load(Ordering::Relaxed) as u64;
        let failed = self.failed.load(Ordering::Relaxed);
        let accepted = self.accepted.load(Ordering::Relaxed);
        [current, failed, accepted.saturating_sub(current + failed)]
    }

    /// Returns true if the listener may have no more clients.
    pub(crate) fn are_full(&self) -> bool {
        self.current.load(Ordering::Relaxed) >= self.max.load(Ordering::Relaxed)
    }
}

/// A client of a listener. Counts until it is dropped.
pub(crate) struct ListenerClient(Arc<ListenerClients>);

impl ListenerClient {
    pub(crate) fn new(clients: &Arc<ListenerClients>) -> ListenerClient {
        clients.accepted.fetch_add(1, Ordering::Relaxed);
        clients.current.fetch_add(1, Ordering::Relaxed);
        ListenerClient(Arc::clone(clients))
    }
}

impl ListenerClient {
    /// Notes that the connection has failed.
    pub(crate) fn fail(&self) {
        self.0.failed.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns true if the listener has more clients than it may have.
    pub(crate) fn is_surplus(&self) -> bool {
        self.0.current.load(Ordering::Relaxed) > self.0.max.load(Ordering::Relaxed)
    }
}

impl Drop for ListenerClient {
    fn drop(&mut self) {
        self.0.current.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ServedListener {
    /// Opens all listeners of the options: those of the proxy, if it names any.
    pub(crate) fn open_all(
        options: &ServerOptions,
        tls: Option<&Arc<Tls>>,
    ) -> io::Result<Vec<ServedListener>> {
        let proxy = options.proxy.as_ref().map_or(&[][..], |proxy| &proxy.listeners);
        if proxy.is_empty() {
            let clients = ListenerClients::new(None);
            let serve = |socket| ServedListener { socket, number: 0, clients: Arc::clone(&clients) };
            return Ok(ClientListener::open(options, tls)?.into_iter().map(serve).collect());
        }
        let mut listeners = Vec::new();
        for (number, listener) in proxy.iter().enumerate() {
            listeners.extend(ServedListener::open(number, listener, options.listen.port, tls)?);
        }
        Ok(listeners)
    }

    /// Accepts the next waiting connection.
    pub(crate) fn accept(&self) -> io::Result<NewConnection> {
        let stream = self.socket.accept_stream()?;
        let client = ListenerClient::new(&self.clients);
        Ok(NewConnection { stream, choice: self.socket.speaks().1, listener: self.number, client })
    }

    /// Opens the sockets of a listener of the proxy.
    pub(crate) fn open(
        number: usize,
        listener: &ProxyListener,
        port: u16,
        tls: Option<&Arc<Tls>>,
    ) -> io::Result<Vec<ServedListener>> {
        let backlog = listener.backlog;
        let sockets = match &listener.place {
            ListenerPlace::Unix { path, mode } => vec![ClientListener::open_unix(path, *mode, backlog)?],
            ListenerPlace::Tcp(address) => {
                let names = places(std::slice::from_ref(address), port)?;
                open_each(names, Transport::Tcp, |address, mode| {
                    let secure = tls.and_then(|tls| ListenTls::at(tls, mode.tls));
                    let socket = ClientListener::open_tcp(address, backlog)?;
                    Ok(ClientListener::Tcp(socket, secure, mode.choice))
                })?
            }
        };
        let clients = ListenerClients::new(listener.clients_max);
        let serve = |socket| ServedListener { socket, number, clients: Arc::clone(&clients) };
        Ok(sockets.into_iter().map(serve).collect())
    }
}
