//! Serves requests over UDP, on one thread. A request is one datagram; each command gets a message
//! as its reply.
//!
//! A client can forge the sender of a datagram, and the reply then goes to a victim. UDP is
//! therefore disabled by default, and the total length of all replies to one datagram is limited
//! ([`ListenOptions::udp_reply_max`](crate::ListenOptions)): a longer reply is replaced by an
//! error. Datagrams that look like a reply are not answered, because otherwise two servers could
//! answer each other without end.
//!
//! There is one difference from memcached. A `get` of several keys is answered by one message.
//! memcached sends one message for each key, all with the same number, which a client cannot
//! assemble.

pub(crate) mod message;
mod socket;

pub(crate) use socket::DatagramSocket;

use crate::databases::PRIMARY_DATABASE;
use crate::execution::Executor;
use crate::handle::StopStage;
use crate::session::memcached::commands::answer;
use crate::session::memcached::session::MemcachedSession;
use crate::session::worker_context::WorkerContext;
use crate::session::{NextAction, Session};
use crate::shared::SharedState;
use crate::transport::output::ConnectionOutput;
use message::RequestId;
use mio::{Events, Poll, Token, Waker};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use todana::{Clock, CommitPoint};
use todana_core::{RefusalReason, Reply};
use todana_protocol::memcached::MemcachedCommand;
use todana_protocol::memcached::{DialectChoice, MemcachedLimits, MemcachedStep, ReplyForm, encode};

const WAKE: Token = Token(usize::MAX);
/// The length of the receive buffer, which is longer than any datagram.
const BUFFER: usize = 64 << 10;
/// The maximum number of datagrams that are served from one socket before another socket is served.
const DATAGRAMS: usize = 64;

/// The interval at which replies that wait for replicas are checked.
const HELD_CHECK: Duration = Duration::from_millis(5);
/// The maximum number of replies that wait for replicas. Older ones are dropped, as datagrams may
/// be.
const HELD_MAX: usize = 4096;

const TOO_LARGE: &str = "SERVER_ERROR reply too large for UDP";

/// The thread that serves UDP.
pub(crate) struct UdpThread {
    shared: Arc<SharedState>,
    poll: Poll,
    sockets: Vec<DatagramSocket>,
    server: DatagramServer,
    buffer: Vec<u8>,
    /// The replies that wait for replicas, with their sockets and destinations.
    held: Vec<(usize, SocketAddr, HeldReply)>,
}

/// A reply to a change that replicas have not confirmed yet.
struct HeldReply {
    id: RequestId,
    message: Vec<u8>,
    /// The reply if they do not confirm it in time.
    error: Vec<u8>,
    point: CommitPoint,
    deadline: Instant,
}

impl UdpThread {
    pub(crate) fn new(
        shared: Arc<SharedState>,
        mut sockets: Vec<DatagramSocket>,
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
        Ok((UdpThread { shared, poll, sockets, server, buffer: vec![0; BUFFER], held: Vec::new() }, waker))
    }

    /// Runs until the server stops.
    pub(crate) fn run(mut self) {
        let mut events = Events::with_capacity(64);
        let mut ready = VecDeque::new();
        while self.shared.lifecycle.stopping() == StopStage::No {
            let timeout = match (ready.is_empty(), self.held.is_empty()) {
                (false, _) => Some(Duration::ZERO),
                (true, false) => Some(HELD_CHECK),
                (true, true) => None,
            };
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
            self.release_held();
            for _ in 0..ready.len() {
                if let Some(index) = ready.pop_front()
                    && !self.serve(index)
                {
                    ready.push_back(index);
                }
            }
        }
    }

    /// Sends the replies to changes that replicas have confirmed, and errors in place of those that
    /// they have not confirmed in time.
    fn release_held(&mut self) {
        let counters = &self.shared.observation.workers[self.server.context.worker];
        let (shared, sockets) = (&self.shared, &self.sockets);
        self.held.retain(|(index, peer, reply)| {
            let message = if shared.acks.is_confirmed(PRIMARY_DATABASE, reply.point) {
                &reply.message
            } else if Instant::now() >= reply.deadline || shared.databases.primary().database.is_superseded()
            {
                &reply.error
            } else {
                return true;
            };
            message::send(reply.id, message, |datagram| {
                let sent = sockets[*index].send(datagram, *peer);
                counters.bytes_written.add(*sent.as_ref().unwrap_or(&0) as u64);
                sent.is_ok()
            });
            false
        });
    }

