//! UDP, where it is asked for: one thread, requests of one datagram, each command with a reply message of its own.
//!
//! The sender of a datagram can be forged, and then the reply goes to a victim. So this is off unless asked for, and all
//! replies to one datagram together are bounded ([`ListenOptions::udp_reply_max`](crate::ListenOptions)): what is longer is answered by
//! an error. Nor is anything answered that looks like a reply: two servers shall not talk to each other for ever.
//!
//! Departs from memcached in one point: a get of several keys is answered by one message, not by one a key with the
//! same number, which no client could put together.

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
/// Datagrams of one socket in a row before others get a turn.
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
                tracing::error!(%error, "cannot wait for datagrams");
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

    /// Serves what waits on a socket; false if there may be more.
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
                        // What the system has no room for is lost, as datagrams are.
                        let sent = socket.send(datagram, peer);
                        counters.bytes_written.add(*sent.as_ref().unwrap_or(&0) as u64);
                        sent.is_ok()
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                // Others come from the path to a former sender.
                Err(_) => {}
            }
        }
        false
    }
}

/// What is done with one datagram; knows no socket.
struct DatagramServer {
    context: WorkerContext,
    limits: MemcachedLimits,
    /// All replies to a datagram together, in bytes.
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

    /// Answers the requests in a datagram, each by a message in as many datagrams as it takes.
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
        // What is not whole will never be.
        let mut before = (at, session.dialect);
        while let MemcachedStep::Request { consumed, request } =
            session.dialect.decode(&self.limits, &payload[at..], &mut self.scratch)
        {
            at += consumed;
            // Of a line that has become too long the other keys need not be looked for.
            let next = if self.output.len() > room {
                Next::Continue
            } else {
                match request.command {
                    // A list, a watch or an export has no end; nobody stays logged in, or at a database.
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
                            // Whether it is true nobody knows; senders of datagrams are used to hearing nothing.
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
        // Nobody waits for a reply that is pending: senders of datagrams are used to hearing nothing.
        session.leave(&mut self.context);
        // Keys of a line whose last one was never answered; there are none, but nothing may stay behind.
        self.output.clear(0);
    }

    /// Sends what has been written, if there is room for it; returns its length.
    fn finish(&mut self, id: RequestId, room: usize, send: &mut impl FnMut(&[u8]) -> bool) -> usize {
        self.message.clear();
        if self.output.len() <= room {
            // A vector takes whatever is written.
            let _ = self.output.write_to(&mut self.message);
            message::send(id, &self.message, send);
        }
        self.output.clear(BUFFER);
        self.message.len()
    }
}

/// Waits until what has been executed is settled, as far as it has not been before; returns false if that cannot be known.
fn settle(context: &WorkerContext) -> bool {
    let (shared, Some(local)) = (&context.shared, context.executor.databases().first()) else { return true };
    // Answers to reads wait for nothing.
    let Some(point) = local.take_commit() else { return true };
    let Some(durability) = shared.databases.primary().database.durability() else { return true };
    durability.request(point);
    // A stop does not wait for a disk that does not answer.
    let goes_on = || shared.lifecycle.stopping() == Stopping::No;
    let is_durable = durability.wait_while(point, &goes_on);
    if !is_durable {
        // Nor may a later answer leave before.
        local.note_commit(point);
    }
    is_durable
}

fn refuse(output: &mut Output, write: impl FnOnce(&mut Output)) -> Next {
    write(output);
    Next::Continue
}

/// Whether it looks like what a server says to a line that it does not understand. An answer to that would be answered
/// again.
fn is_reply(payload: &[u8]) -> bool {
    [&b"ERROR"[..], b"CLIENT_ERROR", b"SERVER_ERROR"].iter().any(|start| payload.starts_with(start))
}
