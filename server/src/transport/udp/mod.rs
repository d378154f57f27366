//! UDP, off by default: one thread, requests of one datagram, a reply message for each command.
//!
//! The sender of a datagram can be forged, and then the reply hits a victim. Therefore UDP is off
//! by default, and all replies to one datagram together are bounded
//! ([`ListenOptions::udp_reply_max`](crate::ListenOptions)): longer ones are replaced by an error.
//! Datagrams that look like a reply are not answered, because two servers would answer each other
//! without end.
//!
//! Differs from memcached in one point: a get of several keys is answered by one message, not by
//! one message for each key with the same number, which no client could put together.

pub(crate) mod message;
mod socket;

pub(crate) use socket::Socket;

use crate::execution::Executor;
use crate::handle::Stopping;
use crate::session::context::WorkerContext;
use crate::session::memcached::commands::answer;
use crate::session::memcached::session::MemcachedSession;
use crate::session::{Next, Session};
use crate::shared::Shared;
use crate::transport::output::Output;
use message::RequestId;
use mio::{Events, Poll, Token, Waker};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use todana::Clock;
use todana_core::{RefusalReason, Reply};
use todana_protocol::memcached::MemcachedCommand;
use todana_protocol::memcached::{DialectChoice, MemcachedLimits, MemcachedStep, ReplyForm, encode};

const WAKE: Token = Token(usize::MAX);
/// Longer than any datagram.
const BUFFER: usize = 64 << 10;
/// The number of datagrams of one socket before another socket is served.
const DATAGRAMS: usize = 64;

const TOO_LARGE: &str = "SERVER_ERROR reply too large for UDP";

/// The thread that serves UDP.
pub(crate) struct UdpThread {
    shared: Arc<Shared>,
    poll: Poll,
    sockets: Vec<Socket>,
    server: DatagramServer,
    buffer: Vec<u8>,
}

