//! The connections of a worker to the servers of all pools.

use super::proxy_state::{PoolServer, ProxyState};
use crate::options::PoolOptions;
use mio::event::Event;
use mio::{Registry, Token};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use todana_client::Address;
use todana_client::pool::{LossReason, LostRequest, ReplyKind, ReplyPart, ServerConnection, ServerSocket};

/// Tokens from this number on belong to connections to servers.
pub(crate) const SERVER_TOKENS: usize = usize::MAX / 2;
/// The number of bytes of requests that may be kept for a server.
const KEPT_LEN_MAX: usize = 16 << 20;
/// The length of one read.
const BUFFER_LEN: usize = 64 << 10;

/// Identifies a request that waits for its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestTag {
    /// The index of the client's connection.
    pub(crate) connection: usize,
    /// The number of the session, because a later connection may have the same index.
    pub(crate) session: u64,
    /// The number of the request in its session.
    pub(crate) request: u64,
    /// The number of the part of the request, if it goes to several servers.
    pub(crate) part: u32,
    /// True if the request may be sent a second time, because its effect is then the same.
    pub(crate) may_repeat: bool,
}

/// What arrives for a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ReplyDelivery<'a> {
    /// A part of its reply.
    Part(ReplyPart<'a>),
    /// No more of its reply, because the connection to the server with this label is lost.
    Lost { label: &'a str, reason: LossReason },
}

/// The reason why a request was not accepted for a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendRefusal {
    /// The server is down.
    Down,
    /// Too many requests wait for the server.
    Busy,
    /// The server cannot be connected to.
    Lost(LossReason),
}

impl SendRefusal {
    /// Returns the words for messages.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            SendRefusal::Down => "down",
            SendRefusal::Busy => "busy",
            SendRefusal::Lost(reason) => reason.as_str(),
        }
    }
}

/// The part of the proxy that one worker owns.
pub(crate) struct ProxyWorker {
    pub(crate) state: Arc<ProxyState>,
    registry: Registry,
    /// The links by the numbers of their servers.
    links: Vec<Option<ServerLink>>,
    /// The links with bytes to send.
    changed: Vec<usize>,
    buffer: Vec<u8>,
    now: Instant,
    next_session: u64,
}

/// The connection of a worker to a server.
struct ServerLink {
    server: Arc<PoolServer>,
    options: Arc<PoolOptions>,
    /// A probe has no tag.
    connection: Option<ServerConnection<Option<RequestTag>>>,
    /// True while the link is in the list of changed links.
    is_changed: bool,
}

impl ProxyWorker {
    /// Creates the worker's part of the proxy. Connections are made when they are needed.
    pub(crate) fn new(state: Arc<ProxyState>, registry: Registry) -> ProxyWorker {
        ProxyWorker {
            state,
            registry,
            links: Vec::new(),
            changed: Vec::new(),
            buffer: vec![0; BUFFER_LEN],
            now: Instant::now(),
            next_session: 0,
        }
    }

    /// Returns the number of a new session.
    pub(crate) fn session_number(&mut self) -> u64 {
        self.next_session += 1;
        self.next_session
    }

    /// Notes the time, at the beginning of each turn of the event loop.
    pub(crate) fn tick(&mut self) {
        self.now = Instant::now();
    }

    /// Adds a request to those for a server. They are sent by [`flush`](Self::flush).
    pub(crate) fn send(
        &mut self,
        state: &ProxyState,
        pool: usize,
        server: usize,
        kind: ReplyKind,
        tag: RequestTag,
        put: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), SendRefusal> {
        let pool = &state.pools[pool];
        let server = &pool.servers[server];
        let index = server.number.get();
        if self.links.len() <= index {
            self.links.resize_with(index + 1, || None);
        }
        self.links[index].get_or_insert_with(|| ServerLink {
            server: Arc::clone(server),
            options: Arc::clone(&pool.options),
            connection: None,
            is_changed: false,
        });
        self.send_over(index, kind, tag, put)
    }

    /// Adds a request to those of a link.
    fn send_over(
        &mut self,
        index: usize,
        kind: ReplyKind,
        tag: RequestTag,
        put: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), SendRefusal> {
        let link = self.links[index].as_ref().ok_or(SendRefusal::Down)?;
        if link.server.health.is_down() {
            return Err(SendRefusal::Down);
        }
        if link.connection.is_none() {
            self.connect(index).map_err(|reason| {
                // A name may be resolved a moment later, so this is no failure of the server.
                if reason != LossReason::NameNotFound {
                    self.note_failure(index, reason, false);
                }
                SendRefusal::Lost(reason)
            })?;
        }
        let now = self.now;
        let link = self.links[index].as_mut().ok_or(SendRefusal::Down)?;
        let connection = link.connection.as_mut().ok_or(SendRefusal::Down)?;
        if connection.waiting_len() >= link.options.queue || connection.kept_len() > KEPT_LEN_MAX {
            return Err(SendRefusal::Busy);
        }
        connection.add(kind, due(now, link.options.reply_timeout), Some(tag), put);
        if !std::mem::replace(&mut link.is_changed, true) {
            self.changed.push(index);
        }
        Ok(())
    }

