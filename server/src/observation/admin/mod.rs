//! Serves the admin pages on a port of their own: a page for people, and figures for monitoring.
//!
//! ```text
//! http        bytes -> request, response -> bytes
//! connection  answers requests one after another, or sends events
//! pages       /  /healthz  /readyz  /metrics  /metrics/totals, and the files in page/
//! metrics     measurements -> exposition, Prometheus' text format
//! api         /api/: JSON for the page, for those who may use it
//! ```
//!
//! Invariants: one thread serves the pages, and it is not a worker. A request is limited in size
//! and time, and the number of connections is limited. A new connection is always accepted: it
//! replaces the connection that has been idle longest.
//!
//! These pages are not on the common port, because each path there is the key of a record.

mod api;
mod connection;
mod exposition;
mod http;
mod metrics;
mod pages;

use crate::options::{AdminOptions, ListenOptions, ServerOptions};
use crate::shared::SharedState;
use crate::transport::listener::{ClientListener, ClientStream};
use api::ApiAccess;
use connection::{AdminConnection, ConnectionFate};
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token, Waker};
use pages::AdminPages;
use slab::Slab;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The maximum number of connections at one time.
pub(crate) const CONNECTIONS_MAX: usize = 32;
const BACKLOG: u32 = 128;
/// The duration of a pause in accepting, if no descriptors are left.
const PAUSE: Duration = Duration::from_millis(100);
/// The maximum number of connections that are accepted before existing ones are served again.
const ACCEPTED_AT_ONCE: usize = 8;

/// The minimum length of a token. Nothing limits how often a client may guess.
const TOKEN_LEN_MIN: usize = 16;
/// The time between two events with the status of the server.
const EVENT_INTERVAL: Duration = Duration::from_secs(1);

const WAKE: Token = Token(usize::MAX);
/// The lowest token of a connection. Lower tokens are those of listeners.
const FIRST_CONNECTION: usize = 1 << 16;

/// The bound listener of the admin pages.
pub(crate) struct AdminListener {
    poll: Poll,
    stopper: AdminStopper,
    listeners: Vec<ClientListener>,
    addresses: Vec<SocketAddr>,
    connections: Slab<AdminConnection<TcpStream>>,
    token: Option<String>,
    may_write: bool,
    /// The time of the next event for connections that receive events.
    next_event: Instant,
}

/// The reason why the admin pages could not be started. It is the inner error of a server that
/// requires them.
#[derive(Debug)]
pub struct AdminError(io::Error);

impl fmt::Display for AdminError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "admin pages: cannot be served (--admin-port, TODANA_ADMIN_PORT): {}", self.0)
    }
}

impl std::error::Error for AdminError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

/// Stops the thread of the admin pages.
#[derive(Clone)]
pub(crate) struct AdminStopper {
    waker: Arc<Waker>,
    ends: Arc<AtomicBool>,
}

impl AdminStopper {
    pub(crate) fn end(&self) {
        self.ends.store(true, Ordering::SeqCst);
        // The wake-up fails if the loop has ended already, and is then not needed.
        let _ = self.waker.wake();
    }
}

/// Returns the token in the first line of a file.
fn read_token(file: &Path) -> io::Result<String> {
    let fail =
        |kind, why: String| io::Error::new(kind, format!("--admin-token-file {}: {why}", file.display()));
    let text = std::fs::read_to_string(file).map_err(|error| fail(error.kind(), error.to_string()))?;
    let token = text.lines().next().unwrap_or_default().trim();
    if token.len() < TOKEN_LEN_MIN {
        let why = format!("the token needs {TOKEN_LEN_MIN} characters at least");
        return Err(fail(io::ErrorKind::InvalidInput, why));
    }
    Ok(token.to_string())
}

impl AdminListener {
    /// Binds the addresses of the options. Returns `None` if there are no pages, or if the
    /// addresses cannot be bound and the pages are not required.
    pub(crate) fn bind(options: Option<&AdminOptions>) -> io::Result<Option<AdminListener>> {
        let Some(options) = options else { return Ok(None) };
        match AdminListener::listen(options) {
            Ok(admin) => {
                for address in &admin.addresses {
                    tracing::info!("admin pages on http://{address}/");
                }
                Ok(Some(admin))
            }
            Err(error) => {
                let error = AdminError(error);
                if options.is_required {
                    return Err(io::Error::new(error.0.kind(), error));
                }
                tracing::warn!("{error}");
                Ok(None)
            }
        }
    }