impl UdpThread {
    pub(crate) fn new(
        shared: Arc<Shared>,
        mut sockets: Vec<Socket>,
        number: usize,
    ) -> io::Result<(UdpThread, Arc<Waker>)> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKE)?);
        for (index, socket) in sockets.iter_mut().enumerate() {
            socket.register(poll.registry(), Token(index))?;
        }
        let context = WorkerContext::new(&shared, number);
        let reply_max = shared.options.listen.udp_reply_max;
        let server = DatagramServer::new(context, shared.limits(), reply_max);
        Ok((UdpThread { shared, poll, sockets, server, buffer: vec![0; BUFFER] }, waker))
    }

    /// Runs until the server stops.
    pub(crate) fn run(mut self) {
        let mut events = Events::with_capacity(64);
        let mut ready = VecDeque::new();
        while self.shared.lifecycle.stopping() == Stopping::No {
            let timeout = (!ready.is_empty()).then_some(std::time::Duration::ZERO);
            if let Err(error) = self.poll.poll(&mut events, timeout)
                && error.kind() != io::ErrorKind::Interrupted
            {
                tracing::error!(%error, "UDP: cannot wait for datagrams");
                self.shared.lifecycle.handle.stop();
                return;
            }
            self.shared.clock.tick();
            for index in events.iter().map(|event| event.token().0).filter(|&index| index != WAKE.0) {
                if !ready.contains(&index) {
                    ready.push_back(index);
                }
            }
            for _ in 0..ready.len() {
                if let Some(index) = ready.pop_front()
                    && !self.serve(index)
                {
                    ready.push_back(index);
                }
            }
        }
    }

    /// Serves the datagrams that wait at a socket; returns false if there may be more.
    fn serve(&mut self, index: usize) -> bool {
        let counters = &self.shared.observation.workers[self.server.context.worker];
        let socket = &self.sockets[index];
        let info = &self.shared.observation.connection_table.datagrams()[index];
        self.server.context.serve(index, info.descriptor);
        self.server.limits.choice = self.shared.choice(socket.choice);
        for _ in 0..DATAGRAMS {
            match socket.receive(&mut self.buffer) {
                Ok((len, peer)) => {
                    counters.bytes_read.add(len as u64);
                    info.set_last_command_at(self.shared.clock.now().0);
                    self.server.serve(&self.buffer[..len], |datagram| {
                        // The system drops datagrams that it has no room for.
                        let sent = socket.send(datagram, peer);
                        counters.bytes_written.add(*sent.as_ref().unwrap_or(&0) as u64);
                        sent.is_ok()
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                // Other errors concern the path to an earlier sender.
                Err(_) => {}
            }
        }
        false
    }
}

/// The server of single datagrams, independent of sockets.
struct DatagramServer {
    context: WorkerContext,
    limits: MemcachedLimits,
    /// The limit of all replies to a datagram, in bytes.
    reply_max: usize,
    output: Output,
    message: Vec<u8>,
    scratch: Vec<u8>,
}

impl DatagramServer {
    fn new(context: WorkerContext, limits: MemcachedLimits, reply_max: usize) -> Self {
        let (output, message, scratch) = Default::default();
        DatagramServer { context, limits, reply_max, output, message, scratch }
    }

    /// Answers each request in a datagram by a message.
    fn serve(&mut self, datagram: &[u8], mut send: impl FnMut(&[u8]) -> bool) {
        let Some((id, payload)) = message::request(datagram) else { return };
        if is_reply(payload) {
            return;
        }
        let is_binary = self.limits.choice != DialectChoice::Text && payload.first() == Some(&0x80);
        let mut session = MemcachedSession::new(self.limits.choice);
        let mut room = self.reply_max;
        let mut at = 0;
        self.output.clear(0);
        // An incomplete request stays incomplete.
        let mut before = (at, session.dialect);
        while let MemcachedStep::Request { consumed, request } =
            session.dialect.decode(&self.limits, &payload[at..], &mut self.scratch)
        {
            at += consumed;
            // The further keys of a line that is already too long are not looked up.
            let next = if self.output.len() > room {
                Next::Continue
            } else {
                match request.command {
                    // Lists, watches and exports have no end. A login or a chosen database would
                    // not last.
                    MemcachedCommand::List(_)
                    | MemcachedCommand::Watch(_)
                    | MemcachedCommand::Export(_)
                    | MemcachedCommand::UseDatabase(_) => {
                        refuse(&mut self.output, |out| answer(&request, &Reply::Unknown, out))
                    }
                    MemcachedCommand::Authenticate(_) => refuse(&mut self.output, |out| {
                        answer(&request, &Reply::Refused(RefusalReason::NotAuthenticated), out);
                    }),
                    _ => {
                        let next = if self.context.logs_requests {
                            let (from, dialect) = before;
                            let head = dialect.head(&self.limits, &payload[from..]);
                            session.execute_logged(&mut self.context, head, &request, &mut self.output)
                        } else {
                            session.execute(&mut self.context, &request, &mut self.output)
                        };
                        if !settle(&self.context) {
                            // It is unknown whether the reply is true. Clients of UDP expect lost
                            // replies.
                            self.output.clear(0);
                        }
                        next
                    }
                }
            };
            // Statistics that walk over all records.
            if let Some(mut listing) = session.listing.take() {
                while !listing.step(&mut self.output) && self.output.len() <= room {}
            }
            if request.form.is_last_of_line() {
                if self.output.len() > room {
                    self.output.clear(0);
                    if is_binary {
                        answer(&request, &Reply::Refused(RefusalReason::TooLarge), &mut self.output);
                    } else {
                        encode(&ReplyForm::LINE, &Reply::Faulty(TOO_LARGE), &mut self.output);
                    }
                }
                room = room.saturating_sub(self.finish(id, room, &mut send));
            }
            if next.is_last() {
                break;
            }
            before = (at, session.dialect);
        }
        // A pending reply is not waited for. Clients of UDP expect lost replies.
        session.leave(&mut self.context);
        // Keys of a line without a last key. There are none, but nothing may remain.
        self.output.clear(0);
    }

    /// Sends the output if it is within the limit; returns its length.
    fn finish(&mut self, id: RequestId, room: usize, send: &mut impl FnMut(&[u8]) -> bool) -> usize {
        self.message.clear();
        if self.output.len() <= room {
            // Writing to a vector does not fail.
            let _ = self.output.write_to(&mut self.message);
            message::send(id, &self.message, send);
        }
        self.output.clear(BUFFER);
        self.message.len()
    }
}

/// Waits until the writes since the last call are durable; returns false if that is unknown.
fn settle(context: &WorkerContext) -> bool {
    let (shared, Some(local)) = (&context.shared, context.executor.databases().first()) else { return true };
    // Replies to reads do not wait.
    let Some(point) = local.take_commit() else { return true };
    let Some(durability) = shared.databases.primary().database.durability() else { return true };
    durability.request(point);
    // A stop does not wait for a disk that does not respond.
    let goes_on = || shared.lifecycle.stopping() == Stopping::No;
    let is_durable = durability.wait_while(point, &goes_on);
    if !is_durable {
        // A later reply must not be sent before, either.
        local.note_commit(point);
    }
    is_durable
}

fn refuse(output: &mut Output, write: impl FnOnce(&mut Output)) -> Next {
    write(output);
    Next::Continue
}

/// Returns true if the payload looks like a server's reply to an unknown command. Answering it
/// would cause another such reply.
fn is_reply(payload: &[u8]) -> bool {
    [&b"ERROR"[..], b"CLIENT_ERROR", b"SERVER_ERROR"].iter().any(|start| payload.starts_with(start))
}