    /// Sends the requests that were added since the previous call: all of a server in one write.
    pub(crate) fn flush(&mut self, see: &mut dyn FnMut(RequestTag, ReplyDelivery<'_>)) {
        for index in std::mem::take(&mut self.changed) {
            let Some(link) = &mut self.links[index] else { continue };
            link.is_changed = false;
            if let Some(connection) = &mut link.connection
                && let Err(reason) = connection.flush()
            {
                self.lose(index, reason, see);
            }
        }
    }

    /// Handles an event of a connection to a server, and passes what arrives to `see`.
    pub(crate) fn on_event(
        &mut self,
        token: Token,
        event: &Event,
        see: &mut dyn FnMut(RequestTag, ReplyDelivery<'_>),
    ) {
        let index = token.0 - SERVER_TOKENS;
        let Some(Some(link)) = self.links.get_mut(index) else { return };
        let Some(connection) = &mut link.connection else { return };
        let mut outcome = if event.is_writable() { connection.flush() } else { Ok(()) };
        let mut has_answered = false;
        if outcome.is_ok() && (event.is_readable() || event.is_read_closed() || event.is_error()) {
            let has_ended = event.is_read_closed() || event.is_error();
            outcome = connection.read(&mut self.buffer, self.now, has_ended, |tag, part| {
                has_answered = true;
                if let Some(tag) = tag {
                    see(*tag, ReplyDelivery::Part(part));
                }
            });
        }
        if has_answered && link.server.health.note_success() {
            tracing::info!("proxy: server {} is up", link.server.label);
        }
        if let Err(reason) = outcome {
            self.lose(index, reason, see);
        }
    }

    /// Ends connections whose servers do not answer in time, and probes servers that are down.
    pub(crate) fn check_deadlines(&mut self, see: &mut dyn FnMut(RequestTag, ReplyDelivery<'_>)) {
        for index in 0..self.links.len() {
            let Some(link) = &self.links[index] else { continue };
            let (health, options) = (&link.server.health, &link.options);
            let probe_time = options.connect_timeout + options.reply_timeout.unwrap_or_default();
            let is_probed = health.is_down() && health.takes_probe(self.now, probe_time);
            if link.deadline().is_some_and(|at| at <= self.now) {
                self.lose(index, LossReason::TimedOut, see);
            }
            if is_probed {
                self.probe(index);
            }
        }
        self.flush(see);
    }

    /// Returns the time at which [`check_deadlines`](Self::check_deadlines) must be called.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let links = self.links.iter().flatten();
        links.flat_map(|link| [link.deadline(), link.server.health.probe_at()]).flatten().min()
    }

    /// Begins to connect to a server.
    fn connect(&mut self, index: usize) -> Result<(), LossReason> {
        let link = self.links[index].as_mut().ok_or(LossReason::Closed)?;
        let socket = match &link.server.address {
            Address::Unix(path) => ServerSocket::connect_unix(path),
            Address::Tcp(..) | Address::Tls(..) => {
                let address = link.server.resolved().ok_or(LossReason::NameNotFound)?;
                ServerSocket::connect_tcp(address)
            }
        };
        let register = |mut socket: ServerSocket| -> io::Result<ServerSocket> {
            socket.register(&self.registry, Token(SERVER_TOKENS + index))?;
            Ok(socket)
        };
        let socket = socket.and_then(register).map_err(|error| LossReason::of(&error))?;
        link.connection = Some(ServerConnection::new(socket, self.now));
        Ok(())
    }

    /// Asks a server that is down for its version.
    fn probe(&mut self, index: usize) {
        let is_connected = self.links[index].as_ref().is_some_and(|link| link.connection.is_some());
        if !is_connected && let Err(reason) = self.connect(index) {
            self.note_failure(index, reason, true);
            return;
        }
        let now = self.now;
        if let Some(link) = &mut self.links[index]
            && let Some(connection) = &mut link.connection
            && connection.waiting_len() == 0
        {
            let due = due(now, link.options.reply_timeout);
            connection.add(ReplyKind::Single, due, None, |out| out.extend_from_slice(b"version\r\n"));
            if !std::mem::replace(&mut link.is_changed, true) {
                self.changed.push(index);
            }
        }
    }

    /// Ends a connection and tells its requests.
    fn lose(&mut self, index: usize, reason: LossReason, see: &mut dyn FnMut(RequestTag, ReplyDelivery<'_>)) {
        let Some(link) = &mut self.links[index] else { return };
        let Some(connection) = link.connection.take() else { return };
        let server = Arc::clone(&link.server);
        // An idle connection that its server closes is no failure.
        let is_failure = connection.waiting_len() > 0 || !connection.is_connected();
        let lost = connection.lose();
        if is_failure {
            self.note_failure(index, reason, lost.iter().any(|lost| lost.request.is_none()));
        }
        for LostRequest { request, kind, bytes } in lost {
            let Some(tag) = request else { continue };
            let is_repeated = tag.may_repeat && reason == LossReason::Closed && !bytes.is_empty() && {
                let tag = RequestTag { may_repeat: false, ..tag };
                self.send_over(index, kind, tag, |out| out.extend_from_slice(&bytes)).is_ok()
            };
            if !is_repeated {
                see(tag, ReplyDelivery::Lost { label: &server.label, reason });
            }
        }
    }

    fn note_failure(&self, index: usize, reason: LossReason, is_probe: bool) {
        let Some(link) = &self.links[index] else { return };
        if link.server.health.note_failure(self.now, reason == LossReason::Refused, is_probe) {
            tracing::warn!("proxy: server {} is down: {}", link.server.label, reason.as_str());
        }
    }
}

impl ServerLink {
    /// Returns the time at which the connection counts as lost, unless bytes arrive before.
    fn deadline(&self) -> Option<Instant> {
        let connection = self.connection.as_ref()?;
        if !connection.is_connected() {
            return Some(connection.active_at() + self.options.connect_timeout);
        }
        let timeout = self.options.reply_timeout?;
        Some(connection.deadline()?.max(connection.active_at() + timeout))
    }
}

fn due(now: Instant, timeout: Option<Duration>) -> Instant {
    // Without a limit, the time is never reached.
    now + timeout.unwrap_or(Duration::from_secs(1 << 32))
}