    /// Serves the datagrams that wait at a socket. Returns false if more may be waiting.
    fn serve(&mut self, index: usize) -> bool {
        let counters = &self.shared.observation.workers[self.server.context.worker];
        let socket = &self.sockets[index];
        let info = &self.shared.observation.connection_table.datagrams()[index];
        self.server.context.serve(index, 0, info.descriptor);
        self.server.limits.choice = self.shared.choice(socket.choice);
        for _ in 0..DATAGRAMS {
            match socket.receive(&mut self.buffer) {
                Ok((len, peer)) => {
                    counters.bytes_read.add(len as u64);
                    info.set_last_command_at(self.shared.clock.now().0);
                    self.server.serve(&self.buffer[..len], |datagram| {
                        // If the system's buffer is full, the datagram is lost, as datagrams may
                        // be.
                        let sent = socket.send(datagram, peer);
                        counters.bytes_written.add(*sent.as_ref().unwrap_or(&0) as u64);
                        sent.is_ok()
                    });
                    let held = std::mem::take(&mut self.server.held);
                    self.held.extend(held.into_iter().map(|reply| (index, peer, reply)));
                    if self.held.len() > HELD_MAX {
                        self.held.drain(..self.held.len() - HELD_MAX);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                // Other errors report that an earlier reply did not reach its destination.
                Err(_) => {}
            }
        }
        false
    }
}

/// Serves single datagrams. It owns no socket.
struct DatagramServer {
    context: WorkerContext,
    limits: MemcachedLimits,
    /// The limit of all replies to a datagram, in bytes.
    reply_max: usize,
    output: ConnectionOutput,
    message: Vec<u8>,
    scratch: Vec<u8>,
    /// The last change of the current message for which replicas are awaited, and the reply if they
    /// do not confirm it.
    awaited: Option<(CommitPoint, Vec<u8>)>,
    /// The replies that wait for replicas.
    held: Vec<HeldReply>,
}

impl DatagramServer {
    fn new(context: WorkerContext, limits: MemcachedLimits, reply_max: usize) -> Self {
        let (output, message, scratch, awaited, held) = Default::default();
        DatagramServer { context, limits, reply_max, output, message, scratch, awaited, held }
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
        // A request that is incomplete in its datagram is never completed.
        let mut before = (at, session.dialect);
        while let MemcachedStep::Request { consumed, request } =
            session.dialect.decode(&self.limits, &payload[at..], &mut self.scratch)
        {
            at += consumed;
            // Once the reply to a line is too long, the remaining keys of the line are not looked
            // up.
            let next = if self.output.len() > room {
                NextAction::Continue
            } else {
                match request.command {
                    // Lists, watchers and exports need a connection. A login or a selected database
                    // would have no effect on the next datagram.
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
                        match settle(&self.context) {
                            // It is unknown whether the change is durable, so no reply is sent.
                            // Clients that use UDP expect lost replies.
                            Err(()) => self.output.clear(0),
                            Ok(Some(point)) => {
                                let (mut error, mut bytes) = (ConnectionOutput::default(), Vec::new());
                                answer(&request, &Reply::Refused(RefusalReason::Unconfirmed), &mut error);
                                // Writing to a vector does not fail.
                                let _ = error.write_to(&mut bytes);
                                self.awaited = Some((point, bytes));
                            }
                            Ok(None) => {}
                        }
                        next
                    }
                }
            };
            // Some statistics require a walk over all records.
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
        // A reply that is pending is dropped. Clients that use UDP expect lost replies.
        session.leave(&mut self.context);
        self.context.executor.end_turn();
        // The reply to the last key of a line has been sent, so nothing should remain. Clearing the
        // output makes sure of that.
        self.output.clear(0);
    }

    /// Sends the output as one message, unless it is longer than `room`. Returns the number of
    /// bytes that were sent, without headers.
    fn finish(&mut self, id: RequestId, room: usize, send: &mut impl FnMut(&[u8]) -> bool) -> usize {
        self.message.clear();
        if self.output.len() <= room {
            // Writing to a vector does not fail.
            let _ = self.output.write_to(&mut self.message);
            match self.awaited.take() {
                Some(_) if self.message.is_empty() => {}
                Some((point, error)) => {
                    let (message, deadline) = (self.message.clone(), self.context.shared.acks.deadline());
                    self.held.push(HeldReply { id, message, error, point, deadline });
                }
                None => message::send(id, &self.message, send),
            }
        }
        self.output.clear(BUFFER);
        self.message.len()
    }
}

/// Waits until the writes since the previous call are durable. Returns the point that replicas have
/// not confirmed, if their confirmation is needed. Fails if it is unknown whether the writes are
/// durable.
fn settle(context: &WorkerContext) -> Result<Option<CommitPoint>, ()> {
    let (shared, Some(local)) = (&context.shared, context.executor.databases().first()) else {
        return Ok(None);
    };
    // If there were no writes, nothing has to be waited for.
    let Some(point) = local.take_commit() else { return Ok(None) };
    let Some(durability) = shared.databases.primary().database.durability() else { return Ok(None) };
    durability.request(point);
    // A server that stops does not wait for a disk that does not respond.
    let may_continue = || shared.lifecycle.stopping() == StopStage::No;
    let is_durable = durability.wait_while(point, &may_continue);
    if !is_durable {
        // Later replies must wait for this commit, too.
        local.note_commit(point);
        return Err(());
    }
    Ok((!shared.acks.is_confirmed(PRIMARY_DATABASE, point)).then_some(point))
}

fn refuse(output: &mut ConnectionOutput, write: impl FnOnce(&mut ConnectionOutput)) -> NextAction {
    write(output);
    NextAction::Continue
}

/// Returns true if the payload looks like a server's reply to an unknown command. Answering it
/// would cause another such reply.
fn is_reply(payload: &[u8]) -> bool {
    [&b"ERROR"[..], b"CLIENT_ERROR", b"SERVER_ERROR"].iter().any(|start| payload.starts_with(start))
}