    fn listen(admin: &AdminOptions) -> io::Result<AdminListener> {
        let options = ServerOptions {
            listen: ListenOptions {
                addresses: admin.listen.clone(),
                port: admin.port,
                backlog: BACKLOG,
                ..ListenOptions::default()
            },
            ..ServerOptions::default()
        };
        // The validation refuses addresses that request TLS.
        options.validate().map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error.to_string()))?;
        let mut listeners = ClientListener::open(&options, None)?;
        let addresses = listeners.iter().filter_map(ClientListener::tcp_address).collect();
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKE)?);
        for (index, listener) in listeners.iter_mut().enumerate() {
            listener.register(poll.registry(), Token(index))?;
        }
        let stopper = AdminStopper { waker, ends: Arc::new(AtomicBool::new(false)) };
        let (token, may_write) = (admin.token_file.as_deref().map(read_token).transpose()?, admin.may_write);
        let (connections, next_event) = (Slab::new(), Instant::now());
        Ok(AdminListener { poll, stopper, listeners, addresses, connections, token, may_write, next_event })
    }

    /// Returns the bound addresses, with the ports that the system chose.
    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    pub(crate) fn stopper(&self) -> AdminStopper {
        self.stopper.clone()
    }

    /// Serves until the stopper is used.
    pub(crate) fn run(mut self, shared: Arc<SharedState>) {
        let is_local = self.addresses.iter().all(|address| address.ip().is_loopback());
        let wants_proof = shared.logins.are_wanted() || shared.options.listen.requires_client_certificates();
        let is_open = is_local && !wants_proof;
        let access = ApiAccess::new(self.token.take(), is_open, self.may_write);
        let mut pages = AdminPages::new(shared, access);
        let mut events = Events::with_capacity(64);
        // The listeners that may have more connections.
        let mut pending: Vec<usize> = Vec::new();
        let mut pause = Duration::ZERO;
        while !self.stopper.ends.load(Ordering::SeqCst) {
            let next_deadline = self.connections.iter().map(|(_, one)| one.deadline).min();
            let next_event = self.has_streams().then_some(self.next_event);
            let next = [next_deadline, next_event].into_iter().flatten().min();
            let timeout = next.map(|next| next.saturating_duration_since(Instant::now()));
            let timeout =
                if pending.is_empty() { timeout } else { Some(timeout.map_or(pause, |t| t.min(pause))) };
            if let Err(error) = self.poll.poll(&mut events, timeout)
                && error.kind() != io::ErrorKind::Interrupted
            {
                tracing::error!(%error, "admin pages: stopped, because waiting for requests failed");
                return;
            }
            let mut listening = std::mem::take(&mut pending);
            for event in &events {
                match event.token() {
                    WAKE => {}
                    Token(index) if index < FIRST_CONNECTION => listening.push(index),
                    Token(token) => self.proceed(token - FIRST_CONNECTION, &mut pages),
                }
            }
            listening.sort_unstable();
            listening.dedup();
            pause = Duration::ZERO;
            for index in listening {
                match self.accept(index, &mut pages) {
                    Ok(true) => pending.push(index),
                    Ok(false) => {}
                    Err(error) => {
                        tracing::debug!(%error, "admin pages: cannot accept a connection; trying again");
                        pending.push(index);
                        pause = PAUSE;
                    }
                }
            }
            self.send_events(&mut pages);
            self.end_late();
        }
    }

    fn has_streams(&self) -> bool {
        self.connections.iter().any(|(_, connection)| connection.is_streaming())
    }

    /// Sends an event to the connections that receive events, if it is due.
    fn send_events(&mut self, pages: &mut AdminPages) {
        let now = Instant::now();
        if now < self.next_event || !self.has_streams() {
            return;
        }
        self.next_event = now + EVENT_INTERVAL;
        let event = pages.status_event();
        let streams = self.connections.iter().filter(|(_, connection)| connection.is_streaming());
        let streams: Vec<usize> = streams.map(|(index, _)| index).collect();
        for index in streams {
            self.connections[index].push_event(&event, now);
            self.proceed(index, pages);
        }
    }

    /// Accepts some of the waiting connections. Returns true if more may be waiting.
    fn accept(&mut self, index: usize, pages: &mut AdminPages) -> io::Result<bool> {
        for _ in 0..ACCEPTED_AT_ONCE {
            match self.listeners[index].accept_stream() {
                Ok(ClientStream::Tcp(stream)) => self.admit(stream, pages),
                Ok(ClientStream::Tls(_) | ClientStream::Unix(_)) => {}
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return Ok(false),
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                    _ => return Err(error),
                },
            }
        }
        Ok(true)
    }

    fn admit(&mut self, stream: TcpStream, pages: &mut AdminPages) {
        if self.connections.len() >= CONNECTIONS_MAX {
            let oldest = self.connections.iter().min_by_key(|(_, one)| one.since).map(|(index, _)| index);
            oldest.map(|index| self.connections.remove(index));
        }
        let entry = self.connections.vacant_entry();
        let index = entry.key();
        let connection = entry.insert(AdminConnection::new(stream, Instant::now()));
        let (token, interest) = (Token(FIRST_CONNECTION + index), Interest::READABLE | Interest::WRITABLE);
        if self.poll.registry().register(&mut connection.socket, token, interest).is_err() {
            self.connections.remove(index);
            return;
        }
        // The request of a new connection has usually arrived already.
        self.proceed(index, pages);
    }

    fn proceed(&mut self, index: usize, pages: &mut AdminPages) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        let fate = connection.proceed(Instant::now(), pages);
        if fate == ConnectionFate::Ends {
            self.connections.remove(index);
        }
    }

    fn end_late(&mut self) {
        let now = Instant::now();
        self.connections.retain(|_, connection| connection.deadline > now);
    }
}
