//! Serves the statistics of a proxy in the form of twemproxy: a JSON object for each connection,
//! which is closed after it.
//!
//! The names are those of `nutcracker --describe-stats`. One thread writes the object to one
//! connection after another. Its time is limited, so a client that does not read holds up others
//! only for a moment.

use crate::handle::StopStage;
use crate::options::NutcrackerStatsOptions;
use crate::proxy::{PoolServer, ProxyPool, ServerCount};
use crate::shared::SharedState;
use mio::net::TcpListener;
use mio::{Events, Interest, Poll, Token, Waker};
use std::fmt::Write as _;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The version of twemproxy whose statistics these are.
const VERSION: &str = "0.5.0";
/// The longest time for which a connection may accept no bytes.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);
/// The pause after a failure to accept a connection.
const PAUSE: Duration = Duration::from_millis(100);

/// The bound port.
pub(crate) struct NutcrackerPort {
    listener: TcpListener,
    poll: Poll,
}

impl NutcrackerPort {
    /// Binds the address of the options.
    pub(crate) fn bind(options: &NutcrackerStatsOptions) -> io::Result<NutcrackerPort> {
        let NutcrackerStatsOptions { address, port } = options;
        let failed = |error: io::Error| {
            io::Error::new(error.kind(), format!("statistics: cannot listen on {address}:{port}: {error}"))
        };
        let mut found = (address.as_str(), *port).to_socket_addrs().map_err(failed)?;
        let found = found.next().ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
        let mut listener = TcpListener::bind(found).map_err(failed)?;
        let poll = Poll::new()?;
        poll.registry().register(&mut listener, Token(0), Interest::READABLE)?;
        Ok(NutcrackerPort { listener, poll })
    }

    /// Returns the bound address.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.listener.local_addr().ok()
    }

    /// Returns the waker that interrupts a wait for connections.
    pub(crate) fn waker(&self) -> io::Result<Arc<Waker>> {
        Waker::new(self.poll.registry(), Token(1)).map(Arc::new)
    }

    /// Serves until the server stops.
    pub(crate) fn run(mut self, shared: &SharedState) {
        let mut events = Events::with_capacity(4);
        while shared.lifecycle.stopping() == StopStage::No {
            match self.listener.accept() {
                // A client that does not read gets only a part.
                Ok((stream, _)) => drop(send(stream.into(), &object(shared))),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if let Err(error) = self.poll.poll(&mut events, None)
                        && error.kind() != io::ErrorKind::Interrupted
                    {
                        return tracing::error!(%error, "statistics: cannot wait for connections");
                    }
                }
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
    }
}

fn send(mut stream: TcpStream, text: &str) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
    stream.write_all(text.as_bytes())
}

/// Returns the object.
fn object(shared: &SharedState) -> String {
    let Some(proxy) = &shared.proxy else { return String::new() };
    let observation = &shared.observation;
    let (total, current) = (&observation.connections.total, &observation.connections.current);
    let mut text = JsonObject::default();
    text.text("service", "nutcracker");
    text.text("source", &rustix::system::uname().nodename().to_string_lossy());
    text.text("version", VERSION);
    text.number("uptime", observation.started.elapsed().as_secs());
    text.number("timestamp", unix_time().as_secs());
    text.number("total_connections", total.load(Ordering::Relaxed));
    text.number("curr_connections", current.load(Ordering::Relaxed));
    let state = proxy.state();
    for pool in &state.pools {
        text.object(&pool.name, &pool_object(pool, &proxy.clients_of(&pool.name)));
    }
    format!("{{{}}}\n", text.0)
}

/// Returns the content of the object of a pool. `clients` are the numbers of its clients, of
/// those that have left after a failure, and of the others that have left.
fn pool_object(pool: &ProxyPool, clients: &[u64; 3]) -> String {
    let servers: Vec<_> = pool.servers.iter().map(|server| (server, server.counters.sums())).collect();
    let ejects: u64 = servers.iter().map(|(_, sums)| sums.of(ServerCount::Downs)).sum();
    // Requests that were given up count, too.
    let unanswered = servers.iter().map(|(_, sums)| {
        let given_up = sums.of(ServerCount::Ended).saturating_sub(sums.of(ServerCount::Replies));
        given_up + sums.of(ServerCount::NotSent)
    });
    let mut text = JsonObject::default();
    let [current, failed, eof] = *clients;
    text.number("client_eof", eof);
    text.number("client_err", failed);
    text.number("client_connections", current);
    text.number("server_ejects", if pool.options.eject { ejects } else { 0 });
    text.number("forward_error", unanswered.sum());
    text.number("fragments", pool.counters.sums().line_parts());
    for (server, _) in &servers {
        text.object(&server.label, &server_object(server, pool.options.eject));
    }
    text.0
}

fn server_object(server: &PoolServer, is_ejected: bool) -> String {
    let sums = server.counters.sums();
    let is_out = is_ejected && server.health.is_down();
    let ejected_at = is_out.then(|| unix_time().saturating_sub(server.health.changed_at().elapsed()));
    let closed = sums.of(ServerCount::ClosedByServer);
    let timed_out = sums.of(ServerCount::TimedOut);
    let mut text = JsonObject::default();
    text.number("server_eof", closed);
    text.number("server_err", sums.of(ServerCount::NotConnected));
    text.number("server_timedout", timed_out);
    text.number("server_connections", server.counters.connections());
    text.number("server_ejected_at", ejected_at.map_or(0, |at| at.as_micros() as u64));
    text.number("requests", sums.of(ServerCount::Requests));
    text.number("request_bytes", sums.of(ServerCount::WrittenBytes));
    text.number("responses", sums.of(ServerCount::Replies));
    text.number("response_bytes", sums.of(ServerCount::ReadBytes));
    // Requests are written in the turn in which they arrive, so none wait to be sent.
    text.number("in_queue", 0);
    text.number("in_queue_bytes", 0);
    text.number("out_queue", server.counters.in_flight());
    text.number("out_queue_bytes", 0);
    text.0
}

fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The members of an object, in twemproxy's spacing. Writing to a String does not fail.
#[derive(Default)]
struct JsonObject(String);

impl JsonObject {
    fn name(&mut self, name: &str) {
        let separator = match self.0.chars().last() {
            None => "",
            Some('}') => ",",
            Some(_) => ", ",
        };
        let _ = write!(self.0, "{separator}{}:", quoted(name));
    }

    fn text(&mut self, name: &str, value: &str) {
        self.name(name);
        self.0 += &quoted(value);
    }

    fn number(&mut self, name: &str, value: u64) {
        self.name(name);
        let _ = write!(self.0, "{value}");
    }

    fn object(&mut self, name: &str, members: &str) {
        self.name(name);
        let _ = write!(self.0, " {{{members}}}");
    }
}

fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for char in text.chars() {
        match char {
            '"' | '\\' => quoted.extend(['\\', char]),
            char if char.is_control() => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(char));
            }
            char => quoted.push(char),
        }
    }
    quoted + "\""
}
